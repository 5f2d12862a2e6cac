//! The ends of entries, and the retry of dead ones. Part of applying decisions, like
//! [`apply`](super::apply): nothing here decides anything.

use tidings_protocol::{Outcome, UrlKey};

use super::Group;
use super::entry::{Admission, Entry, EntryId, JobNumber, JobRef, Live, State};
use super::key_queue::Lane;
use super::mutants::{self, Mutant};
use super::parked::Glance;
use super::record::End;
use super::timers::Expiry;
use crate::clock::Moment;
use crate::job::Job;

impl Group {
    /// Ends a held entry with the worker's outcome.
    pub(super) fn finish(&mut self, id: EntryId, outcome: Outcome, now: Moment) {
        let Live { entry, key, again } = self.remove(id);
        if let State::Held(lease) = entry.state {
            self.expiries.cancel(lease.until, Expiry::Lease(id));
            self.members.release(lease.member, id, entry.is_suspect());
        }
        if let Some(url) = entry.admitted.url_key {
            self.schedules.ended(url.print(), id, Some(outcome));
        }
        match outcome {
            Outcome::Failed => self.totals.failed += 1,
            _ => self.totals.completed += 1,
        }
        if let Some(job) = entry.admitted.job {
            self.change_job(job.number, key, now, |job, key| job.ended_with(outcome, key));
        }
        if let Some(job) = entry.repairs.and_then(|pass| self.jobs.of_pass_mut(pass))
            && !mutants::is(Mutant::UncountedRepair)
        {
            job.repair_ended(outcome);
        }
        self.let_go(key, again, now);
    }

    /// Ends an entry that no member holds. If only its job drops it and the entry was announced, it
    /// continues without a job, because the publisher expects a fetch.
    pub(super) fn drop_entry(&mut self, id: EntryId, end: End, now: Moment) {
        self.take_out(id);
        let Live { mut entry, key, again } = self.remove(id);
        let (job, url) = (entry.admitted.job, entry.admitted.url_key);
        let repairs = entry.repairs.take();
        if let Some(job) = repairs.and_then(|pass| self.jobs.of_pass_mut(pass)) {
            job.repair_dropped(end);
        }
        self.rehold(url, id);
        let pinned_to = entry.again.take().map(|again| again.member);
        self.forget_pin(pinned_to, id, job, key, now);
        if let Some(job) = job {
            self.change_job(job.number, key, now, |job, key| job.dropped(id, key, end));
        }
        let leaves_its_job = matches!(end, End::Budget | End::Cancelled) && job.is_some();
        let is_promised = leaves_its_job && entry.admitted.announced;
        if is_promised && !url.is_some_and(|url| self.waits_alone(url, None)) {
            entry.admitted.job = None;
            self.insert_behind(key, entry);
            self.enqueue(id, now);
            return self.let_go(key, again, now);
        }
        self.let_go(key, again, now);
        self.clock_times.forget(id);
        if let Some(url) = url {
            self.schedules.ended(url.print(), id, None);
        }
        if end == End::Dead {
            self.totals.dead += 1;
            let reason = self.config.gives_up(&entry).unwrap_or("unknown");
            // A retry of the new dead letter can repair the pass again.
            entry.admitted.job = job.or(repairs);
            self.dead.bury(entry, reason, &self.config);
        }
    }

    /// Ends a dormant entry. The caller refreshes its key.
    fn drop_parked(&mut self, dormant: Glance, end: End) {
        self.keep_in_snapshot(dormant);
        let queue = &mut self.keys[dormant.key];
        if let Some(job) = dormant.job().and_then(|job| self.jobs.find_mut(job)) {
            job.dropped_parked(queue.name(), end);
            self.seen.add(job.id, dormant.url);
        }
        self.parked.remove(dormant, queue);
        self.schedules.ended(dormant.url, dormant.id, None);
    }

