//! Tests of reading from any seq, with any buffer, during appends and retention.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fastrand::Rng;
use tidings_protocol::Seq;

use super::{BUFFER, Heard, events, fill, hear, line, open, options, piece};
use crate::disk::FileSystem;
use crate::segments::SegmentLog;
use crate::simulation::{DiskFaults, SimulatedDisk};
use crate::topic_log::{LogError, LogRead, ReadPosition, Retention, TopicLog};

#[test]
fn every_seq_is_found_even_in_old_segments() {
    // More bytes than between two entries of an index.
    const COUNT: u64 = 20_000;
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, 600_000);
    for first in (1..COUNT).step_by(10) {
        log.append(&[piece(first, 10, 0, 39)], Seq(first + 10), Seq(0)).unwrap();
    }
    log.close(Seq(COUNT + 1)).unwrap();
    let (reopened, _) = open(&disk, 600_000);
    assert!(reopened.bounds().segments >= 3, "{:?}", reopened.bounds());
    let mut rng = Rng::with_seed(1);
    let mut buffer = vec![0; BUFFER];
    for log in [log, reopened] {
        for _ in 0..300 {
            let from = rng.u64(1..=COUNT);
            let found = log.read(Seq(from), None, None, &mut buffer).unwrap();
            let LogRead::Lines { first, runs, .. } = found else { panic!("{from}: {found:?}") };
            assert_eq!(first, Seq(from));
            assert!(buffer[runs[0].place.clone()].starts_with(&line(from, 39)), "{from}");
        }
        assert_eq!(log.read(Seq(COUNT + 1), None, None, &mut buffer).unwrap(), LogRead::End);
    }
}

#[test]
fn a_position_of_another_seq_is_ignored() {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, 1 << 20);
    fill(&log, &[(1, 3), (4, 3), (7, 3)]);
    let mut buffer = vec![0; BUFFER];
    let place = |from: u64, at: Option<ReadPosition>, buffer: &mut [u8]| match log
        .read(Seq(from), at, None, buffer)
        .unwrap()
    {
        LogRead::Lines { first, at, .. } => (first, at),
        other => panic!("{other:?}"),
    };
    let (_, at) = place(8, None, &mut buffer);
    assert_eq!(place(2, Some(at), &mut buffer).0, Seq(2));
    fill(&log, &[(10, 1)]);
    assert_eq!(place(10, Some(at), &mut buffer).0, Seq(10));
}

#[test]
fn a_run_has_the_times_of_its_lines_to_the_second() {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, 1 << 20);
    let times = [5_000, 5_999, 6_000, 8_001, 8_002];
    let pieces: Vec<_> = (1..).zip(times).map(|(seq, time)| piece(seq, 1, time, 7)).collect();
    for piece in &pieces {
        log.append(std::slice::from_ref(piece), Seq(piece.first.0 + 1), Seq(100)).unwrap();
    }
    let mut buffer = vec![0; BUFFER];
    let found = log.read(Seq(2), None, None, &mut buffer).unwrap();
    let LogRead::Lines { runs, .. } = found else { panic!("{found:?}") };
    let [run] = &runs[..] else { panic!("small batches of any time are one run: {runs:?}") };
    assert_eq!((run.first, run.unix_ms), (Seq(2), 5_999));
    assert_eq!(run.later, [(Seq(3), 6_000), (Seq(4), 8_001)]);
    let lines: Vec<u8> = (2..=5).flat_map(|seq| line(seq, 7)).collect();
    assert_eq!(buffer[run.place.clone()], lines);
}

#[test]
fn long_lines_are_read_one_batch_at_a_time() {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, 1 << 20);
    let lengthy = |seq: u64| {
        let mut piece = piece(seq, 1, 0, 0);
        let line = format!("MSG t {seq} {}\r\n", "x".repeat(60 << 10));
        piece.wire = line.into_bytes().into();
        piece
    };
    let pieces: Vec<_> = (1..=9).map(lengthy).collect();
    log.append(&pieces, Seq(10), Seq(10)).unwrap();
    let heard = hear(&log, 1, 256 << 10).unwrap();
    assert_eq!(heard.len(), 9);
    for (heard, piece) in heard.iter().zip(&pieces) {
        assert_eq!(heard, &Heard::Event(piece.first.0, piece.wire.to_vec()));
    }
    let error = hear(&log, 1, 100 << 10).unwrap_err();
    assert!(error.to_string().contains("larger than the read buffer"), "{error}");
}

