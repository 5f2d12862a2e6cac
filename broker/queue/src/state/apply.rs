//! Applies decisions and their records. What entries go through is in [`lifecycle`](super::lifecycle)
//! and [`endings`](super::endings), the parts of snapshots are in [`restore`](super::restore).

use std::collections::BTreeSet;

use tidings_protocol::{Outcome, UrlKey};

use super::State;
use crate::entry::{Admission, Entry, JobNumber, Lease};
use crate::frontier::circuit::RequestEnd;
use crate::frontier::lane::Lane;
use crate::jobs::{HostEntry, Job};
use crate::moment::Moment;
use crate::mutants::{self, Mutant};
use crate::record::{Decision, EventEffect, GroupRecord};
use crate::schedules::{WallClockDue, WallClockTarget};

impl State {
    /// Applies a record of an earlier run, or of another machine.
    pub(crate) fn replay(&mut self, record: &GroupRecord) {
        let decision = &record.decision;
        let is_reboot = matches!(decision, Decision::Started { run, elapsed_unknown, .. } if self.is_reboot(*run, *elapsed_unknown));
        if !is_reboot {
            self.advance(record.at);
        }
        match &record.decision {
            Decision::Consumed { effects: items, .. } => {
                self.apply_event_effects(items, record.at);
            }
            Decision::Answered { children, .. } => {
                self.admit_all(children, record.at);
            }
            _ => {}
        }
        self.apply(&record.decision, record.at);
        if is_reboot {
            self.advance(record.at);
        }
    }

    /// Reports whether a start knows the elapsed time only from the wall clock. A group that was
    /// merely suspended (in the same run) knows it exactly.
    pub(crate) fn is_reboot(&self, run: u64, elapsed_unknown: bool) -> bool {
        elapsed_unknown && run != self.run
    }

    /// Applies a decision. The effects of events and links have already been applied one by one,
    /// because each depends on those before it.
    pub(crate) fn apply(&mut self, decision: &Decision, now: Moment) {
        match decision {
            Decision::Started { run, since, elapsed_unknown, local_member: own, .. } => {
                self.since.get_or_insert(*since);
                self.leases.set_local_member(*own);
                self.apply_start(*run, *elapsed_unknown, now);
            }
            Decision::Configured(config) => {
                // Each start records the settings, and refreshing may visit millions of keys.
                if self.config != **config && !mutants::is(Mutant::IgnoresSettings) {
                    self.config = (**config).clone();
                    for key in self.frontier.keys().ids() {
                        if !self.config.settings.circuit {
                            self.frontier.reset_circuit(key);
                        }
                        self.refresh(key, now);
                    }
                }
            }
            Decision::Consumed { topic, next, .. } => {
                self.consumed.insert(topic.clone(), *next);
            }
            Decision::Released { entry, member, until } => {
                let lease = Lease { began_at: now, ..Lease::new(*member, self.run, *until) };
                self.apply_release(*entry, lease, now);
            }
            Decision::Touched { entry, until, request_over: over, rest } => {
                self.apply_touch(*entry, *until, *over, *rest, now);
            }
            Decision::Answered { entry, outcome, children, rest } => {
                if *outcome == Outcome::Redirect {
                    self.pass_repair_to_redirect(*entry, children);
                }
                self.end_request(*entry, *rest, end_with(*outcome), now);
                self.finish_entry(*entry, *outcome, now);
            }
            Decision::Returned { entry, next_step: back, rest, reason } => {
                self.apply_return(*entry, back, *rest, reason.clone(), now);
            }
            Decision::Lost { entry } => self.apply_loss(*entry, now),
            Decision::Ended { entries, end } => {
                for entry in entries {
                    self.drop_entry(*entry, *end, now);
                }
            }
            Decision::Bumped { prio, entries } => self.bump(entries, *prio, now),
            Decision::Unpinned { entries } => {
                for entry in entries {
                    self.restart_from_own_request(*entry, now);
                }
            }
            Decision::Paused(paused) => self.is_paused = *paused,
            Decision::MemberDrained { member, drained } => {
                self.leases.set_drained(*member, *drained, now);
            }
            Decision::RuleSet(rule) => {
                let keys = self.frontier.set_rule(rule);
                self.apply_rules_of(&keys, now);
            }
            Decision::RuleRemoved { name, below } => {
                let keys = self.frontier.remove_rule(name, *below);
                self.apply_rules_of(&keys, now);
            }
            Decision::Purged => self.purge_all(now),
            Decision::JobCleared { number, key, end } => {
                self.clear_job(*number, key.as_deref(), *end, now);
            }
            Decision::DeadRetried { entries } => {
                for buried in self.dead_letters.take(entries) {
                    self.retry_dead(buried.entry, now);
                }
            }
            Decision::Deleted => {}
            Decision::SnapshotPart(item) => self.restore(item, now),
            Decision::DeadDropped { entries } => {
                self.dead_letters.take(entries);
            }
            Decision::ScheduleDue { url, next, effect: item } => {
                self.apply_schedule_due(*url, *next, item.as_deref(), now);
            }
            Decision::PublishQueued { serial, topic, payload } => {
                self.last_serial = *serial;
                self.unpublished.insert(*serial, topic, payload.clone());
            }
            Decision::Published { serial, topic, seq } => {
                self.unpublished.published(topic, *serial);
                let newest = self.published.entry(topic).or_default();
                *newest = (*newest).max(*seq);
            }
            Decision::WallClockDues(times) => {
                for time in times {
                    self.apply_wall_clock_due(time, now);
                }
            }
            Decision::SeedAdded(taking) => self.apply_event_effect(taking, now),
            _ => self.apply_to_job(decision, now),
        }
    }

