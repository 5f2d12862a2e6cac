//! The event on `page-ready` about the final outcome of a URL.

use std::fmt::Write;

use tidings_protocol::{CanonicalUrl, Outcome, PAYLOAD_BYTES_MAX, TaskReport};

use crate::Group;
use crate::entry::Entry;
use crate::mutants::{self, Mutant};

/// Attributes of announcements that are not carried along: those that this event has itself, so
/// that no publisher can forge an outcome, and `render` and `chain`, which are about the fetch.
const RESERVED_ATTRIBUTES: [&str; 20] = [
    "outcome", "page", "group", "serial", "gave-up", "in-job", "pass", "depth", "number", "reason",
    "error", "status", "ms", "bytes", "changed", "type", "hash", "render", "chain", "location",
];

/// Bytes that the words of most events take.
const WORDS_BYTES: usize = 448;

/// How a page ended.
#[derive(Default)]
pub(crate) struct PageEnd<'a> {
    /// The outcome.
    pub(crate) outcome: Outcome,
    /// The report of the last attempt.
    pub(crate) report: Option<&'a TaskReport>,
    /// Why the group does not try again.
    pub(crate) gave_up: Option<&'a str>,
    /// The target of its redirect.
    pub(crate) location: Option<CanonicalUrl<'a>>,
}

impl Group {
    /// Returns the event about an entry that ends: its URL, and what is known about it. `None` if
    /// the entry has no URL or the group announces no outcomes. The event is the `ahead`-th that
    /// the group publishes next.
    pub(crate) fn page_event(
        &self,
        entry: &Entry,
        end: &PageEnd<'_>,
        ahead: u64,
    ) -> Option<String> {
        let PageEnd { outcome, report, gave_up, ref location } = *end;
        let admitted = &entry.admitted;
        admitted.url_key.filter(|_| self.state.config().settings.page_ready)?;
        if mutants::is(Mutant::UntoldOutcome) && outcome != Outcome::Done {
            return None;
        }
        let (group, since) = (self.state.name(), self.state.since().unwrap_or_default());
        let mut event = String::with_capacity(admitted.text.len() + WORDS_BYTES);
        event.push_str(&admitted.text);
        let (id, run, serial) = (admitted.id, self.state.run(), self.state.last_serial() + ahead);
        // Writing into a string cannot fail.
        let _ = write!(
            event,
            " outcome={outcome} page={group}.{since}.{id} group={group} serial={run}.{serial}"
        );
        if let Some(report) = report {
            let _ = write!(event, "{report}");
        }
        if let Some(location) = location {
            event.extend([" location=", location.as_str()]);
        }
        if let Some(gave_up) = gave_up {
            if report.is_none_or(|report| report.reason.is_none()) {
                let _ = write!(event, " reason={gave_up}");
            }
            let _ = write!(event, " gave-up={gave_up}");
        }
        // Not `job=`, which would make the event a seed of that job for a group that reads it.
        if let Some((job, pass)) = self.view().job_and_pass(entry) {
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
