//! The output of `tidings group`, `tidings job` and `tidings explain`, as text and as JSON.

use std::fs;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tidings_protocol::field_number;

use crate::support::line_connection::LineConnection;
use crate::support::nc::run_nc;
use crate::support::process::{Server, run_at, run_json_at, start_at};
use crate::support::terminal::start_on_terminal;
use crate::support::wait::wait_until;

/// How far the clock of a group may be from that of the machine.
const DRIFT_MAX: SignedDuration = SignedDuration::from_secs(1);

/// Waits until this number of entries waits in the default group; the group reads events shortly
/// after their confirmation.
#[track_caller]
pub(crate) fn wait_for_waiting_entries(server: &Server, count: u64) {
    // Reading does not create the default group. One that exists keeps its settings.
    run_at(server, &["group", "create", "crawlers"]);
    wait_until(&format!("{count} waiting entries"), || {
        (run_json_at(server, &["group", "show"])[0]["waiting"] == count).then_some(())
    });
}

#[test]
fn groups_are_created_changed_and_shown() {
    let server = Server::start_broker();
    let created = run_at(&server, &["group", "create", "thumbs", "topics=file-ready", "key=none"]);
    assert_eq!(created.expect_code(0).stdout(), ["thumbs topics=file-ready key=none"]);
    run_at(&server, &["group", "create", "thumbs"]).expect_code(1).expect_stderr("exists");
    let set = run_at(&server, &["group", "set", "thumbs", "lease=300s", "max-attempts=7"]);
    assert_eq!(set.expect_code(0).stdout(), ["thumbs lease=5m max-attempts=7"]);

    let shown = &run_json_at(&server, &["group", "show", "thumbs"])[0];
    for (key, value) in [
        ("group", json!("thumbs")),
        ("topics", json!("file-ready")),
        ("lease", json!("5m")),
        ("max-attempts", json!(7)),
        ("members", json!(0)),
    ] {
        assert_eq!(shown[key], value, "{key} in {shown}");
    }
    let text = run_at(&server, &["group", "show", "thumbs"]).expect_code(0).stdout();
    assert_eq!(text[0], "thumbs");
    assert!(text.contains(&"  lease         5m".to_owned()), "{text:#?}");
    run_at(&server, &["group", "show", "nobody"]).expect_code(1).expect_stderr("no group nobody");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_reply_to_a_task_of_an_unknown_group_is_stale() {
    let server = Server::start_broker();
    let lines = "PING\nACK thumbs:7.42.1\nTOUCH thumbs:7.42.1\nNACK thumbs:7.42.1\nQUIT\n";
    let received = run_nc(server.address, lines);
    let rejected: Vec<_> = received.iter().filter(|line| line.starts_with("-ERR")).collect();
    assert_eq!(rejected.len(), 3, "{received:?}");
    for line in rejected {
        assert!(line.starts_with("-ERR stale thumbs:7.42.1 "), "{line}");
    }
}

#[test]
fn groups_are_listed_with_their_counts() {
    let server = Server::start_broker();
    let mut worker = LineConnection::connect_client(server.address);
    worker.request_ok("JOIN crawlers credit=1");
    let mut client = LineConnection::connect_client(server.address);
    client.request("PUB new-url http://a.example/1");
    client.request("PUB new-url http://a.example/2");
    assert!(worker.read_line().starts_with("TASK "));
    wait_for_waiting_entries(&server, 1);
    run_at(&server, &["group", "create", "thumbs", "topics=file-ready"]).expect_code(0);
    let listed = run_json_at(&server, &["group", "ls"]);
    let listed: Vec<_> = listed
        .iter()
        .map(|group| (&group["group"], &group["members"], &group["processing"]))
        .collect();
    let (zero, one) = (json!(0), json!(1));
    assert_eq!(listed, [(&json!("crawlers"), &one, &one), (&json!("thumbs"), &zero, &zero)]);
    let text = run_at(&server, &["group", "ls"]).expect_code(0).stdout();
    assert!(text[0].starts_with("GROUP ") && text[0].ends_with(" STATE"), "{text:#?}");
    let row: Vec<_> = text[1].split_whitespace().collect();
    assert_eq!(row, ["crawlers", "1", "1", "1", "0", "0", "0", "0", "host", "new-url", "ok"]);
}

#[test]
fn a_job_is_opened_seeded_closed_and_cancelled() {
    let server = Server::start_broker();
    let started = Timestamp::now() - DRIFT_MAX;
    let opened = run_at(&server, &["job", "open", "docs", "scope=prefix", "max-pages=5"]);
    assert_eq!(opened.expect_code(0).stdout(), ["docs: pass 1, open"]);
    run_at(&server, &["job", "open", "docs"]).expect_code(1).expect_stderr("other settings");
    LineConnection::connect_client(server.address)
        .request("PUB new-url http://a.example/docs/ job=docs");
    wait_for_waiting_entries(&server, 1);
    let closed = run_at(&server, &["job", "close", "docs"]).expect_code(0);
    assert_eq!(closed.stdout(), ["docs: pass 1, running, takes no more seeds"]);
    let listed = run_at(&server, &["job", "ls"]).expect_code(0).stdout();
    assert!(listed[0].starts_with("JOB ") && listed[0].ends_with(" TOOK"), "{listed:#?}");
    let row: Vec<_> = listed[1].split_whitespace().collect();
    assert_eq!(row[..9], ["docs", "1", "running", "1", "0", "1", "0", "0", "0"]);

    let shown = run_at(&server, &["job", "show", "docs"]).expect_code(0).stdout();
    assert!(shown.contains(&"  queued      1".to_owned()), "{shown:#?}");
    let cancelled = run_at(&server, &["job", "cancel", "docs", "--yes"]).expect_code(0).stdout();
    assert!(cancelled[0].starts_with("docs: pass 1, "), "{cancelled:?}");
    let shown = &run_json_at(&server, &["job", "show", "docs"])[0];
    for (key, value) in [("job", json!("docs")), ("cancelled", json!(1)), ("found", json!(1))] {
        assert_eq!(shown[key], value, "{key} in {shown}");
    }
    let time = |key: &str| shown[key].as_str().unwrap().parse::<Timestamp>().unwrap();
    let times = [started, time("opened"), time("ended"), Timestamp::now() + DRIFT_MAX];
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(run_json_at(&server, &["job", "ls"])[0]["job"], json!("docs"));
    run_at(&server, &["job", "show", "nobody"]).expect_code(1);
}

#[test]
fn a_cancelled_crawl_exits_with_code_1() {
    let server = Server::start_broker();
    let crawl = start_at(&server, &["crawl", "http://a.example/"]);
    let job = wait_until("the job", || run_json_at(&server, &["job", "ls"]).pop());
    wait_for_waiting_entries(&server, 1);
    run_at(&server, &["job", "cancel", job["job"].as_str().unwrap(), "--yes"]).expect_code(0);
    let output = crawl.finish().expect_code(1);
    let summary = output.stdout().pop().unwrap();
    assert!(summary.starts_with("cancelled: 0 pages, 0 failed, 1 cancelled; "), "{summary}");
}

#[test]
fn jobs_belong_to_one_group() {
    let server = Server::start_broker();
    run_at(&server, &["group", "create", "second", "topics=more"]).expect_code(0);
    run_at(&server, &["job", "open", "docs", "--group", "second"]).expect_code(0);
    assert_eq!(run_json_at(&server, &["job", "ls", "--group", "second"]).len(), 1);
    assert!(run_json_at(&server, &["job", "ls"]).is_empty());
    run_at(&server, &["job", "show", "docs"]).expect_code(1);
    run_at(&server, &["job", "close", "docs", "--group", "second"]).expect_code(0);
}

#[test]
fn explain_shows_why_a_url_waits() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    client.request("PUB new-url http://a.example/1");
    wait_for_waiting_entries(&server, 1);
    let waiter = run_at(&server, &["explain", "http://a.example/1"]).expect_code(0).stdout();
    assert!(waiter[0].contains("queued because=no-members"), "{waiter:?}");
    client.request_ok("JOIN crawlers credit=1");
    assert!(client.read_line().starts_with("TASK "));
    let held = run_at(&server, &["explain", " HTTP://A.example:80/1"]).expect_code(0).stdout();
    assert!(held[0].contains("processing member="), "{held:?}");
    let host = run_at(&server, &["explain", "a.example"]).expect_code(0).stdout();
    assert!(host.concat().contains("in-flight"), "{host:?}");
    run_at(&server, &["group", "create", "second", "topics=more"]).expect_code(0);
    client.request("PUB more http://b.example/ after=1h");
    let requested = ["explain", "b.example", "--group", "second"];
    let later = wait_until("the delayed entry", || {
        let later = run_at(&server, &requested);
        (later.code == Some(0)).then(|| later.stdout())
    });
    assert!(
        later[0].starts_with("http://b.example/ key=b.example delayed because=later due-in="),
        "{later:?}"
    );
    assert_eq!(later[1], "b.example waiting=0 delayed=1 free");
    run_at(&server, &["explain", "b.example"]).expect_code(1);
    let unknown = run_at(&server, &["explain", "http://a.example/2"]).expect_code(1);
    assert!(unknown.stdout().is_empty() && !unknown.stderr().is_empty(), "{unknown:?}");
}

