//! Reads a log from one line on, line by line.

use std::io;

use tidings_protocol::Seq;

use crate::topic_log::{LogError, LogRead, TopicLog};

/// Bytes that are read at once; more if a batch is longer. Small enough not to evict the reader's
/// data from the processor's caches.
const READ_BYTES: usize = 2 << 20;

/// Longest batch of a log, with its header.
const BATCH_BYTES_MAX: usize = (1 << 32) + 64;

/// Passes every line of a log from `from` on to `take`, with its number.
pub fn read_lines(
    log: &dyn TopicLog,
    mut from: Seq,
    mut take: impl FnMut(Seq, io::Result<&str>) -> io::Result<()>,
) -> io::Result<()> {
    // A short log needs a buffer of its own length only.
    let bytes = usize::try_from(log.bounds().bytes).unwrap_or(READ_BYTES);
    let mut buffer = vec![0; bytes.clamp(1, READ_BYTES)];
    let mut at = None;
    loop {
        let found = match log.read(from, at, None, &mut buffer) {
            Err(LogError::Io { source, .. })
                if source.kind() == io::ErrorKind::InvalidInput
                    && buffer.len() < BATCH_BYTES_MAX =>
            {
                // All records of one input are one batch, of any length.
                buffer = vec![0; (buffer.len() * 2).min(BATCH_BYTES_MAX)];
                continue;
            }
            found => found.map_err(io::Error::other)?,
        };
        match found {
            LogRead::Lines { runs, end, at: next, .. } => {
                for run in runs {
                    let (mut seq, mut rest) = (run.first, &buffer[run.place]);
                    while !rest.is_empty() {
                        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
                        let line = std::str::from_utf8(&rest[..end]);
                        take(seq, line.map_err(invalid))?;
                        (seq, rest) = (Seq(seq.0 + 1), rest.get(end + 1..).unwrap_or_default());
                    }
                }
                (from, at) = (end, Some(next));
            }
            // A start after a crash skips numbers.
            LogRead::Gap(_, to) => (from, at) = (Seq(to.0 + 1), None),
            LogRead::Lag(first, last) => {
                let text = format!("records {first} to {last} cannot be read");
                take(first, Err(invalid(text)))?;
                (from, at) = (Seq(last.0 + 1), None);
            }
            LogRead::Skip(_) | LogRead::End => return Ok(()),
        }
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
