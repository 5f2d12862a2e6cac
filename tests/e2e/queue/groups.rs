//! `tidings group`, `tidings job` and `tidings explain`: what people and scripts see of groups and
//! jobs.

use std::fs;

use serde_json::json;
use tidings_protocol::field_number;

use crate::support::nc::nc_all;
use crate::support::process::{Running, Server, at, json_at, tidings};
use crate::support::talk::Talk;
use crate::support::wait::until;

/// Waits until so many entries wait in the default group: it takes events a moment after they are
/// confirmed.
#[track_caller]
pub(crate) fn until_waiting(server: &Server, count: u64) {
    until(&format!("{count} entries that wait"), || {
        (json_at(server, &["group", "show"])[0]["waiting"] == count).then_some(())
    });
}

#[test]
fn groups_are_made_changed_and_shown() {
    let server = Server::broker();
    let made = at(&server, &["group", "create", "thumbs", "topics=file-ready", "key=none"]);
    let made = made.expect_code(0).stdout();
    assert!(made[0].starts_with("thumbs ") && made[0].contains(" key=none "), "{made:?}");
    let again = at(&server, &["group", "create", "thumbs"]).expect_code(1);
    assert!(again.stderr().contains("exists"), "{}", again.stderr());
    at(&server, &["group", "set", "thumbs", "lease=5m", "max-attempts=7"]).expect_code(0);

    let shown = &json_at(&server, &["group", "show", "thumbs"])[0];
    for (key, value) in [
        ("group", json!("thumbs")),
        ("topics", json!("file-ready")),
        ("lease", json!("5m")),
        ("max-attempts", json!(7)),
        ("members", json!(0)),
    ] {
        assert_eq!(shown[key], value, "{key} in {shown}");
    }
    let people = at(&server, &["group", "show", "thumbs"]).expect_code(0).stdout();
    assert_eq!(people[0], "thumbs");
    assert!(people.contains(&"  lease         5m".to_owned()), "{people:#?}");
    let unknown = at(&server, &["group", "show", "nobody"]).expect_code(1);
    assert!(unknown.stderr().contains("no group nobody"), "{}", unknown.stderr());
}

#[test]
fn an_answer_to_a_task_of_no_group_is_stale() {
    let server = Server::broker();
    let lines = "PING\nACK thumbs:7.42.1\nTOUCH thumbs:7.42.1\nNACK thumbs:7.42.1\nQUIT\n";
    let heard = nc_all(server.address, lines);
    let refused: Vec<_> = heard.iter().filter(|line| line.starts_with("-ERR")).collect();
    assert_eq!(refused.len(), 3, "{heard:?}");
    for line in refused {
        assert!(line.starts_with("-ERR stale thumbs:7.42.1 "), "{line}");
    }
}

#[test]
fn groups_are_listed_with_what_they_do() {
    let server = Server::broker();
    let mut worker = Talk::client(server.address);
    assert!(worker.ask("JOIN crawlers credit=1").starts_with("+OK"));
    let mut client = Talk::client(server.address);
    client.ask("PUB new-url http://a.example/1");
    client.ask("PUB new-url http://a.example/2");
    assert!(worker.line().starts_with("TASK "));
    until_waiting(&server, 1);
    at(&server, &["group", "create", "thumbs", "topics=file-ready"]).expect_code(0);
    let listed = json_at(&server, &["group", "ls"]);
    let listed: Vec<_> = listed
        .iter()
        .map(|group| (&group["group"], &group["members"], &group["processing"]))
        .collect();
    let (zero, one) = (json!(0), json!(1));
    assert_eq!(listed, [(&json!("crawlers"), &one, &one), (&json!("thumbs"), &zero, &zero)]);
    let people = at(&server, &["group", "ls"]).expect_code(0).stdout();
    assert!(people[0].starts_with("GROUP ") && people[0].ends_with(" STATE"), "{people:#?}");
    let row: Vec<_> = people[1].split_whitespace().collect();
    assert_eq!(row, ["crawlers", "1", "1", "1", "0", "0", "0", "0", "host", "new-url", "ok"]);
}

#[test]
fn a_job_is_opened_seeded_closed_and_cancelled() {
    let server = Server::broker();
    let opened = at(&server, &["job", "open", "docs", "scope=prefix", "max-pages=5"]);
    assert_eq!(opened.expect_code(0).stdout(), ["docs: pass 1, open"]);
    let other = at(&server, &["job", "open", "docs"]).expect_code(1);
    assert!(other.stderr().contains("other settings"), "{}", other.stderr());
    Talk::client(server.address).ask("PUB new-url http://a.example/docs/ job=docs");
    until_waiting(&server, 1);
    let closed = at(&server, &["job", "close", "docs"]).expect_code(0);
    assert_eq!(closed.stdout(), ["docs: pass 1, closed"]);
    let listed = at(&server, &["job", "ls"]).expect_code(0).stdout();
    assert!(listed[0].starts_with("JOB ") && listed[0].ends_with(" FAILED"), "{listed:#?}");
    let row: Vec<_> = listed[1].split_whitespace().collect();
    assert_eq!(row, ["docs", "1", "closed", "1", "0", "1", "0", "0", "0"]);

    let shown = at(&server, &["job", "show", "docs"]).expect_code(0).stdout();
    assert!(shown.contains(&"  queued      1".to_owned()), "{shown:#?}");
    let cancelled = at(&server, &["job", "cancel", "docs"]).expect_code(0).stdout();
    assert!(cancelled[0].starts_with("docs: pass 1, "), "{cancelled:?}");
    let shown = &json_at(&server, &["job", "show", "docs"])[0];
    for (key, value) in [("job", json!("docs")), ("cancelled", json!(1)), ("found", json!(1))] {
        assert_eq!(shown[key], value, "{key} in {shown}");
    }
    assert_eq!(json_at(&server, &["job", "ls"])[0]["job"], json!("docs"));
    at(&server, &["job", "show", "nobody"]).expect_code(1);
}

