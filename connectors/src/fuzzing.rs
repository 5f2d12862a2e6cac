//! Fuzz targets of this crate: properties of any input bytes. For the feature `fuzzing` and for
//! tests only.

use tidings_protocol::{Command, Payload, text};

use crate::callbacks::callback::Callback;
use crate::zmq::frames::{self, PayloadFrame};
use crate::{files, hub, websub};

/// The name and the function of a target.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    ("frames", frames),
    ("form", hub::fuzzing::form),
    ("delivery", websub::fuzzing::delivery),
    ("ending", ending),
    ("name", name),
];

/// Frames, each with its length in a byte before it. If they form an event, it encodes to one
/// publish command.
fn frames(bytes: &[u8]) {
    let (mut frames, mut rest) = (Vec::new(), bytes);
    while let Some((length, behind)) = rest.split_first() {
        let (frame, behind) = behind.split_at(behind.len().min(usize::from(*length)));
        frames.push(frame);
        rest = behind;
    }
    let _ = frames::topic_and_seq(&frames);
    for which in [PayloadFrame::Last, PayloadFrame::Index(frames.len() / 2)] {
        if let Ok(payload) = frames::payload_of(&frames, which) {
            assert!(text::check(payload.as_bytes()).is_ok() && !payload.is_empty());
        }
    }
    let Ok(event) = frames::parse_event(&frames) else { return };
    let mut line = Vec::new();
    let publish = Command::Pub { topic: event.topic.as_str(), payload: &event.payload };
    publish.encode(&mut line);
    let line = line.strip_suffix(b"\n").expect("a command is a line");
    assert_eq!(text::check(line).and_then(Command::parse), Ok(publish));
}

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

#[cfg(test)]
mod tests {
    #[test]
    fn the_fuzz_corpus_passes_all_targets() {
        super::replay::run(super::TARGETS);
    }
}
