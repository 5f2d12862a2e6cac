//! `replay`: stored events to one subscriber.

use clap::Args;
use serde_json::{Value, json};
use tidings_bench::replay::Replay;
use tidings_load::ProgressFn;
use tidings_load::command::flags::CommonFlags;
use tidings_load::command::text::plural;
use tidings_load::command::{Benchmark, Outcome, Subject};

/// The flags of `replay`.
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
        subject: &Subject<'_>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let replay = Replay { events: self.events, runs: self.runs.into() };
        replay.measure(subject.target, watch).map(Outcome::from)
    }
}
