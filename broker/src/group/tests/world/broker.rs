//! The shell of the group: writes its records, lets out what rests on them, ends in the middle of
//! something, and begins again with what was written.

use std::collections::VecDeque;

use tidings_protocol::Seq;

use super::disk::{End, Survivors, survive};
use super::promises::{Broken, Kept, Promise};
use super::sending::{Pending, Unsent};
use super::task::Told;
use super::wish::Wish;
use super::words::Said;
use super::{Happening, LEASE_MS, WAITING, World, topic};
use crate::clock::{Moment, Stamp};
use crate::group::record::{Decision, Record};
use crate::group::tests::simulation::difference;
use crate::group::{Group, Input, JobAction, Output, Task};

/// Of so many writes one is the last of its broker.
const LAST_WRITE: u32 = 2500;
/// Records after which there is a snapshot, and how many parts of one are written together at most.
const SNAPSHOT_AFTER: u64 = 400;
const SNAPSHOT_PIECE: usize = 64;

/// Of so many pieces one is not written by its owner, but by a committer before the next sync.
const LEFT_TO_COMMITTER: u32 = 4;

/// One in so many words of workers comes while the broker is busy for a moment, in which others may come.
const BUSY: u32 = 16;
const BUSY_MS_MAX: u64 = 20;

/// When and how a broker is to end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Doom {
    /// With which write from now on.
    pub(super) writes: u64,
    pub(super) end: End,
    /// That write was handed to the system.
    pub(super) is_written: bool,
}

/// The one broker, and what is left of those before it.
pub(super) struct Broker {
    pub(super) group: Group,
    pub(super) state: Running,
    /// Raised with each start, so that nobody takes the end of what one did for another's.
    life: u64,
    /// A moment of the broker's clock, and when that was.
    moment: (Moment, Moment),
    /// When it has last let time decide.
    ticked: Moment,
    /// The log from its newest whole snapshot on.
    log: VecDeque<Batch>,
    /// The number after that of the last record, of the last one that outlives the process, of the last one that is
    /// safe, and of the last one of this start.
    pub(super) appended: u64,
    pub(super) written: u64,
    pub(super) safe: u64,
    pub(super) begun: u64,
    is_syncing: bool,
    /// Where the newest snapshot begins, and how many records there were when it was whole.
    snapshot: (u64, u64),
    /// Where the one begins that is being written.
    snapshot_begin: u64,
    pub(super) unsent: VecDeque<Pending>,
    /// What nobody was told that it is safe; whoever said it says it again.
    pub(super) unsafe_inputs: VecDeque<(u64, Input, Said)>,
}

/// Whether it does anything.
#[derive(Debug)]
pub(super) enum Running {
    Moves,
    /// Stopped, or (`anew`) without room on its disk: what comes waits.
    Still {
        anew: bool,
        inbox: VecDeque<(Input, Said)>,
    },
    /// Ended. What an operator wants waits for the next one.
    Down {
        backlog: VecDeque<(Input, Said)>,
    },
}

/// What one input led to: it is written as a whole, or not at all.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) records: Vec<Record>,
    /// The number after that of its last record.
    end: u64,
}

impl Broker {
    pub(super) fn new(group: Group) -> Self {
        Self {
            group,
            state: Running::Moves,
            life: 0,
            moment: (Moment(0), Moment(0)),
            ticked: Moment(0),
            log: VecDeque::new(),
            appended: 0,
            written: 0,
            safe: 0,
            begun: 0,
            is_syncing: false,
            snapshot: (0, 0),
            snapshot_begin: 0,
            unsent: VecDeque::new(),
            unsafe_inputs: VecDeque::new(),
        }
    }

    /// Which of its lives it is in.
    pub(super) fn life(&self) -> u64 {
        self.life
    }

    /// What its clock shows.
    pub(super) fn moment(&self, now: Moment) -> Moment {
        self.moment.0 + now.since(self.moment.1)
    }

