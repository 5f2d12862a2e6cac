//! A segment file that is being recovered.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

use tidings_protocol::Seq;

use super::segment_walk::{BatchLocation, SegmentWalk, WalkStep};
use crate::disk::DiskFile;
use crate::format::{BATCH_HEADER, BatchHome, SEGMENT_HEADER};

const REWRITE_BYTES: usize = 256 << 10;

/// A segment file that is being recovered.
pub(super) struct SegmentFile<'a> {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) home: BatchHome,
    pub(super) base: Seq,
    pub(super) path: &'a Path,
    /// Its length when it was opened.
    pub(super) length: u64,
}

/// What all valid headers of a file say.
#[derive(Default)]
pub(super) struct HeaderSurvey {
    pub(super) first: Option<BatchLocation>,
    /// Events before this seq had been synced.
    pub(super) synced: Seq,
    /// Seqs below this may have been seen. The last header repeats what earlier ones say, unless an
    /// orderly stop has reset it.
    pub(super) reserved: Option<Seq>,
}

impl<'a> SegmentFile<'a> {
    pub(super) fn new(
        file: Arc<dyn DiskFile>,
        home: BatchHome,
        base: Seq,
        path: &'a Path,
    ) -> io::Result<Self> {
        let length = file.len()?;
        Ok(Self { file, home, base, path, length })
    }

    /// A walk through all batches.
    pub(super) fn walk(&self) -> SegmentWalk<'_> {
        SegmentWalk::new(&*self.file, self.home, SEGMENT_HEADER as u64, self.length)
    }

    /// Reads every valid header.
    pub(super) fn survey(&self) -> io::Result<HeaderSurvey> {
        let (mut survey, mut walk) = (HeaderSurvey::default(), self.walk());
        loop {
            match walk.next()? {
                WalkStep::Batch(place) => {
                    survey.first.get_or_insert(place);
                    survey.synced = survey.synced.max(place.header.durable);
                    survey.reserved = Some(place.header.reserved);
                }
                WalkStep::Bad { .. } => {}
                WalkStep::End { .. } => return Ok(survey),
            }
        }
    }

    /// Rewrites the bytes from `offset` to `end`. After a failed sync the system may wrongly regard
    /// them as written; it writes them once they are written again.
    pub(super) fn rewrite(&self, mut offset: u64, end: u64) -> io::Result<()> {
        let mut bytes = vec![0; REWRITE_BYTES];
        while offset < end {
            let left = usize::try_from(end - offset).unwrap_or(REWRITE_BYTES);
            let read = self.file.read_at(&mut bytes[..left.min(REWRITE_BYTES)], offset)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.file.write_at(&mut [IoSlice::new(&bytes[..read])], offset)?;
            offset += read as u64;
        }
        Ok(())
    }

    /// Whether this disk allocates space, so that a file is longer than its last batch requires.
    pub(super) fn takes_room(&self) -> bool {
        let allocated = self.file.allocate(self.length, BATCH_HEADER as u64);
        let taken = allocated.and_then(|()| self.file.len());
        taken.is_ok_and(|taken| taken > self.length)
    }
}
