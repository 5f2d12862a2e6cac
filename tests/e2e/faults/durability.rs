//! Brokers that are killed at random moments: under load, during recovery and during a stop.
//! Clients check that each confirmed event is stored under its seq and in order, and that no seq
//! names two events.
//!
//! A printed seed decides the moments; the state of the broker at that moment depends on the
//! machine. `TIDINGS_KILL_SEED` sets the seed, and `TIDINGS_KILL_CYCLES` the number of kills.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use tempfile::TempDir;

use crate::support::line_connection::{FAREWELL, LineConnection};
use crate::support::nc::start_nc;
use crate::support::pipelined_publisher::PipelinedPublisher;
use crate::support::process::{Process, Server, tidings_command};
use crate::support::seed::{number_from_env, seed_from_env};
use crate::support::topic_history::{Delivery, ReceivedEvents, TopicHistory};
use crate::support::wait::time_left;

/// Kills of a broker on one directory. The stored events grow with each, and each start reads all
/// of them.
const LIVES_PER_DIRECTORY: u64 = 25;

/// Topics that keep their confirmed events after a kill. Peers use the first one.
const DURABLE_TOPICS: [&str; 4] = [TOPICS[0], TOPICS[1], TOPICS[2], TOPICS[3]];

/// A topic that stores nothing. It must not reuse a seq, either.
const MEMORY_TOPIC: &str = "memory";

const TOPICS: [&str; 5] = ["new-url", "a", "b", "interval", MEMORY_TOPIC];

/// Unanswered publishes of one connection.
const MAX_UNANSWERED: usize = 300;

// PROTOCOL: N2, R2
#[test]
#[ignore = "needs foreign programs"]
fn kill_nine_loses_no_confirmed_event_and_reuses_no_seq() {
    let cycles = number_from_env("TIDINGS_KILL_CYCLES").unwrap_or(50);
    let seed = seed_from_env("TIDINGS_KILL_SEED");
    let began = Instant::now();
    let mut left = cycles;
    for round in 0.. {
        let lives = left.min(LIVES_PER_DIRECTORY);
        if lives == 0 {
            break;
        }
        let seed = seed + round;
        eprintln!(
            "TIDINGS_KILL_SEED={seed} TIDINGS_KILL_CYCLES={lives} after {:?}",
            began.elapsed()
        );
        let confirmed = run_lives(lives, &mut Rng::with_seed(seed));
        eprintln!("{confirmed} events were confirmed in {lives} lives");
        left -= lives;
    }
}

/// Starts and kills a broker `lives` times on one directory. Returns how many events were
/// confirmed.
fn run_lives(lives: u64, rng: &mut Rng) -> usize {
    let (confirmed, confirmations) = channel();
    let observer = Observer::new(confirmed);
    let mut publishers: Vec<_> = (0..3).map(|n| Publisher::new(n, rng.fork())).collect();
    let mut listeners: Vec<_> = DURABLE_TOPICS
        .iter()
        .flat_map(|topic| [ResumingSubscriber::new(topic), ResumingSubscriber::new(topic)])
        .collect();
    let mut readers: Vec<_> =
        DURABLE_TOPICS.iter().map(|topic| CursorReader::new(topic, rng.fork())).collect();
    let mut peer = NetcatPeer { next_number: 0, rng: rng.fork() };
    let mut folder = TempDir::new().unwrap();
    let mut start_took = Duration::from_millis(20);
    for life in 0..lives {
        if rng.u8(..3) == 0 {
            folder = kill_while_starting(folder, start_took, rng);
        }
        let began = Instant::now();
        let server = Server::start_in(folder, &["broker"], |_| ());
        start_took = began.elapsed();
        if life == 0 {
            let mut client = LineConnection::connect_client(server.address);
            for topic in ["interval", MEMORY_TOPIC] {
                client.request_ok(&format!("TOPIC create {topic} sync={topic}"));
            }
        }
        observer.check(server.address, &format!("end-{life}"));
        folder = thread::scope(|scope| {
            let (address, observer, peer) = (server.address, &observer, &mut peer);
            for publisher in &mut publishers {
                scope.spawn(move || publisher.run(address, observer));
            }
            for listener in &mut listeners {
                scope.spawn(move || listener.run(address, observer));
            }
            for reader in &mut readers {
                scope.spawn(move || reader.run(address, observer));
            }
            scope.spawn(move || peer.run(address, observer));
            kill_under_load(server, &confirmations, rng)
        });
    }
    // A subscriber that resumes receives all remaining events.
    let server = Server::start_in(folder, &["broker"], |_| ());
    let end = format!("end-{lives}");
    observer.check(server.address, &end);
    for listener in &mut listeners {
        listener.catch_up(server.address, &observer, &end);
    }
    observer.check(server.address, &format!("end-{}", lives + 1));
    DURABLE_TOPICS
        .iter()
        .map(|topic| observer.histories[topic].lock().unwrap().confirmed_count())
        .sum()
}

