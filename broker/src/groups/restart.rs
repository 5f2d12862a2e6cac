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
use crate::log::{Found, SegmentLog, SegmentOptions, TopicLog};

/// Bytes of a segment, as a part of those after which the log is cut.
const SEGMENTS: u64 = 8;

/// Bytes that are read at once. The longest record has to fit: an answer with all its children.
const BUFFER_BYTES: usize = 64 << 20;

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
    /// The last start, and how the machine knew that moment.
    pub(crate) started: (Moment, Stamp),
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
        let (mut started, mut last, mut is_deleted) = (None, Moment(0), false);
        replay(&log, beginning(&log)?, |record| {
            last = record.at;
            if let Decision::Started { stamp, .. } = record.decision {
                started = Some((record.at, stamp));
            }
            is_deleted = record.decision == Decision::Deleted;
            group.replay(&record);
        })?;
        if is_deleted {
            log.clear().map_err(io::Error::other)?;
            return Ok(None);
        }
        let next = found.next;
        Ok(started.map(|started| Recovered { group, log, next, started, last }))
    }
}

/// Where replay begins: at the newest snapshot that is whole, or at the first record.
fn beginning(log: &dyn TopicLog) -> io::Result<Seq> {
    let (mut latest, mut whole) = (None, None);
    let first = log.bounds().first;
    read(log, first, |seq, line| {
        let what = line?.split_once('\t').map_or("", |(_, what)| what);
        if what == "kept\tbegin" {
            latest = Some(seq);
        } else if what.starts_with("kept\tend\t") {
            whole = latest.take();
        }
        Ok(())
    })?;
    match whole {
        Some(begin) => Ok(begin),
        None if first <= FIRST => Ok(FIRST),
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
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut at = None;
    loop {
        match log.read(from, at, None, &mut buffer).map_err(io::Error::other)? {
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
                return Err(invalid(format!("records {first} to {last} cannot be read")));
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
        "group {name} cannot be read: {error}. Move {} away to start without what it remembers; the \
         topics that feed it are not touched",
        dir.display()
    );
    io::Error::new(error.kind(), text)
}

/// A clock that goes on where those of the groups would be.
pub(crate) fn clock_after(groups: &[Recovered]) -> Clock {
    let mut clock = Clock::new();
    for group in groups {
        let (at, stamp) = group.started;
        clock.go_on(at, stamp, group.last);
    }
    clock
}
