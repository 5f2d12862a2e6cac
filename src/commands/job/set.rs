//! `tidings job set`: changes settings of a job that runs, or says what a change would drop.

use clap::Args;
use serde_json::json;
use tidings_protocol::status::{JobDryRun, JobStatus};
use tidings_protocol::{JobAction, JobSettings};

use super::{JobArgs, NAME, command};
use crate::client::broker_message;
use crate::client::job::state_line;
use crate::client::manage::{BrokerClient, as_str_pairs, named_object};
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_count, plural};

const EXAMPLES: &str = "\
Examples:
  tidings job set docs --exclude /calendar/ --dry-run     how many waiting URLs that would drop
  tidings job set docs --exclude /calendar/,'*.pdf$'      drop them, and refuse such links
  tidings job set docs --max-pages 2000 --max-time 2h     other limits
  tidings job set docs --include none                     remove a setting

A setting replaces the one that the job has; the others stay. It holds for this pass. Once the
command has returned, no URL is requested that the job would not admit as a link now; seeds always
belong to it. A wider setting applies to links that are found later. --max-time counts from now.

Exit codes: 0 success; 1 the job does not run, or the broker rejects the request; 2 wrong usage.";

/// URLs that are shown.
const SHOWN_MAX: usize = 20;

/// The flags of `tidings job set`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = "tidings job set [OPTIONS] <JOB>")]
pub(crate) struct SetArgs {
    #[command(flatten)]
    of: JobArgs,

    #[command(flatten)]
    changes: ChangeFlags,

    /// Change nothing; say how many of the waiting URLs would go, and show some
    #[arg(long)]
    dry_run: bool,
}

/// The settings to change.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct ChangeFlags {
    /// Only links that match one of these patterns, or none; may be repeated
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    include: Vec<String>,

    /// No links that match one of these patterns, or none; may be repeated
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    exclude: Vec<String>,

    /// The largest number of links from a seed, or none
    #[arg(long, value_name = "N")]
    max_depth: Option<String>,

    /// The largest number of pages, or none
    #[arg(long, value_name = "N")]
    max_pages: Option<String>,

    /// The largest number of pages from each host, or none
    #[arg(long, value_name = "N")]
    max_per_host: Option<String>,

    /// End after this time, from now, or none
    #[arg(long, value_name = "DURATION")]
    max_time: Option<String>,
}

impl ChangeFlags {
    /// The settings of `JOB set`, checked as the broker would check them.
    fn settings(self) -> Result<Vec<(String, String)>, Failure> {
        let patterns = |list: Vec<String>| (!list.is_empty()).then(|| list.join(","));
        let all = [
            ("include", patterns(self.include)),
            ("exclude", patterns(self.exclude)),
            ("max-depth", self.max_depth),
            ("max-pages", self.max_pages),
            ("max-per-host", self.max_per_host),
            ("max-time", self.max_time),
        ];
        let given = all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        let given: Vec<_> = given.collect();
        for (key, value) in &given {
            JobSettings::default().changed_in_pass([(key.as_str(), value.as_str())]).map_err(
                |error| {
                    let problem = broker_message::flag_value_error(&error.text);
                    Failure::Usage(format!("--{key} {value}: {problem}"))
                },
            )?;
        }
        Ok(given)
    }
}

/// Changes a job, or prints what the change would drop.
pub(super) async fn run(args: SetArgs) -> Result<(), Failure> {
    let SetArgs { of, changes, dry_run } = args;
    let settings = changes.settings()?;
    let broker = BrokerClient::connect(&of.output.broker, NAME).await?;
    let mut console = Console::new();
    if dry_run {
        return show_dropped(&broker, &of, &as_str_pairs(&settings), &mut console).await;
    }
    let command = command(JobAction::Set, Some(&of.job), &of.group.group, as_str_pairs(&settings));
    let answer = broker.request(&command).await?;
    if of.output.json {
        return console.line(&named_object(&answer.ok, "job").to_string());
    }
    console.line(&state_line(&JobStatus::parse(&answer.ok)))
}

/// Sums the parts in which the broker looks at the waiting URLs.
async fn show_dropped(
    broker: &BrokerClient<'_>,
    of: &JobArgs,
    settings: &[(&str, &str)],
    console: &mut Console,
) -> Result<(), Failure> {
    let (mut examples, mut sum, mut next) = (Vec::new(), JobDryRun::default(), Some(0));
    while let Some(after) = next {
        let after = after.to_string();
        let words = [settings, &[("dry", "yes"), ("after", &after)]].concat();
        let command = command(JobAction::Set, Some(&of.job), &of.group.group, words);
        let answer = broker.request(&command).await?;
        let part = JobDryRun::parse(&answer.ok);
        sum.would_drop += part.would_drop;
        sum.of += part.of;
        let room = SHOWN_MAX - examples.len();
        examples.extend(answer.more.into_iter().take(room));
        next = part.next;
    }
    let JobDryRun { would_drop, of: waiting, .. } = sum;
    if of.output.json {
        let job = of.job.as_str();
        let line =
            json!({ "job": job, "would-drop": would_drop, "of": waiting, "examples": examples });
        return console.line(&line.to_string());
    }
    let (dropped, waiting) = (format_count(would_drop), plural(waiting, "waiting URL"));
    console.line(&format!("{dropped} of {waiting} would be dropped"))?;
    examples.iter().try_for_each(|url| console.line(&format!("  {url}")))
}
