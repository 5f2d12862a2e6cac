//! The contents of the catalog: the result of its records.

use std::collections::BTreeMap;

use tidings_log::{InvalidRecord, JournalContents};
use tidings_protocol::{Code, CursorName, ProtocolError, Seq, TopicName, TopicSettings};

use super::record::CatalogRecord;
use crate::limits::Limits;

/// Everything but events that must survive a restart.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct CatalogContents {
    /// No entry equals the default.
    topics: BTreeMap<TopicName, TopicEntry>,
    /// Number of cursors of all topics.
    cursors: usize,
    /// Number of deleted topics with a stored next seq.
    deleted: usize,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct TopicEntry {
    settings: Option<TopicSettings>,
    deleted: Option<Seq>,
    reserved: Option<Seq>,
    cursors: BTreeMap<CursorName, StoredCursor>,
}

/// The position of a durable cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredCursor {
    /// The first seq that was not seen.
    pub(crate) next: Seq,
    /// When the cursor was last moved or used.
    pub(crate) unix_ms: i64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct CatalogLimits {
    cursors_max: usize,
    deleted_max: usize,
}

/// Additions that are pending and count towards the limits.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct PendingAdditions {
    cursors: usize,
    deleted: usize,
}

impl CatalogLimits {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { cursors_max: limits.cursors_max, deleted_max: limits.deleted_topics_max }
    }
}

impl CatalogContents {
    /// Applies a record. The order of records matters.
    pub(crate) fn apply(&mut self, record: &CatalogRecord) {
        let topic = match record {
            CatalogRecord::Settings { topic, .. }
            | CatalogRecord::Deleted { topic, .. }
            | CatalogRecord::Reserved { topic, .. }
            | CatalogRecord::Cursor { topic, .. }
            | CatalogRecord::Moved { topic, .. }
            | CatalogRecord::Forgotten { topic, .. } => topic,
        };
        let mut entry = self.topics.remove(topic).unwrap_or_default();
        self.cursors -= entry.cursors.len();
        self.deleted -= usize::from(entry.deleted.is_some());
        entry.apply(record);
        self.cursors += entry.cursors.len();
        self.deleted += usize::from(entry.deleted.is_some());
        if entry != TopicEntry::default() {
            self.topics.insert(topic.clone(), entry);
        }
    }

    /// Records that reproduce these contents when they are applied to empty ones.
    pub(crate) fn snapshot(&self) -> impl Iterator<Item = CatalogRecord> {
        self.topics.iter().flat_map(|(topic, entry)| entry.snapshot(topic))
    }

    /// Checks a record against the limits, together with the pending additions in `coming`. An
    /// accepted addition is added to those.
    pub(super) fn check_limits(
        &self,
        record: &CatalogRecord,
        bounds: &CatalogLimits,
        coming: &mut PendingAdditions,
    ) -> Result<(), ProtocolError> {
        match record {
            CatalogRecord::Cursor { topic, cursor, .. } if self.cursor(topic, cursor).is_none() => {
                let max = bounds.cursors_max;
                if self.cursors + coming.cursors >= max {
                    let text = format!(
                        "there are already {max} durable cursors, which is the limit; TOPIC forget \
                         removes one"
                    );
                    return Err(ProtocolError::new(Code::Limit, text));
                }
                coming.cursors += 1;
            }
            CatalogRecord::Deleted { topic, next }
                if next.0 > 1 && self.next_of_deleted(topic).is_none() =>
            {
                let max = bounds.deleted_max;
                if self.deleted + coming.deleted >= max {
                    let text = format!(
                        "the next seqs of {max} deleted topics are kept, which is the limit"
                    );
                    return Err(ProtocolError::new(Code::Limit, text));
                }
                coming.deleted += 1;
            }
            _ => {}
        }
        Ok(())
    }

