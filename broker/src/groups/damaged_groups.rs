//! Groups with unreadable logs. They are listed, reject work, and keep all events of their topics
//! until an operator repairs them or sets them aside.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidings_protocol::status::{Answer, DamagedGroupStatus};
use tidings_protocol::{Code, GroupName, ProtocolError, StartAt, TopicName};
use tokio::sync::Notify;

use super::GroupStorage;
use super::job_names::{JobNames, JobStatus};
use super::recovery::UnreadableGroup;
use crate::topic::{Reader, Topics};

/// All damaged groups that the start found.
#[derive(Default)]
pub(super) struct DamagedGroups(BTreeMap<GroupName, DamagedGroup>);

/// A group that rejects work.
struct DamagedGroup {
    /// What cannot be read.
    reason: String,
    /// Its feeding topics, if they are known.
    topics: Option<Vec<String>>,
    /// What the operator can do.
    remedy: String,
    /// Readers that never advance: the topics keep their events from that position on.
    _kept: Mutex<Vec<Reader>>,
}

impl DamagedGroups {
    /// Logs each damaged group and makes its topics keep the events that it has not consumed.
    /// Reserves the names of its jobs, so that other groups do not take events of those jobs.
    pub(super) fn new(
        found: Vec<UnreadableGroup>,
        storage: Option<&GroupStorage>,
        topics: &Topics,
        job_names: &JobNames,
    ) -> Self {
        let groups = found.into_iter().map(|UnreadableGroup { name, reason, last_good: before }| {
            let data = storage.map(|storage| storage.store.place()).unwrap_or_default();
            let remedy = format!("stop the broker, then: tidings group repair {name} --data {data}");
            let mut kept = Vec::new();
            for (topic, next) in &before.feeds {
                // A topic in memory has no events from before this start, and would fill up.
                let Some(topic) = topics.find(topic.as_str()).filter(|topic| topic.is_logged()) else {
                    continue;
                };
                kept.push(topic.reader(StartAt::Seq(*next), Arc::new(Notify::new())));
            }
            for (job, is_done) in before.jobs {
                let job_is = if is_done { JobStatus::Done } else { JobStatus::Unfinished };
                job_names.set(&job, &name, Some(job_is));
            }
            let feeds: Vec<_> = before.feeds.keys().map(TopicName::to_string).collect();
            let topics = (!feeds.is_empty()).then_some(feeds);
            let kept_topics: Vec<_> = kept.iter().map(|reader| reader.topic().name().as_str()).collect();
            tracing::error!(
                group = %name, keeps_events_of = %kept_topics.join(","),
                "its log is damaged: {reason}. The group rejects work, and its files are not changed; {remedy}"
            );
            (name, DamagedGroup { reason, topics, remedy, _kept: Mutex::new(kept) })
        });
        Self(groups.collect())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &GroupName> {
        self.0.keys()
    }

    pub(super) fn has(&self, name: &GroupName) -> bool {
        self.0.contains_key(name)
    }

    /// Rejects a command for a damaged group.
    pub(super) fn check_not_damaged(&self, name: &GroupName) -> Result<(), ProtocolError> {
        let Some(DamagedGroup { reason, remedy, .. }) = self.0.get(name) else { return Ok(()) };
        let text = format!("the log of group {name} is damaged ({reason}); {remedy}");
        Err(ProtocolError::new(Code::Conflict, text))
    }

    /// The answer of `GROUP show` for a damaged group.
    pub(super) fn describe(&self, name: &GroupName) -> Option<Answer> {
        let DamagedGroup { reason, topics, remedy, .. } = self.0.get(name)?;
        let lines = [format!("problem {reason}"), format!("remedy {remedy}")];
        let (group, topics) = (name.to_string(), topics.clone());
        let ok = DamagedGroupStatus { group, damaged: true, topics };
        Some(Answer::new(lines, ok))
    }
}
