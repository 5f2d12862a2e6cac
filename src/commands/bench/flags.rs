//! The flags of `tidings bench` and the measurements of its subcommands.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tidings_bench::compare::EncryptionRate;
use tidings_bench::connect::Connect;
use tidings_bench::fan::Fan;
use tidings_bench::idle::Idle;
use tidings_bench::latency::Latency;
use tidings_bench::publish::Publish;
use tidings_bench::replay::Replay;
use tidings_bench::stalled::Stalled;
use tidings_bench::wire::Sync;
use tidings_bench::{ProgressFn, Target, openssl};

use super::protection::ProtectionFlags;
use super::{Benchmark, EXAMPLES, Outcome};
use crate::flags::address::BrokerAddress;
use crate::terminal::output::{format_count, plural};

/// The time before the first run, in which caches and buffers fill.
pub(super) const WARM_UP: Duration = Duration::from_millis(500);

/// The flags of every subcommand.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CommonFlags {
    /// Bytes of a payload
    #[arg(long, value_name = "BYTES", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=61_440))]
    pub(super) size: u32,

    /// Measure the broker at HOST:PORT instead of starting one
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["pin", "threads", "data"])]
    pub(super) broker: Option<BrokerAddress>,

    /// Pin the broker to one processor and the load generator to another
    #[arg(long, value_name = "SERVER,CLIENT", value_parser = parse_pin)]
    pub(super) pin: Option<(usize, usize)>,

    /// Threads of the broker that is started [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) threads: Option<u16>,

    /// When an event is confirmed [default: the default of the broker]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(super) sync: Option<Sync>,

    /// Data directory of the broker that is started; it is kept [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    pub(super) data: Option<PathBuf>,

    /// Subscribe by HTTP with Server-Sent Events; with --broker, at this address
    #[arg(
        long,
        value_name = "HOST:PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "own"
    )]
    pub(super) sse: Option<SseTarget>,

    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

/// The address of the event streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SseTarget {
    /// The broker that is started.
    Own,
    /// This address.
    Broker(BrokerAddress),
}

impl FromStr for SseTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "own" { Ok(Self::Own) } else { text.parse().map(Self::Broker) }
    }
}

fn parse_pin(text: &str) -> Result<(usize, usize), String> {
    let (server, client) = text.split_once(',').ok_or("write two processors, such as 0,1")?;
    let number = |text: &str| {
        text.trim().parse().map_err(|_| format!("{text} is not the number of a processor"))
    };
    Ok((number(server)?, number(client)?))
}

/// The length of a measurement.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunFlags {
    /// Length of a run
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(super) seconds: u64,

    /// Number of runs; the median is reported
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) runs: u16,
}

impl RunFlags {
    pub(super) fn run(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    pub(super) fn title(&self) -> String {
        format!("median of {} of {} s", plural(self.runs.into(), "run"), self.seconds)
    }
}

/// The flags of `tidings bench fan-out`.
#[derive(Debug, Clone, Args)]
pub(crate) struct FanOutArgs {
    /// Connections that publish
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    publishers: u16,

    /// Connections that subscribe
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    subscribers: u16,

    /// Most messages between a publisher and the slowest subscriber
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    window: u64,

    #[command(flatten)]
    guard: ProtectionFlags,

    #[command(flatten)]
    length: RunFlags,

    #[command(flatten)]
    common: CommonFlags,
}

impl Benchmark for FanOutArgs {
    const NAME: &'static str = "fan-out";

    fn common(&self) -> &CommonFlags {
        &self.common
    }

    fn settings(&self) -> Value {
        json!({
            "publishers": self.publishers,
            "subscribers": self.subscribers,
            "window": self.window,
            "tokens": self.guard.tokens,
            "tls": self.guard.tls,
            "seconds": self.length.seconds,
        })
    }

    fn title(&self) -> String {
        let Self { publishers, subscribers, window, length, .. } = self;
        fan_title(*publishers, *subscribers, *window, length) + self.guard.title()
    }

    fn measure(
        &self,
        target: Target<'_>,
        _: Option<&Path>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let Self { publishers, subscribers, window, length, common, guard } = self;
        let fan = fan(*publishers, *subscribers, *window, length);
        if !guard.is_some() {
            return fan.measure(target, watch).map(Outcome::from);
        }
        let (own, wire) = guard.start_second(common)?;
        let server = own.server();
        let guarded =
            Target { wire: &wire, address: server.address(), server: Some(server), ..target };
        let encryption = || openssl::aes_gcm_bytes_per_second(common.pin.map(|(server, _)| server));
        let encryption = guard.tls.then_some(&encryption as &EncryptionRate<'_>);
        fan.compare(target, guarded, encryption, watch).map(Outcome::from)
    }
}

/// The flags of `tidings bench fan-in`.
#[derive(Debug, Clone, Args)]
pub(crate) struct FanInArgs {
    /// Connections that publish
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    publishers: u16,

