//! Logs of each version, in `tests/fixtures/log`. Each must stay readable.
//!
//! A new version adds a directory `v<n>` and leaves the others unchanged.

use std::fs;
use std::path::PathBuf;

use tidings_protocol::Seq;

use super::{BUFFER, DIR, Heard, events, fill, hear, name, newest, open};
use crate::disk::Disk;
use crate::format::{BATCH_HEADER, SEGMENT_HEADER};
use crate::segments::{Recovered, SegmentLog};
use crate::simulation::SimulatedDisk;
use crate::topic_log::TopicLog;

const SEGMENT_BYTES: u64 = 600;

fn folder(version: &str, fixture: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/fixtures/log").join(version).join(fixture)
}

/// A log on a copy of a fixture.
fn read(version: &str, fixture: &str) -> (SimulatedDisk, SegmentLog, Recovered) {
    let disk = SimulatedDisk::new(1);
    let dir = PathBuf::from(DIR);
    disk.create_dir(&dir).unwrap();
    for entry in fs::read_dir(folder(version, fixture)).unwrap() {
        let entry = entry.unwrap();
        let path = dir.join(entry.file_name());
        disk.create(&path).unwrap();
        disk.damage(&path, |file| *file = fs::read(entry.path()).unwrap());
    }
    let (log, found) = open(&disk, SEGMENT_BYTES);
    (disk, log, found)
}

/// Everything that a reader of [`write_whole`] receives, up to the last event.
fn whole() -> Vec<Heard> {
    [
        events(&[(1, 2), (3, 3)]),
        vec![Heard::Gap(6, 9)],
        events(&[(10, 2), (12, 4), (16, 1), (17, 2)]),
    ]
    .concat()
}

/// Two segments, with a gap in the first one.
fn write_whole() -> (SimulatedDisk, SegmentLog) {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, SEGMENT_BYTES);
    fill(&log, &[(1, 2), (3, 3), (10, 2), (12, 4), (16, 1), (17, 2)]);
    assert_eq!(log.bounds().segments, 2);
    (disk, log)
}

/// The versions with fixtures.
const VERSIONS: [&str; 1] = ["v1"];

/// Writes the fixtures of this version: `cargo test -p tidings-log tests::fixtures --
/// --ignored`. Only for a version that was never released.
#[test]
#[ignore = "writes into the source tree"]
fn make_the_fixtures_of_this_version() {
    let save = |fixture: &str, disk: &SimulatedDisk| {
        let folder = folder("v1", fixture);
        fs::create_dir_all(&folder).unwrap();
        for (path, bytes) in disk.files() {
            fs::write(folder.join(name(&path)), bytes).unwrap();
        }
    };
    let (disk, log) = write_whole();
    save("killed", &disk);
    let end = usize::try_from(log.bounds().bytes).unwrap();
    log.close(Seq(19)).unwrap();
    save("clean", &disk);

    let first = disk.files()[0].0.clone();
    // A letter of event 2, and the header of the next batch.
    let batch =
        SEGMENT_HEADER + BATCH_HEADER + events(&[(1, 2)]).iter().map(bytes_of).sum::<usize>();
    disk.damage(&first, |file| file[batch - 3] ^= 1);
    save("damaged-payload", &disk);
    disk.damage(&first, |file| {
        file[batch - 3] ^= 1;
        file[batch + 20] ^= 1;
    });
    save("damaged-header", &disk);
    disk.damage(&first, |file| {
        file[batch + 20] ^= 1;
        file[40] ^= 1;
    });
    save("damaged-segment-header", &disk);

    let (disk, _) = write_whole();
    let (last, _) = newest(&disk);
    let older = disk.files()[0].1.len();
    disk.damage(&last, |file| file[end - older - 5..].fill(0));
    save("torn", &disk);

    let (disk, _) = write_whole();
    let (last, _) = newest(&disk);
    disk.damage(&last, |file| file.fill(b'?'));
    save("unreadable", &disk);
}

fn bytes_of(heard: &Heard) -> usize {
    if let Heard::Event(_, line) = heard { line.len() } else { 0 }
}

