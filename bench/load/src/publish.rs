//! Confirmed publishes per second, and a bare loop beside them.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Args;
use serde::Serialize;

use crate::command::flags::RunFlags;
use crate::command::text::{format_count, plural};
use crate::command::{Benchmark, Outcome, Subject};
use crate::connection::{self, PublisherSocket};
use crate::figure::to_f64;
use crate::poller::Poller;
use crate::replies::Replies;
use crate::server::{CpuCost, RunStart};
use crate::wire::{ConfirmationFormat, Sync};
use crate::{Figure, PROGRESS_INTERVAL, Progress, Target, disk};

/// Longest time without a confirmation while publishes are unconfirmed.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(30);

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

    fn measure(&self, target: Target<'_>, progress: Progress<'_>) -> Result<Outcome> {
        self.measure_beside_loop(target, None, progress)
    }

    fn measure_subject(&self, subject: &Subject<'_>, progress: Progress<'_>) -> Result<Outcome> {
        // A topic in memory does not sync, so the loop would not be comparable.
        let dir = subject.data.filter(|_| subject.common.sync != Some(Sync::Memory));
        self.measure_beside_loop(subject.target, dir, progress)
    }
}

impl Publish {
    /// Runs the measurement, with a bare loop in the directory `dir` after each run. It is an error
    /// if a publish is rejected or not confirmed.
    pub fn measure_beside_loop(
        &self,
        target: Target<'_>,
        dir: Option<&Path>,
        progress: Progress<'_>,
    ) -> Result<Outcome> {
        let mut load = PublishLoad::connect(target, self.publishers, self.window)?;
        load.run_until(Instant::now() + self.length.warm_up, progress)?;
        let mut rate = Figure::new("confirmed_per_second", "confirmed publishes/s", 0);
        let key = "broker_cpu_us_per_1000_publishes";
        let mut cost = CpuCost::new(Figure::new(key, "broker us per 1,000", 1), 1000.0);
        let mut bare = Figure::new("bare_loop_per_second", "bare loop, events/s", 0);
        let mut ratio = Figure::new("part_of_bare_loop", "part of the bare loop", 2);
        for _ in 0..self.length.runs {
            let (before, start) = (load.confirmed(), RunStart::now(target.server)?);
            load.run_until(start.began + self.length.run(), progress)?;
            let work = load.confirmed() - before;
            let per_second = to_f64(work) / cost.end_run(start, target.server, work)?;
            rate.runs.push(per_second);
            if let Some(dir) = dir {
                // Nothing else is in flight then, so that each has the disk to itself.
                load.finish(progress)?;
                progress("running the bare loop")?;
                let piece = target.message().repeat(load.burst);
                let syncs = disk::bare_loop(dir, &piece, self.length.run())?;
                let bare_per_second = syncs * to_f64(u64::try_from(load.burst)?);
                bare.runs.push(bare_per_second);
                ratio.runs.push(per_second / bare_per_second);
                load.is_stopped = false;
            }
        }
        load.finish(progress)?;
        let mut figures = vec![rate];
        if dir.is_some() {
            figures.extend([bare, ratio]);
        }
        Ok(cost.append_to(figures, target.server)?.into())
    }
}

/// Publishes `events` events and returns when all are confirmed.
pub fn publish_all(
    target: Target<'_>,
    events: u64,
    window: u64,
    progress: Progress<'_>,
) -> Result<()> {
    let mut load = PublishLoad::connect(target, 1, window)?;
    let burst = u64::try_from(load.burst)?;
    ensure!(events.is_multiple_of(burst), "{events} events: expected a multiple of {burst}");
    load.events_max = events;
    load.run_until(Instant::now() + Duration::from_hours(1), progress)?;
    load.finish(progress)
}

/// Rounds `events` up to a number that whole writes can publish.
pub fn round_up_to_writes(target: Target<'_>, events: u64, window: u64) -> Result<u64> {
    let burst = u64::try_from(connection::burst(target.payload_bytes, window, 1))?;
    Ok(events.next_multiple_of(burst))
}

/// Publishers, each with its share of the window.
struct PublishLoad {
    poller: Poller,
    ready: Vec<usize>,
    publishers: Vec<(PublisherSocket, PublishCounter)>,
    burst: usize,
    window_share: u64,
    /// Most events per publisher.
    events_max: u64,
    is_stopped: bool,
    read_buffer: Vec<u8>,
}

impl PublishLoad {
    fn connect(target: Target<'_>, publishers: u16, window: u64) -> Result<Self> {
        connection::create_topic(&target)?;
        let confirmed =
            target.wire.confirmed_publish(target.topic, &vec![b'x'; target.payload_bytes])?;
        // Each connection has its own share, which holds several writes.
        let share = (window / u64::from(publishers)).max(1);
        let burst = connection::burst(target.payload_bytes, share, 1);
        let poller = Poller::new()?;
        let connect = |token| {
            let steps = target.wire.handshake().into_iter().chain(confirmed.setup.clone());
            let socket = connection::open(target.address, steps)?;
            let replies = Replies::new(target.wire.rejections());
            let socket = PublisherSocket::new(socket, confirmed.message.repeat(burst), replies)?;
            poller.register_edge_triggered(socket.socket(), token)?;
            anyhow::Ok((socket, PublishCounter::new(confirmed.confirmations)))
        };
        let connections = (0..publishers.into()).map(connect).collect::<Result<_, _>>()?;
        Ok(Self {
            poller,
            ready: Vec::new(),
            publishers: connections,
            burst,
            window_share: share,
            events_max: u64::MAX,
            is_stopped: false,
            read_buffer: vec![0; 64 * 1024],
        })
    }

