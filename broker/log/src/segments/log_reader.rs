//! Reads a log from a seq on, and verifies all of it.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use tidings_protocol::Seq;

use super::segment_index::SegmentIndex;
use super::segment_log::{Segment, SegmentLog};
use super::segment_walk::{BatchLocation, SegmentWalk, WalkStep, is_whole};
use crate::disk::DiskFile;
use crate::format::{BATCH_HEADER, BatchHeader, BatchHome, SEGMENT_HEADER, SegmentHeader};
use crate::topic_log::{CheckedFile, LineRun, LogError, LogRead, ReadPosition};

/// Maximum number of damaged places that are logged. Thousands of readers may meet the same one.
const REPORTED_MAX: usize = 100;

/// A segment as a reader sees it.
struct SegmentReader<'a> {
    log: &'a SegmentLog,
    segment: &'a Segment,
    file: Arc<dyn DiskFile>,
    home: BatchHome,
    /// The seq after the segment's newest event, as known at the start of this read. Batches beyond
    /// it are misplaced, or were appended later.
    end: Seq,
}

/// [`TopicLog::read`](crate::topic_log::TopicLog::read).
pub(super) fn read(
    log: &SegmentLog,
    from: Seq,
    at: Option<ReadPosition>,
    since: Option<i64>,
    buffer: &mut [u8],
) -> Result<LogRead, LogError> {
    let found = loop {
        let (segment, end) = match locate(log, from) {
            Ok(located) => located,
            Err(found) => break found,
        };
        let read = SegmentReader::open(log, &segment, end)
            .and_then(|reader| reader.read(from, at, since, buffer));
        match read {
            Ok(found) => break found,
            // Retention has removed the segment meanwhile.
            Err(_) if !log.shared.lock().has(segment.base) => {}
            Err(source) => return Err(LogError::io(&segment.path, source)),
        }
    };
    Ok(match found {
        // A reader that asks for a time does not need to know about gaps.
        LogRead::Gap(_, last) if since.is_some() => LogRead::Skip(Seq(last.0 + 1)),
        found => found,
    })
}

/// [`TopicLog::index`](crate::topic_log::TopicLog::index).
pub(super) fn index(log: &SegmentLog, base: Seq) -> Result<(), LogError> {
    // A removed segment needs no index.
    let Ok((segment, end)) = locate(log, base) else { return Ok(()) };
    if segment.base != base || segment.index.is_some() {
        return Ok(());
    }
    match SegmentReader::open(log, &segment, end).and_then(|reader| reader.build_index()) {
        Err(source) if log.shared.lock().has(base) => Err(LogError::io(&segment.path, source)),
        _ => Ok(()),
    }
}

/// Finds the segment that contains `from`, and the seq after its newest event. If there is none,
/// returns the result for the reader.
fn locate(log: &SegmentLog, from: Seq) -> Result<(Segment, Seq), LogRead> {
    let shared = log.shared.lock();
    let after = shared.segments.partition_point(|segment| segment.base <= from);
    let next = shared.segments.get(after).map(|next| (next.previous_end, next.base));
    // Where the events before the next segment end, and where that segment begins.
    let (end, base) = next.unwrap_or((shared.end, shared.end));
    match after.checked_sub(1) {
        Some(at) if from < end => Ok((shared.segments[at].clone(), end)),
        _ => Err(lag_or_gap(from, end, base)),
    }
}

/// The result for a reader at `from` when the next batch begins at `base` and events had been kept
/// up to `previous_end`.
fn lag_or_gap(from: Seq, previous_end: Seq, base: Seq) -> LogRead {
    if from < previous_end {
        LogRead::Lag(from, Seq(previous_end.0 - 1))
    } else if from < base {
        LogRead::Gap(from, Seq(base.0 - 1))
    } else {
        LogRead::End
    }
}

