//! What a start finds: segments of an orderly stop, of a crash, or of a disk that lies.
//!
//! Only headers are read, and the payloads of what was not known to be synced. Three things can be
//! wrong with a file, and each is dealt with differently:
//!
//! - **The end is torn**: after the last good batch comes something that no batch says was synced. A
//!   crash does that. It is cut off, and what it held, if anything, kept beside the file.
//! - **A batch in the middle is damaged**: a later one says that it had been synced. It stays where
//!   it is; readers are told what is missing when they come there.
//! - **Nothing in the file can be read**: it is set aside under another name, and numbers go on far
//!   behind what it may have held. A file that cannot be read is never taken for an empty one.

use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tidings_protocol::Seq;

use super::disk::DiskFile;
use super::format::{FormatError, SEGMENT_HEADER, SegmentHeader};
use super::segment::{Place, Step, Walk, is_whole, payload};
use super::segments::{
    Active, INDEX_BYTES, Segment, SegmentLog, SegmentOptions, Shared, Writer, file_name,
};

/// More numbers than a segment can hold, for going on behind one that cannot be read.
const LOST_NUMBERS: u64 = 1 << 26;

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
            identified: Vec::new(),
            floor: first,
            options,
        };
        recovery.run(identified_max)
    }
}

struct Recovery {
    options: SegmentOptions,
    shared: Shared,
    writer: Writer,
    found: Recovered,
    /// Batches with ids, in the order of their numbers.
    identified: Vec<(Arc<dyn DiskFile>, Place)>,
    /// Numbers below were perhaps given, but no file says so.
    floor: Seq,
}

/// What a walk through a file came to.
struct Scan {
    index: Vec<(Seq, u64)>,
    places: Vec<Place>,
    /// Where the good part ends.
    end: u64,
    /// There is something behind it that is not zeros.
    torn: bool,
    /// Batches that had been synced are missing in the middle.
    damaged: bool,
}

impl Recovery {
    fn run(mut self, identified_max: usize) -> io::Result<(SegmentLog, Recovered)> {
        let bases = match self.options.disk.list(&self.options.dir) {
            Ok(names) => self.sort(names)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(named(error, &self.options.dir)),
        };
        self.writer.has_dir = bases.is_some();
        let bases = bases.unwrap_or_default();
        for (at, base) in bases.iter().enumerate() {
            // The last two are where recent ids are; the last one is where a crash happened.
            let (is_last, is_recent) = (at + 1 == bases.len(), at + 2 >= bases.len());
            self.segment(*base, is_last, is_recent)?;
        }
        self.conclude(identified_max)
    }

    /// The first numbers of the segments, in their order. Remains of an earlier start are removed.
    fn sort(&mut self, names: Vec<String>) -> io::Result<Option<Vec<Seq>>> {
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
        Ok(Some(bases))
    }

    fn segment(&mut self, base: Seq, is_last: bool, is_recent: bool) -> io::Result<()> {
        let path = self.options.dir.join(file_name(base));
        let name = path.display().to_string();
        let file = self.options.disk.open(&path).map_err(|error| named(error, &path))?;
        let length = file.len().map_err(|error| named(error, &path))?;
        let mut bytes = vec![0; SEGMENT_HEADER];
        let read = file.read_at(&mut bytes, 0).map_err(|error| named(error, &path))?;
        let header = match SegmentHeader::decode(&bytes[..read]) {
            Ok(header) if header.base == base && header.topic == self.options.topic => Some(header),
            Err(FormatError::Version(version)) => {
                let text = format!("it is of version {version}, and needs a later program");
                return Err(named(io::Error::other(text), &path));
            }
            Ok(_) => {
                self.found.findings.push(format!("{name} is another segment than its name says"));
                None
            }
            Err(error) => {
                self.found.findings.push(format!("{name}: {error}"));
                None
            }
        };
        let start = SEGMENT_HEADER as u64;
        let scanned = is_last || is_recent || header.is_none();
        let mut scan = if scanned {
            scan(&*file, start, length).map_err(|error| named(error, &path))?
        } else {
            Scan { index: Vec::new(), places: Vec::new(), end: length, torn: false, damaged: false }
        };
        if header.is_none() && scan.places.is_empty() {
            return self.set_aside(base, &path);
        }
        let previous_end = self.shared.end;
        let header = header.unwrap_or_else(|| SegmentHeader {
            topic: self.options.topic.clone(),
            base,
            previous_end: previous_end.min(base),
            reserved: base,
            unix_ms: scan.places.first().map_or(0, |place| place.header.unix_ms),
        });
        self.shared.end = header.previous_end.max(self.shared.end);
        self.writer.reserved = self.writer.reserved.max(header.reserved).max(base);
        self.found.newest_unix_ms = self.found.newest_unix_ms.max(header.unix_ms);
        if is_last {
            self.check_unsynced(&*file, &mut scan).map_err(|error| named(error, &path))?;
        }
        self.learn(&file, &scan);
        if is_last && scan.end < length {
            self.cut(&file, &path, &scan, length).map_err(|error| named(error, &path))?;
        }
        let index = scanned.then(|| Arc::new(scan.index.clone()));
        self.shared.segments.push_back(Segment {
            path: path.clone(),
            base,
            previous_end: header.previous_end,
            unix_ms: header.unix_ms,
            bytes: if is_last { scan.end } else { length },
            index,
        });
        if scan.damaged {
            self.found
                .findings
                .push(format!("{name} is damaged: events in the middle of it cannot be read"));
        }
        if is_last {
            // What was read may be in the system's memory only; from here on it counts as safe.
            file.sync_data().map_err(|error| named(error, &path))?;
            if !scan.damaged {
                let (offset, index) = (scan.end, scan.index);
                let active = Active { file, offset, allocated: scan.end, index };
                self.writer.active = Some(active);
            }
        }
        Ok(())
    }

