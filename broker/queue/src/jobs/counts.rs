//! Counts the results of the URLs of a pass.

use std::fmt;

use tidings_protocol::Outcome;

use crate::entry::EndReason;

/// Results of a pass's URLs. All are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassCounts {
    /// URLs that the pass admitted.
    pub found: u64,
    /// Pages that were fetched.
    pub completed: u64,
    /// Responses that redirected elsewhere.
    pub redirects: u64,
    /// URLs that failed after their last attempt.
    pub failed: u64,
    /// URLs forbidden by robots.txt.
    pub robots: u64,
    /// URLs that the worker found out of scope.
    pub scope: u64,
    /// URLs that the worker recognised as a trap.
    pub trap: u64,
    /// URLs that were left when the budget was used up.
    pub budget: u64,
    /// Seeds that the pass had already met.
    pub duplicates: u64,
    /// URLs dropped because the job was cancelled or the group purged.
    pub cancelled: u64,
}

impl PassCounts {
    /// All counts, in the order of the fields.
    pub(crate) fn as_array(&self) -> [u64; 10] {
        let Self {
            found,
            completed,
            redirects,
            failed,
            robots,
            scope,
            trap,
            budget,
            duplicates,
            cancelled,
        } = *self;
        [found, completed, redirects, failed, robots, scope, trap, budget, duplicates, cancelled]
    }

    /// The reverse of [`as_array`](Self::as_array).
    pub(crate) fn from_array(counts: [u64; 10]) -> Self {
        let [
            found,
            completed,
            redirects,
            failed,
            robots,
            scope,
            trap,
            budget,
            duplicates,
            cancelled,
        ] = counts;
        Self {
            found,
            completed,
            redirects,
            failed,
            robots,
            scope,
            trap,
            budget,
            duplicates,
            cancelled,
        }
    }

    /// URLs of the pass that have no final result yet.
    pub(super) fn unfinished(&self) -> u64 {
        let Self { found, completed, redirects, failed, robots, .. } = *self;
        let ended = [
            completed,
            redirects,
            failed,
            robots,
            self.scope,
            self.trap,
            self.budget,
            self.cancelled,
        ];
        found.saturating_sub(ended.iter().sum())
    }

    pub(super) fn count_outcome(&mut self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Done => &mut self.completed,
            Outcome::Redirect => &mut self.redirects,
            Outcome::Failed => &mut self.failed,
            Outcome::Robots => &mut self.robots,
            Outcome::Scope => &mut self.scope,
            Outcome::Trap => &mut self.trap,
        };
        *counter += 1;
    }

    pub(super) fn count_end(&mut self, end: EndReason) {
        let counter = match end {
            EndReason::Dead => &mut self.failed,
            EndReason::Budget => &mut self.budget,
            EndReason::Cancelled | EndReason::Purged => &mut self.cancelled,
        };
        *counter += 1;
    }
}

impl fmt::Display for PassCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "completed={} redirects={} failed={} robots={} scope={} trap={} budget={} \
             duplicates={} cancelled={} found={}",
            self.completed,
            self.redirects,
            self.failed,
            self.robots,
            self.scope,
            self.trap,
            self.budget,
            self.duplicates,
            self.cancelled,
            self.found
        )
    }
}
