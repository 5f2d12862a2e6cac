//! Pushes of the configuration: `[[push]]`, with secrets that are stored elsewhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value};
use tidings_broker::hooks::SECRET_BYTES_MIN;
use tidings_connectors::delivery::Signer;
use tidings_connectors::push::{Format, Push, Template};
use tidings_protocol::{
    AttributeFilter, CanonicalUrl, DEAD_LETTER_TOPIC, DEFAULT_TOPIC, GroupName, PAGE_READY_TOPIC,
    ProtocolError, TopicName, is_name,
};

use crate::flags::{parse_duration, parse_moderate_duration};
use crate::services::callbacks::{read_signing_secrets, signer_of};
use crate::services::public_url::PublicUrl;
use crate::terminal::failure::Failure;

/// Flags of the pushes that a broker sends.
#[derive(Debug, Clone, Args)]
pub(crate) struct PushFlags {
    /// A push as a JSON object; same as `[[push]]` in the configuration file
    #[arg(long, value_name = "JSON", hide = true)]
    push: Vec<PushTable>,
}

/// A `[[push]]`, without its secrets.
#[derive(Debug, Clone)]
struct PushTable {
    name: String,
    push: Push,
    secret_file: Option<PathBuf>,
}

/// The values of a `[[push]]`.
#[derive(Debug)]
struct PushSection {
    name: String,
    topic: String,
    url: String,
    format: String,
    conditions: Vec<String>,
    template: Option<String>,
    content_type: Option<String>,
    secret_file: Option<String>,
    batch: Option<String>,
    retry_for: Option<String>,
}

/// The keys of a `[[push]]`, in the order of the manual.
const KEYS: [&str; 10] = [
    "name",
    "topic",
    "where",
    "url",
    "format",
    "template",
    "content-type",
    "secret-file",
    "batch",
    "retry-for",
];

/// For how long an event is sent again while the receiver is down.
const RETRY_FOR_DEFAULT: Duration = Duration::from_hours(72);

/// Parses a table in JSON, the form of the flag `--push`.
impl FromStr for PushTable {
    type Err = String;

    fn from_str(json: &str) -> Result<Self, String> {
        let table: Map<String, Value> = serde_json::from_str(json)
            .map_err(|_| "expected a table: [[push]] in a line, and its keys below")?;
        let push = PushSection::read(&table).and_then(Self::from_section);
        push.map_err(|error| match table.get("name").and_then(Value::as_str) {
            Some(name) => of_push(name, &error),
            None => error,
        })
    }
}

/// The formats, for errors.
const FORMATS: &str = "standard-webhooks, cloudevents, text or slack";

/// The error for a push in a signed format without a secret.
const UNSIGNED: &str = "`format` standard-webhooks is signed, and there is no secret; write the \
    output of `openssl rand -base64 32` into a file, and name it as secret-file = \"..\"";

fn of_push(name: &str, error: &str) -> String {
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
        let secret_file = section.secret_file.map(PathBuf::from);
        if secret_file.is_none() && push.format == Format::StandardWebhooks {
            return Err(UNSIGNED.to_owned());
        }
        Ok(Self { name: section.name, push, secret_file })
    }
}

impl PushSection {
    fn read(table: &Map<String, Value>) -> Result<Self, String> {
        if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(format!("`{key}` is unknown; the keys are {}", KEYS.join(", ")));
        }
        let text = |key: &str| match table.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(format!("`{key}` is {other}: expected a text in quotes")),
        };
        let required = |key: &str| {
            text(key)?.ok_or_else(|| format!("the key {key} is missing; write {key} = \"..\""))
        };
        let conditions = match table.get("where") {
            None => Some(Vec::new()),
            Some(list) => list
                .as_array()
                .and_then(|list| list.iter().map(|one| one.as_str().map(str::to_owned)).collect()),
        };
        Ok(Self {
            name: required("name")?,
            topic: required("topic")?,
            url: required("url")?,
            format: text("format")?
                .ok_or_else(|| format!("the key format is missing: expected {FORMATS}"))?,
            conditions: conditions
                .ok_or("`where` must be a list of texts, as in where = [\"changed=yes\"]")?,
            template: text("template")?,
            content_type: text("content-type")?,
            secret_file: text("secret-file")?,
            batch: text("batch")?,
            retry_for: text("retry-for")?,
        })
    }

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

impl PushFlags {
    pub(crate) fn secret_files(&self) -> impl Iterator<Item = &Path> {
        self.push.iter().filter_map(|table| table.secret_file.as_deref())
    }

