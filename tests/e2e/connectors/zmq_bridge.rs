//! `tidings bridge zmq`: somebody else's PUB socket becomes a topic.

use serde_json::Value;
use tempfile::TempDir;

use crate::support::process::{Running, Server, run, tidings};
use crate::support::talk::Talk;
use crate::support::wait::until;
use crate::support::zmq::{ZmqServer, message, peer};

/// A bridge into this broker.
#[track_caller]
fn bridge(server: &Server, words: &[&str]) -> Running {
    let broker = server.text();
    let words = [&["bridge", "zmq", "--broker", &broker], words].concat();
    let bridge = Running::start(&mut tidings(server.folder.path(), words));
    bridge.line_with("bridging ");
    bridge
}

/// A PUB socket of libzmq, and where it is.
#[track_caller]
fn publisher(at: &str) -> (Running, String) {
    let publisher = peer(&["pub", at]);
    let at = publisher.line("its address", |line| {
        let said: Value = serde_json::from_str(line).ok()?;
        Some(said[1].as_str()?.to_owned())
    });
    (publisher, at)
}

/// Has messages sent until one of them is an event.
#[track_caller]
fn sent_until(publisher: &mut Running, frames: &[&str], talk: &mut Talk, event: &str) {
    until(event, || {
        publisher.write(message(frames));
        let lines = talk.ask_lines("PING");
        lines.iter().any(|line| line.contains(event)).then_some(())
    });
}

#[test]
fn the_payload_is_in_the_frame_that_was_asked_for() {
    let server = Server::broker();
    let (mut publisher, at) = publisher("tcp://127.0.0.1:*");
    let last = bridge(&server, &["--connect", &at, "--topic", "last"]);
    let second = bridge(
        &server,
        &["--connect", &at, "--topic", "second", "--frame", "1", "--subscribe", "rain"],
    );
    for (topic, expected) in [("last", "21 degrees"), ("second", "tomorrow")] {
        let mut talk = Talk::client(server.address);
        assert_eq!(talk.ask(&format!("SUB {topic}")), "+OK");
        until(topic, || {
            publisher.write(message(&["sun", "today", "a\nline"]));
            publisher.write(message(&["rain", "tomorrow", "21 degrees"]));
            talk.send("PING\n");
            let line = talk.line();
            assert!(!line.contains("today"), "{line}");
            line.ends_with(expected).then_some(())
        });
    }
    for bridge in [last, second] {
        let summary = bridge.finish_by("TERM").expect_code(0).stdout().pop().unwrap();
        assert!(summary.contains(" published, "), "{summary}");
    }
}

#[test]
fn who_cannot_be_heard_is_named_with_the_reason_and_not_every_second() {
    let server = Server::broker();
    // Nobody listens there while it is bound, and nobody else gets the port.
    let bound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    bound.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    let refusing = bound.local_addr().unwrap().as_socket().unwrap();
    let refusing = format!("tcp://{refusing}");
    for (at, reason) in [(refusing.as_str(), "refused"), ("tcp://nosuch.invalid:5", "lookup")] {
        let bridge = bridge(&server, &["--connect", at, "--topic", "t"]);
        let said = format!("cannot hear {at}: ");
        let line = bridge.line_with(&said);
        assert!(line.contains(reason), "{line}");
        let stderr = bridge.finish_by("TERM").stderr();
        assert_eq!(stderr.lines().filter(|line| line.contains("WARN")).count(), 1, "{stderr}");
    }
}

