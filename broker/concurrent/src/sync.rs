//! The atomics and the lock of this crate: from std and `parking_lot`, or with `--cfg loom` from
//! loom.

#[cfg(not(loom))]
pub(crate) use std::sync::Arc;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::Arc;
#[cfg(loom)]
pub use loom::sync::MutexGuard;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(loom))]
pub use parking_lot::MutexGuard;

use crate::mutants::{self, Mutant};

/// loom's lock with the interface of `parking_lot`'s.
#[cfg(loom)]
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("a model ends with its first panic")
    }
}

/// Stores a mark. A thread that [loads](load_mark) the new value also sees everything that this
/// thread did before.
#[inline]
pub(crate) fn store_mark(mark: &AtomicU64, to: u64) {
    let is_weak = mutants::is(Mutant::RelaxedStore);
    mark.store(to, if is_weak { Ordering::Relaxed } else { Ordering::Release });
}

#[inline]
pub(crate) fn load_mark(mark: &AtomicU64) -> u64 {
    let is_weak = mutants::is(Mutant::RelaxedLoad);
    mark.load(if is_weak { Ordering::Relaxed } else { Ordering::Acquire })
}
