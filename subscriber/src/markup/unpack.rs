//! Documents that are compressed as files are, whatever was said of them when they were sent.

use std::fmt;
use std::io::Write;

use flate2::write::MultiGzDecoder;

use crate::config::GZIP_STEP_BYTES;

/// Takes the gzip off a document, if there is one.
pub(crate) struct Unpacker(State);

enum State {
    /// Less than the two bytes by which gzip is known.
    Head(Vec<u8>),
    Plain,
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    /// What follows is no gzip.
    Damaged,
    /// Nobody wants more.
    Ended,
}

/// Takes what was unpacked, a bounded piece at a time, and says whether it wants more.
pub(crate) type Take<'a> = &'a mut dyn FnMut(&[u8]) -> bool;

impl fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unpacker").finish_non_exhaustive()
    }
}

impl Unpacker {
    pub(crate) fn new() -> Self {
        Self(State::Head(Vec::new()))
    }

    /// Takes the next bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8], take: Take<'_>) {
        let State::Head(head) = &mut self.0 else {
            self.unpack(bytes, take);
            return;
        };
        head.extend_from_slice(bytes);
        if head.len() >= 2 {
            self.begin(take);
        }
    }

    /// The document is over.
    pub(crate) fn finish(&mut self, take: Take<'_>) {
        self.begin(take);
        if let State::Gzip(decoder) = &mut self.0 {
            let is_whole = decoder.try_finish().is_ok();
            take(decoder.get_ref());
            self.0 = if is_whole { State::Ended } else { State::Damaged };
        }
    }

    /// Something was missing, or was no gzip.
    pub(crate) fn is_damaged(&self) -> bool {
        matches!(self.0, State::Damaged)
    }

    fn begin(&mut self, take: Take<'_>) {
        let State::Head(head) = &mut self.0 else { return };
        let head = std::mem::take(head);
        self.0 = if head.starts_with(&[0x1f, 0x8b]) {
            State::Gzip(Box::new(MultiGzDecoder::new(Vec::new())))
        } else {
            State::Plain
        };
        self.unpack(&head, take);
    }

    fn unpack(&mut self, bytes: &[u8], take: Take<'_>) {
        if let State::Plain = self.0 {
            if !take(bytes) {
                self.0 = State::Ended;
            }
            return;
        }
        for step in bytes.chunks(GZIP_STEP_BYTES) {
            let State::Gzip(decoder) = &mut self.0 else { return };
            let is_gzip = decoder.write_all(step).is_ok();
            let wants_more = take(&std::mem::take(decoder.get_mut()));
            if !is_gzip {
                self.0 = State::Damaged;
            } else if !wants_more {
                self.0 = State::Ended;
            }
        }
    }
}
