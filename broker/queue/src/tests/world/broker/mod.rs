//! The group's actor in the simulation: writes records, sends the outputs that depend on them,
//! crashes at any point, and restarts from what was written.

mod crash;
mod unfinished_input;

use std::collections::{BTreeMap, VecDeque};

use tidings_protocol::{JOB_DONE_TOPIC, Seq, Slot};

pub(super) use self::unfinished_input::{UnfinishedInput, is_repeated};
use super::commands::{CommandOrigin, requester_mut};
use super::disk::CrashKind;
use super::output_queue::{PendingOutput, SimulatedOutput};
use super::promises::{BrokenPromise, CheckResult, Promise};
use super::task::ReceivedTask;
use super::{LEASE_MS, WAITER_CONN, World, WorldEvent, topic};
use crate::fuzzing::simulated_pages::SimulatedPages;
use crate::moment::Moment;
use crate::record::snapshot::SnapshotItem;
use crate::record::{Decision, GroupRecord};
use crate::texts::{TextError, TextReply, TextRequest};
use crate::{Group, Input, Output, TaskMessage};

/// One of this many writes is the last of its broker.
const WRITES_PER_CRASH: u32 = 2500;
/// Records after which a snapshot is written, and the most parts of it that are written together.
const SNAPSHOT_AFTER: u64 = 400;
const SNAPSHOT_PIECE: usize = 64;
/// While texts are paged, the writes of the broker for each part of a snapshot. Then many entries
/// end before they are in the snapshot.
const WRITES_PER_PIECE: u32 = 32;

/// One of this many reads of texts fails, and one of this many writes. A group that cannot read a
/// text stops, and its broker is restarted.
const TEXT_READS_PER_FAILURE: u32 = 1000;
const TEXT_WRITES_PER_FAILURE: u32 = 16;
/// Latest reply about texts.
const TEXT_MS_MAX: u64 = 2_000;

/// One of this many pieces is left to a committer, which writes it before the next sync.
const PIECES_PER_COMMITTER_WRITE: u32 = 4;

/// One of this many worker commands arrives while the broker is briefly busy, so that others may
/// arrive, too.
const COMMANDS_PER_DELAY: u32 = 16;
const BUSY_MS_MAX: u64 = 20;

/// A planned crash of the broker.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlannedCrash {
    /// The number of writes until the crash.
    pub(super) writes: u64,
    pub(super) end: CrashKind,
    /// Whether the last write still reached the operating system.
    pub(super) is_written: bool,
}

/// The current broker, with what remains of earlier ones.
pub(super) struct Broker {
    pub(super) group: Group,
    pub(super) state: BrokerState,
    /// Increased by each start, so that events of an earlier start are recognised.
    start_number: u64,
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
    pub(super) start_end: u64,
    is_syncing: bool,
    /// Start of the newest snapshot, and the number of records when it was complete.
    snapshot: (u64, u64),
    /// Start of the snapshot in progress.
    snapshot_begin: u64,
    pub(super) pending_outputs: VecDeque<PendingOutput>,
    /// Inputs without a confirmation that they are safe; their senders repeat them after a crash.
    pub(super) unsafe_inputs: VecDeque<(u64, Input, CommandOrigin)>,
    /// Where texts are, if not in memory.
    pub(super) pages: SimulatedPages,
    /// Commands without an answer, and when they arrived.
    pub(super) origins: BTreeMap<Slot, (CommandOrigin, Moment)>,
    last_slot: u64,
    /// Inputs with outputs that have not left, because they wait for texts.
    pub(super) unfinished: Vec<UnfinishedInput>,
}

/// State of the broker.
#[derive(Debug)]
pub(super) enum BrokerState {
    Running,
    /// Paused, or (`elapsed_unknown`) stopped because its disk is full. Input waits.
    Paused {
        elapsed_unknown: bool,
        inbox: VecDeque<(Input, CommandOrigin)>,
    },
    /// Crashed. Commands of an operator wait for the next start.
    Down {
        backlog: VecDeque<(Input, CommandOrigin)>,
    },
}

/// The records of one input, which are written completely or not at all.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) records: Vec<GroupRecord>,
    /// Number after its last record.
    end: u64,
}

