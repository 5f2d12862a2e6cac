//! The group: a queue with keys and delays, as a state machine. It knows no clock, socket or
//! runtime.
//!
//! The owner feeds it one [`Input`] with the current moment and calls [`Group::poll`] until that
//! returns `None`. Then it waits for the next input or for [`Group::deadline`], and at the deadline
//! it feeds [`Input::Tick`]. Each decision is first returned as an [`Output::Record`]. The outputs
//! after a record depend on it and may leave only after the record is written.
//!
//! ```text
//!             admitted              due, key free, credit
//!   event ───────────▶ delayed ──▶ waiting ───────────────▶ held ──ACK──▶ final (done, failed, ..)
//!                         ▲           ▲                      │
//!                         └───────────┴──NACK, lease expired─┤
//!                                                            └─ attempts or losses used up ─▶ dead
//! ```

mod admit;
mod apply;
pub mod commands;
mod completion;
pub mod config;
mod dead_letters;
mod dormant;
#[cfg(any(test, feature = "fuzzing"))]
mod dump;
mod endings;
pub mod entry;
mod explain;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod id_index;
pub mod interface;
pub mod job;
mod job_actions;
mod key_queue;
mod keys;
mod lease;
mod lifecycle;
mod manage;
mod member;
mod membership;
pub mod moment;
pub(crate) mod mutants;
mod operations;
pub mod pattern;
mod prefetch;
pub mod record;
mod release_order;
pub mod replay;
mod runs;
pub mod schedule;
pub mod scope;
mod seen_set;
pub mod snapshot;
pub mod task_list;
mod task_release;
mod task_reply;
pub mod texts;
mod timers;
pub mod top_keys;
mod url_index;
pub mod wall_clock;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hashbrown::HashMap;
use tidings_protocol::{GroupName, JobName, MemberId, ProtocolError, Seq, TopicName};

pub use self::config::GroupConfig;
use self::dead_letters::DeadLetters;
use self::dormant::{DormantEntries, DormantRef};
use self::entry::{ActiveEntry, EntryId, JobNumber};
pub use self::interface::{
    ConnId, GroupAnswer, GroupQuery, Input, JobOperation, Notice, Operation, Output, Requester,
    StagedLink, TaskMessage, WorkerReply,
};
use self::job::{JobState, Jobs};
use self::key_queue::CLOCK_GRAIN_MS;
use self::keys::Keys;
use self::member::{Member, Members};
use self::moment::Moment;
use self::mutants::Mutant;
use self::record::{Decision, GroupRecord};
use self::release_order::ReadyKeys;
use self::schedule::Schedules;
use self::seen_set::SeenSets;
use self::snapshot::{SnapshotItem, SnapshotProgress};
use self::texts::TextStore;
use self::timers::{Expiry, Timers, Wake};
use self::wall_clock::WallClock;

/// Seq of the first event of a topic.
const FIRST_SEQ: Seq = Seq(1);

/// Totals since the group was created, for status lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct GroupTotals {
    completed: u64,
    failed: u64,
    dead: u64,
    lost: u64,
    unkeyed: u64,
}

