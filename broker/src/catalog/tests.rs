//! Tests of catalogs on disk, and on a failing disk.

use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use tempfile::TempDir;
use tidings_log::{Disk, DiskFile, DiskSpace, FileSystem};

use super::*;
use crate::TEST_LIMIT;

fn try_open(disk: &Arc<dyn Disk>, dir: &TempDir) -> io::Result<(Catalog, Vec<String>)> {
    let store = SegmentStore::new(Arc::clone(disk), dir.path());
    Catalog::open(&store, &Limits::default(), Clock::new())
}

fn open(disk: &Arc<dyn Disk>, dir: &TempDir) -> (Catalog, Vec<String>) {
    try_open(disk, dir).unwrap()
}

fn file_system() -> (Arc<dyn Disk>, TempDir) {
    (Arc::new(FileSystem), tempfile::tempdir().unwrap())
}

type Answer = Receiver<Result<(), Code>>;

fn write(catalog: &Catalog, line: &str) -> Answer {
    let (sender, receiver) = channel();
    catalog.write(line.parse().unwrap(), move |result| {
        // Some tests drop the receiver.
        let _ = sender.send(result.map_err(|error| error.code));
    });
    receiver
}

#[track_caller]
fn answer(receiver: &Answer) -> Result<(), Code> {
    receiver.recv_timeout(TEST_LIMIT).expect("the catalog answers in time")
}

#[track_caller]
fn written(catalog: &Catalog, line: &str) {
    assert_eq!(answer(&write(catalog, line)), Ok(()), "{line}");
}

fn lines(catalog: &Catalog) -> Vec<String> {
    catalog.contents().snapshot().map(|record| record.to_string()).collect()
}

#[test]
fn confirmed_records_survive_a_restart() {
    let (disk, dir) = file_system();
    let (catalog, findings) = open(&disk, &dir);
    assert!(findings.is_empty());
    assert!(!dir.path().join("catalog.log").exists(), "the first record creates the file");
    written(&catalog, "cursor a c 3 10");
    written(&catalog, "moved a c 7 20");
    let last = write(&catalog, "reserved a 5");
    catalog.close();
    assert_eq!(answer(&last), Ok(()), "close writes queued records");
    assert_eq!(answer(&write(&catalog, "reserved a 6")), Err(Code::Closing));
    let (catalog, findings) = open(&disk, &dir);
    assert!(findings.is_empty(), "{findings:?}");
    assert_eq!(lines(&catalog), ["reserved a 5", "cursor a c 7 20"]);
}

#[test]
fn records_in_memory_take_effect_at_once() {
    let catalog = Catalog::in_memory(&Limits { cursors_max: 1, ..Limits::default() });
    assert_eq!(write(&catalog, "cursor a c 3 10").try_recv(), Ok(Ok(())));
    assert_eq!(write(&catalog, "cursor a d 3 10").try_recv(), Ok(Err(Code::Limit)));
    assert_eq!(lines(&catalog), ["cursor a c 3 10"]);
    catalog.close();
    assert_eq!(write(&catalog, "forgotten a c").try_recv(), Ok(Err(Code::Closing)));
}

#[test]
fn the_last_clone_may_be_dropped_by_a_callback() {
    let (disk, dir) = file_system();
    let (catalog, _) = open(&disk, &dir);
    let (sender, receiver) = channel();
    let last = catalog.clone();
    catalog.write("reserved a 5".parse().unwrap(), move |result| {
        drop(last);
        sender.send(result.is_ok()).unwrap();
    });
    drop(catalog);
    assert_eq!(receiver.recv_timeout(TEST_LIMIT), Ok(true));
}

