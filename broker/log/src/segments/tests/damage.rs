//! Tests with flipped bits and truncated files: every event is read correctly, or its damage is
//! reported.

use std::path::{Path, PathBuf};

use fastrand::Rng;
use tidings_protocol::Seq;

use super::{BUFFER, Heard, events, fill, hear, line, newest, open, options};
use crate::format::{BATCH_HEADER, BATCH_MAGIC, BatchHeader, BatchHome, SEGMENT_HEADER};
use crate::segments::SegmentLog;
use crate::simulation::{SimulatedDisk, seeds};
use crate::topic_log::{CheckedFile, TopicLog};

const SEGMENT_BYTES: u64 = 500;

/// Several batches in each of three segments, with a gap between them; with or without an orderly
/// stop.
fn written(stopped: bool) -> (SimulatedDisk, SegmentLog, Vec<(u64, u64)>) {
    let disk = SimulatedDisk::new(3);
    let (log, _) = open(&disk, SEGMENT_BYTES);
    let pieces = vec![(1, 2), (3, 1), (4, 2), (9, 2), (11, 3), (14, 1), (15, 1), (16, 2), (18, 1)];
    fill(&log, &pieces);
    // The last event and a later reservation, both synced.
    log.append(&[], Seq(19), Seq(500)).unwrap();
    log.sync().unwrap();
    if stopped {
        log.close(Seq(19)).unwrap();
    }
    assert!(log.bounds().segments >= 3, "{:?}", log.bounds());
    (disk, log, pieces)
}

/// Checks that every event of `pieces` is read, or reported by a `Lag`; `unsure` ones may also be
/// in a gap, if the findings report a damaged end. Nothing else may be read. Returns what was lost.
#[track_caller]
pub(super) fn check(
    log: &dyn TopicLog,
    pieces: &[(u64, u64)],
    findings: &[String],
    case: &str,
) -> Vec<u64> {
    let mut lost = Vec::new();
    let all = events(pieces);
    let is_event =
        |seq: u64| all.iter().any(|event| matches!(event, Heard::Event(n, _) if *n == seq));
    let mut cursor = 1;
    for heard in hear(log, 1, BUFFER).unwrap() {
        match heard {
            Heard::Event(seq, bytes) => {
                assert!(is_event(seq), "{case}: event {seq} was never written");
                assert_eq!(bytes, line(seq, 7), "{case}: {seq}");
                cursor = seq + 1;
            }
            Heard::Lag(first, to) => {
                lost.extend((first..=to.min(100)).filter(|seq| is_event(*seq)));
                cursor = to + 1;
            }
            Heard::Gap(first, to) => {
                let silent: Vec<_> = (first..=to.min(100)).filter(|seq| is_event(*seq)).collect();
                assert!(
                    silent.is_empty() || !findings.is_empty(),
                    "{case}: {silent:?} are missing without a lag"
                );
                lost.extend(silent);
                cursor = to + 1;
            }
        }
    }
    let rest: Vec<_> = (cursor..100).filter(|seq| is_event(*seq)).collect();
    assert!(
        rest.is_empty() || !findings.is_empty(),
        "{case}: {rest:?} are missing without a finding"
    );
    lost.extend(rest);
    lost
}

/// Opens a damaged log, checks it, and appends to it; later reads must agree with the first.
#[track_caller]
fn survive(disk: &SimulatedDisk, pieces: &[(u64, u64)], next: u64, case: &str) -> Vec<u64> {
    let (log, found) = open(disk, SEGMENT_BYTES);
    let lost = check(&log, pieces, &found.findings, case);
    let named: Vec<CheckedFile> = log.verify().unwrap();
    for seq in &lost {
        let in_words = named.iter().any(|file| {
            !file.problems.is_empty()
                && file.lost.iter().any(|(first, last)| (first.0..=last.0).contains(seq))
        });
        assert!(
            in_words || !found.findings.is_empty(),
            "{case}: event {seq} is lost without a finding"
        );
    }
    assert!(found.next >= Seq(next), "{case}: {} was seen, {} is given", next - 1, found.next);
    fill(&log, &[(found.next.0, 3)]);
    drop(log);
    disk.cut_power();
    let (log, again) = open(disk, SEGMENT_BYTES);
    assert!(again.next > found.next, "{case}");
    let mut all = pieces.to_vec();
    all.push((found.next.0, 3));
    let heard = hear(&log, found.next.0, BUFFER).unwrap();
    assert_eq!(heard, events(&[(found.next.0, 3)]), "{case}: later events are readable");
    // What was cut off at the end is a gap now, because no batch recorded it as synced.
    assert_eq!(check(&log, &all, &found.findings, case), lost, "{case}: a later read differs");
    lost
}

