//! `fan-in`: deliveries per second from many publishers.

use clap::Args;
use serde_json::{Value, json};
use tidings_load::ProgressFn;
use tidings_load::command::fan_out::{fan, fan_title};
use tidings_load::command::flags::{CommonFlags, RunFlags};
use tidings_load::command::{Benchmark, Outcome, Subject};

/// The flags of `fan-in`.
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
        subject: &Subject<'_>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let Self { publishers, subscribers, window, length, .. } = self;
        fan(*publishers, *subscribers, *window, length)
            .measure(subject.target, watch)
            .map(Outcome::from)
    }
}
