//! Checks fairness: how often others are served on a host before a waiting job's turn.

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::{MemberId, TaskId};

use super::announcement_check::AnnouncementCheck;
use super::host_check::HostCheck;
use super::outages::OutageCheck;
use super::pass_check::PassCheck;
use super::promises::{CheckResult, Promise, between};
use super::task::ReceivedTask;
use super::{DELAY_MS, LEASE_MS};
use crate::entry::EntryId;
use crate::moment::Moment;
use crate::tests::site::{HOSTS, LONELY_HOSTS, host_number, host_of, may_need_render, page};

/// Most releases of others on a host before a job's turn. Announced URLs alternate with up to
/// [`JOBS_MAX`](super::operator::JOBS_MAX) jobs and the schedules. The limit is higher, because
/// further requests of a task go first and count as its job's turn.
const OTHERS_MAX: u32 = 30;

/// A free host must get a request within this time if a worker has credit. Longer than any suspect
/// that blocks the host takes.
const IDLE_MS_MAX: u64 = 4 * LEASE_MS;

/// A queue on a host: a job's pages, or (`None`) announced URLs.
pub(super) type Lane = Option<String>;

/// What the checker knows of turns.
#[derive(Debug, Default)]
pub(super) struct FairnessCheck {
    /// Per host and queue: releases of others since it began to wait or had its last turn.
    passed_over: BTreeMap<(u64, Lane), u32>,
    /// Pages that were released before. They may rest or be suspects, so their turn is not checked.
    away: BTreeSet<(Lane, String)>,
    /// Pages of entries with a next request at another host, which may rest for long.
    elsewhere: BTreeMap<EntryId, String>,
    leases: BTreeMap<TaskId, Lease>,
    /// Hosts that are free, and since when.
    idle_since: BTreeMap<u64, Moment>,
}

/// A task that a member holds.
#[derive(Debug)]
struct Lease {
    member: MemberId,
    host: String,
    until: Moment,
    needs_render: bool,
}

impl FairnessCheck {
    /// A task was sent to a member; it may be lost on the way.
    pub(super) fn lease(&mut self, received: &ReceivedTask, member: MemberId) {
        let (host, until) = (received.host(), received.until);
        let needs_render = received.needs_render();
        self.leases.insert(received.id.clone(), Lease { member, host, until, needs_render });
    }

    /// The lease of a task has a new end.
    pub(super) fn extend(&mut self, id: &TaskId, until: Moment) {
        if let Some(lease) = self.leases.get_mut(id) {
            lease.until = lease.until.max(until);
        }
    }

    /// All leases have a new end.
    pub(super) fn extend_all(&mut self, until: Moment) {
        self.leases.values_mut().for_each(|lease| lease.until = lease.until.max(until));
    }

    /// A task is not held any more.
    pub(super) fn release(&mut self, id: &TaskId) {
        self.leases.remove(id);
    }

    /// When a lease of a member last expired, among the leases that are remembered.
    pub(super) fn lost_by(&self, member: MemberId, now: Moment) -> Option<Moment> {
        let its = self.leases.values().filter(|lease| lease.member == member);
        its.map(|lease| lease.until).filter(|until| *until <= now).max()
    }

    /// Number of tasks that a member holds, as the group knows.
    pub(super) fn held_by(&self, member: MemberId) -> usize {
        self.leases.values().filter(|lease| lease.member == member).count()
    }

    /// Number of those that need a browser.
    pub(super) fn rendered_by(&self, member: MemberId) -> usize {
        let its = self.leases.values().filter(|lease| lease.member == member);
        its.filter(|lease| lease.needs_render).count()
    }

    /// A URL was announced and waits. It now also waits in the queues of jobs that need it.
    pub(super) fn announce(&mut self, url: &str, passes: &PassCheck) {
        self.away.remove(&(None, url.to_owned()));
        for (name, _) in passes.iter().filter(|(_, pass)| pass.lacks(url)) {
            self.away.insert((Some(name.to_owned()), url.to_owned()));
        }
    }

    /// A URL was announced for later. Its turn is not checked.
    pub(super) fn announce_for_later(
        &mut self,
        url: &str,
        looks: &AnnouncementCheck,
        passes: &PassCheck,
    ) {
        let waits = looks.owes(url) && !self.away.contains(&(None, url.to_owned()));
        self.announce(url, passes);
        if !waits {
            self.stop_waiting(None, url);
        }
    }

