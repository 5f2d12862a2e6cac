//! Fuzzing of damaged and forged segment files, on the simulated disk.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use tidings_protocol::Seq;

use crate::clean_stop::StopSlot;
use crate::disk::Disk;
use crate::format::{BatchHeader, BatchHome, SegmentHeader};
use crate::fuzzing::Choices;
use crate::segments::{Recovered, SegmentLog, SegmentOptions};
use crate::simulation::SimulatedDisk;
use crate::topic_log::{LogPiece, LogRead, TopicLog};

const DIR: &str = "data/topics/t";
const SEGMENT_BYTES: u64 = 600;
/// Larger than every batch of these logs.
const BUFFER: usize = 4 << 10;
/// Events of the damaged log, one or two per batch.
const EVENTS: u64 = 18;

/// Runs one case: a log with damage as the input says, or forged files with valid checksums.
pub(super) fn log(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    if choices.byte() & 1 == 0 { damaged(&mut choices) } else { crafted(&mut choices) }
}

fn open(disk: &SimulatedDisk) -> Option<(SegmentLog, Recovered)> {
    let options = SegmentOptions {
        disk: Arc::new(disk.clone()),
        dir: DIR.into(),
        topic: "t".parse().expect("the name is valid"),
        first: Seq(1),
        segment_bytes: SEGMENT_BYTES,
        reserve_part: 1,
        reserves: true,
        stopped: StopSlot::default(),
    };
    // A newer version and an unreadable file are errors.
    SegmentLog::open(options, 3).ok()
}

fn line(seq: u64) -> String {
    format!(
        "MSG t {seq} /{}\r\n",
        "x".repeat(usize::try_from(seq * 7 % 40).expect("the length is small"))
    )
}

fn append(log: &SegmentLog, first: u64, count: u64) {
    let wire: String = (first..first + count).map(line).collect();
    let piece = LogPiece {
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

/// Everything that a reader receives. Its seqs must never go back. `honest`: every batch has as
/// many lines as its header says.
fn served(log: &SegmentLog, honest: bool) -> Vec<(u64, Vec<u8>)> {
    while let Some(base) = log.newest(EVENTS, Seq(u64::MAX)).unknown {
        if log.index(base).is_err() {
            break;
        }
    }
    let (mut served, mut cursor, mut at) = (Vec::new(), 0, None);
    let mut buffer = vec![0; BUFFER];
    loop {
        // A batch larger than the buffer is an error.
        let Ok(found) = log.read(Seq(cursor), at, None, &mut buffer) else { return served };
        let next = match found {
            LogRead::Lines { first, end, runs, at: position } => {
                assert_eq!(first.0, cursor, "lines begin at the cursor");
                for run in runs {
                    let number = run.first.0;
                    assert!(number == cursor || !honest, "every run begins after the one before");
                    cursor = number;
                    for line in buffer[run.place].split_inclusive(|byte| *byte == b'\n') {
                        served.push((cursor, line.to_vec()));
                        cursor = cursor.saturating_add(1);
                    }
                }
                assert!(end.0 == cursor || !honest, "the header and the lines agree on the count");
                assert!(end > first, "a read of lines returns at least one");
                at = Some(position);
                end.0
            }
            LogRead::Lag(first, last) | LogRead::Gap(first, last) => {
                assert!(first.0 == cursor && last >= first, "{first}..={last} at {cursor}");
                let Some(next) = last.0.checked_add(1) else { return served };
                next
            }
            LogRead::Skip(_) => panic!("the read has no time limit"),
            LogRead::End => return served,
        };
        cursor = next;
    }
}

/// A valid log with a gap in its seqs.
static WRITTEN: LazyLock<SimulatedDisk> = LazyLock::new(|| {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk).expect("a new disk can be opened");
    let mut first = 1;
    while first <= EVENTS {
        append(&log, first, 1 + first % 2);
        first += if first == 7 { 4 } else { 1 + first % 2 };
    }
    drop(log);
    disk.cut_power();
    disk
});

/// With any damage to the files, every event that is read was written under its seq.
fn damaged(choices: &mut Choices<'_>) {
    let disk = WRITTEN.copy();
    let files = disk.files();
    let whole: Vec<u8> = files.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
    while !choices.is_exhausted() {
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
                // Data from another place, with its checksums.
                4 => drop(bytes.splice(at..end, whole[from..].iter().copied().take(end - at))),
                5 => drop(bytes.splice(at..at, whole[from..].iter().copied().take(value.into()))),
                _ => {}
            }
        });
    }
    let Some((log, found)) = open(&disk) else { return };
    let events = served(&log, true);
    for (seq, bytes) in &events {
        assert_eq!(
            String::from_utf8_lossy(bytes),
            line(*seq),
            "event {seq} differs from what was written"
        );
        assert!(*seq < found.next.0, "seq {} is assigned again", found.next);
    }
    for checked in log.verify().expect("the files can be read") {
        let _ = checked.lost_events();
    }
    append(&log, found.next.0, 2);
    drop(log);
    disk.cut_power();
    let (log, again) = open(&disk).expect("the disk was opened before");
    assert!(again.next.0 >= found.next.0 + 2, "confirmed events have their seqs");
    let later = served(&log, true);
    let confirmed = [found.next.0, found.next.0 + 1];
    for seq in events.iter().map(|(seq, _)| *seq).chain(confirmed) {
        assert!(later.iter().any(|(other, _)| *other == seq), "{seq} was served, or confirmed");
    }
    for (seq, bytes) in &later {
        assert_eq!(
            String::from_utf8_lossy(bytes),
            line(*seq),
            "event {seq} differs from what was written"
        );
    }
}

/// Files with valid checksums must not cause a panic, even with invalid contents.
fn crafted(choices: &mut Choices<'_>) {
    let disk = SimulatedDisk::new(1);
    disk.create_dir(DIR.as_ref()).expect("the disk is empty");
    for _ in 0..=choices.byte() % 3 {
        let base = choices.number();
        let header = SegmentHeader {
            topic: if choices.byte() < 0xF0 { "t" } else { "u" }
                .parse()
                .expect("the name is valid"),
            base: Seq(base),
            previous_end: Seq(choices.number()),
            reserved: Seq(choices.number()),
            unix_ms: choices.number().cast_signed(),
        };
        let mut bytes = header.encode().to_vec();
        let home = BatchHome::new(&"t".parse().expect("the name is valid"), Seq(base));
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

fn batch(choices: &mut Choices<'_>, home: BatchHome, bytes: &mut Vec<u8>) {
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
            u32::try_from(choices.number() >> 32).expect("the value has 32 bits")
        },
        bytes: u32::try_from(payload.len()).expect("the payload is short"),
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
    bytes.extend(header.encode_at(home, if knows_its_place { at } else { at + 1 }));
    bytes.extend(&payload);
    bytes.resize(bytes.len() + usize::from(flags >> 6) * 40, 0);
}
