//! Checks that nothing is released before it is due (`after=`).

use std::collections::BTreeMap;

use super::World;
use super::promises::{CheckResult, Promise, between};
use super::task::ReceivedTask;
use crate::moment::Moment;
use crate::tests::site::is_linked;

/// Longest `after=` of an announcement, and of a job's seed, in ms.
const AFTER_MS_MAX: u64 = 600_000;
const SEED_AFTER_MS_MAX: u64 = 60_000;

/// Due times of pages that were announced only for later, in true time.
#[derive(Debug, Default)]
pub(super) struct DueCheck(BTreeMap<String, Moment>);

impl DueCheck {
    /// A page is requested for `due` or later. The earliest request counts for all.
    pub(super) fn want(&mut self, url: &str, due: Moment) {
        if !is_linked(url) {
            let earliest = self.0.entry(url.to_owned()).or_insert(due);
            *earliest = due.min(*earliest);
        }
    }

    /// Forgets all times, because a reboot may have changed the wall clock.
    pub(super) fn forget_times(&mut self) {
        self.0.values_mut().for_each(|due| *due = Moment(0));
    }

    /// Checks the release of a page.
    pub(super) fn check_release(&self, received: &ReceivedTask) -> CheckResult {
        let due = self.0.get(&received.url).copied().unwrap_or_default();
        Promise::NeverBeforeDue.holds(received.at >= due, || {
            format!("{} is released {} before it is due", received.url, between(received.at, due))
        })
    }
}

impl World {
    /// Announces a page for later, and perhaps changes that.
    pub(super) fn announce_for_later(&mut self) {
        let url = if self.rng.bool() { self.any_page() } else { self.new_page() };
        let after_ms = self.rng.u64(1..AFTER_MS_MAX);
        // Forwarded attributes must survive a restart and later events for the same URL.
        self.publish(&format!("{url} after={after_ms}ms pushed={after_ms} item=first"));
        self.announced.insert(url.clone());
        if self.rng.bool() {
            let (away_ms, after_ms) = (self.rng.u64(..after_ms), self.rng.u64(..after_ms));
            let after =
                if self.rng.bool() { String::new() } else { format!(" after={after_ms}ms") };
            self.publish_in(away_ms, format!("{url}{after} pushed={away_ms}"));
        }
    }

    /// A job's seed and its `after=`, which is mostly 0.
    pub(super) fn any_seed(&mut self) -> (String, u64) {
        if self.rng.u32(0..6) > 0 {
            return (self.any_page(), 0);
        }
        (self.new_seed(), self.rng.u64(1..SEED_AFTER_MS_MAX))
    }
}
