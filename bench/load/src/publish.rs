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
use crate::load::check_rejection;
use crate::poller::Poller;
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
struct PublishLoad<'a> {
    target: Target<'a>,
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

impl<'a> PublishLoad<'a> {
    fn connect(target: Target<'a>, publishers: u16, window: u64) -> Result<Self> {
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
            let socket = PublisherSocket::new(socket, confirmed.message.repeat(burst))?;
            poller.register_edge_triggered(socket.socket(), token)?;
            anyhow::Ok((socket, PublishCounter::new(confirmed.confirmations)))
        };
        let connections = (0..publishers.into()).map(connect).collect::<Result<_, _>>()?;
        Ok(Self {
            target,
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
            let marker = self.target.wire.rejection_marker();
            let (socket, counter) = &mut self.publishers[publisher];
            socket.read_available(&mut self.read_buffer, |received| {
                check_rejection(marker, received)?;
                counter.count_confirmations(received)
            })?;
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
pub(crate) struct PublishCounter {
    pub(crate) published: u64,
    pub(crate) confirmed: u64,
    format: ConfirmationFormat,
    /// Newlines that arrived, for confirmations of several lines.
    lines_received: u64,
    /// The beginning of an incomplete line.
    partial: Vec<u8>,
}

impl PublishCounter {
    pub(crate) fn new(format: ConfirmationFormat) -> Self {
        Self { published: 0, confirmed: 0, format, lines_received: 0, partial: Vec::new() }
    }

    pub(crate) fn count_confirmations(&mut self, received: &[u8]) -> Result<()> {
        match self.format {
            ConfirmationFormat::Lines(lines) => {
                let ends = memchr::memchr_iter(b'\n', received).count();
                self.lines_received += u64::try_from(ends)?;
                self.confirmed = self.lines_received / lines;
            }
            ConfirmationFormat::Cumulative => {
                self.partial.extend_from_slice(received);
                if let Some(end) = memchr::memrchr(b'\n', &self.partial) {
                    let start = memchr::memrchr(b'\n', &self.partial[..end]).map_or(0, |at| at + 1);
                    let line = str::from_utf8(&self.partial[start..end])?;
                    let count = line.split_ascii_whitespace().last().map(str::parse);
                    let Some(Ok(count)) = count else {
                        bail!("expected a confirmation, received {line:?}")
                    };
                    self.confirmed = count;
                    self.partial.drain(..=end);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cumulative_confirmations_count_in_any_split() {
        let answers = b"+OK 40 1\r\n+OK 47 8\r\n+OK 1047 1008\r\n";
        for split in 0..answers.len() {
            let mut counter = PublishCounter::new(ConfirmationFormat::Cumulative);
            counter.count_confirmations(&answers[..split]).unwrap();
            assert!([0, 1, 8].contains(&counter.confirmed), "a whole line at {split}");
            counter.count_confirmations(&answers[split..]).unwrap();
            assert_eq!(counter.confirmed, 1008);
        }
    }

    #[test]
    fn confirmations_of_several_lines_count_once_complete() {
        let mut counter = PublishCounter::new(ConfirmationFormat::Lines(2));
        counter.count_confirmations(b"$3\r\n1-1\r\n$3\r\n").unwrap();
        assert_eq!(counter.confirmed, 1);
        counter.count_confirmations(b"1-2\r\n").unwrap();
        assert_eq!(counter.confirmed, 2);
    }
}
