//! Wrong decisions, one for each rule of the shared log. With one of them enabled, the simulation must
//! fail; otherwise it proves nothing. In builds without tests [`is`] is `false` at compile time.

#[cfg(test)]
use std::cell::Cell;

/// A wrong decision, made at the one place that checks [`is`] for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A message counts although those before it are missing.
    NumberGap,
    /// A message is committed before those before it are.
    OutOfOrder,
    /// A message without an answer is taken for one that is not in the log.
    UnansweredIsUnwritten,
    /// A message that is sent again for the same slot has another time.
    OtherBytes,
    /// A commit that its leader has not finished is applied, with the next one.
    UnfinishedCommit,
    /// A checkpoint is written before the logs are synced.
    CheckpointBeforeSync,
    /// A cleared log begins without a checkpoint.
    ClearWithoutCheckpoint,
    /// A leader writes to its own log before the shared log has the commit.
    LocalFirst,
}

#[cfg(test)]
thread_local! {
    static PRESENT: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Whether this wrong decision is enabled in this thread.
#[cfg(test)]
pub(crate) fn is(mutant: Mutant) -> bool {
    PRESENT.get() == Some(mutant)
}

/// Always false outside tests.
#[cfg(not(test))]
pub(crate) const fn is(_: Mutant) -> bool {
    false
}

/// The one that is enabled in this thread.
#[cfg(test)]
pub(crate) fn present() -> Option<Mutant> {
    PRESENT.get()
}

/// Enables one in this thread, or none.
#[cfg(test)]
pub(crate) fn set(mutant: Option<Mutant>) {
    PRESENT.set(mutant);
}
