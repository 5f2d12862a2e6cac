//! URLs that the world wants to have looked at again and again, or at a time of day, and a wall clock
//! that is set as somebody likes.

use tidings_protocol::{DAY_MS, TimeOfDay};

use super::World;
use crate::group::Input;
use crate::group::tests::site::PAGES;

/// The longest that a host may take, with nothing else to do, to get through all its pages.
const SLACK_MS: u64 = PAGES * 5000;
const EVERY_MS_MAX: u64 = 30_000;

impl World {
    /// A schedule begins, or another one for the same URL, or one ends.
    pub(super) fn announce_schedule(&mut self) {
        match self.rng.u32(0..6) {
            0 => {
                if let Some((url, _)) = self.scheduled.pop_first() {
                    return self.publish(&format!("{url} every=0"));
                }
            }
            1 => {
                if let Some(url) = self.daily.pop_first() {
                    return self.publish(&format!("{url} every=0"));
                }
            }
            _ => {}
        }
        let url = self.any_page();
        self.daily.remove(&url);
        self.scheduled.remove(&url);
        if self.rng.bool() {
            let every_ms = self.rng.u64(5000..=EVERY_MS_MAX);
            self.publish(&format!("{url} every={every_ms}ms"));
            self.scheduled.insert(url.clone(), every_ms);
        } else {
            let time = self.any_time();
            self.publish(&format!("{url} every={time}"));
            self.daily.insert(url.clone());
        }
        self.named.insert(url.clone());
        self.announced.insert(url, self.now);
    }

    /// An event that can wait, for less than a day.
    pub(super) fn announce_for_later(&mut self) {
        let (url, time) = (self.any_page(), self.any_time());
        self.publish(&format!("{url} after={time}"));
        self.named.insert(url.clone());
        self.announced.insert(url, self.now);
    }

    fn any_time(&mut self) -> TimeOfDay {
        TimeOfDay::of(self.rng.i64(0..86_400_000))
    }

    /// Somebody sets the wall clock, by seconds, hours or years.
    pub(super) fn set_clock(&mut self) {
        let most_ms = [10_000, 86_400_000, 10 * 365 * 86_400_000][self.rng.usize(..3)];
        self.wall_ms += self.rng.i64(-most_ms..=most_ms);
        self.see_clock();
    }

    pub(super) fn see_clock(&mut self) {
        let unix_ms = self.wall_ms + i64::try_from(self.now.0).unwrap();
        self.feed(Input::Clock { unix_ms });
    }

    /// With nobody in the way, each URL is looked at in its time, whatever happened before. Then all
    /// schedules end.
    pub(super) fn finish_schedules(&mut self) {
        assert_eq!(self.group.schedules.len(), self.scheduled.len() + self.daily.len());
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
        // What was looked at meanwhile is not looked at on the first of these days, and what else was due
        // on that day stands in for the second.
        let mut last_day = self.now;
        for _ in 0..3 {
            self.wall_ms += i64::try_from(DAY_MS).unwrap();
            last_day = self.now;
            self.see_clock();
            self.pass(SLACK_MS);
        }
        for url in std::mem::take(&mut self.daily) {
            let begun = self.begun[&url];
            assert!(begun >= last_day, "{url} is due daily, begun {begun}, and it was {last_day}");
            self.publish(&format!("{url} every=0"));
        }
        self.take();
        assert!(self.group.schedules.is_empty());
        assert!(!self.group.has_clock_times());
    }
}
