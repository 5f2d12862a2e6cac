//! Moves the clock of a page.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::settle::PACE;
use super::{PageError, Visit, post};

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

    /// Moves a clock that stands still on by the time that passes.
    pub(super) async fn pace(&mut self) -> Result<(), PageError> {
        if self.clock == Clock::Standing {
            self.run_ahead(PACE)?;
        }
        let over = Instant::now() + PACE;
        while Instant::now() < over {
            self.pause_until_news(over.saturating_duration_since(Instant::now())).await?;
        }
        Ok(())
    }
}
