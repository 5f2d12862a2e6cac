//! Whole brokers that take over from one another, with clients over TCP. The engine is a list in
//! memory; everything else is real.
#![expect(clippy::disallowed_methods, reason = "reads the wall clock for the messages")]

use std::collections::{BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use parking_lot::Mutex;
use tempfile::TempDir;
use tidings_broker::{Broker, BrokerConfig, Moment, Sockets, Takeover, empty_catalog};
use tidings_log::FileSystem;
use tokio::runtime::Runtime;

use crate::{
    Attempt, Candidacy, Commits, CommunityId, Ended, Leader, PAYLOAD_BYTES_MAX, Replica,
    ReplicatedStore, Slot, Stamp, founding,
};

const COMMUNITY: CommunityId = CommunityId([2; 16]);

/// How long a line may take before the test fails.
const LIMIT: Duration = Duration::from_mins(10);

#[derive(Clone)]
struct Engine(Arc<Mutex<Vec<Bytes>>>);

impl Engine {
    fn append(&self, attempt: &Attempt) -> bool {
        let slots = &mut *self.0.lock();
        let fits = attempt.slot.0 == slots.len() as u64 + 1;
        if fits {
            slots.push(attempt.bytes.clone());
        }
        fits
    }

    fn get(&self, slot: Slot) -> Option<Bytes> {
        self.0.lock().get(usize::try_from(slot.0 - 1).unwrap()).cloned()
    }
}

/// A broker that leads, and the thread that sends what it commits.
struct Node {
    broker: Broker,
    sender: JoinHandle<Ended>,
    leaves: Arc<AtomicBool>,
    wake: mpsc::Sender<()>,
}

impl Node {
    fn lead(runtime: &Runtime, dir: &Path, engine: &Engine) -> Self {
        let mut replica = open(dir);
        follow(&mut replica, engine);
        let candidacy = Candidacy::new(COMMUNITY, replica.position(), stamp(), "a broker");
        assert!(engine.append(&candidacy.attempt));
        let moment = Moment(replica.position().moment);
        replica.close().unwrap();
        let replica = Arc::new(Mutex::new(open(dir)));
        let (wake, woken) = mpsc::channel();
        let commits = {
            let wake = wake.clone();
            Arc::new(Commits::new(move || wake.send(()).unwrap_or(())))
        };
        let shared = (Arc::clone(&replica), Arc::clone(&commits));
        let leader =
            Leader::new(COMMUNITY, &candidacy, PAYLOAD_BYTES_MAX, shared.0, shared.1).unwrap();
        let store = Arc::new(ReplicatedStore::new(replica, Arc::clone(&commits)));
        let leaves = Arc::new(AtomicBool::new(false));
        let sender = {
            let (engine, leaves) = (engine.clone(), Arc::clone(&leaves));
            let thread = thread::Builder::new().name("sender".to_owned());
            thread.spawn(move || send(leader, &engine, &commits, &leaves, &woken)).unwrap()
        };
        let config = BrokerConfig { listen: "127.0.0.1:0".parse().unwrap(), ..config() };
        let takeover = Takeover { store, moment };
        let broker = runtime.block_on(Broker::take_over(config, Sockets::default(), takeover));
        Self { broker: broker.unwrap(), sender, leaves, wake }
    }

    /// Stops the broker, and then leaves unless it is deposed.
    fn stop(self, runtime: &Runtime) -> Ended {
        runtime.block_on(self.broker.stop());
        self.leaves.store(true, Ordering::Release);
        let _ = self.wake.send(());
        self.sender.join().unwrap()
    }
}

fn config() -> BrokerConfig {
    BrokerConfig { listen: "127.0.0.1:0".parse().unwrap(), ..BrokerConfig::default() }
}

fn stamp() -> Stamp {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    let unix_ms = i64::try_from(unix).unwrap();
    Stamp { moment: unix_ms.unsigned_abs(), unix_ms }
}

fn open(dir: &Path) -> Replica {
    let disk = Arc::new(FileSystem);
    Replica::open(disk, dir.to_owned(), COMMUNITY, empty_catalog(), 0).unwrap().0
}

fn follow(replica: &mut Replica, engine: &Engine) {
    while let Some(bytes) = engine.get(replica.position().slot.next()) {
        replica.read(replica.position().slot.next(), &bytes).unwrap();
    }
}

fn send(
    mut leader: Leader,
    engine: &Engine,
    commits: &Commits,
    leaves: &AtomicBool,
    woken: &mpsc::Receiver<()>,
) -> Ended {
    loop {
        if let Some(ended) = leader.ended() {
            commits.end("another broker leads");
            return ended;
        }
        if let Some(slot) = leader.read_from() {
            match engine.get(slot) {
                Some(bytes) => leader.read(slot, &bytes),
                None => leader.read_to_end(),
            }
        } else if let Some(attempt) = leader.poll(stamp()) {
            if engine.append(&attempt) {
                leader.acknowledged(attempt.slot, attempt.round).unwrap();
            } else {
                leader.unanswered(attempt.round);
            }
        } else if leaves.swap(false, Ordering::Acquire) {
            leader.leave();
        } else {
            woken.recv().unwrap();
        }
    }
}

struct Client {
    stream: BufReader<TcpStream>,
    /// Tasks that have arrived before an answer.
    tasks: VecDeque<String>,
}

impl Client {
    fn connect(broker: &Broker) -> Self {
        let stream = TcpStream::connect(broker.local_addr()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut client = Self { stream: BufReader::new(stream), tasks: VecDeque::new() };
        client.line();
        client.say("HELLO echo=me");
        while !client.line().contains(" echo=me ") {}
        client
    }

    fn say(&mut self, line: &str) {
        writeln!(self.stream.get_mut(), "{line}").unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(
            self.stream.read_line(&mut line).unwrap() > 0,
            "the broker has closed the connection"
        );
        line.trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.line()
    }

    /// Acknowledges a task, waits until that is confirmed, and returns the URL.
    fn acknowledge(&mut self, task: &[String]) -> String {
        self.say(&format!("ACK {}", task[1]));
        loop {
            let line = self.line();
            if line.starts_with(&format!("+OK {} ", task[1])) {
                return task[4].clone();
            }
            self.tasks.push_back(line);
        }
    }

    /// Gives back this task and those that have arrived. Otherwise they would rest after a takeover for
    /// as long as a lease lasts.
    fn leave(mut self, held: Option<&[String]>) {
        self.say("JOIN crawlers credit=0");
        self.say("PING");
        let mut held = Vec::from_iter(held.map(|task| task[1].clone()));
        loop {
            let line = self.tasks.pop_front().unwrap_or_else(|| self.line());
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["TASK", id, ..] => held.push(id.to_owned()),
                ["PONG", ..] => break,
                _ => {}
            }
        }
        for task in held {
            assert_eq!(self.ask(&format!("NACK {task} count=no")), format!("+OK {task}"));
        }
    }

    /// The next task.
    fn task(&mut self) -> Vec<String> {
        loop {
            let line = self.tasks.pop_front().unwrap_or_else(|| self.line());
            if line.starts_with("TASK ") {
                return line.split(' ').map(str::to_owned).collect();
            }
        }
    }
}

#[test]
fn a_broker_goes_on_where_another_was_and_a_copy_is_a_data_directory() {
    let runtime = Runtime::new().unwrap();
    let engine = Engine(Arc::default());
    assert!(engine.append(&founding(COMMUNITY, stamp())));
    let dirs: [TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());

    let first = Node::lead(&runtime, dirs[0].path(), &engine);
    let mut client = Client::connect(&first.broker);
    for number in 1..=3 {
        let line = format!("PUB new-url http://host-{number}.example/");
        assert_eq!(client.ask(&line), format!("+OK {number} {number}"));
    }
    assert!(client.ask("TOPIC set new-url retain-bytes=10m").starts_with("+OK "));
    let mut worker = Client::connect(&first.broker);
    worker.say("JOIN crawlers");
    let task = worker.task();
    let done = worker.acknowledge(&task);
    worker.leave(None);

    // The second takes over from a leader that does not know it. What that one is given then is
    // not answered, and is nowhere.
    let second = Node::lead(&runtime, dirs[1].path(), &engine);
    client.say("PUB new-url http://lost.example/");
    assert!(matches!(first.stop(&runtime), Ended::Deposed(_)));
    let mut rest = String::new();
    client.stream.read_to_string(&mut rest).unwrap();
    assert!(rest.is_empty() || rest.starts_with("-ERR closing "), "{rest}");
    let mut client = Client::connect(&second.broker);
    assert_eq!(client.ask("PUB new-url http://host-4.example/"), "+OK 4 1");
    let shown = client.ask("TOPIC show new-url");
    assert!(shown.contains(" retain-bytes=10m "), "{shown}");
    // What is done stays done. Of the rest all is done but the last.
    let mut worker = Client::connect(&second.broker);
    worker.say("JOIN crawlers");
    let mut found = BTreeSet::from([done]);
    let last = loop {
        let task = worker.task();
        assert!(found.insert(task[4].clone()), "{task:?} is given away again");
        if found.len() == 4 {
            break task;
        }
        worker.acknowledge(&task);
    };
    worker.leave(Some(&last));

    // The first follows, and leads again.
    assert_eq!(second.stop(&runtime), Ended::Left);
    let first = Node::lead(&runtime, dirs[0].path(), &engine);
    let mut client = Client::connect(&first.broker);
    assert_eq!(client.ask("PUB new-url http://host-5.example/"), "+OK 5 1");
    assert_eq!(first.stop(&runtime), Ended::Left);

    // A new copy, and then a broker of its own on it.
    let mut replica = open(dirs[2].path());
    follow(&mut replica, &engine);
    replica.close().unwrap();
    let alone = BrokerConfig { data: Some(dirs[2].path().to_owned()), ..config() };
    let alone = runtime.block_on(Broker::start(alone)).unwrap();
    let mut client = Client::connect(&alone);
    assert_eq!(client.ask("SUB new-url from=first"), "+OK");
    for number in 1..=5 {
        assert_eq!(client.line(), format!("MSG new-url {number} http://host-{number}.example/"));
    }
    let mut worker = Client::connect(&alone);
    worker.say("JOIN crawlers");
    let mut left = BTreeSet::new();
    for _ in 0..2 {
        let task = worker.task();
        left.insert(worker.acknowledge(&task));
    }
    assert_eq!(left, BTreeSet::from([last[4].clone(), "http://host-5.example/".to_owned()]));
    runtime.block_on(alone.stop());
}