// PROTOCOL: R8, R9
#[test]
fn every_flipped_bit_is_found_and_its_loss_reported() {
    let (disk, log, pieces) = written(true);
    for (path, bytes) in disk.files() {
        for bit in 0..bytes.len() * 8 {
            let case = format!("{} bit {bit}", path.display());
            disk.damage(&path, |file| file[bit / 8] ^= 1 << (bit % 8));
            let checked = log.verify().unwrap();
            let wrong: Vec<_> = checked.iter().filter(|file| !file.problems.is_empty()).collect();
            assert_eq!(wrong.len(), 1, "{case}: {wrong:?}");
            assert_eq!(wrong[0].place, path.display().to_string(), "{case}");
            let mut lost = check(&log, &pieces, &[], &case);
            let named = wrong[0].lost.iter().flat_map(|(first, last)| first.0..=last.0);
            let named: Vec<_> = named.filter(|seq| !(6..9).contains(seq)).collect();
            lost.retain(|seq| !named.contains(seq));
            assert!(lost.is_empty(), "{case}: not named: {lost:?}");
            if bit / 8 < SEGMENT_HEADER {
                assert!(named.is_empty(), "{case}: no event is in the header: {named:?}");
            }
            disk.damage(&path, |file| file[bit / 8] ^= 1 << (bit % 8));
        }
    }
    assert!(log.verify().unwrap().iter().all(|file| file.problems.is_empty()));
}

/// A valid batch that a disk has written to the wrong place.
struct Copy<'a> {
    /// The file and offset that it was written for.
    from: (&'a Path, usize),
    bytes: &'a [u8],
}

/// Every batch of some files.
fn batches(files: &[(PathBuf, Vec<u8>)]) -> Vec<Copy<'_>> {
    let mut copies = Vec::new();
    for (path, bytes) in files {
        for offset in memchr::memmem::find_iter(bytes, BATCH_MAGIC) {
            let payload = u32::from_le_bytes(bytes[offset + 8..offset + 12].try_into().unwrap());
            let end = offset + BATCH_HEADER + payload as usize;
            copies.push(Copy { from: (path, offset), bytes: &bytes[offset..end] });
        }
    }
    copies
}

/// A disk may also write a valid batch to the wrong place after the end: of older files, and of the
/// newest one, where its seqs would matter.
#[test]
fn misplaced_batches_after_others_lose_nothing() {
    for stopped in [true, false] {
        let (disk, log, pieces) = written(stopped);
        drop(log);
        let next = if stopped { 19 } else { 500 };
        let files = disk.files();
        for copy in batches(&files) {
            for (path, bytes) in &files {
                let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
                for at in [end, end + 1, end + BATCH_HEADER, end + 100] {
                    let case = format!("stopped {stopped}, {:?} in {path:?} at {at}", copy.from);
                    let disk = disk.copy();
                    disk.damage(path, |file| put(file, at, copy.bytes));
                    assert_eq!(survive(&disk, &pieces, next, &case), [0; 0], "{case}");
                }
            }
        }
    }
}

