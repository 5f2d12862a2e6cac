//! A walk through the batches of one segment file, damaged or not.
//!
//! After a damaged header, the walk searches for the next valid one. A publisher cannot forge a
//! header, because headers contain control characters and events do not.

use std::io;

use memchr::memmem;

use crate::disk::DiskFile;
use crate::format::{BATCH_HEADER, BATCH_MAGIC, BatchHeader, BatchHome, FormatError};

/// Bytes that are read at once.
const WINDOW: usize = 64 << 10;

/// Bytes that are read after a jump over a long payload.
const PEEK_BYTES: usize = 4 << 10;

/// The place of a batch in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BatchLocation {
    pub(super) offset: u64,
    pub(super) header: BatchHeader,
}

impl BatchLocation {
    /// The offset of the next batch.
    pub(super) fn end(&self) -> u64 {
        self.offset + (BATCH_HEADER as u64) + u64::from(self.header.bytes)
    }

    fn payload(&self) -> u64 {
        self.offset + BATCH_HEADER as u64
    }
}

/// The next item of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WalkStep {
    /// A batch with a valid header, complete in the file.
    Batch(BatchLocation),
    /// Nothing valid lies between `offset` and `next`.
    Bad { offset: u64, next: BatchLocation },
    /// No batch follows from `offset` on. `zeros`: only zeros follow, as in allocated space that
    /// was not used.
    End { offset: u64, zeros: bool },
}

pub(super) struct SegmentWalk<'a> {
    file: &'a dyn DiskFile,
    home: BatchHome,
    /// The offset at which the walk ends.
    length: u64,
    offset: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl<'a> SegmentWalk<'a> {
    /// A walk from `offset`, which must be between batches, to `length`.
    pub(super) fn new(file: &'a dyn DiskFile, home: BatchHome, offset: u64, length: u64) -> Self {
        Self { file, home, length, offset, window: Vec::new(), window_at: 0 }
    }

    pub(super) fn next(&mut self) -> io::Result<WalkStep> {
        let offset = self.offset;
        if let Some(place) = self.batch_at(offset)? {
            self.offset = place.end();
            return Ok(WalkStep::Batch(place));
        }
        let mut zeros = true;
        let mut at = offset;
        while at < self.length {
            let length = self.length;
            let bytes = self.bytes_at(at, WINDOW)?;
            if bytes.is_empty() {
                break;
            }
            let (searched, is_zero) = (bytes.len(), is_zero(bytes));
            zeros &= is_zero;
            let mut candidates = Vec::new();
            if !is_zero {
                let found = memmem::find_iter(bytes, BATCH_MAGIC).map(|found| at + found as u64);
                candidates.extend(found.filter(|found| *found > offset));
            }
            for candidate in candidates {
                if let Some(next) = self.batch_at(candidate)? {
                    self.offset = next.offset;
                    return Ok(WalkStep::Bad { offset, next });
                }
            }
            // The magic may cross the border between two windows.
            let overlap = BATCH_MAGIC.len() - 1;
            if at + searched as u64 >= length || searched <= overlap {
                break;
            }
            at += (searched - overlap) as u64;
        }
        Ok(WalkStep::End { offset, zeros })
    }

    /// The batch with its header at `offset`, if the header is valid and the file holds the whole
    /// batch.
    fn batch_at(&mut self, offset: u64) -> io::Result<Option<BatchLocation>> {
        let (length, home) = (self.length, self.home);
        let header =
            match BatchHeader::decode_at(self.bytes_at(offset, BATCH_HEADER)?, home, offset) {
                Ok(header) => header,
                // A newer program wrote it, so it must not be treated as damaged or cut off.
                Err(error @ FormatError::Version(_)) => {
                    let text = format!("the batch at byte {offset}: {error}");
                    return Err(io::Error::new(io::ErrorKind::Unsupported, text));
                }
                Err(_) => return Ok(None),
            };
        let place = BatchLocation { offset, header };
        Ok((place.end() <= length).then_some(place))
    }

    /// At least `wanted` bytes from `offset` on; fewer only at the end.
    fn bytes_at(&mut self, offset: u64, wanted: usize) -> io::Result<&[u8]> {
        let left = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = wanted.min(left);
        let end = self.window_at + self.window.len() as u64;
        if offset < self.window_at || offset + wanted as u64 > end {
            let goes_on = (self.window_at..=end).contains(&offset);
            let size = if goes_on { WINDOW } else { PEEK_BYTES };
            self.window.resize(size.max(wanted).min(left), 0);
            let read = self.file.read_at(&mut self.window, offset)?;
            self.window.truncate(read);
            self.window_at = offset;
        }
        let start =
            usize::try_from(offset - self.window_at).expect("the offset lies in the window");
        Ok(&self.window[start.min(self.window.len())..])
    }
}

/// Reports whether all bytes are zero. The unused room of a segment is scanned at each start, so
/// this compares the bytes with those before them, as fast as memory is compared.
fn is_zero(bytes: &[u8]) -> bool {
    let Some((first, rest)) = bytes.split_first() else { return true };
    *first == 0 && *rest == bytes[..rest.len()]
}

/// Whether the payload of a batch matches its checksum.
pub(super) fn is_whole(file: &dyn DiskFile, place: &BatchLocation) -> io::Result<bool> {
    let mut crc = 0;
    let (mut at, end) = (place.payload(), place.end());
    let mut bytes = vec![0; WINDOW.min(place.header.bytes as usize)];
    while at < end {
        let wanted = usize::try_from(end - at).map_or(WINDOW, |left| left.min(bytes.len()));
        let read = file.read_at(&mut bytes[..wanted], at)?;
        if read == 0 {
            return Ok(false);
        }
        crc = crc32c::crc32c_append(crc, &bytes[..read]);
        at += read as u64;
    }
    Ok(crc == place.header.crc)
}

/// Reads the payload of a batch; it is short if the file is.
pub(super) fn payload(file: &dyn DiskFile, place: &BatchLocation) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; place.header.bytes as usize];
    let read = file.read_at(&mut bytes, place.payload())?;
    bytes.truncate(read);
    Ok(bytes)
}
