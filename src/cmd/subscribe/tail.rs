//! What a program prints: passed on as it comes, and the end of it kept for whoever asks why it failed.

#![expect(clippy::disallowed_methods, reason = "what is printed is passed on by a task of its own")]

use std::{
    io::{self, PipeReader, PipeWriter, Write, pipe},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{io::AsyncReadExt, net::unix::pipe::Receiver, task::JoinHandle, time::timeout};

use crate::output::printable;

/// Bytes that are kept of what is printed.
const TAIL_BYTES: usize = 1 << 10;

/// Characters of it in a reason, of which the protocol takes 512 bytes.
const REASON_CHARS: usize = 300;
const REASON_BYTES: usize = 440;

/// How long the output is waited for when the program has ended: what it has started may have it open still.
const LAST_OUTPUT_MAX: Duration = Duration::from_millis(200);

/// The output of one program.
#[derive(Debug)]
pub(super) struct Tail {
    bytes: Arc<Mutex<Vec<u8>>>,
    streams: Vec<JoinHandle<()>>,
}

impl Tail {
    /// Two ends for a program, one for its standard output and one for its errors.
    pub(super) fn new() -> io::Result<(Self, [PipeWriter; 2])> {
        let (out, program_out) = pipe()?;
        let (errors, program_errors) = pipe()?;
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let streams = vec![
            tokio::spawn(pass_on(receiver(out)?, io::stdout(), Arc::clone(&bytes))),
            tokio::spawn(pass_on(receiver(errors)?, io::stderr(), Arc::clone(&bytes))),
        ];
        Ok((Self { bytes, streams }, [program_out, program_errors]))
    }

    /// The end of what was printed, as a part of one word; to be asked when the program has ended.
    pub(super) async fn last_words(self) -> String {
        for stream in self.streams {
            // Whoever still has it goes on printing.
            let _ = timeout(LAST_OUTPUT_MAX, stream).await;
        }
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        word(&String::from_utf8_lossy(&bytes))
    }
}

fn receiver(reader: PipeReader) -> io::Result<Receiver> {
    Receiver::from_owned_fd(OwnedFd::from(reader))
}

async fn pass_on(mut from: Receiver, mut to: impl Write, tail: Arc<Mutex<Vec<u8>>>) {
    let mut chunk = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut chunk).await {
        let chunk = &chunk[..count];
        {
            let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
            tail.extend_from_slice(chunk);
            let surplus = tail.len().saturating_sub(TAIL_BYTES);
            tail.drain(..surplus);
        }
        if to.write_all(chunk).and_then(|()| to.flush()).is_err() {
            // Nobody reads ours: the program hears that, as it would if it had been its own.
            return;
        }
    }
}

/// The last characters of a text, as a word that adds nothing to a line but itself.
fn word(text: &str) -> String {
    // The end counts, and this is more than enough to fill a reason.
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
    fn what_was_printed_last_is_one_word() {
        assert_eq!(word("one\n\n  two: it's\tbroken\x1b[31m\n"), "one_two:_it's_broken\\u{1b}[31m");
        assert_eq!(word(" \n"), "");
        let long = word(&format!("{}the end", "ü ".repeat(2_000)));
        assert!(long.ends_with("_the_end") && long.len() <= REASON_BYTES, "{long}");
        let controls = word(&"\u{202e}".repeat(2_000));
        assert!(controls.len() <= REASON_BYTES && controls.is_ascii(), "{controls}");
    }
}
