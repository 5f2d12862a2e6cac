//! The log of a push about its receiver: a line when it stops accepting events, with what to do,
//! and a line when it accepts them again.

#![expect(clippy::disallowed_methods, reason = "log lines are limited by the clock")]

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::delivery::{Attempt, Receiver};

/// The least time between two lines about failures. A receiver that rejects some events and accepts
/// those between them would fill the log otherwise.
const FAILURE_INTERVAL: Duration = Duration::from_mins(1);

/// What the log says about the receiver so far.
#[derive(Debug, Default)]
pub(super) struct ReceiverLog(Mutex<LogState>);

#[derive(Debug, Default)]
struct LogState {
    /// The last line said that the receiver does not accept events.
    is_failing: bool,
    /// Requests that failed since the last line about an end of failures.
    failed: u64,
    /// When a failure may be logged again.
    next_at: Option<Instant>,
}

impl ReceiverLog {
    /// The line for the log after a request.
    pub(super) fn line_after(&self, attempt: &Attempt) -> Option<String> {
        let (mut state, now) = (self.0.lock(), Instant::now());
        if let Some(reason) = attempt.failure() {
            state.failed += 1;
            if state.is_failing || state.next_at.is_some_and(|next| now < next) {
                return None;
            }
            state.is_failing = true;
            state.next_at = Some(now + FAILURE_INTERVAL);
            let advice = advice_after(attempt);
            return Some(format!(
                "the receiver does not accept events: {reason}; {advice}; the next line follows \
                 when it accepts one"
            ));
        }
        if !std::mem::take(&mut state.is_failing) {
            return None;
        }
        let failed = std::mem::take(&mut state.failed);
        Some(format!("the receiver accepts events again; requests that failed: {failed}"))
    }
}

/// What the operator can do about a failure.
fn advice_after(attempt: &Attempt) -> &'static str {
    match attempt.status.map(|status| status.as_u16()) {
        None if attempt.receiver == Receiver::IsForbidden => "or change `url` of the push",
        None => "start the receiver, or change `url` of the push",
        Some(300..=399) => {
            "write the address that accepts a POST as `url` of the push, and start the broker again"
        }
        Some(401 | 403) => "check `url` and `secret-file` of the push",
        Some(404 | 405 | 410) => "check `url` of the push",
        Some(429) => "nothing to do: its events wait",
        Some(500..) => "see the log of the receiver",
        Some(_) => "see the log of the receiver, and check `format` and `template` of the push",
    }
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;
    use tidings_client::TaskEnd;
    use tokio::time::advance;

    use super::*;

    fn attempt(status: Option<u16>) -> Attempt {
        let end = match status {
            Some(200) => TaskEnd::done(),
            _ => TaskEnd::failed("no".to_owned()),
        };
        let status = status.map(|status| StatusCode::from_u16(status).unwrap());
        Attempt { end, status, receiver: Receiver::IsDown, retry_after: None }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_logged_once_until_they_end() {
        let log = ReceiverLog::default();
        let line = |status| log.line_after(&attempt(status));
        assert_eq!(line(Some(200)), None);
        let begin = "the receiver does not accept events: no; ";
        assert!(line(Some(302)).unwrap().starts_with(begin));
        advance(2 * FAILURE_INTERVAL).await;
        assert_eq!([line(None), line(Some(500))], [None, None]);
        let end = "the receiver accepts events again; requests that failed: 3";
        assert_eq!(line(Some(200)).as_deref(), Some(end));
        assert_eq!(line(Some(200)), None);
        assert!(line(None).unwrap().contains("; start the receiver, or "));
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_rejects_every_second_event_gets_two_lines_a_minute() {
        let log = ReceiverLog::default();
        let mut lines = Vec::new();
        for _ in 0..90 {
            lines.extend(log.line_after(&attempt(Some(400))));
            lines.extend(log.line_after(&attempt(Some(200))));
            advance(Duration::from_secs(1)).await;
        }
        let counts: Vec<_> = lines.iter().filter_map(|line| line.split_once("failed: ")).collect();
        assert_eq!((lines.len(), counts.len()), (4, 2), "{lines:?}");
        assert_eq!([counts[0].1, counts[1].1], ["1", "60"], "no failure is left out");
    }
}
