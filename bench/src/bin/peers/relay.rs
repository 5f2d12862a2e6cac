//! The limits: programs that do the least that a broker must do, or less.
//!
//! - `relay` reads up to 64 KiB from a publisher, cuts at the last line end, and writes that buffer
//!   to every subscriber: the least work for a broker of lines.
//! - `naive` does so for each line by itself, as a simple script would.
//! - `blast` reads nothing and writes one buffer to every subscriber without end: the most that
//!   generator and kernel can handle.
//!
//! Each of them writes to a socket until it has accepted everything: the window of the generator is
//! smaller than the socket buffers.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use memchr::memrchr;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;

/// Bytes per read.
const READ_BYTES: usize = 64 * 1024;

/// Most sockets per wait.
const EVENTS_MAX: usize = 1024;

/// Token of the listening socket.
const LISTENER: u64 = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteUnit {
    /// All complete lines of a read.
    Read,
    Line,
}

/// Relays lines from publishers to the connections that sent `S`.
pub(crate) fn relay(listener: &TcpListener, unit: WriteUnit) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut state = RelayState { epoll, connections: Vec::new(), subscribers: Vec::new() };
    let mut events = Vec::with_capacity(EVENTS_MAX);
    loop {
        epoll::wait(&state.epoll, spare_capacity(&mut events), None)?;
        for event in events.drain(..) {
            match event.data.u64() {
                LISTENER => state.accept(listener)?,
                token => state.handle_readable(usize::try_from(token).expect("an index"), unit),
            }
        }
    }
}

/// An open connection.
struct Connection {
    socket: TcpStream,
    /// `None`: it has not sent its first line.
    is_publisher: Option<bool>,
    /// Received bytes. An incomplete line stays at the beginning.
    buffer: Vec<u8>,
    filled: usize,
}

/// All connections.
struct RelayState {
    epoll: OwnedFd,
    connections: Vec<Option<Connection>>,
    /// Indexes of subscribers.
    subscribers: Vec<usize>,
}

impl RelayState {
    fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        loop {
            let socket = match listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            socket.set_nodelay(true)?;
            let token = self.connections.iter().rposition(Option::is_none);
            let token = token.unwrap_or(self.connections.len());
            if token == self.connections.len() {
                self.connections.push(None);
            }
            let data = EventData::new_u64(u64::try_from(token).expect("an index"));
            epoll::add(&self.epoll, &socket, data, EventFlags::IN)?;
            self.connections[token] =
                Some(Connection { socket, is_publisher: None, buffer: Vec::new(), filled: 0 });
        }
    }

    /// Reads from a connection, or removes it if it has ended.
    fn handle_readable(&mut self, token: usize, unit: WriteUnit) {
        let Some(mut connection) = self.connections[token].take() else { return };
        match connection.read() {
            Ok(0) | Err(_) => {
                if let Some(at) = self.subscribers.iter().position(|&other| other == token) {
                    self.subscribers.swap_remove(at);
                }
                return;
            }
            Ok(_) if connection.is_publisher == Some(true) => {
                let end = memrchr(b'\n', &connection.buffer[..connection.filled]);
                if let Some(end) = end {
                    let lines = &connection.buffer[..=end];
                    match unit {
                        WriteUnit::Read => self.write(lines),
                        WriteUnit::Line => {
                            lines
                                .split_inclusive(|&b| b == b'\n')
                                .for_each(|line| self.write(line));
                        }
                    }
                    connection.buffer.copy_within(end + 1..connection.filled, 0);
                    connection.filled -= end + 1;
                }
            }
            Ok(_) => {
                // The first line is `S` or `P`, alone. It is echoed.
                let is_publisher = connection.buffer[0] == b'P';
                connection.is_publisher = Some(is_publisher);
                connection.filled = 0;
                if !is_publisher {
                    connection.buffer = vec![0; 16];
                    self.subscribers.push(token);
                }
                let greeting = if is_publisher { b"P\n" } else { b"S\n" };
                // A closed connection is noticed at the next read.
                let _ = connection.socket.write_all(greeting);
            }
        }
        self.connections[token] = Some(connection);
    }

    fn write(&self, bytes: &[u8]) {
        for &subscriber in &self.subscribers {
            if let Some(connection) = &self.connections[subscriber] {
                // A closed connection is noticed at the next read.
                let _ = (&connection.socket).write_all(bytes);
            }
        }
    }
}

impl Connection {
    fn read(&mut self) -> io::Result<usize> {
        let size = match self.is_publisher {
            Some(true) => READ_BYTES,
            _ => 16,
        };
        if self.buffer.len() < size {
            self.buffer.resize(size, 0);
        }
        let bytes = self.socket.read(&mut self.buffer[self.filled..])?;
        self.filled += bytes;
        Ok(bytes)
    }
}

/// Writes the same buffer to each subscriber without end.
pub(crate) fn blast(
    listener: &TcpListener,
    subscribers: usize,
    line_bytes: usize,
) -> io::Result<()> {
    let mut sockets = Vec::with_capacity(subscribers);
    while sockets.len() < subscribers {
        let (mut socket, _) = listener.accept()?;
        let mut greeting = [0; 2];
        // The first connection only tests whether this program listens.
        if socket.read_exact(&mut greeting).is_ok() {
            socket.write_all(&greeting)?;
            sockets.push(socket);
        }
    }
    let mut line = vec![b'x'; line_bytes];
    line[line_bytes - 1] = b'\n';
    let buffer = line.repeat((READ_BYTES / line_bytes).max(1));
    loop {
        for mut socket in &sockets {
            socket.write_all(&buffer)?;
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a limit is a program, here a thread")]

    use std::net::Ipv4Addr;
    use std::thread;
    use std::time::Duration;

    use tidings_load::Target;
    use tidings_load::command::flags::RunFlags;
    use tidings_load::fan::Fan;
    use tidings_load::load::LoadSize;

    use super::*;
    use crate::protocols::BareLines;

    /// The generator counts to the byte, so a relay that loses or splits anything fails.
    #[track_caller]
    fn assert_relays_everything(unit: WriteUnit) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        // The thread ends with the process.
        thread::spawn(move || relay(&listener, unit));
        let target =
            Target { wire: &BareLines, address, topic: "t", payload_bytes: 128, server: None };
        let size = LoadSize { publishers: 3, subscribers: 5, window: 999 };
        let length = RunFlags { seconds: 1, runs: 1, warm_up: Duration::ZERO };
        let fan = Fan { size, length };
        let figures = fan.measure(target, &mut |_| Ok(())).unwrap();
        assert!(figures[0].median().unwrap() > 0.0);
    }

    #[test]
    fn whole_reads_reach_every_subscriber() {
        assert_relays_everything(WriteUnit::Read);
    }

    #[test]
    fn single_lines_reach_every_subscriber() {
        assert_relays_everything(WriteUnit::Line);
    }
}
