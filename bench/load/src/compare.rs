//! Fan-out by two brokers in turns. One of them checks tokens or encrypts, and the comparison shows
//! what that costs.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::fan::Fan;
use crate::figure::to_f64;
use crate::load::Load;
use crate::{Figure, Progress, Server, Target};

/// Warm-up of a broker after the turn of the other one.
const WARM_UP: Duration = Duration::from_millis(200);

/// Measures a rate of encryption in bytes per second; called before each round.
pub type EncryptionRate<'a> = dyn Fn() -> Result<f64> + 'a;

/// A broker, and the results of its turns.
struct ComparedBroker<'a> {
    load: Load,
    server: &'a Server,
    runs: Vec<TurnResult>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct TurnResult {
    deliveries_per_second: f64,
    bytes_per_second: f64,
    /// Per second of the broker's processor time.
    bytes_per_cpu_second: f64,
    /// Processors that the broker kept busy.
    processors: f64,
    cpu_us_per_1000: f64,
}

impl Fan {
    /// Measures both in every round, and alternates which one begins. `guarded` is the broker that
    /// requires tokens or encrypts. With `encryption`, it is also compared with what that rate
    /// allows.
    pub fn compare(
        &self,
        plain: Target<'_>,
        guarded: Target<'_>,
        encryption: Option<&EncryptionRate<'_>>,
        progress: Progress<'_>,
    ) -> Result<Vec<Figure>> {
        let mut plain = self.connect_broker(plain, progress)?;
        let mut guarded = self.connect_broker(guarded, progress)?;
        for broker in [&mut plain, &mut guarded] {
            broker.run_turn(self.length.warm_up, progress)?;
            broker.runs.clear();
        }
        let mut rates = Vec::new();
        for round in 0..usize::from(self.length.runs) {
            if let Some(encryption) = encryption {
                progress("openssl speed")?;
                rates.push(encryption()?);
            }
            let mut brokers = [&mut plain, &mut guarded];
            brokers.rotate_left(round % 2);
            for broker in brokers {
                broker.run_turn(self.length.run(), progress)?;
            }
        }
        Ok(figures(&plain.runs, &guarded.runs, &rates))
    }

    fn connect_broker<'a>(
        &self,
        target: Target<'a>,
        progress: Progress<'_>,
    ) -> Result<ComparedBroker<'a>> {
        let server = target.server.context("only brokers on this machine can be compared")?;
        Ok(ComparedBroker {
            load: Load::connect(target, self.size, progress)?,
            server,
            runs: Vec::new(),
        })
    }
}

impl ComparedBroker<'_> {
    /// Runs one turn and waits until nothing of it is in flight.
    fn run_turn(&mut self, length: Duration, progress: Progress<'_>) -> Result<()> {
        self.load.resume();
        self.load.run_until(Instant::now() + WARM_UP, progress)?;
        let (before, began, cpu_before) =
            (self.load.counters(), Instant::now(), self.server.cpu_time()?);
        self.load.run_until(began + length, progress)?;
        let (after, took, cpu) = (self.load.counters(), began.elapsed(), self.server.cpu_time()?);
        let (took, cpu) = (took.as_secs_f64(), cpu.saturating_sub(cpu_before).as_secs_f64());
        let deliveries = to_f64(after.delivered - before.delivered);
        let bytes = to_f64(after.delivered_bytes - before.delivered_bytes);
        self.runs.push(TurnResult {
            deliveries_per_second: deliveries / took,
            bytes_per_second: bytes / took,
            bytes_per_cpu_second: bytes / cpu,
            processors: cpu / took,
            cpu_us_per_1000: cpu * 1e9 / deliveries,
        });
        self.load.finish(progress)
    }
}

/// The figures of both brokers, their ratio in each round, and the ratio to the limit of
/// encryption.
fn figures(plain: &[TurnResult], guarded: &[TurnResult], encryption: &[f64]) -> Vec<Figure> {
    let rounds = || plain.iter().zip(guarded);
    let of = |runs: &[TurnResult], value: fn(&TurnResult) -> f64| {
        runs.iter().map(value).collect::<Vec<_>>()
    };
    let figure = |key, label, decimals, runs| Figure { key, label, decimals, runs };
    let rate = |run: &TurnResult| run.deliveries_per_second;
    let work = |run: &TurnResult| run.cpu_us_per_1000;
    let mut figures = vec![
        figure("deliveries_per_second", "deliveries/s", 0, of(guarded, rate)),
        figure("plain_deliveries_per_second", "plain, deliveries/s", 0, of(plain, rate)),
        Figure::new("of_plain", "ratio to plain", 3)
            .with_runs(rounds().map(|(plain, guarded)| rate(guarded) / rate(plain))),
        figure("broker_cpu_us_per_1000_deliveries", "broker us per 1,000", 1, of(guarded, work)),
        figure(
            "plain_broker_cpu_us_per_1000_deliveries",
            "plain, us per 1,000",
            1,
            of(plain, work),
        ),
        Figure::new("of_plain_by_cpu", "ratio to plain, by CPU", 3)
            .with_runs(rounds().map(|(plain, guarded)| work(plain) / work(guarded))),
        figure("broker_cpus", "broker processors", 2, of(guarded, |run| run.processors)),
        figure("plain_broker_cpus", "plain, processors", 2, of(plain, |run| run.processors)),
    ];
    if encryption.is_empty() {
        return figures;
    }
    let mega = |rate: f64| rate / 1e6;
    let of_limit = |value: fn(&TurnResult) -> f64| {
        let each = move |((plain, guarded), rate): ((&TurnResult, &TurnResult), &f64)| {
            value(guarded) * (1.0 / rate + 1.0 / value(plain))
        };
        rounds().zip(encryption).map(each).collect::<Vec<_>>()
    };
    let (bytes, by_cpu) =
        (|run: &TurnResult| run.bytes_per_second, |run: &TurnResult| run.bytes_per_cpu_second);
    let megabytes = |runs: &[TurnResult]| runs.iter().map(|run| mega(bytes(run))).collect();
    figures.extend([
        figure("mb_per_second", "MB/s", 0, megabytes(guarded)),
        figure("plain_mb_per_second", "plain, MB/s", 0, megabytes(plain)),
        Figure::new("aes_mb_per_second", "AES-256-GCM, MB/s", 0)
            .with_runs(encryption.iter().map(|rate| mega(*rate))),
        figure("of_limit", "of 1/(1/AES + 1/plain)", 3, of_limit(bytes)),
        figure("of_limit_by_cpu", "the same, by CPU", 3, of_limit(by_cpu)),
    ]);
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: TurnResult = TurnResult {
        deliveries_per_second: 100.0,
        bytes_per_second: 3e6,
        bytes_per_cpu_second: 6e6,
        processors: 0.5,
        cpu_us_per_1000: 7.0,
    };

    #[test]
    fn the_encryption_limit_is_the_sum_of_both_times() {
        // Each takes as long as the other, so together they allow half the rate.
        let guarded = TurnResult { deliveries_per_second: 25.0, bytes_per_second: 0.75e6, ..RUN };
        let figures = figures(&[RUN], &[guarded], &[3e6]);
        let value = |key| figures.iter().find(|figure| figure.key == key).unwrap().median();
        assert_eq!(value("of_plain"), Some(0.25));
        assert_eq!(value("of_limit"), Some(0.5));
        assert_eq!(value("of_plain_by_cpu"), Some(1.0));
        assert_eq!(value("aes_mb_per_second"), Some(3.0));
    }
}
