//! What a start finds of groups: each one's log, replayed.
//!
//! ```text
//!   <data>/groups/<group>/   the segments of its log
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidings_protocol::{GroupName, Seq, TopicName};

use crate::clock::{Clock, Moment, Stamp};
use crate::group::record::{Decision, Record};
use crate::group::snapshot::Item;
use crate::group::{Group, GroupConfig};
use crate::log::disk::Disk;
use crate::log::{Found, LogError, SegmentLog, SegmentOptions, TopicLog};

/// Bytes of a segment, as a part of those after which the log is cut.
const SEGMENTS: u64 = 8;

/// Bytes that are read at once; more if a batch is longer.
const BUFFER_BYTES: usize = 16 << 20;

/// No batch is longer, with its header.
const BATCH_BYTES_MAX: usize = (1 << 32) + 64;

/// The number of a log's first record.
const FIRST: Seq = Seq(1);

/// Where groups are kept on disk.
#[derive(Debug, Clone)]
pub(crate) struct GroupStorage {
    /// The calls to the file system.
    pub(crate) disk: Arc<dyn Disk>,
    /// A directory for each group is made in here.
    pub(crate) dir: PathBuf,
    /// See [`Limits::group_log_bytes`](crate::Limits::group_log_bytes).
    pub(crate) log_bytes: u64,
}

/// A group as its log has it.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) group: Group,
    pub(crate) log: SegmentLog,
    /// The next record's number.
    pub(crate) next: Seq,
    /// The last start.
    pub(crate) started: Stamp,
    /// The newest record's moment.
    pub(crate) last: Moment,
}

impl GroupStorage {
    fn options(&self, name: &GroupName, first: Seq) -> SegmentOptions {
        let topic = TopicName::new(name.as_str()).expect("groups and topics are named alike");
        SegmentOptions {
            disk: Arc::clone(&self.disk),
            dir: self.dir.join(name.as_str()),
            topic,
            first,
            segment_bytes: self.log_bytes / SEGMENTS,
            reserve_part: 4,
        }
    }

    /// The log of a group that is new.
    pub(crate) fn fresh(&self, name: &GroupName) -> (SegmentLog, Seq) {
        (SegmentLog::fresh(self.options(name, FIRST)), FIRST)
    }

    /// Every group that has a log. Blocks. Fails if one cannot be read as a whole: a group that has
    /// forgotten a part of its decisions would ask hosts too early and call jobs done that are not.
    pub(crate) fn recover(&self) -> io::Result<Vec<Recovered>> {
        let names = match self.disk.list(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names?,
        };
        let mut groups = Vec::new();
        for name in names {
            let Ok(name) = GroupName::new(&name) else {
                tracing::warn!(name, "this is no directory of a group; it is ignored");
                continue;
            };
            let group = self.recover_one(&name);
            let dir = self.dir.join(name.as_str());
            groups.extend(group.map_err(|error| in_words(&error, &name, &dir))?);
        }
        groups.sort_unstable_by(|a, b| a.group.name().cmp(b.group.name()));
        Ok(groups)
    }

    /// `None` if the group's first record was never safe, so that nobody was told that it is there, or
    /// if its last one says that it is no more.
    fn recover_one(&self, name: &GroupName) -> io::Result<Option<Recovered>> {
        let (log, found) = SegmentLog::open(self.options(name, FIRST), 0)?;
        for finding in &found.findings {
            tracing::warn!(group = %name, "{finding}");
        }
        let mut group = Group::new(name.clone(), 0, GroupConfig::default(), fastrand::u64(..));
        let Some(from) = beginning(&log)? else {
            log.clear().map_err(io::Error::other)?;
            return Ok(None);
        };
        let (mut started, mut last) = (None, Moment(0));
        replay(&log, from, |record| {
            last = record.at;
            if let Decision::Started { stamp, .. } = record.decision {
                started = Some(stamp);
            }
            group.replay(&record);
        })?;
        let next = found.next;
        Ok(started.map(|started| Recovered { group, log, next, started, last }))
    }
}

/// Where replay begins: at the newest snapshot that is whole, or at the first record. `None`: the
/// last record says that the group is no more.
fn beginning(log: &dyn TopicLog) -> io::Result<Option<Seq>> {
    let (mut latest, mut whole, mut is_deleted) = (None, None, false);
    let first = log.bounds().first;
    read(log, first, |seq, line| {
        // What is missing is met again by a replay that needs it.
        let what = line.ok().and_then(|line| line.split_once('\t')).map_or("", |(_, what)| what);
        is_deleted = what == "deleted";
        if what == "kept\tbegin" {
            latest = Some(seq);
        } else if what.starts_with("kept\tend\t") {
            whole = latest.take();
        }
        Ok(())
    })?;
    match whole {
        _ if is_deleted => Ok(None),
        Some(begin) => Ok(Some(begin)),
        None if first <= FIRST => Ok(Some(FIRST)),
        None => Err(invalid(format!("records before {first} are gone"))),
    }
}

