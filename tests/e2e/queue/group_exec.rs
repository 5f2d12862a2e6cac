//! `tidings sub --exec` runs a program for each event of a topic, or with `--group` for each task
//! of a group.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::line_connection::{LineConnection, value};
use crate::support::process::{
    Process, ProcessOutput, Server, run_at, run_json_at, started_by, tidings_command,
};
use crate::support::wait::wait_until;

/// Starts `tidings sub` with these arguments.
#[track_caller]
fn start_sub(server: &Server, arguments: &[&str]) -> Process {
    // The program comes last, so `--broker` comes first.
    let mut command =
        tidings_command(server.folder.path(), ["sub", "--broker", &server.address_text()]);
    Process::start(command.args(arguments))
}

/// Starts a worker of the group `team` that runs this script for each event.
#[track_caller]
pub(crate) fn start_exec_worker(server: &Server, flags: &[&str], script: &str) -> Process {
    let arguments = ["work", "--group", "team"];
    start_sub(server, &[&arguments[..], flags, &["--exec", "sh", "-c", script]].concat())
}

#[track_caller]
pub(crate) fn publish(server: &Server, event: &str) {
    LineConnection::connect_client(server.address).request_ok(&format!("PUB work {event}"));
}

/// Waits until a number of the group has this value, and returns the group.
#[track_caller]
fn wait_for_group(server: &Server, key: &str, value: u64) -> Value {
    wait_until(&format!("{key} to be {value}"), || {
        let shown = run_at(server, &["group", "show", "team", "--json"]);
        let shown: Value = serde_json::from_str(shown.stdout().first()?).unwrap();
        (shown[key] == value).then_some(shown)
    })
}

