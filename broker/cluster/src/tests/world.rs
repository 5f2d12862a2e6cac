//! A world with a log and three brokers. Each follows the log, tries to lead at any moment, and commits
//! while it leads. Answers are late or missing, messages arrive late, and a read can end early.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{Bytes, BytesMut};
use fastrand::Rng;

use crate::{
    Attempt, CommunityId, Ended, Frame, Kind, Message, Position, Slot, Stamp, Ticket, Verdict,
    Writer,
};

const COMMUNITY: CommunityId = CommunityId([3; 16]);

/// So small that one commit in four needs several messages.
const PAYLOAD_MAX: usize = 64;

/// What happened in a run.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) terms: usize,
    pub(super) confirmed: usize,
    pub(super) void: usize,
    pub(super) unanswered: usize,
    pub(super) deposed: usize,
    pub(super) left: usize,
    /// Commits of several messages.
    pub(super) long: usize,
}

impl Counts {
    pub(super) fn add(&mut self, more: &Self) {
        self.terms += more.terms;
        self.confirmed += more.confirmed;
        self.void += more.void;
        self.unanswered += more.unanswered;
        self.deposed += more.deposed;
        self.left += more.left;
        self.long += more.long;
    }
}

/// The name of a commit: which term, and its number in it. Terms are numbered over all brokers.
type Name = (usize, u64);

/// An append that has not reached the log.
#[derive(Clone)]
struct Sent {
    broker: usize,
    /// `None` for an attempt to lead, with the position behind it otherwise.
    opens: Option<Position>,
    /// The term of the sender. A broker takes no answer to an earlier one.
    term: usize,
    attempt: Attempt,
}

struct Answer {
    sent: Sent,
    is_done: bool,
}

struct Broker {
    position: Position,
    leads: Option<Leader>,
    /// It waits for the answer to its attempt to lead.
    is_candidate: bool,
    answers: VecDeque<Answer>,
}

struct Leader {
    term: usize,
    writer: Writer,
    submitted: u64,
    confirmed: Ticket,
}

pub(super) struct World {
    seed: u64,
    rng: Rng,
    now: u64,
    log: Vec<Bytes>,
    on_the_way: Vec<Sent>,
    brokers: Vec<Broker>,
    confirmed: Vec<Name>,
    counts: Counts,
    /// No message or answer is late or missing any more.
    is_calm: bool,
}

impl World {
    /// Runs that many steps with faults, then without until a broker has committed, and checks what is
    /// in the log. The error names the seed.
    pub(super) fn run(seed: u64, steps: usize) -> Result<Counts, String> {
        let founded = Position::default();
        let stamp = Stamp::default();
        let founded = founded.next_message(Kind::Founded, stamp).encode(COMMUNITY);
        let broker = |_| Broker {
            position: Position::default(),
            leads: None,
            is_candidate: false,
            answers: VecDeque::new(),
        };
        let mut world = Self {
            seed,
            rng: Rng::with_seed(seed),
            now: 0,
            log: vec![founded],
            on_the_way: Vec::new(),
            brokers: (0..3).map(broker).collect(),
            confirmed: Vec::new(),
            counts: Counts::default(),
            is_calm: false,
        };
        for _ in 0..steps {
            world.step()?;
        }
        world.is_calm = true;
        let (before, mut steps) = (world.confirmed.len(), 0);
        while world.confirmed.len() < before + 10 {
            world.step()?;
            steps += 1;
            if steps > 100_000 {
                return Err(world.problem("no broker commits"));
            }
        }
        world.check()?;
        world.counts.confirmed = world.confirmed.len();
        Ok(world.counts)
    }

    fn problem(&self, what: impl std::fmt::Display) -> String {
        format!("{what}; again with TIDINGS_CLUSTER_SEED={}", self.seed)
    }

    fn chance(&mut self, per_mille: u32) -> bool {
        !self.is_calm && self.rng.u32(..1000) < per_mille
    }

