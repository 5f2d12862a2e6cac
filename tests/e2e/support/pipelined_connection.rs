//! Sends many lines or HTTP requests on one connection, over any byte stream. A fence, which is a
//! `HELLO` with a number, follows each line; the lines between two fences are the response to one
//! line, even if deliveries arrive in between.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use socket2::{Domain, Socket, Type};

use super::wait::time_left;

/// A stream of bytes in both directions.
pub(crate) trait ByteStream: Read + Write + Send {}

impl<T: Read + Write + Send> ByteStream for T {}

/// Connects from this loopback address, so that limits per source count it separately.
#[track_caller]
pub(crate) fn connect_tcp_from(address: SocketAddr, source: Ipv4Addr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(time_left())).unwrap();
    stream
}

/// Connects to a unix socket.
#[track_caller]
pub(crate) fn connect_unix(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(time_left())).unwrap();
    stream
}

/// TLS with a client certificate; the files are those of the authority, the certificate and its
/// key.
#[track_caller]
pub(crate) fn connect_tls(
    stream: TcpStream,
    [ca, cert, key]: [&str; 3],
) -> impl ByteStream + use<> {
    let certificate = |file: &str| CertificateDer::from_pem_file(file).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate(ca)).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate(cert)], PrivateKeyDer::from_pem_file(key).unwrap())
        .unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
}

/// A connection and its received bytes that no call has returned yet.
pub(crate) struct PipelinedConnection {
    stream: Box<dyn ByteStream>,
    unread: Vec<u8>,
    /// The number of fences sent so far.
    fences: usize,
}

/// The response to one line; empty if the line has no response.
pub(crate) type ResponseLines = Vec<String>;

impl PipelinedConnection {
    pub(crate) fn new(carrier: impl ByteStream + 'static) -> Self {
        Self { stream: Box::new(carrier), unread: Vec::new(), fences: 0 }
    }

    /// Ignores a closed connection, because the next read reports it.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref()).and_then(|()| self.stream.flush());
    }

    /// Reads more bytes; false at the end of the stream.
    fn read_more(&mut self) -> bool {
        let mut chunk = [0; 16 << 10];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(count) => {
                    self.unread.extend_from_slice(&chunk[..count]);
                    return count > 0;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let unread = String::from_utf8_lossy(&self.unread);
                    panic!("read timed out; unread: {unread}");
                }
                Err(_) => return false,
            }
        }
    }

    /// Reads the next line; `None` if the broker has closed.
    pub(crate) fn read_line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Some(String::from_utf8(line).unwrap().trim_end().to_owned());
            }
            if !self.read_more() {
                return None;
            }
        }
    }

    /// Reads all lines until the broker closes.
    pub(crate) fn read_to_end(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.read_line()).collect()
    }

    /// Sends all lines at once and returns the last line of each response. Deliveries, which may
    /// arrive anywhere, are left out.
    #[track_caller]
    pub(crate) fn request_all(&mut self, lines: &[String]) -> Vec<ResponseLines> {
        let fence = |number: usize| format!("HELLO echo=fence-{number}");
        let fences = self.fences..self.fences + lines.len();
        self.fences = fences.end;
        let numbered = lines.iter().zip(fences.clone());
        self.send(
            numbered
                .flat_map(|(line, at)| [line.clone(), fence(at)])
                .collect::<Vec<_>>()
                .join("\n")
                + "\n",
        );
        let deliveries = ["MSG ", "TASK ", "LAG ", "GAP "];
        // Lines of a response before its last; some have no text after the sign.
        let is_more = |line: &str| line.starts_with('+') && !line.starts_with("+OK");
        let read_response = |at: usize| {
            let end = format!(" echo=fence-{at}");
            let mut received = Vec::new();
            loop {
                let line = self.read_line().unwrap_or_else(|| panic!("closed after {received:?}"));
                if line.starts_with("+OK tidings ") && line.contains(&end) {
                    return received;
                }
                if !is_more(&line) && !deliveries.iter().any(|word| line.starts_with(word)) {
                    received.push(line);
                }
            }
        };
        fences.map(read_response).collect()
    }

    /// Reads the status and the headers of a response, but not its body; `None` if the broker has
    /// closed.
    pub(crate) fn read_head(&mut self) -> Option<(u16, Vec<String>)> {
        let status = self.read_line()?.split(' ').nth(1)?.parse().ok()?;
        let head = std::iter::from_fn(|| self.read_line().filter(|line| !line.is_empty()));
        Some((status, head.map(|line| line.to_ascii_lowercase()).collect()))
    }

    /// Reads the status and the body of a response that ends.
    pub(crate) fn read_response(&mut self) -> Option<(u16, String)> {
        let (status, head) = self.read_head()?;
        let field = |name: &str| head.iter().find_map(|line| line.strip_prefix(name));
        let body = if let Some(length) = field("content-length: ") {
            self.read_bytes(length.parse().unwrap())
        } else if field("transfer-encoding: ") == Some("chunked") {
            let mut body = Vec::new();
            loop {
                let bytes = usize::from_str_radix(&self.read_line()?, 16).unwrap();
                body.extend(self.read_bytes(bytes));
                self.read_line()?;
                if bytes == 0 {
                    break body;
                }
            }
        } else {
            Vec::new()
        };
        Some((status, String::from_utf8(body).unwrap()))
    }

    fn read_bytes(&mut self, bytes: usize) -> Vec<u8> {
        while self.unread.len() < bytes && self.read_more() {}
        self.unread.drain(..bytes.min(self.unread.len())).collect()
    }
}
