//! Looking at memory before it is needed.
//!
//! For one task, a large group touches a dozen places that are in no cache of the processor, one after
//! the other. A processor waits for several places at a time if finding one does not take what is in
//! another. So when many tasks are to be let in, answered or released, what they need is looked at first:
//! one step for several of them before the next step is made. Nothing here changes anything.

use std::hint::black_box;

use super::admit::Told;
use super::keys::KeyId;
use super::{Group, Input};

/// Looked at together: more than a processor waits for at a time, and few enough that what was fetched is
/// still near when it is used.
pub(super) const TOGETHER: usize = 32;

impl Group {
    /// What answers of workers are about.
    pub(super) fn look_at_tasks_of(&self, inputs: &[Input]) {
        for inputs in inputs.chunks(TOGETHER) {
            let tasks = inputs.iter().filter_map(|input| match input {
                Input::Ack { task, .. } => Some(task.entry),
                _ => None,
            });
            let mut found = [None; TOGETHER];
            for (found, entry) in found.iter_mut().zip(tasks) {
                *found = self.live.get(&entry).map(|live| &**live);
            }
            let found = found.iter().flatten();
            for live in found.clone() {
                black_box((live.key, live.entry.admitted.text.as_bytes().first()));
            }
            for live in found {
                self.keys[live.key].glimpse();
            }
        }
    }

    /// What events are about: their keys, and what waits for the same URLs.
    pub(super) fn look_at_urls<'a>(&self, events: impl Iterator<Item = &'a Told<'a>> + Clone) {
        let mut keys = [None; TOGETHER];
        let names = events.clone().filter_map(|told| told.key(&self.config));
        self.keys.look_up(names, &mut keys);
        for print in events.filter_map(Told::print) {
            self.parked.glimpse_of_url(print);
            black_box(self.unheld.contains_key(&print));
        }
        for key in keys.into_iter().flatten() {
            if let Some(run) = self.keys[key].runs.any() {
                self.parked.glimpse(run.last);
            }
        }
    }

    /// What is needed to release the first of what waits behind keys.
    pub(super) fn look_at_keys(&self, keys: &[KeyId]) {
        let mut firsts = [None; TOGETHER];
        for (first, key) in firsts.iter_mut().zip(keys) {
            *first = self.keys[*key].runs.any().map(|run| run.first);
        }
        let firsts = firsts.into_iter().flatten();
        for first in firsts.clone() {
            self.parked.glimpse(first);
        }
        for first in firsts {
            self.parked.glimpse_of_text(first);
        }
    }
}
