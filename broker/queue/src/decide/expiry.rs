//! Timers that lead to a decision: leases, jobs, schedules and rules.

use tidings_protocol::UrlKey;

use super::text_reads::HeldInput;
use crate::Group;
use crate::entry::{EntryId, Key};
use crate::jobs::JobTimer;
use crate::moment::Moment;

/// Timers that lead to a decision. They fire only on [`Input::Tick`](Input::Tick), after all
/// inputs that have arrived.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Expiry {
    /// A lease expires.
    Lease(EntryId),
    /// A job was left open for too long, or its time limit passes.
    Job(JobTimer),
    /// The schedule of this URL is due.
    Schedule(UrlKey),
    /// The rule with this name ends.
    Rule(Key, bool),
}

impl Group {
    /// Decides what time alone decides: expired leases, jobs left open, job time limits, due
    /// schedules, ends of rules.
    pub(crate) fn expire(&mut self, now: Moment) {
        while let Some(expiry) = self.pop_expiry(now) {
            match expiry {
                Expiry::Lease(id) => self.expire_lease(id, now),
                Expiry::Job(JobTimer::Open(number)) => self.close_abandoned_job(number, now),
                Expiry::Job(JobTimer::Time(number)) => self.end_job_time(number, now),
                Expiry::Schedule(url) => self.handle_or_hold(HeldInput::Schedule(url), now),
                Expiry::Rule(name, below) => self.remove_rule(name, below, now),
            }
        }
    }

    /// Counts the timers that lead to a decision.
    #[cfg(test)]
    pub(crate) fn expiry_count(&self) -> usize {
        self.state.leases().expiries().count()
            + self.state.jobs().timers().count()
            + self.state.schedules().timers().count()
            + self.state.frontier().rules().ends().count()
    }

    pub(crate) fn next_expiry(&self) -> Option<Moment> {
        let rules = self.state.frontier().rules().next_end();
        let (leases, jobs) = (self.state.leases().next_expiry(), self.state.jobs().next_timer());
        [leases, jobs, self.state.schedules().next_due(), rules].into_iter().flatten().min()
    }

    /// Returns the earliest of these that is due at `now`. At the same moment, leases come first,
    /// then jobs, then schedules, then rules.
    fn pop_expiry(&mut self, now: Moment) -> Option<Expiry> {
        let first = self.next_expiry()?;
        if self.state.leases().next_expiry() == Some(first) {
            self.state.pop_expired_lease(now).map(Expiry::Lease)
        } else if self.state.jobs().next_timer() == Some(first) {
            self.state.pop_job_timer(now).map(Expiry::Job)
        } else if self.state.schedules().next_due() == Some(first) {
            self.state.pop_schedule(now).map(Expiry::Schedule)
        } else {
            let end = self.state.pop_rule_end(now);
            end.map(|(name, below)| Expiry::Rule(name, below))
        }
    }
}
