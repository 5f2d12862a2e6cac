//! What a broker reports about itself.

use tidings_client::ClientError;
use tidings_protocol::status::{DamagedGroupStatus, GroupStatus, TopicStatus};
use tidings_protocol::{Code, Command, GroupAction, GroupCommand, GroupName};

use crate::client::broker_message;
use crate::client::manage::{BrokerClient, key_values};
use crate::terminal::failure::Failure;
use crate::terminal::output::plural;

/// The topics and groups of a broker at one moment.
#[derive(Debug, Default)]
pub(crate) struct Overview {
    /// The version of the broker.
    pub(crate) version: String,
    /// Connections that are open, this one included.
    pub(crate) connections: u64,
    /// What is not well, a sentence for each problem, the worst first.
    pub(crate) problems: Vec<String>,
    pub(crate) topics: Vec<TopicStatus>,
    pub(crate) groups: Vec<GroupOverview>,
}

/// A group.
#[derive(Debug)]
pub(crate) enum GroupOverview {
    Sound(Box<GroupStatus>),
    /// Its log cannot be read.
    Damaged(DamagedGroupStatus),
    /// It answers nothing, for this reason.
    Still {
        group: String,
        reason: String,
    },
}

impl Overview {
    /// Asks the broker: first each group, and then for what is not well, which is then as new as the
    /// groups.
    pub(crate) async fn read(broker: &BrokerClient<'_>) -> Result<Self, Failure> {
        let version = broker.client.hello().version.clone();
        let mut overview = Self { version, ..Self::default() };
        for line in &broker.request(&Command::Stats).await?.more {
            let Some(Ok(name)) = line.strip_prefix("group ").map(str::parse) else { continue };
            overview.groups.extend(GroupOverview::read(broker, &name).await?);
        }
        for line in &broker.request(&Command::Stats).await?.more {
            match line.split_once(' ') {
                Some(("problem", problem)) => {
                    // The first word is the severity.
                    let sentence = problem.split_once(' ').map(|(_, sentence)| sentence);
                    overview.problems.extend(sentence.map(str::to_owned));
                }
                Some(("topic", topic)) => {
                    overview.topics.push(TopicStatus::parse(topic));
                }
                Some(("group", _)) => {}
                _ => {
                    let mut words = key_values(line);
                    let count = words.find(|(key, _)| *key == "connections");
                    if let Some((_, count)) = count {
                        overview.connections = count.parse().unwrap_or_default();
                    }
                }
            }
        }
        Ok(overview)
    }

    /// Whether the broker reports that all is well.
    pub(crate) fn is_well(&self) -> bool {
        self.problems.is_empty()
    }

    /// The groups that are not in trouble.
    #[cfg(feature = "top")]
    pub(crate) fn sound_groups(&self) -> impl Iterator<Item = &GroupStatus> {
        self.groups.iter().filter_map(|group| match group {
            GroupOverview::Sound(status) => Some(&**status),
            _ => None,
        })
    }
}

impl GroupOverview {
    /// `None` if the group was deleted meanwhile.
    async fn read(broker: &BrokerClient<'_>, name: &GroupName) -> Result<Option<Self>, Failure> {
        let show = GroupCommand::new(GroupAction::Show, name.as_str(), Vec::new());
        match broker.client.request(&Command::Group(show)).await {
            Ok(answer) => {
                let damaged = DamagedGroupStatus::parse(&answer.ok);
                let sound = || Self::Sound(GroupStatus::parse(&answer.ok).into());
                Ok(Some(if damaged.damaged { Self::Damaged(damaged) } else { sound() }))
            }
            Err(ClientError::Refused(error)) => match error.code {
                Code::NotFound => Ok(None),
                Code::Full | Code::NotDurable => {
                    let reason = broker_message::rejection(&error);
                    Ok(Some(Self::Still { group: name.to_string(), reason }))
                }
                _ => Err(broker.failure(ClientError::Refused(error))),
            },
            Err(error) => Err(broker.failure(error)),
        }
    }
}

/// The number of waiting entries, with what they are in this group.
pub(crate) fn waiting_entries(group: &GroupStatus) -> String {
    let noun = if group.settings.key.is_own() { "waiting event" } else { "waiting URL" };
    plural(group.waiting, noun)
}
