//! A broker is killed with a large queue and ten thousand leased tasks. After the restart nothing
//! is lost, members keep their tasks, and no host is released while a member may still send its
//! request or within its delay.
//!
//! `TIDINGS_RESTART_URLS` sets the number of waiting URLs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::line_connection::{LineConnection, value};
use crate::support::pipelined_publisher::PipelinedPublisher;
use crate::support::process::Server;
use crate::support::seed::number_from_env;
use crate::support::wait::wait_until;

/// The default number of waiting URLs. A million would take a debug build a minute and a half.
const URLS: u64 = 100_000;

const HOSTS: u64 = 20_000;

/// Leased tasks at the kill: of two members that come back, and of one that does not.
const LEASED_TASKS: [usize; 3] = [5_000, 4_000, 1_000];

/// Hosts within their delay at the kill.
const DELAYED_HOSTS: usize = 1_000;

const DELAY: Duration = Duration::from_secs(10);

/// The lease of the member that does not come back. The leases of the others outlast the test.
const SHORT_LEASE: Duration = Duration::from_secs(15);

// PROTOCOL: T13
#[test]
fn a_restart_with_a_large_queue_loses_nothing_and_keeps_delays() {
    let urls = number_from_env("TIDINGS_RESTART_URLS").unwrap_or(URLS);
    let began = Instant::now();
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    client.request(&format!("GROUP create crawlers delay={}s lease=1h", DELAY.as_secs()));
    publish(&server, urls);
    wait_until_waiting(&mut client, urls);
    eprintln!("{urls} URLs waited after {:?}", began.elapsed());

    let mut ledger = TaskLedger::new(urls);
    let mut members: Vec<_> = LEASED_TASKS[..2]
        .iter()
        .map(|credit| TestMember::join(&server, *credit, &mut ledger, None))
        .collect();
    // Their hosts are within their delay now, and other hosts are released instead.
    members[0].answer(DELAYED_HOSTS, &mut ledger);
    members[0].receive_until(LEASED_TASKS[0], &mut ledger);
    client.request(&format!("GROUP set crawlers lease={}s", SHORT_LEASE.as_secs()));
    members.push(TestMember::join(&server, LEASED_TASKS[2], &mut ledger, Some(SHORT_LEASE)));
    client.request("GROUP set crawlers lease=1h");
    eprintln!("ten thousand are in flight after {:?}", began.elapsed());

    let killed = Instant::now();
    let server = server.restart("KILL", &["broker"]);
    let mut client = LineConnection::connect_client(server.address);
    let shown = client.request("GROUP show crawlers");
    eprintln!("killed, and back after {:?}: {shown}", killed.elapsed());
    expect_counts(&shown, urls);

    // A member that takes every free task before the others come back: first those of the other
    // hosts, then those of hosts that have had their delay.
    let mut taker = TestMember::join(&server, LEASED_TASKS.iter().sum(), &mut ledger, None);
    for member in members.drain(..2) {
        member.resume_and_answer(&server, &mut ledger);
    }
    // Every URL is released once more, including those of the lost member.
    client.request("GROUP set crawlers delay=0");
    ledger.clear_delays();
    while ledger.answered < urls {
        taker.answer(taker.tasks.len(), &mut ledger);
        taker.receive_until(usize::from(ledger.answered < urls), &mut ledger);
    }
    let shown = client.request("GROUP show crawlers");
    let states = format!(" waiting=0 processing=0 completed={urls} ");
    assert!(shown.contains(&states), "{shown}");
    eprintln!("all {urls} were answered after {:?}", began.elapsed());
}

/// Checks the counts of the group after the start. Only leases may be lost, if the start took
/// longer than they last.
#[track_caller]
fn expect_counts(shown: &str, urls: u64) {
    let count = |key| value(shown, key).parse::<u64>().unwrap();
    let held = LEASED_TASKS.iter().sum::<usize>() as u64 - count("lost");
    let waiting = urls - held - DELAYED_HOSTS as u64;
    let counts = ["waiting", "processing", "completed"].map(count);
    assert_eq!(counts, [waiting, held, DELAYED_HOSTS as u64], "{shown}");
}

/// Publishes the URLs, with the hosts in turn.
#[track_caller]
fn publish(server: &Server, urls: u64) {
    let mut pipeline = PipelinedPublisher::connect(server.address).unwrap();
    let mut numbers = (0..urls).peekable();
    while numbers.peek().is_some() {
        let some = numbers.by_ref().take(10_000);
        pipeline.send(some.map(|n| ("new-url".to_owned(), url(n))));
        assert!(pipeline.read_all_outcomes().iter().all(|outcome| outcome.result.is_ok()));
    }
}

#[track_caller]
fn wait_until_waiting(client: &mut LineConnection, urls: u64) {
    wait_until(&format!("{urls} waiting entries"), || {
        client.request("GROUP show crawlers").contains(&format!(" waiting={urls} ")).then_some(())
    });
}

fn url(number: u64) -> String {
    format!("http://h{}.example/{number}", number % HOSTS)
}

/// The tasks that all members have received and answered.
struct TaskLedger {
    /// The delay of a host after an answer.
    delay: Duration,
    /// The moment from which each host may be released again. `None` while a member that answers
    /// holds a task of it.
    free_at: Vec<Option<Instant>>,
    /// By number of the URL.
    is_answered: Vec<bool>,
    answered: u64,
}