    /// The settings of a topic, if it has its own.
    pub(crate) fn settings(&self, topic: &TopicName) -> Option<TopicSettings> {
        self.topics.get(topic)?.settings
    }

    /// All topics with their own settings, sorted by name.
    pub(crate) fn with_settings(&self) -> impl Iterator<Item = (&TopicName, TopicSettings)> {
        self.topics.iter().filter_map(|(topic, entry)| Some((topic, entry.settings?)))
    }

    /// The seq at which a deleted topic begins again.
    pub(crate) fn next_of_deleted(&self, topic: &TopicName) -> Option<Seq> {
        self.topics.get(topic)?.deleted
    }

    /// The seq below which a topic in memory may have assigned all seqs.
    pub(crate) fn reserved(&self, topic: &TopicName) -> Option<Seq> {
        self.topics.get(topic)?.reserved
    }

    pub(crate) fn cursor(&self, topic: &TopicName, cursor: &CursorName) -> Option<StoredCursor> {
        self.topics.get(topic)?.cursors.get(cursor).copied()
    }

    /// The durable cursors on a topic, sorted by name.
    pub(crate) fn cursors(
        &self,
        topic: &TopicName,
    ) -> impl Iterator<Item = (&CursorName, StoredCursor)> {
        let cursors = self.topics.get(topic).map(|entry| &entry.cursors);
        cursors.into_iter().flatten().map(|(name, cursor)| (name, *cursor))
    }

    /// All durable cursors, by topic.
    pub(crate) fn all_cursors(
        &self,
    ) -> impl Iterator<Item = (&TopicName, &CursorName, StoredCursor)> {
        self.topics.iter().flat_map(|(topic, entry)| {
            entry.cursors.iter().map(move |(name, cursor)| (topic, name, *cursor))
        })
    }
}

impl JournalContents for CatalogContents {
    fn apply(&mut self, records: &[&str]) -> Result<(), InvalidRecord> {
        let records = records.iter().map(|line| line.parse()).collect::<Result<Vec<_>, _>>()?;
        for record in &records {
            self.apply(record);
        }
        Ok(())
    }

    fn snapshot(&self) -> Box<dyn Iterator<Item = String> + '_> {
        Box::new(self.snapshot().map(|record| record.to_string()))
    }
}

impl TopicEntry {
    fn apply(&mut self, record: &CatalogRecord) {
        match record {
            CatalogRecord::Settings { settings, .. } => self.settings = Some(*settings),
            CatalogRecord::Deleted { next, .. } => {
                *self = Self { deleted: (next.0 > 1).then_some(*next), ..Self::default() };
            }
            CatalogRecord::Reserved { below, .. } => self.reserved = Some(*below),
            CatalogRecord::Cursor { cursor, next, unix_ms, .. } => {
                self.cursors
                    .insert(cursor.clone(), StoredCursor { next: *next, unix_ms: *unix_ms });
            }
            CatalogRecord::Moved { cursor, next, unix_ms, .. } => {
                if let Some(found) = self.cursors.get_mut(cursor) {
                    *found = StoredCursor { next: found.next.max(*next), unix_ms: *unix_ms };
                }
            }
            CatalogRecord::Forgotten { cursor, .. } => {
                self.cursors.remove(cursor);
            }
        }
    }

