//! What the operator of a broker sees: its logs, its shutdown and its speed.

use std::time::Duration;

use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::process::{Server, run_tidings};

#[test]
fn log_lines_logs_every_received_line() {
    let server = Server::start(&["broker", "--log-lines"]);
    let mut client = LineConnection::connect_client(server.address);
    client.request("PUB t a line to find");
    let logged = server.process.wait_for_line_with("a line to find");
    assert!(logged.contains("conn=1"), "{logged}");
    // Bytes that could move the cursor of a terminal are escaped.
    client.send("PUB t \u{1b}[2J\n");
    let logged = server.process.wait_for_line_with("[2J");
    assert!(!logged.contains('\u{1b}'), "{logged:?}");
}

#[test]
fn lines_are_not_logged_by_default() {
    let server = Server::start_broker();
    LineConnection::connect_client(server.address).request("PUB t a secret line");
    let output = server.process.signal_and_finish("TERM").expect_code(0);
    assert!(!output.stderr().contains("secret"), "{}", output.stderr());
}

#[test]
fn json_logs_have_one_object_per_line() {
    let server = Server::start_with(&["broker", "--log-json"], |command| {
        command.env("TIDINGS_LOG", "tidings::line=info");
    });
    LineConnection::connect_client(server.address).request("PUB t a line to find");
    let logged = server.process.wait_for_line_with("a line to find");
    let object: serde_json::Value = serde_json::from_str(&logged).unwrap();
    assert_eq!(object["target"], "tidings::line", "{logged}");
}

#[test]
fn a_stopping_broker_notifies_its_clients() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    let mut peer = LineConnection::connect_peer(server.address);
    assert!(client.request("SUB t").starts_with("+OK"));
    let output = server.process.signal_and_finish("TERM").expect_code(0);
    // The documented limit is one second; a busy machine may take longer.
    assert!(output.elapsed < Duration::from_secs(15), "{:?}", output.elapsed);
    let lines = client.read_to_end();
    assert!(lines.len() == 1 && lines[0].starts_with("-ERR closing"), "{lines:?}");
    // A peer never receives an error.
    peer.expect_closed();
}

#[test]
fn the_benchmark_measures_a_broker() {
    let folder = TempDir::new().unwrap();
    let flags =
        ["--subscribers", "3", "--window", "100", "--seconds", "1", "--runs", "1", "--json"];
    let output =
        run_tidings(folder.path(), &[&["bench", "fan-out"], &flags[..]].concat()).expect_code(0);
    let measured: serde_json::Value = serde_json::from_str(&output.stdout().join("")).unwrap();
    let rates = measured.as_object().unwrap().values().filter_map(serde_json::Value::as_f64);
    assert!(rates.into_iter().any(|rate| rate > 0.0), "{measured}");
}
