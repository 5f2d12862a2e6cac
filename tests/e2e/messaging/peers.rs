//! Peers, which are connections that begin with any line other than a command: what they receive
//! with netcat or telnet.

use std::process::Command;

use crate::support::line_connection::{FAREWELL, LineConnection};
use crate::support::nc::{run_nc, start_nc, start_telnet};
use crate::support::process::{Process, Server};
use crate::support::wait::wait_until;

const PAYLOAD_BYTES_MAX: usize = 60 * 1024;
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Reads all lines up to a marker, which another peer sends last.
#[track_caller]
fn read_until_marker(server: &Server, listener: &mut LineConnection) -> Vec<String> {
    LineConnection::connect_peer(server.address).send("the marker\n");
    let received =
        std::iter::from_fn(|| Some(listener.read_line()).filter(|line| line != "the marker"));
    received.collect()
}

// PROTOCOL: S1
#[test]
fn the_greeting_contains_the_connection_number() {
    let server = Server::start_broker();
    let numbers: Vec<_> =
        (0..3).map(|_| LineConnection::connect_with_number(server.address).1).collect();
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn a_line_reaches_all_other_peers_but_not_its_sender() {
    let server = Server::start_broker();
    let [mut ann, mut bob, mut eve] =
        [(); 3].map(|()| LineConnection::connect_peer(server.address));
    ann.send("from ann\n");
    assert_eq!(bob.read_line(), "from ann");
    assert_eq!(eve.read_line(), "from ann");
    bob.send("from bob\r\n");
    // Ann's first line is Bob's: she does not receive her own.
    assert_eq!(ann.read_line(), "from bob");
    assert_eq!(eve.read_line(), "from bob");
}

// PROTOCOL: S7
#[test]
fn peers_receive_only_events_of_the_default_topic() {
    let server = Server::start_broker();
    let mut peer = LineConnection::connect_peer(server.address);
    let mut client = LineConnection::connect_client(server.address);
    assert_eq!(client.request("PUB other hidden"), "+OK 1 1");
    assert_eq!(client.request("PUB new-url shown as it is"), "+OK 1 2");
    assert_eq!(peer.read_line(), "shown as it is");
}

#[test]
fn quit_and_exit_work_only_as_a_whole_line() {
    for word in ["quit", "exit", "Quit", "eXiT", "QUIT", "EXIT"] {
        let server = Server::start_broker();
        let mut listener = LineConnection::connect_peer(server.address);
        let mut leaving = LineConnection::connect_peer(server.address);
        leaving.send(format!("quite a line\nplease {word}\n{word} now\n{word}\nunheard\n"));
        leaving.read_to_end();
        let received = read_until_marker(&server, &mut listener);
        let expected = ["quite a line".to_owned(), format!("please {word}"), format!("{word} now")];
        assert_eq!(received, expected);
    }
}

#[test]
fn quit_may_be_the_first_line() {
    let server = Server::start_broker();
    let mut listener = LineConnection::connect_peer(server.address);
    for word in ["quit", "exit", "EXIT", "QUIT"] {
        let mut leaving = LineConnection::connect_peer(server.address);
        leaving.send(format!("{word}\nunheard\n"));
        leaving.read_to_end();
    }
    assert!(read_until_marker(&server, &mut listener).is_empty());
}

#[test]
fn ctrl_d_closes_with_the_farewell_line() {
    let server = Server::start_broker();
    let mut listener = LineConnection::connect_peer(server.address);
    let mut leaving = LineConnection::connect_peer(server.address);
    leaving.send(b"before\nin\x04side\n\x04unheard\n");
    assert_eq!(leaving.read_to_end(), [FAREWELL]);
    // Within a line, ctrl-D is a control byte; lines with control bytes are dropped.
    assert_eq!(read_until_marker(&server, &mut listener), ["before"]);
}

#[test]
fn ctrl_d_needs_no_line_ending() {
    let server = Server::start_broker();
    let mut leaving = LineConnection::connect_peer(server.address);
    leaving.send(b"\x04");
    assert_eq!(leaving.read_to_end(), [FAREWELL]);
}

// PROTOCOL: S10
#[test]
fn pending_events_precede_the_farewell() {
    let server = Server::start_broker();
    let mut leaving = LineConnection::connect_peer(server.address);
    let mut client = LineConnection::connect_client(server.address);
    for n in 1..=100 {
        assert_eq!(client.request(&format!("PUB new-url {n}")), format!("+OK {n} {n}"));
    }
    leaving.send(b"\x04");
    let mut expected: Vec<_> = (1..=100).map(|n| n.to_string()).collect();
    expected.push(FAREWELL.to_owned());
    assert_eq!(leaving.read_to_end(), expected);
}

#[test]
fn splitting_the_bytes_does_not_change_the_lines() {
    let server = Server::start_broker();
    let mut listener = LineConnection::connect_peer(server.address);
    let bytes = "one\r\ntwo\n\n\r\n  thr\tee  \nvier \u{fc}\u{20ac}\n".as_bytes();
    let expected = ["one", "two", "  thr\tee  ", "vier \u{fc}\u{20ac}"];
    for split in 0..=bytes.len() {
        let mut sender = LineConnection::connect_peer(server.address);
        sender.send(&bytes[..split]);
        sender.send(&bytes[split..]);
        let received: Vec<_> = expected.map(|_| listener.read_line()).into();
        assert_eq!(received, expected, "split at {split}");
    }
    let mut sender = LineConnection::connect_peer(server.address);
    for byte in bytes {
        sender.send([*byte]);
    }
    let received: Vec<_> = expected.map(|_| listener.read_line()).into();
    assert_eq!(received, expected, "byte by byte");
}

#[test]
#[ignore = "needs foreign programs"]
fn netcat_receives_the_farewell_as_confirmation() {
    let server = Server::start_broker();
    let mut listener = LineConnection::connect_peer(server.address);
    let output = run_nc(server.address, "first\nlast, without an end");
    assert_eq!(output.first().unwrap(), "Connected.  (PID 2)");
    assert_eq!(output.last().unwrap(), FAREWELL);
    assert_eq!(output.len(), 2, "{output:?}");
    assert_eq!(read_until_marker(&server, &mut listener), ["first", "last, without an end"]);
}

// PROTOCOL: L4
#[test]
fn a_reset_drops_an_unfinished_line() {
    let server = Server::start_broker();
    let mut listener = LineConnection::connect_peer(server.address);
    let mut leaving = LineConnection::connect(server.address);
    leaving.send("whole\nhalf");
    // The complete line arrives before the reset. The greeting is unread, so closing causes a
    // reset.
    assert_eq!(listener.read_line(), "whole");
    leaving.reset();
    let mut client = LineConnection::connect_client(server.address);
    wait_until("the broker to notice the reset", || {
        client
            .request_lines("STATS")
            .iter()
            .any(|line| line.starts_with("+ connections=2 "))
            .then_some(())
    });
    assert!(read_until_marker(&server, &mut listener).is_empty());
}

#[test]
fn commands_after_the_first_line_are_events() {
    let server = Server::start_broker();
    let mut listener = LineConnection::connect_peer(server.address);
    let mut peer = LineConnection::connect_peer(server.address);
    let lines = ["hello", "PUB new-url x", "PING", "HELP", "HELLO echo=1"];
    peer.send(format!("{}\n", lines.join("\n")));
    assert_eq!(lines.map(|_| listener.read_line()), lines);
}

#[test]
fn http_requests_and_tls_handshakes_are_rejected() {
    let server = Server::start_broker();
    let mut listener = LineConnection::connect_peer(server.address);
    let too_long = [vec![b'x'; LINE_BYTES_MAX + 1], b"\nunheard\n".to_vec()].concat();
    let firsts: [&[u8]; 9] = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nunheard\r\n",
        b"POST / HTTP/1.0\r\n\r\nunheard\r\n",
        b"ANYTHING at all HTTP/2.0\nunheard\n",
        b"PUB new-url HTTP/1.1\r\nunheard\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\nunheard\n",
        b"\x16",
        b"\x01\nunheard\n",
        b"\x00",
        &too_long,
    ];
    for first in firsts {
        let mut closed = LineConnection::connect_peer(server.address);
        closed.send(first);
        let lines = closed.read_to_end();
        let sent = String::from_utf8_lossy(&first[..first.len().min(40)]);
        // A command in the form of an HTTP request gets an error; the others get nothing that a
        // browser could show.
        assert!(lines.iter().all(|line| line.starts_with("-ERR ")), "{sent:?}: {lines:?}");
    }
    assert!(read_until_marker(&server, &mut listener).is_empty());
}

