//! Fuzz targets of messages from ZeroMQ peers.

use tidings_protocol::{Command, text};

use crate::zmq::frames::{self, PayloadFrame};

/// Frames, each with its length in a byte before it. If they form an event, it encodes to one
/// publish command.
pub(crate) fn frames(bytes: &[u8]) {
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
