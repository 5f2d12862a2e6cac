//! The limit: a program that does the least that a broker of lines must do. It reads up to 64 KiB
//! from a publisher, cuts at the last line end, and writes that buffer to every subscriber.
//!
//! It writes to a socket until that has accepted everything: the window of the generator is smaller
//! than the socket buffers.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use memchr::memrchr;
use tidings_load::poller::Poller;

/// Bytes per read.
const READ_BYTES: usize = 64 * 1024;

/// Token of the listening socket.
const LISTENER: usize = usize::MAX;

/// Longest wait for sockets.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Relays lines from publishers to the connections that sent `S`.
pub(crate) fn relay(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let poller = Poller::new()?;
    poller.register_readable(listener, LISTENER)?;
    let mut state = RelayState { poller, connections: Vec::new(), subscribers: Vec::new() };
    let mut ready = Vec::new();
    loop {
        state.poller.wait(WAIT_MAX, &mut ready)?;
        for &token in &ready {
            match token {
                LISTENER => state.accept(listener)?,
                token => state.handle_readable(token),
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
    poller: Poller,
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
            self.poller.register_readable(&socket, token)?;
            self.connections[token] =
                Some(Connection { socket, is_publisher: None, buffer: Vec::new(), filled: 0 });
        }
    }

    /// Reads from a connection, or removes it if it has ended.
    fn handle_readable(&mut self, token: usize) {
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
                    self.write(&connection.buffer[..=end]);
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

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a limit is a program, here a thread")]

    use std::net::Ipv4Addr;
    use std::thread;

    use tidings_load::Target;
    use tidings_load::command::flags::RunFlags;
    use tidings_load::command::protection::ProtectionFlags;
    use tidings_load::fan_out::FanOut;

    use super::*;
    use crate::protocols::BareLines;

    /// The generator counts to the byte, so a relay that loses or splits anything fails.
    #[test]
    fn whole_reads_reach_every_subscriber() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        // The thread ends with the process.
        thread::spawn(move || relay(&listener));
        let target =
            Target { wire: &BareLines, address, topic: "t", payload_bytes: 128, server: None };
        let (publishers, subscribers, window) = (3, 5, 999);
        let (length, guard) = (RunFlags { seconds: 1, runs: 1 }, ProtectionFlags::default());
        let fan_out = FanOut { publishers, subscribers, window, length, guard };
        let figures = fan_out.measure_target(target, &mut |_| Ok(())).unwrap();
        assert!(figures[0].median().unwrap() > 0.0);
    }
}
