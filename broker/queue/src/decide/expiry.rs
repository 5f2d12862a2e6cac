//! What time alone decides, by timers of leases, jobs, schedules and rules. They end only on
//! [`Input::Tick`](crate::Input::Tick), after all inputs that have arrived.

use super::text_reads::HeldInput;
use crate::Group;
use crate::jobs::JobTimer;
use crate::moment::Moment;
use crate::state::Expiry;

impl Group {
    /// Ends expired leases, jobs left open, jobs whose time is over, and rules; fires schedules.
    pub(crate) fn expire(&mut self, now: Moment) {
        while let Some(expiry) = self.state.pop_expiry(now) {
            match expiry {
                Expiry::Lease(id) => self.expire_lease(id, now),
                Expiry::Job(JobTimer::Open(number)) => self.close_abandoned_job(number, now),
                Expiry::Job(JobTimer::Time(number)) => self.end_job_time(number, now),
                Expiry::Schedule(url) => self.handle_or_hold(HeldInput::Schedule(url), now),
                Expiry::Rule(name, below) => self.remove_rule(name, below, now),
            }
        }
    }
}
