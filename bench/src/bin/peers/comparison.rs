//! What all comparisons share: their flags, their rounds, their directories and their output.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Map, json};
use tidings_load::command::Outcome;
use tidings_load::command::broker_process::DataDir;
use tidings_load::{Progress, disk};

use crate::results::{Contestant, Results};
use crate::workloads::Workload;
use crate::{clear_progress, print_note, show_progress};

/// The flags of every comparison.
#[derive(Debug, Args)]
pub(crate) struct ComparisonFlags {
    /// The program `tidings`
    #[arg(long, value_name = "FILE", default_value = "target/dist/tidings")]
    pub(crate) tidings: PathBuf,

    /// Number of rounds; each program runs once per round
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,

    /// One short round, to test whether everything works; do not quote its figures
    #[arg(long)]
    pub(crate) quick: bool,

    /// Run only these works, such as fan-out-100,queue
    #[arg(long, value_name = "WORK,..", value_delimiter = ',')]
    only: Vec<String>,

    /// Run only these programs, such as nats,relay; a comparison of brokers always has Tidings
    #[arg(long, value_name = "PROGRAM,..", value_delimiter = ',')]
    servers: Vec<String>,

    /// Data directory of the programs, on a disk [default: a temporary directory in the current
    /// one]
    #[arg(long, value_name = "DIR", env = "PEERS_DATA")]
    data: Option<PathBuf>,

    /// Also write all values to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The works, and the results of each.
pub(crate) type Compared<K, L> = Vec<(Workload<K, L>, Results<K>)>;

impl ComparisonFlags {
    /// The works that `--only` names, else all.
    pub(crate) fn select<K, L>(
        &self,
        all: &'static [Workload<K, L>],
    ) -> Result<Vec<&'static Workload<K, L>>> {
        for name in &self.only {
            ensure!(all.iter().any(|work| work.name == name), unknown_workload(name, all));
        }
        let is_named = |work: &&Workload<K, L>| {
            self.only.is_empty() || self.only.iter().any(|n| n == work.name)
        };
        Ok(all.iter().filter(is_named).collect())
    }

    /// Whether `--servers` names this program, or none.
    pub(crate) fn names<K: Contestant>(&self, kind: K) -> bool {
        self.servers.is_empty() || self.servers.contains(&kind.flag())
    }

    /// The directory for the data, on a disk.
    pub(crate) fn data_dir(&self) -> Result<DataDir> {
        ensure!(
            self.tidings.is_file(),
            "{} does not exist; build it first",
            self.tidings.display()
        );
        let data = DataDir::new(self.data.as_deref(), "")?;
        disk::check_not_in_memory(data.path())?;
        Ok(data)
    }

    /// The number of rounds in words; `quick`: those of `--quick`.
    pub(crate) fn rounds_text(&self, quick: &str) -> String {
        if self.quick { quick.to_owned() } else { format!("rounds: {}, medians", self.rounds) }
    }

    /// In each round every program runs once, so that a change on the machine affects all of them.
    pub(crate) fn run<K: Contestant, L>(
        &self,
        works: Vec<Workload<K, L>>,
        takes_part: impl Fn(K) -> bool,
        measure: impl Fn(&L, K, Progress<'_>) -> Result<Outcome>,
    ) -> Compared<K, L> {
        let rounds = if self.quick { 1 } else { self.rounds };
        let mut all = Vec::new();
        for work in works {
            let mut results = Results::default();
            for round in 1..=rounds {
                results.begin_round();
                for kind in work.contestants.iter().copied().filter(|kind| takes_part(*kind)) {
                    let what = format!("{} {round}/{rounds}, {}", work.name, kind.name());
                    let outcome = measure(&work.load, kind, &mut |text| {
                        show_progress(&format!("{what}: {text}"));
                        Ok(())
                    });
                    if let Err(error) = &outcome {
                        print_note(&format!("{what}: {error:#}"));
                    }
                    results.add(kind, outcome);
                }
            }
            all.push((work, results));
        }
        clear_progress();
        all
    }

    /// Prints the lines, and writes the values of `--json`.
    pub(crate) fn write<K: Contestant, L>(
        &self,
        lines: impl IntoIterator<Item = String>,
        all: &Compared<K, L>,
    ) -> Result<()> {
        let mut output = io::stdout().lock();
        lines.into_iter().try_for_each(|line| writeln!(output, "{line}"))?;
        if let Some(file) = &self.json {
            let entries =
                all.iter().map(|(work, results)| (work.name.to_owned(), results.to_json()));
            fs::write(file, json!(entries.collect::<Map<_, _>>()).to_string())?;
        }
        Ok(())
    }
}

/// The message for a work that does not exist.
pub(crate) fn unknown_workload<K, L>(work: &str, all: &[Workload<K, L>]) -> String {
    let known: Vec<_> = all.iter().map(|work| work.name).collect();
    format!("no work {work}; expected one of {}", known.join(", "))
}

/// The head of the table, and a row of each work.
pub(crate) fn table<K: Contestant, L>(all: &Compared<K, L>) -> Vec<String> {
    let head = ["| work | Tidings | others | goal |", "|---|---|---|---|"].map(str::to_owned);
    head.into_iter().chain(all.iter().map(|(work, results)| results.row(work))).collect()
}

/// Date and machine.
pub(crate) fn machine() -> Result<String> {
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

/// The first line that each of these programs prints about its version. A program that is not
/// installed has none.
pub(crate) fn versions(commands: &[(&Path, &[&str])]) -> Vec<String> {
    let first_line = |(program, arguments): &(&Path, &[&str])| {
        let output = Command::new(program).args(*arguments).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned())
    };
    commands.iter().filter_map(first_line).collect()
}

/// The last line of a program's errors.
pub(crate) fn last_line(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().last().unwrap_or("(no message)").to_owned()
}

/// The directory of one run of a program, which is removed at the end.
#[derive(Debug)]
pub(crate) struct RunDir(PathBuf);

impl RunDir {
    /// An empty directory with the name of the program in `data`.
    pub(crate) fn new(data: &Path, kind: impl Contestant) -> Result<Self> {
        let path = data.join(kind.flag());
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // The directory around it is removed at the end.
        let _ = fs::remove_dir_all(&self.0);
    }
}
