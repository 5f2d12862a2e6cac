//! The settings of `GROUP` and `JOB` commands as typed values.

use std::fmt;
use std::str::FromStr;

use super::Prio;
use super::manage::{Action, GroupCommand, JobCommand, ManageCommand};
use crate::error::bad_argument;
use crate::status::TaskState;
use crate::time_of_day::AfterError;
use crate::wire::number;
use crate::{
    After, DAY_MS, DEAD_LETTER_TOPIC, DEFAULT_GROUP, GroupName, JobName, ProtocolError, Render,
    TopicName, duration,
};

/// Longest delay between two requests to a key.
pub const DELAY_MS_MAX: u64 = DAY_MS;
/// Shortest lease.
const LEASE_MS_MIN: u64 = 100;
const PARALLEL_MAX: u64 = 1000;
const ATTEMPTS_MAX: u64 = 100;
const TOPICS_MAX: usize = 16;

/// Lines of a list: default and maximum.
const LISTED_DEFAULT: usize = 100;
const LISTED_MAX: u64 = 1000;

/// Default, minimum and maximum of the shortest time between two lines of a watch, in ms.
const EVERY_MS_DEFAULT: u64 = 1000;
const EVERY_MS_MIN: u64 = 100;
const EVERY_MS_MAX: u64 = 60 * 60 * 1000;

/// The part of an event that may not be worked on twice at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyKind {
    /// `host`: the URL's host, lower case, without scheme and port.
    Host,
    /// `domain`: the registrable domain, by the public suffix list.
    Domain,
    /// `attr:<name>`: the value of an attribute of the event.
    Attribute(String),
    /// `none`: each event has its own key and identity: no delay, no coalescing.
    None,
    /// `seq`: the same; the key is `<topic>/<seq>`, and stands before the payload of the task.
    Seq,
}

impl KeyKind {
    /// Whether each event has its own key. Its payload is then any text.
    pub fn is_own(&self) -> bool {
        matches!(self, Self::None | Self::Seq)
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Domain => f.write_str("domain"),
            Self::Attribute(name) => write!(f, "attr:{name}"),
            Self::None => f.write_str("none"),
            Self::Seq => f.write_str("seq"),
        }
    }
}

impl FromStr for KeyKind {
    type Err = ProtocolError;

    fn from_str(value: &str) -> Result<Self, ProtocolError> {
        match (value, value.strip_prefix("attr:")) {
            ("host", _) => Ok(Self::Host),
            ("domain", _) => Ok(Self::Domain),
            ("none", _) => Ok(Self::None),
            ("seq", _) => Ok(Self::Seq),
            (_, Some(name)) if !name.is_empty() => Ok(Self::Attribute(name.to_owned())),
            _ => Err(bad_argument(format!(
                "key={value}: expected host, domain, attr:<name>, none or seq"
            ))),
        }
    }
}

/// A setting of a group: `GROUP create` and `set`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupSetting {
    /// `topics`: the topics that feed the group.
    Topics(Vec<TopicName>),
    /// `key`: what becomes the key of an event.
    Key(KeyKind),
    /// `parallel`: tasks in flight per key.
    Parallel(u32),
    /// `delay`: the delay of a key in ms; `None` is the default of the key.
    DelayMs(Option<u64>),
    /// `lease`: how long a member holds a task, in ms.
    LeaseMs(u64),
    /// `max-attempts`: failed attempts after which an entry becomes a dead letter.
    MaxAttempts(u32),
    /// `max-losses`: lost leases after which an entry becomes a dead letter.
    MaxLosses(u32),
    /// `backoff`: the wait after the first failed attempt, in ms.
    BackoffMs(u64),
    /// `page-ready`: whether the final outcome of each page is an event on `page-ready`.
    PageReady(bool),
}

