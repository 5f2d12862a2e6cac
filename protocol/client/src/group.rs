//! Creates the group of a worker.

use tidings_protocol::status::GroupStatus;
use tidings_protocol::{Code, Command, GroupAction, GroupCommand, GroupName, TopicName};

use crate::connection::Client;
use crate::error::ClientError;

/// The group of a worker, and how it is created if it does not exist. An existing group keeps its
/// settings, which are the operator's.
#[derive(Debug, Clone)]
pub struct GroupSetup {
    /// The name.
    pub group: GroupName,
    /// The topic that feeds it.
    pub topic: TopicName,
    /// Its key.
    pub key: &'static str,
    /// Other settings.
    pub settings: &'static [(&'static str, &'static str)],
}

impl GroupSetup {
    /// Creates the group if it does not exist. An existing group must have the topic.
    pub async fn ensure(&self, client: &Client) -> Result<(), ClientError> {
        let Self { group, topic, key, settings } = self;
        let ask = async |action, settings| {
            let command = GroupCommand::new(action, group.as_str(), settings);
            client.request(&Command::Group(command)).await
        };
        let mut shown = ask(GroupAction::Show, Vec::new()).await;
        if matches!(&shown, Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound) {
            let settings = [&[("topics", topic.as_str()), ("key", key)], *settings].concat();
            shown = match ask(GroupAction::Create, settings).await {
                // Another client has created it in between.
                Err(ClientError::Refused(refusal)) if refusal.code == Code::Exists => {
                    ask(GroupAction::Show, Vec::new()).await
                }
                created => created,
            };
        }
        let topics = GroupStatus::parse(&shown?.ok).settings.topics;
        if topics.iter().any(|one| one == topic.as_str()) {
            return Ok(());
        }
        let (group, topic, topics) = (group.clone(), topic.clone(), topics.join(","));
        Err(ClientError::TopicMissing { group, topics, topic })
    }
}
