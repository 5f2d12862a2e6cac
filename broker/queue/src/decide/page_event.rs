//! The event on `page-ready` about the final outcome of a URL.

use std::fmt::Write;

use tidings_protocol::{Outcome, PAYLOAD_BYTES_MAX, TaskReport};

use crate::Group;
use crate::entry::Entry;
use crate::mutants::{self, Mutant};

/// Attributes of announcements that are not carried along: those that this event has itself, so that
/// no publisher can forge an outcome, and `render` and `chain`, which are about the fetch.
const RESERVED_ATTRIBUTES: [&str; 19] = [
    "outcome", "page", "group", "serial", "gave-up", "in-job", "pass", "depth", "number", "reason",
    "error", "status", "ms", "bytes", "changed", "type", "hash", "render",
    "chain",
];

/// Bytes that the words of most events take.
const WORDS_BYTES: usize = 448;

impl Group {
    /// Returns the event about an entry that ends with this outcome: its URL, and what is known
    /// about it. `None` if the entry has no URL or the group announces no outcomes. `gave_up`: why
    /// the group does not try again. The event is the `ahead`-th that the group publishes next.
    pub(crate) fn page_event(
        &self,
        entry: &Entry,
        outcome: Outcome,
        report: Option<&TaskReport>,
        (gave_up, ahead): (Option<&str>, u64),
    ) -> Option<String> {
        let admitted = &entry.admitted;
        admitted.url_key.filter(|_| self.config.page_ready)?;
        if mutants::is(Mutant::UntoldOutcome) && outcome != Outcome::Done {
            return None;
        }
        let (group, since) = (&self.name, self.since.unwrap_or_default());
        let mut event = String::with_capacity(admitted.text.len() + WORDS_BYTES);
        event.push_str(&admitted.text);
        let (id, run, serial) = (admitted.id, self.run, self.last_serial + ahead);
        // Writing into a string cannot fail.
        let _ = write!(
            event,
            " outcome={outcome} page={group}.{since}.{id} group={group} serial={run}.{serial}"
        );
        if let Some(report) = report {
            let _ = write!(event, "{report}");
        }
        if let Some(gave_up) = gave_up {
            if report.is_none_or(|report| report.reason.is_none()) {
                let _ = write!(event, " reason={gave_up}");
            }
            let _ = write!(event, " gave-up={gave_up}");
        }
        // Not `job=`, which would make the event a seed of that job for a group that reads it.
        if let Some((job, pass)) = self.job_and_pass(entry) {
            let (name, number, depth) = (&job.name, job.id.number, admitted.depth);
            let _ = write!(event, " in-job={name} pass={pass} depth={depth} number={number}");
        }
        for word in self.task_attributes(admitted).split(' ').skip(1) {
            let is_own =
                word.split_once('=').is_none_or(|(name, _)| RESERVED_ATTRIBUTES.contains(&name));
            if !is_own && event.len() + 1 + word.len() <= PAYLOAD_BYTES_MAX {
                event.extend([" ", word]);
            }
        }
        Some(event)
    }
}
