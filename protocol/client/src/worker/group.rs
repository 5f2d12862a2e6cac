//! Creates the group of a worker.

use tidings_protocol::status::GroupStatus;
use tidings_protocol::{Code, Command, GroupAction, GroupCommand, GroupName, TopicName};

use crate::connection::Client;
use crate::error::ClientError;

/// Why a group cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnsureGroupError {
    /// The broker refused a command, or the connection has ended.
    #[error("{0}")]
    Broker(#[from] ClientError),
    /// The group would never receive the events of the topic.
    #[error(
        "group {group} has topics {topics}, without {topic}; add it with: tidings group set {group} \
         topics={topics},{topic}"
    )]
    TopicMissing {
        /// The existing group.
        group: GroupName,
        /// Its topics.
        topics: String,
        /// The topic that is missing.
        topic: TopicName,
    },
}

/// Creates the group if it does not exist, fed by the topic, with this key and these settings. An
/// existing group keeps its settings, which are the operator's.
pub async fn ensure_group(
    client: &Client,
    group: &GroupName,
    topic: &TopicName,
    key: &str,
    settings: &[(&str, &str)],
) -> Result<(), EnsureGroupError> {
    let ask = async |action, settings| {
        let command = GroupCommand::new(action, group.as_str(), settings);
        client.request(&Command::Group(command)).await
    };
    let mut shown = ask(GroupAction::Show, Vec::new()).await;
    if matches!(&shown, Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound) {
        let settings = [&[("topics", topic.as_str()), ("key", key)], settings].concat();
        shown = match ask(GroupAction::Create, settings).await {
            // Another client has created it in between.
            Err(ClientError::Refused(refusal)) if refusal.code == Code::Exists => {
                ask(GroupAction::Show, Vec::new()).await
            }
            created => created,
        };
    }
    let shown = shown?.ok;
    let topics = GroupStatus::parse(&shown).settings.topics;
    if topics.iter().any(|one| one == topic.as_str()) {
        return Ok(());
    }
    let (group, topic, topics) = (group.clone(), topic.clone(), topics.join(","));
    Err(EnsureGroupError::TopicMissing { group, topics, topic })
}
