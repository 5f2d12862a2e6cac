//! Where tests that are random to a degree have their numbers from.

use std::env;

/// A number in the environment.
#[track_caller]
pub(crate) fn number_from_env(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// The seed in this variable of the environment, or the one that every test run has: `.ci/long` has
/// others.
#[track_caller]
pub(crate) fn seed_from_env(name: &str) -> u64 {
    number_from_env(name).unwrap_or(1)
}