#[test]
fn the_journal_is_compacted_when_most_of_it_is_obsolete() {
    let (disk, dir) = file_system();
    let (catalog, _) = open(&disk, &dir);
    let mut longest = 0;
    // Deletions are never merged, so each is written.
    for n in 0..60_000_u64 {
        let receiver = write(&catalog, &format!("deleted {} {}", "x".repeat(60), n + 2));
        if n % 1000 == 0 {
            answer(&receiver).unwrap();
            longest = longest.max(dir.path().join("catalog.log").metadata().unwrap().len());
        }
    }
    catalog.close();
    assert!(longest < 2 << 20, "{longest} bytes");
    let (catalog, findings) = open(&disk, &dir);
    assert!(findings.is_empty(), "{findings:?}");
    assert_eq!(lines(&catalog), [format!("deleted {} 60001", "x".repeat(60))]);
}

#[test]
fn a_damaged_journal_is_kept_and_its_valid_records_apply() {
    let (disk, dir) = file_system();
    let path = dir.path().join("catalog.log");
    let (catalog, _) = open(&disk, &dir);
    written(&catalog, "cursor a lost 3 10");
    let end = usize::try_from(path.metadata().unwrap().len()).unwrap();
    written(&catalog, "cursor a kept 3 10");
    catalog.close();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[end - 1] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let (catalog, findings) = open(&disk, &dir);
    assert!(findings.iter().any(|text| text.contains("are not a valid batch")), "{findings:?}");
    assert_eq!(lines(&catalog), ["cursor a kept 3 10"]);
    let aside: Vec<_> = disk.list(dir.path()).unwrap();
    let aside = aside.iter().find(|name| name.starts_with("catalog.log.damaged-")).unwrap();
    assert_eq!(std::fs::read(dir.path().join(aside)).unwrap(), bytes);
    written(&catalog, "cursor a new 3 10");
    catalog.close();
    let (catalog, findings) = open(&disk, &dir);
    assert!(findings.is_empty(), "{findings:?}");
    assert_eq!(lines(&catalog), ["cursor a kept 3 10", "cursor a new 3 10"]);
}

#[test]
fn an_empty_file_is_not_an_empty_catalog() {
    let (disk, dir) = file_system();
    std::fs::write(dir.path().join("catalog.log"), "").unwrap();
    let (catalog, findings) = open(&disk, &dir);
    assert!(findings[0].contains("ends before its header"), "{findings:?}");
    written(&catalog, "reserved a 5");
}

#[test]
fn an_unreadable_journal_is_an_error() {
    let (disk, dir) = file_system();
    let path = dir.path().join("catalog.log");
    std::fs::create_dir(&path).unwrap();
    let error = try_open(&disk, &dir).unwrap_err().to_string();
    assert!(error.starts_with(path.to_str().unwrap()), "{error}");
}

#[test]
fn a_torn_end_is_cut_off_and_overwritten() {
    let (disk, dir) = file_system();
    let path = dir.path().join("catalog.log");
    let (catalog, _) = open(&disk, &dir);
    written(&catalog, "cursor a c 3 10");
    written(&catalog, "moved a c 7 20");
    catalog.close();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let (catalog, findings) = open(&disk, &dir);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(lines(&catalog), ["cursor a c 3 10"]);
    written(&catalog, "moved a c 5 30");
    catalog.close();
    let (catalog, findings) = open(&disk, &dir);
    assert!(findings.is_empty(), "{findings:?}");
    assert_eq!(lines(&catalog), ["cursor a c 5 30"]);
}

/// The file system, with a number of bytes that can be written and of syncs that succeed.
#[derive(Debug, Clone)]
struct Failing {
    room: Arc<AtomicUsize>,
    syncs: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct FailingFile(Arc<dyn DiskFile>, Failing);

impl Failing {
    fn take(left: &AtomicUsize, wanted: usize) -> Result<(), usize> {
        let less = |left: usize| left.checked_sub(wanted);
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).map(drop)
    }
}

