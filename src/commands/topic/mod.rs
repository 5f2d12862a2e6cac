//! `tidings topic`: lists, inspects and configures topics.

mod verify;

use clap::{Args, Subcommand};
use tidings_protocol::status::{CursorStatus, TopicStatus};
use tidings_protocol::{
    Command, CursorName, Settings, TopicAction, TopicCommand, TopicName, TopicSettings,
};

pub(crate) use self::verify::{TopicVerifyArgs, VerifyReport, verify_offline};
use crate::client::manage::{
    BrokerClient, OutputFlags, as_str_pairs, named_object, parse_setting, print_list, print_table,
    settings_help,
};
use crate::flags::broker::BrokerFlag;
use crate::flags::confirmation::YesFlag;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_bytes, format_count, plural, readable};

const EXAMPLES: &str = "\
Examples:
  tidings topic ls                                          all topics
  tidings topic create sensor sync=memory                   a topic in memory only
  tidings topic set new-url retain-bytes=4g retain-age=90d  change the retention
  tidings topic verify                                      verify every checksum

Exit codes: 0 success; 1 failure, or verify found damage; 2 wrong usage.";

const SETTINGS: &str = "\
Examples:
  tidings topic create sensor sync=memory
  tidings topic set new-url retain-bytes=4g retain-age=90d";

/// The subcommands of `tidings topic`.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Topic {
    /// List all topics
    #[command(alias = "list")]
    Ls(OutputFlags),
    /// Show a topic: its seqs, settings and durable cursors
    Show(ShowArgs),
    /// Create a topic with its own settings
    Create(SetArgs),
    /// Change settings of a topic; other settings stay
    Set(SetArgs),
    /// Delete a topic with its events and cursors; its seqs are not reused
    Delete(DeleteArgs),
    /// Verify every checksum and report damage
    Verify(TopicVerifyArgs),
    /// Remove a durable cursor that is not in use
    Forget(ForgetArgs),
}

/// The flags of `tidings topic show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The topic
    topic: TopicName,

    #[command(flatten)]
    output: OutputFlags,
}

/// The flags of `tidings topic create` and `set`.
#[derive(Debug, Args)]
#[command(after_help = settings_help::<TopicSettings>(SETTINGS, ""))]
pub(crate) struct SetArgs {
    /// The topic
    topic: TopicName,

    /// A setting of the list below
    #[arg(value_name = "SETTING", value_parser = parse_setting::<TopicSettings>)]
    settings: Vec<(String, String)>,

    #[command(flatten)]
    output: OutputFlags,
}

/// The flags of `tidings topic delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// The topic
    topic: TopicName,

    #[command(flatten)]
    yes: YesFlag,

    #[command(flatten)]
    broker: BrokerFlag,
}

/// The flags of `tidings topic forget`.
#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    /// The topic
    topic: TopicName,

    /// The cursor
    cursor: CursorName,

    #[command(flatten)]
    yes: YesFlag,

    #[command(flatten)]
    broker: BrokerFlag,
}

/// Runs the subcommand.
pub(crate) async fn run(topic: Topic) -> Result<(), Failure> {
    match topic {
        Topic::Ls(output) => ls(&output).await,
        Topic::Show(args) => show(&args).await,
        Topic::Create(args) => apply_settings(TopicAction::Create, &args).await,
        Topic::Set(args) if args.settings.is_empty() => Err(Failure::Usage(format!(
            "no setting given; name one: {} (see tidings topic set --help)",
            TopicSettings::names()
        ))),
        Topic::Set(args) => apply_settings(TopicAction::Set, &args).await,
        Topic::Delete(args) => {
            args.yes.confirm(deletion(&args)).await?;
            let broker = BrokerClient::connect(&args.broker, NAME).await?;
            broker.request(&command(TopicAction::Delete, Some(&args.topic), Vec::new())).await?;
            Console::new().line(&format!("deleted {}", args.topic))
        }
        Topic::Verify(args) => verify::run(&args).await,
        Topic::Forget(args) => {
            let question = format!(
                "forget cursor {} of topic {}, and how far it has read?",
                args.cursor, args.topic
            );
            args.yes.confirm(async { Ok(question) }).await?;
            let broker = BrokerClient::connect(&args.broker, NAME).await?;
            let settings = vec![("cursor", args.cursor.as_str())];
            broker.request(&command(TopicAction::Forget, Some(&args.topic), settings)).await?;
            Console::new().line(&format!("removed cursor {} of {}", args.cursor, args.topic))
        }
    }
}

