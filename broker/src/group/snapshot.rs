//! A group as the shortest sequence of records that gives it again, so that its log need not be kept
//! from the beginning.
//!
//! A snapshot goes from [`Item::Begin`] to [`Item::End`], and the group decides meanwhile. A replay may
//! begin with any that is whole (`replay.rs`); one that was cut short says
//! nothing.

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

/// Parked entries that a snapshot gets at once, before they end.
const KEPT_AT_ONCE: usize = 4096;

/// URLs in one item.
const SEEN_MAX: usize = 256;

/// Bytes of parked entries, as they are in memory, after which an item holds no more of them.
const PARKED_BYTES: usize = 128 << 10;

/// A part of what a group holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Nothing is there before.
    Begin {
        /// As in [`Decision::Started`].
        run: u64,
        /// The present moment as the machine knows it.
        stamp: Stamp,
        /// As in [`Decision::Started`].
        own: Option<MemberId>,
        /// About how many entries follow that only wait.
        parked: usize,
        /// About how many keys there are.
        keys: usize,
    },
    /// As in [`Decision::Born`].
    Born {
        /// The number for its whole life.
        since: u64,
    },
    /// How far a feeding topic was taken.
    Taken {
        /// Which.
        topic: TopicName,
        /// First number not yet taken.
        next: Seq,
    },
    /// The newest event of the group on one of its own topics.
    Sent {
        /// Which.
        topic: &'static str,
        /// Its number.
        seq: Seq,
    },
    /// An announcement that may not be on its topic.
    Unsent {
        /// Its number.
        serial: u64,
        /// On which topic.
        topic: &'static str,
        /// The event.
        payload: Box<str>,
    },
    /// A job, without what belongs to it.
    Job(Box<Job>),
    /// What its seeds let in.
    Scope {
        /// Whose.
        number: JobNumber,
        /// A host, a domain or a prefix.
        part: Box<str>,
    },
    /// Pages that a job has had of a key, if that is limited.
    Pages {
        /// Whose.
        number: JobNumber,
        /// Of which key.
        key: Key,
        /// How many.
        completed: u64,
    },
    /// URLs that a pass has met, and that are not parked.
    Seen {
        /// Which.
        pass: JobRef,
        /// The prints of some of them.
        urls: Vec<u64>,
    },
    /// A key, without what waits there.
    Key {
        /// Which.
        key: Key,
        /// When it may be asked, and whose turn it is then.
        state: KeyState,
    },
    /// An entry, waiting or held.
    Entry(Box<Entry>),
    /// Entries that were parked: only let in so far.
    Parked(Vec<Admission>),
    /// A URL that is looked at again and again.
    Schedule(Box<Schedule>),
    /// Something that is due at a time of the wall clock.
    ClockTime(ClockTime),
    /// An entry that was given up.
    Dead {
        /// As it was then.
        entry: Box<Entry>,
        /// Why.
        reason: &'static str,
    },
    /// The snapshot is worth nothing: so much of what it was to have has ended at once that writing it
    /// first would have held everything up.
    Abandoned,
    /// Nothing more comes.
    End {
        /// The newest entry's number.
        last_entry: u64,
        /// The newest announcement's number.
        last_serial: u64,
        /// The newest job's number.
        last_job: JobNumber,
        /// Nothing is released.
        is_paused: bool,
        /// Completed, failed, dead, lost, without a key.
        totals: [u64; 5],
    },
}

/// How far a snapshot has come. What there may be millions of is written piece by piece, while the
/// group goes on: see [`Group::snapshot_more`].
#[derive(Debug)]
pub(super) struct Snapshot {
    /// Passes whose URLs are still to be written, and the next set of the last of them.
    passes: Vec<JobRef>,
    set: usize,
    /// Next slot of a parked entry.
    slot: SlotId,
    /// Next place of a key. They come last: a key of which nothing waits may be forgotten.
    key: usize,
}

impl Group {
    /// Begins a snapshot: hands over everything of which there is not much. `stamp` is the present
    /// moment as the machine knows it.
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

    /// So many parked entries are about to end: too many for a snapshot to get them all first.
    pub(super) fn abandon_snapshot_for(&mut self, ending: usize) {
        if ending > KEPT_AT_ONCE && self.snapshot.take().is_some() {
            self.record(Decision::Kept(Box::new(Item::Abandoned)), self.now);
        }
    }

    /// Whether a snapshot has begun and is not whole.
    pub(crate) fn is_in_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Goes on with the snapshot: hands over about `count` parts more, and whether it is whole with
    /// them.
    ///
    /// The group may decide what it likes between two calls, for what a replay meets between
    /// [`Item::Begin`] and [`Item::End`] comes to the same:
    /// - a parked entry is in the log as it was at the beginning, before any decision that touches
    ///   it ([`Group::keep_in_snapshot`]); what came since the beginning is not written;
    /// - a key and the totals are written as they are at that point, which counts;
    /// - a URL that a pass has met stays met, so it does no harm to be told so twice.
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
            // What is written does not depend on chance.
            urls.sort_unstable();
            for urls in urls.chunks(SEEN_MAX) {
                left = left.saturating_sub(1);
                keep(Item::Seen { pass, urls: urls.to_vec() });
            }
        }
        let (mut parked, mut bytes) = (Vec::new(), 0);
        while left > 0
            && let Ok(glance) = self.parked.in_slot(at.slot)
        {
            (at.slot, left) = (at.slot + 1, left - 1);
            if let Some(glance) = glance
                && self.parked.keep_in_snapshot(glance)
            {
                let admission = self.parked_admission(glance);
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

    /// A parked entry as it was let in.
    pub(super) fn parked_admission(&self, glance: Glance) -> Admission {
        let pass = glance.job().and_then(|job| self.jobs.find(job)).map(|job| job.id);
        self.parked.read(glance, &self.keys[glance.key], pass)
    }

    /// A parked entry in full.
    pub(super) fn parked_entry(&self, glance: Glance) -> Entry {
        Entry { state: State::Waiting, ..Entry::new(self.parked_admission(glance)) }
    }

    /// Takes in a part of what the group held.
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

    /// Parks what was parked. Its keys are looked at with all others, when the group is settled in.
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

    /// What rests on all parts together.
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