/// The state machine. The module's documentation says how to drive it.
#[derive(Debug)]
pub struct Group {
    name: GroupName,
    /// Rises with every start, so that no task id is used twice, even if a start finds an older
    /// copy of the log or none.
    run: u64,
    /// Identifies this group for its whole life: no other group of its name has had this number.
    /// `None` before the first start.
    since: Option<u64>,
    /// The worker that runs inside the broker's process.
    local_member: Option<MemberId>,
    config: GroupConfig,
    /// Active entries: held by a member, delayed, tried before or brought forward.
    active: HashMap<EntryId, Box<ActiveEntry>>,
    /// Sum of their memory costs.
    active_bytes: usize,
    /// Dormant entries, which only wait for their first release.
    dormant: DormantEntries,
    last_entry_id: EntryId,
    keys: Keys,
    ready: ReadyKeys,
    members: Members,
    jobs: Jobs,
    seen: SeenSets,
    /// The active entries that no member holds, by the fingerprint of their URL and sorted by id.
    /// An announcement brings these forward, together with the dormant ones.
    waiting_by_url: HashMap<u64, Vec<EntryId>>,
    /// Entries that wait for the next request of one member.
    pinned: BTreeMap<MemberId, BTreeSet<EntryId>>,
    /// For each feeding topic, the first seq that the group has not consumed.
    consumed: BTreeMap<TopicName, Seq>,
    /// Jobs with a count of zero that wait until the group has consumed all events
    /// published before that.
    completion_pending: BTreeSet<JobNumber>,
    /// Schedules: URLs with `every=`.
    schedules: Schedules,
    /// Entries and schedules that are due at a time of day.
    wall_clock: WallClock,
    /// Entries that the group gave up.
    dead_letters: DeadLetters,
    /// Connections that wait for the end of a pass. Not recorded.
    waiters: BTreeMap<JobNumber, Vec<Requester>>,
    /// While set, nothing is released.
    is_paused: bool,
    /// Nothing is released before this moment after a reboot. The last task of the worker in the
    /// broker's process may not have reached the disk, so the group does not know which keys rest.
    /// Not recorded.
    quiet_until: Option<Moment>,
    wakes: Timers<Wake>,
    expiries: Timers<Expiry>,
    totals: GroupTotals,
    /// Serial of the last event that the group published.
    last_serial: u64,
    /// Published events that may not be safe on their topics yet, by serial.
    unpublished: BTreeMap<u64, (&'static str, Box<str>)>,
    /// The newest event of this group on each of its own topics.
    published: BTreeMap<&'static str, Seq>,
    /// The snapshot in progress.
    snapshot: Option<SnapshotProgress>,
    /// The moment of the current input.
    now: Moment,
    /// A minute, and the number of dead letters for unusable events in it.
    unkeyed_dead_letters: (u64, u32),
    rng: fastrand::Rng,
    outputs: VecDeque<Output>,
}

impl Group {
    /// Creates an empty group. `run` must exceed that of every earlier start. `seed` seeds the
    /// random choices of the group.
    pub fn new(name: GroupName, run: u64, config: GroupConfig, seed: u64) -> Self {
        Self {
            name,
            run,
            since: None,
            local_member: None,
            config,
            active: HashMap::new(),
            active_bytes: 0,
            dormant: DormantEntries::default(),
            last_entry_id: 0,
            keys: Keys::default(),
            ready: ReadyKeys::default(),
            members: Members::default(),
            jobs: Jobs::default(),
            seen: SeenSets::default(),
            waiting_by_url: HashMap::new(),
            pinned: BTreeMap::new(),
            consumed: BTreeMap::new(),
            completion_pending: BTreeSet::new(),
            schedules: Schedules::default(),
            wall_clock: WallClock::default(),
            dead_letters: DeadLetters::default(),
            waiters: BTreeMap::new(),
            is_paused: false,
            quiet_until: None,
            wakes: Timers::default(),
            expiries: Timers::default(),
            totals: GroupTotals::default(),
            last_serial: 0,
            unpublished: BTreeMap::new(),
            published: BTreeMap::new(),
            snapshot: None,
            now: Moment(0),
            unkeyed_dead_letters: (0, 0),
            rng: fastrand::Rng::with_seed(seed),
            outputs: VecDeque::new(),
        }
    }

    /// Returns the group's name.
    pub fn name(&self) -> &GroupName {
        &self.name
    }

    /// Returns the run that new task ids carry.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Returns the number that identifies this group for its whole life. Together with it, an entry
    /// id is unique for ever.
    pub fn since(&self) -> Option<u64> {
        self.since
    }

    /// Returns the worker that runs inside the broker's process.
    pub fn local_member(&self) -> Option<MemberId> {
        self.local_member
    }

    /// Returns the settings.
    pub fn config(&self) -> &GroupConfig {
        &self.config
    }

    /// Returns the published events that may not be on their topics: serial, topic, event.
    pub fn unpublished(&self) -> impl Iterator<Item = (u64, &'static str, &str)> {
        self.unpublished.iter().map(|(serial, (topic, payload))| (*serial, *topic, &**payload))
    }

    /// Returns the seq after the group's newest known event on one of its own topics.
    pub fn next_own_seq(&self, topic: &str) -> Seq {
        self.published.get(topic).map_or(FIRST_SEQ, |newest| Seq(newest.0 + 1))
    }

    /// Returns the first seq of a topic that the group has not consumed.
    pub fn next_to_consume(&self, topic: &TopicName) -> Seq {
        self.consumed.get(topic).copied().unwrap_or(FIRST_SEQ)
    }

    /// Returns the names of all jobs that the group remembers.
    pub fn job_names(&self) -> impl Iterator<Item = &JobName> {
        self.jobs.iter().map(|job| &job.name)
    }

    /// Reports whether any remembered job has a callback.
    pub fn has_callbacks(&self) -> bool {
        self.jobs.iter().any(|job| job.settings.callback.is_some())
    }

