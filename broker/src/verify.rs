//! Checking a data directory in which no broker works, without changing anything.
//!
//! It is opened as a start would open it, on a disk that only pretends to write: so what is said here
//! is what the next start will say and do. Then every checksum is checked.

use std::fs;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidings_protocol::{Seq, TopicName};

use crate::StartError;
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::config::Limits;
use crate::data_dir::DataDir;
use crate::log::disk::{Disk, DiskFile, FileSystem, Space};
use crate::log::{Checked, SegmentLog, SegmentOptions, TopicLog};

/// What was found in a data directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Topics that are on the disk, in the order of their names.
    pub topics: Vec<VerifiedTopic>,
    /// What the next start will say of the catalog, in words.
    pub catalog: Vec<String>,
    /// Something that was kept in the catalog cannot be read.
    pub catalog_is_damaged: bool,
}

/// What was found of one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedTopic {
    /// Its name.
    pub name: TopicName,
    /// Its files, oldest first.
    pub files: Vec<Checked>,
    /// What the next start will say of it, in words. The torn end that a crash leaves is not damage.
    pub findings: Vec<String>,
    /// A file cannot be read at all: the next start will set it aside, or refuse to start.
    pub has_unreadable_file: bool,
}

impl VerifiedTopic {
    /// Whether something that was kept cannot be read.
    pub fn is_damaged(&self) -> bool {
        self.has_unreadable_file || self.files.iter().any(Checked::is_damaged)
    }
}

/// Checks everything in a data directory, or one topic of it. Blocks for as long as it takes to read
/// it all.
///
/// Fails with [`StartError::DataInUse`] if a broker works there: ask that one (`TOPIC verify`).
pub fn verify(path: &Path, only: Option<&TopicName>) -> Result<Verified, StartError> {
    let failed = |source| StartError::Data { path: path.to_owned(), source };
    // To look for it does not make it.
    fs::metadata(path).map_err(failed)?;
    let data = DataDir::open(path)?;
    let mut verified = Verified::default();
    if only.is_none() {
        (verified.catalog, verified.catalog_is_damaged) = verify_catalog(data.path());
    }
    let mut names = match fs::read_dir(data.topics()) {
        Ok(entries) => entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().parse::<TopicName>().ok()))
            .filter_map(Result::transpose)
            .collect::<io::Result<Vec<_>>>()
            .map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(failed(error)),
    };
    names.retain(|name| only.is_none_or(|only| name == only));
    names.sort();
    verified.topics = names.into_iter().map(|name| verify_topic(&data, name)).collect();
    Ok(verified)
}

fn verify_catalog(dir: &Path) -> (Vec<String>, bool) {
    let disk = Arc::new(Pretence::default());
    match Catalog::open(disk.clone(), dir, &Limits::default(), Clock::new()) {
        Ok((catalog, findings)) => {
            catalog.close();
            (findings, disk.sets_aside())
        }
        Err(error) => (vec![error.to_string()], true),
    }
}

fn verify_topic(data: &DataDir, name: TopicName) -> VerifiedTopic {
    let disk = Arc::new(Pretence::default());
    let options = SegmentOptions {
        disk: disk.clone(),
        dir: data.topic(&name),
        topic: name.clone(),
        first: Seq(1),
        segment_bytes: u64::MAX,
        reserve_part: 1,
    };
    let mut topic =
        VerifiedTopic { name, files: Vec::new(), findings: Vec::new(), has_unreadable_file: false };
    let checked = SegmentLog::open(options, 0).and_then(|(log, recovered)| {
        topic.findings = recovered.findings;
        log.verify().map_err(io::Error::other)
    });
    match checked {
        Ok(files) => topic.files = files,
        Err(error) => {
            topic.findings.push(error.to_string());
            topic.has_unreadable_file = true;
        }
    }
    topic.has_unreadable_file |= disk.sets_aside();
    topic
}

