//! Creates the group of a worker.

use tidings_protocol::status::{DamagedGroupStatus, GroupStatus};
use tidings_protocol::{
    AttributeFilter, Code, Command, GroupAction, GroupCommand, GroupName, TopicName,
};

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
    /// Whether an existing group must have exactly this topic and this key. Otherwise it may have
    /// further topics, and another key.
    pub is_exclusive: bool,
    /// The events that become tasks. An existing group gets it if
    /// [`is_exclusive`](Self::is_exclusive) says so; otherwise it must have it, unless it has no
    /// conditions.
    pub filter: AttributeFilter,
    /// Other settings.
    pub settings: &'static [(&'static str, &'static str)],
}

impl GroupSetup {
    /// Creates the group if it does not exist. An existing group must have the topic, and be as
    /// [`is_exclusive`](Self::is_exclusive) says. Returns whether it was created.
    pub async fn ensure(&self, client: &Client) -> Result<bool, ClientError> {
        let Self { group, topic, key, is_exclusive, filter, settings } = self;
        let conditions = filter.words();
        let conditions = conditions.iter().map(|(name, value)| (*name, value.as_str()));
        let ask = async |action, settings| {
            let command = GroupCommand::new(action, group.as_str(), settings);
            client.request(&Command::Group(command)).await
        };
        let mut shown = ask(GroupAction::Show, Vec::new()).await;
        let mut is_new = false;
        if matches!(&shown, Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound) {
            let mut settings = [&[("topics", topic.as_str()), ("key", key)], *settings].concat();
            // Without conditions the default is right.
            settings.extend(conditions.clone().filter(|_| !filter.matches_all()));
            shown = match ask(GroupAction::Create, settings).await {
                // Another client has created it in between.
                Err(ClientError::Refused(refusal)) if refusal.code == Code::Exists => {
                    ask(GroupAction::Show, Vec::new()).await
                }
                created => {
                    is_new = created.is_ok();
                    created
                }
            };
        }
        let shown = shown?;
        if DamagedGroupStatus::parse(&shown.ok).damaged {
            // Its settings are unknown. `JOIN` is refused with the remedy.
            return Ok(false);
        }
        let found = GroupStatus::parse(&shown.ok).settings;
        let has_topic = found.topics.contains(topic);
        let found_key = found.key.to_string();
        let is_same = has_topic && found.topics.len() == 1 && found_key == *key;
        if is_same || (has_topic && !is_exclusive) {
            if found.filter == *filter || (filter.matches_all() && !is_exclusive) {
                return Ok(is_new);
            }
            if *is_exclusive {
                return ask(GroupAction::Set, conditions.collect()).await.map(|_| false);
            }
            let (group, found, wanted) = (group.clone(), shown_as(&found.filter), shown_as(filter));
            return Err(ClientError::OtherFilter { group, found, wanted });
        }
        let (group, topic, topics) = (group.clone(), topic.clone(), found.topic_list());
        Err(if *is_exclusive {
            ClientError::OtherGroup { group, topics, key: found_key, topic, expected_key: key }
        } else {
            ClientError::TopicMissing { group, topics, topic }
        })
    }
}

/// The words that set a filter.
fn shown_as(filter: &AttributeFilter) -> String {
    let words: Vec<_> =
        filter.words().into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    words.join(" ")
}
