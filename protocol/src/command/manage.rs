//! The commands `GROUP`, `JOB` and `TOPIC`: an action, a name and settings.

use bytes::BufMut;

use super::parse;
use crate::error::bad_argument;
use crate::wire::LineWriter;
use crate::{ProtocolError, Settings};

/// An action of one verb.
pub trait Action<'a>: Copy + PartialEq {
    /// The action of a word.
    fn of(word: &'a str) -> Self;

    /// The word of an action.
    fn word(self) -> &'a str;
}

/// Declares the actions of a verb once: variant and word, in the order of the refusal.
macro_rules! actions {
    ($(#[$meta:meta])* $name:ident of $verb:literal { $($variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name<'a> {
            $(
                #[doc = concat!("`", $word, "`")]
                $variant,
            )*
            /// An unknown action. The code that carries out the command [refuses](Self::refuse) it,
            /// after the check of permissions.
            Unknown(&'a str),
        }

        impl<'a> $name<'a> {
            /// The word.
            pub const fn as_str(self) -> &'a str {
                match self {
                    $(Self::$variant => $word,)*
                    Self::Unknown(word) => word,
                }
            }

            /// The refusal of an unknown action.
            pub fn refuse(word: &str) -> ProtocolError {
                let known = [$($word),*].join(", ");
                bad_argument(format!("no action {word}; {} has {known}", $verb))
            }
        }

        impl<'a> Action<'a> for $name<'a> {
            fn of(word: &'a str) -> Self {
                match word {
                    $($word => Self::$variant,)*
                    word => Self::Unknown(word),
                }
            }

            fn word(self) -> &'a str {
                self.as_str()
            }
        }
    };
}

actions! {
    /// The second word of `TOPIC`.
    TopicAction of "TOPIC" {
        Ls = "ls",
        Show = "show",
        Create = "create",
        Set = "set",
        Delete = "delete",
        Verify = "verify",
        Forget = "forget",
    }
}

actions! {
    /// The second word of `GROUP`.
    GroupAction of "GROUP" {
        Ls = "ls",
        Show = "show",
        Create = "create",
        Set = "set",
        Tasks = "tasks",
        Keys = "keys",
        Schedules = "schedules",
        Members = "members",
        Drain = "drain",
        Undrain = "undrain",
        Rule = "rule",
        Unrule = "unrule",
        Rules = "rules",
        Pause = "pause",
        Resume = "resume",
        Purge = "purge",
        Bump = "bump",
        Retry = "retry",
        Drop = "drop",
        Delete = "delete",
        Watch = "watch",
    }
}

actions! {
    /// The second word of `JOB`.
    JobAction of "JOB" {
        Ls = "ls",
        Show = "show",
        Open = "open",
        Set = "set",
        Add = "add",
        Close = "close",
        Wait = "wait",
        Watch = "watch",
        Pause = "pause",
        Resume = "resume",
        Cancel = "cancel",
        Delete = "delete",
    }
}

/// An action on a topic, group or job: `<action> [<name>] [key=value ..]`.
///
/// Its settings are read where it is carried out, after the permission to send it was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManageCommand<'a, A> {
    /// The first word: lower-case letters and `-`.
    pub action: A,
    /// The second word, if it is not a setting; a valid name.
    pub name: Option<&'a str>,
    /// The settings in their order, each key but `where` at most once, no value empty.
    pub settings: Vec<(&'a str, &'a str)>,
}

/// `TOPIC <action> ..`
pub type TopicCommand<'a> = ManageCommand<'a, TopicAction<'a>>;
/// `GROUP <action> ..`
pub type GroupCommand<'a> = ManageCommand<'a, GroupAction<'a>>;
/// `JOB <action> ..`
pub type JobCommand<'a> = ManageCommand<'a, JobAction<'a>>;

impl<'a, A: Action<'a>> ManageCommand<'a, A> {
    /// `<action> <name> <settings>`
    pub fn new(action: A, name: &'a str, settings: Vec<(&'a str, &'a str)>) -> Self {
        Self { action, name: Some(name), settings }
    }

    /// An action that needs no name.
    pub fn unnamed(action: A, settings: Vec<(&'a str, &'a str)>) -> Self {
        Self { action, name: None, settings }
    }

    pub(super) fn encode<'b, B: BufMut>(&self, line: LineWriter<'b, B>) -> LineWriter<'b, B> {
        let line = line.word(self.action.word());
        let line = self.name.iter().fold(line, |line, name| line.word(name));
        self.settings.iter().fold(line, |line, (key, value)| line.option(key, value))
    }

    /// The value of a setting.
    pub fn setting(&self, key: &str) -> Option<&'a str> {
        self.settings.iter().find(|(found, _)| *found == key).map(|(_, value)| *value)
    }

    /// The name, or a refusal that says that the action needs one.
    pub fn required_name(&self) -> Result<&'a str, ProtocolError> {
        self.name.ok_or_else(|| bad_argument(format!("{} needs a name", self.action.word())))
    }

    /// Refuses a name, for an action about all topics, groups or jobs.
    pub fn refuse_name(&self) -> Result<(), ProtocolError> {
        let Some(name) = self.name else { return Ok(()) };
        let action = self.action.word();
        Err(bad_argument(format!("{action} takes no name; show {name} is about one")))
    }

    /// Refuses a change without a setting.
    pub fn require_setting<S: Settings>(&self) -> Result<(), ProtocolError> {
        if !self.settings.is_empty() {
            return Ok(());
        }
        Err(bad_argument(format!("no setting given; the settings are {}", S::names())))
    }

    /// Refuses settings that are not in the list (`[C3]`).
    pub fn allow_only(&self, keys: &[&str]) -> Result<(), ProtocolError> {
        match self.settings.iter().find(|(key, _)| !keys.contains(key)) {
            None => Ok(()),
            Some((key, _)) => Err(parse::unknown_option(self.action.word(), key, keys)),
        }
    }
}
