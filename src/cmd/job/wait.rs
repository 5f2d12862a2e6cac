//! `tidings job wait`: until the pass of a job is done.

#![expect(clippy::disallowed_methods, reason = "shows how fast a job goes")]

use std::time::Instant;

use clap::Args;

use super::JobArgs;
use crate::{
    failure::Failure,
    job::Rate,
    manage::named,
    output::Console,
    signals::stop_on_signal,
    watch::{Step, Watch},
};

const EXAMPLES: &str = "\
Examples:
  tidings job wait docs && ./publish-index        go on when all of it is there
  tidings job wait docs --json                    the counts, for programs

A job ends only after it was closed; if it is done already the answer comes at once. Who waits at a
terminal sees the progress.

Exit codes: 0 the pass is done; 1 pages failed, it was cancelled, or there is no such job; 2 wrong
usage; 130 interrupted (the job goes on).";

/// The flags of `tidings job wait`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    of: JobArgs,
}

/// Waits, with a progress line where somebody sees it, and says how it went.
pub(crate) async fn run(args: WaitArgs) -> Result<(), Failure> {
    let JobArgs { job, group, output } = args.of;
    let stop = stop_on_signal()?;
    let mut console = Console::new();
    let (started, mut rate) = (Instant::now(), Rate::default());
    let shows_progress = console.shows_progress();
    let mut watch = Watch::wait(output.broker.broker, job.clone(), group.group, shows_progress);
    let end = loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => {
                return Err(Failure::Interrupted(format!("stopped waiting; job {job} goes on")));
            }
            news = watch.next() => match news? {
                Step::Progress(counts) => {
                    let seconds = started.elapsed().as_secs_f64();
                    let rate = rate.at(seconds, counts.completed);
                    console.progress(&counts.progress_line(rate));
                }
                Step::Done(counts) => break counts,
            }
        }
    };
    if output.json {
        console.line(&named(&end.words, "job").to_string())?;
    } else {
        console.line(&end.end_line())?;
    }
    if end.went_well() { Ok(()) } else { Err(Failure::Unsuccessful) }
}
