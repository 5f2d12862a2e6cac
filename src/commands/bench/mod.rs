//! `tidings bench`: measures the speed of a broker from outside.

mod broker_process;
mod flags;
mod frontier;
mod protection;
mod queue;
mod report;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::{Map, Value, json};
use tidings_bench::disk::Disk;
use tidings_bench::sse::Sse;
use tidings_bench::wire::Sync;
use tidings_bench::{Figure, Target, Tidings, disk, server};

use self::flags::{
    CommonFlags, ConnectArgs, FanInArgs, FanOutArgs, IdleArgs, LatencyArgs, PublishArgs,
    ReplayArgs, SseTarget, StalledArgs,
};
use self::frontier::FrontierArgs;
use self::protection::ProtectionFlags;
use self::queue::QueueArgs;
use self::report::BenchReport;
use crate::commands::bench::broker_process::{BrokerProcess, DataDir};
use crate::flags::address::BrokerAddress;
use crate::terminal::failure::Failure;
use crate::terminal::output::Console;

const EXAMPLES: &str = "\
Without --broker it starts a broker as a separate process of the same program, and also measures the
processor time and memory of that process.

Examples:
  tidings bench fan-out
  tidings bench fan-out --subscribers 1000 --window 1000 --pin 0,1
  tidings bench fan-out --tls --pin 0,1 --runs 9
  tidings bench publish --sync always --data /srv/tidings-bench
  tidings bench queue --workers 4 --keys 10000
  tidings bench frontier --urls 10000000 --hosts 1000000
  tidings bench fan-out --broker 10.0.0.1:12345 --json";

/// The subcommands of `tidings bench`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Bench {
    /// Events a second from publishers to many subscribers
    FanOut(FanOutArgs),
    /// Events a second from many publishers to few subscribers
    FanIn(FanInArgs),
    /// Time from publish to delivery, at a fixed rate
    Latency(LatencyArgs),
    /// Memory of idle subscribers, and one event to all of them
    Idle(IdleArgs),
    /// Confirmed publishes a second, beside a loop that only writes and syncs
    Publish(PublishArgs),
    /// Tasks a second that are published, released and acknowledged
    Queue(QueueArgs),
    /// Links a second that become waiting URLs, their memory, and a restart with them
    Frontier(FrontierArgs),
    /// Stored events to one subscriber
    Replay(ReplayArgs),
    /// Connections a second that subscribe and close
    Connect(ConnectArgs),
    /// One of the subscribers stops reading
    Stalled(StalledArgs),
}

/// A measurement.
trait Benchmark {
    /// Its name on the command line.
    const NAME: &'static str;

    /// Whether it measures the disk, unless `--sync memory` is set.
    const MEASURES_DISK: bool = false;

    fn common(&self) -> &CommonFlags;

    /// The protection of the broker.
    fn guard(&self) -> ProtectionFlags {
        ProtectionFlags::default()
    }

    /// The settings, for JSON.
    fn settings(&self) -> Value;

    /// The settings, for people.
    fn title(&self) -> String;

    /// Measures; `data` is the directory of the broker that was started.
    fn measure(
        &self,
        target: Target<'_>,
        data: Option<&Path>,
        watch: &mut tidings_bench::ProgressFn<'_>,
    ) -> anyhow::Result<Outcome>;
}

/// The results of a measurement.
#[derive(Debug, Default)]
struct Outcome {
    figures: Vec<Figure>,
    /// Results that are not numbers: key, label, value.
    words: Vec<(&'static str, &'static str, String)>,
}

impl From<Vec<Figure>> for Outcome {
    fn from(figures: Vec<Figure>) -> Self {
        Self { figures, words: Vec::new() }
    }
}

/// Runs the benchmark on a thread, which Ctrl-C ends early.
#[expect(clippy::disallowed_methods, reason = "the generator blocks, so that it is not measured")]
pub(crate) async fn run(bench: Bench) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let mut work = tokio::task::spawn_blocking(move || dispatch(&bench, &stopped));
    tokio::select! {
        result = &mut work => result.context("the benchmark failed")?,
        _ = tokio::signal::ctrl_c() => {
            stop.store(true, Ordering::Relaxed);
            // This ends the broker and removes its data.
            let _ = work.await;
            Err(Failure::Interrupted("interrupted".to_owned()))
        }
    }
}

fn dispatch(bench: &Bench, stop: &AtomicBool) -> Result<(), Failure> {
    match bench {
        Bench::FanOut(args) => measure(args, stop),
        Bench::FanIn(args) => measure(args, stop),
        Bench::Latency(args) => measure(args, stop),
        Bench::Idle(args) => measure(args, stop),
        Bench::Publish(args) => measure(args, stop),
        Bench::Queue(args) => measure(args, stop),
        Bench::Frontier(args) => measure(args, stop),
        Bench::Replay(args) => measure(args, stop),
        Bench::Connect(args) => measure(args, stop),
        Bench::Stalled(args) => measure(args, stop),
    }
}

