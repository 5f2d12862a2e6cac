//! The byte stream of a connection (TCP, TLS or unix socket).

use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use super::handshake_socket::HandshakeSocket;
use crate::tls;

/// The socket of a connection, with or without TLS.
///
/// Nearly all connections are plain, so a plain socket costs one branch and no memory of its own.
#[derive(Debug)]
pub(super) enum SocketStream {
    Plain(TcpStream),
    /// Boxed, because its state has some kibibytes.
    Tls(Box<TlsSocket>),
    Unix(UnixStream),
}

#[derive(Debug)]
pub(super) struct TlsSocket {
    stream: TlsStream<HandshakeSocket>,
    /// Bytes that are encrypted at once; `ENCRYPT_BYTES_MIN <= encrypt_bytes <= ENCRYPT_BYTES_MAX`.
    encrypt_bytes: usize,
    /// `sent_bytes` at the last call of [`SocketStream::has_sent`].
    last_sent_bytes: u64,
}

impl TlsSocket {
    /// Flushes the previous write, and only then encrypts and writes more.
    fn poll_encrypt(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(
            Pin<&mut TlsStream<HandshakeSocket>>,
            &mut Context<'_>,
        ) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        let written = write(Pin::new(&mut self.stream), cx);
        let session = self.stream.get_mut().1;
        let encrypt_bytes = match written {
            _ if session.wants_write() => tls::ENCRYPT_BYTES_MIN,
            Poll::Ready(Ok(bytes)) if bytes >= self.encrypt_bytes => {
                (2 * self.encrypt_bytes).min(tls::ENCRYPT_BYTES_MAX)
            }
            // A connection with little output needs no larger buffer.
            _ => self.encrypt_bytes,
        };
        if encrypt_bytes != self.encrypt_bytes {
            self.encrypt_bytes = encrypt_bytes;
            session.set_buffer_limit(Some(encrypt_bytes));
        }
        written
    }
}

impl SocketStream {
    /// Wraps a TLS stream after its handshake.
    pub(super) fn from_tls(mut stream: TlsStream<HandshakeSocket>) -> Self {
        stream.get_mut().0.finish_handshake();
        Self::Tls(Box::new(TlsSocket {
            stream,
            encrypt_bytes: tls::ENCRYPT_BYTES_MIN,
            last_sent_bytes: 0,
        }))
    }

    /// Waits until the socket is writable. A later write reports errors of the socket.
    pub(super) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => stream.poll_write_ready(cx),
            Self::Tls(secure) => secure.stream.get_ref().0.socket.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
        }
    }

    /// Whether the socket has accepted bytes of TLS since the last call. Always false without TLS,
    /// which alone buffers output.
    pub(super) fn has_sent(&mut self) -> bool {
        let taken = self.sent_bytes();
        match self {
            Self::Tls(secure) => mem::replace(&mut secure.last_sent_bytes, taken) != taken,
            _ => false,
        }
    }

    /// Bytes that the socket has accepted from TLS since the connection began; 0 without TLS.
    pub(super) fn sent_bytes(&self) -> u64 {
        match self {
            Self::Tls(secure) => secure.stream.get_ref().0.sent_bytes,
            _ => 0,
        }
    }
}

/// Writes like the socket, with one difference for TLS: a write is pending until the previous one
/// has left. So at most one write is buffered, and `Pending` means that the socket accepts nothing.
impl AsyncWrite for SocketStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(secure) => secure.poll_encrypt(cx, |stream, cx| stream.poll_write(cx, bytes)),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bytes),
            Self::Tls(secure) => {
                secure.poll_encrypt(cx, |stream, cx| stream.poll_write_vectored(cx, bytes))
            }
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Waits only for encrypted bytes that the socket has not accepted.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(secure) => Pin::new(&mut secure.stream).poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(secure) => Pin::new(&mut secure.stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl AsyncRead for SocketStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(secure) => Pin::new(&mut secure.stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}
