//! `tidings group`: lists, inspects and configures groups.

pub(crate) mod keys;
pub(crate) mod members;
mod repair;
mod schedules;
pub(crate) mod tasks;
pub(crate) mod waiting;
mod watch;

use clap::{Args, Subcommand};
use tidings_protocol::status::{DamagedGroupStatus, GroupStatus};
use tidings_protocol::{
    Command, DEFAULT_GROUP, GroupAction, GroupCommand, GroupName, GroupSettings, JobName,
};

use self::keys::KeysArgs;
use self::members::{DrainArgs, MembersArgs};
use self::repair::RepairArgs;
use self::schedules::SchedulesArgs;
use self::tasks::TasksArgs;
use self::waiting::{BumpArgs, WaitingEntries, WaitingFilter};
use self::watch::WatchArgs;
use crate::client::manage::{
    BrokerClient, OutputFlags, as_str_pairs, first_word, key_values, named_object, parse_setting,
    print_list, print_table, settings_help,
};
use crate::client::overview::waiting_entries;
use crate::flags::confirmation::YesFlag;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_count};

const EXAMPLES: &str = "\
Examples:
  tidings group ls                                  all groups and their counts
  tidings group watch                               the counts of one group, as they change
  tidings group tasks --state processing            what the crawlers fetch now
  tidings group tasks --state completed             the newest finished ones
  tidings group tasks --key example.org             entries of that host
  tidings group keys --limit 10                     hosts with the longest remaining time
  tidings group tasks --all --json > queue.jsonl    the whole queue
  tidings group schedules                           scheduled URLs and when they are due
  tidings group set crawlers delay=2s parallel=1    applies from the next task on
  tidings group create thumbs topics=file-ready key=none lease=5m
  tidings group purge crawlers --key example.org    drop what waits for a host
  tidings group bump --prio 10 --match '*.pdf$'     fetch these first
  tidings group pause                               crawlers get no new tasks until `resume`
  tidings group members                             crawlers, and how many tasks each of them holds
  tidings group drain crawlers 5b0c6f1e             one of them gets no further tasks

Exit codes: 0 success; 1 rejected or failed; 2 wrong usage.";

const SETTINGS: &str = "\
Examples:
  tidings group create thumbs topics=file-ready key=none lease=5m
  tidings group set crawlers delay=2s lease=30s";

const KEYLESS: &str = "\
A group of events that do not begin with an http or https URL needs key=none, or key=seq if its tasks
should also name topic and seq of the event.";

/// The name of the connection, as the broker shows it.
const NAME: &str = "tidings-group";

/// The subcommands of `tidings group`.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Group {
    /// List all groups
    #[command(alias = "list")]
    Ls(OutputFlags),
    /// Show the counts and settings of a group
    Show(ShowArgs),
    /// Create a group
    Create(SettingsArgs),
    /// Change settings of a group; other settings stay
    Set(SettingsArgs),
    /// Show the counts of a group as they change
    Watch(WatchArgs),
    /// Stop releasing tasks; members finish those they hold
    Pause(ShowArgs),
    /// Release tasks again after a pause
    Resume(ShowArgs),
    /// Drop all waiting entries, or selected ones; their jobs count them as cancelled
    Purge(PurgeArgs),
    /// Change the priority of waiting entries
    Bump(BumpArgs),
    /// Delete a group and its entries; it must have no members and no jobs
    Delete(DeleteArgs),
    /// List entries: waiting, held by members, dead, or finished lately
    Tasks(TasksArgs),
    /// List keys (usually hosts) with waiting entries, longest remaining time first
    Keys(KeysArgs),
    /// List schedules (URLs with `every=`)
    Schedules(SchedulesArgs),
    /// List members (workers) with their states and the number of tasks that they hold
    Members(MembersArgs),
    /// Give a member no further tasks; it finishes those that it holds
    Drain(DrainArgs),
    /// Give a drained member tasks again
    Undrain(DrainArgs),
    /// Repair the damaged log of a group while no broker runs
    Repair(RepairArgs),
}

/// The flags of subcommands for which the default group is a safe choice.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The group
    #[arg(default_value = DEFAULT_GROUP)]
    group: GroupName,

    #[command(flatten)]
    output: OutputFlags,
}

/// The flags of `tidings group delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    all: DropArgs,

    /// Also if members that are not connected hold tasks
    #[arg(long)]
    force: bool,
}

/// The flags of commands that drop what waits in a group.
#[derive(Debug, Args)]
pub(crate) struct DropArgs {
    /// The group
    group: GroupName,

    #[command(flatten)]
    yes: YesFlag,

