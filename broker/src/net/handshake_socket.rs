//! A socket with a limit on the bytes of the TLS handshake.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The socket below TLS. A handshake message is buffered until it is complete, so the bytes of a
/// handshake are limited; a client that sends more is disconnected.
#[derive(Debug)]
pub(super) struct HandshakeSocket {
    pub(super) socket: TcpStream,
    /// Bytes that may still be read; `None` once the handshake is done.
    handshake_bytes_left: Option<usize>,
    /// Bytes that the socket has accepted. TLS may buffer a write for long while the socket accepts
    /// parts of it, so this count shows progress.
    pub(super) sent_bytes: u64,
}

impl HandshakeSocket {
    /// Wraps a socket. At most `bytes_max` bytes are read before
    /// [`finish_handshake`](Self::finish_handshake).
    pub(super) fn new(socket: TcpStream, bytes_max: usize) -> Self {
        Self { socket, handshake_bytes_left: Some(bytes_max), sent_bytes: 0 }
    }

    /// Ends the limit.
    pub(super) fn finish_handshake(&mut self) {
        self.handshake_bytes_left = None;
    }
}

impl AsyncRead for HandshakeSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(left) = self.handshake_bytes_left else {
            return Pin::new(&mut self.socket).poll_read(cx, buffer);
        };
        if left == 0 {
            let text = "the client sent more bytes than a TLS handshake needs";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        self.handshake_bytes_left = Some(left.saturating_sub(buffer.filled().len() - before));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for HandshakeSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let taken = ready!(Pin::new(&mut self.socket).poll_write(cx, bytes))?;
        self.sent_bytes += taken as u64;
        Poll::Ready(Ok(taken))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let taken = ready!(Pin::new(&mut self.socket).poll_write_vectored(cx, bytes))?;
        self.sent_bytes += taken as u64;
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