impl Broker {
    pub(super) fn new(group: Group) -> Self {
        Self {
            group,
            state: BrokerState::Running,
            start_number: 0,
            moment: (Moment(0), Moment(0)),
            ticked: Moment(0),
            log: VecDeque::new(),
            appended: 0,
            written: 0,
            safe: 0,
            start_end: 0,
            is_syncing: false,
            snapshot: (0, 0),
            snapshot_begin: 0,
            pending_outputs: VecDeque::new(),
            unsafe_inputs: VecDeque::new(),
            pages: SimulatedPages::default(),
            origins: BTreeMap::new(),
            last_slot: 0,
            unfinished: Vec::new(),
        }
    }

    /// The number of its current start.
    pub(super) fn start_number(&self) -> u64 {
        self.start_number
    }

    /// Reading of its clock.
    pub(super) fn moment(&self, now: Moment) -> Moment {
        self.moment.0 + now.since(self.moment.1)
    }

    /// The true time at a moment of its clock.
    fn true_time(&self, moment: Moment) -> Moment {
        self.moment.1 + moment.since(self.moment.0)
    }

    /// Gives a command a slot of its own, by which its answer is recognised.
    fn number(&mut self, input: &mut Input, origin: &CommandOrigin, now: Moment) {
        if let Some(requester) = requester_mut(input)
            && requester.conn != WAITER_CONN
        {
            self.last_slot += 1;
            requester.slot = Slot::numbered(self.last_slot);
            self.origins.insert(requester.slot, (origin.clone(), now));
        }
    }

    /// Time of the group's next deadline.
    pub(super) fn deadline(&self) -> Option<Moment> {
        let is_running = matches!(self.state, BrokerState::Running);
        let deadline = self.group.deadline().filter(|_| is_running)?;
        Some(self.moment.1 + deadline.since(self.moment.0))
    }

    /// Number of batches from a mark on.
    fn batches_after(&self, mark: u64) -> usize {
        self.log.len() - self.log.partition_point(|batch| batch.end <= mark)
    }

    fn append(&mut self, records: Vec<GroupRecord>) {
        self.appended += records.len() as u64;
        self.log.push_back(Batch { records, end: self.appended });
    }

    /// Everything before `upto` is durable.
    fn mark_safe(&mut self, upto: u64) {
        self.safe = self.safe.max(upto);
        self.written = self.written.max(upto);
        self.trim_log();
    }