#[test]
fn a_crawl_that_somebody_cancels_has_not_gone_well() {
    let server = Server::broker();
    let words = ["crawl", "http://a.example/", "--broker", &server.text()];
    let crawl = Running::start(&mut tidings(server.folder.path(), words));
    let job = until("the job", || json_at(&server, &["job", "ls"]).pop());
    until_waiting(&server, 1);
    at(&server, &["job", "cancel", job["job"].as_str().unwrap()]).expect_code(0);
    let ended = crawl.finish().expect_code(1);
    let summary = ended.stdout().pop().unwrap();
    assert!(summary.starts_with("cancelled: 0 pages, 0 failed, 1 cancelled; "), "{summary}");
}

#[test]
fn jobs_are_those_of_a_group() {
    let server = Server::broker();
    at(&server, &["group", "create", "second", "topics=more"]).expect_code(0);
    at(&server, &["job", "open", "docs", "--group", "second"]).expect_code(0);
    assert_eq!(json_at(&server, &["job", "ls", "--group", "second"]).len(), 1);
    assert!(json_at(&server, &["job", "ls"]).is_empty());
    at(&server, &["job", "show", "docs"]).expect_code(1);
    at(&server, &["job", "close", "docs", "--group", "second"]).expect_code(0);
}

#[test]
fn why_nothing_moves_is_explained() {
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    client.ask("PUB new-url http://a.example/1");
    until_waiting(&server, 1);
    let waiting = at(&server, &["explain", "http://a.example/1"]).expect_code(0).stdout();
    assert!(waiting[0].contains("queued because=no-credit"), "{waiting:?}");
    assert!(client.ask("JOIN crawlers credit=1").starts_with("+OK"));
    assert!(client.line().starts_with("TASK "));
    let held = at(&server, &["explain", " HTTP://A.example:80/1"]).expect_code(0).stdout();
    assert!(held[0].contains("processing member="), "{held:?}");
    let host = at(&server, &["explain", "a.example"]).expect_code(0).stdout();
    assert!(host.concat().contains("in-flight"), "{host:?}");
    at(&server, &["group", "create", "second", "topics=more"]).expect_code(0);
    client.ask("PUB more http://b.example/ after=1h");
    let asked = ["explain", "b.example", "--group", "second"];
    let later = until("what waits there", || {
        let later = at(&server, &asked);
        (later.code == Some(0)).then(|| later.stdout())
    });
    assert!(later[0].starts_with("http://b.example/ key=b.example delayed due-in="), "{later:?}");
    assert_eq!(later[1], "b.example waiting=0 delayed=1 free");
    at(&server, &["explain", "b.example"]).expect_code(1);
    let unknown = at(&server, &["explain", "http://a.example/2"]).expect_code(1);
    assert!(unknown.stdout().is_empty() && !unknown.stderr().is_empty(), "{unknown:?}");
}

#[test]
fn what_was_moved_out_of_a_groups_way_is_no_group_and_is_left_alone() {
    let server = Server::broker();
    for group in ["team", "other"] {
        at(&server, &["group", "create", group, "topics=work", "lease=5m"]).expect_code(0);
    }
    let groups = server.data().join("groups");
    let Server { process, folder, .. } = server;
    process.finish_by("TERM").expect_code(0);
    fs::rename(groups.join("team"), groups.join("team.bak")).unwrap();
    fs::write(groups.join("notes"), "not a group").unwrap();
    let server = Server::start_in(folder, &["broker"], |_| ());
    for (name, why) in [
        ("team.bak", "holds the log of group team, which is only used as "),
        ("notes", "is not a directory"),
    ] {
        let warned = server.process.line_with(&format!("groups/{name} {why}"));
        assert!(warned.ends_with(": it is ignored"), "{warned}");
        at(&server, &["group", "show", name]).expect_code(1);
        let refused = at(&server, &["group", "create", name]).expect_code(1);
        assert!(refused.stderr().contains(&format!("something else as groups/{name}")));
    }
    let listed = json_at(&server, &["group", "ls"]);
    assert_eq!(listed.iter().map(|group| &group["group"]).collect::<Vec<_>>(), [&json!("other")]);
    // The name is free, and what was moved is as it was.
    at(&server, &["group", "create", "team"]).expect_code(0);
    at(&server, &["group", "delete", "team"]).expect_code(0);
    let Server { process, folder, .. } = server;
    process.finish_by("TERM").expect_code(0);
    fs::remove_dir(groups.join("team")).unwrap();
    fs::rename(groups.join("team.bak"), groups.join("team")).unwrap();
    let server = Server::start_in(folder, &["broker"], |_| ());
    assert_eq!(json_at(&server, &["group", "show", "team"])[0]["lease"], json!("5m"));
}

// PROTOCOL: T15
#[test]
fn a_group_is_known_by_one_number_whatever_happens_to_its_broker() {
    let mut server = Server::broker();
    let since = |server: &Server| {
        let mut worker = Talk::client(server.address);
        let joined = worker.ask("JOIN crawlers credit=0");
        field_number(&joined, "since").unwrap_or_else(|| panic!("{joined}"))
    };
    let first = since(&server);
    for signal in ["TERM", "KILL"] {
        server = server.restart(signal, &["broker"]);
        assert_eq!(since(&server), first, "after {signal}");
    }
}
