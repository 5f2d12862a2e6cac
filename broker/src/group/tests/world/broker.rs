//! The group's actor in the simulation: writes records, sends the outputs that depend on them,
//! crashes at any point, and restarts from what was written.

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

/// One of this many writes is the last of its broker.
const LAST_WRITE: u32 = 2500;
/// Records after which a snapshot is written, and the most parts of it that are written together.
const SNAPSHOT_AFTER: u64 = 400;
const SNAPSHOT_PIECE: usize = 64;

/// One of this many pieces is left to a committer, which writes it before the next sync.
const LEFT_TO_COMMITTER: u32 = 4;

/// One of this many worker commands arrives while the broker is briefly busy, so that others may
/// arrive, too.
const BUSY: u32 = 16;
const BUSY_MS_MAX: u64 = 20;

/// A planned crash of the broker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Doom {
    /// The number of writes until the crash.
    pub(super) writes: u64,
    pub(super) end: End,
    /// Whether the last write still reached the operating system.
    pub(super) is_written: bool,
}

/// The current broker, with what remains of earlier ones.
pub(super) struct Broker {
    pub(super) group: Group,
    pub(super) state: Running,
    /// Increased by each start, so that events of an earlier start are recognised.
    life: u64,
    /// A moment of the broker's clock, and the true time of it.
    moment: (Moment, Moment),
    /// Time of the last tick.
    ticked: Moment,
    /// The log from the start of its newest complete snapshot.
    log: VecDeque<Batch>,
    /// Number after the last record, after the last written one, after the last durable one, and
    /// after the last one of this start.
    pub(super) appended: u64,
    pub(super) written: u64,
    pub(super) safe: u64,
    pub(super) begun: u64,
    is_syncing: bool,
    /// Start of the newest snapshot, and the number of records when it was complete.
    snapshot: (u64, u64),
    /// Start of the snapshot in progress.
    snapshot_begin: u64,
    pub(super) unsent: VecDeque<Pending>,
    /// Inputs without a confirmation that they are safe; their senders repeat them after a crash.
    pub(super) unsafe_inputs: VecDeque<(u64, Input, Said)>,
}

/// State of the broker.
#[derive(Debug)]
pub(super) enum Running {
    Moves,
    /// Paused, or (`anew`) without room on its disk: input waits.
    Still {
        anew: bool,
        inbox: VecDeque<(Input, Said)>,
    },
    /// Crashed. Commands of an operator wait for the next start.
    Down {
        backlog: VecDeque<(Input, Said)>,
    },
}

