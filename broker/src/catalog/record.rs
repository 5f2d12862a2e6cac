//! Records of the catalog's journal, one line each.

use std::fmt;
use std::str::FromStr;

use tidings_log::InvalidRecord;
use tidings_protocol::{CursorName, Seq, Settings, TopicName, TopicSettings};

/// One change of the [`CatalogContents`](super::CatalogContents).
///
/// | line | effect |
/// |---|---|
/// | `settings <topic> sync=.. retain-bytes=.. retain-age=..` | sets the settings |
/// | `deleted <topic> <next>` | removes everything of the topic but its next seq |
/// | `reserved <topic> <below>` | the seqs below may have been assigned |
/// | `cursor <topic> <cursor> <next> <unix ms>` | creates the cursor, or sets it |
/// | `moved <topic> <cursor> <next> <unix ms>` | moves an existing cursor forward |
/// | `forgotten <topic> <cursor>` | removes the cursor |
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CatalogRecord {
    /// The settings of a topic.
    Settings { topic: TopicName, settings: TopicSettings },
    /// A topic was deleted with its cursors; a new one of that name begins at `next`. Seq 1 is the
    /// default and is not stored.
    Deleted { topic: TopicName, next: Seq },
    /// Seqs of a topic in memory below `below` may have been assigned, and must not be assigned
    /// again after a restart.
    Reserved { topic: TopicName, below: Seq },
    /// A durable cursor is at `next`, wherever it was before.
    Cursor {
        topic: TopicName,
        cursor: CursorName,
        /// The first seq that was not seen.
        next: Seq,
        /// When the cursor was last moved or used.
        unix_ms: i64,
    },
    /// A durable cursor is at `next` or further. A cursor that was removed meanwhile stays removed.
    Moved { topic: TopicName, cursor: CursorName, next: Seq, unix_ms: i64 },
    /// A durable cursor was removed.
    Forgotten { topic: TopicName, cursor: CursorName },
}

impl fmt::Display for CatalogRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings { topic, settings } => write!(f, "settings {topic} {settings}"),
            Self::Deleted { topic, next } => write!(f, "deleted {topic} {next}"),
            Self::Reserved { topic, below } => write!(f, "reserved {topic} {below}"),
            Self::Cursor { topic, cursor, next, unix_ms } => {
                write!(f, "cursor {topic} {cursor} {next} {unix_ms}")
            }
            Self::Moved { topic, cursor, next, unix_ms } => {
                write!(f, "moved {topic} {cursor} {next} {unix_ms}")
            }
            Self::Forgotten { topic, cursor } => write!(f, "forgotten {topic} {cursor}"),
        }
    }
}

impl FromStr for CatalogRecord {
    type Err = InvalidRecord;

    fn from_str(line: &str) -> Result<Self, InvalidRecord> {
        let mut words = line.split(' ');
        let record = parse_record(&mut words).ok_or(InvalidRecord)?;
        if words.next().is_none() { Ok(record) } else { Err(InvalidRecord) }
    }
}

fn parse_record<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<CatalogRecord> {
    let (kind, topic) = (words.next()?, parse_word(words)?);
    Some(match kind {
        "settings" => {
            let settings: Vec<_> = words.map(|word| word.split_once('=')).collect::<Option<_>>()?;
            let settings = TopicSettings::parse(settings).ok()?;
            CatalogRecord::Settings { topic, settings }
        }
        "deleted" => CatalogRecord::Deleted { topic, next: parse_word(words)? },
        "reserved" => CatalogRecord::Reserved { topic, below: parse_word(words)? },
        "forgotten" => CatalogRecord::Forgotten { topic, cursor: parse_word(words)? },
        "cursor" | "moved" => {
            let (cursor, next) = (parse_word(words)?, parse_word(words)?);
            let unix_ms = parse_word(words)?;
            match kind {
                "cursor" => CatalogRecord::Cursor { topic, cursor, next, unix_ms },
                _ => CatalogRecord::Moved { topic, cursor, next, unix_ms },
            }
        }
        _ => return None,
    })
}

fn parse_word<'a, T: FromStr>(words: &mut impl Iterator<Item = &'a str>) -> Option<T> {
    words.next()?.parse().ok()
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use tidings_protocol::{DURATION_MS_MAX, Sync};

    use super::*;

    fn name<T: FromStr<Err: fmt::Debug> + fmt::Debug>(
        names: [&'static str; 3],
    ) -> impl Strategy<Value = T> {
        prop::sample::select(names.to_vec()).prop_map(|name| name.parse().unwrap())
    }

    fn any_settings() -> impl Strategy<Value = TopicSettings> {
        let sync = prop::sample::select(Sync::ALL.to_vec());
        let (bytes, age) = (1 << 20..u64::MAX, 0..=DURATION_MS_MAX);
        (sync, bytes, age).prop_map(|(sync, retain_bytes, retain_age_ms)| TopicSettings {
            sync,
            retain_bytes,
            retain_age_ms,
        })
    }

    /// Records with few distinct names, so that they affect each other.
    pub(in crate::catalog) fn any_record() -> impl Strategy<Value = CatalogRecord> {
        let topic = || name(["new-url", "a", "TDB1"]);
        let cursor = || name(["indexer", "b", "7"]);
        let (next, unix_ms) = (|| (1_u64..9).prop_map(Seq), || any::<i64>());
        prop_oneof![
            1 => (topic(), any_settings())
                .prop_map(|(topic, settings)| CatalogRecord::Settings { topic, settings }),
            1 => (topic(), next()).prop_map(|(topic, next)| CatalogRecord::Deleted { topic, next }),
            1 => (topic(), next()).prop_map(|(topic, below)| CatalogRecord::Reserved { topic, below }),
            3 => (topic(), cursor(), next(), unix_ms()).prop_map(
                |(topic, cursor, next, unix_ms)| CatalogRecord::Cursor { topic, cursor, next, unix_ms }
            ),
            4 => (topic(), cursor(), next(), unix_ms()).prop_map(
                |(topic, cursor, next, unix_ms)| CatalogRecord::Moved { topic, cursor, next, unix_ms }
            ),
            1 => (topic(), cursor())
                .prop_map(|(topic, cursor)| CatalogRecord::Forgotten { topic, cursor }),
        ]
    }

    #[test]
    fn invalid_lines_are_rejected() {
        for line in [
            "",
            "deleted",
            "deleted a",
            "deleted a 0",
            "deleted a 1 2",
            "deleted a 1 ",
            " deleted a 1",
            "deleted ../a 1",
            "cursor a b 1 2.5",
            "settings a sync",
            "settings a sync=always x=1",
            "created a 1",
        ] {
            assert_eq!(line.parse::<CatalogRecord>(), Err(InvalidRecord), "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn records_are_read_as_they_are_written(record in any_record()) {
            let line = record.to_string();
            prop_assert!(!line.contains('\n'));
            prop_assert_eq!(line.parse(), Ok(record));
        }
    }
}
