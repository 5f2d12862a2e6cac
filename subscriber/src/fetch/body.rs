//! Reads the body of a response: with time limits, copied if it is kept, and decoded.

#![expect(clippy::disallowed_methods, reason = "timers detect silent and slow servers")]

use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::body::{Body as _, Incoming};
use tokio::time::Instant;

use super::decode::Decoder;
use super::watch::{Late, Watch};
use super::wire::Http;
use crate::config::{
    DECODED_RATIO_FROM_BYTES, DECODED_RATIO_MAX, SLOW_BYTES_PER_SECOND, SLOW_WINDOW,
    UNWANTED_BODY_BYTES_MAX, WINDOW_FREE_BYTES,
};
use crate::outcome::{Failure, Reason};
use crate::room::{Room, Share};
use crate::spool::Spool;

/// A body as received: without its transfer coding, still with its content coding.
pub(super) struct Raw<'a> {
    http: &'a mut Http,
    incoming: Incoming,
    read_timeout: Duration,
    /// The destination of a copy.
    pub(super) spool: Option<Spool>,
    pub(super) bytes: u64,
    /// The body was read to its end.
    pub(super) ended: bool,
    heard_at: Instant,
    window_from: Instant,
    /// Bytes since `window_from`.
    window_bytes: u64,
}

/// A decoded body.
pub(super) struct Body<'a, 'b> {
    raw: &'a mut Raw<'b>,
    /// `None` if the body is not encoded.
    decoder: Option<Decoder>,
    /// Limit of encoded bytes. The caller counts the decoded ones.
    wire_bytes_max: u64,
    room: &'a Room,
    /// Memory for decompression windows, once they are large.
    share: Option<Share>,
    chunk: Bytes,
    decoded_bytes: u64,
}

/// What a request was waiting for when it timed out.
const NO_ROOM: &str = "waiting for memory that other documents use: ";

/// The failure of a body over the limit.
pub(super) fn over(bytes_max: u64) -> Failure {
    Failure::new(Reason::TooLarge, format!("body over the limit of {bytes_max} bytes"))
}

/// Writes what does not fit into memory to a file. Waits for the disk, up to the deadline of the
/// request.
pub(super) async fn write_to_file(
    spool: &mut Spool,
    bytes: &[u8],
    timer: &mut Watch<'_>,
) -> Result<(), Failure> {
    // Boxed because it is seldom needed.
    let written = timer.finish(Box::pin(spool.write_to_file(bytes))).await;
    let written = written.map_err(|failure| Failure::new(Reason::Storage, failure.text))?;
    written.map_err(|error| Failure::of(Reason::Storage, &error))
}

impl<'a> Raw<'a> {
    pub(super) fn new(
        http: &'a mut Http,
        incoming: Incoming,
        read_timeout: Duration,
        spool: Option<Spool>,
    ) -> Self {
        let now = Instant::now();
        let (heard_at, window_from) = (now, now);
        let (bytes, ended, window_bytes) = (0, false, 0);
        Self {
            http,
            incoming,
            read_timeout,
            spool,
            bytes,
            ended,
            heard_at,
            window_from,
            window_bytes,
        }
    }

    /// The next bytes; `None` at the end.
    pub(super) async fn next(&mut self, timer: &mut Watch<'_>) -> Result<Option<Bytes>, Failure> {
        // Without this, a fast server could keep the task from yielding.
        tokio::task::consume_budget().await;
        let chunk = loop {
            let silent_at = self.heard_at + self.read_timeout;
            let window_ends = self.window_from + SLOW_WINDOW;
            let chunk = self.http.chunk(&mut self.incoming);
            match timer.wait(silent_at.min(window_ends), chunk).await? {
                Ok(chunk) => break chunk?,
                Err(Late) if silent_at <= window_ends => {
                    let text = format!("body: silent for {:?}", self.read_timeout);
                    return Err(Failure::new(Reason::Silent, text));
                }
                Err(Late) if self.window_bytes < SLOW_BYTES_PER_SECOND * SLOW_WINDOW.as_secs() => {
                    let text = format!("body: {} bytes in {SLOW_WINDOW:?}", self.window_bytes);
                    return Err(Failure::new(Reason::Slow, text));
                }
                Err(Late) => (self.window_from, self.window_bytes) = (Instant::now(), 0),
            }
        };
        let Some(chunk) = chunk else {
            self.ended = true;
            return Ok(None);
        };
        self.heard_at = Instant::now();
        self.bytes += chunk.len() as u64;
        self.window_bytes += chunk.len() as u64;
        if let Some(spool) = &mut self.spool
            && !spool.write_to_memory(&chunk)
        {
            write_to_file(spool, &chunk, timer).await?;
            self.listen_again();
        }
        Ok(Some(chunk))
    }