impl GroupSetting {
    /// Reads one setting.
    pub fn parse(name: &str, value: &str) -> Result<Self, ProtocolError> {
        Ok(match name {
            "topics" => Self::Topics(parse_topics(value)?),
            "key" => Self::Key(value.parse()?),
            "parallel" => Self::Parallel(whole_number(name, value, 1, PARALLEL_MAX)?),
            "delay" if value == "default" => Self::DelayMs(None),
            "delay" => Self::DelayMs(Some(duration_within(name, value, 0, DELAY_MS_MAX)?)),
            "lease" => Self::LeaseMs(duration_within(name, value, LEASE_MS_MIN, DAY_MS)?),
            "max-attempts" => Self::MaxAttempts(whole_number(name, value, 1, ATTEMPTS_MAX)?),
            "max-losses" => Self::MaxLosses(whole_number(name, value, 1, ATTEMPTS_MAX)?),
            "backoff" => Self::BackoffMs(duration_within(name, value, 0, DAY_MS)?),
            "page-ready" => Self::PageReady(match value {
                "on" => true,
                "off" => false,
                _ => return Err(bad_argument(format!("page-ready={value}: expected on or off"))),
            }),
            _ => {
                return Err(bad_argument(format!(
                    "unknown setting {name}; the settings are topics, key, parallel, delay, \
                     lease, max-attempts, max-losses, backoff, page-ready"
                )));
            }
        })
    }
}

fn parse_topics(value: &str) -> Result<Vec<TopicName>, ProtocolError> {
    let mut topics = Vec::new();
    for name in value.split(',') {
        let topic: TopicName = name.parse()?;
        // A group's own dead letters could become dead letters again.
        if topic.as_str() == DEAD_LETTER_TOPIC {
            return Err(bad_argument(format!(
                "topics={topic}: groups publish on this topic, so it cannot feed one"
            )));
        }
        if !topics.contains(&topic) {
            topics.push(topic);
        }
    }
    if topics.len() > TOPICS_MAX {
        return Err(bad_argument(format!("topics={value}: expected at most {TOPICS_MAX} topics")));
    }
    Ok(topics)
}

/// A selection of entries. `None` selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntrySelection {
    /// The entry with this id.
    pub entry: Option<u64>,
    /// Entries of this key.
    pub key: Option<Box<str>>,
    /// Entries of this job, of any pass.
    pub job: Option<JobName>,
}

/// Query of `GROUP tasks`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskQuery {
    /// The entries.
    pub selection: EntrySelection,
    /// Only entries in this state.
    pub state: Option<TaskState>,
    /// The number of entries to list.
    pub limit: usize,
}

/// Query of `GROUP keys`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyQuery {
    /// Only keys with waiting entries of this job; `None`: all keys.
    pub job: Option<JobName>,
    /// The number of keys to list.
    pub limit: usize,
}

/// Query of `GROUP schedules`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleQuery {
    /// Only schedules of this key; `None`: all.
    pub key: Option<Box<str>>,
    /// The number of schedules to list.
    pub limit: usize,
}

