//! The changes of active entries.

use super::keys::KeyId;
use super::{ActiveEntry, Frontier, lane_of};
use crate::entry::{AgainRequest, Entry, EntryId, EntryState, Lease};
use crate::moment::Moment;

impl Frontier {
    /// Replaces the attributes of an entry.
    pub(crate) fn set_forwarded(&mut self, id: EntryId, forwarded: Box<str>) {
        let admitted = &mut self.entry_mut(id).admitted;
        let before = admitted.bytes();
        admitted.forwarded = forwarded;
        let after = admitted.bytes();
        self.active_bytes = self.active_bytes + after - before;
    }

    /// Leases an active entry that is in no queue. Returns it.
    pub(crate) fn lease(&mut self, id: EntryId, lease: Lease, gate: KeyId) -> &ActiveEntry {
        let live = self.active.get_mut(&id).expect("it was made active");
        live.entry.state = EntryState::Held(lease);
        live.entry.releases += 1;
        let lane = lane_of(&live.entry.admitted);
        self.ready.served(lane);
        self.keys[gate].mark_released(lane, lease.member);
        live
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

    /// The next request of a task is for another URL.
    pub(crate) fn set_again(&mut self, id: EntryId, again: Box<AgainRequest>) {
        let gate = self.keys.intern(&again.key);
        self.keys[gate].add_reference();
        let live = self.active.get_mut(&id).expect("a returned entry is active");
        live.entry.again = Some(again);
        live.again_key = Some(gate);
    }

    /// Drops the `again` request of an entry. The caller refreshes the key of that request.
    pub(crate) fn clear_again(&mut self, id: EntryId) {
        let live = self.active.get_mut(&id).expect("an entry that no member holds is active");
        live.entry.again = None;
        if let Some(gate) = live.again_key.take() {
            self.keys[gate].drop_reference();
        }
    }

    /// Returns an active entry, to change its history.
    pub(crate) fn entry_mut(&mut self, id: EntryId) -> &mut Entry {
        &mut self.active.get_mut(&id).expect("a changed entry is active").entry
    }
}