/// Creates a named pipe: opening it for reading blocks until a writer opens it.
#[track_caller]
pub(crate) fn make_pipe(server: &Server, event: &str) -> PathBuf {
    let path = server.folder.path().join(format!("pipe-{event}"));
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// Prints that it has begun, waits for the pipe of its event, and prints that it ends.
pub(crate) const WAIT_SCRIPT: &str =
    "echo begun $EVENT_PAYLOAD; cat pipe-$EVENT_PAYLOAD >/dev/null; echo ended $EVENT_PAYLOAD";

#[test]
fn a_backlog_without_keys_runs_by_priority_and_then_by_age() {
    let server = Server::start_broker();
    run_at(&server, &["group", "create", "team", "topics=work", "key=none"]).expect_code(0);
    run_at(&server, &["group", "pause", "team"]).expect_code(0);
    let events = (0..30).map(|n| format!("/{n:02} prio={}", [0, -9, 7][n % 3]));
    for event in events.clone() {
        publish(&server, &event);
    }
    publish(&server, "/later prio=9 after=1h");
    wait_for_group(&server, "waiting", 31);
    let worker = start_exec_worker(&server, &["--count", "30"], "echo $EVENT_PAYLOAD");
    run_at(&server, &["group", "resume", "team"]).expect_code(0);
    let ended = |event: &String, prio: &str| event.ends_with(&format!("={prio}"));
    let of = |prio| events.clone().filter(move |event| ended(event, prio));
    let expected: Vec<_> = of("7").chain(of("0")).chain(of("-9")).collect();
    assert_eq!(worker.finish().expect_code(0).stdout(), expected);
}

#[test]
fn an_event_whose_program_cannot_start_is_handed_back() {
    let server = Server::start_broker();
    publish(&server, "/1");
    publish(&server, "/2");
    for program in ["nosuchprogram", "./nosuchprogram"] {
        for flags in [&["--group", "team"][..], &["--from", "first"]] {
            let arguments = [&["work"], flags, &["--exec", program]].concat();
            let stderr = start_sub(&server, &arguments).finish().expect_code(1).stderr();
            let expected = format!("cannot run {program}: no such program");
            assert!(stderr.contains(&expected), "{stderr}");
        }
    }
    // A program that is removed while it is in use. A process of its own writes it, so that it is
    // open nowhere else when it is run.
    let script = "printf '#!/bin/sh\\nrm \"$0\"\\n' >once; chmod +x once";
    let mut shell = Command::new("sh");
    let written = shell.args(["-c", script]).current_dir(server.folder.path()).status().unwrap();
    assert!(written.success());
    let arguments = ["work", "--group", "team", "--exec", "./once"];
    start_sub(&server, &arguments).finish().expect_code(1).expect_stderr("cannot run ./once: ");
    let group = wait_for_group(&server, "completed", 1);
    assert_eq!((&group["processing"], &group["waiting"]), (&json!(0), &json!(1)));
    // No attempt is counted.
    let tasks = run_json_at(&server, &["group", "tasks", "team"]);
    assert_eq!((&tasks[0]["attempts"], tasks.len()), (&json!(0), 1), "{tasks:?}");
}

#[test]
fn a_group_with_a_vanished_worker_says_how_long_to_wait() {
    let server = Server::start_broker();
    run_at(&server, &["group", "create", "team", "topics=work", "key=none"]).expect_code(0);
    publish(&server, "/1");
    let mut worker = LineConnection::connect_client(server.address);
    worker.request_ok("JOIN team");
    assert!(worker.read_line().starts_with("TASK team:"));
    let delete = ["group", "delete", "team", "--yes", "--force"];
    run_at(&server, &delete).expect_code(1).expect_stderr("1 connected member");
    drop(worker);
    wait_until("the end of the worker", || {
        let stderr = run_at(&server, &delete[..4]).expect_code(1).stderr();
        let is_gone = stderr.contains("entry 1 is held for another ");
        let hint = ", which is not connected; to delete it now, add --force";
        (is_gone && stderr.contains(hint)).then_some(())
    });
    run_at(&server, &delete).expect_code(0);
    run_at(&server, &["group", "show", "team"]).expect_code(1);
}

#[test]
fn exec_runs_a_program_for_each_event_in_order() {
    let server = Server::start_broker();
    let events = [
        "/srv/a.pdf size=3",
        "http://a.example/?a=$(touch%20x)&b",
        "it's \"$(touch x)\"; `touch x`",
    ];
    for event in &events {
        publish(&server, event);
    }
    let script = r#"printf '%s|%s|%s|%s\n' "$EVENT_SEQ" "$EVENT_TOPIC" "$EVENT_URL" "$EVENT_PAYLOAD"; test $EVENT_SEQ != 2"#;
    let arguments =
        ["work", "--from", "first", "--as", "me", "--count", "3", "--exec", "sh", "-c", script];
    let output = start_sub(&server, &arguments).finish().expect_code(1);
    let expected: Vec<_> = [(1, "/srv/a.pdf"), (2, "http://a.example/?a=$(touch%20x)&b"), (3, "")]
        .iter()
        .map(|(seq, url)| format!("{seq}|work|{url}|{}", events[seq - 1]))
        .collect();
    assert_eq!(output.stdout(), expected);
    let note = format!("event 2 of work: exit_code_1: {}", events[1]);
    assert!(output.stderr().contains(&note), "{}", output.stderr());
    assert!(!server.folder.path().join("x").exists(), "a shell evaluated the payload");
    // The cursor is after all three events.
    publish(&server, "another");
    let arguments = ["work", "--as", "me", "--count", "1", "--exec", "sh", "-c", "echo $EVENT_SEQ"];
    assert_eq!(start_sub(&server, &arguments).finish().expect_code(0).stdout(), ["4"]);
}

#[test]
fn members_of_a_group_share_its_events() {
    let server = Server::start_broker();
    let start = || start_sub(&server, &["work", "--group", "team", "--json"]);
    let members = [start(), start()];
    wait_for_group(&server, "members", 2);
    let events: Vec<_> = (0..50).map(|n| format!("/file/{n} size={n}")).collect();
    for event in &events {
        publish(&server, event);
    }
    wait_for_group(&server, "completed", 50);
    let outputs: Vec<ProcessOutput> =
        members.into_iter().map(|member| member.signal_and_finish("INT").expect_code(0)).collect();
    let printed: Vec<Value> = outputs
        .iter()
        .flat_map(ProcessOutput::stdout)
        .map(|line| serde_json::from_str(&line).unwrap())
        .collect();
    let mut payloads: Vec<_> =
        printed.iter().map(|event| event["payload"].as_str().unwrap()).collect();
    let number = |payload: &&str| payload.rsplit('=').next().unwrap().parse::<u32>().unwrap();
    payloads.sort_unstable_by_key(number);
    assert_eq!(payloads, events, "each event is processed once");
    let first = printed.iter().find(|event| event["target"] == "/file/7").unwrap();
    assert_eq!((&first["group"], &first["attributes"]["size"]), (&json!("team"), &json!("7")));
    // `sub` created the group for this topic.
    let shown = &run_json_at(&server, &["group", "show", "team"])[0];
    assert_eq!((&shown["topics"], &shown["key"]), (&json!("work"), &json!("none")));
}

#[test]
fn a_busy_member_leaves_events_to_the_other() {
    let server = Server::start_broker();
    let pipes = ["one", "two"].map(|event| make_pipe(&server, event));
    let members = [
        start_exec_worker(&server, &[], WAIT_SCRIPT),
        start_exec_worker(&server, &[], WAIT_SCRIPT),
    ];
    wait_for_group(&server, "members", 2);
    for event in ["one", "two"] {
        publish(&server, event);
    }
    for member in &members {
        member.wait_for_line_with("begun ");
    }
    for pipe in pipes {
        fs::write(pipe, "").unwrap();
    }
    wait_for_group(&server, "completed", 2);
    for member in members {
        assert_eq!(member.signal_and_finish("TERM").expect_code(0).stdout().len(), 2);
    }
}

#[test]
fn failed_events_are_retried_and_become_dead_letters() {
    let server = Server::start_broker();
    let arguments =
        ["group", "create", "team", "topics=work", "key=none", "max-attempts=2", "backoff=0"];
    run_at(&server, &arguments).expect_code(0);
    let script = r#"echo "$EVENT_GROUP $EVENT_PAYLOAD"; test "$EVENT_PAYLOAD" = good || exit 3"#;
    let worker = start_exec_worker(&server, &["--jobs", "4"], script);
    publish(&server, "good");
    publish(&server, "bad");
    wait_for_group(&server, "completed", 1);
    wait_for_group(&server, "dead", 1);
    let dead = run_json_at(&server, &["dead", "ls", "--group", "team"]);
    let last = json!("exit_code_3:_team_bad");
    assert_eq!((&dead[0]["url"], &dead[0]["last"]), (&json!("bad"), &last));
    // Without a name it is the list of the default group.
    run_at(&server, &["dead", "ls"])
        .expect_code(0)
        .expect_stderr("group team has 1 dead letter: tidings dead ls --group team");
    let output = worker.signal_and_finish("TERM").expect_code(0);
    let mut printed = output.stdout();
    printed.sort();
    assert_eq!(printed, ["team bad", "team bad", "team good"]);
    assert_eq!(output.stderr().matches(": exit_code_3: bad").count(), 2, "{}", output.stderr());
}

#[test]
fn a_dead_letter_quotes_program_output_safely() {
    let server = Server::start_broker();
    let arguments = ["group", "create", "team", "topics=work", "key=none", "max-attempts=1"];
    run_at(&server, &arguments).expect_code(0);
    let script = r"seq 10000; printf 'it said\nPUB work forged reason=none \033[2J\n' >&2; exit 7";
    let _worker = start_exec_worker(&server, &[], script);
    publish(&server, "/bad size=1");
    wait_for_group(&server, "dead", 1);
    let mut client = LineConnection::connect_client(server.address);
    client.send("SUB dead-letter from=first\n");
    assert!(client.read_line().starts_with("+OK"));
    let dead_letter = client.read_line();
    let last = value(&dead_letter, "last");
    assert!(last.starts_with("exit_code_7:_"), "{dead_letter}");
    // The end of both streams is included.
    assert!(last.contains("9999_10000"), "{dead_letter}");
    assert!(last.contains("it_said_PUB_work_forged_reason=none_\\u{1b}[2J"), "{dead_letter}");
    assert!(
        value(&dead_letter, "reason") == "max-attempts"
            && dead_letter.chars().all(|c| !c.is_control())
    );
    assert_eq!(
        run_json_at(&server, &["group", "tasks", "team"]).len(),
        1,
        "program output was published"
    );
}

#[test]
fn a_timeout_kills_the_program_and_its_children() {
    let server = Server::start_broker();
    let pipe = make_pipe(&server, "it");
    let arguments = ["group", "create", "team", "topics=work", "key=none", "max-attempts=1"];
    run_at(&server, &arguments).expect_code(0);
    let script = "echo begun; cat pipe-it & wait";
    let _worker = start_exec_worker(&server, &["--timeout", "300ms"], script);
    publish(&server, "it");
    // Opening succeeds when the program reads.
    let mut reader = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    wait_for_group(&server, "dead", 1);
    wait_until("the reader to end", || reader.write_all(b"y").err());
    let dead = run_json_at(&server, &["dead", "ls", "--group", "team"]);
    assert_eq!(dead[0]["last"], json!("not_finished_within_300ms:_begun"));
}

#[test]
fn a_program_may_outlast_its_lease_and_a_broker_restart() {
    let server = Server::start_broker();
    let pipe = make_pipe(&server, "slow");
    let arguments =
        ["group", "create", "team", "topics=work", "key=none", "lease=3s", "max-losses=1"];
    run_at(&server, &arguments).expect_code(0);
    let worker = start_exec_worker(&server, &[], WAIT_SCRIPT);
    publish(&server, "slow");
    worker.wait_for_line_with("begun slow");
    // Waits for several renewals of the lease.
    let lease_of = |server: &Server| {
        run_json_at(server, &["group", "tasks", "team"])[0]["lease-ms"].as_u64().unwrap()
    };
    for _ in 0..2 {
        let mut before = lease_of(&server);
        wait_until("the lease to be renewed", || {
            let now = lease_of(&server);
            (now > std::mem::replace(&mut before, now)).then_some(())
        });
    }
    run_at(&server, &["group", "set", "team", "lease=1m"]).expect_code(0);
    wait_until("a longer lease", || (lease_of(&server) > 10_000).then_some(()));
    let server = server.restart_at_same_address("KILL", &["broker"]);
    worker.wait_for_line_with("reconnecting");
    fs::write(pipe, "").unwrap();
    worker.wait_for_line_with("ended slow");
    let shown = wait_for_group(&server, "completed", 1);
    assert_eq!(shown["lost"], 0, "{shown}");
    let output = worker.signal_and_finish("TERM").expect_code(0);
    assert_eq!(output.stdout(), ["begun slow", "ended slow"], "the program must run once");
}

#[test]
fn a_slow_reader_blocks_no_other_program_and_loses_no_task() {
    let server = Server::start_broker();
    run_at(&server, &["group", "create", "team", "topics=work", "key=none", "lease=2s"])
        .expect_code(0);
    run_at(&server, &["group", "create", "clock", "topics=work", "key=none", "lease=5s"])
        .expect_code(0);
    let mut clock = LineConnection::connect_client(server.address);
    clock.request_ok("JOIN clock credit=1");
    // More output than a pipe holds.
    let script = "test $EVENT_PAYLOAD = loud && exec seq 100000; echo $EVENT_PAYLOAD";
    let arguments =
        ["sub", "--broker", &server.address_text(), "work", "--group", "team", "--jobs", "2"];
    let arguments = [&arguments[..], &["--count", "5", "--exec", "sh", "-c", script]].concat();
    let tidings = tidings_command(server.folder.path(), arguments);
    // A reader that waits for the file `go`.
    let mut command = Command::new("sh");
    command.args(["-c", "\"$@\" | { until [ -e go ]; do sleep 0.05; done; cat; }", "sh"]);
    let reader = Process::start(&mut started_by(command, &tidings));
    for event in ["loud", "1", "2", "3", "4"] {
        publish(&server, event);
    }
    // A lease of another group expires, so enough time has passed.
    wait_until("a lease to expire", || {
        let shown = &run_json_at(&server, &["group", "show", "clock"])[0];
        (shown["lost"] != 0).then_some(())
    });
    // The quiet programs are done, as far as they could print; the loud one is not.
    let shown = &run_json_at(&server, &["group", "show", "team"])[0];
    assert!(shown["lost"] == 0 && shown["processing"] != 0, "{shown}");
    fs::write(server.folder.path().join("go"), "").unwrap();
    let shown = wait_for_group(&server, "completed", 5);
    assert_eq!(shown["lost"], 0, "{shown}");
    assert_eq!(reader.finish().expect_code(0).stdout().len(), 100_004);
}

#[test]
#[ignore = "needs foreign programs"]
fn an_event_with_a_leading_dash_becomes_a_dead_letter() {
    let server = Server::start_broker();
    let group = ["group", "create", "team", "topics=work", "key=none", "max-attempts=1"];
    run_at(&server, &group).expect_code(0);
    let arguments = |program: &'static [&str]| {
        [&["work", "--group", "team", "--count", "1", "--exec"][..], program].concat()
    };
    publish(&server, "--version");
    let output = start_sub(&server, &arguments(&["sort", "{}"])).finish().expect_code(0);
    assert!(output.stdout().is_empty(), "{:?}", output.stdout());
    let dead = &run_json_at(&server, &["dead", "ls", "--group", "team"])[0];
    let last = dead["last"].as_str().unwrap();
    assert!(last.contains("begins_with_a_dash:_write_--_before_{}"), "{dead}");
    publish(&server, "--help");
    let output = start_sub(&server, &arguments(&["echo", "--", "{}"])).finish().expect_code(0);
    assert_eq!(output.stdout(), ["-- --help"]);
    // The same applies without a group.
    let arguments = ["work", "--from", "first", "--count", "2", "--exec", "sort", "{}"];
    let output = start_sub(&server, &arguments).finish().expect_code(1);
    assert!(output.stdout().is_empty(), "{:?}", output.stdout());
    assert!(output.stderr().contains("event 1 of work begins with a dash"), "{}", output.stderr());
}

