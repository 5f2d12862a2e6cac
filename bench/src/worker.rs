//! A worker's connection: reads lines, and writes what they are answered with.

use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;

use anyhow::{Context, bail, ensure};
use memchr::memchr_iter;

use crate::connection;
use crate::wire::{Heard, Worker};

/// Bytes that are read at once, and the longest line.
const READ_BYTES: usize = 256 * 1024;

/// A worker that is connected.
pub(crate) struct Connected {
    socket: TcpStream,
    worker: Box<dyn Worker>,
    /// What was read; the beginning of a line whose end has not come is kept.
    heard: Vec<u8>,
    filled: usize,
    /// What is to be written, and how much of it is.
    say: Vec<u8>,
    said: usize,
}

impl Connected {
    pub(crate) fn new(socket: TcpStream, worker: Box<dyn Worker>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let heard = vec![0; READ_BYTES];
        Ok(Self { socket, worker, heard, filled: 0, say: Vec::new(), said: 0 })
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Asks for tasks that nobody has asked for, and returns for how many.
    pub(crate) fn ask(&mut self, unasked: u64) -> u64 {
        self.worker.ask(unasked, &mut self.say)
    }

    /// Whether everything is written that was to be said.
    pub(crate) fn is_idle(&self) -> bool {
        self.say.is_empty()
    }

    /// Writes what the socket takes of what is to be said.
    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        let written = connection::write_some(&mut self.socket, &self.say[self.said..]);
        self.said += written.context("a worker")?;
        if self.said == self.say.len() {
            self.say.clear();
            self.said = 0;
        }
        Ok(())
    }

    /// Reads everything that is there, and tells what the lines are.
    pub(crate) fn hear(
        &mut self,
        mut tell: impl FnMut(Heard<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        loop {
            let room = self.heard.len() - self.filled;
            match self.socket.read(&mut self.heard[self.filled..]) {
                Ok(0) => bail!("the broker closed a worker's connection"),
                Ok(bytes) => {
                    self.filled += bytes;
                    self.take_lines(&mut tell)?;
                    if bytes < room {
                        // That was all; what comes now is reported anew.
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("a worker"),
            }
        }
    }

    fn take_lines(
        &mut self,
        tell: &mut impl FnMut(Heard<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut start = 0;
        for end in memchr_iter(b'\n', &self.heard[..self.filled]) {
            let line = &self.heard[start..end];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            tell(self.worker.hear(line, &mut self.say)?)?;
            start = end + 1;
        }
        self.heard.copy_within(start..self.filled, 0);
        self.filled -= start;
        ensure!(self.filled < self.heard.len(), "the broker sends a worker a line without an end");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Repeats every line.
    struct Echo;

    impl Worker for Echo {
        fn hear<'a>(&mut self, line: &'a [u8], say: &mut Vec<u8>) -> anyhow::Result<Heard<'a>> {
            say.extend_from_slice(line);
            say.push(b'\n');
            Ok(Heard::Task(line))
        }
    }

    fn connected() -> (Connected, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Connected::new(socket, Box::new(Echo)).unwrap(), listener.accept().unwrap().0)
    }

    #[test]
    fn lines_are_taken_however_they_are_split_and_answered_in_order() {
        let stream = b"one\r\n\r\ntwo\nthree\r\n";
        for split in 0..=stream.len() {
            let (mut worker, mut broker) = connected();
            let mut lines = Vec::new();
            for piece in [&stream[..split], &stream[split..]] {
                worker.heard[worker.filled..][..piece.len()].copy_from_slice(piece);
                worker.filled += piece.len();
                let mut tell = |heard: Heard<'_>| {
                    let Heard::Task(line) = heard else { bail!("{heard:?}") };
                    lines.push(line.to_vec());
                    Ok(())
                };
                worker.take_lines(&mut tell).unwrap();
                worker.flush().unwrap();
            }
            assert_eq!(lines, [&b"one"[..], b"", b"two", b"three"], "split at {split}");
            drop(worker);
            let mut answered = Vec::new();
            broker.read_to_end(&mut answered).unwrap();
            assert_eq!(answered, b"one\n\ntwo\nthree\n", "split at {split}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_told_and_so_is_the_end_of_the_connection() {
        let (mut worker, _broker) = connected();
        worker.heard.fill(b'x');
        worker.filled = worker.heard.len();
        let told = worker.take_lines(&mut |_| Ok(())).unwrap_err().to_string();
        assert!(told.contains("without an end"), "{told}");
        let (mut worker, broker) = connected();
        drop(broker);
        worker.socket.set_nonblocking(false).unwrap();
        let told = worker.hear(|_| Ok(())).unwrap_err().to_string();
        assert!(told.contains("closed a worker's connection"), "{told}");
    }
}
