//! Brokers that are killed at random moments, under load, while they recover and while they stop.
//! Judged from outside: whatever was confirmed is there under its number and in its order, and no
//! number ever names two events.
//!
//! The moments are drawn from a seed, which is printed; what the broker is doing then is up to the
//! machine. `TIDINGS_KILL_SEED` and `TIDINGS_KILL_CYCLES` choose others and more of them.

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
use crate::support::wait::WAIT_TIMEOUT;

/// Lives of a broker on one directory: what it keeps grows with each, and all of it is read back in
/// each.
const LIVES_PER_DIRECTORY: u64 = 25;

/// Topics that keep what they confirm whatever kills the process; peers of the notifier are heard
/// on the first.
const DURABLE_TOPICS: [&str; 4] = [TOPICS[0], TOPICS[1], TOPICS[2], TOPICS[3]];

/// A topic that keeps nothing, and may not give a number twice either.
const MEMORY_TOPIC: &str = "memory";

const TOPICS: [&str; 5] = ["new-url", "a", "b", "interval", MEMORY_TOPIC];

/// Publishes of one connection without an answer.
const MAX_UNANSWERED: usize = 300;

// PROTOCOL: N2, R2
#[test]
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

/// So many lives on one directory; returns how many events were confirmed.
fn run_lives(lives: u64, rng: &mut Rng) -> usize {
    let (confirmed, confirmations) = channel();
    let outside = Observer::new(confirmed);
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
                let answer = client.request(&format!("TOPIC create {topic} sync={topic}"));
                assert!(answer.starts_with("+OK"), "{answer}");
            }
        }
        outside.check(server.address, &format!("end-{life}"));
        folder = thread::scope(|scope| {
            let (address, outside, peer) = (server.address, &outside, &mut peer);
            for publisher in &mut publishers {
                scope.spawn(move || publisher.run(address, outside));
            }
            for listener in &mut listeners {
                scope.spawn(move || listener.run(address, outside));
            }
            for reader in &mut readers {
                scope.spawn(move || reader.run(address, outside));
            }
            scope.spawn(move || peer.run(address, outside));
            kill_under_load(server, &confirmations, rng)
        });
    }
    // Whoever comes back where they were hears all the rest, too.
    let server = Server::start_in(folder, &["broker"], |_| ());
    let end = format!("end-{lives}");
    outside.check(server.address, &end);
    for listener in &mut listeners {
        listener.catch_up(server.address, &outside, &end);
    }
    outside.check(server.address, &format!("end-{}", lives + 1));
    DURABLE_TOPICS
        .iter()
        .map(|topic| outside.histories[topic].lock().unwrap().confirmed_count())
        .sum()
}

/// A broker that is killed before it listens, or just after: while it finds out what the last one
/// left.
fn kill_while_starting(folder: TempDir, took: Duration, rng: &mut Rng) -> TempDir {
    for _ in 0..=rng.u8(..3) {
        let words = ["broker", "--listen", "127.0.0.1:0"];
        let process = Process::start(&mut tidings_command(folder.path(), words));
        sleep_up_to(took.mul_f32(1.2), rng);
        kill_without_panic(process);
    }
    folder
}

/// Kills the broker after some confirmations; now and then while it stops because it was told to.
fn kill_under_load(server: Server, confirmations: &Receiver<()>, rng: &mut Rng) -> TempDir {
    // What an earlier life confirmed says nothing about this one.
    confirmations.try_iter().count();
    for _ in 0..rng.u32(..1500) {
        confirmations.recv_timeout(WAIT_TIMEOUT).expect("confirmations come");
    }
    sleep_up_to(Duration::from_millis(3), rng);
    if rng.u8(..6) == 0 {
        server.process.signal("TERM");
        sleep_up_to(Duration::from_millis(30), rng);
    }
    kill_without_panic(server.process);
    server.folder
}

/// Waits for nothing: a moment is drawn.
fn sleep_up_to(most: Duration, rng: &mut Rng) {
    thread::sleep(most.mul_f32(rng.f32()));
}

