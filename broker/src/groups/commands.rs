//! What each action of `GROUP` and `JOB` asks of a group.

use tidings_protocol::{AfterError, GroupName, JobName, Manage, Prio, ProtocolError};

use super::default_group;
use crate::group::config::bad;
use crate::group::tasks::{Selection, TaskQuery};
use crate::group::{Asked, Input, JobAction, Operation, Show};
use crate::job::JobSettings;

/// The input of an action on a group that is there already.
pub(super) fn group_input(asked: Asked, manage: &Manage<'_>) -> Result<Input, ProtocolError> {
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
        "pause" => plain(Operation::Pause),
        "resume" => plain(Operation::Resume),
        "purge" => plain(Operation::Purge),
        "delete" => plain(Operation::Delete),
        "retry" => Ok(operate(Operation::Retry(selection(manage)?))),
        "drop" => Ok(operate(Operation::Drop(selection(manage)?))),
        "watch" => Err(not_yet("GROUP", manage)),
        action => Err(bad(format!(
            "no action {action}; GROUP has ls, show, create, set, tasks, pause, resume, purge, \
             retry, drop, delete (and later watch)"
        ))),
    }
}

fn selection(manage: &Manage<'_>) -> Result<Selection, ProtocolError> {
    manage.allow_only(&["entry", "key", "job"])?;
    Selection::parse(manage.settings.iter().copied(), |_, _| Ok(()))
}

/// The group of a job, and the input of an action on it.
pub(super) fn job_input(
    asked: Asked,
    manage: &Manage<'_>,
) -> Result<(GroupName, Input), ProtocolError> {
    let group = match manage.setting("group") {
        Some(name) => name.parse()?,
        None => default_group(),
    };
    let name = || -> Result<JobName, ProtocolError> { manage.required_name()?.parse() };
    let input = match manage.action {
        "open" => {
            let settings = manage.settings.iter().copied().filter(|(key, _)| *key != "group");
            Input::OpenJob { asked, name: name()?, settings: JobSettings::parse(settings)? }
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
        "watch" => return Err(not_yet("JOB", manage)),
        action => {
            return Err(bad(format!(
                "no action {action}; JOB has ls, show, open, add, close, wait, pause, resume, \
                 cancel, delete (and later watch)"
            )));
        }
    };
    Ok((group, input))
}

fn seed(manage: &Manage<'_>) -> Result<JobAction, ProtocolError> {
    manage.allow_only(&["group", "url", "prio", "after"])?;
    let url = manage.setting("url").ok_or_else(|| bad("add needs url=<URL>"))?.into();
    let prio = manage.setting("prio").map_or(Ok(0), |prio| prio.parse().map(Prio::value))?;
    let after = manage.setting("after").unwrap_or("0");
    let after =
        after.parse().map_err(|error: AfterError| bad(format!("after={after}: {error}")))?;
    Ok(JobAction::Add { url, prio, after })
}

fn not_yet(verb: &str, manage: &Manage<'_>) -> ProtocolError {
    ProtocolError::not_yet(&format!("{verb} {}", manage.action))
}
