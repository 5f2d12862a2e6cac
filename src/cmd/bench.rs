//! `tidings bench`: how fast a broker is, measured from outside.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;
use tokio::{
    task::LocalSet,
    time::{sleep, timeout},
};

use crate::{
    address::BrokerAddress,
    failure::Failure,
    load::{Load, Progress, Running},
    output::{Console, count, plural},
    own_broker::OwnBroker,
};

const EXAMPLES: &str = "\
Without --broker it starts one of its own, as a separate process of the same program, and also says
what that costs in processor time.

Examples:
  tidings bench fan-out
  tidings bench fan-out --subscribers 1000 --window 1000 --pin 0,1
  tidings bench fan-out --broker 10.0.0.1:12345 --json";

/// Time before the first run in which caches, buffers and the broker get going.
const WARM_UP: Duration = Duration::from_millis(500);

/// How long the last events may take to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Events a second from publishers to many subscribers
    FanOut(FanOutArgs),
}

/// The flags of `tidings bench fan-out`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct FanOutArgs {
    /// Connections that publish
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    publishers: u16,

    /// Connections that subscribe
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    subscribers: u16,

    /// Bytes of a payload
    #[arg(long, value_name = "BYTES", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=61_440))]
    size: u32,

    /// Most messages between a publisher and the slowest subscriber
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    window: u64,

    /// Length of a run
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Runs, of which the median is reported
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,

    /// Measure this broker, HOST:PORT, rather than one of its own
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["pin", "threads"])]
    broker: Option<BrokerAddress>,

    /// Keep the broker on one processor and the load generator on another (uses taskset)
    #[arg(long, value_name = "SERVER,CLIENT", value_parser = parse_pin)]
    pin: Option<(u16, u16)>,

    /// Threads of its own broker [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_pin(text: &str) -> Result<(u16, u16), String> {
    let (server, client) = text.split_once(',').ok_or("write two processors, such as 0,1")?;
    let number =
        |text: &str| text.trim().parse().map_err(|_| format!("{text} is no processor number"));
    Ok((number(server)?, number(client)?))
}

/// Runs the benchmark.
pub(crate) async fn run(bench: Bench) -> Result<(), Failure> {
    let Bench::FanOut(args) = bench;
    // Ctrl-C simply ends it: a broker of our own is killed when this future is dropped.
    let fan_out = LocalSet::new();
    let report = tokio::select! {
        report = fan_out.run_until(fan_out_runs(&args)) => report?,
        _ = tokio::signal::ctrl_c() => return Err(Failure::Interrupted("interrupted".to_owned())),
    };
    let mut console = Console::new();
    if args.json {
        return console.line(&report.json(&args).to_string());
    }
    report.table(&args).iter().try_for_each(|line| console.line(line))
}

async fn fan_out_runs(args: &FanOutArgs) -> anyhow::Result<Report> {
    let own = match &args.broker {
        Some(_) => None,
        None => Some(OwnBroker::start(args.threads, args.pin).await?),
    };
    let broker = match (&args.broker, &own) {
        (Some(broker), _) => broker.as_str(),
        (None, Some(own)) => own.address(),
        (None, None) => unreachable!("without --broker one was started"),
    };
    let load = Load {
        topic: topic(),
        publishers: args.publishers.into(),
        subscribers: args.subscribers.into(),
        payload_bytes: usize::try_from(args.size)?,
        window: args.window,
    };
    let running = Running::start(broker, &load).await?;
    sleep(WARM_UP).await;
    let mut report = Report::default();
    for _ in 0..args.runs {
        let (before, began) = (sample(&running, own.as_ref())?, Instant::now());
        sleep(Duration::from_secs(args.seconds)).await;
        let (after, seconds) = (sample(&running, own.as_ref())?, began.elapsed().as_secs_f64());
        report.add(&before, &after, seconds);
    }
    running.stop();
    let arrived = async {
        while !running.is_complete()? {
            running.progress()?;
            sleep(Duration::from_millis(5)).await;
        }
        anyhow::Ok(())
    };
    timeout(PATIENCE, arrived).await.context("events that were published did not all arrive")??;
    Ok(report)
}

/// A topic that nobody used before.
fn topic() -> String {
    let unix_ms = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis());
    format!("bench-{}-{unix_ms}", std::process::id())
}

