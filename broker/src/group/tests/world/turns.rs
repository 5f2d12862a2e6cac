//! Who waits for a turn, and how often others went before.

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::{MemberId, TaskId};

use super::hosts::Hosts;
use super::looks::Looks;
use super::passes::Passes;
use super::promises::{Kept, Promise, between};
use super::task::Told;
use super::{DELAY_MS, LEASE_MS};
use crate::clock::Moment;
use crate::group::tests::site::{HOSTS, LONELY_HOSTS, host_number, host_of, page};

/// Others on a host before it is somebody's turn: what was announced alternates with the jobs, of
/// which there are [`JOBS_MAX`](super::operator::JOBS_MAX) and the schedules; some more, as what a
/// task goes on with goes before all of them and counts as its job's turn.
const OTHERS_MAX: u32 = 30;

/// A host that may be asked, with somebody to ask it, is asked within this time. Longer than any
/// suspect in the way takes.
const IDLE_MS_MAX: u64 = 4 * LEASE_MS;

/// Who waits on a host: for a job's pages, or (without one) for what was announced.
pub(super) type Lane = Option<String>;

/// What is known of turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Host, and who waits there: releases of others since it began to wait, or had its turn.
    passed_over: BTreeMap<(u64, Lane), u32>,
    /// Released before, in which case it may rest, or be a suspect: it is waited for no more.
    away: BTreeSet<(Lane, String)>,
    leases: BTreeMap<TaskId, Lease>,
    /// Hosts that nothing keeps from being asked, and since when.
    idle_since: BTreeMap<u64, Moment>,
}

/// A task that a member has.
#[derive(Debug)]
struct Lease {
    member: MemberId,
    host: String,
    until: Moment,
}

impl Turns {
    /// A task is on its way to a member, or is lost on it.
    pub(super) fn lease(&mut self, told: &Told, member: MemberId) {
        let (host, until) = (told.host(), told.until);
        self.leases.insert(told.id.clone(), Lease { member, host, until });
    }

    /// A task has another end of its lease.
    pub(super) fn extend(&mut self, id: &TaskId, until: Moment) {
        if let Some(lease) = self.leases.get_mut(id) {
            lease.until = lease.until.max(until);
        }
    }

    /// All of them have.
    pub(super) fn extend_all(&mut self, until: Moment) {
        self.leases.values_mut().for_each(|lease| lease.until = lease.until.max(until));
    }

    /// A task is with nobody any more.
    pub(super) fn release(&mut self, id: &TaskId) {
        self.leases.remove(id);
    }

    /// When a lease of a member has last run out, of those that are remembered.
    pub(super) fn lost_by(&self, member: MemberId, now: Moment) -> Option<Moment> {
        let its = self.leases.values().filter(|lease| lease.member == member);
        its.map(|lease| lease.until).filter(|until| *until <= now).max()
    }

    /// Tasks that a member has, as the group sees it.
    pub(super) fn held_by(&self, member: MemberId) -> usize {
        self.leases.values().filter(|lease| lease.member == member).count()
    }

    /// Something was announced: it waits, whatever came before. Jobs for which it waited already
    /// have it wait there, too.
    pub(super) fn announce(&mut self, url: &str, passes: &Passes) {
        self.away.remove(&(None, url.to_owned()));
        for (name, _) in passes.iter().filter(|(_, pass)| pass.misses(url)) {
            self.away.insert((Some(name.to_owned()), url.to_owned()));
        }
    }

    /// Something was announced for later: it waits for a turn then, which nobody counts.
    pub(super) fn announce_for_later(&mut self, url: &str, looks: &Looks, passes: &Passes) {
        let waits = looks.owes(url) && !self.away.contains(&(None, url.to_owned()));
        self.announce(url, passes);
        if !waits {
            self.wait_no_more(None, url);
        }
    }

    /// Somebody who waits for a page is not waited for.
    pub(super) fn wait_no_more(&mut self, lane: Lane, url: &str) {
        self.away.insert((lane, url.to_owned()));
    }

    /// A job begins again: its pages wait, whatever came before.
    pub(super) fn begin_pass(&mut self, name: &str) {
        self.away.retain(|(lane, _)| lane.as_deref() != Some(name));
    }

    /// Everything is counted anew.
    pub(super) fn restart(&mut self) {
        self.passed_over.clear();
        self.idle_since.clear();
    }

    /// A turn was taken.
    pub(super) fn take(&mut self, told: &Told, looks: &Looks, passes: &Passes) -> Kept {
        if told.goes_on() {
            return Ok(());
        }
        let host = host_number(&told.url);
        for lane in [None, told.job.clone()] {
            self.passed_over.remove(&(host, lane.clone()));
            self.away.insert((lane, told.url.clone()));
        }
        let waiting: Vec<Lane> = self.waiting_on(host, looks, passes);
        self.passed_over.retain(|(other, lane), _| *other != host || waiting.contains(lane));
        for lane in waiting.into_iter().filter(|lane| *lane != told.job) {
            let others = self.passed_over.entry((host, lane.clone())).or_default();
            *others += 1;
            Promise::NoStarvation.holds(*others <= OTHERS_MAX, || {
                let who = lane.unwrap_or("what was announced".to_owned());
                format!("{who} waits for h{host}.org, and {others} others went before")
            })?;
        }
        Ok(())
    }

    /// Who waits on a host for something that was never released.
    fn waiting_on(&self, host: u64, looks: &Looks, passes: &Passes) -> Vec<Lane> {
        let announced = self.has_announced(host, looks).then_some(None);
        let jobs = passes.iter().filter(|(_, pass)| pass.wants_turns());
        let jobs = jobs.filter(|(name, pass)| {
            let lane = Some((*name).to_owned());
            pass.missing_on(host).any(|url| !self.away.contains(&(lane.clone(), url.clone())))
        });
        announced.into_iter().chain(jobs.map(|(name, _)| Some(name.to_owned()))).collect()
    }

    fn has_announced(&self, host: u64, looks: &Looks) -> bool {
        let mut owed = looks.owed().filter(|url| host_number(url) == host);
        owed.any(|url| !self.away.contains(&(None, url.to_owned())))
    }

    /// To be called now and then. `could`: somebody has room, and the group releases.
    pub(super) fn check_idle(
        &mut self,
        now: Moment,
        could: bool,
        hosts: &Hosts,
        looks: &Looks,
    ) -> Kept {
        self.leases.retain(|_, lease| lease.until + DELAY_MS + 1 >= now);
        for host in 0..HOSTS + LONELY_HOSTS {
            let name = host_of(&page(host, 0));
            let held = self.leases.values().filter(|lease| lease.host == name).count();
            let idle = could
                && held < hosts.parallel() as usize
                && hosts.welcomes(&name, now)
                && self.has_announced(host, looks);
            if !idle {
                self.idle_since.remove(&host);
                continue;
            }
            let since = *self.idle_since.entry(host).or_insert(now);
            Promise::NoStarvation.holds(now.since(since) <= IDLE_MS_MAX, || {
                format!("nobody asks {name} for {}, and could", between(since, now))
            })?;
        }
        Ok(())
    }
}
