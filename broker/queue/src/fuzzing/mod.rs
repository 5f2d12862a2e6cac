//! Fuzz targets: a group with arbitrary inputs, and its records.

pub(crate) mod dump;
#[cfg(test)]
pub(crate) mod simulated_pages;

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::{
    Command, GroupName, MemberId, Seq, Slot, TaskAction, TaskId, TopicName, text,
};

use self::dump::difference;
use crate::commands::{group_input, job_input};
use crate::config::GroupConfig;
use crate::entry::EntryId;
use crate::leases::Credit;
use crate::moment::{ClockStamp, Moment};
use crate::record::replay::Replay;
use crate::record::{Decision, GroupRecord};
use crate::{
    ClientLabel, ConnId, Group, GroupQuery, Input, Output, Requester, StagedLink, WorkerReply,
};

/// The name and the function of a target.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of this crate.
pub const TARGETS: &[Target] = &[("record", record), ("group", group)];

const MEMBER_COUNT: usize = 3;
/// The wall clock at moment 0.
const START_UNIX_MS: i64 = 1_700_000_000_000;
/// Longest step of time, so that moments do not overflow.
const WAIT_MS_MAX: u64 = 400 * 24 * 60 * 60 * 1000;

/// Checks that a decoded record is encoded to the same line.
fn record(bytes: &[u8]) {
    let Ok(line) = std::str::from_utf8(bytes) else { return };
    if line.contains('\n') {
        return;
    }
    if let Ok(record) = GroupRecord::decode(line) {
        round_trip(&record);
    }
}

