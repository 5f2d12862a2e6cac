//! `idle`: memory of idle subscribers.

use clap::Args;
use serde_json::{Value, json};
use tidings_bench::idle::Idle;
use tidings_load::ProgressFn;
use tidings_load::command::flags::CommonFlags;
use tidings_load::command::protection::ProtectionFlags;
use tidings_load::command::text::plural;
use tidings_load::command::{Benchmark, Outcome, Subject};

/// The flags of `idle`.
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
        subject: &Subject<'_>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let idle = Idle { subscribers: self.subscribers.into(), events: self.events.into() };
        idle.measure(subject.target, watch).map(Outcome::from)
    }
}
