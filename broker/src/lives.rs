//! Which lives are lived by tests that make up whole lives from a seed.

use std::env;
use std::ops::Range;

/// The first seed of a test run. The same each time: whether a change is good must depend on the change alone, and not
/// on who was lucky. Other lives are lived where there is time to look into what they find, by `.ci/long`.
const FIRST: u64 = 1;

/// The seeds of these lives: `TIDINGS_<WHAT>_SEED` is the first one, and `TIDINGS_<WHAT>_RUNS` tells how many. Who names a
/// seed alone wants that one again.
pub(crate) fn seeds(what: &str, usual_runs: u64) -> Range<u64> {
    let first = number(&format!("TIDINGS_{what}_SEED"));
    let runs = number(&format!("TIDINGS_{what}_RUNS"));
    let runs = runs.unwrap_or(if first.is_some() { 1 } else { usual_runs });
    let first = first.unwrap_or(FIRST);
    first..first.saturating_add(runs)
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}
