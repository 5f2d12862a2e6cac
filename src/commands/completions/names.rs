//! `tidings complete-names LINE`, which the scripts of shells call: prints the names that may stand
//! at the end of the line. It prints nothing where no name may stand, or if the broker is slow.

#![expect(clippy::disallowed_methods, reason = "a broker has little time to answer")]

use std::time::Duration;

use clap::{Arg, ArgMatches, Command, FromArgMatches};
use tidings_protocol::{
    Command as Request, DEFAULT_GROUP, GroupAction, GroupCommand, GroupName, JobAction, JobCommand,
    TopicAction, TopicCommand, is_name,
};
use tokio::time::timeout;

use crate::client::connection;
use crate::client::manage::first_word;
use crate::config::contexts::Contexts;
use crate::flags::arguments::subcommand_of;
use crate::flags::broker::BrokerFlag;

/// The word before the line. The definition has no such subcommand, so scripts do not offer it.
pub(crate) const COMMAND: &str = "complete-names";

/// The name of the connection, as the broker shows it.
const NAME: &str = "tidings-complete";

/// The time limit for the broker. A shell waits for it after the Tab key.
const ANSWER_MAX: Duration = Duration::from_millis(200);

/// The limit of names for a shell.
const NAMES_MAX: usize = 1_000;

/// What a name names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameKind {
    Topic,
    Group,
    Job,
    Context,
}

impl NameKind {
    /// What the value of an argument names, if it is the name of something in the broker.
    pub(super) fn of(arg: &Arg) -> Option<Self> {
        match arg.get_value_names()?.first()?.as_str() {
            "TOPIC" => Some(Self::Topic),
            "GROUP" => Some(Self::Group),
            "JOB" => Some(Self::Job),
            "CONTEXT" => Some(Self::Context),
            _ => None,
        }
    }
}

/// The last word of a line that is being typed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LastWord<'a> {
    kind: NameKind,
    /// The part of it that is typed.
    prefix: &'a str,
}

impl<'a> LastWord<'a> {
    /// Finds what the last word may be; `None` if it is not a name of the broker. The first word is
    /// the program.
    pub(crate) fn find(definition: &Command, words: &[&'a str]) -> Option<Self> {
        let (last, before) = words.split_last()?;
        let (mut command, mut positionals, mut flag) = (definition, 0, None);
        let find_flag = |command: &'_ Command, name: &str| {
            let has = |arg: &&Arg| arg.get_long() == Some(name) && arg.get_action().takes_values();
            command.get_arguments().find(has).cloned()
        };
        for word in before.iter().skip(1) {
            if flag.take().is_some() {
                // The value of the flag.
            } else if let Some(name) = word.strip_prefix("--") {
                flag = find_flag(command, name);
            } else if let Some(sub) = command.find_subcommand(word).filter(|_| positionals == 0) {
                command = sub;
            } else {
                positionals += 1;
            }
        }
        let (arg, prefix) = match (flag, last.strip_prefix("--")) {
            (Some(flag), _) => (flag, *last),
            (None, Some(typed)) => {
                let (name, prefix) = typed.split_once('=')?;
                (find_flag(command, name)?, prefix)
            }
            (None, None) => (command.get_positionals().nth(positionals)?.clone(), *last),
        };
        Some(Self { kind: NameKind::of(&arg)?, prefix })
    }

    /// The names of the broker that begin as the word does. `matches` are those of the words before
    /// it, as far as they were understood.
    pub(crate) async fn names(&self, matches: &ArgMatches) -> Vec<String> {
        timeout(ANSWER_MAX, self.ask(matches)).await.ok().flatten().unwrap_or_default()
    }

    async fn ask(&self, matches: &ArgMatches) -> Option<Vec<String>> {
        if self.kind == NameKind::Context {
            let contexts = Contexts::read().ok()?.all;
            return Some(self.beginnings(contexts.keys().map(String::as_str)));
        }
        let (_, matches) = subcommand_of(matches);
        // Other commands talk to no broker.
        matches.try_contains_id("broker").ok().filter(|is_given| *is_given)?;
        let broker = BrokerFlag::from_arg_matches(matches).ok()?.broker;
        let (client, _deliveries) = connection::try_connect(&broker, NAME).await.ok()?;
        let group = matches.try_get_one::<GroupName>("group").ok().flatten();
        let group = group.map_or(DEFAULT_GROUP, GroupName::as_str);
        let settings = Vec::new();
        let request = match self.kind {
            NameKind::Context => return None,
            NameKind::Topic => {
                Request::Topic(TopicCommand { action: TopicAction::Ls, name: None, settings })
            }
            NameKind::Group => Request::Group(GroupCommand::unnamed(GroupAction::Ls, settings)),
            NameKind::Job => {
                let settings = vec![("group", group)];
                Request::Job(JobCommand { action: JobAction::Ls, name: None, settings })
            }
        };
        let lines = client.request(&request).await.ok()?.more;
        Some(self.beginnings(lines.iter().map(|line| first_word(line))))
    }

    /// The names that begin with the word. A broker can send anything, so invalid names are
    /// dropped: they could be a flag, such as `--yes`, or a command of the shell.
    fn beginnings<'n>(&self, names: impl Iterator<Item = &'n str>) -> Vec<String> {
        let names = names.filter(|name| name.starts_with(self.prefix) && is_name(name));
        names.take(NAMES_MAX).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn the_last_word_is_found_behind_flags_and_subcommands() {
        let mut definition = cli::definition();
        definition.build();
        let find = |line: &str| {
            let words: Vec<_> = line.split(' ').collect();
            LastWord::find(&definition, &words).map(|last| (last.kind, last.prefix.to_owned()))
        };
        for (line, kind, prefix) in [
            ("tidings topic show ", NameKind::Topic, ""),
            ("tidings topic show --broker 10.0.0.1:7 ne", NameKind::Topic, "ne"),
            ("tidings topic --log info show --json ne", NameKind::Topic, "ne"),
            ("tidings sub --group ", NameKind::Group, ""),
            ("tidings sub --group=th", NameKind::Group, "th"),
            ("tidings job show ", NameKind::Job, ""),
            ("tidings dead drop --job cr", NameKind::Job, "cr"),
            ("tidings group set ", NameKind::Group, ""),
            ("tidings watch --topic ", NameKind::Topic, ""),
            ("tidings pub --context pr", NameKind::Context, "pr"),
            ("tidings context use ", NameKind::Context, ""),
        ] {
            assert_eq!(find(line), Some((kind, prefix.to_owned())), "{line}");
        }
        for line in [
            "tidings ",
            "tidings gr",
            "tidings group ",
            "tidings group set crawlers ",
            "tidings topic show new-url ",
            "tidings topic show --js",
            "tidings topic show --broker ",
            "tidings pub log ",
        ] {
            assert_eq!(find(line), None, "{line}");
        }
    }
}
