//! Sockets of libzmq with peers that are slow, hostile or gone, and a process that is killed: the
//! broker does not notice, and what was lost shows.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use crate::support::process::memory_bytes;
use crate::support::publisher::Pipeline;
use crate::support::talk::Talk;
use crate::support::wait::until;
#[cfg(not(feature = "libzmq"))]
use crate::support::zmq::peer_with;
use crate::support::zmq::{
    COUNTED, Counted, ZmqServer, child_of, frames, keeps_up, message, next, peer,
};

/// All that the process can ever have.
const ADDRESS_SPACE_BYTES_MAX: u64 = 2 << 30;

/// What the process may have: it holds 64 MiB for subscribers, and has work to do.
const MEMORY_MAX: u64 = 256 << 20;

#[track_caller]
fn signal(process: u32, name: &str) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{name} {process}")]).status();
    assert!(sent.unwrap().success(), "kill -{name}");
}

/// Waits until another process has taken the place of this one.
#[track_caller]
fn replaced(zmq: &ZmqServer, old: u32) -> u32 {
    until("another process", || child_of(zmq.server.process.id()).filter(|new| *new != old))
}

/// A greeting, on a connection that stays open.
#[track_caller]
fn greeted(endpoint: &str) -> TcpStream {
    let address: SocketAddr = endpoint.strip_prefix("tcp://").unwrap().parse().unwrap();
    let mut greeting = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0];
    greeting.extend(b"NULL");
    greeting.resize(64, 0);
    // A process that was just started does not listen yet.
    let mut stream = until("a socket", || TcpStream::connect(address).ok());
    stream.write_all(&greeting).unwrap();
    stream
}

/// A greeting, and a frame that claims to have 2^46 bytes.
#[track_caller]
fn nine_bytes(endpoint: &str) -> TcpStream {
    let mut stream = greeted(endpoint);
    stream.write_all(&[2, 0, 0, 0x40, 0, 0, 0, 0, 0]).unwrap();
    stream
}

