//! What a decision does. This is the only code that changes what a group holds, so a group that
//! applies the records of another one in their order becomes that group.

use std::collections::BTreeSet;

use tidings_protocol::{CanonicalUrl, MemberId, Outcome, UrlKey};

use super::entry::{Admission, Entry, EntryId, JobNumber, JobRef, Key, Lease, State};
use super::mutants::{self, Mutant};
use super::record::{Back, Decision, End, Record, Rest, Taking};
use super::timers::Expiry;
use super::{Group, lane_of};
use crate::clock::Moment;
use crate::job::{Job, JobState};

impl Group {
    /// Makes the decision of an earlier run (or of another machine) its own.
    pub fn replay(&mut self, record: &Record) {
        let decision = &record.decision;
        let is_reboot =
            matches!(decision, Decision::Started { run, anew, .. } if self.is_reboot(*run, *anew));
        if !is_reboot {
            self.advance(record.at);
        }
        match &record.decision {
            Decision::Taken { items, .. } => {
                for item in items {
                    self.apply_taking(item, record.at);
                }
            }
            Decision::Answered { children, .. } => {
                for child in children {
                    self.admit(child, record.at);
                }
            }
            _ => {}
        }
        self.apply(&record.decision, record.at);
        if is_reboot {
            self.advance(record.at);
        }
    }