    #[command(flatten)]
    output: OutputFlags,
}

/// The flags of `tidings group purge`.
#[derive(Debug, Args)]
pub(crate) struct PurgeArgs {
    #[command(flatten)]
    all: DropArgs,

    /// Only entries of this job
    #[arg(long, value_name = "JOB")]
    job: Option<JobName>,

    #[command(flatten)]
    filter: WaitingFilter,
}

/// The flags of `tidings group create` and `set`.
#[derive(Debug, Args)]
#[command(after_help = settings_help::<GroupSettings>(SETTINGS, KEYLESS))]
pub(crate) struct SettingsArgs {
    /// The group
    group: GroupName,

    /// A setting of the list below
    #[arg(value_name = "SETTING", value_parser = parse_setting::<GroupSettings>)]
    settings: Vec<(String, String)>,

    #[command(flatten)]
    output: OutputFlags,
}

/// Runs the subcommand.
pub(crate) async fn run(group: Group) -> Result<(), Failure> {
    match group {
        Group::Ls(output) => ls(&output).await,
        Group::Show(args) => run_action(GroupAction::Show, &args.group, &[], &args.output).await,
        Group::Create(args) => {
            run_action(GroupAction::Create, &args.group, &args.settings, &args.output).await
        }
        Group::Set(args) if args.settings.is_empty() => Err(Failure::Usage(
            "no setting given; name one, such as delay=2s (see tidings group set --help)"
                .to_owned(),
        )),
        Group::Set(args) => {
            run_action(GroupAction::Set, &args.group, &args.settings, &args.output).await
        }
        Group::Watch(args) => watch::run(args).await,
        Group::Pause(args) => run_action(GroupAction::Pause, &args.group, &[], &args.output).await,
        Group::Resume(args) => {
            run_action(GroupAction::Resume, &args.group, &[], &args.output).await
        }
        Group::Purge(args) => purge(&args).await,
        Group::Bump(args) => waiting::bump(&args).await,
        Group::Delete(DeleteArgs { all, force }) => {
            let force = force.then(|| ("force".to_owned(), "yes".to_owned()));
            drop_entries(GroupAction::Delete, &all, force.as_slice()).await
        }
        Group::Tasks(args) => tasks::run(&args).await,
        Group::Keys(args) => keys::run(&args).await,
        Group::Schedules(args) => schedules::run(&args).await,
        Group::Members(args) => members::run(&args).await,
        Group::Drain(args) => members::drain(GroupAction::Drain, &args).await,
        Group::Undrain(args) => members::drain(GroupAction::Undrain, &args).await,
        Group::Repair(args) => repair::run(&args).await,
    }
}

/// `GROUP <action> <group> <settings>`.
pub(crate) fn command<'a>(
    action: GroupAction<'a>,
    group: &'a GroupName,
    settings: Vec<(&'a str, &'a str)>,
) -> Command<'a> {
    Command::Group(GroupCommand::new(action, group.as_str(), settings))
}

async fn ls(output: &OutputFlags) -> Result<(), Failure> {
    let broker = BrokerClient::connect(&output.broker, NAME).await?;
    let names = broker
        .request(&Command::Group(GroupCommand::unnamed(GroupAction::Ls, Vec::new())))
        .await?
        .more;
    let mut groups = Vec::new();
    for name in names.iter().filter_map(|line| first_word(line).parse().ok()) {
        groups.push(broker.request(&command(GroupAction::Show, &name, Vec::new())).await?.ok);
    }
    let mut console = Console::new();
    if output.json {
        let groups = groups.iter().map(|line| named_object(line, "group"));
        return groups.into_iter().try_for_each(|group| console.line(&group.to_string()));
    }
    let row = |line: &String| match DamagedGroupStatus::parse(line) {
        DamagedGroupStatus { group, damaged: true, .. } => trouble_row(&group, "damaged"),
        _ => row(&GroupStatus::parse(line)),
    };
    print_table(&mut console, HEADINGS, groups.iter().map(row))
}

/// The headings of `ls`.
pub(crate) const HEADINGS: &str =
    "GROUP MEMBERS> WAITING> PROCESSING> COMPLETED> FAILED> DEAD> LOST> KEY TOPICS STATE";

/// A group in trouble as a row of `ls`: it says nothing about itself.
pub(crate) fn trouble_row(group: &str, trouble: &str) -> Vec<String> {
    let mut cells = vec!["-".to_owned(); HEADINGS.split(' ').count() - 1];
    group.clone_into(&mut cells[0]);
    cells.push(trouble.to_owned());
    cells
}

