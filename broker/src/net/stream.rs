//! The bytes of a connection, however they come, and who is at the other end.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::{fmt, mem};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio_rustls::server::TlsStream;

use super::handshake_socket::HandshakeSocket;
use crate::tls;

/// The socket of a connection, with encryption or without.
///
/// Nearly all are plain, so that way is the shortest: a jump, and no memory besides the socket.
#[derive(Debug)]
pub(super) enum SocketStream {
    Plain(TcpStream),
    /// Its state is some kibibytes.
    Tls(Box<TlsSocket>),
    #[cfg(unix)]
    Unix(UnixStream),
}

/// A socket within TLS.
#[derive(Debug)]
pub(super) struct TlsSocket {
    stream: TlsStream<HandshakeSocket>,
    /// Bytes that are encrypted at once; `AHEAD_BYTES_MIN <= burst <= AHEAD_BYTES_MAX`.
    encrypt_bytes: usize,
    /// Bytes that the socket had taken when that was asked last.
    last_sent_bytes: u64,
}

impl TlsSocket {
    /// Writes, once all is gone that was taken before.
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
        let burst = match written {
            _ if session.wants_write() => tls::ENCRYPT_BYTES_MIN,
            Poll::Ready(Ok(bytes)) if bytes >= self.encrypt_bytes => {
                (2 * self.encrypt_bytes).min(tls::ENCRYPT_BYTES_MAX)
            }
            // Whoever hears little needs no more.
            _ => self.encrypt_bytes,
        };
        if burst != self.encrypt_bytes {
            self.encrypt_bytes = burst;
            session.set_buffer_limit(Some(burst));
        }
        written
    }
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerAddr {
    /// Over the network, or loopback.
    Tcp(SocketAddr),
    /// Over a unix socket: who the process was that connected, as the kernel says.
    #[cfg(unix)]
    Unix {
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
        /// Its number; the kernel may not know it.
        pid: Option<i32>,
    },
}

/// Who is at the other end, as far as the connection itself tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteInfo {
    /// From where.
    pub(crate) peer: PeerAddr,
    /// The name in the certificate that it has shown, signed by an authority that the broker was
    /// told to trust.
    pub(crate) certificate: Option<Box<str>>,
    /// Nobody on the way reads what it sends.
    pub(crate) is_encrypted: bool,
}

impl PeerAddr {
    /// Whether it is on this machine, and the kernel says who it is.
    pub(crate) fn is_unix(self) -> bool {
        match self {
            Self::Tcp(_) => false,
            #[cfg(unix)]
            Self::Unix { .. } => true,
        }
    }

    /// Its address; that of who is on this machine is loopback.
    pub(crate) fn ip(self) -> IpAddr {
        match self {
            Self::Tcp(address) => address.ip(),
            #[cfg(unix)]
            Self::Unix { .. } => Ipv4Addr::LOCALHOST.into(),
        }
    }
}

impl PeerAddr {
    /// Its address, if it comes over the network.
    pub(super) fn network_ip(self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip()),
            #[cfg(unix)]
            Self::Unix { .. } => None,
        }
    }
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(out),
            #[cfg(unix)]
            Self::Unix { uid, pid: Some(pid), .. } => write!(out, "unix:uid={uid},pid={pid}"),
            #[cfg(unix)]
            Self::Unix { uid, pid: None, .. } => write!(out, "unix:uid={uid}"),
        }
    }
}

impl fmt::Display for RemoteInfo {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peer.fmt(out)?;
        match &self.certificate {
            // Its characters were chosen when it was read.
            Some(name) => write!(out, " ({name})"),
            None => Ok(()),
        }
    }
}

impl SocketStream {
    /// Within TLS, of which the beginning is over.
    pub(super) fn from_tls(mut stream: TlsStream<HandshakeSocket>) -> Self {
        stream.get_mut().0.finish_handshake();
        Self::Tls(Box::new(TlsSocket {
            stream,
            encrypt_bytes: tls::ENCRYPT_BYTES_MIN,
            last_sent_bytes: 0,
        }))
    }

    /// Whether something may be written. An error of the socket is found by writing.
    pub(super) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => stream.poll_write_ready(cx),
            Self::Tls(secure) => secure.stream.get_ref().0.socket.poll_write_ready(cx),
            #[cfg(unix)]
            Self::Unix(stream) => stream.poll_write_ready(cx),
        }
    }

    /// Whether the socket has taken some of what waits for it here since this was asked last.
    /// Nothing waits but within TLS.
    pub(super) fn has_sent(&mut self) -> bool {
        let taken = self.sent_bytes();
        match self {
            Self::Tls(secure) => mem::replace(&mut secure.last_sent_bytes, taken) != taken,
            _ => false,
        }
    }

    /// Bytes that it has taken so in all.
    pub(super) fn sent_bytes(&self) -> u64 {
        match self {
            Self::Tls(secure) => secure.stream.get_ref().0.sent_bytes,
            _ => 0,
        }
    }
}

/// As the socket does it, with one difference for TLS: nothing is taken while something that was
/// taken before is still here. So what waits here is bounded by one write, and "pending" means that
/// the socket takes nothing.
impl AsyncWrite for SocketStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(secure) => secure.poll_encrypt(cx, |stream, cx| stream.poll_write(cx, bytes)),
            #[cfg(unix)]
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
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// At once, but for what is encrypted and waits for the socket.
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
            #[cfg(unix)]
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
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}
