//! Changes of selected entries that wait: `tidings group purge --key ..`, `group bump` and
//! `job bump`.

use clap::Args;
use serde_json::json;
use tidings_protocol::status::ChangedEntriesStatus;
use tidings_protocol::{DEFAULT_GROUP, GroupAction, GroupName, JobName, Patterns, Prio};

use super::{NAME, command};
use crate::client::manage::{BrokerClient, OutputFlags};
use crate::flags::confirmation::YesFlag;
use crate::flags::one_word;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_count};

const EXAMPLES: &str = "\
Examples:
  tidings group bump --match '*.pdf$' --prio 10      fetch these before all others
  tidings group bump --key example.org --prio -10    fetch those of a host last
  tidings group bump --job docs --prio 5 --dry-run   how many that would be

On each host, entries with a higher priority go first. Jobs still take turns on a host, and hosts
keep their delays.

Exit codes: 0 success; 1 rejected or failed; 2 wrong usage.";

/// The flags of `tidings group bump`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BumpArgs {
    /// The group
    #[arg(default_value = DEFAULT_GROUP)]
    group: GroupName,

    /// Only entries of this job
    #[arg(long, value_name = "JOB")]
    job: Option<JobName>,

    #[command(flatten)]
    bump: BumpFlags,

    #[command(flatten)]
    output: OutputFlags,
}

/// What `bump` changes.
#[derive(Debug, Args)]
pub(crate) struct BumpFlags {
    /// The new priority, from 1000 (first) to -1000 (last)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    prio: Prio,

    #[command(flatten)]
    filter: WaitingFilter,
}

/// Flags that select waiting entries.
#[derive(Debug, Args)]
pub(crate) struct WaitingFilter {
    /// Only entries of this key, usually a host
    #[arg(long, value_name = "KEY", value_parser = one_word)]
    key: Option<String>,

    /// Only entries with a URL that one of these patterns matches, such as '*.pdf$'
    #[arg(long = "match", value_name = "PATTERN,..")]
    matching: Option<Patterns>,

    /// Change nothing; say how many entries would be changed
    #[arg(long)]
    dry_run: bool,
}

/// Entries that wait, and how a change of them is printed.
pub(crate) struct WaitingEntries<'a> {
    pub(crate) group: &'a GroupName,
    pub(crate) job: Option<&'a JobName>,
    pub(crate) filter: &'a WaitingFilter,
    pub(crate) output: &'a OutputFlags,
}

/// `tidings group bump`
pub(super) async fn bump(BumpArgs { group, job, bump, output }: &BumpArgs) -> Result<(), Failure> {
    bump.run(group, job.as_ref(), output).await
}

impl BumpFlags {
    /// Gives the entries their priority, and prints their number.
    pub(crate) async fn run(
        &self,
        group: &GroupName,
        job: Option<&JobName>,
        output: &OutputFlags,
    ) -> Result<(), Failure> {
        let Self { prio, filter } = self;
        let prio = prio.to_string();
        let entries = WaitingEntries { group, job, filter, output };
        entries.change(GroupAction::Bump, "bumped", &[("prio", &prio)]).await
    }
}

impl WaitingFilter {
    /// Whether all entries are to be changed.
    pub(super) fn is_empty(&self) -> bool {
        self.key.is_none() && self.matching.is_none() && !self.dry_run
    }
}

impl WaitingEntries<'_> {
    /// Asks, drops the entries, and prints their number.
    pub(super) async fn purge(&self, yes: &YesFlag) -> Result<(), Failure> {
        if !self.filter.dry_run {
            let question = async {
                let count = self.send(GroupAction::Purge, &[("dry", "yes")]).await?;
                Ok(format!("drop {} of group {}?", waiting(count), self.group))
            };
            yes.confirm(question).await?;
        }
        self.change(GroupAction::Purge, "dropped", &[]).await
    }

    /// Changes the entries, and prints their number.
    async fn change(
        &self,
        action: GroupAction<'_>,
        done: &str,
        settings: &[(&str, &str)],
    ) -> Result<(), Failure> {
        let dry: &[_] = if self.filter.dry_run { &[("dry", "yes")] } else { &[] };
        let count = self.send(action, &[settings, dry].concat()).await?;
        let line = if self.output.json {
            let counted = if self.filter.dry_run { "matched" } else { done };
            json!({ "group": self.group.to_string(), counted: count }).to_string()
        } else if self.filter.dry_run {
            format!("{} would be {done}", waiting(count))
        } else {
            format!("{done} {}", format_count(count))
        };
        Console::new().line(&line)
    }

    /// Sends an action for each part of the entries, and returns how many it was about.
    async fn send(
        &self,
        action: GroupAction<'_>,
        settings: &[(&str, &str)],
    ) -> Result<u64, Failure> {
        let broker = BrokerClient::connect(&self.output.broker, NAME).await?;
        let WaitingFilter { key, matching, .. } = self.filter;
        let matching = matching.as_ref().map(Patterns::to_string);
        let mut settings = settings.to_vec();
        settings.extend(key.as_deref().map(|key| ("key", key)));
        settings.extend(self.job.map(|job| ("job", job.as_ref())));
        settings.extend(matching.as_deref().map(|matching| ("match", matching)));
        let (mut sum, mut next) = (0, Some(0));
        while let Some(after) = next {
            let after = after.to_string();
            let settings = [&settings[..], &[("after", &after)]].concat();
            let answer = broker.request(&command(action, self.group, settings)).await?;
            let part = ChangedEntriesStatus::parse(&answer.ok);
            sum += part.matched.or(part.dropped).or(part.bumped).unwrap_or(0);
            next = part.next;
        }
        Ok(sum)
    }
}

fn waiting(count: u64) -> String {
    let noun = if count == 1 { "entry" } else { "entries" };
    format!("{} waiting {noun}", format_count(count))
}
