//! Where a log ends: recorded at an orderly stop, and the new segment after a lost end.

use std::io;

use tidings_protocol::Seq;

use super::segment_log::SegmentLog;
use crate::clean_stop::LogEnd;
use crate::format::{SEGMENT_HEADER, SegmentHeader};
use crate::topic_log::LogError;

impl SegmentLog {
    /// Begins a new segment after one with a lost end.
    pub(super) fn roll_after_loss(&self) -> Result<(), LogError> {
        self.with_writer(|log, writer| {
            let end = log.shared.lock().end;
            // The time differs, so that this header differs from that of a damaged file of the same
            // name.
            log.roll(writer, end, writer.reserved, writer.newest_unix_ms + 1)
        })
    }

    /// The end of the newest file.
    pub(super) fn log_end(&self, next: Seq) -> io::Result<Option<LogEnd>> {
        let (path, bytes, end) = {
            let shared = self.shared.lock();
            let Some(last) = shared.segments.back() else { return Ok(None) };
            (last.path.clone(), last.bytes, shared.end)
        };
        let mut header = [0; SEGMENT_HEADER];
        let read = self.options.disk.open(&path)?.read_at(&mut header, 0)?;
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let next = next.max(end);
        // With a damaged header the file cannot be identified.
        let header = SegmentHeader::checksum(&header[..read]);
        Ok(header.map(|header| LogEnd { file, header, bytes, end, next }))
    }
}
