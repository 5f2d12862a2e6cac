//! `tidings host`: what it prints, what it waits for, and what it refuses.

use std::fs;
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::process::{
    Process, Server, run_at, run_json_at, run_tidings, start_at, tidings_command,
};
use crate::support::wait::wait_until;

/// A broker, and a worker that holds a page of `a.example`; three more wait.
#[track_caller]
fn start_with_task() -> (Server, LineConnection, String) {
    let server = Server::start_broker();
    run_at(&server, &["group", "set", "crawlers", "delay=0"]).expect_code(0);
    run_at(&server, &["job", "open", "docs"]).expect_code(0);
    let urls = [1, 2, 3, 4].map(|page| format!("http://a.example/{page}"));
    let add: Vec<_> =
        ["job", "add", "docs"].into_iter().chain(urls.iter().map(|url| &**url)).collect();
    run_at(&server, &add).expect_code(0);
    let mut worker = LineConnection::connect_client(server.address);
    worker.request_ok("JOIN crawlers credit=1");
    let line = worker.read_line();
    let task = line.strip_prefix("TASK ").and_then(|line| line.split(' ').next());
    let task = task.unwrap_or_else(|| panic!("{line}")).to_owned();
    (server, worker, task)
}

/// Waits until the rule is listed.
#[track_caller]
fn wait_for_rule(server: &Server) {
    wait_until("the rule", || (!run_json_at(server, &["host", "ls"]).is_empty()).then_some(()));
}

#[test]
fn a_block_waits_for_the_request_under_way() {
    let (server, mut worker, task) = start_with_task();
    let block = start_at(&server, &["host", "block", "a.example"]);
    wait_for_rule(&server);
    let tasks = run_json_at(&server, &["group", "tasks", "--job", "docs"]);
    assert_eq!(tasks.len(), 1, "those that waited have ended: {tasks:?}");
    assert_eq!(tasks[0]["state"], "processing");
    assert!(!block.has_printed("blocked"), "it still waits");
    worker.request_ok(&format!("ACK {task}"));
    let output = block.finish().expect_code(0);
    assert_eq!(output.stdout(), ["blocked a.example"]);
    assert!(output.stderr().contains("'*.a.example' includes them"), "{}", output.stderr());
    run_at(&server, &["job", "close", "docs"]).expect_code(0);
    let done = run_json_at(&server, &["job", "wait", "docs"]);
    assert_eq!((&done[0]["completed"], &done[0]["blocked"]), (&json!(1), &json!(3)));
}

