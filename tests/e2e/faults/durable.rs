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

use crate::support::history::{Delivery, Heard, History};
use crate::support::nc::nc;
use crate::support::process::{Running, Server, tidings};
use crate::support::publisher::Pipeline;
use crate::support::seed::{number_from, seed_from};
use crate::support::talk::{FAREWELL, Talk};
use crate::support::wait::PATIENCE;

/// Lives of a broker on one directory: what it keeps grows with each, and all of it is read back in
/// each.
const LIVES: u64 = 25;

/// Topics that keep what they confirm whatever kills the process; peers of the notifier are heard
/// on the first.
const KEPT: [&str; 4] = [TOPICS[0], TOPICS[1], TOPICS[2], TOPICS[3]];

/// A topic that keeps nothing, and may not give a number twice either.
const MEMORY: &str = "memory";

const TOPICS: [&str; 5] = ["new-url", "a", "b", "interval", MEMORY];

/// Publishes of one connection without an answer.
const WINDOW: usize = 300;

// PROTOCOL: N2, R2
#[test]
fn kill_nine_loses_nothing_confirmed_and_gives_no_number_twice() {
    let cycles = number_from("TIDINGS_KILL_CYCLES").unwrap_or(50);
    let seed = seed_from("TIDINGS_KILL_SEED");
    let began = Instant::now();
    let mut left = cycles;
    for round in 0.. {
        let lives = left.min(LIVES);
        if lives == 0 {
            break;
        }
        let seed = seed + round;
        eprintln!(
            "TIDINGS_KILL_SEED={seed} TIDINGS_KILL_CYCLES={lives} after {:?}",
            began.elapsed()
        );
        let confirmed = round_of(lives, &mut Rng::with_seed(seed));
        eprintln!("{confirmed} events were confirmed in {lives} lives");
        left -= lives;
    }
}

/// So many lives on one directory; returns how many events were confirmed.
fn round_of(lives: u64, rng: &mut Rng) -> usize {
    let (confirmed, confirmations) = channel();
    let outside = Outside::new(confirmed);
    let mut publishers: Vec<_> = (0..3).map(|n| Publisher::new(n, rng.fork())).collect();
    let mut listeners: Vec<_> =
        KEPT.iter().flat_map(|topic| [Listener::of(topic), Listener::of(topic)]).collect();
    let mut readers: Vec<_> = KEPT.iter().map(|topic| Reader::of(topic, rng.fork())).collect();
    let mut peer = Peer { said: 0, rng: rng.fork() };
    let mut folder = TempDir::new().unwrap();
    let mut start_took = Duration::from_millis(20);
    for life in 0..lives {
        if rng.u8(..3) == 0 {
            folder = killed_while_starting(folder, start_took, rng);
        }
        let began = Instant::now();
        let server = Server::start_in(folder, &["broker"], |_| ());
        start_took = began.elapsed();
        if life == 0 {
            let mut client = Talk::client(server.address);
            for topic in ["interval", MEMORY] {
                let answer = client.ask(&format!("TOPIC create {topic} sync={topic}"));
                assert!(answer.starts_with("+OK"), "{answer}");
            }
        }
        outside.judge(server.address, &format!("end-{life}"));
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
            killed_at_work(server, &confirmations, rng)
        });
    }
    // Whoever comes back where they were hears all the rest, too.
    let server = Server::start_in(folder, &["broker"], |_| ());
    let end = format!("end-{lives}");
    outside.judge(server.address, &end);
    for listener in &mut listeners {
        listener.catch_up(server.address, &outside, &end);
    }
    outside.judge(server.address, &format!("end-{}", lives + 1));
    KEPT.iter().map(|topic| outside.histories[topic].lock().unwrap().confirmed()).sum()
}

/// A broker that is killed before it listens, or just after: while it finds out what the last one
/// left.
fn killed_while_starting(folder: TempDir, took: Duration, rng: &mut Rng) -> TempDir {
    for _ in 0..=rng.u8(..3) {
        let words = ["broker", "--listen", "127.0.0.1:0"];
        let process = Running::start(&mut tidings(folder.path(), words));
        wait_at_random(took.mul_f32(1.2), rng);
        expect_no_panic(process);
    }
    folder
}