/// Hands over every record of a log from `from` on, without those of snapshots that are behind that.
fn replay(log: &dyn TopicLog, from: Seq, mut take: impl FnMut(Record)) -> io::Result<()> {
    let mut is_within = true;
    read(log, from, |seq, line| {
        let record = Record::decode(line?).map_err(invalid)?;
        match &record.decision {
            Decision::Kept(item) => {
                is_within &= seq == from || **item != Item::Begin;
                if is_within {
                    take(record);
                }
            }
            _ => take(record),
        }
        Ok(())
    })
}

/// Hands over every line of a log from `from` on, with its number.
fn read(
    log: &dyn TopicLog,
    mut from: Seq,
    mut take: impl FnMut(Seq, io::Result<&str>) -> io::Result<()>,
) -> io::Result<()> {
    // A log that is shorter than a buffer needs no more than itself.
    let bytes = usize::try_from(log.bounds().bytes).unwrap_or(BUFFER_BYTES);
    let mut buffer = vec![0; bytes.clamp(1, BUFFER_BYTES)];
    let mut at = None;
    loop {
        let found = match log.read(from, at, None, &mut buffer) {
            Err(LogError::Io { source, .. })
                if source.kind() == io::ErrorKind::InvalidInput
                    && buffer.len() < BATCH_BYTES_MAX =>
            {
                // What one input led to is one batch, however long.
                buffer = vec![0; (buffer.len() * 2).min(BATCH_BYTES_MAX)];
                continue;
            }
            found => found.map_err(io::Error::other)?,
        };
        match found {
            Found::Lines { runs, end, at: next, .. } => {
                for (first, run) in runs {
                    let lines = buffer[run].split_inclusive(|byte| *byte == b'\n');
                    for (seq, line) in (first.0..).zip(lines) {
                        let line = std::str::from_utf8(line.strip_suffix(b"\n").unwrap_or(line));
                        take(Seq(seq), line.map_err(invalid))?;
                    }
                }
                (from, at) = (end, Some(next));
            }
            // A start skips numbers after a crash.
            Found::Gap(_, to) => (from, at) = (Seq(to.0 + 1), None),
            Found::Lag(first, last) => {
                let text = format!("records {first} to {last} cannot be read");
                take(first, Err(invalid(text)))?;
                (from, at) = (Seq(last.0 + 1), None);
            }
            Found::Skip(_) | Found::End => return Ok(()),
        }
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn in_words(error: &io::Error, name: &GroupName, dir: &Path) -> io::Error {
    let text = format!(
        "group {name} cannot be read: {error}. Move {} out of there to start without what it remembers; the \
         topics that feed it are not touched",
        dir.display()
    );
    io::Error::new(error.kind(), text)
}

/// A clock that goes on where those of the groups would be.
pub(crate) fn clock_after(groups: &[Recovered]) -> Clock {
    let mut clock = Clock::new();
    for group in groups {
        clock.go_on(group.started, group.last);
    }
    clock
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Piece;
    use crate::log::disk::FileSystem;

    fn storage(dir: &Path) -> GroupStorage {
        GroupStorage { disk: Arc::new(FileSystem), dir: dir.to_owned(), log_bytes: 8_000 }
    }

    /// A log of several segments with these decisions, and some more before them.
    fn write(storage: &GroupStorage, decisions: &[Decision]) {
        let (log, mut next) = storage.fresh(&"g".parse().unwrap());
        let filler = Decision::Configured(Box::default());
        let filler = std::iter::repeat_n(&filler, 20);
        for decision in filler.chain(decisions) {
            let (at, decision) = (Moment(1), decision.clone());
            let mut line = String::new();
            Record { at, decision }.encode(&mut line);
            let (first, wire) = (next, line.into());
            next = Seq(next.0 + 1);
            let piece = Piece { first, count: 1, unix_ms: 0, wire, identified: false };
            log.append(&[piece], next, next).unwrap();
        }
        log.sync().unwrap();
    }

    fn segments(dir: &Path) -> Vec<PathBuf> {
        let files = std::fs::read_dir(dir.join("g")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    }

    #[test]
    fn what_was_cleared_in_part_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        write(&storage, &[Decision::Deleted]);
        assert!(segments(dir.path()).len() > 2);
        std::fs::remove_file(&segments(dir.path())[0]).unwrap();
        assert!(storage.recover().unwrap().is_empty());
        assert_eq!(segments(dir.path()), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_group_of_which_something_is_gone_is_not_taken_for_whole() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        write(&storage, &[Decision::Purged]);
        std::fs::remove_file(&segments(dir.path())[1]).unwrap();
        let error = storage.recover().unwrap_err().to_string();
        assert!(error.contains("group g cannot be read: records "), "{error}");
        std::fs::remove_file(&segments(dir.path())[0]).unwrap();
        let error = storage.recover().unwrap_err().to_string();
        assert!(error.contains("are gone. Move "), "{error}");
    }
}
