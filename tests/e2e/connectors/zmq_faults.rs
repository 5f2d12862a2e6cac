//! `ZeroMQ` with slow, hostile and lost peers, and with a killed process: the broker is not
//! affected, and losses are visible.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use crate::support::line_connection::LineConnection;
use crate::support::pipelined_publisher::PipelinedPublisher;
use crate::support::process::memory_bytes;
use crate::support::wait::wait_until;
#[cfg(not(feature = "libzmq"))]
use crate::support::zmq::start_peer_with;
use crate::support::zmq::{
    PROGRESS_INTERVAL, ReceivedRuns, ZmqServer, child_process_of, frames, message, next_seq,
    start_peer, wait_for_progress,
};

/// The limit of the process's address space.
const ADDRESS_SPACE_BYTES_MAX: u64 = 2 << 30;

/// The most memory that the process may use: 64 MiB for subscribers, and its own work.
const MEMORY_MAX: u64 = 256 << 20;

#[track_caller]
fn send_signal(process: u32, name: &str) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{name} {process}")]).status();
    assert!(sent.unwrap().success(), "kill -{name}");
}

/// Waits until a new process has replaced this one.
#[track_caller]
fn wait_for_replacement(zmq: &ZmqServer, old: u32) -> u32 {
    wait_until("another process", || {
        child_process_of(zmq.server.process.id()).filter(|new| *new != old)
    })
}

/// Connects and sends a greeting. The connection stays open.
#[track_caller]
fn connect_greeted(endpoint: &str) -> TcpStream {
    let address: SocketAddr = endpoint.strip_prefix("tcp://").unwrap().parse().unwrap();
    let mut greeting = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0];
    greeting.extend(b"NULL");
    greeting.resize(64, 0);
    // A process that was just started does not listen yet.
    let mut stream = wait_until("a socket", || TcpStream::connect(address).ok());
    stream.write_all(&greeting).unwrap();
    stream
}

/// Connects and sends a frame header that announces 2^46 bytes.
#[track_caller]
fn send_oversized_frame_header(endpoint: &str) -> TcpStream {
    let mut stream = connect_greeted(endpoint);
    stream.write_all(&[2, 0, 0, 0x40, 0, 0, 0, 0, 0]).unwrap();
    stream
}

