//! The end of a run: without faults, the group finishes everything.

use std::collections::BTreeSet;

use super::operator::PUBLISHED_MS_MAX;
use super::promises::{CheckResult, Promise};
use super::worker::CREDIT_MAX;
use super::{DELAY_MS, HOUR_MS, LEASE_MS, World, WorldEvent};

/// Once the faults have ended, everything must be done within this time.
const END_MS_MAX: u64 = 30 * 60_000;
/// The same with outages: a dead host is given up after 3 hours, and what comes later each hour.
const OUTAGES_END_MS_MAX: u64 = 12 * HOUR_MS;

impl World {
    /// Ends all faults, after which the group must finish everything by itself.
    pub(super) fn finish_everything(&mut self) -> CheckResult {
        self.is_faulty = false;
        self.outages.end_all();
        let until = self.now + if self.nature.outages { OUTAGES_END_MS_MAX } else { END_MS_MAX };
        // Absent workers come back first.
        self.advance(3 * LEASE_MS + 60_000)?;
        self.resume_everything()?;
        self.set_delay(DELAY_MS)?;
        self.remove_rules()?;
        for worker in 0..self.workers.len() {
            self.drain(worker, false)?;
            self.join(worker, CREDIT_MAX, Some(CREDIT_MAX))?;
        }
        self.finish_schedules()?;
        while self.now < until && !(self.is_idle() && self.passes.are_done()) {
            self.consume_events()?;
            self.advance(DELAY_MS)?;
        }
        // The last records are on their way to the disk, and events to their topics.
        self.advance(PUBLISHED_MS_MAX)?;
        let (group, passes) = (&self.broker.group, &self.passes);
        Promise::AllFinishes.holds(group.is_idle(), || {
            format!(
                "left: {:?}, {} dormant",
                group.state.frontier().active_ids(),
                group.state.dormant().len()
            )
        })?;
        let open = passes.names(false);
        Promise::AllFinishes.holds(open.is_empty(), || format!("never done: {open:?}"))?;
        for job in group.state.jobs().iter() {
            passes.check_counts(job.name.as_ref(), &group.view().job_status(job).to_string())?;
        }
        self.announcement_check.check_end()?;
        self.outcome_check.check_end()?;
        let no_waiters = passes.iter().all(|(_, pass)| pass.waits == 0);
        Promise::DoneOnce
            .holds(no_waiters, || "a client still waits for a job that is done".to_owned())?;
        let same = self.job_names.iter().eq(group.job_names().collect::<BTreeSet<_>>());
        Promise::DoneOnce.holds(same, || format!("other groups know of {:?}", self.job_names))
    }

    fn is_idle(&self) -> bool {
        let publishes = |it: &WorldEvent| {
            matches!(it, WorldEvent::Publishes { .. } | WorldEvent::Hammers { .. })
        };
        self.broker.group.is_idle()
            && self.unconsumed.is_empty()
            && !self.agenda.values().any(publishes)
    }
}
