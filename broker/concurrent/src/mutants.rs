//! Faults that a model must find, each at the one line that would make it. Only a model can have one present; otherwise
//! every [`is`] is `false` at compile time, and nothing of the fault is built.

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
    /// That events were lost is stored after the marks that pass them.
    LossLast,
    /// Tasks are woken before the mark that they wait for is stored.
    WakesFirst,
    /// A task that looked without the lock does not look again when it registers its waker under the lock.
    LooksOnce,
    /// A task looks before it registers its waker, and not again.
    RegistersLate,
}

#[cfg(all(test, loom))]
thread_local! {
    static PRESENT: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Whether the fault is present. All threads of a model run on one thread of the system.
#[cfg(all(test, loom))]
pub(crate) fn is(mutant: Mutant) -> bool {
    PRESENT.get() == Some(mutant)
}

/// Whether the fault is present: never.
#[cfg(not(all(test, loom)))]
#[inline]
pub(crate) const fn is(_: Mutant) -> bool {
    false
}

/// Makes a fault present in the models that this thread runs.
#[cfg(all(test, loom))]
pub(crate) fn set(mutant: Mutant) {
    PRESENT.set(Some(mutant));
}
