//! Verification of a data directory that no broker uses. Changes nothing.
//!
//! Opens the directory as a start would, on a disk that drops writes, so the findings are those of
//! the next start. Then checks every checksum.

use std::path::Path;
use std::sync::Arc;

pub use tidings_log::StopRecord;
use tidings_log::{CheckedFile, FileSystem, LogId, SegmentStore};
use tidings_protocol::{GroupName, TopicName};

use crate::data_dir::DataDir;
pub use crate::groups::check::VerifiedGroup;
use crate::groups::check::verify_group;
use crate::{StartError, catalog};

/// The findings in a data directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// The topics on disk, sorted by name.
    pub topics: Vec<VerifiedTopic>,
    /// The groups on disk, sorted by name.
    pub groups: Vec<VerifiedGroup>,
    /// Groups with an interrupted repair. They are missing until the next start, or the next
    /// repair.
    pub interrupted_repairs: Vec<GroupName>,
    /// Descriptions of damage to the catalog.
    pub catalog: Vec<String>,
    /// Kept data of the catalog cannot be read.
    pub catalog_is_damaged: bool,
    /// Whether the ends of the logs at the last orderly stop are known.
    pub stopped: StopRecord,
}

/// The findings in one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedTopic {
    /// Its name.
    pub name: TopicName,
    /// Its files, oldest first.
    pub files: Vec<CheckedFile>,
    /// What the next start will log about the topic. The torn end that a crash leaves is not
    /// damage.
    pub findings: Vec<String>,
    /// A file is completely unreadable: the next start will set it aside, or fail.
    pub has_unreadable_file: bool,
    /// At the last orderly stop the log was longer.
    pub has_lost_end: bool,
}

impl VerifiedTopic {
    /// Whether kept data cannot be read.
    pub fn is_damaged(&self) -> bool {
        self.has_unreadable_file
            || self.has_lost_end
            || self.files.iter().any(CheckedFile::is_damaged)
    }
}

/// Verifies a data directory, or one topic of it. Blocks until everything is read.
///
/// Fails with [`StartError::DataInUse`] if a broker uses the directory; send `TOPIC verify` to that
/// broker instead.
pub fn verify(path: &Path, only: Option<&TopicName>) -> Result<Verified, StartError> {
    let failed = |source| StartError::Data { path: path.to_owned(), source };
    let data = DataDir::open_read_only(path)?;
    let store = SegmentStore::new(Arc::new(FileSystem), data.path());
    let names = store.names().map_err(failed)?;
    let is_wanted = |name: &TopicName| only.is_none_or(|only| name == only);
    let topics = names.topics.into_iter().filter(is_wanted);
    let mut verified = Verified {
        topics: topics.map(|name| verify_topic(&store, name)).collect(),
        stopped: store.stop_record().clone(),
        ..Verified::default()
    };
    if only.is_none() {
        (verified.catalog, verified.catalog_is_damaged) =
            catalog::check(&store).unwrap_or_else(|error| (vec![error.to_string()], true));
        let groups = names.groups.into_iter();
        verified.groups = groups.map(|name| verify_group(&store, name)).collect();
        verified.interrupted_repairs = names.interrupted_repairs;
    }
    Ok(verified)
}

