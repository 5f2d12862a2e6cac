//! Groups whose logs cannot be read: they are named, refuse work, and lose no event of the topics that feed
//! them, until an operator repairs them or sets them aside.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidings_protocol::{Code, GroupName, ProtocolError, StartAt, TopicName};
use tokio::sync::Notify;

use super::GroupStorage;
use super::job_names::{JobNames, Remembered};
use super::restart::Damaged;
use crate::group::Answer;
use crate::topic::{Reader, Topics};

/// All of them, as the start found them.
#[derive(Default)]
pub(super) struct DamagedGroups(BTreeMap<GroupName, Refusing>);

/// A group that refuses work.
struct Refusing {
    /// What cannot be read.
    reason: String,
    /// ` topics=..`, if it is known which topics feed it.
    topics: String,
    /// What can be done.
    remedy: String,
    /// Readers that never read: a topic keeps its events from there on.
    _kept: Mutex<Vec<Reader>>,
}

impl DamagedGroups {
    /// Names them in the log, and has their topics keep what they did not take. Other groups do not take
    /// what belongs to their jobs.
    pub(super) fn new(
        found: Vec<Damaged>,
        storage: Option<&GroupStorage>,
        topics: &Topics,
        job_names: &JobNames,
    ) -> Self {
        let groups = found.into_iter().map(|Damaged { name, reason, before }| {
            let data = storage.and_then(|storage| storage.dir.parent());
            let data = data.map(|dir| dir.display().to_string()).unwrap_or_default();
            let remedy = format!("stop the broker, then: tidings group repair {name} --data {data}");
            let mut kept = Vec::new();
            for (topic, next) in &before.feeds {
                // A topic in memory has nothing of before this start, and would fill up.
                let Some(topic) = topics.find(topic.as_str()).filter(|topic| topic.is_logged()) else {
                    continue;
                };
                kept.push(topic.reader(StartAt::Seq(*next), Arc::new(Notify::new())));
            }
            for (job, is_done) in before.jobs {
                let job_is = if is_done { Remembered::Done } else { Remembered::Unfinished };
                job_names.set(&job, &name, Some(job_is));
            }
            let feeds: Vec<_> = before.feeds.keys().map(TopicName::as_str).collect();
            let topics = match &feeds[..] {
                [] => String::new(),
                feeds => format!(" topics={}", feeds.join(",")),
            };
            let kept_topics: Vec<_> = kept.iter().map(|reader| reader.topic().name().as_str()).collect();
            tracing::error!(
                group = %name, keeps_events_of = %kept_topics.join(","),
                "its log is damaged: {reason}. The group refuses work, and its files stay as they are; {remedy}"
            );
            (name, Refusing { reason, topics, remedy, _kept: Mutex::new(kept) })
        });
        Self(groups.collect())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &GroupName> {
        self.0.keys()
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn has(&self, name: &GroupName) -> bool {
        self.0.contains_key(name)
    }

    /// The refusal of a damaged group.
    pub(super) fn check(&self, name: &GroupName) -> Result<(), ProtocolError> {
        let Some(Refusing { reason, remedy, .. }) = self.0.get(name) else { return Ok(()) };
        let text = format!("the log of group {name} is damaged ({reason}); {remedy}");
        Err(ProtocolError::new(Code::Conflict, text))
    }

    /// What `GROUP show` says of one.
    pub(super) fn describe(&self, name: &GroupName) -> Option<Answer> {
        let Refusing { reason, topics, remedy, .. } = self.0.get(name)?;
        let more = vec![format!("problem {reason}"), format!("remedy {remedy}")];
        Some(Answer { more, ok: format!("{name} damaged=yes{topics}") })
    }
}
