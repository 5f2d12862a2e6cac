//! Translates the actions of `GROUP` and `JOB` into inputs of a group.

use tidings_protocol::{
    After, AfterError, DEFAULT_GROUP, GroupAction, GroupCommand, GroupName, JobAction, JobCommand,
    JobName, Prio, ProtocolError,
};

use crate::config::bad_argument;
use crate::jobs::JobSettings;
use crate::queries::schedules::ScheduleQuery;
use crate::queries::task_list::{EntrySelection, TaskQuery};
use crate::queries::top_keys::KeyQuery;
use crate::{GroupQuery, Input, JobOperation, Operation, Requester};

/// The input for an action on an existing group, which neither [lists](GroupAction::Ls) nor
/// [watches](GroupAction::Watch).
pub fn group_input(asked: Requester, manage: &GroupCommand<'_>) -> Result<Input, ProtocolError> {
    let settings = || manage.settings.iter().copied();
    let query = |query| Ok(Input::Query { requester: asked, query });
    let operate = |operation| Ok(Input::Operate { requester: asked, operation });
    let plain = |operation| manage.allow_only(&[]).and_then(|()| operate(operation));
    match manage.action {
        // A group that is created is shown.
        GroupAction::Create => query(GroupQuery::Group),
        GroupAction::Show => {
            manage.allow_only(&[])?;
            query(GroupQuery::Group)
        }
        GroupAction::Set => {
            let settings = settings().map(|(key, value)| (key.into(), value.into())).collect();
            Ok(Input::Configure { requester: asked, settings })
        }
        GroupAction::Tasks => query(GroupQuery::Tasks(TaskQuery::parse(settings())?)),
        GroupAction::Keys => query(GroupQuery::Keys(KeyQuery::parse(settings())?)),
        GroupAction::Schedules => query(GroupQuery::Schedules(ScheduleQuery::parse(settings())?)),
        GroupAction::Pause => plain(Operation::Pause),
        GroupAction::Resume => plain(Operation::Resume),
        GroupAction::Purge => plain(Operation::Purge),
        GroupAction::Delete => plain(Operation::Delete),
        GroupAction::Retry => operate(Operation::Retry(parse_selection(manage)?)),
        GroupAction::Drop => operate(Operation::Drop(parse_selection(manage)?)),
        action @ (GroupAction::Ls | GroupAction::Watch | GroupAction::Unknown(_)) => {
            Err(GroupAction::refuse(action.as_str()))
        }
    }
}

fn parse_selection(manage: &GroupCommand<'_>) -> Result<EntrySelection, ProtocolError> {
    manage.allow_only(&["entry", "key", "job"])?;
    EntrySelection::parse(manage.settings.iter().copied(), |_, _| Ok(()))
}

/// The group of a job, and the input for an action on the job that does not
/// [watch](JobAction::Watch).
pub fn job_input(
    asked: Requester,
    manage: &JobCommand<'_>,
) -> Result<(GroupName, Input), ProtocolError> {
    let group = group_of(manage)?;
    let name = || -> Result<JobName, ProtocolError> { manage.required_name()?.parse() };
    let plain = || manage.allow_only(&["group"]).and_then(|()| name());
    let act = |name, action| Input::JobAction { requester: asked, name, action };
    let input = match manage.action {
        JobAction::Open => {
            let settings = manage.settings.iter().copied().filter(|(key, _)| *key != "group");
            let settings = JobSettings::parse(settings)?;
            settings.check_callback()?;
            Input::OpenJob { requester: asked, name: name()?, settings }
        }
        JobAction::Close => Input::CloseJob { requester: asked, name: plain()? },
        JobAction::Cancel => Input::CancelJob { requester: asked, name: plain()? },
        JobAction::Show => Input::Query { requester: asked, query: GroupQuery::Job(plain()?) },
        JobAction::Ls => {
            manage.allow_only(&["group"])?;
            Input::Query { requester: asked, query: GroupQuery::Jobs }
        }
        JobAction::Add => act(name()?, add_seed(manage)?),
        JobAction::Wait => act(plain()?, JobOperation::Wait),
        JobAction::Pause => act(plain()?, JobOperation::Pause),
        JobAction::Resume => act(plain()?, JobOperation::Resume),
        JobAction::Delete => act(plain()?, JobOperation::Delete),
        action @ (JobAction::Watch | JobAction::Unknown(_)) => {
            return Err(JobAction::refuse(action.as_str()));
        }
    };
    Ok((group, input))
}

fn add_seed(manage: &JobCommand<'_>) -> Result<JobOperation, ProtocolError> {
    manage.allow_only(&["group", "url", "prio", "after"])?;
    let url = manage.setting("url").ok_or_else(|| bad_argument("add needs url=<URL>"))?.into();
    let (prio, after) = seed_settings(manage)?;
    Ok(JobOperation::Add { url, prio, after })
}

/// The priority and the earliest moment of a seed.
pub fn seed_settings(manage: &JobCommand<'_>) -> Result<(i16, After), ProtocolError> {
    let prio = manage.setting("prio").map_or(Ok(0), |prio| prio.parse().map(Prio::value))?;
    let after = manage.setting("after").unwrap_or("0");
    let after = after
        .parse()
        .map_err(|error: AfterError| bad_argument(format!("after={after}: {error}")))?;
    Ok((prio, after))
}

/// The group of a job.
pub fn group_of(manage: &JobCommand<'_>) -> Result<GroupName, ProtocolError> {
    manage.setting("group").map_or_else(|| Ok(default_group()), str::parse)
}

/// The group that a command means which names none.
pub fn default_group() -> GroupName {
    DEFAULT_GROUP.parse().expect("the default group has a valid name")
}