    /// Applies a decision. What events and children became has been applied one by one before, as
    /// each is judged in the light of the one before it.
    pub(super) fn apply(&mut self, decision: &Decision, now: Moment) {
        match decision {
            Decision::Started { run, anew, own, .. } => {
                self.own = *own;
                self.start(*run, *anew, now);
            }
            Decision::Configured(config) => {
                self.config = (**config).clone();
                let mut keys: Vec<_> = self.keys.keys().cloned().collect();
                keys.sort_unstable();
                for key in &keys {
                    self.refresh(key, now);
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
            Decision::Answered { entry, outcome, rest, no_room, .. } => {
                let job = self.entries[entry].admitted.job;
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
            Decision::Purged => {
                let unheld = self.entries.iter().filter(|(_, entry)| entry.lease().is_none());
                for entry in unheld.map(|(id, _)| *id).collect::<Vec<_>>() {
                    self.drop_entry(entry, End::Purged, now);
                }
            }
            Decision::Retried { entries } => {
                for buried in self.dead.take(entries) {
                    self.revive(buried.entry, now);
                }
            }
            Decision::Deleted => {}
            Decision::Kept(item) => self.restore(item, now),
            Decision::Forgotten { entries } => {
                self.dead.take(entries);
            }
            Decision::FellDue { url, next, item } => {
                self.apply_due(*url, *next, item.as_ref(), now);
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
            Decision::SeedAdded(taking) => self.apply_taking(taking, now),
            _ => self.apply_to_job(decision, now),
        }
    }

    /// Applies what was decided about a job itself.
    fn apply_to_job(&mut self, decision: &Decision, now: Moment) {
        match decision {
            Decision::JobOpened { number, name, settings } => {
                let until = now + self.config.open_ms_max;
                self.jobs.open(*number, name, *settings, now, until);
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
                    // What it may have waited for is judged anew.
                    job.noted = None;
                    self.noted.remove(number);
                }
            }
            Decision::JobPaused { number, paused } => self.pause_job(*number, *paused, now),
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
            _ => unreachable!("what is not about a job was applied before"),
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

    /// A paused job takes no turns on the keys for which it has entries.
    fn pause_job(&mut self, number: JobNumber, paused: bool, now: Moment) {
        let Some(job) = self.jobs.find_mut(number) else { return };
        job.paused = paused;
        let waiting = job.waiting.iter();
        let keys = waiting.map(|id| self.entries[id].admitted.key.clone());
        for key in keys.collect::<BTreeSet<Key>>() {
            self.refresh(&key, now);
        }
    }

    /// Ids are of this run from here on. `anew`: leases and rests begin at `now`.
    fn start(&mut self, run: u64, anew: bool, now: Moment) {
        self.run = run;
        if !anew {
            return;
        }
        let until = now + self.config.lease_ms;
        for (id, entry) in &mut self.entries {
            if let State::Held(lease) = &mut entry.state
                && !mutants::is(Mutant::NoLeaseAfterReboot)
            {
                self.expiries.cancel(lease.until, Expiry::Lease(*id));
                lease.until = lease.until.max(until);
                self.expiries.set(lease.until, Expiry::Lease(*id));
            }
        }
        let mut keys: Vec<_> = self.keys.keys().cloned().collect();
        keys.sort_unstable();
        for key in keys {
            let delay_ms = self.config.delay_of(&key);
            if let Some(queue) = self.keys.get_mut(&key) {
                queue.rest_anew(now, delay_ms);
            }
            self.refresh(&key, now);
        }
    }

    /// What became of one event.
    pub(super) fn apply_taking(&mut self, taking: &Taking, now: Moment) {
        match taking {
            Taking::Admitted(admission) => {
                self.admit(admission, now);
                if let Some(job) = admission.job {
                    self.expect_seeds(job.number, now + self.config.open_ms_max);
                }
            }
            Taking::Improved { entries, announced, prio, due } => {
                for entry in entries {
                    self.improve(*entry, *announced, *prio, *due, now);
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

    /// A job that is open was not forgotten: it is closed later.
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

    /// Lets an entry in.
    pub(super) fn admit(&mut self, admission: &Admission, now: Moment) {
        let id = admission.id;
        self.last_entry = self.last_entry.max(id);
        if let Some(pass) = admission.job {
            if let Some(url) = admission.url_key {
                self.seen.add(pass, url);
            }
            if let Some(job) = self.jobs.find_mut(pass.number) {
                job.noted = None;
                self.noted.remove(&pass.number);
                job.counts.found += 1;
                job.wait(id, &admission.key);
                // A seed's redirect keeps the seed's depth, and lets its target's host in.
                if admission.depth == 0
                    && let Ok(url) = CanonicalUrl::parse(&admission.text)
                {
                    job.scope.admit(&url);
                }
            }
        }
        self.unhold(admission.url_key, id);
        self.entry_bytes += admission.bytes();
        self.entries.insert(id, Entry::new(admission.clone()));
        self.enqueue(id, now);
    }

    /// A waiting entry takes the better of what it has and what an event asks for.
    fn improve(&mut self, id: EntryId, announced: bool, prio: i16, due: Moment, now: Moment) {
        self.unqueue(id, now);
        let entry = self.entries.get_mut(&id).expect("a waiting entry exists");
        let admitted = &mut entry.admitted;
        admitted.announced |= announced;
        admitted.prio = admitted.prio.max(prio);
        admitted.due = admitted.due.min(due);
        self.enqueue(id, now);
    }

    fn apply_release(&mut self, id: EntryId, lease: Lease, now: Moment) {
        self.unqueue(id, now);
        let entry = self.entries.get_mut(&id).expect("a released entry exists");
        entry.state = State::Held(lease);
        entry.releases += 1;
        let (lane, suspect, key) = (lane_of(entry), entry.is_suspect(), entry.gate().clone());
        let (job, url_key) = (entry.admitted.job, entry.admitted.url_key);
        let own_key = entry.admitted.key.clone();
        let pinned_to = entry.again.as_ref().map(|again| again.member);
        self.forget_pin(pinned_to, id, job, &own_key, now);
        self.rehold(url_key, id);
        self.ready.served(lane);
        self.members.hold(lease.member, id, suspect);
        self.expiries.set(lease.until, Expiry::Lease(id));
        self.keys.entry(key.clone()).or_default().released(lane, lease.member);
        self.refresh(&key, now);
        if let Some(job) = job {
            self.change_job(job.number, &own_key, now, |job| job.take(id, &own_key));
        }
    }

    fn apply_touch(&mut self, id: EntryId, until: Moment, over: bool, rest: Rest, now: Moment) {
        if over {
            self.end_request(id, rest, true, now);
        } else {
            let key = self.entries[&id].gate().clone();
            self.keys.entry(key.clone()).or_default().hold(now, rest);
            self.refresh(&key, now);
        }
        let entry = self.entries.get_mut(&id).expect("a touched entry exists");
        if let State::Held(lease) = &mut entry.state {
            self.expiries.cancel(lease.until, Expiry::Lease(id));
            lease.until = until;
            lease.over |= over;
            self.expiries.set(until, Expiry::Lease(id));
        }
    }

    fn apply_return(
        &mut self,
        id: EntryId,
        back: &Back,
        rest: Rest,
        reason: Option<Box<str>>,
        now: Moment,
    ) {
        let was_made = !matches!(back, Back::Uncounted { .. });
        self.end_request(id, rest, was_made, now);
        self.take_from_member(id, now);
        let entry = self.entries.get_mut(&id).expect("a returned entry exists");
        entry.again = None;
        match back {
            Back::Retry { due } => {
                entry.failures += 1;
                entry.agains = 0;
                entry.admitted.due = *due;
                entry.last_reason = reason;
            }
            Back::Uncounted { due } => entry.admitted.due = *due,
            Back::Again(again) => {
                entry.agains += 1;
                entry.admitted.due = now;
                entry.again = Some(again.clone());
                let (job, key) = (entry.admitted.job, entry.admitted.key.clone());
                self.pinned.entry(again.member).or_default().insert(id);
                if let Some(job) = job {
                    self.change_job(job.number, &key, now, |job| job.pin(&key));
                }
            }
        }
        self.enqueue(id, now);
    }

    fn apply_loss(&mut self, id: EntryId, now: Moment) {
        self.end_request(id, Rest::default(), !mutants::is(Mutant::NoRestAfterLoss), now);
        self.take_from_member(id, now);
        let entry = self.entries.get_mut(&id).expect("a lost entry exists");
        entry.losses += 1;
        entry.last_reason = Some("lost with its member".into());
        entry.again = None;
        entry.agains = 0;
        entry.admitted.due = now;
        self.totals.lost += 1;
        self.enqueue(id, now);
    }

    fn start_over(&mut self, id: EntryId, now: Moment) {
        self.unqueue(id, now);
        let entry = self.entries.get_mut(&id).expect("a pinned entry exists");
        entry.agains = 0;
        let (job, key) = (entry.admitted.job, entry.admitted.key.clone());
        let pinned_to = entry.again.take().map(|again| again.member);
        self.forget_pin(pinned_to, id, job, &key, now);
        self.enqueue(id, now);
    }

    /// The key forgets a task, and rests if a request was `made`. Does nothing more than hold the
    /// key if the worker had declared the request over before.
    fn end_request(&mut self, id: EntryId, rest: Rest, made: bool, now: Moment) {
        let entry = &self.entries[&id];
        let key = entry.gate().clone();
        let over = entry.lease().is_some_and(|lease| lease.over);
        let delay_ms = self.config.delay_of(&key);
        let queue = self.keys.entry(key.clone()).or_default();
        match (over, made) {
            (true, _) => queue.hold(now, rest),
            (false, true) => queue.ended(now, delay_ms, rest),
            (false, false) => {
                queue.unmade();
                queue.hold(now, rest);
            }
        }
        self.refresh(&key, now);
    }

    /// An entry is with nobody; it waits for `enqueue`.
    fn take_from_member(&mut self, id: EntryId, now: Moment) {
        let entry = self.entries.get_mut(&id).expect("a held entry exists");
        let State::Held(lease) = entry.state else {
            return;
        };
        let suspect = entry.is_suspect();
        entry.state = State::Delayed;
        let (job, url_key) = (entry.admitted.job, entry.admitted.url_key);
        let key = entry.admitted.key.clone();
        self.expiries.cancel(lease.until, Expiry::Lease(id));
        self.members.release(lease.member, id, suspect);
        self.unhold(url_key, id);
        if let Some(job) = job {
            self.change_job(job.number, &key, now, |job| job.give_back(id, &key));
        }
    }

    /// A held entry is final.
    fn finish(&mut self, id: EntryId, outcome: Outcome, now: Moment) {
        let entry = self.entries.remove(&id).expect("an answered entry exists");
        self.entry_bytes -= entry.admitted.bytes();
        if let State::Held(lease) = entry.state {
            self.expiries.cancel(lease.until, Expiry::Lease(id));
            self.members.release(lease.member, id, entry.is_suspect());
        }
        if let Some(url) = entry.admitted.url_key {
            self.schedules.ended(url, id, Some(outcome));
        }
        match outcome {
            Outcome::Failed => self.totals.failed += 1,
            _ => self.totals.completed += 1,
        }
        if let Some(job) = entry.admitted.job {
            let key = &entry.admitted.key;
            self.change_job(job.number, key, now, |job| job.ended_with(outcome, key));
        }
    }

    /// An entry without a member is final for its job. If it was announced and its job only wants it
    /// no more, it goes on without a job: somebody was promised that it is looked at.
    fn drop_entry(&mut self, id: EntryId, end: End, now: Moment) {
        self.unqueue(id, now);
        let mut entry = self.entries.remove(&id).expect("a dropped entry exists");
        let (job, url) = (entry.admitted.job, entry.admitted.url_key);
        self.rehold(url, id);
        let key = entry.admitted.key.clone();
        self.forget_pin(entry.again.take().map(|again| again.member), id, job, &key, now);
        if let Some(job) = job {
            self.change_job(job.number, &key, now, |job| job.dropped(id, &key, end));
        }
        let leaves_its_job = matches!(end, End::Budget | End::Cancelled) && job.is_some();
        let waits_already = url.is_some_and(|url| self.unheld_of(url, None).is_some());
        if leaves_its_job && entry.admitted.announced && !waits_already {
            entry.admitted.job = None;
            self.entries.insert(id, entry);
            self.unhold(url, id);
            self.enqueue(id, now);
            return;
        }
        self.entry_bytes -= entry.admitted.bytes();
        if let Some(url) = url {
            self.schedules.ended(url, id, None);
        }
        if end == End::Dead {
            self.totals.dead += 1;
            let reason = self.config.gives_up(&entry).unwrap_or("unknown");
            self.dead.bury(entry, reason, &self.config);
        }
    }

    /// A dead entry begins from its beginning. It is part of its pass again if that can still use
    /// it, and otherwise goes without a job, unless its URL waits so already.
    fn revive(&mut self, mut entry: Entry, now: Moment) {
        let (id, url) = (entry.admitted.id, entry.admitted.url_key);
        entry.failures = 0;
        entry.losses = 0;
        entry.last_reason = None;
        entry.admitted.due = now;
        let takes = |pass: &JobRef| {
            let job = self.jobs.find(pass.number);
            job.is_some_and(|job| job.id == *pass && job.takes_back(&entry.admitted.key))
        };
        entry.admitted.job = entry.admitted.job.filter(takes);
        match entry.admitted.job {
            Some(pass) => {
                self.noted.remove(&pass.number);
                let key = &entry.admitted.key;
                self.change_job(pass.number, key, now, |job| job.takes_again(id, key));
            }
            None if url.is_some_and(|url| self.unheld_of(url, None).is_some()) => return,
            None => {}
        }
        self.unhold(url, id);
        self.entry_bytes += entry.admitted.bytes();
        self.entries.insert(id, entry);
        self.enqueue(id, now);
    }

    /// Changes a job, on account of an entry of this key; whether its budgets let anything go out
    /// may change with it.
    fn change_job(
        &mut self,
        number: JobNumber,
        key: &Key,
        now: Moment,
        change: impl FnOnce(&mut Job),
    ) {
        if let Some(job) = self.jobs.find_mut(number) {
            change(job);
            self.ready.block(number, job.is_blocked());
            if job.limits_hosts() {
                self.refresh(key, now);
            }
        }
    }

    /// An entry does not wait for its member's next request any more.
    fn forget_pin(
        &mut self,
        member: Option<MemberId>,
        id: EntryId,
        job: Option<JobRef>,
        key: &Key,
        now: Moment,
    ) {
        let Some(member) = member else { return };
        let Some(pinned) = self.pinned.get_mut(&member) else { return };
        let was_pinned = pinned.remove(&id);
        if pinned.is_empty() {
            self.pinned.remove(&member);
        }
        if let Some(job) = job
            && was_pinned
        {
            self.change_job(job.number, key, now, |job| job.unpin(key));
        }
    }

    pub(super) fn unhold(&mut self, url: Option<UrlKey>, id: EntryId) {
        if let Some(url) = url {
            self.unheld.entry(url).or_default().insert(id);
        }
    }

    fn rehold(&mut self, url: Option<UrlKey>, id: EntryId) {
        if let Some(url) = url
            && let Some(entries) = self.unheld.get_mut(&url)
        {
            entries.remove(&id);
            if entries.is_empty() {
                self.unheld.remove(&url);
            }
        }
    }
}

/// Whether an outcome comes from a request. What robots.txt kept a worker from asking for has cost
/// the host nothing, so its key need not rest ([T4]).
fn was_requested(outcome: Outcome) -> bool {
    outcome != Outcome::Robots
}
