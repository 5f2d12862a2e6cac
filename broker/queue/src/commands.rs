//! Translates the actions of `GROUP` and `JOB` into inputs of a group.

use tidings_protocol::{
    After, AfterError, DEFAULT_GROUP, GroupName, JobName, ManageCommand, Prio, ProtocolError,
};

use crate::config::bad_argument;
use crate::jobs::JobSettings;
use crate::schedule::ScheduleQuery;
use crate::task_list::{EntrySelection, TaskQuery};
use crate::top_keys::KeyQuery;
use crate::{GroupQuery, Input, JobAction, Operation, Requester};

/// The input for an action on an existing group.
pub fn group_input(asked: Requester, manage: &ManageCommand<'_>) -> Result<Input, ProtocolError> {
    let settings = || manage.settings.iter().copied();
    let operate = |what| Input::Operate { requester: asked, operation: what };
    let plain = |what| manage.allow_only(&[]).map(|()| operate(what));
    match manage.action {
        "show" => {
            manage.allow_only(&[])?;
            Ok(Input::Query { requester: asked, query: GroupQuery::Group })
        }
        "set" => {
            let settings = settings().map(|(key, value)| (key.into(), value.into())).collect();
            Ok(Input::Configure { requester: asked, settings })
        }
        "tasks" => {
            let what = GroupQuery::Tasks(TaskQuery::parse(settings())?);
            Ok(Input::Query { requester: asked, query: what })
        }
        "keys" => {
            let what = GroupQuery::Keys(KeyQuery::parse(settings())?);
            Ok(Input::Query { requester: asked, query: what })
        }
        "schedules" => {
            let what = GroupQuery::Schedules(ScheduleQuery::parse(settings())?);
            Ok(Input::Query { requester: asked, query: what })
        }
        "pause" => plain(Operation::Pause),
        "resume" => plain(Operation::Resume),
        "purge" => plain(Operation::Purge),
        "delete" => plain(Operation::Delete),
        "retry" => Ok(operate(Operation::Retry(parse_selection(manage)?))),
        "drop" => Ok(operate(Operation::Drop(parse_selection(manage)?))),
        action => Err(bad_argument(format!(
            "no action {action}; GROUP has ls, show, create, set, tasks, keys, schedules, pause, \
             resume, purge, retry, drop, delete, watch"
        ))),
    }
}

fn parse_selection(manage: &ManageCommand<'_>) -> Result<EntrySelection, ProtocolError> {
    manage.allow_only(&["entry", "key", "job"])?;
    EntrySelection::parse(manage.settings.iter().copied(), |_, _| Ok(()))
}

/// The group of a job, and the input for an action on the job.
pub fn job_input(
    asked: Requester,
    manage: &ManageCommand<'_>,
) -> Result<(GroupName, Input), ProtocolError> {
    let group = group_of(manage)?;
    let name = || -> Result<JobName, ProtocolError> { manage.required_name()?.parse() };
    let input = match manage.action {
        "open" => {
            let settings = manage.settings.iter().copied().filter(|(key, _)| *key != "group");
            let settings = JobSettings::parse(settings)?;
            settings.check_callback()?;
            Input::OpenJob { requester: asked, name: name()?, settings }
        }
        "close" | "cancel" | "show" | "ls" => {
            manage.allow_only(&["group"])?;
            match manage.action {
                "close" => Input::CloseJob { requester: asked, name: name()? },
                "cancel" => Input::CancelJob { requester: asked, name: name()? },
                "show" => Input::Query { requester: asked, query: GroupQuery::Job(name()?) },
                _ => Input::Query { requester: asked, query: GroupQuery::Jobs },
            }
        }
        "add" => Input::JobAction { requester: asked, name: name()?, action: add_seed(manage)? },
        "wait" | "pause" | "resume" | "delete" => {
            manage.allow_only(&["group"])?;
            let what = match manage.action {
                "wait" => JobAction::Wait,
                "pause" => JobAction::Pause,
                "resume" => JobAction::Resume,
                _ => JobAction::Delete,
            };
            Input::JobAction { requester: asked, name: name()?, action: what }
        }
        action => {
            return Err(bad_argument(format!(
                "no action {action}; JOB has ls, show, open, add, close, wait, watch, pause, resume, \
                 cancel, delete"
            )));
        }
    };
    Ok((group, input))
}

fn add_seed(manage: &ManageCommand<'_>) -> Result<JobAction, ProtocolError> {
    manage.allow_only(&["group", "url", "prio", "after"])?;
    let url = manage.setting("url").ok_or_else(|| bad_argument("add needs url=<URL>"))?.into();
    let (prio, after) = seed_settings(manage)?;
    Ok(JobAction::Add { url, prio, after })
}

/// The priority and the earliest moment of a seed.
pub fn seed_settings(manage: &ManageCommand<'_>) -> Result<(i16, After), ProtocolError> {
    let prio = manage.setting("prio").map_or(Ok(0), |prio| prio.parse().map(Prio::value))?;
    let after = manage.setting("after").unwrap_or("0");
    let after = after
        .parse()
        .map_err(|error: AfterError| bad_argument(format!("after={after}: {error}")))?;
    Ok((prio, after))
}

/// The group of a job.
pub fn group_of(manage: &ManageCommand<'_>) -> Result<GroupName, ProtocolError> {
    manage.setting("group").map_or_else(|| Ok(default_group()), str::parse)
}

/// The group that a command means which names none.
pub fn default_group() -> GroupName {
    DEFAULT_GROUP.parse().expect("the default group has a valid name")
}
