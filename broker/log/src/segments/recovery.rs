//! Opens a log after an orderly stop, after a crash, or on a disk that has lost data.
//!
//! Recovery reads only headers, and the payloads that may not have been synced. It distinguishes
//! five kinds of damage:
//!
//! - **The end is torn**: after the last valid batch follows data that no batch records as synced.
//!   A crash causes this. The data is cut off and, if there is any, kept beside the file.
//! - **A batch in the middle is damaged**: a later batch records that it had been synced. It stays
//!   where it is, and a reader that reaches it receives a `Lag`.
//! - **The end is lost**: at the last orderly stop the log was longer, so no
//!   crash has torn it. The file stays as it is, and the next events go to a new file.
//! - **A whole batch lies in the wrong place**: its checksum is for another
//!   [address](crate::format), so it is ignored. One of earlier data at this address, with seqs of a
//!   newer file or beyond what had been synced, is skipped, and its header is not trusted.
//! - **Nothing in the file can be read**: the file is renamed, and seqs continue far after any that
//!   it may have held. An unreadable file is never treated as an empty one.
//!
//! After recovery, everything that it found counts as durable, and the next start reaches the same
//! result even after a power loss in between. Therefore data that may only be in the system's
//! memory is written again and synced before it is used.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tidings_protocol::Seq;

use super::segment_file::SegmentFile;
use super::segment_index::SegmentIndex;
use super::segment_log::{
    ActiveSegment, LogWriter, Segment, SegmentLog, SegmentOptions, SegmentTable, file_name,
    torn_path,
};
use super::segment_walk::{BatchLocation, WalkStep, is_whole, payload};
use crate::clean_stop::LogEnd;
use crate::disk::{DiskFile, create_synced, is_full, with_path};
use crate::format::{
    BATCH_HEADER, BatchHeader, BatchHome, FormatError, SEGMENT_HEADER, SegmentHeader,
};
use crate::topic_log::RESERVED_MAX;

/// More seqs than a segment can hold, to continue after an unreadable one.
const UNREADABLE_SEQS: u64 = 1 << 26;

/// Number of newest segments in which batches are read. Recent ids are in them; a crash affects
/// only the last one.
const RECENT_SEGMENTS: usize = 2;

/// Maximum bytes of cut-off data that are kept.
const TORN_BYTES: u64 = 4 << 20;

/// The result of opening a log.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The next seq to assign.
    pub next: Seq,
    /// Seqs below this are durably reserved.
    pub reserved: Seq,
    /// Append time of the newest event; 0 if there is none.
    pub newest_unix_ms: i64,
    /// The lines of the newest batches with an `id=`, oldest first, each with the seq of its first
    /// line.
    pub identified: Vec<(Seq, Vec<u8>)>,
    /// Descriptions of damage.
    pub findings: Vec<String>,
    /// At the last orderly stop the log was longer.
    pub has_lost_end: bool,
}

impl SegmentLog {
    /// Opens the log in a directory, which need not exist. Reads back at most `identified_max`
    /// batches with ids.
    ///
    /// Fails if an existing file cannot be opened or read, or is of a newer version.
    pub(crate) fn open(
        options: SegmentOptions,
        identified_max: usize,
    ) -> io::Result<(Self, Recovered)> {
        let first = options.first;
        let recovery = Recovery {
            shared: SegmentTable { end: first, ..SegmentTable::default() },
            writer: LogWriter { durable: first, reserved: first, ..LogWriter::default() },
            found: Recovered { next: first, reserved: first, ..Recovered::default() },
            identified: VecDeque::new(),
            identified_max,
            floor: first,
            options,
        };
        recovery.run()
    }
}

struct Recovery {
    options: SegmentOptions,
    shared: SegmentTable,
    writer: LogWriter,
    found: Recovered,
    /// The newest batches with ids, ascending by seq.
    identified: VecDeque<(Arc<dyn DiskFile>, BatchLocation)>,
    identified_max: usize,
    /// Seqs below this may have been assigned, although no file records it.
    floor: Seq,
}

/// The part of a file to keep.
struct SegmentScan {
    index: SegmentIndex,
    /// The offset after the valid part.
    end: u64,
    /// The seq after the newest event of that part, or after those that were skipped.
    next: Seq,
    /// Seqs between its events that no event has.
    empty: u64,
    /// The offset of the first batch that may be in the system's memory only.
    unsynced: Option<u64>,
    /// Data other than zeros follows the valid part.
    torn: bool,
    /// Something within the valid part is missing.
    damaged: bool,
    /// The last batch records an orderly stop.
    is_stopped: bool,
    /// The offset at which the valid part ends, if it ends before what was durable.
    lost_offset: Option<u64>,
}

