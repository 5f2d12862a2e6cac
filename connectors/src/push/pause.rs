//! The pause of a push while its receiver is down.

#![expect(clippy::disallowed_methods, reason = "pauses have a time")]

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::delivery::{Attempt, Receiver};

/// The first pause, which doubles with each further failure up to the longest one.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// The longest pause that a receiver can ask for: one answer must not stop a push for a day.
const RETRY_AFTER_MAX: Duration = Duration::from_mins(10);

/// The pause after a failure that follows this many others.
pub(super) fn pause_after(failures: u32) -> Duration {
    (PAUSE_MIN * (1 << failures.min(10))).min(PAUSE_MAX)
}

/// How long an event has waited at least before this attempt, if it waited for each one before as
/// long as the whole push does.
pub(super) fn waited_until(attempt: u32) -> Duration {
    let growing: Duration = (1..attempt.min(10)).map(|before| pause_after(before - 1)).sum();
    growing + PAUSE_MAX * attempt.saturating_sub(10)
}

/// How long the requests to a receiver wait.
#[derive(Debug, Default)]
pub(super) struct Pause(Mutex<PauseState>);

#[derive(Debug, Default)]
struct PauseState {
    until: Option<Instant>,
    /// Failures since the last success.
    failures: u32,
}

impl Pause {
    /// Waits for the end of the pause. Cancel-safe.
    pub(super) async fn end(&self) {
        loop {
            let until = self.0.lock().until;
            match until.filter(|until| *until > Instant::now()) {
                Some(until) => sleep_until(until).await,
                None => return,
            }
        }
    }

    /// A request has ended. Requests at the same time that fail together begin one pause.
    pub(super) fn add(&self, attempt: &Attempt) {
        let (mut state, now) = (self.0.lock(), Instant::now());
        if attempt.receiver == Receiver::Works {
            state.failures = 0;
            return;
        }
        let mut wait = attempt.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        if state.until.is_none_or(|until| until <= now) {
            wait = wait.max(pause_after(state.failures));
            state.failures += 1;
        }
        state.until = state.until.max(Some(now + wait));
    }
}

#[cfg(test)]
mod tests {
    use tidings_client::TaskEnd;

    use super::*;

    fn attempt(is_receiver_down: bool, retry_after_s: Option<u64>) -> Attempt {
        let receiver = if is_receiver_down { Receiver::IsDown } else { Receiver::Works };
        let retry_after = retry_after_s.map(Duration::from_secs);
        Attempt { end: TaskEnd::done(), status: None, receiver, retry_after }
    }

    async fn waited_ms(pause: &Pause) -> u128 {
        let begin = Instant::now();
        pause.end().await;
        begin.elapsed().as_millis()
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_until_a_request_succeeds() {
        let pause = Pause::default();
        assert_eq!(waited_ms(&pause).await, 0);
        for expected in [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000] {
            pause.add(&attempt(true, None));
            assert_eq!(waited_ms(&pause).await, expected);
        }
        pause.add(&attempt(false, None));
        assert_eq!(waited_ms(&pause).await, 0);
        pause.add(&attempt(true, None));
        pause.add(&attempt(true, None));
        // Its request began before the pause.
        pause.add(&attempt(false, None));
        assert_eq!(waited_ms(&pause).await, 250);
        pause.add(&attempt(true, None));
        assert_eq!(waited_ms(&pause).await, 250);
    }

    #[test]
    fn an_event_waits_as_long_as_the_push() {
        let mut waited = Duration::ZERO;
        for attempt in 1..100 {
            assert_eq!(waited_until(attempt), waited, "{attempt}");
            waited += pause_after(attempt - 1);
        }
        assert!(waited_until(u32::MAX) > Duration::from_hours(24 * 365));
    }

    #[tokio::test(start_paused = true)]
    async fn the_receiver_can_lengthen_a_pause_and_not_shorten_it() {
        let pause = Pause::default();
        pause.add(&attempt(true, Some(100)));
        pause.add(&attempt(true, Some(1)));
        assert_eq!(waited_ms(&pause).await, 100_000);
        pause.add(&attempt(true, Some(86_400)));
        assert_eq!(waited_ms(&pause).await, 600_000);
    }
}
