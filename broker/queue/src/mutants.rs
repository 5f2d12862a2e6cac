//! Wrong decisions, at least one for each promise of the group. With one of them enabled, the
//! checker of that promise must fail; otherwise the checker is useless. Only tests can enable one.
//! In other builds [`is`] is `false` at compile time, and nothing remains.

#[cfg(test)]
use std::cell::Cell;

/// A wrong decision, made at the one place that checks [`is`] for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A key is released again while a request is in flight.
    TwoAtOnce,
    /// A key with `parallel` above 1 has one more request in flight.
    OverParallel,
    /// A key rests a little too short.
    ShortRest,
    /// The pace of a worker replaces a longer delay.
    ShortPace,
    /// New settings have no effect.
    IgnoresSettings,
    /// A key does not rest after its task was lost.
    NoRestAfterLoss,
    /// A host that is down rests no longer than others.
    TriesTooOften,
    /// A failure counts although the host is down.
    CountsWhileDown,
    /// A task that its worker returns uncounted counts as failed.
    CountsUncounted,
    /// A host is given up after two tries.
    GivesUpEarly,
    /// A host is never given up.
    NeverGivesUp,
    /// After a reboot, leases trust the wall clock for the elapsed time.
    NoLeaseAfterReboot,
    /// An announced entry is dropped when its lease is lost.
    DropsLostAnnounced,
    /// Outcomes other than `done` are not announced.
    UntoldOutcome,
    /// A member holds one task more than its credit.
    OverCredit,
    /// A drained member is given tasks.
    FeedsDrained,
    /// A member holds one task that needs a browser more than it may.
    OverRenderCredit,
    /// The end of a job is published twice.
    DoneTwice,
    /// An entry is released before it is due.
    BeforeDue,
    /// An event that wants a delayed entry earlier does not change its due time.
    IgnoresEarlierDue,
    /// On a key, dormant entries go before active ones of higher priority.
    DormantFirst,
    /// Among keys, the lowest priority goes first.
    LowestPriorityFirst,
    /// A job is done while a member holds its last task.
    DoneWhileHeld,
    /// A job is done before the group has consumed what was published for it.
    DoneBeforeConsumed,
    /// Events that the filter excludes become entries.
    IgnoresFilter,
    /// A job admits links one level too deep.
    TooDeep,
    /// A job admits links that its patterns exclude.
    OutOfScope,
    /// A job releases entries that were found before its patterns excluded them.
    IgnoresJobSet,
    /// A dry run changes the job.
    DryRunChanges,
    /// What waits is released although it is on the never-list.
    AsksNever,
    /// A job completes one page too many.
    OverBudget,
    /// A job with `hold=yes` releases entries before all seeds are there.
    IgnoresJobHold,
    /// On a key, announced entries always go before those of jobs.
    AnnouncedFirst,
    /// A key is not refreshed after its rest.
    NeverWakes,
    /// An entry that waits for a member with a browser holds back the others of its key.
    RenderHoldsBack,
    /// An entry stays pinned to a member that is gone.
    StaysPinned,
    /// A job is not settled when its last page fails.
    StaysOpen,
    /// The result of a repair is not counted in its job.
    UncountedRepair,
    /// Any member that names a held task may answer it.
    AnyTaskId,
    /// A full group accepts an answer and drops its links.
    LosesLinks,
    /// A worker with an outdated `was=` changes a schedule.
    IgnoresWas,
    /// The rest that a worker requests is not recorded.
    Unrecorded,
    /// Outputs leave before the text of their record was read.
    UnreadLeaves,
    /// An input that waits for a text is lost.
    LosesHeld,
    /// A lane that was skipped because it waits for a text is never taken up again.
    LosesSkipped,
    /// An entry goes before one of higher priority that waits for its text.
    Overtakes,
    /// A start forgets the rules of its snapshot.
    LosesRules,
    /// A task that is returned to a blocked key is released again.
    ReturnsToBlocked,
    /// The answer to a rule comes before the last request has ended.
    AnswersRuleEarly,
    /// The answer to a rule does not wait for parts of pages that an earlier run has permitted.
    ForgetsParts,
    /// A part of a page is permitted although a rule holds its host.
    PermitsHeldPart,
    /// A part of a page is permitted although it is on the never-list.
    PermitsListedPart,
    /// A part of a page is rejected because of a rule that does not hold its host.
    RefusesRuledPart,
    /// A key does not offer an entry that needs a browser after the text of the entry was read.
    LosesRendered,
    /// The command that drops some entries drops all that wait.
    DropsUnselected,
    /// The command that drops entries spares the dormant ones.
    SparesDormant,
    /// A new priority of what waits has no effect.
    IgnoresBump,
}

#[cfg(test)]
thread_local! {
    static PRESENT: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Reports whether this wrong decision is enabled in this thread.
#[cfg(test)]
pub(crate) fn is(mutant: Mutant) -> bool {
    PRESENT.get() == Some(mutant)
}

/// Always false outside tests.
#[cfg(not(test))]
pub(crate) const fn is(_: Mutant) -> bool {
    false
}

/// Enables one in this thread, or none.
#[cfg(test)]
pub(crate) fn set(mutant: Option<Mutant>) {
    PRESENT.set(mutant);
}