/// The file of a segment. The last one stays open, because readers tend to be close together.
fn open_file(log: &SegmentLog, segment: &Segment) -> io::Result<Arc<dyn DiskFile>> {
    if let Some((base, file)) = &log.shared.lock().open_file
        && *base == segment.base
    {
        return Ok(Arc::clone(file));
    }
    let file = log.options.disk.open(&segment.path)?;
    let mut shared = log.shared.lock();
    if shared.has(segment.base) {
        shared.open_file = Some((segment.base, Arc::clone(&file)));
    }
    Ok(file)
}

impl<'a> SegmentReader<'a> {
    fn open(log: &'a SegmentLog, segment: &'a Segment, end: Seq) -> io::Result<Self> {
        let (file, home) = (open_file(log, segment)?, log.home(segment.base));
        Ok(Self { log, segment, file, home, end })
    }

    fn read(
        &self,
        from: Seq,
        at: Option<ReadPosition>,
        since: Option<i64>,
        buffer: &mut [u8],
    ) -> io::Result<LogRead> {
        if since.is_some_and(|since| self.is_older(since)) {
            return Ok(LogRead::Skip(self.end));
        }
        let at = at.filter(|at| at.base == self.segment.base && at.next == from);
        let offset = at.map_or_else(|| self.find(from), |at| Ok(at.offset))?;
        // Nearly always the lines are right there.
        if let Some(found) = self.lines(from, offset, since, buffer)? {
            return Ok(found);
        }
        let (mut from, place) = match self.seek(from, offset, since)? {
            Ok(sought) => sought,
            Err(found) => return Ok(found),
        };
        let header = &place.header;
        match lag_or_gap(from, header.previous_end, header.first) {
            LogRead::End => {}
            LogRead::Gap(..) if since.is_some() => from = header.first,
            found => {
                self.report(&found, place.offset);
                return Ok(found);
            }
        }
        if let Some(found) = self.lines(from, place.offset, since, buffer)? {
            return Ok(found);
        }
        let bytes = place.end() - place.offset;
        if bytes > buffer.len() as u64 && is_whole(&*self.file, &place)? {
            let text = format!("a batch of {bytes} bytes is larger than the read buffer");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let found = LogRead::Lag(from, Seq(header.end().0 - 1));
        self.report(&found, place.offset);
        Ok(found)
    }

    /// Whether the next segment was created before `since`, so that all of this one is older.
    fn is_older(&self, since: i64) -> bool {
        let shared = self.log.shared.lock();
        let after = shared.segments.partition_point(|other| other.base <= self.segment.base);
        shared.segments.get(after).is_some_and(|next| next.unix_ms < since)
    }

    /// The offset at which to search for `from`.
    fn find(&self, from: Seq) -> io::Result<u64> {
        let index = match &self.segment.index {
            Some(index) => Arc::clone(index),
            None => self.build_index()?,
        };
        Ok(index.offset(from).unwrap_or(SEGMENT_HEADER as u64))
    }

    /// Builds the index of a segment of an earlier run, when a reader first needs it.
    fn build_index(&self) -> io::Result<Arc<SegmentIndex>> {
        let mut index = SegmentIndex::new(self.segment.base);
        let mut walk =
            SegmentWalk::new(&*self.file, self.home, SEGMENT_HEADER as u64, self.segment.bytes);
        loop {
            match walk.next()? {
                // Batches with later seqs are misplaced.
                WalkStep::Batch(place) if place.header.end() <= self.end => {
                    index.add(&place.header, place.offset);
                }
                WalkStep::Batch(_) | WalkStep::Bad { .. } => {}
                WalkStep::End { .. } => break,
            }
        }
        index.end_at(self.end);
        let index = Arc::new(index);
        let mut shared = self.log.shared.lock();
        let known = shared.segments.iter_mut().find(|known| known.base == self.segment.base);
        if let Some(segment) = known {
            segment.index = Some(Arc::clone(&index));
        }
        Ok(index)
    }

    /// Reads the valid lines from `from` on that lie at `offset`, if there are any.
    fn lines(
        &self,
        from: Seq,
        offset: u64,
        since: Option<i64>,
        buffer: &mut [u8],
    ) -> io::Result<Option<LogRead>> {
        let left = self.segment.bytes.saturating_sub(offset);
        let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut buffer[..wanted], offset)?;
        let mut lines = LineRuns { end: from, runs: Vec::new() };
        let used = lines.take(&mut buffer[..read], (self.home, offset), self.end, since);
        let at =
            ReadPosition { base: self.segment.base, offset: offset + used as u64, next: lines.end };
        let LineRuns { end, runs } = lines;
        Ok((!runs.is_empty()).then_some(LogRead::Lines { first: from, end, runs, at }))
    }

