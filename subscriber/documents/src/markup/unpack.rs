//! Decompresses documents that are gzip files, independent of their headers.

use std::io::Write;

use flate2::write::MultiGzDecoder;
use tidings_protocol::partial_debug;

use crate::markup::{DECODED_RATIO_FROM_BYTES, DECODED_RATIO_MAX, DOCUMENT_STEP_BYTES};

/// Decompresses a document if it is gzip.
pub(crate) struct Unpacker(UnpackState);

enum UnpackState {
    /// Fewer than the two bytes that identify gzip.
    Head(Vec<u8>),
    Plain,
    Gzip(Box<GzipState>),
    /// The rest is not read, for this reason.
    Cut(&'static str),
    /// The receiver wants no more.
    Ended,
}

struct GzipState {
    decoder: MultiGzDecoder<Vec<u8>>,
    /// How much of the decoder's output was passed on.
    emitted: usize,
    input_bytes: u64,
    output_bytes: u64,
    /// The rest is not valid gzip.
    damaged: bool,
}

/// Receives decompressed bytes in pieces of at most `DOCUMENT_STEP_BYTES`, and returns whether it
/// wants more.
pub(crate) type PieceSink<'a> = &'a mut dyn FnMut(&[u8]) -> bool;

const DAMAGED: &str = "damaged gzip; the rest was left out";

partial_debug!(Unpacker {});

impl Unpacker {
    pub(crate) fn new() -> Self {
        Self(UnpackState::Head(Vec::new()))
    }

    /// Reads the next bytes until there is one piece of output, and returns whether there may be
    /// another.
    pub(crate) fn step(&mut self, bytes: &mut &[u8], take: PieceSink<'_>) -> bool {
        match &mut self.0 {
            UnpackState::Head(head) => {
                let wanted = 2 - head.len();
                head.extend_from_slice(split_off(bytes, wanted));
                if head.len() == 2 {
                    self.begin(take);
                }
            }
            UnpackState::Plain => {
                if !take(split_off(bytes, DOCUMENT_STEP_BYTES)) {
                    self.0 = UnpackState::Ended;
                }
            }
            UnpackState::Gzip(gzip) => {
                if let Some(over) = gzip.step(bytes, take) {
                    self.0 = over;
                }
            }
            UnpackState::Cut(_) | UnpackState::Ended => *bytes = &[],
        }
        !bytes.is_empty() || matches!(&self.0, UnpackState::Gzip(gzip) if gzip.has_more())
    }

    /// Ends the document.
    pub(crate) fn finish(&mut self, take: PieceSink<'_>) {
        self.begin(take);
        if let UnpackState::Gzip(gzip) = &mut self.0 {
            let is_whole = gzip.decoder.try_finish().is_ok();
            while gzip.has_more() {
                if let Some(over) = gzip.step(&mut &[][..], take) {
                    self.0 = over;
                    return;
                }
            }
            self.0 = if is_whole { UnpackState::Ended } else { UnpackState::Cut(DAMAGED) };
        }
    }

    /// Why not everything was decompressed, if more was wanted.
    pub(crate) fn cut(&self) -> Option<&'static str> {
        match self.0 {
            UnpackState::Cut(why) => Some(why),
            _ => None,
        }
    }

    fn begin(&mut self, take: PieceSink<'_>) {
        let UnpackState::Head(head) = &mut self.0 else { return };
        let head = std::mem::take(head);
        if head.starts_with(&[0x1f, 0x8b]) {
            let mut decoder = MultiGzDecoder::new(Vec::new());
            let damaged = decoder.write_all(&head).is_err();
            let (taken_bytes, given_bytes) = (head.len() as u64, 0);
            self.0 = UnpackState::Gzip(Box::new(GzipState {
                decoder,
                emitted: 0,
                input_bytes: taken_bytes,
                output_bytes: given_bytes,
                damaged,
            }));
        } else {
            self.0 = if take(&head) { UnpackState::Plain } else { UnpackState::Ended };
        }
    }
}

