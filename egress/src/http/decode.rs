//! Decodes content codings: encoded bytes are fed in, and decoded bytes are pulled out in limited
//! pieces. Pure.

use std::io;

use bytes::{Buf, Bytes};
use compression_codecs::core::util::{PartialBuffer, WriteBuffer};
use compression_codecs::{BrotliDecoder, DecodeV2, DeflateDecoder, GzipDecoder, ZlibDecoder};
use hyper::HeaderMap;
use hyper::header::CONTENT_ENCODING;

use crate::failure::{Failure, Reason};

/// A body that grows more than this many times while it is decoded is a decompression bomb, as in
/// the parsers of packed documents ..
pub const DECODED_RATIO_MAX: u64 = 250;
/// .. but only from this size on: small pages of one repeated byte are harmless.
pub(super) const DECODED_RATIO_FROM_BYTES: u64 = 4 * 1024 * 1024;
/// Bytes taken from a decoder at a time.
const DECODED_CHUNK_BYTES: usize = 16 * 1024;
/// Nested content codings.
const CONTENT_ENCODINGS_MAX: usize = 2;
/// The largest window of brotli.
const BROTLI_WINDOW_BYTES_MAX: usize = 1 << 24;
/// Members of gzip without content in a row: each costs more than its bytes.
const EMPTY_MEMBERS_MAX: u32 = 100;
/// Codings that are not decoded: those that IANA lists, and some that are in use beside them.
const UNSUPPORTED: &[&str] = &[
    "aes128gcm",
    "bzip2",
    "compress",
    "dcb",
    "dcz",
    "exi",
    "lzma",
    "pack200-gzip",
    "sdch",
    "x-bzip2",
    "x-compress",
    "xz",
    "zstd",
];

/// Undoes the codings of a body, the last one first.
pub(super) struct ContentDecoder {
    /// In the order in which bytes pass through them; never empty.
    stages: Vec<DecodeStage>,
    out: Box<[u8]>,
}

struct DecodeStage {
    encoding: ContentCoding,
    /// Created with the first byte: an empty body has no coding, even if the header names one.
    codec: Option<Box<dyn DecodeV2 + Send>>,
    /// Bytes that are not decoded yet.
    input: Bytes,
    /// After the end of a member; another one may follow ..
    ended: bool,
    /// .. unless other data did, which is ignored.
    is_closed: bool,
    /// The largest window of past output; 0: almost none. The limit until the first byte is known.
    window_bytes: usize,
    output_bytes: usize,
    /// Consecutive empty members.
    empty_members: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContentCoding {
    Gzip,
    Brotli,
    Deflate,
}

impl ContentDecoder {
    /// `None` if the body is not encoded. Fails for codings that were not requested.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Self>, Failure> {
        let mut stages = Vec::new();
        for value in headers.get_all(CONTENT_ENCODING) {
            for word in String::from_utf8_lossy(value.as_bytes()).split(',') {
                let encoding = match word.trim().to_ascii_lowercase().as_str() {
                    "gzip" | "x-gzip" => ContentCoding::Gzip,
                    "br" => ContentCoding::Brotli,
                    "deflate" => ContentCoding::Deflate,
                    other if UNSUPPORTED.contains(&other) => {
                        let text = format!("content-encoding {other} is not supported");
                        return Err(Failure::new(Reason::Encoding, text));
                    }
                    // `identity`, or no coding at all, such as a charset: the body is read as it
                    // came, as in browsers.
                    _ => continue,
                };
                if stages.len() == CONTENT_ENCODINGS_MAX {
                    let text = format!("more than {CONTENT_ENCODINGS_MAX} content-encodings");
                    return Err(Failure::new(Reason::Encoding, text));
                }
                stages.push(DecodeStage::new(encoding));
            }
        }
        if stages.is_empty() {
            return Ok(None);
        }
        // Headers list the codings in the order of their application.
        stages.reverse();
        Ok(Some(Self { stages, out: vec![0; DECODED_CHUNK_BYTES].into_boxed_slice() }))
    }

    /// Sets the next encoded bytes, after everything could be pulled.
    pub(super) fn feed(&mut self, chunk: Bytes) -> Result<(), Failure> {
        self.stages[0].input = chunk;
        self.stages[0].open().map_err(|error| decode_failure(&error))
    }

    /// Whether there are bytes to decode.
    pub(super) fn has_input(&self) -> bool {
        !self.stages[0].input.is_empty()
    }

