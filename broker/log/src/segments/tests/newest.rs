//! Tests of counting the newest events: empty seqs do not count, wherever they are.

use tidings_protocol::Seq;

use super::{BUFFER, Heard, fill, hear, open};
use crate::format::{BATCH_HEADER, SEGMENT_HEADER};
use crate::simulation::SimulatedDisk;
use crate::topic_log::{NewestEvents, Retention, TopicLog};

/// The result once all necessary segments are indexed. Before that it is a lower bound.
#[track_caller]
fn find(log: &dyn TopicLog, count: u64, before: Seq) -> (Seq, u64) {
    let mut bounds = Vec::new();
    loop {
        let NewestEvents { from, missing, unknown } = log.newest(count, before);
        bounds.push(from.0.saturating_sub(missing));
        assert!(bounds.is_sorted(), "the newest {count}: {bounds:?}");
        let Some(base) = unknown else { return (from, missing) };
        log.index(base).unwrap();
    }
}

/// Compares every count before every seq with what a reader of everything receives.
#[track_caller]
fn check(log: &dyn TopicLog) {
    let heard = hear(log, 1, BUFFER).unwrap();
    let event = |heard: &Heard| if let Heard::Event(seq, _) = heard { Some(*seq) } else { None };
    let all: Vec<u64> = heard.iter().filter_map(event).collect();
    let end = log.bounds().end.0;
    for before in 1..end + 5 {
        let known: Vec<u64> = all.iter().copied().filter(|seq| *seq < before).collect();
        for count in 1..=known.len() {
            let found = find(log, count as u64, Seq(before));
            assert_eq!(found, (Seq(known[known.len() - count]), 0), "{count} before {before}");
        }
        let (from, missing) = find(log, known.len() as u64 + 3, Seq(before));
        assert_eq!(missing, 3, "before {before}");
        assert!(known.first().is_none_or(|first| from.0 <= *first));
    }
}

#[test]
fn empty_seqs_do_not_count() {
    let disk = SimulatedDisk::new(1);
    // Some segments hold several batches, some one.
    let (log, _) = open(&disk, 420);
    check(&log);
    fill(&log, &[(3, 2), (8, 2), (10, 1), (20, 1), (25, 2), (27, 5), (40, 1), (41, 1), (50, 3)]);
    assert!(log.bounds().segments > 3);
    check(&log);
    // At the end, while nothing is appended.
    log.append(&[], Seq(70), Seq(80)).unwrap();
    log.sync().unwrap();
    check(&log);
    for crash in 0..4 {
        disk.kill();
        let (log, found) = open(&disk, 420);
        check(&log);
        if crash % 2 == 0 {
            fill(&log, &[(found.next.0, 2), (found.next.0 + 5, 1)]);
        } else {
            log.append(&[], found.next, Seq(found.next.0 + 10)).unwrap();
            log.sync().unwrap();
        }
        check(&log);
    }
}

#[test]
fn a_log_without_events_has_no_newest_event() {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, 420);
    assert_eq!(find(&log, 2, Seq(1)), (Seq(1), 2));
    log.append(&[], Seq(1), Seq(100)).unwrap();
    log.sync().unwrap();
    disk.kill();
    let (log, found) = open(&disk, 420);
    assert_eq!(found.next, Seq(100));
    assert_eq!(find(&log, 2, found.next), (Seq(1), 2));
    fill(&log, &[(100, 1)]);
    check(&log);
}

#[test]
fn events_removed_by_retention_are_missing() {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, 300);
    fill(&log, &[(1, 2), (3, 2), (8, 2), (20, 1), (25, 2), (27, 2)]);
    let retention = Retention {
        bytes_max: 0,
        oldest_unix_ms: None,
        segments_max: 1,
        keep_from: Seq(20),
        removals_max: usize::MAX,
    };
    log.retain(&retention).unwrap();
    disk.kill();
    let (again, _) = open(&disk, 300);
    let end = again.bounds().end;
    for log in [log, again] {
        check(&log);
        // The missing ones lie below seq 10, and not among the empty seqs from there to 19.
        assert_eq!(find(&log, 5 + 4, end), (Seq(10), 4));
    }
    let (log, _) = open(&disk, 300);
    log.clear().unwrap();
    assert_eq!(find(&log, 4, end), (end, 4));
}

#[test]
fn damaged_batches_do_not_count() {
    for at in [0, BATCH_HEADER / 2] {
        let disk = SimulatedDisk::new(1);
        let (log, _) = open(&disk, 400);
        fill(&log, &[(1, 2), (3, 2), (5, 2), (10, 2), (12, 1), (20, 1), (21, 1), (30, 1)]);
        drop(log);
        for (path, _) in disk.files() {
            if path.extension().is_some_and(|kind| kind == "log") {
                let disk = disk.copy();
                disk.damage(&path, |file| file[SEGMENT_HEADER + at] ^= 1);
                let (log, _) = open(&disk, 400);
                check(&log);
                check(&open(&disk, 400).0);
            }
        }
    }
}
