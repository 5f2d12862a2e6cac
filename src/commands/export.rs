//! `tidings export`: writes the pages of one or more crawlers to one place.

#![expect(clippy::disallowed_methods, reason = "reads and writes files, which blocks a thread")]

use std::io;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use tidings_subscriber::sink::export::{self, ExportError, ExportTarget, Exported};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::flags::{DataFlag, of_existing_data};
use crate::process::signals::stop_on_signal;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_count, plural};

const EXAMPLES: &str = "\
Examples:
  tidings export                                             pages of ./tidings-data as JSON lines
  tidings export --data /srv/crawl --output pages.jsonl
  tidings export a/pages.db b/pages.db c.jsonl --merge       one line for each page, by time
  tidings export /mnt/*/tidings-data --merge --format sqlite --output all.db

Crawlers may write meanwhile; the inputs are not changed. --merge sorts in a temporary file in the
directory TMPDIR, which needs about as much room as the result.

Exit codes: 0 success; 1 failure, without a new file; 2 wrong usage; 130 interrupted by Ctrl-C.";

/// The flags of `tidings export`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("data", of_existing_data))]
pub(crate) struct ExportArgs {
    /// Databases, JSON Lines files or data directories of crawlers [default: the data directory]
    #[arg(value_name = "FILE|DIR")]
    inputs: Vec<PathBuf>,

    /// Write one record for each page and pass, from its newest attempt, ordered by time
    #[arg(long)]
    merge: bool,

    /// Output format; sqlite always writes one record for each page, and the bodies of pages that
    /// the databases have
    #[arg(long, value_enum, default_value_t = Format::Jsonl, requires_if("sqlite", "output"))]
    format: Format,

    /// Write to this new file instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    data: DataFlag,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Jsonl,
    Sqlite,
}

/// Runs the export until it is done or interrupted.
pub(crate) async fn run(args: ExportArgs) -> Result<(), Failure> {
    let stop = stop_on_signal()?;
    let exported = spawn_blocking(move || export(args, &stop)).await;
    exported.unwrap_or_else(|panicked| Err(Failure::failed(panicked.to_string())))
}

fn export(args: ExportArgs, stop: &CancellationToken) -> Result<(), Failure> {
    let ExportArgs { mut inputs, merge, format, output, data } = args;
    if inputs.is_empty() {
        inputs.push(data.data);
    }
    let mut console = Console::new();
    let mut go_on = |so_far: Exported| {
        console.progress(&progress(so_far));
        !stop.is_cancelled()
    };
    let place = output.clone();
    let mut stdout = io::stdout().lock();
    let target = match (output, format) {
        (None, _) => ExportTarget::Lines(&mut stdout),
        (Some(file), Format::Jsonl) => ExportTarget::LinesFile(file),
        (Some(file), Format::Sqlite) => ExportTarget::Database(file),
    };
    let exported = export::export(&inputs, merge, target, &mut go_on).map_err(failure)?;
    if let Some(place) = place {
        let records = plural(exported.written, "record");
        console.note(&format!(
            "{records} of {} in {}",
            format_count(exported.read),
            place.display()
        ));
    }
    Ok(())
}

fn progress(Exported { read, written, bodies }: Exported) -> String {
    let records = format!("{} read, {} written", format_count(read), format_count(written));
    if bodies == 0 { records } else { format!("{records}, {} bodies", format_count(bodies)) }
}

fn failure(error: ExportError) -> Failure {
    match error {
        ExportError::Reader(error) => Failure::from_output(error),
        ExportError::Stopped => Failure::Interrupted(error.to_string()),
        error => Failure::Failed(anyhow!(error)),
    }
}
