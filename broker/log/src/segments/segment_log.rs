//! A log stored as segment files in one directory.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tidings_protocol::{Seq, TopicName};

use super::batches::{batch_bytes, batches};
use super::log_reader;
use super::segment_index::SegmentIndex;
use crate::clean_stop::{LogEnd, StopSlot};
use crate::disk::{Disk, DiskFile, DiskSpace, is_full};
use crate::format::{BATCH_HEADER, BatchHeader, BatchHome, SEGMENT_HEADER, SegmentHeader};
use crate::topic_log::{
    CheckedFile, LogBounds, LogError, LogPiece, LogRead, NewestEvents, ReadPosition, Retention,
    SyncedMarks, TopicLog,
};

/// Space that is allocated ahead. A sync is cheaper when it does not change the length of the file.
const ALLOCATE_BYTES: u64 = 1 << 20;

/// Location and limits of a log.
#[derive(Debug, Clone)]
pub(crate) struct SegmentOptions {
    /// Where its files are.
    pub(crate) disk: Arc<dyn Disk>,
    /// The directory. It is created with the first event.
    pub(crate) dir: PathBuf,
    pub(crate) topic: TopicName,
    /// The first seq of a log without segments.
    pub(crate) first: Seq,
    /// Size at which a new segment is begun.
    pub(crate) segment_bytes: u64,
    /// Divisor of the free space that this log must leave to others: with 1 it leaves all of the
    /// reserve, with 4 a quarter.
    pub(crate) reserve_part: u64,
    /// A torn end may have reserved seqs, which are skipped.
    pub(crate) reserves: bool,
    /// Where the log ended at the last orderly stop, and where to note its next end.
    pub(crate) stopped: StopSlot,
}

/// A log stored as segment files.
#[derive(Debug)]
pub(crate) struct SegmentLog {
    pub(super) options: SegmentOptions,
    /// The state that readers need; locked only briefly.
    pub(super) shared: Mutex<SegmentTable>,
    /// Locked during each write.
    pub(super) writer: Mutex<LogWriter>,
    /// Locked during removals, so that segments are removed in order. A removal is final once the
    /// directory is synced.
    pub(super) removal: Mutex<()>,
}

#[derive(Debug, Default)]
pub(super) struct SegmentTable {
    /// Oldest first.
    pub(super) segments: VecDeque<Segment>,
    /// The seq after the newest event that was written.
    pub(super) end: Seq,
    /// The file that was read last, kept open for the next read.
    pub(super) open_file: Option<(Seq, Arc<dyn DiskFile>)>,
    /// Damaged places that were logged, by segment and offset.
    pub(super) reported: BTreeSet<(Seq, u64)>,
}

#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) path: PathBuf,
    pub(super) base: Seq,
    pub(super) previous_end: Seq,
    /// Creation time.
    pub(super) unix_ms: i64,
    /// Bytes that were written; the file may be longer.
    pub(super) bytes: u64,
    /// Seqs between its events that no event has. Of segments that the start has not read: 0.
    pub(super) empty: u64,
    /// For segments of an earlier run, built when it is first needed.
    pub(super) index: Option<Arc<SegmentIndex>>,
}

#[derive(Debug, Default)]
pub(super) struct LogWriter {
    pub(super) active: Option<ActiveSegment>,
    /// The seq after the newest event that was synced.
    pub(super) durable: Seq,
    /// Seqs below this are reserved by a written batch, which may not be synced yet.
    pub(super) reserved: Seq,
    /// Append time of the newest event.
    pub(super) newest_unix_ms: i64,
    /// Why the log rejects writes, after a failure.
    pub(super) broken: Option<String>,
    /// The directory exists, and would after a power loss.
    pub(super) has_dir: bool,
}

/// The segment that receives new batches.
#[derive(Debug)]
pub(super) struct ActiveSegment {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) home: BatchHome,
    /// The offset of the next batch.
    pub(super) offset: u64,
    /// The length of the file.
    pub(super) allocated: u64,
    /// The index so far. It is published to readers when it grows.
    pub(super) index: SegmentIndex,
}

pub(super) fn file_name(base: Seq) -> String {
    format!("{:020}.log", base.0)
}

