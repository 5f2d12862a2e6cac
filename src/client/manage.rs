//! Helpers of the commands that manage a broker: a connection for requests, and answers of
//! `key=value` words as tables and as JSON.

use std::borrow::Cow;

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use tidings_client::{Client, ClientError, CommandAnswer, Deliveries};
use tidings_protocol::settings::Setting;
use tidings_protocol::{Command, GroupName, Settings};
use unicode_width::UnicodeWidthStr;

use crate::client::{broker_message, connection};
use crate::flags::address::BrokerAddress;
use crate::flags::broker::BrokerFlag;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, readable, terminal_safe};

/// The flags of commands with a table or JSON as output.
#[derive(Debug, Clone, Args)]
pub(crate) struct OutputFlags {
    #[command(flatten)]
    pub(crate) broker: BrokerFlag,

    /// Print one JSON object on each line
    #[arg(long)]
    pub(crate) json: bool,
}

/// The group of a command.
#[derive(Debug, Clone, Args)]
pub(crate) struct GroupFlag {
    /// The group
    #[arg(long, value_name = "GROUP", default_value = tidings_protocol::DEFAULT_GROUP)]
    pub(crate) group: GroupName,
}

/// A connection for management commands.
pub(crate) struct BrokerClient<'a> {
    address: &'a BrokerAddress,
    pub(crate) client: Client,
}

impl<'a> BrokerClient<'a> {
    /// Connects with this name, which the broker shows.
    pub(crate) async fn connect(flag: &'a BrokerFlag, name: &str) -> Result<Self, Failure> {
        Ok(Self::with_deliveries(flag, name).await?.0)
    }

    /// The same, with the deliveries, which the broker sends apart from answers.
    pub(crate) async fn with_deliveries(
        flag: &'a BrokerFlag,
        name: &str,
    ) -> Result<(Self, Deliveries), Failure> {
        let (client, deliveries) = connection::connect(&flag.broker, name).await?;
        Ok((Self { address: &flag.broker, client }, deliveries))
    }

    /// The broker.
    pub(crate) fn address(&self) -> &BrokerAddress {
        self.address
    }

    /// Sends a command and returns the answer.
    pub(crate) async fn request(&self, command: &Command<'_>) -> Result<CommandAnswer, Failure> {
        self.client.request(command).await.map_err(|error| self.failure(error))
    }

    /// The failure for an error of this connection.
    pub(crate) fn failure(&self, error: ClientError) -> Failure {
        failure(self.address, error)
    }
}

/// The failure for an error of a client.
pub(crate) fn failure(broker: &BrokerAddress, error: ClientError) -> Failure {
    match error {
        // The error code is left out: scripts have the exit code.
        ClientError::Refused(error) => Failure::failed(broker_message::rejection(&error)),
        error => Failure::failed(format!("{broker}: {}", broker_message::client_error(&error))),
    }
}

