//! `connect`: connections a second.

use clap::Args;
use serde_json::{Value, json};
use tidings_bench::connect::Connect;
use tidings_load::ProgressFn;
use tidings_load::command::flags::{CommonFlags, RunFlags};
use tidings_load::command::{Benchmark, Outcome, Subject};

/// The flags of `connect`.
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
        subject: &Subject<'_>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let connect = Connect { run: self.length.run(), runs: self.length.runs.into() };
        connect.measure(subject.target, watch).map(Outcome::from)
    }
}
