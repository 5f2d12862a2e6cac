//! Flags that need or exclude each other, where a value of the configuration file is one of them.
//!
//! The values of the file are defaults, and for the argument parser a flag with its default is not
//! there. So the words of the command line are parsed once more, with the file's values among them.

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::contexts::Context;
use super::effective::{find_subcommand, is_on};
use super::{ConfigEntry, ConfigFile, is_flag};
use crate::flags::arguments::{env_variable, one_line_message};

impl ConfigFile {
    /// The values of the file that a subcommand cannot use, because it lacks a flag that they need,
    /// or has one that they exclude. `command` reads the environment; `typed` are the matches of
    /// the subcommand, if one was typed; `with_context`: a context replaces the file's flags for
    /// connections.
    pub(crate) fn misfits(
        &self,
        command: &Command,
        names: &[&str],
        typed: Option<&ArgMatches>,
        with_context: bool,
    ) -> Vec<String> {
        let target = find_subcommand(command, names).expect("the subcommand was found before");
        // `tidings` is `tidings up`.
        let sections = if names.is_empty() { &["up"] } else { names };
        let (mut words, mut places) = (vec!["tidings".to_owned()], Vec::new());
        words.extend(names.iter().map(|name| (*name).to_owned()));
        let mut filed = Vec::new();
        for arg in target.get_arguments().filter(|arg| !arg.is_global_set()) {
            let id = arg.get_id().as_str();
            let is_typed = |matches: &&ArgMatches| {
                matches.try_contains_id(id).is_ok()
                    && matches.value_source(id) == Some(ValueSource::CommandLine)
            };
            if let Some(typed) = typed.filter(is_typed) {
                let values = typed.get_raw(id).into_iter().flatten();
                let values: Vec<_> = values.map(|it| it.to_string_lossy().into_owned()).collect();
                match arg.get_long() {
                    None => places.extend(values),
                    Some(_) => words.extend(flag_words(arg, &values)),
                }
            } else if (with_context && Context::replaces(arg))
                || env_variable(arg).is_some_and(|variable| std::env::var_os(variable).is_some())
            {
                // It overrides the file.
            } else if let Some(entry) = self.find_entry(sections, |key| is_flag(arg, key))
                && is_meant_for(entry, sections)
                && !arg.get_default_values().iter().map(|it| it.to_string_lossy()).eq(entry.texts())
            {
                filed.push((entry, flag_words(arg, &entry.texts())));
            }
        }
        if !places.is_empty() {
            places.insert(0, "--".to_owned());
        }
        let error_with = |filed: &[(&ConfigEntry, Vec<String>)]| {
            let filed = filed.iter().flat_map(|(_, words)| words);
            let words = words.iter().chain(filed).chain(&places);
            command.clone().try_get_matches_from(words).err()
        };
        let problem = |entry: &ConfigEntry, text: &str| {
            self.problem_at(entry.at, &format!("`{}`: {text}", entry.key))
        };
        let Some(error) = error_with(&filed) else { return Vec::new() };
        match error.kind() {
            ErrorKind::ArgumentConflict => {
                let excludes = |at: &usize| {
                    let mut others = filed.clone();
                    others.remove(*at);
                    error_with(&others).is_none_or(|it| it.to_string() != error.to_string())
                };
                let found = (0..filed.len()).find(excludes);
                let text = one_line_message(&error);
                found.map(|at| problem(filed[at].0, &text)).into_iter().collect()
            }
            ErrorKind::MissingRequiredArgument => {
                let known = error_with(&[]).map_or(Vec::new(), |error| missing(&error));
                let all = missing(&error);
                let lacks = |one: &(&ConfigEntry, Vec<String>)| {
                    let own = error_with(std::slice::from_ref(one))?;
                    let own = missing(&own).into_iter();
                    let own = own.filter(|flag| all.contains(flag) && !known.contains(flag));
                    let mut own: Vec<_> = own.collect();
                    own.sort();
                    let text = format!("needs {} too", own.join(" and "));
                    (!own.is_empty()).then(|| problem(one.0, &text))
                };
                filed.iter().filter_map(lacks).collect()
            }
            // Values were checked one by one.
            _ => Vec::new(),
        }
    }
}

/// Whether an entry is certainly for this subcommand. The top of a file has the flags of all, and a
/// short-lived command must not fail because it has a flag of the same name.
fn is_meant_for(entry: &ConfigEntry, sections: &[&str]) -> bool {
    let is_long_running = |name| ["up", "broker", "crawl"].contains(name);
    entry.sections == sections || sections.first().is_some_and(is_long_running)
}

/// A flag with its values as words of a command line.
fn flag_words(arg: &Arg, values: &[String]) -> Vec<String> {
    let long = arg.get_long().expect("the caller has looked");
    match arg.get_action() {
        ArgAction::SetTrue if !values.first().is_none_or(|value| is_on(value)) => Vec::new(),
        ArgAction::SetTrue => vec![format!("--{long}")],
        _ if values.is_empty() => vec![format!("--{long}")],
        ArgAction::Append => values.iter().map(|value| format!("--{long}={value}")).collect(),
        _ => vec![format!("--{long}={}", values.join(","))],
    }
}

/// The missing flags, as keys of the file.
fn missing(error: &Error) -> Vec<String> {
    let Some(ContextValue::Strings(flags)) = error.get(ContextKind::InvalidArg) else {
        return Vec::new();
    };
    let key = |flag: &String| match flag.strip_prefix("--") {
        Some(flag) => format!("`{}`", flag.split([' ', '=']).next().unwrap_or_default()),
        None => flag.clone(),
    };
    flags.iter().map(key).collect()
}
