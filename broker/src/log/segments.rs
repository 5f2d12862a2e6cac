//! A log in segment files of one directory.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tidings_protocol::{Seq, TopicName};

use super::disk::{Disk, DiskFile, is_full};
use super::format::{BATCH_HEADER, BatchHeader, SEGMENT_HEADER, SegmentHeader};
use super::{
    Bounds, Checked, Found, LogError, Piece, Position, Retention, Synced, TopicLog, reading,
};

/// Payload after which a batch is closed, so that it fits into a reader's buffer with its last line.
pub(super) const BATCH_BYTES: usize = 128 << 10;

/// Room that is taken on the disk in advance: a sync that does not change a file's length is cheaper.
const ALLOCATE_BYTES: u64 = 1 << 20;

/// Bytes of a segment between two entries of its index.
pub(super) const INDEX_BYTES: u64 = 256 << 10;

/// Room that is left on the disk for what must be written even when it is full: positions, answers
/// to tasks. On a small disk a sixteenth of it.
const RESERVE_BYTES: u64 = 16 << 20;

/// Where and how a log is kept.
#[derive(Debug, Clone)]
pub(crate) struct SegmentOptions {
    pub(crate) disk: Arc<dyn Disk>,
    /// The directory; it is made when the first event is appended.
    pub(crate) dir: PathBuf,
    /// Whose log it is.
    pub(crate) topic: TopicName,
    /// The first number of a log without segments.
    pub(crate) first: Seq,
    /// Bytes after which a new segment is begun.
    pub(crate) segment_bytes: u64,
}

/// A log in segment files.
#[derive(Debug)]
pub(crate) struct SegmentLog {
    pub(super) options: SegmentOptions,
    /// What readers need; locked for moments.
    pub(super) shared: Mutex<Shared>,
    /// Locked while something is written.
    pub(super) writer: Mutex<Writer>,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Oldest first.
    pub(super) segments: VecDeque<Segment>,
    /// The number after the newest event that was written.
    pub(super) end: Seq,
    /// The file that was read last, to read on in.
    pub(super) opened: Option<(Seq, Arc<dyn DiskFile>)>,
}

/// A segment file.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) path: PathBuf,
    pub(super) base: Seq,
    pub(super) previous_end: Seq,
    /// When it was made.
    pub(super) unix_ms: i64,
    /// Bytes that were written; the file may be longer.
    pub(super) bytes: u64,
    /// Where batches begin, one entry for each [`INDEX_BYTES`] or so: the first number that lies at
    /// or after the offset. Built when it is first needed in segments of an earlier run.
    pub(super) index: Option<Arc<Vec<(Seq, u64)>>>,
}

#[derive(Debug, Default)]
pub(super) struct Writer {
    pub(super) active: Option<Active>,
    /// The number after the newest event that was synced.
    pub(super) durable: Seq,
    /// Reserved by what was written, and by what was synced.
    pub(super) reserved: Seq,
    /// When the newest event was appended.
    pub(super) newest_unix_ms: i64,
    /// Why nothing is written any more.
    pub(super) broken: Option<String>,
    /// The directory exists.
    pub(super) has_dir: bool,
}

/// The segment that is written to.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) file: Arc<dyn DiskFile>,
    /// Where the next batch goes.
    pub(super) offset: u64,
    /// The length of the file.
    pub(super) allocated: u64,
    /// The index so far, as it is published to readers when it grows.
    pub(super) index: Vec<(Seq, u64)>,
}

/// The name of a segment's file.
pub(super) fn file_name(base: Seq) -> String {
    format!("{:020}.log", base.0)
}