/// The synced part of a file. Data of it that cannot be read was lost by the disk.
#[derive(Clone, Copy)]
struct SyncedRange {
    /// Events before this seq.
    events: Seq,
    /// All bytes before this offset.
    bytes: u64,
}

impl SyncedRange {
    fn covers(self, place: &BatchLocation) -> bool {
        place.header.first < self.events || place.offset < self.bytes
    }
}

impl Recovery {
    fn run(mut self) -> io::Result<(SegmentLog, Recovered)> {
        let dir = self.options.dir.clone();
        let bases = match self.options.disk.list(&dir) {
            Ok(names) => self.sort(names)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.conclude(),
            Err(error) => return Err(with_path(&error, &dir)),
        };
        // The directory was made durable before its first segment was created.
        self.writer.has_dir = !bases.is_empty();
        for (at, base) in bases.iter().enumerate() {
            let path = dir.join(file_name(*base));
            let newer = bases.len() - at - 1;
            let home = BatchHome::new(&self.options.topic, *base);
            let file = self.options.disk.open(&path);
            file.and_then(|file| self.segment(SegmentFile::new(file, home, *base, &path)?, newer))
                .map_err(|error| with_path(&error, &path))?;
        }
        // The process may have been killed after a rename or removal, before it was durable.
        self.options.disk.sync_dir(&dir).map_err(|error| with_path(&error, &dir))?;
        self.conclude()
    }

    /// The bases of the segments, ascending. Removes temporary files of an earlier start.
    fn sort(&mut self, names: Vec<String>) -> io::Result<Vec<Seq>> {
        let mut bases = Vec::new();
        for name in names {
            let (number, kind) = name.split_once('.').unwrap_or((&name, ""));
            match (number.parse().map(Seq), kind) {
                (Ok(base), "log") if file_name(base) == name => bases.push(base),
                // A file that was set aside may have held seqs.
                (Ok(base), "log.damaged") => self.floor = self.floor.max(beyond(base)),
                (_, "tmp") => self.options.disk.remove(&self.options.dir.join(&name))?,
                (Ok(_), "log.torn") => {}
                _ => self.found.findings.push(format!("{name} is not a log file; it is ignored")),
            }
        }
        bases.sort_unstable();
        Ok(bases)
    }

    /// Records a finding about a file.
    fn report(&mut self, path: &Path, problem: impl Display) {
        self.found.findings.push(format!("{}: {problem}", path.display()));
    }

    /// Adds a segment, which `newer` segments follow.
    fn segment(&mut self, segment: SegmentFile<'_>, newer: usize) -> io::Result<()> {
        let header = self.header(&segment)?;
        if let Some(header) = &header
            && newer >= RECENT_SEGMENTS
        {
            self.add(&segment, header);
            return Ok(());
        }
        // Nothing is appended to a file with a damaged header.
        let has_header = header.is_some();
        let survey = segment.survey()?;
        let header = match (header, survey.first) {
            (Some(header), _) => header,
            (None, Some(first)) => self.infer(segment.base, &first),
            (None, None) => return self.set_aside(&segment),
        };
        let is_last = newer == 0;
        // A segment is synced completely before the next one is created.
        let synced = if is_last { survey.synced } else { Seq(u64::MAX) };
        let stopped = if is_last { self.stopped(&segment)? } else { None };
        let bytes = stopped.as_ref().map_or(0, |stopped| stopped.bytes);
        self.add(&segment, &header);
        let safe = SyncedRange { events: synced, bytes };
        let mut scan = self.scan(&segment, safe)?;
        if let Some(reserved) = survey.reserved {
            // The last header may belong to torn data, or precede an earlier start.
            self.writer.reserved = reserved.max(scan.next);
        }
        if let Some(stopped) = stopped.filter(|_| scan.lost_offset.is_some()) {
            self.keep_lost_end(&stopped, segment.path, &mut scan);
        } else if is_last {
            self.settle(&segment, synced, &mut scan)?;
        } else if scan.torn {
            self.report(segment.path, "its end is damaged");
        }
        let added = self.shared.segments.back_mut().expect("the segment was just added");
        added.index = Some(Arc::new(scan.index.clone()));
        added.empty = scan.empty;
        if is_last {
            added.bytes = scan.end;
            if has_header && !scan.damaged {
                let SegmentFile { file, home, .. } = segment;
                let (offset, allocated, index) = (scan.end, file.len()?, scan.index);
                self.writer.active = Some(ActiveSegment { file, home, offset, allocated, index });
            }
        }
        Ok(())
    }

