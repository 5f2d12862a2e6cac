//! The ends of entries, and the retry of dead ones. Part of applying decisions, like
//! [`apply`](super::apply).

use tidings_protocol::{Outcome, UrlKey};

use super::State;
use crate::dead_letters::{DOWN, RETRY_NO};
use crate::entry::{Admission, EndReason, Entry, EntryId, EntryState, JobNumber, PassId};
use crate::finished::{FinishedTask, TaskEnd};
use crate::frontier::ActiveEntry;
use crate::frontier::entry_text::DormantRef;
use crate::frontier::keys::KeyId;
use crate::frontier::lane::Lane;
use crate::jobs::{EntryChange, Job};
use crate::leases::LeaseEnd;
use crate::moment::Moment;
use crate::mutants::{self, Mutant};

impl State {
    /// Ends a held entry with the worker's outcome.
    pub(super) fn finish_entry(&mut self, id: EntryId, outcome: Outcome, now: Moment) {
        let removed = self.frontier.remove(id);
        let ActiveEntry { entry, key, again_key: again } = &*removed;
        let (key, again) = (*key, *again);
        if let EntryState::Held(lease) = entry.state {
            self.leases.end(id, &lease, entry.demand());
        }
        let url = entry.admitted.url_key.map(UrlKey::fingerprint);
        self.schedules.entry_ended(url, id, Some(outcome));
        if outcome == Outcome::Failed {
            self.totals.failed += 1;
            self.leases.count_end(id, LeaseEnd::Failed, now);
        } else {
            self.totals.completed += 1;
            self.leases.count_end(id, LeaseEnd::Done, now);
        }
        if let Some(job) = entry.admitted.job {
            self.change_job_entry(job.number, key, EntryChange::Completed(outcome), now);
        }
        if let Some(pass) = entry.repairs
            && !mutants::is(Mutant::UncountedRepair)
        {
            self.jobs.complete_repair(pass, outcome);
        }
        self.keep_finished(removed, TaskEnd::Answered(outcome), now);
        self.release_keys(key, again, now);
    }

    /// Keeps an entry that ended for the list of finished tasks.
    fn keep_finished(&mut self, removed: Box<ActiveEntry>, end: TaskEnd, now: Moment) {
        let lease = self.leases.last_ended(removed.entry.admitted.id);
        self.finished.push(FinishedTask { removed, end, ended_at: now, lease });
    }

    /// Ends an entry that no member holds. If only its job drops it and the entry was announced, it
    /// continues without a job, because the publisher expects a fetch.
    pub(super) fn drop_entry(&mut self, id: EntryId, end: EndReason, now: Moment) {
        self.detach(id);
        let ActiveEntry { mut entry, key, again_key: again } = *self.frontier.remove(id);
        let (job, url) = (entry.admitted.job, entry.admitted.url_key);
        let repairs = entry.repairs.take();
        if let Some(pass) = repairs {
            self.jobs.drop_repair(pass, end);
        }
        self.frontier.unindex_waiting(url, id);
        let pinned_to = entry.again.take().map(|again| again.member);
        self.remove_pin(pinned_to, id, job, key, now);
        if let Some(job) = job {
            self.change_job_entry(job.number, key, EntryChange::Dropped(id, end), now);
        }
        let is_of_job = matches!(end, EndReason::Budget | EndReason::Cancelled | EndReason::Scope);
        let is_promised = is_of_job && job.is_some() && entry.admitted.announced;
        if is_promised && !url.is_some_and(|url| self.waits_without_job(url, None)) {
            entry.admitted.job = None;
            self.frontier.insert_for_key(key, entry, &mut self.jobs);
            self.enqueue(id, now);
            return self.release_keys(key, again, now);
        }
        self.release_keys(key, again, now);
        self.schedules.entry_waits_no_more(id);
        self.schedules.entry_ended(url.map(UrlKey::fingerprint), id, None);
        let dead_reason = match end {
            EndReason::Dead => Some(self.config.dead_reason(&entry).unwrap_or(RETRY_NO)),
            EndReason::Down => Some(DOWN),
            _ => None,
        };
        if let Some(reason) = dead_reason {
            self.totals.dead += 1;
            // A retry of the new dead letter can repair the pass again.
            entry.admitted.job = job.or(repairs);
            let removed = Box::new(ActiveEntry { entry: entry.clone(), key, again_key: again });
            self.keep_finished(removed, TaskEnd::GivenUp(reason), now);
            self.dead_letters.push(entry, reason, &self.config);
        }
    }

    /// Ends a dormant entry. The caller refreshes its key.
    fn drop_dormant(&mut self, dormant: DormantRef, end: EndReason) {
        self.snapshot_before_change(dormant);
        if let Some(job) = dormant.job() {
            let name = self.frontier.keys()[dormant.key].name();
            self.jobs.drop_dormant(job, dormant.url_fingerprint, name, end);
        }
        self.frontier.remove_dormant(dormant);
        let url = Some(dormant.url_fingerprint).filter(|url| *url != 0);
        self.schedules.entry_ended(url, dormant.id, None);
    }