impl GzipState {
    /// Passes on one piece; returns the next state if this was the end.
    fn step(&mut self, bytes: &mut &[u8], take: PieceSink<'_>) -> Option<UnpackState> {
        if !self.has_more() && !bytes.is_empty() && !self.damaged {
            self.decoder.get_mut().clear();
            self.emitted = 0;
            // Produces no more than the decoder's own buffer.
            match self.decoder.write(bytes) {
                Ok(taken @ 1..) => {
                    self.input_bytes += taken as u64;
                    *bytes = &bytes[taken..];
                }
                _ => self.damaged = true,
            }
        }
        let mut rest = &self.decoder.get_ref()[self.emitted..];
        let piece = split_off(&mut rest, DOCUMENT_STEP_BYTES);
        self.emitted += piece.len();
        self.output_bytes += piece.len() as u64;
        let is_large = self.output_bytes > DECODED_RATIO_FROM_BYTES;
        if is_large && self.output_bytes / DECODED_RATIO_MAX > self.input_bytes {
            return Some(UnpackState::Cut("gzip grows too much; the rest was left out"));
        }
        if !piece.is_empty() && !take(piece) {
            return Some(UnpackState::Ended);
        }
        (self.damaged && !self.has_more()).then_some(UnpackState::Cut(DAMAGED))
    }

    fn has_more(&self) -> bool {
        self.emitted < self.decoder.get_ref().len()
    }
}

fn split_off<'a>(bytes: &mut &'a [u8], count_max: usize) -> &'a [u8] {
    let (first, rest) = bytes.split_at(count_max.min(bytes.len()));
    *bytes = rest;
    first
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    /// The pieces of output, and why there were no more.
    fn unpack(bytes: &[u8], chunk: usize) -> (Vec<Vec<u8>>, Option<&'static str>) {
        let (mut pieces, mut unpacker) = (Vec::new(), Unpacker::new());
        let mut take = |piece: &[u8]| {
            pieces.push(piece.to_vec());
            true
        };
        for mut bytes in bytes.chunks(chunk) {
            while unpacker.step(&mut bytes, &mut take) {}
        }
        unpacker.finish(&mut take);
        (pieces, unpacker.cut())
    }

    #[test]
    fn output_comes_in_small_pieces_for_any_input_chunks() {
        let plain: Vec<u8> = (0..300_000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let twice = [gzip(&plain), gzip(&plain)].concat();
        for chunk in [1, 1000, usize::MAX] {
            let (pieces, cut) = unpack(&twice, chunk);
            assert!(pieces.iter().all(|piece| piece.len() <= DOCUMENT_STEP_BYTES));
            assert_eq!((pieces.concat(), cut), (plain.repeat(2), None));
            let (pieces, _) = unpack(&plain, chunk);
            assert!(pieces.iter().all(|piece| piece.len() <= DOCUMENT_STEP_BYTES));
            assert_eq!(pieces.concat(), plain);
        }
    }

    #[test]
    fn a_step_gives_one_piece() {
        let packed = gzip(&vec![b'x'; 1 << 20]);
        let (mut given, mut unpacker, mut rest) = (0, Unpacker::new(), &*packed);
        loop {
            let before = given;
            let more = unpacker.step(&mut rest, &mut |piece| {
                given += piece.len();
                true
            });
            assert!(given - before <= DOCUMENT_STEP_BYTES);
            if !more {
                break;
            }
        }
        assert!(given > 1 << 19, "{given}");
    }

    #[test]
    fn a_file_that_grows_too_much_is_cut() {
        let packed = gzip(&vec![b' '; 20 << 20]);
        let (pieces, cut) = unpack(&packed, usize::MAX);
        assert!(cut.unwrap().starts_with("gzip grows"));
        assert!(pieces.concat().len() < 6 << 20);
    }

    #[test]
    fn data_before_damage_is_kept() {
        let packed = gzip(&vec![b'x'; 100_000]);
        for damaged in [&packed[..packed.len() - 5], &[&*packed, b"garbage"].concat()] {
            let (pieces, cut) = unpack(damaged, 10);
            assert_eq!((pieces.concat().len(), cut), (100_000, Some(DAMAGED)));
        }
    }
}
