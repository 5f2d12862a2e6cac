//! Moves the clock of a page.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::{OBSERVE_EVERY, PageError, Visit, post};

/// The steps in which a clock goes on that was moved forward: one each 5 ms, of its time and of
/// real time. In each step, a page may get one answer of a frame or of its storage.
const STEP: Duration = Duration::from_millis(5);
const STEPS: u32 = 20;

/// After this time, no more steps follow. On a busy machine, a step may take long.
const STEPS_TIME_MAX: Duration = Duration::from_secs(1);

/// The clock of a page. Its timers, frames and storage wait while it stands still.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Clock {
    /// It is that of the machine.
    Real,
    /// It is being moved forward.
    Running,
    /// It was moved forward, and stands still.
    Standing,
}

impl Visit {
    /// Moves the clock of an idle page forward. The clock stops while the page waits for an answer,
    /// and when the time is over.
    pub(super) fn run_ahead(&mut self, time: Duration) -> Result<(), PageError> {
        self.clock = Clock::Running;
        let budget = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let params = json!({ "policy": "pauseIfNetworkFetchesPending", "budget": budget });
        let method = "Emulation.setVirtualTimePolicy";
        post(&self.context.connection, &self.session, method, params)
    }

    /// Moves a clock that stands still on by some steps, or until the page asks for something.
    pub(super) async fn pace(&mut self) -> Result<(), PageError> {
        let over = Instant::now() + STEPS_TIME_MAX;
        let mut steps = 0..STEPS;
        while steps.next().is_some() && Instant::now() < over {
            if self.clock == Clock::Standing && !self.is_asking() {
                self.run_ahead(STEP)?;
            }
            let next = Instant::now() + STEP;
            loop {
                if self.is_asking() {
                    return self.pause_until_news(OBSERVE_EVERY).await;
                }
                let end = if self.clock == Clock::Running { over } else { next };
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                self.pause_until_news(left).await?;
            }
        }
        Ok(())
    }
}
