//! `tidings dead`: lists, retries and drops dead letters of a group.

use clap::{ArgGroup, Args, Subcommand};
use tidings_protocol::status::{ChangedEntriesStatus, ListEnd, TaskFields};
use tidings_protocol::{DEFAULT_GROUP, GroupAction, JobName};

use crate::client::manage::{BrokerClient, GroupFlag, OutputFlags, spaced};
use crate::client::overview::{GroupOverview, Overview};
use crate::commands::group::command;
use crate::commands::group::tasks::{self, EntryFilter, EntryState, or_dash};
use crate::flags::broker::BrokerFlag;
use crate::flags::confirmation::YesFlag;
use crate::flags::one_word;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_count, note, plural};

const EXAMPLES: &str = "\
Examples:
  tidings dead ls                          all dead letters and their reasons
  tidings dead retry 42 57                 release these two again
  tidings dead retry --key example.org     all of a host that works again
  tidings dead drop 42                     remove this one
  tidings dead drop --job old-crawl        those of a job; a terminal asks first, scripts add --yes

The topic dead-letter announces each dead letter once.

Exit codes: 0 success; 1 rejected or failed; 2 wrong usage.";

/// The name of the connection, as the broker shows it.
const NAME: &str = "tidings-dead";

/// The subcommands of `tidings dead`.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Dead {
    /// List dead letters with their reasons
    #[command(alias = "list")]
    Ls(LsArgs),
    /// Return dead letters to the queue; attempts and losses start at 0
    Retry(SelectArgs),
    /// Remove dead letters
    Drop(DropArgs),
}

/// The flags of `tidings dead ls`.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    group: GroupFlag,

    #[command(flatten)]
    filter: EntryFilter,

    #[command(flatten)]
    output: OutputFlags,
}

/// The flags of `tidings dead drop`.
#[derive(Debug, Args)]
pub(crate) struct DropArgs {
    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    yes: YesFlag,
}

/// The flags of `tidings dead retry` and `drop`: the selected entries.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["entries", "key", "job", "all"]))]
pub(crate) struct SelectArgs {
    /// Entry numbers, as `tidings dead ls` prints them
    #[arg(value_name = "ENTRY")]
    entries: Vec<u64>,

    /// All entries of this key, usually a host
    #[arg(long, value_name = "KEY", value_parser = one_word)]
    key: Option<String>,

    /// All entries of this job
    #[arg(long, value_name = "JOB")]
    job: Option<JobName>,

    /// All entries
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    group: GroupFlag,

    #[command(flatten)]
    broker: BrokerFlag,
}

/// Runs the subcommand.
pub(crate) async fn run(dead: Dead) -> Result<(), Failure> {
    match dead {
        Dead::Ls(args) => {
            let headings = "ENTRY> REASON ATTEMPTS> LOSSES> LAST JOB URL";
            let (group, state) = (&args.group.group, Some(EntryState::Dead));
            tasks::list(group, state, &args.filter, &args.output, headings, |task| {
                let TaskFields { reason, attempts, losses, last, job, .. } = &task.fields;
                vec![
                    task.entry.to_string(),
                    or_dash(reason.as_ref()),
                    attempts.to_string(),
                    losses.to_string(),
                    spaced(&or_dash(last.as_ref())),
                    or_dash(job.as_ref()),
                    tasks::text(task),
                ]
            })
            .await?;
            note_other_groups(&args).await;
            Ok(())
        }
        Dead::Retry(args) => apply(GroupAction::Retry, "retried", &args).await,
        Dead::Drop(DropArgs { select, yes }) => {
            if select.entries.is_empty() {
                yes.confirm(drop_question(&select)).await?;
            }
            apply(GroupAction::Drop, "dropped", &select).await
        }
    }
}

/// Below the list of the default group, names the others with dead letters that this client may see.
async fn note_other_groups(args: &LsArgs) {
    if args.group.group.as_str() != DEFAULT_GROUP {
        return;
    }
    let Ok(broker) = BrokerClient::connect(&args.output.broker, NAME).await else { return };
    let groups = Overview::read(&broker).await.map(|overview| overview.groups);
    for group in groups.unwrap_or_default() {
        if let GroupOverview::Sound(group) = group
            && group.group != DEFAULT_GROUP
            && group.dead_kept > 0
        {
            let (dead, name) = (plural(group.dead_kept, "dead letter"), &group.group);
            note(&format!("group {name} has {dead}: tidings dead ls --group {name}"));
        }
    }
}

/// The question before dead letters are dropped that are not named by their numbers.
async fn drop_question(args: &SelectArgs) -> Result<String, Failure> {
    let broker = BrokerClient::connect(&args.broker, NAME).await?;
    let (group, selected) = (&args.group.group, args.requests().concat());
    let mut settings = vec![("state", "dead"), ("limit", "0")];
    settings.extend(selected.iter().map(|(key, value)| (*key, value.as_str())));
    let answer = broker.request(&command(GroupAction::Tasks, group, settings)).await?;
    let dead = plural(ListEnd::parse(&answer.ok).matched.unwrap_or(0), "dead letter");
    Ok(format!("drop {dead} of group {group}?"))
}

/// Applies the action to the selected entries and prints their number.
async fn apply(action: GroupAction<'_>, done: &str, args: &SelectArgs) -> Result<(), Failure> {
    let broker = BrokerClient::connect(&args.broker, NAME).await?;
    let mut sum = 0;
    for settings in args.requests() {
        let settings = settings.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let answer = broker.request(&command(action, &args.group.group, settings)).await?;
        let ChangedEntriesStatus { retried, dropped, .. } = ChangedEntriesStatus::parse(&answer.ok);
        sum += retried.or(dropped).unwrap_or(0);
    }
    Console::new().line(&format!("{done} {}", format_count(sum)))
}

impl SelectArgs {
    /// The options of each request.
    fn requests(&self) -> Vec<Vec<(&'static str, String)>> {
        if !self.entries.is_empty() {
            return self.entries.iter().map(|entry| vec![("entry", entry.to_string())]).collect();
        }
        let mut settings = Vec::new();
        settings.extend(self.key.clone().map(|key| ("key", key)));
        settings.extend(self.job.as_ref().map(|job| ("job", job.to_string())));
        vec![settings]
    }
}
