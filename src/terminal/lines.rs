//! Standard input as numbered lines, read in chunks.

#![expect(clippy::disallowed_methods, reason = "a thread reads standard input")]

use std::io::{self, Read};

use tidings_protocol::{LINE_BYTES_MAX, LineDecoder, LineItem, PAYLOAD_BYTES_MAX};
use tokio::sync::mpsc;

/// The size of a chunk, and the number of chunks that may wait.
const CHUNK_BYTES: usize = 64 * 1024;
const CHUNKS_MAX: usize = 4;

/// Reads standard input on a thread, which may block in a read until the process ends. After an
/// error it sends nothing more.
pub(crate) fn read_input() -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let chunk = match input.read(&mut buffer) {
                Ok(0) => return,
                Ok(n) => Ok(buffer[..n].to_vec()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = chunk.is_err();
            if sender.blocking_send(chunk).is_err() || failed {
                return;
            }
        }
    });
    receiver
}

/// A line with its number, or the reason why it cannot be an event.
pub(crate) type NumberedLine<'a> = (u64, Result<&'a [u8], String>);

/// Numbers the lines of a stream, which comes in chunks.
#[derive(Debug)]
pub(crate) struct NumberedLines {
    decoder: LineDecoder,
    number: u64,
    /// The present line begins with 0x04, which has a meaning on the wire but not in a file.
    starts_with_eot: bool,
    /// The chunks that were pushed, and how many bytes of them were read.
    unread: Vec<u8>,
    done: usize,
}

impl NumberedLines {
    pub(crate) fn new() -> Self {
        let decoder = LineDecoder::new(LINE_BYTES_MAX);
        Self { decoder, number: 0, starts_with_eot: false, unread: Vec::new(), done: 0 }
    }

    pub(crate) fn push(&mut self, chunk: &[u8]) {
        self.unread.drain(..self.done);
        self.done = 0;
        self.unread.extend_from_slice(chunk);
    }

    /// The next line that has a line end.
    pub(crate) fn next_line(&mut self) -> Option<NumberedLine<'_>> {
        loop {
            let (used, item) = self.decoder.next(&self.unread[self.done..]);
            self.done += used;
            let line = match item? {
                LineItem::EndOfTransmission => {
                    self.starts_with_eot = true;
                    continue;
                }
                LineItem::Line(line) => Ok(line),
                LineItem::TooLong { .. } => Err(too_long()),
            };
            self.number += 1;
            let has_control = std::mem::take(&mut self.starts_with_eot);
            return Some((self.number, if has_control { Err(control_byte()) } else { line }));
        }
    }

    /// The last line at the end of the stream, if it has no line end.
    pub(crate) fn finish(&mut self) -> Option<NumberedLine<'_>> {
        let line = match self.decoder.finish(&self.unread[self.done..]) {
            _ if self.starts_with_eot => Err(control_byte()),
            Some(LineItem::Line(line)) => Ok(line),
            _ => return None,
        };
        Some((self.number + 1, line))
    }
}

/// An event may be a little shorter than a line, so the smaller limit is named for both.
fn too_long() -> String {
    format!("longer than {PAYLOAD_BYTES_MAX} bytes")
}

fn control_byte() -> String {
    "begins with the control byte 0x04".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut shown) = (NumberedLines::new(), Vec::new());
        let show = |(number, line): NumberedLine<'_>| match line {
            Ok(line) => format!("{number} {}", String::from_utf8_lossy(line)),
            Err(reason) => format!("{number}! {reason}"),
        };
        for chunk in chunks {
            lines.push(chunk);
            while let Some(line) = lines.next_line() {
                shown.push(show(line));
            }
        }
        shown.extend(lines.finish().map(show));
        shown
    }

    #[test]
    fn lines_are_numbered_in_any_split() {
        let whole = b"one\r\n\ntwo\nthree";
        for split in 0..whole.len() {
            let (a, b) = whole.split_at(split);
            assert_eq!(lines(&[a, b]), ["1 one", "2 ", "3 two", "4 three"], "{split}");
        }
    }

    #[test]
    fn a_line_that_begins_with_ctrl_d_is_rejected() {
        let refused = format!("1! {}", control_byte());
        assert_eq!(lines(&[b"\x04\x04rest\nnext\n"]), [refused.as_str(), "2 next"]);
        assert_eq!(lines(&[b"\x04rest"]), [refused.as_str()]);
        assert_eq!(lines(&[b"\x04"]), [refused.as_str()]);
    }

    #[test]
    fn a_line_over_the_limit_is_rejected_once() {
        let long = vec![b'x'; LINE_BYTES_MAX + 10];
        let shown = lines(&[b"a\n", &long, &long, b"\nb\n"]);
        assert_eq!(shown, ["1 a", &format!("2! {}", too_long()), "3 b"]);
    }
}
