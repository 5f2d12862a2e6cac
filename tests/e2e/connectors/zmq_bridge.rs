//! `tidings bridge zmq`: a PUB socket of another program becomes a topic.

use std::fs;
use std::net::SocketAddr;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::ports::free_address;
use crate::support::process::{Process, Server, run_tidings, tidings_command};
use crate::support::wait::wait_until;
use crate::support::zmq::{ZmqServer, message, start_peer};

/// Starts a bridge into this broker.
#[track_caller]
fn start_bridge(server: &Server, words: &[&str]) -> Process {
    let broker = server.address_text();
    let words = [&["bridge", "zmq", "--broker", &broker], words].concat();
    let bridge = Process::start(&mut tidings_command(server.folder.path(), words));
    bridge.wait_for_line_with("bridging ");
    bridge
}

/// Starts a PUB socket of libzmq, and returns its address.
#[track_caller]
fn start_publisher(at: &str) -> (Process, String) {
    let publisher = start_peer(&["pub", at]);
    let at = publisher.wait_for_line("its address", |line| {
        let printed: Value = serde_json::from_str(line).ok()?;
        Some(printed[1].as_str()?.to_owned())
    });
    (publisher, at)
}

/// Whether a connection of the server at this address of IPv4 has this much input that the server
/// has not read.
fn has_unread_input(server: SocketAddr, bytes: u32) -> bool {
    let port = format!(":{:04X}", server.port());
    let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
    sockets.lines().skip(1).any(|socket| {
        let fields: Vec<_> = socket.split_whitespace().collect();
        // Local address, remote address, state (01: established), bytes to send : bytes to read.
        let unread = || u32::from_str_radix(fields[4].split_once(':').unwrap().1, 16).unwrap();
        fields[1].ends_with(&port) && fields[3] == "01" && unread() >= bytes
    })
}

/// Sends the message until the topic has its event.
#[track_caller]
fn send_until_received(
    publisher: &mut Process,
    frames: &[&str],
    connection: &mut LineConnection,
    event: &str,
) {
    wait_until(event, || {
        publisher.write(message(frames));
        let lines = connection.request_lines("PING");
        lines.iter().any(|line| line.contains(event)).then_some(())
    });
}

#[test]
#[ignore = "needs foreign programs"]
fn the_payload_is_taken_from_the_requested_frame() {
    let server = Server::start_broker();
    let (mut publisher, at) = start_publisher("tcp://127.0.0.1:*");
    let last = start_bridge(&server, &["--connect", &at, "--topic", "last"]);
    let second = start_bridge(
        &server,
        &["--connect", &at, "--topic", "second", "--frame", "1", "--subscribe", "rain"],
    );
    for (topic, expected) in [("last", "21 degrees"), ("second", "tomorrow")] {
        let mut connection = LineConnection::connect_client(server.address);
        assert_eq!(connection.request(&format!("SUB {topic}")), "+OK");
        wait_until(topic, || {
            publisher.write(message(&["sun", "today", "a\nline"]));
            publisher.write(message(&["rain", "tomorrow", "21 degrees"]));
            connection.send("PING\n");
            let line = connection.read_line();
            assert!(!line.contains("today"), "{line}");
            line.ends_with(expected).then_some(())
        });
    }
    for bridge in [last, second] {
        let summary = bridge.signal_and_finish("TERM").expect_code(0).stdout().pop().unwrap();
        assert!(summary.contains(" published, "), "{summary}");
    }
}

#[test]
fn an_unreachable_publisher_is_reported_once_with_the_reason() {
    let server = Server::start_broker();
    // A bound socket that does not listen: it refuses connections, and no other program gets the
    // port.
    let bound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    bound.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    let refusing = bound.local_addr().unwrap().as_socket().unwrap();
    let refusing = format!("tcp://{refusing}");
    for (at, reason) in [(refusing.as_str(), "refused"), ("tcp://nosuch.invalid:5", "lookup")] {
        let bridge = start_bridge(&server, &["--connect", at, "--topic", "t"]);
        let printed = format!("cannot connect to {at}: ");
        let line = bridge.wait_for_line_with(&printed);
        assert!(line.contains(reason), "{line}");
        let stderr = bridge.signal_and_finish("TERM").stderr();
        assert_eq!(stderr.lines().filter(|line| line.contains("WARN")).count(), 1, "{stderr}");
    }
}