#[test]
fn a_broker_that_is_not_there_is_an_error_of_the_start() {
    let folder = TempDir::new().unwrap();
    let server = Server::broker();
    let broker = server.text();
    drop(server.process.finish_by("TERM"));
    let words = ["--connect", "tcp://127.0.0.1:1", "--topic", "t", "--broker", &broker];
    let ended = run(folder.path(), &[&["bridge", "zmq"], &words[..]].concat()).expect_code(1);
    let stderr = ended.stderr();
    assert!(stderr.contains(&broker) && stderr.contains("`tidings up`"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(ended.stdout().is_empty());
}

#[test]
fn it_connects_again_to_either_side() {
    let server = Server::broker();
    let (mut old, at) = publisher("tcp://127.0.0.1:*");
    let bridge = bridge(&server, &["--connect", &at, "--topic", "t"]);
    let mut talk = Talk::client(server.address);
    assert_eq!(talk.ask("SUB t"), "+OK");
    sent_until(&mut old, &["x", "before"], &mut talk, "before");
    old.close_stdin();
    old.finish().expect_code(0);
    let (mut new, _) = publisher(&at);
    sent_until(&mut new, &["x", "after"], &mut talk, "after");
    let server = server.restart_here("KILL", &["broker"]);
    let mut talk = Talk::client(server.address);
    assert_eq!(talk.ask("SUB t"), "+OK");
    sent_until(&mut new, &["x", "again"], &mut talk, "again");
    bridge.finish_by("TERM").expect_code(0);
}

#[test]
fn who_is_stopped_while_the_broker_is_away_says_what_is_not_published() {
    let server = Server::broker();
    let (mut publisher, at) = publisher("tcp://127.0.0.1:*");
    let bridge = bridge(&server, &["--connect", &at, "--topic", "t"]);
    let mut talk = Talk::client(server.address);
    assert_eq!(talk.ask("SUB t"), "+OK");
    sent_until(&mut publisher, &["x", "before"], &mut talk, "before");
    server.process.signal("KILL");
    until("it to be noticed", || {
        publisher.write(message(&["x", "after"]));
        bridge.has_printed("the broker could not be reached").then_some(())
    });
    let ended = bridge.finish_by("TERM").expect_code(1);
    let summary = ended.stdout().pop().unwrap();
    assert!(summary.contains(" not confirmed; the broker was away"), "{summary}");
}

#[test]
fn a_topic_of_another_broker_and_what_was_missed_of_it() {
    let there = ZmqServer::start(&[]);
    let here = Server::broker();
    let bridge =
        bridge(&here, &["--connect", &there.publish, "--topic", "copy", "--subscribe", "t"]);
    let (mut origin, mut copy) = (Talk::client(there.server.address), Talk::client(here.address));
    assert_eq!(copy.ask("SUB copy"), "+OK");
    until("an event", || {
        assert!(origin.ask("PUB t x").starts_with("+OK"));
        copy.send("PING\n");
        (copy.line() == "MSG copy 1 x").then_some(())
    });
    // Somebody who is no Tidings may send what looks like one.
    let (mut liar, at) = publisher("tcp://127.0.0.1:*");
    let second = self::bridge(&here, &["--connect", &at, "--topic", "lies"]);
    let mut copy = Talk::client(here.address);
    assert_eq!(copy.ask("SUB lies"), "+OK");
    sent_until(&mut liar, &["t", "5", "five"], &mut copy, "five");
    sent_until(&mut liar, &["t", "9", "nine"], &mut copy, "nine");
    second.line_with("messages missed: 3; last reason: t went from 5 to 9");
    let summary = second.finish_by("TERM").expect_code(0).stdout().pop().unwrap();
    assert!(summary.contains(" 3 missed, "), "{summary}");
    bridge.finish_by("TERM").expect_code(0);
}

#[test]
fn what_cannot_be_a_bridge_is_said() {
    let folder = TempDir::new().unwrap();
    for words in [
        &["bridge", "zmq", "--topic", "t"][..],
        &["bridge", "zmq", "--connect", "127.0.0.1:1", "--topic", "t"],
        &["bridge", "zmq", "--connect", "tcp://127.0.0.1:1", "--topic", "no/name"],
        &["bridge", "zmq", "--connect", "tcp://127.0.0.1:1", "--topic", "t", "--frame", "first"],
        &["broker", "--zmq-pub", "ipc:///tmp/x"],
        &["broker", "--zmq-topics", "t"],
    ] {
        let ended = run(folder.path(), words).expect_code(2);
        assert_eq!(ended.stderr().lines().count(), 1, "{}", ended.stderr());
    }
}
