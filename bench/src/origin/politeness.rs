//! The rule that every crawl is judged by: one request to a host at a time, each at least the delay
//! after the end of those before.

use std::time::Duration;

/// The requests that one host received, in the order of their start. Times are durations since the
/// start of the server.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostRequests {
    latest_end: Option<Duration>,
}

impl HostRequests {
    /// The end of the latest response so far.
    pub fn latest_end(&self) -> Option<Duration> {
        self.latest_end
    }

    /// By how much a request that starts now comes too early; zero if it keeps the delay.
    pub fn early_by(&self, start: Duration, delay: Duration) -> Duration {
        self.latest_end.map_or(Duration::ZERO, |end| (end + delay).saturating_sub(start))
    }

    /// Records a request. The end is unknown if the client disconnected; its start stands for it,
    /// which is never later.
    pub fn record(&mut self, start: Duration, end: Option<Duration>) {
        self.latest_end = self.latest_end.max(Some(end.unwrap_or(start)));
    }
}