/// The records of one input, which are written completely or not at all.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) records: Vec<Record>,
    /// Number after its last record.
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

    /// The number of its current start.
    pub(super) fn life(&self) -> u64 {
        self.life
    }

    /// Reading of its clock.
    pub(super) fn moment(&self, now: Moment) -> Moment {
        self.moment.0 + now.since(self.moment.1)
    }

    /// Time of the group's next deadline.
    pub(super) fn deadline(&self) -> Option<Moment> {
        let moves = matches!(self.state, Running::Moves);
        let deadline = self.group.deadline().filter(|_| moves)?;
        Some(self.moment.1 + deadline.since(self.moment.0))
    }

    /// Number of batches from a mark on.
    fn batches_after(&self, mark: u64) -> usize {
        self.log.len() - self.log.partition_point(|batch| batch.end <= mark)
    }

    fn append(&mut self, records: Vec<Record>) {
        self.appended += records.len() as u64;
        self.log.push_back(Batch { records, end: self.appended });
    }

    /// Everything before `upto` is durable.
    fn is_safe(&mut self, upto: u64) {
        self.safe = self.safe.max(upto);
        self.written = self.written.max(upto);
        self.cut();
    }

    /// Removes the log before the newest durable snapshot.
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
    /// Sends an input to the broker.
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

    /// Passes inputs that arrived together to the group.
    fn handle(&mut self, said: Vec<(Input, Said)>) -> Kept {
        let moment = self.broker.moment(self.now);
        let (mut unsent, mut again) = (Vec::new(), Vec::new());
        for (input, said) in &said {
            self.note(|| match input {
                // The trace leaves out the wall clock, which must make no difference.
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
                Output::Deleted => unreachable!("the simulated group is never deleted"),
            }
        }
        self.check_suspects()?;
        self.write(records, unsent, again)
    }

    /// Reads a released task; `is_new` if it was released just now. Checks that its release was
    /// allowed.
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

    /// Starts writing the records of an input.
    fn write(
        &mut self,
        records: Vec<Record>,
        unsent: Vec<Unsent>,
        again: Vec<(Input, Said)>,
    ) -> Kept {
        let broker = &mut self.broker;
        let is_write = !records.is_empty();
        // Pieces that are left to a committer are written in order.
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
            // Syncs mostly end at once, sometimes a little later, and rarely so late that much is
            // waiting.
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

    /// The disk has synced everything before `upto`.
    pub(super) fn synced(&mut self, life: u64, upto: u64) -> Kept {
        if life != self.broker.life {
            return Ok(());
        }
        self.broker.is_safe(upto);
        self.broker.is_syncing = false;
        self.send()?;
        self.write(Vec::new(), Vec::new(), Vec::new())
    }

    /// Writes a part of a snapshot between other records.
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

    /// Whether the broker crashes with this write.
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

    /// Crashes the broker during a write. Outputs that were not sent are lost.
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

    /// Restores the group from the log after a loss: the durable batches and `written` others survive.
    /// Returns its last start and the time of its newest record.
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
            // A second restored group is compared, because the clock of the first may continue at
            // an earlier moment.
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

    /// Starts the next broker.
    pub(super) fn start(&mut self, end: End, started: Stamp, last: Moment) -> Kept {
        if end == End::Power {
            self.machine.reboot(self.now);
        }
        let here = self.machine.stamp(self.now, Moment(0));
        self.broker.moment = (here.moment_after(&started, last), self.now);
        let anew = !started.is_same_boot(&here);
        if anew {
            // Whether their time has come depends on the wall clock, which may be wrong.
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

    /// Starts the group.
    pub(super) fn begin(&mut self, run: u64, anew: bool) -> Kept {
        self.turns.restart();
        if anew {
            self.turns.extend_all(self.now + LEASE_MS);
            self.ranks.rest_all(self.now);
        }
        let moment = self.broker.moment(self.now);
        let stamp = self.machine.stamp(self.now, moment);
        let own = self.own.map(|index| self.workers[index].member);
        // A new `since` at each start; the group keeps the first one.
        let since = 1000 + run;
        self.handle(vec![(Input::Start { run, since, anew, stamp, own }, Said::Nothing)])?;
        self.broker.begun = self.broker.appended;
        Ok(())
    }

    /// Pauses the broker: it is stopped, or its disk is full.
    pub(super) fn stand_still(&mut self) {
        if matches!(self.broker.state, Running::Moves) {
            self.totals.faults += 1;
            let anew = self.rng.bool();
            self.note(|| format!("-- paused, anew={anew}"));
            let still_ms = self.rng.u64(500..2 * LEASE_MS);
            self.pause_for(anew, still_ms);
        }
    }

    fn pause_for(&mut self, anew: bool, still_ms: u64) {
        self.broker.state = Running::Still { anew, inbox: VecDeque::new() };
        let life = self.broker.life;
        self.schedule(still_ms, Happening::Moves { life });
    }

    /// Continues after a pause. Input that has arrived is handled before leases expire.
    pub(super) fn move_again(&mut self, life: u64) -> Kept {
        if life != self.broker.life {
            return Ok(());
        }
        let state = std::mem::replace(&mut self.broker.state, Running::Moves);
        let Running::Still { anew, mut inbox } = state else { return Ok(()) };
        if anew {
            self.begin(self.broker.group.run(), true)?;
        }
        // Consecutive commands of workers are read and applied together.
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

/// Whether the sender repeats this input when it gets no confirmation.
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