fn verify_topic(store: &SegmentStore, name: TopicName) -> VerifiedTopic {
    let checked = store.check(&LogId::Topic(name.clone()));
    let mut topic = VerifiedTopic {
        name,
        files: checked.files,
        findings: checked.findings,
        has_unreadable_file: checked.has_unreadable_file,
        has_lost_end: checked.has_lost_end,
    };
    if let Err(error) = checked.log {
        topic.findings.push(error.to_string());
        topic.has_unreadable_file = true;
    }
    topic
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::PathBuf;

    use bytes::Bytes;
    use tidings_log::{LogPiece, LogPlan, Store};
    use tidings_protocol::Seq;

    use super::*;
    use crate::catalog::{Catalog, CatalogRecord};
    use crate::clock::Clock;
    use crate::limits::Limits;

    /// A data directory with settings for topic `t`, and three batches of two events in it.
    fn written() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let store = SegmentStore::new(Arc::new(FileSystem), folder.path());
        let topic: TopicName = "t".parse().unwrap();
        let plan = LogPlan { first: Seq(1), kept_bytes: 8 << 20 };
        let log = store.fresh(&LogId::Topic(topic.clone()), plan);
        for first in [1, 3, 5] {
            let wire = format!("MSG t {first} event {first}\r\nMSG t {} next\r\n", first + 1);
            let piece = LogPiece {
                first: Seq(first),
                count: 2,
                unix_ms: 1,
                wire: Bytes::from(wire),
                identified: false,
            };
            log.append(&[piece], Seq(first + 2), Seq(100)).unwrap();
            log.sync().unwrap();
        }
        log.close(Seq(7)).unwrap();
        let (catalog, findings) = Catalog::open(&store, &Limits::default(), Clock::new()).unwrap();
        assert_eq!(findings, [""; 0]);
        let settings = tidings_protocol::TopicSettings::default();
        catalog.write(CatalogRecord::Settings { topic, settings }, |done| done.unwrap());
        catalog.close();
        folder
    }

    fn segment(folder: &Path) -> PathBuf {
        let mut files = fs::read_dir(folder.join("topics/t")).unwrap();
        files.next().unwrap().unwrap().path()
    }

    fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        [folder.to_owned(), folder.join("topics/t")]
            .iter()
            .flat_map(|dir| fs::read_dir(dir).unwrap())
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file())
            .map(|path| (path.clone(), fs::read(&path).unwrap()))
            .collect()
    }

    /// Verifies, and checks that no file has changed.
    #[track_caller]
    fn verified(folder: &Path) -> Verified {
        let before = contents(folder);
        let verified = verify(folder, None).unwrap();
        assert!(contents(folder) == before, "a file has changed");
        verified
    }

    #[test]
    fn an_undamaged_directory_has_no_findings() {
        let folder = written();
        let Verified { topics, catalog, catalog_is_damaged, .. } = verified(folder.path());
        assert_eq!((catalog, catalog_is_damaged), (Vec::new(), false));
        let [topic] = &topics[..] else { panic!("{topics:?}") };
        assert!(!topic.is_damaged() && topic.findings.is_empty(), "{topic:?}");
        assert_eq!((topic.name.as_str(), topic.files[0].events), ("t", 6));
    }

    #[test]
    fn a_flipped_bit_loses_its_batch_and_is_reported() {
        let folder = written();
        let path = segment(folder.path());
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.windows(7).position(|bytes| bytes == b"event 3").unwrap();
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
        let topic = &verified(folder.path()).topics[0];
        assert!(topic.is_damaged());
        assert_eq!((topic.files[0].events, &topic.files[0].lost[..]), (4, &[(Seq(3), Seq(4))][..]));
    }

    #[test]
    fn an_unreadable_file_is_damage_and_is_not_moved() {
        let folder = written();
        fs::write(segment(folder.path()), b"garbage").unwrap();
        let topic = &verified(folder.path()).topics[0];
        assert!(topic.is_damaged() && topic.has_unreadable_file);
        assert!(topic.findings[0].contains("it ends before its header does"), "{topic:?}");

        let catalog = folder.path().join("catalog.log");
        let mut bytes = fs::read(&catalog).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        fs::write(catalog, bytes).unwrap();
        let verified = verified(folder.path());
        assert!(verified.catalog_is_damaged && !verified.catalog.is_empty(), "{verified:?}");
        let text = verified.catalog.join("; ");
        assert!(text.contains("catalog.log: ") && !text.contains("kept as"), "{text}");
    }

    #[test]
    fn a_missing_or_used_directory_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        assert!(matches!(verify(&missing, None), Err(StartError::Data { .. })));
        assert!(!missing.exists());
        let _held = DataDir::open(folder.path()).unwrap();
        assert!(matches!(verify(folder.path(), None), Err(StartError::DataInUse { .. })));
    }
}