/// Kills brokers before they listen or just after, during the recovery.
fn kill_while_starting(folder: TempDir, took: Duration, rng: &mut Rng) -> TempDir {
    for _ in 0..=rng.u8(..3) {
        let words = ["broker", "--listen", "127.0.0.1:0"];
        let process = Process::start(&mut tidings_command(folder.path(), words));
        sleep_up_to(took.mul_f32(1.2), rng);
        kill_and_expect_no_damage(process);
    }
    folder
}

/// Kills the broker after some confirmations, sometimes during a stop.
fn kill_under_load(server: Server, confirmations: &Receiver<()>, rng: &mut Rng) -> TempDir {
    // Confirmations of an earlier life do not count.
    confirmations.try_iter().count();
    for _ in 0..rng.u32(..1500) {
        confirmations.recv_timeout(time_left()).expect("confirmations arrive");
    }
    sleep_up_to(Duration::from_millis(3), rng);
    if rng.u8(..6) == 0 {
        server.process.signal("TERM");
        sleep_up_to(Duration::from_millis(30), rng);
    }
    kill_and_expect_no_damage(server.process);
    server.folder
}

/// Sleeps for a random time up to `most`.
fn sleep_up_to(most: Duration, rng: &mut Rng) {
    thread::sleep(most.mul_f32(rng.f32()));
}

/// Kills the broker and checks that it had found no damage.
#[track_caller]
fn kill_and_expect_no_damage(process: Process) {
    let stderr = process.signal_and_finish("KILL").stderr();
    assert!(!stderr.contains("damaged"), "{stderr}");
}

/// What clients have published, received and been confirmed, over all lives of the broker.
struct Observer {
    histories: BTreeMap<&'static str, Mutex<TopicHistory>>,
    /// Receives a message for every confirmation.
    confirmed: Mutex<Sender<()>>,
}

impl Observer {
    fn new(confirmed: Sender<()>) -> Self {
        let histories = TOPICS.map(|name| (name, Mutex::new(TopicHistory::new(name))));
        Self { histories: histories.into(), confirmed: Mutex::new(confirmed) }
    }
}

impl Observer {
    fn record_delivery(&self, topic: &str, delivery: Delivery) {
        self.histories[topic].lock().unwrap().record_delivery(delivery);
    }

    fn record_confirmation(&self, topic: &str, payload: String, seq: Option<u64>) {
        self.histories[topic].lock().unwrap().record_confirmation(payload, seq);
        // The receiver is gone only if the test is failing.
        let _ = self.confirmed.lock().unwrap().send(());
    }

    /// Compares the events of the broker with all confirmations and deliveries.
    #[track_caller]
    fn check(&self, address: SocketAddr, end: &str) {
        for topic in DURABLE_TOPICS {
            let received = ReceivedEvents::read_all(address, topic, end);
            let mut history = self.histories[topic].lock().unwrap();
            history.record_confirmation(end.to_owned(), None);
            history.check_contents(received);
        }
        let received = ReceivedEvents::read_all(address, MEMORY_TOPIC, end);
        self.histories[MEMORY_TOPIC].lock().unwrap().check_seqs(received.gaps, &received.events);
    }
}

/// A publisher with a window. The first one sends unconfirmed events again, with ids, so that none
/// is stored twice.
struct Publisher {
    name: String,
    next_number: u64,
    /// Unconfirmed events, which it sends again in the next life.
    unconfirmed: Option<Vec<(String, String)>>,
    rng: Rng,
}

impl Publisher {
    fn new(n: u64, rng: Rng) -> Self {
        Self { name: format!("p{n}"), next_number: 0, unconfirmed: (n == 0).then(Vec::new), rng }
    }

    fn next(&mut self) -> (String, String) {
        let topic = self.rng.choice(TOPICS).expect("TOPICS is not empty").to_owned();
        self.next_number += 1;
        let (name, n) = (&self.name, self.next_number);
        let payload = match self.unconfirmed {
            Some(_) => format!("http://{name}.example/-{n} id={name}.{n}"),
            None => format!("{name}-{n} {}", "x".repeat(self.rng.usize(..300))),
        };
        (topic, payload)
    }

    /// Publishes until the broker is gone.
    fn run(&mut self, address: SocketAddr, observer: &Observer) {
        let Some(mut pipeline) = PipelinedPublisher::connect(address) else { return };
        if let Some(unconfirmed) = &mut self.unconfirmed {
            pipeline.send(unconfirmed.drain(..));
        }
        loop {
            let burst = self.rng.usize(1..40);
            let events: Vec<_> = (0..burst).map(|_| self.next()).collect();
            pipeline.send(events);
            let waiting_max = self.rng.usize(..MAX_UNANSWERED);
            while pipeline.pending_count() > waiting_max {
                let Some(outcomes) = pipeline.read_outcomes() else {
                    if let Some(unconfirmed) = &mut self.unconfirmed {
                        unconfirmed.extend(pipeline.into_pending());
                    }
                    return;
                };
                for outcome in outcomes {
                    let seq = outcome.result.expect("the disk has space");
                    if outcome.topic != MEMORY_TOPIC {
                        observer.record_confirmation(&outcome.topic, outcome.payload, seq);
                    }
                }
            }
        }
    }
}

