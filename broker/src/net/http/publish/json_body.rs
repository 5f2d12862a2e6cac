//! A body of JSON: its events are taken out of it one by one, so that what is no event, and what is
//! one too many, is never held. Its memory is that of the events that it may have, whatever it is
//! made of.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tidings_protocol::{Code, PAYLOAD_BYTES_MAX, Payload, ProtocolError};

use super::super::error::ErrorResponse;
use super::{EVENTS_MAX, check_payload, event_error, payload_too_long, too_many_events};

/// `{"events": [..]}`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JsonBody<'a> {
    #[serde(borrow)]
    events: ParsedEvents<'a>,
}

impl<'a> JsonBody<'a> {
    /// The events, each checked.
    pub(super) fn payloads(self) -> Result<Vec<Cow<'a, str>>, ErrorResponse> {
        let ParsedEvents { payloads, count, first_error: wrong } = self.events;
        if count > EVENTS_MAX {
            return Err(too_many_events());
        }
        wrong.map_or(Ok(payloads), Err)
    }
}

/// Events, as far as they are to be published: none are held any more once there is one that cannot
/// be, or one too many.
#[derive(Debug, Default)]
struct ParsedEvents<'a> {
    payloads: Vec<Cow<'a, str>>,
    count: usize,
    first_error: Option<ErrorResponse>,
}

impl<'a> ParsedEvents<'a> {
    fn push(&mut self, event: JsonEvent<'a>) {
        let at = self.count;
        self.count += 1;
        if self.count > EVENTS_MAX {
            self.payloads = Vec::new();
        } else if self.first_error.is_none() {
            match event.payload(at) {
                Ok(payload) => self.payloads.push(payload),
                Err(refusal) => {
                    self.payloads = Vec::new();
                    self.first_error = Some(refusal);
                }
            }
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ParsedEvents<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct EventsVisitor;

        impl<'de> Visitor<'de> for EventsVisitor {
            type Value = ParsedEvents<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<Self::Value, A::Error> {
                let mut taken = ParsedEvents::default();
                while let Some(event) = events.next_element()? {
                    taken.push(event);
                }
                Ok(taken)
            }
        }

        from.deserialize_seq(EventsVisitor)
    }
}

/// An event as it is in a line, or in its parts.
#[derive(Debug)]
enum JsonEvent<'a> {
    Line(Cow<'a, str>),
    Parts(EventParts<'a>),
}

impl<'a> JsonEvent<'a> {
    fn payload(self, at: usize) -> Result<Cow<'a, str>, ErrorResponse> {
        let payload = match self {
            Self::Line(line) => line,
            Self::Parts(parts) => {
                Cow::Owned(parts.to_line().map_err(|error| event_error(at, &error))?)
            }
        };
        check_payload(at, payload.as_bytes())?;
        Ok(payload)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for JsonEvent<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct EventVisitor;

        impl<'de> Visitor<'de> for EventVisitor {
            type Value = JsonEvent<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event: a text, or an object with a target")
            }

            fn visit_borrowed_str<E: Error>(self, line: &'de str) -> Result<Self::Value, E> {
                Ok(JsonEvent::Line(line.into()))
            }

            fn visit_str<E: Error>(self, line: &str) -> Result<Self::Value, E> {
                Ok(JsonEvent::Line(line.to_owned().into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, parts: A) -> Result<Self::Value, A::Error> {
                EventParts::deserialize(MapAccessDeserializer::new(parts)).map(JsonEvent::Parts)
            }
        }

        from.deserialize_any(EventVisitor)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventParts<'a> {
    #[serde(borrow)]
    target: Cow<'a, str>,
    #[serde(borrow, default)]
    attributes: Attributes<'a>,
}

impl EventParts<'_> {
    /// The event, if it has the same parts when it is read again.
    fn to_line(&self) -> Result<String, ProtocolError> {
        let Self { target, attributes: Attributes { pairs: all, encoded_bytes: bytes } } = self;
        if target.len() + bytes > PAYLOAD_BYTES_MAX {
            return Err(payload_too_long(target.len() + bytes));
        }
        let mut line = String::with_capacity(target.len() + bytes);
        line.push_str(target);
        for (name, value) in all {
            line.push(' ');
            line.push_str(name);
            line.push('=');
            line.push_str(value);
        }
        let read = Payload::parse(&line);
        let attributes = all.iter().map(|(name, value)| (&**name, &**value));
        if read.target() == Some(&**target) && read.attributes().eq(attributes) {
            return Ok(line);
        }
        let text = "target has to be a URL or an absolute path, each attribute a name of letters, digits, \
             -, _ and ., and a value, without white space in any of them";
        Err(ProtocolError::new(Code::BadArgument, text))
    }
}

/// Attributes in their order, none of them given twice; none are held any more once they are too
/// long for an event.
#[derive(Debug, Default)]
struct Attributes<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// What they take in a line.
    encoded_bytes: usize,
}

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct AttributesVisitor;

