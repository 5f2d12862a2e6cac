//! What a group promises, and what is said when a promise is broken. Each checker believes what it
//! sees from outside (hosts, workers, whoever reads the topics), never what the group says of itself.

use std::fmt;

use crate::clock::Moment;

/// A promise. Its checker is named behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::group::tests) enum Promise {
    /// A key has one request open at most, or as many as are set
    /// ([`Hosts`](super::hosts::Hosts)).
    OneInFlight,
    /// From the end of a request to the start of the next one passes the key's delay, and what
    /// workers have asked for ([`Hosts`](super::hosts::Hosts)).
    DelayKept,
    /// What was announced is fetched, and the answer to that is known, unless somebody was told
    /// otherwise ([`Looks`](super::looks::Looks)).
    NoTaskLost,
    /// A member is given nothing that its credit does not allow, and holds one suspect at most
    /// ([`World::check_credit`](super::World)).
    CreditKept,
    /// The end of a pass is announced once ([`Passes`](super::passes::Passes)).
    DoneOnce,
    /// And not before its last page is final ([`Passes`](super::passes::Passes)).
    NeverEarly,
    /// No page of a job is further from its seeds than its links are, or than it may be, or one that
    /// its patterns keep out ([`Passes`](super::passes::Passes)).
    DepthKept,
    /// A job that may release nothing releases nothing, and none has more pages than it may
    /// ([`Passes`](super::passes::Passes)).
    BudgetKept,
    /// Everybody who waits for a host gets a turn, and a host that may be asked is asked
    /// ([`Turns`](super::turns::Turns)).
    NoStarvation,
    /// Nothing is released before it is due ([`Dues`](super::dues::Dues)).
    NeverBeforeDue,
    /// What is more urgent goes first, and of what is equally urgent the oldest
    /// ([`Ranks`](super::ranks::Ranks)).
    PriorityKept,
    /// When the faults are over, everything comes to its end
    /// ([`World::come_to_an_end`](super::World)).
    AllFinishes,
    /// The id of a task that is held is good for one answer of its holder, and no other id is good
    /// for anything ([`World::hear_answer`](super::World)).
    IdsHold,
    /// The records alone give the same group again ([`World::crash`](super::World)).
    RecordsSuffice,
}

/// A promise that was not kept.
#[derive(Debug, Clone)]
pub(in crate::group::tests) struct Broken {
    pub(in crate::group::tests) promise: Promise,
    pub(in crate::group::tests) what: String,
}

/// Nothing was broken; or it was, and nothing goes on.
pub(in crate::group::tests) type Kept = Result<(), Broken>;

impl Promise {
    /// Says that it is broken, unless it is `kept`.
    pub(super) fn holds(self, kept: bool, what: impl FnOnce() -> String) -> Kept {
        if kept { Ok(()) } else { Err(Broken { promise: self, what: what() }) }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is broken: {}", self.promise, self.what)
    }
}

/// Milliseconds between two moments, for messages.
pub(super) fn between(from: Moment, to: Moment) -> String {
    format!("{} ms", to.since(from))
}
