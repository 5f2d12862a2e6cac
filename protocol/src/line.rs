//! Splits a stream of bytes into lines, however it arrives, without copying.

use memchr::memchr;

/// Ctrl-D: as the first byte of a line it ends the connection (`[L5]`).
const END_OF_TRANSMISSION: u8 = 0x04;

/// The next item of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineItem<'a> {
    /// A line without its LF or CRLF; may be empty.
    Line(&'a [u8]),
    /// A line over the limit, reported once; the decoder skips the rest of it up to its LF.
    TooLong {
        /// The beginning of the line: always one byte more than the limit, however it arrived.
        start: &'a [u8],
    },
    /// The byte 0x04 where a line would begin.
    EndOfTransmission,
}

/// Finds the lines in a buffer that grows at its end and is consumed from its beginning.
///
/// ```text
///            next() -> (used, Some(item))        next() -> (used, None)
/// buffer:  [consumed | line LF | more ....]    [consumed | begin of a line ..] -> read more
/// ```
///
/// The caller passes all bytes that are not consumed, drops as many as `used` (also without an
/// item: the rest of a skipped line), and reads more if there is none. The decoder
/// remembers how far it has searched, so a line that arrives in many reads is searched once. Bytes
/// that were passed and not consumed must therefore be passed again unchanged.
#[derive(Debug)]
pub struct LineDecoder {
    line_bytes_max: usize,
    /// Bytes at the beginning of the unread ones that are known to contain no LF. Invariant:
    /// `searched <= line_bytes_max + 1`.
    searched: usize,
    /// Inside a line that was reported as too long.
    skipping: bool,
}

impl LineDecoder {
    /// A decoder for lines of up to `line_bytes_max` bytes, not counting LF or CRLF.
    pub fn new(line_bytes_max: usize) -> Self {
        LineDecoder { line_bytes_max, searched: 0, skipping: false }
    }

