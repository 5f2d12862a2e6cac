//! `tidings job`: opens, inspects and ends jobs.

mod add;
mod pages;
mod retry;
mod set;
pub(crate) mod wait;

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use tidings_protocol::status::{JobState, JobStatus};
use tidings_protocol::{Command, GroupName, JobAction, JobCommand, JobName, JobSettings};

use self::add::AddArgs;
use self::pages::PagesArgs;
use self::retry::RetryArgs;
use self::set::SetArgs;
use self::wait::{WaitArgs, WatchArgs};
use crate::client::job::{state_line, state_word};
use crate::client::lists::{Columns, ListFlags, print_listed};
use crate::client::manage::{
    BrokerClient, GroupFlag, OutputFlags, as_str_pairs, named_object, parse_setting, print_list,
    settings_help,
};
use crate::commands::group::waiting::BumpFlags;
use crate::flags::confirmation::YesFlag;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_count, format_duration, plural};

const EXAMPLES: &str = "\
Examples:
  tidings job open docs scope=prefix max-pages=500        open a job for seeds
  tidings job add docs https://example.org/docs/          add a seed
  tidings job add docs < seeds.txt                        add many, one on each line
  tidings job close docs                                  no more seeds; it ends with the last page
  tidings job wait docs                                   wait; the exit code is the result
  tidings job watch docs                                  the same, with progress
  tidings job set docs --exclude /calendar/ --dry-run     change it while it runs
  tidings job failed docs                                 which pages failed, and why
  tidings job retry docs                                  fetch these again, as the next pass
  tidings job bump docs --match '*.pdf$' --prio 10        fetch these before its other pages
  tidings job open docs scope=prefix max-pages=500        run it again: the next pass

`tidings crawl URL..` does all of this at once.

Exit codes: 0 success; 1 rejected or failed; for `wait`, `watch` and `failed` also that pages
failed or the job was cancelled; 2 wrong usage; 130 interrupted.";

const OPEN_EXAMPLES: &str = "\
Examples:
  tidings job open docs                               the hosts of its seeds, without a limit
  tidings job open docs scope=domain max-time=6h      a domain, for at most six hours
  tidings job open news scope=any max-depth=1 max-per-host=20
  tidings job open texts include=/docs/,/blog/ exclude='*.pdf$'";

const SETTINGS: &str = "\
They hold for this pass of the job. What exceeds a limit ends as over budget. With hold=yes the order
of the seeds does not matter: a link from the page of one seed to the host of another belongs to the
job. A broker with --callback-secret-file signs callbacks.

A job that is open without a seed for a day is closed.";

/// The name of the connection, as the broker shows it.
const NAME: &str = "tidings-job";

/// The subcommands of `tidings job`.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Job {
    /// Open a job, or the next pass of one that is done
    Open(OpenArgs),
    /// Add seeds to a job: arguments, or the lines of standard input
    Add(AddArgs),
    /// Change settings of a job that runs, or see what that would drop
    Set(SetArgs),
    /// Accept no more seeds; the job ends after its last page
    Close(JobArgs),
    /// List the jobs of a group, the newest first
    #[command(alias = "list")]
    Ls(LsArgs),
    /// Show the state and counts of a job
    Show(JobArgs),
    /// Wait until the pass of a job is done
    Wait(WaitArgs),
    /// Show the counts of a job until its pass is done
    Watch(WatchArgs),
    /// List the pages that failed, and why
    #[command(after_help = pages::FAILED_EXAMPLES)]
    Failed(PagesArgs),
    /// List the pages and their outcomes
    #[command(after_help = pages::PAGES_EXAMPLES)]
    Pages(PagesArgs),
    /// Fetch the failed pages of a finished job again, as its next pass
    Retry(RetryArgs),
    /// Change the priority of waiting pages of a job
    Bump(BumpArgs),
    /// Stop releasing pages of a job; crawlers finish those they hold
    Pause(JobArgs),
    /// Release pages again after a pause
    Resume(JobArgs),
    /// End a job: drop waiting pages and ignore links of pages in work
    Cancel(EndArgs),
    /// Delete a finished job
    Delete(EndArgs),
}