    /// What no later batch says was synced is whole, or the end of the log is before it.
    fn check_unsynced(&self, file: &dyn DiskFile, scan: &mut Scan) -> io::Result<()> {
        let synced = scan.places.iter().map(|place| place.header.durable).max();
        let synced = synced.unwrap_or_default();
        for at in 0..scan.places.len() {
            let place = scan.places[at];
            if place.header.end() > synced && !is_whole(file, &place)? {
                scan.places.truncate(at);
                scan.index.retain(|(_, offset)| *offset < place.offset);
                (scan.end, scan.torn) = (place.offset, true);
                break;
            }
        }
        Ok(())
    }

    fn learn(&mut self, file: &Arc<dyn DiskFile>, scan: &Scan) {
        for place in &scan.places {
            let header = &place.header;
            if header.count > 0 {
                self.shared.end = self.shared.end.max(header.end());
            }
            self.writer.reserved = self.writer.reserved.max(header.reserved);
            self.found.newest_unix_ms = self.found.newest_unix_ms.max(header.unix_ms);
            if header.identified {
                self.identified.push((Arc::clone(file), *place));
            }
        }
        if let Some(last) = scan.places.last().filter(|last| last.header.clean) {
            // What was reserved then was not used. It is not reserved any more either: a crash
            // right after this start would find the same end.
            self.writer.reserved = last.header.first;
        }
    }

    /// Cuts off what a crash left at the end.
    fn cut(
        &mut self,
        file: &Arc<dyn DiskFile>,
        path: &PathBuf,
        scan: &Scan,
        length: u64,
    ) -> io::Result<()> {
        if scan.torn {
            let bytes = length - scan.end;
            let aside = path.with_extension("log.torn");
            let mut rest = vec![0; usize::try_from(bytes.min(4 << 20)).unwrap_or(0)];
            let read = file.read_at(&mut rest, scan.end)?;
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
        }
        file.set_len(scan.end)
    }

    fn set_aside(&mut self, base: Seq, path: &PathBuf) -> io::Result<()> {
        let aside = path.with_extension("log.damaged");
        self.options.disk.rename(path, &aside).map_err(|error| named(error, path))?;
        self.options.disk.sync_dir(&self.options.dir)?;
        self.floor = self.floor.max(beyond(base));
        self.found.findings.push(format!(
            "no event in {} can be read; it was set aside as {}",
            path.display(),
            aside.display()
        ));
        Ok(())
    }

    fn conclude(mut self, identified_max: usize) -> io::Result<(SegmentLog, Recovered)> {
        let newest = self.shared.segments.back().map_or(Seq(0), |segment| segment.base);
        if self.floor > beyond(newest) || newest == Seq(0) {
            // The newest numbers were in a file that is gone. They were kept, so they are missed
            // and not a gap: the log ends where they may have ended.
            self.found.next = self.found.next.max(self.floor);
            self.shared.end = self.shared.end.max(self.floor);
            self.writer.active = None;
        }
        self.found.next = self.found.next.max(self.shared.end).max(self.writer.reserved);
        self.writer.durable = self.shared.end;
        self.writer.reserved = self.found.next;
        self.writer.newest_unix_ms = self.found.newest_unix_ms;
        self.found.reserved = self.writer.reserved;
        let first = self.identified.len().saturating_sub(identified_max);
        for (file, place) in &self.identified[first..] {
            if is_whole(&**file, place)? {
                self.found.identified.push((place.header.first, payload(&**file, place)?));
            }
        }
        let (shared, writer) = (Mutex::new(self.shared), Mutex::new(self.writer));
        Ok((SegmentLog { options: self.options, shared, writer }, self.found))
    }
}

/// Walks through a file as far as it can be made sense of.
fn scan(file: &dyn DiskFile, start: u64, length: u64) -> io::Result<Scan> {
    let mut walk = Walk::new(file, start, length);
    let mut scan =
        Scan { index: Vec::new(), places: Vec::new(), end: start, torn: false, damaged: false };
    loop {
        match walk.next()? {
            Step::Batch(place) => scan.add(place),
            Step::Bad { offset, next } => {
                let before = scan.places.last().map_or(Seq(0), |place| place.header.end());
                if next.header.durable <= before {
                    // Nothing after the hole says that anything in it was safe.
                    (scan.end, scan.torn) = (offset, true);
                    return Ok(scan);
                }
                scan.damaged = true;
            }
            Step::End { offset, zeros } => {
                (scan.end, scan.torn) = (offset, !zeros);
                return Ok(scan);
            }
        }
    }
}

impl Scan {
    fn add(&mut self, place: Place) {
        let last = self.index.last().map_or(0, |(_, offset)| *offset);
        if self.index.is_empty() || place.offset >= last + INDEX_BYTES {
            self.index.push((place.header.first, place.offset));
        }
        self.end = place.end();
        self.places.push(place);
    }
}

/// A number that no event of the segment that begins at `base` can have.
fn beyond(base: Seq) -> Seq {
    Seq(base.0.saturating_add(LOST_NUMBERS))
}

/// An error that says which file it is about.
fn named(error: io::Error, path: &std::path::Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
