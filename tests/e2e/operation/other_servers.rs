//! Commands of the terminal against servers that are no brokers.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread;

use tempfile::TempDir;

use crate::support::http_client::HttpClient;
use crate::support::process::{Server, run_tidings};
use crate::support::scripted_broker::start_scripted_broker;

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