/// Connects as a socket of this kind and sends frames without end. Each begins with the byte
/// `first`, has `flags`, and differs from the others. Ends with the connection, or when more was
/// sent than the address space of the other side can hold.
#[track_caller]
fn flood(endpoint: &str, kind: &str, flags: u8, first: u8) {
    const FRAME_BYTES: usize = 60_000;
    let mut stream = connect_greeted(endpoint);
    let mut ready = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
    ready.push(u8::try_from(kind.len()).unwrap());
    ready.extend(kind.as_bytes());
    stream.write_all(&[4, u8::try_from(ready.len()).unwrap()]).unwrap();
    stream.write_all(&ready).unwrap();
    let mut frame = vec![flags];
    frame.extend(u64::try_from(FRAME_BYTES).unwrap().to_be_bytes());
    frame.push(first);
    frame.resize(9 + FRAME_BYTES, b'x');
    for number in 0..2 * ADDRESS_SPACE_BYTES_MAX / FRAME_BYTES as u64 {
        frame[10..18].copy_from_slice(&number.to_be_bytes());
        if stream.write_all(&frame).is_err() {
            return;
        }
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn endless_frames_and_subscriptions_lose_no_event() {
    let zmq = ZmqServer::start(&[]);
    let subscriber = start_peer(&["sub", &zmq.pub_endpoint, "t", "hello"]);
    zmq.wait_for_subscription(&subscriber);
    let mut connection = LineConnection::connect_client(zmq.server.address);
    // First long frames that each announce another one; then messages of one frame that each
    // subscribe.
    for (number, (endpoint, kind, flags, first)) in (1..)
        .step_by(2)
        .zip([(&zmq.pull_endpoint, "PUSH", 3, b'm'), (&zmq.pub_endpoint, "SUB", 2, 1)])
    {
        let child = zmq.bridge_process_id();
        assert_eq!(
            connection.request(&format!("PUB t m{number}")),
            format!("+OK {number} {number}")
        );
        flood(endpoint, kind, flags, first);
        // The address space of the process is limited: it ends, or holds less than that.
        let next = wait_until("a process", || child_process_of(zmq.server.process.id()));
        eprintln!(
            "a flood of {kind}: {}",
            if next == child { "the process lives" } else { "the process was replaced" }
        );
        let number = number + 1;
        assert_eq!(
            connection.request(&format!("PUB t m{number}")),
            format!("+OK {number} {number}")
        );
        for number in 1..=number {
            subscriber.wait_for_line(&format!("event {number}"), |line| {
                (frames(line)?[..] == ["t", &number.to_string(), &format!("m{number}")])
                    .then_some(())
            });
        }
        let mut pusher = start_peer(&["push", &zmq.pull_endpoint]);
        pusher.write(message(&["other", "still accepted"]));
        wait_until("an event", || {
            (LineConnection::connect_client(zmq.server.address)
                .request_lines("TOPIC ls")
                .iter()
                .any(|it| it.contains("other")))
            .then_some(())
        });
    }
    assert!(zmq.server.process.resident_memory_bytes() < MEMORY_MAX, "memory of the broker");
}

#[cfg(feature = "libzmq")]
#[test]
#[ignore = "needs foreign programs"]
fn an_oversized_frame_closes_a_libzmq_connection() {
    let zmq = ZmqServer::start(&[]);
    let child = zmq.bridge_process_id();
    let subscriber = start_peer(&["sub", &zmq.pub_endpoint, "t", "hello"]);
    zmq.wait_for_subscription(&subscriber);
    for endpoint in [&zmq.pub_endpoint, &zmq.pull_endpoint] {
        let mut connection = send_oversized_frame_header(endpoint);
        std::io::copy(&mut connection, &mut std::io::sink())
            .expect("the broker closes the connection");
    }
    let mut pusher = start_peer(&["push", &zmq.pull_endpoint]);
    pusher.write(message(&["t", "still here"]));
    subscriber.wait_for_line_with("still here");
    assert_eq!(zmq.bridge_process_id(), child);
}

#[cfg(not(feature = "libzmq"))]
#[test]
#[ignore = "needs foreign programs"]
fn an_oversized_frame_restarts_the_process_without_loss() {
    let zmq = ZmqServer::start(&[]);
    let subscriber = start_peer(&["sub", &zmq.pub_endpoint, "t", "hello"]);
    zmq.wait_for_subscription(&subscriber);
    let mut connection = LineConnection::connect_client(zmq.server.address);
    let mut number = 0;
    for endpoint in [&zmq.pub_endpoint, &zmq.pull_endpoint] {
        let child = zmq.bridge_process_id();
        let _connection = send_oversized_frame_header(endpoint);
        // The broker continues: events of this time are sent by the next process.
        wait_until("the end of the process", || {
            number += 1;
            assert_eq!(
                connection.request(&format!("PUB t m{number}")),
                format!("+OK {number} {number}")
            );
            (child_process_of(zmq.server.process.id()) != Some(child)).then_some(())
        });
        zmq.server.process.wait_for_line_with("the ZeroMQ process has ended (");
        wait_for_replacement(&zmq, child);
        number += 1;
        assert_eq!(
            connection.request(&format!("PUB t m{number}")),
            format!("+OK {number} {number}")
        );
    }
    let last = number;
    // Some may arrive twice, with the same seq.
    for number in 1..=last {
        subscriber.wait_for_line(&format!("event {number}"), |line| {
            let frames = frames(line)?;
            let same = frames[1] == number.to_string() && frames[2] == format!("m{number}");
            same.then_some(())
        });
    }
    let mut pusher = start_peer(&["push", &zmq.pull_endpoint]);
    pusher.write(message(&["t", "still here"]));
    subscriber.wait_for_line_with("still here");
}

#[cfg(not(feature = "libzmq"))]
#[test]
#[ignore = "needs foreign programs"]
fn a_peer_with_heartbeats_is_disconnected_with_a_hint() {
    let zmq = ZmqServer::start(&[]);
    let pusher = start_peer_with(&["push", &zmq.pull_endpoint], |command| {
        command.env("HEARTBEAT_MS", "50");
    });
    zmq.server
        .process
        .wait_for_line_with("peers with heartbeats need a build with --features libzmq");
    drop(pusher);
}

// PROTOCOL: Z4
#[test]
#[ignore = "needs foreign programs"]
fn a_killed_process_resumes_at_its_cursors() {
    let zmq = ZmqServer::start(&[]);
    let subscriber = start_peer(&["sub", &zmq.pub_endpoint, "t", "hello"]);
    zmq.wait_for_subscription(&subscriber);
    let mut connection = LineConnection::connect_client(zmq.server.address);
    for number in 1..=30_u64 {
        assert_eq!(
            connection.request(&format!("PUB t m{number}")),
            format!("+OK {number} {number}")
        );
        if number % 10 == 5 {
            let child = zmq.bridge_process_id();
            send_signal(child, "KILL");
            wait_for_replacement(&zmq, child);
        }
    }
    for number in 1..=30 {
        subscriber.wait_for_line(&format!("event {number}"), |line| {
            (frames(line)?[..] == ["t", &number.to_string(), &format!("m{number}")]).then_some(())
        });
    }
    let name = fs::read_to_string(format!("/proc/{}/comm", zmq.bridge_process_id())).unwrap();
    assert_eq!(name, "tidings\n", "the process name");
    let cursors = connection.request_lines("TOPIC show t").join("\n");
    assert!(cursors.contains("+ cursor zmq-pub "), "{cursors}");
}

#[test]
fn the_process_ends_with_its_broker_and_shares_no_socket() {
    let zmq = ZmqServer::start(&[]);
    let child = zmq.bridge_process_id();
    let files = |id: u32| {
        let entries = fs::read_dir(format!("/proc/{id}/fd")).unwrap().flatten();
        entries.filter_map(|entry| fs::read_link(entry.path()).ok()).collect::<Vec<_>>()
    };
    let shared: Vec<_> = files(child)
        .into_iter()
        .filter(|file| file.to_string_lossy().starts_with("socket:"))
        .filter(|file| files(zmq.server.process.id()).contains(file))
        .collect();
    assert!(shared.is_empty(), "{shared:?}");
    zmq.server.process.signal_and_finish("KILL");
    wait_until("the end of the process", || {
        (!fs::exists(format!("/proc/{child}")).unwrap()).then_some(())
    });
}

#[test]
#[ignore = "needs foreign programs"]
fn stalled_subscribers_delay_no_other_and_use_little_memory() {
    const EVENTS: u64 = 60_000;
    let zmq = ZmqServer::start(&["--sync=interval"]);
    let stalled: Vec<_> = (0..3)
        .map(|_| {
            let stalled = start_peer(&["stall", &zmq.pub_endpoint, "t"]);
            stalled.wait_for_line_with("stalled");
            stalled
        })
        .collect();
    let subscriber = start_peer(&["count", &zmq.pub_endpoint, "end", "t", "hello"]);
    zmq.wait_for_subscription(&subscriber);
    let mut pipeline = PipelinedPublisher::connect(zmq.server.address).unwrap();
    for number in 1..=EVENTS {
        let payload = format!("m{number} {}", "x".repeat(4_000));
        pipeline.send([("t".to_owned(), payload)]);
        if number.is_multiple_of(PROGRESS_INTERVAL) {
            while pipeline.pending_count() > 0 {
                pipeline.read_outcomes().expect("a broker that answers");
            }
        }
        wait_for_progress(&subscriber, number);
    }
    let mut connection = LineConnection::connect_client(zmq.server.address);
    let counted = ReceivedRuns::wait_for_end(&subscriber, "t", &mut connection);
    assert_eq!(counted.lost_count(EVENTS), 0, "{:?}", counted.runs);
    let peak = memory_bytes(zmq.bridge_process_id(), "VmHWM:");
    eprintln!("peak of {} MiB with {} MiB sent", peak >> 20, (EVENTS * 4_000) >> 20);
    assert!(peak < MEMORY_MAX, "{peak} bytes");
    if !cfg!(feature = "libzmq") {
        zmq.server.process.wait_for_line_with("ZeroMQ subscribers cut off: ");
    }
    assert!(!zmq.server.process.has_printed("has ended"));
    drop(stalled);
}

// PROTOCOL: Z8
#[test]
#[ignore = "needs foreign programs"]
fn publishers_wait_while_the_broker_is_stopped() {
    const EVENTS: u64 = 5_000;
    let zmq = ZmqServer::start(&["--sync=interval"]);
    let child = zmq.bridge_process_id();
    let subscriber = start_peer(&["sub", &zmq.pub_endpoint, "hello"]);
    zmq.wait_for_subscription(&subscriber);
    zmq.server.process.signal("STOP");
    let flood = start_peer(&["flood", &zmq.pull_endpoint, &EVENTS.to_string(), "8000"]);
    flood.wait_for_line_with("stands still");
    let peak = memory_bytes(child, "VmHWM:");
    zmq.server.process.signal("CONT");
    flood.wait_for_line_with("sent");
    assert!(peak < MEMORY_MAX / 2, "{peak} bytes");
    let mut connection = LineConnection::connect_client(zmq.server.address);
    wait_until("all events", || (next_seq(&mut connection, "flood") == EVENTS + 1).then_some(()));
}

#[test]
#[ignore = "needs foreign programs"]
fn subscribers_reconnect_to_a_restarted_broker() {
    let zmq = ZmqServer::start(&["--zmq-topics=t,hello"]);
    let subscriber = start_peer(&["sub", &zmq.pub_endpoint, "t", "hello"]);
    zmq.wait_for_subscription(&subscriber);
    let mut connection = LineConnection::connect_client(zmq.server.address);
    assert_eq!(connection.request("PUB t m1"), "+OK 1 1");
    subscriber.wait_for_line_with("m1");
    let flag = format!("--zmq-pub={}", zmq.pub_endpoint);
    let server = zmq.server.restart("TERM", &["broker", &flag]);
    let mut connection = LineConnection::connect_client(server.address);
    wait_until("a message from the new broker", || {
        connection.request_ok("PUB t later");
        subscriber.has_printed("later").then_some(())
    });
}