/// A misplaced batch may also overwrite others.
#[test]
fn misplaced_batches_lose_what_they_overwrite() {
    for stopped in [true, false] {
        let (disk, log, pieces) = written(stopped);
        drop(log);
        let next = if stopped { 19 } else { 500 };
        let files = disk.files();
        let all = batches(&files);
        for copy in &all {
            for target in all.iter().filter(|target| target.from != copy.from) {
                let case = format!("stopped {stopped}, {:?} over {:?}", copy.from, target.from);
                let (path, at) = target.from;
                let covered: Vec<u64> = all
                    .iter()
                    .filter(|other| other.from.0 == path)
                    .filter(|other| {
                        let start = other.from.1;
                        start < at + copy.bytes.len() && at < start + other.bytes.len()
                    })
                    .flat_map(|other| {
                        let home = BatchHome::new(&"t".parse().unwrap(), base(path));
                        let header =
                            BatchHeader::decode_at(other.bytes, home, other.from.1 as u64).unwrap();
                        header.first.0..header.end().0
                    })
                    .collect();
                let disk = disk.copy();
                disk.damage(path, |file| put(file, at, copy.bytes));
                let lost = survive(&disk, &pieces, next, &case);
                assert!(lost.iter().all(|seq| covered.contains(seq)), "{case}: {lost:?}");
            }
        }
    }
}

