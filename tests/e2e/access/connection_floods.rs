//! Floods of connections: half-open ones in several states, slow ones, and short ones. All of them
//! end, memory and descriptors do not grow, and another client is hardly delayed; its latency is
//! printed.
//!
//! `TIDINGS_CROWD` is the number of connections at once, `TIDINGS_CYCLES` the number of short
//! connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::nc::start_nc;
use crate::support::process::{Process, Server, run_tidings, started_by};
use crate::support::seed::number_from_env;
use crate::support::tls::{CertificateAuthority, start_socat};
use crate::support::wait::{time_left, wait_until};

/// Time between two bytes of a slow connection.
const DRIP_INTERVAL: Duration = Duration::from_secs(5);

/// The broker closes unfinished connections after ten seconds, which this is far from even on a busy
/// machine.
const CLOSED_WITHIN: Duration = Duration::from_mins(2);

/// Time between two events of the active client. The events stay in memory, in the topic's tail:
/// 120 bytes each, or half a percent of a broker's memory in the one or two minutes that a million
/// connections take.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(50);

/// Files that the broker may open after it listens, such as its databases. There are hundreds of
/// connections.
const FILES_OPENED_LATER: usize = 16;

/// Growth of memory that does not count, in a debug build with few connections.
const MEMORY_NOISE_BYTES: u64 = if cfg!(debug_assertions) { 1 << 20 } else { 0 };

/// The input with which the connections begin. They never complete it.
const UNFINISHED_INPUTS: [&[u8]; 4] =
    [b"", b"HELLO tok", b"GET /health HTTP/1.1\r\nHost: localho", b"\x16\x03\x01\x02\x00\x01"];

fn count_from_env(name: &str, default: usize) -> usize {
    number_from_env(name).map_or(default, |number| number.try_into().unwrap())
}

/// Raises the limit of open files to the hard limit of this process.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// Connects from an address that changes every 256 connections. The side that closes first keeps
/// its port for a minute, and one address has only 28,000 ports.
#[track_caller]
fn connect(address: SocketAddr, number: usize) -> TcpStream {
    let [.., high, low] = (number / 256).to_be_bytes();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 1, high, low), 0)).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(time_left())).unwrap();
    stream
}

/// Open files of the process.
fn open_descriptors(server: &Server) -> usize {
    fs::read_dir(format!("/proc/{}/fd", server.process.id())).unwrap().count()
}

/// Checks that memory grew by at most `percent` percent between two moments.
#[track_caller]
fn expect_growth_below(percent: u64, before: u64, after: u64) {
    let (before_kib, after_kib) = (before >> 10, after >> 10);
    let is_flat = after <= before + before * percent / 100 + MEMORY_NOISE_BYTES;
    assert!(is_flat, "memory grew from {before_kib} KiB to {after_kib} KiB");
}

/// Waits until the broker has closed all connections.
#[track_caller]
fn wait_for_descriptors(server: &Server, before: usize) {
    wait_until("the broker to close the connections", || {
        (open_descriptors(server) <= before + FILES_OPENED_LATER).then_some(())
    });
}

/// Creates the token of the active client.
#[track_caller]
fn create_token(folder: &TempDir) -> String {
    let words = ["token", "create", "good", "--allow", "pub:good", "--allow", "sub:good"];
    run_tidings(folder.path(), &words).expect_code(0).stdout()[0].clone()
}

