//! Peers that use libzmq, and the process that they connect to.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::line_connection::{LineConnection, value};
use super::process::{Process, Server};
use super::wait::wait_until;

/// The script that runs with `pyzmq`.
const PEER_SCRIPT: &str = include_str!("zmq_peer.py");

/// A broker with both ZeroMQ sockets.
pub(crate) struct ZmqServer {
    pub(crate) server: Server,
    pub(crate) pub_endpoint: String,
    pub(crate) pull_endpoint: String,
}

impl ZmqServer {
    #[track_caller]
    pub(crate) fn start(flags: &[&str]) -> Self {
        let sockets = ["broker", "--zmq-pub=tcp://127.0.0.1:0", "--zmq-pull=tcp://127.0.0.1:0"];
        let server = Server::start(&[&sockets[..], flags].concat());
        let pub_endpoint = printed_endpoint(&server.process, "ZeroMQ subscribers at ");
        let pull_endpoint = printed_endpoint(&server.process, "ZeroMQ publishers at ");
        Self { server, pub_endpoint, pull_endpoint }
    }

    /// The process that owns the sockets.
    #[track_caller]
    pub(crate) fn bridge_process_id(&self) -> u32 {
        wait_until("the ZeroMQ process", || child_process_of(self.server.process.id()))
    }

    /// Waits until a subscriber with the prefix `hello` receives published events.
    #[track_caller]
    pub(crate) fn wait_for_subscription(&self, subscriber: &Process) {
        let mut client = LineConnection::connect_client(self.server.address);
        wait_until("a subscription", || {
            client.request_ok("PUB hello x");
            subscriber.has_printed("hello").then_some(())
        });
    }
}

/// The endpoint in a printed line.
#[track_caller]
pub(crate) fn printed_endpoint(process: &Process, before: &str) -> String {
    process.wait_for_line(before, |line| line.strip_prefix(before).map(str::to_owned))
}

/// The seq of the next event of a topic.
#[track_caller]
pub(crate) fn next_seq(client: &mut LineConnection, topic: &str) -> u64 {
    let state = client.request_lines(&format!("TOPIC show {topic}")).pop().unwrap();
    value(&state, "next").parse().unwrap()
}

/// The numbers that a counting subscriber has received, as runs: the first and last number of each.
pub(crate) struct ReceivedRuns {
    received_count: u64,
    pub(crate) runs: Vec<(u64, u64)>,
}

impl ReceivedRuns {
    /// Publishes an end marker until the peer receives one; a subscriber that drops messages may
    /// need several.
    #[track_caller]
    pub(crate) fn wait_for_end(peer: &Process, topic: &str, client: &mut LineConnection) -> Self {
        let summary = wait_until("the end marker", || {
            client.request_ok(&format!("PUB {topic} end"));
            let object = |line: &str| serde_json::from_str(line).ok().filter(Value::is_object);
            peer.find_line(object)
        });
        assert_eq!(summary["repeated"], 0, "{summary}");
        let runs = serde_json::from_value(summary["runs"].clone()).unwrap();
        Self { received_count: summary["received"].as_u64().unwrap(), runs }
    }

    /// How many of the numbers from 1 to `count` are missing. Each missing number must lie in a
    /// hole between two runs.
    #[track_caller]
    pub(crate) fn lost_count(&self, count: u64) -> u64 {
        let (first, last) = (self.runs[0].0, self.runs[self.runs.len() - 1].1);
        assert!(first == 1 && last > count, "{:?}", self.runs);
        let in_runs: u64 = self.runs.iter().map(|(first, last)| last - first + 1).sum();
        assert_eq!(in_runs, self.received_count, "{:?}", self.runs);
        let holes = self.runs.windows(2).map(|two| (two[0].1 + 1, two[1].0 - 1));
        let holes = holes.filter(|(first, _)| *first <= count);
        holes.map(|(first, last)| last.min(count) - first + 1).sum()
    }
}

/// After how many messages a counting subscriber prints its progress.
pub(crate) const PROGRESS_INTERVAL: u64 = 250;

/// Waits until a counting subscriber has received this number, if it prints progress there.
#[track_caller]
pub(crate) fn wait_for_progress(peer: &Process, number: u64) {
    if number.is_multiple_of(PROGRESS_INTERVAL) {
        let progress = format!("[\"at\", {number}]");
        peer.wait_for_line(&progress, |line| (line == progress).then_some(()));
    }
}

/// A child process of this process.
pub(crate) fn child_process_of(parent: u32) -> Option<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|id| {
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        line.is_some_and(|line| line.trim().parse() == Ok(parent))
    })
}

/// Starts a libzmq peer.
#[track_caller]
pub(crate) fn start_peer(arguments: &[&str]) -> Process {
    start_peer_with(arguments, |_| ())
}

/// Like `start_peer`, but `adjust` may change the command, such as its environment.
#[track_caller]
pub(crate) fn start_peer_with(arguments: &[&str], adjust: impl FnOnce(&mut Command)) -> Process {
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/target/venv/bin/python");
    assert!(
        fs::exists(python).unwrap(),
        "pyzmq is missing; run the tests with tests/run --all, which installs it into target/venv"
    );
    let mut command = Command::new(python);
    command.args(["-c", PEER_SCRIPT]).args(arguments);
    adjust(&mut command);
    Process::start(&mut command)
}

/// A message as a peer prints it: its frames.
pub(crate) fn frames(line: &str) -> Option<Vec<String>> {
    serde_json::from_str(line).ok()
}

/// A message for a peer to send: frames in which each character is one byte.
pub(crate) fn message(frames: &[&str]) -> String {
    format!("{}\n", Value::from(frames.to_vec()))
}
