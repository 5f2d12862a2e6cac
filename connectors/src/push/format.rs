//! The forms in which events are sent. Pure.

use bytes::Bytes;
use hyper::header::HeaderValue;
use serde_json::{Map, Value, json};
use tidings_protocol::TopicName;

use super::Event;
use super::template::{Escape, Template};

/// The content type of a text without one.
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const CLOUD_EVENT: HeaderValue = HeaderValue::from_static("application/cloudevents+json");
const CLOUD_EVENTS: HeaderValue = HeaderValue::from_static("application/cloudevents-batch+json");

/// The form of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// A JSON object.
    StandardWebhooks,
    /// `CloudEvents` 1.0, structured as JSON.
    CloudEvents {
        /// The `source` of the events.
        source: String,
    },
    /// Text from a template.
    Text {
        /// The template of an event.
        template: Template,
        /// The type of the text.
        content_type: HeaderValue,
    },
    /// An incoming webhook of Slack or a compatible chat.
    Slack {
        /// The template of an event.
        template: Template,
    },
}

/// Why a text cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// It cannot be the value of a header.
    #[error("`content-type` {0:?} is not a content type, such as text/html")]
    ContentType(String),
    /// With values in it, the template is not JSON.
    #[error(
        "`template` is not JSON, with names inside strings only; write it for example as \
         {{\"message\": \"{{payload}}\"}}, or leave out `content-type`"
    )]
    NotJson,
}

impl Format {
    /// Text of this type, usually `text/plain`. Values in JSON are escaped as in a JSON string.
    pub fn text(template: Template, content_type: Option<&str>) -> Result<Self, FormatError> {
        let wrong = |text: &str| FormatError::ContentType(text.to_owned());
        let content_type = match content_type {
            None => TEXT,
            Some(text) if text.contains('/') => {
                HeaderValue::from_str(text).map_err(|_| wrong(text))?
            }
            Some(text) => return Err(wrong(text)),
        };
        if is_json(&content_type) {
            template.check_json().map_err(|_| FormatError::NotJson)?;
        }
        Ok(Self::Text { template, content_type })
    }

    /// Whether a request can have several events.
    pub fn allows_batches(&self) -> bool {
        !matches!(self, Self::Text { content_type, .. } if is_json(content_type))
    }

    /// The content type and the body of a request: with one event, or in the form of a batch.
    pub(super) fn body(
        &self,
        topic: &TopicName,
        events: &[&Event],
        is_batch: bool,
    ) -> (HeaderValue, Bytes) {
        let value = match self {
            Self::StandardWebhooks if is_batch => {
                let events: Vec<_> = events.iter().map(|event| object_of(event)).collect();
                json!({ "type": topic.as_str(), "events": events })
            }
            Self::StandardWebhooks => {
                let mut object = object_of(events[0]);
                object.insert("type".to_owned(), topic.as_str().into());
                object.into()
            }
            Self::CloudEvents { source } => {
                let mut all = events.iter().map(|event| cloud_event(event, topic, source));
                if is_batch { all.collect() } else { all.next().expect("there is an event") }
            }
            Self::Text { template, content_type } => {
                let escape = if is_json(content_type) { Escape::Json } else { Escape::Nothing };
                return (content_type.clone(), lines(template, events, escape).into());
            }
            Self::Slack { template } => json!({ "text": lines(template, events, Escape::Slack) }),
        };
        let content_type = match self {
            Self::CloudEvents { .. } if is_batch => CLOUD_EVENTS,
            Self::CloudEvents { .. } => CLOUD_EVENT,
            _ => JSON,
        };
        (content_type, value.to_string().into())
    }
}

fn is_json(content_type: &HeaderValue) -> bool {
    let essence = content_type.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}

/// The text of each event, in a line of its own.
fn lines(template: &Template, events: &[&Event], escape: Escape) -> String {
    let lines: Vec<_> = events.iter().map(|event| template.render(event, escape)).collect();
    lines.join("\n")
}

/// Id, payload, and its target and attributes if it has them. Of attributes with one name the first
/// one counts.
fn object_of(event: &Event) -> Map<String, Value> {
    let mut object = content_of(event);
    object.insert("id".to_owned(), event.id.as_str().into());
    object
}

fn content_of(event: &Event) -> Map<String, Value> {
    let payload = event.payload();
    let mut object = Map::new();
    object.insert("payload".to_owned(), payload.text().into());
    if let Some(target) = payload.target() {
        let mut attributes = Map::new();
        for (key, value) in payload.attributes() {
            attributes.entry(key).or_insert_with(|| value.into());
        }
        object.insert("target".to_owned(), target.into());
        object.insert("attributes".to_owned(), attributes.into());
    }
    object
}

