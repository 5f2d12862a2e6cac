//! Snapshots: the shortest sequence of records that gives a group, so that older records can be
//! removed.
//!
//! A snapshot goes from [`SnapshotItem::Begin`] to [`SnapshotItem::End`], and the group makes
//! decisions meanwhile. A replay (`replay.rs`) may begin with any complete snapshot, and ignores
//! others.

use std::sync::Arc;

use tidings_protocol::{MemberId, Seq, TopicName};

use super::Decision;
use crate::Group;
use crate::entry::{Admission, Entry, JobNumber, Key, PassId};
use crate::frontier::circuit::Circuit;
use crate::frontier::key_queue::KeyState;
use crate::frontier::rules::{KeyRule, RuleHistory};
use crate::frontier::runs::SlotId;
use crate::jobs::{Job, SettingsChanges};
use crate::moment::ClockStamp;
use crate::schedules::{Schedule, WallClockDue};

/// URLs in one item.
const SEEN_PER_ITEM: usize = 256;

/// Bytes of dormant entries, as they are in memory, after which an item is full.
const DORMANT_ITEM_BYTES: usize = 128 << 10;

/// A part of a group's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotItem {
    /// The group is empty here.
    Begin {
        /// As in [`Decision::Started`].
        run: u64,
        /// The permanent number of the group.
        since: Option<u64>,
        /// The current moment on all clocks of the machine.
        stamp: ClockStamp,
        /// As in [`Decision::Started`].
        local_member: Option<MemberId>,
        /// Id of the newest entry: records between the parts of a snapshot depend on it.
        last_entry: u64,
        /// Approximate number of dormant entries that follow.
        dormant: usize,
        /// Approximate number of keys.
        keys: usize,
    },
    /// A rule of an operator. Rules come before the keys and entries that they are about.
    Rule(Box<KeyRule>),
    /// What is remembered of rules; after the rules.
    RuleHistory(RuleHistory),
    /// How far the group has consumed a feeding topic.
    Consumed {
        /// The topic.
        topic: TopicName,
        /// First seq not consumed.
        next: Seq,
    },
    /// The newest event of the group on one of its own topics.
    Published {
        /// The topic.
        topic: &'static str,
        /// Its seq.
        seq: Seq,
    },
    /// A published event that may not be on its topic.
    Unpublished {
        /// Its serial.
        serial: u64,
        /// The topic.
        topic: &'static str,
        /// The payload.
        payload: Arc<str>,
    },
    /// A job, without its scope, pages and entries.
    Job(Box<Job>),
    /// A part of a job's scope.
    Scope {
        /// The job.
        number: JobNumber,
        /// A host, a domain or a prefix.
        part: Box<str>,
    },
    /// How the settings of a job have changed in its current pass, if they have.
    JobChanges {
        /// The job.
        number: JobNumber,
        /// The changes.
        changes: Box<SettingsChanges>,
    },
    /// Completed pages of a job for a key, if they are limited.
    Pages {
        /// The job.
        number: JobNumber,
        /// The key.
        key: Key,
        /// The number of pages.
        completed: u64,
    },
    /// URLs that a pass has seen and that are not dormant.
    Seen {
        /// The pass.
        pass: PassId,
        /// The fingerprints of some of them.
        fingerprints: Vec<u64>,
    },
    /// A key, without its entries.
    Key {
        /// The key.
        key: Key,
        /// Its rest, and the order of turns.
        state: KeyState,
    },
    /// What a key remembers of requests without an answer, before the [`Key`](Self::Key).
    Circuit {
        /// The key.
        key: Key,
        /// Its circuit.
        circuit: Circuit,
    },
    /// An active entry, waiting or held.
    Entry(Box<Entry>),
    /// Dormant entries.
    Dormant(Vec<Admission>),
    /// A schedule.
    Schedule(Box<Schedule>),
    /// An entry or a schedule that is due at a time of day.
    WallClockDue(WallClockDue),
    /// A dead entry.
    Dead {
        /// The entry in the state in which it was given up.
        entry: Box<Entry>,
        /// The reason.
        reason: &'static str,
    },
    /// A drained member.
    Drained {
        /// The member.
        member: MemberId,
    },
    /// The snapshot is useless: too many of its entries ended at once, and writing them first would
    /// have stalled the group.
    Abandoned,
    /// The snapshot is complete.
    End {
        /// Id of the newest entry.
        last_entry: u64,
        /// Serial of the newest published event.
        last_serial: u64,
        /// Number of the newest job.
        last_job: JobNumber,
        /// Whether the group is paused.
        is_paused: bool,
        /// Completed, failed, dead, lost, unusable.
        totals: [u64; 5],
    },
}

