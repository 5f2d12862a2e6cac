//! Segment files that are not what was written, on the simulated disk.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use tidings_protocol::Seq;

use super::disk::Disk;
use super::format::{BatchHeader, Home, SegmentHeader, VERSION, VERSION_1};
use super::simulated::SimulatedDisk;
use super::{Found, Piece, SegmentLog, SegmentOptions, TopicLog};
use crate::fuzzing::Choices;

const DIR: &str = "data/topics/t";
const SEGMENT_BYTES: u64 = 600;
/// Room for every batch that is written here.
const BUFFER: usize = 4 << 10;
/// Events of the log that is damaged, one or two in a batch.
const EVENTS: u64 = 18;

/// A log with the damage that the bytes say, or files that never were one, with checksums that are right.
pub(crate) fn log(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    if choices.byte() & 1 == 0 { damaged(&mut choices) } else { crafted(&mut choices) }
}

fn open(disk: &SimulatedDisk) -> Option<(SegmentLog, super::Recovered)> {
    let options = SegmentOptions {
        disk: Arc::new(disk.clone()),
        dir: DIR.into(),
        topic: "t".parse().expect("it is a name"),
        first: Seq(1),
        segment_bytes: SEGMENT_BYTES,
        reserve_part: 1,
        stopped: None,
    };
    // What is of a later version is refused, and so is what cannot be read.
    SegmentLog::open(options, 3).ok()
}

fn line(seq: u64) -> String {
    format!("MSG t {seq} /{}\r\n", "x".repeat(usize::try_from(seq * 7 % 40).expect("it is small")))
}

fn append(log: &SegmentLog, first: u64, count: u64) {
    let wire: String = (first..first + count).map(line).collect();
    let piece = Piece {
        first: Seq(first),
        count,
        unix_ms: 0,
        wire: wire.into(),
        identified: first.is_multiple_of(3),
    };
    let next = Seq(first + count);
    log.append(&[piece], next, Seq(next.0 + 100)).expect("this disk has room");
    log.sync().expect("this disk does not fail");
}

/// Everything that a reader is served. What is said of numbers never goes back. `honest`: batches have as many lines
/// as they say.
fn served(log: &SegmentLog, honest: bool) -> Vec<(u64, Vec<u8>)> {
    while let Some(base) = log.newest(EVENTS, Seq(u64::MAX)).unknown {
        if log.index(base).is_err() {
            break;
        }
    }
    let (mut served, mut cursor, mut at) = (Vec::new(), 0, None);
    let mut buffer = vec![0; BUFFER];
    loop {
        // What cannot be read because a batch is larger than the buffer is an error of the reader.
        let Ok(found) = log.read(Seq(cursor), at, None, &mut buffer) else { return served };
        let next = match found {
            Found::Lines { first, end, runs, at: position } => {
                assert_eq!(first.0, cursor, "lines begin where they should");
                for (number, run) in runs {
                    assert!(number.0 == cursor || !honest, "and so does every run");
                    cursor = number.0;
                    for line in buffer[run].split_inclusive(|byte| *byte == b'\n') {
                        served.push((cursor, line.to_vec()));
                        cursor = cursor.saturating_add(1);
                    }
                }
                assert!(end.0 == cursor || !honest, "as many come as were promised");
                assert!(end > first, "and some do");
                at = Some(position);
                end.0
            }
            Found::Lag(first, last) | Found::Gap(first, last) => {
                assert!(first.0 == cursor && last >= first, "{first}..={last} at {cursor}");
                let Some(next) = last.0.checked_add(1) else { return served };
                next
            }
            Found::Skip(_) => panic!("nobody asked for a time"),
            Found::End => return served,
        };
        cursor = next;
    }
}

/// A log as it was written, with a hole in its numbers.
static WRITTEN: LazyLock<SimulatedDisk> = LazyLock::new(|| {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk).expect("it is new");
    let mut first = 1;
    while first <= EVENTS {
        append(&log, first, 1 + first % 2);
        first += if first == 7 { 4 } else { 1 + first % 2 };
    }
    drop(log);
    disk.cut_power();
    disk
});