    /// Applies a decision about a job.
    fn apply_to_job(&mut self, decision: &Decision, now: Moment) {
        match decision {
            Decision::JobOpened { number, name, settings } => {
                let until = now + self.config.open_ms_max;
                self.jobs.open(*number, name, (**settings).clone(), now, until);
            }
            Decision::JobReopened { number } => {
                self.jobs.reopen(*number, now + self.config.open_ms_max);
            }
            Decision::JobClosed { number } => self.jobs.close(*number),
            Decision::JobCompletionPending { number, heads } => {
                self.jobs.await_heads(*number, heads);
            }
            Decision::JobCancelled { number } => self.jobs.cancel(*number),
            Decision::JobSet { number, time_until, settings } => {
                let was_pinned_out = self.jobs.find(*number).is_some_and(Job::is_pinned_out);
                let has_other_limit = self.jobs.change(*number, settings, *time_until);
                if has_other_limit {
                    self.recount_hosts_of(*number);
                }
                if let Some(job) = self.jobs.find(*number) {
                    self.frontier.block(*number, job.is_blocked());
                    // Other settings do not decide whether the job takes turns.
                    if has_other_limit || job.is_pinned_out() != was_pinned_out {
                        self.refresh_keys_of(*number, now);
                    }
                }
            }
            Decision::JobPaused { number, paused } => {
                // A paused job takes no turns on the keys of its entries.
                self.jobs.set_paused(*number, *paused);
                self.refresh_keys_of(*number, now);
            }
            Decision::JobHoldEnded { number } => {
                self.jobs.end_hold(*number);
                self.refresh_keys_of(*number, now);
            }
            Decision::JobTimeUp { number } => {
                if self.jobs.end_time(*number) {
                    self.frontier.block(*number, true);
                }
            }
            Decision::JobDone { number } => {
                self.frontier.block(*number, false);
                self.jobs.finish(*number, self.config.finished_jobs_max, now);
            }
            Decision::JobDeleted { number } => self.jobs.delete(*number),
            _ => unreachable!("decisions about other things were applied before"),
        }
    }

    /// Counts the entries of a job for their keys, after its limit of pages per key has changed.
    /// Visits each entry of the group.
    fn recount_hosts_of(&mut self, number: JobNumber) {
        let Self { frontier, jobs, leases, .. } = self;
        let is_pinned = |entry: &Entry| {
            let pins = entry.again.as_ref().and_then(|again| leases.pins().get(&again.member));
            pins.is_some_and(|pins| pins.contains(&entry.admitted.id))
        };
        for live in frontier.active() {
            let (entry, key) = (&live.entry, frontier.keys()[live.key].name());
            if entry.admitted.job.is_none_or(|pass| pass.number != number) {
                continue;
            }
            if entry.lease().is_none() {
                jobs.count_on_host(number, key, HostEntry::Waiting(entry.admitted.id));
            }
            if entry.lease().is_some() || is_pinned(entry) {
                jobs.count_on_host(number, key, HostEntry::InFlight);
            }
        }
        for dormant in frontier.dormant().iter().filter(|dormant| dormant.job() == Some(number)) {
            jobs.count_on_host(number, frontier.keys()[dormant.key].name(), HostEntry::Dormant);
        }
    }

