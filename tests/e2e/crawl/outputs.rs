//! Pages stored in a real `PostgreSQL` server, and a program that runs for each page.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::support::origin::{Origin, Site};
use crate::support::postgres::Postgres;
use crate::support::process::{Process, Server, run_tidings, tidings_command};
use crate::support::wait::wait_until;

fn test_site(pages: u32) -> Site {
    Site { pages, robots: Some("User-agent: *\nDisallow: /private/\n"), ..Site::default() }
}

/// The URLs of fetched pages, read with `psql`.
fn stored_urls(postgres: &Postgres) -> Vec<String> {
    postgres.query("select url from pages where outcome = 'done' order by url")
}

#[test]
#[ignore = "needs foreign programs"]
fn pages_are_stored_in_postgresql() {
    let (postgres, origin) = (Postgres::start(), Origin::serve(test_site(40)));
    let folder = TempDir::new().unwrap();
    let arguments =
        ["crawl", "--allow-private", "--postgres", &postgres.url(), &origin.url(0, "/p/0")];
    let finished = run_tidings(folder.path(), &arguments).expect_code(0);
    assert!(
        finished.stdout().concat().contains("in postgres://127.0.0.1"),
        "the output names the database"
    );
    assert_eq!(stored_urls(&postgres).len(), 40);
    assert!(!folder.path().join("tidings-data/pages.db").exists(), "SQLite was not requested");
    let links = "select jsonb_array_length(links), title, status, pass, attempt from pages where url like '%/p/1'";
    assert_eq!(postgres.query(links).len(), 1);
    // Another pass adds new rows; the tables exist already.
    run_tidings(folder.path(), &arguments).expect_code(0);
    assert_eq!(
        postgres.query("select count(*), count(distinct page) from pages where outcome = 'done'"),
        ["80|80"]
    );
    assert_eq!(postgres.query("select version from tidings_schema"), ["1"]);
    assert_eq!(postgres.query("select count(*) from bodies"), ["0"]);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_stopped_database_pauses_the_crawl() {
    let (postgres, origin) = (Postgres::start(), Origin::serve(test_site(300)));
    let server =
        Server::start_up(&["--allow-private", "--delay", "5ms", "--postgres", &postgres.url()]);
    let arguments = ["crawl", "--quiet", &origin.url(0, "/p/0")];
    let job = Process::start(&mut tidings_command(server.folder.path(), arguments));
    wait_until("some pages to be stored", || (stored_urls(&postgres).len() > 20).then_some(()));
    postgres.crash();
    server.process.wait_for_line_with("fetched pages wait and no new tasks are taken");
    postgres.start_server();
    server.process.wait_for_line_with("can be written again");
    job.finish().expect_code(0);
    let paths: BTreeSet<_> = stored_urls(&postgres).into_iter().collect();
    assert_eq!(paths.len(), 300);
    assert_eq!(postgres.query("select count(*) from pages where outcome = 'done'"), ["300"]);
}

#[test]
fn an_unreachable_database_is_reported_before_the_first_fetch() {
    let origin = Origin::serve(test_site(1));
    let folder = TempDir::new().unwrap();
    let url = "postgres://nobody@127.0.0.1:1/none";
    let arguments = ["crawl", "--allow-private", "--postgres", url, &origin.url(0, "/p/0")];
    run_tidings(folder.path(), &arguments)
        .expect_code(1)
        .expect_stderr("postgres://127.0.0.1:1/none: ");
    assert_eq!(origin.request_count(), 0);
    let finished =
        run_tidings(folder.path(), &["crawl", "--postgres", "nonsense", "http://a.example/"]);
    assert!(finished.expect_code(2).stderr().contains("postgres://crawler@db.example.org/pages"));
}

#[test]
fn exec_runs_a_program_for_each_page_without_a_shell() {
    let origin = Origin::serve(test_site(12));
    let folder = TempDir::new().unwrap();
    let program = write_script(
        folder.path(),
        "#!/bin/sh\ncp \"$PAGE_PATH\" \"bodies/$(basename \"$PAGE_URL\")\"\necho \"$PAGE_STATUS $PAGE_ID\" >> ids\n",
    );
    fs::create_dir(folder.path().join("bodies")).unwrap();
    let arguments = ["crawl", "--allow-private", "--exec", &program, &origin.url(0, "/p/0")];
    run_tidings(folder.path(), &arguments).expect_code(0);
    let body = fs::read_to_string(folder.path().join("bodies/7")).unwrap();
    assert!(body.contains("<title>Page 7 of 127.1.0.1</title>"), "{body}");
    assert_eq!(fs::read_dir(folder.path().join("bodies")).unwrap().count(), 12);
    let ids = fs::read_to_string(folder.path().join("ids")).unwrap();
    let ids: BTreeSet<_> = ids.lines().collect();
    assert!(ids.len() == 12 && ids.iter().all(|id| id.starts_with("200 crawlers.")), "{ids:?}");
}

#[test]
fn a_page_that_a_program_rejects_is_retried() {
    let origin = Origin::serve(test_site(1));
    let folder = TempDir::new().unwrap();
    let program = write_script(
        folder.path(),
        "#!/bin/sh\necho $PAGE_ATTEMPT >> attempts\ntest \"$(wc -l < attempts)\" -ge 2\n",
    );
    let arguments = ["crawl", "--allow-private", "--exec", &program, &origin.url(0, "/p/0")];
    run_tidings(folder.path(), &arguments).expect_code(0);
    let attempts = fs::read_to_string(folder.path().join("attempts")).unwrap();
    let attempts: Vec<u32> = attempts.lines().map(|line| line.parse().unwrap()).collect();
    assert!(matches!(attempts[..], [first, second] if first < second), "{attempts:?}");
}

#[test]
fn an_interrupted_crawl_kills_its_programs_and_starts_no_more() {
    let origin = Origin::serve(Site { hosts: 20, ..test_site(1) });
    let folder = TempDir::new().unwrap();
    let program = write_script(folder.path(), "#!/bin/sh\necho $$ >> pids\nexec sleep 1000\n");
    let arguments = ["crawl", "--allow-private", "--exec", &program].map(str::to_owned);
    let crawl = Process::start(&mut tidings_command(
        folder.path(),
        [arguments.to_vec(), origin.seed_urls()].concat(),
    ));
    let pids = || fs::read_to_string(folder.path().join("pids")).unwrap_or_default();
    wait_until("a program to run", || (!pids().is_empty()).then_some(()));
    // Robots.txt and the first page of each host. All but the first pages wait for the programs.
    origin.wait_for_hits(40);
    crawl.signal_and_finish("INT").expect_code(130);
    // A program started later would still be asleep.
    wait_until("all programs to end", || (!is_working_directory(folder.path())).then_some(()));
    assert!(pids().lines().count() <= 8, "more programs than run at once: {}", pids());
}

/// Whether a process has this working directory.
fn is_working_directory(folder: &Path) -> bool {
    let folder = folder.canonicalize().unwrap();
    let processes = fs::read_dir("/proc").unwrap();
    let mut homes =
        processes.filter_map(|process| fs::read_link(process.ok()?.path().join("cwd")).ok());
    homes.any(|home| home == folder)
}

pub(crate) fn write_script(folder: &Path, text: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("program");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}
