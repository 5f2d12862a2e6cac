//! `latency`: time from publish to delivery.

use clap::Args;
use serde_json::{Value, json};
use tidings_bench::latency::Latency;
use tidings_load::ProgressFn;
use tidings_load::command::flags::{CommonFlags, RunFlags, WARM_UP};
use tidings_load::command::text::{format_count, plural};
use tidings_load::command::{Benchmark, Outcome, Subject};

/// The flags of `latency`.
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
        subject: &Subject<'_>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let latency = Latency {
            rate: self.rate,
            subscribers: self.subscribers.into(),
            run: self.length.run(),
            runs: self.length.runs.into(),
            warm_up: WARM_UP,
        };
        latency.measure(subject.target, watch).map(Outcome::from)
    }
}
