//! Damage in a data directory: commands report it, everything else works, and a damaged group can
//! be repaired.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::disk_faults::expect_on_group_routes;
use crate::support::http_client::{HttpClient, HttpExchange};
use crate::support::line_connection::{LineConnection, value};
use crate::support::origin::{Origin, Site};
use crate::support::page_database;
use crate::support::process::{Process, Server, run_at, run_json_at, run_tidings, tidings_command};
use crate::support::terminal::start_on_terminal;
use crate::support::wait::wait_until;

const TASKS: usize = 20;
pub(crate) const VERIFY: [&str; 3] = ["verify", "--data", "tidings-data"];
const REPAIR: [&str; 5] = ["group", "repair", "thumbs", "--data", "tidings-data"];

/// All files and directories, with their modification time and content.
#[track_caller]
pub(crate) fn snapshot(dir: &Path) -> BTreeMap<PathBuf, (SystemTime, Option<Vec<u8>>)> {
    let mut all = BTreeMap::new();
    let mut unseen = vec![dir.to_owned()];
    while let Some(path) = unseen.pop() {
        let about = fs::metadata(&path).unwrap();
        let bytes = about.is_file().then(|| fs::read(&path).unwrap());
        if about.is_dir() {
            unseen.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        all.insert(path, (about.modified().unwrap(), bytes));
    }
    all
}

/// Runs a read-only command and checks that it changes nothing in the data directory. Returns its
/// output.
#[track_caller]
pub(crate) fn run_read_only(folder: &Path, arguments: &[&str], code: i32) -> String {
    let data = folder.join("tidings-data");
    let before = snapshot(&data);
    let finished = run_tidings(folder, arguments).expect_code(code);
    let after = snapshot(&data);
    let names = |all: &BTreeMap<PathBuf, _>| all.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&before), names(&after), "{arguments:?}");
    for (path, is) in after {
        assert!(before[&path] == is, "{arguments:?} changed {}", path.display());
    }
    finished.stdout().join("\n")
}

/// Flips one bit of this text in the only file of the directory that contains it. Returns the file.
#[track_caller]
fn flip_text(dir: &Path, text: &str) -> PathBuf {
    let mut flipped = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let Ok(mut bytes) = fs::read(&path) else { continue };
        if path.ends_with("clean-stop") {
            continue;
        }
        let Some(at) = bytes.windows(text.len()).position(|it| it == text.as_bytes()) else {
            continue;
        };
        bytes[at] ^= 0x01;
        fs::write(&path, bytes).unwrap();
        flipped.push(path);
    }
    assert_eq!(flipped.len(), 1, "{flipped:?}");
    flipped.remove(0)
}

/// A data directory with two groups: the log of `thumbs` is damaged, `other` is intact. Returns the
/// damaged file as well.
#[track_caller]
fn damaged_folder() -> (TempDir, PathBuf) {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    for group in ["thumbs", "other"] {
        client.request_ok(&format!("GROUP create {group} topics=file-ready key=none"));
    }
    for n in 1..=TASKS {
        assert_eq!(client.request(&format!("PUB file-ready /srv/{n}.png")), format!("+OK {n} {n}"));
        // Waiting for each one gives each its own record.
        wait_until("a task", || {
            let shown = client.request("GROUP show thumbs");
            (value(&shown, "waiting") == n.to_string()).then_some(())
        });
    }
    let data = server.data_dir();
    let Server { process, folder, .. } = server;
    process.signal_and_finish("TERM").expect_code(0);
    let file = flip_text(&data.join("groups/thumbs"), "/srv/10.png");
    (folder, file)
}

/// Joins a group and receives this many tasks.
#[track_caller]
fn take_tasks(server: &Server, group: &str, count: usize) {
    let mut worker = LineConnection::connect_client(server.address);
    worker.request_ok(&format!("JOIN {group} credit={count}"));
    let tasks: BTreeSet<_> = (0..count).map(|_| worker.read_line()).collect();
    assert!(tasks.len() == count && tasks.iter().all(|it| it.starts_with("TASK ")), "{tasks:#?}");
}

