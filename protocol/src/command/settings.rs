//! The options of `GROUP` and `JOB` commands as typed values.

use super::Prio;
use super::manage::{Action, GroupCommand, JobCommand, ManageCommand};
use crate::error::bad_argument;
use crate::payload::push_attribute;
use crate::status::{JobState, TaskState};
use crate::url_pattern::Patterns;
use crate::wire::number;
use crate::{After, DAY_MS, DEFAULT_GROUP, GroupName, JobName, ProtocolError, Render, duration};

/// Longest delay between two requests to a key.
pub const DELAY_MS_MAX: u64 = DAY_MS;
/// Most tasks of a key in flight.
pub const PARALLEL_MAX: u64 = 1000;

/// Lines of a list: default and maximum. Jobs have the maximum as their default.
const LISTED_DEFAULT: usize = 100;
const LISTED_MAX: usize = 1000;

/// Default, minimum and maximum of the shortest time between two lines of a watch, in ms.
const EVERY_MS_DEFAULT: u64 = 1000;
const EVERY_MS_MIN: u64 = 100;
const EVERY_MS_MAX: u64 = 60 * 60 * 1000;

/// A selection of entries. `None` selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntrySelection {
    /// The entry with this id.
    pub entry: Option<u64>,
    /// Entries of this key.
    pub key: Option<Box<str>>,
    /// Entries of this job, of any pass.
    pub job: Option<JobName>,
    /// Entries with a URL that one of these patterns matches.
    pub matching: Option<Patterns>,
}

/// The part of a list that an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListRange {
    /// A part of the walk over the whole list: the items with greater numbers, in the order of
    /// their numbers. `None`: the beginning of the list, in its own order.
    pub after: Option<u64>,
    /// The number of items to list.
    pub limit: usize,
}

impl Default for ListRange {
    fn default() -> Self {
        Self { after: None, limit: LISTED_DEFAULT }
    }
}

/// A change of waiting entries by `GROUP purge` or `GROUP bump`, a part of them at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingChange {
    /// The entries.
    pub selection: EntrySelection,
    /// Only entries with greater numbers.
    pub after: u64,
    /// What is done with them.
    pub action: WaitingAction,
}

/// What is done with waiting entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitingAction {
    /// They are only counted.
    Count,
    /// They are dropped.
    Drop,
    /// They get this priority.
    Bump(i16),
}

/// Query of `GROUP tasks`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskQuery {
    /// The entries.
    pub selection: EntrySelection,
    /// Only entries in this state.
    pub state: Option<TaskState>,
    /// The part of the list.
    pub range: ListRange,
}

/// Query of `GROUP keys`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyQuery {
    /// Only this key, even if nothing waits for it; `None`: keys with waiting entries.
    pub key: Option<Box<str>>,
    /// Only keys with waiting entries of this job; `None`: all keys.
    pub job: Option<JobName>,
    /// The part of the list.
    pub range: ListRange,
}

/// Query of `GROUP schedules`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScheduleQuery {
    /// Only schedules of this key; `None`: all.
    pub key: Option<Box<str>>,
    /// Only schedules of URLs that one of these patterns matches.
    pub matching: Option<Patterns>,
    /// The part of the list.
    pub range: ListRange,
}

/// Query of `JOB ls`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobQuery {
    /// Only jobs in this state.
    pub state: Option<JobState>,
    /// The part of the list.
    pub range: ListRange,
}

impl GroupCommand<'_> {
    /// The entries of `retry` and `drop`.
    pub fn entry_selection(&self) -> Result<EntrySelection, ProtocolError> {
        self.allow_only(&["entry", "key", "job", "match"])?;
        self.selection()
    }

    /// What `purge` drops; `None`: everything that waits.
    pub fn purged(&self) -> Result<Option<WaitingChange>, ProtocolError> {
        if self.settings.is_empty() {
            return Ok(None);
        }
        self.allow_options(&["key", "job", "match", "dry", "after"])?;
        self.waiting_change(WaitingAction::Drop).map(Some)
    }

    /// What `bump` changes.
    pub fn bumped(&self) -> Result<WaitingChange, ProtocolError> {
        self.allow_options(&["prio", "key", "job", "match", "dry", "after"])?;
        let prio = self.setting("prio").map(str::parse).transpose()?.map(Prio::value);
        let prio = prio.ok_or_else(|| bad_argument("bump needs prio=<-1000..1000>"))?;
        self.waiting_change(WaitingAction::Bump(prio))
    }

    fn waiting_change(&self, action: WaitingAction) -> Result<WaitingChange, ProtocolError> {
        let action = if self.is_dry()? { WaitingAction::Count } else { action };
        let after = self.range(LISTED_MAX)?.after.unwrap_or(0);
        Ok(WaitingChange { selection: self.selection()?, after, action })
    }

    /// The query of `tasks`.
    pub fn task_query(&self) -> Result<TaskQuery, ProtocolError> {
        self.allow_options(&["state", "entry", "key", "job", "match", "after", "limit"])?;
        let state = self.word("state", TaskState::from_word, TaskState::WORDS)?;
        let range = self.range(LISTED_DEFAULT)?;
        Ok(TaskQuery { selection: self.selection()?, state, range })
    }

    /// The query of `keys`.
    pub fn key_query(&self) -> Result<KeyQuery, ProtocolError> {
        self.allow_options(&["key", "job", "after", "limit"])?;
        let EntrySelection { key, job, .. } = self.selection()?;
        Ok(KeyQuery { key, job, range: self.range(LISTED_DEFAULT)? })
    }

    /// The query of `schedules`.
    pub fn schedule_query(&self) -> Result<ScheduleQuery, ProtocolError> {
        self.allow_options(&["key", "match", "after", "limit"])?;
        let EntrySelection { key, matching, .. } = self.selection()?;
        Ok(ScheduleQuery { key, matching, range: self.range(LISTED_DEFAULT)? })
    }

    /// The part of the list that `members` asks for.
    pub fn member_range(&self) -> Result<ListRange, ProtocolError> {
        self.allow_options(&["after", "limit"])?;
        self.range(LISTED_DEFAULT)
    }

    /// Whether `delete` also takes the tasks of members that are not connected (`force=yes`).
    pub fn is_forced(&self) -> Result<bool, ProtocolError> {
        self.allow_options(&["force"])?;
        self.is_yes("force")
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
        Ok(EntrySelection {
            entry: entry.transpose()?,
            key: self.setting("key").map(Into::into),
            job: self.setting("job").map(str::parse).transpose()?,
            matching: self.setting("match").map(str::parse).transpose()?,
        })
    }
}

