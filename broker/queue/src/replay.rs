//! Replay: rebuilds a group from the records of its log.

use super::Group;
use super::record::{Decision, GroupRecord};
use super::snapshot::SnapshotItem;

/// A replay begins at the first record, or at a complete snapshot if earlier records are gone.
/// Where records are unreadable, it begins again at the next complete snapshot, if there is one.
#[derive(Debug)]
pub struct Replay {
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
    pub fn new(mut group: Group, has_all: bool) -> Self {
        group.dormant.defer_url_index();
        group.ready.defer();
        Self { group, base: ReplayBase::new(has_all) }
    }

    /// Applies the next record.
    pub fn apply(&mut self, record: &GroupRecord) {
        if self.base.apply(record) {
            self.group.replay(record);
            self.group.compact_texts();
        }
    }

    /// Returns the group as rebuilt so far.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Notes that records are missing here.
    pub fn mark_gap(&mut self) {
        self.base = ReplayBase::Missing;
    }

    /// Reports whether nothing relevant is missing so far.
    pub fn is_complete(&self) -> bool {
        self.base == ReplayBase::Complete
    }

    /// Returns the group; `None` if something is missing.
    pub fn finish(mut self) -> Option<Group> {
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