impl SegmentLog {
    /// A log with a missing or empty directory. Nothing is read or written yet.
    pub(crate) fn fresh(options: SegmentOptions) -> Self {
        let first = options.first;
        let shared = SegmentTable { end: first, ..SegmentTable::default() };
        let writer = LogWriter { durable: first, reserved: first, ..LogWriter::default() };
        let (shared, writer) = (Mutex::new(shared), Mutex::new(writer));
        Self { options, shared, writer, removal: Mutex::default() }
    }

    /// The home of the batches in the segment that begins at `base`.
    pub(super) fn home(&self, base: Seq) -> BatchHome {
        BatchHome::new(&self.options.topic, base)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.options.dir.join(name)
    }

    /// Creates the directory and makes it durable.
    fn make_dir(&self) -> Result<(), WriteError> {
        let (disk, dir) = (&self.options.disk, &self.options.dir);
        disk.create_dir(dir)?;
        // The parent directories may be new as well.
        for above in dir.ancestors().skip(1).take(3) {
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            match disk.sync_dir(above) {
                // A directory that this process cannot read is not one that it just created.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                synced => synced.map_err(WriteError::Broken)?,
            }
        }
        Ok(())
    }

    /// Closes the active segment and begins a new one at `base`.
    pub(super) fn roll(
        &self,
        writer: &mut LogWriter,
        base: Seq,
        reserve: Seq,
        unix_ms: i64,
    ) -> Result<(), WriteError> {
        if !writer.has_dir {
            self.make_dir()?;
            writer.has_dir = true;
        }
        if let Some(active) = &mut writer.active {
            // The old segment and its length must be durable before the next one exists.
            active.cut()?;
        }
        let previous_end = self.shared.lock().end;
        let reserved = reserve.max(writer.reserved);
        let topic = self.options.topic.clone();
        let header = SegmentHeader { topic, base, previous_end, reserved, unix_ms };
        let (temporary, path) = (self.path("new.tmp"), self.path(&file_name(base)));
        let file = self.options.disk.create(&temporary)?;
        let bytes = SEGMENT_HEADER as u64;
        file.allocate(0, bytes + BATCH_HEADER as u64)?;
        file.write_at(&mut [IoSlice::new(&header.encode())], 0)?;
        let allocated = file.len()?;
        file.sync_data().map_err(WriteError::Broken)?;
        self.options.disk.rename(&temporary, &path)?;
        // From here on a start may find the new segment, so the old one must not be written again.
        self.options.disk.sync_dir(&self.options.dir).map_err(WriteError::Broken)?;
        let (home, index) = (self.home(base), SegmentIndex::new(base));
        let published = Some(Arc::new(index.clone()));
        writer.active = Some(ActiveSegment { file, home, offset: bytes, allocated, index });
        writer.reserved = reserved;
        let segment =
            Segment { path, base, previous_end, unix_ms, bytes, empty: 0, index: published };
        let segments = &mut self.shared.lock().segments;
        // An existing segment with this base held no events. The new file has just replaced it.
        segments.pop_back_if(|last| last.base == base);
        segments.push_back(segment);
        Ok(())
    }

    /// Whether `bytes` more must go to the next segment.
    fn exceeds_segment(&self, active: &ActiveSegment, bytes: u64) -> bool {
        active.offset > SEGMENT_HEADER as u64 && active.offset + bytes > self.options.segment_bytes
    }

