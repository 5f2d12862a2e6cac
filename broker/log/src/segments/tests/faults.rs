//! Tests on full and failing disks.

use std::io;
use std::sync::Arc;

use tidings_protocol::Seq;

use super::{BUFFER, DIR, Heard, events, fill, hear, newest, open, options, piece};
use crate::format::{BATCH_HEADER, SEGMENT_HEADER};
use crate::segments::SegmentLog;
use crate::simulation::{DiskFaults, SimulatedDisk};
use crate::topic_log::{LogError, Retention, TopicLog};

const SEGMENT_BYTES: u64 = 4 << 10;

/// A log with one event, on a disk with room for `bytes` more.
fn nearly_full(bytes: u64, hides_full: bool) -> (SimulatedDisk, SegmentLog) {
    let disk = SimulatedDisk::new(7);
    disk.set_faults(DiskFaults { hides_full, no_allocate: true, ..DiskFaults::default() });
    let (log, _) = open(&disk, SEGMENT_BYTES);
    fill(&log, &[(1, 1)]);
    disk.set_room(disk.used() + bytes);
    (disk, log)
}

// PROTOCOL: R4
#[test]
fn a_full_disk_rejects_events_until_there_is_room() {
    for hides_full in [false, true] {
        for room in 0..150 {
            let (disk, log) = nearly_full(room, hides_full);
            let (before, file) = (log.bounds(), newest(&disk).1);
            let refused = log.append(&[piece(2, 5, 0, 7)], Seq(7), Seq(7));
            assert!(matches!(refused, Err(LogError::Full)), "{refused:?}");
            assert_eq!(log.bounds(), before);
            assert_eq!(newest(&disk).1, file, "the rejected event is not in the file");
            assert_eq!(hear(&log, 1, BUFFER).unwrap(), events(&[(1, 1)]));
            disk.set_room(1 << 40);
            assert!(log.has_room());
            fill(&log, &[(7, 2)]);
            let expected = [events(&[(1, 1)]), vec![Heard::Gap(2, 6)], events(&[(7, 2)])].concat();
            assert_eq!(hear(&log, 1, BUFFER).unwrap(), expected);
        }
    }
}

#[test]
fn a_rejected_event_is_not_found_by_a_later_start() {
    for room in 0..150 {
        let (disk, log) = nearly_full(room, true);
        log.append(&[piece(2, 5, 0, 7)], Seq(7), Seq(7)).unwrap_err();
        drop(log);
        disk.cut_power();
        let (log, found) = open(&disk, SEGMENT_BYTES);
        assert_eq!(hear(&log, 1, BUFFER).unwrap(), events(&[(1, 1)]));
        assert_eq!(found.findings, Vec::<String>::new());
    }
}

#[test]
fn retention_works_on_a_full_disk() {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, 300);
    fill(&log, &[(1, 2), (3, 2), (5, 2)]);
    disk.set_room(disk.used());
    assert!(!log.has_room());
    let retention = Retention {
        bytes_max: 0,
        oldest_unix_ms: Some(1),
        segments_max: 100,
        keep_from: Seq(7),
        removals_max: usize::MAX,
    };
    // No new segment can replace the last one, so that one stays for now.
    assert!(log.retain(&retention).unwrap() >= 1);
    assert_eq!(log.bounds().segments, 1);
    assert_eq!(hear(&log, log.bounds().first.0, BUFFER).unwrap().last(), events(&[(5, 2)]).last());
}

