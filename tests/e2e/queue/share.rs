//! `tidings sub --exec` and `--group`: a program for each event, everybody's or those of a group.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::process::{Finished, Running, Server, at, json_at, tidings};
use crate::support::talk::{Talk, value};
use crate::support::wait::until;

/// Begins a `tidings sub` with these words.
#[track_caller]
fn sub(server: &Server, words: &[&str]) -> Running {
    // The program stands last, so the broker does not.
    let mut command = tidings(server.folder.path(), ["sub", "--broker", &server.text()]);
    Running::start(command.args(words))
}

/// Begins one that works for the group `team` and runs this script for each event.
#[track_caller]
fn worker(server: &Server, flags: &[&str], script: &str) -> Running {
    let words = ["work", "--group", "team"];
    sub(server, &[&words[..], flags, &["--exec", "sh", "-c", script]].concat())
}

#[track_caller]
fn publish(server: &Server, event: &str) {
    let answer = Talk::client(server.address).ask(&format!("PUB work {event}"));
    assert!(answer.starts_with("+OK"), "{answer}");
}

/// The group, when it has come to that.
#[track_caller]
fn until_group(server: &Server, key: &str, value: u64) -> Value {
    until(&format!("{key} to be {value}"), || {
        let shown = at(server, &["group", "show", "team", "--json"]);
        let shown: Value = serde_json::from_str(shown.stdout().first()?).unwrap();
        (shown[key] == value).then_some(shown)
    })
}

