//! A broker that is killed with a great many URLs waiting and ten thousand with workers. When it is
//! back nothing is lost, whoever held a task has it, and no host is given out while it may be asked
//! by somebody, nor inside its delay.
//!
//! `TIDINGS_RESTART_URLS` chooses how many wait.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::process::Server;
use crate::support::publisher::Pipeline;
use crate::support::seed::number_from;
use crate::support::talk::{Talk, value};
use crate::support::wait::until;

/// What waits at first, unless told otherwise: a million would keep a debug build busy for a minute
/// and a half.
const URLS: u64 = 100_000;

const HOSTS: u64 = 20_000;

/// Tasks that are with members when the broker is killed, of those who come back and of one who
/// does not.
const HELD: [usize; 3] = [5_000, 4_000, 1_000];

/// Hosts that rest when the broker is killed.
const RESTING: usize = 1_000;

const DELAY: Duration = Duration::from_secs(10);

/// Of the tasks of the member that does not come back. The others' outlast the test.
const SHORT_LEASE: Duration = Duration::from_secs(15);

// PROTOCOL: T13
#[test]
fn a_restart_with_much_waiting_and_in_flight_loses_nothing_and_asks_no_host_too_soon() {
    let urls = number_from("TIDINGS_RESTART_URLS").unwrap_or(URLS);
    let began = Instant::now();
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    client.ask(&format!("GROUP create crawlers delay={}s lease=1h", DELAY.as_secs()));
    publish(&server, urls);
    until_waiting(&mut client, urls);
    eprintln!("{urls} URLs waited after {:?}", began.elapsed());

    let mut ledger = Ledger::new(urls);
    let mut members: Vec<_> =
        HELD[..2].iter().map(|credit| Member::join(&server, *credit, &mut ledger, None)).collect();
    // Hosts that rest, in place of which others are given out.
    members[0].answer(RESTING, &mut ledger);
    members[0].take_until(HELD[0], &mut ledger);
    client.ask(&format!("GROUP set crawlers lease={}s", SHORT_LEASE.as_secs()));
    members.push(Member::join(&server, HELD[2], &mut ledger, Some(SHORT_LEASE)));
    client.ask("GROUP set crawlers lease=1h");
    eprintln!("ten thousand are in flight after {:?}", began.elapsed());

    let killed = Instant::now();
    let server = server.restart("KILL", &["broker"]);
    let mut client = Talk::client(server.address);
    let shown = client.ask("GROUP show crawlers");
    eprintln!("killed, and back after {:?}: {shown}", killed.elapsed());
    expect_all_there(&shown, urls);

    // One who takes whatever is free, before anybody comes back: the other hosts first, then those
    // that rested.
    let mut taker = Member::join(&server, HELD.iter().sum(), &mut ledger, None);
    for member in members.drain(..2) {
        member.come_back(&server, &mut ledger);
    }
    // Every URL is there, once; those of the member that is gone come again.
    client.ask("GROUP set crawlers delay=0");
    ledger.forget_delay();
    while ledger.answered < urls {
        taker.answer(taker.held.len(), &mut ledger);
        taker.take_until(usize::from(ledger.answered < urls), &mut ledger);
    }
    let shown = client.ask("GROUP show crawlers");
    let states = format!(" waiting=0 processing=0 completed={urls} ");
    assert!(shown.contains(&states), "{shown}");
    eprintln!("all {urls} were answered after {:?}", began.elapsed());
}

/// Checks the counts of a group that has just started: nothing is lost but leases, should the start
/// have taken longer.
#[track_caller]
fn expect_all_there(shown: &str, urls: u64) {
    let count = |key| value(shown, key).parse::<u64>().unwrap();
    let held = HELD.iter().sum::<usize>() as u64 - count("lost");
    let waiting = urls - held - RESTING as u64;
    let counts = ["waiting", "processing", "completed"].map(count);
    assert_eq!(counts, [waiting, held, RESTING as u64], "{shown}");
}

/// Publishes all of them, on hosts that take turns.
#[track_caller]
fn publish(server: &Server, urls: u64) {
    let mut pipeline = Pipeline::connect(server.address).unwrap();
    let mut numbers = (0..urls).peekable();
    while numbers.peek().is_some() {
        let some = numbers.by_ref().take(10_000);
        pipeline.send(some.map(|n| ("new-url".to_owned(), url(n))));
        assert!(pipeline.all_answers().iter().all(|outcome| outcome.fate.is_ok()));
    }
}

#[track_caller]
fn until_waiting(client: &mut Talk, urls: u64) {
    until(&format!("{urls} entries that wait"), || {
        client.ask("GROUP show crawlers").contains(&format!(" waiting={urls} ")).then_some(())
    });
}

fn url(number: u64) -> String {
    format!("http://h{}.example/{number}", number % HOSTS)
}

/// What the members were given and answered, all of them together.
struct Ledger {
    /// How long a host rests after an answer.
    delay: Duration,
    /// From when on each host may be given out; `None` while it is with a member that answers.
    free: Vec<Option<Instant>>,
    /// By number of the URL.
    is_answered: Vec<bool>,
    answered: u64,
}