/// Writes to a file, and extends it if necessary.
fn put(file: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    file.resize(file.len().max(at + bytes.len() + BATCH_HEADER), 0);
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The base of a file.
fn base(path: &Path) -> Seq {
    Seq(path.file_stem().unwrap().to_str().unwrap().parse().unwrap())
}

#[test]
fn a_start_survives_any_flipped_bit() {
    for stopped in [true, false] {
        let (disk, log, pieces) = written(stopped);
        drop(log);
        let next = if stopped { 19 } else { 500 };
        let mut most = 0;
        for (path, bytes) in disk.files() {
            let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
            // One bit of every byte.
            for byte in 0..used {
                let disk = disk.copy();
                disk.damage(&path, |file| file[byte] ^= 1 << (byte % 8));
                let case = format!("stopped {stopped}, {} byte {byte}", path.display());
                most = most.max(survive(&disk, &pieces, next, &case).len());
            }
        }
        assert!((3..=6).contains(&most), "one bit costs one batch or two, not {most} events");
    }
}

#[test]
fn a_start_survives_any_truncated_file() {
    for stopped in [true, false] {
        let (disk, log, pieces) = written(stopped);
        drop(log);
        for (path, bytes) in disk.files() {
            for length in 0..bytes.len() {
                let disk = disk.copy();
                disk.damage(&path, |file| file.truncate(length));
                let case = format!("stopped {stopped}, {} {length} bytes", path.display());
                survive(&disk, &pieces, if stopped { 19 } else { 500 }, &case);
            }
        }
    }
}

#[test]
fn a_start_survives_any_garbage() {
    for seed in seeds("LOG", 500) {
        let mut rng = Rng::with_seed(seed);
        let case = format!("TIDINGS_LOG_SEED={seed}");
        let (disk, log, pieces) = written(rng.bool());
        drop(log);
        let files = disk.files();
        for _ in 0..rng.u32(1..4) {
            let (path, bytes) = &files[rng.usize(..files.len())];
            let at = rng.usize(..bytes.len());
            let end = rng.usize(at..=bytes.len().min(at + 200));
            match rng.u32(..3) {
                0 => disk.damage(path, |file| file[at..end].fill(0)),
                1 => disk.damage(path, |file| file[at..end].fill_with(|| rng.u8(..))),
                // A part of the file copied to another place: valid and invalid headers.
                _ => {
                    let to = rng.usize(..=bytes.len() - (end - at));
                    disk.damage(path, |file| file.copy_within(at..end, to));
                }
            }
        }
        let (log, found) = open(&disk, SEGMENT_BYTES);
        for heard in hear(&log, 1, BUFFER).unwrap() {
            if let Heard::Event(seq, bytes) = heard {
                assert_eq!(bytes, line(seq, 7), "{case}");
            }
        }
        log.verify().unwrap();
        assert!(found.next >= Seq(pieces[0].0), "{case}");
        fill(&log, &[(found.next.0, 1)]);
        let end = found.next.0 + 1;
        assert_eq!(hear(&log, end - 1, BUFFER).unwrap(), events(&[(end - 1, 1)]), "{case}");
    }
}

// PROTOCOL: R9
#[test]
fn an_unreadable_file_is_set_aside_and_its_seqs_skipped() {
    let (disk, log, _) = written(true);
    drop(log);
    let (path, _) = newest(&disk);
    disk.damage(&path, |file| file.fill(b'x'));
    let (log, found) = open(&disk, SEGMENT_BYTES);
    assert!(found.findings.iter().any(|text| text.contains("set aside")), "{:?}", found.findings);
    assert!(found.next > Seq(1 << 26), "its seqs are not assigned again");
    let heard = hear(&log, 1, BUFFER).unwrap();
    let Seq(base) = base(&path);
    assert_eq!(
        heard.last(),
        Some(&Heard::Lag(base, found.next.0 - 1)),
        "its events are reported as a lag"
    );
    // The next start must agree.
    drop(log);
    disk.cut_power();
    let (log, again) = open(&disk, SEGMENT_BYTES);
    assert_eq!(again.next, found.next);
    fill(&log, &[(again.next.0, 1)]);
    let (log, _) = open(&disk, SEGMENT_BYTES);
    assert_eq!(hear(&log, again.next.0, BUFFER).unwrap(), events(&[(again.next.0, 1)]));
    assert_eq!(hear(&log, base, BUFFER).unwrap()[0], Heard::Lag(base, found.next.0 - 1));
}

#[test]
fn a_missing_segment_is_reported_as_a_lag() {
    let (disk, log, pieces) = written(true);
    drop(log);
    let files: Vec<PathBuf> = disk.files().into_iter().map(|(path, _)| path).collect();
    crate::disk::Disk::remove(&disk, &files[1]).unwrap();
    let (log, _) = open(&disk, SEGMENT_BYTES);
    let lost = check(&log, &pieces, &[], "a file is missing");
    assert!(!lost.is_empty());
    let checked = log.verify().unwrap();
    let named: Vec<_> = checked.iter().flat_map(|file| file.lost.clone()).collect();
    let is_named = |seq: &u64| named.iter().any(|(a, b)| (a.0..=b.0).contains(seq));
    assert!(lost.iter().all(is_named), "{lost:?} {named:?}");
    assert!(checked.iter().any(|file| !file.problems.is_empty()));
}

#[test]
fn a_newer_version_is_not_changed() {
    for batch in [false, true] {
        let (disk, log, _) = written(true);
        drop(log);
        let (path, _) = newest(&disk);
        disk.damage(&path, |file| {
            let (start, end, version) = if batch {
                (SEGMENT_HEADER, SEGMENT_HEADER + BATCH_HEADER, SEGMENT_HEADER + 6)
            } else {
                (0, SEGMENT_HEADER, 8)
            };
            file[version] = 9;
            let header = &file[start..end - 4];
            let home = BatchHome::new(&"t".parse().unwrap(), base(&path));
            let crc =
                if batch { home.checksum(header, start as u64) } else { crc32c::crc32c(header) };
            file[end - 4..end].copy_from_slice(&crc.to_le_bytes());
        });
        let before = disk.files();
        let error = SegmentLog::open(options(disk.clone(), SEGMENT_BYTES), 0).unwrap_err();
        assert!(error.to_string().contains("version 9"), "{error}");
        assert_eq!(disk.files(), before);
    }
}

#[test]
fn a_damaged_place_is_logged_once() {
    let (disk, log, _) = written(true);
    let damage = |path: &Path, at: usize| disk.damage(path, |file| file[at] ^= 1);
    for (path, _) in disk.files() {
        damage(&path, SEGMENT_HEADER + BATCH_HEADER);
    }
    for _ in 0..10 {
        hear(&log, 1, BUFFER).unwrap();
    }
    let reported = log.shared.lock().reported.len();
    assert_eq!(reported, log.bounds().segments);
}