fn round_trip(record: &GroupRecord) -> GroupRecord {
    let mut line = String::new();
    record.encode(&mut line);
    let line = line.strip_suffix('\n').expect("a record ends its line");
    assert!(!line.contains('\n'), "{line:?} is more than one line");
    let read = GroupRecord::decode(line).unwrap_or_else(|_| panic!("{line:?} is not a record"));
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
/// credit or that of its browser, that no entry is released twice, that nothing is due after a
/// tick, and that the records, from the first one or from a snapshot on, give the same group.
fn group(bytes: &[u8]) {
    let Ok(lines) = std::str::from_utf8(bytes) else { return };
    let mut world = FuzzWorld::new();
    world.start(false);
    for line in lines.lines() {
        if !world.step(line) {
            return;
        }
    }
    world.check_replay(0);
}

struct FuzzWorld {
    group: Group,
    now: Moment,
    wall_clock_offset_ms: i64,
    boot: u128,
    records: Vec<GroupRecord>,
    /// Index of the record that begins the snapshot in progress.
    snapshot: Option<usize>,
    /// The next seq of each topic.
    next_seqs: BTreeMap<TopicName, u64>,
    conns: [u64; MEMBER_COUNT],
    credit: BTreeMap<MemberId, Credit>,
    /// The member that holds each entry.
    held: BTreeMap<EntryId, MemberId>,
    tasks: Vec<TaskId>,
    links: BTreeMap<TaskId, Vec<StagedLink>>,
    unpublished: Vec<(u64, &'static str)>,
    is_deleted: bool,
}

fn name() -> GroupName {
    "crawlers".parse().expect("the name is valid")
}

impl FuzzWorld {
    fn new() -> Self {
        Self {
            group: Group::new(name(), 0, GroupConfig::default(), 1),
            now: Moment(1000),
            wall_clock_offset_ms: 0,
            boot: 1,
            records: Vec::new(),
            snapshot: None,
            next_seqs: BTreeMap::new(),
            conns: [1, 2, 3],
            credit: BTreeMap::new(),
            held: BTreeMap::new(),
            tasks: Vec::new(),
            links: BTreeMap::new(),
            unpublished: Vec::new(),
            is_deleted: false,
        }
    }

    fn unix_ms(&self) -> i64 {
        (START_UNIX_MS + self.wall_clock_offset_ms).saturating_add_unsigned(self.now.0)
    }

    fn stamp(&self) -> ClockStamp {
        let (moment, unix_ms) = (self.now, self.unix_ms());
        ClockStamp { moment, boot_id: self.boot, uptime_ms: self.now.0, unix_ms }
    }

    /// Starts the group.
    fn start(&mut self, elapsed_unknown: bool) {
        let run = self.group.run() + 1;
        // Every other broker runs a worker in its process.
        let own = run.is_multiple_of(2).then_some(MemberId(1 << 96));
        self.feed(Input::Start {
            run,
            since: 1000 + run,
            elapsed_unknown,
            stamp: self.stamp(),
            local_member: own,
        });
        self.feed(Input::WallClock { unix_ms: self.unix_ms() });
    }

    /// Runs a step. Returns whether further steps can follow.
    fn step(&mut self, line: &str) -> bool {
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        let number = || rest.parse::<u64>().unwrap_or(1);
        match what {
            "1" => self.command(0, rest),
            "2" => self.command(1, rest),
            "3" => self.command(2, rest),
            "t" => {
                self.now = self.now + number().min(WAIT_MS_MAX);
                self.tick();
            }
            "w" => {
                let ms: i64 = rest.parse().unwrap_or(0);
                self.wall_clock_offset_ms = ms.clamp(-START_UNIX_MS, START_UNIX_MS);
                self.feed(Input::WallClock { unix_ms: self.unix_ms() });
            }
            "g" => self.disconnect(usize::try_from(number()).unwrap_or(0) % MEMBER_COUNT),
            "d" if !self.unpublished.is_empty() => {
                let (serial, topic) = self.unpublished.remove(0);
                let seq = Seq(self.take_seq(topic.parse().expect("the name is valid")));
                self.feed(Input::Published { serial, topic, seq });
            }
            "s" => self.snapshot(usize::try_from(number()).unwrap_or(1).clamp(1, 1000)),
            "r" | "R" => {
                self.check_replay(0);
                // The compared group has advanced in time, which must not happen before a start
                // after a reboot.
                self.group = self.replay_from(0);
                self.snapshot = None;
                self.boot += u128::from(what == "R");
                self.credit.clear();
                self.links.clear();
                self.conns.iter_mut().for_each(|conn| *conn += 10);
                let unsent = self.group.unpublished();
                self.unpublished = unsent.map(|(serial, topic, _)| (serial, topic)).collect();
                self.start(what == "R");
            }
            _ => {}
        }
        !self.is_deleted
    }

    fn take_seq(&mut self, topic: TopicName) -> u64 {
        let next = self.next_seqs.entry(topic).or_insert(1);
        *next += 1;
        *next - 1
    }

    fn requester(&self, member: usize) -> Requester {
        let conn = ConnId(self.conns[member]);
        Requester { conn, member: MemberId((member as u128 + 1) << 96), slot: Slot::numbered(1) }
    }

    fn disconnect(&mut self, member: usize) {
        let conn = ConnId(self.conns[member]);
        self.credit.remove(&self.requester(member).member);
        self.conns[member] += 10;
        self.feed(Input::Disconnected { conn });
    }

    fn command(&mut self, member: usize, line: &str) {
        let mut line = line.to_owned();
        for (back, task) in self.tasks.iter().rev().take(4).enumerate() {
            line = line.replace(&format!("%{back}"), &task.to_string());
        }
        let Ok(command) = text::check(line.as_bytes()).and_then(Command::parse) else { return };
        let requester = self.requester(member);
        let input = match command {
            Command::Join { credit, render, browsers, .. } => {
                let credit = credit.unwrap_or(10);
                self.credit.insert(requester.member, Credit { tasks: credit, render });
                let label = ClientLabel { browsers, ..ClientLabel::default() };
                Input::Join { requester, credit, render, label }
            }
            Command::Link { task, url, redirect, prio } => {
                let prio = prio.map_or(0, tidings_protocol::Prio::value);
                let staged = StagedLink { url: url.into(), redirect, prio };
                return self.links.entry(task).or_default().push(staged);
            }
            Command::Reply(reply) => {
                let links = match reply.action {
                    TaskAction::Ack(_) => self.links.remove(&reply.task).unwrap_or_default(),
                    _ => Vec::new(),
                };
                Input::Reply { requester, reply: WorkerReply { reply, links, over_limit: 0 } }
            }
            Command::Group(manage) => match group_input(requester, &manage) {
                Ok(input) => input,
                Err(error) => return assert_line(&error.to_string()),
            },
            Command::Job(manage) => match job_input(requester, &manage) {
                Ok((_, input)) => input,
                Err(error) => return assert_line(&error.to_string()),
            },
            Command::Explain { what, .. } => {
                Input::Query { requester, query: GroupQuery::Explain(what.to_owned()) }
            }
            Command::Pub { payload, .. } => return self.publish(payload),
            Command::Ping => Input::Activity { conn: requester.conn },
            Command::Quit => return self.disconnect(member),
            _ => return,
        };
        self.feed(input);
    }

    /// Publishes on the first topic that feeds the group.
    fn publish(&mut self, payload: &str) {
        let topic = self.group.config().settings.topics[0].clone();
        let seq = self.take_seq(topic.clone());
        let events = vec![(Seq(seq), payload.to_owned())];
        self.feed(Input::Events {
            topic,
            next: Seq(seq + 1),
            events,
            foreign_jobs: BTreeSet::new(),
        });
    }

    fn tick(&mut self) {
        self.feed(Input::Tick);
        let due = self.group.deadline().filter(|deadline| *deadline <= self.now);
        assert_eq!(due, None, "something is due after a tick at {}", self.now);
    }

    fn feed(&mut self, input: Input) {
        self.group.handle(input, self.now);
        while let Some(output) = self.group.poll() {
            self.handle_output(output);
        }
        if self.snapshot.is_some() && !self.group.is_snapshotting() {
            self.snapshot = None;
        }
    }

    fn handle_output(&mut self, output: Output) {
        match output {
            Output::Record(record) => {
                let record = round_trip(&record);
                self.check_leases(&record.decision);
                self.records.push(record);
            }
            Output::Task { task, .. } => {
                assert_line(&task.payload);
                self.tasks.push(task.id);
            }
            Output::Answer { answer: Ok(answer), .. } => {
                answer
                    .lines
                    .iter()
                    .chain([&answer.ok])
                    .for_each(|line| assert_line(&line.to_string()));
            }
            Output::Answer { answer: Err(error), .. } => assert_line(&error.to_string()),
            Output::Publish { serial, topic, payload } => {
                assert_line(&payload);
                self.unpublished.push((serial, topic));
            }
            Output::RequestTopicHeads { job } => {
                let topics = &self.group.config().settings.topics;
                let head = |topic| Seq(self.next_seqs.get(topic).copied().unwrap_or(1));
                let heads = topics.iter().map(|topic| (topic.clone(), head(topic))).collect();
                self.group.handle(Input::TopicHeads { job, heads }, self.now);
            }
            Output::JobNameChanged { .. } | Output::Notice(_) => {}
            Output::Texts(_) => unreachable!("the group is not paged"),
            Output::Deleted => self.is_deleted = true,
        }
    }

    fn check_leases(&mut self, decision: &Decision) {
        match decision {
            Decision::Released { entry, member, .. } => {
                let had = self.held.insert(*entry, *member);
                assert_eq!(had, None, "{entry} is already held");
                let credit = self.credit.get(member).copied().unwrap_or_default();
                let held = self.held.iter().filter(|(_, other)| *other == member);
                let count = held.clone().count();
                assert!(count <= credit.tasks as usize, "{member} has {count} tasks: {credit:?}");
                let needs_render = |entry: &EntryId| {
                    let live = self.group.state.frontier().find(*entry);
                    live.is_some_and(|live| live.entry.admitted.needs_render())
                };
                let count = held.filter(|(entry, _)| needs_render(entry)).count();
                let browsers = credit.render.unwrap_or(0) as usize;
                let is_kept = !needs_render(entry) || count <= browsers;
                assert!(is_kept, "{member} renders {count}: {credit:?}");
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
            self.group.begin_snapshot(stamp, |decision| kept.push(GroupRecord { at, decision }));
            return self.records.extend(kept.iter().map(round_trip));
        };
        let is_whole =
            self.group.continue_snapshot(count, |decision| kept.push(GroupRecord { at, decision }));
        self.records.extend(kept.iter().map(round_trip));
        if is_whole {
            self.snapshot = None;
            self.check_replay(begin);
        }
    }

    /// Returns the group that the records from `begin` on give.
    fn replay_from(&self, begin: usize) -> Group {
        let group = Group::new(name(), 0, GroupConfig::default(), 1);
        let mut replay = Replay::new(group, begin == 0);
        for record in &self.records[begin..] {
            replay.apply(record);
        }
        replay.finish().expect("no record is missing")
    }

    /// Checks that the records from `begin` on give the current group.
    fn check_replay(&mut self, begin: usize) {
        let mut again = self.replay_from(begin);
        again.state.advance(self.now);
        self.group.state.advance(self.now);
        if let Some(difference) = difference(&self.group, &again) {
            panic!("the records from {begin} on give another group:\n{difference}");
        }
    }
}

#[track_caller]
fn assert_line(text: &str) {
    assert!(text::check(text.as_bytes()).is_ok(), "{text:?} is not a line");
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
#[expect(clippy::disallowed_methods, reason = "the corpus is files, and a failed input is named")]
mod replay_corpus;
