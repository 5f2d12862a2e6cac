//! Reading a log from a number on, and checking all of it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tidings_protocol::Seq;

use super::disk::DiskFile;
use super::format::{BATCH_HEADER, BatchHeader, SEGMENT_HEADER, SegmentHeader};
use super::segment::{Place, Step, Walk, is_whole};
use super::segments::{INDEX_BYTES, Segment, SegmentLog};
use super::{Checked, Found, LogError, Position};

/// Reads at this distance from the wanted batch or nearer are cheaper than a search.
type Index = Vec<(Seq, u64)>;

/// A segment as a reader sees it.
struct View {
    segment: Segment,
    file: Arc<dyn DiskFile>,
    /// The number after its newest event, as far as anybody knows.
    end: Seq,
}

/// [`TopicLog::read`](super::TopicLog::read).
pub(super) fn read(
    log: &SegmentLog,
    from: Seq,
    at: Option<Position>,
    since: Option<i64>,
    buffer: &mut [u8],
) -> Result<Found, LogError> {
    let (segment, end) = {
        let shared = log.shared.lock();
        let after = shared.segments.partition_point(|segment| segment.base <= from);
        if after == 0 {
            let Some(first) = shared.segments.front() else {
                return Ok(before(from, shared.end, shared.end));
            };
            return Ok(before(from, first.previous_end, first.base));
        }
        if from >= shared.end {
            return Ok(Found::End);
        }
        let next = shared.segments.get(after).map(|next| (next.previous_end, next.base));
        if let Some((previous_end, base)) = next.filter(|(previous_end, _)| from >= *previous_end) {
            return Ok(before(from, previous_end, base));
        }
        let end = next.map_or(shared.end, |(previous_end, _)| previous_end);
        (shared.segments[after - 1].clone(), end)
    };
    let path = segment.path.clone();
    let failed = |source| LogError::Io { path: path.clone(), source };
    let file = open(log, &segment).map_err(failed)?;
    let mut view = View { segment, file, end };
    if let Some(since) = since
        && view.segment.bytes > SEGMENT_HEADER as u64
        && newest_is_older(log, &view, since)
    {
        return Ok(Found::Skip(view.end));
    }
    let at = at.filter(|at| at.base == view.segment.base && at.offset < view.segment.bytes);
    let offset = match at {
        Some(at) => at.offset,
        None => find(log, &mut view, from).map_err(failed)?,
    };
    view.read(from, offset, since, buffer).map_err(failed)
}

/// What to say to a reader at `from` when the next thing that is there begins at `base`, before
/// which events were kept up to `previous_end`.
fn before(from: Seq, previous_end: Seq, base: Seq) -> Found {
    if from < previous_end {
        Found::Lag(from, Seq(previous_end.0 - 1))
    } else if from < base {
        Found::Gap(from, Seq(base.0 - 1))
    } else {
        Found::End
    }
}

/// Whether the segment after this one was begun before `since`, so that all of this one is older.
fn newest_is_older(log: &SegmentLog, view: &View, since: i64) -> bool {
    let shared = log.shared.lock();
    let next = shared.segments.iter().find(|segment| segment.base > view.segment.base);
    next.is_some_and(|next| next.unix_ms < since)
}

/// The file of a segment. The one that was read last stays open: readers tend to stay together.
fn open(log: &SegmentLog, segment: &Segment) -> io::Result<Arc<dyn DiskFile>> {
    if let Some((base, file)) = &log.shared.lock().opened
        && *base == segment.base
    {
        return Ok(Arc::clone(file));
    }
    let file = log.options.disk.open(&segment.path)?;
    log.shared.lock().opened = Some((segment.base, Arc::clone(&file)));
    Ok(file)
}

/// Where to begin to look for `from`.
fn find(log: &SegmentLog, view: &mut View, from: Seq) -> io::Result<u64> {
    let index = match &view.segment.index {
        Some(index) => Arc::clone(index),
        None => build_index(log, view)?,
    };
    let after = index.partition_point(|(first, _)| *first <= from);
    Ok(after.checked_sub(1).map_or(SEGMENT_HEADER as u64, |at| index[at].1))
}

