//! The parts of a line: decimal numbers, words, and text.

use std::fmt::Display;
use std::io::Write as _;
use std::str::FromStr;

use bytes::BufMut;

use crate::TaskId;

/// Reads a decimal number that consists of digits only.
///
/// `str::parse` alone would accept a `+` in front, and a number must not have two spellings that a
/// person takes for different things. Overflow, an empty text and a sign are `None`.
pub(crate) fn number<T: FromStr>(text: &str) -> Option<T> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// Splits at the first run of spaces and TABs: the first word, and what follows it.
pub(crate) fn first_word(text: &str) -> (&str, &str) {
    let text = trim_blanks_start(text);
    let end = memchr::memchr2(b' ', b'\t', text.as_bytes()).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    (word, trim_blanks_start(rest))
}

fn trim_blanks_start(text: &str) -> &str {
    let blanks = text.bytes().take_while(|byte| BLANK.contains(&char::from(*byte))).count();
    text.split_at(blanks).1
}

/// The words of a text, in order; never an empty one.
pub(crate) fn words(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let (word, rest) = first_word(text);
        text = rest;
        (!word.is_empty()).then_some(word)
    })
}

/// What separates words. All other white space is a control byte, which was refused before.
const BLANK: [char; 2] = [' ', '\t'];

/// Whether a character may stand inside a word on the wire.
pub(crate) fn is_word_char(character: char) -> bool {
    !BLANK.contains(&character) && !character.is_control()
}

/// Appends the parts of one line to a buffer. Allocates only to grow the buffer.
pub(crate) struct LineWriter<'a, B: BufMut>(&'a mut B);

impl<'a, B: BufMut> LineWriter<'a, B> {
    pub(crate) fn new(out: &'a mut B, first: &str) -> Self {
        out.put_slice(first.as_bytes());
        LineWriter(out)
    }

    pub(crate) fn word(self, word: &str) -> Self {
        self.0.put_u8(b' ');
        self.0.put_slice(word.as_bytes());
        self
    }

    /// The free text at the end of a line; writes nothing if it is empty.
    pub(crate) fn text(self, text: &str) -> Self {
        if text.is_empty() { self } else { self.word(text) }
    }

    pub(crate) fn number(self, number: u64) -> Self {
        self.0.put_u8(b' ');
        put_number(number, self.0);
        self
    }

    pub(crate) fn task(self, id: &TaskId) -> Self {
        self.0.put_u8(b' ');
        id.encode(self.0);
        self
    }

    pub(crate) fn option(self, key: &str, value: impl Display) -> Self {
        self.0.put_u8(b' ');
        self.0.put_slice(key.as_bytes());
        self.0.put_u8(b'=');
        self.put(value)
    }

    pub(crate) fn option_if(self, key: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.option(key, value),
            None => self,
        }
    }

    /// Appends this without a space before it.
    pub(crate) fn put(self, value: impl Display) -> Self {
        write!((&mut *self.0).writer(), "{value}").expect("a growing buffer takes every write");
        self
    }

    /// Ends a line of a client.
    pub(crate) fn lf(self) {
        self.0.put_u8(b'\n');
    }

    /// Ends a line of the broker.
    pub(crate) fn crlf(self) {
        self.0.put_slice(b"\r\n");
    }
}

/// Appends a decimal number without going through the formatting machinery.
pub(crate) fn put_number(number: u64, out: &mut impl BufMut) {
    out.put_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    // PROTOCOL: N5
    #[test]
    fn numbers_are_digits_only() {
        assert_eq!(number::<u64>("18446744073709551615"), Some(u64::MAX));
        for text in ["", "+1", "-1", " 1", "1 ", "0x1", "1_0", "18446744073709551616"] {
            assert_eq!(number::<u64>(text), None, "{text:?}");
        }
    }

    #[test]
    fn words_are_separated_by_runs_of_spaces_and_tabs() {
        assert_eq!(first_word(" a \t b c"), ("a", "b c"));
        assert_eq!(first_word("a"), ("a", ""));
        assert_eq!(first_word(""), ("", ""));
        assert_eq!(words("  a\tb  ").collect::<Vec<_>>(), ["a", "b"]);
    }
}