    /// Sets the store to which texts of dormant entries are paged out.
    pub fn set_text_store(&mut self, outside: Box<dyn TextStore>) {
        self.dormant.set_store(outside);
    }

    /// Reports whether the job of that name is done; `None` if the group does not remember the job.
    pub fn is_done(&self, name: &JobName) -> Option<bool> {
        self.jobs.named(name.as_ref()).map(|job| job.state == JobState::Done)
    }

    /// Reports whether nothing waits or is in flight.
    pub fn is_idle(&self) -> bool {
        self.entry_count() == 0
    }

    /// Counts the entries that are not final.
    fn entry_count(&self) -> usize {
        self.active.len() + self.dormant.len()
    }

    /// Reports whether the group has no room for further events.
    pub fn is_full(&self) -> bool {
        self.entry_count() >= self.config.entries_max
            || self.active_bytes + self.dormant.bytes() + self.keys.bytes()
                >= self.config.entry_bytes_max
    }

    /// Handles one input. `now` must not be before the `now` of an earlier call.
    pub fn handle(&mut self, input: Input, now: Moment) {
        self.apply_input(input, now);
        self.release_all(now);
        self.compact_texts();
    }

    /// Handles inputs that arrived together, in their order, and releases after the last one.
    /// Faster than [`Group::handle`] for each.
    pub fn handle_all(&mut self, inputs: Vec<Input>, now: Moment) {
        self.prefetch_tasks(&inputs);
        for input in inputs {
            self.apply_input(input, now);
        }
        self.release_all(now);
        self.compact_texts();
    }

    fn apply_input(&mut self, input: Input, now: Moment) {
        let is_reboot = matches!(input, Input::Start { run, elapsed_unknown, .. } if self.is_reboot(run, elapsed_unknown));
        if !is_reboot {
            self.advance(now);
        }
        if let Some(requester) = input.requester() {
            self.members.mark_active(requester.member);
        }
        match input {
            Input::Start { run, since, elapsed_unknown, stamp, local_member: own } => {
                let ended = self.local_member.filter(|_| run != self.run);
                if is_reboot && ended.is_some() {
                    let rest_ms = self.config.longest_delay();
                    self.quiet_until = (rest_ms > 0).then(|| now + rest_ms + CLOCK_GRAIN_MS);
                }
                // A snapshot does not span a restart.
                self.snapshot = None;
                self.commit(
                    Decision::Started { run, elapsed_unknown, stamp, local_member: own },
                    now,
                );
                // After a reboot only now: first the rests of keys had to restart.
                self.advance(now);
                self.resume_after_start(since, ended, now);
            }
            Input::WallClock { unix_ms } => self.set_wall_clock(unix_ms, now),
            Input::Activity { conn } => self.members.mark_active_on(conn),
            Input::Events { topic, next, events, foreign_jobs: elsewhere } => {
                self.consume_events(&topic, next, &events, &elsewhere, now);
            }
            Input::Join { requester, credit } => self.join(requester, credit, now),
            Input::Disconnected { conn } => self.disconnected(conn, now),
            Input::Reply { requester, reply } => {
                let answer = self.reply(requester, reply, now);
                self.answer(requester, answer);
            }
            Input::Configure { requester, settings } => {
                let answer = self.configure(&settings, now);
                self.answer(requester, answer);
            }
            Input::ApplySettings { settings } => {
                if let Err(error) = self.configure(&settings, now) {
                    self.notice(Notice::SettingIgnored(error));
                }
            }
            Input::Operate { requester, operation: what } => {
                let answer = self.operate(&what, now);
                self.answer(requester, answer);
            }
            Input::OpenJob { requester, name, settings } => {
                let answer = self.open_job(&name, settings, now);
                self.report_job_name(&name);
                self.answer(requester, answer);
            }
            Input::CloseJob { requester, name } => {
                let answer = self.close_job(&name, now);
                self.answer(requester, answer);
            }
            Input::CancelJob { requester, name } => {
                let answer = self.cancel_job(&name, now);
                self.answer(requester, answer);
            }
            Input::JobAction { requester, name, action: what } => {
                if let Some(answer) = self.run_job_action(requester, &name, &what, now).transpose()
                {
                    self.answer(requester, answer);
                }
            }
            Input::Query { requester, query: what } => {
                let answer = self.show(&what, now);
                self.answer(requester, answer);
            }
            Input::TopicHeads { job, heads } => self.note_heads(job, heads, now),
            Input::Published { serial, topic, seq } => {
                self.commit(Decision::Published { serial, topic, seq }, now);
            }
            Input::Tick => self.expire(now),
        }
    }

