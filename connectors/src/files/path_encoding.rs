//! Writes a path of any bytes as one word of a line.

use percent_encoding::{percent_decode_str, percent_encode_byte};

/// Writes the bytes of a path as one word that is safe on a line of the protocol, a terminal and in
/// a log. Bytes that are not UTF-8, white space, controls, invisible characters and `%` become `%`
/// and two hexadecimal digits per byte. Everything else stays readable.
///
/// [`decode`] restores the bytes, as does any URL decoder.
pub fn encode(path: &[u8]) -> String {
    let mut word = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            if is_printable(c) {
                word.push(c);
            } else {
                escape(&mut word, c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        escape(&mut word, chunk.invalid());
    }
    word
}

/// The bytes of a word. Text that is not an escape stays as it is.
pub fn decode(word: &str) -> Vec<u8> {
    percent_decode_str(word).collect()
}

fn escape(word: &mut String, bytes: &[u8]) {
    word.extend(bytes.iter().map(|byte| percent_encode_byte(*byte)));
}

/// Whether the character is visible and affects no other: no white space, no control of any script,
/// no mark that changes the reading direction.
fn is_printable(c: char) -> bool {
    let is_format = matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    );
    c != '%' && !c.is_whitespace() && !c.is_control() && !is_format
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidings_protocol::{Payload, text};

    use super::*;

    #[test]
    fn readable_names_stay_readable() {
        assert_eq!(encode("/srv/Überblick (2).pdf".as_bytes()), "/srv/Überblick%20(2).pdf");
        assert_eq!(encode(b"/srv/100%.txt"), "/srv/100%25.txt");
        assert_eq!(encode(b"/a\nb\r\0\x1b[2J\xff\xc3"), "/a%0Ab%0D%00%1B[2J%FF%C3");
        assert_eq!(
            encode("/a\u{202e}b\u{85}c\u{3000}d".as_bytes()),
            "/a%E2%80%AEb%C2%85c%E3%80%80d"
        );
    }

    #[test]
    fn text_that_is_not_an_escape_stays_as_it_is() {
        assert_eq!(decode("/a%2"), b"/a%2");
        assert_eq!(decode("%%41%zz%"), b"%A%zz%");
        assert_eq!(decode("%fF"), b"\xff");
    }

    proptest! {
        #[test]
        fn any_bytes_round_trip_as_one_word(
            name in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let path = [b"/".as_slice(), &name].concat();
            let word = encode(&path);
            prop_assert_eq!(decode(&word), path);
            prop_assert!(text::check(word.as_bytes()).is_ok());
            let event = format!("{word} size=1");
            let payload = Payload::parse(&event);
            prop_assert_eq!(payload.target(), Some(word.as_str()));
            prop_assert_eq!(payload.attributes().count(), 1);
        }

        #[test]
        fn any_text_round_trips_as_one_word(name in ".{0,40}") {
            let path = format!("/{name}");
            let word = encode(path.as_bytes());
            prop_assert_eq!(decode(&word), path.as_bytes());
            prop_assert_eq!(word.split_whitespace().count(), 1);
            prop_assert!(!word.chars().any(char::is_control));
        }
    }
}
