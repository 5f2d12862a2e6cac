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

use crate::net::stream::Stream;

/// How long the rest of what somebody sends is read after the last answer, and how much of it.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES_MAX: usize = 8 << 20;

/// No request is being answered.
const IDLE: u8 = 0;
/// A request was received, and its answer is not complete.
const OWED: u8 = 1;
/// The answer is complete; a part of it may not be in the socket yet.
const UNSENT: u8 = 2;

/// Whether a connection owes its client an answer. A client may end its sending side after a
/// complete request (`nc -N`): the answer is sent first, and only then the end of input is reported
/// to hyper, which would otherwise drop the request. Everything here runs in the task of the
/// connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Debt(Arc<AtomicU8>);

impl Debt {
    /// A request was received.
    pub(super) fn begin(&self) {
        self.0.store(OWED, Ordering::Relaxed);
    }

    /// The answer is a stream without an end: it ends with the client's input.
    pub(super) fn waive(&self) {
        self.0.store(IDLE, Ordering::Relaxed);
    }

    /// The answer's body, with the end of which the answer is complete.
    pub(super) fn settle_with(&self, body: Body) -> Body {
        Body::new(Settling { body, debt: self.clone() })
    }

    fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) != IDLE
    }

    /// All that hyper had is in the socket. Returns whether that was the end of an answer.
    fn flushed(&self) -> bool {
        let sent = self.0.compare_exchange(UNSENT, IDLE, Ordering::Relaxed, Ordering::Relaxed);
        sent.is_ok()
    }
}

/// The body of an answer that is owed.
struct Settling {
    body: Body,
    debt: Debt,
}

impl Drop for Settling {
    fn drop(&mut self) {
        self.debt.0.store(UNSENT, Ordering::Relaxed);
    }
}

impl HttpBody for Settling {
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
pub(super) struct Watched {
    /// What was read of it before.
    head: Bytes,
    stream: Stream,
    patience: Duration,
    /// Set while it takes nothing, and while the rest is read.
    timer: Option<Pin<Box<Sleep>>>,
    stop: CancellationToken,
    /// What may still be read, once nothing is written any more.
    rest: Option<usize>,
    debt: Debt,
}

impl Watched {
    /// Of which `head` was read already.
    pub(super) fn new(
        head: Vec<u8>,
        stream: Stream,
        patience: Duration,
        stop: CancellationToken,
    ) -> Self {
        Self {
            head: head.into(),
            stream,
            patience,
            timer: None,
            stop,
            rest: None,
            debt: Debt::default(),
        }
    }

    /// Whether an answer is owed on this connection, for those that answer.
    pub(super) fn debt(&self) -> Debt {
        self.debt.clone()
    }

    /// Reads what still comes, up to its end or for a moment.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let until = Instant::now() + LINGER;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if timer.as_mut().poll(cx).is_ready() || self.stop.is_cancelled() {
            return Poll::Ready(());
        }
        let mut bytes = [0; 4096];
        while let Some(left @ 1..) = self.rest {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.rest = Some(left.saturating_sub(buffer.filled().len()));
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    /// What a write came to, unless nothing was taken for too long.
    fn watch<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.timer = None;
            return poll;
        }
        // Within TLS a part of what waits may have gone.
        if self.stream.has_taken() {
            self.timer = None;
        }
        let deadline = Instant::now() + self.patience;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.head.is_empty() {
            let bytes = self.head.len().min(buf.remaining());
            buf.put_slice(&self.head.split_to(bytes));
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() == before && self.debt.is_open() {
            // The flush of the answer wakes the task, so that it reads again.
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.watch(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Within TLS what was written waits here.
        let poll = Pin::new(&mut self.stream).poll_flush(cx);
        if poll.is_ready() && self.debt.flushed() {
            cx.waker().wake_by_ref();
        }
        self.watch(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.rest.is_none() {
            let poll = Pin::new(&mut self.stream).poll_shutdown(cx);
            ready!(self.watch(cx, poll))?;
            (self.rest, self.timer) = (Some(LINGER_BYTES_MAX), None);
        }
        self.poll_rest(cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpStream;
    use tokio_rustls::client::TlsStream;

    use super::*;
    use crate::net::tests::pair::{look, pair, read_now};

    /// Of the connection, on a clock that stands still but for `advance`.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// One that is watched, and its other end.
    async fn watched() -> (Watched, TlsStream<TcpStream>) {
        let (stream, far) = pair().await;
        (Watched::new(Vec::new(), stream, PATIENCE, CancellationToken::new()), far)
    }

    /// Writes until nothing more is taken, neither by the socket nor within TLS.
    async fn fill(watched: &mut Watched) {
        let (mut in_vain, bytes) = (0, vec![b'x'; 32 << 10]);
        while in_vain < 10 {
            let before = watched.stream.taken();
            let poll = poll_fn(|cx| Poll::Ready(Pin::new(&mut *watched).poll_write(cx, &bytes)));
            let wrote = poll.await.is_ready();
            look().await;
            in_vain = if wrote || watched.stream.taken() > before { 0 } else { in_vain + 1 };
        }
    }

    #[tokio::test]
    async fn who_takes_nothing_is_given_up_also_when_all_was_written() {
        for is_end in [false, true] {
            let (mut watched, far) = watched().await;
            fill(&mut watched).await;
            // What is left waits within TLS, and nothing more is to be written.
            watched.timer = None;
            tokio::time::pause();
            let ending =
                async { if is_end { watched.shutdown().await } else { watched.flush().await } };
            let given_up = tokio::time::timeout(2 * PATIENCE, ending).await;
            tokio::time::resume();
            let error = given_up.expect("it is watched").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "end: {is_end}");
            drop(far);
        }
    }

    #[tokio::test]
    async fn who_takes_a_little_now_and_then_is_not() {
        let (mut watched, mut far) = watched().await;
        fill(&mut watched).await;
        watched.timer = None;
        tokio::time::pause();
        let (mut rounds, mut bytes) = (0, [0; 512]);
        loop {
            let before = watched.stream.taken();
            let flushed = poll_fn(|cx| Poll::Ready(Pin::new(&mut watched).poll_flush(cx))).await;
            if let Poll::Ready(flushed) = flushed {
                flushed.expect("it takes a little all the time");
                break;
            }
            if watched.stream.taken() > before {
                rounds += 1;
                tokio::time::advance(PATIENCE * 3 / 5).await;
            }
            read_now(&mut far, &mut bytes).await;
        }
        assert!(rounds >= 4, "it took {rounds} rounds: nobody has waited");
        tokio::time::resume();
        drop(far);
    }
}
