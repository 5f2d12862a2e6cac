//! Fuzz targets of this crate: properties of any input bytes. For the feature `fuzzing` and for
//! tests only.

use tidings_protocol::{Payload, text};

use crate::callbacks::callback::Callback;
#[cfg(feature = "hub")]
use crate::hub;
#[cfg(any(feature = "zeromq", feature = "libzmq"))]
use crate::zmq;
use crate::{files, websub};

/// The name and the function of a target.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    #[cfg(any(feature = "zeromq", feature = "libzmq"))]
    ("frames", zmq::fuzzing::frames),
    #[cfg(feature = "hub")]
    ("form", hub::fuzzing::form),
    ("delivery", websub::fuzzing::delivery),
    ("ending", ending),
    ("name", name),
];

/// An event of `job-done`, published by the broker or by any client.
fn ending(bytes: &[u8]) {
    let Ok(event) = text::check(bytes) else { return };
    if let Ok(Some(ending)) = Callback::parse(event) {
        let read: Result<serde_json::Value, _> = serde_json::from_slice(&ending.body);
        assert!(read.is_ok_and(|body| body.is_object()), "{event:?} becomes a JSON object");
    }
}

/// Any path encodes to one word, which decodes to that path.
fn name(bytes: &[u8]) {
    let word = files::path_encoding::encode(bytes);
    assert_eq!(files::path_encoding::decode(&word), bytes);
    assert!(text::check(word.as_bytes()).is_ok(), "{word:?} is not valid in a line");
    if bytes.starts_with(b"/") {
        assert_eq!(Payload::parse(&word).target(), Some(word.as_str()));
    }
    // A word from another program decodes without a panic.
    if let Ok(word) = std::str::from_utf8(bytes) {
        let _ = files::path_encoding::decode(word);
    }
}

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;
