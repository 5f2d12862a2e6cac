//! Counts the bytes of a connection, and copies the heads of HTTP/1.1.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::task::{Context, Poll, ready};

use hyper::HeaderMap;
use hyper::http::response;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::head::{check_framing, final_head, interim_bytes, response_text};
use super::{BEFORE_HEAD_BYTES_MAX, HEAD_BYTES_MAX};
use crate::connect::{HttpProtocol, Stream};
use crate::failure::Failure;

/// A connection that counts its bytes.
#[derive(Debug)]
pub(super) struct MeteredStream {
    stream: Stream,
    meter: Arc<ConnectionMeter>,
}

/// The counts of a connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionMeter {
    /// Bytes received since the request began.
    received: AtomicU64,
    /// Bytes written since the request began.
    written: AtomicU64,
    /// The head of the response has not arrived, and the limit before it applies.
    before_head: AtomicBool,
    /// That limit was exceeded.
    overrun: AtomicBool,
    /// Filled until the head of the response has arrived. `None` for HTTP/2.
    copy: Option<Mutex<WireCopy>>,
}

/// The bytes sent, and those received until shortly after the head of the response.
#[derive(Debug, Default)]
pub struct WireCopy {
    /// The head of the request. For HTTP/2, the equivalent in HTTP/1.1.
    pub sent: Vec<u8>,
    pub(super) received: Vec<u8>,
}

impl WireCopy {
    /// Fails if a malformed line, which was ignored, may frame the body. `headers` are those that
    /// were read.
    pub(super) fn check_framing(&self, headers: &HeaderMap) -> Result<(), Failure> {
        check_framing(final_head(&self.received).unwrap_or_default(), headers)
    }

    /// The head of the final response as it was received. For HTTP/2, the equivalent in HTTP/1.1.
    pub fn response_head(&self, head: &response::Parts) -> Vec<u8> {
        match final_head(&self.received) {
            Some(bytes) => bytes.to_vec(),
            None => response_text(head),
        }
    }
}

impl MeteredStream {
    pub(super) fn new(stream: Stream, meter: Arc<ConnectionMeter>) -> Self {
        Self { stream, meter }
    }
}

impl ConnectionMeter {
    pub(super) fn new(protocol: HttpProtocol) -> Self {
        let copy = (protocol == HttpProtocol::Http1).then(Mutex::default);
        Self { copy, ..Self::default() }
    }

    /// Starts a request.
    pub(super) fn begin(&self) {
        self.received.store(0, Relaxed);
        self.written.store(0, Relaxed);
        self.before_head.store(true, Relaxed);
        if let Some(copy) = &self.copy {
            *copy.lock() = WireCopy::default();
        }
    }

    /// The head of the response has arrived. Returns the copy.
    pub(super) fn head_received(&self) -> Option<WireCopy> {
        self.before_head.store(false, Relaxed);
        self.copy.as_ref().map(|copy| std::mem::take(&mut *copy.lock()))
    }

    /// Whether no byte of a response has arrived.
    pub(super) fn has_received_nothing(&self) -> bool {
        self.received.load(Relaxed) == 0
    }

    /// Whether no byte of the request was written.
    pub(super) fn has_sent_nothing(&self) -> bool {
        self.written.load(Relaxed) == 0
    }

    /// Whether too many bytes arrived before the head of the response.
    pub(super) fn is_overrun(&self) -> bool {
        self.overrun.load(Relaxed)
    }

    fn receive(&self, bytes: &[u8]) -> io::Result<()> {
        let received = self.received.fetch_add(bytes.len() as u64, Relaxed) + bytes.len() as u64;
        if !self.before_head.load(Relaxed) {
            return Ok(());
        }
        if received > BEFORE_HEAD_BYTES_MAX {
            self.overrun.store(true, Relaxed);
            return Err(io::Error::other("too many bytes before the response"));
        }
        if let Some(copy) = &self.copy {
            let received = &mut copy.lock().received;
            received.extend_from_slice(bytes);
            if received.len() > HEAD_BYTES_MAX {
                received.drain(..interim_bytes(received));
            }
        }
        Ok(())
    }

    fn send(&self, bytes: &[u8]) {
        self.written.fetch_add(bytes.len() as u64, Relaxed);
        if let Some(copy) = self.copy.as_ref().filter(|_| self.before_head.load(Relaxed)) {
            let sent = &mut copy.lock().sent;
            let room = HEAD_BYTES_MAX.saturating_sub(sent.len());
            sent.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }
}

impl AsyncRead for MeteredStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        match ready!(Pin::new(&mut this.stream).poll_read(context, buffer)) {
            // Many servers end a connection without the `close_notify` of TLS. A body with a known
            // length detects the loss; for others this counts as the end, as in browsers.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error)),
            Ok(()) => Poll::Ready(this.meter.receive(&buffer.filled()[before..])),
        }
    }
}

impl AsyncWrite for MeteredStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write(context, bytes))?;
        this.meter.send(&bytes[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
