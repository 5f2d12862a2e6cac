//! Records that are written with one sync, merged where possible.

use std::collections::HashMap;

use tidings_protocol::{CursorName, ProtocolError, TopicName};

use super::contents::{Bounds, Coming, Contents};
use super::record::Record;

/// Records to be written with one sync.
///
/// A hundred moves of one cursor become one record, so that a subscriber which sends `SEEN` for
/// every event costs one line per sync.
#[derive(Debug, Default)]
pub(super) struct Turn {
    records: Vec<Record>,
    /// The index in `records` of the newest record for a key, into which a later one may be merged.
    newest: HashMap<Key, usize>,
    coming: Coming,
}

/// What a record is about, for merging.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    Reserved(TopicName),
    Cursor(TopicName, CursorName),
}

impl Turn {
    /// The records in order.
    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Adds a record, or rejects it. `contents` is the state before these records.
    pub(super) fn add(
        &mut self,
        record: Record,
        contents: &Contents,
        bounds: &Bounds,
    ) -> Result<(), ProtocolError> {
        let key = key(&record);
        let newest = key.as_ref().and_then(|key| self.newest.get(key));
        if newest.is_some_and(|at| absorb(&mut self.records[*at], &record)) {
            return Ok(());
        }
        contents.admit(&record, bounds, &mut self.coming)?;
        match key {
            Some(key) => drop(self.newest.insert(key, self.records.len())),
            // The record may end a topic or cursor, so later records must not be merged across it.
            None => self.newest.clear(),
        }
        self.records.push(record);
        Ok(())
    }
}

fn key(record: &Record) -> Option<Key> {
    match record {
        Record::Reserved { topic, .. } => Some(Key::Reserved(topic.clone())),
        Record::Cursor { topic, cursor, .. } | Record::Moved { topic, cursor, .. } => {
            Some(Key::Cursor(topic.clone(), cursor.clone()))
        }
        Record::Settings { .. } | Record::Deleted { .. } | Record::Forgotten { .. } => None,
    }
}

/// Merges `later` into `earlier` if one record can have the effect of both. Both have the same key.
fn absorb(earlier: &mut Record, later: &Record) -> bool {
    match (&mut *earlier, later) {
        (
            Record::Cursor { next, unix_ms, .. } | Record::Moved { next, unix_ms, .. },
            Record::Moved { next: later_next, unix_ms: later_unix_ms, .. },
        ) => {
            *next = (*next).max(*later_next);
            *unix_ms = *later_unix_ms;
            true
        }
        // The contents must check a new cursor against the limit.
        (Record::Moved { .. }, Record::Cursor { .. }) => false,
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
    use crate::config::Limits;

    fn turn(lines: &[&str]) -> Vec<String> {
        let (contents, bounds) = (Contents::default(), Bounds::new(&Limits::default()));
        let mut turn = Turn::default();
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
            (Contents::default(), Limits { cursors_max: 1, ..Limits::default() });
        let (mut turn, bounds) = (Turn::default(), Bounds::new(&limits));
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
            let mut contents = Contents::default();
            for record in &before {
                contents.apply(record);
            }
            let (mut turn, bounds) = (Turn::default(), Bounds::new(&Limits::default()));
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
