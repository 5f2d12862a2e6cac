//! What a start finds: segments of an orderly stop, of a crash, or of a disk that lies.
//!
//! Only headers are read, and the payloads of what was not known to be synced. Five things can be
//! wrong with a file, and each is dealt with differently:
//!
//! - **The end is torn**: after the last good batch comes something that no batch says was synced. A
//!   crash does that. It is cut off, and what it held, if anything, kept beside the file.
//! - **A batch in the middle is damaged**: a later one says that it had been synced. It stays where
//!   it is; readers are told what is missing when they come there.
//! - **The end is lost**: the log ended further on at the last [orderly stop](crate::clean_stop), so no crash has torn
//!   it. It stays where it is as well, and the next events go to a new file.
//! - **A batch lies where it was not written**, whole: it is no batch, as its checksum is of another
//!   [address](super::format). In files of version 1 it would be one: those with numbers of a newer file, or
//!   of later than what had been synced, are passed over, and nothing is learned from them.
//! - **Nothing in the file can be read**: it is set aside under another name, and numbers go on far
//!   behind what it may have held. A file that cannot be read is never taken for an empty one.
//!
//! What a start finds counts as safe from then on, and what it concludes is the same at the next
//! start, also if the power goes in between: whatever may only be in the system's memory is written
//! again and synced before anybody hears of it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tidings_protocol::Seq;

use super::disk::{DiskFile, is_full};
use super::format::{
    BATCH_HEADER, BatchHeader, FormatError, Home, SEGMENT_HEADER, SegmentHeader, VERSION,
};
use super::index::Index;
use super::segment::{Place, Step, Walk, is_whole, payload};
use super::segments::{
    Active, Segment, SegmentLog, SegmentOptions, Shared, Writer, file_name, torn_path,
};
use super::{LogEnd, RESERVED_MAX};

/// More numbers than a segment can hold, for going on behind one that cannot be read.
const LOST_NUMBERS: u64 = 1 << 26;

/// So many of the newest segments are where recent ids are; the last one is where a crash happened.
const RECENT: usize = 2;

/// Bytes of what was cut off that are kept.
const TORN_BYTES: u64 = 4 << 20;

/// Bytes that are written again in one call.
const REWRITE_BYTES: usize = 256 << 10;

/// What a start found.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// The next number to be given.
    pub(crate) next: Seq,
    /// Numbers below this are reserved safely.
    pub(crate) reserved: Seq,
    /// When the newest event was appended; 0 if there is none.
    pub(crate) newest_unix_ms: i64,
    /// The lines of the newest batches that hold an `id=`, oldest first, with the number of the
    /// first line of each.
    pub(crate) identified: Vec<(Seq, Vec<u8>)>,
    /// What was wrong, in words.
    pub(crate) findings: Vec<String>,
    /// The log ended further on at the last orderly stop.
    pub(crate) has_lost_end: bool,
}

