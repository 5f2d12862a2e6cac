//! Webhooks of the configuration: `[[hook]]`, with secrets that are stored elsewhere.

use std::collections::BTreeSet;
use std::env::VarError;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use clap::Args;
use tidings_broker::hooks::{Hook, Recipe, SecretSource};
use tidings_protocol::TopicName;

use crate::terminal::failure::Failure;

/// The longest file with secrets, in bytes.
pub(crate) const SECRETS_BYTES_MAX: u64 = 16 << 10;

/// Flags of the webhooks that a broker receives.
#[derive(Debug, Clone, Args)]
pub(crate) struct HookFlags {
    /// The tables `[[hook]]` of the configuration file.
    #[arg(skip)]
    pub(crate) hook: Vec<Recipe>,

    /// Webhooks may publish this many events per minute in total; hub deliveries have the same
    /// limit
    #[arg(long, value_name = "N", default_value_t = 6000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) hook_events: u32,
}

impl HookFlags {
    pub(crate) fn secret_files(&self) -> impl Iterator<Item = &Path> {
        self.hook.iter().filter_map(|recipe| match &recipe.secret {
            Some(SecretSource::File(path)) => Some(path.as_path()),
            Some(SecretSource::EnvVar(_)) | None => None,
        })
    }

    /// The topic of the webhook of this name.
    pub(crate) fn topic_of(&self, name: &str) -> Option<&TopicName> {
        self.hook.iter().find(|recipe| recipe.name == name).map(|recipe| &recipe.topic)
    }

    /// All webhooks with their secrets, which are read now.
    pub(crate) fn hooks(&self) -> Result<Vec<Hook>, Failure> {
        let mut names = BTreeSet::new();
        let hook = |recipe: &Recipe| {
            let name = recipe.name.clone();
            let wrong = |error| format!("the hook {name:?}: {error}");
            let written = recipe.secret.as_ref().map(read_secret).transpose().map_err(wrong)?;
            recipe.clone().with_secret(&written.unwrap_or_default()).map_err(wrong)
        };
        let hooks = self.hook.iter().map(|recipe| {
            let name = &recipe.name;
            if names.insert(name) {
                return hook(recipe);
            }
            Err(format!("two hooks have the name {name:?}"))
        });
        all_valid("hook", hooks)
    }
}

/// The values of all tables of a list, or what is wrong with each that has none.
pub(crate) fn all_valid<T>(
    key: &'static str,
    tables: impl Iterator<Item = Result<T, String>>,
) -> Result<Vec<T>, Failure> {
    let (mut values, mut problems) = (Vec::new(), Vec::new());
    for (index, table) in tables.enumerate() {
        match table {
            Ok(value) => values.push(value),
            Err(text) => problems.push((index, text)),
        }
    }
    if problems.is_empty() { Ok(values) } else { Err(Failure::BadTables { key, problems }) }
}

fn read_secret(place: &SecretSource) -> Result<String, String> {
    match place {
        SecretSource::File(path) => read_secrets(path),
        SecretSource::EnvVar(name) => {
            std::env::var(name).map_err(|error| match error {
                VarError::NotPresent => format!("{name}: {error}"),
                // The error would contain the secret.
                VarError::NotUnicode(_) => format!("{name}: not UTF-8"),
            })
        }
    }
}

/// Reads a file with secrets.
pub(crate) fn read_secrets(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = File::open(path)
        .and_then(|file| file.take(SECRETS_BYTES_MAX + 1).read_to_string(&mut text));
    let shown = path.display();
    match read {
        Err(error) => Err(format!("cannot read {shown}: {error}")),
        Ok(bytes) if bytes as u64 > SECRETS_BYTES_MAX => {
            Err(format!("{shown} is longer than {SECRETS_BYTES_MAX} bytes"))
        }
        Ok(_) => Ok(text),
    }
}