/// The progress of a snapshot. State that may have millions of parts is written step by step, while
/// the group works: see [`Group::continue_snapshot`].
#[derive(Debug)]
pub(crate) struct SnapshotProgress {
    /// Passes with URLs that are still to be written, and the next set of the last one.
    passes: Vec<PassId>,
    set: usize,
    /// The next slot of a dormant entry.
    slot: SlotId,
    /// The next index of a key. Keys come last, because a key without entries may be removed.
    key: usize,
    /// The request for the texts of the next entries, while they are being read.
    waits_for: Option<u64>,
}

impl SnapshotProgress {
    /// The texts of this request were read.
    pub(crate) fn texts_read(&mut self, request: u64) {
        self.waits_for = self.waits_for.filter(|waits_for| *waits_for != request);
    }
}

impl Group {
    /// Begins a snapshot: writes all parts that are few. `stamp` is the current moment on
    /// all clocks of the machine.
    pub fn begin_snapshot(&mut self, stamp: ClockStamp, mut take: impl FnMut(Decision)) {
        self.state.texts_mut().begin_snapshot();
        let passes = self.state.jobs().seen_passes();
        *self.state.snapshot_mut() =
            Some(SnapshotProgress { passes, set: 0, slot: 0, key: 0, waits_for: None });
        let (parked, keys) = (self.state.dormant().len(), self.state.frontier().keys().len());
        let begin = SnapshotItem::Begin {
            run: self.state.run(),
            since: self.state.since(),
            stamp,
            local_member: self.state.leases().local_member(),
            last_entry: self.state.frontier().last_id(),
            dormant: parked,
            keys,
        };
        take(Decision::SnapshotPart(Box::new(begin)));
        take(Decision::Configured(Box::new(self.state.config().clone())));
        let mut keep = |item| take(Decision::SnapshotPart(Box::new(item)));
        let rules = self.state.frontier().rules();
        for rule in rules.iter() {
            keep(SnapshotItem::Rule(Box::new(rule.clone())));
        }
        if rules.history() != RuleHistory::default() {
            keep(SnapshotItem::RuleHistory(rules.history()));
        }
        for (topic, next) in self.state.consumed() {
            keep(SnapshotItem::Consumed { topic: topic.clone(), next: *next });
        }
        for (topic, seq) in self.state.published() {
            keep(SnapshotItem::Published { topic, seq: *seq });
        }
        for (serial, topic, payload) in self.state.unpublished().iter() {
            keep(SnapshotItem::Unpublished { serial, topic, payload: Arc::clone(payload) });
        }
        for job in self.state.jobs().in_order() {
            items_of_job(job, &mut keep);
        }
        for id in self.state.frontier().active_ids() {
            keep(SnapshotItem::Entry(Box::new(self.state.frontier().get(id).entry.clone())));
        }
        for schedule in self.state.schedules().iter() {
            keep(SnapshotItem::Schedule(Box::new(schedule.clone())));
        }
        for time in self.state.wall_clock_dues() {
            keep(SnapshotItem::WallClockDue(time));
        }
        for buried in self.state.dead_letters().iter() {
            let (entry, reason) = (Box::new(buried.entry.clone()), buried.reason);
            keep(SnapshotItem::Dead { entry, reason });
        }
        for (member, _) in self.state.leases().members().iter().filter(|(_, it)| it.is_drained()) {
            keep(SnapshotItem::Drained { member });
        }
    }

    /// Reports whether a snapshot is in progress.
    pub fn is_snapshotting(&self) -> bool {
        self.state.snapshot().is_some()
    }

    /// Reports whether a snapshot can neither begin nor continue before texts were read: those of
    /// its next entries, or those of earlier records.
    pub fn is_snapshot_waiting(&self) -> bool {
        let waits = self.state.snapshot().is_some_and(|at| at.waits_for.is_some());
        waits || self.reads.has_unread()
    }

    /// Requests the texts of the next entries, up to this number of slots. Returns whether any must
    /// be read.
    fn waits_for_next_texts(&mut self, at: &mut SnapshotProgress, slots: usize) -> bool {
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        let next = (at.slot..at.slot.saturating_add(slots))
            .map_while(|slot| self.state.dormant().at_slot(slot).ok());
        let next = next.flatten().filter(|next| self.state.dormant().is_missing_in_snapshot(*next));
        let wanted = self.missing_texts(next);
        at.waits_for = self.request_texts(wanted);
        at.waits_for.is_some()
    }