#[test]
fn a_folder_that_is_no_data_directory_is_not_verified() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("notes.txt"), "none of ours").unwrap();
    run_tidings(folder.path(), &["verify", "--data", "."])
        .expect_code(1)
        .expect_stderr("is no data directory of Tidings");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_damaged_group_refuses_work_and_everything_else_is_served() {
    let (folder, file) = damaged_folder();
    let groups = snapshot(file.parent().unwrap());
    let server = Server::start_in(folder, &["broker"], |_| ());
    server.process.wait_for_line_with("its log is damaged");

    let mut client = LineConnection::connect_client(server.address);
    assert_eq!(client.request("PUB file-ready /new.png"), "+OK 21 1");
    for command in
        ["JOIN thumbs", "GROUP pause thumbs", "GROUP create thumbs", "GROUP delete thumbs"]
    {
        let refused = client.request(command);
        assert!(
            refused.starts_with("-ERR conflict the log of group thumbs is damaged (records ")
                && refused.contains("stop the broker, then: tidings group repair thumbs --data "),
            "{command}: {refused}"
        );
    }
    take_tasks(&server, "other", TASKS + 1);
    client.request_ok("GROUP create third topics=file-ready key=none");

    let listed = run_at(&server, &["group", "ls"]).expect_code(0).stdout();
    let state = |group: &str| {
        let line = listed.iter().find(|line| line.starts_with(group)).unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    };
    assert_eq!((state("thumbs"), state("other")), ("damaged".to_owned(), "ok".to_owned()));
    let status = run_at(&server, &["status"]).expect_code(1).stdout();
    assert!(status[0].contains("Group thumbs has a damaged log"), "{status:#?}");
    let shown = run_at(&server, &["group", "show", "thumbs"]).expect_code(0).stdout().join("\n");
    assert!(
        shown.contains("\nproblem records ") && shown.contains("\nremedy stop the "),
        "{shown}"
    );
    let mut delete = start_on_terminal(&server, &["group", "delete", "thumbs"]);
    delete.write("n\n");
    let asked = delete.finish().expect_code(1).stdout().join("\n");
    let question = "delete group thumbs with entries that cannot be read? [y/N] ";
    assert!(asked.contains(question), "{asked}");
    let shown = &run_json_at(&server, &["group", "show", "thumbs"])[0];
    assert!(shown["damaged"] == "yes" && shown["problem"].is_string(), "{shown}");

    let http = HttpClient::new(&server);
    assert_eq!(http.get("/groups").json()["groups"], json!(["other", "third", "thumbs"]));
    let shown = http.get("/groups/thumbs").json();
    assert_eq!((&shown["damaged"], &shown["topics"]), (&json!(true), &json!(["file-ready"])));
    assert!(shown["problem"].is_string() && shown["remedy"].is_string(), "{shown}");
    assert_eq!(http.send_json("POST", "/groups/thumbs/pause", "").status, 409);

    server.process.signal_and_finish("TERM").expect_code(0);
    assert!(snapshot(file.parent().unwrap()) == groups, "the broker changed the damaged log");
}

