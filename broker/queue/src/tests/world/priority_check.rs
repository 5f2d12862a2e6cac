//! Checks the order of releases (`prio=`): higher priorities go first, and among equal ones the
//! page that was requested first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::World;
use super::fairness_check::Lane;
use super::fetch_request::FetchRequest;
use super::promises::{CheckResult, Promise};
use super::steering::PageSelection;
use super::task::ReceivedTask;
use crate::entry::EntryId;
use crate::moment::Moment;
use crate::tests::site::{HOSTS, host_number, is_linked, is_on_never_list, may_need_render};

/// Longest rest of a host after an answer, requests of its worker included.
const REST_MS_MAX: u64 = 10_000;

/// Unlinked pages on lonely hosts, until their first release. On other hosts, other entries may go
/// first for reasons of their own; lonely hosts have only these pages. Pages that need a browser
/// are left out, because they take turns with the others.
#[derive(Debug, Default)]
pub(super) struct PriorityCheck {
    waiting: BTreeMap<(u64, Lane), BTreeMap<String, PagePriority>>,
    /// Pages that were released before, and now wait in no particular order.
    begun: BTreeSet<String>,
    /// Pages that were dropped and not requested again.
    dropped: BTreeSet<(Lane, String)>,
    /// Entries of a lonely host that were begun and may not have ended.
    open: BTreeSet<(u64, EntryId)>,
    /// Hosts that may be resting, and until when.
    rest_until: BTreeMap<u64, Moment>,
    /// All hosts may be resting until then.
    all_rest_until: Moment,
    fetches: u64,
}

/// What decides the order of a page.
#[derive(Debug, Clone, Copy)]
struct PagePriority {
    prio: i16,
    /// Number of the first request for it.
    number: u64,
    due: Moment,
    /// Whether it had to wait for its time.
    is_timed: bool,
    /// Decision number of the last request for it.
    order: u64,
}

impl PagePriority {
    fn goes_before(&self, other: &Self) -> bool {
        (Reverse(self.prio), self.number) < (Reverse(other.prio), other.number)
    }
}

impl PriorityCheck {
    /// The group knows of a request since `at`, with this decision number.
    pub(super) fn want(&mut self, fetch: &FetchRequest, order: u64, at: Moment) {
        self.fetches += 1;
        self.dropped.remove(&(fetch.job.clone(), fetch.url.clone()));
        let is_left_out = is_linked(&fetch.url) || is_on_never_list(&fetch.url);
        if is_left_out || may_need_render(&fetch.url) || self.begun.contains(&fetch.url) {
            return;
        }
        let (due, is_timed) = (at + fetch.after_ms, fetch.after_ms > 0);
        let new = PagePriority { prio: fetch.prio, number: self.fetches, due, is_timed, order };
        let lane = self.waiting.entry((host_number(&fetch.url), fetch.job.clone())).or_default();
        let rank = lane.entry(fetch.url.clone()).or_insert(new);
        rank.prio = rank.prio.max(new.prio);
        rank.due = rank.due.min(due);
        rank.is_timed &= is_timed;
        rank.order = order;
    }

    /// A new pass begins; nothing waits for the job any more.
    pub(super) fn begin_pass(&mut self, name: &str) {
        self.waiting.retain(|(_, lane), _| lane.as_deref() != Some(name));
    }

    /// The order of this page is not checked.
    pub(super) fn ignore(&mut self, url: &str) {
        self.dropped.retain(|(_, dropped)| dropped != url);
        self.begun.insert(url.to_owned());
    }

    /// A page was given up, perhaps before its first release.
    pub(super) fn given_up(&mut self, url: &str) {
        for lane in self.waiting.values_mut() {
            lane.remove(url);
        }
        self.ignore(url);
    }

    /// There may be a rule about this host: the order of the pages that wait there is not checked.
    pub(super) fn ignore_host(&mut self, host: u64) {
        let Self { waiting, begun, .. } = self;
        waiting.retain(|(other, _), lane| {
            if *other == host {
                begun.extend(std::mem::take(lane).into_keys());
            }
            *other != host
        });
    }

    /// A host may be resting from now on.
    pub(super) fn rest(&mut self, host: u64, now: Moment) {
        self.rest_until.insert(host, now + REST_MS_MAX);
    }

    /// What waited of these pages was dropped. Those that may have been requested since are not
    /// checked any more.
    pub(super) fn purge(&mut self, pages: &PageSelection) {
        for ((_, lane), waiting) in &mut self.waiting {
            for (url, rank) in waiting.extract_if(.., |url, _| pages.has(url)) {
                if rank.order <= pages.after {
                    self.dropped.insert((lane.clone(), url));
                } else {
                    self.begun.insert(url);
                }
            }
        }
    }