/// Kills the broker after some confirmations; now and then while it stops because it was told to.
fn killed_at_work(server: Server, confirmations: &Receiver<()>, rng: &mut Rng) -> TempDir {
    // What an earlier life confirmed says nothing about this one.
    confirmations.try_iter().count();
    for _ in 0..rng.u32(..1500) {
        confirmations.recv_timeout(PATIENCE).expect("confirmations come");
    }
    wait_at_random(Duration::from_millis(3), rng);
    if rng.u8(..6) == 0 {
        server.process.signal("TERM");
        wait_at_random(Duration::from_millis(30), rng);
    }
    expect_no_panic(server.process);
    server.folder
}

/// Waits for nothing: a moment is drawn.
fn wait_at_random(most: Duration, rng: &mut Rng) {
    thread::sleep(most.mul_f32(rng.f32()));
}

/// Kills it. It has not failed by itself before.
#[track_caller]
fn expect_no_panic(process: Running) {
    let stderr = process.finish_by("KILL").stderr();
    for word in ["panicked", "damaged"] {
        assert!(!stderr.contains(word), "{stderr}");
    }
}

/// Everything that survives a broker, because it is not the broker's.
struct Outside {
    histories: BTreeMap<&'static str, Mutex<History>>,
    /// Told of every confirmation.
    confirmed: Mutex<Sender<()>>,
}

impl Outside {
    fn new(confirmed: Sender<()>) -> Self {
        let histories = TOPICS.map(|name| (name, Mutex::new(History::of(name))));
        Self { histories: histories.into(), confirmed: Mutex::new(confirmed) }
    }
}

impl Outside {
    fn heard(&self, topic: &str, delivery: Delivery) {
        self.histories[topic].lock().unwrap().heard(delivery);
    }

    fn confirm(&self, topic: &str, payload: String, seq: Option<u64>) {
        self.histories[topic].lock().unwrap().confirm(payload, seq);
        // Nobody counts any more: the test is failing.
        let _ = self.confirmed.lock().unwrap().send(());
    }

    /// Compares everything that the broker has with everything that anybody was told.
    #[track_caller]
    fn judge(&self, address: SocketAddr, end: &str) {
        for topic in KEPT {
            let heard = Heard::all_of(address, topic, end);
            let mut history = self.histories[topic].lock().unwrap();
            history.confirm(end.to_owned(), None);
            history.check(heard);
        }
        let heard = Heard::all_of(address, MEMORY, end);
        self.histories[MEMORY].lock().unwrap().check_numbers(heard.gaps, &heard.events);
    }
}

/// A producer with a window. One of them sends again what was not confirmed, with ids, so that
/// nothing is twice there.
struct Publisher {
    name: String,
    said: u64,
    /// What to send again in the next life.
    again: Option<Vec<(String, String)>>,
    rng: Rng,
}

impl Publisher {
    fn new(n: u64, rng: Rng) -> Self {
        Self { name: format!("p{n}"), said: 0, again: (n == 0).then(Vec::new), rng }
    }

    fn next(&mut self) -> (String, String) {
        let topic = self.rng.choice(TOPICS).expect("there are topics").to_owned();
        self.said += 1;
        let (name, n) = (&self.name, self.said);
        let payload = match self.again {
            Some(_) => format!("http://{name}.example/-{n} id={name}.{n}"),
            None => format!("{name}-{n} {}", "x".repeat(self.rng.usize(..300))),
        };
        (topic, payload)
    }

    /// Publishes until the broker is gone.
    fn run(&mut self, address: SocketAddr, outside: &Outside) {
        let Some(mut pipeline) = Pipeline::connect(address) else { return };
        if let Some(again) = &mut self.again {
            pipeline.send(again.drain(..));
        }
        loop {
            let burst = self.rng.usize(1..40);
            let events: Vec<_> = (0..burst).map(|_| self.next()).collect();
            pipeline.send(events);
            let waiting_max = self.rng.usize(..WINDOW);
            while pipeline.waiting() > waiting_max {
                let Some(outcomes) = pipeline.answer() else {
                    if let Some(again) = &mut self.again {
                        again.extend(pipeline.unanswered());
                    }
                    return;
                };
                for outcome in outcomes {
                    let seq = outcome.fate.expect("there is room on the disk");
                    if outcome.topic != MEMORY {
                        outside.confirm(&outcome.topic, outcome.payload, seq);
                    }
                }
            }
        }
    }
}