impl SegmentLog {
    /// A log whose directory does not exist, or holds nothing. Nothing is read or written yet.
    pub(crate) fn fresh(options: SegmentOptions) -> Self {
        let first = options.first;
        let shared = Shared { end: first, ..Shared::default() };
        let writer = Writer { durable: first, reserved: first, ..Writer::default() };
        Self { options, shared: Mutex::new(shared), writer: Mutex::new(writer) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.options.dir.join(name)
    }

    /// Makes the directory, and makes that safe.
    fn make_dir(&self) -> io::Result<()> {
        let (disk, dir) = (&self.options.disk, &self.options.dir);
        disk.create_dir(dir)?;
        // The directories above may be new, too.
        for above in dir.ancestors().skip(1).take(3).filter(|above| !above.as_os_str().is_empty()) {
            disk.sync_dir(above)?;
        }
        Ok(())
    }

    /// Ends the active segment and begins one at `base`.
    fn roll(&self, writer: &mut Writer, base: Seq, reserve: Seq, unix_ms: i64) -> io::Result<()> {
        if !writer.has_dir {
            self.make_dir()?;
            writer.has_dir = true;
        }
        if let Some(active) = &mut writer.active {
            active.file.sync_data()?;
            if active.allocated > active.offset {
                active.file.set_len(active.offset)?;
                active.allocated = active.offset;
                // Its new length is safe before there is a segment after it.
                active.file.sync_data()?;
            }
        }
        let previous_end = self.shared.lock().end;
        let reserved = reserve.max(writer.reserved);
        let topic = self.options.topic.clone();
        let header = SegmentHeader { topic, base, previous_end, reserved, unix_ms };
        let (temporary, path) = (self.path("new.tmp"), self.path(&file_name(base)));
        let file = self.options.disk.create(&temporary)?;
        file.write_at(&mut [IoSlice::new(&header.encode())], 0)?;
        file.sync_data()?;
        self.options.disk.rename(&temporary, &path)?;
        self.options.disk.sync_dir(&self.options.dir)?;
        let bytes = SEGMENT_HEADER as u64;
        let index = Some(Arc::default());
        writer.active = Some(Active { file, offset: bytes, allocated: bytes, index: Vec::new() });
        writer.reserved = reserved;
        let segment = Segment { path, base, previous_end, unix_ms, bytes, index };
        self.shared.lock().segments.push_back(segment);
        Ok(())
    }

    /// Takes room for `bytes` more in the active segment.
    fn allocate(&self, active: &mut Active, bytes: u64) -> Result<(), WriteError> {
        let needed = active.offset + bytes;
        if needed <= active.allocated {
            return Ok(());
        }
        self.check_space(bytes)?;
        let length = (needed - active.allocated).max(ALLOCATE_BYTES);
        let space = self.options.disk.space(&self.options.dir)?;
        let length = length.min((space.total / 16).max(needed - active.allocated));
        active.file.allocate(active.allocated, length)?;
        // A file system that cannot take room leaves the length as it was.
        active.allocated = active.file.len()?.max(active.offset);
        Ok(())
    }

    fn check_space(&self, bytes: u64) -> Result<(), WriteError> {
        let space = self.options.disk.space(&self.options.dir)?;
        let reserve = RESERVE_BYTES.min(space.total / 16);
        if space.free < reserve + bytes { Err(WriteError::Full) } else { Ok(()) }
    }

    fn write(
        &self,
        writer: &mut Writer,
        pieces: &[Piece],
        next: Seq,
        reserve: Seq,
    ) -> Result<(), WriteError> {
        let end = self.shared.lock().end;
        let batches = batches(pieces, end, next, writer, reserve);
        let bytes: u64 = batches.iter().map(|(header, _)| batch_bytes(header)).sum();
        let first = batches[0].0.first;
        let unix_ms = batches[0].0.unix_ms;
        let begins = writer.active.as_ref().is_none_or(|active| {
            active.offset > SEGMENT_HEADER as u64
                && active.offset + bytes > self.options.segment_bytes
        });
        if begins {
            self.check_space(bytes + SEGMENT_HEADER as u64)?;
            self.roll(writer, first, reserve, unix_ms)?;
        }
        let active = writer.active.as_mut().expect("a segment was just begun");
        self.allocate(active, bytes)?;
        let headers: Vec<_> = batches.iter().map(|(header, _)| header.encode()).collect();
        let mut slices = Vec::with_capacity(batches.len() + pieces.len());
        for (header, (_, pieces)) in headers.iter().zip(&batches) {
            slices.push(IoSlice::new(header));
            slices.extend(pieces.iter().map(|piece| IoSlice::new(&piece.wire)));
        }
        active.file.write_at(&mut slices, active.offset)?;
        active.allocated = active.allocated.max(active.offset + bytes);
        let known = active.index.len();
        for (header, _) in &batches {
            let last = active.index.last().map_or(0, |(_, offset)| *offset);
            if active.offset >= last + INDEX_BYTES || active.index.is_empty() {
                active.index.push((header.first, active.offset));
            }
            active.offset += batch_bytes(header);
        }
        let newest = &batches[batches.len() - 1].0;
        writer.newest_unix_ms = newest.unix_ms;
        writer.reserved = newest.reserved;
        let mut shared = self.shared.lock();
        if newest.count > 0 {
            // One without events comes before a hole, and does not fill it.
            shared.end = newest.end();
        }
        let segment = shared.segments.back_mut().expect("the active segment is the last one");
        segment.bytes = active.offset;
        if active.index.len() > known {
            segment.index = Some(Arc::new(active.index.clone()));
        }
        Ok(())
    }

    /// After a write that failed in the middle: nothing of it may be found later.
    fn undo(active: &mut Active) -> io::Result<()> {
        active.file.set_len(active.offset)?;
        active.allocated = active.offset;
        Ok(())
    }

    /// Runs something that writes. Whatever fails for another reason than a lack of room leaves the
    /// log broken.
    fn attempt(
        &self,
        work: impl FnOnce(&Self, &mut Writer) -> Result<(), WriteError>,
    ) -> Result<(), LogError> {
        let writer = &mut *self.writer.lock();
        if let Some(why) = &writer.broken {
            return Err(LogError::Broken(why.clone()));
        }
        let error = match work(self, writer) {
            Ok(()) => return Ok(()),
            Err(WriteError::Io(error)) if !is_full(&error) => error,
            Err(_) => match writer.active.as_mut().map_or(Ok(()), Self::undo) {
                Ok(()) => return Err(LogError::Full),
                Err(error) => error,
            },
        };
        let why = format!("{}: {error}", self.options.dir.display());
        writer.broken = Some(why.clone());
        Err(LogError::Broken(why))
    }

    /// Removes the oldest segment.
    fn remove_oldest(&self) -> Result<(), LogError> {
        let Some(oldest) = self.shared.lock().segments.pop_front() else { return Ok(()) };
        let removed = self.options.disk.remove(&oldest.path);
        removed.map_err(|source| LogError::Io { path: oldest.path, source })
    }
}

impl Shared {
    /// Whether the oldest segment is to go. The newest one never is.
    fn may_go(&self, retention: &Retention, is_old: impl Fn(i64) -> bool) -> bool {
        let Some(next) = self.segments.get(1) else { return false };
        let bytes: u64 = self.segments.iter().map(|segment| segment.bytes).sum();
        let should = bytes > retention.bytes_max
            || self.segments.len() > retention.segments_max
            || is_old(next.unix_ms);
        should && next.base <= retention.keep_from
    }
}

impl TopicLog for SegmentLog {
    fn append(&self, pieces: &[Piece], next: Seq, reserve: Seq) -> Result<(), LogError> {
        self.attempt(|log, writer| log.write(writer, pieces, next, reserve))
    }