impl GroupCommand<'_> {
    /// The settings of `create` and `set`.
    pub fn group_settings(&self) -> Result<Vec<GroupSetting>, ProtocolError> {
        self.settings.iter().map(|(name, value)| GroupSetting::parse(name, value)).collect()
    }

    /// The entries of `retry` and `drop`.
    pub fn entry_selection(&self) -> Result<EntrySelection, ProtocolError> {
        self.allow_only(&["entry", "key", "job"])?;
        self.selection()
    }

    /// The query of `tasks`.
    pub fn task_query(&self) -> Result<TaskQuery, ProtocolError> {
        self.allow_options(&["state", "entry", "key", "job", "limit"])?;
        let state = self.setting("state").map(|state| {
            TaskState::from_word(state).ok_or_else(|| {
                bad_argument(format!("state={state}: expected {}", TaskState::WORDS.join(", ")))
            })
        });
        let (state, selection) = (state.transpose()?, self.selection()?);
        Ok(TaskQuery { selection, state, limit: self.limit()? })
    }

    /// The query of `keys`.
    pub fn key_query(&self) -> Result<KeyQuery, ProtocolError> {
        self.allow_options(&["job", "limit"])?;
        Ok(KeyQuery { job: self.selection()?.job, limit: self.limit()? })
    }

    /// The query of `schedules`.
    pub fn schedule_query(&self) -> Result<ScheduleQuery, ProtocolError> {
        self.allow_options(&["key", "limit"])?;
        Ok(ScheduleQuery { key: self.selection()?.key, limit: self.limit()? })
    }

    /// The number of members that `members` lists.
    pub fn member_limit(&self) -> Result<usize, ProtocolError> {
        self.allow_options(&["limit"])?;
        self.limit()
    }

    /// The member of `drain` and `undrain`, as an operator names it.
    pub fn member(&self) -> Result<&str, ProtocolError> {
        self.allow_options(&["member"])?;
        let action = self.action.as_str();
        self.setting("member").ok_or_else(|| {
            bad_argument(format!("{action} needs member=<member>, as GROUP members lists it"))
        })
    }

    fn selection(&self) -> Result<EntrySelection, ProtocolError> {
        let entry = self.setting("entry").map(|id| whole_number("entry", id, 1, u64::MAX));
        let job = self.setting("job").map(str::parse).transpose()?;
        Ok(EntrySelection {
            entry: entry.transpose()?,
            key: self.setting("key").map(Into::into),
            job,
        })
    }

    fn limit(&self) -> Result<usize, ProtocolError> {
        let limit = self.setting("limit");
        limit.map_or(Ok(LISTED_DEFAULT), |limit| whole_number("limit", limit, 0, LISTED_MAX))
    }

    fn allow_options(&self, options: &[&str]) -> Result<(), ProtocolError> {
        let Some((name, _)) = self.settings.iter().find(|(name, _)| !options.contains(name)) else {
            return Ok(());
        };
        let options = options.join(", ");
        Err(bad_argument(format!("unknown option {name}; the options are {options}")))
    }
}

impl JobCommand<'_> {
    /// The group of the job.
    pub fn group(&self) -> Result<GroupName, ProtocolError> {
        self.setting("group").unwrap_or(DEFAULT_GROUP).parse()
    }

    /// The priority of a seed, the delay or time of day before which it is not released, and
    /// whether its page is rendered.
    pub fn seed_settings(&self) -> Result<(i16, After, Option<Render>), ProtocolError> {
        let prio = self.setting("prio").map_or(Ok(0), |prio| prio.parse().map(Prio::value))?;
        let after = self.setting("after").unwrap_or("0");
        let after = after
            .parse()
            .map_err(|error: AfterError| bad_argument(format!("after={after}: {error}")))?;
        let render = self.setting("render").map(|word| {
            Render::from_word(word)
                .ok_or_else(|| bad_argument(format!("render={word}: expected yes, no or auto")))
        });
        Ok((prio, after, render.transpose()?))
    }
}

impl<'a, A: Action<'a>> ManageCommand<'a, A> {
    /// The shortest time between two lines of `watch`, in ms.
    pub fn every_ms(&self) -> Result<u64, ProtocolError> {
        self.setting("every").map_or(Ok(EVERY_MS_DEFAULT), |every| {
            duration_within("every", every, EVERY_MS_MIN, EVERY_MS_MAX)
        })
    }
}

/// Reads a whole number within bounds.
pub fn whole_number<T: TryFrom<u64>>(
    name: &str,
    value: &str,
    min: u64,
    max: u64,
) -> Result<T, ProtocolError> {
    let whole = number::<u64>(value).filter(|number| (min..=max).contains(number));
    whole.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
        bad_argument(format!("{name}={value}: expected a whole number from {min} to {max}"))
    })
}

/// Reads a duration within bounds, in ms.
pub fn duration_within(name: &str, value: &str, min: u64, max: u64) -> Result<u64, ProtocolError> {
    duration::parse_ms(value).ok().filter(|ms| (min..=max).contains(ms)).ok_or_else(|| {
        bad_argument(format!(
            "{name}={value}: expected a duration from {} to {}, such as 250ms, 30s, 5m, 2h or 1d",
            duration::format_ms(min),
            duration::format_ms(max)
        ))
    })
}
