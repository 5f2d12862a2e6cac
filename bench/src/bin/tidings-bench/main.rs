//! `tidings-bench`: measures a broker from outside, as `tidings bench` does, with more
//! measurements: those that a maintainer compares before and after a change.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail, ensure};
use clap::{Args, Parser, Subcommand};
use tidings_bench::connect::Connect;
use tidings_bench::fan_in::FanIn;
use tidings_bench::frontier::Frontier;
use tidings_bench::idle::Idle;
use tidings_bench::latency::Latency;
use tidings_bench::replay::Replay;
use tidings_bench::sse::Sse;
use tidings_bench::stalled::Stalled;
use tidings_load::command::{self, BenchArgs, Benchmark, HttpStreams};
use tidings_load::fan_out::FanOut;
use tidings_load::publish::Publish;
use tidings_load::queue::Queue;
use tidings_load::server;

const EXAMPLES: &str = "\
Without --broker it starts a broker as a separate process, and also measures the processor time and
memory of that process.

Examples, from a clone of the repository:
  cargo build --profile dist --features full --workspace
  target/dist/tidings-bench fan-out --subscribers 1000 --window 1000 --pin 0,1
  target/dist/tidings-bench idle --subscribers 10000 --sse
  target/dist/tidings-bench latency --rate 10000
  target/dist/tidings-bench frontier --urls 10000000 --hosts 1000000
  target/dist/tidings-bench replay --events 10000000 --data /srv/tidings-bench
  target/dist/tidings-bench connect --broker 10.0.0.1:12345 --json";

/// Measures a Tidings broker from outside.
#[derive(Debug, Parser)]
#[command(name = "tidings-bench", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,

    /// Subscribe by HTTP with Server-Sent Events; with --broker, at this address
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "own"
    )]
    sse: Option<SseTarget>,

    /// The program that is started as the broker [default: `tidings` beside this program]
    #[arg(long, global = true, value_name = "PATH")]
    tidings: Option<PathBuf>,
}

/// The address of the event streams.
#[derive(Debug, Clone)]
enum SseTarget {
    /// The broker that is started.
    Own,
    /// This address.
    Broker(String),
}

impl From<&str> for SseTarget {
    fn from(text: &str) -> Self {
        if text == "own" { Self::Own } else { Self::Broker(text.to_owned()) }
    }
}

/// The measurements.
#[derive(Debug, Clone, Subcommand)]
enum Bench {
    /// Events a second from publishers to many subscribers
    FanOut(BenchArgs<FanOut>),
    /// Events a second from many publishers to few subscribers
    FanIn(BenchArgs<FanIn>),
    /// Time from publish to delivery, at a fixed rate
    Latency(BenchArgs<Latency>),
    /// Memory of idle subscribers, and one event to all of them
    Idle(BenchArgs<Idle>),
    /// Confirmed publishes a second, beside a loop that only writes and syncs
    Publish(BenchArgs<Publish>),
    /// Tasks a second that are published, released and acknowledged
    Queue(BenchArgs<Queue>),
    /// Links a second that become waiting URLs, their memory, and a restart with them
    Frontier(BenchArgs<Frontier>),
    /// Stored events to one subscriber
    Replay(BenchArgs<Replay>),
    /// Connections a second that subscribe and close
    Connect(BenchArgs<Connect>),
    /// One of the subscribers stops reading
    Stalled(BenchArgs<Stalled>),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(io::stderr(), "tidings-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures on a thread, which Ctrl-C ends early.
#[expect(clippy::disallowed_methods, reason = "the generator blocks, so that it is not measured")]
async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let mut work = tokio::task::spawn_blocking(move || dispatch(&cli, &stopped));
    tokio::select! {
        result = &mut work => result.context("the measurement failed")??,
        _ = tokio::signal::ctrl_c() => {
            stop.store(true, Ordering::Relaxed);
            // This ends the broker and removes its data.
            let _ = work.await;
            return Ok(ExitCode::from(130));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn dispatch(cli: &Cli, stop: &AtomicBool) -> anyhow::Result<()> {
    match &cli.bench {
        Bench::FanOut(args) => measure(cli, args, stop),
        Bench::FanIn(args) => measure(cli, args, stop),
        Bench::Latency(args) => measure(cli, args, stop),
        Bench::Idle(args) => measure(cli, args, stop),
        Bench::Publish(args) => measure(cli, args, stop),
        Bench::Queue(args) => measure(cli, args, stop),
        Bench::Frontier(args) => measure(cli, args, stop),
        Bench::Replay(args) => measure(cli, args, stop),
        Bench::Connect(args) => measure(cli, args, stop),
        Bench::Stalled(args) => measure(cli, args, stop),
    }
}

fn measure<M: Benchmark + Args>(
    cli: &Cli,
    args: &BenchArgs<M>,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let common = &args.common;
    let program = match &cli.tidings {
        Some(program) => program.clone(),
        None => program_beside_this(common.broker.is_some())?,
    };
    let address = match &cli.sse {
        None => None,
        Some(SseTarget::Broker(http)) => Some(command::resolve(http)?),
        Some(SseTarget::Own) if common.broker.is_some() => {
            bail!("with --broker, name the address: --sse=HOST:PORT")
        }
        Some(SseTarget::Own) => Some(server::unused_address()?),
    };
    let streams = address.map(|address| HttpStreams {
        name: "Server-Sent Events",
        address,
        wire: |sync, line_address| Box::new(Sse { sync, line_address }),
    });
    let mut progress = |text: &str| {
        ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        show_progress(text);
        Ok(())
    };
    let report = command::measure(args, &program, streams, &mut progress);
    show_progress("");
    let report = report?;
    let mut output = io::stdout().lock();
    if common.json {
        writeln!(output, "{}", report.json())?;
    } else {
        report.table().iter().try_for_each(|line| writeln!(output, "{line}"))?;
    }
    Ok(())
}

/// The broker's program, built in the same folder; needed only without `--broker`.
fn program_beside_this(has_broker: bool) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let program = own.with_file_name("tidings");
    ensure!(
        has_broker || Path::is_file(&program),
        "{} does not exist; build it (cargo build --profile dist --features full), or name the \
         program with --tidings",
        program.display()
    );
    Ok(program)
}

/// Replaces the progress, if standard error is a terminal.
fn show_progress(text: &str) {
    let mut errors = io::stderr().lock();
    if errors.is_terminal() {
        // Progress is not important enough to report a failed write.
        let _ = write!(errors, "\r\x1b[K{text}").and_then(|()| errors.flush());
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
