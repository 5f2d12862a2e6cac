//! A push of the configuration: the table `[[push]]`.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use tidings_connectors::push::{Format, Push, Template};
use tidings_protocol::{
    AttributeFilter, CanonicalUrl, DEAD_LETTER_TOPIC, GroupName, ProtocolError, TopicName, is_name,
};

use super::{parse_duration, parse_moderate_duration};

/// A `[[push]]`, without its secrets.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "PushSection")]
pub(crate) struct PushTable {
    pub(crate) name: String,
    pub(crate) push: Push,
    pub(crate) secret_file: Option<PathBuf>,
}

/// The values of a `[[push]]`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, expecting = "a table of a push")]
struct PushSection {
    name: String,
    topic: String,
    url: String,
    format: String,
    #[serde(default, rename = "where")]
    conditions: Vec<String>,
    template: Option<String>,
    content_type: Option<String>,
    secret_file: Option<PathBuf>,
    batch: Option<String>,
    retry_for: Option<String>,
}

/// For how long an event is sent again while the receiver is down.
const RETRY_FOR_DEFAULT: Duration = Duration::from_hours(72);

/// The formats, for errors.
const FORMATS: &str = "standard-webhooks, cloudevents, text or slack";

/// The error for a push in a signed format without a secret.
const UNSIGNED: &str = "`format` standard-webhooks is signed, and there is no secret; write the \
    output of `openssl rand -base64 32` into a file, and name it as secret-file = \"..\"";

impl TryFrom<PushSection> for PushTable {
    type Error = String;

    fn try_from(section: PushSection) -> Result<Self, String> {
        let name = section.name.clone();
        Self::from_section(section).map_err(|error| of_push(&name, &error))
    }
}

/// The problem of the push of this name.
pub(crate) fn of_push(name: &str, error: &str) -> String {
    format!("the push {name:?}: {error}")
}

impl PushTable {
    fn from_section(section: PushSection) -> Result<Self, String> {
        let group = format!("push-{}", section.name).parse::<GroupName>();
        let group = group.ok().filter(|_| is_name(&section.name)).ok_or(
            "`name` must be 1 to 59 letters, digits, '.', '_' or '-', as it is part of the name \
             of a group",
        )?;
        let topic: TopicName = section
            .topic
            .parse()
            .map_err(|error: ProtocolError| format!("`topic`: {}", error.text))?;
        if topic.as_str() == DEAD_LETTER_TOPIC {
            let text = "`topic` cannot be dead-letter: an event that is not accepted is one itself";
            return Err(text.to_owned());
        }
        let format = section.format()?;
        let hint = if section.url.contains("://") { "" } else { "; write https:// before it" };
        let url = CanonicalUrl::parse(&section.url);
        let url = url.map_err(|error| format!("`url`: {error}{hint}"))?;
        url.check_callable().map_err(|error| format!("`url`: {error}"))?;
        let conditions = section.conditions.iter().map(String::as_str);
        let filter = AttributeFilter::parse(conditions);
        let filter = filter.map_err(|error| format!("`where`: {}", error.text))?;
        let batch = section.batch.as_deref().map(parse_moderate_duration).transpose();
        let batch = batch.map_err(|error| format!("`batch`: {error}"))?;
        if batch.is_some() && !format.allows_batches() {
            return Err("`batch` is not for templates of JSON, which have one event".to_owned());
        }
        let retry_for = section.retry_for.as_deref().map(parse_duration).transpose();
        let retry_for = retry_for.map_err(|error| format!("`retry-for`: {error}"))?;
        let retry_for = retry_for.unwrap_or(RETRY_FOR_DEFAULT);
        let url = url.into_owned();
        let push = Push { group, topic, filter, url, format, batch, retry_for };
        let secret_file = section.secret_file;
        if secret_file.is_none() && push.format == Format::StandardWebhooks {
            return Err(UNSIGNED.to_owned());
        }
        Ok(Self { name: section.name, push, secret_file })
    }
}

