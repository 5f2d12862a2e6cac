//! Reads the body of a response: with time limits, copied if it is kept, and decoded.

#![expect(clippy::disallowed_methods, reason = "timers detect silent and slow servers")]

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use tokio::time::Instant;

use super::DISCARDED_BODY_BYTES_MAX;
use super::decode::{ContentDecoder, DECODED_RATIO_FROM_BYTES, DECODED_RATIO_MAX};
use super::http_connection::HttpConnection;
use super::request_timer::{Elapsed, RequestTimer};
use crate::connect::AddressPermit;
use crate::failure::{Failure, Reason};
use crate::memory_budget::{MemoryBudget, MemoryPermit};

/// A body must arrive at this rate, on the average of each `SLOW_WINDOW`: a server that trickles
/// bytes would hold a connection for nothing.
pub const SLOW_BYTES_PER_SECOND: u64 = 64;
/// See `SLOW_BYTES_PER_SECOND`. Longer than a short stall.
pub const SLOW_WINDOW: Duration = Duration::from_secs(30);
/// Memory of a decoder's window that needs no permit of `WINDOWS_BUDGET_BYTES` while the decoder
/// waits for the server. Most pages are shorter. While it decodes, it has a permit: brotli may fill
/// its window before there is output.
const WINDOW_FREE_BYTES: usize = 256 * 1024;

/// Receives a copy of a body as it arrives.
pub trait BodyCopy {
    /// Appends bytes if that needs no waiting, which is the usual case.
    fn try_append(&mut self, bytes: &[u8]) -> bool;

    /// Appends bytes, and waits for the disk.
    fn append(&mut self, bytes: &[u8]) -> impl Future<Output = io::Result<()>> + Send;
}

/// A body as received: without its transfer coding, still with its content coding.
pub struct RawBody<C> {
    http: HttpConnection,
    /// The permit for the address.
    permit: Option<AddressPermit>,
    incoming: Incoming,
    /// Bytes that are missing of a body with a length, if only the end of the connection would end
    /// it for hyper.
    missing_bytes: Option<u64>,
    read_timeout: Duration,
    /// The destination of a copy.
    pub copy: Option<C>,
    bytes: u64,
    has_ended: bool,
    last_read_at: Instant,
    window_start: Instant,
    /// Bytes since `window_start`.
    window_bytes: u64,
}

/// A decoded body.
pub struct DecodedBody<'a, C> {
    raw: &'a mut RawBody<C>,
    /// `None` if the body is not encoded.
    decoder: Option<ContentDecoder>,
    /// Limit of encoded bytes. The caller counts the decoded ones.
    wire_bytes_max: u64,
    windows_budget: &'a MemoryBudget,
    /// Memory for decompression windows, while they may be large.
    memory_permit: Option<MemoryPermit>,
    /// The request holds a permit of another budget, so it keeps this one: otherwise two requests
    /// could wait for each other.
    keeps_memory: bool,
    chunk: Bytes,
    decoded_bytes: u64,
}

/// The failure of a body over the limit.
pub fn too_large(bytes_max: u64) -> Failure {
    Failure::new(Reason::TooLarge, format!("body over the limit of {bytes_max} bytes"))
}

/// Waits for the disk that receives a copy, up to the deadline of the request.
pub async fn append_copy(
    copy: &mut impl BodyCopy,
    bytes: &[u8],
    timer: &mut RequestTimer<'_>,
) -> Result<(), Failure> {
    // Boxed because it is seldom needed.
    let written = timer.run(Box::pin(copy.append(bytes))).await;
    let written = written.map_err(|failure| Failure::new(Reason::Storage, failure.text))?;
    written.map_err(|error| Failure::of(Reason::Storage, &error))
}

impl<C> RawBody<C> {
    pub(super) fn new(
        http: HttpConnection,
        permit: Option<AddressPermit>,
        (headers, incoming): (&HeaderMap, Incoming),
        read_timeout: Duration,
    ) -> Self {
        let now = Instant::now();
        Self {
            http,
            permit,
            missing_bytes: ignored_length(headers).filter(|_| !incoming.is_end_stream()),
            incoming,
            read_timeout,
            copy: None,
            bytes: 0,
            has_ended: false,
            last_read_at: now,
            window_start: now,
            window_bytes: 0,
        }
    }

    /// Bytes that were read.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it was read to its end.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(super) fn remote(&self) -> Option<SocketAddr> {
        self.http.remote
    }

    /// The connection, if the body was read to its end. Returns the permit for the address.
    pub(super) fn into_connection(self) -> Option<HttpConnection> {
        drop(self.permit);
        self.has_ended.then_some(self.http)
    }

    /// Restarts the timers after a pause in which nothing was read from the server.
    fn restart_timers(&mut self) {
        let now = Instant::now();
        (self.last_read_at, self.window_start, self.window_bytes) = (now, now, 0);
    }

    /// The length that the server announced.
    fn announced_bytes(&self) -> Option<u64> {
        self.incoming.size_hint().exact().or(self.missing_bytes)
    }
}

impl<C: BodyCopy> RawBody<C> {
    /// Reads an unwanted body so that the connection can be reused. An error, or a body that is too
    /// long, only costs the connection.
    pub async fn discard(&mut self, timer: &mut RequestTimer<'_>) -> Result<(), Failure> {
        while self.bytes < DISCARDED_BODY_BYTES_MAX && self.next(timer).await?.is_some() {}
        Ok(())
    }

