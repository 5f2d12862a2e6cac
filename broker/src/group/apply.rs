//! Applies decisions. Only this code changes a group, so a group that applies the records of
//! another one in their order becomes equal to it.

use std::collections::BTreeSet;

use tidings_protocol::Outcome;

use super::Group;
use super::entry::{Admission, JobNumber, Lease, State};
use super::key_queue::Lane;
use super::mutants::{self, Mutant};
use super::record::{Decision, Record, Taking};
use super::timers::Expiry;
use crate::clock::Moment;
use crate::job::JobState;

impl Group {
    /// Applies a record of an earlier run, or of another machine.
    pub fn replay(&mut self, record: &Record) {
        let decision = &record.decision;
        let is_reboot = matches!(decision, Decision::Started { run, anew: elapsed_unknown, .. } if self.is_reboot(*run, *elapsed_unknown));
        if !is_reboot {
            self.advance(record.at);
        }
        match &record.decision {
            Decision::Taken { items, .. } => {
                self.apply_takings(items, record.at);
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

    /// Applies a decision. The effects of events and links have already been applied one by one,
    /// because each depends on those before it.
    pub(super) fn apply(&mut self, decision: &Decision, now: Moment) {
        match decision {
            Decision::Started { run, anew: elapsed_unknown, own, .. } => {
                self.own = *own;
                self.start(*run, *elapsed_unknown, now);
            }
            Decision::Born { since } => self.since = Some(*since),
            Decision::Configured(config) => {
                // Each start records the settings, and refreshing may visit millions of keys.
                if self.config != **config && !mutants::is(Mutant::KeepsSettings) {
                    self.config = (**config).clone();
                    for key in self.keys.ids() {
                        self.refresh(key, now);
                    }
                }
            }
            Decision::Taken { topic, next, .. } => {
                self.taken.insert(topic.clone(), *next);
            }
            Decision::Released { entry, member, until } => {
                let (member, until, run) = (*member, *until, self.run);
                let lease = Lease { member, run, until, over: false };
                self.apply_release(*entry, lease, now);
            }
            Decision::Touched { entry, until, over, rest } => {
                self.apply_touch(*entry, *until, *over, *rest, now);
            }
            Decision::Answered { entry, outcome, children, rest, no_room } => {
                if *outcome == Outcome::Redirect {
                    self.hand_on_repair(*entry, children);
                }
                let job = self.live[entry].entry.admitted.job;
                if let Some(job) = job.and_then(|job| self.jobs.find_mut(job.number)) {
                    job.counts.found += no_room;
                    job.counts.budget += no_room;
                }
                self.end_request(*entry, *rest, was_requested(*outcome), now);
                self.finish(*entry, *outcome, now);
            }
            Decision::Returned { entry, back, rest, reason } => {
                self.apply_return(*entry, back, *rest, reason.clone(), now);
            }
            Decision::Lost { entry } => self.apply_loss(*entry, now),
            Decision::Ended { entries, end } => {
                for entry in entries {
                    self.drop_entry(*entry, *end, now);
                }
            }
            Decision::Unpinned { entries } => {
                for entry in entries {
                    self.start_over(*entry, now);
                }
            }
            Decision::Paused(paused) => self.is_paused = *paused,
            Decision::Purged => self.purge_all(now),
            Decision::Cleared { number, key, end } => {
                self.clear(*number, key.as_deref(), *end, now);
            }
            Decision::Retried { entries, repairs } => {
                for buried in self.dead.take(entries) {
                    self.revive(buried.entry, *repairs, now);
                }
            }
            Decision::Deleted => {}
            Decision::Kept(item) => self.restore(item, now),
            Decision::Forgotten { entries } => {
                self.dead.take(entries);
            }
            Decision::FellDue { url, next, item } => {
                self.apply_due(*url, *next, item.as_deref(), now);
            }
            Decision::Announced { serial, topic, payload } => {
                self.last_serial = *serial;
                self.unsent.insert(*serial, (topic, payload.clone()));
            }
            Decision::Sent { serial, topic, seq } => {
                self.unsent.remove(serial);
                let newest = self.sent.entry(topic).or_default();
                *newest = (*newest).max(*seq);
            }
            Decision::ClockTimes(times) => {
                for time in times {
                    self.apply_clock_time(time, now);
                }
            }
            Decision::SeedAdded(taking) => self.apply_taking(taking, now),
            _ => self.apply_to_job(decision, now),
        }
    }

    /// Applies a decision about a job.
    fn apply_to_job(&mut self, decision: &Decision, now: Moment) {
        match decision {
            Decision::JobOpened { number, name, settings } => {
                let until = now + self.config.open_ms_max;
                self.jobs.open(*number, name, settings.clone(), now, until);
                if let Some(at) = self.jobs.find(*number).and_then(|job| job.time_until) {
                    self.expiries.set(at, Expiry::JobTime(*number));
                }
                self.expect_seeds(*number, until);
            }
            Decision::JobReopened { number } => {
                if let Some(job) = self.jobs.find_mut(*number) {
                    job.state = JobState::Open;
                    job.noted = None;
                    self.noted.remove(number);
                }
                self.expect_seeds(*number, now + self.config.open_ms_max);
            }
            Decision::JobClosed { number } => self.close(*number),
            Decision::JobNoted { number, heads } => {
                if let Some(job) = self.jobs.find_mut(*number) {
                    job.noted = Some(heads.clone());
                    self.noted.insert(*number);
                }
            }
            Decision::JobCancelled { number } => {
                self.close(*number);
                if let Some(job) = self.jobs.find_mut(*number) {
                    job.cancelled = true;
                    // A cancelled job must request new topic heads before it is done.
                    job.noted = None;
                    self.noted.remove(number);
                }
            }
            Decision::JobPaused { number, paused } => self.pause_job(*number, *paused, now),
            Decision::JobBegun { number } => self.begin_job(*number, now),
            Decision::JobTimeUp { number } => {
                if let Some(job) = self.jobs.find_mut(*number) {
                    job.time_is_up = true;
                    if let Some(at) = job.time_until.take() {
                        self.expiries.cancel(at, Expiry::JobTime(*number));
                    }
                    self.ready.block(*number, true);
                }
            }
            Decision::JobDone { number } => self.finish_pass(*number),
            Decision::JobDeleted { number } => self.jobs.delete(*number),
            _ => unreachable!("decisions about other things were applied before"),
        }
    }

    fn finish_pass(&mut self, number: JobNumber) {
        if let Some(job) = self.jobs.find(number) {
            self.seen.forget(job.id);
            if let Some(at) = job.time_until {
                self.expiries.cancel(at, Expiry::JobTime(number));
            }
        }
        self.noted.remove(&number);
        self.ready.block(number, false);
        self.jobs.finish(number, self.config.finished_jobs_max);
    }

    /// A paused job takes no turns on the keys of its entries.
    fn pause_job(&mut self, number: JobNumber, paused: bool, now: Moment) {
        let Some(job) = self.jobs.find_mut(number) else { return };
        job.paused = paused;
        self.refresh_keys_of(number, now);
    }

    /// Ends the hold of a job: its seeds have been consumed.
    fn begin_job(&mut self, number: JobNumber, now: Moment) {
        let Some(job) = self.jobs.find_mut(number) else { return };
        job.settings.hold = false;
        job.noted = None;
        self.noted.remove(&number);
        self.refresh_keys_of(number, now);
    }

    /// Refreshes the keys of a job, after the job started or stopped taking turns.
    fn refresh_keys_of(&mut self, number: JobNumber, now: Moment) {
        let Some(job) = self.jobs.find(number) else { return };
        let mut keys: BTreeSet<_> = job.waiting.iter().map(|id| self.live[id].key).collect();
        keys.extend(self.parked.keys_of(Lane::Job(number)));
        for key in keys {
            self.refresh(key, now);
        }
    }

    /// Sets the run of new task ids. With `anew`, leases and rests restart at `now`.
    fn start(&mut self, run: u64, elapsed_unknown: bool, now: Moment) {
        self.run = run;
        if !elapsed_unknown {
            return;
        }
        let until = now + self.config.lease_ms;
        for (id, live) in &mut self.live {
            if let State::Held(lease) = &mut live.entry.state
                && !mutants::is(Mutant::NoLeaseAfterReboot)
            {
                self.expiries.cancel(lease.until, Expiry::Lease(*id));
                lease.until = lease.until.max(until);
                self.expiries.set(lease.until, Expiry::Lease(*id));
            }
        }
        for key in self.keys.ids() {
            let queue = &mut self.keys[key];
            let delay_ms = self.config.delay_of(queue.name());
            queue.rest_anew(now, delay_ms);
            self.refresh(key, now);
        }
    }

    /// Applies the effects of the events of one record.
    fn apply_takings(&mut self, takings: &[Taking], now: Moment) {
        fn admitted(taking: &Taking) -> Option<&Admission> {
            if let Taking::Admitted(admission) = taking { Some(admission) } else { None }
        }
        let are_alike = |a: &Taking, b: &Taking| admitted(a).is_some() && admitted(b).is_some();
        for some in takings.chunk_by(are_alike) {
            if admitted(&some[0]).is_none() {
                self.apply_taking(&some[0], now);
                continue;
            }
            self.admit_all(some.iter().filter_map(admitted), now);
            let jobs = some.iter().filter_map(admitted).filter_map(|admission| admission.job);
            for job in jobs {
                self.expect_seeds(job.number, now + self.config.open_ms_max);
            }
        }
    }

    /// Applies the effect of one event.
    pub(super) fn apply_taking(&mut self, taking: &Taking, now: Moment) {
        match taking {
            Taking::Admitted(admission) => {
                self.admit(admission, now);
                if let Some(job) = admission.job {
                    self.expect_seeds(job.number, now + self.config.open_ms_max);
                }
            }
            Taking::Improved { entries, announced, prio, due, carried } => {
                for entry in entries {
                    self.improve(*entry, *announced, (*prio, *due, carried), now);
                }
            }
            Taking::Duplicate(number) => {
                if let Some(job) = self.jobs.find_mut(*number) {
                    job.counts.duplicates += 1;
                }
                self.expect_seeds(*number, now + self.config.open_ms_max);
            }
            Taking::Scheduled(schedule) => self.set_schedule(schedule),
            Taking::Unscheduled(url) => self.end_schedule(*url),
            Taking::Unusable => self.totals.unkeyed += 1,
        }
    }

    /// Extends the time for which an open job may wait for seeds.
    fn expect_seeds(&mut self, number: JobNumber, until: Moment) {
        if let Some(job) = self.jobs.find_mut(number)
            && job.state == JobState::Open
        {
            self.expiries.cancel(job.open_until, Expiry::JobOpen(number));
            job.open_until = until;
            self.expiries.set(until, Expiry::JobOpen(number));
        }
    }

    fn close(&mut self, number: JobNumber) {
        if let Some(job) = self.jobs.find_mut(number) {
            self.expiries.cancel(job.open_until, Expiry::JobOpen(number));
            job.state = JobState::Closed;
        }
    }
}

/// Reports whether the outcome implies a request to the host. A URL that a rule excluded cost the
/// host nothing, so its key need not rest (T4 of PROTOCOL.md).
fn was_requested(outcome: Outcome) -> bool {
    !matches!(outcome, Outcome::Robots | Outcome::Scope | Outcome::Trap)
}
