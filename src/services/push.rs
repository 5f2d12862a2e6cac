//! Pushes of the configuration: `[[push]]`, with secrets that are stored elsewhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use tidings_broker::hooks::{SECRET_BYTES_MIN, without_location};
use tidings_connectors::delivery::Signer;
use tidings_connectors::push::{Format, Push, Template};
use tidings_protocol::{
    AttributeFilter, CanonicalUrl, DEAD_LETTER_TOPIC, GroupName, TopicName, is_name,
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

/// The keys of a `[[push]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table of a push")]
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

/// Parses a table in JSON, the form of the flag `--push`.
impl FromStr for PushTable {
    type Err = String;

    fn from_str(json: &str) -> Result<Self, String> {
        let section: PushSection =
            serde_json::from_str(json).map_err(|error| without_location(&error))?;
        let name = section.name.clone();
        Self::from_section(section).map_err(|error| of_push(&name, &error))
    }
}

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
        let topic: TopicName =
            section.topic.parse().map_err(|error| format!("`topic`: {error}"))?;
        if topic.as_str() == DEAD_LETTER_TOPIC {
            let text = "`topic` cannot be dead-letter: an event that is not accepted is one itself";
            return Err(text.to_owned());
        }
        let format = section.format()?;
        let url = CanonicalUrl::parse(&section.url).map_err(|error| format!("`url`: {error}"))?;
        url.check_callable().map_err(|error| format!("`url`: {error}"))?;
        let conditions = section.conditions.iter().map(String::as_str);
        let filter = AttributeFilter::parse(conditions).map_err(|error| error.text)?;
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
        Ok(Self { name: section.name, push, secret_file: section.secret_file })
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
            _ => Err(format!(
                "`format` is {format:?}: expected standard-webhooks, cloudevents, text or slack"
            )),
        }
    }
}

impl PushFlags {
    pub(crate) fn secret_files(&self) -> impl Iterator<Item = &Path> {
        self.push.iter().filter_map(|table| table.secret_file.as_deref())
    }

    /// All pushes with their secrets, which are read now. `is_published` says whether a request to
    /// a URL publishes on a topic of this broker: such a push would never end.
    pub(crate) fn pushes(
        &self,
        public: Option<&PublicUrl>,
        is_published: impl Fn(&CanonicalUrl<'_>, &TopicName) -> bool,
    ) -> Result<Vec<(Push, Option<Signer>)>, Failure> {
        let mut names = BTreeSet::new();
        let mut pushes = Vec::new();
        for (index, table) in self.push.iter().enumerate() {
            let PushTable { name, push, secret_file } = table;
            let wrong = |text| Failure::BadValue { flag: "push", index, text };
            if !names.insert(name) {
                return Err(wrong(format!("two pushes have the name {name:?}")));
            }
            let wrong = |error: String| wrong(of_push(name, &error));
            let Push { url, topic, .. } = push;
            if is_published(url, topic) {
                let text = format!("`url` publishes on {topic}, which would be pushed again");
                return Err(wrong(text));
            }
            let mut push = push.clone();
            if let Format::CloudEvents { source } = &mut push.format {
                *source = public.map(ToString::to_string).ok_or_else(|| {
                    let text = "the format cloudevents needs --public-url, which becomes `source`";
                    wrong(text.to_owned())
                })?;
            }
            let signer = secret_file.as_deref().map(read_signer).transpose().map_err(wrong)?;
            pushes.push((push, signer));
        }
        Ok(pushes)
    }
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
            "format": "standard-webhooks",
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
            (json!({ "topic": "a b" }), ": `topic`: "),
            (json!({ "topic": "dead-letter" }), ": `topic` cannot be dead-letter"),
            (json!({ "url": "ftp://a.example/" }), ": `url`: "),
            (json!({ "url": "https://x.xn--pokxncvks/" }), ": `url`: "),
            (json!({ "where": ["changed"] }), ": where=\"changed\" should be "),
            (json!({ "where": vec!["a=b"; 9] }), ": where= may be given at most 8 times"),
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
            (json!({ "secret": "hush" }), "unknown field `secret`, expected "),
            (json!({ "url": null }), "invalid type: null, expected a string"),
        ] {
            let error = table_with(&keys).unwrap_err();
            assert!(error.contains(reason), "{keys}: {error}");
        }
    }
}
