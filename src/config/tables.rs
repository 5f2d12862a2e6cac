//! The lists of tables that no flag can express: `[[hook]]` and `[[push]]` of a server.

use serde::de::DeserializeOwned;
use tidings_broker::hooks::Recipe;
use toml::Spanned;
use toml::de::{DeValue, ValueDeserializer};

use crate::flags::push_table::PushTable;

/// The names of the lists, and what a table is.
pub(crate) const LISTS: [(&str, &str); 2] = [
    ("hook", "A webhook that the broker receives."),
    ("push", "A receiver to which the broker sends the events of a topic."),
];

/// A flag that exactly the subcommands with these lists have.
pub(super) const FLAG: &str = "hook-events";

/// The tables of a file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tables {
    pub(crate) hooks: Vec<Recipe>,
    pub(crate) pushes: Vec<PushTable>,
}

/// Whether this is the name of a list.
pub(super) fn is_list(key: &str) -> bool {
    LISTS.iter().any(|(name, _)| *name == key)
}

impl Tables {
    /// Adds a table of the list `key`. An error names the key of the table.
    pub(super) fn add(&mut self, key: &str, table: &Spanned<DeValue<'_>>) -> Result<(), String> {
        match key {
            "hook" => self.hooks.push(read(table)?),
            _ => self.pushes.push(read(table)?),
        }
        Ok(())
    }
}

fn read<T: DeserializeOwned>(table: &Spanned<DeValue<'_>>) -> Result<T, String> {
    if !table.get_ref().is_table() {
        return Err("expected a table: its name in [[ ]] in a line, and its keys below".to_owned());
    }
    serde_path_to_error::deserialize(ValueDeserializer::from(table.clone())).map_err(|error| {
        let text = error.inner().message();
        // Other errors name the key themselves.
        let is_value = text.starts_with("invalid");
        if is_value { format!("`{}`: {text}", error.path()) } else { text.to_owned() }
    })
}
