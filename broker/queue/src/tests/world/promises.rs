//! The promises of a group, and the report of a broken one. Checkers trust only what can be
//! observed from outside (by hosts, workers and topic readers), never the group's own reports.

use std::fmt;

use crate::moment::Moment;

/// A promise, with the type that checks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::tests) enum Promise {
    /// A key has at most one open request, or as many as its setting allows
    /// ([`HostCheck`](super::hosts::HostCheck)).
    OneInFlight,
    /// Between the end of a request and the start of the next one, the key rests for its delay and
    /// for what workers requested ([`HostCheck`](super::hosts::HostCheck)).
    DelayKept,
    /// A host that is down gets one request for each rest
    /// ([`OutageCheck`](super::outages::OutageCheck)).
    DownRests,
    /// No page is given up because its host was down for a while
    /// ([`OutageCheck`](super::outages::OutageCheck)).
    OutageLosesNothing,
    /// Announced URLs are fetched and their results known, unless the publisher was informed
    /// otherwise ([`AnnouncementCheck`](super::looks::AnnouncementCheck)).
    NoTaskLost,
    /// A member receives no more tasks than its credit allows, and holds at most one suspect
    /// ([`World::check_credit`](super::World)).
    CreditKept,
    /// From the answer to a rule that blocks or pauses a host on, the host gets no request until
    /// the rule ends, and none for a part is permitted ([`HostCheck`](super::hosts::HostCheck),
    /// [`part_check`](super::part_check)).
    RulesKept,
    /// A drained member is given no task ([`DrainCheck`](super::drain_check::DrainCheck)).
    DrainKept,
    /// The end of a pass is announced once ([`PassCheck`](super::passes::PassCheck)).
    DoneOnce,
    /// It is not announced before the last page is final ([`PassCheck`](super::passes::PassCheck)).
    NeverEarly,
    /// The final outcome of each URL is announced once
    /// ([`OutcomeCheck`](super::outcome_check::OutcomeCheck)).
    OutcomesTold,
    /// Pages of a job are within its depth and patterns, and their depth matches their links
    /// ([`PassCheck`](super::passes::PassCheck)).
    DepthKept,
    /// From the answer to a change of a job on, nothing is released that the change excludes.
    /// Everything else is, and what was only tried changes nothing ([`PassCheck`](super::passes::PassCheck),
    /// [`OutcomeCheck`](super::outcome_check::OutcomeCheck)).
    ChangesKept,
    /// No event that the filter of the group excludes becomes a task
    /// ([`World::check_filter`](super::World)).
    FilterKept,
    /// While a never-list is in force, nothing on it is released, or permitted as a part
    /// ([`World::check_never_list`](super::World), [`part_check`](super::part_check)).
    NeverAsked,
    /// A request for a part of a page is permitted unless something forbids it
    /// ([`part_check`](super::part_check)).
    PartsPermitted,
    /// A job that is paused or has no budget left releases nothing
    /// ([`PassCheck`](super::passes::PassCheck)).
    BudgetKept,
    /// Every job gets its turn on each host, and no host stays idle while work waits for it
    /// ([`FairnessCheck`](super::turns::FairnessCheck)).
    NoStarvation,
    /// Nothing is released before it is due ([`DueCheck`](super::dues::DueCheck)).
    NeverBeforeDue,
    /// Higher priorities go first, and among equal ones the oldest
    /// ([`PriorityCheck`](super::ranks::PriorityCheck)).
    PriorityKept,
    /// What an operator dropped is not released, unless it is requested again
    /// ([`PriorityCheck`](super::ranks::PriorityCheck)).
    DropsKept,
    /// When the faults are over, all work is finished ([`World::finish_everything`](super::World)).
    AllFinishes,
    /// The id of a held task is valid for one answer of its holder; no other id is valid
    /// ([`World::hear_answer`](super::World)).
    IdsHold,
    /// The records alone restore the same group ([`World::crash`](super::World)).
    RecordsSuffice,
}

/// A promise that was broken.
#[derive(Debug, Clone)]
pub(in crate::tests) struct BrokenPromise {
    pub(in crate::tests) promise: Promise,
    pub(in crate::tests) what: String,
}

/// `Err` ends the run: a promise was broken.
pub(in crate::tests) type CheckResult = Result<(), BrokenPromise>;

impl Promise {
    /// Returns an error unless the promise is `kept`.
    pub(super) fn holds(self, kept: bool, what: impl FnOnce() -> String) -> CheckResult {
        if kept { Ok(()) } else { Err(BrokenPromise { promise: self, what: what() }) }
    }
}

impl fmt::Display for BrokenPromise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is broken: {}", self.promise, self.what)
    }
}

/// Milliseconds between two moments, for messages.
pub(super) fn between(from: Moment, to: Moment) -> String {
    format!("{} ms", to.since(from))
}