#[test]
#[ignore = "needs foreign programs"]
fn a_browser_receives_no_page_and_publishes_nothing() {
    let server = Server::start_broker();
    let mut listener = LineConnection::connect_peer(server.address);
    let form = "PUB new-url unheard\r\nunheard\r\n";
    let url = format!("http://{}/", server.address_text());
    for flags in [&[][..], &["--data-binary", form], &["--request", "PUB"], &["--http0.9"]] {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--noproxy", "*"]).args(flags).arg(&url);
        // Without HTTP/0.9, curl rejects the response; with it, curl can only show the greeting.
        let shown = Process::start(&mut curl).finish().stdout();
        assert!(shown.iter().all(|line| line.starts_with("Connected.")), "{shown:?}");
    }
    assert!(read_until_marker(&server, &mut listener).is_empty());
}

// PROTOCOL: S9
#[test]
fn an_invalid_line_is_dropped_without_side_effects() {
    let server = Server::start_broker();
    let mut listener = LineConnection::connect_peer(server.address);
    let mut peer = LineConnection::connect_peer(server.address);
    peer.send("first\n");
    for bad in [&b"a\x01b"[..], b"a\x1b[2Jb", b"\x7f", b"a\xc2\x85b", b"\xff\xfe", b"cut \xe2\x82"]
    {
        peer.send([bad, b"\n"].concat());
    }
    for bytes in [PAYLOAD_BYTES_MAX + 1, LINE_BYTES_MAX, LINE_BYTES_MAX + 1, 10 * LINE_BYTES_MAX] {
        peer.send([vec![b'x'; bytes], b"\n".to_vec()].concat());
    }
    let longest = "y".repeat(PAYLOAD_BYTES_MAX);
    peer.send(format!("{longest}\r\nlast\n"));
    let received: Vec<_> = (0..3).map(|_| listener.read_line()).collect();
    assert!(
        received == ["first", &longest, "last"],
        "{:?}",
        received.iter().map(String::len).collect::<Vec<_>>()
    );
    // The sender is still connected.
    LineConnection::connect_peer(server.address).send("bye\n");
    assert_eq!(peer.read_line(), "bye");
}

