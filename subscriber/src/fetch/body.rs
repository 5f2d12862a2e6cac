//! The body of an answer: decoded chunk by chunk, with a limit on how much it may grow.

#![expect(clippy::disallowed_methods, reason = "a silent server is noticed here")]

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_compression::tokio::bufread::{BrotliDecoder, GzipDecoder, ZlibDecoder, ZstdDecoder};
use async_compression::zstd::DParameter;
use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::Response;
use reqwest::header::CONTENT_ENCODING;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt, ReadBuf};
use tokio::time::timeout;

use super::failure::Failure;
use crate::config::{
    DECODED_CHUNK_BYTES, DECODED_RATIO_FROM_BYTES, DECODED_RATIO_MAX, ZSTD_WINDOW_LOG_MAX,
};

/// A body that is being read.
pub(super) struct Body {
    decoder: Pin<Box<dyn AsyncRead + Send>>,
    chunk: Box<[u8]>,
    /// What `Content-Length` says about a body that is not encoded.
    announced: Option<u64>,
    raw_bytes: Arc<AtomicU64>,
    decoded_bytes: u64,
}

/// The bytes as they come from the connection.
struct Raw {
    stream: BoxStream<'static, reqwest::Result<Bytes>>,
    chunk: Bytes,
    bytes: Arc<AtomicU64>,
}

/// Fails for encodings that were not asked for and are not known.
pub(super) fn open(response: Response) -> Result<Body, Failure> {
    let encoding = encoding(&response)?;
    let announced = response.content_length();
    let raw_bytes = Arc::new(AtomicU64::new(0));
    let raw = Raw {
        stream: response.bytes_stream().boxed(),
        chunk: Bytes::new(),
        bytes: Arc::clone(&raw_bytes),
    };
    let decoder: Pin<Box<dyn AsyncRead + Send>> = match encoding {
        None => Box::pin(raw),
        // An empty body has no encoding, whatever the header says.
        Some(_) if announced == Some(0) => Box::pin(raw),
        Some(Encoding::Gzip) => Box::pin(GzipDecoder::new(raw)),
        Some(Encoding::Brotli) => Box::pin(BrotliDecoder::new(raw)),
        Some(Encoding::Deflate) => Box::pin(ZlibDecoder::new(raw)),
        Some(Encoding::Zstd) => {
            let window = DParameter::window_log_max(ZSTD_WINDOW_LOG_MAX);
            Box::pin(ZstdDecoder::with_params(raw, &[window]))
        }
    };
    let announced = announced.filter(|_| encoding.is_none());
    let chunk = vec![0; DECODED_CHUNK_BYTES].into_boxed_slice();
    Ok(Body { decoder, chunk, announced, raw_bytes, decoded_bytes: 0 })
}

/// A body of more than the limit.
pub(super) fn over(bytes_max: u64) -> Failure {
    Failure::permanent(format!("body over the limit of {bytes_max} bytes"))
}

impl Body {
    /// Saves reading what is announced to be too long.
    pub(super) fn refuse_over(&self, bytes_max: u64) -> Result<(), Failure> {
        match self.announced {
            Some(bytes) if bytes > bytes_max => Err(over(bytes_max)),
            _ => Ok(()),
        }
    }

    /// The next decoded bytes; `None` at the end. A server that is silent for `patience` has failed.
    pub(super) async fn next(&mut self, patience: Duration) -> Result<Option<&[u8]>, Failure> {
        // A decoder can go on for long without waiting for anything.
        tokio::task::consume_budget().await;
        let read = timeout(patience, self.decoder.read(&mut self.chunk)).await;
        let read = match read {
            Ok(Ok(read)) => read,
            Ok(Err(error)) if self.is_empty_at_its_end(&error) => 0,
            Ok(Err(error)) => return Err(Failure::of_body(&error)),
            Err(_) => return Err(Failure::transient(format!("body: silent for {patience:?}"))),
        };
        self.decoded_bytes += read as u64;
        let raw_bytes = self.raw_bytes.load(Ordering::Relaxed);
        if self.decoded_bytes > DECODED_RATIO_FROM_BYTES
            && self.decoded_bytes / DECODED_RATIO_MAX > raw_bytes
        {
            return Err(Failure::permanent(format!(
                "body grows over {DECODED_RATIO_MAX} times when it is decoded"
            )));
        }
        Ok((read > 0).then(|| &self.chunk[..read]))
    }

    /// Decoders miss their header in an empty body.
    fn is_empty_at_its_end(&self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::UnexpectedEof && self.raw_bytes.load(Ordering::Relaxed) == 0
    }
}

#[derive(Clone, Copy)]
enum Encoding {
    Gzip,
    Brotli,
    Zstd,
    Deflate,
}

fn encoding(response: &Response) -> Result<Option<Encoding>, Failure> {
    let mut encoding = None;
    for value in response.headers().get_all(CONTENT_ENCODING) {
        for word in String::from_utf8_lossy(value.as_bytes()).split(',') {
            let next = match word.trim().to_ascii_lowercase().as_str() {
                "" | "identity" | "none" => continue,
                "gzip" | "x-gzip" => Encoding::Gzip,
                "br" => Encoding::Brotli,
                "zstd" => Encoding::Zstd,
                "deflate" => Encoding::Deflate,
                other => {
                    let other: String = other.escape_debug().take(40).collect();
                    return Err(Failure::permanent(format!(
                        "content-encoding {other} is not supported"
                    )));
                }
            };
            if encoding.replace(next).is_some() {
                return Err(Failure::permanent("more than one content-encoding is not supported"));
            }
        }
    }
    Ok(encoding)
}

impl AsyncBufRead for Raw {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let raw = self.get_mut();
        while raw.chunk.is_empty() {
            match ready!(raw.stream.poll_next_unpin(context)) {
                Some(Ok(chunk)) => {
                    raw.bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
                    raw.chunk = chunk;
                }
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => break,
            }
        }
        Poll::Ready(Ok(&raw.chunk))
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        self.get_mut().chunk.advance(amount);
    }
}

impl AsyncRead for Raw {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let chunk = ready!(self.as_mut().poll_fill_buf(context))?;
        let length = chunk.len().min(buffer.remaining());
        buffer.put_slice(&chunk[..length]);
        self.consume(length);
        Poll::Ready(Ok(()))
    }
}
