//! Connections: their setup, and repeated writes of the same messages.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustls::ClientConnection;

use crate::Target;
use crate::replies::Replies;
use crate::tls::{BlockingStream, SubscriberSocket};
use crate::wire::{ReadUntil, SetupStep};

/// Bytes that a publisher writes at once.
const WRITE_BYTES: usize = 64 * 1024;

/// Time limit for each answer during the setup.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Connects and runs the steps one by one, each up to its answer. The socket blocks.
pub fn open(address: SocketAddr, steps: impl IntoIterator<Item = SetupStep>) -> Result<TcpStream> {
    let mut socket = connect(address)?;
    for step in steps {
        run_step(&mut socket, &step)?;
    }
    Ok(socket)
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let socket =
        TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    Ok(socket)
}

/// Like [`open`], with TLS if the protocol has it.
fn open_to_target(
    target: &Target<'_>,
    address: SocketAddr,
    steps: impl IntoIterator<Item = SetupStep>,
) -> Result<BlockingStream> {
    let mut link = BlockingStream::new(connect(address)?, target.wire.tls())?;
    for step in steps {
        run_step(&mut link, &step)?;
    }
    Ok(link)
}

/// Sends the bytes of a step and reads its answer.
pub fn run_step(socket: &mut (impl Read + Write), step: &SetupStep) -> Result<()> {
    socket.write_all(&step.send).context("the broker closed the connection")?;
    socket.flush()?;
    let mut received = Vec::new();
    while !is_answered(&received, step.until)? {
        let mut buffer = [0; 4096];
        let bytes = match socket.read(&mut buffer) {
            Ok(0) => bail!("the broker closed the connection{}", last_received(&received)),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                bail!(
                    "the broker did not answer within {ANSWER_TIMEOUT:?}{}",
                    last_received(&received)
                )
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

/// Whether the answer is complete.
fn is_answered(received: &[u8], until: ReadUntil) -> Result<bool> {
    match until {
        ReadUntil::Nothing => Ok(true),
        ReadUntil::Bytes(bytes) => Ok(received.len() >= bytes),
        ReadUntil::Line(start) => {
            for line in received.split_inclusive(|&byte| byte == b'\n') {
                if !line.ends_with(b"\n") {
                    break;
                }
                if line.starts_with(b"-") {
                    bail!("the broker rejects: {}", String::from_utf8_lossy(line).trim_end());
                }
                if line.starts_with(start.as_bytes()) {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

/// Creates the topic, if the broker needs that.
pub fn create_topic(target: &Target<'_>) -> Result<()> {
    let steps = target.wire.create_topic(target.topic);
    if !steps.is_empty() {
        open_to_target(target, target.address, target.wire.handshake().into_iter().chain(steps))?;
    }
    Ok(())
}

/// Connects a subscriber. Its socket does not block.
pub fn subscriber(target: &Target<'_>) -> Result<SubscriberSocket> {
    let wire = target.wire;
    let steps = wire.handshake().into_iter().chain(wire.subscribe(target.topic));
    let link = open_to_target(target, target.address, steps).context("a subscriber")?;
    Ok(SubscriberSocket::new(link)?)
}

/// Connects a publisher, which writes `burst` messages at once. Its socket does not block.
pub fn publisher(target: &Target<'_>, burst: usize) -> Result<PublisherSocket> {
    let steps = target.wire.handshake().into_iter().chain(target.wire.publisher_setup());
    let address = target.wire.publisher_address(target.address);
    let (socket, session) =
        open_to_target(target, address, steps).context("a publisher")?.into_parts();
    let replies = Replies::new(target.wire.rejections());
    let mut outlet = PublisherSocket::new(socket, target.message().repeat(burst), replies)?;
    outlet.session = session;
    Ok(outlet)
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

/// A socket that writes the same messages again and again.
pub struct PublisherSocket {
    socket: TcpStream,
    messages: Vec<u8>,
    /// Bytes of `messages` that are written; all of them: the publisher is idle.
    written: usize,
    replies: Replies,
    /// The TLS session. Bytes that it has accepted count as written.
    session: Option<Box<ClientConnection>>,
}

impl PublisherSocket {
    pub(crate) fn new(socket: TcpStream, piece: Vec<u8>, replies: Replies) -> Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket, written: piece.len(), messages: piece, replies, session: None })
    }

    /// The socket, for the poller.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether the last write is complete.
    pub(crate) fn is_idle(&self) -> bool {
        let is_sent = self.session.as_ref().is_none_or(|session| !session.wants_write());
        self.written == self.messages.len() && is_sent
    }

    /// Starts the next write of the messages.
    pub fn start_write(&mut self) {
        debug_assert!(self.is_idle(), "the last write is complete");
        self.written = 0;
    }

    /// The messages, to be changed before the next write. Their length must stay.
    pub(crate) fn messages_mut(&mut self) -> &mut [u8] {
        debug_assert!(self.is_idle(), "messages change only between writes");
        &mut self.messages
    }

    /// Writes what the socket accepts. Returns whether the write is complete.
    pub fn flush(&mut self) -> io::Result<bool> {
        let Some(session) = &mut self.session else {
            self.written += write_available(&mut self.socket, &self.messages[self.written..])?;
            return Ok(self.is_idle());
        };
        loop {
            while session.wants_write() {
                match session.write_tls(&mut self.socket) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            if self.written == self.messages.len() {
                return Ok(true);
            }
            self.written += session.writer().write(&self.messages[self.written..])?;
        }
    }

    /// Reads all bytes that have arrived, and passes each complete line to `handle`. The rejection
    /// of a publish is an error.
    pub fn read_replies(
        &mut self,
        buffer: &mut [u8],
        mut handle: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        loop {
            if let Some(session) = &mut self.session {
                match session.read_tls(&mut self.socket) {
                    Ok(0) => bail!("the broker closed a publisher's connection"),
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                    Err(error) => return Err(error).context("a publisher"),
                }
                session.process_new_packets()?;
                while let Ok(bytes @ 1..) = session.reader().read(buffer) {
                    self.replies.read(&buffer[..bytes], &mut handle)?;
                }
                continue;
            }
            match self.socket.read(buffer) {
                Ok(0) => bail!("the broker closed a publisher's connection"),
                Ok(bytes) => {
                    self.replies.read(&buffer[..bytes], &mut handle)?;
                    if bytes < buffer.len() {
                        // The socket is empty; `epoll` reports later bytes.
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("a publisher"),
            }
        }
    }
}

/// Writes what the socket accepts, and returns the number of bytes.
pub(crate) fn write_available(socket: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match socket.write(&bytes[written..]) {
            Ok(more) => written += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_with_its_line() {
        let until = ReadUntil::Line("+OK");
        assert!(!is_answered(b"Connected.  (PID 1)\r\n+OK", until).unwrap());
        assert!(is_answered(b"Connected.  (PID 1)\r\n+OK\r\n", until).unwrap());
        let refused = is_answered(b"Connected.  (PID 1)\r\n-ERR limit no\r\n", until).unwrap_err();
        assert_eq!(refused.to_string(), "the broker rejects: -ERR limit no");
        assert!(is_answered(b"abcd", ReadUntil::Bytes(4)).unwrap());
        assert!(!is_answered(b"abc", ReadUntil::Bytes(4)).unwrap());
    }

    #[test]
    fn a_write_is_bounded_by_bytes_and_by_the_window() {
        assert_eq!(burst(128, 10_000, 1), 442);
        assert_eq!(burst(128, 1_000, 1), 250);
        assert_eq!(burst(128, 10_000, 10), 442);
        assert_eq!(burst(128, 10_000, 100), 100);
        assert_eq!(burst(61_440, 1, 10), 1);
    }
}