    /// All pushes with their secrets, which are read now. `published_topic` is the topic of this
    /// broker on which a request to a URL publishes.
    pub(crate) fn pushes(
        &self,
        public: Option<&PublicUrl>,
        published_topic: impl Fn(&CanonicalUrl<'_>) -> Option<TopicName>,
    ) -> Result<Vec<(Push, Option<Signer>)>, Failure> {
        let published: Vec<_> =
            self.push.iter().map(|table| published_topic(&table.push.url)).collect();
        let ways = self.push.iter().zip(&published);
        let ways =
            ways.filter_map(|(table, to)| Some((table.push.topic.as_str(), to.as_ref()?.as_str())));
        // URLs on the default topic are crawled, and their outcomes published.
        let ways: Vec<_> = ways.chain([(DEFAULT_TOPIC, PAGE_READY_TOPIC)]).collect();
        let mut names = BTreeSet::new();
        let mut pushes = Vec::new();
        for (index, table) in self.push.iter().enumerate() {
            let PushTable { name, push, secret_file } = table;
            let wrong = |text| Failure::BadValue { flag: "push", index, text };
            if !names.insert(name) {
                return Err(wrong(format!("`name`: two pushes have the name {name:?}")));
            }
            let wrong = |error: String| wrong(of_push(name, &error));
            let topic = &push.topic;
            if let Some(published) = &published[index]
                && is_reachable(topic.as_str(), published.as_str(), &ways)
            {
                let text = if published == topic {
                    format!("`url` publishes on {topic}, which would be pushed again")
                } else {
                    format!("`url` publishes on {published}, which leads to {topic} again")
                };
                return Err(wrong(format!("{text}, for ever; use another topic")));
            }
            let mut push = push.clone();
            if let Format::CloudEvents { source } = &mut push.format {
                *source = public.map(ToString::to_string).ok_or_else(|| {
                    let text = "`format` cloudevents needs --public-url, which becomes the source";
                    wrong(text.to_owned())
                })?;
            }
            let signer = secret_file.as_deref().map(read_signer).transpose();
            let signer = signer.map_err(|error| wrong(format!("`secret-file`: {error}")))?;
            pushes.push((push, signer));
        }
        Ok(pushes)
    }
}

/// Whether events of a topic become events of another one, by ways from topic to topic.
fn is_reachable(topic: &str, from: &str, ways: &[(&str, &str)]) -> bool {
    let mut reached = vec![from];
    let mut next = 0;
    while let Some(&at) = reached.get(next) {
        let onward = ways.iter().filter(|(from, _)| *from == at).map(|(_, to)| *to);
        let new: Vec<_> = onward.filter(|to| !reached.contains(to)).collect();
        reached.extend(new);
        next += 1;
    }
    reached.contains(&topic)
}

fn read_signer(file: &Path) -> Result<Signer, String> {
    let secrets = read_signing_secrets(file)?;
    if let Some(secret) = secrets.iter().find(|secret| secret.len() < SECRET_BYTES_MIN) {
        return Err(format!(
            "a secret of {} bytes can be guessed: use at least {SECRET_BYTES_MIN} bytes, for \
             example the output of `openssl rand -base64 32`",
            secret.len()
        ));
    }
    Ok(signer_of(secrets))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn table_with(keys: &Value) -> Result<PushTable, String> {
        let mut table = json!({
            "name": "pages", "topic": "page-ready", "url": "https://a.example/in",
            "format": "cloudevents",
        });
        for (key, value) in keys.as_object().unwrap() {
            table[key] = value.clone();
        }
        table.to_string().parse()
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
            (json!({ "name": 7 }), "`name` is 7: expected a text"),
            (json!({ "url": "a.example/x" }), "; write https:// before it"),
            (json!({ "topic": "dead-letter" }), ": `topic` cannot be dead-letter"),
            (json!({ "url": "ftp://a.example/" }), ": `url`: "),
            (json!({ "url": "https://x.xn--pokxncvks/" }), ": `url`: "),
            (json!({ "where": ["changed"] }), ": `where`: where=\"changed\" should be "),
            (json!({ "where": vec!["a=b"; 9] }), ": `where`: where= may be given at most 8 times"),
            (json!({ "where": "a=b" }), ": `where` must be a list of texts"),
            (json!({ "where": [1] }), ": `where` must be a list of texts"),
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
            (json!({ "secret": "hush" }), ": `secret` is unknown; the keys are name, topic, "),
            (json!({ "url": null }), ": `url` is null: expected a text in quotes"),
            (json!({ "batch": 10 }), ": `batch` is 10: expected a text in quotes"),
        ] {
            let error = table_with(&keys).unwrap_err();
            assert!(error.contains(reason), "{keys}: {error}");
        }
        let without = r#"{"name":"a","topic":"t","url":"http://a.example/"}"#;
        let error = without.parse::<PushTable>().unwrap_err();
        assert_eq!(error, format!("the push \"a\": the key format is missing: expected {FORMATS}"));
    }
}
