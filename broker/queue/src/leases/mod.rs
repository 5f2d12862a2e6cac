//! Leases: which member may work on which entry, and until when.
//!
//! [`Leases`] owns the members with their connections, credit and held entries, the expiries of
//! leases, and the entries that are pinned to a member. It knows neither what an entry is (only its
//! id) nor keys, jobs or schedules: the group tells it when a lease begins and ends, and asks it
//! which member has room.

mod members;
mod recent_count;

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::MemberId;

pub(crate) use self::members::{Credit, Member, MemberConn, Members};
use crate::entry::{Demand, EntryId, Lease};
use crate::moment::Moment;
use crate::timers::Timers;

/// The members of a group, and what they hold.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    members: Members,
    /// The worker that runs inside the broker's process.
    local_member: Option<MemberId>,
    /// Entries that wait for the next request of one member.
    pinned: BTreeMap<MemberId, BTreeSet<EntryId>>,
    expiries: Timers<EntryId>,
    /// The lease that ended last.
    last_ended: Option<EndedLease>,
}

/// How the lease of a member ended, for the counts of the member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseEnd {
    /// The task is done.
    Done,
    /// The attempt failed, or the task.
    Failed,
    /// The lease expired.
    Lost,
}

/// A lease that has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndedLease {
    entry: EntryId,
    pub(crate) member: MemberId,
    pub(crate) began_at: Moment,
}

impl Leases {
    /// Returns the members, to choose one.
    pub(crate) fn members(&self) -> &Members {
        &self.members
    }

    /// The connections of members, and what was heard on them.
    pub(crate) fn members_mut(&mut self) -> &mut Members {
        &mut self.members
    }

    /// Returns the worker that runs inside the broker's process.
    pub(crate) fn local_member(&self) -> Option<MemberId> {
        self.local_member
    }

    /// This worker runs inside the broker's process.
    pub(crate) fn set_local_member(&mut self, member: Option<MemberId>) {
        self.local_member = member;
    }

    /// Drains a member, or ends that.
    pub(crate) fn set_drained(&mut self, member: MemberId, drained: bool, now: Moment) {
        self.members.set_drained(member, drained, now);
    }

    /// The group starts: no member could connect before `now`.
    pub(crate) fn restart_absences(&mut self, now: Moment) {
        self.members.restart_absences(now);
    }

    /// A lease begins.
    pub(crate) fn begin(&mut self, entry: EntryId, lease: &Lease, demand: Demand) {
        self.members.add_lease(lease.member, entry, demand);
        self.expiries.set(lease.until, entry);
    }

    /// A lease lasts until another moment.
    pub(crate) fn renew(&mut self, entry: EntryId, before: Moment, until: Moment) {
        self.expiries.cancel(before, entry);
        self.expiries.set(until, entry);
    }

    /// A lease ends. `demand` must be as at its beginning.
    pub(crate) fn end(&mut self, entry: EntryId, lease: &Lease, demand: Demand) {
        self.expiries.cancel(lease.until, entry);
        self.members.end_lease(lease.member, entry, demand);
        let Lease { member, began_at, .. } = *lease;
        self.last_ended = Some(EndedLease { entry, member, began_at });
    }

    /// Counts the end of the last lease, which was of this entry, for its member.
    pub(crate) fn count_end(&mut self, entry: EntryId, end: LeaseEnd, now: Moment) {
        if let Some(ended) = self.last_ended(entry) {
            self.members.count_end(ended.member, end, now);
        }
    }

    /// Returns the lease that ended last, if it was of this entry.
    pub(crate) fn last_ended(&self, entry: EntryId) -> Option<EndedLease> {
        self.last_ended.filter(|ended| ended.entry == entry)
    }

    /// Returns when the next lease expires.
    pub(crate) fn next_expiry(&self) -> Option<Moment> {
        self.expiries.next()
    }

    /// Returns the next entry with a lease that has expired at `now`, and ends its timer.
    pub(crate) fn pop_expired(&mut self, now: Moment) -> Option<EntryId> {
        self.expiries.pop(now)
    }

    /// Returns the expiries, the earliest first: one for each held entry.
    pub(crate) fn expiries(&self) -> impl Iterator<Item = (Moment, EntryId)> {
        self.expiries.iter().copied()
    }

    /// An entry waits for the next request of this member.
    pub(crate) fn pin(&mut self, member: MemberId, entry: EntryId) {
        self.pinned.entry(member).or_default().insert(entry);
    }

    /// An entry waits for this member no more. Returns whether it did.
    pub(crate) fn unpin(&mut self, member: MemberId, entry: EntryId) -> bool {
        let Some(pinned) = self.pinned.get_mut(&member) else { return false };
        let was_pinned = pinned.remove(&entry);
        if pinned.is_empty() {
            self.pinned.remove(&member);
        }
        was_pinned
    }

    /// Returns the entries that wait for a member; `None` if there are none.
    pub(crate) fn pinned_to(&self, member: MemberId) -> Option<Vec<EntryId>> {
        self.pinned.get(&member).map(|entries| entries.iter().copied().collect())
    }

    /// Returns the members for which entries wait, with those entries.
    pub(crate) fn pins(&self) -> &BTreeMap<MemberId, BTreeSet<EntryId>> {
        &self.pinned
    }
}
