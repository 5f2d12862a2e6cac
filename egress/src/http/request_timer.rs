//! The time limits of one request: its deadline, and that of the current step. A single timer
//! serves both; it is reset only when it fires too early.

#![expect(clippy::disallowed_methods, reason = "requests have time limits here")]

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use tokio::time::{Instant, Sleep};

use crate::failure::{Failure, Reason};

/// Limits the time of everything that a request waits for.
pub struct RequestTimer<'a> {
    sleep: Pin<&'a mut Sleep>,
    started: Instant,
    deadline: Instant,
}

/// The step did not finish in time.
pub(super) struct Elapsed;

impl<'a> RequestTimer<'a> {
    /// `sleep` may be set to any time.
    pub fn new(sleep: Pin<&'a mut Sleep>, started: Instant, deadline: Instant) -> Self {
        Self { sleep, started, deadline }
    }

    /// Runs a future until `until` (then `Ok(Err(Elapsed))`), and never beyond the deadline.
    ///
    /// After a stall of this process, the timer may not have fired yet, so the clock is read. Nothing
    /// happens beyond the deadline, but what a server has sent by `until` may be read later.
    pub(super) async fn run_until<F: Future>(
        &mut self,
        until: Instant,
        future: F,
    ) -> Result<Result<F::Output, Elapsed>, Failure> {
        let (mut future, mut turn) = (pin!(future), pin!(tokio::task::yield_now()));
        poll_fn(|context| {
            let now = Instant::now();
            if now >= self.deadline {
                return Poll::Ready(Err(self.timeout_failure()));
            }
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(Ok(output)));
            }
            if now >= until {
                // The runtime learns what has arrived only when this task yields.
                return turn.as_mut().poll(context).map(|()| Ok(Err(Elapsed)));
            }
            let wake_at = until.min(self.deadline);
            // An earlier setting is kept until it fires, so a chunk of a body does not reset the
            // timer.
            if self.sleep.deadline() > wake_at {
                self.sleep.as_mut().reset(wake_at);
            }
            while self.sleep.as_mut().poll(context).is_ready() {
                if self.sleep.deadline() >= wake_at {
                    let is_over = wake_at == self.deadline;
                    return Poll::Ready(if is_over {
                        Err(self.timeout_failure())
                    } else {
                        Ok(Err(Elapsed))
                    });
                }
                self.sleep.as_mut().reset(wake_at);
            }
            Poll::Pending
        })
        .await
    }

    /// Runs a future until the deadline.
    pub async fn run<F: Future>(&mut self, future: F) -> Result<F::Output, Failure> {
        let deadline = self.deadline;
        self.run_until(deadline, future).await?.map_err(|Elapsed| self.timeout_failure())
    }

    fn timeout_failure(&self) -> Failure {
        let after = (self.deadline - self.started).as_millis();
        Failure::new(Reason::Timeout, format!("not finished within {after} ms"))
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn after_a_stall_only_what_has_arrived_counts() {
        let started = Instant::now();
        let deadline = started + Duration::from_mins(1);
        let mut sleep = pin!(tokio::time::sleep_until(deadline));
        let mut timer = RequestTimer::new(sleep.as_mut(), started, deadline);
        let until = started + Duration::from_secs(15);
        tokio::time::advance(Duration::from_secs(20)).await;
        let arrives = async {
            tokio::task::yield_now().await;
            7
        };
        assert!(matches!(timer.run_until(until, arrives).await, Ok(Ok(7))));
        assert!(matches!(timer.run_until(until, pending::<()>()).await, Ok(Err(Elapsed))));
        tokio::time::advance(Duration::from_mins(1)).await;
        let late = timer.run_until(until, ready(7)).await.map(Result::ok).unwrap_err();
        assert_eq!(late.reason, Reason::Timeout);
    }
}
