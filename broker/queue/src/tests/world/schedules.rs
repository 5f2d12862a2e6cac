//! URLs that are scheduled for repeated fetches (`every=`).

use super::World;
use super::promises::{CheckResult, Promise, between};
use crate::tests::site::{PAGES, host_number, is_on_never_list};

/// Longest time that an idle host may take for all its pages.
const SLACK_MS: u64 = PAGES * 5000;
const EVERY_MS_MAX: u64 = 60_000;

impl World {
    /// Adds, replaces, changes or ends a schedule.
    pub(super) fn announce_schedule(&mut self) {
        // A schedule that is due while the group is full is skipped.
        if self.low_entries_max.is_some() {
            return;
        }
        if self.rng.u32(0..4) == 0 {
            return self.change_schedule();
        }
        let ends = self.scheduled.len() > 2 || self.rng.u32(0..3) == 0;
        if ends && let Some((url, _)) = self.scheduled.pop_first() {
            return self.publish(&format!("{url} every=0"));
        }
        let (url, every_ms) = (self.any_page(), self.rng.u64(10_000..=EVERY_MS_MAX));
        if self.hosts.rules.may_block(host_number(&url)) {
            return;
        }
        self.publish(&format!("{url} every={every_ms}ms"));
        self.announced.insert(url.clone());
        self.scheduled.insert(url, every_ms);
    }

    /// Changes the interval of a schedule: by a worker that has just fetched the URL, or by one
    /// with outdated knowledge, which must have no effect.
    fn change_schedule(&mut self) {
        let scheduled = self.scheduled.iter_mut().collect::<Vec<_>>();
        let Some((url, every_ms)) = self.rng.choice(scheduled) else { return };
        let (url, was_ms) = (url.clone(), *every_ms);
        if self.rng.bool() {
            return self.publish(&format!("{url} every=1d was={}ms", was_ms + 1));
        }
        *every_ms = self.rng.u64(10_000..=EVERY_MS_MAX);
        let change = format!("{url} every={every_ms}ms was={was_ms}ms");
        self.publish(&change);
    }

    /// Checks that each scheduled URL is fetched in time when nothing hinders it. Then all
    /// schedules end.
    pub(super) fn finish_schedules(&mut self) -> CheckResult {
        let scheduled = std::mem::take(&mut self.scheduled);
        if scheduled.is_empty() {
            return Ok(());
        }
        // A fetch may wait for another host, too.
        let is_hindered = self.outages.may_any_rest(self.now);
        self.advance(2 * EVERY_MS_MAX + SLACK_MS)?;
        for (url, every_ms) in scheduled {
            let begun = self.begun.get(&url).copied().unwrap_or_default();
            // A fetch in between replaces a scheduled one.
            let most_ms = 2 * every_ms + SLACK_MS;
            let is_late = self.now.since(begun) > most_ms;
            let waits = is_hindered || self.outages.may_be_retried(&url);
            let in_time = is_on_never_list(&url) || waits || !is_late;
            Promise::AllFinishes.holds(in_time, || {
                let ago = between(begun, self.now);
                format!("{url} is due every {every_ms} ms, and was last requested {ago} ago")
            })?;
            self.publish(&format!("{url} every=0"));
        }
        self.consume_events()
    }
}