impl Ledger {
    fn new(urls: u64) -> Self {
        Self {
            delay: DELAY,
            free: vec![Some(Instant::now()); usize::try_from(HOSTS).unwrap()],
            is_answered: vec![false; usize::try_from(urls).unwrap()],
            answered: 0,
        }
    }

    /// From now on no host rests, also those that do.
    fn forget_delay(&mut self) {
        for free in self.free.iter_mut().flatten() {
            *free -= self.delay;
        }
        self.delay = Duration::ZERO;
    }

    fn free(&mut self, number: usize) -> &mut Option<Instant> {
        let hosts = self.free.len();
        &mut self.free[number % hosts]
    }

    /// Somebody was given this URL, whose host may be given out again from then on.
    #[track_caller]
    fn given(&mut self, number: usize, again: Option<Instant>) {
        assert!(!self.is_answered[number], "{number} was answered before");
        let now = Instant::now();
        let free = self.free(number);
        assert!(free.is_some_and(|free| free <= now), "{number}: too soon, {free:?} at {now:?}");
        *free = again;
    }

    /// An answer is about to be sent.
    fn answer(&mut self, number: usize) {
        self.is_answered[number] = true;
        self.answered += 1;
        *self.free(number) = Some(Instant::now() + self.delay);
    }
}

/// A worker that makes no requests.
struct Member {
    talk: Talk,
    /// By which the broker knows it again.
    resume: String,
    /// From when on its hosts may be given out again, if it answers nothing.
    lost: Option<Instant>,
    /// Tasks by their ids, with their payloads.
    held: BTreeMap<String, String>,
}

impl Member {
    /// Joins, and takes so many tasks. `lease` is what a lost one's host has to wait for; none: it
    /// is not lost.
    #[track_caller]
    fn join(server: &Server, credit: usize, ledger: &mut Ledger, lease: Option<Duration>) -> Self {
        let mut talk = Talk::client(server.address);
        let resume = value(&talk.ask("HELLO"), "resume").to_owned();
        let lost = lease.map(|lease| Instant::now() + lease + ledger.delay);
        let answer = talk.ask(&format!("JOIN crawlers credit={credit}"));
        assert!(answer.starts_with(&format!("+OK crawlers credit={credit} held=0 ")), "{answer}");
        let mut member = Self { talk, resume, lost, held: BTreeMap::new() };
        member.take_until(credit, ledger);
        member
    }

    /// Takes what comes, until it holds so many tasks.
    #[track_caller]
    fn take_until(&mut self, count: usize, ledger: &mut Ledger) {
        while self.held.len() < count {
            let line = self.talk.line();
            self.take(&line, ledger);
        }
    }

    #[track_caller]
    fn take(&mut self, line: &str, ledger: &mut Ledger) {
        let (id, payload) = task(line);
        ledger.given(number(&payload), self.lost);
        assert!(self.held.insert(id, payload).is_none(), "twice: {line}");
    }

    /// Answers so many of its tasks, and takes what comes meanwhile.
    #[track_caller]
    fn answer(&mut self, mut count: usize, ledger: &mut Ledger) {
        while count > 0 {
            // So few that neither side has to wait for the other one to read.
            let mut unanswered = count.min(500);
            count -= unanswered;
            let mut lines = String::new();
            for _ in 0..unanswered {
                let (id, payload) = self.held.pop_first().expect("it holds as many");
                ledger.answer(number(&payload));
                lines.extend(["ACK ", &id, "\n"]);
            }
            self.talk.send(lines);
            while unanswered > 0 {
                let line = self.talk.line();
                if line.starts_with("TASK ") {
                    self.take(&line, ledger);
                } else {
                    assert!(line.starts_with("+OK crawlers:"), "{line}");
                    unanswered -= 1;
                }
            }
        }
    }

    /// Connects again, is given what it holds and nothing else, and answers all of it.
    #[track_caller]
    fn come_back(mut self, server: &Server, ledger: &mut Ledger) {
        self.talk = Talk::client(server.address);
        let hello = self.talk.ask(&format!("HELLO resume={}", self.resume));
        assert_eq!(value(&hello, "resume"), self.resume);
        let held = self.held.len();
        let joined = self.talk.ask("JOIN crawlers credit=0");
        assert!(joined.starts_with(&format!("+OK crawlers credit=0 held={held} ")), "{joined}");
        let again: BTreeMap<_, _> = (0..held).map(|_| task(&self.talk.line())).collect();
        assert!(again == self.held, "it is given other tasks than it holds");
        self.answer(held, ledger);
    }
}

/// The id and the payload of a task.
#[track_caller]
fn task(line: &str) -> (String, String) {
    let words: Vec<_> = line.splitn(5, ' ').collect();
    let ["TASK", id, _, _, payload] = words[..] else { panic!("no task: {line}") };
    (id.to_owned(), payload.to_owned())
}

/// The number of the URL in a payload.
#[track_caller]
fn number(payload: &str) -> usize {
    payload.rsplit('/').next().unwrap().parse().unwrap()
}
