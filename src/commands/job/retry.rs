//! `tidings job retry`: fetches the failed pages of a pass again, as the next pass.

use clap::Args;
use serde_json::json;
use tidings_protocol::status::{JobState, JobStatus, PageStatus};
use tidings_protocol::{GroupAction, JobAction, reason_of};

use super::add::SeedSender;
use super::pages::{PageFlags, count_by};
use super::{NAME, command};
use crate::client::manage::BrokerClient;
use crate::commands::group;
use crate::process::signals::stop_on_signal;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_count, plural};

const EXAMPLES: &str = "\
Examples:
  tidings job retry docs && tidings job wait docs    fetch the failed pages again, and wait
  tidings job retry docs --reason timeout,dns        only those with these reasons
  tidings job retry docs --dry-run                   how many there are
  tidings job failed docs                            which of them failed again

The failed pages become the seeds of the next pass of the job. Their links are not followed, so no
other page is fetched again, except the targets of redirects. The pass keeps render= and callback=
of the job, and has none of its limits. Dead letters of these pages are dropped.

Exit codes: 0 the pages are queued, or nothing failed; 1 the job is not done or does not exist, or
the broker rejects the request; 2 wrong usage; 130 interrupted (the next pass stays open).";

/// The flags of `tidings job retry`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RetryArgs {
    #[command(flatten)]
    of: PageFlags,

    /// Only say how many pages would be fetched again
    #[arg(long)]
    dry_run: bool,
}

/// Queues the failed pages and prints their number.
pub(super) async fn run(args: RetryArgs) -> Result<(), Failure> {
    let RetryArgs { of, dry_run } = args;
    let broker = BrokerClient::connect(&of.output.broker, NAME).await?;
    let job = of.show(&broker).await?;
    if job.state != JobState::Done {
        let JobStatus { job, pass, state, .. } = job;
        let how = if state == JobState::Open {
            format!("tidings job close {job}, or tidings job cancel {job}")
        } else {
            format!("tidings job wait {job}")
        };
        return Err(Failure::failed(format!(
            "pass {pass} of {job} is {state}; retry when it is done: {how}"
        )));
    }
    let mut console = Console::new();
    let found = of.read(&job, true, &mut console).await?;
    let pages = &found.pages;
    let pass = if dry_run || pages.is_empty() {
        job.pass
    } else {
        queue(&broker, &of, &job, pages, &mut console).await?
    };
    if of.output.json {
        let (job, pages) = (of.job.as_str(), pages.len());
        let line = json!({ "job": job, "pass": pass, "pages": pages, "dry-run": dry_run });
        return console.line(&line.to_string());
    }
    let reasons = count_by(pages, reason_of);
    let count = plural(pages.len() as u64, "page");
    console.line(&match (pages.is_empty(), dry_run) {
        (true, _) => found.none_line().to_owned(),
        (false, true) => format!("{count} would be fetched again: {reasons}"),
        (false, false) => format!("{}: pass {pass}, {count}: {reasons}", of.job),
    })
}

/// Opens the next pass with these pages as its seeds, and closes it. Returns its number.
async fn queue(
    broker: &BrokerClient<'_>,
    of: &PageFlags,
    job: &JobStatus,
    pages: &[PageStatus],
    console: &mut Console,
) -> Result<u64, Failure> {
    // Without links, neither scope nor patterns have an effect, and seeds belong to a job anyway.
    let mut settings = vec![("max-depth", "0"), ("hold", "yes")];
    settings.extend(job.render.as_deref().map(|rule| ("render", rule)));
    settings.extend(job.callback.as_deref().map(|url| ("callback", url)));
    let group = &of.group.group;
    let stop = stop_on_signal()?;
    let open = command(JobAction::Open, Some(&of.job), group, settings);
    let opened = JobStatus::parse(&broker.request(&open).await?.ok);
    let queued = async {
        let mut seeds = SeedSender::new(broker, &of.job, group);
        for page in pages {
            let item = page.item.as_deref().map(|item| ("item", item));
            let source = page.source.as_deref().map(|source| ("source", source));
            seeds.add_with(&page.url, item.into_iter().chain(source)).await?;
            console.progress(&format!(
                "{} of {} queued",
                format_count(seeds.new + seeds.known),
                format_count(pages.len() as u64)
            ));
        }
        seeds.read_answers(0).await?;
        if let Err(failure) = drop_dead_letters(broker, of, pages).await {
            // A token for jobs alone does not allow it.
            let reason = failure.text().unwrap_or_default();
            console.note(&format!("note: dead letters of these pages are kept: {reason}"));
        }
        broker.request(&command(JobAction::Close, Some(&of.job), group, Vec::new())).await
    };
    let closed = tokio::select! {
        biased;
        () = stop.cancelled() => Err(Failure::Interrupted("stopped queueing".to_owned())),
        closed = queued => closed,
    };
    match closed {
        Ok(_) => Ok(opened.pass),
        Err(failure) => {
            console.note(&format!(
                "pass {} of {} stays open; end it with: tidings job cancel {}",
                opened.pass, of.job, of.job
            ));
            Err(failure)
        }
    }
}

/// Drops the dead letters of pages that are fetched again: a retry of them would fetch the pages a
/// further time.
async fn drop_dead_letters(
    broker: &BrokerClient<'_>,
    of: &PageFlags,
    pages: &[PageStatus],
) -> Result<(), Failure> {
    for page in pages.iter().filter(|page| page.gave_up.is_some()) {
        // `page=<group>.<since>.<entry>`
        let Some((_, entry)) = page.page.rsplit_once('.') else { continue };
        let settings = vec![("entry", entry), ("job", of.job.as_str())];
        broker.request(&group::command(GroupAction::Drop, &of.group.group, settings)).await?;
    }
    Ok(())
}