#[test]
fn a_lost_lease_kills_the_program() {
    let server = Server::start_broker();
    let pipe = make_pipe(&server, "it");
    run_at(&server, &["group", "create", "team", "topics=work", "key=none", "lease=2s"])
        .expect_code(0);
    let worker = start_exec_worker(&server, &["--count", "2"], WAIT_SCRIPT);
    publish(&server, "it");
    worker.wait_for_line_with("begun it");
    worker.signal("STOP");
    wait_for_group(&server, "lost", 1);
    run_at(&server, &["group", "set", "team", "lease=1m"]).expect_code(0);
    worker.signal("CONT");
    worker.wait_for_line_with("its program is killed: it");
    // It is the only member, so it receives the event again.
    wait_for_group(&server, "processing", 1);
    fs::write(pipe, "").unwrap();
    wait_for_group(&server, "completed", 1);
    let output = worker.finish().expect_code(0);
    assert_eq!(output.stdout(), ["begun it", "begun it", "ended it"]);
}

#[test]
fn a_stopped_worker_finishes_its_programs_and_takes_no_more() {
    let server = Server::start_broker();
    let pipe = make_pipe(&server, "first");
    let worker = start_exec_worker(&server, &[], WAIT_SCRIPT);
    publish(&server, "first");
    worker.wait_for_line_with("begun first");
    publish(&server, "second");
    wait_for_group(&server, "waiting", 1);
    worker.signal("TERM");
    // Its credit is 0 from here on.
    fs::write(pipe, "").unwrap();
    let output = worker.finish().expect_code(0);
    assert_eq!(output.stdout(), ["begun first", "ended first"]);
    let shown = wait_for_group(&server, "members", 0);
    assert_eq!((&shown["completed"], &shown["waiting"]), (&json!(1), &json!(1)), "{shown}");
    assert_eq!(run_json_at(&server, &["group", "tasks", "team"])[0]["attempts"], json!(0));
}

