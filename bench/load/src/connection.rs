//! Connections: their setup, and publishers and workers, which write and read lines.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use memchr::memchr_iter;

use crate::Target;
use crate::tls::{Stream, SubscriberSocket};
use crate::wire::{ConfirmationFormat, SetupStep};

/// Bytes that a publisher writes at once.
const WRITE_BYTES: usize = 64 * 1024;

/// Bytes per read, and the longest line.
const READ_BYTES: usize = 256 * 1024;

/// Time limit for each answer during the setup.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

impl Target<'_> {
    /// Connects, encrypted if the protocol has TLS settings, and runs the handshake and these steps
    /// one by one, each up to its answer. The socket blocks.
    pub fn open(&self, steps: impl IntoIterator<Item = SetupStep>) -> Result<Stream> {
        let socket = TcpStream::connect(self.address)
            .with_context(|| format!("cannot connect to {}", self.address))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let mut stream = Stream::new(socket, self.wire.tls())?;
        for step in self.wire.handshake().into_iter().chain(steps) {
            run_step(&mut stream, &step)?;
        }
        Ok(stream)
    }

    /// Creates the topic, if the broker needs that.
    pub fn create_topic(&self) -> Result<()> {
        let steps = self.wire.create_topic(self.topic);
        if !steps.is_empty() {
            self.open(steps)?;
        }
        Ok(())
    }

    /// Connects a subscriber. Its socket does not block.
    pub fn subscriber(&self) -> Result<SubscriberSocket> {
        let stream = self.open(self.wire.subscribe(self.topic)).context("a subscriber")?;
        Ok(SubscriberSocket::new(stream)?)
    }

    /// Connects a publisher, which writes `burst` messages of this payload at once. Its socket does
    /// not block.
    pub fn publisher(&self, payload: &[u8], burst: usize) -> Result<Publisher> {
        let stream = self.open(self.wire.publisher_setup()).context("a publisher")?;
        let messages = self.wire.publish(self.topic, payload).repeat(burst);
        Ok(Publisher {
            connection: LineConnection::new(stream, messages)?,
            rejections: self.wire.rejections(),
            format: self.wire.confirmations(),
            burst: u64::try_from(burst)?,
            published: 0,
            confirmed: 0,
        })
    }
}

/// Sends the bytes of a step and reads its answer.
fn run_step(stream: &mut Stream, step: &SetupStep) -> Result<()> {
    stream.write_all(&step.send).context("the broker closed the connection")?;
    stream.flush()?;
    let mut received = Vec::new();
    while !is_answered(&received, step.until_line)? {
        let mut buffer = [0; 4096];
        let bytes = match stream.read(&mut buffer) {
            Ok(0) => bail!("the broker closed the connection{}", last_received(&received)),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let last = last_received(&received);
                bail!("the broker did not answer within {ANSWER_TIMEOUT:?}{last}")
            }
            Err(error) => return Err(error).context("cannot read an answer"),
        };
        received.extend_from_slice(&buffer[..bytes]);
    }
    Ok(())
}

/// The last bytes that were received, for an error message.
fn last_received(received: &[u8]) -> String {
    let end = &received[received.len().saturating_sub(200)..];
    if end.is_empty() {
        return String::new();
    }
    format!("; the last bytes were {:?}", String::from_utf8_lossy(end))
}