    /// The recorded end of this file at the last orderly stop, if there is one.
    fn stopped(&self, segment: &SegmentFile<'_>) -> io::Result<Option<LogEnd>> {
        let Some(stopped) = &self.options.stopped.last else { return Ok(None) };
        let header = SegmentHeader::checksum(&SegmentHeader::read(&*segment.file)?);
        Ok(stopped.is_of(segment.path, header).then(|| stopped.clone()))
    }

    /// Keeps the newest segment as it is, although some of its durable data is lost.
    fn keep_lost_end(&mut self, stopped: &LogEnd, path: &Path, scan: &mut SegmentScan) {
        let (from, until) = (self.shared.end.max(scan.next), stopped.end);
        let lost = match until.0.saturating_sub(from.0) {
            0 => "no event is lost".to_owned(),
            1 => format!("event {from} cannot be read"),
            _ => format!("events {from} to {} cannot be read", until.0 - 1),
        };
        let (bytes, end) = (stopped.bytes - scan.end, scan.end);
        let problem = format!(
            "its last {bytes} bytes, from byte {end} on, are damaged: the file was whole at the last \
             orderly stop; {lost}"
        );
        self.report(path, problem);
        self.shared.end = self.shared.end.max(until);
        self.writer.reserved = stopped.next.max(self.shared.end);
        self.found.has_lost_end = true;
        (scan.end, scan.damaged) = (stopped.bytes, true);
    }

    /// Makes the newest segment durable and ready for appends.
    fn settle(
        &mut self,
        segment: &SegmentFile<'_>,
        synced: Seq,
        scan: &mut SegmentScan,
    ) -> io::Result<()> {
        let (file, length) = (&*segment.file, segment.length);
        let is_bare = scan.end == length && !scan.is_stopped;
        if is_bare && segment.takes_room() {
            let problem =
                "no allocated space follows the last batch; the last events may be missing";
            self.report(segment.path, problem);
        }
        if scan.torn {
            self.keep_torn(segment, scan.end)?;
        }
        if self.options.reserves && (is_bare || scan.torn) {
            // The missing data may have reserved seqs that no header records now. The new
            // reservation is written while the damage is still visible, so that an interrupted
            // start changes nothing.
            let lost = (length - scan.end).saturating_add(2 * RESERVED_MAX);
            self.writer.reserved.0 = self.writer.reserved.0.saturating_add(lost);
            self.note_next(segment, synced, scan)?;
            file.sync_data()?;
        }
        let length = file.len()?;
        if scan.end < length {
            // Truncate even if zeros follow. After a failed sync, other data may be on the disk
            // under them. It must be gone before anything is written there, or part of it could
            // look like a later batch.
            file.set_len(scan.end)?;
            file.set_len(length)?;
            file.sync_data()?;
        }
        if let Some(offset) = scan.unsynced {
            segment.rewrite(offset, scan.end)?;
        }
        // From here on everything found counts as durable.
        file.sync_data()
    }

    /// The header of a segment; `None` if it is damaged.
    fn header(&mut self, segment: &SegmentFile<'_>) -> io::Result<Option<SegmentHeader>> {
        let problem = match SegmentHeader::decode(&SegmentHeader::read(&*segment.file)?) {
            Ok(header) if header.base == segment.base && header.topic == self.options.topic => {
                return Ok(Some(header));
            }
            Ok(_) => "its header belongs to another segment than its name".to_owned(),
            Err(error @ FormatError::Version(_)) => {
                return Err(io::Error::new(io::ErrorKind::Unsupported, error));
            }
            Err(error) => error.to_string(),
        };
        self.report(segment.path, problem);
        Ok(None)
    }