/// Kills it. It has not failed by itself before.
#[track_caller]
fn kill_without_panic(process: Process) {
    let stderr = process.signal_and_finish("KILL").stderr();
    for word in ["panicked", "damaged"] {
        assert!(!stderr.contains(word), "{stderr}");
    }
}

/// Everything that survives a broker, because it is not the broker's.
struct Observer {
    histories: BTreeMap<&'static str, Mutex<TopicHistory>>,
    /// Told of every confirmation.
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
        // Nobody counts any more: the test is failing.
        let _ = self.confirmed.lock().unwrap().send(());
    }

    /// Compares everything that the broker has with everything that anybody was told.
    #[track_caller]
    fn check(&self, address: SocketAddr, end: &str) {
        for topic in DURABLE_TOPICS {
            let heard = ReceivedEvents::read_all(address, topic, end);
            let mut history = self.histories[topic].lock().unwrap();
            history.record_confirmation(end.to_owned(), None);
            history.check_contents(heard);
        }
        let heard = ReceivedEvents::read_all(address, MEMORY_TOPIC, end);
        self.histories[MEMORY_TOPIC].lock().unwrap().check_seqs(heard.gaps, &heard.events);
    }
}

/// A producer with a window. One of them sends again what was not confirmed, with ids, so that
/// nothing is twice there.
struct Publisher {
    name: String,
    next_number: u64,
    /// What to send again in the next life.
    unconfirmed: Option<Vec<(String, String)>>,
    rng: Rng,
}

impl Publisher {
    fn new(n: u64, rng: Rng) -> Self {
        Self { name: format!("p{n}"), next_number: 0, unconfirmed: (n == 0).then(Vec::new), rng }
    }

    fn next(&mut self) -> (String, String) {
        let topic = self.rng.choice(TOPICS).expect("there are topics").to_owned();
        self.next_number += 1;
        let (name, n) = (&self.name, self.next_number);
        let payload = match self.unconfirmed {
            Some(_) => format!("http://{name}.example/-{n} id={name}.{n}"),
            None => format!("{name}-{n} {}", "x".repeat(self.rng.usize(..300))),
        };
        (topic, payload)
    }

    /// Publishes until the broker is gone.
    fn run(&mut self, address: SocketAddr, outside: &Observer) {
        let Some(mut pipeline) = PipelinedPublisher::connect(address) else { return };
        if let Some(again) = &mut self.unconfirmed {
            pipeline.send(again.drain(..));
        }
        loop {
            let burst = self.rng.usize(1..40);
            let events: Vec<_> = (0..burst).map(|_| self.next()).collect();
            pipeline.send(events);
            let waiting_max = self.rng.usize(..MAX_UNANSWERED);
            while pipeline.pending_count() > waiting_max {
                let Some(outcomes) = pipeline.read_outcomes() else {
                    if let Some(again) = &mut self.unconfirmed {
                        again.extend(pipeline.into_pending());
                    }
                    return;
                };
                for outcome in outcomes {
                    let seq = outcome.result.expect("there is room on the disk");
                    if outcome.topic != MEMORY_TOPIC {
                        outside.record_confirmation(&outcome.topic, outcome.payload, seq);
                    }
                }
            }
        }
    }
}

/// A subscriber that comes back where it was.
struct ResumingSubscriber {
    topic: &'static str,
    next: u64,
}

impl ResumingSubscriber {
    fn new(topic: &'static str) -> Self {
        Self { topic, next: 1 }
    }

    fn subscribe(&self, address: SocketAddr) -> Option<LineConnection> {
        let mut talk = LineConnection::try_connect_client(address)?;
        talk.send(format!("SUB {} from={}\n", self.topic, self.next));
        let answer = talk.try_read_line()?;
        if answer.starts_with("-ERR closing") {
            return None;
        }
        assert!(answer.starts_with("+OK"), "{} from={}: {answer}", self.topic, self.next);
        Some(talk)
    }

