//! `tidings-bench`: measures Tidings beside other programs, on the same machine and in turns, and
//! prints a table for each work. `bench/peers.sh` installs the programs and calls it.

mod announce;
mod brokers;
mod control_group;
mod crawl;
mod frontier;
mod idle;
mod latency;
mod programs;
mod protocols;
mod queue_protocols;
mod relay;
mod results;
mod works;

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidings_load::disk::{self, Disk};

use crate::programs::{Program, name};
use crate::results::Results;
use crate::works::Work;

const EXAMPLES: &str = "\
Examples, from a clone of the repository:
  bench/peers.sh --quick
  bench/peers.sh flat polite-1000 --rounds 5
  target/dist/tidings-bench fan-out latency --programs tidings,relay
  target/dist/tidings-bench frontier --urls 10000000 --hosts 1000000";

/// Measures Tidings beside other programs.
#[derive(Debug, Parser)]
#[command(name = "tidings-bench", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// What is measured [default: everything]
    #[arg(value_enum, value_name = "WORK")]
    works: Vec<Work>,

    /// Number of rounds; each program runs once per round
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,

    /// One short round, to test whether everything works; do not quote its figures
    #[arg(long)]
    quick: bool,

    /// Run only these programs [default: all of a work]
    #[arg(long, value_enum, value_name = "PROGRAM,..", value_delimiter = ',')]
    programs: Vec<Program>,

    /// The program `tidings` [default: beside this program]
    #[arg(long, value_name = "FILE")]
    tidings: Option<PathBuf>,

    /// Directory for the data of the programs, on a disk
    #[arg(long, value_name = "DIR", default_value = ".")]
    data: PathBuf,

    /// Processor of the brokers and processor of the generator
    #[arg(long, value_name = "N,N", value_delimiter = ',', num_args = 1, default_value = "0,1")]
    pin: Vec<usize>,

    /// URLs of the work `frontier`
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    urls: u64,

    /// Hosts that they are on
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=9_999_999))]
    hosts: u64,

    /// The browser of the work `rendered`
    #[arg(long, value_name = "FILE", default_value = "/usr/lib/chromium/chromium-headless-shell")]
    browser: PathBuf,

    /// The folder with `crawlee.js` and its packages
    #[arg(long, value_name = "DIR", default_value = "target/peers-node")]
    node: PathBuf,

    /// Be the program `relay` at this address
    #[arg(long, value_name = "ADDRESS", hide = true)]
    relay: Option<SocketAddr>,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_note(&format!("tidings-bench: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(mut cli: Cli) -> Result<()> {
    // Every connection is a file, in this process and in the programs, which inherit the limit.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .context("cannot raise the limit of open files")?;
    if let Some(address) = cli.relay {
        return Ok(relay::relay(&TcpListener::bind(address)?)?);
    }
    ensure!(cli.pin.len() == 2, "--pin: expected two processors, such as 0,1");
    disk::check_not_in_memory(&cli.data)?;
    // Programs run in directories of their own.
    for path in [&mut cli.data, &mut cli.browser, &mut cli.node] {
        *path = std::path::absolute(&*path)?;
    }
    let works = if cli.works.is_empty() { Work::value_variants() } else { cli.works.as_slice() };
    let mut lines = heading(&cli)?;
    for work in works {
        let programs: Vec<_> = work
            .programs()
            .iter()
            .copied()
            .filter(|program| cli.programs.is_empty() || cli.programs.contains(program))
            .collect();
        let results = compare(&cli, *work, &programs);
        lines.extend([String::new(), format!("## {}", name(*work)), String::new()]);
        lines.extend(results.table(&programs));
        let mut output = io::stdout().lock();
        lines.drain(..).try_for_each(|line| writeln!(output, "{line}"))?;
    }
    Ok(())
}

/// In each round every program runs once, so that a change on the machine affects all of them.
fn compare(cli: &Cli, work: Work, programs: &[Program]) -> Results {
    let rounds = if cli.quick { 1 } else { cli.rounds };
    let mut results = Results::default();
    for round in 1..=rounds {
        results.begin_round();
        for &program in programs {
            let what = format!("{} {round}/{rounds}, {}", name(work), name(program));
            let figures = work.measure(cli, program, &mut |text| {
                show_progress(&format!("{what}: {text}"));
                Ok(())
            });
            if let Err(error) = &figures {
                print_note(&format!("{what}: {error:#}"));
            }
            results.add(program, figures);
        }
    }
    show_progress("");
    results
}

impl Cli {
    /// The program `tidings`.
    pub(crate) fn tidings(&self) -> Result<PathBuf> {
        let path = match &self.tidings {
            Some(path) => path.clone(),
            None => std::env::current_exe()?.with_file_name("tidings"),
        };
        fs::canonicalize(&path)
            .with_context(|| format!("cannot start {}; build it first", path.display()))
    }
}

/// Date, machine, programs and settings.
fn heading(cli: &Cli) -> Result<Vec<String>> {
    let now = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism()?;
    let Disk { source, file_system, .. } = Disk::of(&cli.data)?;
    let sync_us = disk::sync_time(&cli.data)?.as_micros();
    let rounds = if cli.quick {
        "One short round.".to_owned()
    } else {
        format!("Medians of {} rounds.", cli.rounds)
    };
    let tidings = cli.tidings()?;
    let programs = ["nats-server", "redis-server", "wget2", "node"].map(Path::new);
    let first_line = |program: &&Path| {
        let output = Command::new(program).arg("--version").output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned())
    };
    let versions: Vec<_> =
        [tidings.as_path()].iter().chain(&programs).filter_map(first_line).collect();
    Ok(vec![
        format!(
            "{}, {cores} cores of {}, Linux {}; data on {source} ({file_system}), where fdatasync \
             of 64 KiB takes {sync_us} us.",
            String::from_utf8_lossy(&now.stdout).trim(),
            model.map_or("an unknown processor", |(_, model)| model),
            kernel.trim()
        ),
        format!("{rounds} In brackets: Tidings divided by the program, and the range of rounds."),
        format!("Programs: {}.", versions.join("; ")),
    ])
}

/// Replaces the progress, if standard error is a terminal.
fn show_progress(text: &str) {
    let mut errors = io::stderr().lock();
    if errors.is_terminal() {
        // A progress line is not worth an error.
        let _ = write!(errors, "\r\x1b[K{text}").and_then(|()| errors.flush());
    }
}

fn print_note(text: &str) {
    show_progress("");
    // Standard error may be closed.
    let _ = writeln!(io::stderr().lock(), "{text}");
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