    /// Reconstructs a damaged header from the first valid batch.
    fn infer(&self, base: Seq, first: &BatchLocation) -> SegmentHeader {
        let is_first = first.offset == SEGMENT_HEADER as u64;
        SegmentHeader {
            topic: self.options.topic.clone(),
            base,
            // In doubt, report missing events rather than none.
            previous_end: if is_first { first.header.previous_end.min(base) } else { base },
            reserved: self.writer.reserved,
            unix_ms: first.header.unix_ms,
        }
    }

    fn add(&mut self, segment: &SegmentFile<'_>, header: &SegmentHeader) {
        // A newer file records where the events of earlier files end. Batches with later seqs in
        // those are misplaced.
        self.shared.end = header.previous_end;
        self.identified.retain(|(_, place)| place.header.end() <= header.previous_end);
        self.writer.reserved = header.reserved.max(header.base);
        self.found.newest_unix_ms = self.found.newest_unix_ms.max(header.unix_ms);
        self.shared.segments.push_back(Segment {
            path: segment.path.to_owned(),
            base: header.base,
            previous_end: header.previous_end,
            unix_ms: header.unix_ms,
            bytes: segment.length,
            empty: 0,
            index: None,
        });
    }

    /// Walks through the batches to keep: up to the first invalid one, unless that one had been
    /// synced.
    fn scan(&mut self, segment: &SegmentFile<'_>, safe: SyncedRange) -> io::Result<SegmentScan> {
        let SegmentFile { file, path, base, .. } = segment;
        let mut scan = SegmentScan {
            index: SegmentIndex::new(*base),
            end: SEGMENT_HEADER as u64,
            // Events of this file before this seq are accounted for.
            next: *base,
            empty: 0,
            unsynced: None,
            torn: false,
            damaged: false,
            is_stopped: false,
            lost_offset: None,
        };
        let mut walk = segment.walk();
        loop {
            match walk.next()? {
                WalkStep::Batch(place) => {
                    let header = &place.header;
                    // A batch without events may directly follow the synced part.
                    if !safe.covers(&place) {
                        let follows =
                            header.first >= scan.next && header.previous_end == self.shared.end;
                        if !follows && safe.events > scan.next {
                            scan.damaged = true;
                            scan.end = place.end();
                            let at = place.offset;
                            let problem =
                                format!("the batch at byte {at} belongs to another place");
                            self.report(path, problem);
                            continue;
                        }
                        if !follows || !is_whole(&**file, &place)? {
                            (scan.end, scan.torn) = (place.offset, true);
                            return Ok(scan);
                        }
                        scan.unsynced.get_or_insert(place.offset);
                    }
                    if header.count > 0 {
                        let end = self.shared.end.max(*base);
                        let gap = header.first.0.saturating_sub(end.0);
                        scan.empty = scan.empty.saturating_add(gap);
                    }
                    scan.next = scan.next.max(header.end());
                    scan.end = place.end();
                    scan.is_stopped = header.clean;
                    scan.index.add(header, place.offset);
                    self.apply_header(file, place);
                }
                WalkStep::Bad { offset, next }
                    if safe.events > scan.next || offset < safe.bytes =>
                {
                    scan.damaged = true;
                    scan.end = next.offset;
                    self.shared.end = self.shared.end.max(next.header.previous_end);
                    let bytes = next.offset - offset;
                    let problem = format!(
                        "{bytes} bytes from byte {offset} on are damaged; events from {} on cannot be \
                         read",
                        scan.next
                    );
                    self.report(path, problem);
                }
                WalkStep::Bad { offset, .. } => {
                    (scan.end, scan.torn) = (offset, true);
                    return Ok(scan);
                }
                WalkStep::End { offset, zeros } => {
                    (scan.end, scan.torn) = (offset, !zeros);
                    scan.lost_offset = (offset < safe.bytes).then_some(offset);
                    return Ok(scan);
                }
            }
        }
    }

    fn apply_header(&mut self, file: &Arc<dyn DiskFile>, place: BatchLocation) {
        let header = &place.header;
        let end = if header.count > 0 { header.end() } else { header.previous_end };
        self.shared.end = self.shared.end.max(end);
        self.found.newest_unix_ms = self.found.newest_unix_ms.max(header.unix_ms);
        if header.identified {
            self.identified.push_back((Arc::clone(file), place));
            if self.identified.len() > self.identified_max {
                self.identified.pop_front();
            }
        }
    }