    fn step(&mut self) -> Result<(), String> {
        self.now += 1;
        let broker = self.rng.usize(..self.brokers.len());
        match self.rng.u32(..10) {
            0..3 => self.deliver(),
            3..5 => self.take_answer(broker),
            _ if self.brokers[broker].leads.is_some() => self.lead(broker)?,
            _ => self.follow(broker)?,
        }
        Ok(())
    }

    /// An append reaches the log, in any order.
    fn deliver(&mut self) {
        if self.on_the_way.is_empty() {
            return;
        }
        let sent = self.on_the_way.swap_remove(self.rng.usize(..self.on_the_way.len()));
        if self.chance(50) {
            // Its sender gets no answer, and it arrives later.
            self.counts.unanswered += 1;
            self.on_the_way.push(sent.clone());
            self.answer(sent, false);
            return;
        }
        let is_done = sent.attempt.slot.0 == self.log.len() as u64 + 1;
        if is_done {
            self.log.push(sent.attempt.bytes.clone());
        }
        let is_lost = self.chance(50);
        self.answer(sent, is_done && !is_lost);
    }

    fn answer(&mut self, sent: Sent, is_done: bool) {
        let answers = &mut self.brokers[sent.broker].answers;
        answers.push_back(Answer { sent, is_done });
        if self.rng.bool() && !self.is_calm {
            let at = self.rng.usize(..answers.len());
            answers.swap(0, at);
        }
    }

    fn take_answer(&mut self, broker: usize) {
        let this = &mut self.brokers[broker];
        let Some(Answer { sent, is_done }) = this.answers.pop_front() else { return };
        let Attempt { slot, round, .. } = sent.attempt;
        match (sent.opens, &mut this.leads) {
            (Some(opened), None) if this.is_candidate => {
                this.is_candidate = false;
                // An attempt without an answer may be in the log. Then this term has no leader.
                if is_done {
                    self.counts.terms += 1;
                    this.leads = Some(Leader {
                        term: sent.term,
                        writer: Writer::new(COMMUNITY, opened, PAYLOAD_MAX),
                        submitted: 0,
                        confirmed: Ticket(0),
                    });
                }
            }
            (None, Some(leader)) if leader.term == sent.term => {
                if is_done {
                    leader.writer.acknowledged(slot, round);
                } else {
                    leader.writer.unanswered(round);
                }
            }
            _ => {}
        }
    }

    /// Reads the next message, or tries to lead.
    fn follow(&mut self, broker: usize) -> Result<(), String> {
        let at_end = self.brokers[broker].position.slot.0 == self.log.len() as u64;
        let leaders = self.brokers.iter().filter(|broker| broker.leads.is_some()).count();
        let opens = if self.is_calm { leaders == 0 && at_end } else { self.chance(20) };
        let this = &mut self.brokers[broker];
        if opens && !this.is_candidate {
            this.is_candidate = true;
            let stamp = Stamp { moment: self.now, unix_ms: 0 };
            let message = this.position.next_message(Kind::Opened, stamp);
            // The name of the broker makes its bytes differ from those of another candidate.
            let message =
                Message { payload: vec![u8::try_from(broker).unwrap()].into(), ..message };
            let bytes = message.encode(COMMUNITY);
            let mut opened = this.position;
            opened.take(&message, &bytes);
            let attempt = Attempt { slot: message.slot, round: 0, bytes };
            let term = usize::try_from(self.now).unwrap();
            self.on_the_way.push(Sent { broker, opens: Some(opened), term, attempt });
            return Ok(());
        }
        let Some(bytes) = self.log.get(usize::try_from(this.position.slot.0).unwrap()) else {
            return Ok(());
        };
        let slot = this.position.slot.next();
        let read = this.position.read(COMMUNITY, slot, bytes);
        read.map(drop).map_err(|fault| self.problem(fault))
    }

