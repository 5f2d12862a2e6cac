//! An operator drains a worker, and follows tasks from their beginning to their end.

use std::fs::OpenOptions;
use std::path::Path;

use serde_json::{Value, json};

use crate::queue::group_exec::{WAIT_SCRIPT, make_pipe, publish, start_exec_worker};
use crate::support::line_connection::LineConnection;
use crate::support::nc::run_nc;
use crate::support::process::{Process, Server, run_at, run_json_at};
use crate::support::wait::wait_until;

/// A broker with the group `team`, which exists before its first worker.
#[track_caller]
fn start_server(settings: &[&str]) -> Server {
    let server = Server::start_broker();
    let create = ["group", "create", "team", "topics=work", "key=none"];
    run_at(&server, &[&create, settings].concat()).expect_code(0);
    server
}

/// Lets the program that waits for this pipe end.
#[track_caller]
fn end_program(pipe: &Path) {
    drop(OpenOptions::new().write(true).open(pipe).unwrap());
}

/// The members of the group `team`.
#[track_caller]
fn members(server: &Server) -> Vec<Value> {
    run_json_at(server, &["group", "members", "team"])
}

/// Waits until the worker is in this state, and returns it.
#[track_caller]
fn wait_for_member(server: &Server, worker: &Process, state: &str) -> Value {
    let suffix = format!(".{}", worker.id());
    wait_until(&format!("{state} worker"), || {
        let is_it = |member: &Value| {
            let name = member["name"].as_str().unwrap_or_default();
            name.starts_with("tidings-sub@") && name.ends_with(&suffix) && member["state"] == state
        };
        members(server).into_iter().find(is_it)
    })
}

