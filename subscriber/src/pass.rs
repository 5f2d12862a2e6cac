//! The key of a pass of a job, as a worker tells passes apart.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A pass of a job within one run of its group, as a 64-bit hash: valid in this process only.
///
/// Two passes must never have the same key: the second would inherit what is known of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PassKey(u64);

impl PassKey {
    /// Built from the run in a task's id and from its `job=` and `pass=`.
    pub fn new(run: u64, job: &str, pass: u64) -> Self {
        let mut hasher = DefaultHasher::new();
        (run, job, pass).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// A pass and the size of its job's scope: a larger scope may admit links that were refused before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScopedPass {
    /// The pass.
    pub pass: PassKey,
    /// `scope=` of a task, which never falls within a pass; 0 if it is missing.
    pub scope: u64,
}
