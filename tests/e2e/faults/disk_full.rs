//! A disk without room: publishes are refused, everything else goes on, and nothing has to be
//! restarted when there is room again. The disk is a small tmpfs in a mount namespace of its own.

use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::history::{Delivery, Heard, History};
use crate::support::nc::nc_all;
use crate::support::process::Server;
use crate::support::publisher::Pipeline;
use crate::support::small_disk::SmallDisk;
use crate::support::talk::{FAREWELL, Talk};
use crate::support::wait::until;

const TOPIC: &str = "new-url";

/// Bytes of an event here: a disk of megabytes is full after thousands.
const EVENT_BYTES: usize = 1_000;

/// A producer, and what became of everything that it published.
struct Producer {
    pipeline: Pipeline,
    said: u64,
    refused: Vec<String>,
    history: Arc<Mutex<History>>,
}

impl Producer {
    fn connect(server: &Server, history: &Arc<Mutex<History>>) -> Self {
        let pipeline = Pipeline::connect(server.address).unwrap();
        Self { pipeline, said: 0, refused: Vec::new(), history: Arc::clone(history) }
    }

    /// Publishes some at once; returns whether any was refused, which can only be for want of room.
    #[track_caller]
    fn publish(&mut self, count: u64) -> bool {
        let events: Vec<_> = (self.said..self.said + count)
            .map(|n| (TOPIC.to_owned(), format!("p-{n} {}", "x".repeat(EVENT_BYTES))))
            .collect();
        self.said += count;
        self.pipeline.send(events);
        let before = self.refused.len();
        for outcome in self.pipeline.all_answers() {
            match outcome.fate {
                Ok(seq) => self.history.lock().unwrap().confirm(outcome.payload, seq),
                Err(code) => {
                    assert_eq!(code, "full");
                    self.refused.push(outcome.payload);
                }
            }
        }
        self.refused.len() > before
    }

    #[track_caller]
    fn publish_until_refused(&mut self) {
        until("a full disk", || self.publish(50).then_some(()));
    }
}

/// Subscribes, and puts what it hears into the history until the broker is gone.
fn listen(server: &Server, history: &Arc<Mutex<History>>) -> thread::JoinHandle<()> {
    let mut client = Talk::client(server.address);
    assert!(client.ask(&format!("SUB {TOPIC} from=first")).starts_with("+OK"));
    let history = Arc::clone(history);
    thread::spawn(move || {
        while let Some(line) = client.next_line() {
            history.lock().unwrap().heard(Delivery::parse(TOPIC, &line));
        }
    })
}

/// Hears everything from the first event to the last one that was confirmed.
#[track_caller]
fn expect_readers_are_served(server: &Server, history: &Mutex<History>) {
    let mut client = Talk::client(server.address);
    assert!(client.ask(&format!("SUB {TOPIC} from=first")).starts_with("+OK"));
    let last = history.lock().unwrap().newest_confirmed().expect("events were confirmed");
    let mut next = 1;
    while next <= last {
        let delivery = Delivery::parse(TOPIC, &client.line());
        next = delivery.follows(next);
        history.lock().unwrap().heard(delivery);
    }
}

#[track_caller]
fn expect_no_farewell(server: &Server) {
    let heard = nc_all(server.address, "not to be kept");
    assert!(heard.iter().all(|line| line != FAREWELL), "{heard:?}");
}

// PROTOCOL: A9, R4
#[test]
fn a_full_disk_refuses_publishes_serves_readers_and_recovers_without_a_restart() {
    let disk = SmallDisk::mount(48);
    let server = disk.broker();
    let history = Arc::new(Mutex::new(History::of(TOPIC)));
    let listener = listen(&server, &history);
    let mut reader = Talk::client(server.address);
    assert!(reader.ask(&format!("SUB {TOPIC} as=reader")).starts_with("+OK"));
    let mut producer = Producer::connect(&server, &history);
    assert!(!producer.publish(500), "there is room");

    // Room for some events beyond what the broker leaves free.
    disk.fill_but(6 << 20);
    producer.publish_until_refused();
    expect_no_farewell(&server);
    expect_readers_are_served(&server, &history);
    // The reserve is for what must be written even now.
    reader.send(format!("SEEN {TOPIC} 400\n"));
    while !reader.line().starts_with("+OK") {}
    let mut client = Talk::client(server.address);
    let shown = client.ask_lines(&format!("TOPIC show {TOPIC}")).pop().unwrap();
    assert!(shown.contains(" state=full"), "{shown}");

    // Not a byte is left.
    disk.fill_but(0);
    assert!(producer.publish(10) && client.ask("PUB another x").starts_with("-ERR full"));
    expect_no_farewell(&server);
    expect_readers_are_served(&server, &history);

    disk.make_room();
    until("room again", || (!producer.publish(1)).then_some(()));
    assert!(!producer.publish(500), "there is room again");
    let heard = nc_all(server.address, "nc-1");
    assert_eq!(heard.last().unwrap(), FAREWELL);
    history.lock().unwrap().confirm("nc-1".to_owned(), None);
    server.process.finish_by("KILL");
    listener.join().unwrap();

    let server = disk.broker();
    let heard = Heard::all_of(server.address, TOPIC, "end-1");
    let refused =
        |payload: &String| payload == "not to be kept" || producer.refused.contains(payload);
    assert!(!heard.events.iter().any(|(_, payload)| refused(payload)), "refused, and kept");
    history.lock().unwrap().check(heard);
    let mut reader = Talk::client(server.address);
    assert!(reader.ask(&format!("SUB {TOPIC} as=reader")).starts_with("+OK"));
    assert!(reader.line().starts_with(&format!("MSG {TOPIC} 401 ")));
}