/// The flags of subcommands for one job.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// The job
    job: JobName,

    #[command(flatten)]
    group: GroupFlag,

    #[command(flatten)]
    output: OutputFlags,
}

/// The flags of `tidings job cancel` and `delete`.
#[derive(Debug, Args)]
pub(crate) struct EndArgs {
    #[command(flatten)]
    of: JobArgs,

    #[command(flatten)]
    yes: YesFlag,
}

/// The flags of `tidings job open`.
#[derive(Debug, Args)]
#[command(after_help = settings_help::<JobSettings>(OPEN_EXAMPLES, SETTINGS))]
pub(crate) struct OpenArgs {
    #[command(flatten)]
    of: JobArgs,

    /// A setting of the list below
    #[arg(value_name = "SETTING", value_parser = parse_setting::<JobSettings>)]
    settings: Vec<(String, String)>,
}

/// The flags of `tidings job ls`.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Only jobs in this state
    #[arg(long, value_enum)]
    state: Option<ListedState>,

    #[command(flatten)]
    list: ListFlags,

    #[command(flatten)]
    group: GroupFlag,

    #[command(flatten)]
    output: OutputFlags,
}

/// The states of a job, as they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ListedState {
    /// Expects seeds
    Open,
    /// Expects no more seeds, and is not done
    #[value(alias = "closed")]
    Running,
    /// Releases nothing
    Paused,
    /// Its pass is over
    Done,
}

/// The flags of `tidings job bump`.
#[derive(Debug, Args)]
pub(crate) struct BumpArgs {
    #[command(flatten)]
    of: JobArgs,

    #[command(flatten)]
    bump: BumpFlags,
}

/// Runs the subcommand.
pub(crate) async fn run(job: Job) -> Result<(), Failure> {
    match job {
        Job::Open(args) => run_action(JobAction::Open, &args.of, &args.settings).await,
        Job::Add(args) => add::run(args).await,
        Job::Set(args) => set::run(args).await,
        Job::Close(args) => run_action(JobAction::Close, &args, &[]).await,
        Job::Ls(args) => ls(&args).await,
        Job::Show(args) => run_action(JobAction::Show, &args, &[]).await,
        Job::Wait(args) => wait::wait(args).await,
        Job::Watch(args) => wait::watch(args).await,
        Job::Failed(args) => pages::failed(args).await,
        Job::Pages(args) => pages::pages(args).await,
        Job::Retry(args) => retry::run(args).await,
        Job::Bump(BumpArgs { of: JobArgs { job, group, output }, bump }) => {
            bump.run(&group.group, Some(&job), &output).await
        }
        Job::Pause(args) => run_action(JobAction::Pause, &args, &[]).await,
        Job::Resume(args) => run_action(JobAction::Resume, &args, &[]).await,
        Job::Cancel(args) => end(JobAction::Cancel, &args).await,
        Job::Delete(args) => end(JobAction::Delete, &args).await,
    }
}

/// `JOB <action> <job> group=<group> <settings>`.
pub(crate) fn command<'a>(
    action: JobAction<'a>,
    job: Option<&'a JobName>,
    group: &'a GroupName,
    mut settings: Vec<(&'a str, &'a str)>,
) -> Command<'a> {
    settings.insert(0, ("group", group.as_str()));
    Command::Job(JobCommand { action, name: job.map(JobName::as_str), settings })
}

/// Asks before an action that ends a job, and runs it.
async fn end(action: JobAction<'_>, args: &EndArgs) -> Result<(), Failure> {
    let of = &args.of;
    let question = async {
        let broker = BrokerClient::connect(&of.output.broker, NAME).await?;
        let show = command(JobAction::Show, Some(&of.job), &of.group.group, Vec::new());
        let job = JobStatus::parse(&broker.request(&show).await?.ok);
        Ok(match action {
            JobAction::Cancel => {
                let waiting = plural(job.pending + job.queued, "waiting URL");
                format!("cancel job {} and drop {waiting}?", job.job)
            }
            _ => format!(
                "delete job {} and forget its {}?",
                job.job,
                plural(job.counts.found, "URL")
            ),
        })
    };
    args.yes.confirm(question).await?;
    run_action(action, of, &[]).await
}

