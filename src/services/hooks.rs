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
    /// A webhook as a JSON object; same as `[[hook]]` in the configuration file
    #[arg(long, value_name = "JSON", hide = true)]
    hook: Vec<Recipe>,

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
        let mut hooks = Vec::new();
        for (index, recipe) in self.hook.iter().enumerate() {
            let name = recipe.name.as_str();
            let wrong = |text| Failure::BadValue { flag: "hook", index, text };
            if !names.insert(name) {
                return Err(wrong(format!("two hooks have the name {name:?}")));
            }
            let wrong = |error| wrong(format!("the hook {name:?}: {error}"));
            let written = recipe.secret.as_ref().map(read_secret).transpose().map_err(wrong)?;
            let written = written.unwrap_or_default();
            hooks.push(recipe.clone().with_secret(&written).map_err(wrong)?);
        }
        Ok(hooks)
    }
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