    /// Removes the log before the newest durable snapshot.
    fn trim_log(&mut self) {
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
    pub(super) fn feed(&mut self, input: Input, origin: CommandOrigin) -> CheckResult {
        match &mut self.broker.state {
            BrokerState::Running
                if self.is_faulty
                    && origin.is_of_worker()
                    && self.rng.u32(0..COMMANDS_PER_DELAY) == 0 =>
            {
                let busy_ms = self.rng.u64(0..BUSY_MS_MAX);
                self.pause_for(false, busy_ms);
                self.feed(input, origin)
            }
            BrokerState::Running => self.handle(vec![(input, origin)]),
            BrokerState::Paused { inbox, .. } => {
                inbox.push_back((input, origin));
                Ok(())
            }
            BrokerState::Down { backlog } => {
                if is_repeated(&input) {
                    backlog.push_back((input, origin));
                }
                Ok(())
            }
        }
    }

    /// Passes inputs that arrived together to the group.
    fn handle(&mut self, commands: Vec<(Input, CommandOrigin)>) -> CheckResult {
        let moment = self.broker.moment(self.now);
        let mut inputs = Vec::new();
        for (mut input, mut origin) in commands {
            self.judge_part(&mut origin);
            self.note(|| match &input {
                // Neither the wall clock nor the order of texts, which is random, may matter.
                Input::Start { run, elapsed_unknown, .. } => {
                    format!("<- start run={run} elapsed_unknown={elapsed_unknown}")
                }
                Input::Texts(TextReply::Read { number, .. }) => format!("<- texts of {number}"),
                input => format!("<- {input:?}"),
            });
            self.order += 1;
            self.expect(&input);
            if matches!(input, Input::Tick) {
                self.broker.ticked = moment;
            }
            self.broker.number(&mut input, &origin, self.now);
            self.broker.unfinished.push(UnfinishedInput::new(&input, origin, self.order));
            inputs.push(input);
        }
        match (inputs.pop(), inputs.is_empty()) {
            (Some(input), true) => self.broker.group.handle(input, moment),
            (last, _) => {
                inputs.extend(last);
                self.broker.group.handle_all(inputs, moment);
            }
        }
        self.order += 1;
        let order = self.order;
        for unfinished in &mut self.broker.unfinished {
            unfinished.note_progress(&self.broker.group, self.now, order);
        }
        if self.broker.group.problem().is_some() {
            // An operator restarts the broker.
            return self.crash();
        }
        let (mut records, mut outputs, mut released) = (Vec::new(), Vec::new(), None);
        while let Some(output) = self.broker.group.poll() {
            match output {
                Output::Record(record) => {
                    if let Decision::Released { member, .. } = record.decision {
                        released = Some(member);
                    }
                    let is_whole = !is_without_text(&record.decision);
                    Promise::RecordsSuffice
                        .holds(is_whole, || "a record was written without its text".to_owned())?;
                    records.push(record);
                }
                Output::Task { conn, task } => {
                    let received = self.read(task, released.is_some())?;
                    outputs.push(SimulatedOutput::Task { conn, received, to: released.take() });
                }
                Output::Answer { requester, answer } if requester.conn == WAITER_CONN => {
                    outputs.push(SimulatedOutput::Ended(answer));
                }
                Output::Answer { requester, answer } => {
                    let asked = self.broker.origins.remove(&requester.slot);
                    let (origin, at) = asked.unwrap_or((CommandOrigin::Nothing, self.now));
                    outputs.push(SimulatedOutput::Answer { origin, answer, at });
                }
                Output::Publish { serial, topic, payload } => {
                    let payload = payload.to_string();
                    if topic == JOB_DONE_TOPIC {
                        self.passes.end_is_decided(&payload);
                    }
                    outputs.push(SimulatedOutput::Announce { serial, topic, payload });
                }
                Output::RequestTopicHeads { job } => {
                    let heads = [(topic(), Seq(self.next_seq))].into();
                    self.broker.group.handle(Input::TopicHeads { job, heads }, moment);
                }
                Output::JobNameChanged { name, exists: true } => {
                    self.job_names.insert(name);
                }
                Output::JobNameChanged { name, exists: false } => {
                    self.job_names.remove(&name);
                }
                Output::Notice(_) => {}
                Output::Texts(request) => self.execute(request),
                Output::Deleted => unreachable!("the simulated group is never deleted"),
            }
        }
        let (done, unfinished) = std::mem::take(&mut self.broker.unfinished)
            .into_iter()
            .partition::<Vec<_>, _>(|input| input.is_finished(&self.broker.group));
        self.broker.unfinished = unfinished;
        for input in &done {
            self.note_opened(input);
        }
        let mut unsent: Vec<_> = done.iter().filter_map(UnfinishedInput::taken).collect();
        let again = done.into_iter().filter_map(UnfinishedInput::repeated).collect();
        unsent.append(&mut outputs);
        self.check_suspects()?;
        self.write(records, unsent, again)
    }

    /// The time of a pass counts from when its job is opened, which may wait for texts.
    fn note_opened(&mut self, input: &UnfinishedInput) {
        let (Input::OpenJob { name, settings, .. }, Some((at, _))) = (&input.input, input.at)
        else {
            return;
        };
        let opened = self.broker.moment(at);
        let pass = self.passes.find_mut(name.as_ref());
        pass.ends = settings.time_ms_max.filter(|_| !pass.marred).map(|ms| opened + ms);
    }

    /// Reads a released task; `is_new` if it was released just now. Checks that its release was
    /// allowed.
    fn read(&mut self, task: TaskMessage, is_new: bool) -> Result<ReceivedTask, BrokenPromise> {
        self.order += 1;
        let released = if is_new {
            self.released.insert(task.id.clone(), (self.order, self.now));
            (self.order, self.now)
        } else {
            self.released.get(&task.id).copied().unwrap_or_default()
        };
        // A task that waited for the text of another entry was sent earlier.
        let sent_at = self.broker.true_time(Moment(task.clock_ms));
        let mut received = ReceivedTask::read(task, sent_at, released);
        // A repair waits and is released as an entry without a job.
        let job = received.job.as_deref();
        if job.is_some_and(|name| self.passes.repairs(name, &received)) {
            received.job = None;
        }
        if is_new {
            self.totals.releases += 1;
            self.hosts.rules.released(received.id.entry);
            Self::check_filter(&received)?;
            let is_named = self.announced.contains(&received.url);
            self.passes.check_release(&received, is_named, self.broker.ticked)?;
            self.check_never_list(&received)?;
        }
        Ok(received)
    }

    /// Starts writing the records of an input.
    fn write(
        &mut self,
        records: Vec<GroupRecord>,
        unsent: Vec<SimulatedOutput>,
        again: Vec<(Input, CommandOrigin)>,
    ) -> CheckResult {
        let broker = &mut self.broker;
        let is_write = !records.is_empty();
        // Pieces that are left to a committer are written in order.
        let is_next = broker.written == broker.appended;
        if is_write {
            broker.append(records);
        }
        let mark = broker.appended;
        broker
            .pending_outputs
            .extend(unsent.into_iter().map(|unsent| PendingOutput::new(mark, unsent)));
        broker.unsafe_inputs.extend(again.into_iter().map(|(input, origin)| (mark, input, origin)));
        if is_write && self.is_last_write() {
            return self.crash();
        }
        if is_next && !(self.is_faulty && self.rng.u32(0..PIECES_PER_COMMITTER_WRITE) == 0) {
            self.broker.written = mark;
        }
        let is_due = self.broker.appended - self.broker.snapshot.1 > SNAPSHOT_AFTER;
        if is_due || self.broker.group.is_snapshotting() {
            self.continue_snapshot();
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
                let (start_number, upto) = (self.broker.start_number, self.broker.appended);
                self.schedule(slow_ms, WorldEvent::Synced { start_number, upto });
                return Ok(());
            }
            self.broker.mark_safe(self.broker.appended);
        }
        self.send()
    }