#[test]
fn a_broker_starts_on_a_full_disk_and_serves_what_is_there() {
    let disk = SmallDisk::mount(48);
    let server = disk.broker();
    let history = Arc::new(Mutex::new(History::of(TOPIC)));
    let mut producer = Producer::connect(&server, &history);
    assert!(!producer.publish(500), "there is room");
    server.process.finish_by("KILL");
    disk.fill_but(0);
    let server = disk.broker();
    expect_readers_are_served(&server, &history);
    producer.pipeline = Pipeline::connect(server.address).unwrap();
    producer.publish_until_refused();
    disk.make_room();
    until("room again", || (!producer.publish(1)).then_some(()));
    history.lock().unwrap().check(Heard::all_of(server.address, TOPIC, "end-1"));
}

// PROTOCOL: T14
#[test]
fn a_group_works_on_when_topics_are_full_stands_still_when_all_is_and_goes_on_after() {
    let disk = SmallDisk::mount(48);
    let server = disk.broker();
    let mut boss = Talk::client(server.address);
    assert!(boss.ask("GROUP create crawlers delay=0").starts_with("+OK"));
    for page in 1..=3 {
        assert!(boss.ask(&format!("PUB new-url http://h{page}.test/")).starts_with("+OK"));
    }
    let mut worker = Talk::client(server.address);
    worker.send("JOIN crawlers credit=2\n");
    let mut task = || {
        let mut line = worker.line();
        while !line.starts_with("TASK ") {
            line = worker.line();
        }
        line.split(' ').nth(1).unwrap().to_owned()
    };
    let (first, second) = (task(), task());

    // Topics leave 3 MiB of this disk to what must be written even now.
    disk.fill_but(2 << 20);
    let refused = |answer: String| answer.starts_with("-ERR full").then_some(());
    let event = format!("PUB others {}", "x".repeat(10 * EVENT_BYTES));
    until("topics to be full", || refused(boss.ask(&event)));
    worker.send(format!("ACK {first}\n"));
    let mut third = String::new();
    for _ in 0..2 {
        let line = worker.line();
        match line.strip_prefix("TASK ") {
            Some(task) => third = task.split(' ').next().unwrap().to_owned(),
            None => assert!(line.starts_with(&format!("+OK {first} ")), "{line}"),
        }
    }

    // Not a byte is left. What a worker says waits; what people ask is refused.
    disk.fill_but(0);
    // There may be room in the log's file that was taken in advance.
    let mut jobs = 0..;
    until("a standstill", || {
        let some: Vec<_> = jobs.by_ref().take(500).map(|n| format!("JOB open job-{n}\n")).collect();
        // What was decided before it was known that there is no room is answered when there is.
        Talk::client(server.address).send(some.concat());
        refused(boss.ask("GROUP show crawlers"))
    });
    worker.send(format!("ACK {second}\nACK {third}\n"));
    assert!(boss.ask("JOB open another").starts_with("-ERR full"));
    disk.make_room();
    for task in [&second, &third] {
        let answer = worker.line();
        assert!(answer.starts_with(&format!("+OK {task} ")), "{answer}");
    }
    assert!(boss.ask("GROUP show crawlers").contains(" completed=3 "));
    server.process.finish_by("KILL");
    let server = disk.broker();
    let shown = Talk::client(server.address).ask("GROUP show crawlers");
    assert!(shown.contains(" completed=3 "), "{shown}");
}
