//! JSON as JavaScript writes it: strings may contain single surrogates, which are not characters.
//! Test suites of the web contain them on purpose.

/// The length of `\u0000`.
const ESCAPE_BYTES: usize = 6;

/// Replaces each escape of a single surrogate by U+FFFD, as the web does when it decodes a string.
/// Everything else is unchanged, also text that is not JSON.
pub(super) fn replace_lone(line: &mut [u8]) {
    let mut at = 0;
    while let Some(next) = line[at..].iter().position(|byte| *byte == b'\\') {
        at += next;
        match (surrogate(&line[at..]), line.get(at + ESCAPE_BYTES..).and_then(surrogate)) {
            (Some(Half::High), Some(Half::Low)) => at += 2 * ESCAPE_BYTES,
            (Some(_), _) => {
                line[at..at + ESCAPE_BYTES].copy_from_slice(br"\ufffd");
                at += ESCAPE_BYTES;
            }
            // This includes an escaped backslash.
            (None, _) => at = line.len().min(at + 2),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Half {
    High,
    Low,
}

/// The kind of surrogate at the beginning of a text.
fn surrogate(text: &[u8]) -> Option<Half> {
    let digits = text.strip_prefix(br"\u")?.get(..4)?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    match [digits[0].to_ascii_lowercase(), digits[1].to_ascii_lowercase()] {
        [b'd', b'8' | b'9' | b'a' | b'b'] => Some(Half::High),
        [b'd', b'c'..=b'f'] => Some(Half::Low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_single_surrogates_are_replaced() {
        for (line, replaced) in [
            (r#""\ud800""#, r#""\ufffd""#),
            (r#""\uDFFFa\uD83D""#, r#""\ufffda\ufffd""#),
            (r#""\ud83d\ude00""#, r#""\ud83d\ude00""#),
            (r#""\ud83d\ud83d\ude00\ude00""#, r#""\ufffd\ud83d\ude00\ufffd""#),
            (r#""\ud800\\udc00""#, r#""\ufffd\\udc00""#),
            (r#""\\ud800\\\ud800""#, r#""\\ud800\\\ufffd""#),
            (r#""\ud7ff\ue000\n\u00""#, r#""\ud7ff\ue000\n\u00""#),
            (r"\ud80", r"\ud80"),
            (r"\", r"\"),
            ("", ""),
        ] {
            let mut bytes = line.as_bytes().to_vec();
            replace_lone(&mut bytes);
            assert_eq!(String::from_utf8(bytes).unwrap(), replaced, "{line}");
        }
    }
}
