//! Content codings: what comes is fed, what it means is pulled, a bounded piece at a time. Pure.

use std::io;

use bytes::{Buf, Bytes};
use compression_codecs::core::util::{PartialBuffer, WriteBuffer};
use compression_codecs::zstd::params::DParameter;
use compression_codecs::{
    BrotliDecoder, DecodeV2, DeflateDecoder, GzipDecoder, ZlibDecoder, ZstdDecoder,
};
use hyper::HeaderMap;
use hyper::header::CONTENT_ENCODING;

use crate::config::{
    CONTENT_ENCODINGS_MAX, DECODED_CHUNK_BYTES, ZSTD_EMPTY_FRAMES_MAX, ZSTD_WINDOW_LOG_MAX,
};
use crate::outcome::{Failure, Reason};

/// Undoes the codings of a body, the last one first.
pub(super) struct Decoder {
    /// In the order in which bytes go through them; never empty.
    stages: Vec<Stage>,
    out: Box<[u8]>,
}

struct Stage {
    encoding: Encoding,
    /// From the first byte on: an empty body has no coding, whatever the header says.
    codec: Option<Box<dyn DecodeV2 + Send>>,
    /// Not decoded yet.
    input: Bytes,
    ended: bool,
    /// What it remembers at most of what it has given; 0: next to nothing.
    window_bytes: usize,
    given_bytes: usize,
    /// Frames one after the other in which there was nothing.
    empty_frames: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Gzip,
    Brotli,
    Zstd,
    Deflate,
}

impl Decoder {
    /// `None` if there is nothing to do. Fails for codings that were not asked for and are not known.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Self>, Failure> {
        let mut stages = Vec::new();
        for value in headers.get_all(CONTENT_ENCODING) {
            for word in String::from_utf8_lossy(value.as_bytes()).split(',') {
                let encoding = match word.trim().to_ascii_lowercase().as_str() {
                    "" | "identity" | "none" => continue,
                    "gzip" | "x-gzip" => Encoding::Gzip,
                    "br" => Encoding::Brotli,
                    "zstd" => Encoding::Zstd,
                    "deflate" => Encoding::Deflate,
                    other => {
                        let other: String = other.escape_debug().take(40).collect();
                        let text = format!("content-encoding {other} is not supported");
                        return Err(Failure::new(Reason::Encoding, text));
                    }
                };
                if stages.len() == CONTENT_ENCODINGS_MAX {
                    let text = format!("more than {CONTENT_ENCODINGS_MAX} content-encodings");
                    return Err(Failure::new(Reason::Encoding, text));
                }
                stages.push(Stage::new(encoding));
            }
        }
        if stages.is_empty() {
            return Ok(None);
        }
        // They are named in the order in which they were applied.
        stages.reverse();
        Ok(Some(Self { stages, out: vec![0; DECODED_CHUNK_BYTES].into_boxed_slice() }))
    }

    /// Gives the next bytes as they came, when nothing can be pulled any more.
    pub(super) fn feed(&mut self, chunk: Bytes) {
        self.stages[0].input = chunk;
    }

    /// Decodes the next piece and says how long it is; `None` if more has to be fed first. To be
    /// called again and again, also after the last feed.
    pub(super) fn pull(&mut self) -> Result<Option<usize>, Failure> {
        // From the end: a stage is empty before it is given more.
        let last = self.stages.len() - 1;
        let mut index = last;
        loop {
            let length = self.stages[index]
                .decode(&mut self.out)
                .map_err(|error| Failure::of(Reason::Encoding, &error).within("body: "))?;
            if length > 0 && index == last {
                return Ok(Some(length));
            } else if length > 0 {
                index += 1;
                self.stages[index].input = Bytes::copy_from_slice(&self.out[..length]);
            } else if index == 0 {
                return Ok(None);
            } else {
                index -= 1;
            }
        }
    }

    /// Whatever else is fed has no meaning.
    pub(super) fn is_over(&self) -> bool {
        // Frames of zstd may follow each other.
        self.stages[0].ended && self.stages[0].encoding != Encoding::Zstd
    }

    /// What it holds in memory by now, beside some dozens of KiB.
    pub(super) fn held_bytes(&self) -> usize {
        self.stages.iter().map(|stage| stage.window_bytes.min(stage.given_bytes)).sum()
    }

    /// What it may hold in memory.
    pub(super) fn windows_bytes(&self) -> usize {
        self.stages.iter().map(|stage| stage.window_bytes).sum()
    }

    /// The piece that was pulled last.
    pub(super) fn pulled(&self, length: usize) -> &[u8] {
        &self.out[..length]
    }

    /// No more will be fed, and nothing more be pulled.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        if self.stages.iter().all(|stage| stage.ended || stage.codec.is_none()) {
            return Ok(());
        }
        Err(Failure::new(Reason::Truncated, "body: it ends before its encoding does"))
    }
}

