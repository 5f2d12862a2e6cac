//! The trace context of an event: `traceparent=`, as W3C Trace Context defines it.

use crate::{Payload, field};

/// The attribute, and the header of HTTP.
pub const TRACEPARENT: &str = "traceparent";

/// Bytes of a trace context, and the places of its dashes.
const BYTES: usize = 55;
const DASHES: [usize; 3] = [2, 35, 52];

/// Whether a text is a trace context: `<version>-<trace id>-<span id>-<flags>` in lower-case
/// hexadecimal digits. An id of zeros and the version `ff` are invalid.
pub fn is_traceparent(text: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let fits = |(at, byte)| if DASHES.contains(&at) { byte == b'-' } else { is_hex(byte) };
    let is_zero = |part: Option<&str>| part.is_none_or(|part| part.bytes().all(|b| b == b'0'));
    text.len() == BYTES
        && text.bytes().enumerate().all(fits)
        && !text.starts_with("ff")
        && !is_zero(text.get(DASHES[0] + 1..DASHES[1]))
        && !is_zero(text.get(DASHES[1] + 1..DASHES[2]))
}

/// The trace id of a trace context.
pub fn trace_id(traceparent: &str) -> &str {
    traceparent.get(DASHES[0] + 1..DASHES[1]).unwrap_or_default()
}

impl<'a> Payload<'a> {
    /// Its trace context, if it has a valid one. Also that of text: an event of `job-done` begins
    /// with the name of its job.
    pub fn traceparent(&self) -> Option<&'a str> {
        field(self.text(), TRACEPARENT).filter(|value| is_traceparent(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // PROTOCOL: P6
    #[test]
    fn only_a_valid_trace_context_counts() {
        let valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert!(is_traceparent(valid));
        assert_eq!(trace_id(valid), "0af7651916cd43dd8448eb211c80319c");
        for begin in ["/a", "job number=3"] {
            let event = format!("{begin} traceparent={valid} serial=1.2");
            assert_eq!(Payload::parse(&event).traceparent(), Some(valid), "{begin}");
        }
        assert_eq!(Payload::parse("job traceparent=00-1-2-01").traceparent(), None);
        for invalid in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331_01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333g-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b71692033ä-01",
        ] {
            assert!(!is_traceparent(invalid), "{invalid}");
        }
    }
}