    /// The disk has synced everything before `upto`.
    pub(super) fn synced(&mut self, start_number: u64, upto: u64) -> CheckResult {
        if start_number != self.broker.start_number {
            return Ok(());
        }
        self.broker.mark_safe(upto);
        self.broker.is_syncing = false;
        self.send()?;
        self.write(Vec::new(), Vec::new(), Vec::new())
    }

    /// Executes a request about texts. The reply comes later, so replies come in any order.
    fn execute(&mut self, request: TextRequest) {
        let is_failing = self.is_faulty && !self.is_scripted && self.broker.safe > 0;
        let is_write = matches!(request, TextRequest::Write { .. });
        self.broker.pages.is_full =
            is_write && is_failing && self.text_rng.u32(0..TEXT_WRITES_PER_FAILURE) == 0;
        let mut reply = self.broker.pages.execute(request);
        if let TextReply::Read { texts, .. } = &mut reply
            && is_failing
            && self.text_rng.u32(0..TEXT_READS_PER_FAILURE) == 0
        {
            self.totals.unreadable_texts += 1;
            let index = self.text_rng.usize(..texts.len());
            match &mut texts[index] {
                Ok(text) if self.text_rng.bool() => {
                    // The header of the entry, which is checked.
                    let byte = self.text_rng.usize(..8);
                    text[byte] ^= self.text_rng.u8(1..);
                }
                text => *text = Err(TextError::new("input/output error")),
            }
        }
        let late_ms = match self.text_rng.u32(0..64) {
            0 if self.is_faulty => self.text_rng.u64(..TEXT_MS_MAX),
            1..16 if self.is_faulty => self.text_rng.u64(..20),
            _ => self.text_rng.u64(..3),
        };
        let start_number = self.broker.start_number;
        self.schedule(late_ms, WorldEvent::TextsReplied { start_number, reply });
    }

