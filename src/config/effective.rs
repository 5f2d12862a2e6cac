//! The effective values of a subcommand's flags without a command line: environment, then file,
//! then default.

use std::collections::BTreeSet;
use std::env::{VarError, var};

use clap::builder::{BoolishValueParser, TypedValueParser};
use clap::{Arg, ArgAction, Command};

use super::contexts::Context;
use super::secrets::hide;
use super::tables::{FLAG, LISTS, is_list};
use super::value::quoted;
use super::{ConfigFile, check_values, find_with_flag, is_flag, is_key};
use crate::flags::arguments::{connects, env_variable};
use crate::flags::broker::TOKEN_VARIABLE;
use crate::terminal::failure::Failure;
use crate::terminal::output::printable;

/// A flag and its value.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// Its long name, which is its key in a configuration file.
    pub(crate) key: String,
    /// One value, or several of a repeatable flag; none if it is not set.
    values: Vec<String>,
    kind: FlagKind,
    origin: Origin,
    /// It stands at the top of a file, not in the section of a subcommand.
    is_general: bool,
    /// The meaning of an unset flag, from its help.
    unset_meaning: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlagKind {
    Switch,
    Single,
    List,
}

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    CommandLine,
    /// This environment variable.
    Environment(String),
    /// This context.
    Context(String),
    /// The configuration file, at `file:line`.
    File(String),
    Default,
}

impl Setting {
    /// Whether both have the same values.
    pub(crate) fn has_same_value(&self, other: &Self) -> bool {
        self.values == other.values
    }

    /// The source of the value, for messages.
    pub(crate) fn place(&self) -> String {
        match &self.origin {
            Origin::CommandLine => "the command line".to_owned(),
            Origin::Environment(variable) => format!("{variable} in the environment"),
            Origin::Context(place) | Origin::File(place) => printable(place, PLACE_CHARS_MAX),
            Origin::Default => "the configuration file, from which it was removed".to_owned(),
        }
    }

    /// The same setting with the values of a typed flag.
    pub(crate) fn typed(self, values: &[String]) -> Self {
        Self { values: values.to_vec(), origin: Origin::CommandLine, ..self }
    }

    /// The setting for operators; `None` if it has its default.
    pub(crate) fn shown(&self) -> Option<tidings_broker::Setting> {
        let is_set = self.origin != Origin::Default && !self.values.is_empty();
        let (key, origin) = (self.key.clone(), self.place());
        is_set.then(|| tidings_broker::Setting { key, value: self.value().0, origin })
    }

    /// The value in a configuration file, and whether a secret in it is hidden.
    fn value(&self) -> (String, bool) {
        let Self { key, values, .. } = self;
        let shown: Vec<_> = values.iter().map(|value| hide(key, value)).collect();
        let is_hidden = values.iter().zip(&shown).any(|(value, shown)| value != shown);
        // The text of a table is TOML.
        let text = |value: &_| if is_list(key) { String::from(value) } else { toml_scalar(value) };
        let texts: Vec<_> = shown.iter().map(|value| text(value)).collect();
        let value = match self.kind {
            FlagKind::Switch => values.concat(),
            FlagKind::Single => texts.concat(),
            FlagKind::List => format!("[{}]", texts.join(", ")),
        };
        (value, is_hidden)
    }

    /// The setting as a line of a configuration file.
    fn line(&self) -> String {
        let Self { key, values, unset_meaning, .. } = self;
        if values.is_empty() {
            let meaning = unset_meaning.as_ref().map(|text| format!("; meaning: {text}"));
            return format!("# {key} = ..  # not set{}", meaning.unwrap_or_default());
        }
        let (value, is_hidden) = self.value();
        let origin = match &self.origin {
            Origin::CommandLine => self.place(),
            Origin::Environment(variable) => variable.clone(),
            Origin::Context(place) | Origin::File(place) => printable(place, PLACE_CHARS_MAX),
            Origin::Default => "default".to_owned(),
        };
        // With a hidden secret the line would not work.
        let (mark, note) = if is_hidden { ("# ", ", with a secret") } else { ("", "") };
        format!("{mark}{key} = {value}  # {origin}{note}")
    }
}

/// The longest name of a file with a line number, in characters.
const PLACE_CHARS_MAX: usize = 4_200;

/// All settings of a subcommand.
pub(crate) fn settings(
    definition: &Command,
    names: &[&str],
    file: Option<&ConfigFile>,
    context: Option<&Context>,
) -> Vec<Setting> {
    let target = find_subcommand(definition, names);
    let general = definition.get_arguments().filter(|arg| arg.is_global_set());
    let general = general.filter_map(|arg| setting(arg, &[], file, None));
    let own = target.into_iter().flat_map(Command::get_arguments);
    let own = own.filter(|arg| !arg.is_global_set());
    let own = own.filter_map(|arg| setting(arg, names, file, context));
    let has_tables = target.is_some_and(|target| find_with_flag(target, FLAG).is_some());
    let tables = LISTS.iter().filter(|_| has_tables);
    let tables = tables.map(|(key, _)| list_of_tables(key, names, file));
    general
        .map(|setting| Setting { is_general: true, ..setting })
        .chain(own)
        .chain(tables)
        .collect()
}

fn list_of_tables(key: &str, names: &[&str], file: Option<&ConfigFile>) -> Setting {
    let found = file.and_then(|file| file.find(names, |found| found == key));
    let (values, origin) = match found {
        Some((values, place)) => (values, Origin::File(place)),
        None => (Vec::new(), Origin::Default),
    };
    let (key, kind) = (key.to_owned(), FlagKind::List);
    Setting { key, values, kind, origin, is_general: false, unset_meaning: None }
}

