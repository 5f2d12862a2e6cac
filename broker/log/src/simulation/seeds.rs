//! Seeds of simulation tests.

use std::env;
use std::ops::Range;

/// The first seed of a test run. It is fixed, so that the result depends only on the code.
/// `.ci/long` runs other seeds, where there is time to examine a failure.
const FIRST_SEED: u64 = 1;

/// The seeds to run: `TIDINGS_<WHAT>_SEED` is the first one, and `TIDINGS_<WHAT>_RUNS` is their
/// number. With a seed but no number, only that seed runs.
pub fn seeds(what: &str, usual_runs: u64) -> Range<u64> {
    let first = number(&format!("TIDINGS_{what}_SEED"));
    let runs = number(&format!("TIDINGS_{what}_RUNS"));
    let runs = runs.unwrap_or(if first.is_some() { 1 } else { usual_runs });
    let first = first.unwrap_or(FIRST_SEED);
    first..first.saturating_add(runs)
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}
