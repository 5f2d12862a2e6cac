//! Converts events to frames, and frames to events. Pure.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidings_protocol::{DEFAULT_TOPIC, PAYLOAD_BYTES_MAX, Seq, TopicName, text};

/// A valid event from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZmqEvent {
    /// The topic.
    pub topic: TopicName,
    /// A payload of the line protocol, never more than a part of one line.
    pub payload: String,
}

/// Why a message is not an event. Its sender is not notified: a PUSH socket gets no answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The message has neither one frame nor two.
    #[error("it has {count} frames; an event is a topic and a payload, or a payload alone")]
    FrameCount {
        /// Number of frames.
        count: usize,
    },
    /// The frame with the payload does not exist.
    #[error("it has {count} frames, so frame {wanted} does not exist")]
    NoSuchFrame {
        /// Number of frames.
        count: usize,
        /// The configured frame, counted from 0.
        wanted: usize,
    },
    /// The first frame is not a valid topic name (`[N1]`).
    #[error("its first frame is not a valid topic name")]
    Topic,
    /// The payload is empty (`[P1]`).
    #[error("its payload is empty")]
    Empty,
    /// The payload is over the limit (`[P1]`).
    #[error("its payload of {bytes} bytes is over the limit of {PAYLOAD_BYTES_MAX}")]
    TooLong {
        /// Length of the payload.
        bytes: usize,
    },
    /// The payload is not UTF-8 (`[L6]`).
    #[error("its payload is not UTF-8")]
    Utf8,
    /// The payload contains a line end or another control character (`[L7]`), so it would be more
    /// than one line.
    #[error("its payload contains a control character")]
    Control,
}

/// The frame of a foreign message that holds the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PayloadFrame {
    /// The last one.
    #[default]
    Last,
    /// This one, counted from 0.
    Index(usize),
}

impl std::str::FromStr for PayloadFrame {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "last" {
            return Ok(Self::Last);
        }
        text.parse().map(Self::Index).map_err(|_| "expected last, or a number from 0".to_owned())
    }
}

/// The three frames of an event: topic, seq and payload.
///
/// `topic` is shared by all events of the topic.
pub fn event_frames(topic: &Bytes, seq: Seq, payload: Bytes) -> [Bytes; 3] {
    let mut digits = itoa::Buffer::new();
    let seq = Bytes::copy_from_slice(digits.format(seq.0).as_bytes());
    [topic.clone(), seq, payload]
}

/// Parses a message to the PULL socket: topic and payload, or a payload for the default topic.
pub fn parse_event<F: AsRef<[u8]>>(frames: &[F]) -> Result<ZmqEvent, FrameError> {
    let (topic, payload) = match frames {
        [payload] => (DEFAULT_TOPIC, payload.as_ref()),
        [topic, payload] => {
            let topic = std::str::from_utf8(topic.as_ref()).map_err(|_| FrameError::Topic)?;
            (topic, payload.as_ref())
        }
        others => return Err(FrameError::FrameCount { count: others.len() }),
    };
    let topic = TopicName::new(topic).map_err(|_| FrameError::Topic)?;
    Ok(ZmqEvent { topic, payload: check_payload(payload)?.to_owned() })
}

/// The payload of a message from a foreign PUB socket.
pub fn payload_of<F: AsRef<[u8]>>(frames: &[F], frame: PayloadFrame) -> Result<&str, FrameError> {
    let count = frames.len();
    let wanted = match frame {
        PayloadFrame::Last => count.saturating_sub(1),
        PayloadFrame::Index(number) => number,
    };
    check_payload(frames.get(wanted).ok_or(FrameError::NoSuchFrame { count, wanted })?.as_ref())
}

/// The topic and the seq of a message that has the form of [`event_frames`].
pub fn topic_and_seq<F: AsRef<[u8]>>(frames: &[F]) -> Option<(TopicName, Seq)> {
    let [topic, seq, _payload] = frames else { return None };
    let topic = TopicName::new(std::str::from_utf8(topic.as_ref()).ok()?).ok()?;
    Some((topic, std::str::from_utf8(seq.as_ref()).ok()?.parse().ok()?))
}