// PROTOCOL: R5
#[test]
fn a_failed_sync_is_final_until_a_start() {
    for seed in 0..200 {
        let disk = SimulatedDisk::new(seed);
        let (log, _) = open(&disk, SEGMENT_BYTES);
        fill(&log, &[(1, 2)]);
        log.append(&[piece(3, 2, 0, 7)], Seq(5), Seq(5)).unwrap();
        disk.set_faults(DiskFaults { fail_sync_after: Some(0), ..DiskFaults::default() });
        // Even if the error is that the disk is full.
        assert!(matches!(log.sync(), Err(LogError::Broken(_))));
        assert!(matches!(log.sync(), Err(LogError::Broken(_))), "the disk is not synced again");
        let more = log.append(&[piece(5, 1, 0, 7)], Seq(6), Seq(6));
        assert!(matches!(more, Err(LogError::Broken(_))));
        assert!(matches!(log.close(Seq(5)), Err(LogError::Broken(_))));
        assert_eq!(hear(&log, 1, BUFFER).unwrap(), events(&[(1, 4)]), "reads still work");
        // The system still shows what it has dropped. A start must write it again.
        drop(log);
        disk.kill();
        let (log, _) = open(&disk, SEGMENT_BYTES);
        assert_eq!(hear(&log, 1, BUFFER).unwrap(), events(&[(1, 4)]));
        drop(log);
        disk.cut_power();
        let (log, _) = open(&disk, SEGMENT_BYTES);
        assert_eq!(hear(&log, 1, BUFFER).unwrap(), events(&[(1, 4)]), "seed {seed}");
    }
}

#[test]
fn a_segment_whose_sync_failed_stops_the_log() {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, 300);
    fill(&log, &[(1, 2)]);
    // One sync for the old segment, one for the new one, and one for the directory.
    disk.set_faults(DiskFaults { fail_sync_after: Some(2), ..DiskFaults::default() });
    let result = log.append(&[piece(3, 4, 0, 7)], Seq(7), Seq(7));
    assert!(matches!(result, Err(LogError::Broken(_))), "{result:?}");
    drop(log);
    disk.kill();
    let (log, found) = open(&disk, 300);
    assert!(found.next >= Seq(7));
    fill(&log, &[(found.next.0, 2)]);
    disk.cut_power();
    let (log, _) = open(&disk, 300);
    let heard = hear(&log, 1, BUFFER).unwrap();
    assert_eq!(heard[..2], events(&[(1, 2)]));
    assert_eq!(heard[3..], events(&[(found.next.0, 2)]));
}

#[test]
fn an_unreadable_parent_directory_is_not_an_error() {
    use std::path::Path;

    use crate::disk::{Disk, DiskFile, DiskSpace};

    /// A disk on which the process cannot read the parent directories.
    #[derive(Debug, Clone)]
    struct Elsewhere(SimulatedDisk);

    impl Disk for Elsewhere {
        fn create_dir(&self, dir: &Path) -> io::Result<()> {
            self.0.create_dir(dir)
        }
        fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
            self.0.list(dir)
        }
        fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
            self.0.create(path)
        }
        fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
            self.0.open(path)
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.0.rename(from, to)
        }
        fn remove(&self, path: &Path) -> io::Result<()> {
            self.0.remove(path)
        }
        fn sync_dir(&self, dir: &Path) -> io::Result<()> {
            if Path::new(DIR).starts_with(dir) && dir != Path::new(DIR) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            self.0.sync_dir(dir)
        }
        fn space(&self, dir: &Path) -> io::Result<DiskSpace> {
            self.0.space(dir)
        }
    }

    let disk = Elsewhere(SimulatedDisk::new(1));
    let (log, _) = SegmentLog::open(options(disk, SEGMENT_BYTES), 0).unwrap();
    fill(&log, &[(1, 1)]);
}

#[test]
fn an_orderly_stop_leaves_only_batches() {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, SEGMENT_BYTES);
    fill(&log, &[(1, 2)]);
    assert!(newest(&disk).1.len() > 1000, "space was allocated ahead");
    let bytes = log.bounds().bytes + BATCH_HEADER as u64;
    log.close(Seq(3)).unwrap();
    assert_eq!(newest(&disk).1.len() as u64, bytes);
    assert_eq!(log.bounds().bytes, bytes);
    let (log, found) = open(&disk, SEGMENT_BYTES);
    assert_eq!((found.next, found.reserved), (Seq(3), Seq(3)), "no seq is skipped");
    assert_eq!(newest(&disk).1.len() as u64, bytes);
    assert!(bytes > (SEGMENT_HEADER + BATCH_HEADER) as u64);
    assert_eq!(hear(&log, 1, BUFFER).unwrap(), events(&[(1, 2)]));
}
