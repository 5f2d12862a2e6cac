//! Translates the actions of `GROUP` and `JOB` into inputs of a group.

use tidings_protocol::{After, AfterError, GroupName, JobName, Manage, Prio, ProtocolError};

use super::default_group;
use super::watch::{EVERY_MS, EVERY_MS_MAX, EVERY_MS_MIN, Watch};
use crate::group::busiest::KeyQuery;
use crate::group::config::{bad, duration_within};
use crate::group::schedule::ScheduleQuery;
use crate::group::tasks::{Selection, TaskQuery};
use crate::group::{Asked, Input, JobAction, Operation, Show};
use crate::job::JobSettings;

/// The input for an action on an existing group.
pub(crate) fn group_input(asked: Asked, manage: &Manage<'_>) -> Result<Input, ProtocolError> {
    let settings = || manage.settings.iter().copied();
    let operate = |what| Input::Operate { asked, what };
    let plain = |what| manage.allow_only(&[]).map(|()| operate(what));
    match manage.action {
        "show" => {
            manage.allow_only(&[])?;
            Ok(Input::Show { asked, what: Show::Group })
        }
        "set" => {
            let settings = settings().map(|(key, value)| (key.into(), value.into())).collect();
            Ok(Input::Configure { asked, settings })
        }
        "tasks" => {
            let what = Show::Tasks(TaskQuery::parse(settings())?);
            Ok(Input::Show { asked, what })
        }
        "keys" => {
            let what = Show::Keys(KeyQuery::parse(settings())?);
            Ok(Input::Show { asked, what })
        }
        "schedules" => {
            let what = Show::Schedules(ScheduleQuery::parse(settings())?);
            Ok(Input::Show { asked, what })
        }
        "pause" => plain(Operation::Pause),
        "resume" => plain(Operation::Resume),
        "purge" => plain(Operation::Purge),
        "delete" => plain(Operation::Delete),
        "retry" => Ok(operate(Operation::Retry(selection(manage)?))),
        "drop" => Ok(operate(Operation::Drop(selection(manage)?))),
        action => Err(bad(format!(
            "no action {action}; GROUP has ls, show, create, set, tasks, keys, schedules, pause, \
             resume, purge, retry, drop, delete, watch"
        ))),
    }
}

fn selection(manage: &Manage<'_>) -> Result<Selection, ProtocolError> {
    manage.allow_only(&["entry", "key", "job"])?;
    Selection::parse(manage.settings.iter().copied(), |_, _| Ok(()))
}

/// The group of a job, and the input for an action on the job.
pub(crate) fn job_input(
    asked: Asked,
    manage: &Manage<'_>,
) -> Result<(GroupName, Input), ProtocolError> {
    let group = group_of(manage)?;
    let name = || -> Result<JobName, ProtocolError> { manage.required_name()?.parse() };
    let input = match manage.action {
        "open" => {
            let settings = manage.settings.iter().copied().filter(|(key, _)| *key != "group");
            let settings = JobSettings::parse(settings)?;
            settings.check_callback()?;
            Input::OpenJob { asked, name: name()?, settings }
        }
        "close" | "cancel" | "show" | "ls" => {
            manage.allow_only(&["group"])?;
            match manage.action {
                "close" => Input::CloseJob { asked, name: name()? },
                "cancel" => Input::CancelJob { asked, name: name()? },
                "show" => Input::Show { asked, what: Show::Job(name()?) },
                _ => Input::Show { asked, what: Show::Jobs },
            }
        }
        "add" => Input::WithJob { asked, name: name()?, what: seed(manage)? },
        "wait" | "pause" | "resume" | "delete" => {
            manage.allow_only(&["group"])?;
            let what = match manage.action {
                "wait" => JobAction::Wait,
                "pause" => JobAction::Pause,
                "resume" => JobAction::Resume,
                _ => JobAction::Delete,
            };
            Input::WithJob { asked, name: name()?, what }
        }
        action => {
            return Err(bad(format!(
                "no action {action}; JOB has ls, show, open, add, close, wait, watch, pause, resume, \
                 cancel, delete"
            )));
        }
    };
    Ok((group, input))
}

fn seed(manage: &Manage<'_>) -> Result<JobAction, ProtocolError> {
    manage.allow_only(&["group", "url", "prio", "after"])?;
    let url = manage.setting("url").ok_or_else(|| bad("add needs url=<URL>"))?.into();
    let (prio, after) = seed_settings(manage)?;
    Ok(JobAction::Add { url, prio, after })
}

/// The priority and the earliest moment of a seed.
pub(crate) fn seed_settings(manage: &Manage<'_>) -> Result<(i16, After), ProtocolError> {
    let prio = manage.setting("prio").map_or(Ok(0), |prio| prio.parse().map(Prio::value))?;
    let after = manage.setting("after").unwrap_or("0");
    let after =
        after.parse().map_err(|error: AfterError| bad(format!("after={after}: {error}")))?;
    Ok((prio, after))
}

/// The group and the parsed request of `JOB watch` or `GROUP watch`.
pub(super) fn watch(
    asked: Asked,
    manage: &Manage<'_>,
    is_job: bool,
) -> Result<(GroupName, Watch), ProtocolError> {
    let name = manage.required_name()?;
    let every_ms = match manage.setting("every") {
        Some(every) => duration_within("every", every, EVERY_MS_MIN, EVERY_MS_MAX)?,
        None => EVERY_MS,
    };
    if !is_job {
        manage.allow_only(&["every"])?;
        return Ok((name.parse()?, Watch { asked, job: None, every_ms }));
    }
    manage.allow_only(&["group", "every"])?;
    let watch = Watch { asked, job: Some(name.parse()?), every_ms };
    Ok((group_of(manage)?, watch))
}

/// The group of a job.
pub(crate) fn group_of(manage: &Manage<'_>) -> Result<GroupName, ProtocolError> {
    manage.setting("group").map_or_else(|| Ok(default_group()), str::parse)
}