    /// Continues the snapshot: writes about `count` more parts, unless it waits for texts. Returns
    /// whether it is complete.
    ///
    /// The group may decide anything between two calls, because a replay of the records between
    /// [`SnapshotItem::Begin`] and [`SnapshotItem::End`] gives the same state:
    /// - A dormant entry is written in its state at the beginning, before any decision that changes
    ///   it (`State::snapshot_before_change`). Entries that came later are not written.
    /// - A key and the totals are written in their state at that point, which is the right one
    ///   there.
    /// - A URL that a pass has seen stays seen, so it may be written twice.
    pub fn continue_snapshot(&mut self, count: usize, mut take: impl FnMut(Decision)) -> bool {
        if self.is_snapshot_waiting() || self.problem().is_some() {
            return false;
        }
        let Some(mut at) = self.state.snapshot_mut().take() else { return true };
        let mut left = count;
        let mut keep = |item| take(Decision::SnapshotPart(Box::new(item)));
        while left > 0
            && let Some(pass) = at.passes.last().copied()
        {
            left -= 1;
            let Some(set) = self.state.jobs().seen_set(pass, at.set) else {
                (at.set, _) = (0, at.passes.pop());
                continue;
            };
            at.set += 1;
            let mut urls: Vec<u64> = set.iter().copied().collect();
            // The order must not be random.
            urls.sort_unstable();
            for urls in urls.chunks(SEEN_PER_ITEM) {
                left = left.saturating_sub(1);
                keep(SnapshotItem::Seen { pass, fingerprints: urls.to_vec() });
            }
        }
        if left > 0 && self.waits_for_next_texts(&mut at, left) {
            *self.state.snapshot_mut() = Some(at);
            return false;
        }
        let (mut parked, mut bytes) = (Vec::new(), 0);
        while left > 0
            && let Ok(dormant) = self.state.dormant().at_slot(at.slot)
        {
            (at.slot, left) = (at.slot + 1, left - 1);
            if let Some(dormant) = dormant
                && self.state.texts_mut().mark_in_snapshot(dormant)
            {
                let admission = self.state.dormant_admission(dormant);
                self.state.texts_mut().forget_text(dormant);
                bytes += admission.bytes();
                parked.push(admission);
            }
            let is_last = left == 0 || self.state.dormant().at_slot(at.slot).is_err();
            if !parked.is_empty() && (is_last || bytes > DORMANT_ITEM_BYTES) {
                keep(SnapshotItem::Dormant(std::mem::take(&mut parked)));
                bytes = 0;
            }
        }
        while left > 0
            && let Ok(queue) = self.state.frontier().keys().at_index(at.key)
        {
            (at.key, left) = (at.key + 1, left - 1);
            if let Some(queue) = queue
                && let Some(state) = queue.state()
            {
                let key = || queue.name().clone();
                // First, because it decides when the key may be removed.
                if let Some(circuit) = queue.circuit() {
                    keep(SnapshotItem::Circuit { key: key(), circuit: *circuit });
                }
                keep(SnapshotItem::Key { key: key(), state });
            }
        }
        if left == 0 {
            *self.state.snapshot_mut() = Some(at);
            return false;
        }
        let totals = self.state.totals();
        let mut keep = |item| take(Decision::SnapshotPart(Box::new(item)));
        keep(SnapshotItem::End {
            last_entry: self.state.frontier().last_id(),
            last_serial: self.state.last_serial(),
            last_job: self.state.jobs().last_number(),
            is_paused: self.state.is_paused(),
            totals: [totals.completed, totals.failed, totals.dead, totals.lost, totals.unkeyed],
        });
        true
    }
}

/// The job, its scope and its page counts; its entries are not included.
pub(crate) fn items_of_job(job: &Job, keep: &mut impl FnMut(SnapshotItem)) {
    let number = job.id.number;
    keep(SnapshotItem::Job(Box::new(job.bare())));
    if let Some(changes) = &job.changes {
        keep(SnapshotItem::JobChanges { number, changes: changes.clone() });
    }
    for part in job.scope.parts() {
        keep(SnapshotItem::Scope { number, part: part.into() });
    }
    for (key, completed) in job.completed_pages() {
        keep(SnapshotItem::Pages { number, key: key.clone(), completed });
    }
}
