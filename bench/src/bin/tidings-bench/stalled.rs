//! `stalled`: one of the subscribers stops reading.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tidings_bench::stalled::Stalled;
use tidings_load::ProgressFn;
use tidings_load::command::flags::{CommonFlags, WARM_UP};
use tidings_load::command::text::{format_count, plural};
use tidings_load::command::{Benchmark, Outcome, Subject};

/// The flags of `stalled`.
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
        subject: &Subject<'_>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let stalled = Stalled {
            publishers: self.publishers.into(),
            subscribers: self.subscribers.into(),
            window: self.window,
            run: Duration::from_secs(self.seconds),
            warm_up: WARM_UP,
        };
        let (figures, end) = stalled.measure(subject.target, watch)?;
        let words = vec![("stalled_end", "stalled: in the end", end.as_str().to_owned())];
        Ok(Outcome { figures, words })
    }
}
