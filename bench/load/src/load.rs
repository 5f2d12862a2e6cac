//! A load that a broker is under, in turns, and its rate and costs.

#![expect(clippy::disallowed_methods, reason = "a load generator reads the clock")]

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::figure::to_f64;
use crate::server::{self, Server};
use crate::text::format_count;
use crate::{Figure, PROGRESS_INTERVAL, Progress};

/// The time before the first run, in which caches and buffers fill.
pub const WARM_UP: Duration = Duration::from_millis(500);

/// Longest time without progress while work is in flight. Some brokers wait 10 s for one subscriber
/// before they serve the others.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Shortest wait for sockets.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// A load that can pause and resume.
pub(crate) trait Load {
    /// The units of its work, for the progress.
    const WORK: &'static str;

    /// Units of work that are complete.
    fn completed(&self) -> u64;

    /// Whether nothing is in flight. An error if the broker did too much.
    fn is_finished(&self) -> Result<bool>;

    /// What is missing.
    fn missing(&self) -> String;

    /// Publishes as the window allows, if `may_publish`; then waits for sockets and handles them.
    fn poll_once(&mut self, may_publish: bool, timeout: Duration) -> Result<()>;

    /// Publishes until `end`.
    fn run_until(&mut self, end: Instant, progress: Progress<'_>) -> Result<()> {
        let (mut reported, mut before) = (Instant::now(), self.completed());
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(());
            }
            if now >= reported + PROGRESS_INTERVAL {
                let completed = self.completed();
                let per_ms = u128::from(completed - before) / (now - reported).as_millis();
                let per_second = format_count(u64::try_from(per_ms * 1000)?);
                progress(&format!("{per_second} {}/s", Self::WORK))?;
                (reported, before) = (now, completed);
            }
            self.poll_once(true, (end - now).clamp(WAIT_MIN, PROGRESS_INTERVAL))?;
        }
    }

    /// Stops publishing, and waits until nothing is in flight.
    fn finish(&mut self, progress: Progress<'_>) -> Result<()> {
        let mut last = (Instant::now(), self.completed());
        while !self.is_finished()? {
            progress(&format!("waiting for the last {}", Self::WORK))?;
            if self.completed() > last.1 {
                last = (Instant::now(), self.completed());
            }
            ensure!(last.0.elapsed() < IDLE_TIMEOUT, "{}", self.missing());
            self.poll_once(false, PROGRESS_INTERVAL)?;
        }
        Ok(())
    }
}

/// Rate and costs of the runs of a load. The server has costs if its process is known. A generator
/// that keeps its processor busy has measured itself.
#[derive(Debug)]
pub struct Rates<'a> {
    server: Option<&'a Server>,
    /// Units of work per second.
    pub(crate) rate: Figure,
    /// Processor time of the server for `work_units` units of work, in microseconds.
    pub(crate) cost: Figure,
    work_units: f64,
    /// Processors that the server kept busy.
    pub(crate) processors: Figure,
    /// Processors that the generator kept busy.
    generator: Figure,
}

impl<'a> Rates<'a> {
    /// No runs. `cost` is the processor time for `work_units` units of work.
    pub fn new(server: Option<&'a Server>, rate: Figure, cost: Figure, work_units: f64) -> Self {
        let processors = Figure::new("broker_cpus", "broker processors", 2);
        let generator = Figure::new("generator_cpus", "generator processors", 2);
        Self { server, rate, cost, work_units, processors, generator }
    }

    /// Measures one run, which returns its units of work. Returns its length in seconds.
    pub fn measure(&mut self, run: impl FnOnce() -> Result<u64>) -> Result<f64> {
        let server = self.server.map(Server::cpu_time).transpose()?;
        let (generator, began) = (server::thread_cpu_time()?, Instant::now());
        let work = to_f64(run()?);
        let took = began.elapsed().as_secs_f64();
        let generator = server::thread_cpu_time()?.saturating_sub(generator);
        self.rate.runs.push(work / took);
        self.generator.runs.push(generator.as_secs_f64() / took);
        if let (Some(before), Some(server)) = (server, self.server) {
            let used = server.cpu_time()?.saturating_sub(before).as_secs_f64();
            self.cost.runs.push(used * 1e6 * self.work_units / work.max(1.0));
            self.processors.runs.push(used / took);
        }
        Ok(took)
    }

    /// Measures one run of a load. Returns its length in seconds.
    pub(crate) fn run(
        &mut self,
        load: &mut impl Load,
        length: Duration,
        progress: Progress<'_>,
    ) -> Result<f64> {
        self.measure(|| {
            let before = load.completed();
            load.run_until(Instant::now() + length, progress)?;
            Ok(load.completed() - before)
        })
    }

    /// The rate, other figures, the costs and the peak memory of the server.
    pub fn figures(self, others: impl IntoIterator<Item = Figure>) -> Result<Vec<Figure>> {
        let mut figures = vec![self.rate];
        figures.extend(others);
        match self.server {
            None => figures.push(self.generator),
            Some(server) => {
                let mebibytes = to_f64(server.peak_bytes()?) / f64::from(1 << 20);
                let peak = Figure::new("broker_peak_mib", "broker peak MiB", 1);
                let peak = peak.with_runs([mebibytes]);
                figures.extend([self.cost, self.processors, self.generator, peak]);
            }
        }
        Ok(figures)
    }
}
