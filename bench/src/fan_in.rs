//! `fan-in`: deliveries per second from many publishers.

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tidings_load::command::{Benchmark, Outcome};
use tidings_load::fan::Fan;
use tidings_load::{Progress, Target};

/// Many publishers and few subscribers.
#[derive(Debug, Clone, Copy, Args, Serialize)]
#[command(mut_arg("publishers", |arg| arg.default_value("10")))]
#[command(mut_arg("subscribers", |arg| arg.default_value("1")))]
pub struct FanIn {
    /// The load and its duration.
    #[command(flatten)]
    #[serde(flatten)]
    pub fan: Fan,
}

impl Benchmark for FanIn {
    const NAME: &'static str = "fan-in";

    fn title(&self) -> String {
        self.fan.title()
    }

    fn measure(&self, target: Target<'_>, progress: Progress<'_>) -> Result<Outcome> {
        self.fan.measure(target, progress).map(Outcome::from)
    }
}
