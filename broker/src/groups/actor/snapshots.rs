//! Writes snapshots of the group to its log, in parts.

use tidings_queue::record::GroupRecord;

use super::GroupActor;

/// Records of a snapshot that are flushed together.
const SNAPSHOT_FLUSH_RECORDS: u64 = 64;
/// Parts of the group's state that one turn writes to a snapshot: less than a millisecond of work.
const SNAPSHOT_ITEMS_PER_TURN: usize = 256;

impl GroupActor {
    /// Writes a part of a snapshot of the group's state, if the log has grown enough to be replaced
    /// by one. Other work continues between the parts. Returns whether there is more.
    pub(super) fn continue_snapshot(&mut self) -> bool {
        if self.group.is_snapshot_waiting() {
            return false;
        }
        let begins = !self.group.is_snapshotting();
        if begins && !self.log.wants_snapshot() || self.log.is_busy() {
            // A busy log wakes the actor when it has room.
            return false;
        }
        if begins {
            self.log.begin_snapshot();
        }
        let (at, stamp) = (self.clock.now(), self.clock.stamp());
        let mut records = 0_u64;
        let write = |decision| {
            self.appended = self.log.append(&GroupRecord { at, decision });
            records += 1;
            if records.is_multiple_of(SNAPSHOT_FLUSH_RECORDS) {
                self.log.flush(0);
            }
        };
        let is_whole = if begins {
            self.group.begin_snapshot(stamp, write);
            false
        } else {
            self.group.continue_snapshot(SNAPSHOT_ITEMS_PER_TURN, write)
        };
        if is_whole {
            self.log.end_snapshot();
        } else {
            self.log.flush(0);
        }
        // It may have requested texts.
        self.drain_outputs();
        !is_whole && !self.group.is_snapshot_waiting()
    }
}