    /// When time has something for it to decide.
    pub(super) fn deadline(&self) -> Option<Moment> {
        let moves = matches!(self.state, Running::Moves);
        let deadline = self.group.deadline().filter(|_| moves)?;
        Some(self.moment.1 + deadline.since(self.moment.0))
    }

    /// Batches from a mark on.
    fn batches_after(&self, mark: u64) -> usize {
        self.log.len() - self.log.partition_point(|batch| batch.end <= mark)
    }

    fn append(&mut self, records: Vec<Record>) {
        self.appended += records.len() as u64;
        self.log.push_back(Batch { records, end: self.appended });
    }

    /// Everything up to there is safe.
    fn is_safe(&mut self, upto: u64) {
        self.safe = self.safe.max(upto);
        self.written = self.written.max(upto);
        self.cut();
    }

    /// Cuts the log in front of the newest snapshot that is safe.
    fn cut(&mut self) {
        let (begin, end) = self.snapshot;
        if self.safe >= end {
            while self.log.front().is_some_and(|batch| batch.end <= begin) {
                self.log.pop_front();
            }
        }
    }
}

impl World {
    /// Somebody says something to the broker.
    pub(super) fn feed(&mut self, input: Input, said: Said) -> Kept {
        match &mut self.broker.state {
            Running::Moves
                if self.is_faulty && said.is_of_worker() && self.rng.u32(0..BUSY) == 0 =>
            {
                let busy_ms = self.rng.u64(0..BUSY_MS_MAX);
                self.pause_for(false, busy_ms);
                self.feed(input, said)
            }
            Running::Moves => self.handle(vec![(input, said)]),
            Running::Still { inbox, .. } => {
                inbox.push_back((input, said));
                Ok(())
            }
            Running::Down { backlog } => {
                if is_said_again(&input) {
                    backlog.push_back((input, said));
                }
                Ok(())
            }
        }
    }

    /// The group takes what was said together.
    fn handle(&mut self, said: Vec<(Input, Said)>) -> Kept {
        let moment = self.broker.moment(self.now);
        let (mut unsent, mut again) = (Vec::new(), Vec::new());
        for (input, said) in &said {
            self.note(|| match input {
                // The time of day is none of its business.
                Input::Start { run, anew, .. } => format!("<- start run={run} anew={anew}"),
                input => format!("<- {input:?}"),
            });
            self.order += 1;
            self.expect(input, moment);
            if matches!(input, Input::Tick) {
                self.broker.ticked = moment;
            }
            again.extend(is_said_again(input).then(|| (input.clone(), said.clone())));
            let (order, wishes) = (self.order, Wish::all_of(input));
            if !wishes.is_empty() {
                unsent.push(Unsent::Taken { order, wishes, at: self.now });
            }
        }
        let (mut inputs, mut said): (Vec<_>, VecDeque<_>) = said.into_iter().unzip();
        match (inputs.pop(), inputs.is_empty()) {
            (Some(input), true) => self.broker.group.handle(input, moment),
            (last, _) => {
                inputs.extend(last);
                self.broker.group.handle_all(inputs, moment);
            }
        }
        let (mut records, mut released) = (Vec::new(), None);
        while let Some(output) = self.broker.group.poll() {
            match output {
                Output::Record(record) => {
                    if let Decision::Released { member, .. } = record.decision {
                        released = Some(member);
                    }
                    records.push(record);
                }
                Output::Task { conn, task } => {
                    let told = self.read(task, released.is_some())?;
                    unsent.push(Unsent::Task { conn, told, to: released.take() });
                }
                Output::Answer { asked, answer } if asked.conn == WAITING => {
                    unsent.push(Unsent::Ended(answer));
                }
                Output::Answer { answer, .. } => {
                    let said = said.pop_front().unwrap_or(Said::Nothing);
                    unsent.push(Unsent::Answer { said, answer, at: self.now });
                }
                Output::Announce { serial, topic, payload } => {
                    unsent.push(Unsent::Announce { serial, topic, payload });
                }
                Output::AskHeads { job } => {
                    let heads = [(topic(), Seq(self.next_seq))].into();
                    self.broker.group.handle(Input::Heads { job, heads }, moment);
                }
                Output::JobName { name, known: true } => {
                    self.job_names.insert(name);
                }
                Output::JobName { name, known: false } => {
                    self.job_names.remove(&name);
                }
                Output::Deleted => unreachable!("nobody deletes it"),
            }
        }
        self.check_suspects()?;
        self.write(records, unsent, again)
    }

