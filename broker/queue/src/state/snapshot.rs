//! What a snapshot in progress needs of a decision: a dormant entry is written to it in its old
//! state before the decision changes it.

use super::State;
use crate::entry::{Admission, Key, PassId};
use crate::frontier::entry_text::{DormantRef, WantedText};
use crate::record::snapshot::SnapshotProgress;

/// Most dormant entries that are written to a snapshot early because they are about to end.
const EARLY_WRITES_MAX: usize = 4096;

/// A part of the snapshot in progress that must be recorded before the decision that was applied.
#[derive(Debug)]
pub(crate) enum EarlyPart {
    /// An entry that the decision changed, as it was.
    Entry(Admission),
    /// The same, if its text must be read first. The text is pinned.
    Unread { wanted: WantedText, key: Key, job: Option<PassId> },
    /// Too many entries ended at once.
    Abandoned,
}

impl State {
    /// Called before a dormant entry changes.
    pub(super) fn snapshot_before_change(&mut self, dormant: DormantRef) {
        if self.snapshot.is_none() || !self.frontier.texts_mut().mark_in_snapshot(dormant) {
            return;
        }
        let part = if self.frontier.dormant().must_read(dormant) {
            let job = dormant.job().and_then(|job| self.jobs.find(job)).map(|job| job.id);
            let key = self.frontier.keys()[dormant.key].name().clone();
            let wanted = self.frontier.dormant().wanted(dormant);
            self.frontier.texts_mut().pin_text(wanted);
            EarlyPart::Unread { wanted, key, job }
        } else {
            EarlyPart::Entry(self.dormant_admission(dormant))
        };
        self.early.push(part);
    }

    /// Abandons a snapshot in progress if too many dormant entries are about to end to write them
    /// first.
    pub(super) fn abandon_snapshot_if_many(&mut self, ending: usize) {
        if ending > EARLY_WRITES_MAX && self.snapshot.take().is_some() {
            self.early.push(EarlyPart::Abandoned);
        }
    }

    /// Removes and returns what must be recorded before the decision that was applied.
    pub(crate) fn take_early(&mut self) -> Vec<EarlyPart> {
        std::mem::take(&mut self.early)
    }

    /// The progress of the snapshot.
    pub(crate) fn snapshot_mut(&mut self) -> &mut Option<SnapshotProgress> {
        &mut self.snapshot
    }
}