/// A subscriber that resumes after its last event.
struct ResumingSubscriber {
    topic: &'static str,
    next: u64,
}

impl ResumingSubscriber {
    fn new(topic: &'static str) -> Self {
        Self { topic, next: 1 }
    }

    fn subscribe(&self, address: SocketAddr) -> Option<LineConnection> {
        let mut connection = LineConnection::try_connect_client(address)?;
        connection.send(format!("SUB {} from={}\n", self.topic, self.next));
        let answer = connection.try_read_line()?;
        if answer.starts_with("-ERR closing") {
            return None;
        }
        assert!(answer.starts_with("+OK"), "{} from={}: {answer}", self.topic, self.next);
        Some(connection)
    }

    fn receive(&mut self, line: &str, observer: &Observer) {
        let delivery = Delivery::parse(self.topic, line);
        self.next = delivery.expect_next_seq(self.next);
        observer.record_delivery(self.topic, delivery);
    }

    /// Receives until the broker is gone.
    fn run(&mut self, address: SocketAddr, observer: &Observer) {
        let Some(mut connection) = self.subscribe(address) else { return };
        while let Some(line) =
            connection.try_read_line().filter(|line| !line.starts_with("-ERR closing"))
        {
            self.receive(&line, observer);
        }
    }

    /// Receives up to this event.
    fn catch_up(&mut self, address: SocketAddr, observer: &Observer, end: &str) {
        let mut connection = self.subscribe(address).expect("a broker");
        loop {
            let line = connection.read_line();
            self.receive(&line, observer);
            if line.ends_with(&format!(" {end}")) {
                return;
            }
        }
    }
}

/// A subscriber with a durable cursor. The cursor is at its last answered `SEEN`, or at a later
/// unanswered one.
struct CursorReader {
    topic: &'static str,
    /// The stored cursor is between these seqs, both included. `None`: the cursor does not exist
    /// yet.
    cursor_range: Option<(u64, u64)>,
    rng: Rng,
}

impl CursorReader {
    fn new(topic: &'static str, rng: Rng) -> Self {
        Self { topic, cursor_range: None, rng }
    }

    /// Reads until the broker is gone.
    fn run(&mut self, address: SocketAddr, observer: &Observer) {
        let Some(mut connection) = LineConnection::try_connect_client(address) else { return };
        connection.send(format!("SUB {} as=reader from=first\n", self.topic));
        match connection.try_read_line() {
            Some(answer) if answer.starts_with("+OK") => {}
            Some(answer) if !answer.starts_with("-ERR closing") => panic!("as=reader: {answer}"),
            _ => return,
        }
        let (least, mut most) = self.cursor_range.unwrap_or((1, 1));
        self.cursor_range = Some((least, most));
        let mut next = None;
        let mut unanswered = VecDeque::new();
        while let Some(line) =
            connection.try_read_line().filter(|line| !line.starts_with("-ERR closing"))
        {
            if line == "+OK" {
                let next_seq = unanswered.pop_front().expect("a SEEN without an answer");
                self.cursor_range = Some((next_seq, most));
                continue;
            }
            let delivery = Delivery::parse(self.topic, &line);
            if next.is_none() {
                let begins = delivery.first_seq();
                let range = least..=most;
                assert!(range.contains(&begins), "{}: {begins}, not {range:?}", self.topic);
            }
            let after = delivery.expect_next_seq(next.unwrap_or_else(|| delivery.first_seq()));
            next = Some(after);
            if matches!(delivery, Delivery::Event(..)) && self.rng.u8(..8) == 0 {
                connection.send(format!("SEEN {} {}\n", self.topic, after - 1));
                unanswered.push_back(after);
                most = after;
                self.cursor_range = self.cursor_range.map(|(least, _)| (least, most));
            }
            observer.record_delivery(self.topic, delivery);
        }
    }
}

/// Runs `nc -N` repeatedly. A farewell confirms all its lines.
struct NetcatPeer {
    next_number: u64,
    rng: Rng,
}

impl NetcatPeer {
    fn run(&mut self, address: SocketAddr, observer: &Observer) {
        loop {
            let lines: Vec<_> = (0..self.rng.u64(1..5)).map(|n| self.next_number + n).collect();
            self.next_number += lines.len() as u64;
            let lines: Vec<_> = lines.into_iter().map(|n| format!("nc-{n}")).collect();
            let mut nc = start_nc(address, &["-N"]);
            nc.write(lines.join("\n"));
            let received = nc.finish().stdout();
            if received.last().is_none_or(|line| line.trim_end() != FAREWELL) {
                return;
            }
            for line in lines {
                observer.record_confirmation(DURABLE_TOPICS[0], line, None);
            }
        }
    }
}