#[test]
fn a_damaged_group_is_reported_repaired_and_serves_its_tasks_again() {
    let (folder, file) = damaged_folder();
    let at = folder.path();
    let found = run_read_only(at, &VERIFY, 1);
    for part in [
        file.file_name().unwrap().to_str().unwrap(),
        "the next start refuses work for this group: record",
        "what to do: tidings group repair thumbs --data tidings-data",
        "group other: 1 file, ",
    ] {
        assert!(found.contains(part), "{part} in {found}");
    }

    let repaired = run_tidings(at, &REPAIR).expect_code(0).stdout();
    let number = |text: &str| {
        let line = repaired.iter().find(|line| line.contains(text));
        let word =
            line.and_then(|line| line.split_whitespace().find(|word| word.parse::<u64>().is_ok()));
        word.unwrap_or_else(|| panic!("{text} in {repaired:#?}")).parse::<u64>().unwrap()
    };
    assert!(number("restored from") >= 9 && number("cannot be read") >= 1, "{repaired:#?}");
    assert!(number("after that were dropped") >= 10, "{repaired:#?}");
    assert!(number("events taken from topics: ") >= 10, "{repaired:#?}");
    let aside = repaired.last().unwrap().rsplit(' ').next().unwrap();
    assert_eq!(fs::read_dir(at.join(aside)).unwrap().count(), 1, "{repaired:#?}");

    run_read_only(at, &VERIFY, 0);
    run_tidings(at, &REPAIR).expect_code(1).expect_stderr("there is nothing to repair");
    let server = Server::start_in(folder, &["broker"], |_| ());
    take_tasks(&server, "thumbs", TASKS);
}

#[test]
fn an_interrupted_repair_is_reported_and_completed() {
    for by_start in [false, true] {
        let (folder, _) = damaged_folder();
        let groups = folder.path().join("tidings-data/groups");
        run_tidings(folder.path(), &REPAIR).expect_code(0);
        // Undoes the last step of the repair.
        fs::rename(groups.join("thumbs"), groups.join("~thumbs~repair")).unwrap();
        let found = run_read_only(folder.path(), &VERIFY, 1);
        assert!(found.contains("group thumbs: ") && found.contains("was cut short"), "{found}");
        if !by_start {
            let output = run_tidings(folder.path(), &REPAIR).expect_code(0).stdout();
            assert!(output[1].contains("an earlier repair was interrupted"), "{output:#?}");
            run_read_only(folder.path(), &VERIFY, 0);
        }
        let server = Server::start_in(folder, &["broker"], |_| ());
        if by_start {
            server.process.wait_for_line_with("its repair was cut short, and is complete now");
        }
        take_tasks(&server, "thumbs", TASKS);
    }
}

#[test]
fn a_damaged_group_that_is_set_aside_can_be_created_again() {
    let (folder, _) = damaged_folder();
    let set_aside = [&REPAIR[..], &["--set-aside"]].concat();
    run_tidings(folder.path(), &set_aside).expect_code(2).expect_stderr("confirm it with --yes");
    let set_aside = [&set_aside[..], &["--yes"]].concat();
    let output = run_tidings(folder.path(), &set_aside).expect_code(0).stdout();
    assert_eq!(output[0], "thumbs: nothing was restored");
    run_read_only(folder.path(), &VERIFY, 0);
    run_tidings(folder.path(), &set_aside).expect_code(1).expect_stderr("holds no group thumbs");
    let server = Server::start_in(folder, &["broker"], |_| ());
    let mut client = LineConnection::connect_client(server.address);
    assert!(client.request("JOIN thumbs").starts_with("-ERR unknown"));
    client.request_ok("GROUP create thumbs topics=file-ready key=none");
}

