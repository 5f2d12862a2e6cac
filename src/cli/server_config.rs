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
    let Parsed { file, typed_flags, .. } = &parsed;
    let broker = broker.map_err(|failure| {
        with_place(failure, section_of(&parsed.cmd), file.as_ref(), typed_flags)
    })?;
    let settings = untyped_settings(&parsed);
    Ok(ServerConfig { settings, log: parsed.common.log, broker })
}

/// The failure with the place of its value in the file, if the value is from there.
pub(crate) fn with_place(
    failure: Failure,
    section: &str,
    file: Option<&ConfigFile>,
    typed_flags: &[String],
) -> Failure {
    let Failure::BadValue { flag, index, text } = &failure else { return failure };
    let file = file.filter(|_| typed_flags.iter().all(|typed| typed != flag));
    let problem = file.and_then(|file| file.value_problem(&[section], flag, *index, text));
    problem.map_or(failure, Failure::Usage)
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
    let section = section_of(&parsed.cmd);
    let all = settings(&definition(), &[section], parsed.file.as_ref(), None).into_iter();
    all.filter(|setting| !parsed.typed_flags.contains(&setting.key)).collect()
}