    /// The next bytes; `None` at the end.
    async fn next(&mut self, timer: &mut RequestTimer<'_>) -> Result<Option<Bytes>, Failure> {
        if self.missing_bytes == Some(0) {
            self.has_ended = true;
            return Ok(None);
        }
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
        let Some(mut chunk) = chunk else {
            if self.missing_bytes.is_some() {
                let text = "body: the connection ended before the announced length";
                return Err(Failure::new(Reason::Truncated, text));
            }
            self.has_ended = true;
            return Ok(None);
        };
        if let Some(missing) = &mut self.missing_bytes {
            chunk.truncate(usize::try_from(*missing).unwrap_or(usize::MAX));
            *missing -= chunk.len() as u64;
        }
        self.last_read_at = Instant::now();
        self.bytes += chunk.len() as u64;
        self.window_bytes += chunk.len() as u64;
        if let Some(copy) = &mut self.copy
            && !copy.try_append(&chunk)
        {
            append_copy(copy, &chunk, timer).await?;
            self.restart_timers();
        }
        Ok(Some(chunk))
    }
}

impl<'a, C: BodyCopy> DecodedBody<'a, C> {
    /// Fails for encodings that were not requested.
    pub(super) fn open(
        raw: &'a mut RawBody<C>,
        headers: &HeaderMap,
        wire_bytes_max: u64,
        windows_budget: &'a MemoryBudget,
    ) -> Result<Self, Failure> {
        let (decoder, chunk) = (ContentDecoder::of(headers)?, Bytes::new());
        Ok(Self {
            raw,
            decoder,
            wire_bytes_max,
            windows_budget,
            memory_permit: None,
            keeps_memory: false,
            chunk,
            decoded_bytes: 0,
        })
    }

    /// Fails early if the announced length is over the limit.
    pub fn refuse_announced_over(&self, bytes_max: u64) -> Result<(), Failure> {
        match self.raw.announced_bytes() {
            Some(bytes) if bytes > bytes_max && self.decoder.is_none() => Err(too_large(bytes_max)),
            _ => Ok(()),
        }
    }

    /// The next decoded bytes, at most about 64 KiB; `None` at the end.
    pub async fn next(&mut self, timer: &mut RequestTimer<'_>) -> Result<Option<&[u8]>, Failure> {
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
            let window_bytes = decoder.window_bytes_max();
            if self.memory_permit.is_none()
                && decoder.has_input()
                && window_bytes > WINDOW_FREE_BYTES
            {
                let budget = self.windows_budget;
                self.memory_permit = budget.try_reserve(window_bytes);
                if self.memory_permit.is_none() {
                    self.memory_permit = Some(reserve(budget, window_bytes, timer).await?);
                    self.raw.restart_timers();
                }
            }
            if let Some(length) = decoder.pull()? {
                break length;
            }
            if !self.keeps_memory && decoder.memory_bytes() <= WINDOW_FREE_BYTES {
                self.memory_permit = None;
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
                Some(chunk) => decoder.feed(chunk)?,
                None => return decoder.finish().map(|()| None),
            }
        };
        self.decoded_bytes += length as u64;
        let is_large = self.decoded_bytes > DECODED_RATIO_FROM_BYTES;
        if is_large && self.decoded_bytes / DECODED_RATIO_MAX > self.raw.bytes {
            let text = format!("body grows over {DECODED_RATIO_MAX} times when it is decoded");
            return Err(Failure::new(Reason::Bomb, text));
        }
        tokio::task::consume_budget().await;
        Ok(Some(decoder.output(length)))
    }

    /// Restarts the timers after a pause in which nothing was read from the server.
    pub fn restart_timers(&mut self) {
        self.raw.restart_timers();
    }

    /// Waits for memory of another budget, while the server waits, too. Each request reserves
    /// memory for windows first; otherwise two could wait for each other.
    pub async fn reserve(
        &mut self,
        budget: &MemoryBudget,
        bytes: usize,
        timer: &mut RequestTimer<'_>,
    ) -> Result<MemoryPermit, Failure> {
        let windows_bytes = self.decoder.as_ref().map_or(0, ContentDecoder::window_bytes_max);
        if self.memory_permit.is_none() && windows_bytes > WINDOW_FREE_BYTES {
            self.memory_permit = Some(reserve(self.windows_budget, windows_bytes, timer).await?);
        }
        self.keeps_memory = true;
        let permit = reserve(budget, bytes, timer).await;
        self.raw.restart_timers();
        permit
    }
}

/// The length of a body with a `Transfer-Encoding` that is not `chunked`. hyper ignores it, as RFC
/// 9112 says, and waits for the end of the connection; browsers use it.
fn ignored_length(headers: &HeaderMap) -> Option<u64> {
    let coding = headers.get_all(TRANSFER_ENCODING).iter().next_back()?.to_str().ok()?;
    let is_chunked = coding.rsplit(',').next()?.trim().eq_ignore_ascii_case("chunked");
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next()?.to_str().ok()?.parse().ok()?;
    (!is_chunked && lengths.next().is_none()).then_some(length)
}

async fn reserve(
    budget: &MemoryBudget,
    bytes: usize,
    timer: &mut RequestTimer<'_>,
) -> Result<MemoryPermit, Failure> {
    let reserved = timer.run(budget.reserve(bytes)).await;
    reserved
        .map_err(|failure| failure.with_context("waiting for memory that other documents use: "))
}
