//! Tests of a log that is cut off at every byte.

use tidings_protocol::Seq;

use super::{BUFFER, events, fill, hear, newest, open, options, piece};
use crate::segments::{SegmentLog, SegmentOptions};
use crate::simulation::{DiskFaults, SimulatedDisk};
use crate::topic_log::{RESERVED_MAX, TopicLog};

const SEGMENT_BYTES: u64 = 4 << 10;

const PIECES: [(u64, u64); 5] = [(1, 2), (3, 1), (6, 2), (8, 3), (11, 1)];

/// A log of [`PIECES`], each in its own batch, and the end of each batch in the file.
fn written() -> (SimulatedDisk, Vec<usize>) {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, SEGMENT_BYTES);
    let ends = PIECES
        .iter()
        .map(|piece| {
            fill(&log, &[*piece]);
            usize::try_from(log.bounds().bytes).unwrap()
        })
        .collect();
    (disk, ends)
}

/// After a cut at any byte, and with any bytes after it, the log holds exactly the complete
/// batches, reuses no seq, and accepts events.
fn cut_everywhere(rest: impl Fn(usize, &[u8]) -> Vec<u8>) {
    let (disk, ends) = written();
    let (path, bytes) = newest(&disk);
    for at in ends[1]..=ends[4] {
        let disk = disk.copy();
        disk.damage(&path, |file| *file = rest(at, &bytes));
        let (log, found) = open(&disk, SEGMENT_BYTES);
        let whole = ends.iter().filter(|end| **end <= at).count();
        let expected = events(&PIECES[..whole]);
        let mut heard = hear(&log, 1, BUFFER).unwrap();
        heard.retain(|heard| matches!(heard, super::Heard::Event(..)));
        assert_eq!(heard, expected, "cut at {at}");
        let (first, count) = PIECES[whole - 1];
        let reserved = Seq(first + count + 100);
        assert!(found.next >= reserved, "cut at {at}: {reserved} was reserved, {}", found.next);
        if !ends.contains(&at) {
            assert_eq!(found.findings.len(), 1, "cut at {at}: {:?}", found.findings);
        }
        fill(&log, &[(found.next.0, 2)]);
        drop(log);
        disk.cut_power();
        let (log, found_again) = open(&disk, SEGMENT_BYTES);
        assert_eq!(
            found_again.findings,
            Vec::<String>::new(),
            "the first start has repaired the end"
        );
        let mut more = hear(&log, 1, BUFFER).unwrap();
        more.retain(|heard| matches!(heard, super::Heard::Event(..)));
        assert_eq!(more, [expected, events(&[(found.next.0, 2)])].concat());
        assert!(log.verify().unwrap().iter().all(|file| file.problems.is_empty()));
    }
}

#[test]
fn a_file_cut_anywhere_keeps_all_complete_batches() {
    cut_everywhere(|at, bytes| bytes[..at].to_vec());
}

#[test]
fn zeros_from_anywhere_on_keep_all_complete_batches() {
    cut_everywhere(|at, bytes| {
        let mut file = bytes.to_vec();
        file[at..].fill(0);
        file
    });
}

#[test]
fn a_hole_ends_the_unsynced_part() {
    // The sector after the cut reached the disk and the one before it did not, as disks reorder
    // writes. Nothing in the file records that the last two batches were synced.
    let (disk, ends) = written();
    let (path, bytes) = newest(&disk);
    for at in ends[3]..ends[4] {
        let disk = disk.copy();
        disk.damage(&path, |file| {
            *file = bytes.clone();
            file[ends[3]..=at].fill(0);
        });
        let (log, found) = open(&disk, SEGMENT_BYTES);
        let heard = hear(&log, 11, BUFFER).unwrap();
        assert_eq!(heard, [], "hole up to {at}");
        assert!(found.next >= Seq(111));
    }
}

#[test]
fn a_torn_end_is_kept_until_its_segment_is_removed() {
    let (disk, ends) = written();
    let (path, _) = newest(&disk);
    disk.damage(&path, |file| file.truncate(ends[4] - 1));
    let (log, found) = open(&disk, SEGMENT_BYTES);
    assert!(found.findings[0].contains("kept as"), "{:?}", found.findings);
    assert_eq!(disk.files().len(), 2);
    log.clear().unwrap();
    assert_eq!(disk.files(), []);
}

#[test]
fn a_copy_goes_on_where_it_ends() {
    let disk = SimulatedDisk::new(1);
    let open = || {
        let options = SegmentOptions { reserves: false, ..options(disk.clone(), SEGMENT_BYTES) };
        SegmentLog::open(options, 3).unwrap()
    };
    let append = |log: &SegmentLog, first, count| {
        let next = Seq(first + count);
        log.append(&[piece(first, count, 1_000, 1)], next, next).unwrap();
    };
    let (log, _) = open();
    append(&log, 1, 2);
    append(&log, 3, 1);
    let cut = usize::try_from(log.bounds().bytes).unwrap() - 1;
    disk.damage(&newest(&disk).0, |file| file.truncate(cut));
    let (log, found) = open();
    assert_eq!((log.bounds().end, found.next), (Seq(3), Seq(3)));
    append(&log, 3, 2);
    let (log, found) = open();
    assert_eq!((log.bounds().end, found.next, found.findings), (Seq(5), Seq(5), Vec::new()));
}

#[test]
fn an_interrupted_start_loses_nothing() {
    let (disk, ends) = written();
    let (path, _) = newest(&disk);
    disk.damage(&path, |file| file[ends[4] - 1] ^= 1);
    let (_, found) = open(&disk.copy(), SEGMENT_BYTES);
    assert!(found.next > Seq(2 * RESERVED_MAX), "the reservation of the last batch is unknown");
    for (calls, power) in (0..20).flat_map(|calls| [(calls, false), (calls, true)]) {
        let disk = disk.copy();
        disk.set_faults(DiskFaults { power_off_after: Some(calls), ..DiskFaults::default() });
        let _ = SegmentLog::open(options(disk.clone(), SEGMENT_BYTES), 3);
        if power {
            disk.cut_power();
        } else {
            disk.kill();
        }
        let (_, found) = open(&disk, SEGMENT_BYTES);
        assert!(found.next > Seq(2 * RESERVED_MAX), "ended by change {calls}: {found:?}");
    }
}
