//! A group as the shortest sequence of records that gives it again, so that its log need not be kept
//! from the beginning.
//!
//! A snapshot is written between two decisions, from [`Item::Begin`] to [`Item::End`]. Replay begins
//! at the newest one that is whole; one that a crash cut short says nothing.

use tidings_protocol::{Seq, TopicName, UrlKey};

use super::clock_times::ClockTime;
use super::entry::{Entry, JobNumber, JobRef, Key, State};
use super::key_queue::{KeyQueue, KeyState};
use super::record::Decision;
use super::schedule::Schedule;
use super::timers::Expiry;
use super::{Group, Totals};
use crate::clock::{Moment, Stamp};
use crate::job::{Job, JobState};

/// URLs in one item.
const SEEN_MAX: usize = 256;

/// A part of what a group holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Nothing is there before.
    Begin,
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
    /// URLs that a pass has met.
    Seen {
        /// Which.
        pass: JobRef,
        /// Some of them.
        urls: Vec<UrlKey>,
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

impl Group {
    /// Hands over the records of a snapshot, in their order. `stamp` is the present moment as the
    /// machine knows it.
    pub(crate) fn snapshot(&self, stamp: Stamp, mut take: impl FnMut(Decision)) {
        take(Decision::Kept(Box::new(Item::Begin)));
        take(Decision::Started { run: self.run, anew: false, stamp, own: self.own });
        take(Decision::Configured(Box::new(self.config.clone())));
        let mut keep = |item| take(Decision::Kept(Box::new(item)));
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
        for (pass, urls) in self.seen.iter() {
            let mut urls = urls.iter().copied().peekable();
            while urls.peek().is_some() {
                keep(Item::Seen { pass, urls: urls.by_ref().take(SEEN_MAX).collect() });
            }
        }
        for (key, queue) in &self.keys {
            keep(Item::Key { key: key.clone(), state: queue.state() });
        }
        for entry in self.entries.values() {
            keep(Item::Entry(Box::new(entry.clone())));
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
        let Totals { completed, failed, dead, lost, unkeyed } = self.totals;
        keep(Item::End {
            last_entry: self.last_entry,
            last_serial: self.last_serial,
            last_job: self.jobs.last_number(),
            is_paused: self.is_paused,
            totals: [completed, failed, dead, lost, unkeyed],
        });
    }

    /// Takes in a part of what the group held.
    pub(super) fn restore(&mut self, item: &Item, now: Moment) {
        match item {
            Item::Begin => {
                let (name, config) = (self.name.clone(), self.config.clone());
                *self = Self::new(name, 0, config, self.rng.u64(..));
            }
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
                self.keys.insert(key.clone(), KeyQueue::kept(*state));
            }
            Item::Entry(entry) => self.restore_entry(entry, now),
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

    fn restore_entry(&mut self, entry: &Entry, now: Moment) {
        let (id, admitted) = (entry.admitted.id, &entry.admitted);
        let job = admitted.job.and_then(|job| self.jobs.find_mut(job.number));
        self.entry_bytes += admitted.bytes();
        if let State::Held(lease) = entry.state {
            self.members.hold(lease.member, id, entry.is_suspect());
            self.expiries.set(lease.until, Expiry::Lease(id));
            if !lease.over {
                self.keys.entry(entry.gate().clone()).or_default().keep_busy();
            }
            if let Some(job) = job {
                job.wait(id, &admitted.key);
                job.take(id, &admitted.key);
            }
            self.entries.insert(id, entry.clone());
            return;
        }
        if let Some(job) = job {
            job.wait(id, &admitted.key);
            if entry.again.is_some() {
                job.pin(&admitted.key);
            }
        }
        if let Some(again) = &entry.again {
            self.pinned.entry(again.member).or_default().insert(id);
        }
        self.unhold(admitted.url_key, id);
        self.entries.insert(id, Entry { state: State::Delayed, ..entry.clone() });
        self.enqueue(id, now);
    }

    /// What rests on all parts together.
    fn settle_in(&mut self, now: Moment) {
        for job in self.jobs.iter().filter(|job| job.state != JobState::Done) {
            self.ready.block(job.id.number, job.is_blocked());
        }
        let mut keys: Vec<_> = self.keys.keys().cloned().collect();
        keys.sort_unstable();
        for key in keys {
            self.refresh(&key, now);
        }
    }
}
