//! Waits until somebody listens at an endpoint, and says why nobody is reached: libraries try for
//! ever, in silence.

#![expect(
    clippy::disallowed_methods,
    reason = "tries again after a pause, and says the same seldom"
)]

use std::time::Duration;
use std::{fmt, io};

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::endpoint::Connect;
use super::limits::AGAIN;

/// How often the same trouble is logged at most.
const SAME_PACE: Duration = Duration::from_mins(1);

/// How long a connection may take to come, and who is there to greet.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Returns when a connection has come, which is closed again.
pub(crate) async fn reach(endpoint: &Connect) {
    let mut trouble = Trouble::new(endpoint);
    loop {
        let connected = timeout(CONNECT_MAX, TcpStream::connect(endpoint.place())).await;
        let error = match connected {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        trouble.say(error);
        sleep(AGAIN).await;
    }
}

/// What is wrong with an endpoint, said when it is news.
#[derive(Debug)]
pub(crate) struct Trouble<'a> {
    endpoint: &'a Connect,
    /// What was said last, and when.
    last: Option<(String, Instant)>,
}

impl<'a> Trouble<'a> {
    pub(crate) fn new(endpoint: &'a Connect) -> Self {
        Self { endpoint, last: None }
    }

    /// Logs it. The reason must not hold anything that comes from the other side.
    pub(crate) fn say(&mut self, reason: impl fmt::Display) {
        if self.is_news(&reason, Instant::now()) {
            tracing::warn!("cannot hear {}: {reason}; it is tried until that works", self.endpoint);
        }
    }

    /// Whether this is to be said: it is another one, or was said long ago.
    fn is_news(&mut self, reason: &impl fmt::Display, now: Instant) -> bool {
        let reason = reason.to_string();
        if self.last.as_ref().is_some_and(|(last, at)| *last == reason && now < *at + SAME_PACE) {
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
    fn the_same_trouble_is_said_once_a_minute_and_another_one_at_once() {
        let endpoint = "tcp://a.example:1".parse().unwrap();
        let (begin, mut trouble) = (Instant::now(), Trouble::new(&endpoint));
        let mut said = Vec::new();
        for (second, reason) in
            [(0, "a"), (1, "a"), (59, "a"), (60, "a"), (61, "a"), (62, "b"), (63, "b"), (64, "a")]
        {
            if trouble.is_news(&reason, begin + Duration::from_secs(second)) {
                said.push((second, reason));
            }
        }
        assert_eq!(said, [(0, "a"), (60, "a"), (62, "b"), (64, "a")]);
    }
}