    /// Moves the live texts of at most one chunk that is mostly dead.
    pub(crate) fn compact_texts(&mut self) {
        self.dormant.compact_texts();
    }

    /// Reports whether a start knows the elapsed time only from the wall clock. A group that was
    /// merely suspended (in the same run) knows it exactly.
    fn is_reboot(&self, run: u64, elapsed_unknown: bool) -> bool {
        elapsed_unknown && run != self.run
    }

    /// Resumes where the records end. Records end between two inputs, because those of one input
    /// are written together. No member is connected. `ended` is a member that ended with the
    /// broker's process, so its leases are lost at once. `since` identifies the group for life, if
    /// it has no number yet.
    fn resume_after_start(&mut self, since: u64, ended: Option<MemberId>, now: Moment) {
        // The first start must record the settings; later ones repeat them, which does no harm.
        self.commit(Decision::Configured(Box::new(self.config.clone())), now);
        if self.since.is_none() {
            self.commit(Decision::Born { since }, now);
        }
        let held = ended.and_then(|member| self.members.find(member)).map(Member::held);
        for entry in held.unwrap_or_default() {
            self.commit(Decision::Lost { entry }, now);
            self.dead_letter_if_exhausted(entry, now);
        }
        let members: Vec<_> = self.pinned.keys().copied().collect();
        for member in members {
            if self.members.find(member).is_none_or(|member| member.conn.is_none()) {
                self.unpin(member, now);
            }
        }
    }

    /// Returns the next output. May change after every `handle`.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns when an [`Input::Tick`] is due. May change after every `handle`.
    pub fn deadline(&self) -> Option<Moment> {
        [self.wakes.next(), self.expiries.next(), self.quiet_until].into_iter().flatten().min()
    }

    /// Applies a decision and records it.
    fn commit(&mut self, decision: Decision, now: Moment) {
        self.apply(&decision, now);
        if mutants::is(Mutant::Unrecorded) && matches!(decision, Decision::Touched { .. }) {
            return;
        }
        self.record(decision, now);
    }

    /// Records a decision that has already been applied.
    fn record(&mut self, decision: Decision, now: Moment) {
        self.outputs.push_back(Output::Record(GroupRecord { at: now, decision }));
    }

    fn notice(&mut self, notice: Notice) {
        self.outputs.push_back(Output::Notice(notice));
    }

    fn answer(&mut self, requester: Requester, answer: Result<GroupAnswer, ProtocolError>) {
        self.outputs.push_back(Output::Answer { requester, answer });
    }

    /// Lets the entries pinned to a member restart with their own request, for any member.
    fn unpin(&mut self, member: MemberId, now: Moment) {
        if mutants::is(Mutant::StaysPinned) {
            return;
        }
        if let Some(entries) = self.pinned.get(&member) {
            let entries = entries.iter().copied().collect();
            self.commit(Decision::Unpinned { entries }, now);
        }
    }

    /// Lets time pass: due entries are queued, and rested keys become free. Decides nothing.
    fn advance(&mut self, now: Moment) {
        self.now = now;
        while let Some(wake) = self.wakes.pop(now) {
            match wake {
                Wake::Due(id) => self.enqueue(id, now),
                Wake::Key(key) => {
                    self.keys[key].timer = None;
                    self.refresh(key, now);
                }
            }
        }
    }

    /// Decides what time alone decides: expired leases, jobs left open, job time limits, due
    /// schedules.
    fn expire(&mut self, now: Moment) {
        while let Some(expiry) = self.expiries.pop(now) {
            match expiry {
                Expiry::Lease(id) => self.expire_lease(id, now),
                Expiry::JobOpen(number) => self.close_abandoned_job(number, now),
                Expiry::JobTime(number) => self.end_job_time(number, now),
                Expiry::Schedule(url) => self.fire_schedule(url, now),
            }
        }
    }

    /// Called before a dormant entry changes: writes it to a snapshot in progress that must contain
    /// its old state.
    fn snapshot_before_change(&mut self, dormant: DormantRef) {
        if self.snapshot.is_some() && self.dormant.mark_in_snapshot(dormant) {
            let kept = SnapshotItem::Dormant(vec![self.dormant_admission(dormant)]);
            self.record(Decision::SnapshotPart(Box::new(kept)), self.now);
        }
    }
}
