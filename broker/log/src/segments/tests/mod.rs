//! Tests of the log on simulated disks.

mod cuts;
mod damage;
mod faults;
mod fixtures;
mod model;
mod newest;
mod reading;
mod simulation;
mod stopped;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use tidings_protocol::Seq;

use crate::clean_stop::StopSlot;
use crate::disk::Disk;
use crate::segments::{Recovered, SegmentLog, SegmentOptions};
use crate::simulation::SimulatedDisk;
use crate::topic_log::{LogError, LogPiece, LogRead, TopicLog};

/// Larger than every batch of these tests.
const BUFFER: usize = 4 << 10;

const DIR: &str = "data/topics/t";

fn options(disk: impl Disk + 'static, segment_bytes: u64) -> SegmentOptions {
    SegmentOptions {
        disk: Arc::new(disk),
        dir: DIR.into(),
        topic: "t".parse().unwrap(),
        first: Seq(1),
        segment_bytes,
        reserve_part: 1,
        reserves: true,
        stopped: StopSlot::after(None),
    }
}

#[track_caller]
fn open(disk: &SimulatedDisk, segment_bytes: u64) -> (SegmentLog, Recovered) {
    SegmentLog::open(options(disk.clone(), segment_bytes), 3).unwrap()
}

/// The line of an event; another `salt` makes another event.
fn line(seq: u64, salt: u64) -> Vec<u8> {
    let filler = "x".repeat(usize::try_from(salt % 40).unwrap());
    format!("MSG t {seq} {salt:x} {filler}\r\n").into_bytes()
}

/// `count` events from `first` on.
fn piece(first: u64, count: u64, unix_ms: i64, salt: u64) -> LogPiece {
    let wire: Vec<u8> = (first..first + count).flat_map(|seq| line(seq, salt)).collect();
    let identified = salt.is_multiple_of(3);
    LogPiece { first: Seq(first), count, unix_ms, wire: Bytes::from(wire), identified }
}

/// Appends and syncs one piece for each pair of first seq and count.
#[track_caller]
fn fill(log: &dyn TopicLog, pieces: &[(u64, u64)]) {
    for &(first, count) in pieces {
        let next = Seq(first + count);
        log.append(&[piece(first, count, 0, 7)], next, Seq(next.0 + 100)).unwrap();
        log.sync().unwrap();
    }
}

/// An item that a reader receives.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Heard {
    Event(u64, Vec<u8>),
    Lag(u64, u64),
    Gap(u64, u64),
}

/// Everything from `from` on. Checks that nothing is skipped.
#[track_caller]
fn hear(log: &dyn TopicLog, from: u64, buffer: usize) -> Result<Vec<Heard>, LogError> {
    let (mut heard, mut cursor, mut at) = (Vec::new(), from, None);
    let mut buffer = vec![0; buffer];
    loop {
        match log.read(Seq(cursor), at, None, &mut buffer)? {
            LogRead::Lines { first, end, runs, at: position } => {
                assert_eq!(first.0, cursor, "lines begin at the cursor");
                for run in runs {
                    assert_eq!(run.first.0, cursor, "every run begins after the one before");
                    for line in buffer[run.place].split_inclusive(|byte| *byte == b'\n') {
                        heard.push(Heard::Event(cursor, line.to_vec()));
                        cursor += 1;
                    }
                }
                assert_eq!(end.0, cursor, "the header and the lines agree on the count");
                at = Some(position);
            }
            LogRead::Lag(first, last) => {
                assert!(first.0 == cursor && last >= first, "{first}..={last} at {cursor}");
                heard.push(Heard::Lag(first.0, last.0));
                cursor = last.0 + 1;
            }
            LogRead::Gap(first, last) => {
                assert!(first.0 == cursor && last >= first, "{first}..={last} at {cursor}");
                heard.push(Heard::Gap(first.0, last.0));
                cursor = last.0 + 1;
            }
            LogRead::Skip(_) => panic!("the read has no time limit"),
            LogRead::End => return Ok(heard),
        }
    }
}

/// The result of `hear` for events that [`fill`] has written.
fn events(ranges: &[(u64, u64)]) -> Vec<Heard> {
    let numbers = ranges.iter().flat_map(|&(first, count)| first..first + count);
    numbers.map(|seq| Heard::Event(seq, line(seq, 7))).collect()
}

/// The newest segment of a log in the simulated directory.
fn newest(disk: &SimulatedDisk) -> (std::path::PathBuf, Vec<u8>) {
    let mut files = disk.files();
    files.retain(|(path, _)| path.extension().is_some_and(|kind| kind == "log"));
    files.pop().expect("there is a segment")
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}
