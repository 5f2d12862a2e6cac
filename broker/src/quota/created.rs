//! What commands create, and principals have to answer for until it is deleted.

use tidings_protocol::{
    Command, CursorName, GroupAction, GroupName, JobAction, JobName, TopicAction, TopicName,
};

use super::quantity::Quantity;
use crate::cursors::CursorId;

/// A thing that remains when the connection that created it ends.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Created {
    Topic(TopicName),
    Cursor(CursorId),
    Group(GroupName),
    Job(GroupName, JobName),
}

impl Created {
    pub(super) fn quantity(&self) -> Quantity {
        match self {
            Self::Topic(_) => Quantity::Topics,
            Self::Cursor(_) => Quantity::Cursors,
            Self::Group(_) => Quantity::Groups,
            Self::Job(..) => Quantity::Jobs,
        }
    }

    /// What a command creates if it does not exist. Invalid arguments are skipped here; the command
    /// itself reports them.
    pub(crate) fn by(command: &Command<'_>) -> Vec<Self> {
        match command {
            Command::Sub { topic, cursor, .. } => {
                let id =
                    |cursor: &CursorName| CursorId { topic: topic.clone(), cursor: cursor.clone() };
                let cursor = cursor.as_ref().map(id).map(Self::Cursor);
                [Self::Topic(topic.clone())].into_iter().chain(cursor).collect()
            }
            Command::Topic(manage) if manage.action == TopicAction::Create => {
                parsed_name(manage.name).map(Self::Topic).into_iter().collect()
            }
            Command::Group(manage)
                if matches!(manage.action, GroupAction::Create | GroupAction::Set) =>
            {
                let group = parsed_name(manage.name).map(Self::Group);
                let group = group.filter(|_| manage.action == GroupAction::Create);
                let topics = manage.setting("topics").unwrap_or_default().split(',');
                let topics = topics.filter_map(|topic| topic.parse().ok()).map(Self::Topic);
                group.into_iter().chain(topics).collect()
            }
            Command::Job(manage) if manage.action == JobAction::Open => {
                let job = manage.group().ok().zip(parsed_name(manage.name));
                job.map(|(group, job)| Self::Job(group, job)).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }
}

fn parsed_name<N: std::str::FromStr>(name: Option<&str>) -> Option<N> {
    name?.parse().ok()
}
