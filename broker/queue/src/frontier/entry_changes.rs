//! The changes of active entries. Only the frontier writes their fields.

use tidings_protocol::{MemberId, Render};

use super::keys::KeyId;
use super::lane::lane_of;
use super::{ActiveEntry, Frontier};
use crate::entry::{
    AgainRequest, Entry, EntryId, EntryState, Lease, PassId, merge_attributes, with_render,
};
use crate::moment::Moment;
use crate::mutants::{self, Mutant};

impl Frontier {
    fn entry_mut(&mut self, id: EntryId) -> &mut Entry {
        &mut self.active.get_mut(&id).expect("a changed entry is active").entry
    }

    /// Sets when an entry that is in no queue is due.
    pub(crate) fn set_due(&mut self, id: EntryId, due: Moment) {
        self.entry_mut(id).admitted.due = due;
    }

    /// Sets the priority of an entry that is in no queue.
    pub(crate) fn set_prio(&mut self, id: EntryId, prio: i16) {
        self.entry_mut(id).admitted.prio = prio;
    }

    /// Merges an event into an entry that is in no queue: the higher priority, the earlier due
    /// time, and the attributes of the event, unless they do not fit. Returns whether the event is
    /// due earlier.
    pub(crate) fn coalesce(
        &mut self,
        id: EntryId,
        announced: bool,
        (prio, due, forwarded): (i16, Moment, &str),
    ) -> bool {
        let before = &self.entry_mut(id).admitted;
        let is_earlier = due < before.due;
        if !forwarded.is_empty()
            && let Some(all) = merge_attributes(forwarded, &before.forwarded)
        {
            self.set_forwarded(id, all);
        }
        let admitted = &mut self.entry_mut(id).admitted;
        admitted.announced |= announced;
        admitted.prio = admitted.prio.max(prio);
        if !mutants::is(Mutant::IgnoresEarlierDue) {
            admitted.due = admitted.due.min(due);
        }
        is_earlier
    }

    fn set_forwarded(&mut self, id: EntryId, forwarded: String) {
        let admitted = &mut self.entry_mut(id).admitted;
        let before = admitted.bytes();
        admitted.forwarded = forwarded.into();
        let after = admitted.bytes();
        self.active_bytes = self.active_bytes + after - before;
    }

    /// Leases an entry that is in no queue. Returns it.
    pub(crate) fn lease(&mut self, id: EntryId, lease: Lease, gate: KeyId) -> &ActiveEntry {
        let live = self.active.get_mut(&id).expect("it was made active");
        live.entry.state = EntryState::Held(lease);
        live.entry.releases += 1;
        let lane = lane_of(&live.entry.admitted);
        let render = live.entry.admitted.needs_render();
        self.ready[usize::from(render)].served(lane);
        self.keys[gate].mark_released(id, lane, lease.member, lease.began_at);
        live
    }

    /// Renews a lease, and notes whether its request is over. Returns its end before.
    pub(crate) fn renew_lease(
        &mut self,
        id: EntryId,
        until: Moment,
        request_over: bool,
    ) -> Option<Moment> {
        let EntryState::Held(lease) = &mut self.entry_mut(id).state else { return None };
        lease.request_over |= request_over;
        Some(std::mem::replace(&mut lease.until, until))
    }

    /// Extends all leases that end before `until`, and tells which.
    pub(crate) fn extend_leases(
        &mut self,
        until: Moment,
        mut renewed: impl FnMut(EntryId, Moment, Moment),
    ) {
        for (id, live) in &mut self.active {
            if let EntryState::Held(lease) = &mut live.entry.state {
                let before = lease.until;
                lease.until = lease.until.max(until);
                renewed(*id, before, lease.until);
            }
        }
    }

    /// Ends the lease of an entry, which is found by its URL from here on. Returns the lease.
    pub(crate) fn end_lease(&mut self, id: EntryId) -> Option<Lease> {
        let entry = self.entry_mut(id);
        let EntryState::Held(lease) = entry.state else { return None };
        entry.state = EntryState::Delayed;
        let url = entry.admitted.url_key;
        self.index_waiting(url, id);
        Some(lease)
    }

    /// Counts an attempt that was lost with its member. The entry is due at once, with its own
    /// request. The caller refreshes the key of an `again` request.
    pub(crate) fn count_loss(&mut self, id: EntryId, now: Moment) {
        self.clear_again(id);
        let entry = self.entry_mut(id);
        entry.losses += 1;
        entry.last_reason = Some("lost with its member".into());
        entry.again_count = 0;
        entry.admitted.due = now;
    }

    /// Notes a failed attempt, and counts it if `counts`.
    pub(crate) fn note_failure(
        &mut self,
        id: EntryId,
        due: Moment,
        reason: Option<Box<str>>,
        counts: bool,
    ) {
        let entry = self.entry_mut(id);
        entry.failures += u32::from(counts);
        entry.last_reason = reason;
        entry.again_count = 0;
        entry.admitted.due = due;
    }

    /// Only a member with a browser continues a task. The entry is due at once.
    pub(crate) fn require_render(&mut self, id: EntryId, now: Moment) {
        let forwarded = &self.entry_mut(id).admitted.forwarded;
        let forwarded = with_render(forwarded, Some(Render::Yes));
        self.set_forwarded(id, forwarded);
        let entry = self.entry_mut(id);
        entry.again_count = 0;
        entry.admitted.due = now;
    }

    /// The next request of a task is for another URL. The entry is due at once.
    pub(crate) fn set_again(&mut self, id: EntryId, again: Box<AgainRequest>, now: Moment) {
        let gate = self.keys.intern(&again.key);
        self.keys[gate].add_reference();
        let live = self.active.get_mut(&id).expect("a returned entry is active");
        live.again_key = Some(gate);
        live.entry.again = Some(again);
        live.entry.again_count += 1;
        live.entry.admitted.due = now;
    }

    /// Drops the `again` request of an entry. The caller refreshes the key of that request.
    pub(crate) fn clear_again(&mut self, id: EntryId) {
        let live = self.active.get_mut(&id).expect("an entry that no member holds is active");
        live.entry.again = None;
        if let Some(gate) = live.again_key.take() {
            self.keys[gate].drop_reference();
        }
    }

    /// Does this for an entry that restarts with its own request. Returns the member that asked for
    /// the `again` request.
    pub(crate) fn restart(&mut self, id: EntryId) -> Option<MemberId> {
        let entry = self.entry_mut(id);
        entry.again_count = 0;
        let member = entry.again.as_ref().map(|again| again.member);
        self.clear_again(id);
        member
    }

    /// Makes an entry part of the repair of a pass.
    pub(crate) fn set_repairs(&mut self, id: EntryId, pass: PassId) {
        self.entry_mut(id).repairs = Some(pass);
    }
}
