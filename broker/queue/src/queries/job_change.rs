//! What a change of a job would drop (`JOB set` with `dry=yes`).

use tidings_protocol::status::{Answer, JobDryRun};
use tidings_protocol::{EntrySelection, ProtocolError};

use super::View;
use super::task_list::WalkedEntries;
use crate::JobChange;
use crate::entry::EntryId;
use crate::jobs::admits_waiting;

/// Most URLs that an answer shows.
const EXAMPLES_MAX: usize = 20;

/// A change of a job, with entries of the job.
#[derive(Debug)]
pub(crate) struct TriedChange {
    change: JobChange,
    walked: WalkedEntries,
}

impl TriedChange {
    /// Returns the ids of the entries.
    pub(crate) fn ids(&self) -> impl Iterator<Item = EntryId> {
        self.walked.ids.iter().copied()
    }
}

impl View<'_> {
    /// Selects entries of a job that wait.
    pub(crate) fn try_change(&self, change: &JobChange) -> Result<TriedChange, ProtocolError> {
        let JobChange { name, changes, after } = change;
        let (_, settings) = self.changed_job(name, changes)?;
        let patterns = settings.include.len() + settings.exclude.len();
        let selection = EntrySelection { job: Some(name.clone()), ..EntrySelection::default() };
        let walked = self.walk_waiting(&selection, *after, patterns)?;
        Ok(TriedChange { change: change.clone(), walked })
    }

    /// Says which of the selected entries would not belong to the job any more. Their texts are in
    /// memory. Entries that have ended since are left out.
    pub(crate) fn describe_change(&self, tried: &TriedChange) -> Result<Answer, ProtocolError> {
        let TriedChange { change: JobChange { name, changes, .. }, walked } = tried;
        let (_, settings) = self.changed_job(name, changes)?;
        let (mut examples, mut would_drop, mut of) = (Vec::new(), 0, 0);
        for id in tried.ids().filter(|id| self.state.frontier().find_any(*id).is_some()) {
            let entry = self.unreleased(id);
            of += 1;
            if !admits_waiting(&settings, &entry.admitted.text, entry.admitted.depth) {
                would_drop += 1;
                if examples.len() < EXAMPLES_MAX {
                    examples.push(entry.admitted.text.to_string());
                }
            }
        }
        let job = name.to_string();
        let next = walked.stopped_at;
        Ok(Answer::new(examples, JobDryRun { job, would_drop, of, next }))
    }
}