    /// Connections that subscribe
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    subscribers: u16,

    /// Most messages between a publisher and the slowest subscriber
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    window: u64,

    #[command(flatten)]
    length: RunFlags,

    #[command(flatten)]
    common: CommonFlags,
}

impl Benchmark for FanInArgs {
    const NAME: &'static str = "fan-in";

    fn common(&self) -> &CommonFlags {
        &self.common
    }

    fn settings(&self) -> Value {
        json!({
            "publishers": self.publishers,
            "subscribers": self.subscribers,
            "window": self.window,
            "seconds": self.length.seconds,
        })
    }

    fn title(&self) -> String {
        let Self { publishers, subscribers, window, length, .. } = self;
        fan_title(*publishers, *subscribers, *window, length)
    }

    fn measure(
        &self,
        target: Target<'_>,
        _: Option<&Path>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let Self { publishers, subscribers, window, length, .. } = self;
        fan(*publishers, *subscribers, *window, length).measure(target, watch).map(Outcome::from)
    }
}

fn fan(publishers: u16, subscribers: u16, window: u64, length: &RunFlags) -> Fan {
    Fan {
        publishers: publishers.into(),
        subscribers: subscribers.into(),
        window,
        run: length.run(),
        runs: length.runs.into(),
        warm_up: WARM_UP,
    }
}

fn fan_title(publishers: u16, subscribers: u16, window: u64, length: &RunFlags) -> String {
    format!(
        "{} to {}, window {}, {}",
        plural(publishers.into(), "publisher"),
        plural(subscribers.into(), "subscriber"),
        format_count(window),
        length.title()
    )
}

/// The flags of `tidings bench latency`.
#[derive(Debug, Clone, Args)]
pub(crate) struct LatencyArgs {
    /// Events a second
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,

    /// Connections that subscribe
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    subscribers: u16,

    #[command(flatten)]
    length: RunFlags,

    #[command(flatten)]
    common: CommonFlags,
}

impl Benchmark for LatencyArgs {
    const NAME: &'static str = "latency";

    fn common(&self) -> &CommonFlags {
        &self.common
    }

    fn settings(&self) -> Value {
        json!({ "rate": self.rate, "subscribers": self.subscribers, "seconds": self.length.seconds })
    }

    fn title(&self) -> String {
        format!(
            "{} events/s to {}, {}",
            format_count(self.rate.into()),
            plural(self.subscribers.into(), "subscriber"),
            self.length.title()
        )
    }

    fn measure(
        &self,
        target: Target<'_>,
        _: Option<&Path>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let latency = Latency {
            rate: self.rate,
            subscribers: self.subscribers.into(),
            run: self.length.run(),
            runs: self.length.runs.into(),
            warm_up: WARM_UP,
        };
        latency.measure(target, watch).map(Outcome::from)
    }
}

/// The flags of `tidings bench idle`.
#[derive(Debug, Clone, Args)]
pub(crate) struct IdleArgs {
    /// Connections that subscribe
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(1..))]
    subscribers: u16,

    /// Events, one after the other, each to all subscribers
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    events: u16,

    #[command(flatten)]
    guard: ProtectionFlags,

    #[command(flatten)]
    common: CommonFlags,
}

impl Benchmark for IdleArgs {
    const NAME: &'static str = "idle";

    fn common(&self) -> &CommonFlags {
        &self.common
    }

    fn settings(&self) -> Value {
        json!({
            "subscribers": self.subscribers,
            "events": self.events,
            "tokens": self.guard.tokens,
            "tls": self.guard.tls,
        })
    }

    fn guard(&self) -> ProtectionFlags {
        self.guard
    }

    fn title(&self) -> String {
        format!(
            "{}, {} to all of them{}",
            plural(self.subscribers.into(), "subscriber"),
            plural(self.events.into(), "event"),
            self.guard.title()
        )
    }

    fn measure(
        &self,
        target: Target<'_>,
        _: Option<&Path>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let idle = Idle { subscribers: self.subscribers.into(), events: self.events.into() };
        idle.measure(target, watch).map(Outcome::from)
    }
}

/// The flags of `tidings bench publish`.
#[derive(Debug, Clone, Args)]
pub(crate) struct PublishArgs {
    /// Connections that publish
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    publishers: u16,

