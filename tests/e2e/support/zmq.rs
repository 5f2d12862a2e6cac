//! Peers of libzmq, and the process that they talk to.

use std::{fs, process::Command};

use serde_json::Value;

use super::{
    process::{Running, Server},
    talk::{Talk, value},
    wait::until,
};

/// What `pyzmq` runs.
const PEER: &str = include_str!("../zmq_peer.py");

/// A broker with both sockets.
pub(crate) struct ZmqServer {
    pub(crate) server: Server,
    pub(crate) publish: String,
    pub(crate) pull: String,
}

impl ZmqServer {
    #[track_caller]
    pub(crate) fn start(flags: &[&str]) -> Self {
        let sockets = ["broker", "--zmq-pub=tcp://127.0.0.1:0", "--zmq-pull=tcp://127.0.0.1:0"];
        let server = Server::start(&[&sockets[..], flags].concat());
        let publish = endpoint(&server.process, "ZeroMQ subscribers at ");
        let pull = endpoint(&server.process, "ZeroMQ publishers at ");
        Self { server, publish, pull }
    }

    /// The process that has the sockets.
    #[track_caller]
    pub(crate) fn child(&self) -> u32 {
        until("the process", || child_of(self.server.process.id()))
    }

    /// Waits until somebody who prefers `hello` to nothing hears what is published there.
    #[track_caller]
    pub(crate) fn greet(&self, subscriber: &Running) {
        let mut talk = Talk::client(self.server.address);
        until("a subscription", || {
            assert!(talk.ask("PUB hello x").starts_with("+OK"));
            subscriber.has_printed("hello").then_some(())
        });
    }
}

/// Where a line says that a socket is.
#[track_caller]
pub(crate) fn endpoint(process: &Running, before: &str) -> String {
    process.line(before, |line| line.strip_prefix(before).map(str::to_owned))
}

/// The number that the next event of a topic gets.
#[track_caller]
pub(crate) fn next(talk: &mut Talk, topic: &str) -> u64 {
    let state = talk.ask_lines(&format!("TOPIC show {topic}")).pop().unwrap();
    value(&state, "next").parse().unwrap()
}

/// A process of which this one is the parent.
pub(crate) fn child_of(parent: u32) -> Option<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|id| {
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        line.is_some_and(|line| line.trim().parse() == Ok(parent))
    })
}

/// A peer of libzmq.
#[track_caller]
pub(crate) fn peer(words: &[&str]) -> Running {
    peer_with(words, |_| ())
}

/// The same, with a last word about its environment.
#[track_caller]
pub(crate) fn peer_with(words: &[&str], adjust: impl FnOnce(&mut Command)) -> Running {
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/target/venv/bin/python");
    assert!(fs::exists(python).unwrap(), "tests/run installs pyzmq into target/venv");
    let mut command = Command::new(python);
    command.args(["-c", PEER]).args(words);
    adjust(&mut command);
    Running::start(&mut command)
}

/// A message as a peer prints it: its frames.
pub(crate) fn frames(line: &str) -> Option<Vec<String>> {
    serde_json::from_str(line).ok()
}

/// A message for a peer to send: frames of which each character is a byte.
pub(crate) fn message(frames: &[&str]) -> String {
    format!("{}\n", Value::from(frames.to_vec()))
}
