//! The socket of an HTTP connection, with a timeout for writes and a close that loses no response.
#![expect(clippy::disallowed_methods, reason = "write timeouts")]

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use crate::net::stream::SocketStream;

/// Limits for reading the rest of a client's input after the last response.
const LINGER_TIMEOUT: Duration = Duration::from_millis(500);
const LINGER_BYTES_MAX: usize = 8 << 20;

/// The connection waits for a request.
const IDLE: u8 = 0;
/// A request was received, and its response is not complete.
const RESPONDING: u8 = 1;
/// The response is complete, but a part of it may not be in the socket yet.
const UNFLUSHED: u8 = 2;

/// Whether a connection has a response to send. A client may shut down its sending side after a
/// complete request (`nc -N`). The end of input is reported to hyper only after the response,
/// because hyper would drop the request otherwise. Only the task of the connection uses this.
#[derive(Debug, Clone, Default)]
pub(super) struct ResponseState(Arc<AtomicU8>);

impl ResponseState {
    pub(super) fn request_received(&self) {
        self.0.store(RESPONDING, Ordering::Relaxed);
    }

    /// The response is a stream without an end. It ends with the client's input.
    pub(super) fn exempt_stream(&self) {
        self.0.store(IDLE, Ordering::Relaxed);
    }

    /// Wraps the body of a response; the response is complete when the body is dropped.
    pub(super) fn track_body(&self, body: Body) -> Body {
        let incomplete = IncompleteResponse(self.clone());
        // The body owns this closure, and drops it at its end.
        Body::new(body.map_err(move |error| {
            let _ = &incomplete;
            error
        }))
    }

    fn is_pending(&self) -> bool {
        self.0.load(Ordering::Relaxed) != IDLE
    }

    /// All output of hyper is in the socket. Returns whether that completes a response.
    fn mark_flushed(&self) -> bool {
        let end = self.0.compare_exchange(UNFLUSHED, IDLE, Ordering::Relaxed, Ordering::Relaxed);
        end.is_ok()
    }
}

/// A response that is not complete; dropped with its body.
struct IncompleteResponse(ResponseState);

impl Drop for IncompleteResponse {
    fn drop(&mut self) {
        self.0.0.store(UNFLUSHED, Ordering::Relaxed);
    }
}

/// A stream with a write timeout: writes fail with `TimedOut` if the client reads nothing for
/// `write_timeout`.
///
/// Its shutdown lingers: it reads the rest of the client's input for a moment, unless the broker
/// stops. To close a socket with unread input sends a reset, which may destroy the last response on
/// its way.
pub(super) struct WriteTimeoutStream {
    /// Bytes that were read from the stream before; they are read first.
    read_ahead: Bytes,
    stream: SocketStream,
    write_timeout: Duration,
    /// Runs while a write makes no progress, and while the shutdown lingers.
    timer: Option<Pin<Box<Sleep>>>,
    stop: CancellationToken,
    /// Bytes that the shutdown may still read; `None` before it lingers.
    linger_bytes_left: Option<usize>,
    response_state: ResponseState,
}

impl WriteTimeoutStream {
    /// `read_ahead` was read from the stream already.
    pub(super) fn new(
        read_ahead: Vec<u8>,
        stream: SocketStream,
        write_timeout: Duration,
        stop: CancellationToken,
    ) -> Self {
        Self {
            read_ahead: read_ahead.into(),
            stream,
            write_timeout,
            timer: None,
            stop,
            linger_bytes_left: None,
            response_state: ResponseState::default(),
        }
    }

    /// The state of the response on this connection, for the code that sends it.
    pub(super) fn response_state(&self) -> ResponseState {
        self.response_state.clone()
    }