    /// Ends the waiting entries of a job, all of them or those of one key. The decision does not
    /// say which are dormant: that depends on where the replay began.
    pub(super) fn clear_job(
        &mut self,
        number: JobNumber,
        key: Option<&str>,
        end: EndReason,
        now: Moment,
    ) {
        let Some(job) = self.jobs.find(number) else { return };
        let (parked, waiting) = (job.dormant, job.waiting(key));
        let ending = match key.map(|key| self.frontier.keys().find(key)) {
            None => usize::try_from(parked).unwrap_or(usize::MAX),
            Some(key) => key.map_or(0, |key| self.frontier.keys()[key].dormant().len()),
        };
        self.abandon_snapshot_if_many(ending);
        for entry in waiting {
            self.drop_entry(entry, end, now);
        }
        let lane = Lane::Job(number);
        let keys = match key {
            Some(key) => self.frontier.keys().find(key).into_iter().collect(),
            None => self.frontier.dormant().keys_of(lane),
        };
        for key in keys {
            while let Some(dormant) =
                self.frontier.dormant().any_of(lane, &self.frontier.keys()[key])
            {
                self.drop_dormant(dormant, end);
            }
            self.refresh(key, now);
        }
    }

    /// The rules of these keys have changed. Ends what waits for those that are blocked now. The
    /// decision does not say what that is: which entries are dormant depends on where the replay
    /// began.
    pub(super) fn apply_rules_of(&mut self, keys: &[KeyId], now: Moment) {
        let queues = self.frontier.keys();
        let blocked = keys.iter().copied().filter(|key| queues[*key].is_blocked());
        let blocked: Vec<KeyId> = blocked.collect();
        let ending = blocked.iter().map(|key| queues[*key].dormant().len()).sum();
        self.abandon_snapshot_if_many(ending);
        for key in &blocked {
            while let Some(dormant) =
                self.frontier.dormant().any_of_key(&self.frontier.keys()[*key])
            {
                self.drop_dormant(dormant, EndReason::Blocked);
            }
        }
        if !blocked.is_empty() {
            for id in self.frontier.active_ids() {
                let is_held = self.frontier.get(id).entry.lease().is_some();
                if !is_held && self.frontier.is_blocked(id) {
                    self.drop_entry(id, EndReason::Blocked, now);
                }
            }
        }
        for key in keys {
            self.refresh(*key, now);
        }
    }

    /// Ends everything that waits.
    pub(super) fn purge_all(&mut self, now: Moment) {
        self.abandon_snapshot_if_many(self.frontier.dormant().len());
        for id in self.frontier.active_ids() {
            if self.frontier.get(id).entry.lease().is_none() {
                self.drop_entry(id, EndReason::Purged, now);
            }
        }
        for dormant in self.frontier.dormant().iter().collect::<Vec<_>>() {
            self.drop_dormant(dormant, EndReason::Purged);
            self.refresh(dormant.key, now);
        }
    }

    /// Makes the target of a repair's redirect part of the repair.
    pub(super) fn pass_repair_to_redirect(&mut self, id: EntryId, children: &[Admission]) {
        let Some(pass) = self.frontier.get(id).entry.repairs else { return };
        if !self.jobs.redirect_repair(pass, children.len()) {
            return;
        }
        for child in children {
            // The target of a redirect is never dormant.
            self.frontier.set_repairs(child.id, pass);
        }
    }

    /// Returns a dead entry to the queue, with its attempts and losses reset. It rejoins its pass
    /// if the pass is not done and may release it. If the pass is done, the entry repairs it: it
    /// waits without a job, so that the pass cannot end twice, and its result is counted. Otherwise
    /// it leaves its job.
    ///
    /// An entry without a job is dropped if its URL already waits without one. Repairs of two
    /// passes both wait.
    pub(super) fn retry_dead(&mut self, mut entry: Entry, now: Moment) {
        let (id, url) = (entry.admitted.id, entry.admitted.url_key);
        entry.failures = 0;
        entry.losses = 0;
        entry.last_reason = None;
        entry.admitted.due = now;
        let failed_in = entry.admitted.job;
        let pass = failed_in.filter(|pass| {
            let job = self.jobs.of_pass(*pass);
            job.is_some_and(|job| job.may_readmit(&entry.admitted.key))
        });
        entry.admitted.job = pass;
        entry.repairs =
            failed_in.filter(|pass| self.jobs.of_pass(*pass).is_some_and(Job::may_repair));
        if pass.is_none() && url.is_some_and(|url| self.waits_without_job(url, entry.repairs)) {
            return;
        }
        if let Some(pass) = entry.repairs {
            self.jobs.begin_repair(pass);
        }
        self.frontier.insert(entry, &mut self.jobs);
        // An operator expects an answer of its host.
        let key = self.frontier.get(id).key;
        self.frontier.reset_circuit(key);
        if let Some(pass) = pass {
            self.jobs.cancel_completion(pass.number);
            self.change_job_entry(pass.number, key, EntryChange::Readmitted(id), now);
        }
        self.enqueue(id, now);
    }

    /// Reports whether a URL waits without a job. For a repair of a pass, repairs of other passes
    /// do not count. A dormant entry that decides this is first written to the snapshot in
    /// progress.
    fn waits_without_job(&mut self, url: UrlKey, repairs: Option<PassId>) -> bool {
        self.frontier.build_url_index();
        let is_beside =
            |other: Option<PassId>| repairs.is_some() && other.is_some() && other != repairs;
        let is_alone = |entry: &Entry| entry.admitted.job.is_none() && !is_beside(entry.repairs);
        let waiting = self.frontier.waiting_entries(url).into_iter().find(|id| {
            match self.frontier.find(*id) {
                Some(live) => is_alone(&live.entry),
                None => self
                    .frontier
                    .dormant()
                    .find(*id)
                    .is_some_and(|dormant| self.job_of_dormant(&dormant).is_none()),
            }
        });
        if let Some(dormant) = waiting.and_then(|id| self.frontier.dormant().find(id)) {
            self.snapshot_before_change(dormant);
        }
        waiting.is_some()
    }
}
