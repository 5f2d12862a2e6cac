//! What no record holds, and what decides nothing about the records: the moment, timers that have
//! ended, the order of release, members that are connected, texts in memory.

use tidings_protocol::{CanonicalUrl, MemberId, UrlKey};

use super::State;
use crate::ConnId;
use crate::config::GroupConfig;
use crate::entry::{EntryId, JobNumber, Key};
use crate::frontier::dormant::DormantEntries;
use crate::frontier::entry_text::{DormantRef, WantedText};
use crate::frontier::keys::KeyId;
use crate::frontier::lane::Lane;
use crate::frontier::release_order::{Rank, ReadyClass};
use crate::frontier::{Turns, Wake};
use crate::jobs::{JobTimer, Jobs};
use crate::leases::MemberConn;
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

/// The order of release.
impl State {
    /// Updates whether a key is free and what it offers. Called after everything that may have
    /// changed this, also for keys that may have been removed since.
    pub(super) fn refresh(&mut self, key: KeyId, now: Moment) {
        self.frontier.refresh(key, &turns(&self.jobs, &self.config, now));
    }

    /// Offers a key for release under the class of its next entry, if it is free.
    fn offer(&mut self, key: KeyId, now: Moment) {
        self.frontier.offer(key, &turns(&self.jobs, &self.config, now));
    }

    /// Offers the key of an entry after its text was read: `Frontier::offer_next`.
    pub(crate) fn offer_next(&mut self, dormant: DormantRef, now: Moment) {
        self.frontier.offer_next(dormant, &turns(&self.jobs, &self.config, now));
    }
}

/// The order of release, and chance.
impl State {
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

/// Timers that lead to a decision. Each is over when it is returned.
impl State {
    /// Returns the next entry with a lease that has expired.
    pub(crate) fn pop_expired_lease(&mut self, now: Moment) -> Option<EntryId> {
        self.leases.pop_expired(now)
    }

    /// Returns the next timer of a job that is due.
    pub(crate) fn pop_job_timer(&mut self, now: Moment) -> Option<JobTimer> {
        self.jobs.pop_timer(now)
    }

    /// Returns the URL of the next schedule that is due.
    pub(crate) fn pop_schedule(&mut self, now: Moment) -> Option<UrlKey> {
        self.schedules.pop_due(now)
    }

    /// Returns the next rule that ends: its name, and whether it is for all hosts below.
    pub(crate) fn pop_rule_end(&mut self, now: Moment) -> Option<(Key, bool)> {
        self.frontier.pop_rule_end(now)
    }
}

/// Members.
impl State {
    /// Connects a member.
    pub(crate) fn join(&mut self, member: MemberId, conn: MemberConn, now: Moment) {
        self.leases.join(member, conn, now);
    }

    /// A connection ended. Returns the member if this was its current connection.
    pub(crate) fn disconnect(&mut self, conn: ConnId, now: Moment) -> Option<MemberId> {
        self.leases.disconnect(conn, now)
    }

    /// A member has sent something.
    pub(crate) fn mark_active(&mut self, member: MemberId, now: Moment) {
        self.leases.mark_active(member, now);
    }

    /// The member on a connection has sent something.
    pub(crate) fn mark_active_on(&mut self, conn: ConnId, now: Moment) {
        self.leases.mark_active_on(conn, now);
    }

    /// A lease of a member has expired: it receives no task until it sends something.
    pub(crate) fn mark_silent(&mut self, member: MemberId) {
        self.leases.mark_silent(member);
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

/// Texts of dormant entries, in memory and outside. A key whose next text is being read offers
/// nothing.
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
        for key in self.frontier.keys().ids() {
            self.offer(key, self.now);
        }
    }
}