    fn receive(&mut self, line: &str, outside: &Observer) {
        let delivery = Delivery::parse(self.topic, line);
        self.next = delivery.expect_next_seq(self.next);
        outside.record_delivery(self.topic, delivery);
    }

    /// Listens until the broker is gone.
    fn run(&mut self, address: SocketAddr, outside: &Observer) {
        let Some(mut talk) = self.subscribe(address) else { return };
        while let Some(line) = talk.try_read_line().filter(|line| !line.starts_with("-ERR closing"))
        {
            self.receive(&line, outside);
        }
    }

    /// Listens up to this event.
    fn catch_up(&mut self, address: SocketAddr, outside: &Observer, end: &str) {
        let mut talk = self.subscribe(address).expect("a broker");
        loop {
            let line = talk.read_line();
            self.receive(&line, outside);
            if line.ends_with(&format!(" {end}")) {
                return;
            }
        }
    }
}

/// A subscriber whose place the broker remembers: at what it said last, or where a `SEEN` without
/// an answer moved it.
struct CursorReader {
    topic: &'static str,
    /// The broker is to remember a place between these, both included; none: it knows nothing of
    /// this reader yet.
    cursor_range: Option<(u64, u64)>,
    rng: Rng,
}

impl CursorReader {
    fn new(topic: &'static str, rng: Rng) -> Self {
        Self { topic, cursor_range: None, rng }
    }

    /// Reads until the broker is gone.
    fn run(&mut self, address: SocketAddr, outside: &Observer) {
        let Some(mut talk) = LineConnection::try_connect_client(address) else { return };
        talk.send(format!("SUB {} as=reader from=first\n", self.topic));
        match talk.try_read_line() {
            Some(answer) if answer.starts_with("+OK") => {}
            Some(answer) if !answer.starts_with("-ERR closing") => panic!("as=reader: {answer}"),
            _ => return,
        }
        let (least, mut most) = self.cursor_range.unwrap_or((1, 1));
        self.cursor_range = Some((least, most));
        let mut next = None;
        let mut unanswered = VecDeque::new();
        while let Some(line) = talk.try_read_line().filter(|line| !line.starts_with("-ERR closing"))
        {
            if line == "+OK" {
                let place = unanswered.pop_front().expect("a SEEN without an answer");
                self.cursor_range = Some((place, most));
                continue;
            }
            let delivery = Delivery::parse(self.topic, &line);
            if next.is_none() {
                let begins = delivery.first_seq();
                let places = least..=most;
                assert!(places.contains(&begins), "{}: {begins}, not {places:?}", self.topic);
            }
            let after = delivery.expect_next_seq(next.unwrap_or_else(|| delivery.first_seq()));
            next = Some(after);
            if matches!(delivery, Delivery::Event(..)) && self.rng.u8(..8) == 0 {
                talk.send(format!("SEEN {} {}\n", self.topic, after - 1));
                unanswered.push_back(after);
                most = after;
                self.cursor_range = self.cursor_range.map(|(least, _)| (least, most));
            }
            outside.record_delivery(self.topic, delivery);
        }
    }
}

/// `nc -N`, again and again: who got the farewell was promised everything.
struct NetcatPeer {
    next_number: u64,
    rng: Rng,
}

impl NetcatPeer {
    fn run(&mut self, address: SocketAddr, outside: &Observer) {
        loop {
            let lines: Vec<_> = (0..self.rng.u64(1..5)).map(|n| self.next_number + n).collect();
            self.next_number += lines.len() as u64;
            let lines: Vec<_> = lines.into_iter().map(|n| format!("nc-{n}")).collect();
            let mut nc = start_nc(address, &["-N"]);
            nc.write(lines.join("\n"));
            let heard = nc.finish().stdout();
            if heard.last().is_none_or(|line| line.trim_end() != FAREWELL) {
                return;
            }
            for line in lines {
                outside.record_confirmation(DURABLE_TOPICS[0], line, None);
            }
        }
    }
}
