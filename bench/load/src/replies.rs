//! The replies to publishes: lines that arrive in pieces.

use anyhow::{Result, bail, ensure};
use memchr::memchr_iter;

/// Most bytes of an incomplete line.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Splits what a publisher receives into lines, and detects rejections.
#[derive(Debug)]
pub struct Replies {
    /// As in [`WireProtocol::rejections`](crate::WireProtocol::rejections).
    rejections: &'static [&'static str],
    /// The beginning of an incomplete line.
    partial: Vec<u8>,
}

impl Replies {
    /// No bytes have arrived.
    pub const fn new(rejections: &'static [&'static str]) -> Self {
        Self { rejections, partial: Vec::new() }
    }

    /// Passes each line that is complete now to `handle`, without `\n`. A rejection is an error.
    pub fn read(
        &mut self,
        received: &[u8],
        mut handle: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        if self.rejections.is_empty() {
            return Ok(());
        }
        let mut start = 0;
        for end in memchr_iter(b'\n', received) {
            let line = &received[start..end];
            start = end + 1;
            if self.partial.is_empty() {
                check(self.rejections, line)?;
                handle(line)?;
            } else {
                self.partial.extend_from_slice(line);
                check(self.rejections, &self.partial)?;
                handle(&self.partial)?;
                self.partial.clear();
            }
        }
        self.partial.extend_from_slice(&received[start..]);
        ensure!(
            self.partial.len() <= LINE_BYTES_MAX,
            "the broker sent a publisher a line of more than {LINE_BYTES_MAX} bytes"
        );
        Ok(())
    }
}

/// An error if the line rejects a publish.
fn check(rejections: &[&str], line: &[u8]) -> Result<()> {
    if rejections.iter().any(|start| line.starts_with(start.as_bytes())) {
        bail!("the broker rejects: {}", String::from_utf8_lossy(line).trim_end());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_complete_in_any_split() {
        let stream = b"+OK 1 1\r\n\r\n1764347434000-0\r\n";
        for split in 0..=stream.len() {
            let (mut replies, mut lines) = (Replies::new(&["-"]), Vec::new());
            for piece in [&stream[..split], &stream[split..]] {
                let add = |line: &[u8]| {
                    lines.push(line.to_vec());
                    Ok(())
                };
                replies.read(piece, add).unwrap();
            }
            assert_eq!(lines, [&b"+OK 1 1\r"[..], b"\r", b"1764347434000-0\r"], "split at {split}");
        }
    }

    #[test]
    fn an_endless_line_is_an_error() {
        let piece = vec![b'x'; LINE_BYTES_MAX];
        let mut replies = Replies::new(&["-"]);
        replies.read(&piece, |_| Ok(())).unwrap();
        let error = replies.read(&piece, |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("a line of more than"), "{error}");
    }

    #[test]
    fn replies_that_are_no_lines_are_ignored() {
        let mut replies = Replies::new(&[]);
        replies.read(b"-ERR\n\x00\x02", |_| bail!("a line")).unwrap();
        assert!(replies.partial.is_empty());
    }
}
