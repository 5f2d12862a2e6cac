//! Parses a `job-done` event into the message that is sent to the callback. Pure.

use bytes::Bytes;
use serde_json::{Map, Value};
use tidings_protocol::status::{JobEnd, JsonType};
use tidings_protocol::{CanonicalUrl, GroupName, JobName, Payload, field};

use crate::delivery::id_without_dots;

/// The message to one callback.
#[derive(Debug, Clone)]
pub struct Callback {
    /// The job.
    pub job: JobName,
    /// The URL of the callback.
    pub url: CanonicalUrl<'static>,
    /// The id of the message, of letters, digits, `-` and `_`. It is different for each end of a
    /// pass, and the same when a message is sent again.
    pub id: String,
    /// A JSON object with the fields of the event.
    pub body: Bytes,
    /// The trace context of the pass.
    pub traceparent: Option<String>,
}

/// An event with a `callback` field that is not the end of a pass: another client has published it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the job-done event has a callback, but no valid {0}")]
pub struct CallbackError(&'static str);

impl Callback {
    /// Parses an event of `job-done`. `None` if it has no callback.
    pub fn parse(event: &str) -> Result<Option<Self>, CallbackError> {
        let (name, words) = event.split_once(' ').unwrap_or((event, ""));
        let Some(url) = field(words, "callback") else { return Ok(None) };
        let url = CanonicalUrl::parse(url).map_err(|_| CallbackError("URL"))?.into_owned();
        let job: JobName = name.parse().map_err(|_| CallbackError("job"))?;
        let group = field(words, "group").and_then(|group| group.parse::<GroupName>().ok());
        let group = group.ok_or(CallbackError("group"))?;
        let is_valid_serial = |serial: &&str| {
            serial.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') && !serial.is_empty()
        };
        let serial =
            field(words, "serial").filter(is_valid_serial).ok_or(CallbackError("serial"))?;
        let id = format!("{}-{}", id_without_dots(group.as_str()), serial.replace('.', "-"));
        let fields = JobEnd::fields();
        let is_number =
            |key| fields.iter().any(|field| field.key == key && field.json == JsonType::Integer);
        let mut object = Map::new();
        object.insert("type".to_owned(), "job-done".into());
        object.insert("job".to_owned(), name.into());
        for (key, value) in words.split(' ').filter_map(|word| word.split_once('=')) {
            let number = value.parse::<u64>().ok().filter(|_| is_number(key));
            let value = number.map_or_else(|| Value::from(value), Value::from);
            object.entry(key).or_insert(value);
        }
        let body = Bytes::from(Value::from(object).to_string());
        let traceparent = Payload::parse(event).traceparent().map(str::to_owned);
        Ok(Some(Self { job, url, id, body, traceparent }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const EVENT: &str = "12 number=3 pass=1 result=done completed=7 redirects=0 failed=0 robots=0 \
                         scope=1 blocked=0 trap=0 budget=0 duplicates=0 cancelled=0 found=8 \
                         callback=https://a.example/done?group=x&job=1 group=craw.lers serial=17.4";

    // PROTOCOL: F1
    #[test]
    fn event_fields_become_a_json_object_and_the_serial_becomes_the_id() {
        let ending = Callback::parse(EVENT).unwrap().unwrap();
        assert_eq!(ending.url.as_str(), "https://a.example/done?group=x&job=1");
        assert_eq!(ending.id, "craw_dlers-17-4");
        let body: Value = serde_json::from_slice(&ending.body).unwrap();
        let expected = json!({
            "type": "job-done", "job": "12", "number": 3, "pass": 1, "result": "done", "completed": 7,
            "redirects": 0, "failed": 0, "robots": 0, "scope": 1, "blocked": 0, "trap": 0, "budget": 0,
            "duplicates": 0, "cancelled": 0, "found": 8,
            "callback": "https://a.example/done?group=x&job=1", "group": "craw.lers", "serial": "17.4",
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn events_that_do_not_end_a_pass_send_no_callback() {
        for event in ["", "docs", "docs number=3 group=a serial=1.1", "a look at callback= docs"] {
            let parsed = Callback::parse(event);
            assert!(!matches!(parsed, Ok(Some(_))), "{event}: {parsed:?}");
        }
        for (from, to, error) in [
            ("12 ", "1/2 ", "job"),
            ("https:", "ftp:", "URL"),
            ("group=craw.lers", "group=a/b", "group"),
            ("group=craw.lers", "", "group"),
            ("serial=17.4", "serial=17\"4", "serial"),
            ("serial=17.4", "serial=", "serial"),
            ("serial=17.4", "", "serial"),
        ] {
            let parsed = Callback::parse(&EVENT.replace(from, to));
            assert_eq!(parsed.unwrap_err(), CallbackError(error), "{to}");
        }
    }
}
