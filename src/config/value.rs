//! TOML values in the form of command line arguments.

use serde::Deserialize;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Value};

use super::{ConfigProblem, tables};

/// A value in the form of an argument, and its byte position in the file.
#[derive(Debug)]
pub(super) struct FlagValue {
    pub(super) text: String,
    pub(super) at: usize,
    /// The keys of a table, with their positions.
    keys: Vec<(String, usize)>,
}

impl FlagValue {
    /// The position of a problem: that of the first key in backticks which the table has.
    pub(super) fn place_of(&self, problem: &str) -> usize {
        let mut named = problem.split('`').skip(1).step_by(2);
        let place = |name: &str| self.keys.iter().find(|(key, _)| key == name).map(|(_, at)| *at);
        named.find_map(place).unwrap_or(self.at)
    }
}

/// The values after `--key=`: of an array, one for each item.
pub(super) fn flag_values(
    key: &str,
    value: &Spanned<DeValue<'_>>,
) -> Result<Vec<FlagValue>, ConfigProblem> {
    let typed = |value: &Spanned<DeValue<'_>>| {
        let text = match value.get_ref() {
            DeValue::Table(table) if key == "feed" => table_to_line(table)?,
            DeValue::Table(_) if tables::is_list(key) => table_text(value)?,
            _ => flag_value(value)?,
        };
        let keys = match value.get_ref() {
            DeValue::Table(table) => {
                table.keys().map(|key| (key.get_ref().to_string(), key.span().start)).collect()
            }
            _ => Vec::new(),
        };
        Ok(FlagValue { text, at: value.span().start, keys })
    };
    items(value).into_iter().map(typed).collect()
}

/// The value after `--key=`.
fn flag_value(value: &Spanned<DeValue<'_>>) -> Result<String, ConfigProblem> {
    let refuse = |text: &str| ConfigProblem { at: value.span().start, text: text.to_owned() };
    Ok(match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        DeValue::Boolean(on) => on.to_string(),
        DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix())
            .map_err(|_| refuse("the number is too large; write at most 9223372036854775807"))?
            .to_string(),
        DeValue::Float(float) => float.as_str().to_owned(),
        DeValue::Array(items) => {
            items.iter().map(flag_value).collect::<Result<Vec<_>, _>>()?.join(",")
        }
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Table(_) => return Err(refuse("a table is not allowed here")),
    })
}

/// The items of an array; another value is its own only item.
pub(super) fn items<'v, 'f>(value: &'v Spanned<DeValue<'f>>) -> Vec<&'v Spanned<DeValue<'f>>> {
    match value.get_ref() {
        DeValue::Array(items) => items.iter().collect(),
        _ => vec![value],
    }
}

/// A table in one line.
fn table_text(table: &Spanned<DeValue<'_>>) -> Result<String, ConfigProblem> {
    let table = Value::deserialize(ValueDeserializer::from(table.clone()));
    let table = table.map_err(|error| ConfigProblem {
        at: error.span().unwrap_or_default().start,
        text: error.message().to_owned(),
    })?;
    Ok(in_one_line(&table))
}

/// A TOML value in one line. The writer of the library breaks long texts into lines.
pub(super) fn in_one_line(value: &Value) -> String {
    match value {
        Value::Table(members) => {
            let members = members
                .iter()
                .map(|(key, value)| format!("{} = {}", quoted(key), in_one_line(value)));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(in_one_line).collect::<Vec<_>>().join(", "))
        }
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}

/// A basic string. JSON and TOML escape the same characters, except for this one.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\x7f', "\\u007f")
}

/// A table of a list (`[[feed]]`) as the payload of an event: its `url`, then `key=value` words.
fn table_to_line(table: &DeTable<'_>) -> Result<String, ConfigProblem> {
    let mut words = Vec::new();
    for (key, value) in table {
        let text = flag_value(value)?;
        if text.is_empty() || text.contains(char::is_whitespace) {
            let text = "expected one word".to_owned();
            return Err(ConfigProblem { at: value.span().start, text });
        }
        if key.get_ref() == "url" {
            words.insert(0, text);
        } else {
            words.push(format!("{}={text}", key.get_ref()));
        }
    }
    Ok(words.join(" "))
}
