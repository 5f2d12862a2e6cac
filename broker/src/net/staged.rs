//! Children that wait for the answer to their task.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use tidings_protocol::TaskId;

use crate::config::Limits;
use crate::group::StagedLink;

/// What a link costs besides its text, roughly.
const LINK_BYTES: usize = 48;
/// What a task costs besides its links, roughly.
const TASK_BYTES: usize = 160;

/// `LINK`s of one connection, by task. What is over a limit is counted, never lost silently, as
/// long as its task may still be answered.
///
/// A connection cannot tell which tasks are lost, so what is staged longest gives way when room is
/// wanted: first its links, which are counted, and when its turn comes again its count, too.
#[derive(Debug, Default)]
pub(super) struct Staged {
    tasks: HashMap<TaskId, Children>,
    /// The order in which tasks give way. Each of `tasks` stands here once, under its `place`.
    places: BTreeMap<u64, TaskId>,
    next_place: u64,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Children {
    place: u64,
    links: Vec<StagedLink>,
    /// Bytes of `links`.
    bytes: usize,
    /// Children that are not in `links`.
    refused: u64,
}

impl Staged {
    /// Keeps a child until its task is answered, or counts it.
    pub(super) fn stage(&mut self, limits: &Limits, task: TaskId, link: StagedLink) {
        let bytes = LINK_BYTES + link.url.len();
        let has_room = self.make_room(limits, &task, bytes);
        let children = self.children(task);
        if !has_room || children.links.len() >= limits.staged_links_max {
            children.refused += 1;
            return;
        }
        children.bytes += bytes;
        children.links.push(link);
        self.bytes += bytes;
    }

    /// Bytes that it keeps, roughly.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts a child that cannot be kept.
    pub(super) fn refuse(&mut self, limits: &Limits, task: TaskId) {
        self.make_room(limits, &task, 0);
        self.children(task).refused += 1;
    }

    /// The children of a task, and how many more there were than could be kept.
    pub(super) fn take(&mut self, task: &TaskId) -> (Vec<StagedLink>, u64) {
        self.remove(task).map(|children| (children.links, children.refused)).unwrap_or_default()
    }

    /// Drops the children of a task that goes back.
    pub(super) fn discard(&mut self, task: &TaskId) {
        self.remove(task);
    }

    fn children(&mut self, task: TaskId) -> &mut Children {
        let (places, next_place) = (&mut self.places, &mut self.next_place);
        self.tasks.entry(task).or_insert_with_key(|task| {
            self.bytes += TASK_BYTES;
            let place = *next_place;
            *next_place += 1;
            places.insert(place, task.clone());
            Children { place, ..Children::default() }
        })
    }

    /// Lets the oldest of the other tasks give way until there is room for the task itself and
    /// `bytes` more; whether there is.
    fn make_room(&mut self, limits: &Limits, task: &TaskId, bytes: usize) -> bool {
        let wanted = bytes + if self.tasks.contains_key(task) { 0 } else { TASK_BYTES };
        while self.bytes + wanted > limits.staged_bytes_max {
            let mut others = self.places.values().filter(|other| *other != task);
            let Some(oldest) = others.next().cloned() else { return false };
            let gone = self.remove(&oldest).expect("every place is that of a task");
            if !gone.links.is_empty() {
                self.children(oldest).refused = gone.refused + gone.links.len() as u64;
            }
        }
        true
    }

    fn remove(&mut self, task: &TaskId) -> Option<Children> {
        let children = self.tasks.remove(task)?;
        self.places.remove(&children.place);
        self.bytes -= TASK_BYTES + children.bytes;
        Some(children)
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
    fn all_urls_of_a_full_sitemap_are_taken() {
        let (limits, mut staged) = (Limits::default(), Staged::default());
        for number in 0..50_000 {
            let url = format!("http://shop.example/{}/{number:05}", "x".repeat(160));
            staged.stage(&limits, task(1), link(&url));
        }
        let (links, refused) = staged.take(&task(1));
        assert_eq!((links.len(), refused), (50_000, 0));
    }

    // PROTOCOL: C6
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

    // PROTOCOL: C8
    #[test]
    fn what_is_over_a_limit_is_counted() {
        let limits = Limits { staged_links_max: 2, staged_bytes_max: 1000, ..Limits::default() };
        let mut staged = Staged::default();
        for _ in 0..5 {
            staged.stage(&limits, task(1), link("http://a/"));
        }
        staged.refuse(&limits, task(1));
        assert_eq!(staged.take(&task(1)), (vec![link("http://a/"); 2], 4));
        staged.stage(&limits, task(2), link(&"a".repeat(2000)));
        assert_eq!(staged.take(&task(2)), (vec![], 1));
        assert_eq!((staged.bytes, staged.places.len()), (0, 0));
    }

    #[test]
    fn the_oldest_children_give_way_and_are_counted_for_their_own_task() {
        let limits = Limits { staged_bytes_max: 1000, ..Limits::default() };
        let mut staged = Staged::default();
        let long = "a".repeat(500 - LINK_BYTES);
        staged.stage(&limits, task(1), link(&long));
        staged.stage(&limits, task(2), link(&long));
        assert_eq!(staged.take(&task(2)), (vec![link(&long)], 0));
        assert_eq!(staged.take(&task(1)), (vec![], 1));
        assert_eq!(staged.bytes, 0);
    }

    #[test]
    fn strays_of_forgotten_tasks_never_block_the_others() {
        let limits = Limits { staged_bytes_max: 5000, ..Limits::default() };
        let mut staged = Staged::default();
        for entry in 0..1000 {
            staged.stage(&limits, task(entry), link("http://never/answered"));
            staged.refuse(&limits, task(entry + 10_000));
            assert!(staged.bytes <= 5000);
            staged.stage(&limits, task(5000), link("http://a/"));
            assert_eq!(staged.take(&task(5000)), (vec![link("http://a/")], 0));
        }
        assert_eq!(staged.tasks.len(), staged.places.len());
    }
}
