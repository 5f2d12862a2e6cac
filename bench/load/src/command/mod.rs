//! Measurements as subcommands: their flags, the broker that is started for them, and the report.

pub mod flags;
pub mod protection;
pub mod report;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::command::flags::CommonFlags;
use crate::command::protection::ProtectionFlags;
use crate::command::report::BenchReport;
use crate::disk::{self, Disk};
use crate::wire::Sync;
use crate::{Figure, Progress, Target, Tidings, server};

/// A measurement. Its fields are its flags, and its settings in JSON.
pub trait Benchmark: Serialize {
    /// Its name on the command line.
    const NAME: &'static str;

    /// Whether it measures the disk, unless `--sync memory` is set.
    const MEASURES_DISK: bool = false;

    /// The settings, for people.
    fn title(&self) -> String;

    /// Measures the broker that the subcommand was given or has started.
    fn measure(&self, subject: &Subject<'_>, progress: Progress<'_>) -> Result<Vec<Figure>>;
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

/// Runs a measurement. Without `--broker` it starts `program` as the broker.
pub fn measure<M: Benchmark + Args>(
    args: &BenchArgs<M>,
    program: &Path,
    progress: Progress<'_>,
) -> Result<BenchReport> {
    let BenchArgs { bench, common } = args;
    let (topic, payload_bytes) = (new_topic_name(), usize::try_from(common.size)?);
    let own = match common.broker {
        Some(_) => None,
        None => Some(ProtectionFlags::default().start(program, common, "")?),
    };
    let plain = Tidings::plain(common.sync);
    let target = if let Some(own) = &own {
        own.target(&topic, payload_bytes)
    } else {
        let address = resolve(common.broker.as_deref().unwrap_or_default())?;
        Target { wire: &plain, address, topic: &topic, payload_bytes, server: None }
    };
    let data = own.as_ref().map(|own| own.data.path());
    let mut settings = settings(args)?;
    let mut notes = Vec::new();
    // Without `--sync` the topic has the broker's default, which may be durable.
    let is_durable = common.sync.map_or(M::MEASURES_DISK, Sync::is_durable);
    if let Some(data) = data.filter(|_| is_durable) {
        disk::check_not_in_memory(data)?;
        note_disk(data, &mut settings, &mut notes)?;
    }
    if let Some((_, client)) = common.pin {
        server::pin_to_processor(client)?;
    }
    let mut progress = |text: &str| progress(&format!("{}: {text}", M::NAME));
    let subject = Subject { target, data, program, common };
    let figures = bench.measure(&subject, &mut progress)?;
    let broker = common.broker.as_deref().unwrap_or("a broker of its own");
    let title = format!("{}, {broker}: {}, {} bytes", M::NAME, bench.title(), common.size);
    Ok(BenchReport { title, settings, figures, notes })
}

/// The address of a broker.
fn resolve(broker: &str) -> Result<SocketAddr> {
    let mut found = broker.to_socket_addrs().with_context(|| format!("cannot resolve {broker}"))?;
    found.next().with_context(|| format!("{broker} has no address"))
}

fn settings<M: Benchmark + Args>(
    BenchArgs { bench, common }: &BenchArgs<M>,
) -> Result<Map<String, Value>> {
    let mut settings = Map::new();
    settings.insert("bench".to_owned(), json!(M::NAME));
    settings.insert("size".to_owned(), json!(common.size));
    // Subscribers always use the line protocol.
    settings.insert("sse".to_owned(), json!(false));
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
    let Disk { mount, file_system, source } = Disk::of(data)?;
    let sync_us = disk::sync_time(data)?.as_micros();
    notes.push(format!(
        "disk: {source} on {mount} ({file_system}), fdatasync of 64 KiB takes {sync_us} us"
    ));
    let sync_us = u64::try_from(sync_us)?;
    let disk = json!({
        "mount": mount, "file_system": file_system, "source": source, "sync_64k_us": sync_us,
    });
    settings.insert("disk".to_owned(), disk);
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "the clock makes the name new")]
fn new_topic_name() -> String {
    let unix_ms = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis());
    // Short enough for a name without a heap allocation.
    format!("bench-{:x}-{unix_ms:x}", std::process::id())
}