    /// Finds the first batch at or after `offset` that has events from `from` on and is not older
    /// than `since`. Returns it with the new cursor, which has moved past older batches.
    fn seek(
        &self,
        from: Seq,
        offset: u64,
        since: Option<i64>,
    ) -> io::Result<Result<(Seq, BatchLocation), LogRead>> {
        let mut cursor = from;
        let mut walk = SegmentWalk::new(&*self.file, self.home, offset, self.segment.bytes);
        loop {
            match walk.next()? {
                WalkStep::Batch(place)
                    if place.header.count > 0
                        && place.header.end() > cursor
                        && place.header.end() <= self.end =>
                {
                    if since.is_none_or(|since| place.header.unix_ms >= since) {
                        return Ok(Ok((cursor, place)));
                    }
                    cursor = place.header.end();
                }
                WalkStep::Batch(_) | WalkStep::Bad { .. } => {}
                WalkStep::End { .. } if cursor > from => return Ok(Err(LogRead::Skip(cursor))),
                WalkStep::End { offset, .. } => {
                    let found = lag_or_gap(from, self.end, self.end);
                    self.report(&found, offset);
                    return Ok(Err(found));
                }
            }
        }
    }

    /// Reports in the broker's own log that kept events cannot be read, once for each place.
    fn report(&self, found: &LogRead, offset: u64) {
        let LogRead::Lag(first, last) = found else { return };
        let reported = &mut self.log.shared.lock().reported;
        if reported.len() < REPORTED_MAX && reported.insert((self.segment.base, offset)) {
            let path = self.segment.path.display();
            tracing::error!(%path, offset, %first, %last, "events on disk are damaged and cannot be read; tidings verify shows all damage");
        }
    }
}

/// Lines that were found in a buffer.
struct LineRuns {
    /// The seq after the last line; initially that of the first line.
    end: Seq,
    runs: Vec<LineRun>,
}

impl LineRuns {
    /// Takes valid consecutive batches from a buffer that begins with a batch at `offset` of a
    /// file. Stops at the first batch that is too old or goes beyond `limit`. Returns the number of
    /// bytes that were processed.
    fn take(
        &mut self,
        bytes: &mut [u8],
        (home, offset): (BatchHome, u64),
        limit: Seq,
        since: Option<i64>,
    ) -> usize {
        let mut at = 0;
        while let Ok(header) = BatchHeader::decode_at(&bytes[at..], home, offset + at as u64) {
            let payload = at + BATCH_HEADER..at + BATCH_HEADER + header.bytes as usize;
            let Some(lines) = bytes.get(payload.clone()) else { break };
            if header.count > 0 && header.end() > self.end {
                let is_out = header.first > self.end || header.end() > limit;
                let is_old = since.is_some_and(|since| header.unix_ms < since);
                if is_out || is_old || crc32c::crc32c(lines) != header.crc {
                    break;
                }
                let skipped = skip(lines, self.end.0 - header.first.0);
                let place = payload.start + skipped..payload.end;
                self.add(header.unix_ms, place, bytes);
                self.end = header.end();
            }
            at = payload.end;
        }
        at
    }

    /// Adds a run of lines. A small run is moved up to the one before it, over its header, so that
    /// a socket receives few large slices.
    fn add(&mut self, unix_ms: i64, place: Range<usize>, bytes: &mut [u8]) {
        const SMALL: usize = 16 << 10;
        let first = self.end;
        if let Some(last) = self.runs.last_mut().filter(|_| place.len() < SMALL) {
            let before = last.later.last().map_or(last.unix_ms, |(_, unix_ms)| *unix_ms);
            if before.div_euclid(1_000) != unix_ms.div_euclid(1_000) {
                last.later.push((first, unix_ms));
            }
            let length = place.len();
            bytes.copy_within(place, last.place.end);
            last.place.end += length;
        } else {
            self.runs.push(LineRun { first, unix_ms, later: Vec::new(), place });
        }
    }
}