#[test]
fn read_only_commands_change_nothing_and_name_only_existing_files() {
    let (folder, file) = damaged_folder();
    let server = Server::start_in(folder, &["broker"], |_| ());
    let mut client = LineConnection::connect_client(server.address);
    client.request_ok("TOPIC set file-ready retain-age=20d");
    let Server { process, folder, .. } = server;
    process.signal_and_finish("TERM").expect_code(0);
    let data = folder.path().join("tidings-data");
    flip_text(&data, "file-ready");
    let topics = ["topic", "verify", "--data", "tidings-data"];
    for command in [&VERIFY[..], &topics] {
        let found = run_read_only(folder.path(), command, 1);
        let name = file.file_name().unwrap().to_str().unwrap();
        for part in ["catalog.log: ", name] {
            assert!(found.contains(part), "{part} in {found}");
        }
        assert!(!found.contains("kept as"), "{found}");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_damaged_database_is_reported_without_leaving_files() {
    let origin = Origin::serve(Site { pages: 30, ..Site::default() });
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    run_tidings(at, &["crawl", "--allow-private", &origin.url(0, "/p/0")]).expect_code(0);
    let data = at.join("tidings-data");
    let whole = run_read_only(at, &VERIFY, 0);
    for name in ["pages.db", "crawler.db"] {
        assert!(whole.contains(&format!("{name}: no damage found")), "{whole}");
        let path = data.join(name);
        let bytes = fs::read(&path).unwrap();
        // In a leaf of a table or an index: the number of its cells.
        let page_bytes = match u16::from_be_bytes([bytes[16], bytes[17]]) {
            1 => 1 << 16,
            size => usize::from(size),
        };
        let leaf =
            bytes.chunks(page_bytes).position(|page| matches!(page[0], 0x0a | 0x0d)).unwrap();
        // In the header: a byte that is 64 in every database.
        for place in [21, leaf * page_bytes + 4] {
            let mut changed = bytes.clone();
            changed[place] ^= 0x01;
            fs::write(&path, changed).unwrap();
            let found = run_read_only(at, &VERIFY, 1);
            assert!(found.contains(&format!("{name}: damaged")), "{place}: {found}");
        }
        fs::write(&path, bytes).unwrap();
    }
    assert_eq!(page_database::query(&data, "select count(*) from pages").unwrap(), ["60"]);
}

/// HTTP responses with a damaged group. The test in `openapi` checks them against the description.
pub(crate) fn responses_with_a_damaged_group(description: &Value) -> BTreeSet<HttpExchange> {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    assert_eq!(http.send_json("POST", "/jobs", r#"{"job":"j"}"#).status, 200);
    for name in ["damaged", "next", "last"] {
        let seeds = json!({ "urls": [format!("http://a.example/{name}")] }).to_string();
        assert_eq!(http.send_json("POST", "/jobs/j/urls", &seeds).status, 200);
    }
    let data = server.data_dir();
    let Server { process, folder, .. } = server;
    process.signal_and_finish("TERM").expect_code(0);
    flip_text(&data.join("groups/crawlers"), "http://a.example/damaged");
    let server = Server::start_in(folder, &["broker"], |_| ());
    let http = HttpClient::new(&server);
    assert_eq!(http.get("/groups/crawlers").status, 200);
    expect_on_group_routes(&http, description, 409);
    http.exchanges()
}

/// Flips a bit in the last byte that is not zero.
#[track_caller]
pub(crate) fn flip_last_byte(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[last] ^= 0x04;
    fs::write(file, bytes).unwrap();
}

/// The newest file of a log.
#[track_caller]
fn newest_segment(dir: &Path) -> PathBuf {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|it| it == "log")).max().unwrap()
}

#[test]
fn damage_at_the_end_of_a_log_is_reported_after_an_orderly_stop() {
    // A stop that exceeds its timeout does not record the ends of the logs, as a kill does not. A
    // busy machine may need more than the default.
    let server = Server::start(&["broker", "--stop-timeout", "30s"]);
    let mut client = LineConnection::connect_client(server.address);
    for command in ["TOPIC create t retain-age=20d", "GROUP create g topics=t key=none", "PUB t /1"]
    {
        client.request_ok(command);
    }
    wait_until("a task", || {
        (value(&client.request("GROUP show g"), "waiting") == "1").then_some(())
    });
    let data = server.data_dir();
    let Server { process, folder, .. } = server;
    process.signal_and_finish("TERM").expect_code(0);
    let files = ["catalog.log", "topics/t", "groups/g"].map(|name| {
        let path = data.join(name);
        if path.is_dir() { newest_segment(&path) } else { path }
    });
    run_read_only(folder.path(), &VERIFY, 0);
    for file in &files {
        let whole = fs::read(file).unwrap();
        flip_last_byte(file);
        let found = run_read_only(folder.path(), &VERIFY, 1);
        let name = file.strip_prefix(folder.path()).unwrap().display().to_string();
        assert!(found.contains(&name), "{name} in {found}");
        assert!(!found.contains("as after a crash"), "{found}");
        fs::write(file, whole).unwrap();
    }
    run_read_only(folder.path(), &VERIFY, 0);

    // A start reports it, and the next check still finds it. A group that has lost a record refuses
    // work.
    for file in &files {
        flip_last_byte(file);
    }
    flip_text(&data.join("groups/g"), "taken\tt\t2");
    let server = Server::start_in(folder, &["broker"], |_| ());
    server.process.wait_for_line_with("catalog.log: the file had ");
    server
        .process
        .wait_for_line_with("the file was whole at the last orderly stop; no event is lost");
    server.process.wait_for_line_with("its log is damaged");
    let mut client = LineConnection::connect_client(server.address);
    assert_eq!(client.request("PUB t /2"), "+OK 2 1", "no number is lost or given again");
    assert!(client.request("JOIN g").starts_with("-ERR conflict "));
    // After a kill the damage is still known.
    let Server { process, folder, .. } = server;
    process.signal_and_finish("KILL");
    let found = run_read_only(folder.path(), &VERIFY, 1);
    for part in ["t: 2 files, ", "group g: ", "the next start refuses work for this group"] {
        assert!(found.contains(part), "{part} in {found}");
    }
    let names =
        fs::read_dir(&data).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().any(|name| name.starts_with("catalog.log.damaged-")));
}

#[test]
fn a_torn_end_after_a_kill_is_not_damage() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    for command in ["GROUP create g topics=t key=none", "PUB t /1", "PUB t /2"] {
        client.request_ok(command);
    }
    let data = server.data_dir();
    let Server { process, folder, .. } = server;
    process.signal_and_finish("KILL");
    let found = run_read_only(folder.path(), &VERIFY, 0);
    assert!(found.contains("clean-stop: no damage found\n  it does not exist: "), "{found}");
    for file in [newest_segment(&data.join("topics/t")), newest_segment(&data.join("groups/g"))] {
        flip_last_byte(&file);
    }
    let found = run_read_only(folder.path(), &VERIFY, 0);
    assert_eq!(found.matches("as after a crash").count(), 2, "{found}");
    let server = Server::start_in(folder, &["broker"], |_| ());
    take_tasks(&server, "g", 1);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_crawler_waits_until_its_damaged_group_is_repaired() {
    let origin = Origin::serve(Site { pages: 7, ..Site::default() });
    let up = Server::start_up(&["--allow-private"]);
    let mut client = LineConnection::connect_client(up.address);
    let stored = |data: &Path, count| {
        page_database::wait_for_rows(data, "select url from pages where outcome = 'done'", count)
    };
    let data = up.data_dir();
    for page in 0..3 {
        client.request_ok(&format!("PUB new-url {}", origin.url(0, &format!("/p/{page}"))));
        stored(&data, page + 1);
    }
    let Server { process, folder, .. } = up;
    process.signal_and_finish("TERM").expect_code(0);
    flip_text(&data.join("groups/crawlers"), "/p/1");

    let up = Server::start_in(folder, &["up", "--allow-private"], |_| ());
    let output =
        up.process.wait_for_line_with("refused: conflict: the log of group crawlers is damaged");
    assert!(output.contains("tidings group repair crawlers --data "), "{output}");
    let mut client = LineConnection::connect_client(up.address);
    assert_eq!(client.request("PUB other one"), "+OK 1 1");
    client.request_ok(&format!("PUB new-url {}", origin.url(0, "/p/5")));
    let http = HttpClient::new(&up);
    assert_eq!(http.get("/groups/crawlers").json()["damaged"], json!(true));
    assert_eq!(page_database::query(&data, "select count(*) from pages").unwrap(), ["3"]);
    let Server { process, folder, .. } = up;
    process.signal_and_finish("TERM").expect_code(0);

    run_tidings(folder.path(), &["group", "repair", "crawlers", "--data", "tidings-data"])
        .expect_code(0);
    let up = Server::start_in(folder, &["up", "--allow-private"], |_| ());
    // The crawler fetches the new page, and again the pages that were done after the damage.
    wait_until("the page", || {
        let sql = "select count(*) from pages where url like '%/p/5' and outcome = 'done'";
        (page_database::query(&data, sql)? == ["1"]).then_some(())
    });
    up.process.signal_and_finish("TERM").expect_code(0);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_remote_crawler_resumes_when_its_group_is_repaired() {
    let origin = Origin::serve(Site { pages: 7, ..Site::default() });
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    client.request_ok("GROUP create crawlers");
    for page in 0..3 {
        client.request_ok(&format!("PUB new-url {}", origin.url(0, &format!("/p/{page}"))));
        wait_until("a task", || {
            let shown = client.request("GROUP show crawlers");
            (shown.starts_with("+OK") && value(&shown, "waiting") == (page + 1).to_string())
                .then_some(())
        });
    }
    let (data, address) = (server.data_dir(), server.address_text());
    let server = server.restart_at_same_address("TERM", &["broker"]);
    let Server { process, folder, address: at } = server;
    process.signal_and_finish("TERM").expect_code(0);
    flip_text(&data.join("groups/crawlers"), "/p/1");
    let server = Server::start_at_address(at, folder, &["broker"]);
    let place = TempDir::new().unwrap();
    let words = ["crawl", "--broker", &address, "--allow-private", "--data", "."];
    let crawler = Process::start(&mut tidings_command(place.path(), words));
    crawler.wait_for_line_with("refused: conflict: the log of group crawlers is damaged");
    let Server { process, folder, address: at } = server;
    process.signal_and_finish("TERM").expect_code(0);
    run_tidings(folder.path(), &["group", "repair", "crawlers", "--data", "tidings-data"])
        .expect_code(0);
    let _server = Server::start_at_address(at, folder, &["broker"]);
    wait_until("the pages", || {
        let sql = "select count(distinct url) from pages where outcome = 'done'";
        (page_database::query(place.path(), sql)? == ["3"]).then_some(())
    });
    crawler.signal_and_finish("TERM").expect_code(0);
}

#[test]
fn a_topic_keeps_its_events_for_a_damaged_group_beyond_its_retention() {
    const EVENTS: usize = 2_000;
    let (folder, _) = damaged_folder();
    let server = Server::start_in(folder, &["broker"], |_| ());
    let mut client = LineConnection::connect_client(server.address);
    for command in ["TOPIC set file-ready", "TOPIC create other"] {
        client.request_ok(&format!("{command} retain-bytes=1m sync=interval"));
    }
    // From the next start on, segments are small enough for this retention.
    let server = server.restart("TERM", &["broker"]);
    let mut client = LineConnection::connect_client(server.address);
    let filler = "x".repeat(1_000);
    for n in 0..EVENTS {
        for topic in ["other", "file-ready"] {
            client.request_ok(&format!("PUB {topic} /late/{n}/{filler}"));
        }
    }
    let bytes = |client: &mut LineConnection, topic: &str| {
        let shown = client.request_lines(&format!("TOPIC show {topic}")).pop().unwrap();
        value(&shown, "log-bytes").parse::<usize>().unwrap()
    };
    // Retention handles both topics in the same round.
    let all_bytes = EVENTS * filler.len();
    wait_until("retention", || {
        let is_written = bytes(&mut client, "file-ready") > all_bytes;
        (is_written && bytes(&mut client, "other") < all_bytes * 2 / 3).then_some(())
    });
    assert!(bytes(&mut client, "file-ready") > all_bytes);
    let Server { process, folder, .. } = server;
    process.signal_and_finish("TERM").expect_code(0);
    run_tidings(folder.path(), &REPAIR).expect_code(0);
    let server = Server::start_in(folder, &["broker"], |_| ());
    let mut client = LineConnection::connect_client(server.address);
    let all = (TASKS + EVENTS).to_string();
    wait_until("all tasks", || {
        (value(&client.request("GROUP show thumbs"), "waiting") == all).then_some(())
    });
}
