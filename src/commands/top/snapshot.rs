//! What the broker says at one moment.

use tidings_client::{ClientError, PendingAnswer};
use tidings_protocol::status::{GroupStatus, JobStatus, KeyStatus, ListedMember};
use tidings_protocol::{Command, GroupAction, GroupName, JobAction, JobCommand};

use super::model::Page;
use crate::client::broker_message;
use crate::client::manage::BrokerClient;
use crate::client::overview::Overview;
use crate::commands::group::command;
use crate::terminal::failure::Failure;

/// The most jobs, hosts and members of a group that are shown.
const LISTED_MAX: (&str, &str) = ("limit", "100");

/// The state of a broker.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) overview: Overview,
    /// The newest jobs of each group, with its name, on pages that list jobs.
    pub(super) jobs: Vec<(String, JobStatus)>,
    /// Of the open group.
    pub(super) hosts: Vec<KeyStatus>,
    pub(super) members: Vec<ListedMember>,
    /// Why a command was refused.
    pub(super) refusal: Option<String>,
}

impl Snapshot {
    /// The counts and settings of a group that is not in trouble.
    pub(super) fn group(&self, name: &GroupName) -> Option<&GroupStatus> {
        self.overview.sound_groups().find(|status| status.group == name.as_str())
    }

    /// Waits for the answers to commands, and then asks for what the page shows.
    pub(super) async fn read(
        broker: &BrokerClient<'_>,
        page: &Page,
        commands: Vec<PendingAnswer>,
    ) -> Result<Self, Failure> {
        let mut refusal = None;
        for command in commands {
            match command.await {
                Err(ClientError::Refused(error)) => {
                    refusal = Some(broker_message::rejection(&error));
                }
                answer => drop(answer.map_err(|error| broker.failure(error))?),
            }
        }
        let overview = Overview::read(broker).await?;
        let mut snapshot = Self { overview, refusal, ..Self::default() };
        match page {
            Page::Overview | Page::Jobs => snapshot.jobs = jobs(broker, &snapshot.overview).await?,
            Page::Group(name) => {
                snapshot.hosts = hosts(broker, name).await?;
                let list = command(GroupAction::Members, name, vec![LISTED_MAX]);
                let members = lines(broker, list).await?;
                snapshot.members = members.iter().map(|line| ListedMember::parse(line)).collect();
            }
            Page::Groups | Page::Topics | Page::Topic(_) => {}
        }
        Ok(snapshot)
    }
}

async fn jobs(
    broker: &BrokerClient<'_>,
    overview: &Overview,
) -> Result<Vec<(String, JobStatus)>, Failure> {
    let mut jobs = Vec::new();
    for status in overview.sound_groups() {
        let settings = vec![("group", status.group.as_str()), LISTED_MAX];
        let list = JobCommand { action: JobAction::Ls, name: None, settings };
        let lines = lines(broker, Command::Job(list)).await?;
        let listed = lines.iter().map(|line| JobStatus::parse(line));
        jobs.extend(listed.map(|job| (status.group.clone(), job)));
    }
    Ok(jobs)
}

/// The hosts of a group that take longest.
pub(super) async fn hosts(
    broker: &BrokerClient<'_>,
    group: &GroupName,
) -> Result<Vec<KeyStatus>, Failure> {
    let keys = lines(broker, command(GroupAction::Keys, group, vec![LISTED_MAX])).await?;
    Ok(keys.iter().map(|line| KeyStatus::parse(line)).collect())
}

/// What a command lists: nothing if it is refused, as for a group that was deleted meanwhile.
async fn lines(broker: &BrokerClient<'_>, list: Command<'_>) -> Result<Vec<String>, Failure> {
    match broker.client.request(&list).await {
        Ok(answer) => Ok(answer.more),
        Err(ClientError::Refused(_)) => Ok(Vec::new()),
        Err(error) => Err(broker.failure(error)),
    }
}