/// Segments of an earlier run have no index until somebody looks for something in them.
fn build_index(log: &SegmentLog, view: &mut View) -> io::Result<Arc<Index>> {
    let mut index = Index::new();
    let mut walk = Walk::new(&*view.file, SEGMENT_HEADER as u64, view.segment.bytes);
    loop {
        match walk.next()? {
            Step::Batch(place) => {
                let last = index.last().map_or(0, |(_, offset)| *offset);
                if index.is_empty() || place.offset >= last + INDEX_BYTES {
                    index.push((place.header.first, place.offset));
                }
            }
            Step::Bad { .. } => {}
            Step::End { .. } => break,
        }
    }
    let index = Arc::new(index);
    let mut shared = log.shared.lock();
    let known = shared.segments.iter_mut().find(|segment| segment.base == view.segment.base);
    if let Some(segment) = known {
        segment.index = Some(Arc::clone(&index));
    }
    Ok(index)
}

impl View {
    /// Reads lines from `from` on, looking for them from `offset` on.
    fn read(
        &self,
        from: Seq,
        mut offset: u64,
        since: Option<i64>,
        buffer: &mut [u8],
    ) -> io::Result<Found> {
        let mut lines = Lines { first: from, end: from, runs: Vec::new() };
        // Batches before the wanted one are skipped header by header.
        let mut walk = Walk::new(&*self.file, offset, self.segment.bytes);
        loop {
            match walk.next()? {
                Step::Batch(place) if is_wanted(&place.header, from, since) => {
                    offset = place.offset;
                    break;
                }
                Step::Batch(place) if place.header.count > 0 && place.header.first >= from => {
                    // Too old for who asks. What lies before it is of no interest either.
                    lines.end = place.header.end();
                }
                Step::Batch(_) | Step::Bad { .. } => {}
                Step::End { .. } if lines.end > from => return Ok(Found::Skip(lines.end)),
                Step::End { .. } => return Ok(before(from, self.end, self.end)),
            }
        }
        lines.end = from;
        let left = usize::try_from(self.segment.bytes - offset).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(left);
        let read = self.file.read_at(&mut buffer[..wanted], offset)?;
        let used = lines.take(&mut buffer[..read], since);
        if lines.runs.is_empty() {
            return self.explain(from, offset + used as u64, since);
        }
        let at = Position { base: self.segment.base, offset: offset + used as u64 };
        Ok(Found::Lines { first: lines.first, end: lines.end, runs: lines.runs, at })
    }

    /// What to say when there are no good lines for `from` at `offset`.
    fn explain(&self, from: Seq, offset: u64, since: Option<i64>) -> io::Result<Found> {
        let mut walk = Walk::new(&*self.file, offset, self.segment.bytes);
        loop {
            match walk.next()? {
                Step::Batch(Place { header, .. }) if header.end() <= from => {}
                Step::Batch(place) => {
                    if !is_whole(&*self.file, &place)? {
                        // Its header says what is missing.
                        let end = place.header.end().0.max(from.0 + 1);
                        self.complain(place.offset);
                        return Ok(Found::Lag(from, Seq(end - 1)));
                    }
                    let header = place.header;
                    if since.is_some_and(|since| header.unix_ms < since) {
                        return Ok(Found::Skip(header.end()));
                    }
                    return Ok(before(from, header.previous_end, header.first));
                }
                Step::Bad { offset, next } => {
                    self.complain(offset);
                    let end = next.header.previous_end.max(Seq(from.0 + 1));
                    return Ok(Found::Lag(from, Seq(end.0 - 1)));
                }
                Step::End { .. } => {
                    self.complain(offset);
                    return Ok(before(from, self.end, self.end));
                }
            }
        }
    }

    fn complain(&self, offset: u64) {
        let path = self.segment.path.display();
        tracing::error!(%path, offset, "events in this file are damaged and cannot be read");
    }
}

/// Whether a batch holds something for who asks for `from` and later, and not older than `since`.
fn is_wanted(header: &BatchHeader, from: Seq, since: Option<i64>) -> bool {
    header.end() > from && header.count > 0 && since.is_none_or(|since| header.unix_ms >= since)
}

/// Lines that were found in a buffer.
struct Lines {
    first: Seq,
    end: Seq,
    runs: Vec<(Seq, std::ops::Range<usize>)>,
}

impl Lines {
    /// Takes good batches without a hole between them from a buffer that begins with one. Returns
    /// how many bytes of it are done with.
    fn take(&mut self, bytes: &mut [u8], since: Option<i64>) -> usize {
        let mut at = 0;
        while let Ok(header) = BatchHeader::decode(&bytes[at..]) {
            let payload = at + BATCH_HEADER..at + BATCH_HEADER + header.bytes as usize;
            let Some(lines) = bytes.get(payload.clone()) else { break };
            if header.count > 0 && header.end() > self.end {
                let begins = self.runs.is_empty() && since.is_some();
                let is_old = since.is_some_and(|since| header.unix_ms < since);
                let is_next = header.first <= self.end || begins;
                if !is_next || is_old || crc32c::crc32c(lines) != header.crc {
                    break;
                }
                let skipped = skip(lines, self.end.0.saturating_sub(header.first.0));
                let first = self.end.max(header.first);
                if self.runs.is_empty() {
                    self.first = first;
                }
                self.add(first, payload.start + skipped..payload.end, bytes);
                self.end = header.end();
            }
            at = payload.end;
        }
        at
    }