/// The counters at one moment.
struct Sample {
    progress: Progress,
    cpu_microseconds: Option<u64>,
}

fn sample(running: &Running, own: Option<&OwnBroker>) -> anyhow::Result<Sample> {
    let cpu_microseconds = own.map(OwnBroker::cpu_microseconds).transpose()?;
    Ok(Sample { progress: running.progress()?, cpu_microseconds })
}

/// A figure of each run.
#[derive(Debug, Default)]
struct Report {
    deliveries_per_second: Vec<f64>,
    publishes_per_second: Vec<f64>,
    /// Microseconds of the broker's processor time per 1,000 deliveries.
    cpu_per_thousand: Vec<f64>,
    /// Processors that the broker kept busy.
    cpus: Vec<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark, shown with few digits")]
impl Report {
    fn add(&mut self, before: &Sample, after: &Sample, seconds: f64) {
        let delivered = (after.progress.delivered - before.progress.delivered) as f64;
        let published = (after.progress.published - before.progress.published) as f64;
        self.deliveries_per_second.push(delivered / seconds);
        self.publishes_per_second.push(published / seconds);
        if let (Some(before), Some(after)) = (before.cpu_microseconds, after.cpu_microseconds) {
            let used = (after - before) as f64;
            self.cpu_per_thousand.push(used / (delivered / 1000.0).max(1.0));
            self.cpus.push(used / 1e6 / seconds);
        }
    }

    fn table(&self, args: &FanOutArgs) -> Vec<String> {
        let broker =
            args.broker.as_ref().map_or("a broker of its own".to_owned(), ToString::to_string);
        let mut lines = vec![
            format!(
                "fan-out, {broker}: {} to {}, {} bytes, window {}, median of {} of {} s",
                plural(args.publishers.into(), "publisher"),
                plural(args.subscribers.into(), "subscriber"),
                args.size,
                count(args.window),
                plural(args.runs.into(), "run"),
                args.seconds
            ),
            row("deliveries/s", &self.deliveries_per_second, 0),
            row("publishes/s", &self.publishes_per_second, 0),
        ];
        if !self.cpus.is_empty() {
            lines.push(row("broker us per 1,000", &self.cpu_per_thousand, 1));
            lines.push(row("broker processors", &self.cpus, 2));
        }
        lines
    }

    fn json(&self, args: &FanOutArgs) -> serde_json::Value {
        json!({
            "bench": "fan-out",
            "publishers": args.publishers,
            "subscribers": args.subscribers,
            "size": args.size,
            "window": args.window,
            "seconds": args.seconds,
            "deliveries_per_second": { "p50": median(&self.deliveries_per_second), "runs": self.deliveries_per_second },
            "publishes_per_second": { "p50": median(&self.publishes_per_second), "runs": self.publishes_per_second },
            "broker_cpu_us_per_1000_deliveries": { "p50": median(&self.cpu_per_thousand), "runs": self.cpu_per_thousand },
            "broker_cpus": { "p50": median(&self.cpus), "runs": self.cpus },
        })
    }
}

/// A line of the table: the median, and from where to where the runs went.
fn row(name: &str, runs: &[f64], digits: usize) -> String {
    let sorted = sorted(runs);
    let shown = |value: Option<f64>| {
        value.map_or("-".to_owned(), |value| match digits {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
            0 => count(value as u64),
            _ => format!("{value:.digits$}"),
        })
    };
    let (low, high) = (shown(sorted.first().copied()), shown(sorted.last().copied()));
    format!("  {name:<20} {:>14}   ({low} to {high})", shown(median(runs)))
}

fn sorted(runs: &[f64]) -> Vec<f64> {
    let mut runs = runs.to_vec();
    runs.sort_by(f64::total_cmp);
    runs
}

/// The middle one; of an even number the lower of the two.
fn median(runs: &[f64]) -> Option<f64> {
    sorted(runs).get(runs.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_a_run() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.0));
    }

    #[test]
    fn two_processors_are_pinned() {
        assert_eq!(parse_pin("0, 1"), Ok((0, 1)));
        assert!(parse_pin("0").is_err() && parse_pin("a,b").is_err());
    }

    #[test]
    fn a_row_shows_the_spread() {
        let row = row("deliveries/s", &[1000.0, 3000.4, 2000.0], 0);
        assert_eq!(row, "  deliveries/s                  2,000   (1,000 to 3,000)");
    }
}
