//! A connection of HTTP that is watched for taking nothing.
#![expect(clippy::disallowed_methods, reason = "gives up who takes nothing for too long")]

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use crate::net::stream::SocketStream;

/// How long the rest of what somebody sends is read after the last answer, and how much of it.
const LINGER_TIMEOUT: Duration = Duration::from_millis(500);
const LINGER_BYTES_MAX: usize = 8 << 20;

/// No request is being answered.
const IDLE: u8 = 0;
/// A request was received, and its answer is not complete.
const RESPONDING: u8 = 1;
/// The answer is complete; a part of it may not be in the socket yet.
const UNFLUSHED: u8 = 2;

/// Whether a connection owes its client an answer. A client may end its sending side after a
/// complete request (`nc -N`): the answer is sent first, and only then the end of input is reported
/// to hyper, which would otherwise drop the request. Everything here runs in the task of the
/// connection.
#[derive(Debug, Clone, Default)]
pub(super) struct ResponseState(Arc<AtomicU8>);

impl ResponseState {
    /// A request was received.
    pub(super) fn request_received(&self) {
        self.0.store(RESPONDING, Ordering::Relaxed);
    }

    /// The answer is a stream without an end: it ends with the client's input.
    pub(super) fn exempt_stream(&self) {
        self.0.store(IDLE, Ordering::Relaxed);
    }

    /// The answer's body, with the end of which the answer is complete.
    pub(super) fn track_body(&self, body: Body) -> Body {
        Body::new(TrackedBody { body, state: self.clone() })
    }

    fn is_pending(&self) -> bool {
        self.0.load(Ordering::Relaxed) != IDLE
    }

    /// All that hyper had is in the socket. Returns whether that was the end of an answer.
    fn mark_flushed(&self) -> bool {
        let sent = self.0.compare_exchange(UNFLUSHED, IDLE, Ordering::Relaxed, Ordering::Relaxed);
        sent.is_ok()
    }
}

/// The body of an answer that is owed.
struct TrackedBody {
    body: Body,
    state: ResponseState,
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.state.0.store(UNFLUSHED, Ordering::Relaxed);
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that fails when nothing that is written to it is taken for too long, and that is closed
/// so that what was said last arrives: to close over something that was not read would be a reset,
/// which may overtake it. So what is still coming is read for a moment, unless the broker stops.
pub(super) struct WriteTimeoutStream {
    /// What was read of it before.
    read_ahead: Bytes,
    stream: SocketStream,
    write_timeout: Duration,
    /// Set while it takes nothing, and while the rest is read.
    timer: Option<Pin<Box<Sleep>>>,
    stop: CancellationToken,
    /// What may still be read, once nothing is written any more.
    linger_bytes_left: Option<usize>,
    response_state: ResponseState,
}

impl WriteTimeoutStream {
    /// Of which `head` was read already.
    pub(super) fn new(
        head: Vec<u8>,
        stream: SocketStream,
        write_timeout: Duration,
        stop: CancellationToken,
    ) -> Self {
        Self {
            read_ahead: head.into(),
            stream,
            write_timeout,
            timer: None,
            stop,
            linger_bytes_left: None,
            response_state: ResponseState::default(),
        }
    }

    /// Whether an answer is owed on this connection, for those that answer.
    pub(super) fn response_state(&self) -> ResponseState {
        self.response_state.clone()
    }

    /// Reads what still comes, up to its end or for a moment.
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

    /// What a write came to, unless nothing was taken for too long.
    fn check_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.timer = None;
            return poll;
        }
        // Within TLS a part of what waits may have gone.
        if self.stream.has_sent() {
            self.timer = None;
        }
        let deadline = Instant::now() + self.write_timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
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
            // The flush of the answer wakes the task, so that it reads again.
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
        // Within TLS what was written waits here.
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
    use crate::net::tests::tls_pair::{drive_io, read_now, tls_pair};

    /// Of the connection, on a clock that stands still but for `advance`.
    const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

    /// One that is watched, and its other end.
    async fn timeout_stream() -> (WriteTimeoutStream, TlsStream<TcpStream>) {
        let (stream, far) = tls_pair().await;
        (WriteTimeoutStream::new(Vec::new(), stream, WRITE_TIMEOUT, CancellationToken::new()), far)
    }

    /// Writes until nothing more is taken, neither by the socket nor within TLS.
    async fn fill(watched: &mut WriteTimeoutStream) {
        let (mut in_vain, bytes) = (0, vec![b'x'; 32 << 10]);
        while in_vain < 10 {
            let before = watched.stream.sent_bytes();
            let poll = poll_fn(|cx| Poll::Ready(Pin::new(&mut *watched).poll_write(cx, &bytes)));
            let wrote = poll.await.is_ready();
            drive_io().await;
            in_vain = if wrote || watched.stream.sent_bytes() > before { 0 } else { in_vain + 1 };
        }
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_times_out_even_if_all_was_written() {
        for is_end in [false, true] {
            let (mut watched, far) = timeout_stream().await;
            fill(&mut watched).await;
            // What is left waits within TLS, and nothing more is to be written.
            watched.timer = None;
            tokio::time::pause();
            let ending =
                async { if is_end { watched.shutdown().await } else { watched.flush().await } };
            let given_up = tokio::time::timeout(2 * WRITE_TIMEOUT, ending).await;
            tokio::time::resume();
            let error = given_up.expect("it is watched").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "end: {is_end}");
            drop(far);
        }
    }

    #[tokio::test]
    async fn a_client_that_reads_slowly_does_not_time_out() {
        let (mut watched, mut far) = timeout_stream().await;
        fill(&mut watched).await;
        watched.timer = None;
        tokio::time::pause();
        let (mut rounds, mut bytes) = (0, [0; 512]);
        loop {
            let before = watched.stream.sent_bytes();
            let flushed = poll_fn(|cx| Poll::Ready(Pin::new(&mut watched).poll_flush(cx))).await;
            if let Poll::Ready(flushed) = flushed {
                flushed.expect("it takes a little all the time");
                break;
            }
            if watched.stream.sent_bytes() > before {
                rounds += 1;
                tokio::time::advance(WRITE_TIMEOUT * 3 / 5).await;
            }
            read_now(&mut far, &mut bytes).await;
        }
        assert!(rounds >= 4, "it took {rounds} rounds: nobody has waited");
        tokio::time::resume();
        drop(far);
    }
}
