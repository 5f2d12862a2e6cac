//! Translates the actions of `GROUP` and `JOB` into inputs of a group.

use tidings_protocol::{
    GroupAction, GroupCommand, GroupName, GroupSettings, JobAction, JobCommand, JobName,
    JobSettings, ProtocolError, Settings, bad_argument,
};

use crate::{GroupQuery, Input, JobChange, JobOperation, Operation, Requester, SettingWords};

/// The input for an action on an existing group, which neither [lists](GroupAction::Ls) nor
/// [watches](GroupAction::Watch).
pub fn group_input(asked: Requester, manage: &GroupCommand<'_>) -> Result<Input, ProtocolError> {
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
            manage.require_setting::<GroupSettings>()?;
            GroupSettings::default().changed(manage.settings.iter().copied())?;
            let changes = setting_words(manage.settings.iter().copied());
            Ok(Input::Configure { requester: asked, changes })
        }
        GroupAction::Tasks => query(GroupQuery::Tasks(manage.task_query()?)),
        GroupAction::Keys => query(GroupQuery::Keys(manage.key_query()?)),
        GroupAction::Schedules => query(GroupQuery::Schedules(manage.schedule_query()?)),
        GroupAction::Members => {
            query(GroupQuery::Members { range: manage.member_range()?, with_addresses: true })
        }
        action @ (GroupAction::Drain | GroupAction::Undrain) => {
            let (member, drained) = (manage.member()?.into(), action == GroupAction::Drain);
            operate(Operation::Drain { member, drained })
        }
        GroupAction::Rule => {
            let (key, settings) = manage.rule()?;
            operate(Operation::SetRule { key: key.into(), settings })
        }
        GroupAction::Unrule => operate(Operation::RemoveRule { key: manage.unruled_key()?.into() }),
        GroupAction::Rules => query(GroupQuery::Rules(manage.member_range()?)),
        GroupAction::Pause => plain(Operation::Pause),
        GroupAction::Resume => plain(Operation::Resume),
        GroupAction::Purge => {
            operate(manage.purged()?.map_or(Operation::Purge, Operation::ChangeWaiting))
        }
        GroupAction::Bump => operate(Operation::ChangeWaiting(manage.bumped()?)),
        GroupAction::Delete => operate(Operation::Delete { is_forced: manage.is_forced()? }),
        GroupAction::Retry => operate(Operation::Retry(manage.entry_selection()?)),
        GroupAction::Drop => operate(Operation::Drop(manage.entry_selection()?)),
        action @ (GroupAction::Ls | GroupAction::Watch | GroupAction::Unknown(_)) => {
            Err(GroupAction::refuse(action.as_str()))
        }
    }
}

/// The group of a job, and the input for an action on the job that does not
/// [watch](JobAction::Watch).
pub fn job_input(
    asked: Requester,
    manage: &JobCommand<'_>,
) -> Result<(GroupName, Input), ProtocolError> {
    let group = manage.group()?;
    let name = || -> Result<JobName, ProtocolError> { manage.required_name()?.parse() };
    let plain = || manage.allow_only(&["group"]).and_then(|()| name());
    let act = |name, action| Input::JobAction { requester: asked, name, action };
    let input = match manage.action {
        JobAction::Open => {
            let settings = manage.settings.iter().copied().filter(|(key, _)| *key != "group");
            let settings = JobSettings::parse(settings)?;
            settings.check_callback()?;
            Input::OpenJob { requester: asked, name: name()?, settings: settings.into() }
        }
        JobAction::Set => {
            let (name, changes) = (name()?, job_changes(manage)?);
            match manage.dry_run()? {
                None => act(name, JobOperation::Set(changes)),
                Some(after) => {
                    let query = GroupQuery::JobChange(JobChange { name, changes, after });
                    Input::Query { requester: asked, query }
                }
            }
        }
        JobAction::Close => act(plain()?, JobOperation::Close),
        JobAction::Cancel => act(plain()?, JobOperation::Cancel),
        JobAction::Show => Input::Query { requester: asked, query: GroupQuery::Job(plain()?) },
        JobAction::Ls => {
            manage.refuse_name()?;
            Input::Query { requester: asked, query: GroupQuery::Jobs(manage.job_query()?) }
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

/// The settings that `set` changes.
fn job_changes(manage: &JobCommand<'_>) -> Result<SettingWords, ProtocolError> {
    let is_change = |(key, _): &(&str, _)| !["group", "dry", "after"].contains(key);
    let changes = manage.settings.iter().copied().filter(is_change);
    JobSettings::default().changed_in_pass(changes.clone())?;
    let changes = setting_words(changes);
    if changes.is_empty() {
        return Err(bad_argument("set needs a setting, such as exclude=/calendar/"));
    }
    Ok(changes)
}

fn setting_words<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> SettingWords {
    pairs.map(|(name, value)| (name.into(), value.into())).collect()
}

fn add_seed(manage: &JobCommand<'_>) -> Result<JobOperation, ProtocolError> {
    manage.allow_only(&["group", "url", "prio", "after", "render", "item", "source"])?;
    let url = manage.setting("url").ok_or_else(|| bad_argument("add needs url=<URL>"))?.into();
    let (prio, after, attributes) = manage.seed_settings()?;
    Ok(JobOperation::Add { url, prio, after, attributes: attributes.into() })
}
