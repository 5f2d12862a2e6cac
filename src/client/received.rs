//! Statuses as a broker sent them. An older broker does not know all of their fields.

use std::ops::{Deref, DerefMut};

use serde_json::Value;

use crate::client::manage::{self, key_values};
use crate::terminal::output::format_count;

/// A status, and which fields its line had.
#[derive(Debug, Clone, Default)]
pub(crate) struct Received<S> {
    status: S,
    /// The keys of the line; `None` if the status is complete.
    keys: Option<Vec<String>>,
}

impl<S> Received<S> {
    /// Reads a line with the parser of its status.
    pub(crate) fn parse(line: &str, parse: fn(&str) -> S) -> Self {
        let keys = key_values(line).map(|(key, _)| key.to_owned()).collect();
        Self { status: parse(line), keys: Some(keys) }
    }

    /// Only a name; nothing else is known.
    #[cfg(feature = "top")]
    pub(crate) fn unread(status: S) -> Self {
        Self { status, keys: Some(Vec::new()) }
    }

    /// Whether the broker sent the field.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.keys.as_ref().is_none_or(|keys| keys.iter().any(|sent| sent == key))
    }

    /// A field as a cell of a table; `-` if the broker did not send it.
    pub(crate) fn cell(&self, key: &str, text: impl Into<String>) -> String {
        if self.has(key) { text.into() } else { "-".to_owned() }
    }

    /// A count as a cell.
    pub(crate) fn count(&self, key: &str, count: u64) -> String {
        self.cell(key, format_count(count))
    }
}

impl<S: serde::Serialize> Received<S> {
    /// An object without the fields that the broker did not send. `name` is what it is about.
    pub(crate) fn json(&self, name: &str) -> Value {
        let mut object = manage::json(&self.status);
        if let Some(fields) = object.as_object_mut() {
            fields.retain(|key, _| key == name || self.has(key));
        }
        object
    }
}

impl<S> Deref for Received<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.status
    }
}

impl<S> DerefMut for Received<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.status
    }
}

/// A complete status.
impl<S> From<S> for Received<S> {
    fn from(status: S) -> Self {
        Self { status, keys: None }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidings_protocol::status::KeyStatus;

    use super::*;

    #[test]
    fn what_a_line_lacks_is_a_dash_and_not_zero() {
        let key = Received::parse("a.example waiting=1205", KeyStatus::parse);
        let cells = (key.count("waiting", key.waiting), key.count("processing", key.processing));
        assert_eq!(cells, ("1,205".to_owned(), "-".to_owned()));
        assert_eq!(key.json("key"), json!({ "key": "a.example", "waiting": 1205 }));
        let complete = Received::from(KeyStatus::parse("b"));
        assert_eq!(complete.count("waiting", 0), "0");
    }
}