        impl<'de> Visitor<'de> for AttributesVisitor {
            type Value = Attributes<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let (mut attributes, mut names) = (Attributes::default(), HashSet::new());
                while let Some((BorrowedText(name), BorrowedText(value))) = map.next_entry()? {
                    attributes.encoded_bytes += " =".len() + name.len() + value.len();
                    if attributes.encoded_bytes > PAYLOAD_BYTES_MAX {
                        (attributes.pairs, names) = Default::default();
                        continue;
                    }
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("{name:.40?} is given twice")));
                    }
                    attributes.pairs.push((name, value));
                }
                Ok(attributes)
            }
        }

        from.deserialize_map(AttributesVisitor)
    }
}

/// Where it can be it is a part of the body.
#[derive(Deserialize)]
struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::super::super::request_input::parse_json;
    use super::*;

    fn payloads(events: &str) -> Result<String, String> {
        let body = format!("{{\"events\":[{events}]}}");
        let read = parse_json::<JsonBody<'_>>(body.as_bytes()).and_then(JsonBody::payloads);
        read.map(|payloads| payloads.join("|")).map_err(|refusal| refusal.message().to_owned())
    }

    #[test]
    fn parts_that_differ_when_read_back_from_a_line_are_rejected() {
        assert_eq!(payloads(r#""a b""#).as_deref(), Ok("a b"));
        assert_eq!(payloads(r#""a\u0020b","\u00e9""#).as_deref(), Ok("a b|\u{e9}"));
        let parts = r#"{"target":"http://a.example/","attributes":{"job":"x","b":"1=2"}}"#;
        assert_eq!(payloads(parts).as_deref(), Ok("http://a.example/ job=x b=1=2"));
        assert_eq!(
            payloads(r#"{"attributes":{"\u0062":"1"},"target":"\/a"}"#).as_deref(),
            Ok("/a b=1")
        );
        for wrong in [
            r#""""#,
            r#""a\nb""#,
            r#"{"target":"x"}"#,
            r#"{"target":"/a b=c"}"#,
            r#"{"target":"/a","attributes":{"b":"c d=e"}}"#,
            r#"{"target":"/a","attributes":{"b":"c\nPUB x y"}}"#,
            r#"{"target":"/a","attributes":{"b c":"d"}}"#,
            r#"{"target":"/a","attributes":{"":"d"}}"#,
            r#"{"target":"/a","more":1}"#,
            r#"{"target":"/a","attributes":{"b":"1","b":"2"}}"#,
            r#"{"target":"/a","attributes":{"b":"1","\u0062":"2"}}"#,
            r#"{"target":"/a","attributes":{"b":2}}"#,
            r#"{"target":["/a"]}"#,
            r#"{"attributes":{"b":"1"}}"#,
            r#"["/a",{}]"#,
            "7",
            "null",
        ] {
            assert!(payloads(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn errors_of_the_body_come_before_the_first_error_of_an_event() {
        let many = vec!["\"a\""; EVENTS_MAX].join(",");
        assert!(payloads(&many).is_ok());
        for (events, said) in [
            (format!("{many},\"\""), "more than 100000 events"),
            (format!("\"\",{many}"), "more than 100000 events"),
            (format!("\"\",{many},7"), "invalid type: integer `7`"),
            ("\"a\",\"\",\"b\\n\"".to_owned(), "event 2 of the body: an event is not empty"),
            ("\"\",{\"data\":1}".to_owned(), "unknown field `data`"),
            ("\"\",".to_owned(), "the body: "),
        ] {
            let refused = payloads(&events).unwrap_err();
            assert!(refused.contains(said), "{said}: {refused}");
        }
    }

    #[test]
    fn attributes_too_long_for_an_event_are_counted() {
        let names: Vec<_> = (0..10_000).map(|at| format!("\"a{at:04}\":\"a\"")).collect();
        let parts = |count: usize| {
            format!("{{\"target\":\"/a\",\"attributes\":{{{}}}}}", names[..count].join(","))
        };
        let fitting = (PAYLOAD_BYTES_MAX - 2) / 8;
        assert_eq!(payloads(&parts(fitting)).unwrap().len(), 2 + 8 * fitting);
        assert_eq!(
            payloads(&parts(10_000)).unwrap_err(),
            "event 1 of the body: 80002 bytes are more than the 61440 of a payload; nothing was published"
        );
    }
}