/// The question before a topic is deleted.
async fn deletion(args: &DeleteArgs) -> Result<String, Failure> {
    let broker = BrokerClient::connect(&args.broker, NAME).await?;
    let answer = broker.request(&command(TopicAction::Show, Some(&args.topic), Vec::new())).await?;
    let kept = TopicStatus::parse(&answer.ok).kept;
    Ok(format!("delete topic {} with {}?", args.topic, plural(kept, "event")))
}

/// The name of the connection, as the broker shows it.
const NAME: &str = "tidings-topic";

/// `TOPIC <action> [<topic>] [<settings>]`.
fn command<'a>(
    action: TopicAction<'a>,
    topic: Option<&'a TopicName>,
    settings: Vec<(&'a str, &'a str)>,
) -> Command<'a> {
    Command::Topic(TopicCommand { action, name: topic.map(TopicName::as_str), settings })
}

async fn ls(output: &OutputFlags) -> Result<(), Failure> {
    let broker = BrokerClient::connect(&output.broker, NAME).await?;
    let answer = broker.request(&command(TopicAction::Ls, None, Vec::new())).await?;
    let mut console = Console::new();
    if output.json {
        let lines = answer.more.iter().map(|line| named_object(line, "topic"));
        return lines.into_iter().try_for_each(|topic| console.line(&topic.to_string()));
    }
    let rows = answer.more.iter().map(|line| row(&TopicStatus::parse(line)));
    print_table(&mut console, HEADINGS, rows)
}

/// The headings of `ls`.
pub(crate) const HEADINGS: &str = "TOPIC KEPT> NEXT> RATE/S> READERS> MEMORY> DISK> SYNC STATE";

/// A topic as a row of `ls`.
pub(crate) fn row(topic: &TopicStatus) -> Vec<String> {
    let size = |bytes| if bytes == 0 { "-".to_owned() } else { format_bytes(bytes) };
    vec![
        topic.topic.clone(),
        format_count(topic.kept),
        format_count(topic.next.0),
        topic.rate.to_string(),
        format_count(topic.readers),
        size(topic.bytes),
        size(topic.log_bytes),
        topic.settings.sync.to_string(),
        topic.state.as_str().to_owned(),
    ]
}

async fn show(args: &ShowArgs) -> Result<(), Failure> {
    let broker = BrokerClient::connect(&args.output.broker, NAME).await?;
    let answer = broker.request(&command(TopicAction::Show, Some(&args.topic), Vec::new())).await?;
    let cursors = || answer.more.iter().filter_map(|line| line.strip_prefix("cursor "));
    let mut console = Console::new();
    if args.output.json {
        let mut topic = named_object(&answer.ok, "topic");
        topic["cursors"] = cursors().map(|line| named_object(line, "name")).collect();
        return console.line(&topic.to_string());
    }
    print_list(&mut console, &answer.ok)?;
    let mut rows = cursors().map(cursor_row).peekable();
    if rows.peek().is_none() {
        return Ok(());
    }
    print_table(&mut console, "CURSOR NEXT> BEHIND> HELD MOVED", rows)
}

/// A cursor as a row of `show`.
fn cursor_row(line: &str) -> Vec<String> {
    let CursorStatus { cursor, next, behind, held, moved } = CursorStatus::parse(line);
    let held = if held { "yes" } else { "no" }.to_owned();
    let next = readable("next", &next.to_string());
    vec![cursor, next, readable("behind", &behind.to_string()), held, moved]
}

/// Creates or changes a topic, and prints its settings.
async fn apply_settings(action: TopicAction<'_>, args: &SetArgs) -> Result<(), Failure> {
    let broker = BrokerClient::connect(&args.output.broker, NAME).await?;
    let answer =
        broker.request(&command(action, Some(&args.topic), as_str_pairs(&args.settings))).await?;
    let mut console = Console::new();
    if args.output.json {
        console.line(&named_object(&answer.ok, "topic").to_string())
    } else {
        console.line(&answer.ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "new-url next=1043 first=1 kept=1042 batches=2 bytes=65536 readers=3 rate=0.5 \
                        sync=always retain-bytes=1g retain-age=30d durable=1043 log-bytes=0 \
                        segments=1 state=ok";

    #[test]
    fn a_topic_is_a_row() {
        assert_eq!(
            row(&TopicStatus::parse(LINE)),
            ["new-url", "1,042", "1,043", "0.5", "3", "66 kB", "-", "always", "ok"]
        );
    }

    #[test]
    fn a_setting_is_checked_before_it_is_sent() {
        assert!(parse_setting::<TopicSettings>("sync=memory").is_ok());
        for (wrong, right) in
            [("sync", "KEY=VALUE"), ("sync=no", "memory"), ("colour=red", "retain-age")]
        {
            let error = parse_setting::<TopicSettings>(wrong).unwrap_err();
            assert!(error.contains(right), "{error}");
        }
    }
}
