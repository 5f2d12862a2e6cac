//! Records that are written with one sync, merged where possible.

use std::collections::HashMap;

use tidings_protocol::{CursorName, ProtocolError, TopicName};

use super::contents::{CatalogContents, CatalogLimits, PendingAdditions};
use super::record::CatalogRecord;

/// Records to be written with one sync.
///
/// A hundred moves of one cursor become one record, so that a subscriber which sends `SEEN` for
/// every event costs one line per sync.
#[derive(Debug, Default)]
pub(super) struct WriteBatch {
    records: Vec<CatalogRecord>,
    /// The index in `records` of the newest record for a key, into which a later one may be merged.
    newest: HashMap<MergeKey, usize>,
    pending: PendingAdditions,
}

/// What a record is about, for merging.
#[derive(Debug, PartialEq, Eq, Hash)]
enum MergeKey {
    Reserved(TopicName),
    Cursor(TopicName, CursorName),
}

impl WriteBatch {
    pub(super) fn records(&self) -> &[CatalogRecord] {
        &self.records
    }

    /// Adds a record, or rejects it. `contents` is the state before these records.
    pub(super) fn add(
        &mut self,
        record: CatalogRecord,
        contents: &CatalogContents,
        bounds: &CatalogLimits,
    ) -> Result<(), ProtocolError> {
        let key = merge_key(&record);
        let newest = key.as_ref().and_then(|key| self.newest.get(key));
        if newest.is_some_and(|at| merge(&mut self.records[*at], &record)) {
            return Ok(());
        }
        contents.check_limits(&record, bounds, &mut self.pending)?;
        match key {
            Some(key) => drop(self.newest.insert(key, self.records.len())),
            // The record may end a topic or cursor, so later records must not be merged across it.
            None => self.newest.clear(),
        }
        self.records.push(record);
        Ok(())
    }
}

fn merge_key(record: &CatalogRecord) -> Option<MergeKey> {
    match record {
        CatalogRecord::Reserved { topic, .. } => Some(MergeKey::Reserved(topic.clone())),
        CatalogRecord::Cursor { topic, cursor, .. }
        | CatalogRecord::Moved { topic, cursor, .. } => {
            Some(MergeKey::Cursor(topic.clone(), cursor.clone()))
        }
        CatalogRecord::Settings { .. }
        | CatalogRecord::Deleted { .. }
        | CatalogRecord::Forgotten { .. } => None,
    }
}

/// Merges `later` into `earlier` if one record can have the effect of both. Both have the same key.
fn merge(earlier: &mut CatalogRecord, later: &CatalogRecord) -> bool {
    match (&mut *earlier, later) {
        (
            CatalogRecord::Cursor { next, unix_ms, .. }
            | CatalogRecord::Moved { next, unix_ms, .. },
            CatalogRecord::Moved { next: later_next, unix_ms: later_unix_ms, .. },
        ) => {
            *next = (*next).max(*later_next);
            *unix_ms = *later_unix_ms;
            true
        }
        // The contents must check a new cursor against the limit.
        (CatalogRecord::Moved { .. }, CatalogRecord::Cursor { .. }) => false,
        _ => {
            *earlier = later.clone();
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::record::tests::any_record;
    use super::*;
    use crate::limits::Limits;

    fn turn(lines: &[&str]) -> Vec<String> {
        let (contents, bounds) =
            (CatalogContents::default(), CatalogLimits::new(&Limits::default()));
        let mut turn = WriteBatch::default();
        for line in lines {
            turn.add(line.parse().unwrap(), &contents, &bounds).unwrap();
        }
        turn.records().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn pending_moves_are_merged() {
        let lines =
            ["moved a c 5 1", "reserved a 2", "moved a c 9 2", "reserved a 4", "moved a c 7 3"];
        assert_eq!(turn(&lines), ["moved a c 9 3", "reserved a 4"]);
        let lines = ["moved a c 5 1", "forgotten a c", "moved a c 9 2"];
        assert_eq!(turn(&lines), lines, "records are not merged across a removal");
    }

    #[test]
    fn a_cursor_created_twice_counts_once() {
        let (contents, limits) =
            (CatalogContents::default(), Limits { cursors_max: 1, ..Limits::default() });
        let (mut turn, bounds) = (WriteBatch::default(), CatalogLimits::new(&limits));
        let mut add = |line: &str| turn.add(line.parse().unwrap(), &contents, &bounds);
        assert!(add("cursor a c 1 0").is_ok());
        assert!(add("cursor a c 2 0").is_ok());
        assert!(add("cursor a d 1 0").is_err());
        assert!(add("moved a d 1 0").is_ok());
        assert!(add("cursor a d 1 0").is_err(), "the move did not create the cursor");
    }

    proptest! {
        #[test]
        fn a_turn_has_the_effect_of_its_records(
            before in prop::collection::vec(any_record(), 0..20),
            records in prop::collection::vec(any_record(), 0..40),
        ) {
            let mut contents = CatalogContents::default();
            for record in &before {
                contents.apply(record);
            }
            let (mut turn, bounds) = (WriteBatch::default(), CatalogLimits::new(&Limits::default()));
            let mut one_by_one = contents.clone();
            for record in records {
                one_by_one.apply(&record);
                turn.add(record, &contents, &bounds).unwrap();
            }
            turn.records().iter().for_each(|record| contents.apply(record));
            prop_assert_eq!(contents, one_by_one);
        }
    }
}