impl SegmentLog {
    /// The log in a directory, which need not exist. At most `identified_max` batches with ids are
    /// read back.
    ///
    /// Fails if a file cannot be opened or read although it is there, or is of a later version.
    pub(crate) fn open(
        options: SegmentOptions,
        identified_max: usize,
    ) -> io::Result<(Self, Recovered)> {
        let first = options.first;
        let recovery = Recovery {
            shared: Shared { end: first, ..Shared::default() },
            writer: Writer { durable: first, reserved: first, ..Writer::default() },
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
    shared: Shared,
    writer: Writer,
    found: Recovered,
    /// The newest batches with ids, in the order of their numbers.
    identified: VecDeque<(Arc<dyn DiskFile>, Place)>,
    identified_max: usize,
    /// Numbers below were perhaps given, but no file says so.
    floor: Seq,
}

/// What the headers of a file say, wherever they are in it.
#[derive(Default)]
struct Survey {
    first: Option<Place>,
    /// Events before this number had been synced.
    synced: Seq,
    /// Numbers below may have been seen. The last header knows what those before it say, and whether
    /// an orderly stop has made it void.
    reserved: Option<Seq>,
}

/// What is to be kept of a file.
struct Scan {
    index: Index,
    /// Where the good part ends.
    end: u64,
    /// The number after the newest event there, or after those that were skipped.
    next: Seq,
    /// Where the first batch lies that may be in the system's memory only.
    unsynced: Option<u64>,
    /// There is something behind the good part that is not zeros.
    torn: bool,
    /// Something in the good part is missing.
    damaged: bool,
    /// An orderly stop came last.
    is_stopped: bool,
    /// It ends here, before all that was safe does.
    lost_from: Option<u64>,
}

/// What of a file was synced, so that what cannot be read of it was lost by the disk.
#[derive(Clone, Copy)]
struct Safe {
    /// Events before this number.
    events: Seq,
    /// Everything before this place.
    bytes: u64,
}

impl Safe {
    fn covers(self, place: &Place) -> bool {
        place.header.first < self.events || place.offset < self.bytes
    }
}

impl Recovery {
    fn run(mut self) -> io::Result<(SegmentLog, Recovered)> {
        let dir = self.options.dir.clone();
        let bases = match self.options.disk.list(&dir) {
            Ok(names) => self.sort(names)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.conclude(),
            Err(error) => return Err(named(&error, &dir)),
        };
        // Before a segment was made the directory was made safe.
        self.writer.has_dir = !bases.is_empty();
        for (at, base) in bases.iter().enumerate() {
            let path = dir.join(file_name(*base));
            let newer = bases.len() - at - 1;
            self.segment(*base, &path, newer).map_err(|error| named(&error, &path))?;
        }
        // Whoever named or removed the last file was perhaps killed before that was safe.
        self.options.disk.sync_dir(&dir).map_err(|error| named(&error, &dir))?;
        self.conclude()
    }

    /// The first numbers of the segments, in their order. Remains of an earlier start are removed.
    fn sort(&mut self, names: Vec<String>) -> io::Result<Vec<Seq>> {
        let mut bases = Vec::new();
        for name in names {
            let (number, kind) = name.split_once('.').unwrap_or((&name, ""));
            match (number.parse().map(Seq), kind) {
                (Ok(base), "log") if file_name(base) == name => bases.push(base),
                // What was set aside earlier may have held numbers.
                (Ok(base), "log.damaged") => self.floor = self.floor.max(beyond(base)),
                (_, "tmp") => self.options.disk.remove(&self.options.dir.join(&name))?,
                (Ok(_), "log.torn") => {}
                _ => self.found.findings.push(format!("{name} is no file of a log; it is ignored")),
            }
        }
        bases.sort_unstable();
        Ok(bases)
    }

    /// Takes in a segment; there are `newer` ones after it.
    fn segment(&mut self, base: Seq, path: &Path, newer: usize) -> io::Result<()> {
        let file = self.options.disk.open(path)?;
        let length = file.len()?;
        let header = self.header(&*file, base, path)?;
        if let Some(header) = &header
            && newer >= RECENT
        {
            self.add(path, header, length);
            return Ok(());
        }
        // Nothing more is written to a file of which that is not certain, or of an earlier version.
        let is_ours = header.as_ref().is_some_and(|header| header.version == VERSION);
        let home = Home::new(&self.options.topic, base);
        let survey = survey(&*file, home, length)?;
        let header = match (header, survey.first) {
            (Some(header), _) => header,
            (None, Some(first)) => self.infer(base, &first),
            (None, None) => return self.set_aside(base, path),
        };
        let is_last = newer == 0;
        // All of a segment was synced before there was one after it.
        let synced = if is_last { survey.synced } else { Seq(u64::MAX) };
        let stopped = if is_last { self.stopped(&*file, path)? } else { None };
        let bytes = stopped.as_ref().map_or(0, |stopped| stopped.bytes);
        self.add(path, &header, length);
        let safe = Safe { events: synced, bytes };
        let mut scan = self.scan(&file, home, base, length, safe, path)?;
        if let Some(reserved) = survey.reserved {
            // The last header may be of what is torn, and of before an earlier start.
            self.writer.reserved = reserved.max(scan.next);
        }
        if let Some(stopped) = stopped.filter(|_| scan.lost_from.is_some()) {
            self.lose_end(&stopped, path, &mut scan);
        } else if is_last {
            self.settle(&*file, home, path, length, synced, &mut scan)?;
        } else if scan.torn {
            self.found.findings.push(format!("{}: its end is damaged", path.display()));
        }
        let segment = self.shared.segments.back_mut().expect("it was just added");
        segment.index = Some(Arc::new(scan.index.clone()));
        if is_last {
            segment.bytes = scan.end;
            if is_ours && !scan.damaged {
                let (offset, allocated, index) = (scan.end, file.len()?, scan.index);
                self.writer.active = Some(Active { file, home, offset, allocated, index });
            }
        }
        Ok(())
    }

    /// Where the file ended at the last orderly stop, if that is known of it.
    fn stopped(&self, file: &dyn DiskFile, path: &Path) -> io::Result<Option<LogEnd>> {
        let Some(stopped) = &self.options.stopped else { return Ok(None) };
        let mut header = [0; SEGMENT_HEADER];
        let read = file.read_at(&mut header, 0)?;
        let header = SegmentHeader::checksum(&header[..read]);
        let is_it = path.ends_with(&stopped.file)
            && header.is_none_or(|checksum| checksum == stopped.header);
        Ok(is_it.then(|| stopped.clone()))
    }

    /// Leaves the newest segment as it is: some of its end is lost, although it was safe.
    fn lose_end(&mut self, stopped: &LogEnd, path: &Path, scan: &mut Scan) {
        let (from, until) = (self.shared.end.max(scan.next), stopped.end);
        let lost = match until.0.saturating_sub(from.0) {
            0 => "no event is lost with them".to_owned(),
            1 => format!("event {from} cannot be read"),
            _ => format!("events {from} to {} cannot be read", until.0 - 1),
        };
        self.found.findings.push(format!(
            "{}: its last {} bytes, from byte {} on, are damaged: the file was whole at the last orderly stop; {lost}",
            path.display(),
            stopped.bytes - scan.end,
            scan.end
        ));
        self.shared.end = self.shared.end.max(until);
        self.writer.reserved = stopped.next.max(self.shared.end);
        self.found.has_lost_end = true;
        (scan.end, scan.damaged) = (stopped.bytes, true);
    }

    /// Leaves the newest segment as if all of it had always been safe, and ready for more.
    fn settle(
        &mut self,
        file: &dyn DiskFile,
        home: Home,
        path: &Path,
        length: u64,
        synced: Seq,
        scan: &mut Scan,
    ) -> io::Result<()> {
        let is_bare = scan.end == length && !scan.is_stopped;
        if is_bare && takes_room(file, length) {
            self.found.findings.push(format!(
                "{} has no room taken behind its end: its last events may be missing",
                path.display()
            ));
        }
        if scan.torn {
            self.keep_torn(file, path, scan.end, length)?;
        }
        if is_bare || scan.torn {
            // Numbers that nobody knows of any more may have been reserved by what is missing. That is
            // noted while it can still be seen, so that a start that is cut short changes nothing.
            let lost = (length - scan.end).saturating_add(2 * RESERVED_MAX);
            self.writer.reserved.0 = self.writer.reserved.0.saturating_add(lost);
            self.note_next(file, home, synced, scan)?;
            file.sync_data()?;
        }
        let length = file.len()?;
        if scan.end < length {
            // Also if there are zeros already: a sync that failed may have left something else below
            // them. It must be gone before anything is written in its place, or a part of it could
            // look like what comes next.
            file.set_len(scan.end)?;
            file.set_len(length)?;
            file.sync_data()?;
        }
        if let Some(offset) = scan.unsynced {
            rewrite(file, offset, scan.end)?;
        }
        // From here on all that was found counts as safe.
        file.sync_data()
    }

    /// The header of a segment; `None` if it is damaged.
    fn header(
        &mut self,
        file: &dyn DiskFile,
        base: Seq,
        path: &Path,
    ) -> io::Result<Option<SegmentHeader>> {
        let mut bytes = vec![0; SEGMENT_HEADER];
        let read = file.read_at(&mut bytes, 0)?;
        let problem = match SegmentHeader::decode(&bytes[..read]) {
            Ok(header) if header.base == base && header.topic == self.options.topic => {
                return Ok(Some(header));
            }
            Ok(_) => "it is another segment than its name says".to_owned(),
            Err(error @ FormatError::Version(_)) => {
                return Err(io::Error::new(io::ErrorKind::Unsupported, error));
            }
            Err(error) => error.to_string(),
        };
        self.found.findings.push(format!("{}: {problem}", path.display()));
        Ok(None)
    }

    /// What a damaged header must have said, going by the first batch that is left.
    fn infer(&self, base: Seq, first: &Place) -> SegmentHeader {
        let is_first = first.offset == SEGMENT_HEADER as u64;
        SegmentHeader {
            version: VERSION,
            topic: self.options.topic.clone(),
            base,
            // If in doubt there is something missing, rather than nothing.
            previous_end: if is_first { first.header.previous_end.min(base) } else { base },
            reserved: self.writer.reserved,
            unix_ms: first.header.unix_ms,
        }
    }

    fn add(&mut self, path: &Path, header: &SegmentHeader, bytes: u64) {
        // A newer file knows where those before it end. Batches of later numbers there are strays: they
        // came to lie where they were not written.
        self.shared.end = header.previous_end;
        self.identified.retain(|(_, place)| place.header.end() <= header.previous_end);
        self.writer.reserved = header.reserved.max(header.base);
        self.found.newest_unix_ms = self.found.newest_unix_ms.max(header.unix_ms);
        self.shared.segments.push_back(Segment {
            path: path.to_owned(),
            base: header.base,
            previous_end: header.previous_end,
            unix_ms: header.unix_ms,
            bytes,
            index: None,
        });
    }

    /// Walks through the batches of a file as far as they are to be kept: up to the first that is not
    /// whole, unless it had been synced.
    fn scan(
        &mut self,
        file: &Arc<dyn DiskFile>,
        home: Home,
        base: Seq,
        length: u64,
        safe: Safe,
        path: &Path,
    ) -> io::Result<Scan> {
        let mut scan = Scan {
            index: Index::new(base),
            end: SEGMENT_HEADER as u64,
            // Events of this file before this number are accounted for.
            next: base,
            unsynced: None,
            torn: false,
            damaged: false,
            is_stopped: false,
            lost_from: None,
        };
        let mut walk = Walk::new(&**file, home, scan.end, length);
        loop {
            match walk.next()? {
                Step::Batch(place) => {
                    let header = &place.header;
                    // One without events may have come right after what was synced.
                    if !safe.covers(&place) {
                        let follows =
                            header.first >= scan.next && header.previous_end == self.shared.end;
                        if !follows && safe.events > scan.next {
                            scan.damaged = true;
                            scan.end = place.end();
                            self.found.findings.push(format!(
                                "{}: the batch at byte {} belongs elsewhere",
                                path.display(),
                                place.offset
                            ));
                            continue;
                        }
                        if !follows || !is_whole(&**file, &place)? {
                            (scan.end, scan.torn) = (place.offset, true);
                            return Ok(scan);
                        }
                        scan.unsynced.get_or_insert(place.offset);
                    }
                    scan.next = scan.next.max(header.end());
                    scan.end = place.end();
                    scan.is_stopped = header.clean;
                    scan.index.add(header, place.offset);
                    self.learn(file, place);
                }
                Step::Bad { offset, next } if safe.events > scan.next || offset < safe.bytes => {
                    scan.damaged = true;
                    scan.end = next.offset;
                    self.shared.end = self.shared.end.max(next.header.previous_end);
                    let bytes = next.offset - offset;
                    self.found.findings.push(format!(
                        "{}: {bytes} bytes from byte {offset} on are damaged; events from {} on cannot be \
                         read",
                        path.display(),
                        scan.next
                    ));
                }
                Step::Bad { offset, .. } => {
                    (scan.end, scan.torn) = (offset, true);
                    return Ok(scan);
                }
                Step::End { offset, zeros } => {
                    (scan.end, scan.torn) = (offset, !zeros);
                    scan.lost_from = (offset < safe.bytes).then_some(offset);
                    return Ok(scan);
                }
            }
        }
    }

    fn learn(&mut self, file: &Arc<dyn DiskFile>, place: Place) {
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

    /// Copies what a crash left at the end, before it is cut off.
    fn keep_torn(
        &mut self,
        file: &dyn DiskFile,
        path: &Path,
        end: u64,
        length: u64,
    ) -> io::Result<()> {
        let aside = torn_path(path);
        let mut rest = vec![0; usize::try_from((length - end).min(TORN_BYTES)).unwrap_or(0)];
        let read = file.read_at(&mut rest, end)?;
        let used = rest[..read].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        // Best effort: it is for somebody who wants to know, and the disk may be full.
        let kept = self.options.disk.create(&aside).and_then(|copy| {
            copy.write_at(&mut [IoSlice::new(&rest[..used])], 0)?;
            copy.sync_data()
        });
        let kept = kept.map_or_else(
            |_| "cut off".to_owned(),
            |()| format!("cut off, and kept as {}", aside.display()),
        );
        self.found.findings.push(format!(
            "{} ends in {used} bytes that are no whole batch, as after a crash: {kept}",
            path.display()
        ));
        Ok(())
    }

    /// Notes how far numbers may have been given: the next start would not know.
    fn note_next(
        &self,
        file: &dyn DiskFile,
        home: Home,
        synced: Seq,
        scan: &mut Scan,
    ) -> io::Result<()> {
        let end = self.shared.end;
        let next = self.writer.reserved.max(end);
        let note = BatchHeader {
            first: next,
            count: 0,
            bytes: 0,
            previous_end: end,
            durable: synced.min(end),
            reserved: next,
            unix_ms: self.found.newest_unix_ms,
            crc: 0,
            clean: false,
            identified: false,
        };
        if !file.keeps_writes() {
            return Ok(());
        }
        // Zeros behind it say that it is the end.
        file.set_len(file.len()?.max(scan.end + 2 * BATCH_HEADER as u64))?;
        match file.write_at(&mut [IoSlice::new(&note.encode_at(home, scan.end))], scan.end) {
            Ok(()) => {
                scan.unsynced.get_or_insert(scan.end);
                scan.end += BATCH_HEADER as u64;
                Ok(())
            }
            // It is not worth a topic that cannot be read.
            Err(error) if is_full(&error) => file.set_len(scan.end),
            Err(error) => Err(error),
        }
    }

    fn set_aside(&mut self, base: Seq, path: &Path) -> io::Result<()> {
        let aside = path.with_extension("log.damaged");
        self.options.disk.rename(path, &aside)?;
        self.floor = self.floor.max(beyond(base));
        self.found.findings.push(format!(
            "no event in {} can be read; it was set aside as {}",
            path.display(),
            aside.display()
        ));
        Ok(())
    }

    /// Adds to each index the numbers at its end that no batch holds: now it is known where the segments end.
    fn end_indexes(&mut self) {
        let mut end = self.shared.end;
        for segment in self.shared.segments.iter_mut().rev() {
            let ends = std::mem::replace(&mut end, segment.previous_end).max(segment.base);
            if let Some(index) = &mut segment.index {
                if index.end() > ends {
                    // It has strays. A reader that needs an index builds one without them.
                    segment.index = None;
                } else if index.end() < ends {
                    Arc::make_mut(index).end_at(ends);
                }
            }
        }
    }

    fn conclude(mut self) -> io::Result<(SegmentLog, Recovered)> {
        let newest = self.shared.segments.back().map_or(Seq(0), |segment| segment.base);
        if self.floor > beyond(newest) || newest == Seq(0) {
            // The newest numbers were in a file that is gone. They were kept, so they are missed
            // and not a gap: the log ends where they may have ended.
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

/// Reads every header that can be found in a file.
fn survey(file: &dyn DiskFile, home: Home, length: u64) -> io::Result<Survey> {
    let mut survey = Survey::default();
    let mut walk = Walk::new(file, home, SEGMENT_HEADER as u64, length);
    loop {
        match walk.next()? {
            Step::Batch(place) => {
                survey.first.get_or_insert(place);
                survey.synced = survey.synced.max(place.header.durable);
                survey.reserved = Some(place.header.reserved);
            }
            Step::Bad { .. } => {}
            Step::End { .. } => return Ok(survey),
        }
    }
}

/// Writes the bytes from `offset` to `end` again. After a sync that failed, the system may believe
/// that they are on the disk when they are not; it writes what was written anew.
fn rewrite(file: &dyn DiskFile, mut offset: u64, end: u64) -> io::Result<()> {
    let mut bytes = vec![0; REWRITE_BYTES];
    while offset < end {
        let wanted = usize::try_from(end - offset).map_or(REWRITE_BYTES, |n| n.min(REWRITE_BYTES));
        let read = file.read_at(&mut bytes[..wanted], offset)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.write_at(&mut [IoSlice::new(&bytes[..read])], offset)?;
        offset += read as u64;
    }
    Ok(())
}

/// Whether room is taken in advance on this disk, so that a file does not end with its last batch.
fn takes_room(file: &dyn DiskFile, length: u64) -> bool {
    let taken = file.allocate(length, BATCH_HEADER as u64).and_then(|()| file.len());
    taken.is_ok_and(|taken| taken > length)
}

/// A number that no event of the segment that begins at `base` can have.
fn beyond(base: Seq) -> Seq {
    Seq(base.0.saturating_add(LOST_NUMBERS))
}

/// An error that says which file it is about.
fn named(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
