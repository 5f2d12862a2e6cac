//! The connection of a worker: it reads lines and writes acknowledgements.

use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;

use anyhow::{Context, Result, bail, ensure};
use memchr::memchr_iter;

use crate::connection;
use crate::wire::{QueueWorker, WorkerEvent};

/// Bytes per read, and the longest line.
const READ_BYTES: usize = 256 * 1024;

pub(crate) struct WorkerConnection {
    socket: TcpStream,
    worker: Box<dyn QueueWorker>,
    /// Bytes that were read; an incomplete line stays.
    input: Vec<u8>,
    filled: usize,
    /// Bytes to write, and how many of them are written.
    output: Vec<u8>,
    written: usize,
}

impl WorkerConnection {
    pub(crate) fn new(socket: TcpStream, worker: Box<dyn QueueWorker>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let input = vec![0; READ_BYTES];
        Ok(Self { socket, worker, input, filled: 0, output: Vec::new(), written: 0 })
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Requests tasks that no worker has requested, and returns how many.
    pub(crate) fn request_tasks(&mut self, unrequested: u64) -> u64 {
        self.worker.request_tasks(unrequested, &mut self.output)
    }

    /// Whether all output is written.
    pub(crate) fn is_idle(&self) -> bool {
        self.output.is_empty()
    }

    /// Writes the output that the socket accepts.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let written = connection::write_available(&mut self.socket, &self.output[self.written..]);
        self.written += written.context("a worker")?;
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
        }
        Ok(())
    }

    /// Reads all bytes that have arrived, and passes what each line means to `handle`.
    pub(crate) fn read_available(
        &mut self,
        mut handle: impl FnMut(WorkerEvent<'_>) -> Result<()>,
    ) -> Result<()> {
        loop {
            let free_bytes = self.input.len() - self.filled;
            match self.socket.read(&mut self.input[self.filled..]) {
                Ok(0) => bail!("the broker closed a worker's connection"),
                Ok(bytes) => {
                    self.filled += bytes;
                    self.handle_lines(&mut handle)?;
                    if bytes < free_bytes {
                        // The socket is empty; `epoll` reports later bytes.
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("a worker"),
            }
        }
    }

    fn handle_lines(
        &mut self,
        handle: &mut impl FnMut(WorkerEvent<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut start = 0;
        for end in memchr_iter(b'\n', &self.input[..self.filled]) {
            let line = &self.input[start..end];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            handle(self.worker.handle_line(line, &mut self.output)?)?;
            start = end + 1;
        }
        self.input.copy_within(start..self.filled, 0);
        self.filled -= start;
        ensure!(
            self.filled < self.input.len(),
            "the broker sent a worker a line of more than {READ_BYTES} bytes"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Repeats every line.
    struct Echo;

    impl QueueWorker for Echo {
        fn handle_line<'a>(
            &mut self,
            line: &'a [u8],
            output: &mut Vec<u8>,
        ) -> Result<WorkerEvent<'a>> {
            output.extend_from_slice(line);
            output.push(b'\n');
            Ok(WorkerEvent::Task(line))
        }
    }

    fn connected_worker() -> (WorkerConnection, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (WorkerConnection::new(socket, Box::new(Echo)).unwrap(), listener.accept().unwrap().0)
    }

    #[test]
    fn lines_are_answered_in_order_in_any_split() {
        let stream = b"one\r\n\r\ntwo\nthree\r\n";
        for split in 0..=stream.len() {
            let (mut worker, mut broker) = connected_worker();
            let mut lines = Vec::new();
            for piece in [&stream[..split], &stream[split..]] {
                worker.input[worker.filled..][..piece.len()].copy_from_slice(piece);
                worker.filled += piece.len();
                let mut handle = |event: WorkerEvent<'_>| {
                    let WorkerEvent::Task(line) = event else { bail!("{event:?}") };
                    lines.push(line.to_vec());
                    Ok(())
                };
                worker.handle_lines(&mut handle).unwrap();
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
    fn an_endless_line_and_a_closed_connection_are_errors() {
        let (mut worker, _broker) = connected_worker();
        worker.input.fill(b'x');
        worker.filled = worker.input.len();
        let error = worker.handle_lines(&mut |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("a line of more than"), "{error}");
        let (mut worker, broker) = connected_worker();
        drop(broker);
        worker.socket.set_nonblocking(false).unwrap();
        let error = worker.read_available(|_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("closed a worker's connection"), "{error}");
    }
}
