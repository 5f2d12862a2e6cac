//! Wrong decisions, one for each promise that the group makes and more: with one of them present, the
//! checker of that promise must fail, or it checks nothing. Only tests can have one present; otherwise
//! every [`is`] is `false` at compile time and nothing of it is left.

#[cfg(test)]
use std::cell::Cell;

/// A decision that is taken wrongly, at the one place that asks [`is`] for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A key is asked again while a request is open.
    TwoAtOnce,
    /// A key that may be asked several times at once is asked once more.
    OneTooMany,
    /// A key rests a little too short.
    ShortRest,
    /// What a member asks for takes the place of a longer delay.
    ShortPace,
    /// What is set changes nothing.
    KeepsSettings,
    /// A key whose task was lost does not rest.
    NoRestAfterLoss,
    /// After a reboot, what the wall clock says of the time that has passed is believed of leases.
    NoLeaseAfterReboot,
    /// What was announced is dropped when a member is lost over it.
    ForgetsTheLost,
    /// A member gets one task more than its credit.
    OverCredit,
    /// The end of a job is announced again.
    DoneTwice,
    /// What is wanted for later is released at once.
    BeforeDue,
    /// What waits for its time waits for it whoever wants it earlier.
    StaysLate,
    /// On a key, what waits in few words goes before what has a story, however urgent that is.
    PlainFirst,
    /// Among keys, the one with the least urgent goes first.
    LeastUrgent,
    /// A job is done while a member has the last of it.
    DoneWhileHeld,
    /// A job is done before what was published for it is taken.
    DoneBeforeTaken,
    /// A job gets pages that are one link deeper than they may be.
    TooDeep,
    /// A job gets pages that its patterns keep out.
    OutOfScope,
    /// A job gets one page more than it may have.
    OverBudget,
    /// What a job has while it waits for further seeds is released at once.
    NeverHolds,
    /// On a key, what was announced always goes before what jobs wait for.
    AnnouncedFirst,
    /// A key that has rested is not looked at again.
    NeverWakes,
    /// What waits for one member's next request waits for it when it is gone, too.
    StaysPinned,
    /// A job of which the last page did not come stays as it is.
    StaysOpen,
    /// The answer to a repair is not counted in its job.
    UncountedRepair,
    /// Whoever names a task that is held may answer it.
    AnyId,
    /// A full group takes an answer without the links that it has no room for.
    LosesLinks,
    /// Whoever was told another thing changes how often a URL is looked at.
    AnyEvery,
    /// What a member says about its key is not recorded.
    Unrecorded,
}

#[cfg(test)]
thread_local! {
    static PRESENT: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Whether this decision is taken wrongly, in this thread.
#[cfg(test)]
pub(crate) fn is(mutant: Mutant) -> bool {
    PRESENT.get() == Some(mutant)
}

/// Whether this decision is taken wrongly: never.
#[cfg(not(test))]
pub(crate) const fn is(_: Mutant) -> bool {
    false
}

/// Has one present in this thread from here on, or none.
#[cfg(test)]
pub(crate) fn set(mutant: Option<Mutant>) {
    PRESENT.set(mutant);
}
