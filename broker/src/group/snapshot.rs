//! Snapshots: the shortest sequence of records that gives a group, so that older records can be
//! removed.
//!
//! A snapshot goes from [`Item::Begin`] to [`Item::End`], and the group makes decisions meanwhile.
//! A replay (`replay.rs`) may begin with any complete snapshot, and ignores others.

use tidings_protocol::{MemberId, Seq, TopicName};

use super::clock_times::ClockTime;
use super::entry::{Admission, Entry, JobNumber, JobRef, Key, State};
use super::key_queue::KeyState;
use super::lifecycle::lane_of;
use super::parked::{Glance, Parked};
use super::record::Decision;
use super::runs::SlotId;
use super::schedule::Schedule;
use super::timers::Expiry;
use super::{Group, Totals};
use crate::clock::{Moment, Stamp};
use crate::job::{Job, JobState};

/// Most dormant entries that are written to a snapshot early because they are about to end.
const KEPT_AT_ONCE: usize = 4096;

/// URLs in one item.
const SEEN_MAX: usize = 256;

/// Bytes of dormant entries, as they are in memory, after which an item is full.
const PARKED_BYTES: usize = 128 << 10;

/// A part of a group's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// The group is empty here.
    Begin {
        /// As in [`Decision::Started`].
        run: u64,
        /// The current moment on all clocks of the machine.
        stamp: Stamp,
        /// As in [`Decision::Started`].
        own: Option<MemberId>,
        /// Approximate number of dormant entries that follow.
        parked: usize,
        /// Approximate number of keys.
        keys: usize,
    },
    /// As in [`Decision::Born`].
    Born {
        /// The group's number for life.
        since: u64,
    },
    /// How far the group has consumed a feeding topic.
    Taken {
        /// The topic.
        topic: TopicName,
        /// First seq not consumed.
        next: Seq,
    },
    /// The newest event of the group on one of its own topics.
    Sent {
        /// The topic.
        topic: &'static str,
        /// Its seq.
        seq: Seq,
    },
    /// A published event that may not be on its topic.
    Unsent {
        /// Its serial.
        serial: u64,
        /// The topic.
        topic: &'static str,
        /// The payload.
        payload: Box<str>,
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
        pass: JobRef,
        /// The fingerprints of some of them.
        urls: Vec<u64>,
    },
    /// A key, without its entries.
    Key {
        /// The key.
        key: Key,
        /// Its rest, and the order of turns.
        state: KeyState,
    },
    /// An active entry, waiting or held.
    Entry(Box<Entry>),
    /// Dormant entries.
    Parked(Vec<Admission>),
    /// A schedule.
    Schedule(Box<Schedule>),
    /// An entry or a schedule that is due at a time of day.
    ClockTime(ClockTime),
    /// A dead entry.
    Dead {
        /// The entry in the state in which it was given up.
        entry: Box<Entry>,
        /// The reason.
        reason: &'static str,
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
/// the group works: see [`Group::snapshot_more`].
#[derive(Debug)]
pub(super) struct Snapshot {
    /// Passes with URLs that are still to be written, and the next set of the last one.
    passes: Vec<JobRef>,
    set: usize,
    /// The next slot of a dormant entry.
    slot: SlotId,
    /// The next index of a key. Keys come last, because a key without entries may be removed.
    key: usize,
}

impl Group {
    /// Begins a snapshot: writes all parts that are few. `stamp` is the current moment on
    /// all clocks of the machine.
    pub(crate) fn begin_snapshot(&mut self, stamp: Stamp, mut take: impl FnMut(Decision)) {
        self.parked.begin_snapshot();
        let passes = self.seen.passes();
        self.snapshot = Some(Snapshot { passes, set: 0, slot: 0, key: 0 });
        let (parked, keys) = (self.parked.len(), self.keys.len());
        let begin = Item::Begin { run: self.run, stamp, own: self.own, parked, keys };
        take(Decision::Kept(Box::new(begin)));
        take(Decision::Configured(Box::new(self.config.clone())));
        let mut keep = |item| take(Decision::Kept(Box::new(item)));
        if let Some(since) = self.since {
            keep(Item::Born { since });
        }
        for (topic, next) in &self.taken {
            keep(Item::Taken { topic: topic.clone(), next: *next });
        }
        for (topic, seq) in &self.sent {
            keep(Item::Sent { topic, seq: *seq });
        }
        for (serial, (topic, payload)) in &self.unsent {
            keep(Item::Unsent { serial: *serial, topic, payload: payload.clone() });
        }
        for job in self.jobs.in_order() {
            job.items(&mut keep);
        }
        for id in self.live_ids() {
            keep(Item::Entry(Box::new(self.live[&id].entry.clone())));
        }
        for schedule in self.schedules.iter() {
            keep(Item::Schedule(Box::new(schedule.clone())));
        }
        for time in self.clock_times() {
            keep(Item::ClockTime(time));
        }
        for buried in self.dead.iter() {
            let (entry, reason) = (Box::new(buried.entry.clone()), buried.reason);
            keep(Item::Dead { entry, reason });
        }
    }

    /// Abandons a snapshot in progress if too many dormant entries are about to end to write them
    /// first.
    pub(super) fn abandon_snapshot_for(&mut self, ending: usize) {
        if ending > KEPT_AT_ONCE && self.snapshot.take().is_some() {
            self.record(Decision::Kept(Box::new(Item::Abandoned)), self.now);
        }
    }

    /// Reports whether a snapshot is in progress.
    pub(crate) fn is_in_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Continues the snapshot: writes about `count` more parts. Returns whether it is complete.
    ///
    /// The group may decide anything between two calls, because a replay of the records between
    /// [`Item::Begin`] and [`Item::End`] gives the same state:
    /// - A dormant entry is written in its state at the beginning, before any decision that changes
    ///   it ([`Group::keep_in_snapshot`]). Entries that came later are not written.
    /// - A key and the totals are written in their state at that point, which is the right one
    ///   there.
    /// - A URL that a pass has seen stays seen, so it may be written twice.
    pub(crate) fn snapshot_more(&mut self, count: usize, mut take: impl FnMut(Decision)) -> bool {
        let Some(mut at) = self.snapshot.take() else { return true };
        let mut left = count;
        let mut keep = |item| take(Decision::Kept(Box::new(item)));
        while left > 0
            && let Some(pass) = at.passes.last().copied()
        {
            left -= 1;
            let Some(set) = self.seen.set(pass, at.set) else {
                (at.set, _) = (0, at.passes.pop());
                continue;
            };
            at.set += 1;
            let mut urls: Vec<u64> = set.iter().copied().collect();
            // The order must not be random.
            urls.sort_unstable();
            for urls in urls.chunks(SEEN_MAX) {
                left = left.saturating_sub(1);
                keep(Item::Seen { pass, urls: urls.to_vec() });
            }
        }
        let (mut parked, mut bytes) = (Vec::new(), 0);
        while left > 0
            && let Ok(dormant) = self.parked.in_slot(at.slot)
        {
            (at.slot, left) = (at.slot + 1, left - 1);
            if let Some(dormant) = dormant
                && self.parked.keep_in_snapshot(dormant)
            {
                let admission = self.parked_admission(dormant);
                bytes += admission.bytes();
                parked.push(admission);
            }
            let is_last = left == 0 || self.parked.in_slot(at.slot).is_err();
            if !parked.is_empty() && (is_last || bytes > PARKED_BYTES) {
                keep(Item::Parked(std::mem::take(&mut parked)));
                bytes = 0;
            }
        }
        while left > 0
            && let Ok(queue) = self.keys.in_place(at.key)
        {
            (at.key, left) = (at.key + 1, left - 1);
            if let Some(queue) = queue
                && let Some(state) = queue.state()
            {
                keep(Item::Key { key: queue.name().clone(), state });
            }
        }
        if left == 0 {
            self.snapshot = Some(at);
            return false;
        }
        let Totals { completed, failed, dead, lost, unkeyed } = self.totals;
        let mut keep = |item| take(Decision::Kept(Box::new(item)));
        keep(Item::End {
            last_entry: self.last_entry,
            last_serial: self.last_serial,
            last_job: self.jobs.last_number(),
            is_paused: self.is_paused,
            totals: [completed, failed, dead, lost, unkeyed],
        });
        true
    }

    /// Returns a dormant entry as it was admitted.
    pub(super) fn parked_admission(&self, dormant: Glance) -> Admission {
        let pass = dormant.job().and_then(|job| self.jobs.find(job)).map(|job| job.id);
        self.parked.read(dormant, &self.keys[dormant.key], pass)
    }

    /// Returns a dormant entry in full.
    pub(super) fn parked_entry(&self, dormant: Glance) -> Entry {
        Entry { state: State::Waiting, ..Entry::new(self.parked_admission(dormant)) }
    }

    /// Restores a part of a snapshot.
    pub(super) fn restore(&mut self, item: &Item, now: Moment) {
        match item {
            Item::Begin { run, stamp: _, own, parked, keys } => {
                let (name, config) = (self.name.clone(), self.config.clone());
                let emptied = self.parked.emptied();
                let new = Self::new(name, *run, config, self.rng.u64(..));
                let ready = self.ready.emptied();
                *self = Self { own: *own, parked: emptied, ready, ..new };
                self.parked.reserve(*parked);
                self.keys.reserve(*keys);
            }
            Item::Abandoned => {}
            Item::Born { since } => self.since = Some(*since),
            Item::Taken { topic, next } => {
                self.taken.insert(topic.clone(), *next);
            }
            Item::Sent { topic, seq } => {
                self.sent.insert(topic, *seq);
            }
            Item::Unsent { serial, topic, payload } => {
                self.unsent.insert(*serial, (topic, payload.clone()));
            }
            Item::Job(job) => self.restore_job(job),
            Item::Scope { number, part } => {
                self.jobs.find_mut(*number).into_iter().for_each(|job| job.scope.keep(part));
            }
            Item::Pages { number, key, completed } => {
                self.jobs
                    .find_mut(*number)
                    .into_iter()
                    .for_each(|job| job.keep_pages(key, *completed));
            }
            Item::Seen { pass, urls } => urls.iter().for_each(|url| self.seen.add(*pass, *url)),
            Item::Key { key, state } => {
                let key = self.keys.intern(key);
                self.keys[key].keep(*state);
                self.refresh(key, now);
            }
            Item::Entry(entry) => self.restore_entry(entry, now),
            Item::Parked(admissions) => self.restore_parked(admissions, now),
            Item::Schedule(schedule) => self.set_schedule(schedule),
            Item::ClockTime(time) => self.apply_clock_time(time, now),
            Item::Dead { entry, reason } => {
                self.dead.bury((**entry).clone(), reason, &self.config);
            }
            Item::End { last_entry, last_serial, last_job, is_paused, totals } => {
                (self.last_entry, self.last_serial) = (*last_entry, *last_serial);
                self.jobs.go_on_after(*last_job);
                self.is_paused = *is_paused;
                let [completed, failed, dead, lost, unkeyed] = *totals;
                self.totals = Totals { completed, failed, dead, lost, unkeyed };
                self.settle_in(now);
            }
        }
    }

    fn restore_job(&mut self, job: &Job) {
        let number = job.id.number;
        if job.state == JobState::Open {
            self.expiries.set(job.open_until, Expiry::JobOpen(number));
        }
        if let Some(at) = job.time_until {
            self.expiries.set(at, Expiry::JobTime(number));
        }
        if job.noted.is_some() {
            self.noted.insert(number);
        }
        self.jobs.keep(job.clone());
    }

    /// Stores dormant entries. Their keys are refreshed with all others at the end.
    fn restore_parked(&mut self, admissions: &[Admission], now: Moment) {
        let mut parked = Vec::with_capacity(admissions.len());
        for admission in admissions {
            match Parked::takes(admission, lane_of(admission), now) {
                Some(lane) => parked.push((admission, lane)),
                None => self.restore_entry(&Entry::new(admission.clone()), now),
            }
        }
        self.park(&parked);
    }

    fn restore_entry(&mut self, entry: &Entry, now: Moment) {
        let (id, admitted) = (entry.admitted.id, &entry.admitted);
        let mut job = admitted.job.and_then(|job| self.jobs.find_mut(job.number));
        let lane = Parked::takes(admitted, lane_of(admitted), now);
        if let Some(lane) = lane.filter(|_| entry.is_untouched()) {
            self.park(&[(admitted, lane)]);
            return;
        }
        if let Some(job) = &mut job {
            job.wait(id, &admitted.key);
        }
        if let State::Held(lease) = entry.state {
            if let Some(job) = &mut job {
                job.take(id, &admitted.key);
            }
            self.members.hold(lease.member, id, entry.is_suspect());
            self.expiries.set(lease.until, Expiry::Lease(id));
            self.insert(entry.clone());
            self.rehold(admitted.url_key, id);
            if !lease.over {
                let gate = self.live[&id].gate();
                self.keys[gate].keep_busy();
            }
            return;
        }
        if let Some(again) = &entry.again {
            if let Some(job) = &mut job {
                job.pin(&admitted.key);
            }
            self.pinned.entry(again.member).or_default().insert(id);
        }
        self.insert(Entry { state: State::Delayed, ..entry.clone() });
        self.enqueue(id, now);
    }

    /// Builds the state that depends on several parts.
    fn settle_in(&mut self, now: Moment) {
        self.parked.sort(&mut self.keys);
        for job in self.jobs.iter().filter(|job| job.state != JobState::Done) {
            self.ready.block(job.id.number, job.is_blocked());
        }
        for key in self.keys.ids() {
            self.refresh(key, now);
        }
    }
}
