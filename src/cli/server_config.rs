//! The configuration of a server: read at its start, at a reload and by `tidings config check`.

use std::env;
use std::ffi::OsString;

use super::{Cmd, Parsed, definition, parse};
use crate::config::{ConfigFile, Setting, settings};
use crate::process::service::ServerConfig;
use crate::terminal::failure::Failure;

/// The configuration that this process would start with now.
pub(crate) fn read() -> Result<ServerConfig, Failure> {
    read_from(env::args_os())
}

/// The configuration of the server that these words would start, the name of the program included.
pub(crate) fn read_from(
    words: impl IntoIterator<Item = OsString>,
) -> Result<ServerConfig, Failure> {
    let parsed = parse(words)?;
    let broker = match &parsed.cmd {
        Cmd::Up(args) => args.broker_config(),
        Cmd::Broker(args) => args.broker_config(),
        _ => Err(Failure::failed("only `up` and `broker` have the configuration of a server")),
    };
    let mut broker = broker
        .map_err(|failure| with_place(failure, section_of(&parsed.cmd), parsed.file.as_ref()))?;
    broker.settings = set_by_operator(&parsed);
    let settings = untyped_settings(&parsed);
    Ok(ServerConfig { settings, log: parsed.common.log, broker })
}

/// All problems of the configuration of the server that these words would start.
pub(crate) fn problems(words: Vec<OsString>) -> Vec<String> {
    let parsed = match parse(words) {
        Ok(parsed) => parsed,
        Err(failure) => return failure.text().into_iter().collect(),
    };
    let failures = match &parsed.cmd {
        Cmd::Up(args) => args.problems(),
        Cmd::Broker(args) => args.problems(),
        _ => Vec::new(),
    };
    let (section, file) = (section_of(&parsed.cmd), parsed.file.as_ref());
    failures.iter().flat_map(|failure| lines_of(failure, section, file)).collect()
}

/// The failure with the place of its first table in the file.
pub(crate) fn with_place(failure: Failure, section: &str, file: Option<&ConfigFile>) -> Failure {
    match failure {
        Failure::BadTables { .. } => {
            Failure::Usage(lines_of(&failure, section, file).swap_remove(0))
        }
        failure => failure,
    }
}

/// What a failure says, with the place of each table.
fn lines_of(failure: &Failure, section: &str, file: Option<&ConfigFile>) -> Vec<String> {
    let Failure::BadTables { key, problems } = failure else {
        return failure.text().into_iter().collect();
    };
    let line = |(index, text): &(usize, String)| {
        let placed = file.and_then(|file| file.table_problem(&[section], key, *index, text));
        placed.unwrap_or_else(|| text.clone())
    };
    problems.iter().map(line).collect()
}

/// The section of the file for this server.
pub(crate) fn section_of(cmd: &Cmd) -> &'static str {
    match cmd {
        Cmd::Broker(_) => "broker",
        _ => "up",
    }
}

/// The settings that no typed flag overrides.
pub(crate) fn untyped_settings(parsed: &Parsed) -> Vec<Setting> {
    let all = all_settings(parsed).into_iter();
    all.filter(|setting| !parsed.typed.contains_key(&setting.key)).collect()
}

/// The settings without those that have their defaults, for operators.
pub(crate) fn set_by_operator(parsed: &Parsed) -> Vec<tidings_broker::Setting> {
    let all = all_settings(parsed).into_iter();
    let all = all.map(|setting| match parsed.typed.get(&setting.key) {
        Some(values) => setting.typed(values),
        None => setting,
    });
    all.filter_map(|setting| setting.shown()).collect()
}

/// All settings, without what is typed.
fn all_settings(parsed: &Parsed) -> Vec<Setting> {
    settings(&definition(), &[section_of(&parsed.cmd)], parsed.file.as_ref(), None)
}
