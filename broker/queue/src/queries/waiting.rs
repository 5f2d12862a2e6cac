//! Waiting entries that a command is about: `GROUP purge` with a selection, `GROUP bump`, and
//! `JOB set` with `dry=yes`.

use tidings_protocol::status::TaskState;
use tidings_protocol::{EntrySelection, ListRange, Patterns, ProtocolError, WaitingChange};

use super::View;
use super::task_list::{Fit, WalkedEntries};
use crate::entry::EntryId;
use crate::frontier::AnyEntry;
use crate::mutants::{self, Mutant};

/// Entries for one answer. Their texts may have to be read, and other inputs wait while they are
/// changed.
const PART_ENTRIES: usize = 1000;

/// The states of entries that wait.
const WAITING: [TaskState; 3] = [TaskState::Pending, TaskState::Retry, TaskState::Queued];

/// A part of the entries that a command changes.
#[derive(Debug)]
pub(crate) struct SelectedWaiting {
    pub(crate) change: WaitingChange,
    walked: WalkedEntries,
}

impl SelectedWaiting {
    /// Returns the ids of the entries that may fit.
    pub(crate) fn ids(&self) -> impl Iterator<Item = EntryId> {
        self.walked.ids.iter().copied()
    }

    /// Returns the last entry before the next part, if others may follow.
    pub(crate) fn next(&self) -> Option<EntryId> {
        self.walked.stopped_at
    }
}

impl View<'_> {
    /// Selects entries to change.
    pub(crate) fn select_waiting(
        &self,
        change: &WaitingChange,
    ) -> Result<SelectedWaiting, ProtocolError> {
        // The job may end while its entries are changed in parts.
        if let (Some(job), 0) = (&change.selection.job, change.after) {
            self.running_job(job)?;
        }
        let patterns = change.selection.matching.as_ref().map_or(0, Patterns::len);
        let walked = self.walk_waiting(&change.selection, change.after, patterns)?;
        Ok(SelectedWaiting { change: change.clone(), walked })
    }

    /// Returns the selected entries that fit. Their texts are in memory. Entries that have ended or
    /// were released since are left out.
    pub(crate) fn fitting(
        &self,
        selected: &SelectedWaiting,
    ) -> Result<Vec<EntryId>, ProtocolError> {
        let selector = self.selector(&selected.change.selection)?;
        let fits = |id: &EntryId| {
            let entry = self.state.frontier().find_any(*id).filter(|entry| {
                !mutants::is(Mutant::SparesDormant) || matches!(entry, AnyEntry::Active(_))
            });
            entry.is_some_and(|entry| self.fit_of(&selector, &WAITING, entry) == Fit::Yes)
        };
        Ok(selected.ids().filter(fits).collect())
    }

    /// Returns a part of the waiting entries that may fit a selection. `patterns` is the number of
    /// patterns that each is compared with.
    pub(super) fn walk_waiting(
        &self,
        selection: &EntrySelection,
        after: EntryId,
        patterns: usize,
    ) -> Result<WalkedEntries, ProtocolError> {
        let range = ListRange { after: Some(after), limit: PART_ENTRIES };
        self.walk_entries(selection, &WAITING, range, patterns)
    }
}
