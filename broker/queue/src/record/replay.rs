//! Replay: rebuilds a group from the records of its log.

use std::collections::BTreeMap;
use std::io;

use tidings_protocol::{JobName, Seq, TopicName};

use super::snapshot::SnapshotItem;
use super::{Decision, GroupRecord};
use crate::Group;
use crate::moment::{ClockStamp, Moment};
use crate::texts::{TextError, TextReply, TextRequest};

/// Number of a log's first record.
pub const FIRST_RECORD: Seq = Seq(1);

/// A replay begins at the first record, or at a complete snapshot if earlier records are gone.
/// Where records are unreadable, it begins again at the next complete snapshot, if there is one.
#[derive(Debug)]
pub(crate) struct Replay {
    group: Group,
    base: ReplayBase,
}

/// What the replayed group rests on, which decides whether a record is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayBase {
    /// Earlier decisions are missing.
    Missing,
    /// A snapshot that is not complete yet.
    Partial,
    /// All decisions.
    Complete,
}

impl Replay {
    /// Starts a replay. `has_all` says whether the next record is the first that was ever written.
    pub(crate) fn new(mut group: Group, has_all: bool) -> Self {
        group.state.begin_replay();
        Self { group, base: ReplayBase::new(has_all) }
    }

    /// Applies the next record, unless a text that it needs cannot be read
    /// ([`Group::problem`]).
    pub(crate) fn apply(&mut self, record: &GroupRecord) {
        if self.group.problem().is_none() && self.base.apply(record) {
            self.group.state.replay(record);
            self.group.compact_texts();
        }
    }

    /// Returns the request for the texts that the next record needs, if any. The owner has executed
    /// all earlier requests, and passes nothing but the reply to this one before it calls
    /// [`apply`](Self::apply).
    pub(crate) fn prepare(&mut self, record: &GroupRecord) -> Option<TextRequest> {
        // Those of the previous record were used.
        self.group.state.texts_mut().trim_read();
        self.group.request_texts_for(&record.decision);
        self.poll_texts()
    }

    /// Returns the next request to the owner.
    pub(crate) fn poll_texts(&mut self) -> Option<TextRequest> {
        self.group.state.texts_mut().poll_request()
    }

    /// Takes the reply to a request.
    pub(crate) fn texts_replied(&mut self, reply: TextReply) {
        self.group.texts_replied(reply, self.group.state.now());
    }

    /// Returns the group as rebuilt so far.
    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// Notes that records are missing here.
    pub(crate) fn mark_gap(&mut self) {
        self.base = ReplayBase::Missing;
    }

    /// Reports whether nothing relevant is missing so far.
    pub(crate) fn is_complete(&self) -> bool {
        self.base == ReplayBase::Complete
    }

    /// Returns the group; `None` if something is missing.
    pub(crate) fn finish(mut self) -> Option<Group> {
        self.group.state.end_replay();
        self.is_complete().then_some(self.group)
    }
}

impl ReplayBase {
    /// Creates the base of a replay. `has_all` says whether its first record is the first ever
    /// written.
    pub fn new(has_all: bool) -> Self {
        if has_all { Self::Complete } else { Self::Missing }
    }

    /// Takes the next record into account. Returns whether it must be applied.
    pub fn apply(&mut self, record: &GroupRecord) -> bool {
        let item = match &record.decision {
            Decision::SnapshotPart(item) => Some(&**item),
            _ => None,
        };
        match (item, *self) {
            // The parts of a snapshot are known from the earlier records.
            (Some(_), Self::Complete) => return false,
            (Some(SnapshotItem::Begin { .. }), _) => *self = Self::Partial,
            (Some(SnapshotItem::Abandoned), _) => {
                *self = Self::Missing;
                return false;
            }
            // A start ended the snapshot before it was complete.
            (None, Self::Partial) if matches!(record.decision, Decision::Started { .. }) => {
                *self = Self::Missing;
                return false;
            }
            (Some(SnapshotItem::End { .. }), Self::Partial) => *self = Self::Complete,
            (_, Self::Missing) => return false,
            _ => {}
        }
        true
    }
}

/// The result of replaying a group's log.
#[derive(Debug)]
pub struct LogReplay {
    replay: Replay,
    /// The record at which the replay began: the first one, or the start of the newest snapshot
    /// used.
    from: Seq,
    /// The last range of records that gave a complete group before damage, as first record and end,
    /// with a summary of that group.
    pub last_good: Option<(Seq, Seq, GroupSummary)>,
    /// Time of the last start.
    started: Option<ClockStamp>,
    /// Time of the newest record.
    last: Moment,
    /// The first read error.
    first_error: Option<io::Error>,
    /// Whether the last record says that the group was deleted.
    is_deleted: bool,
}