impl JobCommand<'_> {
    /// The group of the job.
    pub fn group(&self) -> Result<GroupName, ProtocolError> {
        self.setting("group").unwrap_or(DEFAULT_GROUP).parse()
    }

    /// The query of `ls`.
    pub fn job_query(&self) -> Result<JobQuery, ProtocolError> {
        self.allow_options(&["group", "state", "after", "limit"])?;
        let state = self.word("state", JobState::from_word, JobState::WORDS)?;
        Ok(JobQuery { state, range: self.range(LISTED_MAX)? })
    }

    /// Where a dry run of `set` begins, if it is one. To continue one needs no `dry=yes`.
    pub fn dry_run(&self) -> Result<Option<u64>, ProtocolError> {
        let is_dry = self.is_dry()?;
        match self.setting("after") {
            None => Ok(is_dry.then_some(0)),
            Some(after) => whole_number("after", after, 0, u64::MAX).map(Some),
        }
    }

    /// The priority of a seed, the delay or time of day before which it is not released, and the
    /// attributes that its tasks have, each with a leading blank.
    pub fn seed_settings(&self) -> Result<(i16, After, String), ProtocolError> {
        let prio = self.setting("prio").map_or(Ok(0), |prio| prio.parse().map(Prio::value))?;
        let after = After::parse_option("after", self.setting("after").unwrap_or("0"))?;
        let render = self.setting("render");
        if let Some(word) = render.filter(|word| Render::from_word(word).is_none()) {
            return Err(bad_argument(format!("render={word}: expected yes, no or auto")));
        }
        let mut attributes = String::new();
        for (name, value) in
            [("render", render), ("item", self.setting("item")), ("source", self.setting("source"))]
        {
            if let Some(value) = value {
                push_attribute(&mut attributes, name, value);
            }
        }
        Ok((prio, after, attributes))
    }
}

impl<'a, A: Action<'a>> ManageCommand<'a, A> {
    /// The shortest time between two lines of `watch`, in ms.
    pub fn every_ms(&self) -> Result<u64, ProtocolError> {
        self.setting("every").map_or(Ok(EVERY_MS_DEFAULT), |every| {
            duration_within("every", every, EVERY_MS_MIN, EVERY_MS_MAX)
        })
    }

    /// Whether nothing is to change (`dry=yes`).
    pub fn is_dry(&self) -> Result<bool, ProtocolError> {
        self.is_yes("dry")
    }

    /// Whether an option is `yes`; without it, or with `no`, it is not.
    fn is_yes(&self, key: &str) -> Result<bool, ProtocolError> {
        match self.setting(key) {
            None | Some("no") => Ok(false),
            Some("yes") => Ok(true),
            Some(value) => Err(bad_argument(format!("{key}={value}: expected yes or no"))),
        }
    }

    /// The part of a list that `after=` and `limit=` ask for.
    fn range(&self, limit_default: usize) -> Result<ListRange, ProtocolError> {
        let after = self.setting("after").map(|after| whole_number("after", after, 0, u64::MAX));
        let limit = self.setting("limit");
        let limit = limit.map(|limit| whole_number("limit", limit, 0, LISTED_MAX as u64));
        Ok(ListRange {
            after: after.transpose()?,
            limit: limit.transpose()?.unwrap_or(limit_default),
        })
    }

    /// The value of an option that is one of `words`.
    fn word<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Option<T>,
        words: &[&str],
    ) -> Result<Option<T>, ProtocolError> {
        let value = self.setting(key).map(|value| {
            parse(value).ok_or_else(|| {
                bad_argument(format!("{key}={value}: expected {}", words.join(", ")))
            })
        });
        value.transpose()
    }

    fn allow_options(&self, options: &[&str]) -> Result<(), ProtocolError> {
        let Some((name, _)) = self.settings.iter().find(|(name, _)| !options.contains(name)) else {
            return Ok(());
        };
        let options = options.join(", ");
        Err(bad_argument(format!("unknown option {name}; the options are {options}")))
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
