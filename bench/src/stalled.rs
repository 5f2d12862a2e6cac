//! The rate of other subscribers while one stops reading, and what that one receives later.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tidings_load::command::flags::WARM_UP;
use tidings_load::command::{Benchmark, Outcome};
use tidings_load::fan::DeliveryRates;
use tidings_load::figure::to_f64;
use tidings_load::load::{Load, LoadSize};
use tidings_load::{Figure, Progress, Target, server};

/// After this time without a byte, no more are expected.
const QUIET_TIMEOUT: Duration = Duration::from_secs(3);

/// Pause before the next read of an empty socket.
const READ_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Bytes per read of the stalled subscriber.
const READ_BYTES: usize = 1 << 20;

/// A load in which one subscriber stops reading.
#[derive(Debug, Clone, Copy, Args, Serialize)]
#[command(mut_arg("subscribers", |arg| {
    arg.default_value("10").value_parser(clap::value_parser!(u16).range(2..))
}))]
pub struct Stalled {
    /// Connections and window. The stalled subscriber does not count in the window.
    #[command(flatten)]
    #[serde(flatten)]
    pub size: LoadSize,

    /// Seconds before and after one subscriber stops reading
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,

    /// Time before the first measurement
    #[arg(skip = WARM_UP)]
    #[serde(skip)]
    pub warm_up: Duration,
}

/// What the stalled subscriber received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StalledOutcome {
    /// It received everything.
    Complete,
    /// The broker reported all lost events.
    LossReported,
    /// Events are missing, and the broker did not report them.
    LossUnreported,
    /// Its connection was closed.
    Disconnected,
}

impl StalledOutcome {
    /// Its name in results.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "everything",
            Self::LossReported => "loss reported",
            Self::LossUnreported => "loss not reported",
            Self::Disconnected => "disconnected",
        }
    }
}

impl Benchmark for Stalled {
    const NAME: &'static str = "stalled";

    fn title(&self) -> String {
        let load = self.size.title(", of which one stops reading");
        format!("{load}, {} s before and after", self.seconds)
    }

    fn measure(&self, target: Target<'_>, progress: Progress<'_>) -> Result<Outcome> {
        let run = Duration::from_secs(self.seconds);
        let mut load = Load::connect(target, self.size, progress)?;
        load.run_until(Instant::now() + self.warm_up, progress)?;
        // Only the rate of the subscribers that go on, also before the stop.
        let others = f64::from(self.size.subscribers - 1);
        let share = others / (others + 1.0);
        let mut before = DeliveryRates::default();
        before.run(&mut load, target, run, progress)?;
        let before: Vec<_> = before.deliveries().map(|rate| rate * share).collect();
        let memory_before = target.server.map(server::Server::resident_bytes).transpose()?;

        load.stall(0)?;
        let mut after = DeliveryRates::default();
        after.run(&mut load, target, run, progress)?;
        let after: Vec<_> = after.deliveries().collect();
        let memory_after = target.server.map(server::Server::resident_bytes).transpose()?;
        load.finish(progress)?;

        progress("the stalled subscriber reads again")?;
        let caught_up = catch_up(&mut load, target, progress)?;
        let kept = after.iter().zip(&before).map(|(after, before)| after / before);
        let mut figures = vec![
            Figure::new("others_before_per_second", "others before, deliv./s", 0)
                .with_runs(before.clone()),
            Figure::new("others_after_per_second", "others after, deliv./s", 0)
                .with_runs(after.clone()),
            Figure::new("others_kept", "part of the rate kept", 3).with_runs(kept),
            Figure::new("stalled_missed_events", "stalled: missed so far", 0)
                .with_runs([caught_up.missed]),
            Figure::new("stalled_got_events", "stalled: received later", 0)
                .with_runs([caught_up.received]),
            Figure::new("stalled_told_events", "stalled: reported lost", 0)
                .with_runs([caught_up.reported_lost]),
            Figure::new("stalled_seconds", "stalled: seconds", 1)
                .with_runs([caught_up.took.as_secs_f64()]),
        ];
        if let (Some(server), Some(before), Some(after)) =
            (target.server, memory_before, memory_after)
        {
            let grown = (to_f64(after) - to_f64(before)) / (1024.0 * 1024.0);
            figures.push(Figure::new("broker_grown_mib", "broker grown MiB", 1).with_runs([grown]));
            figures.push(server::peak_memory(server)?);
        }
        let end = caught_up.outcome.as_str().to_owned();
        Ok(Outcome { figures, words: vec![("stalled_end", "stalled: in the end", end)] })
    }
}

/// What the stalled subscriber received after it resumed.
struct CatchUpResult {
    missed: f64,
    received: f64,
    reported_lost: f64,
    outcome: StalledOutcome,
    /// Time until the last byte.
    took: Duration,
}

fn catch_up(load: &mut Load, target: Target<'_>, progress: Progress<'_>) -> Result<CatchUpResult> {
    let (received_before, all) = load.received_and_published(0);
    let missed = load.events(all) - load.events(received_before);
    let mut buffer = vec![0; READ_BYTES];
    let (mut received, mut reported_lost, mut partial) = (0, 0, Vec::new());
    let began = Instant::now();
    let mut last = began;
    let is_closed = loop {
        match load.read_stalled(0, &mut buffer)? {
            Some(0) => break true,
            Some(bytes) => {
                last = Instant::now();
                partial.extend_from_slice(&buffer[..bytes]);
                let whole = memchr::memrchr(b'\n', &partial).map_or(0, |at| at + 1);
                let Some(counts) = target.wire.count_catch_up(&partial[..whole]) else {
                    partial.clear();
                    continue;
                };
                partial.drain(..whole);
                received += counts.events;
                reported_lost += counts.reported_lost;
                if received + reported_lost >= missed {
                    break false;
                }
            }
            None if load.received_and_published(0).0 >= all || last.elapsed() > QUIET_TIMEOUT => {
                break false;
            }
            None => {
                progress("the stalled subscriber reads again")?;
                thread::sleep(READ_RETRY_INTERVAL);
            }
        }
    };
    if target.wire.count_catch_up(b"").is_none() {
        received = load.events(load.received_and_published(0).0) - load.events(received_before);
    }
    let outcome = match (is_closed, received + reported_lost >= missed, reported_lost) {
        (true, ..) => StalledOutcome::Disconnected,
        (false, true, 0) => StalledOutcome::Complete,
        (false, true, _) => StalledOutcome::LossReported,
        (false, false, _) => StalledOutcome::LossUnreported,
    };
    Ok(CatchUpResult {
        missed: to_f64(missed),
        received: to_f64(received),
        reported_lost: to_f64(reported_lost),
        outcome,
        took: last.saturating_duration_since(began),
    })
}