/// The file system, on which nothing changes.
#[derive(Debug, Default)]
struct Pretence {
    sets_aside: AtomicBool,
}

impl Pretence {
    /// Whether a file would have been set aside. What cannot be read is kept under a name that says
    /// so.
    fn sets_aside(&self) -> bool {
        self.sets_aside.load(Ordering::Relaxed)
    }

    fn note(&self, path: &Path) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.sets_aside.fetch_or(name.contains(".damaged"), Ordering::Relaxed);
    }
}

impl Disk for Pretence {
    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        FileSystem.list(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.note(path);
        Ok(Arc::new(Pretended(None)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(Pretended(Some(FileSystem.open(path)?))))
    }

    fn rename(&self, _from: &Path, to: &Path) -> io::Result<()> {
        self.note(to);
        Ok(())
    }

    fn remove(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        FileSystem.space(dir)
    }
}

/// A file that is only read; one that would be new is empty.
#[derive(Debug)]
struct Pretended(Option<Arc<dyn DiskFile>>);

impl DiskFile for Pretended {
    fn len(&self) -> io::Result<u64> {
        self.0.as_ref().map_or(Ok(0), |file| file.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.as_ref().map_or(Ok(0), |file| file.read_at(buffer, offset))
    }

    fn write_at(&self, _pieces: &mut [IoSlice<'_>], _offset: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn allocate(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use bytes::Bytes;

    use super::*;
    use crate::catalog::Record;
    use crate::log::Piece;

    /// A data directory with a topic `t` of three batches of two events, and settings of it.
    fn written() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir::open(folder.path()).unwrap();
        let (disk, topic): (Arc<dyn Disk>, TopicName) =
            (Arc::new(FileSystem), "t".parse().unwrap());
        let options = SegmentOptions {
            disk: disk.clone(),
            dir: data.topic(&topic),
            topic: topic.clone(),
            first: Seq(1),
            segment_bytes: 1 << 20,
            reserve_part: 1,
        };
        let log = SegmentLog::fresh(options);
        for first in [1, 3, 5] {
            let wire = format!("MSG t {first} event {first}\r\nMSG t {} next\r\n", first + 1);
            let piece = Piece {
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
        let (catalog, findings) =
            Catalog::open(disk, folder.path(), &Limits::default(), Clock::new()).unwrap();
        assert_eq!(findings, [""; 0]);
        let settings = crate::TopicSettings::default();
        catalog.write(Record::Settings { topic, settings }, |done| done.unwrap());
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
            .filter(|path| path.is_file() && !path.ends_with("lock"))
            .map(|path| (path.clone(), fs::read(&path).unwrap()))
            .collect()
    }

    /// Verifies, and sees to it that nothing has changed.
    #[track_caller]
    fn verified(folder: &Path) -> Verified {
        let before = contents(folder);
        let verified = verify(folder, None).unwrap();
        assert!(contents(folder) == before, "a file has changed");
        verified
    }

    #[test]
    fn what_is_whole_is_said_to_be() {
        let folder = written();
        let Verified { topics, catalog, catalog_is_damaged } = verified(folder.path());
        assert_eq!((catalog, catalog_is_damaged), (Vec::new(), false));
        let [topic] = &topics[..] else { panic!("{topics:?}") };
        assert!(!topic.is_damaged() && topic.findings.is_empty(), "{topic:?}");
        assert_eq!((topic.name.as_str(), topic.files[0].events), ("t", 6));
    }

    #[test]
    fn a_flipped_bit_loses_its_batch_and_says_so() {
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
    fn a_file_of_garbage_is_damage_and_stays_where_it_is() {
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
    }

    #[test]
    fn a_directory_that_is_missing_or_in_use_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        assert!(matches!(verify(&missing, None), Err(StartError::Data { .. })));
        assert!(!missing.exists());
        let _held = DataDir::open(folder.path()).unwrap();
        assert!(matches!(verify(folder.path(), None), Err(StartError::DataInUse { .. })));
    }
}