impl Disk for Failing {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        FileSystem.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        FileSystem.list(dir)
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(FailingFile(FileSystem.create(path)?, self.clone())))
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(FailingFile(FileSystem.open(path)?, self.clone())))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        FileSystem.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        FileSystem.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        FileSystem.sync_dir(dir)
    }
    fn space(&self, dir: &Path) -> io::Result<DiskSpace> {
        FileSystem.space(dir)
    }
}

impl DiskFile for FailingFile {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }
    fn write_at(&self, pieces: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        if let Err(room) = Failing::take(&self.1.room, bytes.len()) {
            self.0.write_at(&mut [IoSlice::new(&bytes[..room])], offset)?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.write_at(&mut [IoSlice::new(&bytes)], offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        Failing::take(&self.1.syncs, 1).map_err(|_| io::Error::other("the disk is gone"))?;
        self.0.sync_data()
    }
    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }
    fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        self.0.allocate(offset, length)
    }
}

fn failing() -> (Failing, Arc<dyn Disk>, TempDir) {
    let plenty = || Arc::new(AtomicUsize::new(1 << 30));
    let failing = Failing { room: plenty(), syncs: plenty() };
    (failing.clone(), Arc::new(failing), tempfile::tempdir().unwrap())
}

#[test]
fn a_full_disk_rejects_records_until_there_is_room() {
    let (failing, disk, dir) = failing();
    let (catalog, _) = open(&disk, &dir);
    for room in [0, 100, 200] {
        failing.room.store(room, Ordering::Relaxed);
        assert_eq!(answer(&write(&catalog, "cursor a c 3 10")), Err(Code::Full), "{room}");
    }
    failing.room.store(1000, Ordering::Relaxed);
    written(&catalog, "cursor a c 3 10");
    let path = dir.path().join("catalog.log");
    let before = std::fs::read(&path).unwrap();
    for room in [0, 1, 63, 70] {
        failing.room.store(room, Ordering::Relaxed);
        assert_eq!(answer(&write(&catalog, "moved a c 7 20")), Err(Code::Full), "{room}");
        assert_eq!(std::fs::read(&path).unwrap(), before, "the rejected record is not in the file");
    }
    assert_eq!(lines(&catalog), ["cursor a c 3 10"]);
    failing.room.store(1000, Ordering::Relaxed);
    written(&catalog, "moved a c 5 30");
    catalog.close();
    assert_eq!(lines(&open(&disk, &dir).0), ["cursor a c 5 30"]);
}

#[test]
fn a_failed_sync_is_final() {
    let (failing, disk, dir) = failing();
    let (catalog, _) = open(&disk, &dir);
    written(&catalog, "cursor a c 3 10");
    failing.syncs.store(0, Ordering::Relaxed);
    assert_eq!(answer(&write(&catalog, "moved a c 7 20")), Err(Code::NotDurable));
    failing.syncs.store(1000, Ordering::Relaxed);
    assert_eq!(answer(&write(&catalog, "moved a c 8 30")), Err(Code::NotDurable));
    assert_eq!(lines(&catalog), ["cursor a c 3 10"], "records that are not durable have no effect");
}

#[test]
fn damage_on_a_full_disk_is_set_aside_once_there_is_room() {
    let (failing, disk, dir) = failing();
    let path: PathBuf = dir.path().join("catalog.log");
    let (catalog, _) = open(&disk, &dir);
    written(&catalog, "cursor a c 3 10");
    catalog.close();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[0] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    failing.room.store(0, Ordering::Relaxed);
    let (catalog, findings) = open(&disk, &dir);
    assert!(findings.iter().any(|text| text.contains("no room")), "{findings:?}");
    assert_eq!(lines(&catalog), ["cursor a c 3 10"]);
    assert_eq!(answer(&write(&catalog, "moved a c 7 20")), Err(Code::Full));
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    failing.room.store(10_000, Ordering::Relaxed);
    written(&catalog, "moved a c 7 20");
    let mut names = disk.list(dir.path()).unwrap();
    names.sort();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(std::fs::read(dir.path().join(&names[1])).unwrap(), bytes);
}