    /// Looks for the next item in the unread bytes: how many of them are consumed, and the item.
    ///
    /// Without an item, more bytes are needed. Each byte is searched once.
    pub fn next<'a>(&mut self, unread: &'a [u8]) -> (usize, Option<LineItem<'a>>) {
        let mut consumed = 0;
        if self.skipping {
            let Some(lf) = memchr(b'\n', unread) else {
                return (unread.len(), None);
            };
            consumed = lf + 1;
            self.skipping = false;
        }
        let (_, unread) = unread.split_at(consumed);
        if self.searched == 0 && unread.first() == Some(&END_OF_TRANSMISSION) {
            return (consumed + 1, Some(LineItem::EndOfTransmission));
        }
        let (used, item) = self.next_line(unread);
        (consumed + used, item)
    }

    fn next_line<'a>(&mut self, unread: &'a [u8]) -> (usize, Option<LineItem<'a>>) {
        // The longest line ends at most this far in: its bytes, then CR LF.
        let (near, _) = unread.split_at(unread.len().min(self.line_bytes_max + 2));
        let unsearched = near.get(self.searched..).unwrap_or_default();
        if let Some(found) = memchr(b'\n', unsearched) {
            let (line, _) = near.split_at(self.searched + found);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.len() <= self.line_bytes_max {
                let used = self.searched + found + 1;
                self.searched = 0;
                return (used, Some(LineItem::Line(line)));
            }
        } else if self.may_still_fit(near) {
            self.searched = near.len();
            return (0, None);
        }
        self.searched = 0;
        self.skipping = true;
        let (start, _) = near.split_at(self.line_bytes_max + 1);
        (start.len(), Some(LineItem::TooLong { start }))
    }

    /// Whether a line without an LF so far can still end within the limit: one byte over it may be
    /// the CR of its CRLF.
    fn may_still_fit(&self, line: &[u8]) -> bool {
        line.len() <= self.line_bytes_max
            || (line.len() == self.line_bytes_max + 1 && line.ends_with(b"\r"))
    }

    /// At an orderly end of input: the last line, if it has no line end (`[L4]`).
    ///
    /// To be called with what [`next`](Self::next) left unconsumed when it had no item. A CR at
    /// the very end is the beginning of a CRLF, not part of the line.
    pub fn finish<'a>(&mut self, unread: &'a [u8]) -> Option<LineItem<'a>> {
        self.searched = 0;
        if std::mem::take(&mut self.skipping) {
            return None;
        }
        let line = unread.strip_suffix(b"\r").unwrap_or(unread);
        (!line.is_empty()).then_some(LineItem::Line(line))
    }

    /// How many of the unread bytes were passed before, and contain no LF.
    pub(crate) fn searched(&self) -> usize {
        self.searched
    }

    /// Whether the stream is in the middle of a line.
    ///
    /// May change with every call of [`next`](Self::next).
    pub fn is_mid_line(&self) -> bool {
        self.searched > 0 || self.skipping
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 8;

    /// All items of a stream that arrives in the given pieces, as text that outlives the buffer.
    fn items<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let mut decoder = LineDecoder::new(MAX);
        let mut buffer = Vec::new();
        let mut items = Vec::new();
        for piece in pieces {
            buffer.extend_from_slice(piece);
            loop {
                let (used, item) = decoder.next(&buffer);
                items.extend(item.map(|item| format!("{item:?}")));
                let done = item.is_none();
                buffer.drain(..used);
                if done {
                    break;
                }
            }
            assert!(buffer.len() <= MAX + 1, "the decoder holds more than a line");
            assert_eq!(decoder.is_mid_line(), !buffer.is_empty() || decoder.skipping);
        }
        items.extend(decoder.finish(&buffer).map(|item| format!("{item:?}")));
        items
    }

    #[track_caller]
    fn check(stream: &[u8], expected: &[LineItem<'_>]) {
        let expected: Vec<_> = expected.iter().map(|item| format!("{item:?}")).collect();
        assert_eq!(items([stream]), expected, "in one read");
        assert_eq!(items(stream.chunks(1)), expected, "byte by byte");
    }

    // PROTOCOL: L1
    #[test]
    fn lines_end_in_lf_or_crlf() {
        check(
            b"a\nb\r\n\n\r\nc",
            &[
                LineItem::Line(b"a"),
                LineItem::Line(b"b"),
                LineItem::Line(b""),
                LineItem::Line(b""),
                LineItem::Line(b"c"),
            ],
        );
    }

    // PROTOCOL: L1
    #[test]
    fn a_cr_elsewhere_belongs_to_the_line() {
        check(
            b"a\rb\nc\r\r\n\rd\n",
            &[LineItem::Line(b"a\rb"), LineItem::Line(b"c\r"), LineItem::Line(b"\rd")],
        );
    }

    // PROTOCOL: L8
    #[test]
    fn the_longest_line_and_one_more() {
        check(b"12345678\nx\n", &[LineItem::Line(b"12345678"), LineItem::Line(b"x")]);
        check(b"12345678\r\nx\n", &[LineItem::Line(b"12345678"), LineItem::Line(b"x")]);
        let too_long = LineItem::TooLong { start: b"123456789" };
        check(b"123456789\nx\n", &[too_long, LineItem::Line(b"x")]);
        check(b"123456789\r\nx\n", &[too_long, LineItem::Line(b"x")]);
        check(b"123456789..............\nx\n", &[too_long, LineItem::Line(b"x")]);
        check(
            b"12345678\r\r\nx\n",
            &[LineItem::TooLong { start: b"12345678\r" }, LineItem::Line(b"x")],
        );
    }

    // PROTOCOL: L4
    #[test]
    fn the_last_line_needs_no_end_unless_it_is_too_long() {
        check(b"12345678", &[LineItem::Line(b"12345678")]);
        check(b"12345678\r", &[LineItem::Line(b"12345678")]);
        check(b"123456789", &[LineItem::TooLong { start: b"123456789" }]);
        check(b"a\n", &[LineItem::Line(b"a")]);
    }

    // PROTOCOL: L5
    #[test]
    fn ctrl_d_counts_only_where_a_line_begins() {
        check(
            b"a\n\x04b\nc\x04\n",
            &[
                LineItem::Line(b"a"),
                LineItem::EndOfTransmission,
                LineItem::Line(b"b"),
                LineItem::Line(b"c\x04"),
            ],
        );
        let too_long = LineItem::TooLong { start: b"123456789" };
        check(b"123456789\x04\n\x04", &[too_long, LineItem::EndOfTransmission]);
    }

    proptest! {
        // PROTOCOL: L9
        #[test]
        fn any_split_gives_the_same_items(
            stream in proptest::collection::vec(
                prop_oneof![3 => Just(b'x'), 1 => Just(b'\n'), 1 => Just(b'\r'), 1 => Just(4_u8)],
                0..120,
            ),
            sizes in proptest::collection::vec(1_usize..20, 1..120),
        ) {
            let mut pieces = Vec::new();
            let mut rest = stream.as_slice();
            for size in sizes.iter().cycle() {
                if rest.is_empty() { break; }
                let (piece, left) = rest.split_at((*size).min(rest.len()));
                pieces.push(piece);
                rest = left;
            }
            prop_assert_eq!(items(pieces), items([stream.as_slice()]));
        }
    }
}
