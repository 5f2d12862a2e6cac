//! A number that only rises.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only rises. Any number of threads may add to it and read it; it orders nothing
/// else.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Nothing is written for 0.
    pub fn add(&self, n: u64) {
        if n > 0 {
            self.0.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// The sum.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