#[test]
#[ignore = "needs foreign programs"]
fn explain_speaks_in_sentences_on_a_terminal_and_in_objects_for_programs() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    for page in 1..=3 {
        client.request(&format!("PUB new-url http://a.example/{page}"));
    }
    wait_for_waiting_entries(&server, 3);
    run_at(&server, &["group", "set", "crawlers", "delay=10m"]).expect_code(0);
    client.request_ok("JOIN crawlers credit=1");
    let task = client.read_line();
    let task = task.split(' ').nth(1).unwrap();
    client.request_ok(&format!("ACK {task}"));
    let sentences = |what: &str| {
        let shown = start_on_terminal(&server, &["explain", what]).finish().expect_code(0);
        shown.stdout().iter().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>()
    };
    let host = sentences("a.example").join("\n");
    let (rests, waits) = host.split_once(" more: ").unwrap_or_else(|| panic!("{host}"));
    assert!(rests.starts_with("a.example rests for 9m "), "{host}");
    assert!(
        waits.starts_with("delay=10m of group crawlers. 2 URLs wait for it; the last"),
        "{host}"
    );
    assert!(waits.contains(" begins in 19m "), "{host}");
    let url = sentences("http://a.example/2").join("\n");
    assert!(
        url.starts_with("http://a.example/2 waits for a.example, which rests for 9m "),
        "{url}"
    );

    let [host] = &run_json_at(&server, &["explain", "a.example"])[..] else { panic!("one line") };
    let named = [&host["what"], &host["state"], &host["because"], &host["waiting"]];
    assert_eq!(named, [&json!("a.example"), &json!("pending"), &json!("delay"), &json!(2)]);
}