/// The settings as pairs of string slices.
pub(crate) fn as_str_pairs(settings: &[(String, String)]) -> Vec<(&str, &str)> {
    settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

/// Parses `KEY=VALUE`, checked as the broker would check it.
pub(crate) fn parse_setting<S: Settings>(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| format!("expected KEY=VALUE, with one of {}", S::names()))?;
    S::parse([(key, value)]).map_err(|error| broker_message::flag_value_error(&error.text))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// The help text of a command that takes settings.
pub(crate) fn settings_help<S: Settings>(examples: &str, more: &str) -> String {
    let width = S::ALL.iter().map(|setting| setting.name.len()).max().unwrap_or(0) + 1;
    let rows = S::ALL.iter().map(|setting| {
        let Setting { name, kind, about, .. } = setting;
        let (first, rest) = about.split_at(1);
        let about = format!("{}{rest}", first.to_lowercase()).replace('`', "");
        let default = setting.words(&S::default()).join(" ");
        let default = if default.is_empty() { default } else { format!("; default {default}") };
        format!(
            "  {:width$}  {} ({kind}{default})",
            format!("{name}="),
            about.trim_end_matches('.')
        )
    });
    let rows: Vec<_> = rows.collect();
    format!("{examples}\n\nSettings:\n{}\n\n{more}", rows.join("\n")).trim_end().to_owned()
}

/// The text before the first space.
pub(crate) fn first_word(line: &str) -> &str {
    line.split(' ').next().unwrap_or_default()
}

/// The `key=value` words of an answer.
pub(crate) fn key_values(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.split(' ').filter_map(|word| word.split_once('='))
}

/// `<name> key=value ..` as an object; numbers become JSON numbers.
pub(crate) fn named_object(line: &str, key_of_name: &str) -> Value {
    object([(key_of_name, first_word(line))].into_iter().chain(key_values(line)))
}

/// A status as one line of JSON.
pub(crate) fn json_line(status: &impl Serialize) -> String {
    json(status).to_string()
}

/// A status as an object.
pub(crate) fn json(status: &impl Serialize) -> Value {
    serde_json::to_value(status).expect("a status is an object with string keys")
}

/// An object; numbers become JSON numbers, except in the first pair.
pub(crate) fn object<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Value {
    let mut object = Map::new();
    for (at, (key, value)) in pairs.enumerate() {
        // The first pair is the name, which stays a string even if it consists of digits.
        let number = (at > 0).then(|| serde_json::from_str(value).ok()).flatten();
        let number = number.filter(Value::is_number);
        let value = number.unwrap_or_else(|| value.into());
        if key == "where" {
            // A list, as there may be several.
            let list = object.entry(key).or_insert_with(|| Vec::<Value>::new().into());
            list.as_array_mut().expect("it is a list").push(value);
        } else {
            object.insert(key.to_owned(), value);
        }
    }
    object.into()
}

/// Prints `<name> key=value ..` as a list.
pub(crate) fn print_list(console: &mut Console, line: &str) -> Result<(), Failure> {
    let row = |(key, value): (&str, &str)| vec![key.to_owned(), readable(key, value)];
    let rows: Vec<_> = key_values(line).map(row).collect();
    console.line(first_word(line))?;
    for line in Table::new("KEY VALUE").lines(&rows) {
        console.line(&format!("  {line}"))?;
    }
    Ok(())
}

/// A text for people, as an event or answer has it: one word, with `_` for white space.
pub(crate) fn spaced(word: &str) -> String {
    word.replace('_', " ")
}

/// A table with spaces between its columns. A heading that ends in `>` aligns its column to the
/// right. Cells are [`terminal_safe`].
pub(crate) struct Table {
    /// The headings, until they are printed.
    heads: Option<Vec<String>>,
    is_left: Vec<bool>,
    /// The widths of the columns so far, in cells of a terminal.
    widths: Vec<usize>,
}

impl Table {
    /// A table with these headings, which are separated by spaces.
    pub(crate) fn new(heads: &str) -> Self {
        let is_left: Vec<_> = heads.split(' ').map(|head| !head.ends_with('>')).collect();
        let heads = heads.split(' ').map(|head| head.trim_end_matches('>').to_owned()).collect();
        Self { heads: Some(heads), widths: vec![0; is_left.len()], is_left }
    }

    /// Prints the next rows, after the headings at first.
    pub(crate) fn print(
        &mut self,
        console: &mut Console,
        rows: impl Iterator<Item = Vec<String>>,
    ) -> Result<(), Failure> {
        self.lines_with_headings(rows).iter().try_for_each(|line| console.line(line))
    }

    /// The next rows as aligned lines, after the headings at first.
    pub(crate) fn lines_with_headings(
        &mut self,
        rows: impl Iterator<Item = Vec<String>>,
    ) -> Vec<String> {
        let rows: Vec<_> = self.heads.take().into_iter().chain(rows).collect();
        self.lines(&rows)
    }

    /// Rows with a cell for each column as aligned lines.
    fn lines(&mut self, rows: &[Vec<String>]) -> Vec<String> {
        let rows: Vec<Vec<_>> =
            rows.iter().map(|row| row.iter().map(|cell| terminal_safe(cell)).collect()).collect();
        for row in &rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = cell.width().max(*width);
            }
        }
        let line = |row: &Vec<Cow<'_, str>>| {
            let cells = row.iter().zip(&self.widths).zip(&self.is_left);
            let cells = cells.map(|((cell, width), is_left)| {
                let space = " ".repeat(width - cell.width());
                if *is_left { format!("{cell}{space}") } else { format!("{space}{cell}") }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        rows.iter().map(line).collect()
    }
}

/// Prints rows as a [`Table`] with these headings.
pub(crate) fn print_table(
    console: &mut Console,
    heads: &str,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> Result<(), Failure> {
    Table::new(heads).print(console, rows.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_aligned_columns() {
        let rows = ["TOPIC NEXT STATE", "a 1,043 ok"];
        let rows = rows.map(|row| row.split(' ').map(str::to_owned).collect());
        let mut table = Table::new("TOPIC NEXT> STATE");
        assert_eq!(table.lines(&rows), ["TOPIC   NEXT  STATE", "a      1,043  ok"]);
        let next = [["寿司", "9", "full"].map(str::to_owned).to_vec()];
        assert_eq!(table.lines(&next), ["寿司       9  full"], "wide characters have two cells");
    }

    #[test]
    fn numbers_become_json_numbers() {
        let topic = named_object("7 next=1043 rate=0.5 retain-bytes=1g sync=always", "topic");
        assert_eq!(topic["topic"], "7");
        assert_eq!(topic["next"], 1043);
        assert_eq!(topic["rate"], 0.5);
        assert_eq!(topic["retain-bytes"], "1g");
    }
}