    /// Copies the torn end to another file, before it is cut off.
    fn keep_torn(&mut self, segment: &SegmentFile<'_>, end: u64) -> io::Result<()> {
        let SegmentFile { file, path, length, .. } = segment;
        let aside = torn_path(path);
        let mut rest = vec![0; usize::try_from((length - end).min(TORN_BYTES)).unwrap_or(0)];
        let read = file.read_at(&mut rest, end)?;
        let used = rest[..read].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        // Best effort: the copy is only for diagnosis, and the disk may be full.
        let kept = match create_synced(&*self.options.disk, &aside, &rest[..used]) {
            Ok(_) => format!("cut off, and kept as {}", aside.display()),
            Err(_) => "cut off".to_owned(),
        };
        let problem =
            format!("the last {used} bytes are an incomplete batch, as after a crash: {kept}");
        self.report(path, problem);
        Ok(())
    }

    /// Records up to where seqs may have been assigned, because the next start cannot find out.
    fn note_next(
        &self,
        segment: &SegmentFile<'_>,
        synced: Seq,
        scan: &mut SegmentScan,
    ) -> io::Result<()> {
        let SegmentFile { file, home, .. } = segment;
        let end = self.shared.end;
        let next = self.writer.reserved.max(end);
        let note = BatchHeader {
            first: next,
            previous_end: end,
            durable: synced.min(end),
            reserved: next,
            unix_ms: self.found.newest_unix_ms,
            ..BatchHeader::default()
        };
        if !file.is_writable() {
            return Ok(());
        }
        // Zeros after the record mark the end of the log.
        file.set_len(file.len()?.max(scan.end + 2 * BATCH_HEADER as u64))?;
        match file.write_at(&mut [IoSlice::new(&note.encode_at(*home, scan.end))], scan.end) {
            Ok(()) => {
                scan.unsynced.get_or_insert(scan.end);
                scan.end += BATCH_HEADER as u64;
                Ok(())
            }
            // A missing record is better than a topic that cannot be opened.
            Err(error) if is_full(&error) => file.set_len(scan.end),
            Err(error) => Err(error),
        }
    }

    fn set_aside(&mut self, segment: &SegmentFile<'_>) -> io::Result<()> {
        let aside = segment.path.with_extension("log.damaged");
        self.options.disk.rename(segment.path, &aside)?;
        self.floor = self.floor.max(beyond(segment.base));
        let aside = aside.display();
        let problem = format!("no event in it can be read; the file was set aside as {aside}");
        self.report(segment.path, problem);
        Ok(())
    }

    /// Adds the seqs after the last batch to each index, now that the ends of all segments are
    /// known.
    fn end_indexes(&mut self) {
        let mut end = self.shared.end;
        for segment in self.shared.segments.iter_mut().rev() {
            let ends = std::mem::replace(&mut end, segment.previous_end).max(segment.base);
            if let Some(index) = &mut segment.index {
                if index.end > ends {
                    // The index contains misplaced batches. A reader that needs one builds it
                    // without them.
                    segment.index = None;
                } else if index.end < ends {
                    Arc::make_mut(index).end_at(ends);
                }
            }
        }
    }

    fn conclude(mut self) -> io::Result<(SegmentLog, Recovered)> {
        let newest = self.shared.segments.back().map_or(Seq(0), |segment| segment.base);
        if self.floor > beyond(newest) || newest == Seq(0) {
            // The newest seqs were in a file that is gone. Their events were kept, so readers must
            // receive a `Lag` and not a `Gap`: the log ends where those events may have ended.
            self.found.next = self.found.next.max(self.floor);
            self.shared.end = self.shared.end.max(self.floor);
            self.writer.active = None;
        }
        self.end_indexes();
        self.found.next = self.found.next.max(self.shared.end).max(self.writer.reserved);
        self.writer.durable = self.shared.end;
        self.writer.reserved = self.found.next;
        self.writer.newest_unix_ms = self.found.newest_unix_ms;
        self.found.reserved = self.writer.reserved;
        for (file, place) in &self.identified {
            if is_whole(&**file, place)? {
                self.found.identified.push((place.header.first, payload(&**file, place)?));
            }
        }
        let (shared, writer) = (Mutex::new(self.shared), Mutex::new(self.writer));
        let log = SegmentLog { options: self.options, shared, writer, removal: Mutex::default() };
        Ok((log, self.found))
    }
}

/// A seq above all that the segment beginning at `base` can hold.
fn beyond(base: Seq) -> Seq {
    Seq(base.0.saturating_add(UNREADABLE_SEQS))
}
