//! `fan-out`: deliveries per second.

use clap::Args;
use serde_json::{Value, json};

use crate::command::flags::{CommonFlags, RunFlags, WARM_UP};
use crate::command::protection::ProtectionFlags;
use crate::command::text::{format_count, plural};
use crate::command::{Benchmark, Outcome, Subject};
use crate::compare::EncryptionRate;
use crate::fan::Fan;
use crate::{ProgressFn, Target, openssl};

/// The flags of `fan-out`.
#[derive(Debug, Clone, Args)]
pub struct FanOutArgs {
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
        subject: &Subject<'_>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let Self { publishers, subscribers, window, length, common, guard } = self;
        let fan = fan(*publishers, *subscribers, *window, length);
        if !guard.is_some() {
            return fan.measure(subject.target, watch).map(Outcome::from);
        }
        let (own, wire) = guard.start_second(subject.program, common)?;
        let server = own.server();
        let guarded = Target {
            wire: &wire,
            address: server.address(),
            server: Some(server),
            ..subject.target
        };
        let encryption = || openssl::aes_gcm_bytes_per_second(common.pin.map(|(server, _)| server));
        let encryption = guard.tls.then_some(&encryption as &EncryptionRate<'_>);
        fan.compare(subject.target, guarded, encryption, watch).map(Outcome::from)
    }
}

/// The measurement of these flags.
pub fn fan(publishers: u16, subscribers: u16, window: u64, length: &RunFlags) -> Fan {
    Fan {
        publishers: publishers.into(),
        subscribers: subscribers.into(),
        window,
        run: length.run(),
        runs: length.runs.into(),
        warm_up: WARM_UP,
    }
}

/// These flags, for the title of a report.
pub fn fan_title(publishers: u16, subscribers: u16, window: u64, length: &RunFlags) -> String {
    format!(
        "{} to {}, window {}, {}",
        plural(publishers.into(), "publisher"),
        plural(subscribers.into(), "subscriber"),
        format_count(window),
        length.title()
    )
}
