//! Pauses between attempts to reach a broker.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The first pause is between half of this and all of it.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Pauses between attempts to reach a broker. Each is twice the one before, up to a limit, and
/// shortened by up to half at random, so that clients that lost the same broker do not return
/// together.
#[derive(Debug, Clone)]
pub struct Backoff {
    next: Duration,
    max: Duration,
}

impl Default for Backoff {
    /// Up to 5 s.
    fn default() -> Self {
        Self::up_to(Duration::from_secs(5))
    }
}

impl Backoff {
    /// No pause is longer than `max`.
    pub fn up_to(max: Duration) -> Self {
        Self { next: FIRST_PAUSE.min(max), max }
    }

    /// The next pause.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        // Each `RandomState` has other keys.
        let random = RandomState::new().hash_one(()) >> 32;
        #[expect(clippy::cast_precision_loss, reason = "32 bits fit")]
        let share = random as f64 / (1_u64 << 32) as f64;
        pause.mul_f64(1.0 - share / 2.0)
    }

    /// Begins with the first pause again, after a connection that worked.
    pub fn reset(&mut self) {
        self.next = FIRST_PAUSE.min(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit_and_differ_between_clients() {
        let ms = |pauses: &mut Backoff| pauses.next_pause().as_millis();
        let mut pauses = Backoff::default();
        for longest in [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
            assert!((longest / 2..=longest).contains(&ms(&mut pauses)), "{longest}");
        }
        pauses.reset();
        assert!(ms(&mut pauses) <= 100);
        assert!(ms(&mut Backoff::up_to(Duration::from_millis(10))) <= 10);
        let first = || Backoff::default().next_pause();
        assert!((0..100).any(|_| first() != first()));
    }
}
