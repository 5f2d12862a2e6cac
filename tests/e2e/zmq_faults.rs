//! Sockets of libzmq with peers that are slow, hostile or gone, and a process that is killed: the broker does not
//! notice, and what was lost shows.

use std::{
    fs,
    io::Write,
    net::{SocketAddr, TcpStream},
    process::Command,
};

use crate::support::{
    process::memory_bytes,
    publisher::Pipeline,
    talk::Talk,
    wait::until,
    zmq::{ZmqServer, child_of, frames, message, next, peer},
};

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

/// A greeting, and a frame that claims to have 2^46 bytes, on a connection that stays open.
#[track_caller]
fn nine_bytes(endpoint: &str) -> TcpStream {
    let address: SocketAddr = endpoint.strip_prefix("tcp://").unwrap().parse().unwrap();
    let mut greeting = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0];
    greeting.extend(b"NULL");
    greeting.resize(64, 0);
    // A process that was just started does not listen yet.
    let mut stream = until("a socket", || TcpStream::connect(address).ok());
    stream.write_all(&greeting).unwrap();
    stream.write_all(&[2, 0, 0, 0x40, 0, 0, 0, 0, 0]).unwrap();
    stream
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
        zmq.server.process.line_with("the process for ZeroMQ has ended (");
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
        while pipeline.waiting() > 500 {
            pipeline.answer().expect("a broker that answers");
        }
    }
    pipeline.all_answers();
    let mut talk = Talk::client(zmq.server.address);
    until("the end", || {
        assert!(talk.ask("PUB t end").starts_with("+OK"));
        subscriber.has_printed("runs").then_some(())
    });
    let peak = memory_bytes(zmq.child(), "VmHWM:");
    eprintln!("at most {} MiB with {} MiB sent", peak >> 20, (EVENTS * 4_000) >> 20);
    assert!(peak < MEMORY_MAX, "{peak} bytes");
    if !cfg!(feature = "libzmq") {
        zmq.server.process.line_with("ZeroMQ subscribers cut off: ");
    }
    assert!(!zmq.server.process.has_printed("has ended"));
    drop(stalled);
}

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