/// A pipe: who reads it waits until somebody writes.
#[track_caller]
fn pipe(server: &Server, event: &str) -> PathBuf {
    let path = server.folder.path().join(format!("pipe-{event}"));
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// Tells that it has begun, waits for the pipe of its event, and tells that it ends.
const WAITS: &str =
    "echo begun $EVENT_PAYLOAD; cat pipe-$EVENT_PAYLOAD >/dev/null; echo ended $EVENT_PAYLOAD";

#[test]
fn a_program_is_run_for_each_event_in_its_order_with_the_event_in_its_environment() {
    let server = Server::broker();
    let events = [
        "/srv/a.pdf size=3",
        "http://a.example/?a=$(touch%20x)&b",
        "it's \"$(touch x)\"; `touch x`",
    ];
    for event in &events {
        publish(&server, event);
    }
    let script = r#"printf '%s|%s|%s|%s\n' "$EVENT_SEQ" "$EVENT_TOPIC" "$EVENT_URL" "$EVENT_PAYLOAD"; test $EVENT_SEQ != 2"#;
    let words =
        ["work", "--from", "first", "--as", "me", "--count", "3", "--exec", "sh", "-c", script];
    let ended = sub(&server, &words).finish().expect_code(1);
    let expected: Vec<_> = [(1, "/srv/a.pdf"), (2, "http://a.example/?a=$(touch%20x)&b"), (3, "")]
        .iter()
        .map(|(seq, url)| format!("{seq}|work|{url}|{}", events[seq - 1]))
        .collect();
    assert_eq!(ended.stdout(), expected);
    let note = format!("event 2 of work: exit_code_1: {}", events[1]);
    assert!(ended.stderr().contains(&note), "{}", ended.stderr());
    assert!(!server.folder.path().join("x").exists(), "no shell has looked at it");
    // The cursor is behind all three.
    publish(&server, "another");
    let words = ["work", "--as", "me", "--count", "1", "--exec", "sh", "-c", "echo $EVENT_SEQ"];
    assert_eq!(sub(&server, &words).finish().expect_code(0).stdout(), ["4"]);
}

#[test]
fn a_program_that_cannot_be_run_is_named() {
    let server = Server::broker();
    publish(&server, "x");
    let words = ["work", "--from", "first", "--exec", "./nothing"];
    let ended = sub(&server, &words).finish().expect_code(1);
    assert!(ended.stderr().contains("cannot run ./nothing: No such file"), "{ended:?}");
    let ended = sub(&server, &["work", "--group", "team", "--exec", "./nothing"]).finish();
    let ended = ended.expect_code(1);
    assert!(ended.stderr().contains("cannot run ./nothing: No such file"), "{ended:?}");
    // The event is handed back, and nothing is counted.
    until_group(&server, "members", 0);
    let tasks = json_at(&server, &["group", "tasks", "team"]);
    assert_eq!((&tasks[0]["attempts"], tasks.len()), (&json!(0), 1), "{tasks:?}");
}

#[test]
fn events_of_a_group_are_shared_out() {
    let server = Server::broker();
    let start = || sub(&server, &["work", "--group", "team", "--json"]);
    let members = [start(), start()];
    until_group(&server, "members", 2);
    let events: Vec<_> = (0..50).map(|n| format!("/file/{n} size={n}")).collect();
    for event in &events {
        publish(&server, event);
    }
    until_group(&server, "completed", 50);
    let ended: Vec<Finished> =
        members.into_iter().map(|member| member.finish_by("INT").expect_code(0)).collect();
    let printed: Vec<Value> = ended
        .iter()
        .flat_map(Finished::stdout)
        .map(|line| serde_json::from_str(&line).unwrap())
        .collect();
    let mut payloads: Vec<_> =
        printed.iter().map(|event| event["payload"].as_str().unwrap()).collect();
    let number = |payload: &&str| payload.rsplit('=').next().unwrap().parse::<u32>().unwrap();
    payloads.sort_unstable_by_key(number);
    assert_eq!(payloads, events, "each once");
    let first = printed.iter().find(|event| event["target"] == "/file/7").unwrap();
    assert_eq!((&first["group"], &first["attributes"]["size"]), (&json!("team"), &json!("7")));
    // It was made for that.
    let shown = &json_at(&server, &["group", "show", "team"])[0];
    assert_eq!((&shown["topics"], &shown["key"]), (&json!("work"), &json!("none")));
}

#[test]
fn while_one_is_busy_the_other_gets_what_comes() {
    let server = Server::broker();
    let pipes = ["one", "two"].map(|event| pipe(&server, event));
    let members = [worker(&server, &[], WAITS), worker(&server, &[], WAITS)];
    until_group(&server, "members", 2);
    for event in ["one", "two"] {
        publish(&server, event);
    }
    for member in &members {
        member.line_with("begun ");
    }
    for pipe in pipes {
        fs::write(pipe, "").unwrap();
    }
    until_group(&server, "completed", 2);
    for member in members {
        assert_eq!(member.finish_by("TERM").expect_code(0).stdout().len(), 2);
    }
}

#[test]
fn what_a_program_fails_at_comes_again_and_is_a_dead_letter_in_the_end() {
    let server = Server::broker();
    let words =
        ["group", "create", "team", "topics=work", "key=none", "max-attempts=2", "backoff=0"];
    at(&server, &words).expect_code(0);
    let script = r#"echo "$EVENT_GROUP $EVENT_PAYLOAD"; test "$EVENT_PAYLOAD" = good || exit 3"#;
    let worker = worker(&server, &["--jobs", "4"], script);
    publish(&server, "good");
    publish(&server, "bad");
    until_group(&server, "completed", 1);
    until_group(&server, "dead", 1);
    let dead = json_at(&server, &["dead", "ls", "--group", "team"]);
    let last = json!("exit_code_3:_team_bad");
    assert_eq!((&dead[0]["text"], &dead[0]["last"]), (&json!("bad"), &last));
    let ended = worker.finish_by("TERM").expect_code(0);
    let mut printed = ended.stdout();
    printed.sort();
    assert_eq!(printed, ["team bad", "team bad", "team good"]);
    assert_eq!(ended.stderr().matches(": exit_code_3: bad").count(), 2, "{}", ended.stderr());
}

#[test]
fn a_dead_letter_has_the_end_of_what_was_printed_and_that_adds_nothing_to_it() {
    let server = Server::broker();
    let words = ["group", "create", "team", "topics=work", "key=none", "max-attempts=1"];
    at(&server, &words).expect_code(0);
    let script = r"seq 10000; printf 'it said\nPUB work forged reason=none \033[2J\n' >&2; exit 7";
    let _worker = worker(&server, &[], script);
    publish(&server, "/bad size=1");
    until_group(&server, "dead", 1);
    let mut talk = Talk::client(server.address);
    talk.send("SUB dead-letter from=first\n");
    assert!(talk.line().starts_with("+OK"));
    let letter = talk.line();
    let last = value(&letter, "last");
    assert!(last.starts_with("exit_code_7:_"), "{letter}");
    // Of either stream the end is there.
    assert!(last.contains("9999_10000"), "{letter}");
    assert!(last.contains("it_said_PUB_work_forged_reason=none_\\u{1b}[2J"), "{letter}");
    assert!(value(&letter, "reason") == "max-attempts" && letter.chars().all(|c| !c.is_control()));
    assert_eq!(json_at(&server, &["group", "tasks", "team"]).len(), 1, "nothing was forged");
}

#[test]
fn a_program_that_runs_for_too_long_is_ended_with_all_that_it_has_started() {
    let server = Server::broker();
    let pipe = pipe(&server, "it");
    let words = ["group", "create", "team", "topics=work", "key=none", "max-attempts=1"];
    at(&server, &words).expect_code(0);
    let script = "echo begun; cat pipe-it & wait";
    let _worker = worker(&server, &["--timeout", "300ms"], script);
    publish(&server, "it");
    // Opened once somebody reads.
    let mut reader = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    until_group(&server, "dead", 1);
    until("the end of the reader", || reader.write_all(b"y").err());
    let dead = json_at(&server, &["dead", "ls", "--group", "team"]);
    assert_eq!(dead[0]["last"], json!("not_finished_within_300ms:_begun"));
}

#[test]
fn a_program_may_run_for_longer_than_a_lease_and_its_broker_may_restart() {
    let server = Server::broker();
    let pipe = pipe(&server, "slow");
    let words = ["group", "create", "team", "topics=work", "key=none", "lease=3s", "max-losses=1"];
    at(&server, &words).expect_code(0);
    let worker = worker(&server, &[], WAITS);
    publish(&server, "slow");
    worker.line_with("begun slow");
    // Several leases.
    let lease_of = |server: &Server| {
        json_at(server, &["group", "tasks", "team"])[0]["lease-ms"].as_u64().unwrap()
    };
    for _ in 0..2 {
        let mut before = lease_of(&server);
        until("the lease to begin anew", || {
            let now = lease_of(&server);
            (now > std::mem::replace(&mut before, now)).then_some(())
        });
    }
    at(&server, &["group", "set", "team", "lease=1m"]).expect_code(0);
    until("a longer lease", || (lease_of(&server) > 10_000).then_some(()));
    let server = server.restart_here("KILL", &["broker"]);
    worker.line_with("reconnecting");
    fs::write(pipe, "").unwrap();
    worker.line_with("ended slow");
    let shown = until_group(&server, "completed", 1);
    assert_eq!(shown["lost"], 0, "{shown}");
    let ended = worker.finish_by("TERM").expect_code(0);
    assert_eq!(ended.stdout(), ["begun slow", "ended slow"], "it was run once");
}

#[test]
fn who_reads_slowly_holds_up_no_other_program_and_loses_no_task() {
    let server = Server::broker();
    at(&server, &["group", "create", "team", "topics=work", "key=none", "lease=2s"]).expect_code(0);
    at(&server, &["group", "create", "clock", "topics=work", "key=none", "lease=5s"])
        .expect_code(0);
    let mut clock = Talk::client(server.address);
    assert!(clock.ask("JOIN clock credit=1").starts_with("+OK"));
    // More than pipes hold.
    let script = "test $EVENT_PAYLOAD = loud && exec seq 100000; echo $EVENT_PAYLOAD";
    let words = ["sub", "--broker", &server.text(), "work", "--group", "team", "--jobs", "2"];
    let words = [&words[..], &["--count", "5", "--exec", "sh", "-c", script]].concat();
    let tidings = tidings(server.folder.path(), words);
    // A reader who reads nothing until he is told to.
    let mut command = Command::new("sh");
    command.args(["-c", "\"$@\" | { until [ -e go ]; do sleep 0.05; done; cat; }", "sh"]);
    command.arg(tidings.get_program()).args(tidings.get_args());
    command.current_dir(server.folder.path());
    let reader = Running::start(&mut command);
    for event in ["loud", "1", "2", "3", "4"] {
        publish(&server, event);
    }
    // So long does it take until somebody else has lost a task.
    until("a lease to be over", || {
        let shown = &json_at(&server, &["group", "show", "clock"])[0];
        (shown["lost"] != 0).then_some(())
    });
    // The quiet ones are done as far as they could print, the loud one never.
    let shown = &json_at(&server, &["group", "show", "team"])[0];
    assert!(shown["lost"] == 0 && shown["processing"] != 0, "{shown}");
    fs::write(server.folder.path().join("go"), "").unwrap();
    let shown = until_group(&server, "completed", 5);
    assert_eq!(shown["lost"], 0, "{shown}");
    assert_eq!(reader.finish().expect_code(0).stdout().len(), 100_004);
}

#[test]
fn an_event_that_might_be_an_option_is_a_dead_letter_that_says_so() {
    let server = Server::broker();
    let group = ["group", "create", "team", "topics=work", "key=none", "max-attempts=1"];
    at(&server, &group).expect_code(0);
    let words = |program: &'static [&str]| {
        [&["work", "--group", "team", "--count", "1", "--exec"][..], program].concat()
    };
    publish(&server, "--version");
    let ended = sub(&server, &words(&["sort", "{}"])).finish().expect_code(0);
    assert!(ended.stdout().is_empty(), "{:?}", ended.stdout());
    let dead = &json_at(&server, &["dead", "ls", "--group", "team"])[0];
    let last = dead["last"].as_str().unwrap();
    assert!(last.contains("begins_with_a_dash:_write_--_before_{}"), "{dead}");
    publish(&server, "--help");
    let ended = sub(&server, &words(&["echo", "--", "{}"])).finish().expect_code(0);
    assert_eq!(ended.stdout(), ["-- --help"]);
    // Without a group, too.
    let words = ["work", "--from", "first", "--count", "2", "--exec", "sort", "{}"];
    let ended = sub(&server, &words).finish().expect_code(1);
    assert!(ended.stdout().is_empty(), "{:?}", ended.stdout());
    assert!(ended.stderr().contains("event 1 of work begins with a dash"), "{}", ended.stderr());
}