    fn snapshot(&self, topic: &TopicName) -> impl Iterator<Item = CatalogRecord> {
        // A deletion resets everything before it, so it comes first.
        let deleted =
            self.deleted.map(|next| CatalogRecord::Deleted { topic: topic.clone(), next });
        let settings = self.settings;
        let settings =
            settings.map(|settings| CatalogRecord::Settings { topic: topic.clone(), settings });
        let reserved = self.reserved;
        let reserved =
            reserved.map(|below| CatalogRecord::Reserved { topic: topic.clone(), below });
        let cursors = self.cursors.iter().map(|(cursor, at)| CatalogRecord::Cursor {
            topic: topic.clone(),
            cursor: cursor.clone(),
            next: at.next,
            unix_ms: at.unix_ms,
        });
        deleted.into_iter().chain(settings).chain(reserved).chain(cursors)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::record::tests::any_record;
    use super::*;

    fn contents(lines: &str) -> CatalogContents {
        let mut contents = CatalogContents::default();
        lines.lines().for_each(|line| contents.apply(&line.parse().unwrap()));
        contents
    }

    fn lines(contents: &CatalogContents) -> Vec<String> {
        contents.snapshot().map(|record| record.to_string()).collect()
    }

    // PROTOCOL: K7, R7
    #[test]
    fn a_deleted_topic_keeps_only_its_next_seq() {
        let before = "settings a sync=memory retain-bytes=1g retain-age=30d\nreserved a 9\n\
                      cursor a c 3 0\n";
        assert_eq!(lines(&contents(&format!("{before}deleted a 7"))), ["deleted a 7"]);
        assert!(lines(&contents(&format!("{before}deleted a 1"))).is_empty());
        // A move that was pending does not restore the cursor.
        let after = contents(&format!("{before}deleted a 7\nmoved a c 5 1"));
        assert_eq!(lines(&after), ["deleted a 7"]);
    }

    #[test]
    fn a_move_neither_moves_back_nor_restores_a_cursor() {
        let moved = contents("cursor a c 3 10\nmoved a c 7 20\nmoved a c 5 30");
        assert_eq!(lines(&moved), ["cursor a c 7 30"]);
        assert!(lines(&contents("cursor a c 3 10\nforgotten a c\nmoved a c 7 20")).is_empty());
        assert_eq!(lines(&contents("cursor a c 3 10\ncursor a c 1 20")), ["cursor a c 1 20"]);
    }

    #[test]
    fn cursors_and_deleted_topics_are_limited() {
        let bounds = CatalogLimits { cursors_max: 2, deleted_max: 1 };
        let contents = contents("cursor a c 3 10\ndeleted b 4");
        let mut coming = PendingAdditions::default();
        let mut admitted = |line: &str| {
            let record = line.parse().unwrap();
            contents.check_limits(&record, &bounds, &mut coming).map_err(|error| error.code)
        };
        assert_eq!(admitted("cursor a c 1 0"), Ok(()), "the cursor exists");
        assert_eq!(admitted("cursor b c 1 0"), Ok(()));
        assert_eq!(admitted("cursor c c 1 0"), Err(Code::Limit));
        assert_eq!(admitted("moved c c 1 0"), Ok(()), "it changes nothing");
        assert_eq!(admitted("deleted b 9"), Ok(()));
        assert_eq!(admitted("deleted a 9"), Err(Code::Limit));
        assert_eq!(admitted("deleted a 1"), Ok(()), "seq 1 is the default");
    }

    proptest! {
        // A broker that copies another one applies the newest records again after a crash.
        #[test]
        fn the_newest_records_change_nothing_when_they_are_applied_again(
            records in prop::collection::vec(any_record(), 0..40), newest: usize,
        ) {
            let mut contents = CatalogContents::default();
            for record in &records {
                contents.apply(record);
            }
            let mut again = contents.clone();
            for record in &records[newest % (records.len() + 1)..] {
                again.apply(record);
            }
            prop_assert_eq!(again, contents);
        }

        #[test]
        fn a_snapshot_gives_the_same_contents(records in prop::collection::vec(any_record(), 0..40)) {
            let mut contents = CatalogContents::default();
            for record in &records {
                contents.apply(record);
            }
            let mut again = CatalogContents::default();
            contents.snapshot().for_each(|record| again.apply(&record));
            prop_assert_eq!(&again, &contents);
            prop_assert_eq!(contents.all_cursors().count(), contents.cursors);
            let deleted = contents.topics.values().filter(|entry| entry.deleted.is_some()).count();
            prop_assert_eq!(deleted, contents.deleted);
        }
    }
}