/// Runs `work` while an active client publishes and receives events. Prints the latency of its
/// events.
fn with_active_client<T>(server: &Server, token: &str, work: impl FnOnce() -> T) -> T {
    let log_in = || {
        let mut connection = LineConnection::connect_with_number(server.address).0;
        connection.request_ok(&format!("HELLO token={token}"));
        connection
    };
    let (mut listener, mut publisher, is_done) = (log_in(), log_in(), AtomicBool::new(false));
    assert_eq!(listener.request("SUB good"), "+OK");
    // From here on the files of the topic are open.
    publisher.request_ok("PUB good x");
    assert!(listener.read_line().starts_with("MSG good "));
    thread::scope(|scope| {
        let good = scope.spawn(|| {
            let mut times = Vec::new();
            while !is_done.load(Ordering::Relaxed) {
                let began = Instant::now();
                publisher.send("PUB good x\n");
                assert!(listener.read_line().starts_with("MSG good "));
                times.push(began.elapsed());
                assert!(publisher.read_line().starts_with("+OK"));
                thread::sleep(PUBLISH_INTERVAL);
            }
            times.sort_unstable();
            times
        });
        // A failure ends the active client too; otherwise the scope would wait for it without end.
        let done = catch_unwind(AssertUnwindSafe(work));
        is_done.store(true, Ordering::Relaxed);
        let times = good.join().unwrap();
        let at = |part: usize| times[(times.len() - 1) * part / 1000];
        let (median, p99, longest) = (at(500), at(990), at(1000));
        eprintln!("publish to delivery: p50 {median:?}, p99 {p99:?}, longest {longest:?}");
        done.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Opens `count` connections to these addresses and completes none; half of them send a byte now
/// and then. Waits until the broker has closed all of them. Returns how much memory it used while
/// they were open.
#[track_caller]
fn hold_unfinished_connections(server: &Server, addresses: &[SocketAddr], count: usize) -> u64 {
    let before = open_descriptors(server);
    let mut open: Vec<_> = (0..count)
        .map(|number| {
            let mut stream = connect(addresses[number % addresses.len()], number);
            stream
                .write_all(UNFINISHED_INPUTS[number / addresses.len() % UNFINISHED_INPUTS.len()])
                .unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    // Connections with input that begins no line, request or handshake were closed at once.
    let memory = server.process.resident_memory_bytes();
    let (deadline, mut dripped) = (Instant::now() + CLOSED_WITHIN, Instant::now());
    while !open.is_empty() {
        assert!(Instant::now() < deadline, "{} of {count} connections are still open", open.len());
        thread::sleep(Duration::from_millis(100));
        open.retain_mut(is_open);
        if dripped.elapsed() >= DRIP_INTERVAL {
            dripped = Instant::now();
            for stream in open.iter_mut().step_by(2) {
                let _ = stream.write(b"x");
            }
        }
    }
    wait_for_descriptors(server, before);
    memory
}

/// Whether the broker has not closed the connection. Ignores what it sends.
fn is_open(stream: &mut TcpStream) -> bool {
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn half_open_connections_are_closed_and_leak_nothing() {
    raise_open_files();
    let count = count_from_env("TIDINGS_CROWD", 400);
    let folder = TempDir::new().unwrap();
    let token = create_token(&folder);
    let server = Server::start_in(folder, &["broker"], |_| ());
    let http = HttpClient::new(&server).authority().parse().unwrap();
    with_active_client(&server, &token, || {
        // One round waits for the longest timeout, half a minute. The allocator reuses memory of
        // the first rounds in the later ones.
        let rounds = if count > 1_000 { 10 } else { 1 };
        let memory: Vec<_> = (0..rounds)
            .map(|_| {
                let memory = hold_unfinished_connections(&server, &[server.address, http], count);
                let after = server.process.resident_memory_bytes() >> 10;
                eprintln!(
                    "memory with {count} half-open connections: {} KiB; after them: {after} KiB",
                    memory >> 10
                );
                memory
            })
            .collect();
        if let [.., before, _, _, _, after] = memory[..] {
            // The allocator still gains up to 3% here, and 1% in the ten rounds after. A leak of
            // 100 bytes for each connection of these rounds is 6%.
            expect_growth_below(4, before, after);
        }
    });
}

#[test]
#[ignore = "needs foreign programs"]
fn unfinished_handshakes_are_closed_and_leak_nothing() {
    raise_open_files();
    let count = count_from_env("TIDINGS_CROWD", 400);
    let folder = TempDir::new().unwrap();
    let authority = CertificateAuthority::new(folder.path(), "authority");
    authority.sign("broker");
    let secure = ["broker", "--tls-cert", "broker.pem", "--tls-key", "broker.key"];
    let server = Server::start_in(folder, &secure, |_| ());
    let http = HttpClient::new(&server).authority().trim_start_matches("https://").parse().unwrap();
    let memory = hold_unfinished_connections(&server, &[server.address, http], count);
    eprintln!("memory with {count} unfinished handshakes: {} KiB", memory >> 10);
    let others = start_socat(server.address, &authority.certificate_file());
    others.wait_for_line_with("Connected.");
}

/// Opens a short connection, of one of several kinds, and closes it.
#[track_caller]
fn open_and_close(lines: SocketAddr, http: SocketAddr, number: usize) {
    let mut stream = connect(if number % 4 == 3 { http } else { lines }, number);
    let input: &[u8] = match number % 4 {
        0 => b"",
        1 => b"PING\nQUIT\n",
        2 => b"http://a.exam",
        _ => b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n",
    };
    stream.write_all(input).unwrap();
    if number % 8 >= 4 {
        // The broker has sent something by then, so that closing now resets the connection.
        let _ = stream.peek(&mut [0]);
        return;
    }
    if number % 4 != 2 {
        let _ = stream.read(&mut [0; 512]);
    }
}

#[test]
fn short_connections_leak_nothing() {
    raise_open_files();
    let count = count_from_env("TIDINGS_CYCLES", 5_000);
    let folder = TempDir::new().unwrap();
    let token = create_token(&folder);
    let server = Server::start_in(folder, &["broker"], |_| ());
    let http = HttpClient::new(&server).authority().parse().unwrap();
    let (lines, began) = (server.address, Instant::now());
    let cycles = |first: usize, count: usize| {
        thread::scope(|scope| {
            for part in 0..4 {
                scope.spawn(move || {
                    let numbers = (first + part..first + count).step_by(4);
                    // Each thread has connections of each kind.
                    numbers.for_each(|number| open_and_close(lines, http, number + number / 4));
                });
            }
        });
    };
    let memory = with_active_client(&server, &token, || {
        let before = open_descriptors(&server);
        let each = count / 5;
        let memory: Vec<_> = (0..5)
            .map(|round| {
                cycles(round * each, each);
                wait_for_descriptors(&server, before);
                server.process.resident_memory_bytes()
            })
            .collect();
        memory
    });
    let kib: Vec<_> = memory.iter().map(|bytes| bytes >> 10).collect();
    let took = began.elapsed();
    eprintln!("{count} short connections in {took:?}; memory after each fifth: {kib:?} KiB");
    expect_growth_below(1, memory[1], memory[4]);
}

/// CPU time that the process uses during `work`, in hundredths of a second.
fn cpu_ticks(process: &Process, work: impl FnOnce()) -> u64 {
    let before = process.processor_ticks();
    work();
    process.processor_ticks() - before
}

/// A client that publishes to its own subscription receives the event and the confirmation in any
/// order.
#[track_caller]
fn publish_and_receive(connection: &mut LineConnection, text: &str) {
    let mut lines = [connection.request(&format!("PUB good {text}")), connection.read_line()];
    lines.sort_unstable();
    assert!(lines[0].starts_with("+OK "), "{lines:?}");
    assert!(lines[1].starts_with("MSG good ") && lines[1].ends_with(text), "{lines:?}");
}

#[test]
fn without_free_descriptors_open_connections_work_and_new_ones_wait() {
    let folder = TempDir::new().unwrap();
    let token = create_token(&folder);
    let server = Server::start_in(folder, &["broker", "--data", "tidings-data"], |_| ());
    let mut old = LineConnection::connect_with_number(server.address).0;
    old.request_ok(&format!("HELLO token={token}"));
    assert_eq!(old.request("SUB good"), "+OK");
    publish_and_receive(&mut old, "before");
    let limit = |number: usize| {
        let id = server.process.id().to_string();
        let words = [format!("--nofile={number}:"), "--pid".to_owned(), id];
        let ended = Process::start(Command::new("prlimit").args(words)).finish();
        ended.expect_code(0);
    };
    // From here on the broker cannot open a file.
    limit(open_descriptors(&server));
    let mut waiting: Vec<_> = (0..50).map(|number| connect(server.address, number)).collect();
    let used = cpu_ticks(&server.process, || thread::sleep(Duration::from_secs(2)));
    assert!(used < 50, "an idle broker used {used} hundredths of a second in two seconds");
    publish_and_receive(&mut old, "meanwhile");
    limit(1_024);
    for stream in &mut waiting {
        let mut greeting = [0; 10];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"Connected.");
    }
    publish_and_receive(&mut old, "after");
}

#[test]
#[ignore = "needs foreign programs"]
fn with_few_descriptors_the_broker_does_not_spin_and_accepts_later() {
    let server = Server::start_with(&["broker"], |command| {
        let mut limited = Command::new("prlimit");
        limited.arg("--nofile=64");
        *command = started_by(limited, command);
    });
    let mut old = LineConnection::connect_client(server.address);
    assert_eq!(old.request("SUB good"), "+OK");
    let idle: Vec<_> = (0..200).map(|number| connect(server.address, number)).collect();
    let used = cpu_ticks(&server.process, || thread::sleep(Duration::from_secs(2)));
    assert!(used < 50, "an idle broker used {used} hundredths of a second in two seconds");
    publish_and_receive(&mut old, "meanwhile");
    drop(idle);
    wait_until("a free descriptor", || {
        let mut late = start_nc(server.address, &["-N"]);
        late.write("PING\n");
        late.finish().stdout().iter().any(|line| line.starts_with("PONG")).then_some(())
    });
    publish_and_receive(&mut old, "after");
}
