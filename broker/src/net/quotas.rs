//! Quota checks for commands that create topics, cursors, groups or jobs.

use tidings_protocol::{
    Command, CursorName, GroupAction, GroupName, JobAction, ProtocolError, TopicAction, TopicName,
};
use tidings_queue::commands::group_of;

use super::Shared;
use crate::access::Identity;
use crate::cursors::CursorId;
use crate::quota::{ConnectionUsage, Created, Usage};

impl Shared {
    /// Counts the usage of a connection for the principal of `identity`.
    pub(super) fn assign_usage(
        &self,
        usage: &mut Usage,
        identity: &Identity,
    ) -> Result<(), ProtocolError> {
        self.quotas.assign_principal(usage, identity.quota_name())
    }

    /// Checks that the quotas allow everything that a command would create.
    pub(super) fn check_creation(
        &self,
        usage: Option<&ConnectionUsage>,
        command: &Command<'_>,
    ) -> Result<(), ProtocolError> {
        let Some(usage) = usage else { return Ok(()) };
        created_by(command)
            .iter()
            .try_for_each(|new| usage.create(new, &|created| self.exists(created)))
    }

    /// Checks that the quotas allow the topic of a publish.
    pub(super) fn check_topic_creation(
        &self,
        usage: Option<&ConnectionUsage>,
        topic: &TopicName,
    ) -> Result<(), ProtocolError> {
        let Some(usage) = usage else { return Ok(()) };
        usage.create(&Created::Topic(topic.clone()), &|created| self.exists(created))
    }
}

/// What a command creates if it does not exist. Invalid arguments are skipped here; the command
/// itself reports them.
fn created_by(command: &Command<'_>) -> Vec<Created> {
    match command {
        Command::Sub { topic, cursor, .. } => {
            let id =
                |cursor: &CursorName| CursorId { topic: topic.clone(), cursor: cursor.clone() };
            let cursor = cursor.as_ref().map(id).map(Created::Cursor);
            [Created::Topic(topic.clone())].into_iter().chain(cursor).collect()
        }
        Command::Topic(manage) if manage.action == TopicAction::Create => {
            parsed_name(manage.name).map(Created::Topic).into_iter().collect()
        }
        Command::Group(manage)
            if matches!(manage.action, GroupAction::Create | GroupAction::Set) =>
        {
            let group = parsed_name(manage.name).map(Created::Group);
            let group = group.filter(|_| manage.action == GroupAction::Create);
            let topics = manage.setting("topics").unwrap_or_default().split(',');
            let topics = topics.filter_map(|topic| topic.parse().ok()).map(Created::Topic);
            group.into_iter().chain(topics).collect()
        }
        Command::Job(manage) if manage.action == JobAction::Open => {
            let job = group_of(manage).ok().zip(parsed_name(manage.name));
            job.map(|(group, job): (GroupName, _)| Created::Job(group, job)).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

fn parsed_name<N: std::str::FromStr>(name: Option<&str>) -> Option<N> {
    name?.parse().ok()
}