    /// Discards input until its end or until a limit.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let until = Instant::now() + LINGER_TIMEOUT;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if timer.as_mut().poll(cx).is_ready() || self.stop.is_cancelled() {
            return Poll::Ready(());
        }
        let mut bytes = [0; 4096];
        while let Some(left @ 1..) = self.linger_bytes_left {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.linger_bytes_left = Some(left.saturating_sub(buffer.filled().len()));
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    /// Passes on the result of a write, or fails if no byte was sent for `write_timeout`.
    fn check_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.timer = None;
            return poll;
        }
        // TLS may have sent a part of its buffer although this write is pending.
        if self.stream.has_sent() {
            self.timer = None;
        }
        let deadline = Instant::now() + self.write_timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for WriteTimeoutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.read_ahead.is_empty() {
            let bytes = self.read_ahead.len().min(buf.remaining());
            buf.put_slice(&self.read_ahead.split_to(bytes));
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() == before && self.response_state.is_pending() {
            // The flush of the response wakes the task, which reads again.
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WriteTimeoutStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check_timeout(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.check_timeout(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS buffers what was written, so a client that reads nothing blocks the flush.
        let poll = Pin::new(&mut self.stream).poll_flush(cx);
        if poll.is_ready() && self.response_state.mark_flushed() {
            cx.waker().wake_by_ref();
        }
        self.check_timeout(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger_bytes_left.is_none() {
            let poll = Pin::new(&mut self.stream).poll_shutdown(cx);
            ready!(self.check_timeout(cx, poll))?;
            (self.linger_bytes_left, self.timer) = (Some(LINGER_BYTES_MAX), None);
        }
        self.poll_linger(cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpStream;
    use tokio_rustls::client::TlsStream;

    use super::*;
    use crate::net::connection::tests::tls_pair::{drive_io, read_now, tls_pair};

    /// The write timeout of the tests; the clock is paused and only `advance` moves it.
    const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

    /// A stream with the timeout, and the client's end of it.
    async fn timeout_stream() -> (WriteTimeoutStream, TlsStream<TcpStream>) {
        let (stream, client) = tls_pair().await;
        (
            WriteTimeoutStream::new(Vec::new(), stream, WRITE_TIMEOUT, CancellationToken::new()),
            client,
        )
    }

    /// Writes until the socket and the buffer of TLS are full.
    async fn fill(stream: &mut WriteTimeoutStream) {
        let (mut stalled_writes, bytes) = (0, vec![b'x'; 32 << 10]);
        while stalled_writes < 10 {
            let before = stream.stream.sent_bytes();
            let poll = poll_fn(|cx| Poll::Ready(Pin::new(&mut *stream).poll_write(cx, &bytes)));
            let has_written = poll.await.is_ready();
            drive_io().await;
            let has_progress = has_written || stream.stream.sent_bytes() > before;
            stalled_writes = if has_progress { 0 } else { stalled_writes + 1 };
        }
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_times_out_even_if_all_was_written() {
        for is_end in [false, true] {
            let (mut stream, client) = timeout_stream().await;
            fill(&mut stream).await;
            // The rest waits in the buffer of TLS; there is nothing more to write.
            stream.timer = None;
            tokio::time::pause();
            let ending =
                async { if is_end { stream.shutdown().await } else { stream.flush().await } };
            let result = tokio::time::timeout(2 * WRITE_TIMEOUT, ending).await;
            tokio::time::resume();
            let error = result.expect("the write timeout ends the wait").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "end: {is_end}");
            drop(client);
        }
    }

    #[tokio::test]
    async fn a_client_that_reads_slowly_does_not_time_out() {
        let (mut stream, mut client) = timeout_stream().await;
        fill(&mut stream).await;
        stream.timer = None;
        tokio::time::pause();
        let bytes = vec![b'x'; 32 << 10];
        let (mut received, mut received_bytes) = ([0; 512], 0);
        // How long the current write has been pending. The kernel decides how many of its parts the
        // socket accepts one by one, so this writes until one takes longer than the timeout.
        let mut pending_time = Duration::ZERO;
        loop {
            let before = stream.stream.sent_bytes();
            let written = poll_fn(|cx| Poll::Ready(Pin::new(&mut stream).poll_write(cx, &bytes)));
            if let Poll::Ready(written) = written.await {
                written.expect("no timeout while the client reads");
                pending_time = Duration::ZERO;
            } else if pending_time > WRITE_TIMEOUT {
                break;
            } else if stream.stream.sent_bytes() > before {
                let step = WRITE_TIMEOUT * 3 / 5;
                pending_time += step;
                tokio::time::advance(step).await;
            }
            received_bytes += read_now(&mut client, &mut received).await;
            assert!(received_bytes < 4 << 20, "every write was accepted at once");
        }
        tokio::time::resume();
        drop(client);
    }
}