/// The context of a subcommand that connects to a broker, if nothing is typed.
pub(crate) fn context_of(
    definition: &Command,
    names: &[&str],
    file: Option<&ConfigFile>,
) -> Result<Option<Context>, Failure> {
    if !find_subcommand(definition, names).is_some_and(connects) {
        return Ok(None);
    }
    let settings = settings(definition, names, file, None);
    let find = |key| settings.iter().find(|setting| setting.key == key);
    let name = find("context").and_then(|setting| setting.values.first());
    if find("broker").is_some_and(|broker| matches!(broker.origin, Origin::Environment(_))) {
        return Ok(None);
    }
    Context::named(name.map(String::as_str), false)
}

/// The subcommand with this path of names.
pub(crate) fn find_subcommand<'c>(definition: &'c Command, names: &[&str]) -> Option<&'c Command> {
    names.iter().try_fold(definition, |command, name| command.find_subcommand(name))
}

fn setting(
    arg: &Arg,
    names: &[&str],
    file: Option<&ConfigFile>,
    context: Option<&Context>,
) -> Option<Setting> {
    let key = arg.get_long().filter(|key| is_key(arg, key))?.to_owned();
    let kind = match arg.get_action() {
        ArgAction::SetTrue => FlagKind::Switch,
        ArgAction::Append => FlagKind::List,
        _ => FlagKind::Single,
    };
    let variable = env_variable(arg).filter(|variable| var(variable).is_ok());
    let (values, origin) = if let Some(variable) = variable {
        let text = var(&variable).unwrap_or_default();
        let values = match arg.get_value_delimiter() {
            Some(sign) if kind == FlagKind::List => text.split(sign).map(str::to_owned).collect(),
            _ => vec![text],
        };
        (values, Origin::Environment(variable))
    } else if let Some((value, context)) = context.and_then(|it| Some((it.value(arg)?, it))) {
        (vec![value], Origin::Context(context.place()))
    } else if let Some((values, place)) = file
        .filter(|_| context.is_none() || !Context::replaces(arg))
        .and_then(|file| file.find(names, |key| is_flag(arg, key)))
    {
        let values = match kind {
            FlagKind::List => values,
            _ => vec![values.join(",")],
        };
        (values, Origin::File(place))
    } else {
        let values = arg.get_default_values().iter();
        (values.map(|value| value.to_string_lossy().into_owned()).collect(), Origin::Default)
    };
    let values = match kind {
        FlagKind::Switch => vec![values.first().is_some_and(|text| is_on(text)).to_string()],
        _ => values,
    };
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let otherwise = help.split_once("[default: ").map(|(_, rest)| rest.replace(']', ""));
    Some(Setting { key, values, kind, origin, is_general: false, unset_meaning: otherwise })
}

pub(super) fn is_on(text: &str) -> bool {
    let parser = BoolishValueParser::new();
    parser.parse_ref(&Command::new("switch"), None, text.as_ref()).unwrap_or(false)
}

/// The problems of the environment of a subcommand.
pub(crate) fn environment_problems(definition: &Command, names: &[&str]) -> Vec<String> {
    let mut problems = Vec::new();
    let target = find_subcommand(definition, names).into_iter().flat_map(Command::get_arguments);
    let general = definition.get_arguments().filter(|arg| arg.is_global_set());
    for arg in target.chain(general) {
        let (Some(variable), Some(key)) = (env_variable(arg), arg.get_long()) else { continue };
        let text = match var(&variable) {
            Ok(text) => text,
            Err(VarError::NotPresent) => continue,
            Err(VarError::NotUnicode(_)) => {
                problems.push(format!("environment: {variable}: not UTF-8"));
                continue;
            }
        };
        let judged = match arg.get_action() {
            ArgAction::SetTrue => {
                let parser = BoolishValueParser::new();
                let parsed = parser.parse_ref(&Command::new("switch"), None, text.as_ref());
                parsed.map(|_| ()).map_err(|_| "expected true or false".to_owned())
            }
            _ => check_values(definition, names, key, &[&text]),
        };
        problems.extend(judged.err().map(|text| format!("environment: {variable}: {text}")));
    }
    let mut known = BTreeSet::from([TOKEN_VARIABLE.to_owned()]);
    collect_variables(definition, &mut known);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("TIDINGS_") && !known.contains(name.as_ref()) {
            let name = printable(&name, 100);
            problems.push(format!("environment: {name}: no flag has this variable"));
        }
    }
    problems
}

fn collect_variables(command: &Command, known: &mut BTreeSet<String>) {
    known.extend(command.get_arguments().filter_map(env_variable));
    for subcommand in command.get_subcommands() {
        collect_variables(subcommand, known);
    }
}

/// The settings as an equivalent configuration file.
pub(crate) fn as_file(names: &[&str], settings: &[Setting]) -> String {
    let section = format!("\n[{}]\n", names.join("."));
    let mut text = format!("# tidings {}\n", names.join(" "));
    let lines = |general| settings.iter().filter(move |one| one.is_general == general);
    text.extend(lines(true).map(|setting| setting.line() + "\n"));
    text.push_str(&section);
    text.extend(lines(false).map(|setting| setting.line() + "\n"));
    text
}

/// A text as a TOML value.
fn toml_scalar(text: &str) -> String {
    let is_number = text.parse::<i64>().is_ok_and(|number| number.to_string() == text);
    if is_number { text.to_owned() } else { quoted(text) }
}