    /// Writes a part of a snapshot between other records.
    fn continue_snapshot(&mut self) {
        let is_slow = self.nature.paging.is_some() && self.text_rng.u32(0..WRITES_PER_PIECE) > 0;
        if is_slow || self.broker.group.is_snapshot_waiting() {
            return;
        }
        let moment = self.broker.moment(self.now);
        let mut records = Vec::new();
        let write = |decision| records.push(GroupRecord { at: moment, decision });
        let is_whole = if self.broker.group.is_snapshotting() {
            self.broker.group.continue_snapshot(self.rng.usize(1..SNAPSHOT_PIECE), write)
        } else {
            self.broker.snapshot_begin = self.broker.appended;
            let stamp = self.machine.stamp(self.now, moment);
            self.broker.group.begin_snapshot(stamp, write);
            false
        };
        if !records.is_empty() {
            self.broker.append(records);
        }
        while let Some(output) = self.broker.group.poll() {
            let Output::Texts(request) = output else { unreachable!("it decides nothing") };
            self.execute(request);
        }
        if is_whole {
            self.broker.snapshot = (self.broker.snapshot_begin, self.broker.appended);
        }
    }

    /// Whether the broker crashes with this write.
    fn is_last_write(&mut self) -> bool {
        if self.broker.safe == 0 {
            return false; // Before anything is safe, no client knows the group.
        }
        if let Some(doom) = &mut self.planned_crash {
            doom.writes -= 1;
            return doom.writes == 0;
        }
        self.is_faulty && self.rng.u32(0..WRITES_PER_CRASH) == 0
    }

    /// Starts the group.
    pub(super) fn begin(&mut self, run: u64, elapsed_unknown: bool) -> CheckResult {
        self.fairness_check.restart();
        if elapsed_unknown {
            self.fairness_check.extend_all(self.now + LEASE_MS);
            self.priority_check.rest_all(self.now);
            self.outages.restart_rests(self.now);
        }
        let moment = self.broker.moment(self.now);
        let stamp = self.machine.stamp(self.now, moment);
        let local_member = self.local_worker.map(|index| self.workers[index].member);
        // A new `since` at each start; the group keeps the first one.
        let since = 1000 + run;
        self.handle(vec![(
            Input::Start { run, since, elapsed_unknown, stamp, local_member },
            CommandOrigin::Nothing,
        )])?;
        self.broker.start_end = self.broker.appended;
        Ok(())
    }

    /// Pauses the broker: it is stopped, or its disk is full.
    pub(super) fn pause_broker(&mut self) {
        if matches!(self.broker.state, BrokerState::Running) {
            self.totals.faults += 1;
            let elapsed_unknown = self.rng.bool();
            self.note(|| format!("-- paused, elapsed_unknown={elapsed_unknown}"));
            let still_ms = self.rng.u64(500..2 * LEASE_MS);
            self.pause_for(elapsed_unknown, still_ms);
        }
    }

    fn pause_for(&mut self, elapsed_unknown: bool, still_ms: u64) {
        self.broker.state = BrokerState::Paused { elapsed_unknown, inbox: VecDeque::new() };
        let start_number = self.broker.start_number;
        self.schedule(still_ms, WorldEvent::BrokerResumes { start_number });
    }

    /// Continues after a pause. Input that has arrived is handled before leases expire.
    pub(super) fn resume_broker(&mut self, start_number: u64) -> CheckResult {
        if start_number != self.broker.start_number {
            return Ok(());
        }
        let state = std::mem::replace(&mut self.broker.state, BrokerState::Running);
        let BrokerState::Paused { elapsed_unknown, mut inbox } = state else { return Ok(()) };
        if elapsed_unknown {
            self.begin(self.broker.group.run(), true)?;
        }
        // Consecutive commands of workers are read and applied together.
        while let Some((input, origin)) = inbox.pop_front() {
            let mut some = vec![(input, origin)];
            while some[0].1.is_of_worker()
                && let Some(next) = inbox.pop_front_if(|(_, origin)| origin.is_of_worker())
            {
                some.push(next);
            }
            match &mut self.broker.state {
                BrokerState::Running => self.handle(some)?,
                _ => some.into_iter().try_for_each(|(input, origin)| self.feed(input, origin))?,
            }
        }
        Ok(())
    }
}

/// Whether this part of a snapshot still lacks the entry that it is about.
fn is_without_text(decision: &Decision) -> bool {
    let Decision::SnapshotPart(item) = decision else { return false };
    matches!(&**item, SnapshotItem::Dormant(entries) if entries.is_empty())
}