    /// Appends `slices`, `bytes` in total, to the active segment; writes all of them or nothing.
    fn write_at_end(
        &self,
        active: &mut ActiveSegment,
        slices: &mut [IoSlice<'_>],
        bytes: u64,
    ) -> Result<(), WriteError> {
        let written = self.allocate(active, bytes).and_then(|()| {
            active.allocated = active.allocated.max(active.offset + bytes);
            active.file.write_at(slices, active.offset)?;
            Ok(())
        });
        if matches!(written, Err(WriteError::Full)) {
            // Part of the data may have been written. It was rejected, so no start may find it.
            active.cut()?;
        }
        written?;
        active.offset += bytes;
        Ok(())
    }

    /// Allocates space for `bytes` more in the active segment.
    fn allocate(&self, active: &mut ActiveSegment, bytes: u64) -> Result<(), WriteError> {
        // Zeros after the last batch show a start that nothing was cut off.
        let needed = active.offset + bytes + BATCH_HEADER as u64;
        if needed <= active.allocated {
            return Ok(());
        }
        let total = self.check_space(bytes)?.total;
        let ahead = ALLOCATE_BYTES
            .min(total / 16)
            .min(self.options.segment_bytes.saturating_sub(active.allocated));
        let length = ahead.max(needed - active.allocated);
        active.file.allocate(active.allocated, length)?;
        // A file system without allocation leaves the length unchanged.
        active.allocated = active.file.len()?.max(active.offset);
        Ok(())
    }

    fn check_space(&self, bytes: u64) -> Result<DiskSpace, WriteError> {
        let space = self.options.disk.space(&self.options.dir)?;
        let reserve = space.reserve() / self.options.reserve_part;
        if space.free < reserve + bytes { Err(WriteError::Full) } else { Ok(space) }
    }

    fn write(
        &self,
        writer: &mut LogWriter,
        pieces: &[LogPiece],
        next: Seq,
        reserve: Seq,
    ) -> Result<(), WriteError> {
        let end = self.shared.lock().end;
        let batches = batches(pieces, end, next, writer, reserve);
        let bytes: u64 = batches.iter().map(|(header, _)| batch_bytes(header)).sum();
        let first = batches[0].0.first;
        let unix_ms = batches[0].0.unix_ms;
        let begins =
            writer.active.as_ref().is_none_or(|active| self.exceeds_segment(active, bytes));
        if begins {
            self.check_space(bytes + SEGMENT_HEADER as u64)?;
            self.roll(writer, first, reserve, unix_ms)?;
        }
        let active = writer.active.as_mut().expect("the active segment exists or was just begun");
        let (mut headers, mut offset) = (Vec::with_capacity(batches.len()), active.offset);
        for (header, _) in &batches {
            headers.push((offset, header.encode_at(active.home, offset)));
            offset += batch_bytes(header);
        }
        let mut slices = Vec::with_capacity(batches.len() + pieces.len());
        for ((_, header), (_, pieces)) in headers.iter().zip(&batches) {
            slices.push(IoSlice::new(header));
            slices.extend(pieces.iter().map(|piece| IoSlice::new(&piece.wire)));
        }
        self.write_at_end(active, &mut slices, bytes)?;
        let mut has_grown = false;
        for ((offset, _), (header, _)) in headers.iter().zip(&batches) {
            has_grown |= active.index.add(header, *offset);
        }
        let newest = &batches[batches.len() - 1].0;
        writer.newest_unix_ms = newest.unix_ms;
        writer.reserved = newest.reserved;
        let mut guard = self.shared.lock();
        let shared = &mut *guard;
        let segment = shared.segments.back_mut().expect("the active segment is the last one");
        // A batch without events precedes a gap, and does not fill it.
        for (header, _) in batches.iter().filter(|(header, _)| header.count > 0) {
            let gap = header.first.0.saturating_sub(shared.end.max(segment.base).0);
            segment.empty = segment.empty.saturating_add(gap);
            shared.end = header.end();
        }
        segment.bytes = active.offset;
        if has_grown {
            segment.index = Some(Arc::new(active.index.clone()));
        }
        Ok(())
    }

    /// Runs a write, and stops all later ones if it leaves the disk in an uncertain state.
    pub(super) fn with_writer<T>(
        &self,
        work: impl FnOnce(&Self, &mut LogWriter) -> Result<T, WriteError>,
    ) -> Result<T, LogError> {
        self.with_locked_writer(&mut self.writer.lock(), work)
    }

    /// As [`with_writer`](Self::with_writer), for a caller that holds the lock.
    fn with_locked_writer<T>(
        &self,
        writer: &mut LogWriter,
        work: impl FnOnce(&Self, &mut LogWriter) -> Result<T, WriteError>,
    ) -> Result<T, LogError> {
        if let Some(why) = &writer.broken {
            return Err(LogError::Broken(why.clone()));
        }
        match work(self, writer) {
            Ok(done) => Ok(done),
            Err(WriteError::Full) => Err(LogError::Full),
            Err(WriteError::Broken(error)) => {
                let why = format!("{}: {error}", self.options.dir.display());
                writer.broken = Some(why.clone());
                Err(LogError::Broken(why))
            }
        }
    }

    fn remove_oldest(&self) -> Result<(), LogError> {
        let mut shared = self.shared.lock();
        let Some(oldest) = shared.segments.pop_front() else { return Ok(()) };
        shared.open_file.take_if(|(base, _)| *base == oldest.base);
        shared.reported.retain(|(base, _)| *base > oldest.base);
        drop(shared);
        // Removes what a crash had left of this segment as well.
        let _ = self.options.disk.remove(&torn_path(&oldest.path));
        match self.options.disk.remove(&oldest.path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                let error = LogError::io(&oldest.path, source);
                self.shared.lock().segments.push_front(oldest);
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// The end of the newest file; `None` if the file does not exist or has a damaged header.
    fn log_end(&self, next: Seq) -> io::Result<Option<LogEnd>> {
        let (path, bytes, end) = {
            let shared = self.shared.lock();
            let Some(last) = shared.segments.back() else { return Ok(None) };
            (last.path.clone(), last.bytes, shared.end)
        };
        let header = SegmentHeader::read(&*self.options.disk.open(&path)?)?;
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let next = next.max(end);
        let header = SegmentHeader::checksum(&header);
        Ok(header.map(|header| LogEnd { file, header, bytes, end, next }))
    }

    /// Makes removals durable.
    fn sync_dir(&self) -> Result<(), LogError> {
        let dir = &self.options.dir;
        let synced = self.options.disk.sync_dir(dir);
        synced.map_err(|source| LogError::io(dir, source))
    }
}

impl ActiveSegment {
    /// Truncates the file after its last batch and syncs it.
    fn cut(&mut self) -> Result<(), WriteError> {
        if self.allocated > self.offset {
            self.file.set_len(self.offset).map_err(WriteError::Broken)?;
            self.allocated = self.offset;
        }
        self.file.sync_data().map_err(WriteError::Broken)
    }
}

impl SegmentTable {
    /// Whether a segment begins at `base`.
    pub(super) fn has(&self, base: Seq) -> bool {
        self.segments.binary_search_by_key(&base, |segment| segment.base).is_ok()
    }

    /// Whether retention removes the oldest segment. The newest one always stays.
    fn is_oldest_expired(&self, retention: &Retention, is_old: impl Fn(i64) -> bool) -> bool {
        let Some(next) = self.segments.get(1) else { return false };
        let bytes: u64 = self.segments.iter().map(|segment| segment.bytes).sum();
        let should = bytes > retention.bytes_max
            || self.segments.len() > retention.segments_max
            || is_old(next.unix_ms);
        should && next.base <= retention.keep_from
    }
}

impl TopicLog for SegmentLog {
    fn append(&self, pieces: &[LogPiece], next: Seq, reserve: Seq) -> Result<(), LogError> {
        self.with_writer(|log, writer| log.write(writer, pieces, next, reserve))
    }

    fn try_append(&self, piece: &LogPiece) -> bool {
        let Some(mut writer) = self.writer.try_lock() else { return false };
        let bytes = BATCH_HEADER as u64 + piece.wire.len() as u64;
        let has_place = writer.active.as_ref().is_some_and(|active| {
            !self.exceeds_segment(active, bytes)
                && active.offset + bytes + BATCH_HEADER as u64 <= active.allocated
        });
        if !has_place {
            return false;
        }
        let next = Seq(piece.first.0 + piece.count);
        self.with_locked_writer(&mut writer, |log, writer| {
            log.write(writer, std::slice::from_ref(piece), next, next)
        })
        .is_ok()
    }

    fn sync(&self) -> Result<SyncedMarks, LogError> {
        // No lock is held during the sync. Later writes belong to the next sync.
        let (file, synced) = self.with_writer(|log, writer| {
            let file = writer.active.as_ref().map(|active| Arc::clone(&active.file));
            let (durable, reserved) = (log.shared.lock().end, writer.reserved);
            Ok((file, SyncedMarks { durable, reserved }))
        })?;
        let result = file.map_or(Ok(()), |file| file.sync_data());
        self.with_writer(|_, writer| {
            result.map_err(WriteError::Broken)?;
            writer.durable = writer.durable.max(synced.durable);
            Ok(synced)
        })
    }

    fn has_room(&self) -> bool {
        self.check_space(ALLOCATE_BYTES / 4).is_ok()
    }

    fn read(
        &self,
        from: Seq,
        at: Option<ReadPosition>,
        since: Option<i64>,
        buffer: &mut [u8],
    ) -> Result<LogRead, LogError> {
        log_reader::read(self, from, at, since, buffer)
    }

    fn newest(&self, count: u64, before: Seq) -> NewestEvents {
        self.shared.lock().newest(count, before)
    }

    fn index(&self, base: Seq) -> Result<(), LogError> {
        log_reader::index(self, base)
    }

    fn bounds(&self) -> LogBounds {
        let shared = self.shared.lock();
        let gap_before = |segment: &Segment| segment.base.0.saturating_sub(segment.previous_end.0);
        let between = shared.segments.iter().skip(1).map(gap_before);
        let within = shared.segments.iter().map(|segment| segment.empty);
        LogBounds {
            first: shared.segments.front().map_or(shared.end, |oldest| oldest.base),
            end: shared.end,
            // A damaged file may claim any seq.
            empty: between.chain(within).fold(0, u64::saturating_add),
            oldest_unix_ms: shared.segments.front().map(|oldest| oldest.unix_ms),
            bytes: shared.segments.iter().map(|segment| segment.bytes).sum(),
            segments: shared.segments.len(),
        }
    }

    fn retain(&self, retention: &Retention) -> Result<usize, LogError> {
        let is_old = |unix_ms| retention.oldest_unix_ms.is_some_and(|oldest| unix_ms < oldest);
        let rolled = self.with_writer(|log, writer| {
            let end = log.shared.lock().end;
            let has_events = log.shared.lock().segments.back().is_some_and(|last| last.base < end);
            if has_events && is_old(writer.newest_unix_ms) && retention.keep_from >= end {
                // Only a segment that is not active can be removed.
                log.roll(writer, end, writer.reserved, writer.newest_unix_ms)?;
            }
            Ok(())
        });
        match rolled {
            // Retention is most important when the disk is full.
            Ok(()) | Err(LogError::Full) => {}
            Err(error) => return Err(error),
        }
        let _removal = self.removal.lock();
        let mut removed = 0;
        while removed < retention.removals_max
            && self.shared.lock().is_oldest_expired(retention, is_old)
        {
            self.remove_oldest()?;
            removed += 1;
        }
        if removed > 0 {
            self.sync_dir()?;
        }
        Ok(removed)
    }

    fn close(&self, next: Seq) -> Result<(), LogError> {
        self.with_writer(|log, writer| {
            let Some(active) = &mut writer.active else { return Ok(()) };
            let end = log.shared.lock().end;
            let header = BatchHeader {
                first: next.max(end),
                previous_end: end,
                durable: writer.durable.min(end),
                reserved: next.max(end),
                unix_ms: writer.newest_unix_ms,
                clean: true,
                ..BatchHeader::default()
            };
            let bytes = header.encode_at(active.home, active.offset);
            log.write_at_end(active, &mut [IoSlice::new(&bytes)], BATCH_HEADER as u64)?;
            if let Some(last) = log.shared.lock().segments.back_mut() {
                last.bytes = active.offset;
            }
            active.cut()
        })?;
        let dir = &self.options.dir;
        let end = self.log_end(next);
        if let Some(end) = end.map_err(|source| LogError::io(dir, source))? {
            self.options.stopped.set(end);
        }
        Ok(())
    }

    fn begin_after_loss(&self) -> Result<(), LogError> {
        self.with_writer(|log, writer| {
            let end = log.shared.lock().end;
            // The time differs, so that this header differs from that of a damaged file of the same
            // name.
            log.roll(writer, end, writer.reserved, writer.newest_unix_ms + 1)
        })
    }

    fn clear(&self) -> Result<(), LogError> {
        let writer = &mut *self.writer.lock();
        let _removal = self.removal.lock();
        writer.active = None;
        // The newest segment records the assigned seqs, so it is removed last, after the removal of
        // the others is durable.
        while self.shared.lock().segments.len() > 1 {
            self.remove_oldest()?;
        }
        if writer.has_dir {
            self.sync_dir()?;
            self.remove_oldest()?;
            self.sync_dir()?;
        }
        // The reservation was recorded only in the removed files.
        writer.reserved = self.shared.lock().end;
        Ok(())
    }

    fn verify(&self) -> Result<Vec<CheckedFile>, LogError> {
        Ok(log_reader::verify(self))
    }
}

/// The path that keeps what was cut off a file.
pub(super) fn torn_path(path: &Path) -> PathBuf {
    path.with_extension("log.torn")
}

/// Why a write failed.
pub(super) enum WriteError {
    /// The disk is full; nothing was changed.
    Full,
    /// The content of the disk is uncertain. Every failed sync leads to this, even one for lack of
    /// space.
    Broken(io::Error),
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        if is_full(&error) { Self::Full } else { Self::Broken(error) }
    }
}
