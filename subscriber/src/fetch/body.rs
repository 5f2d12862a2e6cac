//! Reads the body of a response: with time limits, copied if it is kept, and decoded.

#![expect(clippy::disallowed_methods, reason = "timers detect silent and slow servers")]

use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::body::{Body as _, Incoming};
use tidings_egress::failure::{Failure, Reason};
use tokio::time::Instant;

use super::decode::{ContentDecoder, DECODED_RATIO_FROM_BYTES, DECODED_RATIO_MAX};
use super::http_connection::HttpConnection;
use super::request_timer::{Elapsed, RequestTimer};
use crate::fetch::DISCARDED_BODY_BYTES_MAX;
use crate::memory_budget::{MemoryBudget, MemoryPermit};
use crate::spool::Spool;

/// A body must arrive at this rate, on the average of each `SLOW_WINDOW`: a server that trickles
/// bytes would hold a connection for nothing.
pub(crate) const SLOW_BYTES_PER_SECOND: u64 = 64;
/// See `SLOW_BYTES_PER_SECOND`. Longer than a short stall.
pub(crate) const SLOW_WINDOW: Duration = Duration::from_secs(30);
/// Memory of a decoder's window before it needs a permit of `WINDOWS_BUDGET_BYTES`. Most pages
/// are shorter and use no window.
const WINDOW_FREE_BYTES: usize = 256 * 1024;

/// A body as received: without its transfer coding, still with its content coding.
pub(super) struct RawBody<'a> {
    http: &'a mut HttpConnection,
    incoming: Incoming,
    read_timeout: Duration,
    /// The destination of a copy.
    pub(super) spool: Option<Spool>,
    pub(super) bytes: u64,
    /// The body was read to its end.
    pub(super) ended: bool,
    last_read_at: Instant,
    window_start: Instant,
    /// Bytes since `window_start`.
    window_bytes: u64,
}

/// A decoded body.
pub(super) struct DecodedBody<'a, 'b> {
    raw: &'a mut RawBody<'b>,
    /// `None` if the body is not encoded.
    decoder: Option<ContentDecoder>,
    /// Limit of encoded bytes. The caller counts the decoded ones.
    wire_bytes_max: u64,
    memory_budget: &'a MemoryBudget,
    /// Memory for decompression windows, once they are large.
    memory_permit: Option<MemoryPermit>,
    chunk: Bytes,
    decoded_bytes: u64,
}

/// What a request was waiting for when it timed out.
const WAITING_FOR_MEMORY: &str = "waiting for memory that other documents use: ";

/// The failure of a body over the limit.
pub(super) fn too_large(bytes_max: u64) -> Failure {
    Failure::new(Reason::TooLarge, format!("body over the limit of {bytes_max} bytes"))
}

/// Writes what does not fit into memory to a file. Waits for the disk, up to the deadline of the
/// request.
pub(super) async fn write_to_file(
    spool: &mut Spool,
    bytes: &[u8],
    timer: &mut RequestTimer<'_>,
) -> Result<(), Failure> {
    // Boxed because it is seldom needed.
    let written = timer.run(Box::pin(spool.write_to_file(bytes))).await;
    let written = written.map_err(|failure| Failure::new(Reason::Storage, failure.text))?;
    written.map_err(|error| Failure::of(Reason::Storage, &error))
}

impl<'a> RawBody<'a> {
    pub(super) fn new(
        http: &'a mut HttpConnection,
        incoming: Incoming,
        read_timeout: Duration,
        spool: Option<Spool>,
    ) -> Self {
        let now = Instant::now();
        let (last_read_at, window_start) = (now, now);
        let (bytes, ended, window_bytes) = (0, false, 0);
        Self {
            http,
            incoming,
            read_timeout,
            spool,
            bytes,
            ended,
            last_read_at,
            window_start,
            window_bytes,
        }
    }

    /// The next bytes; `None` at the end.
    pub(super) async fn next(
        &mut self,
        timer: &mut RequestTimer<'_>,
    ) -> Result<Option<Bytes>, Failure> {
        // Without this, a fast server could keep the task from yielding.
        tokio::task::consume_budget().await;
        let chunk = loop {
            let silent_at = self.last_read_at + self.read_timeout;
            let window_ends = self.window_start + SLOW_WINDOW;
            let chunk = self.http.chunk(&mut self.incoming);
            match timer.run_until(silent_at.min(window_ends), chunk).await? {
                Ok(chunk) => break chunk?,
                Err(Elapsed) if silent_at <= window_ends => {
                    let text = format!("body: silent for {:?}", self.read_timeout);
                    return Err(Failure::new(Reason::Silent, text));
                }
                Err(Elapsed)
                    if self.window_bytes < SLOW_BYTES_PER_SECOND * SLOW_WINDOW.as_secs() =>
                {
                    let text = format!("body: {} bytes in {SLOW_WINDOW:?}", self.window_bytes);
                    return Err(Failure::new(Reason::Slow, text));
                }
                Err(Elapsed) => (self.window_start, self.window_bytes) = (Instant::now(), 0),
            }
        };
        let Some(chunk) = chunk else {
            self.ended = true;
            return Ok(None);
        };
        self.last_read_at = Instant::now();
        self.bytes += chunk.len() as u64;
        self.window_bytes += chunk.len() as u64;
        if let Some(spool) = &mut self.spool
            && !spool.try_write_to_memory(&chunk)
        {
            write_to_file(spool, &chunk, timer).await?;
            self.restart_timers();
        }
        Ok(Some(chunk))
    }