/// A subscriber that comes back where it was.
struct Listener {
    topic: &'static str,
    next: u64,
}

impl Listener {
    fn of(topic: &'static str) -> Self {
        Self { topic, next: 1 }
    }

    fn subscribe(&self, address: SocketAddr) -> Option<Talk> {
        let mut talk = Talk::try_client(address)?;
        talk.send(format!("SUB {} from={}\n", self.topic, self.next));
        let answer = talk.next_line()?;
        if answer.starts_with("-ERR closing") {
            return None;
        }
        assert!(answer.starts_with("+OK"), "{} from={}: {answer}", self.topic, self.next);
        Some(talk)
    }

    fn hear(&mut self, line: &str, outside: &Outside) {
        let delivery = Delivery::parse(self.topic, line);
        self.next = delivery.follows(self.next);
        outside.heard(self.topic, delivery);
    }

    /// Listens until the broker is gone.
    fn run(&mut self, address: SocketAddr, outside: &Outside) {
        let Some(mut talk) = self.subscribe(address) else { return };
        while let Some(line) = talk.next_line().filter(|line| !line.starts_with("-ERR closing")) {
            self.hear(&line, outside);
        }
    }

    /// Listens up to this event.
    fn catch_up(&mut self, address: SocketAddr, outside: &Outside, end: &str) {
        let mut talk = self.subscribe(address).expect("a broker");
        loop {
            let line = talk.line();
            self.hear(&line, outside);
            if line.ends_with(&format!(" {end}")) {
                return;
            }
        }
    }
}

/// A subscriber whose place the broker remembers: at what it said last, or where a `SEEN` without
/// an answer moved it.
struct Reader {
    topic: &'static str,
    /// The broker is to remember a place between these, both included; none: it knows nothing of
    /// this reader yet.
    places: Option<(u64, u64)>,
    rng: Rng,
}

impl Reader {
    fn of(topic: &'static str, rng: Rng) -> Self {
        Self { topic, places: None, rng }
    }

    /// Reads until the broker is gone.
    fn run(&mut self, address: SocketAddr, outside: &Outside) {
        let Some(mut talk) = Talk::try_client(address) else { return };
        talk.send(format!("SUB {} as=reader from=first\n", self.topic));
        match talk.next_line() {
            Some(answer) if answer.starts_with("+OK") => {}
            Some(answer) if !answer.starts_with("-ERR closing") => panic!("as=reader: {answer}"),
            _ => return,
        }
        let (least, mut most) = self.places.unwrap_or((1, 1));
        self.places = Some((least, most));
        let mut next = None;
        let mut unanswered = VecDeque::new();
        while let Some(line) = talk.next_line().filter(|line| !line.starts_with("-ERR closing")) {
            if line == "+OK" {
                let place = unanswered.pop_front().expect("a SEEN without an answer");
                self.places = Some((place, most));
                continue;
            }
            let delivery = Delivery::parse(self.topic, &line);
            if next.is_none() {
                let begins = delivery.first();
                let places = least..=most;
                assert!(places.contains(&begins), "{}: {begins}, not {places:?}", self.topic);
            }
            let after = delivery.follows(next.unwrap_or_else(|| delivery.first()));
            next = Some(after);
            if matches!(delivery, Delivery::Event(..)) && self.rng.u8(..8) == 0 {
                talk.send(format!("SEEN {} {}\n", self.topic, after - 1));
                unanswered.push_back(after);
                most = after;
                self.places = self.places.map(|(least, _)| (least, most));
            }
            outside.heard(self.topic, delivery);
        }
    }
}

/// `nc -N`, again and again: who got the farewell was promised everything.
struct Peer {
    said: u64,
    rng: Rng,
}

impl Peer {
    fn run(&mut self, address: SocketAddr, outside: &Outside) {
        loop {
            let lines: Vec<_> = (0..self.rng.u64(1..5)).map(|n| self.said + n).collect();
            self.said += lines.len() as u64;
            let lines: Vec<_> = lines.into_iter().map(|n| format!("nc-{n}")).collect();
            let mut nc = nc(address, &["-N"]);
            nc.write(lines.join("\n"));
            let heard = nc.finish().stdout();
            if heard.last().is_none_or(|line| line.trim_end() != FAREWELL) {
                return;
            }
            for line in lines {
                outside.confirm(KEPT[0], line, None);
            }
        }
    }
}