/// Says that it is a socket of this kind, and then frames without end, each of which begins with
/// this byte and is unlike the others; until the connection ends or more was sent than the other
/// side may hold. `flags`: of each frame.
#[track_caller]
fn flood(endpoint: &str, kind: &str, flags: u8, first: u8) {
    const FRAME_BYTES: usize = 60_000;
    let mut stream = greeted(endpoint);
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
fn frames_and_subscriptions_without_end_cost_nobody_an_event() {
    let zmq = ZmqServer::start(&[]);
    let subscriber = peer(&["sub", &zmq.publish, "t", "hello"]);
    zmq.greet(&subscriber);
    let mut talk = Talk::client(zmq.server.address);
    // Long frames, of which each says that another one follows; and messages of one frame, each a
    // subscription.
    for (number, (endpoint, kind, flags, first)) in
        (1..).step_by(2).zip([(&zmq.pull, "PUSH", 3, b'm'), (&zmq.publish, "SUB", 2, 1)])
    {
        let child = zmq.child();
        assert_eq!(talk.ask(&format!("PUB t m{number}")), format!("+OK {number} {number}"));
        flood(endpoint, kind, flags, first);
        // Its address space is bounded: it ends, or holds less than that.
        let next = until("a process", || child_of(zmq.server.process.id()));
        eprintln!(
            "a flood of {kind}: {}",
            if next == child { "it lives" } else { "it was replaced" }
        );
        let number = number + 1;
        assert_eq!(talk.ask(&format!("PUB t m{number}")), format!("+OK {number} {number}"));
        for number in 1..=number {
            subscriber.line(&format!("event {number}"), |line| {
                (frames(line)?[..] == ["t", &number.to_string(), &format!("m{number}")])
                    .then_some(())
            });
        }
        let mut pusher = peer(&["push", &zmq.pull]);
        pusher.write(message(&["other", "still taken"]));
        until("an event", || {
            (Talk::client(zmq.server.address)
                .ask_lines("TOPIC ls")
                .iter()
                .any(|it| it.contains("other")))
            .then_some(())
        });
    }
    assert!(zmq.server.process.resident_memory_bytes() < MEMORY_MAX, "the broker's own");
}

#[cfg(feature = "libzmq")]
#[test]
fn nine_bytes_cost_libzmq_a_connection() {
    let zmq = ZmqServer::start(&[]);
    let child = zmq.child();
    let subscriber = peer(&["sub", &zmq.publish, "t", "hello"]);
    zmq.greet(&subscriber);
    for endpoint in [&zmq.publish, &zmq.pull] {
        let mut connection = nine_bytes(endpoint);
        std::io::copy(&mut connection, &mut std::io::sink()).expect("it is closed");
    }
    let mut pusher = peer(&["push", &zmq.pull]);
    pusher.write(message(&["t", "still here"]));
    subscriber.line_with("still here");
    assert_eq!(zmq.child(), child);
}

#[cfg(not(feature = "libzmq"))]
#[test]
fn nine_bytes_end_the_process_and_cost_nobody_an_event() {
    let zmq = ZmqServer::start(&[]);
    let subscriber = peer(&["sub", &zmq.publish, "t", "hello"]);
    zmq.greet(&subscriber);
    let mut talk = Talk::client(zmq.server.address);
    let mut number = 0;
    for endpoint in [&zmq.publish, &zmq.pull] {
        let child = zmq.child();
        let _connection = nine_bytes(endpoint);
        // The broker goes on: what it takes now comes when the next process is there.
        until("the end of the process", || {
            number += 1;
            assert_eq!(talk.ask(&format!("PUB t m{number}")), format!("+OK {number} {number}"));
            (child_of(zmq.server.process.id()) != Some(child)).then_some(())
        });
        zmq.server.process.line_with("the ZeroMQ process has ended (");
        replaced(&zmq, child);
        number += 1;
        assert_eq!(talk.ask(&format!("PUB t m{number}")), format!("+OK {number} {number}"));
    }
    let last = number;
    // Some may come twice, under their own numbers.
    for number in 1..=last {
        subscriber.line(&format!("event {number}"), |line| {
            let frames = frames(line)?;
            let same = frames[1] == number.to_string() && frames[2] == format!("m{number}");
            same.then_some(())
        });
    }
    let mut pusher = peer(&["push", &zmq.pull]);
    pusher.write(message(&["t", "still here"]));
    subscriber.line_with("still here");
}

#[cfg(not(feature = "libzmq"))]
#[test]
fn who_sends_heartbeats_is_cut_off_and_the_log_says_what_helps() {
    let zmq = ZmqServer::start(&[]);
    let pusher = peer_with(&["push", &zmq.pull], |command| {
        command.env("HEARTBEAT_MS", "50");
    });
    zmq.server.process.line_with("peers with heartbeats need a build with --features libzmq");
    drop(pusher);
}

// PROTOCOL: Z4
#[test]
fn a_process_that_is_killed_goes_on_at_its_cursors() {
    let zmq = ZmqServer::start(&[]);
    let subscriber = peer(&["sub", &zmq.publish, "t", "hello"]);
    zmq.greet(&subscriber);
    let mut talk = Talk::client(zmq.server.address);
    for number in 1..=30_u64 {
        assert_eq!(talk.ask(&format!("PUB t m{number}")), format!("+OK {number} {number}"));
        if number % 10 == 5 {
            let child = zmq.child();
            signal(child, "KILL");
            replaced(&zmq, child);
        }
    }
    for number in 1..=30 {
        subscriber.line(&format!("event {number}"), |line| {
            (frames(line)?[..] == ["t", &number.to_string(), &format!("m{number}")]).then_some(())
        });
    }
    let name = fs::read_to_string(format!("/proc/{}/comm", zmq.child())).unwrap();
    assert_eq!(name, "tidings\n", "what people see");
    let cursors = talk.ask_lines("TOPIC show t").join("\n");
    assert!(cursors.contains("+ cursor zmq-pub "), "{cursors}");
}

#[test]
fn the_process_ends_with_a_broker_that_is_killed_and_shares_nothing_with_it() {
    let zmq = ZmqServer::start(&[]);
    let child = zmq.child();
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
    zmq.server.process.finish_by("KILL");
    until("its end", || (!fs::exists(format!("/proc/{child}")).unwrap()).then_some(()));
}

#[test]
fn who_does_not_read_delays_nobody_and_costs_no_memory() {
    const EVENTS: u64 = 60_000;
    let zmq = ZmqServer::start(&["--sync=interval"]);
    let stalled: Vec<_> = (0..3)
        .map(|_| {
            let stalled = peer(&["stall", &zmq.publish, "t"]);
            stalled.line_with("stalled");
            stalled
        })
        .collect();
    let subscriber = peer(&["count", &zmq.publish, "end", "t", "hello"]);
    zmq.greet(&subscriber);
    let mut pipeline = Pipeline::connect(zmq.server.address).unwrap();
    for number in 1..=EVENTS {
        let payload = format!("m{number} {}", "x".repeat(4_000));
        pipeline.send([("t".to_owned(), payload)]);
        if number.is_multiple_of(COUNTED) {
            while pipeline.waiting() > 0 {
                pipeline.answer().expect("a broker that answers");
            }
        }
        keeps_up(&subscriber, number);
    }
    let mut talk = Talk::client(zmq.server.address);
    let counted = Counted::of(&subscriber, "t", &mut talk);
    assert_eq!(counted.lost(EVENTS), 0, "{:?}", counted.runs);
    let peak = memory_bytes(zmq.child(), "VmHWM:");
    eprintln!("at most {} MiB with {} MiB sent", peak >> 20, (EVENTS * 4_000) >> 20);
    assert!(peak < MEMORY_MAX, "{peak} bytes");
    if !cfg!(feature = "libzmq") {
        zmq.server.process.line_with("ZeroMQ subscribers cut off: ");
    }
    assert!(!zmq.server.process.has_printed("has ended"));
    drop(stalled);
}

// PROTOCOL: Z8
#[test]
fn publishers_wait_while_the_broker_does_not_take_anything() {
    const EVENTS: u64 = 5_000;
    let zmq = ZmqServer::start(&["--sync=interval"]);
    let child = zmq.child();
    let subscriber = peer(&["sub", &zmq.publish, "hello"]);
    zmq.greet(&subscriber);
    zmq.server.process.signal("STOP");
    let flood = peer(&["flood", &zmq.pull, &EVENTS.to_string(), "8000"]);
    flood.line_with("stands still");
    let peak = memory_bytes(child, "VmHWM:");
    zmq.server.process.signal("CONT");
    flood.line_with("sent");
    assert!(peak < MEMORY_MAX / 2, "{peak} bytes");
    let mut talk = Talk::client(zmq.server.address);
    until("all events", || (next(&mut talk, "flood") == EVENTS + 1).then_some(()));
}

#[test]
fn subscribers_find_a_broker_again_that_was_started_anew() {
    let zmq = ZmqServer::start(&["--zmq-topics=t,hello"]);
    let subscriber = peer(&["sub", &zmq.publish, "t", "hello"]);
    zmq.greet(&subscriber);
    let mut talk = Talk::client(zmq.server.address);
    assert_eq!(talk.ask("PUB t m1"), "+OK 1 1");
    subscriber.line_with("m1");
    let flag = format!("--zmq-pub={}", zmq.publish);
    let server = zmq.server.restart("TERM", &["broker", &flag]);
    let mut talk = Talk::client(server.address);
    until("a message of the new one", || {
        assert!(talk.ask("PUB t later").starts_with("+OK"));
        subscriber.has_printed("later").then_some(())
    });
}
