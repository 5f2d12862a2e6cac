//! Normalizes percent-encoding (RFC 3986, 6.2.2.1 and 6.2.2.2).
//!
//! Only unambiguous forms change: escapes of unreserved characters are undone, once, and all others
//! are written with capitals. `%25` stays, so `%2541` does not become `%41`. A `%` that is no
//! escape cannot become one, see [`EscapeWriter::escape`].

use percent_encoding::{percent_decode, percent_encode_byte};

use super::parts::UrlParts;

/// Whether every `%` of a canonical text begins an escape in its normal form. Also false for a text
/// with a `%` that begins none, which is rare and needs the full check.
pub(super) fn are_normalized(text: &str) -> bool {
    let bytes = text.as_bytes();
    memchr::memchr_iter(b'%', bytes).all(|at| match bytes.get(at..at + ESCAPE_BYTES) {
        Some(escape) => {
            !escape.iter().any(u8::is_ascii_lowercase)
                && escaped_octet(escape).is_some_and(|octet| !is_unreserved(octet))
        }
        None => false,
    })
}

/// The text of a URL with normalized escapes in its path and query, and where its path then ends;
/// `None` if nothing changes.
pub(super) fn normalize(text: &str, parts: UrlParts) -> Option<(String, usize)> {
    let (before, rest) = text.split_at_checked(parts.path_start)?;
    let (path, query) = rest.split_at_checked(parts.path_end - parts.path_start)?;
    if !path.contains('^') && are_normalized(rest) {
        return None;
    }
    let mut writer =
        EscapeWriter { out: String::with_capacity(text.len()), invalid_percent_at: None };
    writer.out.push_str(before);
    // The standard encodes it in a path since 2023; the `url` crate does not yet.
    writer.part(path, Some('^'));
    let path_end = writer.out.len();
    // The `?` separates path and query, so no escape spans both.
    writer.invalid_percent_at = None;
    writer.part(query, None);
    Some((writer.out, path_end))
}

struct EscapeWriter {
    out: String,
    /// The position of the last `%` that begins no escape.
    invalid_percent_at: Option<usize>,
}

impl EscapeWriter {
    fn part(&mut self, mut rest: &str, encoded: Option<char>) {
        let special = |character| character == '%' || Some(character) == encoded;
        while let Some((before, behind)) =
            rest.find(special).and_then(|at| rest.split_at_checked(at))
        {
            self.out.push_str(before);
            rest = behind;
            let taken = match (rest.starts_with('%'), escaped_octet(rest.as_bytes())) {
                (true, Some(octet)) => {
                    self.escape(octet);
                    ESCAPE_BYTES
                }
                (true, None) => {
                    self.invalid_percent_at = Some(self.out.len());
                    self.out.push('%');
                    "%".len()
                }
                (false, _) => {
                    self.out.push_str("%5E");
                    "^".len()
                }
            };
            rest = rest.get(taken..).expect("escapes are ASCII");
        }
        self.out.push_str(rest);
    }

    /// Directly behind a `%` without an escape, decoding a digit would create an escape: `%%34%31`
    /// would become `%41`, and that must not become an `A`. There, an escape stays one.
    fn escape(&mut self, octet: u8) {
        let is_free = self.invalid_percent_at.is_none_or(|at| self.out.len() > at + "%x".len());
        if is_free && is_unreserved(octet) {
            self.out.push(char::from(octet));
        } else {
            self.out.push_str(percent_encode_byte(octet));
        }
    }
}

/// `%` and two hexadecimal digits.
const ESCAPE_BYTES: usize = 3;

/// The octet of the escape at the beginning of a text: `%` and two hexadecimal digits, of either
/// case. `None`: the text does not begin with an escape.
pub fn escaped_octet(text: &[u8]) -> Option<u8> {
    let mut octets =
        percent_decode(text.get(..ESCAPE_BYTES).filter(|text| text.starts_with(b"%"))?);
    let octet = octets.next()?;
    // Only an escape decodes three bytes to one.
    octets.next().is_none().then_some(octet)
}

fn is_unreserved(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'.' | b'_' | b'~')
}
