//! `tidings status` and `tidings health`: whether all is well.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use crate::queue::groups::wait_for_waiting_entries;
use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::process::{Server, run_at, run_json_at, run_tidings};
use crate::support::scripted_broker::{ScriptedConnection, start_scripted_broker};
use crate::support::wait::wait_until;

#[test]
fn status_says_what_is_not_well() {
    let server = Server::start_broker();
    let well = run_at(&server, &["status"]).expect_code(0).stdout();
    assert_eq!(well[0], "All is well.");
    assert!(well.len() <= 12, "{well:#?}");
    assert_eq!(run_json_at(&server, &["status"])[0]["well"], json!(true));

    let mut worker = LineConnection::connect_client(server.address);
    worker.request_ok("PUB new-url http://a.example/");
    wait_for_waiting_entries(&server, 1);
    // At once: the sentence is as new as the numbers below it.
    let expect = |sentence: &str| {
        let status = run_at(&server, &["status"]).expect_code(1).stdout();
        assert_eq!(status[0], sentence, "{status:#?}");
    };
    expect("Group crawlers has 1 entry waiting, and no worker is connected.");
    worker.request_ok("GROUP set crawlers max-attempts=1");
    worker.request_ok("GROUP pause crawlers");
    expect("Group crawlers is paused with 1 entry waiting.");
    worker.request_ok("JOIN crawlers credit=1");
    worker.send("GROUP resume crawlers\n");
    let task = std::iter::repeat_with(|| worker.read_line()).find(|line| line.starts_with("TASK "));
    let nack = format!("NACK {} reason=no_way\n", task.unwrap().split(' ').nth(1).unwrap());
    worker.send(nack);
    while !worker.read_line().starts_with("+OK crawlers:") {}
    expect("1 dead letter in group crawlers.");
    let status = run_at(&server, &["status", "--json"]).expect_code(1).stdout().concat();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["problems"], json!(["1 dead letter in group crawlers."]));
    assert_eq!(status["groups"][0]["dead-kept"], json!(1));
    worker.request_ok("JOB open docs");
    worker.request_ok("JOB pause docs");
    worker.request_ok("PUB new-url http://b.example/ job=docs");
    wait_for_waiting_entries(&server, 1);
    expect("Job docs is paused with 1 URL unfinished. 1 dead letter in group crawlers.");
}

#[test]
#[ignore = "needs foreign programs"]
fn status_and_the_dashboard_name_the_same_problems() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    client.request_ok("PUB new-url http://a.example/");
    wait_for_waiting_entries(&server, 1);
    let problems = || {
        let line = run_at(&server, &["status", "--json"]).stdout().concat();
        serde_json::from_str::<serde_json::Value>(&line).unwrap()["problems"].clone()
    };
    let found = wait_until("a problem", || Some(problems()).filter(|all| *all != json!([])));
    let stats = HttpClient::new(&server).get("/stats").json();
    let page = &stats["problems"];
    assert_eq!(page[0]["text"], found[0]);
    assert_eq!((&page[0]["kind"], &page[0]["page"]), (&json!("bad"), &json!("groups/crawlers")));
    assert_eq!(page.as_array().unwrap().len(), found.as_array().unwrap().len());
}

#[test]
fn health_is_one_word_by_lines_and_by_http() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let folder = server.folder.path();
    assert_eq!(run_at(&server, &["health"]).expect_code(0).stdout(), ["healthy"]);
    for address in [http.authority(), &http.base_url] {
        let output = run_tidings(folder, &["health", "--http", address]).expect_code(0);
        assert_eq!((output.stdout(), output.stderr()), (vec!["healthy".to_owned()], String::new()));
    }
}

#[test]
fn health_by_http_refuses_the_flags_of_lines() {
    let folder = TempDir::new().unwrap();
    for flag in ["--crl", "--token-file", "--broker"] {
        let words = ["health", "--http", "127.0.0.1:1", flag, "7"];
        run_tidings(folder.path(), &words)
            .expect_code(2)
            .expect_stderr(&format!("{flag} has no effect with --http"));
    }
}

#[test]
fn a_broker_that_does_not_answer_is_unhealthy() {
    let server = Server::start_broker();
    let folder = server.folder.path();
    let (broker, http) = (server.address_text(), HttpClient::new(&server).authority().to_owned());
    // It accepts connections and answers nothing.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = mute.local_addr().unwrap().to_string();
    let gone = server.process.signal_and_finish("TERM");
    assert_eq!(gone.code, Some(0));
    for words in [
        ["health", "--broker", &broker],
        ["health", "--http", &http],
        ["health", "--broker", &mute],
        ["health", "--http", &mute],
    ] {
        let output = run_tidings(folder, &words).expect_code(1);
        assert_eq!(output.stdout(), ["unhealthy"], "{words:?}");
        assert_eq!(output.stderr().lines().count(), 1, "{words:?}: {}", output.stderr());
    }
    let status = run_tidings(folder, &["status", "--broker", &broker]).expect_code(1);
    assert!(status.stderr().contains("tidings up"), "{}", status.stderr());
    let words = ["status", "--broker", &broker, "--json"];
    let status = run_tidings(folder, &words).expect_code(1).stdout().concat();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["well"], json!(false));
}

#[test]
fn status_has_one_time_limit_for_all_answers() {
    // It answers one group after the other, each of them late.
    let (broker, _) = start_scripted_broker(|listener| {
        let mut client = ScriptedConnection::accept(&listener);
        client.next();
        (0..60).for_each(|number| client.send(&format!("+ group g{number}")));
        client.send("+OK");
        while client.next().is_some() {
            thread::sleep(Duration::from_millis(200));
            client.send("+OK g members=1");
        }
    });
    let folder = TempDir::new().unwrap();
    let status = run_tidings(folder.path(), &["status", "--broker", &broker]).expect_code(1);
    let line = format!("tidings: {broker}: no answer within 5 s");
    assert_eq!((status.stderr(), status.stdout()), (line, Vec::new()));
}
