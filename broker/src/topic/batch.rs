//! A batch: events that were appended together, encoded as the bytes that readers receive.

use bytes::Bytes;
use memchr::memchr_iter;
use tidings_protocol::Seq;

use crate::mailbox::ConnId;

/// Consecutive events, encoded once. All readers share the bytes.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    /// The seq of the first event.
    pub(crate) first: Seq,
    /// Number of events; at least 1.
    pub(crate) count: u64,
    /// The connection that sent them. As a peer, it does not receive them.
    pub(crate) origin: ConnId,
    /// Append time; never less than that of the batch before.
    pub(crate) unix_ms: i64,
    /// `MSG <topic> <seq> <payload>` CRLF for each event.
    pub(crate) wire: Bytes,
    /// `<payload>` CRLF for each event, if a reader of bare lines existed at the append.
    pub(crate) bare: Bytes,
    /// At least one event has an `id=`.
    pub(crate) identified: bool,
    /// The batch can never become durable, and is not shown any more.
    pub(crate) lost: bool,
}

impl Batch {
    /// The seq after the last event.
    pub(crate) fn end(&self) -> Seq {
        Seq(self.first.0 + self.count)
    }

    /// Bytes that the batch needs when blocks are exactly filled.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.wire.len() + self.bare.len()
    }
}

/// The lines after the first `lines` of `encoded`; empty if it has no more.
///
/// A payload contains no line end, so line ends separate events. This search runs once per
/// subscription that begins in the middle of a batch, not per event.
pub(crate) fn skip_lines(encoded: &Bytes, lines: u64) -> Bytes {
    if lines == 0 {
        return encoded.clone();
    }
    let nth = usize::try_from(lines - 1).unwrap_or(usize::MAX);
    match memchr_iter(b'\n', encoded).nth(nth) {
        Some(end) => encoded.slice(end + 1..),
        None => Bytes::new(),
    }
}

/// The first `lines` lines of `encoded`; all of it if it has no more.
pub(crate) fn first_lines(mut encoded: Bytes, lines: u64) -> Bytes {
    let rest = skip_lines(&encoded, lines);
    encoded.truncate(encoded.len() - rest.len());
    encoded
}

pub(crate) fn count_lines(encoded: &[u8]) -> u64 {
    memchr_iter(b'\n', encoded).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipping_lines_stops_at_line_ends() {
        let encoded = Bytes::from_static(b"a\r\n\r\nbc\r\n");
        assert_eq!(skip_lines(&encoded, 0), encoded);
        assert_eq!(&skip_lines(&encoded, 1)[..], b"\r\nbc\r\n");
        assert_eq!(&skip_lines(&encoded, 2)[..], b"bc\r\n");
        assert_eq!(&skip_lines(&encoded, 3)[..], b"");
        assert_eq!(&skip_lines(&encoded, 4)[..], b"");
        for lines in 0..5 {
            let rest = skip_lines(&encoded, lines);
            let parts = [first_lines(encoded.clone(), lines), rest].concat();
            assert_eq!(parts, encoded);
        }
        assert_eq!(count_lines(&encoded), 3);
    }
}
