//! Faults that a model must find, each at the one line that would contain it. Only a model can turn
//! one on; otherwise every [`is`] is `false` at compile time, and the fault is not compiled.

#[cfg(all(test, loom))]
use std::cell::Cell;

/// A fault, at the one place that calls [`is`] with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A mark is stored with `Relaxed`.
    RelaxedStore,
    /// A mark is loaded with `Relaxed`.
    RelaxedLoad,
    /// The head is stored after the marks that it bounds.
    HeadLast,
    /// `has_lost` is stored after the marks that pass the lost events.
    LossLast,
    /// Tasks are woken before the mark that they wait for is stored.
    WakesFirst,
    /// A task that checked without the lock does not check again when it registers its waker under
    /// the lock.
    ChecksOnce,
    /// A task checks before it registers its waker, and not again.
    RegistersLate,
}

#[cfg(all(test, loom))]
thread_local! {
    static PRESENT: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Whether the fault is on. All threads of a model run on one thread of the system.
#[cfg(all(test, loom))]
pub(crate) fn is(mutant: Mutant) -> bool {
    PRESENT.get() == Some(mutant)
}

/// Whether the fault is on: never.
#[cfg(not(all(test, loom)))]
#[inline]
pub(crate) const fn is(_: Mutant) -> bool {
    false
}

/// Turns a fault on for the models that this thread runs.
#[cfg(all(test, loom))]
pub(crate) fn set(mutant: Mutant) {
    PRESENT.set(Some(mutant));
}