// PROTOCOL: S11, D5
#[test]
fn a_stalled_peer_lags_without_delaying_others() {
    let server = Server::start_broker();
    let mut stalled = LineConnection::connect_peer(server.address);
    let mut neighbour = LineConnection::connect_peer(server.address);
    let mut producer = LineConnection::connect_client(server.address);
    let filler = "x".repeat(50 * 1024);
    // 50 MiB exceed the tail of a topic and the socket buffers together. The neighbour reads each
    // hundred before the next is sent, so it cannot fall behind.
    let events = 1000;
    for hundred in 0..events / 100 {
        for n in 1..=100 {
            producer.send(format!("PUB new-url {} {filler}\n", hundred * 100 + n));
        }
        for n in 1..=100 {
            assert!(neighbour.read_line().starts_with(&format!("{} ", hundred * 100 + n)));
        }
    }

    let mut next: u64 = 1;
    let lag = loop {
        let line = stalled.read_line();
        if line.starts_with("LAG ") {
            break line;
        }
        assert!(line.starts_with(&format!("{next} ")), "out of order at {next}");
        next += 1;
    };
    let numbers: Vec<u64> = lag.split(' ').skip(1).map(|n| n.parse().unwrap()).collect();
    let [from, to] = numbers[..] else { panic!("{lag}") };
    assert_eq!(from, next, "LAG must start at the next event");
    assert!(from <= to && to <= events, "{lag}");
    producer.send("PUB new-url the end\n");
    let rest: Vec<_> =
        std::iter::from_fn(|| Some(stalled.read_line()).filter(|line| line != "the end")).collect();
    let expected = (to + 1..=events).count();
    assert_eq!(rest.len(), expected, "after {lag}");
}

#[test]
#[ignore = "needs foreign programs"]
fn telnet_and_netcat_peers_exchange_lines() {
    let server = Server::start_broker();
    let mut ann = start_telnet(server.address);
    let mut bob = start_telnet(server.address);
    let mut eve = start_nc(server.address, &[]);
    for person in [&ann, &bob, &eve] {
        person.wait_for_line_with("Connected.  (PID ");
    }
    ann.write("hello from ann\n");
    bob.wait_for_line_with("hello from ann");
    eve.wait_for_line_with("hello from ann\r");
    eve.write("hello from eve\n");
    ann.wait_for_line_with("hello from eve");
    bob.wait_for_line_with("hello from eve");
    bob.write("quit\n");
    let bob = bob.finish();
    assert!(bob.stdout().iter().all(|line| !line.contains("quit")), "{bob:?}");
    eve.write("\u{4}");
    eve.wait_for_line_with(FAREWELL);
    eve.finish().expect_code(0);
}

#[test]
#[ignore = "needs foreign programs"]
fn help_works_over_telnet() {
    let server = Server::start_broker();
    let mut telnet = start_telnet(server.address);
    telnet.write("HELP\n");
    telnet.wait_for_line_with("+OK");
    telnet.write("QUIT\n");
    let lines = telnet.finish().stdout().join("\n");
    for verb in ["PUB", "SUB", "JOIN", "JOB", "QUIT"] {
        assert!(lines.contains(verb), "HELP does not mention {verb}: {lines}");
    }
}
