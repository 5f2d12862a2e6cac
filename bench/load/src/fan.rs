//! Fan-out and fan-in: deliveries per second.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::{Duration, Instant};

use crate::figure::to_f64;
use crate::load::{Load, LoadCounters, LoadSize};
use crate::server::CpuCost;
use crate::{Figure, ProgressFn, Target};

/// A load and its duration.
#[derive(Debug, Clone, Copy)]
pub struct Fan {
    /// Number of publishers.
    pub publishers: usize,
    /// Number of subscribers.
    pub subscribers: usize,
    /// Most events that publishers are ahead of the slowest subscriber.
    pub window: u64,
    /// Duration of a run.
    pub run: Duration,
    /// Number of runs, on the same connections.
    pub runs: usize,
    /// Time before the first run, in which caches and buffers fill.
    pub warm_up: Duration,
}

impl Fan {
    /// Runs the measurement. A missing event is an error.
    pub fn measure(
        &self,
        target: Target<'_>,
        progress: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Vec<Figure>> {
        let size = LoadSize {
            publishers: self.publishers,
            subscribers: self.subscribers,
            window: self.window,
        };
        let mut load = Load::connect(target, size, progress)?;
        load.run_until(Instant::now() + self.warm_up, progress)?;
        let mut rates = DeliveryRates::default();
        for _ in 0..self.runs {
            rates.run(&mut load, target, self.run, progress)?;
        }
        if self.publishers > 0 {
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
        load: &mut Load<'_>,
        target: Target<'_>,
        length: Duration,
        progress: &mut ProgressFn<'_>,
    ) -> anyhow::Result<()> {
        let (before, began) = (load.counters(), Instant::now());
        let cpu_before = CpuCost::snapshot(target.server)?;
        load.run_until(began + length, progress)?;
        let (after, took) = (load.counters(), began.elapsed());
        self.add(before, after, took);
        self.cost.add_run(
            cpu_before,
            target.server,
            to_f64(after.delivered - before.delivered),
            took,
        )
    }

    fn add(&mut self, before: LoadCounters, after: LoadCounters, took: Duration) {
        let per_second = |count: u64| to_f64(count) / took.as_secs_f64();
        self.deliveries.runs.push(per_second(after.delivered - before.delivered));
        self.publishes.runs.push(per_second(after.published - before.published));
    }

    /// Deliveries per second of each run.
    pub fn deliveries(&self) -> impl Iterator<Item = f64> {
        self.deliveries.runs.iter().copied()
    }

    pub(crate) fn figures(self, target: Target<'_>) -> anyhow::Result<Vec<Figure>> {
        let mut figures = vec![self.deliveries, self.publishes];
        figures.extend(self.cost.figures(target.server)?);
        Ok(figures)
    }
}
