//! Replay: rebuilds a group from the records of its log.

use super::Group;
use super::record::{Decision, GroupRecord};
use super::snapshot::SnapshotItem;
use super::texts::{TextReply, TextRequest};

/// A replay begins at the first record, or at a complete snapshot if earlier records are gone.
/// Where records are unreadable, it begins again at the next complete snapshot, if there is one.
#[derive(Debug)]
pub(crate) struct Replay {
    group: Group,
    base: ReplayBase,
}

/// What the replayed group rests on, which decides whether a record is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplayBase {
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
        group.dormant.defer_url_index();
        group.ready.defer();
        Self { group, base: ReplayBase::new(has_all) }
    }

    /// Requests the texts that the next record needs. The owner of a paged group executes all
    /// requests between this and [`apply`](Self::apply).
    pub(crate) fn prepare(&mut self, record: &GroupRecord) {
        self.group.request_texts_for(&record.decision);
    }

    /// Returns the next request to the owner.
    pub(crate) fn poll(&mut self) -> Option<TextRequest> {
        self.group.dormant.poll_request()
    }

    /// Takes the reply to a request.
    pub(crate) fn reply(&mut self, reply: TextReply) {
        self.group.texts_replied(reply, self.group.now);
    }

    /// Reports whether too many texts wait to be written.
    pub(crate) fn is_behind(&self) -> bool {
        self.group.is_behind()
    }

    /// Applies the next record, unless a text that it needs cannot be read
    /// ([`Group::problem`]).
    pub(crate) fn apply(&mut self, record: &GroupRecord) {
        if self.group.problem().is_none() && self.base.apply(record) {
            self.group.replay(record);
            self.group.compact_texts();
        }
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
        let group = &mut self.group;
        group.dormant.build_url_index();
        group.ready.start();
        for key in group.keys.ids() {
            group.offer(key, group.now);
        }
        self.is_complete().then_some(self.group)
    }
}

impl ReplayBase {
    /// Creates the base of a replay. `has_all` says whether its first record is the first ever
    /// written.
    pub(crate) fn new(has_all: bool) -> Self {
        if has_all { Self::Complete } else { Self::Missing }
    }

    /// Takes the next record into account. Returns whether it must be applied.
    pub(crate) fn apply(&mut self, record: &GroupRecord) -> bool {
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
