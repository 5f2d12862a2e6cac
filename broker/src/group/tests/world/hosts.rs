//! The hosts, from their own side: who asks them when, whoever is told what.

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::{Hold, TaskId};

use super::DELAY_MS;
use super::promises::{Kept, Promise, between};
use crate::clock::Moment;

/// All hosts, in true time.
#[derive(Debug)]
pub(super) struct Hosts {
    /// So many requests may be open at one of them.
    parallel: u32,
    /// The shortest rest that may be in force now, and the one that is about to be.
    delay_ms: u64,
    next_delay_ms: Option<u64>,
    /// Tasks whose requests ended, as far as the group knows.
    known_to_end: BTreeSet<TaskId>,
    by_name: BTreeMap<String, Host>,
}

/// What a host has seen, and what it asked for.
#[derive(Debug, Default)]
struct Host {
    open: u32,
    /// Of a request of which the group should know.
    last_end: Option<Moment>,
    /// The delay that follows it, at least.
    rest_ms: u64,
    /// Retry-After: a worker was told to stay away until then, and has said so.
    closed_until: Moment,
    /// Crawl-delay: a worker was asked for so many ms between requests, and has said so.
    pace_ms: u64,
    /// When the group heard of either.
    wished_at: Moment,
}

impl Hosts {
    pub(super) fn new(parallel: u32) -> Self {
        Self {
            parallel,
            delay_ms: DELAY_MS,
            next_delay_ms: None,
            known_to_end: BTreeSet::new(),
            by_name: BTreeMap::new(),
        }
    }

    /// Whether a change of the delay is on its way.
    pub(super) fn is_delay_changing(&self) -> bool {
        self.next_delay_ms.is_some()
    }

    /// The delay is about to change: until that is safe, either may be in force.
    pub(super) fn begin_delay(&mut self, delay_ms: u64) {
        self.next_delay_ms = Some(delay_ms);
        self.delay_ms = self.delay_ms.min(delay_ms);
        for host in self.by_name.values_mut() {
            // Of an end of which the group does not know it is not decided yet.
            host.rest_ms = host.rest_ms.min(delay_ms);
        }
    }

    /// The delay has changed, for every request that ends from now on.
    pub(super) fn set_delay(&mut self, delay_ms: u64) {
        self.delay_ms = delay_ms;
        self.next_delay_ms = None;
    }

    /// How many requests may be open at one of them.
    pub(super) fn parallel(&self) -> u32 {
        self.parallel
    }

    /// A request begins, for a task that was released at that moment, perhaps for a second time.
    pub(super) fn begin(&mut self, name: &str, released: Moment, now: Moment) -> Kept {
        if !self.by_name.contains_key(name) {
            self.by_name.insert(name.to_owned(), Host::default());
        }
        let host = self.by_name.get_mut(name).expect("it was just put in");
        Promise::OneInFlight.holds(host.open < self.parallel, || {
            format!("{name} is asked once more, with {} of {} open", host.open, self.parallel)
        })?;
        host.open += 1;
        // One of several may be on its way while another ends.
        let is_alone = self.parallel == 1;
        let knows_wishes = is_alone || released > host.wished_at;
        let start = if is_alone { now } else { released };
        if let Some(end) = host.last_end.filter(|end| is_alone || *end < start) {
            let pace_ms = if knows_wishes { host.pace_ms } else { 0 };
            let rest_ms = host.rest_ms.max(pace_ms);
            Promise::DelayKept.holds(start.since(end) >= rest_ms, || {
                format!("{name} rests {rest_ms} ms, and is asked after {}", between(end, start))
            })?;
        }
        Promise::DelayKept.holds(now >= host.closed_until || !knows_wishes, || {
            format!("{name} is asked {} too early", between(now, host.closed_until))
        })
    }

    /// A request ends.
    pub(super) fn end(&mut self, name: &str, now: Moment) {
        let host = self.by_name.get_mut(name).expect("a request has begun");
        host.open -= 1;
        if self.parallel == 1 {
            // Whether the group knows of it or not, nobody is next before it does.
            (host.last_end, host.rest_ms) = (Some(now), self.delay_ms);
        }
    }

    /// The group knows since then that the request of a task has ended.
    pub(super) fn is_known_to_end(&mut self, name: &str, task: &TaskId, at: Moment) {
        if self.known_to_end.insert(task.clone()) {
            let host = self.by_name.get_mut(name).expect("a request has begun");
            host.last_end = host.last_end.max(Some(at));
            host.rest_ms = self.delay_ms;
        }
    }

    /// The group knows, since `at`, what the host has asked a worker for.
    pub(super) fn wish(&mut self, name: &str, hold: Hold, at: Moment) {
        if hold == Hold::default() {
            return;
        }
        let host = self.by_name.entry(name.to_owned()).or_default();
        host.wished_at = at;
        if let Some(ms) = hold.not_before_ms {
            host.closed_until = host.closed_until.max(at + ms);
        }
        host.pace_ms = hold.pace_ms.unwrap_or(host.pace_ms);
    }

    /// What was to last for a time is over, as the wall clock had it.
    pub(super) fn forget_wishes(&mut self) {
        for host in self.by_name.values_mut() {
            (host.closed_until, host.pace_ms) = (Moment(0), 0);
        }
    }

    /// Whether a request would be welcome.
    pub(super) fn welcomes(&self, name: &str, now: Moment) -> bool {
        self.by_name.get(name).is_none_or(|host| {
            let rest_ms = host.rest_ms.max(host.pace_ms) + 1;
            let has_rested = host.last_end.is_none_or(|end| now.since(end) >= rest_ms);
            host.open < self.parallel && has_rested && now > host.closed_until
        })
    }
}
