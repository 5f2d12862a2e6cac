//! Percent-encoding in one form (RFC 3986, 6.2.2.1 and 6.2.2.2).
//!
//! Only what cannot mean two things is changed: escapes of unreserved characters are undone, once,
//! and all others are written with capitals. `%25` stays, so `%2541` does not become `%41`; and a `%`
//! that is no escape cannot become one, see [`Writer::escape`].

use super::parts::Parts;

/// Whether every `%` of a canonical text begins an escape in its normal form. Also false of a text
/// with a `%` that is no escape: such a one is rare, and has to be looked at closely.
pub(super) fn are_normal(text: &str) -> bool {
    let bytes = text.as_bytes();
    memchr::memchr_iter(b'%', bytes).all(|at| match bytes.get(at + 1..at + 3) {
        Some(digits) => {
            !digits.iter().any(u8::is_ascii_lowercase)
                && octet(digits).is_some_and(|octet| !is_unreserved(octet))
        }
        None => false,
    })
}

/// The text of a URL with normal escapes in its path and query, and where its path ends then; `None` if
/// there is nothing to change.
pub(super) fn normal(text: &str, parts: Parts) -> Option<(String, usize)> {
    let (before, rest) = text.split_at_checked(parts.path_start)?;
    let (path, query) = rest.split_at_checked(parts.path_end - parts.path_start)?;
    if !path.contains('^') && are_normal(rest) {
        return None;
    }
    let mut writer = Writer { out: String::with_capacity(text.len()), broken_at: None };
    writer.out.push_str(before);
    // The standard encodes it in a path since 2023; the `url` crate does not yet.
    writer.part(path, Some('^'));
    let path_end = writer.out.len();
    // Not in a query: `?` keeps them apart.
    writer.broken_at = None;
    writer.part(query, None);
    Some((writer.out, path_end))
}

struct Writer {
    out: String,
    /// Where the last `%` stands that begins no escape.
    broken_at: Option<usize>,
}

impl Writer {
    fn part(&mut self, mut rest: &str, encoded: Option<char>) {
        let special = |character| character == '%' || Some(character) == encoded;
        while let Some((before, behind)) =
            rest.find(special).and_then(|at| rest.split_at_checked(at))
        {
            self.out.push_str(before);
            rest = behind;
            let octet = rest.as_bytes().get(1..3).and_then(octet);
            let taken = match (rest.starts_with('%'), octet) {
                (true, Some(octet)) => {
                    self.escape(octet);
                    "%xx".len()
                }
                (true, None) => {
                    self.broken_at = Some(self.out.len());
                    self.out.push('%');
                    "%".len()
                }
                (false, _) => {
                    self.out.push_str("%5E");
                    "^".len()
                }
            };
            rest = rest.get(taken..).expect("all that was taken is ASCII");
        }
        self.out.push_str(rest);
    }

    /// Right behind a `%` that is no escape, a digit that is undone would make it one: `%%34%31` is read
    /// as `%41`, and that must not become an `A`. There, an escape stays one.
    fn escape(&mut self, octet: u8) {
        let is_free = self.broken_at.is_none_or(|at| self.out.len() > at + "%x".len());
        if is_free && is_unreserved(octet) {
            self.out.push(char::from(octet));
        } else {
            self.out.push('%');
            for digit in [octet >> 4, octet & 0xf] {
                let digit = char::from_digit(digit.into(), 16).expect("four bits are one digit");
                self.out.push(digit.to_ascii_uppercase());
            }
        }
    }
}

/// Of two hex digits.
fn octet(digits: &[u8]) -> Option<u8> {
    let [high, low] = digits else { return None };
    let value = |digit: u8| char::from(digit).to_digit(16);
    u8::try_from(value(*high)? << 4 | value(*low)?).ok()
}

fn is_unreserved(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'.' | b'_' | b'~')
}
