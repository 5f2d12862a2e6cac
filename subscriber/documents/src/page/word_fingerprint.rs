//! The fingerprint of the words of a page, which shows whether two copies of the page have the same
//! text.
//!
//! Words with a digit do not count, because times, counters and ids differ from copy to copy. Words
//! end at white space and at tags. Raw text (a script, a title) contains no words.

use super::tag::is_space;

/// Offset basis and prime of FNV-1a.
const START: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// Reads text in any pieces.
#[derive(Debug)]
pub(super) struct WordFingerprint {
    /// The hash of the previous words.
    all: u64,
    /// The hash of the current word so far.
    word: u64,
    has_digit: bool,
}

impl WordFingerprint {
    pub(super) fn new() -> Self {
        Self { all: START, word: START, has_digit: false }
    }

    pub(super) fn feed(&mut self, text: &[u8]) {
        for byte in text {
            if is_space(*byte) {
                self.end_word();
            } else {
                self.has_digit |= byte.is_ascii_digit();
                self.word = (self.word ^ u64::from(*byte)).wrapping_mul(PRIME);
            }
        }
    }

    pub(super) fn end_word(&mut self) {
        if self.word != START && !self.has_digit {
            // The order of the words matters.
            self.all = (self.all.rotate_left(5) ^ self.word).wrapping_mul(PRIME);
        }
        (self.word, self.has_digit) = (START, false);
    }

    pub(super) fn finish(mut self) -> u64 {
        self.end_word();
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(pieces: &[&str]) -> u64 {
        let mut words = WordFingerprint::new();
        for piece in pieces {
            words.feed(piece.as_bytes());
        }
        words.finish()
    }

    #[test]
    fn white_space_pieces_and_words_with_a_digit_do_not_matter() {
        let text = print(&["some words of a page"]);
        assert_eq!(text, print(&["so", "me wor", "ds\n\tof  a", " page "]));
        assert_eq!(text, print(&["some words 12:07 of a 4page page"]));
        for other in ["", "some words of a", "some words of page a", "somewords of a page"] {
            assert_ne!(text, print(&[other]), "{other}");
        }
    }
}
