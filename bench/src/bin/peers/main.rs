//! `peers`: compares Tidings with other programs on this machine. It starts every server, runs the
//! same generator with each of them, and prints a table. `bench/peers.sh` installs the programs and
//! calls it.

mod crawl;
mod protocols;
mod queue_protocols;
mod relay;
mod results;
mod servers;
mod workloads;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, Parser, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Map, json};
use tidings_load::command::Outcome;
use tidings_load::command::flags::RunFlags;
use tidings_load::disk::{self, Disk};
use tidings_load::wire::Sync;
use tidings_load::{Target, server};

use crate::crawl::{CrawlArgs, OriginArgs};
use crate::relay::WriteUnit;
use crate::results::{Contestant, Results};
use crate::servers::{ServerKind, ServerOptions, ServerPaths};
use crate::workloads::{LoadKind, RunLengths, WORKLOADS, Workload};

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
    /// The program `tidings`
    #[arg(long, value_name = "FILE", default_value = "target/release/tidings")]
    tidings: PathBuf,

    /// The program `zmq_proxy`
    #[arg(long, value_name = "FILE", default_value = "target/release/zmq_proxy")]
    zmq_proxy: PathBuf,

    /// Number of rounds; each server runs once per round
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,

    /// One short round, to test whether everything works; do not quote its figures
    #[arg(long)]
    quick: bool,

    /// Run only these works, such as fan-out-100,queue
    #[arg(long, value_name = "WORK,..", value_delimiter = ',')]
    only: Vec<String>,

    /// Run only these servers beside Tidings, such as nats,relay
    #[arg(long, value_name = "SERVER,..", value_delimiter = ',')]
    servers: Vec<String>,

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

    /// Data directory of the servers, on a disk [default: a temporary directory in the current one]
    #[arg(long, value_name = "DIR", env = "PEERS_DATA")]
    data: Option<PathBuf>,

    /// Also write all values to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let result = match Peers::parse() {
        Peers::Compare(args) => compare(&args),
        Peers::Crawl(args) => crawl::compare(&args),
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

