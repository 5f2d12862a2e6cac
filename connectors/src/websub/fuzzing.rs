//! A fuzz target: deliveries of a client that does not know the secret.

use super::signature::verify;

/// Input: a signature in the first line, and a body. The signature is never valid.
pub(crate) fn delivery(bytes: &[u8]) {
    let at = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (line, body) = bytes.split_at(at);
    let Ok(value) = std::str::from_utf8(line) else { return };
    for sha1 in [false, true] {
        assert!(verify(value, "a secret that is in no corpus", body, sha1).is_err(), "{value:?}");
    }
}