    /// Ends the waiting entries of a job, all of them or those of one key. The decision does not
    /// say which are dormant: that depends on where the replay began.
    pub(super) fn clear(&mut self, number: JobNumber, key: Option<&str>, end: End, now: Moment) {
        let Some(job) = self.jobs.find(number) else { return };
        let (parked, waiting) = (job.parked, job.waiting(key));
        let ending = match key.map(|key| self.keys.find(key)) {
            None => usize::try_from(parked).unwrap_or(usize::MAX),
            Some(key) => key.map_or(0, |key| self.keys[key].runs.len()),
        };
        self.abandon_snapshot_for(ending);
        for entry in waiting {
            self.drop_entry(entry, end, now);
        }
        let lane = Lane::Job(number);
        let keys = match key {
            Some(key) => self.keys.find(key).into_iter().collect(),
            None => self.parked.keys_of(lane),
        };
        for key in keys {
            while let Some(dormant) = self.parked.any_of(lane, &self.keys[key]) {
                self.drop_parked(dormant, end);
            }
            self.refresh(key, now);
        }
    }

    /// Ends everything that waits.
    pub(super) fn purge_all(&mut self, now: Moment) {
        self.abandon_snapshot_for(self.parked.len());
        for id in self.live_ids() {
            if self.live[&id].entry.lease().is_none() {
                self.drop_entry(id, End::Purged, now);
            }
        }
        for dormant in self.parked.iter().collect::<Vec<_>>() {
            self.drop_parked(dormant, End::Purged);
            self.refresh(dormant.key, now);
        }
    }

    /// Makes the target of a repair's redirect part of the repair.
    pub(super) fn hand_on_repair(&mut self, id: EntryId, children: &[Admission]) {
        let Some(pass) = self.live[&id].entry.repairs else { return };
        let Some(job) = self.jobs.of_pass_mut(pass) else { return };
        job.repair_moves(children.len() as u64);
        for child in children {
            // The target of a redirect is never dormant.
            self.entry_mut(child.id).repairs = Some(pass);
        }
    }

    /// Returns a dead entry to the queue, with its attempts and losses reset. It rejoins its pass
    /// if the pass is not done and may release it. If the pass is done, the entry repairs it: it
    /// waits without a job, so that the pass cannot end twice, and its result is counted. Otherwise
    /// it leaves its job. `repairs` is false in records of earlier versions, which had no repairs.
    ///
    /// An entry without a job is dropped if its URL already waits without one. Repairs of two
    /// passes both wait.
    pub(super) fn revive(&mut self, mut entry: Entry, repairs: bool, now: Moment) {
        let (id, url) = (entry.admitted.id, entry.admitted.url_key);
        entry.failures = 0;
        entry.losses = 0;
        entry.last_reason = None;
        entry.admitted.due = now;
        let failed_in = entry.admitted.job;
        let pass = failed_in.filter(|pass| {
            let job = self.jobs.of_pass(*pass);
            job.is_some_and(|job| job.takes_back(&entry.admitted.key))
        });
        entry.admitted.job = pass;
        entry.repairs = failed_in.filter(|pass| {
            let job = self.jobs.of_pass(*pass);
            repairs && job.is_some_and(Job::takes_repair)
        });
        if pass.is_none() && url.is_some_and(|url| self.waits_alone(url, entry.repairs)) {
            return;
        }
        if let Some(job) = entry.repairs.and_then(|pass| self.jobs.of_pass_mut(pass)) {
            job.repair_begins();
        }
        self.insert(entry);
        if let Some(pass) = pass {
            self.forget_heads(pass.number);
            let key = self.live[&id].key;
            self.change_job(pass.number, key, now, |job, key| job.takes_again(id, key));
        }
        self.enqueue(id, now);
    }

    /// Reports whether a URL waits without a job. For a repair of a pass, repairs of other passes
    /// do not count. A dormant entry that decides this is first written to the snapshot in
    /// progress.
    fn waits_alone(&mut self, url: UrlKey, repairs: Option<JobRef>) -> bool {
        self.parked.index_urls();
        let is_beside =
            |other: Option<JobRef>| repairs.is_some() && other.is_some() && other != repairs;
        let is_alone = |entry: &Entry| entry.admitted.job.is_none() && !is_beside(entry.repairs);
        let waiting = self.waiting_of(url).into_iter().find(|id| match self.live.get(id) {
            Some(live) => is_alone(&live.entry),
            None => self.parked.find(*id).is_some_and(|dormant| self.job_of(&dormant).is_none()),
        });
        if let Some(dormant) = waiting.and_then(|id| self.parked.find(id)) {
            self.keep_in_snapshot(dormant);
        }
        waiting.is_some()
    }
}