    /// A task is told of; whether it was released just now, and if so may be.
    fn read(&mut self, task: Task, is_new: bool) -> Result<Told, Broken> {
        self.order += 1;
        let released = if is_new {
            self.released.insert(task.id.clone(), (self.order, self.now));
            (self.order, self.now)
        } else {
            self.released.get(&task.id).copied().unwrap_or_default()
        };
        let mut told = Told::read(task, self.now, released);
        // A repair waits and is released as an entry without a job.
        told.job = told.job.filter(|name| !self.passes.repairs(name, &told.url));
        if is_new {
            self.totals.releases += 1;
            let is_named = self.named.contains(&told.url);
            self.passes.check_release(&told, is_named, self.broker.ticked)?;
        }
        Ok(told)
    }

    /// What one input led to is on its way to the disk.
    fn write(
        &mut self,
        records: Vec<Record>,
        unsent: Vec<Unsent>,
        again: Vec<(Input, Said)>,
    ) -> Kept {
        let broker = &mut self.broker;
        let is_write = !records.is_empty();
        // Nobody goes before what a committer is to write.
        let is_next = broker.written == broker.appended;
        if is_write {
            broker.append(records);
        }
        let mark = broker.appended;
        broker.unsent.extend(unsent.into_iter().map(|unsent| Pending::new(mark, unsent)));
        broker.unsafe_inputs.extend(again.into_iter().map(|(input, said)| (mark, input, said)));
        if is_write && self.is_last_write() {
            return self.crash();
        }
        if is_next && !(self.is_faulty && self.rng.u32(0..LEFT_TO_COMMITTER) == 0) {
            self.broker.written = mark;
        }
        let is_due = self.broker.appended - self.broker.snapshot.1 > SNAPSHOT_AFTER;
        if is_due || self.broker.group.is_in_snapshot() {
            self.take_stock();
        }
        if !self.broker.is_syncing && self.broker.safe < self.broker.appended {
            // Mostly at once, sometimes a little later, rarely so late that much is waiting.
            let slow_ms = match self.rng.u32(0..64) {
                0 if self.is_faulty => self.rng.u64(50..1000),
                1..8 => self.rng.u64(1..20),
                8..24 if self.is_faulty => self.rng.u64(1..50),
                _ => 0,
            };
            if slow_ms > 0 {
                self.broker.is_syncing = true;
                let (life, upto) = (self.broker.life, self.broker.appended);
                self.schedule(slow_ms, Happening::Synced { life, upto });
                return Ok(());
            }
            self.broker.is_safe(self.broker.appended);
        }
        self.send()
    }

    /// The disk has what was written until now.
    pub(super) fn synced(&mut self, life: u64, upto: u64) -> Kept {
        if life != self.broker.life {
            return Ok(());
        }
        self.broker.is_safe(upto);
        self.broker.is_syncing = false;
        self.send()?;
        self.write(Vec::new(), Vec::new(), Vec::new())
    }

    /// Writes a piece of what the group holds, between whatever else it writes.
    fn take_stock(&mut self) {
        let moment = self.broker.moment(self.now);
        let mut records = Vec::new();
        let write = |decision| records.push(Record { at: moment, decision });
        let is_whole = if self.broker.group.is_in_snapshot() {
            self.broker.group.snapshot_more(self.rng.usize(1..SNAPSHOT_PIECE), write)
        } else {
            self.broker.snapshot_begin = self.broker.appended;
            let stamp = self.machine.stamp(self.now, moment);
            self.broker.group.begin_snapshot(stamp, write);
            false
        };
        if !records.is_empty() {
            self.broker.append(records);
        }
        if is_whole {
            self.broker.snapshot = (self.broker.snapshot_begin, self.broker.appended);
        }
    }