    /// Restarts the timers after a pause in which nothing was read from the server.
    fn listen_again(&mut self) {
        let now = Instant::now();
        (self.heard_at, self.window_from, self.window_bytes) = (now, now, 0);
    }

    /// The length that the server announced.
    fn announced(&self) -> Option<u64> {
        self.incoming.size_hint().exact()
    }
}

impl<'a, 'b> Body<'a, 'b> {
    /// Fails for unknown encodings that were not requested.
    pub(super) fn open(
        raw: &'a mut Raw<'b>,
        headers: &HeaderMap,
        wire_bytes_max: u64,
        room: &'a Room,
    ) -> Result<Self, Failure> {
        let (decoder, chunk) = (Decoder::of(headers)?, Bytes::new());
        Ok(Self { raw, decoder, wire_bytes_max, room, share: None, chunk, decoded_bytes: 0 })
    }

    /// Fails early if the announced length is over the limit.
    pub(super) fn refuse_over(&self, bytes_max: u64) -> Result<(), Failure> {
        match self.raw.announced() {
            Some(bytes) if bytes > bytes_max && self.decoder.is_none() => Err(over(bytes_max)),
            _ => Ok(()),
        }
    }

    /// The next decoded bytes, at most about 64 KiB; `None` at the end.
    pub(super) async fn next(&mut self, timer: &mut Watch<'_>) -> Result<Option<&[u8]>, Failure> {
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
            if decoder.is_over() {
                // After the end of the encoding there is little data, after which the connection
                // can be reused, or too much.
                let enough = self.raw.bytes + UNWANTED_BODY_BYTES_MAX;
                while self.raw.bytes < enough && self.raw.next(timer).await?.is_some() {}
                return decoder.finish().map(|()| None);
            }
            match self.raw.next(timer).await? {
                Some(_) if self.raw.bytes > self.wire_bytes_max => {
                    return Err(over(self.wire_bytes_max));
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
        if self.share.is_none() && decoder.held_bytes() > WINDOW_FREE_BYTES {
            let share = timer.finish(self.room.windows(decoder.windows_bytes())).await;
            self.share = Some(share.map_err(|failure| failure.within(NO_ROOM))?);
            self.raw.listen_again();
        }
        tokio::task::consume_budget().await;
        Ok(Some(decoder.pulled(length)))
    }

    /// Restarts the timers after a pause in which nothing was read from the server.
    pub(super) fn listen_again(&mut self) {
        self.raw.listen_again();
    }

    /// Waits for memory for the links of a large document.
    pub(super) async fn room_for_links(
        &mut self,
        bytes: usize,
        timer: &mut Watch<'_>,
    ) -> Result<Share, Failure> {
        // Each request reserves memory for windows before memory for links; otherwise two could
        // wait for each other.
        let windows_bytes = self.decoder.as_ref().map_or(0, Decoder::windows_bytes);
        if self.share.is_none() && windows_bytes > WINDOW_FREE_BYTES {
            let share = timer.finish(self.room.windows(windows_bytes)).await;
            self.share = Some(share.map_err(|failure| failure.within(NO_ROOM))?);
        }
        let share = timer.finish(self.room.links(bytes)).await;
        self.raw.listen_again();
        share.map_err(|failure| failure.within(NO_ROOM))
    }
}