#[test]
fn a_clean_log_continues_without_a_gap() {
    for version in VERSIONS {
        let (_, log, found) = read(version, "clean");
        assert_eq!(hear(&log, 1, BUFFER).unwrap(), whole());
        assert_eq!((found.next, found.reserved), (Seq(19), Seq(19)));
        assert_eq!(found.findings, Vec::<String>::new());
        assert!(log.verify().unwrap().iter().all(|file| file.problems.is_empty()));
        fill(&log, &[(19, 1)]);
        assert_eq!(hear(&log, 18, BUFFER).unwrap(), events(&[(18, 2)]));
    }
}

#[test]
fn a_log_after_a_kill_skips_reserved_seqs() {
    for version in VERSIONS {
        let (_, log, found) = read(version, "killed");
        assert_eq!(hear(&log, 1, BUFFER).unwrap(), whole());
        assert_eq!(found.next, Seq(119));
        assert_eq!(found.findings, Vec::<String>::new());
        fill(&log, &[(119, 1)]);
        let expected = [vec![Heard::Gap(19, 118)], events(&[(119, 1)])].concat();
        assert_eq!(hear(&log, 19, BUFFER).unwrap(), expected);
    }
}

#[test]
fn a_torn_end_is_cut_off() {
    for version in VERSIONS {
        let (disk, log, found) = read(version, "torn");
        let heard = hear(&log, 1, BUFFER).unwrap();
        assert_eq!(heard, whole()[..whole().len() - 2]);
        assert!(found.next >= Seq(119), "{}", found.next);
        assert!(found.findings[0].contains("as after a crash"), "{:?}", found.findings);
        assert!(disk.files().iter().any(|(path, _)| name(path).ends_with(".log.torn")));
        // The next start must understand the record that this start has written.
        drop(log);
        let (log, again) = open(&disk, SEGMENT_BYTES);
        assert_eq!((again.next, again.findings), (found.next, Vec::<String>::new()), "{version}");
        assert_eq!(hear(&log, 1, BUFFER).unwrap(), heard, "{version}");
    }
}

#[test]
fn damage_loses_one_batch_and_is_reported() {
    for version in VERSIONS {
        for (fixture, lost) in [("damaged-payload", (1, 2)), ("damaged-header", (3, 5))] {
            let (_, log, found) = read(version, fixture);
            let mut expected = whole();
            let is_lost = |heard: &Heard| matches!(heard, Heard::Event(seq, _) if (lost.0..=lost.1).contains(seq));
            let at = expected.iter().position(is_lost).unwrap();
            expected.retain(|heard| !is_lost(heard));
            expected.insert(at, Heard::Lag(lost.0, lost.1));
            assert_eq!(hear(&log, 1, BUFFER).unwrap(), expected, "{fixture}");
            assert_eq!(found.next, Seq(19), "{fixture}");
            let checked = log.verify().unwrap();
            assert!(!checked[0].problems.is_empty(), "{fixture}");
            assert_eq!(checked[0].lost, [(Seq(lost.0), Seq(lost.1))], "{fixture}");
        }
    }
}

#[test]
fn a_damaged_segment_header_loses_nothing() {
    for version in VERSIONS {
        let (_, log, found) = read(version, "damaged-segment-header");
        assert_eq!(hear(&log, 1, BUFFER).unwrap(), whole());
        assert_eq!(found.next, Seq(19));
        assert!(found.findings[0].contains("checksum"), "{:?}", found.findings);
    }
}

#[test]
fn an_unreadable_file_is_set_aside() {
    for version in VERSIONS {
        let (disk, log, found) = read(version, "unreadable");
        let heard = hear(&log, 1, BUFFER).unwrap();
        assert_eq!(heard.last(), Some(&Heard::Lag(16, found.next.0 - 1)));
        assert_eq!(heard[..heard.len() - 1], whole()[..heard.len() - 1]);
        assert!(found.findings.iter().any(|text| text.contains("set aside")));
        assert!(disk.files().iter().any(|(path, _)| name(path).ends_with(".log.damaged")));
    }
}
