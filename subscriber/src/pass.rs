//! Which pass of which job a task belongs to, as a worker tells them apart.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A pass of a job within one run of its group, as a hash of 64 bits: good for this process only.
///
/// The same key must never name two passes: what is known of the first would be believed of the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PassKey(u64);

impl PassKey {
    /// Of the run in a task's id, and of its `job=` and `pass=`.
    pub fn new(run: u64, job: &str, pass: u64) -> Self {
        let mut hasher = DefaultHasher::new();
        (run, job, pass).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// A pass whose job's scope has grown so far: what was refused before may be let in now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScopedPass {
    /// Which.
    pub pass: PassKey,
    /// `scope=` of a task, which only ever rises within a pass; 0 without it.
    pub scope: u64,
}
