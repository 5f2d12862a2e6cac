//! Decides when a page has settled. Pure.
//!
//! A page may wait for an answer or for a timer, and show more content later. This waits for every
//! answer, but not for timers: it moves the clock of an idle page forward by a second, and the
//! browser runs the timers of that second at once. So timers bring their content after some
//! milliseconds. A page with endless timers is read some milliseconds later.
//!
//! Frames, storage and other parts of the browser answer a page too, but only while its clock runs.
//! So after that second, the clock goes on in some small steps, at about the pace of real time. A
//! page that waits for several such answers in a row gets one with each step, or some. No look comes
//! between these steps, because on a busy machine many looks take long.
//!
//! Some real time must pass too, because animations have their own clock. Workers and frames of
//! other sites have one as well. So the clock of a page with any of them is not moved by a second,
//! and more real time must pass.

use std::time::Duration;

/// How far the clock of an idle page is moved forward. A page that is still idle then has settled.
pub(super) const AHEAD: Duration = Duration::from_secs(1);

/// How long a page with other clocks must have been idle, in real time, and in how many looks. On a
/// busy machine, there may be a long time between two looks in which the page did not run.
const QUIET_OTHERS: Quiet = Quiet { time: Duration::from_millis(300), looks: 4 };

/// After this time, a page counts as loaded although some of its parts are not.
const LOAD_MAX: Duration = Duration::from_secs(10);

/// The same while the clock is being moved: its timers run, and they may take long.
const QUIET_RUNNING: Quiet = Quiet { time: Duration::from_secs(2), looks: 4 };

struct Quiet {
    time: Duration,
    looks: u32,
}

/// What one look at a page shows.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// The real time since the page's start.
    pub(super) now: Duration,
    /// Changes of the document since then, and its requests and answers.
    pub(super) changes: u64,
    pub(super) is_loaded: bool,
    /// It runs a script, or waits for an answer.
    pub(super) is_active: bool,
    /// The clock is being moved forward, and has not come as far as it should.
    pub(super) is_running: bool,
    /// It has workers, or frames of other sites.
    pub(super) has_others: bool,
}

/// What to do after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Look again.
    Wait,
    /// Move the clock of the page forward by [`AHEAD`], and look again.
    RunAhead,
    /// Move it on by some steps, and look again after them.
    Pace,
    /// Read the page.
    Settled,
}

/// What a page did.
#[derive(Debug, Default)]
pub(super) struct Settle {
    changes: u64,
    quiet_since: Duration,
    quiet_looks: u32,
    /// Whether the clock was moved, or is being moved, since the page has been idle.
    has_asked: bool,
    /// Whether the page has been idle for some steps since then.
    has_paced: bool,
    /// Whether the clock was moved once. It stands still from then on.
    is_paused: bool,
}

impl Settle {
    /// Takes one look, and decides.
    pub(super) fn observe(&mut self, look: Look) -> Step {
        let is_loading = !look.is_loaded && look.now < LOAD_MAX;
        let is_active = is_loading || look.is_active;
        if look.changes != self.changes || is_active {
            self.changes = look.changes;
            self.quiet_since = look.now;
            self.quiet_looks = 0;
            self.has_asked = false;
            self.has_paced = false;
        } else {
            self.quiet_looks += 1;
        }
        let is_quiet = |quiet: Quiet| {
            look.now >= self.quiet_since + quiet.time && self.quiet_looks >= quiet.looks
        };
        let has_settled = match (look.is_running, look.has_others) {
            (true, _) => is_quiet(QUIET_RUNNING),
            (false, true) => self.has_paced && is_quiet(QUIET_OTHERS),
            (false, false) => self.has_paced && self.has_asked,
        };
        if has_settled {
            return Step::Settled;
        }
        if look.is_running {
            return Step::Wait;
        }
        if is_active || look.has_others || self.has_asked {
            self.has_paced = !is_active;
            return if self.is_paused { Step::Pace } else { Step::Wait };
        }
        self.has_asked = true;
        self.has_paced = false;
        self.is_paused = true;
        Step::RunAhead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page that is loaded and does nothing.
    fn look(ms: u64) -> Look {
        let now = Duration::from_millis(ms);
        Look {
            now,
            changes: 0,
            is_loaded: true,
            is_active: false,
            is_running: false,
            has_others: false,
        }
    }

    #[test]
    fn a_page_settles_when_its_timers_have_run_and_nothing_happens() {
        let mut settle = Settle::default();
        let loading = Look { is_loaded: false, ..look(0) };
        assert_eq!(settle.observe(loading), Step::Wait);
        assert_eq!(settle.observe(look(40)), Step::RunAhead);
        let running = |ms, changes| Look { changes, is_running: true, ..look(ms) };
        assert_eq!(settle.observe(running(60, 0)), Step::Wait, "its timers are running");
        assert_eq!(settle.observe(running(70, 3)), Step::Wait, "they do something");
        let changed = |ms| Look { changes: 7, ..look(ms) };
        assert_eq!(settle.observe(changed(80)), Step::RunAhead, "they have done something");
        let active = Look { is_active: true, ..changed(200) };
        assert_eq!(settle.observe(active), Step::Pace, "it asks for something");
        assert_eq!(settle.observe(changed(220)), Step::RunAhead);
        for ms in [300, 900, 1_500] {
            assert_eq!(settle.observe(running(ms, 7)), Step::Wait, "not yet as far");
        }
        assert_eq!(settle.observe(changed(1_900)), Step::Pace, "frames and storage answer");
        assert_eq!(settle.observe(running(2_000, 7)), Step::Wait, "not all of its steps are done");
        assert_eq!(settle.observe(changed(2_010)), Step::Settled);
    }

    #[test]
    fn real_time_counts_where_there_are_other_clocks() {
        let mut settle = Settle::default();
        let look = |ms| Look { has_others: true, ..look(ms) };
        for ms in [0, 75, 150, 225, 299] {
            assert_eq!(settle.observe(look(ms)), Step::Wait, "too early");
        }
        assert_eq!(settle.observe(look(300)), Step::Settled);
        // A worker that a timer has started.
        let mut settle = Settle::default();
        assert_eq!(settle.observe(Look { has_others: false, ..look(0) }), Step::RunAhead);
        for ms in [75, 150, 299] {
            assert_eq!(settle.observe(look(ms)), Step::Pace, "too early");
        }
        assert_eq!(settle.observe(look(300)), Step::Settled);
    }

    #[test]
    fn loading_has_a_limit_and_one_look_is_not_enough() {
        let mut settle = Settle::default();
        let look = |ms| Look { is_loaded: false, is_running: ms > 10_400, ..look(ms) };
        assert_eq!(settle.observe(look(9_999)), Step::Wait);
        assert_eq!(settle.observe(look(10_400)), Step::RunAhead);
        for ms in [11_400, 12_400] {
            assert_eq!(settle.observe(look(ms)), Step::Wait, "not seen often");
        }
        assert_eq!(settle.observe(look(13_400)), Step::Settled);
    }
}
