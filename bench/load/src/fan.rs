//! Fan-out and fan-in: deliveries per second.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::command::flags::RunFlags;
use crate::figure::to_f64;
use crate::load::{Load, LoadSize};
use crate::server::{CpuCost, RunStart};
use crate::{Figure, Progress, Target};

/// A load and its duration.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub struct Fan {
    /// Connections and window.
    #[command(flatten)]
    #[serde(flatten)]
    pub size: LoadSize,

    /// Duration of the runs, which use the same connections.
    #[command(flatten)]
    #[serde(flatten)]
    pub length: RunFlags,
}

impl Fan {
    /// For the title of a report.
    pub fn title(&self) -> String {
        format!("{}, {}", self.size.title(""), self.length.title())
    }

    /// Runs the measurement. A missing event is an error.
    pub fn measure(&self, target: Target<'_>, progress: Progress<'_>) -> Result<Vec<Figure>> {
        let mut load = Load::connect(target, self.size, progress)?;
        load.run_until(Instant::now() + self.length.warm_up, progress)?;
        let mut rates = DeliveryRates::default();
        for _ in 0..self.length.runs {
            rates.run(&mut load, target, self.length.run(), progress)?;
        }
        if self.size.publishers > 0 {
            load.finish(progress)?;
        }
        rates.figures(target)
    }
}

/// Rates and costs of the runs.
#[derive(Debug)]
pub struct DeliveryRates {
    deliveries: Figure,
    publishes: Figure,
    cost: CpuCost,
}

impl Default for DeliveryRates {
    fn default() -> Self {
        Self {
            deliveries: Figure::new("deliveries_per_second", "deliveries/s", 0),
            publishes: Figure::new("publishes_per_second", "publishes/s", 0),
            cost: CpuCost::per_thousand_deliveries(),
        }
    }
}

impl DeliveryRates {
    /// Runs the load for the time `length`.
    pub fn run(
        &mut self,
        load: &mut Load,
        target: Target<'_>,
        length: Duration,
        progress: Progress<'_>,
    ) -> Result<()> {
        let (before, start) = (load.counters(), RunStart::now(target.server)?);
        load.run_until(start.began + length, progress)?;
        let after = load.counters();
        let delivered = after.delivered - before.delivered;
        let took = self.cost.end_run(start, target.server, delivered)?;
        self.deliveries.runs.push(to_f64(delivered) / took);
        self.publishes.runs.push(to_f64(after.published - before.published) / took);
        Ok(())
    }

    /// Deliveries per second of each run.
    pub fn deliveries(&self) -> impl Iterator<Item = f64> {
        self.deliveries.runs.iter().copied()
    }

    pub(crate) fn figures(self, target: Target<'_>) -> Result<Vec<Figure>> {
        self.cost.append_to(vec![self.deliveries, self.publishes], target.server)
    }
}
