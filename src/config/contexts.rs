//! Named contexts: the flags with which commands connect to a broker, in
//! `~/.config/tidings/contexts.toml`. The file has paths to secrets and never secrets.

use std::collections::BTreeMap;
use std::env::var_os;
use std::io::ErrorKind;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use serde::{Deserialize, Serialize};

use crate::flags::address::BrokerAddress;
use crate::flags::arguments::{connects, subcommand_of};
use crate::flags::own_file::read_own;
use crate::terminal::failure::Failure;

/// The file, below the directory for configuration.
const FILE: &str = "tidings/contexts.toml";

/// The contents of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    /// The context of commands that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    #[serde(default, rename = "context")]
    pub(crate) all: BTreeMap<String, ContextFlags>,
}

/// Flags by their names. Paths are absolute.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ContextFlags {
    pub(crate) broker: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) crl: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cert: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cert_key: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_file: Option<PathBuf>,
}

/// The flags that a context sets together: those that it leaves out have their defaults, so that the
/// token of one broker never goes to another.
const FLAGS: [&str; 8] =
    ["context", "broker", "tls", "ca", "crl", "cert", "cert-key", "token-file"];

/// The context of a command.
#[derive(Debug)]
pub(crate) struct Context {
    name: String,
    flags: ContextFlags,
    /// Whether `--context` was typed. As every flag, it overrides the environment.
    is_typed: bool,
}

/// The path of the file; `None` without a home directory.
pub(crate) fn path() -> Option<PathBuf> {
    let absolute = |name| var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CONFIG_HOME");
    folder.or_else(|| Some(absolute("HOME")?.join(".config"))).map(|folder| folder.join(FILE))
}

impl Contexts {
    /// Reads the file; a file that does not exist has no contexts.
    pub(crate) fn read() -> Result<Self, Failure> {
        let Some(path) = path() else { return Ok(Self::default()) };
        let shown = path.display();
        let text = match read_own(&path) {
            Ok(Some(text)) => text,
            Ok(None) => {
                let text = format!("{shown}: other users can write it; chmod 600 it, and check it");
                return Err(Failure::Usage(text));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(Failure::Usage(format!("cannot read {shown}: {error}"))),
        };
        toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            let message = error.message().replace('\n', "; ");
            Failure::Usage(format!("{shown}:{line}: {message}"))
        })
    }

    /// The flags of a context, or a failure that names those there are.
    pub(crate) fn find(&self, name: &str) -> Result<&ContextFlags, Failure> {
        self.all.get(name).ok_or_else(|| {
            let known: Vec<_> = self.all.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Failure::Usage(format!("no context {name}; known: {known} (see tidings context add)"))
        })
    }
}

impl Context {
    /// The context of a command line that was matched with the environment and the configuration
    /// file. If a flag or a variable names the broker, no context is used, since another broker
    /// must not get the token of this one. Only a typed `--context` overrides the variable.
    pub(crate) fn of(command: &Command, matches: &ArgMatches) -> Result<Option<Self>, Failure> {
        let (names, matches) = subcommand_of(matches);
        let command = names.iter().try_fold(command, |it, name| it.find_subcommand(name));
        if !command.is_some_and(connects) {
            return Ok(None);
        }
        let is_typed = matches.value_source("context") == Some(ValueSource::CommandLine);
        match matches.value_source("broker") {
            Some(ValueSource::CommandLine) if is_typed => {
                let text = "--context and --broker both name a broker; type only one of them";
                return Err(Failure::Usage(text.to_owned()));
            }
            Some(ValueSource::CommandLine | ValueSource::EnvVariable) if !is_typed => {
                return Ok(None);
            }
            _ => {}
        }
        Self::named(matches.get_one::<String>("context").map(String::as_str), is_typed)
    }

    /// Why no token is sent to a broker that a flag or a variable names, if the context that it
    /// overrides has one.
    pub(crate) fn unsent_token(matches: &ArgMatches, broker: &BrokerAddress) -> Option<String> {
        let name = matches.try_get_one::<String>("context").ok()?;
        let Self { name, flags, .. } = Self::named(name.map(String::as_str), false).ok()??;
        let reason = "because --broker or TIDINGS_BROKER overrides the context";
        flags.token_file.map(|_| format!("no token is sent to {broker}, {reason} {name}"))
    }

    /// The context of this name, or the current one.
    pub(crate) fn named(name: Option<&str>, is_typed: bool) -> Result<Option<Self>, Failure> {
        let contexts = Contexts::read()?;
        let Some(name) = name.or(contexts.current.as_deref()) else { return Ok(None) };
        Ok(Some(Self { name: name.to_owned(), flags: contexts.find(name)?.clone(), is_typed }))
    }

    /// `command` with the flags of the context as defaults of all commands that connect to a broker,
    /// in place of all defaults of the file.
    pub(crate) fn apply(&self, command: Command) -> Command {
        let command = if connects(&command) {
            command.mut_args(|arg| {
                if !Self::replaces(&arg) {
                    return arg;
                }
                let value = self.value(&arg);
                let arg = arg.default_values(value);
                if self.is_typed { arg.env(None::<&'static str>) } else { arg }
            })
        } else {
            command
        };
        command.mut_subcommands(|subcommand| self.apply(subcommand))
    }

    /// Whether a context sets the flag, or sets it back to its default.
    pub(super) fn replaces(arg: &Arg) -> bool {
        arg.get_long().is_some_and(|long| FLAGS.contains(&long))
    }

    /// The value of a flag.
    pub(super) fn value(&self, arg: &Arg) -> Option<String> {
        let pair = self.flags.pairs().into_iter().chain([("context", self.name.clone())]);
        pair.into_iter().find(|(key, _)| arg.get_long() == Some(key)).map(|(_, value)| value)
    }

    /// Where a value comes from, for people.
    pub(super) fn place(&self) -> String {
        format!("context {}", self.name)
    }
}

impl ContextFlags {
    /// The flags that are set, with their names.
    pub(crate) fn pairs(&self) -> Vec<(&'static str, String)> {
        let Self { broker, tls, ca, crl, cert, cert_key, token_file } = self;
        let files = [
            ("ca", ca),
            ("crl", crl),
            ("cert", cert),
            ("cert-key", cert_key),
            ("token-file", token_file),
        ];
        let file = |(key, path): (&'static str, &Option<PathBuf>)| {
            path.as_ref().map(|path| (key, path.to_string_lossy().into_owned()))
        };
        let tls = tls.map(|tls| ("tls", tls.to_string()));
        [("broker", broker.clone())]
            .into_iter()
            .chain(tls)
            .chain(files.into_iter().filter_map(file))
            .collect()
    }
}
