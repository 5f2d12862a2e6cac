//! Checks the politeness of requests as the hosts observe them.

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::{KeyRest, TaskId};

use super::DELAY_MS;
use super::promises::{CheckResult, Promise, between};
use super::rule_check::RuleCheck;
use crate::moment::Moment;
use crate::tests::site::host_number;

/// All hosts, in true time.
#[derive(Debug)]
pub(super) struct HostCheck {
    /// Limit of open requests per host.
    parallel: u32,
    /// Shortest rest that may be in force now, and the one that is about to be.
    delay_ms: u64,
    next_delay_ms: Option<u64>,
    /// Tasks with a request that has ended, as far as the group knows.
    known_to_end: BTreeSet<TaskId>,
    by_name: BTreeMap<String, SimulatedHost>,
    /// Rules of the operator.
    pub(super) rules: RuleCheck,
}

/// What a host has observed and requested.
#[derive(Debug, Default)]
struct SimulatedHost {
    open: u32,
    /// Tasks for which workers may request parts of pages from it, until these times.
    parts: BTreeMap<TaskId, Moment>,
    /// When a change of its rules was last answered. That does not wait for requests above a lower
    /// limit.
    ruled_at: Moment,
    /// End of the last request that the group should know of.
    last_end: Option<Moment>,
    /// Shortest delay after that.
    rest_ms: u64,
    /// Retry-After: no requests until then. A worker has received and reported it.
    closed_until: Moment,
    /// Crawl-delay: the pause between requests, in ms. A worker has received and reported it.
    pace_ms: u64,
    /// When the group received either.
    wished_at: Moment,
}

impl SimulatedHost {
    /// Number of tasks for which workers may request parts from it.
    fn parts(&self, now: Moment) -> usize {
        self.parts.values().filter(|until| **until > now).count()
    }
}

impl HostCheck {
    pub(super) fn new(parallel: u32) -> Self {
        Self {
            parallel,
            delay_ms: DELAY_MS,
            next_delay_ms: None,
            known_to_end: BTreeSet::new(),
            by_name: BTreeMap::new(),
            rules: RuleCheck::default(),
        }
    }

    /// Whether a change of the delay is in progress.
    pub(super) fn is_delay_changing(&self) -> bool {
        self.next_delay_ms.is_some()
    }

    /// The delay is about to change. Until the change is safe, either delay may be in force.
    pub(super) fn begin_delay(&mut self, delay_ms: u64) {
        self.next_delay_ms = Some(delay_ms);
        self.delay_ms = self.delay_ms.min(delay_ms);
        for host in self.by_name.values_mut() {
            // The rest after an end that the group does not know yet is still undecided.
            host.rest_ms = host.rest_ms.min(delay_ms);
        }
    }

    /// The delay has changed for every request that ends from now on.
    pub(super) fn set_delay(&mut self, delay_ms: u64) {
        self.delay_ms = delay_ms;
        self.next_delay_ms = None;
    }

    /// Rules of these hosts are about to change.
    pub(super) fn begin_rule(&mut self, names: impl Iterator<Item = String>, now: Moment) {
        for name in names {
            let (delay_ms, _) = self.rules.delays(&name, self.delay_ms, now);
            if let Some(host) = self.by_name.get_mut(&name) {
                host.rest_ms = host.rest_ms.min(delay_ms);
            }
        }
    }

    /// A change of the rules of a host is answered.
    pub(super) fn end_rule(&mut self, name: &str, now: Moment) {
        self.by_name.entry(name.to_owned()).or_default().ruled_at = now;
    }

    /// Checks that a host has no request, if a rule holds it.
    pub(super) fn check_held(&self, name: &str, now: Moment) -> CheckResult {
        let (open, parts) =
            self.by_name.get(name).map_or((0, 0), |host| (host.open, host.parts(now)));
        let is_free = open == 0 && parts == 0;
        Promise::RulesKept.holds(is_free || !self.rules.surely_holds(name, now), || {
            format!("{name} is blocked or paused: {open} requests open, parts of {parts} pages")
        })
    }

    /// The holder of a task may request parts of its page from a host.
    pub(super) fn permit_part(
        &mut self,
        name: &str,
        task: &TaskId,
        until: Moment,
        now: Moment,
    ) -> CheckResult {
        let host = self.by_name.entry(name.to_owned()).or_default();
        host.parts.insert(task.clone(), until);
        // With the lease of the task, its earlier permissions are extended.
        let its = self.by_name.values_mut().filter_map(|host| host.parts.get_mut(task));
        its.for_each(|ends| *ends = until);
        self.check_held(name, now)
    }

    /// The holder of a task requests no more parts.
    pub(super) fn end_parts(&mut self, task: &TaskId) {
        self.by_name.values_mut().for_each(|host| _ = host.parts.remove(task));
    }

