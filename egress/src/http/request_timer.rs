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

    /// Runs a future until `until` (then `Ok(Err(Late))`), and never beyond the deadline.
    ///
    /// The clock is read before anything else: after a stall of this process, the timer may not
    /// have fired yet.
    pub(super) async fn run_until<F: Future>(
        &mut self,
        until: Instant,
        future: F,
    ) -> Result<Result<F::Output, Elapsed>, Failure> {
        let mut future = pin!(future);
        poll_fn(|context| {
            let now = Instant::now();
            if now >= self.deadline {
                return Poll::Ready(Err(self.timeout_failure()));
            }
            if now >= until {
                return Poll::Ready(Ok(Err(Elapsed)));
            }
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(Ok(output)));
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
