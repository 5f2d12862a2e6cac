//! What the command line and the configuration file need of the argument parser.

use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Command};

/// The prefix of the ids of flags that have no environment variable and no key in a file. Such a
/// flag applies to one call only, or its name means something else in a server.
const TYPED: &str = "typed_";

/// Whether the environment and the configuration file can set a flag.
pub(crate) fn is_setting(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append | ArgAction::SetTrue)
        && !arg.get_id().as_str().starts_with(TYPED)
}

/// Whether a command connects to a broker with the flags of `BrokerFlag`.
pub(crate) fn connects(command: &Command) -> bool {
    command.get_arguments().any(|arg| arg.get_long() == Some("context"))
}

/// The names of the subcommand that was matched, outermost first, and its own matches.
pub(crate) fn subcommand_of(mut matches: &ArgMatches) -> (Vec<&str>, &ArgMatches) {
    let mut names = Vec::new();
    while let Some((name, deeper)) = matches.subcommand() {
        names.push(name);
        matches = deeper;
    }
    (names, matches)
}

/// The environment variable of a flag.
pub(crate) fn env_variable(arg: &Arg) -> Option<String> {
    let long = arg.get_long().filter(|_| is_setting(arg))?;
    Some(format!("TIDINGS_{}", long.replace('-', "_").to_uppercase()))
}

/// The parser's message in one line: the problem and its hint, without the usage text.
pub(crate) fn one_line_message(error: &Error) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let parts: Vec<_> = text
        .split("\n\n")
        .filter(|part| !part.starts_with("Usage:") && !part.starts_with("For more information"))
        .map(|part| {
            let words: Vec<_> = part.split_whitespace().collect();
            let part = words.join(" ");
            part.strip_prefix("tip: ").map_or(part.clone(), str::to_owned)
        })
        // The hint is that an unknown flag may be a value, even where there can be none.
        .filter(|part| !part.is_empty() && !part.starts_with("to pass '"))
        .collect();
    // Replaces the standard library's words for an invalid number.
    parts.join("; ").replace("invalid digit found in string", "write a whole number")
}
