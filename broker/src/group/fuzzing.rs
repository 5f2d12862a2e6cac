//! Fuzz targets: a group with arbitrary inputs, and its records.

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::{Command, GroupName, MemberId, Seq, Slot, TaskId, TopicName, text};

use super::config::GroupConfig;
use super::entry::EntryId;
use super::portrait::difference;
use super::record::{Decision, Record};
use super::replay::Replay;
use super::{Asked, Group, Input, Output, Show, StagedLink};
use crate::clock::{Moment, Stamp};
use crate::groups::commands::{group_input, job_input};
use crate::mailbox::ConnId;

const MEMBERS: usize = 3;
/// The wall clock at moment 0.
const UNIX_MS: i64 = 1_700_000_000_000;
/// Longest step of time, so that moments do not overflow.
const WAIT_MS_MAX: u64 = 400 * 24 * 60 * 60 * 1000;

/// Checks that a decoded record is encoded to the same line.
pub(crate) fn record(bytes: &[u8]) {
    let Ok(line) = std::str::from_utf8(bytes) else { return };
    if line.contains('\n') {
        return;
    }
    if let Ok(record) = Record::decode(line) {
        again(&record);
    }
}

fn again(record: &Record) -> Record {
    let mut line = String::new();
    record.encode(&mut line);
    let line = line.strip_suffix('\n').expect("a record ends its line");
    assert!(!line.contains('\n'), "{line:?} is more than one line");
    let read = Record::decode(line).unwrap_or_else(|_| panic!("{line:?} is not a record"));
    // Lines are compared, not records: whether an entry waits or is delayed follows from its due
    // time.
    let mut again = String::new();
    read.encode(&mut again);
    assert_eq!(again.strip_suffix('\n'), Some(line));
    read
}

/// Each line is one step:
///
/// ```text
/// 1 ACK %0         member 1, 2 or 3 sends a command; %0 is the newest task, %1 the one before
/// t 1000           1,000 milliseconds pass
/// w -3600000       the wall clock is set back by an hour
/// g 1              the connection of a member ends
/// d                the oldest announcement is safe on its topic
/// s 10             10 parts of a snapshot are written
/// r                the broker is killed and started again
/// R                the machine is restarted
/// ```
///
/// The target checks that nothing panics, that each output is one line, that no member exceeds its
/// credit, that no entry is released twice, that nothing is due after a tick, and that the records,
/// from the first one or from a snapshot on, give the same group.
pub(crate) fn group(bytes: &[u8]) {
    let Ok(lines) = std::str::from_utf8(bytes) else { return };
    let mut world = World::new();
    world.start(false);
    for line in lines.lines() {
        if !world.happens(line) {
            return;
        }
    }
    world.replay(0);
}

struct World {
    group: Group,
    now: Moment,
    ahead_ms: i64,
    boot: u128,
    records: Vec<Record>,
    /// Index of the record that begins the snapshot in progress.
    snapshot: Option<usize>,
    /// The next seq of each topic.
    next: BTreeMap<TopicName, u64>,
    conns: [u64; MEMBERS],
    credit: BTreeMap<MemberId, u32>,
    /// The member that holds each entry.
    held: BTreeMap<EntryId, MemberId>,
    tasks: Vec<TaskId>,
    links: BTreeMap<TaskId, Vec<StagedLink>>,
    unsent: Vec<(u64, &'static str)>,
    is_deleted: bool,
}

fn name() -> GroupName {
    "crawlers".parse().expect("the name is valid")
}

impl World {
    fn new() -> Self {
        Self {
            group: Group::new(name(), 0, GroupConfig::default(), 1),
            now: Moment(1000),
            ahead_ms: 0,
            boot: 1,
            records: Vec::new(),
            snapshot: None,
            next: BTreeMap::new(),
            conns: [1, 2, 3],
            credit: BTreeMap::new(),
            held: BTreeMap::new(),
            tasks: Vec::new(),
            links: BTreeMap::new(),
            unsent: Vec::new(),
            is_deleted: false,
        }
    }

    fn unix_ms(&self) -> i64 {
        (UNIX_MS + self.ahead_ms).saturating_add_unsigned(self.now.0)
    }

    fn stamp(&self) -> Stamp {
        let (moment, unix_ms) = (self.now, self.unix_ms());
        Stamp { moment, boot: self.boot, uptime_ms: self.now.0, unix_ms }
    }