#[test]
fn a_second_signal_kills_running_programs() {
    let server = Server::start_broker();
    let pipe = make_pipe(&server, "it");
    let worker = start_exec_worker(&server, &[], "cat pipe-it; echo still running");
    publish(&server, "it");
    wait_for_group(&server, "processing", 1);
    // The program reads.
    let mut reader = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    worker.signal("INT");
    worker.wait_for_line_with("waiting for 1 program; ");
    reader.write_all(b"still there\n").unwrap();
    worker.wait_for_line_with("still there");
    worker.signal("INT");
    worker.finish().expect_code(130);
    wait_until("the reader to end", || reader.write_all(b"y").err());
}

#[test]
fn a_group_must_be_fed_by_the_topic() {
    let server = Server::start_broker();
    run_at(&server, &["group", "create", "team", "topics=other"]).expect_code(0);
    start_sub(&server, &["work", "--group", "team"])
        .finish()
        .expect_code(1)
        .expect_stderr("topics=other,work");
    let arguments = ["work", "--group", "team", "--from", "first"];
    start_sub(&server, &arguments).finish().expect_code(2);
    start_sub(&server, &["work", "--json", "--exec", "true"]).finish().expect_code(2);
    start_sub(&server, &["work", "--jobs", "2", "--exec", "true"]).finish().expect_code(2);
    start_sub(&server, &["work", "--timeout", "1s", "--exec", "true"]).finish().expect_code(2);
    let arguments = ["work", "--group", "team", "--timeout", "0", "--exec", "true"];
    start_sub(&server, &arguments).finish().expect_code(2);
    for arguments in [&["work"][..], &["work", "--group", "team"]] {
        let arguments = [arguments, &["--exec", "--broker", "127.0.0.1:1"]].concat();
        start_sub(&server, &arguments)
            .finish()
            .expect_code(2)
            .expect_stderr("--broker is not a program");
    }
    start_sub(&server, &["work", "--signal", "USR1"]).finish().expect_code(2);
    let arguments = ["work", "--signal", "KILL", "--pid-file", "x", "--spool", "y"];
    start_sub(&server, &arguments).finish().expect_code(2);
}
