//! Commands of the terminal against a broker of an older version, and against other servers.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread;

use serde_json::json;
use tempfile::TempDir;

use crate::support::http_client::HttpClient;
use crate::support::process::{Server, run_tidings};
use crate::support::scripted_broker::{ScriptedConnection, start_scripted_broker};
use crate::support::terminal::start_on_terminal_at;

/// The answer of a broker that knows only a few fields, no problems and no lists in parts.
fn answer_of_older_broker(command: &str) -> &'static str {
    let words: Vec<_> = command.split(' ').take(2).collect();
    match words[..] {
        ["STATS"] => "+ topic new-url kept=12\r\n+ group crawlers\r\n+OK clock=1",
        ["TOPIC", "ls"] => "+ new-url kept=12\r\n+OK",
        ["GROUP", "ls"] => "+ crawlers\r\n+OK",
        ["GROUP", "show"] => "+OK crawlers members=2 waiting=7",
        ["GROUP", "keys"] => "+ a.example waiting=7\r\n+OK crawlers listed=1",
        ["GROUP", "members"] => "+ 5b0c6f1e state=active credit=4\r\n+OK crawlers listed=1",
        ["JOB", "ls"] => "+ docs state=open\r\n+OK crawlers listed=1",
        ["EXPLAIN", _] => "+ a.example waiting=7 pending\r\n+OK a.example entries=7",
        _ => "-ERR syntax unknown command",
    }
}

/// Starts such a broker, which serves until the test ends.
fn start_older_broker() -> String {
    let (address, _) = start_scripted_broker(|listener| {
        loop {
            let mut client = ScriptedConnection::accept(&listener);
            thread::spawn(move || {
                while let Some(command) = client.next() {
                    client.send(answer_of_older_broker(&command));
                }
            });
        }
    });
    address
}

#[test]
fn what_an_older_broker_does_not_send_is_a_dash() {
    let (broker, folder) = (start_older_broker(), TempDir::new().unwrap());
    let run = |words: &[&str], code| {
        let output = run_tidings(folder.path(), &[words, &["--broker", &broker]].concat());
        assert_eq!(output.stderr(), "", "{words:?}");
        output.expect_code(code).stdout()
    };
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let unknown = "Whether all is well is unknown: this older broker does not say.";
    let status = run(&["status"], 1);
    assert_eq!(status[0], unknown);
    assert!(status[1].ends_with("version 0.1.0, - connections"), "{status:#?}");
    assert_eq!(status[2], "1 topic with 12 events, - on disk, - new events a second");
    let group = "group crawlers: 2 workers, 7 waiting, - in work, - completed, - failed, \
                 - dead letters";
    assert_eq!(status[3], group);
    let object = run(&["status", "--json"], 1).concat();
    let object: serde_json::Value = serde_json::from_str(&object).unwrap();
    assert_eq!((&object["well"], &object["connections"]), (&json!(null), &json!(null)));
    let group = json!({ "group": "crawlers", "members": 2, "waiting": 7 });
    assert_eq!(object["groups"], json!([group]));

    let top = run(&["top", "--once"], 0);
    assert_eq!(top[0], unknown);
    let row = |begin: [&str; 2]| {
        let mut rows = top.iter().map(|line| cells(line));
        let row = rows.find(|cells| cells.len() > 1 && cells[..2] == begin);
        row.unwrap_or_else(|| panic!("{begin:?}: {top:#?}"))
    };
    assert_eq!(row(["crawlers", "2"])[2..], ["7", "-", "-", "-", "-", "-", "-", "-", "-"]);
    assert_eq!(row(["crawlers", "docs"])[2..], ["-", "open", "-", "-", "-", "-", "-", "-"]);
    assert_eq!(row(["new-url", "12"])[2..], ["-", "-", "-", "-", "-", "-", "-"]);
    let object = run(&["top", "--once", "--json"], 0).concat();
    let object: serde_json::Value = serde_json::from_str(&object).unwrap();
    let host = json!({ "group": "crawlers", "key": "a.example", "waiting": 7, "text": null });
    assert_eq!(object["hosts"], json!([host]));

    assert_eq!(cells(&run(&["group", "keys"], 0)[1]), ["a.example", "7", "-", "-", "-"]);
    let member = &run(&["group", "members"], 0)[1];
    assert_eq!(cells(member)[1..], ["active", "4", "-", "-", "-", "-", "-", "-", "-", "-", "-"]);
    assert_eq!(run(&["health"], 0), ["healthy"]);
    assert_eq!(run(&["explain", "a.example"], 0)[0], "a.example waiting=7 pending");
    let names = |line: &str| {
        let line = format!("tidings {line} --broker {broker} ");
        run_tidings(folder.path(), &["complete-names", &line]).expect_code(0).stdout()
    };
    assert_eq!(names("group show"), ["crawlers"]);
    assert_eq!(names("job show"), ["docs"]);
    assert_eq!(names("topic show"), ["new-url"]);
}