    /// A host from which a part may be requested.
    pub(super) fn any_with_parts(&self, now: Moment) -> Option<String> {
        let mut hosts = self.by_name.iter();
        hosts.find(|(_, host)| host.parts(now) > 0).map(|(name, _)| name.clone())
    }

    /// Limit of open requests per host, without rules.
    pub(super) fn parallel(&self) -> u32 {
        self.parallel
    }

    /// Open requests that a host has certainly room for.
    pub(super) fn parallel_of(&self, name: &str, now: Moment) -> u32 {
        self.rules.parallels(name, self.parallel, now).0
    }

    /// A request begins for a task that was released at `released`, perhaps a second time.
    pub(super) fn begin(&mut self, name: &str, released: Moment, now: Moment) -> CheckResult {
        if !self.by_name.contains_key(name) {
            self.by_name.insert(name.to_owned(), SimulatedHost::default());
        }
        let (_, parallel) = self.rules.parallels(name, self.parallel, now);
        let (delay_ms, _) = self.rules.delays(name, self.delay_ms, now);
        let host = self.by_name.get_mut(name).expect("the host was inserted above");
        let is_older = self.parallel > 1 && released <= host.ruled_at;
        Promise::OneInFlight.holds(host.open < parallel || is_older, || {
            format!("{name} gets another request with {} of {parallel} open", host.open)
        })?;
        host.open += 1;
        self.check_held(name, now)?;
        let host = self.by_name.get_mut(name).expect("the host was inserted above");
        // With parallel requests, one may be on its way while another ends.
        let is_alone = self.parallel == 1;
        let knows_wishes = is_alone || released > host.wished_at;
        let start = if is_alone { now } else { released };
        if let Some(end) = host.last_end.filter(|end| is_alone || *end < start) {
            let pace_ms = if knows_wishes { host.pace_ms } else { 0 };
            let rest_ms = host.rest_ms.min(delay_ms).max(pace_ms);
            Promise::DelayKept.holds(start.since(end) >= rest_ms, || {
                format!(
                    "{name} rests {rest_ms} ms and gets a request after {}",
                    between(end, start)
                )
            })?;
        }
        Promise::DelayKept.holds(now >= host.closed_until || !knows_wishes, || {
            format!("{name} gets a request {} too early", between(now, host.closed_until))
        })
    }

    /// A request ends.
    pub(super) fn end(&mut self, name: &str, now: Moment) {
        let (delay_ms, _) = self.rules.delays(name, self.delay_ms, now);
        let host = self.by_name.get_mut(name).expect("a request has begun");
        host.open -= 1;
        if self.parallel == 1 {
            // Until the group knows of this end, no other request may begin.
            (host.last_end, host.rest_ms) = (Some(now), delay_ms);
        }
    }

    /// The group knows since `at` that the request of a task has ended.
    pub(super) fn end_is_known(&mut self, name: &str, task: &TaskId, at: Moment) {
        if self.known_to_end.insert(task.clone()) {
            let (delay_ms, _) = self.rules.delays(name, self.delay_ms, at);
            let host = self.by_name.get_mut(name).expect("a request has begun");
            host.last_end = host.last_end.max(Some(at));
            host.rest_ms = delay_ms;
        }
    }

    /// The group knows since `at` what the host has requested from a worker.
    pub(super) fn request_rest(&mut self, name: &str, hold: KeyRest, at: Moment) {
        if hold == KeyRest::default() {
            return;
        }
        let host = self.by_name.entry(name.to_owned()).or_default();
        host.wished_at = at;
        if let Some(ms) = hold.not_before_ms {
            host.closed_until = host.closed_until.max(at + ms);
        }
        host.pace_ms = hold.pace_ms.unwrap_or(host.pace_ms);
    }

    /// Ends all time-limited requests of hosts, because the wall clock may have changed.
    pub(super) fn forget_rests(&mut self) {
        for host in self.by_name.values_mut() {
            (host.closed_until, host.pace_ms) = (Moment(0), 0);
        }
    }

    /// Whether the host accepts a request now.
    pub(super) fn welcomes(&self, name: &str, now: Moment) -> bool {
        if self.rules.may_hold(host_number(&format!("http://{name}/"))) {
            return false;
        }
        self.by_name.get(name).is_none_or(|host| {
            let (_, delay_ms) = self.rules.delays(name, self.delay_ms, now);
            let rest_ms = host.rest_ms.max(delay_ms).max(host.pace_ms) + 1;
            let has_rested = host.last_end.is_none_or(|end| now.since(end) >= rest_ms);
            host.open < self.parallel_of(name, now) && has_rested && now > host.closed_until
        })
    }
}