/// A group as a row of `ls`.
pub(crate) fn row(group: &GroupStatus) -> Vec<String> {
    vec![
        group.group.clone(),
        format_count(group.members),
        format_count(group.waiting),
        format_count(group.processing),
        format_count(group.completed),
        format_count(group.failed),
        // The present dead letters; `dead` counts retried ones too.
        format_count(group.dead_kept),
        format_count(group.lost),
        group.settings.key.to_string(),
        group.settings.topic_list(),
        if group.paused { "paused" } else { "ok" }.to_owned(),
    ]
}

/// Drops the waiting entries of a group, or selected ones.
async fn purge(args: &PurgeArgs) -> Result<(), Failure> {
    let PurgeArgs { all, job, filter } = args;
    if job.is_none() && filter.is_empty() {
        return drop_entries(GroupAction::Purge, all, &[]).await;
    }
    let DropArgs { group, yes, output } = all;
    WaitingEntries { group, job: job.as_ref(), filter, output }.purge(yes).await
}

/// Asks before an action that drops the waiting entries of a group, and runs it.
async fn drop_entries(
    action: GroupAction<'_>,
    args: &DropArgs,
    settings: &[(String, String)],
) -> Result<(), Failure> {
    let group = &args.group;
    let question = async {
        let broker = BrokerClient::connect(&args.output.broker, NAME).await?;
        let answer = broker.request(&command(GroupAction::Show, group, Vec::new())).await?;
        let entries = if DamagedGroupStatus::parse(&answer.ok).damaged {
            "entries that cannot be read".to_owned()
        } else {
            waiting_entries(&GroupStatus::parse(&answer.ok))
        };
        Ok(match action {
            GroupAction::Purge => format!("drop {entries} of group {group}?"),
            _ => format!("delete group {group} with {entries}?"),
        })
    };
    args.yes.confirm(question).await?;
    run_action(action, group, settings, &args.output).await
}

/// Sends the action for one group and prints the answer.
async fn run_action(
    action: GroupAction<'_>,
    group: &GroupName,
    settings: &[(String, String)],
    output: &OutputFlags,
) -> Result<(), Failure> {
    let broker = BrokerClient::connect(&output.broker, NAME).await?;
    let answer = broker.request(&command(action, group, as_str_pairs(settings))).await?;
    let mut console = Console::new();
    if output.json {
        let mut object = named_object(&answer.ok, "group");
        for (key, text) in answer.more.iter().filter_map(|line| line.split_once(' ')) {
            object[key] = text.into();
        }
        return console.line(&object.to_string());
    }
    match action {
        GroupAction::Show => {
            print_list(&mut console, &answer.ok)?;
            // A damaged group: its problem and its remedy.
            answer.more.iter().try_for_each(|line| console.line(line))
        }
        GroupAction::Pause => console.line(&format!("paused {group}")),
        GroupAction::Resume => console.line(&format!("resumed {group}")),
        GroupAction::Purge => console.line(&format!("purged {group}")),
        GroupAction::Delete => console.line(&format!("deleted {group}")),
        // The settings that were given, as the broker writes them.
        _ => {
            let is_given = |key: &str| settings.iter().any(|(given, _)| given == key);
            let pairs = key_values(&answer.ok).filter(|(key, _)| is_given(key));
            let pairs = pairs.map(|(key, value)| format!(" {key}={value}"));
            console.line(&format!("{group}{}", pairs.collect::<String>()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "crawlers paused=yes members=2 waiting=1043 processing=7 completed=12 \
                        failed=0 dead=4 dead-kept=1 lost=3 unkeyed=0 keys=9 topics=new-url,more key=host \
                        parallel=1 delay=default";

    #[test]
    fn a_group_is_a_row() {
        let row = |line: &str| row(&GroupStatus::parse(line));
        let shown = row(LINE);
        assert_eq!(shown[..4], ["crawlers", "2", "1,043", "7"]);
        assert_eq!(shown[6], "1", "retried entries are not dead");
        assert_eq!(shown[7..], ["3", "host", "new-url,more", "paused"]);
        assert_eq!(row(&LINE.replace("paused=yes", "paused=no"))[10], "ok");
    }

    #[test]
    fn a_setting_is_checked_before_it_is_sent() {
        assert!(parse_setting::<GroupSettings>("delay=2s").is_ok());
        for (wrong, right) in
            [("delay", "KEY=VALUE"), ("delay=soon", "30s"), ("colour=red", "max-attempts")]
        {
            let error = parse_setting::<GroupSettings>(wrong).unwrap_err();
            assert!(error.contains(right), "{error}");
        }
    }
}
