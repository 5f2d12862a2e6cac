//! The effective values of a subcommand's flags without a command line: environment, then file,
//! then default.

use std::{
    collections::BTreeSet,
    env::{VarError, var},
};

use clap::{
    Arg, ArgAction, Command,
    builder::{BoolishValueParser, TypedValueParser},
};
use serde_json::Value;

use super::{ConfigFile, is_key, judge, secrets::hide};
use crate::{broker_flag::TOKEN_VARIABLE, cli::variable, output::printable};

/// A flag and its value.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// Its long name, which is its key in a configuration file.
    pub(crate) key: String,
    /// One value, or several of a repeatable flag; none if it is not set.
    values: Vec<String>,
    kind: Kind,
    origin: Origin,
    /// It stands at the top of a file, not in the section of a subcommand.
    is_general: bool,
    /// The meaning of an unset flag, from its help.
    otherwise: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Switch,
    One,
    Several,
}

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    /// This environment variable.
    Environment(String),
    /// The configuration file, at `file:line`.
    File(String),
    Default,
}

impl Setting {
    /// Whether both have the same values.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.values == other.values
    }

    /// The source of the value, for messages.
    pub(crate) fn place(&self) -> String {
        match &self.origin {
            Origin::Environment(variable) => format!("{variable} in the environment"),
            Origin::File(place) => printable(place, PLACE_CHARS_MAX),
            Origin::Default => "the configuration file, from which it was removed".to_owned(),
        }
    }

    /// The setting as a line of a configuration file.
    fn line(&self) -> String {
        let Self { key, values, otherwise, .. } = self;
        if values.is_empty() {
            let otherwise = otherwise
                .as_ref()
                .map_or("not set".to_owned(), |text| format!("not set; meaning: {text}"));
            return format!("# {key} = ..  # {otherwise}");
        }
        let shown: Vec<_> = values.iter().map(|value| hide(key, value)).collect();
        let is_hidden = values.iter().zip(&shown).any(|(value, shown)| value != shown);
        let texts: Vec<_> = shown.iter().map(|value| scalar(value)).collect();
        let value = match self.kind {
            Kind::Switch => values.concat(),
            Kind::One => texts.concat(),
            Kind::Several => format!("[{}]", texts.join(", ")),
        };
        let origin = match &self.origin {
            Origin::Environment(variable) => variable.clone(),
            Origin::File(place) => printable(place, PLACE_CHARS_MAX),
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
) -> Vec<Setting> {
    let target = find(definition, names);
    let general = definition.get_arguments().filter(|arg| arg.is_global_set());
    let general = general.filter_map(|arg| setting(arg, &[], file, true));
    let own = target.into_iter().flat_map(Command::get_arguments);
    let own = own.filter(|arg| !arg.is_global_set());
    general.chain(own.filter_map(|arg| setting(arg, names, file, false))).collect()
}

/// The subcommand with this path of names.
pub(crate) fn find<'c>(definition: &'c Command, names: &[&str]) -> Option<&'c Command> {
    names.iter().try_fold(definition, |command, name| command.find_subcommand(name))
}

fn setting(
    arg: &Arg,
    names: &[&str],
    file: Option<&ConfigFile>,
    is_general: bool,
) -> Option<Setting> {
    let key = arg.get_long().filter(|key| is_key(arg, key))?.to_owned();
    let kind = match arg.get_action() {
        ArgAction::SetTrue => Kind::Switch,
        ArgAction::Append => Kind::Several,
        _ => Kind::One,
    };
    let variable = variable(arg).filter(|variable| var(variable).is_ok());
    let (values, origin) = if let Some(variable) = variable {
        let text = var(&variable).unwrap_or_default();
        let values = match arg.get_value_delimiter() {
            Some(sign) if kind == Kind::Several => text.split(sign).map(str::to_owned).collect(),
            _ => vec![text],
        };
        (values, Origin::Environment(variable))
    } else if let Some((values, place)) = file.and_then(|file| file.find(names, arg)) {
        let values = match kind {
            Kind::Several => values.to_vec(),
            _ => vec![values.join(",")],
        };
        (values, Origin::File(place))
    } else {
        let values = arg.get_default_values().iter();
        (values.map(|value| value.to_string_lossy().into_owned()).collect(), Origin::Default)
    };
    let values = match kind {
        Kind::Switch => vec![values.first().is_some_and(|text| is_on(text)).to_string()],
        _ => values,
    };
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let otherwise = help.split_once("[default: ").map(|(_, rest)| rest.replace(']', ""));
    Some(Setting { key, values, kind, origin, is_general, otherwise })
}

fn is_on(text: &str) -> bool {
    let parser = BoolishValueParser::new();
    parser.parse_ref(&Command::new("switch"), None, text.as_ref()).unwrap_or(false)
}

/// The problems of the environment of a subcommand.
pub(crate) fn environment_problems(definition: &Command, names: &[&str]) -> Vec<String> {
    let mut problems = Vec::new();
    let target = find(definition, names).into_iter().flat_map(Command::get_arguments);
    let general = definition.get_arguments().filter(|arg| arg.is_global_set());
    for arg in target.chain(general) {
        let (Some(variable), Some(key)) = (variable(arg), arg.get_long()) else { continue };
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
            _ => judge(definition, names, key, &[&text]),
        };
        problems.extend(judged.err().map(|text| format!("environment: {variable}: {text}")));
    }
    let mut known = BTreeSet::from([TOKEN_VARIABLE.to_owned()]);
    note_variables(definition, &mut known);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("TIDINGS_") && !known.contains(name.as_ref()) {
            let name = printable(&name, 100);
            problems.push(format!("environment: {name}: no flag has this variable"));
        }
    }
    problems
}

fn note_variables(command: &Command, known: &mut BTreeSet<String>) {
    known.extend(command.get_arguments().filter_map(variable));
    for subcommand in command.get_subcommands() {
        note_variables(subcommand, known);
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
fn scalar(text: &str) -> String {
    if text.parse::<i64>().is_ok_and(|number| number.to_string() == text) {
        return text.to_owned();
    }
    match serde_json::from_str(text) {
        Ok(object @ Value::Object(_)) => inline(&object),
        _ => string(text),
    }
}

/// A table in one line.
fn inline(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let members = members.iter().filter(|(_, value)| !value.is_null());
            let members =
                members.map(|(key, value)| format!("{} = {}", string(key), inline(value)));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", "))
        }
        Value::String(text) => string(text),
        other => other.to_string(),
    }
}

/// A basic string. JSON and TOML escape the same characters, except for this one.
fn string(text: &str) -> String {
    Value::from(text).to_string().replace('\x7f', "\\u007f")
}