    /// Refreshes the keys of a job, after the job started or stopped taking turns.
    pub(super) fn refresh_keys_of(&mut self, number: JobNumber, now: Moment) {
        let Some(job) = self.jobs.find(number) else { return };
        // An entry that ends with this decision may be gone already; its key is refreshed anyway.
        let waiting = job.waiting.iter().filter_map(|id| self.frontier.find(*id));
        let mut keys: BTreeSet<_> = waiting.map(|live| live.key).collect();
        keys.extend(self.frontier.dormant().keys_of(Lane::Job(number)));
        for key in keys {
            self.refresh(key, now);
        }
    }

    /// Sets the run of new task ids. With `elapsed_unknown`, leases and rests restart
    /// at `now`.
    fn apply_start(&mut self, run: u64, elapsed_unknown: bool, now: Moment) {
        self.run = run;
        self.leases.restart_absences(now);
        if !elapsed_unknown {
            return;
        }
        self.frontier.note_reboot(now);
        let until = now + self.config.settings.lease_ms;
        if !mutants::is(Mutant::NoLeaseAfterReboot) {
            let Self { frontier, leases, .. } = self;
            frontier.extend_leases(until, |id, before, until| leases.renew(id, before, until));
        }
        for key in self.frontier.keys().ids() {
            self.frontier.restart_rest(key, now, &self.config);
            self.refresh(key, now);
        }
    }

    /// Applies the effects of the events of one record.
    fn apply_event_effects(&mut self, takings: &[EventEffect], now: Moment) {
        fn admitted(taking: &EventEffect) -> Option<&Admission> {
            if let EventEffect::Admitted(admission) = taking { Some(admission) } else { None }
        }
        let are_alike =
            |a: &EventEffect, b: &EventEffect| admitted(a).is_some() && admitted(b).is_some();
        for some in takings.chunk_by(are_alike) {
            if admitted(&some[0]).is_none() {
                self.apply_event_effect(&some[0], now);
                continue;
            }
            self.admit_all(some.iter().filter_map(admitted), now);
            let jobs = some.iter().filter_map(admitted).filter_map(|admission| admission.job);
            for job in jobs {
                self.jobs.extend_open_time(job.number, now + self.config.open_ms_max);
            }
        }
    }

    /// Applies the effect of one event.
    pub(crate) fn apply_event_effect(&mut self, taking: &EventEffect, now: Moment) {
        match taking {
            EventEffect::Admitted(admission) => {
                self.admit(admission, now);
                if let Some(job) = admission.job {
                    self.jobs.extend_open_time(job.number, now + self.config.open_ms_max);
                }
            }
            EventEffect::Coalesced { entries, announced, prio, due, forwarded: carried } => {
                for entry in entries {
                    self.coalesce(*entry, *announced, (*prio, *due, carried), now);
                }
            }
            EventEffect::Duplicate(number) => {
                self.jobs.count_duplicate(*number);
                self.jobs.extend_open_time(*number, now + self.config.open_ms_max);
            }
            EventEffect::Scheduled(schedule) => self.schedules.set(schedule),
            EventEffect::Unscheduled(url) => self.schedules.remove(*url),
            EventEffect::Unusable => self.totals.unkeyed += 1,
        }
    }

    fn apply_schedule_due(
        &mut self,
        url: UrlKey,
        next: Moment,
        item: Option<&EventEffect>,
        now: Moment,
    ) {
        if let Some(item) = item {
            self.apply_event_effect(item, now);
        }
        let before = self.schedules.find(url).and_then(|schedule| schedule.entry);
        self.schedules.advance(url, next, item.map_or(before, EventEffect::entry));
    }

    pub(super) fn apply_wall_clock_due(&mut self, time: &WallClockDue, now: Moment) {
        match time.target {
            WallClockTarget::Entry(id) if self.pending_due(time.target).is_some() => {
                self.detach(id);
                self.frontier.set_due(id, time.due);
                self.schedules.entry_waits_for(id, time.unix_ms);
                self.enqueue(id, now);
            }
            WallClockTarget::Entry(_) => {}
            WallClockTarget::Schedule(url) => {
                self.schedules.set_time_of_day(url, time.due, time.unix_ms);
            }
        }
    }
}

/// How the request of a task ended with an outcome. A URL that a rule excluded cost the host
/// nothing, so its key need not rest (`[T4]`).
fn end_with(outcome: Outcome) -> RequestEnd {
    match outcome {
        Outcome::Robots | Outcome::Scope | Outcome::Trap => RequestEnd::NotMade,
        Outcome::Done | Outcome::Redirect | Outcome::Failed => RequestEnd::Answered,
    }
}