#[test]
fn an_unreachable_broker_prevents_the_start() {
    let folder = TempDir::new().unwrap();
    let server = Server::start_broker();
    let broker = server.address_text();
    drop(server.process.signal_and_finish("TERM"));
    let words = ["--connect", "tcp://127.0.0.1:1", "--topic", "t", "--broker", &broker];
    let ended =
        run_tidings(folder.path(), &[&["bridge", "zmq"], &words[..]].concat()).expect_code(1);
    let stderr = ended.stderr();
    assert!(stderr.contains(&broker) && stderr.contains("`tidings up`"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(ended.stdout().is_empty());
}

#[test]
#[ignore = "needs foreign programs"]
fn the_bridge_reconnects_to_either_side() {
    let server = Server::start_broker();
    // Not a port that an outgoing connection may take between the two publishers.
    let (mut old, at) = start_publisher(&format!("tcp://{}", free_address()));
    let bridge = start_bridge(&server, &["--connect", &at, "--topic", "t"]);
    let mut connection = LineConnection::connect_client(server.address);
    assert_eq!(connection.request("SUB t"), "+OK");
    send_until_received(&mut old, &["x", "before"], &mut connection, "before");
    old.close_stdin();
    old.finish().expect_code(0);
    let (mut new, _) = start_publisher(&at);
    send_until_received(&mut new, &["x", "after"], &mut connection, "after");
    let server = server.restart_at_same_address("KILL", &["broker"]);
    let mut connection = LineConnection::connect_client(server.address);
    assert_eq!(connection.request("SUB t"), "+OK");
    send_until_received(&mut new, &["x", "again"], &mut connection, "again");
    bridge.signal_and_finish("TERM").expect_code(0);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_bridge_stopped_without_its_broker_reports_unconfirmed_messages() {
    let server = Server::start_broker();
    let (mut publisher, at) = start_publisher("tcp://127.0.0.1:*");
    let bridge = start_bridge(&server, &["--connect", &at, "--topic", "t"]);
    let mut connection = LineConnection::connect_client(server.address);
    assert_eq!(connection.request("SUB t"), "+OK");
    send_until_received(&mut publisher, &["x", "before"], &mut connection, "before");
    // A stopped broker reads nothing, so the message stays unconfirmed in its socket. Nothing else
    // that a bridge sends is this long.
    server.process.signal("STOP");
    let long = "after".repeat(400);
    wait_until("the bridge to send it", || {
        publisher.write(message(&["x", &long]));
        has_unread_input(server.address, 2_000).then_some(())
    });
    server.process.signal("KILL");
    bridge.wait_for_line_with("the broker is unreachable");
    let ended = bridge.signal_and_finish("TERM").expect_code(1);
    let summary = ended.stdout().pop().unwrap();
    assert!(summary.contains(" not confirmed; the broker was unreachable"), "{summary}");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_bridge_copies_a_topic_and_reports_missed_messages() {
    let there = ZmqServer::start(&[]);
    let here = Server::start_broker();
    let bridge = start_bridge(
        &here,
        &["--connect", &there.pub_endpoint, "--topic", "copy", "--subscribe", "t"],
    );
    let (mut origin, mut copy) = (
        LineConnection::connect_client(there.server.address),
        LineConnection::connect_client(here.address),
    );
    assert_eq!(copy.request("SUB copy"), "+OK");
    wait_until("an event", || {
        origin.request_ok("PUB t x");
        copy.send("PING\n");
        (copy.read_line() == "MSG copy 1 x").then_some(())
    });
    // Another program may send frames that look like those of Tidings.
    let (mut foreign, at) = start_publisher("tcp://127.0.0.1:*");
    let second = start_bridge(&here, &["--connect", &at, "--topic", "lies"]);
    let mut copy = LineConnection::connect_client(here.address);
    assert_eq!(copy.request("SUB lies"), "+OK");
    send_until_received(&mut foreign, &["t", "5", "five"], &mut copy, "five");
    send_until_received(&mut foreign, &["t", "9", "nine"], &mut copy, "nine");
    second.wait_for_line_with("messages missed: 3; last reason: t went from 5 to 9");
    let summary = second.signal_and_finish("TERM").expect_code(0).stdout().pop().unwrap();
    assert!(summary.contains(" 3 missed, "), "{summary}");
    bridge.signal_and_finish("TERM").expect_code(0);
}

#[test]
fn invalid_bridge_arguments_are_rejected() {
    let folder = TempDir::new().unwrap();
    for words in [
        &["bridge", "zmq", "--topic", "t"][..],
        &["bridge", "zmq", "--connect", "127.0.0.1:1", "--topic", "t"],
        &["bridge", "zmq", "--connect", "tcp://127.0.0.1:1", "--topic", "no/name"],
        &["bridge", "zmq", "--connect", "tcp://127.0.0.1:1", "--topic", "t", "--frame", "first"],
        &["broker", "--zmq-pub", "ipc:///tmp/x"],
        &["broker", "--zmq-topics", "t"],
    ] {
        let ended = run_tidings(folder.path(), words).expect_code(2);
        assert_eq!(ended.stderr().lines().count(), 1, "{}", ended.stderr());
    }
}