    /// Whether the broker ends with this write.
    fn is_last_write(&mut self) -> bool {
        if self.broker.safe == 0 {
            return false; // Before anything is safe, nobody was told that there is a group.
        }
        if let Some(doom) = &mut self.doom {
            doom.writes -= 1;
            return doom.writes == 0;
        }
        self.is_faulty && self.rng.u32(0..LAST_WRITE) == 0
    }

    /// The broker ends, with whatever it was about to write. Nobody hears of what was not sent.
    pub(super) fn crash(&mut self) -> Kept {
        if matches!(self.broker.state, Running::Down { .. }) || self.broker.safe == 0 {
            return Ok(());
        }
        self.totals.faults += 1;
        self.totals.crashes += 1;
        let unsafe_batches = self.broker.batches_after(self.broker.safe);
        let written = unsafe_batches - self.broker.batches_after(self.broker.written);
        let (end, written, away_ms_max) = if let Some(doom) = self.doom.take() {
            (doom.end, if doom.is_written { unsafe_batches } else { written }, 500)
        } else {
            let is_power = self.nature.reboots && self.rng.bool();
            let end = if is_power { End::Power } else { End::Process };
            let away_ms_max = if self.rng.u32(0..4) > 0 { 2_000 } else { 60_000 };
            (end, self.rng.usize(written..=unsafe_batches), away_ms_max)
        };
        let (started, last) = self.lose_unwritten(end, written)?;
        let backlog = self.lose_unsent()?;
        self.broker.state = Running::Down { backlog };
        self.passes.iter_mut().for_each(|pass| pass.waits = 0);
        self.note(|| format!("-- {end:?} gone"));
        self.lose_everybody();
        let away_ms = self.rng.u64(..away_ms_max);
        self.schedule(away_ms, Happening::Starts { end, started, last });
        Ok(())
    }

    /// What is left of the log after so many of the batches that are not safe were handed to the
    /// system: the group is what a start makes of it. Its last start, and its newest moment.
    fn lose_unwritten(&mut self, end: End, written: usize) -> Result<(Stamp, Moment), Broken> {
        let moment = self.broker.moment(self.now);
        let broker = &mut self.broker;
        broker.life += 1;
        let safe = broker.log.len() - broker.batches_after(broker.safe);
        let log = broker.log.make_contiguous();
        let begin = log[0].end - log[0].records.len() as u64;
        let (safe, written) = (&log[..safe], &log[safe..safe + written]);
        let mut survivors = survive(Seq(begin + 1), safe, written, end, &mut self.rng);
        let upto = begin + survivors.records;
        let is_whole = log.iter().any(|batch| batch.end == upto) && upto >= broker.safe;
        Promise::RecordsSuffice.holds(is_whole, || {
            format!("{upto} records are left, and {} were safe", broker.safe)
        })?;
        if upto == broker.appended {
            // Not the one that goes on: its clock may go on at an earlier moment than this.
            let differs = difference(&mut broker.group, survivors.again(), moment);
            Promise::RecordsSuffice.holds(differs.is_none(), || format!("other {differs:?}"))?;
        }
        broker.log.truncate(broker.log.partition_point(|batch| batch.end <= upto));
        (broker.appended, broker.written, broker.safe) = (upto, upto, upto);
        broker.is_syncing = false;
        if upto < broker.snapshot.1 {
            broker.snapshot = (0, upto); // It is not whole, and says nothing.
        }
        let Survivors { group, started, last, .. } = survivors;
        broker.group = group;
        Ok((started, last))
    }

