//! What became of the URLs of a pass, in numbers.

use std::fmt;

use tidings_protocol::Outcome;

use crate::group::record::End;

/// What became of a pass's URLs. All are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Admitted at all.
    pub found: u64,
    /// Pages that came.
    pub completed: u64,
    /// Answers that pointed elsewhere.
    pub redirects: u64,
    /// Failed for good.
    pub failed: u64,
    /// Refused by robots.txt.
    pub robots: u64,
    /// Found out of scope by the worker.
    pub scope: u64,
    /// Recognised as a trap by the worker.
    pub trap: u64,
    /// Left over when the job had its pages.
    pub budget: u64,
    /// Seeds that the pass had met already.
    pub duplicates: u64,
    /// Dropped when the job was cancelled or the group purged.
    pub cancelled: u64,
}

impl Counts {
    /// All of them, in the order in which they stand in the type.
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

    /// URLs of the pass that have not ended.
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

    pub(super) fn outcome(&mut self, outcome: Outcome) {
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

    pub(super) fn end(&mut self, end: End) {
        let counter = match end {
            End::Dead => &mut self.failed,
            End::Budget => &mut self.budget,
            End::Cancelled | End::Purged => &mut self.cancelled,
        };
        *counter += 1;
    }
}

impl fmt::Display for Counts {
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
