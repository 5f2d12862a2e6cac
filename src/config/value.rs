//! Values of TOML as they would be typed behind a flag.

use serde_json::{Map, Value};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::Misplaced;

/// A value as it would be typed, and at which byte of the file it stands.
#[derive(Debug)]
pub(super) struct Typed {
    pub(super) text: String,
    pub(super) at: usize,
}

/// The values as they would be typed after `--key=`: of an array, each of its items.
pub(super) fn flag_values(
    key: &str,
    value: &Spanned<DeValue<'_>>,
) -> Result<Vec<Typed>, Misplaced> {
    let typed = |value: &Spanned<DeValue<'_>>| {
        let text = match value.get_ref() {
            DeValue::Table(table) if key == "feed" => line_of_table(table)?,
            DeValue::Table(_) => json(value)?.to_string(),
            _ => flag_value(value)?,
        };
        Ok(Typed { text, at: value.span().start })
    };
    match value.get_ref() {
        DeValue::Array(items) => items.iter().map(typed).collect(),
        _ => Ok(vec![typed(value)?]),
    }
}

/// The value as it would be typed after `--key=`.
fn flag_value(value: &Spanned<DeValue<'_>>) -> Result<String, Misplaced> {
    let refuse = |text: &str| Misplaced { at: value.span().start, text: text.to_owned() };
    Ok(match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        DeValue::Boolean(on) => on.to_string(),
        DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix())
            .map_err(|_| refuse("the number is too large"))?
            .to_string(),
        DeValue::Float(float) => float.as_str().to_owned(),
        DeValue::Array(items) => {
            items.iter().map(flag_value).collect::<Result<Vec<_>, _>>()?.join(",")
        }
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Table(_) => return Err(refuse("a table is no value here")),
    })
}

/// The same value as JSON, in which a date is its text.
fn json(value: &Spanned<DeValue<'_>>) -> Result<Value, Misplaced> {
    Ok(match value.get_ref() {
        DeValue::Boolean(on) => Value::Bool(*on),
        DeValue::Integer(_) | DeValue::Float(_) => {
            let text = flag_value(value)?;
            let number = text.parse().map_err(|_| Misplaced {
                at: value.span().start,
                text: format!("{text} is no number"),
            });
            Value::Number(number?)
        }
        DeValue::String(_) | DeValue::Datetime(_) => Value::String(flag_value(value)?),
        DeValue::Array(items) => Value::Array(items.iter().map(json).collect::<Result<_, _>>()?),
        DeValue::Table(table) => {
            let mut members = Map::new();
            for (key, value) in table {
                members.insert(key.get_ref().to_string(), json(value)?);
            }
            Value::Object(members)
        }
    })
}

/// A table of a list (`[[feed]]`) as an event would have it: its `url` and then `key=value` words.
fn line_of_table(table: &DeTable<'_>) -> Result<String, Misplaced> {
    let mut words = Vec::new();
    for (key, value) in table {
        let text = flag_value(value)?;
        if text.is_empty() || text.contains(char::is_whitespace) {
            let text = "the value has to be one word".to_owned();
            return Err(Misplaced { at: value.span().start, text });
        }
        if key.get_ref() == "url" {
            words.insert(0, text);
        } else {
            words.push(format!("{}={text}", key.get_ref()));
        }
    }
    Ok(words.join(" "))
}
