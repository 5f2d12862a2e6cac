//! Waits until a foreign socket accepts connections, and logs why it does not. The libraries retry
//! forever without a message.

#![expect(clippy::disallowed_methods, reason = "waits between attempts, and limits log lines")]

use std::time::Duration;
use std::{fmt, io};

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::endpoint::ConnectEndpoint;
use super::limits::RETRY_DELAY;

/// Least time between two log lines with the same error.
const REPEAT_INTERVAL: Duration = Duration::from_mins(1);

/// Time limit for a connection, and for the ZeroMQ handshake.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns once a connection was accepted. That connection is closed again.
pub(crate) async fn wait_until_reachable(endpoint: &ConnectEndpoint) {
    let mut error_log = ConnectErrorLog::new(endpoint);
    loop {
        let result = timeout(CONNECT_TIMEOUT, TcpStream::connect(endpoint.host_and_port())).await;
        let error = match result {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        error_log.log(error);
        sleep(RETRY_DELAY).await;
    }
}

/// Logs why an endpoint cannot be reached, without repetition.
#[derive(Debug)]
pub(crate) struct ConnectErrorLog<'a> {
    endpoint: &'a ConnectEndpoint,
    /// The last error that was logged, and when.
    last: Option<(String, Instant)>,
}

impl<'a> ConnectErrorLog<'a> {
    pub(crate) fn new(endpoint: &'a ConnectEndpoint) -> Self {
        Self { endpoint, last: None }
    }

    /// Logs an error. The reason must not contain text from the peer.
    pub(crate) fn log(&mut self, reason: impl fmt::Display) {
        if self.is_due(&reason, Instant::now()) {
            tracing::warn!(
                "cannot connect to {}: {reason}; retrying until it succeeds",
                self.endpoint
            );
        }
    }

    /// Whether the error is logged: it is a new one, or was last logged long ago.
    fn is_due(&mut self, reason: &impl fmt::Display, now: Instant) -> bool {
        let reason = reason.to_string();
        if self
            .last
            .as_ref()
            .is_some_and(|(last, at)| *last == reason && now < *at + REPEAT_INTERVAL)
        {
            return false;
        }
        self.last = Some((reason, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_error_is_logged_once_a_minute_and_another_one_at_once() {
        let endpoint = "tcp://a.example:1".parse().unwrap();
        let (start, mut error_log) = (Instant::now(), ConnectErrorLog::new(&endpoint));
        let mut logged = Vec::new();
        for (second, reason) in
            [(0, "a"), (1, "a"), (59, "a"), (60, "a"), (61, "a"), (62, "b"), (63, "b"), (64, "a")]
        {
            if error_log.is_due(&reason, start + Duration::from_secs(second)) {
                logged.push((second, reason));
            }
        }
        assert_eq!(logged, [(0, "a"), (60, "a"), (62, "b"), (64, "a")]);
    }
}
