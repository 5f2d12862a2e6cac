//! Responses with JSON objects.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

/// The content type of JSON.
pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A response with a JSON object, followed by a line end.
#[derive(Debug)]
pub(super) struct JsonResponse(pub(super) Value);

impl IntoResponse for JsonResponse {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, JSON)], format!("{}\n", self.0)).into_response()
    }
}

/// A status as an object.
pub(super) fn object(status: &impl Serialize) -> Value {
    serde_json::to_value(status).expect("a status is an object with string keys")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tidings_protocol::status::{
        CursorStatus, DamagedGroupStatus, DrainStatus, Field, GroupStatus, JobStatus, JsonType,
        KeyStatus, ListedMember, ListedRule, RuleStatus, ScheduleStatus, TaskStatus, TopicStatus,
    };

    use super::*;

    /// Checks that a schema describes exactly these fields, and `others`.
    #[track_caller]
    fn expect_described(place: &str, fields: &[Field], others: &[&str]) {
        let description: Value = serde_json::from_str(include_str!("openapi.json")).unwrap();
        let schema = description.pointer(&format!("/components/schemas/{place}")).unwrap();
        let properties = schema["properties"].as_object().unwrap();
        let required: Vec<_> = schema["required"].as_array().unwrap().iter().collect();
        for Field { key, json, required: is_required } in fields {
            let described = &properties[*key];
            let expected = match json {
                JsonType::String | JsonType::OneOf(_) => "string",
                JsonType::Integer => "integer",
                JsonType::Number => "number",
                JsonType::Boolean => "boolean",
                JsonType::Strings => "array",
            };
            assert_eq!(described["type"], expected, "{place}: {key}");
            if let JsonType::OneOf(words) = json {
                let described = described["enum"].as_array().unwrap().iter();
                let described: BTreeSet<_> = described.filter_map(Value::as_str).collect();
                assert_eq!(described, words.iter().copied().collect(), "{place}: {key}");
            }
            assert_eq!(required.contains(&&Value::from(*key)), *is_required, "{place}: {key}");
        }
        let known: BTreeSet<_> =
            fields.iter().map(|field| field.key).chain(others.iter().copied()).collect();
        assert_eq!(
            properties.keys().map(String::as_str).collect::<BTreeSet<_>>(),
            known,
            "{place}"
        );
    }

    #[test]
    fn each_field_of_a_status_is_described() {
        expect_described("Topic", &TopicStatus::fields(), &[]);
        expect_described("TopicState", &TopicStatus::fields(), &["cursors"]);
        expect_described("TopicState/properties/cursors/items", &CursorStatus::fields(), &[]);
        expect_described("Group", &without(GroupStatus::fields(), "rate"), &[]);
        let damaged = DamagedGroupStatus::fields();
        expect_described("DamagedGroup", &damaged, &["problem", "remedy"]);
        expect_described("Task", &TaskStatus::fields(), &[]);
        expect_described("Keys/properties/keys/items", &KeyStatus::fields(), &[]);
        expect_described("Members/properties/members/items", &ListedMember::fields(), &[]);
        expect_described("Member", &DrainStatus::fields(), &[]);
        expect_described("Rules/properties/rules/items", &ListedRule::fields(), &[]);
        expect_described("Rule", &RuleStatus::fields(), &[]);
        let schedules = "Schedules/properties/schedules/items";
        expect_described(schedules, &ScheduleStatus::fields(), &[]);
        expect_described("Job", &without(JobStatus::fields(), "rate"), &[]);
    }

    /// The rate is only in the lines of `watch`, which HTTP does not have.
    fn without(mut fields: Vec<Field>, key: &str) -> Vec<Field> {
        fields.retain(|field| field.key != key);
        fields
    }
}
