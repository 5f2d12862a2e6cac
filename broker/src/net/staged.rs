//! Children that wait for the answer to their task.

use std::collections::HashMap;

use tidings_protocol::TaskId;

use crate::config::Limits;
use crate::group::StagedLink;

/// What a link costs besides its text, roughly.
const LINK_BYTES: usize = 48;
/// What a task costs besides its links, roughly.
const TASK_BYTES: usize = 160;

/// `LINK`s of one connection, by task. What is over a limit is counted, never lost silently.
#[derive(Debug, Default)]
pub(super) struct Staged {
    tasks: HashMap<TaskId, Children>,
    bytes: usize,
    /// Children whose task is not known, because their line could not be read or because there
    /// was no room for the task; reported with the next answer.
    strays: u64,
}

#[derive(Debug, Default)]
struct Children {
    links: Vec<StagedLink>,
    bytes: usize,
    over_limit: u64,
}

impl Staged {
    /// Keeps a child until its task is answered, or counts it.
    pub(super) fn stage(&mut self, limits: &Limits, task: TaskId, link: StagedLink) {
        let room = limits.staged_bytes_max.saturating_sub(self.bytes);
        let bytes = LINK_BYTES + link.url.len();
        if !self.tasks.contains_key(&task) {
            if room < TASK_BYTES {
                self.strays += 1;
                return;
            }
            self.bytes += TASK_BYTES;
        }
        let children = self.tasks.entry(task).or_default();
        if children.links.len() >= limits.staged_links_max || room < TASK_BYTES + bytes {
            children.over_limit += 1;
            return;
        }
        children.bytes += bytes;
        self.bytes += bytes;
        children.links.push(link);
    }

    /// Counts a child that could not be read.
    pub(super) fn stray(&mut self) {
        self.strays += 1;
    }

    /// The children of a task, and how many more there were than could be kept.
    pub(super) fn take(&mut self, task: &TaskId) -> (Vec<StagedLink>, u64) {
        let strays = std::mem::take(&mut self.strays);
        let Some(children) = self.tasks.remove(task) else {
            return (Vec::new(), strays);
        };
        self.bytes -= TASK_BYTES + children.bytes;
        (children.links, children.over_limit + strays)
    }

    /// Drops the children of a task that goes back.
    pub(super) fn discard(&mut self, task: &TaskId) {
        if let Some(children) = self.tasks.remove(task) {
            self.bytes -= TASK_BYTES + children.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(entry: u64) -> TaskId {
        TaskId { group: "crawlers".parse().unwrap(), run: 1, entry, attempt: 1 }
    }

    fn link(url: &str) -> StagedLink {
        StagedLink { url: url.into(), redirect: false, prio: 0 }
    }

    #[test]
    fn children_wait_for_their_task_and_no_other() {
        let (limits, mut staged) = (Limits::default(), Staged::default());
        staged.stage(&limits, task(1), link("http://a/"));
        staged.stage(&limits, task(2), link("http://b/"));
        staged.stage(&limits, task(1), link("http://c/"));
        assert_eq!(staged.take(&task(1)), (vec![link("http://a/"), link("http://c/")], 0));
        assert_eq!(staged.take(&task(1)), (vec![], 0));
        staged.discard(&task(2));
        assert_eq!(staged.take(&task(2)), (vec![], 0));
        assert_eq!(staged.bytes, 0);
    }

    #[test]
    fn what_is_over_a_limit_is_counted() {
        let limits = Limits { staged_links_max: 2, staged_bytes_max: 1000, ..Limits::default() };
        let mut staged = Staged::default();
        for _ in 0..5 {
            staged.stage(&limits, task(1), link("http://a/"));
        }
        assert_eq!(staged.take(&task(1)), (vec![link("http://a/"); 2], 3));
        for entry in 0..100 {
            staged.stage(&limits, task(entry), link("http://a/"));
        }
        assert!(staged.bytes <= 1000);
        let counted: u64 = (0..100)
            .map(|entry| {
                let (links, over) = staged.take(&task(entry));
                links.len() as u64 + over
            })
            .sum();
        assert_eq!(counted, 100, "kept or counted");
        assert_eq!(staged.bytes, 0);
    }
}