fn cloud_event(event: &Event, topic: &TopicName, source: &str) -> Value {
    let mut object = json!({
        "specversion": "1.0",
        "type": format!("tidings.{topic}"),
        "source": source,
        "id": event.id,
        "datacontenttype": "application/json",
        "data": content_of(event),
    });
    if let Some(target) = event.payload().target() {
        object["subject"] = target.into();
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "http://a.example/?\"q\" outcome=done changed=yes changed=no";

    fn bodies(format: &Format, payloads: &[&str], is_batch: bool) -> (String, String) {
        let event = |(at, payload): (usize, &&str)| Event {
            id: format!("page-ready/{}", at + 1),
            payload: (*payload).to_owned(),
        };
        let events: Vec<_> = payloads.iter().enumerate().map(event).collect();
        let events: Vec<_> = events.iter().collect();
        let topic = "page-ready".parse().unwrap();
        let (content_type, body) = format.body(&topic, &events, is_batch);
        (content_type.to_str().unwrap().to_owned(), String::from_utf8(body.to_vec()).unwrap())
    }

    fn json_of(format: &Format, payloads: &[&str], is_batch: bool) -> (String, Value) {
        let (content_type, body) = bodies(format, payloads, is_batch);
        (content_type, serde_json::from_str(&body).unwrap())
    }

    #[test]
    fn standard_webhooks_are_objects_with_the_parts_of_the_event() {
        let page = json!({
            "id": "page-ready/1", "payload": PAGE, "target": "http://a.example/?\"q\"",
            "attributes": { "outcome": "done", "changed": "yes" },
        });
        let mut single = page.clone();
        single["type"] = "page-ready".into();
        let (content_type, body) = json_of(&Format::StandardWebhooks, &[PAGE], false);
        assert_eq!((&*content_type, body), ("application/json", single));
        let text = json!({ "id": "page-ready/2", "payload": "some text" });
        let (_, body) = json_of(&Format::StandardWebhooks, &[PAGE, "some text"], true);
        assert_eq!(body, json!({ "type": "page-ready", "events": [page, text] }));
    }

    #[test]
    fn cloud_events_have_the_required_attributes() {
        let format = Format::CloudEvents { source: "https://b.example/".to_owned() };
        let page = json!({
            "specversion": "1.0", "type": "tidings.page-ready", "source": "https://b.example/",
            "id": "page-ready/1", "subject": "http://a.example/?\"q\"",
            "datacontenttype": "application/json",
            "data": {
                "payload": PAGE, "target": "http://a.example/?\"q\"",
                "attributes": { "outcome": "done", "changed": "yes" },
            },
        });
        let (content_type, body) = json_of(&format, &[PAGE], false);
        assert_eq!((&*content_type, &body), ("application/cloudevents+json", &page));
        let (content_type, body) = json_of(&format, &[PAGE, "some text"], true);
        assert_eq!(content_type, "application/cloudevents-batch+json");
        assert_eq!((&body[0], &body[1]["data"]), (&page, &json!({ "payload": "some text" })));
        assert_eq!(body[1].get("subject"), None);
    }

    #[test]
    fn texts_of_a_batch_are_lines() {
        let template: Template = "{target}: {attr.changed}".parse().unwrap();
        let text = Format::text(template.clone(), None).unwrap();
        let (content_type, body) = bodies(&text, &[PAGE, "/b changed=<no>"], true);
        assert_eq!(content_type, "text/plain; charset=utf-8");
        assert_eq!(body, "http://a.example/?\"q\": yes\n/b: <no>");
        let slack = Format::Slack { template };
        let (content_type, body) = json_of(&slack, &[PAGE, "/b changed=<no>"], true);
        assert_eq!(content_type, "application/json");
        assert_eq!(body, json!({ "text": "http://a.example/?\"q\": yes\n/b: &lt;no&gt;" }));
    }

    #[test]
    fn a_template_of_json_is_checked_and_has_no_batches() {
        let text = |template: &str, content_type| {
            Format::text(template.parse().unwrap(), Some(content_type))
        };
        for content_type in ["application/json", "Application/JSON; charset=utf-8", "a/b+json"] {
            let format = text(r#"{"message": "{payload}"}"#, content_type).unwrap();
            assert!(!format.allows_batches());
            let (_, body) = bodies(&format, &["say \"hi\""], false);
            assert_eq!(body, r#"{"message": "say \"hi\""}"#);
            for outside in [r#"{"message": {payload}}"#, "[1{id}]", "[1{target}]", "[{attr.x}1]"] {
                let error = text(outside, content_type).unwrap_err();
                assert_eq!(error, FormatError::NotJson);
            }
        }
        assert!(text("{payload}", "text/html").unwrap().allows_batches());
        for wrong in ["", "json", "text/a\nb"] {
            let error = text("{payload}", wrong).unwrap_err();
            assert_eq!(error, FormatError::ContentType(wrong.to_owned()));
        }
    }
}
