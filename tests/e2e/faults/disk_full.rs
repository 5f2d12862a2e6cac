//! A full disk: publishes are rejected, everything else works, and the broker recovers without a
//! restart. The disk is a small tmpfs in its own mount namespace.

use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::line_connection::{FAREWELL, LineConnection};
use crate::support::nc::run_nc;
use crate::support::pipelined_publisher::PipelinedPublisher;
use crate::support::process::{Server, run_at};
use crate::support::small_disk::SmallDisk;
use crate::support::topic_history::{Delivery, ReceivedEvents, TopicHistory};
use crate::support::wait::wait_until;

const TOPIC: &str = "new-url";

/// The size of an event: a disk of some megabytes is full after thousands.
const EVENT_BYTES: usize = 1_000;

/// A publisher, and the outcome of all its events.
struct Producer {
    pipeline: PipelinedPublisher,
    next_number: u64,
    refused: Vec<String>,
    history: Arc<Mutex<TopicHistory>>,
}

impl Producer {
    fn connect(server: &Server, history: &Arc<Mutex<TopicHistory>>) -> Self {
        let pipeline = PipelinedPublisher::connect(server.address).unwrap();
        Self { pipeline, next_number: 0, refused: Vec::new(), history: Arc::clone(history) }
    }

    /// Publishes `count` events at once. Returns whether some were rejected, which may only be with
    /// `full`.
    #[track_caller]
    fn publish(&mut self, count: u64) -> bool {
        let events: Vec<_> = (self.next_number..self.next_number + count)
            .map(|n| (TOPIC.to_owned(), format!("p-{n} {}", "x".repeat(EVENT_BYTES))))
            .collect();
        self.next_number += count;
        self.pipeline.send(events);
        let before = self.refused.len();
        for outcome in self.pipeline.read_all_outcomes() {
            match outcome.result {
                Ok(seq) => self.history.lock().unwrap().record_confirmation(outcome.payload, seq),
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
        wait_until("a full disk", || self.publish(50).then_some(()));
    }
}

/// Subscribes, and records deliveries in the history until the broker ends.
fn start_listener(server: &Server, history: &Arc<Mutex<TopicHistory>>) -> thread::JoinHandle<()> {
    let mut client = LineConnection::connect_client(server.address);
    client.request_ok(&format!("SUB {TOPIC} from=first"));
    let history = Arc::clone(history);
    thread::spawn(move || {
        while let Some(line) = client.try_read_line() {
            history.lock().unwrap().record_delivery(Delivery::parse(TOPIC, &line));
        }
    })
}

/// Receives all events from the first to the last confirmed one.
#[track_caller]
fn expect_readers_are_served(server: &Server, history: &Mutex<TopicHistory>) {
    let mut client = LineConnection::connect_client(server.address);
    client.request_ok(&format!("SUB {TOPIC} from=first"));
    let last = history.lock().unwrap().highest_confirmed_seq().expect("events were confirmed");
    let mut next = 1;
    while next <= last {
        let delivery = Delivery::parse(TOPIC, &client.read_line());
        next = delivery.expect_next_seq(next);
        history.lock().unwrap().record_delivery(delivery);
    }
}

#[track_caller]
fn expect_no_farewell(server: &Server) {
    let received = run_nc(server.address, "not to be kept");
    assert!(received.iter().all(|line| line != FAREWELL), "{received:?}");
}

// PROTOCOL: A9, R4
#[test]
#[ignore = "needs foreign programs"]
fn a_full_disk_refuses_publishes_serves_readers_and_recovers_without_a_restart() {
    let disk = SmallDisk::mount(48);
    let server = disk.start_broker();
    let history = Arc::new(Mutex::new(TopicHistory::new(TOPIC)));
    let listener = start_listener(&server, &history);
    let mut reader = LineConnection::connect_client(server.address);
    reader.request_ok(&format!("SUB {TOPIC} as=reader"));
    let mut producer = Producer::connect(&server, &history);
    assert!(!producer.publish(500), "the disk has space");

    // Space for some events more than the reserve of the broker.
    disk.fill_except(6 << 20);
    producer.publish_until_refused();
    server.process.wait_for_line_with("the disk is full: events from this seq on are rejected");
    expect_no_farewell(&server);
    expect_readers_are_served(&server, &history);
    // The reserve is for records that must be written even now, such as a cursor.
    reader.send(format!("SEEN {TOPIC} 400\n"));
    while !reader.read_line().starts_with("+OK") {}
    let mut client = LineConnection::connect_client(server.address);
    let shown = client.request_lines(&format!("TOPIC show {TOPIC}")).pop().unwrap();
    assert!(shown.contains(" state=full"), "{shown}");
    let status = run_at(&server, &["status"]).expect_code(1).stdout().concat();
    assert!(status.contains("Topic new-url rejects events: the disk is full."), "{status}");
    let health = run_at(&server, &["health"]).expect_code(1);
    assert_eq!(health.stdout(), ["unhealthy"]);
    assert_eq!(health.stderr(), "tidings: topic new-url refuses events: full");

    // Not a byte is left.
    disk.fill_except(0);
    assert!(producer.publish(10) && client.request("PUB another x").starts_with("-ERR full"));
    expect_no_farewell(&server);
    expect_readers_are_served(&server, &history);

    disk.free_space();
    wait_until("free space", || (!producer.publish(1)).then_some(()));
    server.process.wait_for_line_with("the disk has room again; events are accepted");
    assert!(!producer.publish(500), "the disk has space again");
    let received = run_nc(server.address, "nc-1");
    assert_eq!(received.last().unwrap(), FAREWELL);
    history.lock().unwrap().record_confirmation("nc-1".to_owned(), None);
    server.process.signal_and_finish("KILL");
    listener.join().unwrap();

    let server = disk.start_broker();
    let received = ReceivedEvents::read_all(server.address, TOPIC, "end-1");
    let refused =
        |payload: &String| payload == "not to be kept" || producer.refused.contains(payload);
    assert!(
        !received.events.iter().any(|(_, payload)| refused(payload)),
        "a rejected event was stored"
    );
    history.lock().unwrap().check_contents(received);
    let mut reader = LineConnection::connect_client(server.address);
    reader.request_ok(&format!("SUB {TOPIC} as=reader"));
    assert!(reader.read_line().starts_with(&format!("MSG {TOPIC} 401 ")));
}

#[test]
#[ignore = "needs foreign programs"]
fn a_broker_starts_on_a_full_disk_and_serves_what_is_there() {
    let disk = SmallDisk::mount(48);
    let server = disk.start_broker();
    let history = Arc::new(Mutex::new(TopicHistory::new(TOPIC)));
    let mut producer = Producer::connect(&server, &history);
    assert!(!producer.publish(500), "the disk has space");
    server.process.signal_and_finish("KILL");
    disk.fill_except(0);
    let server = disk.start_broker();
    expect_readers_are_served(&server, &history);
    producer.pipeline = PipelinedPublisher::connect(server.address).unwrap();
    producer.publish_until_refused();
    disk.free_space();
    wait_until("free space", || (!producer.publish(1)).then_some(()));
    history.lock().unwrap().check_contents(ReceivedEvents::read_all(
        server.address,
        TOPIC,
        "end-1",
    ));
}

// PROTOCOL: T14
#[test]
#[ignore = "needs foreign programs"]
fn a_group_works_while_topics_are_full_and_resumes_after_a_full_disk() {
    let disk = SmallDisk::mount(48);
    let server = disk.start_broker();
    let mut operator = LineConnection::connect_client(server.address);
    operator.request_ok("GROUP create crawlers delay=0");
    for page in 1..=3 {
        operator.request_ok(&format!("PUB new-url http://h{page}.test/"));
    }
    let mut worker = LineConnection::connect_client(server.address);
    worker.send("JOIN crawlers credit=2\n");
    let mut task = || {
        let mut line = worker.read_line();
        while !line.starts_with("TASK ") {
            line = worker.read_line();
        }
        line.split(' ').nth(1).unwrap().to_owned()
    };
    let (first, second) = (task(), task());

    // Topics leave 3 MiB of this disk for other records.
    disk.fill_except(2 << 20);
    let refused = |answer: String| answer.starts_with("-ERR full").then_some(());
    let event = format!("PUB others {}", "x".repeat(10 * EVENT_BYTES));
    wait_until("full topics", || refused(operator.request(&event)));
    worker.send(format!("ACK {first}\n"));
    let mut third = String::new();
    for _ in 0..2 {
        let line = worker.read_line();
        match line.strip_prefix("TASK ") {
            Some(task) => third = task.split(' ').next().unwrap().to_owned(),
            None => assert!(line.starts_with(&format!("+OK {first} ")), "{line}"),
        }
    }

    // Not a byte is left. Answers of workers wait; commands of clients are rejected.
    disk.fill_except(0);
    // The log's file may have preallocated space.
    let mut jobs = 0..;
    wait_until("a full group", || {
        let some: Vec<_> =
            jobs.by_ref().take(2000).map(|n| format!("JOB open job-{n}\n")).collect();
        // Commands that the group decided before the disk was full are answered when there is
        // space, queries included. So this asks the broker, not the group.
        LineConnection::connect_client(server.address).send(some.concat());
        let stats = operator.request_lines("STATS").concat();
        stats.contains("Group crawlers stands still: the disk is full.").then_some(())
    });
    worker.send(format!("ACK {second}\nACK {third}\n"));
    assert!(operator.request("JOB open another").starts_with("-ERR full"));
    disk.free_space();
    for task in [&second, &third] {
        let answer = worker.read_line();
        assert!(answer.starts_with(&format!("+OK {task} ")), "{answer}");
    }
    assert!(operator.request("GROUP show crawlers").contains(" completed=3 "));
    server.process.signal_and_finish("KILL");
    let server = disk.start_broker();
    let shown = LineConnection::connect_client(server.address).request("GROUP show crawlers");
    assert!(shown.contains(" completed=3 "), "{shown}");
}
