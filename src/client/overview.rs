//! What a broker says about itself, and which of it is not well.

use tidings_client::ClientError;
use tidings_protocol::status::{DamagedGroupStatus, GroupStatus, TopicState, TopicStatus};
use tidings_protocol::{Code, Command, GroupAction, GroupCommand, GroupName};

use crate::client::broker_message;
use crate::client::manage::{BrokerClient, key_values};
use crate::terminal::failure::Failure;
use crate::terminal::output::plural;

/// Names of topics in one problem; more are counted.
const NAMES_MAX: usize = 5;

/// The topics and groups of a broker at one moment.
#[derive(Debug, Default)]
pub(crate) struct Overview {
    /// The version of the broker.
    pub(crate) version: String,
    /// Connections that are open, this one included.
    pub(crate) connections: u64,
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
    /// Asks the broker.
    pub(crate) async fn read(broker: &BrokerClient<'_>) -> Result<Self, Failure> {
        let stats = broker.request(&Command::Stats).await?;
        let version = broker.client.hello().version.clone();
        let mut overview = Self { version, ..Self::default() };
        for line in &stats.more {
            match line.split_once(' ') {
                Some(("topic", topic)) => overview.topics.push(TopicStatus::parse(topic)),
                Some(("group", name)) => {
                    let Ok(name) = name.parse() else { continue };
                    overview.groups.extend(GroupOverview::read(broker, &name).await?);
                }
                _ => {
                    let counts = key_values(line).filter(|(key, _)| *key == "connections");
                    let counts = counts.filter_map(|(_, value)| value.parse().ok());
                    overview.connections = counts.last().unwrap_or(overview.connections);
                }
            }
        }
        Ok(overview)
    }

    /// The groups that are not in trouble.
    #[cfg(feature = "top")]
    pub(crate) fn sound_groups(&self) -> impl Iterator<Item = &GroupStatus> {
        self.groups.iter().filter_map(|group| match group {
            GroupOverview::Sound(status) => Some(&**status),
            _ => None,
        })
    }

    /// What is not well, a clause for each problem.
    pub(crate) fn problems(&self) -> Vec<String> {
        let states = [
            (TopicState::Full, "the disk is full"),
            (TopicState::SyncFailed, "a write to the disk failed"),
        ];
        let refused = states.into_iter().filter_map(|(state, reason)| {
            let refusing = self.topics.iter().filter(|topic| topic.state == state);
            let names: Vec<_> = refusing.map(|topic| topic.topic.as_str()).collect();
            let verb = if names.len() == 1 { "refuses" } else { "refuse" };
            let all = plural(names.len() as u64, "topic");
            let more = if names.len() > NAMES_MAX { ", .." } else { "" };
            let shown = names[..names.len().min(NAMES_MAX)].join(", ");
            (!names.is_empty()).then(|| format!("{all} {verb} events, as {reason}: {shown}{more}"))
        });
        refused.chain(self.groups.iter().flat_map(GroupOverview::problems)).collect()
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

    fn problems(&self) -> Vec<String> {
        let status = match self {
            Self::Sound(status) => status,
            Self::Damaged(DamagedGroupStatus { group, .. }) => {
                return vec![format!("group {group} is damaged (see tidings group show {group})")];
            }
            Self::Still { group, reason } => {
                return vec![format!("group {group} stands still: {reason}")];
            }
        };
        let GroupStatus { group, paused, members, waiting, dead_kept, .. } = &**status;
        let waits = format!("{} of group {group}", waiting_entries(status));
        let without_browser = status.render_waiting.filter(|_| status.render_members == Some(0));
        let problems = [
            (*waiting > 0 && *paused).then(|| format!("{waits}, which is paused")),
            (*waiting > 0 && !paused && *members == 0)
                .then(|| format!("{waits}, which has no worker")),
            without_browser.filter(|waiting| *waiting > 0 && *members > 0).map(|waiting| {
                let tasks = plural(waiting, "task");
                format!("{tasks} of group {group} for a browser, which no worker has")
            }),
            (*dead_kept > 0)
                .then(|| format!("{} of group {group}", plural(*dead_kept, "dead letter"))),
        ];
        problems.into_iter().flatten().collect()
    }
}

/// The number of waiting entries, with what they are in this group.
pub(crate) fn waiting_entries(group: &GroupStatus) -> String {
    let noun = match group.settings.key.as_str() {
        "none" | "seq" => "waiting event",
        _ => "waiting URL",
    };
    plural(group.waiting, noun)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(topics: &[&str], groups: &[&str]) -> Vec<String> {
        let topics = topics.iter().map(|line| TopicStatus::parse(line)).collect();
        let sound = |line: &&str| GroupOverview::Sound(GroupStatus::parse(line).into());
        Overview { topics, groups: groups.iter().map(sound).collect(), ..Overview::default() }
            .problems()
    }

    #[test]
    fn each_problem_is_a_clause() {
        for (topics, groups, expected) in [
            (vec!["a state=ok"], vec!["g members=1 waiting=3 paused=no key=host"], vec![]),
            (vec!["a state=full"], vec![], vec!["1 topic refuses events, as the disk is full: a"]),
            (
                vec!["a state=full", "b state=sync-failed", "c state=full"],
                vec![],
                vec![
                    "2 topics refuse events, as the disk is full: a, c",
                    "1 topic refuses events, as a write to the disk failed: b",
                ],
            ),
            (
                vec![],
                vec!["g members=0 waiting=1499 dead-kept=2 key=host"],
                vec![
                    "1,499 waiting URLs of group g, which has no worker",
                    "2 dead letters of group g",
                ],
            ),
            (
                vec![],
                vec!["g members=0 waiting=1 paused=yes key=none"],
                vec!["1 waiting event of group g, which is paused"],
            ),
            (vec![], vec!["g members=0 waiting=0 paused=yes"], vec![]),
            (
                vec![],
                vec!["g members=1 render-members=0 render-waiting=2 waiting=2"],
                vec!["2 tasks of group g for a browser, which no worker has"],
            ),
        ] {
            assert_eq!(problems(&topics, &groups), expected);
        }
    }

    #[test]
    fn a_problem_of_many_topics_stays_short() {
        let lines: Vec<_> = (0..9).map(|number| format!("t{number} state=full")).collect();
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        let expected = "9 topics refuse events, as the disk is full: t0, t1, t2, t3, t4, ..";
        assert_eq!(problems(&lines, &[]), [expected]);
    }
}