    fn sync(&self) -> Result<Synced, LogError> {
        self.attempt(|_, writer| {
            if let Some(active) = &writer.active {
                // Also when there is no room: what was not synced is not to be relied on.
                active.file.sync_data().map_err(|error| io::Error::other(error.to_string()))?;
            }
            Ok(())
        })?;
        let mut writer = self.writer.lock();
        writer.durable = self.shared.lock().end;
        Ok(Synced { durable: writer.durable, reserved: writer.reserved })
    }

    fn has_room(&self) -> bool {
        self.check_space(ALLOCATE_BYTES / 4).is_ok()
    }

    fn read(
        &self,
        from: Seq,
        at: Option<Position>,
        since: Option<i64>,
        buffer: &mut [u8],
    ) -> Result<Found, LogError> {
        reading::read(self, from, at, since, buffer)
    }

    fn bounds(&self) -> Bounds {
        let shared = self.shared.lock();
        Bounds {
            first: shared.segments.front().map_or(shared.end, |oldest| oldest.base),
            end: shared.end,
            oldest_unix_ms: shared.segments.front().map(|oldest| oldest.unix_ms),
            bytes: shared.segments.iter().map(|segment| segment.bytes).sum(),
            segments: shared.segments.len(),
        }
    }

    fn retain(&self, retention: &Retention) -> Result<usize, LogError> {
        let is_old = |unix_ms| retention.oldest_unix_ms.is_some_and(|oldest| unix_ms < oldest);
        self.attempt(|log, writer| {
            let end = log.shared.lock().end;
            let has_events = log.shared.lock().segments.back().is_some_and(|last| last.base < end);
            if has_events && is_old(writer.newest_unix_ms) && retention.keep_from >= end {
                // Only what is not written to any more can go.
                log.roll(writer, end, writer.reserved, writer.newest_unix_ms)?;
            }
            Ok(())
        })?;
        let mut removed = 0;
        while self.shared.lock().may_go(retention, is_old) {
            self.remove_oldest()?;
            removed += 1;
        }
        if removed > 0 {
            let synced = self.options.disk.sync_dir(&self.options.dir);
            synced.map_err(|source| LogError::Io { path: self.options.dir.clone(), source })?;
        }
        Ok(removed)
    }