// PROTOCOL: D2, R6
#[test]
fn empty_seqs_are_gaps_and_removed_events_are_lags() {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, 300);
    fill(&log, &[(3, 2), (8, 2), (20, 1), (25, 2)]);
    assert_eq!(
        hear(&log, 1, BUFFER).unwrap(),
        [
            vec![Heard::Gap(1, 2)],
            events(&[(3, 2)]),
            vec![Heard::Gap(5, 7)],
            events(&[(8, 2)]),
            vec![Heard::Gap(10, 19)],
            events(&[(20, 1)]),
            vec![Heard::Gap(21, 24)],
            events(&[(25, 2)]),
        ]
        .concat()
    );
    let all = Retention {
        bytes_max: 0,
        oldest_unix_ms: None,
        segments_max: 1,
        keep_from: Seq(20),
        removals_max: usize::MAX,
    };
    log.retain(&all).unwrap();
    let heard = hear(&log, 1, BUFFER).unwrap();
    assert_eq!(heard[..2], [Heard::Lag(1, 9), Heard::Gap(10, 19)]);
    assert_eq!(
        heard[2..],
        [events(&[(20, 1)]), vec![Heard::Gap(21, 24)], events(&[(25, 2)])].concat()
    );
    log.clear().unwrap();
    assert_eq!(hear(&log, 1, BUFFER).unwrap(), [Heard::Lag(1, 26)]);
}

#[test]
fn a_segment_that_is_too_old_is_skipped() {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, 200);
    for seq in 1..=6 {
        let unix_ms = i64::try_from(seq).unwrap() * 10;
        log.append(&[piece(seq * 2, 1, unix_ms, 0)], Seq(seq * 2 + 1), Seq(0)).unwrap();
    }
    let mut buffer = vec![0; BUFFER];
    let mut cursor = Seq(1);
    let first = loop {
        match log.read(cursor, None, Some(35), &mut buffer).unwrap() {
            LogRead::Skip(to) => cursor = to,
            LogRead::Lines { first, .. } => break first,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(first, Seq(8), "the first event at or after that time");
}

/// On real files, with appends and retention in parallel, readers never receive a wrong result.
// PROTOCOL: R6
#[test]
fn readers_and_retention_run_in_parallel() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(FileSystem, 4 << 10);
    options.dir = folder.path().join("t");
    let (log, _) = SegmentLog::open(options, 0).unwrap();
    let (log, stop) = (Arc::new(log), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (log, stop) = (&log, &stop);
            scope.spawn(move || {
                let mut rng = Rng::with_seed(seed);
                while !stop.load(Ordering::Relaxed) {
                    let from = rng.u64(1..=log.bounds().end.0);
                    let heard = hear(&**log, from, BUFFER + rng.usize(..BUFFER)).unwrap();
                    for heard in heard {
                        match heard {
                            Heard::Event(seq, bytes) => assert_eq!(bytes, line(seq, 7)),
                            Heard::Lag(_, last) => assert!(last < log.bounds().first.0),
                            Heard::Gap(..) => panic!("the log has no gap: {heard:?}"),
                        }
                    }
                }
            });
        }
        let keep = |end: u64| Retention {
            bytes_max: 20 << 10,
            oldest_unix_ms: None,
            segments_max: 100,
            keep_from: Seq(end),
            removals_max: usize::MAX,
        };
        for first in (1..6000).step_by(3) {
            log.append(&[piece(first, 3, 0, 7)], Seq(first + 3), Seq(0)).unwrap();
            log.retain(&keep(first + 3)).unwrap();
            assert!(log.verify().unwrap().iter().all(|file| file.problems.is_empty()));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_unreadable_sector_is_an_error_and_not_an_end() {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, 1 << 20);
    fill(&log, &[(1, 3)]);
    let faults = || DiskFaults { fail_read_after: Some(0), ..Default::default() };
    disk.set_faults(faults());
    assert!(matches!(hear(&log, 1, BUFFER), Err(LogError::Io { .. })));
    assert_eq!(hear(&log, 1, BUFFER).unwrap(), events(&[(1, 3)]), "the next read succeeds");
    disk.set_faults(faults());
    let checked = log.verify().unwrap();
    assert!(checked[0].problems[0].contains("cannot be read"), "{checked:?}");
    assert_eq!(checked[0].lost, [(Seq(1), Seq(3))]);
    disk.kill();
    disk.set_faults(faults());
    let error = SegmentLog::open(options(disk.clone(), 1 << 20), 0).unwrap_err();
    assert!(error.to_string().contains("00000000000000000001.log"), "{error}");
}