fn measure<M: Benchmark>(bench: &M, stop: &AtomicBool) -> Result<(), Failure> {
    let report = report(bench, stop)?;
    let mut console = Console::new();
    if bench.common().json {
        return console.line(&report.json().to_string());
    }
    report.table().iter().try_for_each(|line| console.line(line))
}

fn report<M: Benchmark>(bench: &M, stop: &AtomicBool) -> anyhow::Result<BenchReport> {
    let common = bench.common();
    let http = match &common.sse {
        None => None,
        Some(SseTarget::Broker(http)) => Some(resolve(http)?),
        Some(SseTarget::Own) if common.broker.is_some() => {
            bail!("with --broker, name the address: --sse=HOST:PORT")
        }
        Some(SseTarget::Own) => Some(server::unused_address()?),
    };
    let (own, by_lines) = if common.broker.is_some() {
        (None, Tidings::plain(common.sync))
    } else {
        let (own, wire) = start(bench, http.map(|http| http.port()))?;
        (Some(own), wire)
    };
    let lines = match (&common.broker, &own) {
        (_, Some(own)) => own.server().address(),
        (Some(broker), None) => resolve(broker)?,
        (None, None) => unreachable!("without --broker one was started"),
    };
    let data = own.as_ref().map(BrokerProcess::data);
    let is_durable = common.sync.map_or(M::MEASURES_DISK, Sync::is_durable);
    let mut settings = settings(bench);
    let mut notes = Vec::new();
    if let Some(data) = data.filter(|_| is_durable) {
        note_disk(data, &mut settings, &mut notes)?;
    }
    if let Some((_, client)) = common.pin {
        server::pin_to_processor(client)?;
    }
    let mut console = Console::new();
    let mut watch = |text: &str| {
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        console.progress(&format!("{}: {text}", M::NAME));
        Ok(())
    };
    let by_http = Sse { sync: common.sync, line_address: lines };
    let target = Target {
        wire: if http.is_some() { &by_http } else { &by_lines },
        address: http.unwrap_or(lines),
        topic: &new_topic_name(),
        payload_bytes: usize::try_from(common.size)?,
        server: own.as_ref().map(BrokerProcess::server),
    };
    let Outcome { figures, words } = bench.measure(target, data, &mut watch)?;
    let broker =
        common.broker.as_ref().map_or("a broker of its own".to_owned(), ToString::to_string);
    let by = if http.is_some() { ", by Server-Sent Events" } else { "" };
    let title = format!("{}, {broker}: {}, {} bytes{by}", M::NAME, bench.title(), common.size);
    Ok(BenchReport { title, settings, figures, words, notes })
}

fn resolve(broker: &BrokerAddress) -> anyhow::Result<SocketAddr> {
    let mut found =
        broker.as_str().to_socket_addrs().with_context(|| format!("cannot resolve {broker}"))?;
    found.next().with_context(|| format!("{broker} has no address"))
}

fn start<M: Benchmark>(bench: &M, http: Option<u16>) -> anyhow::Result<(BrokerProcess, Tidings)> {
    let common = bench.common();
    let data = DataDir::new(common.data.as_deref(), "")?;
    // Without `--sync` the topic has the broker's default, which may be durable.
    if common.sync.map_or(M::MEASURES_DISK, Sync::is_durable) {
        disk::check_not_in_memory(data.path())?;
    }
    bench.guard().start(common, data, http)
}

fn settings<M: Benchmark>(bench: &M) -> Map<String, Value> {
    let common = bench.common();
    let mut settings = Map::new();
    settings.insert("bench".to_owned(), json!(M::NAME));
    settings.insert("size".to_owned(), json!(common.size));
    settings.insert("sse".to_owned(), json!(common.sse.is_some()));
    if let Some(sync) = common.sync {
        settings.insert("sync".to_owned(), json!(sync.as_str()));
    }
    if let Value::Object(own) = bench.settings() {
        settings.extend(own);
    }
    settings
}

/// Adds the disk under the data directory and its speed to the report.
fn note_disk(
    data: &Path,
    settings: &mut Map<String, Value>,
    notes: &mut Vec<String>,
) -> anyhow::Result<()> {
    let disk = Disk::of(data)?;
    let sync_us = disk::sync_time(data)?.as_micros();
    notes.push(format!(
        "disk: {} on {} ({}), fdatasync of 64 KiB takes {sync_us} us",
        disk.source, disk.mount, disk.file_system
    ));
    settings.insert(
        "disk".to_owned(),
        json!({
            "mount": disk.mount,
            "file_system": disk.file_system,
            "source": disk.source,
            "sync_64k_us": u64::try_from(sync_us)?,
        }),
    );
    Ok(())
}

/// A new topic name.
#[expect(clippy::disallowed_methods, reason = "the clock makes the name new")]
fn new_topic_name() -> String {
    let unix_ms = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis());
    // Short enough for a name without a heap allocation.
    format!("bench-{:x}-{unix_ms:x}", std::process::id())
}
