//! `--never FILE`: hosts and URLs that nothing may request.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site};
use crate::support::process::{Server, run_at, run_tidings};
use crate::support::wait::wait_until;

const UP_COMMAND: [&str; 8] =
    ["up", "--allow-private", "--delay", "10ms", "--log", "info", "--never", "never.txt"];

const SITE: Site = Site {
    hosts: 3,
    pages: 40,
    robots: Some("User-agent: *\nDisallow: /private/\n"),
    response_delay: Duration::from_millis(5),
    links_across_hosts: true,
};

/// The host that is put on the list.
fn listed() -> Ipv4Addr {
    Site::host(1)
}

fn start(list: &str) -> (Server, PathBuf) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("never.txt");
    fs::write(&file, list).unwrap();
    (Server::start_in(folder, &UP_COMMAND, |_| ()), file)
}

fn requests_to_listed(origin: &Origin) -> usize {
    origin.request_log().0.iter().filter(|hit| hit.host == listed()).count()
}

#[test]
fn a_host_on_the_list_gets_no_request_after_a_reload_and_a_kill() {
    let origin = Origin::serve(SITE);
    let (server, file) = start("# nothing yet\n");
    run_at(&server, &["job", "open", "site"]).expect_code(0);
    let seeds = origin.seed_urls();
    let seeds: Vec<_> = seeds.iter().map(String::as_str).collect();
    run_at(&server, &[&["job", "add", "site"], &seeds[..]].concat()).expect_code(0);
    run_at(&server, &["job", "close", "site"]).expect_code(0);
    wait_until("the host was requested", || (requests_to_listed(&origin) > 3).then_some(()));

    fs::write(&file, format!("# complaint 2381\n{}\n", listed())).unwrap();
    server.process.signal("HUP");
    server.process.wait_for_line_with("configuration reloaded");
    // One request may be on its way.
    let before = requests_to_listed(&origin) + 1;
    let server = server.restart("KILL", &UP_COMMAND);
    let done = run_at(&server, &["job", "wait", "site"]).expect_code(0);
    assert!(done.stdout()[0].contains(" blocked by a rule"), "{:?}", done.stdout());
    assert!(requests_to_listed(&origin) <= before, "also not for robots.txt");
    for host in [0, 2] {
        let log = origin.request_log();
        let pages = log.distinct_pages().into_iter().filter(|page| page.0 == Site::host(host));
        assert_eq!(pages.count(), 40, "host {host} is complete");
    }

    let mut client = LineConnection::connect_client(server.address);
    assert_eq!(client.request("SUB dead-letter"), "+OK");
    let url = origin.url(1, "/p/0");
    client.request_ok(&format!("PUB new-url {url}"));
    let letter = client.read_line();
    assert!(
        letter.contains(" reason=blocked group=crawlers ") && letter.contains(&url),
        "{letter}"
    );
    client.request("JOB open next");
    let answer = client.request(&format!("JOB add next url={url}"));
    assert!(answer.starts_with("-ERR conflict "), "{answer}");
}

#[test]
fn a_wrong_file_is_refused_with_its_line_and_the_old_list_stays() {
    let (server, file) = start("a.example\n");
    for (text, problem) in
        [("a.example\nb example\n", "line 2: "), (&*"\n".repeat(1 << 21), "longer")]
    {
        fs::write(&file, text).unwrap();
        server.process.signal("HUP");
        let line = server.process.wait_for_line(problem, |line| {
            let is_it = line.contains("configuration not reloaded") && line.contains(problem);
            is_it.then(|| line.to_owned())
        });
        assert!(line.contains("--never never.txt: "), "{line}");
    }
    let mut client = LineConnection::connect_client(server.address);
    assert_eq!(client.request("SUB dead-letter"), "+OK");
    client.request("PUB new-url http://a.example/");
    assert!(client.read_line().contains(" reason=blocked "), "the old list");
    fs::remove_file(&file).unwrap();
    server.process.signal("HUP");
    server
        .process
        .wait_for_line_with("configuration not reloaded: --never never.txt: No such file");

    fs::write(&file, "*\n").unwrap();
    let folder = server.folder.path();
    let output =
        run_tidings(folder, &["broker", "--listen", "127.0.0.1:0", "--never", "never.txt"]);
    output.expect_code(2).expect_stderr("--never never.txt: line 1: \"*\": expected a host");
    fs::write(folder.join("c.toml"), "never = 'never.txt'\n").unwrap();
    let output = run_tidings(folder, &["config", "check", "broker", "--config", "c.toml"]);
    assert!(output.expect_code(2).stderr().contains("never.txt: line 1: "));
}
