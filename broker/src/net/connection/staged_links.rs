//! Links of tasks, staged until the task is answered.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use tidings_protocol::TaskId;
use tidings_queue::StagedLink;

use crate::limits::Limits;

/// Approximate memory of a link without its text.
const LINK_BYTES: usize = 48;
/// Approximate memory of a task without its links.
const TASK_BYTES: usize = 160;

/// `LINK`s of one connection, by task. Links over a limit are counted, so that none is lost
/// silently while its task can still be answered.
///
/// A connection does not know which tasks are lost, so the task that is staged longest is evicted
/// first. The first eviction drops its links and counts them; a second one drops the count.
#[derive(Debug, Default)]
pub(super) struct StagedLinks {
    tasks: HashMap<TaskId, TaskLinks>,
    /// The order of eviction. Contains each of `tasks` once, under its `eviction_number`.
    eviction_order: BTreeMap<u64, TaskId>,
    next_eviction_number: u64,
    bytes: usize,
}

#[derive(Debug, Default)]
struct TaskLinks {
    eviction_number: u64,
    links: Vec<StagedLink>,
    bytes: usize,
    /// Links that were not kept.
    refused: u64,
}

impl StagedLinks {
    /// Approximate memory of all links and tasks.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a link until its task is answered, or counts it if a limit is reached.
    pub(super) fn stage(&mut self, limits: &Limits, task: TaskId, link: StagedLink) {
        let bytes = LINK_BYTES + link.url.len();
        let fits = self.evict_until_fits(limits, &task, bytes);
        let task_links = self.task_links(task);
        if !fits || task_links.links.len() >= limits.staged_links_max {
            task_links.refused += 1;
            return;
        }
        task_links.bytes += bytes;
        task_links.links.push(link);
        self.bytes += bytes;
    }

    /// Counts a link that cannot be kept.
    pub(super) fn count_refused(&mut self, limits: &Limits, task: TaskId) {
        self.evict_until_fits(limits, &task, 0);
        self.task_links(task).refused += 1;
    }

    /// Removes a task. Returns its links, and the number of links that were not kept.
    pub(super) fn take(&mut self, task: &TaskId) -> (Vec<StagedLink>, u64) {
        self.remove(task)
            .map(|task_links| (task_links.links, task_links.refused))
            .unwrap_or_default()
    }

    /// Drops the links of a task that is given back.
    pub(super) fn discard(&mut self, task: &TaskId) {
        self.remove(task);
    }

    fn task_links(&mut self, task: TaskId) -> &mut TaskLinks {
        let (eviction_order, next_number) =
            (&mut self.eviction_order, &mut self.next_eviction_number);
        self.tasks.entry(task).or_insert_with_key(|task| {
            self.bytes += TASK_BYTES;
            let number = *next_number;
            *next_number += 1;
            eviction_order.insert(number, task.clone());
            TaskLinks { eviction_number: number, ..TaskLinks::default() }
        })
    }

    /// Evicts the oldest other tasks until `task` and `bytes` more fit. Returns whether they do.
    fn evict_until_fits(&mut self, limits: &Limits, task: &TaskId, bytes: usize) -> bool {
        let needed = bytes + if self.tasks.contains_key(task) { 0 } else { TASK_BYTES };
        while self.bytes + needed > limits.staged_bytes_max {
            let mut others = self.eviction_order.values().filter(|other| *other != task);
            let Some(oldest) = others.next().cloned() else { return false };
            let evicted = self.remove(&oldest).expect("eviction_order contains only staged tasks");
            if !evicted.links.is_empty() {
                self.task_links(oldest).refused = evicted.refused + evicted.links.len() as u64;
            }
        }
        true
    }

    fn remove(&mut self, task: &TaskId) -> Option<TaskLinks> {
        let task_links = self.tasks.remove(task)?;
        self.eviction_order.remove(&task_links.eviction_number);
        self.bytes -= TASK_BYTES + task_links.bytes;
        Some(task_links)
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
    fn all_urls_of_a_full_sitemap_are_staged() {
        let (limits, mut staged) = (Limits::default(), StagedLinks::default());
        for number in 0..50_000 {
            let url = format!("http://shop.example/{}/{number:05}", "x".repeat(160));
            staged.stage(&limits, task(1), link(&url));
        }
        let (links, refused) = staged.take(&task(1));
        assert_eq!((links.len(), refused), (50_000, 0));
    }

    // PROTOCOL: C6
    #[test]
    fn links_stay_with_their_own_task() {
        let (limits, mut staged) = (Limits::default(), StagedLinks::default());
        staged.stage(&limits, task(1), link("http://a/"));
        staged.stage(&limits, task(2), link("http://b/"));
        staged.stage(&limits, task(1), link("http://c/"));
        assert_eq!(staged.take(&task(1)), (vec![link("http://a/"), link("http://c/")], 0));
        assert_eq!(staged.take(&task(1)), (vec![], 0));
        staged.discard(&task(2));
        assert_eq!(staged.take(&task(2)), (vec![], 0));
        assert_eq!(staged.bytes, 0);
    }

    // PROTOCOL: C8
    #[test]
    fn links_over_a_limit_are_counted() {
        let limits = Limits { staged_links_max: 2, staged_bytes_max: 1000, ..Limits::default() };
        let mut staged = StagedLinks::default();
        for _ in 0..5 {
            staged.stage(&limits, task(1), link("http://a/"));
        }
        staged.count_refused(&limits, task(1));
        assert_eq!(staged.take(&task(1)), (vec![link("http://a/"); 2], 4));
        staged.stage(&limits, task(2), link(&"a".repeat(2000)));
        assert_eq!(staged.take(&task(2)), (vec![], 1));
        assert_eq!((staged.bytes, staged.eviction_order.len()), (0, 0));
    }

    #[test]
    fn the_oldest_links_are_evicted_and_counted_for_their_own_task() {
        let limits = Limits { staged_bytes_max: 1000, ..Limits::default() };
        let mut staged = StagedLinks::default();
        let long = "a".repeat(500 - LINK_BYTES);
        staged.stage(&limits, task(1), link(&long));
        staged.stage(&limits, task(2), link(&long));
        assert_eq!(staged.take(&task(2)), (vec![link(&long)], 0));
        assert_eq!(staged.take(&task(1)), (vec![], 1));
        assert_eq!(staged.bytes, 0);
    }

    #[test]
    fn links_of_lost_tasks_never_block_other_tasks() {
        let limits = Limits { staged_bytes_max: 5000, ..Limits::default() };
        let mut staged = StagedLinks::default();
        for entry in 0..1000 {
            staged.stage(&limits, task(entry), link("http://never/answered"));
            staged.count_refused(&limits, task(entry + 10_000));
            assert!(staged.bytes <= 5000);
            staged.stage(&limits, task(5000), link("http://a/"));
            assert_eq!(staged.take(&task(5000)), (vec![link("http://a/")], 0));
        }
        assert_eq!(staged.tasks.len(), staged.eviction_order.len());
    }
}
