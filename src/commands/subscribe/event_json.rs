//! The lines of `tidings sub --json`.

use std::collections::BTreeMap;

use serde::Serialize;
use tidings_protocol::{GroupName, Payload, Seq, TaskId, TopicName};

/// An event with the parts of its payload.
#[derive(Serialize)]
struct EventJson<'a, P: Serialize> {
    #[serde(flatten)]
    place: P,
    payload: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a str>,
    /// Only with a target; of attributes with the same name the first counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes: Option<BTreeMap<&'a str, &'a str>>,
}

/// The place of an event.
#[derive(Serialize)]
struct TopicPlace<'a> {
    topic: &'a str,
    seq: u64,
}

/// The task of an event.
#[derive(Serialize)]
struct GroupPlace<'a> {
    group: &'a str,
    task: String,
}

/// Seqs without an event.
#[derive(Serialize)]
pub(super) struct MissingRange<'a> {
    pub(super) topic: &'a str,
    /// `lag`: no longer kept; `gap`: never given to an event that was kept.
    pub(super) skipped: &'a str,
    pub(super) from: u64,
    pub(super) to: u64,
}

pub(super) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("text and numbers always serialise")
}

pub(super) fn event_json(topic: &TopicName, seq: Seq, payload: &str) -> String {
    payload_json(TopicPlace { topic: topic.as_str(), seq: seq.0 }, payload)
}

pub(super) fn task_json(group: &GroupName, task: &TaskId, payload: &str) -> String {
    payload_json(GroupPlace { group: group.as_str(), task: task.to_string() }, payload)
}

fn payload_json(place: impl Serialize, payload: &str) -> String {
    let parsed = Payload::parse(payload);
    let attributes = parsed.target().map(|_| {
        let mut attributes = BTreeMap::new();
        for (key, value) in parsed.attributes() {
            attributes.entry(key).or_insert(value);
        }
        attributes
    });
    to_json(&EventJson { place, payload, target: parsed.target(), attributes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_target_has_attributes() {
        let topic: TopicName = "t".parse().unwrap();
        assert_eq!(
            event_json(&topic, Seq(7), "just \"text\""),
            r#"{"topic":"t","seq":7,"payload":"just \"text\""}"#
        );
        assert_eq!(
            event_json(&topic, Seq(8), "http://a/ job=x prio=5 job=y"),
            r#"{"topic":"t","seq":8,"payload":"http://a/ job=x prio=5 job=y","target":"http://a/","attributes":{"job":"x","prio":"5"}}"#
        );
    }
}
