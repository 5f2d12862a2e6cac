//! URLs that the world wants to have looked at again and again.

use super::World;
use crate::group::tests::site::PAGES;

/// The longest that a host may take, with nothing else to do, to get through all its pages.
const SLACK_MS: u64 = PAGES * 5000;
const EVERY_MS_MAX: u64 = 30_000;

impl World {
    /// A schedule begins, or another one for the same URL, or one ends.
    pub(super) fn announce_schedule(&mut self) {
        if self.rng.u32(0..3) == 0
            && let Some((url, _)) = self.scheduled.pop_first()
        {
            return self.publish(&format!("{url} every=0"));
        }
        let (url, every_ms) = (self.any_page(), self.rng.u64(5000..=EVERY_MS_MAX));
        self.publish(&format!("{url} every={every_ms}ms"));
        self.named.insert(url.clone());
        self.announced.insert(url.clone(), self.now);
        self.scheduled.insert(url, every_ms);
    }

    /// With nobody in the way, each URL is looked at in its time, whatever happened before. Then all
    /// schedules end.
    pub(super) fn finish_schedules(&mut self) {
        assert_eq!(self.group.schedules.len(), self.scheduled.len());
        self.pass(2 * EVERY_MS_MAX + SLACK_MS);
        for (url, every_ms) in std::mem::take(&mut self.scheduled) {
            let begun = self.begun[&url];
            let ago_ms = self.now.since(begun);
            // A look in between stands in for one.
            let most_ms = 2 * every_ms + SLACK_MS;
            assert!(ago_ms <= most_ms, "{url} is due every {every_ms} ms, begun {ago_ms} ms ago");
            self.publish(&format!("{url} every=0"));
        }
        self.take();
        assert!(self.group.schedules.is_empty());
    }
}
