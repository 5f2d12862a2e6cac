//! What goes over a connection, counted and, if somebody wants it, copied.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::config::{BEFORE_HEAD_BYTES_MAX, HEAD_BYTES_MAX};
use crate::connect::Stream;

/// A connection that is counted.
#[derive(Debug)]
pub(super) struct Metered {
    stream: Stream,
    meter: Arc<Meter>,
}

/// The counts of one connection.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Bytes that came since the request began.
    received: AtomicU64,
    /// Bytes that were written since the request began.
    written: AtomicU64,
    /// The head of the answer has not come yet, and may not be far.
    before_head: AtomicBool,
    /// It did not come in time.
    overrun: AtomicBool,
    /// `copy` is to be filled.
    copies: AtomicBool,
    copy: Mutex<Copy>,
}

/// What was sent, and what came up to some point behind the head of the answer.
#[derive(Debug, Default)]
pub(super) struct Copy {
    pub(super) sent: Vec<u8>,
    pub(super) received: Vec<u8>,
}

impl Metered {
    pub(super) fn new(stream: Stream, meter: Arc<Meter>) -> Self {
        Self { stream, meter }
    }
}

impl Meter {
    /// A request begins.
    pub(super) fn begin(&self, copies: bool) {
        self.received.store(0, Relaxed);
        self.written.store(0, Relaxed);
        self.before_head.store(true, Relaxed);
        if copies || self.copies.load(Relaxed) {
            *self.copy.lock() = Copy::default();
            self.copies.store(copies, Relaxed);
        }
    }

    /// The head of the answer is there. Gives what was copied until now.
    pub(super) fn head_came(&self) -> Option<Copy> {
        self.before_head.store(false, Relaxed);
        self.copies.swap(false, Relaxed).then(|| std::mem::take(&mut *self.copy.lock()))
    }

    /// Whether not a byte of an answer came.
    pub(super) fn is_untouched(&self) -> bool {
        self.received.load(Relaxed) == 0
    }

    /// Whether not a byte of the request was written.
    pub(super) fn is_unwritten(&self) -> bool {
        self.written.load(Relaxed) == 0
    }

    /// Whether too much came before the head of an answer.
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
            return Err(io::Error::other("too much before the answer"));
        }
        if self.copies.load(Relaxed) {
            self.copy.lock().received.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn send(&self, bytes: &[u8]) {
        self.written.fetch_add(bytes.len() as u64, Relaxed);
        if self.copies.load(Relaxed) {
            let sent = &mut self.copy.lock().sent;
            let room = HEAD_BYTES_MAX.saturating_sub(sent.len());
            sent.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        Poll::Ready(this.meter.receive(&buffer.filled()[before..]))
    }
}

impl AsyncWrite for Metered {
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
