//! What the records of a group hold. Only a decision changes it ([`State::apply`]), so a state that
//! applies the records of another one in their order becomes equal to it ([`State::replay`]). Nothing
//! here decides anything.
//!
//! The parts also hold what no record does and what makes no difference to a replay: members that are
//! connected, timers that have ended, texts that are in memory. That alone changes in [`live`].

mod apply;
mod endings;
mod lifecycle;
mod live;
mod restore;
mod snapshot;

use std::collections::BTreeMap;

use tidings_protocol::{GroupName, Seq, TopicName};

pub(crate) use self::live::Expiry;
pub(crate) use self::snapshot::EarlyPart;
use crate::config::GroupConfig;
use crate::dead_letters::DeadLetters;
use crate::entry::{Admission, Entry, EntryState, JobNumber};
use crate::finished::FinishedTasks;
use crate::frontier::Frontier;
use crate::frontier::dormant::DormantEntries;
use crate::frontier::entry_text::DormantRef;
use crate::jobs::Jobs;
use crate::leases::Leases;
use crate::moment::Moment;
use crate::record::snapshot::SnapshotProgress;
use crate::schedules::{Schedules, WallClockDue, WallClockTarget};
use crate::unpublished::UnpublishedEvents;

/// Totals since the group was created, for status lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct GroupTotals {
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) dead: u64,
    pub(crate) lost: u64,
    pub(crate) unkeyed: u64,
}

/// The state. The module's documentation says what may change it.
#[derive(Debug)]
pub(crate) struct State {
    name: GroupName,
    /// Rises with every start, so that no task id is used twice, even if a start finds an older
    /// copy of the log or none.
    run: u64,
    /// Identifies this group for its whole life: no other group of its name has had this number.
    /// `None` before the first start.
    since: Option<u64>,
    config: GroupConfig,
    frontier: Frontier,
    leases: Leases,
    jobs: Jobs,
    /// For each feeding topic, the first seq that the group has not consumed.
    consumed: BTreeMap<TopicName, Seq>,
    /// Schedules: URLs with `every=`, and everything that is due at a time of day.
    schedules: Schedules,
    /// Entries that the group gave up.
    dead_letters: DeadLetters,
    /// The tasks that ended last. No snapshot contains them.
    finished: FinishedTasks,
    /// While set, nothing is released.
    is_paused: bool,
    totals: GroupTotals,
    /// Serial of the last event that the group published.
    last_serial: u64,
    /// Published events that may not be safe on their topics yet, by serial.
    unpublished: UnpublishedEvents,
    /// The newest event of this group on each of its own topics.
    published: BTreeMap<&'static str, Seq>,
    /// The snapshot in progress, and its parts that must be recorded before the next decision.
    snapshot: Option<SnapshotProgress>,
    early: Vec<EarlyPart>,
    /// The moment of the current input.
    now: Moment,
}

impl State {
    /// Creates the state of an empty group: see `Group::new`.
    pub(crate) fn new(name: GroupName, run: u64, config: GroupConfig, seed: u64) -> Self {
        Self {
            name,
            run,
            since: None,
            config,
            frontier: Frontier::new(seed),
            leases: Leases::default(),
            jobs: Jobs::default(),
            consumed: BTreeMap::new(),
            schedules: Schedules::default(),
            dead_letters: DeadLetters::default(),
            finished: FinishedTasks::default(),
            is_paused: false,
            totals: GroupTotals::default(),
            last_serial: 0,
            unpublished: UnpublishedEvents::default(),
            published: BTreeMap::new(),
            snapshot: None,
            early: Vec::new(),
            now: Moment(0),
        }
    }

    pub(crate) fn name(&self) -> &GroupName {
        &self.name
    }

    pub(crate) fn run(&self) -> u64 {
        self.run
    }

    pub(crate) fn since(&self) -> Option<u64> {
        self.since
    }

    pub(crate) fn config(&self) -> &GroupConfig {
        &self.config
    }

    pub(crate) fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// Entries with nothing but a place in the queue of their key.
    pub(crate) fn dormant(&self) -> &DormantEntries {
        self.frontier.dormant()
    }

    pub(crate) fn leases(&self) -> &Leases {
        &self.leases
    }

    pub(crate) fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    pub(crate) fn consumed(&self) -> &BTreeMap<TopicName, Seq> {
        &self.consumed
    }

    pub(crate) fn schedules(&self) -> &Schedules {
        &self.schedules
    }

    pub(crate) fn dead_letters(&self) -> &DeadLetters {
        &self.dead_letters
    }

    pub(crate) fn finished(&self) -> &FinishedTasks {
        &self.finished
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(crate) fn totals(&self) -> GroupTotals {
        self.totals
    }

    pub(crate) fn last_serial(&self) -> u64 {
        self.last_serial
    }

    pub(crate) fn unpublished(&self) -> &UnpublishedEvents {
        &self.unpublished
    }

    pub(crate) fn published(&self) -> &BTreeMap<&'static str, Seq> {
        &self.published
    }

    pub(crate) fn snapshot(&self) -> Option<&SnapshotProgress> {
        self.snapshot.as_ref()
    }

    pub(crate) fn now(&self) -> Moment {
        self.now
    }

    /// Returns the job of a dormant entry. The lane of schedules has no job.
    pub(crate) fn job_of_dormant(&self, dormant: &DormantRef) -> Option<JobNumber> {
        dormant.job().filter(|number| self.jobs.find(*number).is_some())
    }

    /// Returns a dormant entry as it was admitted.
    pub(crate) fn dormant_admission(&self, dormant: DormantRef) -> Admission {
        let pass = dormant.job().and_then(|job| self.jobs.find(job)).map(|job| job.id);
        self.frontier.read_dormant(dormant, pass)
    }

    /// Returns a dormant entry in full.
    pub(crate) fn dormant_entry(&self, dormant: DormantRef) -> Entry {
        Entry { state: EntryState::Waiting, ..Entry::new(self.dormant_admission(dormant)) }
    }

    /// Returns the due time of a schedule, or of an entry that is not due yet.
    pub(crate) fn pending_due(&self, target: WallClockTarget) -> Option<Moment> {
        self.schedules.pending_due(target, |id| self.frontier.pending_due(id))
    }

    /// Returns everything that is due at a time of day, for a snapshot.
    pub(crate) fn wall_clock_dues(&self) -> impl Iterator<Item = WallClockDue> {
        self.schedules.wall_clock_dues(|id| self.frontier.pending_due(id))
    }

    /// For tests with other limits.
    #[cfg(test)]
    pub(crate) fn config_mut(&mut self) -> &mut GroupConfig {
        &mut self.config
    }

    /// For tests that give the records of a group to another one.
    #[cfg(test)]
    pub(crate) fn name_mut(&mut self) -> &mut GroupName {
        &mut self.name
    }
}
