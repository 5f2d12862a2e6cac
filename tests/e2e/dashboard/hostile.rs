//! Contents that peers wrote to harm a reader.

use std::fmt::Write as _;

use serde_json::json;

use super::Script;
use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::process::{Server, run_at};
use crate::support::terminal::start_on_terminal;

/// Markup, and characters that are invisible or change the direction of others.
const WORD: &str = "<img/src=x/onerror=alert(1)>'\"\u{202e}\u{200b}";

/// The word as a terminal shows it.
const SHOWN: &str = r#"<img/src=x/onerror=alert(1)>'"\u{202e}\u{200b}"#;

#[test]
#[ignore = "needs foreign programs"]
fn what_peers_wrote_is_shown_as_text() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let many = (0..6_000).fold(String::new(), |mut all, number| {
        let _ = write!(all, " a{number}=b");
        all
    });
    let long = "w".repeat(60_000);
    let events = [
        format!("<script>alert(2)</script> {WORD}"),
        format!("http://a.example/{WORD} title={WORD} link=javascript:alert(3)"),
        format!("javascript://a.example/%0aalert(4) title={WORD}"),
        json!({ "<b>": WORD, "half": "\u{feff}" }).to_string().replace("half", r"\ud800"),
        long.clone(),
        format!("http://a.example/{long}"),
        format!("http://a.example/{many}"),
    ];
    for topic in ["harvest", "page-ready"] {
        let body = json!({ "events": events }).to_string();
        let answer = http.send_json("POST", &format!("/topics/{topic}"), &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
    }

    run_at(&server, &["group", "set", "crawlers", "delay=0"]).expect_code(0);
    let mut client = LineConnection::connect_client(server.address);
    let mut worker = LineConnection::connect_client(server.address);
    worker.request_ok(&format!("HELLO name={WORD}"));
    worker.request_ok("JOIN crawlers credit=1");
    let settings = format!("exclude=/{WORD} callback=http://a.example/{WORD}");
    client.request_ok(&format!("JOB open probe {settings}"));
    for url in [
        "javascript:alert(5)//http://a.example/",
        "data:text/html,<script>alert(6)</script>",
        &format!("JavaScript:%0a{WORD}"),
        &format!("http://a.example/{long}"),
    ] {
        client.request_ok(&format!("PUB new-url {url}"));
    }
    client.request_ok(&format!("PUB new-url http://a.example/?{WORD} job=probe"));
    let task = worker.read_line();
    let id = task.split(' ').nth(1).unwrap();
    worker.request_ok(&format!("NACK {id} retry=no reason={WORD} error={WORD}"));
    client.request_ok(&format!("PUB new-url http://a.example/?{WORD}{} every=2h", &long[..8_000]));
    worker.read_line();
    client.request_ok("GROUP create tenants topics=tenant key=attr:name");
    client.request_ok(&format!("PUB tenant http://a.example/{WORD} name={WORD}"));
    let note = format!("GROUP rule crawlers key=b.example block=yes note={WORD}");
    client.request_ok(&note);

    let address = format!("{}/", http.base_url);
    let shown = Script::start("hostile", &[&address, WORD, SHOWN]).finish();
    let shown = shown.as_array().unwrap();
    assert_eq!(shown.len(), events.len());
    // The newest event is the first.
    assert_eq!(shown[0]["attributes"], 6_000);
    // JSON escapes quotes, too.
    let content = shown[3]["text"].as_str().unwrap();
    assert!(content.contains(&SHOWN.replace('"', "\\\"")), "{content}");
    assert!(content.contains(r#""\ud800": "\u{feff}""#), "{content}");
    let terminal = start_on_terminal(&server, &["dead", "ls"]).finish().stdout();
    assert!(terminal.iter().any(|line| line.contains(SHOWN)), "{terminal:?}");
}