    /// Publishes until `end`, or until all events are published.
    fn run_until(&mut self, end: Instant, progress: Progress<'_>) -> Result<()> {
        let mut reported = (Instant::now(), self.confirmed());
        loop {
            let now = Instant::now();
            if now >= end || self.published() >= self.events_max {
                return Ok(());
            }
            if now >= reported.0 + PROGRESS_INTERVAL {
                let count = self.confirmed();
                let per_second = to_f64(count - reported.1) / (now - reported.0).as_secs_f64();
                progress(&format!("{:.0} thousand confirmed publishes/s", per_second / 1e3))?;
                reported = (now, count);
            }
            self.poll_once((end - now).min(PROGRESS_INTERVAL))?;
        }
    }

    /// Stops publishing and waits until everything is confirmed.
    fn finish(&mut self, progress: Progress<'_>) -> Result<()> {
        self.is_stopped = true;
        let mut last = (Instant::now(), self.confirmed());
        while self.publishers.iter().any(|(socket, _)| !socket.is_idle())
            || self.confirmed() < self.published()
        {
            progress("waiting for confirmations")?;
            if self.confirmed() > last.1 {
                last = (Instant::now(), self.confirmed());
            }
            if last.0.elapsed() > CONFIRMATION_TIMEOUT {
                bail!(
                    "{} publishes were not confirmed within {CONFIRMATION_TIMEOUT:?}",
                    self.published() - self.confirmed()
                );
            }
            self.poll_once(PROGRESS_INTERVAL)?;
        }
        ensure!(
            self.confirmed() == self.published(),
            "the broker confirmed more events than were published"
        );
        Ok(())
    }

    fn poll_once(&mut self, timeout: Duration) -> Result<()> {
        if !self.is_stopped {
            (0..self.publishers.len()).try_for_each(|publisher| self.publish(publisher))?;
        }
        let mut ready = std::mem::take(&mut self.ready);
        self.poller.wait(timeout, &mut ready)?;
        for &publisher in &ready {
            let (socket, counter) = &mut self.publishers[publisher];
            socket.read_replies(&mut self.read_buffer, |line| counter.count_confirmations(line))?;
            socket.flush()?;
        }
        self.ready = ready;
        Ok(())
    }

    fn publish(&mut self, publisher: usize) -> Result<()> {
        let burst = u64::try_from(self.burst)?;
        let (socket, counter) = &mut self.publishers[publisher];
        while socket.is_idle()
            && counter.published + burst
                <= self.events_max.min(counter.confirmed + self.window_share)
        {
            counter.published += burst;
            socket.start_write();
            socket.flush()?;
        }
        Ok(())
    }

    fn confirmed(&self) -> u64 {
        self.publishers.iter().map(|(_, counter)| counter.confirmed).sum()
    }

    fn published(&self) -> u64 {
        self.publishers.iter().map(|(_, counter)| counter.published).sum()
    }
}

/// Published and confirmed events of one connection.
#[derive(Debug)]
pub struct PublishCounter {
    pub(crate) published: u64,
    /// Publishes that are confirmed.
    pub confirmed: u64,
    format: ConfirmationFormat,
}

impl PublishCounter {
    /// Nothing is published.
    pub const fn new(format: ConfirmationFormat) -> Self {
        Self { published: 0, confirmed: 0, format }
    }

    /// Counts what the line confirms.
    pub fn count_confirmations(&mut self, line: &[u8]) -> Result<()> {
        match self.format {
            ConfirmationFormat::Lines(start) => {
                self.confirmed += u64::from(line.starts_with(start.as_bytes()));
            }
            ConfirmationFormat::Cumulative => {
                let line = str::from_utf8(line)?;
                let count = line.split_ascii_whitespace().last().map(str::parse);
                let Some(Ok(count)) = count else {
                    bail!("expected a confirmation, received {line:?}")
                };
                self.confirmed = count;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_confirmations_counts() {
        let mut counter = PublishCounter::new(ConfirmationFormat::Cumulative);
        for (line, confirmed) in [("+OK 40 1\r", 1), ("+OK 47 8\r", 8)] {
            counter.count_confirmations(line.as_bytes()).unwrap();
            assert_eq!(counter.confirmed, confirmed);
        }
        assert!(counter.count_confirmations(b"+OK\r").is_err(), "no number");
        let mut counter = PublishCounter::new(ConfirmationFormat::Lines("$"));
        for (line, confirmed) in [("$3\r", 1), ("1-1\r", 1), ("$3\r", 2)] {
            counter.count_confirmations(line.as_bytes()).unwrap();
            assert_eq!(counter.confirmed, confirmed);
        }
    }
}
