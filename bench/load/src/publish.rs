//! Confirmed publishes per second, and a bare loop beside them.

#![expect(clippy::disallowed_methods, reason = "a load generator reads the clock")]

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::command::flags::RunFlags;
use crate::command::{Benchmark, Subject};
use crate::connection::{self, Publisher};
use crate::figure::to_f64;
use crate::load::{Load, Rates, WARM_UP};
use crate::poller::Poller;
use crate::text::{format_count, plural};
use crate::wire::Sync;
use crate::{Figure, Progress, Target, disk};

/// A load of confirmed publishes and its duration.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub struct Publish {
    /// Connections that publish
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub publishers: u16,

    /// Most publishes that are not confirmed, all connections together
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub window: u64,

    /// Duration of the runs, which use the same connections.
    #[command(flatten)]
    #[serde(flatten)]
    pub length: RunFlags,
}

impl Benchmark for Publish {
    const NAME: &'static str = "publish";

    const MEASURES_DISK: bool = true;

    fn title(&self) -> String {
        let publishers = plural(self.publishers.into(), "publisher");
        format!("{publishers}, window {}, {}", format_count(self.window), self.length.title())
    }

    /// Runs the measurement, with a bare loop on the disk of the broker after each run. It is an
    /// error if a publish is rejected or not confirmed.
    fn measure(&self, subject: &Subject<'_>, progress: Progress<'_>) -> Result<Vec<Figure>> {
        // A topic in memory does not sync, so the loop would not be comparable.
        let dir = subject.data.filter(|_| subject.common.sync != Some(Sync::Memory));
        let target = subject.target;
        let mut load = PublishLoad::connect(target, self.publishers, self.window)?;
        load.run_until(Instant::now() + WARM_UP, progress)?;
        let rate = Figure::new("confirmed_per_second", "confirmed publishes/s", 0);
        let key = "broker_cpu_us_per_1000_publishes";
        let cost = Figure::new(key, "broker us per 1,000", 1);
        let mut rates = Rates::new(target.server, rate, cost, 1000.0);
        let mut bare = Figure::new("bare_loop_per_second", "bare loop, events/s", 0);
        let mut ratio = Figure::new("part_of_bare_loop", "part of the bare loop", 2);
        for _ in 0..self.length.runs {
            rates.run(&mut load, self.length.run(), progress)?;
            if let Some(dir) = dir {
                // Nothing else is in flight then, so that each has the disk to itself.
                load.finish(progress)?;
                progress("running the bare loop")?;
                let piece = target.wire.publish(target.topic, &target.payload());
                let piece = piece.repeat(usize::try_from(load.burst)?);
                let syncs = disk::bare_loop(dir, &piece, self.length.run())?;
                let bare_rate = syncs * to_f64(load.burst);
                bare.runs.push(bare_rate);
                ratio.runs.extend(rates.rate.runs.last().map(|rate| rate / bare_rate));
            }
        }
        load.finish(progress)?;
        rates.figures(dir.map(|_| [bare, ratio]).into_iter().flatten())
    }
}

/// Publishers, each with its share of the window.
struct PublishLoad {
    poller: Poller,
    ready: Vec<usize>,
    publishers: Vec<Publisher>,
    /// Events per write.
    burst: u64,
    window_share: u64,
}

impl PublishLoad {
    fn connect(target: Target<'_>, publishers: u16, window: u64) -> Result<Self> {
        target.create_topic()?;
        // Each connection has its own share, which holds several writes.
        let window_share = (window / u64::from(publishers)).max(1);
        let burst = connection::burst(target.payload_bytes, window_share, 1);
        let poller = Poller::new()?;
        let connect = |token| {
            let publisher = target.publisher(&target.payload(), burst)?;
            poller.register_edge_triggered(publisher.socket(), token)?;
            anyhow::Ok(publisher)
        };
        let publishers = (0..publishers.into()).map(connect).collect::<Result<_, _>>()?;
        let burst = u64::try_from(burst)?;
        Ok(Self { poller, ready: Vec::new(), publishers, burst, window_share })
    }

    fn published(&self) -> u64 {
        self.publishers.iter().map(|publisher| publisher.published).sum()
    }
}

impl Load for PublishLoad {
    const WORK: &'static str = "confirmed publishes";

    fn completed(&self) -> u64 {
        self.publishers.iter().map(|publisher| publisher.confirmed).sum()
    }

    fn is_finished(&self) -> Result<bool> {
        let (confirmed, published) = (self.completed(), self.published());
        ensure!(confirmed <= published, "the broker confirmed more events than were published");
        Ok(confirmed == published && self.publishers.iter().all(Publisher::is_idle))
    }

    fn missing(&self) -> String {
        let missing = self.published() - self.completed();
        format!("{missing} publishes were not confirmed")
    }

    fn poll_once(&mut self, may_publish: bool, timeout: Duration) -> Result<()> {
        for publisher in self.publishers.iter_mut().filter(|_| may_publish) {
            while publisher.is_idle()
                && publisher.published + self.burst <= publisher.confirmed + self.window_share
            {
                publisher.write()?;
            }
        }
        let mut ready = std::mem::take(&mut self.ready);
        self.poller.wait(timeout, &mut ready)?;
        for &publisher in &ready {
            self.publishers[publisher].read_replies()?;
            self.publishers[publisher].flush()?;
        }
        self.ready = ready;
        Ok(())
    }
}
