//! TLS connections of the generator. Subscribers do not decrypt: the record headers give the number
//! of bytes in each record. A subscriber thus costs the generator two calls per record, and the
//! broker is what is measured.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustix::net::{RecvFlags, recv};
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384;
use rustls::crypto::aws_lc_rs::{self};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::poller::DiscardBuffer;

/// Type, version and length (RFC 8446, 5.1).
const RECORD_HEADER_BYTES: usize = 5;

/// Record type of everything after the handshake.
const APPLICATION_DATA: u8 = 23;

/// Bytes of a record in addition to its content: one for the inner type, and the tag of AES-GCM.
const RECORD_OVERHEAD_BYTES: usize = 1 + 16;

/// Records that are counted for one subscriber before the next one's turn.
const RECORDS_PER_TURN: usize = 64;

/// The TLS settings of the generator, with the certificates that it trusts.
#[derive(Debug, Clone)]
pub struct TlsClient(Arc<ClientConfig>);

impl TlsClient {
    /// Trusts only the certificate in this PEM file. The cipher is AES-256-GCM in TLS 1.3, which
    /// clients and servers choose by default. One cipher means one rate to compare with.
    pub fn trusting_only(certificate: &Path) -> Result<Self> {
        let certificate = CertificateDer::from_pem_file(certificate)
            .with_context(|| format!("cannot read {}", certificate.display()))?;
        let mut roots = RootCertStore::empty();
        roots.add(certificate).context("the certificate cannot be trusted")?;
        let mut provider = aws_lc_rs::default_provider();
        provider.cipher_suites = vec![TLS13_AES_256_GCM_SHA384];
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }
}

/// A connection that sends commands and reads answers.
#[derive(Debug)]
pub enum Stream {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS.
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// With `tls`, the connection is encrypted.
    pub(crate) fn new(socket: TcpStream, tls: Option<&TlsClient>) -> Result<Self> {
        let Some(TlsClient(config)) = tls else { return Ok(Self::Plain(socket)) };
        let name = ServerName::from(socket.peer_addr()?.ip());
        let session = ClientConnection::new(Arc::clone(config), name)?;
        Ok(Self::Tls(Box::new(StreamOwned::new(session, socket))))
    }

    /// The socket.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.get_ref(),
        }
    }

    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// The connection of a subscriber after its setup: it only receives. The socket does not block.
#[derive(Debug)]
pub struct SubscriberSocket {
    stream: Stream,
    records: RecordCounter,
}

impl SubscriberSocket {
    /// Must follow the last answer and precede the first event, so that no bytes are buffered in
    /// `stream`.
    pub(crate) fn new(stream: Stream) -> io::Result<Self> {
        stream.socket().set_nonblocking(true)?;
        Ok(Self { stream, records: RecordCounter::default() })
    }

    /// The socket, for the poller.
    pub fn socket(&self) -> &TcpStream {
        self.stream.socket()
    }

    /// Counts and discards the bytes that have arrived, before encryption; `None` if there were
    /// none, `Some(0)` at the end of the stream.
    pub fn count_available(&mut self, discard: &mut DiscardBuffer) -> io::Result<Option<u64>> {
        if self.stream.is_tls() {
            return self.records.count_available(self.stream.socket(), discard);
        }
        discard.discard_available(self.stream.socket())
    }
}

/// Position in a stream of TLS records.
#[derive(Debug, Default)]
struct RecordCounter {
    header: [u8; RECORD_HEADER_BYTES],
    /// Bytes of the header that have arrived.
    filled: usize,
    /// Bytes of the current record that are still to come.
    remaining: usize,
}

impl RecordCounter {
    fn count_available(
        &mut self,
        socket: &TcpStream,
        discard: &mut DiscardBuffer,
    ) -> io::Result<Option<u64>> {
        let mut bytes = None;
        for _ in 0..RECORDS_PER_TURN {
            if self.remaining == 0 && !self.read_header(socket, &mut bytes)? {
                break;
            }
            let Some(taken) = discard.discard_up_to(socket, self.remaining)? else { break };
            self.remaining -= usize::try_from(taken).expect("a length");
            if taken == 0 {
                bytes = bytes.or(Some(0));
                break;
            }
            if self.remaining == 0 {
                let content = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
                let content = u64::try_from(content - RECORD_OVERHEAD_BYTES).expect("a length");
                bytes = Some(bytes.unwrap_or(0) + content);
            }
        }
        Ok(bytes)
    }

    /// Whether the header of a record is complete now. At the end of the stream, `bytes` becomes
    /// `Some`.
    fn read_header(&mut self, socket: &TcpStream, bytes: &mut Option<u64>) -> io::Result<bool> {
        if self.filled == RECORD_HEADER_BYTES {
            self.filled = 0;
        }
        match recv(socket, &mut self.header[self.filled..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => *bytes = bytes.or(Some(0)),
            Ok((_, more)) => self.filled += more,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if self.filled < RECORD_HEADER_BYTES {
            return Ok(false);
        }
        self.remaining = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
        if self.header[0] != APPLICATION_DATA || self.remaining <= RECORD_OVERHEAD_BYTES {
            let text = format!(
                "expected a record of application data, received the header {:?}",
                self.header
            );
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    fn record(bytes: usize) -> Vec<u8> {
        let length = u16::try_from(bytes + RECORD_OVERHEAD_BYTES).unwrap().to_be_bytes();
        [&[APPLICATION_DATA, 3, 3], &length[..], &vec![b'x'; bytes + RECORD_OVERHEAD_BYTES]]
            .concat()
    }

    /// Sends these pieces one by one, and returns what was counted after each.
    fn counted(pieces: &[&[u8]]) -> io::Result<Vec<Option<u64>>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        sender.set_nodelay(true).unwrap();
        let receiver = listener.accept().unwrap().0;
        let (mut records, mut discard) = (RecordCounter::default(), DiscardBuffer::default());
        let mut counted = Vec::new();
        for piece in pieces {
            sender.write_all(piece).unwrap();
            let mut there = vec![0; piece.len()];
            // Waits until the whole piece has arrived.
            while receiver.peek(&mut there).unwrap() < piece.len() {}
            counted.push(records.count_available(&receiver, &mut discard)?);
        }
        drop(sender);
        while records.count_available(&receiver, &mut discard)? != Some(0) {}
        Ok(counted)
    }

    #[test]
    fn a_record_counts_once_it_is_complete() {
        let both = [record(100), record(16_384)].concat();
        assert_eq!(counted(&[&both]).unwrap(), [Some(16_484)]);
        let pieces = [&both[..3], &both[3..50], &both[50..125], &both[125..]];
        assert_eq!(counted(&pieces).unwrap(), [None, None, Some(100), Some(16_384)]);
    }

    #[test]
    fn an_alert_record_is_an_error() {
        assert!(counted(&[b"\x15\x03\x03\x00\x02\x02\x28"]).is_err(), "an alert");
    }
}