/// Sends the action for one job and prints the answer.
async fn run_action(
    action: JobAction<'_>,
    args: &JobArgs,
    settings: &[(String, String)],
) -> Result<(), Failure> {
    let broker = BrokerClient::connect(&args.output.broker, NAME).await?;
    let command = command(action, Some(&args.job), &args.group.group, as_str_pairs(settings));
    let answer = broker.request(&command).await?;
    let mut console = Console::new();
    if args.output.json {
        return console.line(&named_object(&answer.ok, "job").to_string());
    }
    match action {
        JobAction::Show => print_list(&mut console, &answer.ok),
        JobAction::Delete => console.line(&format!("deleted {}", args.job)),
        _ => console.line(&state_line(&JobStatus::parse(&answer.ok))),
    }
}

async fn ls(args: &LsArgs) -> Result<(), Failure> {
    let state = args.state.map(|state| match state {
        ListedState::Open => JobState::Open,
        ListedState::Running => JobState::Closed,
        ListedState::Paused => JobState::Paused,
        ListedState::Done => JobState::Done,
    });
    let settings = state.iter().map(|state| ("state", state.as_str())).collect();
    let jobs = command(JobAction::Ls, None, &args.group.group, settings);
    let columns = Columns {
        object: |line: &str| named_object(line, "job").to_string(),
        headings: HEADINGS,
        row: |line: &str| row(&JobStatus::parse(line)),
    };
    print_listed(NAME, &jobs, &args.list, &args.output, columns).await
}

/// The headings of `ls`.
pub(crate) const HEADINGS: &str =
    "JOB PASS> STATE FOUND> PENDING> QUEUED> PROCESSING> COMPLETED> FAILED> OPENED TOOK>";

/// A job as a row of `ls`.
pub(crate) fn row(job: &JobStatus) -> Vec<String> {
    vec![
        job.job.clone(),
        job.pass.to_string(),
        state_word(&job.state).to_owned(),
        format_count(job.counts.found),
        format_count(job.pending),
        format_count(job.queued),
        format_count(job.processing),
        format_count(job.counts.completed),
        format_count(job.counts.failed),
        second_of(&job.opened),
        took(job, Timestamp::now()).unwrap_or_else(|| "-".to_owned()),
    ]
}

/// A time without the parts of its second.
fn second_of(time: &str) -> String {
    let at = time.parse::<Timestamp>().ok();
    at.and_then(|at| Timestamp::from_second(at.as_second()).ok())
        .map_or_else(|| time.to_owned(), |at| at.to_string())
}

/// How long the pass took, or has taken until `now`.
fn took(job: &JobStatus, now: Timestamp) -> Option<String> {
    let end = job.ended.as_ref().map_or(Some(now), |ended| ended.parse().ok())?;
    let opened: Timestamp = job.opened.parse().ok()?;
    let ms = end.as_millisecond().saturating_sub(opened.as_millisecond());
    Some(format_duration(Duration::from_millis(u64::try_from(ms).unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_a_row() {
        let row = |line: &str| row(&JobStatus::parse(line));
        let job = "docs number=3 pass=2 state=closed pending=1 queued=2 processing=3 \
                   completed=4000 failed=5 found=6";
        let shown = row(job);
        assert_eq!(shown[..9], ["docs", "2", "running", "6", "1", "2", "3", "4,000", "5"]);
        let times = "opened=2026-01-31T12:00:00.25Z";
        let now = "2026-01-31T12:03:05Z".parse().unwrap();
        let running = JobStatus::parse(&format!("{job} {times}"));
        assert_eq!(took(&running, now).unwrap(), "3m 04s");
        let done = row(&format!("{job} {times} ended=2026-01-31T14:03:05.3Z"));
        assert_eq!(done[9..], ["2026-01-31T12:00:00Z", "2h 03m"]);
    }

    #[test]
    fn a_setting_is_checked_before_it_is_sent() {
        assert!(parse_setting::<JobSettings>("max-pages=5").is_ok());
        for (wrong, right) in
            [("scope", "KEY=VALUE"), ("scope=galaxy", "prefix"), ("colour=red", "max-pages")]
        {
            let error = parse_setting::<JobSettings>(wrong).unwrap_err();
            assert!(error.contains(right), "{error}");
        }
    }
}