#[test]
fn an_interrupted_block_stays_in_force() {
    let (server, mut worker, task) = start_with_task();
    let block = start_at(&server, &["host", "block", "a.example"]);
    wait_for_rule(&server);
    block
        .signal_and_finish("INT")
        .expect_code(130)
        .expect_stderr("the rule for a.example stays in force");
    assert_eq!(run_json_at(&server, &["host", "ls"])[0]["key"], "a.example");
    worker.request_ok(&format!("ACK {task}"));
    start_at(&server, &["host", "block", "a.example"]).finish().expect_code(0);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_terminal_shows_that_a_block_waits() {
    let (server, mut worker, task) = start_with_task();
    let block = tidings_command(server.folder.path(), ["host", "block", "a.example"]);
    let mut terminal = Command::new("python3");
    terminal.args(["-c", "import pty, sys; pty.spawn(sys.argv[1:])"]).arg(block.get_program());
    terminal.args(block.get_args()).args(["--broker", &server.address_text()]);
    let block = Process::start(&mut terminal);
    wait_for_rule(&server);
    worker.request_ok(&format!("ACK {task}"));
    let shown = block.finish().expect_code(0).stdout().concat();
    let waits = shown.find("blocked; waiting until the requests under way have ended");
    let ends = shown.find("blocked a.example");
    assert!(waits.is_some() && waits < ends, "{shown}");
}

#[test]
fn rules_are_listed_shown_and_cleared() {
    let server = Server::start_broker();
    for (words, printed) in [
        ("block *.b.example --for 2h --note abuse-2381", "blocked *.b.example: ends in 2 h"),
        ("pause http://C.example/", "paused c.example"),
        ("slow d.example --delay 30s --parallel 1", "slowed d.example: delay=30s, parallel=1"),
        ("slow www.b.example --delay 1m", "slowed www.b.example: delay=1m"),
    ] {
        let words: Vec<_> = ["host"].into_iter().chain(words.split(' ')).collect();
        assert_eq!(run_at(&server, &words).expect_code(0).stdout(), [printed]);
    }
    let listed = run_at(&server, &["host", "ls"]).expect_code(0).stdout();
    let rows: Vec<Vec<_>> = listed.iter().map(|line| line.split_whitespace().collect()).collect();
    let expected: [&[&str]; 5] = [
        &["HOST", "RULE", "ENDS", "NOTE"],
        &["*.b.example", "block", "in", "119", "min", "abuse-2381"],
        &["c.example", "pause", "-", "-"],
        &["d.example", "delay=30s", "parallel=1", "-", "-"],
        &["www.b.example", "delay=1m", "-", "-"],
    ];
    assert_eq!(rows, expected);
    let server = server.restart("KILL", &["broker"]);
    let rules = run_json_at(&server, &["host", "ls"]);
    assert_eq!(rules[1], json!({ "key": "c.example", "pause": true }));
    assert_eq!(rules[2], json!({ "key": "d.example", "delay": "30s", "parallel": 1 }));

    let shown = |host| run_json_at(&server, &["host", "show", host])[0]["rule"]["key"].clone();
    assert_eq!(shown("deep.b.example"), "*.b.example");
    assert_eq!(shown("www.b.example"), "www.b.example", "the longer name counts");
    let shown = run_at(&server, &["host", "show", "c.example"]).expect_code(0).stdout();
    assert!(shown[1].starts_with("c.example  pause"), "{shown:?}");
    run_at(&server, &["host", "show", "e.example"])
        .expect_code(1)
        .expect_stderr("nothing waits for e.example");

    let clear = ["host", "clear", "c.example"];
    assert_eq!(run_at(&server, &clear).expect_code(0).stdout(), ["cleared c.example"]);
    run_at(&server, &clear).expect_code(1);
    assert_eq!(run_json_at(&server, &["host", "ls"]).len(), 3);
    run_at(&server, &["host", "ls", "--group", "none"]).expect_code(1);
}

#[test]
fn a_wrong_host_or_flag_is_one_line_and_exit_code_2() {
    let folder = TempDir::new().unwrap();
    for (words, problem) in [
        ("block", "HOST"),
        ("block example.org/docs", "a rule covers all pages of a host; write example.org"),
        ("block example.org --for soon", "--for soon: expected"),
        ("block example.org --for 0", "--for 0: expected"),
        ("pause example.org --for 4000d", "--for 4000d: expected"),
        ("block example.org --until noon", "--until noon: expected a time such as"),
        ("block example.org --until 2020-01-01T00:00Z", "is in the past"),
        ("block example.org --for 1h --until 2030-01-01T00:00Z", "cannot be used with"),
        ("block example.org --note a\u{7}b", "--note"),
        ("slow example.org", "--delay"),
        ("slow example.org --delay 2d", "--delay 2d: expected"),
        ("slow example.org --delay 1s --parallel 0", "--parallel 0: expected"),
        ("slow example.org --delay 1s --parallel many", "--parallel many: expected"),
        ("ls --group two,words", "--group two,words"),
        ("show", "HOST"),
    ] {
        let words: Vec<_> = ["host"].into_iter().chain(words.split(' ')).collect();
        let output = run_tidings(folder.path(), &words).expect_code(2);
        assert!(output.stderr().contains(problem), "{words:?}: {}", output.stderr());
        assert_eq!(output.stderr().lines().count(), 1, "{words:?}: {}", output.stderr());
    }
}

// PROTOCOL: G16
#[test]
#[ignore = "needs foreign programs"]
fn a_name_that_no_server_can_have_is_refused_by_every_interface() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let mut client = LineConnection::connect_client(server.address);
    let folder = server.folder.path();
    fs::write(folder.join("c.toml"), "never = 'never.txt'\n").unwrap();
    let label = "a".repeat(64);
    for name in ["-", "a..b", "xn--", "_.example", "a,b", &label, "*.-", "*.a..b", "*.127.0.0.1"] {
        let refused = run_at(&server, &["host", "block", name]).expect_code(2).stderr();
        assert_eq!(refused.lines().count(), 1, "{name}: {refused}");
        let answer = client.request(&format!("GROUP rule crawlers key={name} block=yes"));
        assert!(answer.starts_with(&format!("-ERR bad-argument key={name}: ")), "{answer}");
        let path = format!("/groups/crawlers/rules/{name}");
        let answer = http.send_json("PUT", &path, r#"{"block":true}"#);
        assert_eq!(answer.status, 400, "{name}: {}", answer.body);
        fs::write(folder.join("never.txt"), format!("a.example\n{name}\n")).unwrap();
        let check = ["config", "check", "broker", "--config", "c.toml"];
        let refused = run_tidings(folder, &check).expect_code(2).stderr();
        assert!(refused.contains(&format!("never.txt: line 2: {name:?}: ")), "{refused}");
        assert_eq!(refused.lines().count(), 1, "{refused}");
    }
    assert!(run_json_at(&server, &["host", "ls"]).is_empty());

    // A block of everything below a public suffix may be meant, so it is only pointed out.
    let block = run_at(&server, &["host", "block", "*.co"]).expect_code(0);
    assert_eq!(block.stdout(), ["blocked *.co"]);
    assert_eq!(block.stderr(), "'*.co' includes all sites with names that end in .co");
    assert_eq!(run_at(&server, &["host", "block", "*.a.co"]).expect_code(0).stderr(), "");
}

#[test]
fn a_note_may_have_spaces() {
    let server = Server::start_broker();
    let block = ["host", "block", "a.example", "--note", "complaint by  owner"];
    run_at(&server, &block).expect_code(0);
    assert_eq!(run_json_at(&server, &["host", "ls"])[0]["note"], "complaint_by_owner");
}
