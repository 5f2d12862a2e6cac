//! `queue`: tasks per second.

use clap::Args;
use serde_json::{Value, json};

use crate::ProgressFn;
use crate::command::flags::{CommonFlags, RunFlags, WARM_UP};
use crate::command::text::{format_count, plural};
use crate::command::{Benchmark, Outcome, Subject};
use crate::queue::{KEYS_MAX, Queue};

/// The flags of `queue`.
#[derive(Debug, Clone, Args)]
pub struct QueueArgs {
    /// Connections that work
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    workers: u16,

    /// Keys (hosts) of the tasks; one task per key at once
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=i64::from(KEYS_MAX)))]
    keys: u32,

    /// Most tasks that a worker holds at once
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    credit: u64,

    /// Most tasks that are published and not acknowledged
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    window: u64,

    #[command(flatten)]
    length: RunFlags,

    #[command(flatten)]
    common: CommonFlags,
}

impl Benchmark for QueueArgs {
    const NAME: &'static str = "queue";

    const MEASURES_DISK: bool = true;

    fn common(&self) -> &CommonFlags {
        &self.common
    }

    fn settings(&self) -> Value {
        json!({
            "workers": self.workers,
            "keys": self.keys,
            "credit": self.credit,
            "window": self.window,
            "seconds": self.length.seconds,
        })
    }

    fn title(&self) -> String {
        format!(
            "{}, {}, credit {}, window {}, {}",
            plural(self.workers.into(), "worker"),
            plural(self.keys.into(), "key"),
            format_count(self.credit),
            format_count(self.window),
            self.length.title()
        )
    }

    fn measure(
        &self,
        subject: &Subject<'_>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let queue = Queue {
            workers: self.workers.into(),
            keys: self.keys,
            credit: self.credit,
            window: self.window,
            run: self.length.run(),
            runs: self.length.runs.into(),
            warm_up: WARM_UP,
        };
        queue.measure(subject.target, watch).map(Outcome::from)
    }
}