impl Stage {
    fn new(encoding: Encoding) -> Self {
        Self {
            encoding,
            codec: None,
            input: Bytes::new(),
            ended: false,
            window_bytes: 0,
            given_bytes: 0,
            empty_frames: 0,
        }
    }

    /// The length of what it wrote; 0 if it needs more input.
    fn decode(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.ended && self.encoding == Encoding::Zstd && !self.input.is_empty() {
                // Frames may follow each other.
                self.ended = false;
                self.empty_frames += 1;
                if self.empty_frames > ZSTD_EMPTY_FRAMES_MAX {
                    return Err(io::Error::other("too many empty frames"));
                }
                if let Some(codec) = &mut self.codec {
                    codec.reinit()?;
                }
            }
            if self.ended {
                // What follows has no meaning; browsers ignore it, too.
                self.input.clear();
                return Ok(0);
            }
            let Some(&first) = self.input.first() else { return Ok(self.drain(out)) };
            if self.codec.is_none() {
                self.window_bytes = self.encoding.window_bytes(first)?;
            }
            let codec = self.codec.get_or_insert_with(|| self.encoding.codec(first));
            let mut input = PartialBuffer::new(&*self.input);
            let mut output = WriteBuffer::new_initialized(out);
            self.ended = codec.decode(&mut input, &mut output)?;
            let (read, written) = (input.written_len(), output.written_len());
            self.input.advance(read);
            if written > 0 {
                self.given_bytes = self.given_bytes.saturating_add(written);
                self.empty_frames = 0;
                return Ok(written);
            }
            if read == 0 && !self.ended {
                return Err(io::Error::other("the decoder makes no progress"));
            }
        }
    }

    /// What did not fit into `out` before.
    fn drain(&mut self, out: &mut [u8]) -> usize {
        let Some(codec) = &mut self.codec else { return 0 };
        let mut output = WriteBuffer::new_initialized(out);
        // Without input, to have nothing to give is an error for some.
        if let Ok(ended) = codec.decode(&mut PartialBuffer::new(&[]), &mut output) {
            self.ended = ended;
        }
        output.written_len()
    }
}

impl Encoding {
    /// Beyond some dozens of KiB. Fails for more than the format may have.
    fn window_bytes(self, first: u8) -> io::Result<usize> {
        match self {
            Self::Gzip | Self::Deflate => Ok(0),
            Self::Zstd => Ok(1 << ZSTD_WINDOW_LOG_MAX),
            Self::Brotli => brotli_window_log(first)
                .map(|log| 1 << log)
                .ok_or_else(|| io::Error::other("a window over the limit")),
        }
    }

    fn codec(self, first: u8) -> Box<dyn DecodeV2 + Send> {
        match self {
            Self::Gzip => Box::new(GzipDecoder::new()),
            Self::Brotli => Box::new(BrotliDecoder::new()),
            Self::Zstd => {
                let window = DParameter::window_log_max(ZSTD_WINDOW_LOG_MAX);
                Box::new(ZstdDecoder::new_with_params(&[window]))
            }
            // RFC 9110 means the zlib format; some servers send what is in it without its header.
            Self::Deflate if first & 0x0f == 8 => Box::new(ZlibDecoder::new()),
            Self::Deflate => Box::new(DeflateDecoder::new()),
        }
    }
}

/// Of the first byte of a stream (RFC 7932 section 9.1). `None`: a window beyond the format, up to 1 GiB, which the decoder
/// knows, too.
fn brotli_window_log(first: u8) -> Option<u32> {
    let bits = |from: u32, mask: u8| u32::from(first >> from & mask);
    match (bits(0, 1), bits(1, 7), bits(4, 7)) {
        (0, ..) => Some(16),
        (_, 0, 0) => Some(17),
        (_, 0, 1) => None,
        (_, 0, small) => Some(8 + small),
        (_, large, _) => Some(17 + large),
    }
}
