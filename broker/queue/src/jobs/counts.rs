//! Counts the results of the URLs of a pass.

use tidings_protocol::Outcome;
use tidings_protocol::status::PassCounts;

use crate::entry::EndReason;

/// URLs of the pass that have no final result yet.
pub(super) fn unfinished(counts: &PassCounts) -> u64 {
    let PassCounts { completed, redirects, failed, robots, scope, blocked, .. } = *counts;
    let PassCounts { trap, budget, cancelled, .. } = *counts;
    let ended = [completed, redirects, failed, robots, scope, blocked, trap, budget, cancelled];
    counts.found.saturating_sub(ended.iter().sum())
}

pub(super) fn count_outcome(counts: &mut PassCounts, outcome: Outcome) {
    let counter = match outcome {
        Outcome::Done => &mut counts.completed,
        Outcome::Redirect => &mut counts.redirects,
        Outcome::Failed => &mut counts.failed,
        Outcome::Robots => &mut counts.robots,
        Outcome::Scope => &mut counts.scope,
        Outcome::Trap => &mut counts.trap,
    };
    *counter += 1;
}

pub(super) fn count_end(counts: &mut PassCounts, end: EndReason) {
    let counter = match end {
        EndReason::Dead | EndReason::Down => &mut counts.failed,
        EndReason::Budget => &mut counts.budget,
        EndReason::Cancelled | EndReason::Purged => &mut counts.cancelled,
        EndReason::Scope => &mut counts.scope,
        EndReason::Blocked => &mut counts.blocked,
    };
    *counter += 1;
}