impl PushSection {
    fn format(&self) -> Result<Format, String> {
        let Self { format, content_type, .. } = self;
        let template = self.template.as_deref().map(str::parse::<Template>).transpose();
        let template = template.map_err(|error| format!("`template`: {error}"))?;
        if content_type.is_some() && format != "text" {
            return Err("`content-type` is only for the format text".to_owned());
        }
        match format.as_str() {
            "text" => Format::text(template.unwrap_or_default(), content_type.as_deref())
                .map_err(|error| error.to_string()),
            "slack" => Ok(Format::Slack { template: template.unwrap_or_default() }),
            "standard-webhooks" | "cloudevents" if template.is_some() => {
                Err("`template` is only for the formats text and slack".to_owned())
            }
            "standard-webhooks" => Ok(Format::StandardWebhooks),
            // The public URL becomes the source.
            "cloudevents" => Ok(Format::CloudEvents { source: String::new() }),
            _ => Err(format!("`format` is {format:?}: expected {FORMATS}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(table: Value) -> Result<PushTable, String> {
        serde_json::from_value(table).map_err(|error| error.to_string())
    }

    fn table_with(keys: &Value) -> Result<PushTable, String> {
        let mut table = json!({
            "name": "pages", "topic": "page-ready", "url": "https://a.example/in",
            "format": "cloudevents",
        });
        for (key, value) in keys.as_object().unwrap() {
            table[key] = value.clone();
        }
        read(table)
    }

    #[test]
    fn a_table_becomes_a_push() {
        let keys = json!({
            "format": "text", "template": "{target}", "where": ["changed=yes", "status!=304"],
            "batch": "10s", "secret-file": "s",
        });
        let PushTable { name, push, secret_file } = table_with(&keys).unwrap();
        assert_eq!((&*name, secret_file), ("pages", Some("s".into())));
        assert_eq!((push.group.as_str(), push.topic.as_str()), ("push-pages", "page-ready"));
        assert_eq!(
            (push.url.as_str(), push.filter.conditions().len()),
            ("https://a.example/in", 2)
        );
        assert_eq!(push.batch, Some(Duration::from_secs(10)));
        let template = "{target}".parse().unwrap();
        assert_eq!(push.format, Format::text(template, None).unwrap());
    }

    #[test]
    fn a_wrong_table_is_rejected_with_a_reason() {
        let long = "x".repeat(60);
        for (keys, reason) in [
            (json!({ "format": "xml" }), "the push \"pages\": `format` is \"xml\": expected "),
            (json!({ "name": "a/b" }), "the push \"a/b\": `name` must be 1 to 59 "),
            (json!({ "name": long }), ": `name` must be 1 to 59 "),
            (json!({ "name": "" }), ": `name` must be 1 to 59 "),
            (json!({ "topic": "a b" }), ": `topic`: \"a b\" cannot be the name of a topic"),
            (json!({ "name": 7 }), "invalid type: integer `7`, expected a string"),
            (json!({ "url": "a.example/x" }), "; write https:// before it"),
            (json!({ "topic": "dead-letter" }), ": `topic` cannot be dead-letter"),
            (json!({ "url": "ftp://a.example/" }), ": `url`: "),
            (json!({ "url": "https://x.xn--pokxncvks/" }), ": `url`: "),
            (json!({ "where": ["changed"] }), ": `where`: where=\"changed\" should be "),
            (json!({ "where": vec!["a=b"; 9] }), ": `where`: where= may be given at most 8 times"),
            (json!({ "where": "a=b" }), "invalid type: string \"a=b\", expected a sequence"),
            (json!({ "where": [1] }), "invalid type: integer `1`, expected a string"),
            (json!({ "format": "standard-webhooks" }), ": `format` standard-webhooks is signed"),
            (json!({ "template": "{target}" }), ": `template` is only for "),
            (json!({ "content-type": "text/html" }), ": `content-type` is only for "),
            (json!({ "format": "slack", "template": "{x}" }), ": `template`: {x} is unknown; "),
            (json!({ "format": "text", "template": "{attr.}" }), ": `template`: {attr.} is "),
            (json!({ "batch": "soon" }), ": `batch`: "),
            (json!({ "batch": "2h" }), ": `batch`: expected 100ms to 1h"),
            (json!({ "batch": "0" }), ": `batch`: expected 100ms to 1h"),
            (
                json!({ "format": "text", "content-type": "application/json", "template": "{id}" }),
                ": `template` is not JSON",
            ),
            (
                json!({
                    "format": "text", "content-type": "application/json",
                    "template": "\"{id}\"", "batch": "1s",
                }),
                ": `batch` is not for ",
            ),
            (
                json!({ "secret": "hush" }),
                "unknown field `secret`, expected one of `name`, `topic`, ",
            ),
            (json!({ "url": null }), "invalid type: null, expected a string"),
            (json!({ "batch": 10 }), "invalid type: integer `10`, expected a string"),
        ] {
            let error = table_with(&keys).unwrap_err();
            assert!(error.contains(reason), "{keys}: {error}");
        }
        let without = json!({ "name": "a", "topic": "t", "url": "http://a.example/" });
        let error = read(without).unwrap_err();
        assert_eq!(error, "missing field `format`");
    }
}