/// The offset of the line after the first `count` lines.
fn skip(lines: &[u8], count: u64) -> usize {
    let Some(nth) = count.checked_sub(1) else { return 0 };
    let nth = usize::try_from(nth).unwrap_or(usize::MAX);
    memchr::memchr_iter(b'\n', lines).nth(nth).map_or(lines.len(), |end| end + 1)
}

/// [`TopicLog::verify`](crate::topic_log::TopicLog::verify).
pub(super) fn verify(log: &SegmentLog) -> Vec<CheckedFile> {
    let (segments, end) = {
        let shared = log.shared.lock();
        (shared.segments.clone(), shared.end)
    };
    let mut checked = Vec::new();
    for (at, segment) in segments.iter().enumerate() {
        let end = segments.get(at + 1).map_or(end, |next| next.previous_end);
        let mut file = CheckedFile {
            place: segment.path.display().to_string(),
            events: 0,
            bytes: segment.bytes,
            problems: Vec::new(),
            lost: Vec::new(),
        };
        let opened = log.options.disk.open(&segment.path);
        if let Err(error) =
            opened.and_then(|opened| file.check(&*opened, log.home(segment.base), segment, end))
        {
            if !log.shared.lock().has(segment.base) {
                // Retention has removed the segment meanwhile.
                continue;
            }
            (file.events, file.lost) = (0, Vec::new());
            file.problems.push(format!("it cannot be read: {error}"));
            file.add_lost(segment.base, end);
        }
        checked.push(file);
    }
    checked
}

impl CheckedFile {
    /// Checks a segment, which should hold all events up to before `end`.
    fn check(
        &mut self,
        file: &dyn DiskFile,
        home: BatchHome,
        segment: &Segment,
        end: Seq,
    ) -> io::Result<()> {
        match SegmentHeader::decode(&SegmentHeader::read(file)?) {
            Ok(header) if header.base != segment.base => {
                self.problems
                    .push(format!("its header says that it begins with event {}", header.base));
            }
            Ok(_) => {}
            Err(error) => self.problems.push(error.to_string()),
        }
        // The next batch accounts for the events from here on.
        let mut cursor = segment.base;
        let mut walk = SegmentWalk::new(file, home, SEGMENT_HEADER as u64, segment.bytes);
        loop {
            match walk.next()? {
                WalkStep::Batch(place) => {
                    let header = place.header;
                    if header.end() > end && header.count > 0 {
                        let text =
                            format!("the batch at byte {} belongs to another place", place.offset);
                        self.problems.push(text);
                        continue;
                    }
                    self.add_lost(cursor, header.previous_end);
                    if is_whole(file, &place)? {
                        self.events += u64::from(header.count);
                    } else {
                        let text = format!("the batch at byte {} is damaged", place.offset);
                        self.problems.push(text);
                        self.add_lost(header.first, header.end());
                    }
                    cursor = cursor.max(header.end());
                }
                WalkStep::Bad { offset, next } => {
                    let bytes = next.offset - offset;
                    self.problems
                        .push(format!("{bytes} bytes from byte {offset} on are not a valid batch"));
                }
                WalkStep::End { offset, zeros } => {
                    if !zeros {
                        let bytes = segment.bytes - offset;
                        let text = format!(
                            "its last {bytes} bytes, from {offset} on, are not a valid batch"
                        );
                        self.problems.push(text);
                    }
                    self.add_lost(cursor, end);
                    if !self.lost.is_empty() && self.problems.is_empty() {
                        self.problems.push("it ends before its last event".to_owned());
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Records that the events from `from` up to before `end` are missing.
    fn add_lost(&mut self, from: Seq, end: Seq) {
        if from < end {
            self.lost.push((from, Seq(end.0 - 1)));
        }
    }
}
