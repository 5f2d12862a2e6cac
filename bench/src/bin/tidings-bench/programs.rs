//! The programs of the comparison.

use clap::ValueEnum;

/// A program of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Program {
    /// Ours
    Tidings,
    /// NATS, without storage
    Nats,
    /// A stream of NATS on disk
    Jetstream,
    /// Pub/sub of Redis
    Redis,
    /// A stream of Redis on disk
    RedisStreams,
    /// Only copies bytes to subscribers, which is the limit of all brokers
    Relay,
    /// The crawler GNU Wget2
    Wget2,
    /// Crawlee with Playwright
    Crawlee,
}

/// The name on the command line.
pub(crate) fn name(value: impl ValueEnum + Copy) -> String {
    value.to_possible_value().expect("no value is skipped").get_name().to_owned()
}
