//! Tests of logs with a recorded end at the last orderly stop.

use tidings_protocol::Seq;

use super::damage::check;
use super::{BUFFER, DIR, events, fill, hear, newest, options};
use crate::clean_stop::{LogEnd, StopSlot};
use crate::format::SEGMENT_HEADER;
use crate::segments::{Recovered, SegmentLog, SegmentOptions};
use crate::simulation::SimulatedDisk;
use crate::topic_log::TopicLog;

const SEGMENT_BYTES: u64 = 500;
const PIECES: [(u64, u64); 6] = [(1, 2), (3, 3), (6, 1), (7, 4), (11, 1), (12, 2)];
const NEXT: u64 = 14;

fn open(disk: &SimulatedDisk, stopped: Option<&LogEnd>) -> (SegmentLog, Recovered) {
    let options = options(disk.clone(), SEGMENT_BYTES);
    let stopped = StopSlot::after(stopped.cloned());
    SegmentLog::open(SegmentOptions { stopped, ..options }, 3).unwrap()
}

/// A closed log of several files, and its end. As in a group's log, the last events may be durable
/// without a later batch that records it.
fn closed() -> (SimulatedDisk, LogEnd) {
    let disk = SimulatedDisk::new(3);
    let (log, _) = open(&disk, None);
    fill(&log, &PIECES);
    assert!(log.bounds().segments > 1);
    log.close(Seq(NEXT)).unwrap();
    let end = log.options.stopped.new_end().expect("the log has files");
    (disk, end)
}

#[test]
fn a_flipped_bit_after_an_orderly_stop_is_not_a_torn_end() {
    let (disk, end) = closed();
    let (path, whole) = newest(&disk);
    assert_eq!((end.bytes, end.end, end.next), (whole.len() as u64, Seq(NEXT), Seq(NEXT)));
    let mut ends_lost = 0;
    for bit in 0..whole.len() * 8 {
        let case = format!("bit {bit}");
        let (disk, end) = closed();
        disk.damage(&path, |file| file[bit / 8] ^= 1 << (bit % 8));
        let (log, found) = open(&disk, Some(&end));
        assert!(!found.findings.iter().any(|it| it.contains("after a crash")), "{case}: {found:?}");
        // Without findings, so that the loss must be reported by a `Lag`.
        let lost = check(&log, &PIECES, &[], &case);
        let checked = log.verify().unwrap();
        let is_named = checked.iter().any(|file| !file.problems.is_empty());
        assert!(is_named || found.has_lost_end, "{case}: not named");
        if bit / 8 < SEGMENT_HEADER {
            continue;
        }
        assert_eq!(found.next, Seq(NEXT), "{case}: no seq is skipped");
        if found.has_lost_end {
            ends_lost += 1;
            log.begin_after_loss().unwrap();
        }
        drop(log);
        disk.cut_power();
        // With the record of the stop, and without it.
        for stopped in [Some(&end), None] {
            let (log, again) = open(&disk, stopped);
            assert_eq!(check(&log, &PIECES, &[], &case), lost, "{case}: a later read differs");
            assert!(again.next >= Seq(NEXT) && !again.has_lost_end, "{case}: {again:?}");
        }
        let (log, again) = open(&disk, Some(&end));
        fill(&log, &[(again.next.0, 3)]);
        drop(log);
        let (log, _) = open(&disk, Some(&end));
        let heard = hear(&log, again.next.0, BUFFER).unwrap();
        assert_eq!(heard, events(&[(again.next.0, 3)]), "{case}: later events are readable");
    }
    assert!(ends_lost > 100, "{ends_lost}");
}

#[test]
fn a_log_that_has_grown_since_recovers_as_after_a_crash() {
    let (disk, end) = closed();
    let (log, _) = open(&disk, Some(&end));
    log.append(&[super::piece(NEXT, 1, 0, 7)], Seq(NEXT + 1), Seq(NEXT + 1)).unwrap();
    drop(log);
    let (path, mut bytes) = newest(&disk);
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    bytes[used - 3] ^= 1;
    disk.damage(&path, |file| *file = bytes);
    let (log, found) = open(&disk, Some(&end));
    assert!(!found.has_lost_end && found.findings[0].contains("as after a crash"), "{found:?}");
    assert_eq!(hear(&log, 1, BUFFER).unwrap()[..13], events(&PIECES));
}

#[test]
fn the_record_does_not_apply_to_a_replaced_file() {
    let (disk, end) = closed();
    let other = LogEnd { header: end.header ^ 1, bytes: end.bytes + 100, ..end.clone() };
    let (_, found) = open(&disk, Some(&other));
    assert!(!found.has_lost_end && found.findings.is_empty(), "{found:?}");
    let longer = LogEnd { bytes: end.bytes + 100, ..end };
    let (_, found) = open(&disk, Some(&longer));
    assert!(found.has_lost_end && found.findings[0].starts_with(DIR), "{found:?}");
}
