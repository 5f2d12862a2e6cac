//! `fan-out`: deliveries per second, also by a broker that checks tokens or encrypts.

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::command::broker_process::DataDir;
use crate::command::protection::ProtectionFlags;
use crate::command::{Benchmark, Outcome, Subject};
use crate::compare::EncryptionRate;
use crate::fan::Fan;
use crate::{Progress, Target, openssl};

/// Measures what a protection costs under this load.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub struct FanOut {
    /// The load and its duration.
    #[command(flatten)]
    #[serde(flatten)]
    pub fan: Fan,

    /// The protection of a second broker.
    #[command(flatten)]
    #[serde(flatten)]
    pub guard: ProtectionFlags,
}

impl Benchmark for FanOut {
    const NAME: &'static str = "fan-out";

    fn title(&self) -> String {
        self.fan.title() + self.guard.title()
    }

    fn measure(&self, target: Target<'_>, progress: Progress<'_>) -> Result<Outcome> {
        self.fan.measure(target, progress).map(Outcome::from)
    }

    fn measure_subject(&self, subject: &Subject<'_>, progress: Progress<'_>) -> Result<Outcome> {
        let &Subject { target, common, program, .. } = subject;
        if !self.guard.is_some() {
            return self.measure(target, progress);
        }
        // Its data lie beside those of the first broker.
        let data = DataDir::new(common.data.as_deref(), "-guarded")?;
        let (own, wire) = self.guard.start(program, common, data, None)?;
        let server = own.server();
        let guarded =
            Target { wire: &wire, address: server.address(), server: Some(server), ..target };
        let encryption = || openssl::aes_gcm_bytes_per_second(common.pin.map(|(server, _)| server));
        let encryption = self.guard.tls.then_some(&encryption as &EncryptionRate<'_>);
        self.fan.compare(target, guarded, encryption, progress).map(Outcome::from)
    }
}
