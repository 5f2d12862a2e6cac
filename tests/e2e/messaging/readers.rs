//! Stalled subscribers delay no other client and cost no memory. When they read again, they receive
//! all events from the disk in the same subscription. `TIDINGS_READERS` is the number of
//! subscribers; a thousand of them are stalled.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use std::{env, thread};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

use crate::support::line_connection::LineConnection;
use crate::support::pipelined_publisher::PipelinedPublisher;
use crate::support::process::Server;
use crate::support::wait::time_left;

const TOPIC: &str = "t";

/// Subscribers that do not read.
const STALLED_SUBSCRIBERS: usize = 1_000;

/// The size of a subscriber's receive buffer in the kernel.
const RECEIVE_BUFFER_BYTES: usize = 16 << 10;

/// The size of a payload. It is large, so that few events exceed the memory.
const PAYLOAD_BYTES: usize = 4_000;

/// Events in each half: more than the broker keeps in the memory of a topic.
const EVENTS_PER_HALF: u64 = 5_000;

/// All reading subscribers catch up after this number of events.
const EVENTS_PER_STEP: usize = 250;

/// The limit of the broker's total memory.
const MEMORY_BYTES_MAX: u64 = 128 << 20;

/// The part of it that may vary by chance.
const MEMORY_NOISE_BYTES: u64 = 12 << 20;

/// A subscription; all its bytes are known in advance.
struct RawSubscriber {
    stream: TcpStream,
    /// Bytes received so far, counted from the end of the response to `SUB`.
    received_bytes: usize,
}

impl RawSubscriber {
    #[track_caller]
    fn connect(address: SocketAddr) -> Self {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
        // Subscribers usually run on their own machines; here all share the kernel's socket memory.
        socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES).unwrap();
        socket.connect(&address.into()).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(time_left())).unwrap();
        stream
            .write_all(format!("HELLO echo=reader\nSUB {TOPIC} from=first\n").as_bytes())
            .unwrap();
        // One byte at a time: the bytes after the responses stay in the socket.
        let mut lines = Vec::new();
        while !lines.ends_with(b"+OK\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            lines.push(byte[0]);
        }
        Self { stream, received_bytes: 0 }
    }

    /// Reads until this many bytes were received in total, and compares them with `events`.
    #[track_caller]
    fn read_and_check(&mut self, events: &[u8], up_to: usize) {
        let mut chunk = vec![0; 256 << 10];
        while self.received_bytes < up_to {
            let length = chunk.len().min(up_to - self.received_bytes);
            let read = self.stream.read(&mut chunk[..length]).expect("no event arrived");
            assert!(read > 0, "closed after {} bytes", self.received_bytes);
            let expected = &events[self.received_bytes..self.received_bytes + read];
            if chunk[..read] != *expected {
                let at = chunk.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
                let received = String::from_utf8_lossy(&chunk[at..read.min(at + 100)]).into_owned();
                panic!("unexpected bytes after {}: {received}", self.received_bytes + at);
            }
            self.received_bytes += read;
        }
    }
}

/// All delivered lines; seqs start at 1.
fn delivery_lines(count: u64) -> Vec<u8> {
    (1..=count).flat_map(|seq| delivery_line(seq).into_bytes()).collect()
}

fn delivery_line(seq: u64) -> String {
    format!("MSG {TOPIC} {seq} {}\r\n", payload(seq))
}

fn payload(seq: u64) -> String {
    format!("{seq:08} {}", "x".repeat(PAYLOAD_BYTES))
}

/// Publishes these events and waits until all are confirmed.
#[track_caller]
fn publish(address: SocketAddr, numbers: std::ops::Range<u64>) {
    let mut pipeline = PipelinedPublisher::connect(address).unwrap();
    for seq in numbers {
        pipeline.send([(TOPIC.to_owned(), payload(seq))]);
        while pipeline.pending_count() > 100 {
            pipeline.read_outcomes().expect("the broker closed");
        }
    }
    for outcome in pipeline.read_all_outcomes() {
        outcome.result.expect("a publish was rejected");
    }
}

/// Raises the limit of open files to the maximum of this process.
fn raise_open_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).unwrap();
}

// PROTOCOL: D5
#[test]
fn stalled_subscribers_cost_no_memory_and_lose_nothing() {
    raise_open_file_limit();
    let count: usize =
        env::var("TIDINGS_READERS").map_or(1_200, |text| text.parse().expect("a number"));
    let server = Server::start_broker();
    let address = server.address;
    LineConnection::connect_client(address).request_ok(&format!("PUB {TOPIC}-other x"));
    let mut stalled: Vec<_> =
        (0..STALLED_SUBSCRIBERS).map(|_| RawSubscriber::connect(address)).collect();
    let mut reading: Vec<_> =
        (STALLED_SUBSCRIBERS..count).map(|_| RawSubscriber::connect(address)).collect();
    let events = Arc::new(delivery_lines(2 * EVENTS_PER_HALF));
    let (mut up_to, mut residents) = (0, Vec::new());
    for half in [0, EVENTS_PER_HALF] {
        for first in (half + 1..=half + EVENTS_PER_HALF).step_by(EVENTS_PER_STEP) {
            let next = first + EVENTS_PER_STEP as u64;
            publish(address, first..next);
            up_to += (first..next).map(|seq| delivery_line(seq).len()).sum::<usize>();
            // A few threads serve many sockets.
            thread::scope(|scope| {
                for some in reading.chunks_mut((count - STALLED_SUBSCRIBERS).div_ceil(8)) {
                    let events = Arc::clone(&events);
                    scope.spawn(move || {
                        for subscriber in some {
                            subscriber.read_and_check(&events, up_to);
                        }
                    });
                }
            });
        }
        residents.push(server.process.resident_memory_bytes());
    }
    let [before, after] = residents[..] else { unreachable!("two halves") };
    let peak = server.process.peak_memory_bytes();
    eprintln!("memory: {} MiB, {} MiB, at most {} MiB", before >> 20, after >> 20, peak >> 20);
    assert!(after < before + MEMORY_NOISE_BYTES, "memory grew from {before} to {after} bytes");
    assert!(peak < MEMORY_BYTES_MAX, "{peak} bytes");

    // Some subscribers read again: they receive everything without a `LAG`, and then new events.
    thread::scope(|scope| {
        for some in stalled[..24].chunks_mut(6) {
            let events = Arc::clone(&events);
            scope.spawn(move || {
                for subscriber in some {
                    subscriber.read_and_check(&events, events.len());
                }
            });
        }
    });
    let peak = server.process.peak_memory_bytes();
    assert!(peak < MEMORY_BYTES_MAX, "{peak} bytes while stalled subscribers read");
    let next = 2 * EVENTS_PER_HALF + 1;
    publish(address, next..next + 1);
    let events = delivery_lines(next);
    for subscriber in reading.iter_mut().chain(&mut stalled[..24]) {
        subscriber.read_and_check(&events, events.len());
    }
    let output = server.process.signal_and_finish("TERM").expect_code(0);
    assert!(output.elapsed < Duration::from_secs(15), "{:?}", output.elapsed);
}
