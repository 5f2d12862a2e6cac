//! Decides when a page has settled. Pure.

use std::time::Duration;

/// A page that does nothing for so long has settled.
const QUIET: Duration = Duration::from_millis(300);

/// It must be seen to do nothing so often. On a busy machine, one look may follow long after another,
/// and the page may not have run in between.
const LOOKS_MIN: u32 = 4;

/// After this time, parts of the page that are still being loaded are no reason to wait.
const LOAD_MAX: Duration = Duration::from_secs(10);

/// What a page did. Times are since its start.
#[derive(Debug, Default)]
pub(super) struct Settle {
    changes: u64,
    quiet_since: Duration,
    quiet_looks: u32,
}

impl Settle {
    /// Takes one observation, and returns whether the page has settled.
    pub(super) fn observe(
        &mut self,
        now: Duration,
        changes: u64,
        is_loaded: bool,
        is_active: bool,
    ) -> bool {
        let is_loading = !is_loaded && now < LOAD_MAX;
        if changes != self.changes || is_loading || is_active {
            self.changes = changes;
            self.quiet_since = now;
            self.quiet_looks = 0;
        } else {
            self.quiet_looks += 1;
        }
        now >= self.quiet_since + QUIET && self.quiet_looks >= LOOKS_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_settles_when_nothing_happens_for_a_while() {
        let mut settle = Settle::default();
        let mut at = |ms, changes, is_loaded, is_active| {
            settle.observe(Duration::from_millis(ms), changes, is_loaded, is_active)
        };
        assert!(!at(200, 0, false, false), "it is being loaded");
        assert!(!at(450, 0, true, false));
        assert!(!at(490, 7, true, false), "it changes");
        assert!(!at(600, 7, true, true), "it asks for something");
        for ms in [700, 800, 899] {
            assert!(!at(ms, 7, true, false), "too early");
        }
        assert!(at(900, 7, true, false));
        assert!(!at(9_999, 7, false, false));
        for ms in [10_400, 10_800, 11_200] {
            assert!(!at(ms, 7, false, false), "not seen often");
        }
        assert!(at(11_600, 7, false, false), "loading has a limit");
    }
}
