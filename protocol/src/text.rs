//! The bytes that a line may contain: UTF-8 without control characters other than TAB.
//!
//! A line that passes can be shown on any terminal and forwarded to any client as it is. So it is
//! checked once, when it arrives, and never escaped afterwards.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::{Code, ProtocolError};

/// The line as text, or why it is refused (`[L6]` and `[L7]`).
///
/// One pass for UTF-8 and one for control bytes. Neither copies, and both are vectorized for plain
/// text, which nearly every line is.
pub fn check(line: &[u8]) -> Result<&str, ProtocolError> {
    let text = std::str::from_utf8(line).map_err(|error| {
        let at = error.valid_up_to() + 1;
        ProtocolError::new(Code::Utf8, format!("byte {at} of the line is not valid UTF-8"))
    })?;
    match find_control(line) {
        None => Ok(text),
        Some((at, byte)) => Err(ProtocolError::new(
            Code::Control,
            format!(
                "byte {} of the line is control byte 0x{byte:02x}; only TAB is allowed",
                at + 1
            ),
        )),
    }
}

/// The position of the first forbidden control character, and its last byte.
///
/// C1 controls (U+0080 to U+009F) are found by their UTF-8 form, 0xC2 and then 0x80 to 0x9F, so the
/// bytes need not be valid UTF-8.
fn find_control(line: &[u8]) -> Option<(usize, u8)> {
    // 0xC2 also begins characters such as a no-break space, which are allowed. So the exact check
    // runs only after one of these bytes. Chunks let the compiler vectorize.
    let suspicious = |&byte: &u8| is_control(byte) || byte == 0xC2;
    let plain = line
        .chunks(64)
        .all(|chunk| !chunk.iter().fold(false, |found, byte| found | suspicious(byte)));
    if plain {
        return None;
    }
    let mut before = 0;
    for (at, &byte) in line.iter().enumerate() {
        if is_control(byte) || (before == 0xC2 && matches!(byte, 0x80..=0x9F)) {
            return Some((at, byte));
        }
        before = byte;
    }
    None
}

/// ASCII controls and DEL, but not TAB.
pub(crate) const fn is_control(byte: u8) -> bool {
    (byte < 0x20 && byte != b'\t') || byte == 0x7F
}

/// Whether a character is invisible and changes how others look, or where a line ends: controls,
/// separators of lines and paragraphs, marks of the reading direction, spaces without width, tags.
///
/// A payload may contain those that are not controls, because some scripts need them. Logs and
/// other line formats escape them.
pub const fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// Escapes the [invisible](is_invisible) characters of one line of JSON. They can occur only in its
/// strings, where an escape means the same.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    if !json.contains(is_invisible) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if is_invisible(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(escaped, "\\u{unit:04x}").expect("writing to a string succeeds");
            }
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// The text, or its beginning and `..` if it has more than `bytes_max` bytes (2 and up).
pub(crate) fn truncate(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max {
        return Cow::Borrowed(text);
    }
    let (kept, _) = text.split_at(text.floor_char_boundary(bytes_max - "..".len()));
    Cow::Owned(format!("{kept}.."))
}

/// Quotes a text in an error: short, on one line, without control characters.
pub fn quote(text: &str) -> String {
    const CHARS_MAX: usize = 40;
    let mut out = String::with_capacity(CHARS_MAX + 5);
    out.push('"');
    for (count, character) in text.chars().enumerate() {
        if count == CHARS_MAX {
            out.push_str("..");
            break;
        }
        out.push(if character.is_control() { ' ' } else { character });
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // PROTOCOL: L7
    #[test]
    fn every_control_byte_but_tab_is_refused() {
        for byte in 0..=0x7F_u8 {
            let line = [b'a', byte, b'b'];
            let allowed = byte == b'\t' || (0x20..0x7F).contains(&byte);
            assert_eq!(check(&line).is_ok(), allowed, "0x{byte:02x}");
        }
    }

    // PROTOCOL: L7
    #[test]
    fn c1_controls_are_refused_and_their_neighbours_are_not() {
        for character in '\u{7e}'..='\u{ff}' {
            let line = format!("{}{character}z", "x".repeat(70));
            assert_eq!(check(line.as_bytes()).is_ok(), !character.is_control(), "{character:?}");
        }
    }

    #[test]
    fn the_refusal_names_the_position() {
        assert_eq!(check(b"ab\x07").unwrap_err().code, Code::Control);
        assert!(check(b"ab\x07").unwrap_err().text.starts_with("byte 3 "));
        assert_eq!(check(b"ab\xff").unwrap_err().code, Code::Utf8);
        assert!(check(b"ab\xff").unwrap_err().text.starts_with("byte 3 "));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(truncate("abcd", 4), "abcd");
        assert_eq!(truncate("abcde", 4), "ab..");
        assert_eq!(truncate("aöcde", 4), "a..");
        assert_eq!(truncate("ö", 2), "ö");
        assert_eq!(truncate("abc", 2), "..");
    }

    #[test]
    fn quotations_are_short() {
        assert_eq!(quote("a\u{7}b"), "\"a b\"");
        assert_eq!(quote(&"x".repeat(100)).len(), 44);
    }

    proptest! {
        // PROTOCOL: L6, L7
        #[test]
        fn check_agrees_with_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let model = std::str::from_utf8(&bytes)
                .is_ok_and(|text| text.chars().all(|c| c == '\t' || !c.is_control()));
            prop_assert_eq!(check(&bytes).is_ok(), model);
        }

        #[test]
        fn check_agrees_with_the_definition_on_text(text in "[ -~\t\u{7f}-\u{a5}\n]{0,200}") {
            let model = text.chars().all(|c| c == '\t' || !c.is_control());
            prop_assert_eq!(check(text.as_bytes()).is_ok(), model);
        }
    }

    #[test]
    fn escaped_json_means_the_same() {
        assert!(matches!(escape_json("{\"a\":\"\u{fc} b\"}"), Cow::Borrowed(_)));
        let json = "{\"a\u{85}\":\"\u{2028}\u{202e}\u{7f}\u{e0041}\\n\"}";
        let escaped = r#"{"a\u0085":"\u2028\u202e\u007f\udb40\udc41\n"}"#;
        assert_eq!(escape_json(json), escaped);
    }

    proptest! {
        #[test]
        fn every_control_is_invisible(character in any::<char>()) {
            prop_assert!(is_invisible(character) || !character.is_control());
        }
    }
}
