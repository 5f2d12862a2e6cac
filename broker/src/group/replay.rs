//! A group that is made again from the records of its log.

use super::Group;
use super::record::{Decision, Record};
use super::snapshot::Item;

/// Begins with the first record, or with a whole snapshot if what was before that is gone. Where
/// something cannot be read, the group is made from the next whole snapshot behind that, if there is
/// one.
#[derive(Debug)]
pub(crate) struct Replay {
    group: Group,
    base: Base,
}

/// What a group is made from: which records a replay applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    /// Something is missing that was decided before.
    Missing,
    /// A snapshot that is not whole so far.
    Begun,
    /// Everything that was decided.
    Whole,
}

impl Replay {
    /// For records of which the first is, or is not, the first that there ever was.
    pub(crate) fn new(mut group: Group, has_all: bool) -> Self {
        group.parked.put_off_urls();
        group.ready.put_off();
        Self { group, base: Base::new(has_all) }
    }

    /// The next record.
    pub(crate) fn take(&mut self, record: &Record) {
        if self.base.take(record) {
            self.group.replay(record);
            self.group.tidy();
        }
    }

    /// The group as it is so far.
    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// Records are missing here.
    pub(crate) fn miss(&mut self) {
        self.base = Base::Missing;
    }

    /// Whether nothing that counts is missing so far.
    pub(crate) fn is_whole(&self) -> bool {
        self.base == Base::Whole
    }

    /// The group; `None` if something is missing.
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
    /// For records of which the first is, or is not, the first that there ever was.
    pub(crate) fn new(has_all: bool) -> Self {
        if has_all { Self::Whole } else { Self::Missing }
    }

    /// Takes in the next record; whether it is to be applied.
    pub(crate) fn take(&mut self, record: &Record) -> bool {
        let item = match &record.decision {
            Decision::Kept(item) => Some(&**item),
            _ => None,
        };
        match (item, *self) {
            // What a snapshot says is known without it.
            (Some(_), Self::Whole) => return false,
            (Some(Item::Begin { .. }), _) => *self = Self::Begun,
            (Some(Item::Abandoned), _) => {
                *self = Self::Missing;
                return false;
            }
            // That ended the snapshot, if it was not whole.
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
