//! Measurements as subcommands: their flags, the broker that is started for them, and the report.

pub mod broker_process;
pub mod flags;
pub mod protection;
pub mod report;
pub mod text;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::command::broker_process::{BrokerProcess, DataDir};
use crate::command::flags::CommonFlags;
use crate::command::protection::ProtectionFlags;
use crate::command::report::BenchReport;
use crate::disk::{self, Disk};
use crate::wire::{Sync, WireProtocol};
use crate::{Figure, Progress, Target, Tidings, server};

/// A measurement. Its fields are its flags, and its settings in JSON.
pub trait Benchmark: Serialize {
    /// Its name on the command line.
    const NAME: &'static str;

    /// Whether it measures the disk, unless `--sync memory` is set.
    const MEASURES_DISK: bool = false;

    /// The protection of the broker.
    fn guard(&self) -> ProtectionFlags {
        ProtectionFlags::default()
    }

    /// The settings, for people.
    fn title(&self) -> String;

    /// Measures this broker.
    fn measure(&self, target: Target<'_>, progress: Progress<'_>) -> Result<Outcome>;

    /// Measures the broker that a subcommand was given or has started. A measurement replaces this
    /// one if it also needs the directory, the program or the flags.
    fn measure_subject(&self, subject: &Subject<'_>, progress: Progress<'_>) -> Result<Outcome> {
        self.measure(subject.target, progress)
    }
}

/// A measurement as a subcommand.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs<M: Args> {
    /// The measurement.
    #[command(flatten)]
    pub bench: M,

    /// The flags that every measurement has.
    #[command(flatten)]
    pub common: CommonFlags,
}

/// What is measured.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// The broker and topic.
    pub target: Target<'a>,
    /// The directory of the broker, if it was started for the measurement.
    pub data: Option<&'a Path>,
    /// The program `tidings`.
    pub program: &'a Path,
    /// The flags of the subcommand.
    pub common: &'a CommonFlags,
}

/// The results of a measurement.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The numbers.
    pub figures: Vec<Figure>,
    /// Results that are not numbers: key, label, value.
    pub words: Vec<(&'static str, &'static str, String)>,
}

impl From<Vec<Figure>> for Outcome {
    fn from(figures: Vec<Figure>) -> Self {
        Self { figures, words: Vec::new() }
    }
}

/// Another way for subscribers than the line protocol.
#[derive(Debug, Clone, Copy)]
pub struct HttpStreams {
    /// Its name, for the title.
    pub name: &'static str,
    /// Address at which the broker serves HTTP.
    pub address: SocketAddr,
    /// The protocol, for the setting of topics and the address of publishers.
    pub wire: fn(Option<Sync>, SocketAddr) -> Box<dyn WireProtocol>,
}

/// Runs a measurement. Without `--broker` it starts `program` as the broker.
pub fn measure<M: Benchmark + Args>(
    args: &BenchArgs<M>,
    program: &Path,
    streams: Option<HttpStreams>,
    progress: Progress<'_>,
) -> Result<BenchReport> {
    let BenchArgs { bench, common } = args;
    let (own, by_lines) = if common.broker.is_some() {
        (None, Tidings::plain(common.sync))
    } else {
        let (own, wire) = start(args, program, streams.map(|streams| streams.address.port()))?;
        (Some(own), wire)
    };
    let lines = match (&common.broker, &own) {
        (_, Some(own)) => own.server().address(),
        (Some(broker), None) => resolve(broker)?,
        (None, None) => unreachable!("without --broker one was started"),
    };
    let data = own.as_ref().map(BrokerProcess::data);
    let is_durable = common.sync.map_or(M::MEASURES_DISK, Sync::is_durable);
    let mut settings = settings(args, streams.is_some())?;
    let mut notes = Vec::new();
    if let Some(data) = data.filter(|_| is_durable) {
        note_disk(data, &mut settings, &mut notes)?;
    }
    if let Some((_, client)) = common.pin {
        server::pin_to_processor(client)?;
    }
    let mut progress = |text: &str| progress(&format!("{}: {text}", M::NAME));
    let by_http = streams.map(|streams| (streams.wire)(common.sync, lines));
    let target = Target {
        wire: by_http.as_deref().unwrap_or(&by_lines),
        address: streams.map_or(lines, |streams| streams.address),
        topic: &new_topic_name(),
        payload_bytes: usize::try_from(common.size)?,
        server: own.as_ref().map(BrokerProcess::server),
    };
    let subject = Subject { target, data, program, common };
    let Outcome { figures, words } = bench.measure_subject(&subject, &mut progress)?;
    let broker = common.broker.as_deref().unwrap_or("a broker of its own");
    let by = streams.map_or_else(String::new, |streams| format!(", by {}", streams.name));
    let title = format!("{}, {broker}: {}, {} bytes{by}", M::NAME, bench.title(), common.size);
    Ok(BenchReport { title, settings, figures, words, notes })
}

/// The address of a broker.
pub fn resolve(broker: &str) -> Result<SocketAddr> {
    let mut found = broker.to_socket_addrs().with_context(|| format!("cannot resolve {broker}"))?;
    found.next().with_context(|| format!("{broker} has no address"))
}

fn start<M: Benchmark + Args>(
    BenchArgs { bench, common }: &BenchArgs<M>,
    program: &Path,
    http: Option<u16>,
) -> Result<(BrokerProcess, Tidings)> {
    let guard = bench.guard();
    ensure!(
        http.is_none() || !guard.is_some(),
        "--tokens and --tls measure the line protocol; use them without --sse"
    );
    let data = DataDir::new(common.data.as_deref(), "")?;
    // Without `--sync` the topic has the broker's default, which may be durable.
    if common.sync.map_or(M::MEASURES_DISK, Sync::is_durable) {
        disk::check_not_in_memory(data.path())?;
    }
    guard.start(program, common, data, http)
}

fn settings<M: Benchmark + Args>(
    BenchArgs { bench, common }: &BenchArgs<M>,
    sse: bool,
) -> Result<Map<String, Value>> {
    let mut settings = Map::new();
    settings.insert("bench".to_owned(), json!(M::NAME));
    settings.insert("size".to_owned(), json!(common.size));
    settings.insert("sse".to_owned(), json!(sse));
    if let Some(sync) = common.sync {
        settings.insert("sync".to_owned(), json!(sync.as_str()));
    }
    if let Value::Object(own) = serde_json::to_value(bench)? {
        settings.extend(own);
    }
    Ok(settings)
}

/// Adds the disk under the data directory and its speed to the report.
fn note_disk(
    data: &Path,
    settings: &mut Map<String, Value>,
    notes: &mut Vec<String>,
) -> Result<()> {
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

#[expect(clippy::disallowed_methods, reason = "the clock makes the name new")]
fn new_topic_name() -> String {
    let unix_ms = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis());
    // Short enough for a name without a heap allocation.
    format!("bench-{:x}-{unix_ms:x}", std::process::id())
}