    /// Most publishes that are not confirmed, all connections together
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    window: u64,

    #[command(flatten)]
    length: RunFlags,

    #[command(flatten)]
    common: CommonFlags,
}

impl Benchmark for PublishArgs {
    const NAME: &'static str = "publish";

    const MEASURES_DISK: bool = true;

    fn common(&self) -> &CommonFlags {
        &self.common
    }

    fn settings(&self) -> Value {
        json!({ "publishers": self.publishers, "window": self.window, "seconds": self.length.seconds })
    }

    fn title(&self) -> String {
        format!(
            "{}, window {}, {}",
            plural(self.publishers.into(), "publisher"),
            format_count(self.window),
            self.length.title()
        )
    }

    fn measure(
        &self,
        target: Target<'_>,
        data: Option<&Path>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let publish = Publish {
            publishers: self.publishers.into(),
            window: self.window,
            run: self.length.run(),
            runs: self.length.runs.into(),
            warm_up: WARM_UP,
            // A topic in memory does not sync, so the loop would not be comparable.
            bare_loop: data.filter(|_| self.common.sync != Some(Sync::Memory)),
        };
        publish.measure(target, watch).map(Outcome::from)
    }
}

/// The flags of `tidings bench replay`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReplayArgs {
    /// Events that are stored
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    events: u64,

    /// How often they are read
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,

    #[command(flatten)]
    common: CommonFlags,
}

impl Benchmark for ReplayArgs {
    const NAME: &'static str = "replay";

    const MEASURES_DISK: bool = true;

    fn common(&self) -> &CommonFlags {
        &self.common
    }

    fn settings(&self) -> Value {
        json!({ "events": self.events })
    }

    fn title(&self) -> String {
        format!("{} read {} times", plural(self.events, "event"), self.runs)
    }

    fn measure(
        &self,
        target: Target<'_>,
        _: Option<&Path>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let replay = Replay { events: self.events, runs: self.runs.into() };
        replay.measure(target, watch).map(Outcome::from)
    }
}

/// The flags of `tidings bench connect`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConnectArgs {
    #[command(flatten)]
    length: RunFlags,

    #[command(flatten)]
    common: CommonFlags,
}

impl Benchmark for ConnectArgs {
    const NAME: &'static str = "connect";

    fn common(&self) -> &CommonFlags {
        &self.common
    }

    fn settings(&self) -> Value {
        json!({ "seconds": self.length.seconds })
    }

    fn title(&self) -> String {
        self.length.title()
    }

    fn measure(
        &self,
        target: Target<'_>,
        _: Option<&Path>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let connect = Connect { run: self.length.run(), runs: self.length.runs.into() };
        connect.measure(target, watch).map(Outcome::from)
    }
}

/// The flags of `tidings bench stalled`.
#[derive(Debug, Clone, Args)]
pub(crate) struct StalledArgs {
    /// Connections that publish
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    publishers: u16,

    /// Connections that subscribe
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(2..))]
    subscribers: u16,

    /// Most messages between a publisher and the slowest of the others
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    window: u64,

    /// Seconds before and after one subscriber stops reading
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    #[command(flatten)]
    common: CommonFlags,
}

impl Benchmark for StalledArgs {
    const NAME: &'static str = "stalled";

    fn common(&self) -> &CommonFlags {
        &self.common
    }

    fn settings(&self) -> Value {
        json!({ "publishers": self.publishers, "subscribers": self.subscribers, "window": self.window, "seconds": self.seconds })
    }

    fn title(&self) -> String {
        format!(
            "{} to {}, of which one stops reading, window {}, {} s before and after",
            plural(self.publishers.into(), "publisher"),
            plural(self.subscribers.into(), "subscriber"),
            format_count(self.window),
            self.seconds
        )
    }

    fn measure(
        &self,
        target: Target<'_>,
        _: Option<&Path>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let stalled = Stalled {
            publishers: self.publishers.into(),
            subscribers: self.subscribers.into(),
            window: self.window,
            run: Duration::from_secs(self.seconds),
            warm_up: WARM_UP,
        };
        let (figures, end) = stalled.measure(target, watch)?;
        let words = vec![("stalled_end", "stalled: in the end", end.as_str().to_owned())];
        Ok(Outcome { figures, words })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pin_needs_two_processors() {
        assert_eq!(parse_pin("0, 1"), Ok((0, 1)));
        assert!(parse_pin("0").is_err() && parse_pin("a,b").is_err());
    }
}
