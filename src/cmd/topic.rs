//! `tidings topic`: which topics there are, and what they keep.

mod verify;

use clap::{Args, Subcommand};
use serde_json::{Map, Value};
use tidings_broker::TopicSettings;
use tidings_protocol::{
    Command, CursorName, Manage, TopicName,
    client::{Answer, Client, ClientError},
    field, field_number,
};

use crate::{
    address::BrokerAddress,
    failure::Failure,
    flags::BrokerFlag,
    link,
    output::{Console, bytes, count},
};

pub(crate) use self::verify::VerifyArgs;

const EXAMPLES: &str = "\
Examples:
  tidings topic ls                                          which topics there are
  tidings topic create sensor sync=memory                   one that is never on the disk
  tidings topic set new-url retain-bytes=4g retain-age=90d  what is kept of one
  tidings topic verify                                      check every checksum of every topic

Settings: sync=always (an event is confirmed when it is synced to the disk), interval (when it is
written) or memory; retain-bytes=BYTES, with k, m or g; retain-age=DURATION, 0 for ever.

Exit codes: 0 it worked; 1 it did not, or verify found damage; 2 wrong usage.";

/// The subcommands of `tidings topic`.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Topic {
    /// List all topics
    Ls(LsArgs),
    /// Show one topic: how far it is, what it keeps, who has a durable cursor on it
    Show(ShowArgs),
    /// Make a topic with settings of its own
    Create(SetArgs),
    /// Change the settings of a topic; what is not named stays
    Set(SetArgs),
    /// Delete a topic with all its events and cursors; its numbers are not given again
    Delete(NameArgs),
    /// Check every checksum, and say what cannot be read
    Verify(VerifyArgs),
    /// Remove a durable cursor that nobody holds
    Forget(ForgetArgs),
}

/// The flags of what is printed as a table or as JSON.
#[derive(Debug, Clone, Args)]
pub(crate) struct OutputFlags {
    #[command(flatten)]
    broker: BrokerFlag,

    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// The flags of `tidings topic ls`.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    output: OutputFlags,
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
pub(crate) struct SetArgs {
    /// The topic
    topic: TopicName,

    /// sync=always|interval|memory, retain-bytes=BYTES, retain-age=DURATION
    #[arg(value_name = "SETTING", value_parser = parse_setting)]
    settings: Vec<(String, String)>,

    #[command(flatten)]
    output: OutputFlags,
}

/// The flags of `tidings topic delete`.
#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// The topic
    topic: TopicName,

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
    broker: BrokerFlag,
}

/// Does what the subcommand says.
pub(crate) async fn run(topic: Topic) -> Result<(), Failure> {
    match topic {
        Topic::Ls(args) => ls(&args.output).await,
        Topic::Show(args) => show(&args).await,
        Topic::Create(args) => settle("create", &args).await,
        Topic::Set(args) if args.settings.is_empty() => Err(Failure::Usage(format!(
            "what should change? Name a setting: {}= (see tidings topic set --help)",
            TopicSettings::KEYS.join("=, ")
        ))),
        Topic::Set(args) => settle("set", &args).await,
        Topic::Delete(args) => {
            let broker = Broker::connect(&args.broker.broker).await?;
            broker.ask("delete", Some(&args.topic), Vec::new()).await?;
            Console::new().line(&format!("deleted {}", args.topic))
        }
        Topic::Verify(args) => verify::run(&args).await,
        Topic::Forget(args) => {
            let broker = Broker::connect(&args.broker.broker).await?;
            let settings = vec![("cursor", args.cursor.as_str())];
            broker.ask("forget", Some(&args.topic), settings).await?;
            Console::new().line(&format!("forgot cursor {} of {}", args.cursor, args.topic))
        }
    }
}

/// A connection on which `TOPIC` is said.
struct Broker<'a> {
    address: &'a BrokerAddress,
    client: Client,
}

impl<'a> Broker<'a> {
    async fn connect(address: &'a BrokerAddress) -> Result<Self, Failure> {
        let (client, _deliveries) = link::connect(address, "tidings-topic").await?;
        Ok(Self { address, client })
    }

    /// `TOPIC <action> [<topic>] [<settings>]`.
    async fn ask(
        &self,
        action: &str,
        topic: Option<&TopicName>,
        settings: Vec<(&str, &str)>,
    ) -> Result<Answer, Failure> {
        let manage = Manage { action, name: topic.map(TopicName::as_str), settings };
        self.client.request(&Command::Topic(manage)).await.map_err(|error| match error {
            // The code is for programs, which see the exit code.
            ClientError::Refused(error) => Failure::failed(error.text),
            error => Failure::failed(format!("{}: {error}", self.address)),
        })
    }
}

