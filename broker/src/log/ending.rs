//! Where a log ends: noted at an orderly stop, and what follows an end that is lost.

use std::io;

use tidings_protocol::Seq;

use super::format::{SEGMENT_HEADER, SegmentHeader};
use super::segments::SegmentLog;
use super::{LogEnd, LogError};

impl SegmentLog {
    /// Begins a segment behind one of which the end is lost, so that what was lost is known at every later start.
    pub(crate) fn begin_after_loss(&self) -> Result<(), LogError> {
        self.attempt(|log, writer| {
            let end = log.shared.lock().end;
            // A file that takes the place of the damaged one differs from it in its header.
            log.roll(writer, end, writer.reserved, writer.newest_unix_ms + 1)
        })
    }

    /// Where the newest file ends.
    pub(super) fn ending(&self, next: Seq) -> io::Result<Option<LogEnd>> {
        let (path, bytes, end) = {
            let shared = self.shared.lock();
            let Some(last) = shared.segments.back() else { return Ok(None) };
            (last.path.clone(), last.bytes, shared.end)
        };
        let mut header = [0; SEGMENT_HEADER];
        let read = self.options.disk.open(&path)?.read_at(&mut header, 0)?;
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let next = next.max(end);
        // A damaged header says nothing about whose file it is.
        let header = SegmentHeader::checksum(&header[..read]);
        Ok(header.map(|header| LogEnd { file, header, bytes, end, next }))
    }
}
