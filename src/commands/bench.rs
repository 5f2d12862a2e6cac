//! `tidings bench`: measures the speed of a broker from outside. The program `tidings-bench` of the
//! repository measures more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use tidings_load::command::{self, BenchArgs, Benchmark};
use tidings_load::fan_out::FanOut;
use tidings_load::publish::Publish;
use tidings_load::queue::Queue;

use crate::terminal::failure::Failure;
use crate::terminal::output::Console;

pub(crate) const EXAMPLES: &str = "\
Without --broker it starts a broker as a separate process of the same program, and also measures the
processor time and memory of that process.

Examples:
  tidings bench fan-out
  tidings bench fan-out --subscribers 1000 --window 1000 --pin 0,1
  tidings bench fan-out --tls --pin 0,1 --runs 9
  tidings bench publish --sync always --data /srv/tidings-bench
  tidings bench queue --workers 4 --keys 10000
  tidings bench fan-out --broker 10.0.0.1:12345 --json";

/// The subcommands of `tidings bench`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Bench {
    /// Events a second from publishers to many subscribers
    #[command(after_help = EXAMPLES)]
    FanOut(BenchArgs<FanOut>),
    /// Confirmed publishes a second, beside a loop that only writes and syncs
    #[command(after_help = EXAMPLES)]
    Publish(BenchArgs<Publish>),
    /// Tasks a second that are published, released and acknowledged
    #[command(after_help = EXAMPLES)]
    Queue(BenchArgs<Queue>),
}

/// Runs the benchmark on a thread, which Ctrl-C ends early.
#[expect(clippy::disallowed_methods, reason = "the generator blocks, so that it is not measured")]
pub(crate) async fn run(bench: Bench) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let mut work = tokio::task::spawn_blocking(move || match bench {
        Bench::FanOut(args) => measure(&args, &stopped),
        Bench::Publish(args) => measure(&args, &stopped),
        Bench::Queue(args) => measure(&args, &stopped),
    });
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

fn measure<M: Benchmark + Args>(args: &BenchArgs<M>, stop: &AtomicBool) -> Result<(), Failure> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut console = Console::new();
    let mut progress = |text: &str| {
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        console.progress(text);
        Ok(())
    };
    let report = command::measure(args, &program, &mut progress)?;
    if args.common.json {
        return console.line(&report.json().to_string());
    }
    report.table().iter().try_for_each(|line| console.line(line))
}
