//! Restores the parts of a snapshot. Part of applying decisions, like [`apply`](super::apply).

use super::{GroupTotals, State};
use crate::entry::{Admission, Entry, EntryState};
use crate::frontier::dormant::DormantEntries;
use crate::frontier::lane::lane_of;
use crate::jobs::{EntryChange, JobState};
use crate::moment::Moment;
use crate::mutants::{self, Mutant};
use crate::record::snapshot::SnapshotItem;

impl State {
    /// Restores a part of a snapshot.
    pub(super) fn restore(&mut self, item: &SnapshotItem, now: Moment) {
        match item {
            SnapshotItem::Begin {
                run,
                since,
                stamp: _,
                local_member,
                last_entry,
                dormant,
                keys,
            } => {
                let (name, config) = (self.name.clone(), self.config.clone());
                let frontier = self.frontier.cleared(*dormant, *keys);
                *self = Self { since: *since, frontier, ..Self::new(name, *run, config, 0) };
                self.leases.set_local_member(*local_member);
                self.frontier.restore_last_id(*last_entry);
            }
            SnapshotItem::Abandoned => {}
            SnapshotItem::Rule(_) if mutants::is(Mutant::LosesRules) => {}
            SnapshotItem::Rule(rule) => {
                // No key is known yet.
                self.frontier.set_rule(rule);
            }
            SnapshotItem::RuleHistory(history) => self.frontier.restore_rule_history(*history),
            SnapshotItem::Consumed { topic, next } => {
                self.consumed.insert(topic.clone(), *next);
            }
            SnapshotItem::Published { topic, seq } => {
                self.published.insert(topic, *seq);
            }
            SnapshotItem::Unpublished { serial, topic, payload } => {
                self.unpublished.insert(*serial, topic, payload.clone());
            }
            SnapshotItem::Job(job) => self.jobs.restore((**job).clone()),
            SnapshotItem::Scope { number, part } => {
                self.jobs.restore_scope(*number, part);
            }
            SnapshotItem::JobChanges { number, changes } => {
                self.jobs.restore_changes(*number, changes);
            }
            SnapshotItem::Pages { number, key, completed } => {
                self.jobs.restore_pages(*number, key, *completed);
            }
            SnapshotItem::Seen { pass, fingerprints: urls } => {
                for url in urls {
                    self.jobs.mark_seen(*pass, *url);
                }
            }
            SnapshotItem::Key { key, state } => {
                let key = self.frontier.restore_key(key, *state, &self.config);
                self.refresh(key, now);
            }
            SnapshotItem::Circuit { key, circuit } => self.frontier.restore_circuit(key, *circuit),
            SnapshotItem::Entry(entry) => self.restore_entry(entry, now),
            SnapshotItem::Dormant(admissions) => self.restore_dormant(admissions, now),
            SnapshotItem::Schedule(schedule) => self.schedules.set(schedule),
            SnapshotItem::WallClockDue(time) => self.apply_wall_clock_due(time, now),
            SnapshotItem::Dead { entry, reason } => {
                self.dead_letters.push((**entry).clone(), reason, &self.config);
            }
            SnapshotItem::Drained { member } => self.leases.set_drained(*member, true, now),
            SnapshotItem::End { last_entry, last_serial, last_job, is_paused, totals } => {
                self.frontier.restore_last_id(*last_entry);
                self.last_serial = *last_serial;
                self.jobs.restore_last_number(*last_job);
                self.is_paused = *is_paused;
                let [completed, failed, dead, lost, unkeyed] = *totals;
                self.totals = GroupTotals { completed, failed, dead, lost, unkeyed };
                self.rebuild_queues(now);
            }
        }
    }

    /// Stores dormant entries. Their keys are refreshed with all others at the end.
    fn restore_dormant(&mut self, admissions: &[Admission], now: Moment) {
        let mut parked = Vec::with_capacity(admissions.len());
        for admission in admissions {
            match DormantEntries::lane_for(admission, lane_of(admission), now) {
                Some(lane) => parked.push((admission, lane)),
                None => self.restore_entry(&Entry::new(admission.clone()), now),
            }
        }
        self.store_dormant(&parked);
    }

    fn restore_entry(&mut self, entry: &Entry, now: Moment) {
        let (id, admitted) = (entry.admitted.id, &entry.admitted);
        let job = admitted.job.map(|pass| pass.number);
        let lane = DormantEntries::lane_for(admitted, lane_of(admitted), now);
        if let Some(lane) = lane.filter(|_| entry.is_untouched()) {
            self.store_dormant(&[(admitted, lane)]);
            return;
        }
        if let Some(job) = job {
            self.jobs.add_waiting(job, id, &admitted.key);
        }
        if let EntryState::Held(mut lease) = entry.state {
            if let Some(job) = job {
                self.jobs.change_entry(job, &admitted.key, EntryChange::Leased(id));
            }
            lease.began_at = now;
            self.leases.begin(id, &lease, entry.demand());
            let state = EntryState::Held(lease);
            self.frontier.insert(Entry { state, ..entry.clone() }, &mut self.jobs);
            self.frontier.unindex_waiting(admitted.url_key, id);
            if !lease.request_over {
                self.frontier.restore_in_flight(id);
            }
            return;
        }
        if let Some(again) = &entry.again {
            if let Some(job) = job {
                self.jobs.change_entry(job, &admitted.key, EntryChange::Pinned);
            }
            self.leases.pin(again.member, id);
        }
        let delayed = Entry { state: EntryState::Delayed, ..entry.clone() };
        self.frontier.insert(delayed, &mut self.jobs);
        self.enqueue(id, now);
    }

    /// Builds the state that depends on several parts.
    fn rebuild_queues(&mut self, now: Moment) {
        self.frontier.sort_runs();
        for job in self.jobs.iter().filter(|job| job.state != JobState::Done) {
            self.frontier.block(job.id.number, job.is_blocked());
        }
        for key in self.frontier.keys().ids() {
            self.refresh(key, now);
        }
    }
}
