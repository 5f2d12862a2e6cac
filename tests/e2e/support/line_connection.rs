//! A raw TCP connection to the line port.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::wait::time_left;

/// The broker's last line when it reaches the end of a peer's input.
pub(crate) const FAREWELL: &str = "Received EOF.  Closing connection...";

/// The value of `key=value` in a line; fails if the key is missing.
#[track_caller]
pub(crate) fn value<'a>(line: &'a str, key: &str) -> &'a str {
    let mut words = line.split(' ').filter_map(|word| word.split_once('='));
    let found = words.find(|(name, _)| *name == key);
    found.unwrap_or_else(|| panic!("no {key}= in {line}")).1
}

/// A connection and its received bytes that no call has returned yet.
#[derive(Debug)]
pub(crate) struct LineConnection {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl LineConnection {
    /// Connects and reads nothing, not even the greeting.
    #[track_caller]
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).unwrap()
    }

    /// Like `connect`, but the broker may be down.
    fn try_connect(address: SocketAddr) -> io::Result<Self> {
        Self::try_from_stream(TcpStream::connect(address)?)
    }

    /// Uses a connection from which nothing was read yet.
    #[track_caller]
    pub(crate) fn from_stream(stream: TcpStream) -> Self {
        Self::try_from_stream(stream).unwrap()
    }

    fn try_from_stream(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, unread: Vec::new() })
    }

    /// Connects, reads the greeting, and also returns the connection number in it.
    #[track_caller]
    pub(crate) fn connect_with_number(address: SocketAddr) -> (Self, u64) {
        let mut connection = Self::connect(address);
        let line = connection.read_line();
        let number = line
            .strip_prefix("Connected.  (PID ")
            .and_then(|rest| rest.strip_suffix(')'))
            .and_then(|number| number.parse().ok());
        (connection, number.unwrap_or_else(|| panic!("not a greeting: {line:?}")))
    }

    /// Connects as a peer.
    #[track_caller]
    pub(crate) fn connect_peer(address: SocketAddr) -> Self {
        Self::connect_with_number(address).0
    }

    /// Connects as a client and sends HELLO; every later line is a response or a delivery.
    #[track_caller]
    pub(crate) fn connect_client(address: SocketAddr) -> Self {
        Self::try_connect_client(address).expect("the broker answers HELLO")
    }

    /// Like `connect_client`, but `None` if the broker is down or closes the connection.
    #[track_caller]
    pub(crate) fn try_connect_client(address: SocketAddr) -> Option<Self> {
        let mut connection = Self::try_connect(address).ok()?;
        connection.send("HELLO echo=e2e\n");
        while !connection.try_read_line()?.contains(" echo=e2e") {}
        Some(connection)
    }

    /// Writes all bytes. Ignores a closed connection, because the next read reports it.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Sends a command and returns its response of one line.
    #[track_caller]
    pub(crate) fn request(&mut self, command: &str) -> String {
        self.send(format!("{command}\n"));
        self.read_line()
    }

    /// Sends a command that must succeed, and returns its response.
    #[track_caller]
    pub(crate) fn request_ok(&mut self, command: &str) -> String {
        let response = self.request(command);
        assert!(response.starts_with("+OK"), "{command}: {response}");
        response
    }

    /// Sends a command and returns all lines of its response.
    #[track_caller]
    pub(crate) fn request_lines(&mut self, command: &str) -> Vec<String> {
        let mut lines = vec![self.request(command)];
        while lines.last().is_some_and(|line| line.starts_with("+ ")) {
            lines.push(self.read_line());
        }
        lines
    }

    /// Reads the next line, which must end in CRLF; fails if the broker has closed.
    #[track_caller]
    pub(crate) fn read_line(&mut self) -> String {
        self.try_read_line().unwrap_or_else(|| panic!("closed; unread: {}", self.unread_text()))
    }

    /// Reads the next line; `None` if the broker has closed.
    #[track_caller]
    pub(crate) fn try_read_line(&mut self) -> Option<String> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.unread[searched..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=searched + at).collect();
                let line = line.strip_suffix(b"\r\n").expect("the broker's lines end in CRLF");
                return Some(String::from_utf8(line.to_vec()).expect("the broker sends UTF-8"));
            }
            searched = self.unread.len();
            let mut chunk = [0; 8 * 1024];
            self.stream.set_read_timeout(Some(time_left())).unwrap();
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.unread.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                // The kernel does not restart a read with a timeout after this process was stopped.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    panic!("still waiting for a line; unread: {}", self.unread_text())
                }
                Err(error) => panic!("no line: {error}; unread: {}", self.unread_text()),
            }
        }
    }

    /// Reads up to the next task, and returns its id; `None` if the broker has closed.
    #[track_caller]
    pub(crate) fn next_task(&mut self) -> Option<String> {
        loop {
            let line = self.try_read_line()?;
            if let Some(rest) = line.strip_prefix("TASK ") {
                return rest.split(' ').next().map(str::to_owned);
            }
        }
    }

    /// Reads all lines until the broker closes.
    #[track_caller]
    pub(crate) fn read_to_end(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.try_read_line()).collect()
    }

    /// Checks that the broker has closed and has sent nothing more.
    #[track_caller]
    pub(crate) fn expect_closed(&mut self) {
        let lines = self.read_to_end();
        assert!(lines.is_empty() && self.unread.is_empty(), "{lines:?} {}", self.unread_text());
    }

    fn unread_text(&self) -> String {
        String::from_utf8_lossy(&self.unread).into_owned()
    }
}