#[test]
fn a_renamed_group_directory_is_ignored_and_kept() {
    let server = Server::start_broker();
    for group in ["team", "other"] {
        run_at(&server, &["group", "create", group, "topics=work", "lease=5m"]).expect_code(0);
    }
    let groups = server.data_dir().join("groups");
    let Server { process, folder, .. } = server;
    process.signal_and_finish("TERM").expect_code(0);
    fs::rename(groups.join("team"), groups.join("team.bak")).unwrap();
    fs::write(groups.join("notes"), "not a group").unwrap();
    let server = Server::start_in(folder, &["broker"], |_| ());
    for (name, why) in [
        ("team.bak", "holds the log of group team, which is only used as "),
        ("notes", "is not a directory"),
    ] {
        let warning = server.process.wait_for_line_with(&format!("groups/{name} {why}"));
        assert!(warning.ends_with(": it is ignored"), "{warning}");
        run_at(&server, &["group", "show", name]).expect_code(1);
        run_at(&server, &["group", "create", name])
            .expect_code(1)
            .expect_stderr(&format!("something else as groups/{name}"));
    }
    let listed = run_json_at(&server, &["group", "ls"]);
    assert_eq!(listed.iter().map(|group| &group["group"]).collect::<Vec<_>>(), [&json!("other")]);
    // The name is free, and the renamed directory is unchanged.
    run_at(&server, &["group", "create", "team"]).expect_code(0);
    run_at(&server, &["group", "delete", "team", "--yes"]).expect_code(0);
    let Server { process, folder, .. } = server;
    process.signal_and_finish("TERM").expect_code(0);
    fs::remove_dir(groups.join("team")).unwrap();
    fs::rename(groups.join("team.bak"), groups.join("team")).unwrap();
    let server = Server::start_in(folder, &["broker"], |_| ());
    assert_eq!(run_json_at(&server, &["group", "show", "team"])[0]["lease"], json!("5m"));
}

// PROTOCOL: T15
#[test]
fn the_number_of_a_group_survives_broker_restarts() {
    let mut server = Server::start_broker();
    let since = |server: &Server| {
        let mut worker = LineConnection::connect_client(server.address);
        let joined = worker.request("JOIN crawlers credit=0");
        field_number(&joined, "since").unwrap_or_else(|| panic!("{joined}"))
    };
    let first = since(&server);
    for signal in ["TERM", "KILL"] {
        server = server.restart(signal, &["broker"]);
        assert_eq!(since(&server), first, "after {signal}");
    }
}
