//! Answers of the line protocol as JSON objects with the same keys. The type of a value depends on
//! its key, never on how the value looks.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

/// A response with a JSON object, followed by a line end.
#[derive(Debug)]
pub(super) struct JsonResponse(pub(super) Value);

impl IntoResponse for JsonResponse {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, json)], format!("{}\n", self.0)).into_response()
    }
}

/// Keys with an integer as value.
const NUMBER_KEYS: &[&str] = &[
    "attempts",
    "batches",
    "behind",
    "budget",
    "bytes",
    "bytes-in",
    "cancelled",
    "clock",
    "completed",
    "connected",
    "connections",
    "dead",
    "dead-kept",
    "depth",
    "dropped",
    "due-ms",
    "duplicates",
    "durable",
    "entry",
    "events",
    "failed",
    "first",
    "found",
    "kept",
    "keys",
    "known",
    "lease-ms",
    "left-ms",
    "lines",
    "listed",
    "log-bytes",
    "losses",
    "lost",
    "matched",
    "max-attempts",
    "max-depth",
    "max-losses",
    "max-pages",
    "max-per-host",
    "members",
    "new",
    "next",
    "number",
    "parallel",
    "pass",
    "pending",
    "prio",
    "processing",
    "queued",
    "readers",
    "redirects",
    "refused",
    "retried",
    "robots",
    "scheduled",
    "segments",
    "trap",
    "turned-away",
    "unkeyed",
    "waiting",
];

/// Keys with the value `yes` or `no`.
const BOOL_KEYS: &[&str] = &["damaged", "held", "hold", "paused", "skips"];

/// Keys with a list as value, separated by commas.
const LIST_KEYS: &[&str] = &["exclude", "include", "topics"];

/// `<name> <key>=<value> ..` as an object, with the name under `name_key`.
pub(super) fn from_line(name_key: &str, line: &str) -> Value {
    let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
    let mut object = Map::new();
    object.insert(name_key.to_owned(), name.into());
    add_fields(&mut object, rest);
    object.into()
}

/// A job from its line, where `scope=` is a count and not the setting of that name.
pub(super) fn job(line: &str) -> Value {
    let mut value = from_line("job", line);
    if let Some(object) = value.as_object_mut()
        && let Some(Value::String(scope)) = object.get("scope")
    {
        object["scope"] = number_value(scope);
    }
    value
}

/// The keys of a line of `GROUP tasks`, in their order.
const TASK_KEYS: &[&str] = &[
    "state", "key", "job", "pass", "depth", "prio", "attempts", "losses", "member", "lease-ms",
    "due-ms", "reason", "last",
];

/// `<entry> <key>=<value> .. <url>`, where the URL may be any text.
pub(super) fn task(line: &str) -> Value {
    let (entry, mut rest) = line.split_once(' ').unwrap_or((line, ""));
    let mut object = Map::new();
    object.insert("entry".to_owned(), number_value(entry));
    let mut keys = TASK_KEYS;
    while let Some((word, after)) = rest.split_once(' ')
        && let Some((key, value)) = word.split_once('=')
        && let Some(at) = keys.iter().position(|next| *next == key)
    {
        object.insert(key.to_owned(), typed_value(key, value));
        (keys, rest) = (&keys[at + 1..], after);
    }
    object.insert("url".to_owned(), rest.into());
    object.into()
}

fn add_fields(object: &mut Map<String, Value>, words: &str) {
    for (key, value) in words.split(' ').filter_map(|word| word.split_once('=')) {
        object.insert(key.to_owned(), typed_value(key, value));
    }
}

fn typed_value(key: &str, value: &str) -> Value {
    if NUMBER_KEYS.contains(&key) {
        number_value(value)
    } else if BOOL_KEYS.contains(&key) {
        (value == "yes").into()
    } else if LIST_KEYS.contains(&key) {
        value.split(',').collect()
    } else if key == "rate" {
        value.parse::<f64>().map_or(Value::Null, Value::from)
    } else {
        value.into()
    }
}

/// A value that is not an integer stays a string, so that it is not lost.
fn number_value(text: &str) -> Value {
    let unsigned = text.parse::<u64>().map(Value::from);
    unsigned.or_else(|_| text.parse::<i64>().map(Value::from)).unwrap_or_else(|_| text.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    // PROTOCOL: H9
    #[test]
    fn the_type_of_a_value_depends_on_its_key_alone() {
        let line = "7 next=1043 rate=0.5 retain-bytes=1g sync=always state=ok";
        let topic = json!({
            "topic": "7", "next": 1043, "rate": 0.5, "retain-bytes": "1g", "sync": "always", "state": "ok"
        });
        assert_eq!(from_line("topic", line), topic);
        let group = from_line("group", "g paused=yes members=0 topics=a,12 key=12 prio=-3");
        let expected = json!({
            "group": "g", "paused": true, "members": 0, "topics": ["a", "12"], "key": "12", "prio": -3
        });
        assert_eq!(group, expected);
    }

    #[test]
    fn the_url_of_a_task_is_the_rest_after_the_known_keys() {
        let task = task("17 state=dead key=a b=c d attempts=1").to_string();
        assert!(task.contains(r#""url":"b=c d attempts=1""#), "{task}");
        let line = "17 state=pending key=a.example job=9 pass=1 depth=0 prio=-1 attempts=0 losses=0 due-ms=5 \
                    http://a.example/?x=1";
        let expected = json!({
            "entry": 17, "state": "pending", "key": "a.example", "job": "9", "pass": 1, "depth": 0,
            "prio": -1, "attempts": 0, "losses": 0, "due-ms": 5, "url": "http://a.example/?x=1"
        });
        assert_eq!(super::task(line), expected);
        let repeated =
            super::task("17 state=dead key=none attempts=0 losses=0 last=x state=dead").to_string();
        assert!(repeated.contains(r#""url":"state=dead""#), "{repeated}");
    }

    #[test]
    fn the_scope_of_a_job_is_a_count() {
        let value = job("docs number=3 pass=1 scope=17 include=/a,/b");
        assert_eq!(value["scope"], 17);
        assert_eq!(value["include"], json!(["/a", "/b"]));
    }
}