#[test]
#[ignore = "needs foreign programs"]
fn explain_on_a_terminal_leaves_out_a_reason_that_an_older_broker_does_not_send() {
    let (broker, folder) = (start_older_broker(), TempDir::new().unwrap());
    let shown = start_on_terminal_at(folder.path(), &broker, &["explain", "a.example"]);
    let shown = shown.finish().expect_code(0).stdout().concat();
    assert!(shown.starts_with("a.example waits: -. 7 URLs wait for it"), "{shown}");
}

#[test]
fn a_context_of_an_older_broker_works_as_well() {
    let (broker, folder) = (start_older_broker(), TempDir::new().unwrap());
    let add = ["context", "add", "old", "--broker", &broker];
    run_tidings(folder.path(), &add).expect_code(0);
    let status = run_tidings(folder.path(), &["status", "--context", "old"]).expect_code(1);
    assert!(status.stdout()[3].starts_with("group crawlers: 2 workers"), "{status:?}");
}

/// A server that sends this to each client after its first line, and then keeps or closes the
/// connection.
fn start_server(answer: &'static str, closes: bool) -> String {
    let (address, _) = start_scripted_broker(move |listener| {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let _ = stream.read_line(&mut String::new());
            let _ = stream.get_mut().write_all(answer.as_bytes());
            if !closes {
                kept.push(stream);
            }
        }
    });
    address
}

#[test]
fn a_server_that_is_no_broker_is_named_in_one_line() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server).authority().to_owned();
    // It accepts connections and says nothing.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let redis = "-ERR Protocol version is not an integer or out of range\r\n";
    let cases = [
        (http, "it sent \"HTTP/1.1 400 Bad Request\"; that is HTTP"),
        (start_server("<!DOCTYPE HTML>\n<html>\n", true), "that is HTTP"),
        (start_server(redis, false), "it sent \"-ERR Protocol version"),
        (start_server("-NOPROTO unsupported protocol version\r\n", false), "it sent \"-NOPROTO"),
        (start_server("220 mail.example ESMTP\r\n", false), "it sent \"220 mail.example ESMTP\""),
        (start_server("\u{16}\u{3}\u{1}\u{1b}[2J\r\n", true), "before HELLO was answered"),
        (start_server("", true), "before HELLO was answered"),
        (mute.local_addr().unwrap().to_string(), "no "),
    ];
    let commands: [&[&str]; 6] = [
        &["status"],
        &["health"],
        &["top", "--once"],
        &["explain", "a.example"],
        &["group", "ls"],
        &["pub", "log", "x"],
    ];
    thread::scope(|scope| {
        for (address, problem) in &cases {
            for words in commands {
                scope.spawn(move || {
                    let folder = TempDir::new().unwrap();
                    let words = [words, &["--broker", address]].concat();
                    let output = run_tidings(folder.path(), &words).expect_code(1);
                    let text = output.stderr();
                    assert!(
                        text.lines().count() == 1 && text.contains(problem),
                        "{words:?} {text}"
                    );
                    assert!(text.starts_with(&format!("tidings: {address}: ")), "{words:?} {text}");
                    assert!(!text.contains('\u{1b}'), "{words:?} {text}");
                });
            }
        }
    });
}
