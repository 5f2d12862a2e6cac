//! `peers`: compares Tidings with other programs on this machine. It starts every server, runs the
//! same generator with each of them, and prints a table. `bench/peers.sh` installs the programs and
//! calls it.

mod comparison;
mod crawl;
mod protocols;
mod queue_protocols;
mod relay;
mod render;
mod results;
mod servers;
mod workloads;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidings_load::command::Outcome;
use tidings_load::command::flags::RunFlags;
use tidings_load::disk::{self, Disk};
use tidings_load::wire::Sync;
use tidings_load::{Progress, Target, server};

use crate::comparison::{Compared, ComparisonFlags, machine};
use crate::crawl::{CrawlArgs, OriginArgs};
use crate::relay::WriteUnit;
use crate::render::RenderArgs;
use crate::results::Contestant;
use crate::servers::{ServerKind, ServerOptions, ServerPaths};
use crate::workloads::{BrokerLoad, LoadKind, RunLengths, WORKLOADS};

/// Bytes of all events.
const PAYLOAD_BYTES: usize = 128;

/// Compares Tidings with other programs.
#[derive(Debug, Parser)]
#[command(name = "peers")]
enum Peers {
    /// Compare brokers and print a table in Markdown
    Compare(CompareArgs),
    /// Compare crawlers and print a table in Markdown
    Crawl(CrawlArgs),
    /// Compare crawlers that render pages and print a table in Markdown
    Render(RenderArgs),
    /// Serve the site of a comparison, for a crawler that you start yourself
    Origin(OriginArgs),
    /// Run one of the limits that brokers are compared with
    #[command(flatten)]
    Limit(Limit),
}

#[derive(Debug, Subcommand)]
enum Limit {
    /// Read up to 64 KiB, cut at the last line end, write to each subscriber
    Relay(LimitArgs),
    /// The same, line by line
    Naive(LimitArgs),
    /// Write the same buffer to each subscriber until it is killed
    Blast(BlastArgs),
}

#[derive(Debug, Args)]
struct LimitArgs {
    /// Address to listen on
    #[arg(long)]
    listen: SocketAddr,
}

#[derive(Debug, Args)]
struct BlastArgs {
    #[command(flatten)]
    limit: LimitArgs,

    /// Begin when this number of subscribers has connected
    #[arg(long)]
    subscribers: usize,

    /// Bytes of a line, with its end
    #[arg(long)]
    line_bytes: usize,
}

#[derive(Debug, Args)]
struct CompareArgs {
    #[command(flatten)]
    flags: ComparisonFlags,

    /// The program `zmq_proxy`
    #[arg(long, value_name = "FILE", default_value = "target/dist/zmq_proxy")]
    zmq_proxy: PathBuf,

    /// The program `nats-server`
    #[arg(long, value_name = "FILE", default_value = "target/peers-python/bin/nats-server")]
    nats_server: PathBuf,

    /// Processor of the servers and processor of the generator
    #[arg(
        long,
        value_name = "SERVER,CLIENT",
        default_value = "0,1",
        value_delimiter = ',',
        num_args = 1
    )]
    pin: Vec<usize>,

    /// `sync=` of all topics of Tidings [default: that of each work]
    #[arg(long, value_enum, value_name = "WHEN")]
    sync: Option<Sync>,
}