    /// Commits, sends and reads as a leader.
    fn lead(&mut self, broker: usize) -> Result<(), String> {
        let leaves = self.chance(3);
        let stamp = Stamp { moment: self.now, unix_ms: 0 };
        let reads_on = !self.chance(100);
        let commit = self.rng.bool().then(|| self.rng.usize(1..100));
        let Some(leader) = &mut self.brokers[broker].leads else { return Ok(()) };
        let writer = &mut leader.writer;
        if let Some(ended) = writer.ended() {
            self.counts.deposed += usize::from(matches!(ended, Ended::Deposed(_)));
            self.counts.left += usize::from(ended == Ended::Left);
            self.brokers[broker].leads = None;
            return match ended {
                Ended::Fault(fault) => Err(self.problem(fault)),
                Ended::Deposed(_) | Ended::Left => Ok(()),
            };
        }
        if let Some(slot) = writer.read_from() {
            match self.log.get(usize::try_from(slot.0 - 1).unwrap()).filter(|_| reads_on) {
                Some(bytes) => writer.read(slot, bytes),
                None => writer.read_to_end(),
            }
        } else if let Some(attempt) = writer.poll(stamp) {
            self.on_the_way.push(Sent { broker, opens: None, term: leader.term, attempt });
        } else if leaves {
            writer.leave();
        } else if let Some(filler) = commit.filter(|_| !writer.is_leaving()) {
            leader.submitted += 1;
            self.counts.long += usize::from(filler > PAYLOAD_MAX);
            let record = format!("{} {} {}", leader.term, leader.submitted, "x".repeat(filler));
            let mut frames = Vec::new();
            Frame::Journal { records: vec![record] }.encode(&mut frames);
            assert_eq!(writer.submit(frames.into()), Ticket(leader.submitted));
        }
        let confirmed = leader.confirmed.0 + 1..=writer.committed().0;
        leader.confirmed = writer.committed();
        self.confirmed.extend(confirmed.map(|number| (leader.term, number)));
        Ok(())
    }

    /// Reads the whole log as a new broker would, and looks for every confirmed commit.
    fn check(&mut self) -> Result<(), String> {
        let commits = self.replay().map_err(|problem| self.problem(problem))?;
        let mut last = BTreeMap::new();
        let mut found = BTreeSet::new();
        for (term, number) in commits {
            if !found.insert((term, number)) {
                return Err(self.problem(format!("commit {number} of term {term} is there twice")));
            }
            if last.insert(term, number).unwrap_or(0) + 1 != number {
                return Err(self.problem(format!("commit {number} of term {term} has no order")));
            }
        }
        match self.confirmed.iter().find(|name| !found.contains(name)) {
            Some((term, number)) => {
                Err(self
                    .problem(format!("commit {number} of term {term} was confirmed and is lost")))
            }
            None => Ok(()),
        }
    }

    fn replay(&mut self) -> Result<Vec<Name>, String> {
        let (mut position, mut commit, mut commits) =
            (Position::default(), BytesMut::new(), Vec::new());
        for (slot, bytes) in (1..).map(Slot).zip(&self.log) {
            let read = position.read(COMMUNITY, slot, bytes).map_err(|fault| fault.to_string())?;
            let Verdict::Valid(message) = read else {
                self.counts.void += 1;
                continue;
            };
            if message.kind != Kind::Frames {
                commit.clear();
                continue;
            }
            commit.extend_from_slice(&message.payload);
            if message.more {
                continue;
            }
            let frames = Frame::decode_all(commit.split().freeze());
            for frame in frames.map_err(|error| error.to_string())? {
                let Frame::Journal { records } = frame else { unreachable!("only these are sent") };
                let mut words = records[0].split(' ');
                let term = words.next().unwrap().parse().unwrap();
                commits.push((term, words.next().unwrap().parse().unwrap()));
            }
        }
        Ok(commits)
    }
}