fn check_payload(payload: &[u8]) -> Result<&str, FrameError> {
    if payload.is_empty() {
        return Err(FrameError::Empty);
    }
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(FrameError::TooLong { bytes: payload.len() });
    }
    text::check(payload).map_err(|error| match error.code {
        tidings_protocol::Code::Utf8 => FrameError::Utf8,
        _ => FrameError::Control,
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use tidings_protocol::{Command, Reply};

    use super::*;

    // PROTOCOL: Z6
    #[test]
    fn one_frame_is_a_payload_and_two_frames_name_the_topic() {
        let expected =
            |topic: &str| Ok(ZmqEvent { topic: topic.parse().unwrap(), payload: "/a b=c".into() });
        assert_eq!(parse_event(&["/a b=c"]), expected(DEFAULT_TOPIC));
        assert_eq!(parse_event(&["log", "/a b=c"]), expected("log"));
    }

    #[test]
    fn invalid_messages_are_rejected_with_a_reason() {
        let none: [&[u8]; 0] = [];
        assert_eq!(parse_event(&none), Err(FrameError::FrameCount { count: 0 }));
        assert_eq!(parse_event(&["a", "1", "x"]), Err(FrameError::FrameCount { count: 3 }));
        for topic in ["", "-a", "a b", "ä", "a\n", &"x".repeat(65)] {
            assert_eq!(parse_event(&[topic, "x"]), Err(FrameError::Topic), "{topic:?}");
        }
        assert_eq!(parse_event(&[&b"\xff"[..], b"x"]), Err(FrameError::Topic));
        assert_eq!(parse_event(&[""]), Err(FrameError::Empty));
        assert_eq!(parse_event(&[b"\xff"]), Err(FrameError::Utf8));
        for payload in ["a\nPUB b c", "a\r", "\0", "\u{85}"] {
            assert_eq!(parse_event(&[payload]), Err(FrameError::Control), "{payload:?}");
        }
        let (longest, longer) = ("x".repeat(PAYLOAD_BYTES_MAX), "x".repeat(PAYLOAD_BYTES_MAX + 1));
        assert!(parse_event(&[longest]).is_ok());
        assert_eq!(
            parse_event(&[longer]),
            Err(FrameError::TooLong { bytes: PAYLOAD_BYTES_MAX + 1 })
        );
    }

    #[test]
    fn the_payload_frame_is_configurable() {
        let frames = ["weather", "21", "rain"];
        assert_eq!(payload_of(&frames, PayloadFrame::Last), Ok("rain"));
        assert_eq!(payload_of(&frames, PayloadFrame::Index(1)), Ok("21"));
        let wrong = FrameError::NoSuchFrame { count: 3, wanted: 3 };
        assert_eq!(payload_of(&frames, PayloadFrame::Index(3)), Err(wrong));
        let none: [&[u8]; 0] = [];
        assert!(payload_of(&none, PayloadFrame::Last).is_err());
        assert_eq!("last".parse(), Ok(PayloadFrame::Last));
        assert_eq!("2".parse(), Ok(PayloadFrame::Index(2)));
        assert!("first".parse::<PayloadFrame>().is_err());
    }

    #[test]
    fn three_frames_with_a_number_in_the_middle_have_a_seq() {
        let seven = Some(("t".parse().unwrap(), Seq(7)));
        assert_eq!(topic_and_seq(&["t", "7", "x"]), seven);
        for frames in
            [&["t", "x"][..], &["t", "7"], &["t", "0", "x"], &["t", "+7", "x"], &["", "7", "x"]]
        {
            assert_eq!(topic_and_seq(frames), None, "{frames:?}");
        }
    }

    proptest! {
        /// Any frames are one event or none, never a second line or another command.
        #[test]
        fn frames_are_one_publish_or_nothing(frames in vec(vec(any::<u8>(), 0..40), 0..4)) {
            let Ok(event) = parse_event(&frames) else { return Ok(()) };
            let mut line = Vec::new();
            let publish = Command::Pub { topic: event.topic.as_str(), payload: &event.payload };
            publish.encode(&mut line);
            prop_assert_eq!(line.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count(), 1);
            let line = text::check(line.strip_suffix(b"\n").unwrap()).unwrap();
            prop_assert_eq!(Command::parse(line).unwrap(), publish);
        }

        /// The frames of an event have the same bytes as its line, and can be published again.
        #[test]
        fn an_event_keeps_its_bytes_in_frames(
            topic in "[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}",
            seq in 1_u64..,
            payload in "[ -~äß\t\u{a0}😀]{1,200}",
        ) {
            let line = format!("MSG {topic} {seq} {payload}");
            let Ok(Reply::Msg { topic: parsed_topic, seq: parsed_seq, payload: parsed_payload }) = Reply::parse(&line) else {
                panic!("{line:?} is a delivery");
            };
            let topic_frame = Bytes::copy_from_slice(parsed_topic.as_bytes());
            let frames = event_frames(&topic_frame, parsed_seq, Bytes::copy_from_slice(parsed_payload.as_bytes()));
            prop_assert_eq!(&frames[0], &topic);
            prop_assert_eq!(&frames[1], &seq.to_string());
            prop_assert_eq!(&frames[2], &payload);
            prop_assert_eq!(topic_and_seq(&frames), Some((topic.parse().unwrap(), Seq(seq))));
            let parsed = parse_event(&[&frames[0], &frames[2]]).unwrap();
            prop_assert_eq!((parsed.topic.as_str(), parsed.payload), (topic.as_str(), payload));
        }
    }
}
