//! Seeds and sizes of randomized tests.

use std::env;

/// A number in an environment variable.
#[track_caller]
pub(crate) fn number_from_env(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// The seed in an environment variable. The default is fixed; `.ci/long` sets others.
#[track_caller]
pub(crate) fn seed_from_env(name: &str) -> u64 {
    number_from_env(name).unwrap_or(1)
}
