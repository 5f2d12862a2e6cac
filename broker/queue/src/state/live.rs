//! What no record holds, and what decides nothing about the records: the moment, timers that have
//! ended, the order of release, members that are connected, texts in memory.

use tidings_protocol::{CanonicalUrl, UrlKey};

use super::State;
use crate::config::GroupConfig;
use crate::entry::{EntryId, JobNumber, Key};
use crate::frontier::dormant::DormantEntries;
use crate::frontier::entry_text::{DormantRef, WantedText};
use crate::frontier::keys::KeyId;
use crate::frontier::lane::Lane;
use crate::frontier::release_order::{Rank, ReadyClass};
use crate::frontier::{Turns, Wake};
use crate::jobs::{JobTimer, Jobs};
use crate::leases::Members;
use crate::moment::Moment;
use crate::schedules::WallClockDue;

/// Time.
impl State {
    /// Lets time pass: due entries are queued, and rested keys become free.
    pub(crate) fn advance(&mut self, now: Moment) {
        self.now = now;
        while let Some(wake) = self.frontier.pop_wake(now) {
            match wake {
                Wake::Due(id) => self.enqueue(id, now),
                Wake::Key(key) => self.refresh(key, now),
            }
        }
    }
}

/// The order of release, and chance.
impl State {
    /// Updates whether a key is free and what it offers. Called after everything that may have
    /// changed this, also for keys that may have been removed since.
    pub(super) fn refresh(&mut self, key: KeyId, now: Moment) {
        self.frontier.refresh(key, &turns(&self.jobs, &self.config, now));
    }

    /// Offers the key of an entry after its text was read: `Frontier::offer_next`.
    pub(crate) fn offer_next(&mut self, dormant: DormantRef, now: Moment) {
        self.frontier.offer_next(dormant, &turns(&self.jobs, &self.config, now));
    }

    /// See `Frontier::next_ready`.
    pub(crate) fn next_ready(
        &mut self,
        skipped: &[impl AsRef<[Lane]>; 2],
    ) -> Option<(KeyId, ReadyClass, bool)> {
        self.frontier.next_ready(self.leases.members(), skipped)
    }

    /// Returns the next random number in 0..1 from the seed of the group.
    pub(crate) fn random(&mut self) -> f64 {
        self.frontier.random()
    }

    /// Loses the lanes of a job, for a mutant.
    pub(crate) fn lose_lane(&mut self, job: JobNumber) {
        self.frontier.block(job, true);
    }
}

fn turns<'a>(jobs: &'a Jobs, config: &GroupConfig, now: Moment) -> Turns<'a> {
    Turns { jobs, parallel: config.settings.parallel, is_by_age: config.settings.key.is_own(), now }
}

/// A timer that leads to a decision.
#[derive(Debug)]
pub(crate) enum Expiry {
    /// A lease expires.
    Lease(EntryId),
    /// A job was left open for too long, or its time limit passes.
    Job(JobTimer),
    /// The schedule of this URL is due.
    Schedule(UrlKey),
    /// The rule with this name ends.
    Rule(Key, bool),
}

impl State {
    /// Returns when the next of these timers ends.
    pub(crate) fn next_expiry(&self) -> Option<Moment> {
        let rules = self.frontier.rules().next_end();
        let (leases, jobs) = (self.leases.next_expiry(), self.jobs.next_timer());
        [leases, jobs, self.schedules.next_due(), rules].into_iter().flatten().min()
    }

    /// Ends the earliest of these timers that is due at `now`, and returns it. At the same moment,
    /// leases come first, then jobs, then schedules, then rules.
    pub(crate) fn pop_expiry(&mut self, now: Moment) -> Option<Expiry> {
        let first = self.next_expiry()?;
        if self.leases.next_expiry() == Some(first) {
            self.leases.pop_expired(now).map(Expiry::Lease)
        } else if self.jobs.next_timer() == Some(first) {
            self.jobs.pop_timer(now).map(Expiry::Job)
        } else if self.schedules.next_due() == Some(first) {
            self.schedules.pop_due(now).map(Expiry::Schedule)
        } else {
            let end = self.frontier.pop_rule_end(now);
            end.map(|(name, below)| Expiry::Rule(name, below))
        }
    }

    /// Counts these timers.
    #[cfg(test)]
    pub(crate) fn expiry_count(&self) -> usize {
        self.leases.expiries().count()
            + self.jobs.timers().count()
            + self.schedules.timers().count()
            + self.frontier.rules().ends().count()
    }
}

/// Members.
impl State {
    pub(crate) fn members_mut(&mut self) -> &mut Members {
        self.leases.members_mut()
    }
}

/// Parts of pages that members render.
impl State {
    /// The member of an entry may request the key of this URL until the request of the entry ends.
    pub(crate) fn begin_part(&mut self, id: EntryId, url: &CanonicalUrl<'_>) {
        if let Some(key) = self.config.key_of_url(url) {
            self.frontier.parts.begin(id, key);
        }
    }
}

/// Texts of dormant entries, in memory and outside. While the next text of a key is being read, the
/// key offers nothing.
impl State {
    pub(crate) fn texts_mut(&mut self) -> &mut DormantEntries {
        self.frontier.texts_mut()
    }

    /// See `Frontier::begin_loading`.
    pub(crate) fn begin_loading(
        &mut self,
        key: KeyId,
        place: (Lane, Rank),
        dormant: DormantRef,
    ) -> WantedText {
        self.frontier.begin_loading(key, place, dormant)
    }

    /// See `Frontier::end_loading`.
    pub(crate) fn end_loading(&mut self, dormant: DormantRef) -> bool {
        self.frontier.end_loading(dormant)
    }
}

/// The wall clock, and what a replay defers.
impl State {
    /// Stores what the wall clock shows. Returns what is due at another moment then; the caller
    /// commits it.
    pub(crate) fn set_wall_clock(&mut self, unix_ms: i64, now: Moment) -> Vec<WallClockDue> {
        let Self { schedules, frontier, .. } = self;
        schedules.set_wall_clock(unix_ms, now, |id| frontier.pending_due(id))
    }

    /// A replay begins: what is faster to build at its end is deferred.
    pub(crate) fn begin_replay(&mut self) {
        self.frontier.begin_replay();
    }

    /// A replay ends.
    pub(crate) fn end_replay(&mut self) {
        self.frontier.end_replay();
        let turns = turns(&self.jobs, &self.config, self.now);
        for key in self.frontier.keys().ids() {
            self.frontier.offer(key, &turns);
        }
    }
}