    /// What waits of these pages has another priority. Those that may have been requested since
    /// are not checked any more.
    pub(super) fn bump(&mut self, pages: &PageSelection, prio: i16) {
        for waiting in self.waiting.values_mut() {
            let is_newer =
                |url: &String, rank: &mut PagePriority| pages.has(url) && rank.order > pages.after;
            self.begun.extend(waiting.extract_if(.., is_newer).map(|(url, _)| url));
            let selected = waiting.iter_mut().filter(|(url, _)| pages.has(url));
            selected.for_each(|(_, rank)| rank.prio = prio);
        }
    }

    /// The elapsed time is unknown, so it is unknown what is due.
    pub(super) fn forget_times(&mut self) {
        for (url, rank) in self.waiting.values_mut().flatten() {
            if rank.is_timed {
                self.begun.insert(url.clone());
            }
        }
        self.waiting.values_mut().for_each(|lane| lane.retain(|_, rank| !rank.is_timed));
    }

    /// All hosts may be resting from now on.
    pub(super) fn rest_all(&mut self, now: Moment) {
        self.all_rest_until = now + REST_MS_MAX;
    }

    /// The group knows since `at` how a task was answered.
    pub(super) fn ended(&mut self, received: &ReceivedTask, is_final: bool, at: Moment) {
        let host = host_number(&received.url);
        self.rest_until.insert(host, at + REST_MS_MAX);
        if is_final {
            self.open.remove(&(host, received.id.entry));
        }
    }

    /// Checks a release.
    pub(super) fn take(&mut self, received: &ReceivedTask) -> CheckResult {
        let host = host_number(&received.url);
        let page = (received.job.clone(), received.url.clone());
        // A page that was released before may be a dead letter, which an operator retries.
        let is_dropped = self.dropped.contains(&page) && !self.begun.contains(&received.url);
        Promise::DropsKept
            .holds(!is_dropped, || format!("{page:?} was dropped, and is released"))?;
        if host >= HOSTS {
            self.open.insert((host, received.id.entry));
        }
        self.begun.insert(received.url.clone());
        let lane = (host, received.job.clone());
        let Some(rank) = self.waiting.get_mut(&lane).and_then(|lane| lane.remove(&received.url))
        else {
            return Ok(());
        };
        // Of two inputs of one moment, the second may wait for texts until the first has had its
        // effects.
        let mut before = self.waiting[&lane].iter().filter(|(_, other)| {
            let is_due = other.due < received.at;
            is_due && other.goes_before(&rank)
        });
        let before = before.next();
        Promise::PriorityKept.holds(before.is_none(), || {
            format!("{} {rank:?} goes before {before:?}", received.url)
        })?;
        if received.job.is_some() {
            return Ok(());
        }
        let urgent = self.lonely_free_at(received.at).find(|(_, other)| other.prio > rank.prio);
        Promise::PriorityKept.holds(urgent.is_none(), || {
            format!("{} {rank:?} goes before {urgent:?} of another host", received.url)
        })
    }

    /// Pages that could be released before that moment, on lonely hosts that are free.
    fn lonely_free_at(&self, at: Moment) -> impl Iterator<Item = (&String, &PagePriority)> {
        let lonely = self.waiting.iter().filter(move |((host, _), _)| {
            let rests = self.rest_until.get(host).is_some_and(|until| at < *until);
            let is_open = self.open.range((*host, 0)..).next();
            let is_open = is_open.is_some_and(|(open, _)| open == host);
            *host >= HOSTS && !rests && !is_open && at >= self.all_rest_until
        });
        lonely.flat_map(|(_, lane)| lane).filter(move |(_, rank)| rank.due < at)
    }
}

impl World {
    /// Announces several pages with different priorities.
    pub(super) fn announce_by_rank(&mut self) {
        for _ in 0..self.rng.u32(2..8) {
            let url = self.new_page();
            let (prio, after_ms) = (self.any_prio(), self.rng.u64(1..30_000));
            self.announced.insert(url.clone());
            let after =
                if self.rng.bool() { String::new() } else { format!(" after={after_ms}ms") };
            self.publish(&format!("{url} prio={prio}{after}"));
            if self.rng.u32(0..4) == 0 {
                let prio = self.any_prio();
                self.publish_in(after_ms / 2, format!("{url} prio={prio}"));
            }
        }
    }

    pub(super) fn any_prio(&mut self) -> i16 {
        self.rng.i16(-2..=2)
    }
}