    /// Starts the group.
    fn start(&mut self, elapsed_unknown: bool) {
        let run = self.group.run() + 1;
        // Every other broker runs a worker in its process.
        let own = run.is_multiple_of(2).then_some(MemberId(1));
        self.feed(Input::Start {
            run,
            since: 1000 + run,
            anew: elapsed_unknown,
            stamp: self.stamp(),
            own,
        });
        self.feed(Input::Clock { unix_ms: self.unix_ms() });
    }

    /// Runs a step. Returns whether further steps can follow.
    fn happens(&mut self, line: &str) -> bool {
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        let number = || rest.parse::<u64>().unwrap_or(1);
        match what {
            "1" => self.says(0, rest),
            "2" => self.says(1, rest),
            "3" => self.says(2, rest),
            "t" => {
                self.now = self.now + number().min(WAIT_MS_MAX);
                self.tick();
            }
            "w" => {
                let ms: i64 = rest.parse().unwrap_or(0);
                self.ahead_ms = ms.clamp(-UNIX_MS, UNIX_MS);
                self.feed(Input::Clock { unix_ms: self.unix_ms() });
            }
            "g" => self.leaves(usize::try_from(number()).unwrap_or(0) % MEMBERS),
            "d" if !self.unsent.is_empty() => {
                let (serial, topic) = self.unsent.remove(0);
                let seq = Seq(self.number_on(topic.parse().expect("the name is valid")));
                self.feed(Input::Sent { serial, topic, seq });
            }
            "s" => self.snapshot(usize::try_from(number()).unwrap_or(1).clamp(1, 1000)),
            "r" | "R" => {
                self.replay(0);
                // The compared group has advanced in time, which must not happen before a start
                // after a reboot.
                self.group = self.made_from(0);
                self.snapshot = None;
                self.boot += u128::from(what == "R");
                self.credit.clear();
                self.links.clear();
                self.conns.iter_mut().for_each(|conn| *conn += 10);
                let unsent = self.group.unsent();
                self.unsent = unsent.map(|(serial, topic, _)| (serial, topic)).collect();
                self.start(what == "R");
            }
            _ => {}
        }
        !self.is_deleted
    }

    fn number_on(&mut self, topic: TopicName) -> u64 {
        let next = self.next.entry(topic).or_insert(1);
        *next += 1;
        *next - 1
    }

    fn asked(&self, member: usize) -> Asked {
        let conn = ConnId(self.conns[member]);
        Asked { conn, member: MemberId(member as u128 + 1), slot: Slot::numbered(1) }
    }

    fn leaves(&mut self, member: usize) {
        let conn = ConnId(self.conns[member]);
        self.credit.remove(&self.asked(member).member);
        self.conns[member] += 10;
        self.feed(Input::Gone { conn });
    }

    fn says(&mut self, member: usize, line: &str) {
        let mut line = line.to_owned();
        for (back, task) in self.tasks.iter().rev().take(4).enumerate() {
            line = line.replace(&format!("%{back}"), &task.to_string());
        }
        let Ok(command) = text::check(line.as_bytes()).and_then(Command::parse) else { return };
        let requester = self.asked(member);
        let input = match command {
            Command::Join { credit, .. } => {
                let credit = credit.unwrap_or(10);
                self.credit.insert(requester.member, credit);
                Input::Join { asked: requester, credit }
            }
            Command::Link { task, url, redirect, prio } => {
                let prio = prio.map_or(0, tidings_protocol::Prio::value);
                let staged = StagedLink { url: url.into(), redirect, prio };
                return self.links.entry(task).or_default().push(staged);
            }
            Command::Ack { task, outcome, hold } => {
                let links = self.links.remove(&task).unwrap_or_default();
                Input::Ack { asked: requester, task, outcome, hold, links, over_limit: 0 }
            }
            Command::Nack { task, back, hold, reason } => {
                Input::Nack { asked: requester, task, back, hold, reason }
            }
            Command::Touch { task, over, hold } => {
                Input::Touch { asked: requester, task, over, hold }
            }
            Command::Group(manage) => match group_input(requester, &manage) {
                Ok(input) => input,
                Err(error) => return is_line(&error.to_string()),
            },
            Command::Job(manage) => match job_input(requester, &manage) {
                Ok((_, input)) => input,
                Err(error) => return is_line(&error.to_string()),
            },
            Command::Explain { what, .. } => {
                Input::Show { asked: requester, what: Show::Explain(what.to_owned()) }
            }
            Command::Pub { payload, .. } => return self.publish(payload),
            Command::Ping => Input::Heard { conn: requester.conn },
            Command::Quit => return self.leaves(member),
            _ => return,
        };
        self.feed(input);
    }