    /// Decodes the next piece and returns its length; `None` if it needs more input. Call it
    /// repeatedly, also after the last feed.
    pub(super) fn pull(&mut self) -> Result<Option<usize>, Failure> {
        // From the last stage: a stage must be empty before it receives more.
        let last = self.stages.len() - 1;
        let mut index = last;
        loop {
            let stage = &mut self.stages[index];
            let length = stage.decode(&mut self.out).map_err(|error| decode_failure(&error))?;
            stage.output_bytes = stage.output_bytes.saturating_add(length);
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

    /// Whether any further input is ignored.
    pub(super) fn has_ended(&self) -> bool {
        self.stages[0].is_closed
    }

    /// The memory that it uses when everything was pulled, apart from some dozens of KiB.
    pub(super) fn memory_bytes(&self) -> usize {
        self.stages.iter().map(|stage| stage.window_bytes.min(stage.output_bytes)).sum()
    }

    /// The most memory that it may use.
    pub(super) fn window_bytes_max(&self) -> usize {
        self.stages.iter().map(|stage| stage.window_bytes).sum()
    }

    /// The last piece.
    pub(super) fn output(&self, length: usize) -> &[u8] {
        &self.out[..length]
    }

    /// Checks that the codings are complete, after all input was fed and pulled.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        if self.stages.iter().all(|stage| stage.ended || stage.codec.is_none()) {
            return Ok(());
        }
        Err(Failure::new(Reason::Truncated, "body: it ends before its encoding does"))
    }
}

fn decode_failure(error: &io::Error) -> Failure {
    Failure::of(Reason::Encoding, error).with_context("body: ")
}

impl DecodeStage {
    fn new(encoding: ContentCoding) -> Self {
        Self {
            encoding,
            codec: None,
            input: Bytes::new(),
            ended: false,
            is_closed: false,
            window_bytes: if encoding == ContentCoding::Brotli {
                BROTLI_WINDOW_BYTES_MAX
            } else {
                0
            },
            output_bytes: 0,
            empty_members: 0,
        }
    }

    /// Decodes into `out` and returns the length; 0 if it needs more input.
    fn decode(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(&first) = self.input.first() else {
                return Ok(if self.ended { 0 } else { self.drain(out) });
            };
            if self.ended {
                // Other trailing data is ignored, as in browsers.
                self.is_closed |= self.encoding != ContentCoding::Gzip || first != 0x1f;
                if self.is_closed {
                    self.input.clear();
                    return Ok(0);
                }
                self.begin_member()?;
            }
            self.open()?;
            let Some(codec) = &mut self.codec else { return Ok(0) };
            let mut input = PartialBuffer::new(&*self.input);
            let mut output = WriteBuffer::new_initialized(out);
            self.ended = codec.decode(&mut input, &mut output)?;
            let (read, written) = (input.written_len(), output.written_len());
            self.input.advance(read);
            if written > 0 {
                self.empty_members = 0;
                return Ok(written);
            }
            if read == 0 && !self.ended {
                return Err(io::Error::other("the decoder makes no progress"));
            }
        }
    }

    /// Creates the decoder, once the first byte is known.
    fn open(&mut self) -> io::Result<()> {
        if let (None, Some(&first)) = (&self.codec, self.input.first()) {
            self.window_bytes = self.encoding.window_bytes(first)?;
            self.codec = Some(self.encoding.codec(first));
        }
        Ok(())
    }

    fn begin_member(&mut self) -> io::Result<()> {
        self.ended = false;
        self.empty_members += 1;
        if self.empty_members > EMPTY_MEMBERS_MAX {
            return Err(io::Error::other("too many empty members"));
        }
        self.codec.as_mut().map_or(Ok(()), |codec| codec.reinit())
    }

    /// Output that did not fit into `out` before.
    fn drain(&mut self, out: &mut [u8]) -> usize {
        let Some(codec) = &mut self.codec else { return 0 };
        let mut output = WriteBuffer::new_initialized(out);
        // Without input, some codecs report an error if no output is left.
        if let Ok(ended) = codec.decode(&mut PartialBuffer::new(&[]), &mut output) {
            self.ended = ended;
        }
        output.written_len()
    }
}

impl ContentCoding {
    /// The window size beyond some dozens of KiB. Fails for a window over the limit of the format.
    fn window_bytes(self, first: u8) -> io::Result<usize> {
        match self {
            Self::Gzip | Self::Deflate => Ok(0),
            Self::Brotli => brotli_window_log(first)
                .map(|log| 1 << log)
                .ok_or_else(|| io::Error::other("the window is over the limit")),
        }
    }

    fn codec(self, first: u8) -> Box<dyn DecodeV2 + Send> {
        match self {
            Self::Gzip => Box::new(GzipDecoder::new()),
            Self::Brotli => Box::new(BrotliDecoder::new()),
            // RFC 9110 means the zlib format; some servers send raw deflate without its header.
            Self::Deflate if first & 0x0f == 8 => Box::new(ZlibDecoder::new()),
            Self::Deflate => Box::new(DeflateDecoder::new()),
        }
    }
}

/// The window size from the first byte of a stream (RFC 7932 section 9.1). `None`: a window of up
/// to 1 GiB, which the format forbids and the decoder supports.
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