impl LogReplay {
    /// Starts a replay of a log. `first` is the number of its first record.
    pub fn new(group: Group, first: Seq) -> Self {
        let has_all = first <= FIRST_RECORD;
        let gone = || damage(format!("records before {first} are gone"));
        Self {
            replay: Replay::new(group, has_all),
            from: first,
            last_good: None,
            started: None,
            last: Moment(0),
            first_error: (!has_all).then(gone),
            is_deleted: false,
        }
    }

    /// Applies the next record, or notes that it cannot be read. Takes the error out of `read`.
    pub fn apply(&mut self, seq: Seq, read: &mut io::Result<GroupRecord>) {
        let record = match read {
            Ok(record) => record,
            Err(error) => {
                if self.is_whole() {
                    self.last_good = Some((self.from, seq, GroupSummary::of(self.replay.group())));
                }
                let error = std::mem::replace(error, io::ErrorKind::InvalidData.into());
                self.first_error.get_or_insert(error);
                return self.replay.mark_gap();
            }
        };
        self.last = record.at;
        self.is_deleted = record.decision == Decision::Deleted;
        match &record.decision {
            Decision::Started { stamp, .. } => self.started = Some(*stamp),
            Decision::SnapshotPart(item) => {
                if let SnapshotItem::Begin { stamp, .. } = **item {
                    self.started = Some(stamp);
                    if !self.is_whole() {
                        self.from = seq;
                    }
                }
            }
            _ => {}
        }
        self.replay.apply(record);
    }

    /// Whether the records so far give the whole group.
    pub fn is_whole(&self) -> bool {
        self.replay.is_complete() && self.problem().is_none()
    }

    /// The damage, and the group before it.
    pub fn damage(self) -> (io::Error, GroupSummary) {
        let error = self
            .first_error
            .unwrap_or_else(|| damage("the log has no complete beginning".to_owned()));
        (error, self.last_good.map(|(.., before)| before).unwrap_or_default())
    }

    /// Whether the log has no record, and nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.started.is_none() && self.first_error.is_none()
    }

    /// Whether the last record says that the group was deleted.
    pub fn is_deleted(&self) -> bool {
        self.is_deleted
    }

    /// The first read error.
    pub fn first_error(&self) -> Option<&io::Error> {
        self.first_error.as_ref()
    }

    /// Returns the request for the texts that the next record needs, if any. The owner has executed
    /// all earlier requests, and passes nothing but the reply to this one before it calls
    /// [`apply`](Self::apply).
    pub fn prepare(&mut self, record: &GroupRecord) -> Option<TextRequest> {
        self.replay.prepare(record)
    }

    /// Returns the next request about texts.
    pub fn poll_texts(&mut self) -> Option<TextRequest> {
        self.replay.poll_texts()
    }

    /// Takes the reply to a request.
    pub fn texts_replied(&mut self, reply: TextReply) {
        self.replay.texts_replied(reply);
    }

    /// Why a text that a record needs cannot be read. The replay is useless then, but the log has
    /// the text: another replay that pages no texts needs no reads.
    pub fn problem(&self) -> Option<&TextError> {
        self.replay.group().problem()
    }

    /// Whether too many texts wait to be written.
    pub fn is_behind(&self) -> bool {
        self.replay.group().is_behind()
    }

    /// The group; the damage if something is missing.
    pub fn finish(self) -> Result<ReplayedGroup, (io::Error, GroupSummary)> {
        let last = self.last;
        if self.is_whole()
            && let Some(started) = self.started
        {
            let group = self.replay.finish().expect("the replay is complete");
            return Ok(ReplayedGroup { group, started, last });
        }
        Err(self.damage())
    }
}

/// A group as its log gives it.
#[derive(Debug)]
pub struct ReplayedGroup {
    /// The group.
    pub group: Group,
    /// Time of the last start.
    pub started: ClockStamp,
    /// Time of the newest record.
    pub last: Moment,
}

fn damage(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Summary of a damaged group before the damage; empty if no earlier record can be read.
#[derive(Debug, Default)]
pub struct GroupSummary {
    /// Its feeding topics, each with the first seq that it had not consumed.
    pub feeds: BTreeMap<TopicName, Seq>,
    /// Its jobs, and whether each is done.
    pub jobs: Vec<(JobName, bool)>,
    /// Whether a job has a `callback=`.
    pub has_callbacks: bool,
}

impl GroupSummary {
    fn of(group: &Group) -> Self {
        let feeds = group.config().settings.topics.iter();
        let jobs = group.job_names();
        Self {
            feeds: feeds.map(|topic| (topic.clone(), group.next_to_consume(topic))).collect(),
            jobs: jobs.map(|job| (job.clone(), group.is_done(job) == Some(true))).collect(),
            has_callbacks: group.has_callbacks(),
        }
    }
}