    /// Publishes on the first topic that feeds the group.
    fn publish(&mut self, payload: &str) {
        let topic = self.group.config().topics[0].clone();
        let seq = self.number_on(topic.clone());
        let events = vec![(Seq(seq), payload.to_owned())];
        self.feed(Input::Events { topic, next: Seq(seq + 1), events, elsewhere: BTreeSet::new() });
    }

    fn tick(&mut self) {
        self.feed(Input::Tick);
        let due = self.group.deadline().filter(|deadline| *deadline <= self.now);
        assert_eq!(due, None, "something is due after a tick at {}", self.now);
    }

    fn feed(&mut self, input: Input) {
        self.group.handle(input, self.now);
        while let Some(output) = self.group.poll() {
            self.comes(output);
        }
        if self.snapshot.is_some() && !self.group.is_in_snapshot() {
            self.snapshot = None;
        }
    }

    fn comes(&mut self, output: Output) {
        match output {
            Output::Record(record) => {
                let record = again(&record);
                self.held_after(&record.decision);
                self.records.push(record);
            }
            Output::Task { task, .. } => {
                is_line(&task.payload);
                self.tasks.push(task.id);
            }
            Output::Answer { answer: Ok(answer), .. } => {
                answer.more.iter().chain([&answer.ok]).for_each(|line| is_line(line));
            }
            Output::Answer { answer: Err(error), .. } => is_line(&error.to_string()),
            Output::Announce { serial, topic, payload } => {
                is_line(&payload);
                self.unsent.push((serial, topic));
            }
            Output::AskHeads { job } => {
                let topics = &self.group.config().topics;
                let head = |topic| Seq(self.next.get(topic).copied().unwrap_or(1));
                let heads = topics.iter().map(|topic| (topic.clone(), head(topic))).collect();
                self.group.handle(Input::Heads { job, heads }, self.now);
            }
            Output::JobName { .. } => {}
            Output::Deleted => self.is_deleted = true,
        }
    }

    fn held_after(&mut self, decision: &Decision) {
        match decision {
            Decision::Released { entry, member, .. } => {
                let had = self.held.insert(*entry, *member);
                assert_eq!(had, None, "{entry} is already held");
                let count = self.held.values().filter(|other| *other == member).count();
                let credit = self.credit.get(member).copied().unwrap_or(0);
                assert!(count as u64 <= credit.into(), "{member} has {count} tasks of {credit}");
            }
            Decision::Answered { entry, .. }
            | Decision::Returned { entry, .. }
            | Decision::Lost { entry } => {
                assert!(self.held.remove(entry).is_some(), "{entry} is not held");
            }
            _ => {}
        }
    }

    /// Begins or continues a snapshot. A complete one must give the same group.
    fn snapshot(&mut self, count: usize) {
        let (at, mut kept) = (self.now, Vec::new());
        let Some(begin) = self.snapshot else {
            self.snapshot = Some(self.records.len());
            let stamp = self.stamp();
            self.group.begin_snapshot(stamp, |decision| kept.push(Record { at, decision }));
            return self.records.extend(kept.iter().map(again));
        };
        let is_whole =
            self.group.snapshot_more(count, |decision| kept.push(Record { at, decision }));
        self.records.extend(kept.iter().map(again));
        if is_whole {
            self.snapshot = None;
            self.replay(begin);
        }
    }

    /// Returns the group that the records from `begin` on give.
    fn made_from(&self, begin: usize) -> Group {
        let group = Group::new(name(), 0, GroupConfig::default(), 1);
        let mut replay = Replay::new(group, begin == 0);
        for record in &self.records[begin..] {
            replay.take(record);
        }
        replay.whole().expect("no record is missing")
    }

    /// Checks that the records from `begin` on give the current group.
    fn replay(&mut self, begin: usize) {
        let mut again = self.made_from(begin);
        again.advance(self.now);
        self.group.advance(self.now);
        if let Some(difference) = difference(&self.group, &again) {
            panic!("the records from {begin} on give another group:\n{difference}");
        }
    }
}

#[track_caller]
fn is_line(text: &str) {
    assert!(text::check(text.as_bytes()).is_ok(), "{text:?} is not a line");
}
