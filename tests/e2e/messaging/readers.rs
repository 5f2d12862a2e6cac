//! Subscribers that do not read: they disturb nobody and cost no memory, and when they read again
//! they get everything, from the disk, in the same subscription. `TIDINGS_READERS` is the number of
//! subscribers, of which a thousand do not read.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use std::{env, thread};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

use crate::support::process::Server;
use crate::support::publisher::Pipeline;
use crate::support::talk::Talk;
use crate::support::wait::PATIENCE;

const TOPIC: &str = "t";

/// Subscribers that do not read.
const STALLED: usize = 1_000;

/// Bytes that the kernel keeps of what a subscriber has not read.
const RECEIVE_BYTES: usize = 16 << 10;

/// Bytes of a payload: large, so that there are more bytes than memory holds without many events.
const PAYLOAD_BYTES: usize = 4_000;

/// Events in each half: more than the broker keeps in memory of a topic.
const HALF: u64 = 5_000;

/// Events after which everybody who reads has caught up.
const STEP: usize = 250;

/// What all of the memory of the broker may come to, whatever its subscribers do.
const MEMORY_MAX: u64 = 128 << 20;

/// How much of it may be due to chance.
const NOISE: u64 = 12 << 20;

/// A subscription of which every byte is known beforehand.
struct Subscriber {
    stream: TcpStream,
    /// Bytes that came so far, beginning with those behind the answer to `SUB`.
    heard: usize,
}

impl Subscriber {
    #[track_caller]
    fn connect(address: SocketAddr) -> Self {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
        // The clients of a fleet are on machines of their own; here all of them share what the
        // kernel gives to sockets.
        socket.set_recv_buffer_size(RECEIVE_BYTES).unwrap();
        socket.connect(&address.into()).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(format!("HELLO echo=reader\nSUB {TOPIC} from=first\n").as_bytes())
            .unwrap();
        // Byte by byte: what comes behind the answers is left in the socket.
        let mut lines = Vec::new();
        while !lines.ends_with(b"+OK\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            lines.push(byte[0]);
        }
        Self { stream, heard: 0 }
    }

    /// Reads up to this many bytes in all, which must be these and no others.
    #[track_caller]
    fn hear(&mut self, events: &[u8], up_to: usize) {
        let mut chunk = vec![0; 256 << 10];
        while self.heard < up_to {
            let wanted = chunk.len().min(up_to - self.heard);
            let read = self.stream.read(&mut chunk[..wanted]).expect("events come");
            assert!(read > 0, "closed after {} bytes", self.heard);
            let expected = &events[self.heard..self.heard + read];
            if chunk[..read] != *expected {
                let at = chunk.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
                let came = String::from_utf8_lossy(&chunk[at..read.min(at + 100)]).into_owned();
                panic!("other bytes after {}: {came}", self.heard + at);
            }
            self.heard += read;
        }
    }
}

/// All events as they are delivered: numbered from 1.
fn deliveries(count: u64) -> Vec<u8> {
    (1..=count).flat_map(|seq| delivery(seq).into_bytes()).collect()
}

fn delivery(seq: u64) -> String {
    format!("MSG {TOPIC} {seq} {}\r\n", payload(seq))
}

fn payload(seq: u64) -> String {
    format!("{seq:08} {}", "x".repeat(PAYLOAD_BYTES))
}

/// Publishes these, and waits until all are confirmed.
#[track_caller]
fn publish(address: SocketAddr, numbers: std::ops::Range<u64>) {
    let mut pipeline = Pipeline::connect(address).unwrap();
    for seq in numbers {
        pipeline.send([(TOPIC.to_owned(), payload(seq))]);
        while pipeline.waiting() > 100 {
            pipeline.answer().expect("a broker that answers");
        }
    }
    for outcome in pipeline.all_answers() {
        outcome.fate.expect("there is room");
    }
}

/// As many open files as the system lets this process have.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).unwrap();
}

// PROTOCOL: D5
#[test]
fn subscribers_that_never_read_cost_no_memory_and_get_everything_when_they_do() {
    raise_open_files();
    let count: usize =
        env::var("TIDINGS_READERS").map_or(1_200, |text| text.parse().expect("a number"));
    let server = Server::broker();
    let address = server.address;
    assert!(Talk::client(address).ask(&format!("PUB {TOPIC}-other x")).starts_with("+OK"));
    let mut stalled: Vec<_> = (0..STALLED).map(|_| Subscriber::connect(address)).collect();
    let mut reading: Vec<_> = (STALLED..count).map(|_| Subscriber::connect(address)).collect();
    let events = Arc::new(deliveries(2 * HALF));
    let (mut up_to, mut residents) = (0, Vec::new());
    for half in [0, HALF] {
        for first in (half + 1..=half + HALF).step_by(STEP) {
            let next = first + STEP as u64;
            publish(address, first..next);
            up_to += (first..next).map(|seq| delivery(seq).len()).sum::<usize>();
            // A few threads for many sockets.
            thread::scope(|scope| {
                for some in reading.chunks_mut((count - STALLED).div_ceil(8)) {
                    let events = Arc::clone(&events);
                    scope.spawn(move || {
                        for subscriber in some {
                            subscriber.hear(&events, up_to);
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
    assert!(after < before + NOISE, "it grew from {before} to {after} bytes");
    assert!(peak < MEMORY_MAX, "{peak} bytes");

    // Some read again: all of it, with no `LAG`, and what is published then.
    thread::scope(|scope| {
        for some in stalled[..24].chunks_mut(6) {
            let events = Arc::clone(&events);
            scope.spawn(move || {
                for subscriber in some {
                    subscriber.hear(&events, events.len());
                }
            });
        }
    });
    let peak = server.process.peak_memory_bytes();
    assert!(peak < MEMORY_MAX, "{peak} bytes when they read again");
    let next = 2 * HALF + 1;
    publish(address, next..next + 1);
    let events = deliveries(next);
    for subscriber in reading.iter_mut().chain(&mut stalled[..24]) {
        subscriber.hear(&events, events.len());
    }
    let ended = server.process.finish_by("TERM").expect_code(0);
    assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
}