/// Whether a complete line starts with this text.
fn is_answered(received: &[u8], start: &str) -> Result<bool> {
    for line in received.split_inclusive(|&byte| byte == b'\n') {
        if !line.ends_with(b"\n") {
            break;
        }
        check(line, &["-"])?;
        if line.starts_with(start.as_bytes()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// An error if the line starts with one of these texts.
fn check(line: &[u8], rejections: &[&str]) -> Result<()> {
    if rejections.iter().any(|start| line.starts_with(start.as_bytes())) {
        bail!("the broker rejects: {}", String::from_utf8_lossy(line).trim_end());
    }
    Ok(())
}

/// A window holds at least this number of writes, so that one is in flight while the next is
/// prepared.
const WRITES_PER_WINDOW: u64 = 4;

/// Messages per write: about 64 KiB, but the window must hold several writes, and one of each
/// publisher that shares it. The size is a little below 64 KiB, because messages differ in length
/// between protocols and their number must be the same for all.
pub(crate) fn burst(payload_bytes: usize, window: u64, publishers: u16) -> usize {
    let writes = u64::from(publishers).max(WRITES_PER_WINDOW);
    let fitting = usize::try_from(window / writes).unwrap_or(usize::MAX);
    (WRITE_BYTES / (payload_bytes + 20)).min(fitting).max(1)
}

/// A connection that reads lines, and writes its output as far as the socket accepts it.
pub(crate) struct LineConnection {
    stream: Stream,
    /// Bytes that were read; an incomplete line stays.
    input: Vec<u8>,
    filled: usize,
    output: Vec<u8>,
    /// Bytes of `output` that are written.
    written: usize,
    /// Whether the stream holds no written bytes.
    is_flushed: bool,
}

impl LineConnection {
    /// All of `output` counts as written.
    pub(crate) fn new(stream: Stream, output: Vec<u8>) -> Result<Self> {
        stream.socket().set_nonblocking(true)?;
        let (input, written) = (vec![0; READ_BYTES], output.len());
        Ok(Self { stream, input, filled: 0, output, written, is_flushed: true })
    }

    /// The socket, for the poller.
    pub(crate) fn socket(&self) -> &TcpStream {
        self.stream.socket()
    }

    /// Whether all output is written.
    pub(crate) fn is_idle(&self) -> bool {
        self.written == self.output.len() && self.is_flushed
    }

    /// The output, to be extended. What is written completely is removed.
    pub(crate) fn output_mut(&mut self) -> &mut Vec<u8> {
        if self.is_idle() {
            self.output.clear();
            self.written = 0;
        }
        &mut self.output
    }

    /// Writes what the socket accepts. Returns whether all output is written.
    pub(crate) fn flush(&mut self) -> Result<bool> {
        while !self.is_idle() {
            let result = match &self.output[self.written..] {
                [] => self.stream.flush().map(|()| self.is_flushed = true),
                rest => self.stream.write(rest).map(|bytes| {
                    self.written += bytes;
                    self.is_flushed = false;
                }),
            };
            match result {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot write"),
            }
        }
        Ok(true)
    }

    /// Reads all bytes that have arrived, and passes each complete line, without its end, and the
    /// output to `handle`.
    pub(crate) fn read_lines(
        &mut self,
        mut handle: impl FnMut(&[u8], &mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        loop {
            let free_bytes = self.input.len() - self.filled;
            let bytes = match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => bail!("the broker closed the connection"),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("cannot read"),
            };
            self.filled += bytes;
            let mut start = 0;
            for end in memchr_iter(b'\n', &self.input[..self.filled]) {
                let line = &self.input[start..end];
                handle(line.strip_suffix(b"\r").unwrap_or(line), &mut self.output)?;
                start = end + 1;
            }
            self.input.copy_within(start..self.filled, 0);
            self.filled -= start;
            ensure!(
                self.filled < self.input.len(),
                "the broker sent a line of more than {READ_BYTES} bytes"
            );
            if bytes < free_bytes && !self.stream.is_tls() {
                // The socket is empty; `epoll` reports later bytes.
                return Ok(());
            }
        }
    }
}

/// A publisher, which writes the same messages again and again.
pub struct Publisher {
    connection: LineConnection,
    rejections: &'static [&'static str],
    format: ConfirmationFormat,
    burst: u64,
    /// Events that were written completely or in part.
    pub(crate) published: u64,
    /// Publishes that are confirmed.
    pub(crate) confirmed: u64,
}

impl Publisher {
    /// The socket, for the poller.
    pub fn socket(&self) -> &TcpStream {
        self.connection.socket()
    }

    /// Whether the last write is complete.
    pub(crate) fn is_idle(&self) -> bool {
        self.connection.is_idle()
    }

    /// The messages, to be changed before the next write. Their length must stay.
    pub(crate) fn messages_mut(&mut self) -> &mut [u8] {
        debug_assert!(self.is_idle(), "messages change only between writes");
        &mut self.connection.output
    }

    /// Writes the messages, as far as the socket accepts them. Returns whether the write is
    /// complete.
    pub fn write(&mut self) -> Result<bool> {
        debug_assert!(self.is_idle(), "the last write is complete");
        self.published += self.burst;
        self.connection.written = 0;
        self.flush()
    }

    /// Continues the last write. Returns whether it is complete.
    pub(crate) fn flush(&mut self) -> Result<bool> {
        self.connection.flush().context("a publisher")
    }

    /// Reads all replies that have arrived. The rejection of a publish is an error.
    pub fn read_replies(&mut self) -> Result<()> {
        let Self { connection, rejections, format, confirmed, .. } = self;
        let count = |line: &[u8], _: &mut Vec<u8>| {
            check(line, rejections)?;
            count_confirmations(*format, line, confirmed)
        };
        connection.read_lines(count).context("a publisher")
    }
}

/// Counts what the line confirms.
fn count_confirmations(format: ConfirmationFormat, line: &[u8], confirmed: &mut u64) -> Result<()> {
    match format {
        ConfirmationFormat::None => {}
        ConfirmationFormat::Lines(start) => {
            *confirmed += u64::from(line.starts_with(start.as_bytes()));
        }
        ConfirmationFormat::Cumulative => {
            let line = str::from_utf8(line)?;
            let count = line.split_ascii_whitespace().last().map(str::parse);
            let Some(Ok(count)) = count else {
                bail!("expected a confirmation, received {line:?}")
            };
            *confirmed = count;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_answer_ends_with_its_line() {
        assert!(!is_answered(b"Connected.  (PID 1)\r\n+OK", "+OK").unwrap());
        assert!(is_answered(b"Connected.  (PID 1)\r\n+OK\r\n", "+OK").unwrap());
        let refused = is_answered(b"Connected.  (PID 1)\r\n-ERR limit no\r\n", "+OK").unwrap_err();
        assert_eq!(refused.to_string(), "the broker rejects: -ERR limit no");
    }

    #[test]
    fn a_write_is_bounded_by_bytes_and_by_the_window() {
        assert_eq!(burst(128, 10_000, 1), 442);
        assert_eq!(burst(128, 1_000, 1), 250);
        assert_eq!(burst(128, 10_000, 10), 442);
        assert_eq!(burst(128, 10_000, 100), 100);
        assert_eq!(burst(61_440, 1, 10), 1);
    }

    #[test]
    fn confirmations_are_counted_and_rejections_are_errors() {
        let confirmed = |format, lines: &[&str]| {
            let mut confirmed = 0;
            let mut count =
                |line: &&str| count_confirmations(format, line.as_bytes(), &mut confirmed);
            lines.iter().try_for_each(&mut count).map(|()| confirmed)
        };
        assert_eq!(
            confirmed(ConfirmationFormat::Cumulative, &["+OK 40 1", "+OK 47 8"]).unwrap(),
            8
        );
        assert!(confirmed(ConfirmationFormat::Cumulative, &["+OK"]).is_err(), "no number");
        let ids = ["$3", "1-1", "$3"];
        assert_eq!(confirmed(ConfirmationFormat::Lines("$"), &ids).unwrap(), 2);
        assert_eq!(confirmed(ConfirmationFormat::None, &ids).unwrap(), 0);
        let error = check(b"-ERR limit no space\r", &["-ERR "]).unwrap_err().to_string();
        assert_eq!(error, "the broker rejects: -ERR limit no space");
    }

    /// A connection that does not block, and the end of the broker.
    fn connected() -> (LineConnection, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = Stream::new(socket, None).unwrap();
        (LineConnection::new(stream, Vec::new()).unwrap(), listener.accept().unwrap().0)
    }

    /// Reads until there are `count` lines, and echoes each.
    fn echo(connection: &mut LineConnection, count: usize, lines: &mut Vec<Vec<u8>>) {
        while lines.len() < count {
            connection.output_mut();
            let add = |line: &[u8], output: &mut Vec<u8>| {
                lines.push(line.to_vec());
                output.extend_from_slice(&[line, b"\n"].concat());
                Ok(())
            };
            connection.read_lines(add).unwrap();
            connection.flush().unwrap();
        }
    }

    #[test]
    fn lines_are_complete_in_any_split() {
        let stream = b"one\r\n\r\ntwo\nthree\r\n";
        for split in 0..=stream.len() {
            let (mut connection, mut broker) = connected();
            let mut lines = Vec::new();
            broker.write_all(&stream[..split]).unwrap();
            let complete = memchr_iter(b'\n', &stream[..split]).count();
            echo(&mut connection, complete, &mut lines);
            broker.write_all(&stream[split..]).unwrap();
            echo(&mut connection, 4, &mut lines);
            assert_eq!(lines, [&b"one"[..], b"", b"two", b"three"], "split at {split}");
            drop(connection);
            let mut answered = Vec::new();
            broker.read_to_end(&mut answered).unwrap();
            assert_eq!(answered, b"one\n\ntwo\nthree\n", "split at {split}");
        }
    }

    #[test]
    fn an_endless_line_and_a_closed_connection_are_errors() {
        let (mut connection, mut broker) = connected();
        connection.input.fill(b'x');
        connection.filled = READ_BYTES - 1;
        broker.write_all(b"x").unwrap();
        let error = loop {
            if let Err(error) = connection.read_lines(|_, _| Ok(())) {
                break error.to_string();
            }
        };
        assert!(error.contains("a line of more than"), "{error}");
        let (mut connection, broker) = connected();
        drop(broker);
        connection.socket().set_nonblocking(false).unwrap();
        let error = connection.read_lines(|_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("closed the connection"), "{error}");
    }
}
