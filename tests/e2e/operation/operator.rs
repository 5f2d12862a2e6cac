//! What the operator of a broker sees in its logs.

use crate::support::line_connection::LineConnection;
use crate::support::process::Server;

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
    LineConnection::connect_client(server.address)
        .request("PUB t \u{1b}[2J\u{2028}{\"a\":1} a line to find");
    let logged = server.process.wait_for_line_with("a line to find");
    let object: serde_json::Value = serde_json::from_str(&logged).unwrap();
    // Nothing of the line ends the record or acts on a terminal.
    assert!(!logged.contains(['\u{1b}', '\u{2028}']), "{logged:?}");
    assert_eq!(object["target"], "tidings::line", "{logged}");
}