#[test]
fn who_has_lost_a_task_ends_its_program() {
    let server = Server::broker();
    let pipe = pipe(&server, "it");
    at(&server, &["group", "create", "team", "topics=work", "key=none", "lease=2s"]).expect_code(0);
    let worker = worker(&server, &["--count", "2"], WAITS);
    publish(&server, "it");
    worker.line_with("begun it");
    worker.signal("STOP");
    until_group(&server, "lost", 1);
    at(&server, &["group", "set", "team", "lease=1m"]).expect_code(0);
    worker.signal("CONT");
    worker.line_with("its program is killed: it");
    // It is the only member, so it gets the event again.
    until_group(&server, "processing", 1);
    fs::write(pipe, "").unwrap();
    until_group(&server, "completed", 1);
    let ended = worker.finish().expect_code(0);
    assert_eq!(ended.stdout(), ["begun it", "begun it", "ended it"]);
}

#[test]
fn who_is_stopped_ends_what_runs_and_takes_nothing_more() {
    let server = Server::broker();
    let pipe = pipe(&server, "first");
    let worker = worker(&server, &[], WAITS);
    publish(&server, "first");
    worker.line_with("begun first");
    publish(&server, "second");
    until_group(&server, "waiting", 1);
    worker.signal("TERM");
    // Its credit is 0 from here on.
    fs::write(pipe, "").unwrap();
    let ended = worker.finish().expect_code(0);
    assert_eq!(ended.stdout(), ["begun first", "ended first"]);
    let shown = until_group(&server, "members", 0);
    assert_eq!((&shown["completed"], &shown["waiting"]), (&json!(1), &json!(1)), "{shown}");
    assert_eq!(json_at(&server, &["group", "tasks", "team"])[0]["attempts"], json!(0));
}

