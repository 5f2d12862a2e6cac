//! The configuration of a server: read at its start, at a reload and by `tidings config check`.

use std::env;
use std::ffi::OsString;

use super::{Cmd, Parsed, definition, parse};
use crate::config::{Setting, settings};
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
    let mut broker = match &parsed.cmd {
        Cmd::Up(args) => args.broker_config()?,
        Cmd::Broker(args) => args.broker_config()?,
        _ => {
            return Err(Failure::failed(
                "only `up` and `broker` have the configuration of a server",
            ));
        }
    };
    broker.settings = set_by_operator(&parsed);
    let settings = untyped_settings(&parsed);
    Ok(ServerConfig { settings, log: parsed.common.log, broker })
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
    let name = match parsed.cmd {
        Cmd::Broker(_) => "broker",
        _ => "up",
    };
    settings(&definition(), &[name], parsed.file.as_ref(), None)
}
