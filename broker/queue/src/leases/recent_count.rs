//! How often something happened lately.

use tidings_protocol::status::Rate;

use crate::moment::Moment;

/// The time over which a rate is taken, in ms.
const WINDOW_MS: u64 = 10_000;

/// The shortest time over which a rate is taken, in ms. A shorter one would make a high rate of one
/// event.
const SPAN_MS_MIN: u64 = 1_000;

/// Counts in the present window and in the one before. Their weighted sum stands for the last
/// [`WINDOW_MS`], without a list of times.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RecentCount {
    /// When the first window began.
    since: Moment,
    /// The number of the present window.
    window: u64,
    count: u64,
    before: u64,
}

impl RecentCount {
    /// Begins to count.
    pub(super) fn new(since: Moment) -> Self {
        Self { since, ..Self::default() }
    }

    /// It happened.
    pub(super) fn add(&mut self, now: Moment) {
        *self = self.at(now);
        self.count += 1;
    }

    /// Returns how often it happened per second.
    pub(super) fn rate(&self, now: Moment) -> Rate {
        let Self { count, before, .. } = self.at(now);
        let known_ms = now.since(self.since);
        let weighted = count * WINDOW_MS + before * (WINDOW_MS - known_ms % WINDOW_MS);
        let span = known_ms.clamp(SPAN_MS_MIN, WINDOW_MS);
        Rate { tenths: weighted * 10_000 / WINDOW_MS / span }
    }

    /// The counts as they are at this time.
    fn at(&self, now: Moment) -> Self {
        let window = now.since(self.since) / WINDOW_MS;
        let (count, before) = match window.saturating_sub(self.window) {
            0 => (self.count, self.before),
            1 => (0, self.count),
            _ => (0, 0),
        };
        Self { window, count, before, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_that_of_the_last_seconds() {
        let mut recent = RecentCount::new(Moment(95_000));
        let mut tenths = Vec::new();
        // Five a second for 20 s, and then nothing.
        for step in 1..=100 {
            let now = Moment(95_000 + step * 200);
            recent.add(now);
            tenths.push(recent.rate(now).tenths);
        }
        assert_eq!(tenths[0], 10, "one in less than a second");
        assert!(tenths[5..].iter().all(|tenths| (48..=52).contains(tenths)), "{tenths:?}");
        let after = |ms: u64| recent.rate(Moment(115_000 + ms)).tenths;
        let falling = [0, 2_500, 5_000, 9_000, 10_000, 1 << 40].map(after);
        assert!(falling.is_sorted_by(|a, b| a >= b), "{falling:?}");
        assert_eq!(falling[2..], [26, 6, 1, 0], "{falling:?}");
    }
}