    /// Another broker goes on.
    pub(super) fn start(&mut self, end: End, started: Stamp, last: Moment) -> Kept {
        if end == End::Power {
            self.machine.reboot(self.now);
        }
        let here = self.machine.stamp(self.now, Moment(0));
        self.broker.moment = (here.moment_after(&started, last), self.now);
        let anew = !started.is_same_boot(&here);
        if anew {
            // The time of day says whether their time has come, and it may be wrong.
            self.hosts.forget_wishes();
            self.dues.forget_times();
            self.ranks.forget_times();
        }
        let state = std::mem::replace(&mut self.broker.state, Running::Moves);
        self.job_names = self.broker.group.job_names().cloned().collect();
        let unsent = self.broker.group.unsent();
        let unsent: Vec<_> =
            unsent.map(|(serial, topic, text)| (serial, topic, text.to_owned())).collect();
        for (serial, topic, payload) in unsent {
            self.hear(serial, topic, &payload)?;
        }
        self.begin(self.broker.group.run() + 1, anew)?;
        let Running::Down { backlog } = state else { return Ok(()) };
        backlog.into_iter().try_for_each(|(input, said)| self.feed(input, said))
    }

    /// The group begins to move.
    pub(super) fn begin(&mut self, run: u64, anew: bool) -> Kept {
        self.turns.restart();
        if anew {
            self.turns.extend_all(self.now + LEASE_MS);
            self.ranks.rest_all(self.now);
        }
        let moment = self.broker.moment(self.now);
        let stamp = self.machine.stamp(self.now, moment);
        let own = self.own.map(|index| self.workers[index].member);
        // Another one at each start, of which only the first counts.
        let since = 1000 + run;
        self.handle(vec![(Input::Start { run, since, anew, stamp, own }, Said::Nothing)])?;
        self.broker.begun = self.broker.appended;
        Ok(())
    }

    /// The broker stands still: stopped, or without room on its disk.
    pub(super) fn stand_still(&mut self) {
        if matches!(self.broker.state, Running::Moves) {
            self.totals.faults += 1;
            let anew = self.rng.bool();
            self.note(|| format!("-- stands still, anew={anew}"));
            let still_ms = self.rng.u64(500..2 * LEASE_MS);
            self.pause_for(anew, still_ms);
        }
    }

    fn pause_for(&mut self, anew: bool, still_ms: u64) {
        self.broker.state = Running::Still { anew, inbox: VecDeque::new() };
        let life = self.broker.life;
        self.schedule(still_ms, Happening::Moves { life });
    }

    /// It goes on: what has come is read before leases are expired.
    pub(super) fn move_again(&mut self, life: u64) -> Kept {
        if life != self.broker.life {
            return Ok(());
        }
        let state = std::mem::replace(&mut self.broker.state, Running::Moves);
        let Running::Still { anew, mut inbox } = state else { return Ok(()) };
        if anew {
            self.begin(self.broker.group.run(), true)?;
        }
        // What workers have said one after the other is read, and taken, together.
        while let Some((input, said)) = inbox.pop_front() {
            let mut some = vec![(input, said)];
            while some[0].1.is_of_worker()
                && let Some(next) = inbox.pop_front_if(|(_, said)| said.is_of_worker())
            {
                some.push(next);
            }
            match &mut self.broker.state {
                Running::Moves => self.handle(some)?,
                _ => some.into_iter().try_for_each(|(input, said)| self.feed(input, said))?,
            }
        }
        Ok(())
    }
}

/// Whoever is not told that this has happened says it again.
pub(super) fn is_said_again(input: &Input) -> bool {
    match input {
        Input::WithJob { what, .. } => *what != JobAction::Wait,
        Input::Events { .. }
        | Input::Operate { .. }
        | Input::Configure { .. }
        | Input::OpenJob { .. }
        | Input::CloseJob { .. }
        | Input::CancelJob { .. } => true,
        _ => false,
    }
}
