//! Fan-out and fan-in: deliveries a second.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::{Duration, Instant};

use crate::figure::number;
use crate::load::{Counters, Load, Size};
use crate::server::Cost;
use crate::{Figure, Target, Watch};

/// A load, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Fan {
    /// Connections that publish.
    pub publishers: usize,
    /// Connections that subscribe.
    pub subscribers: usize,
    /// Most events between what is published and what the slowest subscriber has.
    pub window: u64,
    /// Length of a run.
    pub run: Duration,
    /// Runs, on the same connections.
    pub runs: usize,
    /// Time before the first one in which caches, buffers and the broker get going.
    pub warm_up: Duration,
}

impl Fan {
    /// Measures it. An error, too, if an event did not arrive.
    pub fn measure(
        &self,
        target: Target<'_>,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<Vec<Figure>> {
        let size = Size {
            publishers: self.publishers,
            subscribers: self.subscribers,
            window: self.window,
        };
        let mut load = Load::connect(target, size, watch)?;
        load.run_until(Instant::now() + self.warm_up, watch)?;
        let mut rates = Rates::new();
        for _ in 0..self.runs {
            rates.run(&mut load, target, self.run, watch)?;
        }
        if self.publishers > 0 {
            load.finish(watch)?;
        }
        rates.figures(target)
    }
}

/// Rates and costs of runs.
#[derive(Debug)]
pub(crate) struct Rates {
    deliveries: Figure,
    publishes: Figure,
    cost: Cost,
}

impl Rates {
    pub(crate) fn new() -> Self {
        Self {
            deliveries: Figure::new("deliveries_per_second", "deliveries/s", 0),
            publishes: Figure::new("publishes_per_second", "publishes/s", 0),
            cost: Cost::per_thousand_deliveries(),
        }
    }

    /// Lets the load run for so long.
    pub(crate) fn run(
        &mut self,
        load: &mut Load<'_>,
        target: Target<'_>,
        length: Duration,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<()> {
        let (before, began) = (load.counters(), Instant::now());
        let costing = Cost::before(target.server)?;
        load.run_until(began + length, watch)?;
        let (after, took) = (load.counters(), began.elapsed());
        self.add(before, after, took);
        self.cost.after(costing, target.server, number(after.delivered - before.delivered), took)
    }

    fn add(&mut self, before: Counters, after: Counters, took: Duration) {
        let per_second = |count: u64| number(count) / took.as_secs_f64();
        self.deliveries.runs.push(per_second(after.delivered - before.delivered));
        self.publishes.runs.push(per_second(after.published - before.published));
    }

    /// Deliveries a second of each run.
    pub(crate) fn deliveries(&self) -> impl Iterator<Item = f64> {
        self.deliveries.runs.iter().copied()
    }

    pub(crate) fn figures(self, target: Target<'_>) -> anyhow::Result<Vec<Figure>> {
        let mut figures = vec![self.deliveries, self.publishes];
        figures.extend(self.cost.figures(target.server)?);
        Ok(figures)
    }
}
