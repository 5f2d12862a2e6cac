//! The clocks of one request: its deadline, and what it waits for just now. One timer serves all of
//! them; it is set anew only when it fires too early.

#![expect(clippy::disallowed_methods, reason = "this is where requests are bounded in time")]

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use tokio::time::{Instant, Sleep};

use crate::outcome::{Failure, Reason};

/// Bounds everything that a request waits for.
pub(super) struct Watch<'a> {
    timer: Pin<&'a mut Sleep>,
    started: Instant,
    deadline: Instant,
}

/// What was waited for did not come in time.
pub(super) struct Late;

impl<'a> Watch<'a> {
    /// `timer` may be set to any moment.
    pub(super) fn new(timer: Pin<&'a mut Sleep>, started: Instant, deadline: Instant) -> Self {
        Self { timer, started, deadline }
    }

    /// Waits until `until` at the latest (`Ok(Err(Late))`), and never beyond the deadline.
    ///
    /// The clock is looked at before anything goes on: after a stall of this process the timer has not
    /// fired yet when this is polled.
    pub(super) async fn wait<F: Future>(
        &mut self,
        until: Instant,
        future: F,
    ) -> Result<Result<F::Output, Late>, Failure> {
        let mut future = pin!(future);
        poll_fn(|context| {
            let now = Instant::now();
            if now >= self.deadline {
                return Poll::Ready(Err(self.over()));
            }
            if now >= until {
                return Poll::Ready(Ok(Err(Late)));
            }
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(Ok(output)));
            }
            let wake_at = until.min(self.deadline);
            // Where it is set earlier it stays so until it fires: a chunk of a body costs no timer.
            if self.timer.deadline() > wake_at {
                self.timer.as_mut().reset(wake_at);
            }
            while self.timer.as_mut().poll(context).is_ready() {
                if self.timer.deadline() >= wake_at {
                    let is_over = wake_at == self.deadline;
                    return Poll::Ready(if is_over { Err(self.over()) } else { Ok(Err(Late)) });
                }
                self.timer.as_mut().reset(wake_at);
            }
            Poll::Pending
        })
        .await
    }

    /// Waits no longer than the deadline.
    pub(super) async fn finish<F: Future>(&mut self, future: F) -> Result<F::Output, Failure> {
        let deadline = self.deadline;
        self.wait(deadline, future).await?.map_err(|Late| self.over())
    }

    fn over(&self) -> Failure {
        let after = (self.deadline - self.started).as_millis();
        Failure::new(Reason::Timeout, format!("not finished within {after} ms"))
    }
}