    /// The next request for a page is for another URL.
    pub(super) fn goes_elsewhere(&mut self, received: &ReceivedTask, next: &str) {
        if host_of(&received.url) != host_of(next) {
            self.elsewhere.insert(received.id.entry, received.url.clone());
        }
    }

    /// A queue no longer waits for a page.
    pub(super) fn stop_waiting(&mut self, lane: Lane, url: &str) {
        self.away.insert((lane, url.to_owned()));
    }

    /// A new pass begins and its pages wait.
    pub(super) fn begin_pass(&mut self, name: &str) {
        self.away.retain(|(lane, _)| lane.as_deref() != Some(name));
    }

    /// Starts all counts again.
    pub(super) fn restart(&mut self) {
        self.passed_over.clear();
        self.idle_since.clear();
    }

    /// Checks and counts a release.
    pub(super) fn take(
        &mut self,
        received: &ReceivedTask,
        looks: &AnnouncementCheck,
        passes: &PassCheck,
    ) -> CheckResult {
        self.elsewhere.remove(&received.id.entry);
        if received.is_next_request() {
            return Ok(());
        }
        let host = host_number(&received.url);
        for lane in [None, received.job.clone()] {
            self.passed_over.remove(&(host, lane.clone()));
            self.away.insert((lane, received.url.clone()));
        }
        if received.needs_render() {
            // These take turns with the others.
            return Ok(());
        }
        let waiting: Vec<Lane> = self.waiting_on(host, looks, passes);
        self.passed_over.retain(|(other, lane), _| *other != host || waiting.contains(lane));
        for lane in waiting.into_iter().filter(|lane| *lane != received.job) {
            let others = self.passed_over.entry((host, lane.clone())).or_default();
            *others += 1;
            Promise::NoStarvation.holds(*others <= OTHERS_MAX, || {
                let queue = lane.unwrap_or("the announced queue".to_owned());
                format!("{queue} waits for h{host}.org, and {others} others went before")
            })?;
        }
        Ok(())
    }

    /// Queues on a host with pages that were never released and need no browser.
    fn waiting_on(&self, host: u64, looks: &AnnouncementCheck, passes: &PassCheck) -> Vec<Lane> {
        let announced = self.has_announced(host, looks, false).then_some(None);
        let jobs = passes.iter().filter(|(_, pass)| pass.wants_turns());
        let jobs = jobs.filter(|(name, pass)| {
            let lane = Some((*name).to_owned());
            let mut missing = pass.missing_on(host).filter(|url| !may_need_render(url));
            missing.any(|url| !self.away.contains(&(lane.clone(), url.clone())))
        });
        announced.into_iter().chain(jobs.map(|(name, _)| Some(name.to_owned()))).collect()
    }

    /// Without `render`, only pages that need no browser count.
    fn has_announced(&self, host: u64, looks: &AnnouncementCheck, render: bool) -> bool {
        let owed = looks.owed().filter(|url| host_number(url) == host);
        let mut owed = owed.filter(|url| render || !may_need_render(url));
        owed.any(|url| {
            !self.away.contains(&(None, url.to_owned()))
                && !self.elsewhere.values().any(|page| page == url)
        })
    }

    /// Must be called regularly. `could`: a worker has credit, and the group is running;
    /// `could_render`: also for a page that needs a browser.
    pub(super) fn check_idle(
        &mut self,
        now: Moment,
        (could, could_render): (bool, bool),
        (hosts, outages): (&HostCheck, &OutageCheck),
        looks: &AnnouncementCheck,
    ) -> CheckResult {
        self.leases.retain(|_, lease| lease.until + DELAY_MS + 1 >= now);
        for host in 0..HOSTS + LONELY_HOSTS {
            // This is checked for each host at each step, and mostly ends with the first conditions.
            if !could || !self.has_announced(host, looks, could_render) {
                self.idle_since.remove(&host);
                continue;
            }
            let name = host_of(&page(host, 0));
            let held = self.leases.values().filter(|lease| lease.host == name).count();
            let is_idle = !outages.may_rest(&name, now)
                && held < hosts.parallel_of(&name, now) as usize
                && hosts.welcomes(&name, now);
            if !is_idle {
                self.idle_since.remove(&host);
                continue;
            }
            let since = *self.idle_since.entry(host).or_insert(now);
            Promise::NoStarvation.holds(now.since(since) <= IDLE_MS_MAX, || {
                format!("{name} is idle for {} although a worker has credit", between(since, now))
            })?;
        }
        Ok(())
    }
}