    /// Restarts the timers after a pause in which nothing was read from the server.
    fn restart_timers(&mut self) {
        let now = Instant::now();
        (self.last_read_at, self.window_start, self.window_bytes) = (now, now, 0);
    }

    /// The length that the server announced.
    fn announced_bytes(&self) -> Option<u64> {
        self.incoming.size_hint().exact()
    }
}

impl<'a, 'b> DecodedBody<'a, 'b> {
    /// Fails for unknown encodings that were not requested.
    pub(super) fn open(
        raw: &'a mut RawBody<'b>,
        headers: &HeaderMap,
        wire_bytes_max: u64,
        room: &'a MemoryBudget,
    ) -> Result<Self, Failure> {
        let (decoder, chunk) = (ContentDecoder::of(headers)?, Bytes::new());
        Ok(Self {
            raw,
            decoder,
            wire_bytes_max,
            memory_budget: room,
            memory_permit: None,
            chunk,
            decoded_bytes: 0,
        })
    }

    /// Fails early if the announced length is over the limit.
    pub(super) fn refuse_announced_over(&self, bytes_max: u64) -> Result<(), Failure> {
        match self.raw.announced_bytes() {
            Some(bytes) if bytes > bytes_max && self.decoder.is_none() => Err(too_large(bytes_max)),
            _ => Ok(()),
        }
    }

    /// The next decoded bytes, at most about 64 KiB; `None` at the end.
    pub(super) async fn next(
        &mut self,
        timer: &mut RequestTimer<'_>,
    ) -> Result<Option<&[u8]>, Failure> {
        let Some(decoder) = &mut self.decoder else {
            // An empty HTTP/2 frame does not end the body.
            while let Some(chunk) = self.raw.next(timer).await? {
                if !chunk.is_empty() {
                    self.chunk = chunk;
                    return Ok(Some(&self.chunk));
                }
            }
            return Ok(None);
        };
        let length = loop {
            if let Some(length) = decoder.pull()? {
                break length;
            }
            if decoder.has_ended() {
                // After the end of the encoding there is little data, after which the connection
                // can be reused, or too much.
                let enough = self.raw.bytes + DISCARDED_BODY_BYTES_MAX;
                while self.raw.bytes < enough && self.raw.next(timer).await?.is_some() {}
                return decoder.finish().map(|()| None);
            }
            match self.raw.next(timer).await? {
                Some(_) if self.raw.bytes > self.wire_bytes_max => {
                    return Err(too_large(self.wire_bytes_max));
                }
                Some(chunk) => decoder.feed(chunk),
                None => return decoder.finish().map(|()| None),
            }
        };
        self.decoded_bytes += length as u64;
        let is_large = self.decoded_bytes > DECODED_RATIO_FROM_BYTES;
        if is_large && self.decoded_bytes / DECODED_RATIO_MAX > self.raw.bytes {
            let text = format!("body grows over {DECODED_RATIO_MAX} times when it is decoded");
            return Err(Failure::new(Reason::Bomb, text));
        }
        if self.memory_permit.is_none() && decoder.memory_bytes() > WINDOW_FREE_BYTES {
            let share = timer.run(self.memory_budget.windows(decoder.window_bytes_max())).await;
            self.memory_permit =
                Some(share.map_err(|failure| failure.with_context(WAITING_FOR_MEMORY))?);
            self.raw.restart_timers();
        }
        tokio::task::consume_budget().await;
        Ok(Some(decoder.output(length)))
    }

    /// Restarts the timers after a pause in which nothing was read from the server.
    pub(super) fn restart_timers(&mut self) {
        self.raw.restart_timers();
    }

    /// Waits for memory for the links of a large document.
    pub(super) async fn reserve_for_links(
        &mut self,
        bytes: usize,
        timer: &mut RequestTimer<'_>,
    ) -> Result<MemoryPermit, Failure> {
        // Each request reserves memory for windows before memory for links; otherwise two could
        // wait for each other.
        let windows_bytes = self.decoder.as_ref().map_or(0, ContentDecoder::window_bytes_max);
        if self.memory_permit.is_none() && windows_bytes > WINDOW_FREE_BYTES {
            let share = timer.run(self.memory_budget.windows(windows_bytes)).await;
            self.memory_permit =
                Some(share.map_err(|failure| failure.with_context(WAITING_FOR_MEMORY))?);
        }
        let share = timer.run(self.memory_budget.links(bytes)).await;
        self.raw.restart_timers();
        share.map_err(|failure| failure.with_context(WAITING_FOR_MEMORY))
    }
}