fn main() -> ExitCode {
    let result = match Peers::parse() {
        Peers::Compare(args) => compare(&args),
        Peers::Crawl(args) => crawl::compare(&args),
        Peers::Render(args) => render::compare(&args),
        Peers::Origin(args) => crawl::origin(&args),
        Peers::Limit(limit) => run_limit(&limit),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_note(&format!("peers: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run_limit(limit: &Limit) -> Result<()> {
    raise_limits()?;
    let listener = |args: &LimitArgs| TcpListener::bind(args.listen);
    match limit {
        Limit::Relay(args) => relay::relay(&listener(args)?, WriteUnit::Read)?,
        Limit::Naive(args) => relay::relay(&listener(args)?, WriteUnit::Line)?,
        Limit::Blast(args) => {
            relay::blast(&listener(&args.limit)?, args.subscribers, args.line_bytes)?;
        }
    }
    Ok(())
}

fn compare(args: &CompareArgs) -> Result<()> {
    raise_limits()?;
    let works = args.flags.select(WORKLOADS)?.into_iter().copied().collect();
    ensure!(args.pin.len() == 2, "--pin: expected two processors, such as 0,1");
    let data = args.flags.data_dir()?;
    let heading = heading(data.path(), args)?;
    let paths = ServerPaths {
        tidings: fs::canonicalize(&args.flags.tidings)?,
        zmq_proxy: args.zmq_proxy.clone(),
        nats_server: args.nats_server.clone(),
        data: fs::canonicalize(data.path())?,
        processor: Some(args.pin[0]),
    };
    server::pin_to_processor(args.pin[1])?;
    let takes_part = |kind| kind == ServerKind::Tidings || args.flags.names(kind);
    let all = args
        .flags
        .run(works, takes_part, |load, kind, progress| run(args, *load, &paths, kind, progress));
    let versions = [format!("Versions: {}.", servers::versions(&paths).join("; ")), String::new()];
    args.flags.write(heading.into_iter().chain(versions).chain(table(&all)), &all)
}

fn run(
    args: &CompareArgs,
    load: BrokerLoad,
    paths: &ServerPaths,
    kind: ServerKind,
    progress: Progress<'_>,
) -> Result<Outcome> {
    let lengths = if args.flags.quick {
        RunLengths {
            length: RunFlags { seconds: 1, runs: 1, warm_up: Duration::from_millis(300) },
            idle_subscribers: 1000,
            replayed: 100_000,
        }
    } else {
        RunLengths {
            length: RunFlags { seconds: 5, runs: 1, warm_up: Duration::from_secs(1) },
            idle_subscribers: 10_000,
            replayed: 1_000_000,
        }
    };
    let options = ServerOptions {
        sync: args.sync.unwrap_or(load.sync),
        subscribers: load.kind.subscribers(),
        payload_bytes: PAYLOAD_BYTES,
        is_over_zmq: matches!(load.kind, LoadKind::ZmqFan { .. }),
    };
    let running = servers::start(paths, kind, options)?;
    let target = Target {
        wire: running.wire.as_ref(),
        address: running.server.address(),
        topic: "t",
        payload_bytes: PAYLOAD_BYTES,
        server: Some(&running.server),
    };
    let disk = options.sync.is_durable().then(|| running.dir.path());
    load.kind.measure(target, kind, lengths, disk, progress)
}

/// Date, machine, and settings.
fn heading(data: &Path, args: &CompareArgs) -> Result<Vec<String>> {
    let disk = Disk::of(data)?;
    let sync_us = disk::sync_time(data)?.as_micros();
    let runs = args.flags.rounds_text("one short round");
    Ok(vec![
        format!("{}, server and generator on one core each,", machine()?),
        format!(
            "{PAYLOAD_BYTES}-byte events, {runs}, data on {} ({}), where fdatasync of 64 KiB takes {sync_us} us.",
            disk.source, disk.file_system
        ),
        format!(
            "Topics of Tidings: sync={}.",
            args.sync.map_or("always unless the row says otherwise", Sync::as_str)
        ),
    ])
}

fn table(all: &Compared<ServerKind, BrokerLoad>) -> Vec<String> {
    let mut lines = comparison::table(all);
    let mut peaks: BTreeMap<ServerKind, f64> = BTreeMap::new();
    for (kind, peak) in all.iter().flat_map(|(_, results)| results.peaks()) {
        let highest = peaks.entry(kind).or_default();
        *highest = highest.max(peak);
    }
    let ours = peaks.remove(&ServerKind::Tidings).unwrap_or_default();
    let others: Vec<_> =
        peaks.iter().map(|(kind, peak)| format!("{} {peak:.0} MiB", kind.name())).collect();
    let is_met = if ours <= 128.0 { "yes" } else { "**no**" };
    lines.push(format!(
        "| peak memory in all of the above | {ours:.0} MiB | {} | <= 128 MiB: {is_met} |",
        others.join(", ")
    ));
    let notes: Vec<_> = all.iter().flat_map(|(work, results)| results.notes(work)).collect();
    if !notes.is_empty() {
        lines.push(String::new());
        lines.extend(notes.iter().map(|note| format!("- {note}")));
    }
    lines
}

/// Every connection is a file, in this process and in the servers, which inherit the limit.
fn raise_limits() -> Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .context("cannot raise the limit of open files")
}

fn show_progress(text: &str) {
    if io::stderr().is_terminal() {
        // A progress line is not worth an error.
        let _ = write!(io::stderr().lock(), "\r\x1b[K{text}");
    }
}

fn clear_progress() {
    show_progress("");
}

fn print_note(text: &str) {
    clear_progress();
    // Standard error may be closed.
    let _ = writeln!(io::stderr().lock(), "{text}");
}