fn run_limit(limit: &Limit) -> anyhow::Result<()> {
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

fn compare(args: &CompareArgs) -> anyhow::Result<()> {
    raise_limits()?;
    let works = selected_workloads(&args.only)?;
    ensure!(args.pin.len() == 2, "--pin: expected two processors, such as 0,1");
    ensure!(args.tidings.is_file(), "{} does not exist; build it first", args.tidings.display());
    let data = DataDir::new(args.data.as_deref())?;
    disk::check_not_in_memory(&data.path)?;
    let heading = heading(&data.path, args)?;
    let paths = ServerPaths {
        tidings: fs::canonicalize(&args.tidings)?,
        zmq_proxy: args.zmq_proxy.clone(),
        data: data.path.clone(),
        processor: Some(args.pin[0]),
    };
    server::pin_to_processor(args.pin[1])?;

    let mut all: Vec<(Workload, Results<ServerKind>)> = Vec::new();
    for work in works {
        let results = run_rounds(args, &work, &paths);
        all.push((work, results));
    }
    clear_progress();
    let mut output = io::stdout().lock();
    for line in heading.into_iter().chain(versions(&paths)).chain(table(&all)) {
        writeln!(output, "{line}")?;
    }
    if let Some(file) = &args.json {
        let entries = all.iter().map(|(work, results)| (work.name.to_owned(), results.to_json()));
        fs::write(file, json!(entries.collect::<Map<_, _>>()).to_string())?;
    }
    Ok(())
}

fn selected_workloads(only: &[String]) -> anyhow::Result<Vec<Workload>> {
    let known: Vec<_> = WORKLOADS.iter().map(|work| work.name).collect();
    for name in only {
        ensure!(
            known.contains(&name.as_str()),
            "no work {name}; expected one of {}",
            known.join(", ")
        );
    }
    let is_named = |work: &&Workload| only.is_empty() || only.iter().any(|name| name == work.name);
    Ok(WORKLOADS.iter().filter(is_named).copied().collect())
}

/// In each round every server runs once, so that a change on the machine affects all of them.
fn run_rounds(args: &CompareArgs, work: &Workload, paths: &ServerPaths) -> Results<ServerKind> {
    let mut results = Results::default();
    let rounds = if args.quick { 1 } else { args.rounds };
    for round in 1..=rounds {
        results.begin_round();
        for &kind in work.servers.iter().filter(|kind| is_selected(args, **kind)) {
            let what = format!("{} {round}/{rounds}, {}", work.name, kind.name());
            let outcome = run(args, work, paths, kind, &what);
            if let Err(error) = &outcome {
                print_note(&format!("{what}: {error:#}"));
            }
            results.add(kind, outcome);
        }
    }
    results
}

fn is_selected(args: &CompareArgs, kind: ServerKind) -> bool {
    args.servers.is_empty() || kind == ServerKind::Tidings || args.servers.contains(&kind.flag())
}

fn run(
    args: &CompareArgs,
    work: &Workload,
    paths: &ServerPaths,
    kind: ServerKind,
    what: &str,
) -> anyhow::Result<Outcome> {
    let lengths = if args.quick {
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
        sync: args.sync.unwrap_or(work.sync),
        subscribers: work.load.subscribers(),
        payload_bytes: PAYLOAD_BYTES,
        is_over_zmq: matches!(work.load, LoadKind::ZmqFan { .. }),
    };
    let running = servers::start(paths, kind, options)?;
    let target = Target {
        wire: running.wire.as_ref(),
        address: running.server.address(),
        topic: "t",
        payload_bytes: PAYLOAD_BYTES,
        server: Some(&running.server),
    };
    let mut progress = |text: &str| {
        show_progress(&format!("{what}: {text}"));
        Ok(())
    };
    let disk = options.sync.is_durable().then(|| running.dir.path());
    work.load.measure(target, kind, lengths, disk, &mut progress)
}

/// Date, machine, and settings.
fn heading(data: &Path, args: &CompareArgs) -> anyhow::Result<Vec<String>> {
    let disk = Disk::of(data)?;
    let sync_us = disk::sync_time(data)?.as_micros();
    let runs = if args.quick {
        "one short round".to_owned()
    } else {
        format!("rounds: {}, medians", args.rounds)
    };
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

/// Date and machine.
fn machine() -> anyhow::Result<String> {
    let now = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism()?;
    Ok(format!(
        "{}, {cores} cores of {}, Linux {}",
        String::from_utf8_lossy(&now.stdout).trim(),
        model.map_or("an unknown processor", |(_, model)| model),
        kernel.trim()
    ))
}

fn versions(paths: &ServerPaths) -> [String; 2] {
    [format!("Versions: {}.", servers::versions(paths).join("; ")), String::new()]
}

fn table(all: &[(Workload, Results<ServerKind>)]) -> Vec<String> {
    let mut lines =
        vec!["| work | Tidings | others | goal |".to_owned(), "|---|---|---|---|".to_owned()];
    lines.extend(all.iter().map(|(work, results)| results.row(&work.row())));
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

/// The directory for the servers' data.
struct DataDir {
    path: PathBuf,
    is_temporary: bool,
}

impl DataDir {
    fn new(path: Option<&Path>) -> anyhow::Result<Self> {
        let temporary = || PathBuf::from(format!("tidings-peers-{}", std::process::id()));
        let dir = path.map_or_else(temporary, Path::to_owned);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        Ok(Self { path: fs::canonicalize(dir)?, is_temporary: path.is_none() })
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        if self.is_temporary {
            // If this fails, the name of the directory shows where it came from.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Every connection is a file, in this process and in the servers, which inherit the limit.
fn raise_limits() -> anyhow::Result<()> {
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
