//! The output of a program: forwarded as it is written, with its end kept for the reason of a
//! failure.

#![expect(clippy::disallowed_methods, reason = "a task forwards the output")]

use std::io::{self, PipeReader, PipeWriter, pipe};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::writer::OutputWriter;
use crate::terminal::output::printable;

/// Bytes that are kept of each of the two streams.
const TAIL_BYTES: usize = 1 << 10;

/// The longest part of the output in a reason. The protocol allows 512 bytes for a reason.
const REASON_CHARS: usize = 300;
const REASON_BYTES: usize = 440;

/// How long to wait for more output after the program has ended: its children may still have the
/// pipe open.
const LAST_OUTPUT_MAX: Duration = Duration::from_millis(200);

/// The output of one program.
#[derive(Debug)]
pub(super) struct OutputTail {
    /// Standard output, then standard error.
    streams: [ForwardedStream; 2],
}

/// One stream of the program, on its way to ours.
#[derive(Debug)]
struct ForwardedStream {
    forwarder: JoinHandle<()>,
    /// It waits for the reader of our output, not for the program.
    is_writing: Arc<AtomicBool>,
    tail: Arc<Mutex<Vec<u8>>>,
}

impl OutputTail {
    /// The two ends for a program: standard output and standard error.
    pub(super) fn new(
        [out_to, errors_to]: &[OutputWriter; 2],
    ) -> io::Result<(Self, [PipeWriter; 2])> {
        let (out, program_out) = pipe()?;
        let (errors, program_errors) = pipe()?;
        let streams = [
            ForwardedStream::new(receiver(out)?, out_to.clone()),
            ForwardedStream::new(receiver(errors)?, errors_to.clone()),
        ];
        Ok((Self { streams }, [program_out, program_errors]))
    }

    /// Waits until the output of an ended program is forwarded. Cancel-safe.
    pub(super) async fn wait_until_forwarded(&mut self) {
        for stream in &mut self.streams {
            // A child that still has the pipe open may go on printing.
            while !stream.forwarder.is_finished()
                && timeout(LAST_OUTPUT_MAX, &mut stream.forwarder).await.is_err()
                && stream.is_writing.load(Ordering::Relaxed)
            {}
        }
    }

    /// The end of the output as part of one word: of standard error, and before it of standard
    /// output as far as there is room. The order between the two is unknown.
    pub(super) fn output_end(self) -> String {
        let ends = self.streams.each_ref().map(|stream| {
            let end = stream.tail.lock().unwrap_or_else(PoisonError::into_inner);
            String::from_utf8_lossy(&end).into_owned()
        });
        to_word(&ends.join("\n"))
    }
}

fn receiver(reader: PipeReader) -> io::Result<Receiver> {
    Receiver::from_owned_fd(OwnedFd::from(reader))
}

impl ForwardedStream {
    fn new(mut from: Receiver, to: OutputWriter) -> Self {
        let (is_writing, tail) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (writes, last_bytes) = (Arc::clone(&is_writing), Arc::clone(&tail));
        let forwarder = tokio::spawn(async move {
            let mut chunk = vec![0; 16 << 10];
            while let Ok(count @ 1..) = from.read(&mut chunk).await {
                append_to_tail(&last_bytes, &chunk[..count]);
                writes.store(true, Ordering::Relaxed);
                if to.write(chunk[..count].to_vec()).await.is_err() {
                    // Our output is closed, and the program receives the error as if it wrote there
                    // itself.
                    return;
                }
                writes.store(false, Ordering::Relaxed);
            }
        });
        Self { forwarder, is_writing, tail }
    }
}

fn append_to_tail(tail: &Mutex<Vec<u8>>, chunk: &[u8]) {
    let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
    tail.extend_from_slice(chunk);
    let surplus = tail.len().saturating_sub(TAIL_BYTES);
    tail.drain(..surplus);
}

/// The last characters of a text as one word without control characters.
fn to_word(text: &str) -> String {
    // A bound that is sure to fill a reason.
    let from = text.char_indices().rev().nth(REASON_CHARS - 1).map_or(0, |(at, _)| at);
    let mut word = printable(&text[from..], usize::MAX).replace(' ', "_");
    let surplus = word.len().saturating_sub(REASON_BYTES);
    word.drain(..word.ceil_char_boundary(surplus));
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_output_is_one_word() {
        assert_eq!(
            to_word("one\n\n  two: it's\tbroken\x1b[31m\n"),
            "one_two:_it's_broken\\u{1b}[31m"
        );
        assert_eq!(to_word(" \n"), "");
        let long = to_word(&format!("{}the end", "ü ".repeat(2_000)));
        assert!(long.ends_with("_the_end") && long.len() <= REASON_BYTES, "{long}");
        let controls = to_word(&"\u{202e}".repeat(2_000));
        assert!(controls.len() <= REASON_BYTES && controls.is_ascii(), "{controls}");
    }
}