/// Whatever happens to the files, what is served was written under that number, and goes on.
fn damaged(choices: &mut Choices<'_>) {
    let disk = WRITTEN.copy();
    let files = disk.files();
    let whole: Vec<u8> = files.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
    while !choices.is_over() {
        let (path, _) = &files[usize::from(choices.byte()) % files.len()];
        let (kind, at, value) = (choices.byte() % 6, choices.pair(), choices.byte());
        let from = choices.pair() % whole.len();
        disk.damage(path, |bytes| {
            let at = at % (bytes.len() + 1);
            let end = (at + usize::from(value)).min(bytes.len());
            match kind {
                0 if at < bytes.len() => bytes[at] ^= 1 << (value % 8),
                1 => bytes.truncate(at),
                2 => bytes[at..end].fill(0),
                3 => drop(bytes.drain(at..end)),
                // What was written elsewhere, with its checksums.
                4 => drop(bytes.splice(at..end, whole[from..].iter().copied().take(end - at))),
                5 => drop(bytes.splice(at..at, whole[from..].iter().copied().take(value.into()))),
                _ => {}
            }
        });
    }
    let Some((log, found)) = open(&disk) else { return };
    let events = served(&log, true);
    for (seq, bytes) in &events {
        assert_eq!(String::from_utf8_lossy(bytes), line(*seq), "{seq} was never written so");
        assert!(*seq < found.next.0, "{} is given again", found.next);
    }
    for checked in log.verify().expect("the files can be read") {
        let _ = checked.lost_events();
    }
    append(&log, found.next.0, 2);
    drop(log);
    disk.cut_power();
    let (log, again) = open(&disk).expect("it was there before");
    assert!(again.next.0 >= found.next.0 + 2, "what was confirmed counts");
    let later = served(&log, true);
    let confirmed = [found.next.0, found.next.0 + 1];
    for seq in events.iter().map(|(seq, _)| *seq).chain(confirmed) {
        assert!(later.iter().any(|(other, _)| *other == seq), "{seq} was served, or confirmed");
    }
    for (seq, bytes) in &later {
        assert_eq!(String::from_utf8_lossy(bytes), line(*seq), "{seq} was never written so");
    }
}

/// Files whose checksums say nothing against them: nothing panics, whatever they claim.
fn crafted(choices: &mut Choices<'_>) {
    let disk = SimulatedDisk::new(1);
    disk.create_dir(DIR.as_ref()).expect("the disk is empty");
    for _ in 0..=choices.byte() % 3 {
        let base = choices.number();
        let header = SegmentHeader {
            version: if choices.byte() < 0xF0 { VERSION } else { VERSION_1 },
            topic: if choices.byte() < 0xF0 { "t" } else { "u" }.parse().expect("it is a name"),
            base: Seq(base),
            previous_end: Seq(choices.number()),
            reserved: Seq(choices.number()),
            unix_ms: choices.number().cast_signed(),
        };
        let mut bytes = header.encode().to_vec();
        let home = Home::new(&"t".parse().expect("it is a name"), Seq(base));
        for _ in 0..choices.byte() % 8 {
            batch(choices, home, &mut bytes);
        }
        let path = std::path::Path::new(DIR).join(format!("{base:020}.log"));
        if let Ok(file) = disk.create(&path) {
            drop(file);
            disk.damage(&path, |file| *file = bytes);
        }
    }
    let Some((log, _)) = open(&disk) else { return };
    let _ = served(&log, false);
    for checked in log.verify().expect("the files can be read") {
        let _ = checked.lost_events();
    }
    let _ = log.bounds();
}

fn batch(choices: &mut Choices<'_>, home: Home, bytes: &mut Vec<u8>) {
    let (first, lines) = (choices.number(), choices.byte() % 4);
    let payload: String =
        (0..u64::from(lines)).map(|n| line(first.wrapping_add(n) % 1000)).collect();
    let payload = Bytes::from(payload);
    let flags = choices.byte();
    let header = BatchHeader {
        first: Seq(first),
        count: if flags & 1 == 0 {
            lines.into()
        } else {
            u32::try_from(choices.number() >> 32).expect("these are 32 bits")
        },
        bytes: u32::try_from(payload.len()).expect("it is short"),
        previous_end: Seq(choices.number()),
        durable: Seq(choices.number()),
        reserved: Seq(choices.number()),
        unix_ms: choices.number().cast_signed(),
        crc: crc32c::crc32c(&payload),
        clean: flags & 2 != 0,
        identified: flags & 4 != 0,
    };
    let knows_its_place = flags & 8 == 0;
    let at = bytes.len() as u64;
    bytes.extend(if knows_its_place { header.encode_at(home, at) } else { header.encode() });
    bytes.extend(&payload);
    bytes.resize(bytes.len() + usize::from(flags >> 6) * 40, 0);
}