/// The texts of the tasks in this state.
#[track_caller]
fn texts(server: &Server, state: &str) -> Vec<String> {
    let tasks = run_json_at(server, &["group", "tasks", "team", "--state", state]);
    tasks.iter().map(|task| task["url"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn wait_for_texts(server: &Server, state: &str, expected: &[&str]) {
    wait_until(&format!("{expected:?} to be {state}"), || {
        (texts(server, state) == expected).then_some(())
    });
}

// PROTOCOL: G8, G9
#[test]
#[ignore = "needs foreign programs"]
fn a_drained_worker_ends_what_it_has_and_takes_no_more() {
    let server = start_server(&[]);
    let pipes = ["one", "two", "three", "four"].map(|event| make_pipe(&server, event));
    let first = start_exec_worker(&server, &["--jobs", "2"], WAIT_SCRIPT);
    let member = wait_for_member(&server, &first, "active");
    assert_eq!((&member["credit"], &member["held"]), (&json!(2), &json!(0)));
    assert!(member["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{member}");
    publish(&server, "one");
    first.wait_for_line_with("begun one");

    // From now on it gets nothing, although it has room.
    let name = member["name"].as_str().unwrap();
    let answers = run_nc(server.address, format!("GROUP drain team member={name}\nQUIT\n"));
    let digits = member["member"].as_str().unwrap();
    let draining = format!("+OK team member={digits} state=draining credit=2 held=1 name={name} ");
    assert!(answers[1].starts_with(&draining), "{answers:?}");
    publish(&server, "two");
    wait_for_texts(&server, "queued", &["two"]);
    let processing = run_json_at(&server, &["group", "tasks", "team", "--state", "processing"]);
    assert_eq!((&processing[0]["url"], &processing[0]["member"]), (&json!("one"), &json!(digits)));
    assert!(processing[0]["held-ms"].is_u64(), "{processing:?}");

    let second = start_exec_worker(&server, &["--jobs", "2"], WAIT_SCRIPT);
    second.wait_for_line_with("begun two");
    end_program(&pipes[0]);
    first.wait_for_line_with("ended one");
    wait_for_member(&server, &first, "drained");
    publish(&server, "three");
    second.wait_for_line_with("begun three");
    end_program(&pipes[1]);
    wait_for_texts(&server, "completed", &["two", "one"]);
    end_program(&pipes[2]);
    wait_for_texts(&server, "completed", &["three", "two", "one"]);
    let completed = run_json_at(&server, &["group", "tasks", "team", "--state", "completed"]);
    assert_eq!(
        (&completed[2]["member"], &completed[2]["outcome"]),
        (&json!(digits), &json!("done"))
    );
    second.signal_and_finish("TERM").expect_code(0);

    // It stays drained when the broker is killed and it connects again.
    let server = server.restart_at_same_address("KILL", &["broker"]);
    let member = wait_until("the worker is back", || {
        let member = wait_for_member(&server, &first, "drained");
        (member["credit"] == 2).then_some(member)
    });
    publish(&server, "four");
    wait_for_texts(&server, "queued", &["four"]);
    let undrain = ["group", "undrain", "team", member["member"].as_str().unwrap()];
    let shown = run_at(&server, &undrain).expect_code(0).stdout();
    assert_eq!(shown, [format!("{digits} is active")]);
    first.wait_for_line_with("begun four");
    end_program(&pipes[3]);
    first.wait_for_line_with("ended four");
    let printed = first.signal_and_finish("TERM").expect_code(0).stdout();
    assert_eq!(printed, ["begun one", "ended one", "begun four", "ended four"]);
}

// PROTOCOL: G1
#[test]
fn a_failing_program_is_listed_until_it_is_given_up() {
    let server = start_server(&["max-attempts=2", "backoff=1d"]);
    publish(&server, "broken");
    wait_for_texts(&server, "queued", &["broken"]);
    let worker = start_exec_worker(&server, &[], "test -e mended; exit 3");
    wait_for_texts(&server, "retry", &["broken"]);
    let retry = run_json_at(&server, &["group", "tasks", "team"]);
    assert_eq!(retry.len(), 1);
    assert_eq!((&retry[0]["attempts"], &retry[0]["last"]), (&json!(1), &json!("exit_code_3")));
    assert!(texts(&server, "failed").is_empty());

    run_at(&server, &["group", "set", "team", "max-attempts=1"]).expect_code(0);
    publish(&server, "worse");
    wait_for_texts(&server, "dead", &["worse"]);
    let failed = run_json_at(&server, &["group", "tasks", "team", "--state", "failed"]);
    assert_eq!(failed.len(), 1);
    let [text, reason, member] = ["url", "reason", "member"].map(|key| &failed[0][key]);
    assert_eq!([text, reason], [&json!("worse"), &json!("max-attempts")]);
    assert_eq!(*member, wait_for_member(&server, &worker, "active")["member"]);
    assert!(texts(&server, "completed").is_empty());
    worker.signal_and_finish("TERM").expect_code(0);
}

// PROTOCOL: G9
#[test]
#[ignore = "needs foreign programs"]
fn a_member_must_be_named_so_that_one_is_meant() {
    let server = Server::start_broker();
    let mut workers = ["HELLO name=twin", "HELLO name=twin", "HELLO name=other"].map(|hello| {
        let mut worker = LineConnection::connect_client(server.address);
        worker.request(hello);
        worker.request_ok("JOIN crawlers credit=1");
        worker
    });
    for (member, answer) in [
        ("none", "-ERR unknown no member none "),
        ("twin", "-ERR conflict 2 members of group crawlers are twin; "),
        ("other", "+OK crawlers member="),
    ] {
        let drain = format!("GROUP drain crawlers member={member}\nQUIT\n");
        let answers = run_nc(server.address, drain);
        assert!(answers[1].starts_with(answer), "{answers:?}");
    }
    let answers = run_nc(server.address, "GROUP drain crawlers\nGROUP members crawlers\nQUIT\n");
    assert!(answers[1].starts_with("-ERR bad-argument drain needs member="), "{answers:?}");
    assert_eq!(answers[5], "+OK crawlers matched=3 listed=3");
    assert!(workers[2].request("PING").starts_with("PONG"), "it stays connected");
}
