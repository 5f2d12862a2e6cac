//! Memory prefetch for batches.
//!
//! In a large group, one task touches about a dozen places in memory that are in no processor
//! cache, one after the other. A processor loads several places at a time if none of the addresses
//! depends on another load. So before a batch is admitted, answered or released, its memory is
//! prefetched: each step for the whole batch before the next step. Nothing here changes the group.

use std::hint::black_box;

use super::parsed_event::ParsedEvent;
use crate::frontier::keys::KeyId;
use crate::{Group, Input};

/// Batch size: more loads than a processor runs at a time, and small enough that the first ones are
/// still cached when they are used.
pub(crate) const PREFETCH_BATCH: usize = 32;

impl Group {
    /// Prefetches the tasks that workers answer.
    pub(crate) fn prefetch_tasks(&self, inputs: &[Input]) {
        for inputs in inputs.chunks(PREFETCH_BATCH) {
            let tasks = inputs.iter().filter_map(|input| match input {
                Input::Reply { reply, .. } => Some(reply.task().entry),
                _ => None,
            });
            let mut found = [None; PREFETCH_BATCH];
            for (found, entry) in found.iter_mut().zip(tasks) {
                *found = self.state.frontier().find(entry);
            }
            let found = found.iter().flatten();
            for live in found.clone() {
                black_box((live.key, live.entry.admitted.text.as_bytes().first()));
            }
            for live in found {
                self.state.frontier().keys()[live.key].prefetch();
            }
        }
    }

    /// Prefetches the keys of events, and the waiting entries of their URLs.
    pub(crate) fn prefetch_urls<'a>(
        &self,
        events: impl Iterator<Item = &'a ParsedEvent<'a>> + Clone,
    ) {
        let mut keys = [None; PREFETCH_BATCH];
        let names = events.clone().filter_map(|parsed| parsed.key(self.state.config()));
        self.state.frontier().keys().find_many(names, &mut keys);
        for fingerprint in events.filter_map(ParsedEvent::fingerprint) {
            self.state.dormant().prefetch_url(fingerprint);
            black_box(!self.state.frontier().waiting_of_url(fingerprint).is_empty());
        }
        for key in keys.into_iter().flatten() {
            if let Some(run) = self.state.frontier().keys()[key].dormant().any_run() {
                self.state.dormant().prefetch(run.last);
            }
        }
    }

    /// Prefetches the first entry of each key, for its release.
    pub(crate) fn prefetch_keys(&self, keys: impl Iterator<Item = KeyId>) {
        let mut firsts = [None; PREFETCH_BATCH];
        for (first, key) in firsts.iter_mut().zip(keys) {
            *first = self.state.frontier().keys()[key].dormant().any_run().map(|run| run.first);
        }
        let firsts = firsts.into_iter().flatten();
        for first in firsts.clone() {
            self.state.dormant().prefetch(first);
        }
        for first in firsts {
            self.state.dormant().prefetch_text(first);
        }
    }
}
