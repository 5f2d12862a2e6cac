//! Replay: rebuilds a group from the records of its log.

use super::Group;
use super::record::{Decision, Record};
use super::snapshot::Item;

/// A replay begins at the first record, or at a complete snapshot if earlier records are gone.
/// Where records are unreadable, it begins again at the next complete snapshot, if there is one.
#[derive(Debug)]
pub(crate) struct Replay {
    group: Group,
    base: Base,
}

/// What the replayed group rests on, which decides whether a record is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    /// Earlier decisions are missing.
    Missing,
    /// A snapshot that is not complete yet.
    Begun,
    /// All decisions.
    Whole,
}

impl Replay {
    /// Starts a replay. `has_all` says whether the next record is the first that was ever written.
    pub(crate) fn new(mut group: Group, has_all: bool) -> Self {
        group.parked.put_off_urls();
        group.ready.put_off();
        Self { group, base: Base::new(has_all) }
    }

    /// Applies the next record.
    pub(crate) fn take(&mut self, record: &Record) {
        if self.base.take(record) {
            self.group.replay(record);
            self.group.tidy();
        }
    }

    /// Returns the group as rebuilt so far.
    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// Notes that records are missing here.
    pub(crate) fn miss(&mut self) {
        self.base = Base::Missing;
    }

    /// Reports whether nothing relevant is missing so far.
    pub(crate) fn is_whole(&self) -> bool {
        self.base == Base::Whole
    }

    /// Returns the group; `None` if something is missing.
    pub(crate) fn whole(mut self) -> Option<Group> {
        let group = &mut self.group;
        group.parked.index_urls();
        group.ready.begin();
        for key in group.keys.ids() {
            group.offer(key, group.now);
        }
        self.is_whole().then_some(self.group)
    }
}

impl Base {
    /// Creates the base of a replay. `has_all` says whether its first record is the first ever
    /// written.
    pub(crate) fn new(has_all: bool) -> Self {
        if has_all { Self::Whole } else { Self::Missing }
    }

    /// Takes the next record into account. Returns whether it must be applied.
    pub(crate) fn take(&mut self, record: &Record) -> bool {
        let item = match &record.decision {
            Decision::Kept(item) => Some(&**item),
            _ => None,
        };
        match (item, *self) {
            // The parts of a snapshot are known from the earlier records.
            (Some(_), Self::Whole) => return false,
            (Some(Item::Begin { .. }), _) => *self = Self::Begun,
            (Some(Item::Abandoned), _) => {
                *self = Self::Missing;
                return false;
            }
            // A start ended the snapshot before it was complete.
            (None, Self::Begun) if matches!(record.decision, Decision::Started { .. }) => {
                *self = Self::Missing;
                return false;
            }
            (Some(Item::End { .. }), Self::Begun) => *self = Self::Whole,
            (_, Self::Missing) => return false,
            _ => {}
        }
        true
    }
}