impl TaskLedger {
    fn new(urls: u64) -> Self {
        Self {
            delay: DELAY,
            free_at: vec![Some(Instant::now()); usize::try_from(HOSTS).unwrap()],
            is_answered: vec![false; usize::try_from(urls).unwrap()],
            answered: 0,
        }
    }

    /// Ends all delays, the running ones, too.
    fn clear_delays(&mut self) {
        for free in self.free_at.iter_mut().flatten() {
            *free -= self.delay;
        }
        self.delay = Duration::ZERO;
    }

    fn host_free_at(&mut self, number: usize) -> &mut Option<Instant> {
        let hosts = self.free_at.len();
        &mut self.free_at[number % hosts]
    }

    /// Records that a member received this URL. The host may be released again at `free_at`.
    #[track_caller]
    fn record_task(&mut self, number: usize, free_at: Option<Instant>) {
        assert!(!self.is_answered[number], "URL {number} was answered before");
        let now = Instant::now();
        let free = self.host_free_at(number);
        assert!(
            free.is_some_and(|free| free <= now),
            "URL {number} was released too early: {free:?} at {now:?}"
        );
        *free = free_at;
    }

    /// Records an answer that is about to be sent.
    fn record_answer(&mut self, number: usize) {
        self.is_answered[number] = true;
        self.answered += 1;
        *self.host_free_at(number) = Some(Instant::now() + self.delay);
    }
}

/// A worker that sends no requests.
struct TestMember {
    connection: LineConnection,
    /// The id for `HELLO resume=`.
    resume_token: String,
    /// The moment from which its hosts may be released again, if it does not come back.
    hosts_free_at: Option<Instant>,
    /// Payloads by task id.
    tasks: BTreeMap<String, String>,
}

impl TestMember {
    /// Joins and receives `credit` tasks. `lease` is set for the member that will be lost: its
    /// hosts wait for that time.
    #[track_caller]
    fn join(
        server: &Server,
        credit: usize,
        ledger: &mut TaskLedger,
        lease: Option<Duration>,
    ) -> Self {
        let mut connection = LineConnection::connect_client(server.address);
        let resume = value(&connection.request("HELLO"), "resume").to_owned();
        let lost = lease.map(|lease| Instant::now() + lease + ledger.delay);
        let answer = connection.request(&format!("JOIN crawlers credit={credit}"));
        assert!(answer.starts_with(&format!("+OK crawlers credit={credit} held=0 ")), "{answer}");
        let mut member =
            Self { connection, resume_token: resume, hosts_free_at: lost, tasks: BTreeMap::new() };
        member.receive_until(credit, ledger);
        member
    }

    /// Receives until it holds `count` tasks.
    #[track_caller]
    fn receive_until(&mut self, count: usize, ledger: &mut TaskLedger) {
        while self.tasks.len() < count {
            let line = self.connection.read_line();
            self.receive(&line, ledger);
        }
    }

    #[track_caller]
    fn receive(&mut self, line: &str, ledger: &mut TaskLedger) {
        let (id, payload) = parse_task(line);
        ledger.record_task(url_number(&payload), self.hosts_free_at);
        assert!(self.tasks.insert(id, payload).is_none(), "released twice: {line}");
    }

    /// Answers `count` of its tasks, and receives others meanwhile.
    #[track_caller]
    fn answer(&mut self, mut count: usize, ledger: &mut TaskLedger) {
        while count > 0 {
            // So few that neither side blocks on a full socket.
            let mut unanswered = count.min(500);
            count -= unanswered;
            let mut lines = String::new();
            for _ in 0..unanswered {
                let (id, payload) = self.tasks.pop_first().expect("it holds enough tasks");
                ledger.record_answer(url_number(&payload));
                lines.extend(["ACK ", &id, "\n"]);
            }
            self.connection.send(lines);
            while unanswered > 0 {
                let line = self.connection.read_line();
                if line.starts_with("TASK ") {
                    self.receive(&line, ledger);
                } else {
                    assert!(line.starts_with("+OK crawlers:"), "{line}");
                    unanswered -= 1;
                }
            }
        }
    }

    /// Reconnects, receives exactly the tasks that it holds, and answers them.
    #[track_caller]
    fn resume_and_answer(mut self, server: &Server, ledger: &mut TaskLedger) {
        self.connection = LineConnection::connect_client(server.address);
        let hello = self.connection.request(&format!("HELLO resume={}", self.resume_token));
        assert_eq!(value(&hello, "resume"), self.resume_token);
        let held = self.tasks.len();
        let joined = self.connection.request("JOIN crawlers credit=0");
        assert!(joined.starts_with(&format!("+OK crawlers credit=0 held={held} ")), "{joined}");
        let received: BTreeMap<_, _> =
            (0..held).map(|_| parse_task(&self.connection.read_line())).collect();
        assert!(received == self.tasks, "it received other tasks than it holds");
        self.answer(held, ledger);
    }
}

/// The id and the payload of a task.
#[track_caller]
fn parse_task(line: &str) -> (String, String) {
    let words: Vec<_> = line.splitn(5, ' ').collect();
    let ["TASK", id, _, _, payload] = words[..] else { panic!("not a task: {line}") };
    (id.to_owned(), payload.to_owned())
}

/// The number of the URL in a payload.
#[track_caller]
fn url_number(payload: &str) -> usize {
    payload.rsplit('/').next().unwrap().parse().unwrap()
}