    /// Adds a run of lines. Small ones are moved up to the one before, over its header, so that a
    /// socket is not handed crumbs.
    fn add(&mut self, first: Seq, run: std::ops::Range<usize>, bytes: &mut [u8]) {
        const SMALL: usize = 16 << 10;
        if let Some((_, last)) = self.runs.last_mut().filter(|_| run.len() < SMALL) {
            let length = run.len();
            bytes.copy_within(run, last.end);
            last.end += length;
        } else {
            self.runs.push((first, run));
        }
    }
}

/// Where the line after the first `count` begins.
fn skip(lines: &[u8], count: u64) -> usize {
    let Some(nth) = count.checked_sub(1) else { return 0 };
    let nth = usize::try_from(nth).unwrap_or(usize::MAX);
    memchr::memchr_iter(b'\n', lines).nth(nth).map_or(lines.len(), |end| end + 1)
}

/// [`TopicLog::verify`](super::TopicLog::verify).
pub(super) fn verify(log: &SegmentLog) -> Result<Vec<Checked>, LogError> {
    let (segments, end) = {
        let shared = log.shared.lock();
        (shared.segments.clone(), shared.end)
    };
    let mut checked = Vec::new();
    for (at, segment) in segments.iter().enumerate() {
        let segment_end = segments.get(at + 1).map_or(end, |next| next.previous_end);
        let path = segment.path.clone();
        let result = match log.options.disk.open(&segment.path) {
            Ok(file) => check(&*file, segment, segment_end),
            Err(error) => Err(error),
        };
        checked.push(result.unwrap_or_else(|error| unreadable(path, segment, segment_end, &error)));
    }
    Ok(checked)
}

fn unreadable(path: PathBuf, segment: &Segment, end: Seq, error: &io::Error) -> Checked {
    let lost = if segment.base < end { vec![(segment.base, Seq(end.0 - 1))] } else { Vec::new() };
    let problems = vec![format!("it cannot be read: {error}")];
    Checked { path, events: 0, bytes: segment.bytes, problems, lost }
}

fn check(file: &dyn DiskFile, segment: &Segment, end: Seq) -> io::Result<Checked> {
    let mut checked = Checked {
        path: segment.path.clone(),
        events: 0,
        bytes: segment.bytes,
        problems: Vec::new(),
        lost: Vec::new(),
    };
    let mut bytes = vec![0; SEGMENT_HEADER];
    let read = file.read_at(&mut bytes, 0)?;
    match SegmentHeader::decode(&bytes[..read]) {
        Ok(header) if header.base != segment.base => {
            checked.problems.push(format!("it says that it begins with event {}", header.base));
        }
        Ok(_) => {}
        Err(error) => checked.problems.push(error.to_string()),
    }
    // Events from here on are accounted for by the next batch.
    let mut cursor = segment.base;
    let mut walk = Walk::new(file, SEGMENT_HEADER as u64, segment.bytes);
    loop {
        match walk.next()? {
            Step::Batch(place) => {
                let header = place.header;
                checked.miss(cursor, header.previous_end);
                if is_whole(file, &place)? {
                    checked.events += u64::from(header.count);
                } else {
                    let offset = place.offset;
                    let text = format!("the batch at byte {offset} has a wrong checksum");
                    checked.problems.push(text);
                    checked.miss(header.first, header.end());
                }
                cursor = cursor.max(header.end());
            }
            Step::Bad { offset, next } => {
                let bytes = next.offset - offset;
                checked.problems.push(format!("{bytes} bytes from byte {offset} on are no batch"));
            }
            Step::End { offset, zeros } => {
                if !zeros {
                    let bytes = segment.bytes - offset;
                    let text = format!("its last {bytes} bytes, from {offset} on, are no batch");
                    checked.problems.push(text);
                }
                checked.miss(cursor, end);
                return Ok(checked);
            }
        }
    }
}

impl Checked {
    /// The events from `from` up to before `end` should be there and are not.
    fn miss(&mut self, from: Seq, end: Seq) {
        if from < end {
            self.lost.push((from, Seq(end.0 - 1)));
        }
    }
}
