//! Converts answers of the broker to messages for the shell, without error codes and verbs of the
//! protocol.

use std::sync::OnceLock;

use tidings_client::ClientError;
use tidings_protocol::{DEFAULT_GROUP, ProtocolError};

/// The beginnings of hints in protocol words, and their replacements in shell words.
const HINTS: &[(&str, &str)] = &[
    ("TOPIC create ", "see tidings topic ls, or create it with: tidings topic create "),
    ("TOPIC forget ", "remove one with: tidings topic forget "),
    ("GROUP create ", "see tidings group ls, or create it with: tidings group create "),
    ("GROUP rules ", "list them with: tidings host ls --group "),
    ("GROUP set ", "change it with: tidings group set "),
    ("JOB open ", "see tidings job ls, or create it with: tidings job open "),
    ("JOB cancel ", "end it first with: tidings job cancel "),
    ("force=yes", "to delete it now, add --force"),
    ("log in with HELLO", "log in with --token-file FILE or TIDINGS_TOKEN"),
];

/// The verbs behind a command in a hint, as in `GROUP create nix creates it`.
const HINT_VERBS: &[&str] =
    &["changes", "creates", "deletes", "ends", "lets", "lists", "makes", "removes"];

/// Why no token is sent, although the configuration has one.
static UNSENT_TOKEN: OnceLock<String> = OnceLock::new();

/// Adds the reason why this process sends no token to each hint to log in.
pub(crate) fn explain_unsent_token(reason: String) {
    // A command line that is matched again has the same reason.
    let _ = UNSENT_TOKEN.set(reason);
}

/// The message for a rejected command.
pub(crate) fn rejection(error: &ProtocolError) -> String {
    with_shell_hints(&error.text)
}

/// The message for an error of a client.
pub(crate) fn client_error(error: &ClientError) -> String {
    match error {
        ClientError::Refused(error) => rejection(error),
        ClientError::Ended(error) => {
            format!("the broker ended the connection: {}", rejection(error))
        }
        error => error.to_string(),
    }
}

/// The message for a wrong value of a flag. The name of the flag is printed before it.
pub(crate) fn flag_value_error(text: &str) -> String {
    if text.starts_with("from=") {
        return "expected first, last, a number, -N or a time such as 2026-01-31T12:00:00Z"
            .to_owned();
    }
    let is_setting = |setting: &str| setting.contains('=');
    if let Some((setting, expected)) = text.split_once(" should be ")
        && is_setting(setting)
    {
        return format!("expected {expected}");
    }
    match text.split_once(": ") {
        Some((setting, problem)) if is_setting(setting) && !setting.contains(' ') => {
            problem.to_owned()
        }
        _ => with_shell_hints(text),
    }
}

/// A text of the broker with its hint as a shell command.
fn with_shell_hints(text: &str) -> String {
    let Some((problem, hint)) = text.split_once("; ") else { return text.to_owned() };
    let Some((verb, command)) = HINTS.iter().find(|(verb, _)| hint.starts_with(verb)) else {
        return text.to_owned();
    };
    if *verb == "log in with HELLO" {
        let unsent = UNSENT_TOKEN.get().map_or(String::new(), |reason| format!(" ({reason})"));
        return format!("{problem}; {command}{unsent}");
    }
    let words = hint[verb.len()..].split(' ');
    let mut plain = Vec::new();
    for word in words.take_while(|word| !HINT_VERBS.contains(word)) {
        let value = word.split_once('=').map_or(word, |(_, value)| value);
        plain.push(value.trim_end_matches(','));
        // Other verbs may follow.
        if value.ends_with(',') {
            break;
        }
    }
    let hint = format!("{command}{}", plain.join(" "));
    match problem.split_once(" in group ") {
        Some((_, group)) if *verb == "JOB open " && group != DEFAULT_GROUP => {
            let hint = hint.replace("job ls,", &format!("job ls --group {group},"));
            format!("{problem}; {hint} --group {group}")
        }
        _ => format!("{problem}; {hint}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_hints_become_shell_commands() {
        for (text, expected) in [
            (
                "no group nix; GROUP create nix makes it",
                "no group nix; see tidings group ls, or create it with: tidings group create nix",
            ),
            (
                "no group nix; GROUP create nix creates it",
                "no group nix; see tidings group ls, or create it with: tidings group create nix",
            ),
            (
                "no topic t; TOPIC create t, PUB or SUB creates it",
                "no topic t; see tidings topic ls, or create it with: tidings topic create t",
            ),
            (
                "no job j in group g; JOB open j makes it",
                "no job j in group g; see tidings job ls --group g, or create it with: tidings job \
                 open j --group g",
            ),
            (
                "no job j in group crawlers; JOB open j creates it",
                "no job j in group crawlers; see tidings job ls, or create it with: tidings job \
                 open j",
            ),
            (
                "group g exists; GROUP set g changes it",
                "group g exists; change it with: tidings group set g",
            ),
            (
                "j is not done; JOB cancel j ends it",
                "j is not done; end it first with: tidings job cancel j",
            ),
            (
                "anonymous clients may not publish; log in with HELLO token=<token>, or by HTTP",
                "anonymous clients may not publish; log in with --token-file FILE or TIDINGS_TOKEN",
            ),
            (
                "no rule a.example in group g; GROUP rules g lists them",
                "no rule a.example in group g; list them with: tidings host ls --group g",
            ),
            (
                "group g: its lease ends in 4s; force=yes deletes it now",
                "group g: its lease ends in 4s; to delete it now, add --force",
            ),
            (
                "group crawlers is damaged; nothing is done",
                "group crawlers is damaged; nothing is done",
            ),
        ] {
            assert_eq!(with_shell_hints(text), expected);
        }
    }

    #[test]
    fn a_flag_error_has_no_protocol_words() {
        let from = "from=\"x\" should be first, last, a number from 1";
        assert!(flag_value_error(from).starts_with("expected first, last"));
        assert_eq!(
            flag_value_error("prio=\"x\" should be a whole number from -1000 to 1000"),
            "expected a whole number from -1000 to 1000"
        );
        assert_eq!(
            flag_value_error("sync=\"x\": expected always or memory"),
            "expected always or memory"
        );
    }
}
