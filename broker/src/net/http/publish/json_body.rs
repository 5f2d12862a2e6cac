//! A JSON body. Its events are parsed one by one, and values that are not events, or exceed the
//! limit, are not kept. So its memory is bounded by that of the events that a body may have.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tidings_protocol::{PAYLOAD_BYTES_MAX, Payload, ProtocolError, bad_argument};

use super::super::error::{ErrorResponse, HttpResult, bad_request};
use super::super::request_input::parse_json;
use super::{EVENTS_MAX, check_payload, event_error, payload_too_long, too_many_events};

/// `{"events": [..]}`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `events`")]
pub(super) struct JsonBody<'a> {
    #[serde(borrow)]
    events: ParsedEvents<'a>,
}

impl<'a> JsonBody<'a> {
    /// The payloads of a body. Its form is checked first, because `serde` reads a list as the fields
    /// in their order.
    pub(super) fn payloads_of(body: &'a [u8]) -> HttpResult<Vec<Cow<'a, str>>> {
        if body.trim_ascii_start().starts_with(b"[") {
            return Err(bad_request("the body: expected an object with `events`, not a list"));
        }
        parse_json::<Self>(body)?.payloads()
    }

    fn payloads(self) -> HttpResult<Vec<Cow<'a, str>>> {
        let ParsedEvents { payloads, count, first_error } = self.events;
        if count > EVENTS_MAX {
            return Err(too_many_events());
        }
        first_error.map_or(Ok(payloads), Err)
    }
}

/// The events parsed so far. `payloads` is emptied at the first invalid event, or at one too many,
/// because nothing of the body is then published.
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
                Err(error) => {
                    self.payloads = Vec::new();
                    self.first_error = Some(error);
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
                let mut parsed = ParsedEvents::default();
                while let Some(event) = events.next_element()? {
                    parsed.push(event);
                }
                Ok(parsed)
            }
        }

        from.deserialize_seq(EventsVisitor)
    }
}

/// An event: its line, or its parts.
#[derive(Debug)]
enum JsonEvent<'a> {
    Line(Cow<'a, str>),
    Parts(EventParts<'a>),
}

impl<'a> JsonEvent<'a> {
    fn payload(self, at: usize) -> HttpResult<Cow<'a, str>> {
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
                f.write_str("an event: a string, or an object with `target`")
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
    /// Returns the line, if parsing it gives the same parts again.
    fn to_line(&self) -> Result<String, ProtocolError> {
        let Self { target, attributes: Attributes { pairs, encoded_bytes } } = self;
        if target.len() + encoded_bytes > PAYLOAD_BYTES_MAX {
            return Err(payload_too_long(target.len() + encoded_bytes));
        }
        let mut line = String::with_capacity(target.len() + encoded_bytes);
        line.push_str(target);
        for (name, value) in pairs {
            line.push(' ');
            line.push_str(name);
            line.push('=');
            line.push_str(value);
        }
        let read = Payload::parse(&line);
        let attributes = pairs.iter().map(|(name, value)| (&**name, &**value));
        if read.target() == Some(&**target) && read.attributes().eq(attributes) {
            return Ok(line);
        }
        let text = "target must be a URL or an absolute path; the name of an attribute consists of \
                    letters, digits, -, _ and .; neither target nor values contain white space";
        Err(bad_argument(text))
    }
}

/// Attributes in their order, without repeated names. Once they are too long for an event, only
/// their size is counted.
#[derive(Debug, Default)]
struct Attributes<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// Their bytes in a line.
    encoded_bytes: usize,
}

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct AttributesVisitor;

        impl<'de> Visitor<'de> for AttributesVisitor {
            type Value = Attributes<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
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
                        return Err(A::Error::custom(format!("{name:.40?} appears twice")));
                    }
                    attributes.pairs.push((name, value));
                }
                Ok(attributes)
            }
        }

        from.deserialize_map(AttributesVisitor)
    }
}

/// A string; borrowed from the body unless it has escapes.
#[derive(Deserialize)]
struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    fn payloads(events: &str) -> Result<String, String> {
        let body = format!("{{\"events\":[{events}]}}");
        let read = JsonBody::payloads_of(body.as_bytes());
        read.map(|payloads| payloads.join("|")).map_err(|error| error.message().to_owned())
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
        for invalid in [
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
            assert!(payloads(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_body_is_an_object() {
        for body in [r#"[["a"]]"#, r#" [{"events":["a"]}]"#, "null", r#""a""#, ""] {
            assert!(JsonBody::payloads_of(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn errors_of_the_body_come_before_the_first_error_of_an_event() {
        let many = vec!["\"a\""; EVENTS_MAX].join(",");
        assert!(payloads(&many).is_ok());
        for (events, expected) in [
            (format!("{many},\"\""), "more than 100000 events"),
            (format!("\"\",{many}"), "more than 100000 events"),
            (format!("\"\",{many},7"), "invalid type: integer `7`"),
            ("\"a\",\"\",\"b\\n\"".to_owned(), "event 2 of the body: an event must not be empty"),
            ("\"\",{\"data\":1}".to_owned(), "unknown field `data`"),
            ("\"\",".to_owned(), "the body: "),
        ] {
            let error = payloads(&events).unwrap_err();
            assert!(error.contains(expected), "{expected}: {error}");
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
            "event 1 of the body: 80002 bytes exceed the limit of a payload, 61440 bytes; nothing was published"
        );
    }
}