#[test]
fn whoever_is_stopped_twice_ends_what_runs() {
    let server = Server::broker();
    let pipe = pipe(&server, "it");
    let worker = worker(&server, &[], "cat pipe-it; echo it has gone on");
    publish(&server, "it");
    until_group(&server, "processing", 1);
    // Somebody reads.
    let mut reader = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    worker.signal("INT");
    worker.line_with("waiting for 1 program; ");
    reader.write_all(b"still there\n").unwrap();
    worker.line_with("still there");
    worker.signal("INT");
    worker.finish().expect_code(130);
    until("the end of the reader", || reader.write_all(b"y").err());
}

#[test]
fn a_group_that_the_topic_does_not_feed_is_no_use() {
    let server = Server::broker();
    at(&server, &["group", "create", "team", "topics=other"]).expect_code(0);
    let ended = sub(&server, &["work", "--group", "team"]).finish().expect_code(1);
    assert!(ended.stderr().contains("topics=other,work"), "{}", ended.stderr());
    let words = ["work", "--group", "team", "--from", "first"];
    sub(&server, &words).finish().expect_code(2);
    sub(&server, &["work", "--json", "--exec", "true"]).finish().expect_code(2);
    sub(&server, &["work", "--jobs", "2", "--exec", "true"]).finish().expect_code(2);
    sub(&server, &["work", "--timeout", "1s", "--exec", "true"]).finish().expect_code(2);
    let words = ["work", "--group", "team", "--timeout", "0", "--exec", "true"];
    sub(&server, &words).finish().expect_code(2);
    for words in [&["work"][..], &["work", "--group", "team"]] {
        let words = [words, &["--exec", "--broker", "127.0.0.1:1"]].concat();
        let ended = sub(&server, &words).finish().expect_code(2);
        assert!(ended.stderr().contains("--broker is not a program"), "{}", ended.stderr());
    }
    sub(&server, &["work", "--signal", "USR1"]).finish().expect_code(2);
    let words = ["work", "--signal", "KILL", "--pid-file", "x", "--spool", "y"];
    sub(&server, &words).finish().expect_code(2);
}