    fn close(&self, next: Seq) -> Result<(), LogError> {
        self.attempt(|log, writer| {
            let Some(active) = &mut writer.active else { return Ok(()) };
            let header = BatchHeader {
                first: next,
                count: 0,
                bytes: 0,
                previous_end: log.shared.lock().end,
                durable: writer.durable,
                reserved: next,
                unix_ms: writer.newest_unix_ms,
                crc: 0,
                clean: true,
                identified: false,
            };
            active.file.write_at(&mut [IoSlice::new(&header.encode())], active.offset)?;
            active.offset += BATCH_HEADER as u64;
            active.file.set_len(active.offset)?;
            active.allocated = active.offset;
            Ok(active.file.sync_data()?)
        })
    }

    fn clear(&self) -> Result<(), LogError> {
        let writer = &mut *self.writer.lock();
        writer.active = None;
        while !self.shared.lock().segments.is_empty() {
            self.remove_oldest()?;
        }
        if writer.has_dir {
            let synced = self.options.disk.sync_dir(&self.options.dir);
            synced.map_err(|source| LogError::Io { path: self.options.dir.clone(), source })?;
        }
        Ok(())
    }

    fn verify(&self) -> Result<Vec<Checked>, LogError> {
        reading::verify(self)
    }
}

/// Bytes of a batch in its file.
fn batch_bytes(header: &BatchHeader) -> u64 {
    BATCH_HEADER as u64 + u64::from(header.bytes)
}

/// Cuts pieces into batches: contiguous, and not too long.
fn batches<'a>(
    pieces: &'a [Piece],
    end: Seq,
    next: Seq,
    writer: &Writer,
    reserve: Seq,
) -> Vec<(BatchHeader, &'a [Piece])> {
    let header = |first: Seq, previous_end: Seq| BatchHeader {
        first,
        count: 0,
        bytes: 0,
        previous_end,
        durable: writer.durable.min(previous_end),
        reserved: reserve.max(writer.reserved),
        unix_ms: writer.newest_unix_ms,
        crc: 0,
        clean: false,
        identified: false,
    };
    if pieces.is_empty() {
        return vec![(header(next.max(end), end), pieces)];
    }
    let (mut batches, mut rest, mut previous_end) = (Vec::new(), pieces, end);
    while !rest.is_empty() {
        let mut batch = header(rest[0].first, previous_end);
        let mut taken = 0;
        for piece in rest {
            let bytes = batch.bytes as usize + piece.wire.len();
            if piece.first != batch.end() || taken > 0 && bytes > BATCH_BYTES {
                break;
            }
            batch.count += u32::try_from(piece.count).expect("a piece is at most some 64 KiB");
            batch.bytes = u32::try_from(bytes).expect("a batch is at most some 128 KiB");
            batch.unix_ms = piece.unix_ms.max(batch.unix_ms);
            batch.crc = crc32c::crc32c_append(batch.crc, &piece.wire);
            batch.identified |= piece.identified;
            taken += 1;
        }
        let (these, others) = rest.split_at(taken);
        previous_end = batch.end();
        batches.push((batch, these));
        rest = others;
    }
    batches
}

/// Why a write did not happen.
enum WriteError {
    Full,
    Io(io::Error),
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
