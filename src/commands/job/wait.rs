//! `tidings job wait` and `tidings job watch`: wait until the pass of a job is done.

use std::time::Duration;

use clap::Args;
use tidings_protocol::status::JobStatus;

use super::JobArgs;
use crate::client::job::{end_line, has_succeeded, watch_line};
use crate::client::job_watch::{JobUpdate, JobWatch};
use crate::client::manage::json_line;
use crate::flags::parse_moderate_duration;
use crate::process::signals::stop_on_signal;
use crate::terminal::failure::Failure;
use crate::terminal::output::Console;

const WAIT_EXAMPLES: &str = "\
Examples:
  tidings job wait docs && ./publish-index        continue when all pages are stored
  tidings job wait docs --json                    the counts as JSON

A job ends only after it was closed. If it is already done, the answer comes at once. On a terminal
the command shows progress.

Exit codes: 0 the pass is done; 1 pages failed, the job was cancelled or does not exist; 2 wrong
usage; 130 interrupted (the job continues).";

const WATCH_EXAMPLES: &str = "\
Examples:
  tidings job watch docs                          progress on a line that is redrawn
  tidings job watch docs --every 1m >> crawl.log  a line a minute, while something changes
  tidings job watch docs --json | jq .completed   one JSON object on each line

On a terminal the line is redrawn; a file or a pipe receives one line for each change. While nothing
changes there is no output. The last line is the result of the pass.

Exit codes: 0 the pass is done; 1 pages failed, the job was cancelled or does not exist; 2 wrong
usage; 130 interrupted (the job continues).";

/// The shortest time between two redraws of the progress line.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The flags of `tidings job wait`.
#[derive(Debug, Args)]
#[command(after_help = WAIT_EXAMPLES)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    of: JobArgs,
}

/// The flags of `tidings job watch`.
#[derive(Debug, Args)]
#[command(after_help = WATCH_EXAMPLES)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    of: JobArgs,

    #[command(flatten)]
    every: EveryFlag,
}

/// The shortest time between two lines.
#[derive(Debug, Args)]
pub(crate) struct EveryFlag {
    /// Print at most one line in this time, from 100ms to 1h
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_moderate_duration)]
    pub(crate) every: Duration,
}

/// Waits, with a progress line on a terminal, and prints the result.
pub(crate) async fn wait(args: WaitArgs) -> Result<(), Failure> {
    let progress = Console::new().shows_progress().then_some(PROGRESS_INTERVAL);
    follow(args.of, progress, "waiting", |console, job| {
        console.progress(&watch_line(job));
        Ok(())
    })
    .await
}

/// Prints the counts whenever they change, then the result.
pub(crate) async fn watch(args: WatchArgs) -> Result<(), Failure> {
    let json = args.of.output.json;
    follow(args.of, Some(args.every.every), "watching", |console, job| {
        let line = watch_line(job);
        match (json, console.shows_progress()) {
            (true, _) => console.line(&json_line(job)),
            (false, true) => {
                console.progress(&line);
                Ok(())
            }
            (false, false) => console.line(&line),
        }
    })
    .await
}

async fn follow(
    of: JobArgs,
    progress: Option<Duration>,
    doing: &str,
    mut show: impl FnMut(&mut Console, &JobStatus) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let JobArgs { job, group, output } = of;
    let stop = stop_on_signal()?;
    let mut console = Console::new();
    let mut watch = JobWatch::wait(output.broker.broker, job.clone(), group.group, progress);
    let end = loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => {
                return Err(Failure::Interrupted(format!("stopped {doing}; job {job} continues")));
            }
            news = watch.next() => match news? {
                JobUpdate::Progress(progress) => show(&mut console, &progress.job)?,
                JobUpdate::Done(end) => break *end,
            }
        }
    };
    if output.json {
        console.line(&json_line(&end))?;
    } else {
        console.line(&end_line(&end))?;
    }
    if has_succeeded(&end) { Ok(()) } else { Err(Failure::Unsuccessful) }
}