async fn ls(output: &OutputFlags) -> Result<(), Failure> {
    let answer = Broker::connect(&output.broker.broker).await?.ask("ls", None, Vec::new()).await?;
    let mut console = Console::new();
    if output.json {
        return answer.more.iter().try_for_each(|line| console.line(&json(line).to_string()));
    }
    let heads = ["TOPIC", "KEPT", "NEXT", "RATE/S", "READERS", "MEMORY", "DISK", "SYNC", "STATE"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(answer.more.iter().map(|line| row(line)));
    // Names and words to the left, numbers to the right.
    table(&rows, &[true, false, false, false, false, false, false, true, true])
        .iter()
        .try_for_each(|line| console.line(line))
}

/// A topic in the columns of `ls`.
fn row(line: &str) -> Vec<String> {
    let number = |key| count(field_number(line, key).unwrap_or(0));
    let size = |key| match field_number(line, key) {
        None | Some(0) => "-".to_owned(),
        Some(size) => bytes(size),
    };
    let word = |key| field(line, key).unwrap_or("?").to_owned();
    vec![
        first_word(line).to_owned(),
        number("kept"),
        number("next"),
        word("rate"),
        number("readers"),
        size("bytes"),
        size("log-bytes"),
        word("sync"),
        word("state"),
    ]
}

async fn show(args: &ShowArgs) -> Result<(), Failure> {
    let broker = Broker::connect(&args.output.broker.broker).await?;
    let answer = broker.ask("show", Some(&args.topic), Vec::new()).await?;
    let cursors = || answer.more.iter().filter_map(|line| line.strip_prefix("cursor "));
    let mut console = Console::new();
    if args.output.json {
        let mut topic = json(&answer.ok);
        topic["cursors"] = cursors().map(|line| named(line, "name")).collect();
        return console.line(&topic.to_string());
    }
    let fields = answer.ok.split(' ').filter_map(|word| word.split_once('='));
    let rows: Vec<_> = fields.map(|(key, value)| vec![key.to_owned(), value.to_owned()]).collect();
    console.line(args.topic.as_str())?;
    for line in table(&rows, &[true, true]) {
        console.line(&format!("  {line}"))?;
    }
    let heads = ["CURSOR", "NEXT", "BEHIND", "HELD", "MOVED"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(cursors().map(|line| {
        let values = ["next", "behind", "held", "moved"]
            .map(|key| field(line, key).unwrap_or("?").to_owned());
        [vec![first_word(line).to_owned()], values.to_vec()].concat()
    }));
    if rows.len() > 1 {
        for line in table(&rows, &[true, false, false, true, true]) {
            console.line(&line)?;
        }
    }
    Ok(())
}

/// Makes a topic or changes one, and prints what it is told now.
async fn settle(action: &str, args: &SetArgs) -> Result<(), Failure> {
    let broker = Broker::connect(&args.output.broker.broker).await?;
    let settings = args.settings.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let answer = broker.ask(action, Some(&args.topic), settings.collect()).await?;
    let mut console = Console::new();
    if args.output.json {
        console.line(&json(&answer.ok).to_string())
    } else {
        console.line(&answer.ok)
    }
}

/// A setting, judged as the broker would.
fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| {
        format!("a setting is KEY=VALUE, with one of {}", TopicSettings::KEYS.join(", "))
    })?;
    TopicSettings::parse(&[(key, value)], TopicSettings::default()).map_err(|error| error.text)?;
    Ok((key.to_owned(), value.to_owned()))
}

/// `<topic> key=value ..` as an object.
fn json(line: &str) -> Value {
    named(line, "topic")
}

/// `<name> key=value ..` as an object; what is a number becomes one.
fn named(line: &str, key_of_name: &str) -> Value {
    let mut object = Map::new();
    object.insert(key_of_name.to_owned(), first_word(line).into());
    for (key, value) in line.split(' ').filter_map(|word| word.split_once('=')) {
        let number = serde_json::from_str(value).ok().filter(Value::is_number);
        object.insert(key.to_owned(), number.unwrap_or_else(|| value.into()));
    }
    object.into()
}

fn first_word(line: &str) -> &str {
    line.split(' ').next().unwrap_or_default()
}

/// Rows of equally many cells as lines with straight columns, each to the left or to the right.
fn table(rows: &[Vec<String>], left: &[bool]) -> Vec<String> {
    let widths: Vec<usize> = (0..left.len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).zip(left).map(|((cell, width), left)| {
            if *left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "new-url next=1043 first=1 kept=1042 batches=2 bytes=65536 readers=3 rate=0.5 \
                        sync=always retain-bytes=1g retain-age=30d durable=1043 log-bytes=0 \
                        segments=1 state=ok";

    #[test]
    fn a_table_has_straight_columns() {
        let rows = vec![vec!["TOPIC".to_owned(), "NEXT".to_owned(), "STATE".to_owned()]; 1];
        let rows = [rows, vec![vec!["a".to_owned(), "1,043".to_owned(), "ok".to_owned()]]].concat();
        assert_eq!(table(&rows, &[true, false, true]), ["TOPIC   NEXT  STATE", "a      1,043  ok"]);
    }

    #[test]
    fn a_topic_is_a_row() {
        assert_eq!(
            row(LINE),
            ["new-url", "1,042", "1,043", "0.5", "3", "66 kB", "-", "always", "ok"]
        );
    }

    #[test]
    fn json_has_numbers_where_there_are() {
        let topic = json(LINE);
        assert_eq!(topic["topic"], "new-url");
        assert_eq!(topic["next"], 1043);
        assert_eq!(topic["rate"], 0.5);
        assert_eq!(topic["retain-bytes"], "1g");
    }

    #[test]
    fn a_setting_is_judged_before_a_broker_is_asked() {
        assert!(parse_setting("sync=memory").is_ok());
        for (wrong, right) in
            [("sync", "KEY=VALUE"), ("sync=no", "memory"), ("colour=red", "retain-age")]
        {
            let error = parse_setting(wrong).unwrap_err();
            assert!(error.contains(right), "{error}");
        }
    }
}
