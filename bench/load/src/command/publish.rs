//! `publish`: confirmed publishes per second.

use clap::Args;
use serde_json::{Value, json};

use crate::ProgressFn;
use crate::command::flags::{CommonFlags, RunFlags, WARM_UP};
use crate::command::text::{format_count, plural};
use crate::command::{Benchmark, Outcome, Subject};
use crate::publish::Publish;
use crate::wire::Sync;

/// The flags of `publish`.
#[derive(Debug, Clone, Args)]
pub struct PublishArgs {
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
        subject: &Subject<'_>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let publish = Publish {
            publishers: self.publishers.into(),
            window: self.window,
            run: self.length.run(),
            runs: self.length.runs.into(),
            warm_up: WARM_UP,
            // A topic in memory does not sync, so the loop would not be comparable.
            bare_loop: subject.data.filter(|_| self.common.sync != Some(Sync::Memory)),
        };
        publish.measure(subject.target, watch).map(Outcome::from)
    }
}
