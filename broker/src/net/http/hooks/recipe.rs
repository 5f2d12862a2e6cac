//! Recipes: the configuration of a webhook. A recipe defines the senders, the signature, the URLs
//! that may be announced, and the topic.

use std::collections::BTreeMap;
use std::path::PathBuf;

use axum::http::{HeaderMap, StatusCode};
use data_encoding::HEXLOWER;
use serde::Deserialize;
use serde_json::Value;
use tidings_protocol::{CanonicalUrl, DEFAULT_TOPIC, Payload, TopicName, is_name, push_attribute};
use tidings_rate_limit::Rate;
use tidings_signature::{Secret, SignatureError, SignatureScheme, VerifiedRequest, digest_parts};

use super::super::error::{ErrorResponse, HttpResult};
use super::url_location::{self, UrlLocation};
use crate::access::{SourceFilter, UrlPrefix};

/// Bytes of the attributes that a recipe adds to its events.
const ATTRIBUTES_BYTES_MAX: usize = 4 << 10;

/// Secrets that are valid at the same time, so that an old one stays valid during a change.
const SECRETS_MAX: usize = 4;

/// A shorter secret may be guessed. Verified requests are accepted at any number of unverified
/// ones, so the rate limit does not stop a client that guesses.
pub const SECRET_BYTES_MIN: usize = 16;

const DEFAULT_RATE: Rate = Rate { per_minute: 60, burst: 60 };
const RATE_MAX: u32 = 60_000;

/// The keys of a `[[hook]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table of a hook")]
struct HookSection {
    name: String,
    topic: Option<String>,
    secret_file: Option<PathBuf>,
    secret_env: Option<String>,
    signature: Value,
    url: Value,
    prefixes: Vec<String>,
    #[serde(default)]
    attributes: BTreeMap<String, Value>,
    senders: Option<Vec<String>>,
    rate: Option<u32>,
    burst: Option<u32>,
    repeats: Option<bool>,
}

/// The `signature` of a hook whose requests are not signed.
const UNSIGNED: &str = "none";

/// Where a secret is stored. The configuration itself never contains a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// A file, with one secret per line.
    File(PathBuf),
    /// An environment variable.
    EnvVar(String),
}

/// A configured webhook, without its secret. Its form is the table `[[hook]]` of the configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "HookSection")]
pub struct Recipe {
    /// Its name in the path of requests.
    pub name: String,
    /// Where its secret is stored; `None` if its requests are not signed.
    pub secret: Option<SecretSource>,
    /// The topic on which it publishes.
    pub topic: TopicName,
    /// `None`: the address of the sender suffices.
    scheme: Option<SignatureScheme>,
    url_locations: Vec<UrlLocation>,
    prefixes: Vec<UrlPrefix>,
    /// ` key=value` for each attribute.
    attributes: String,
    pub(super) senders: SourceFilter,
    pub(super) rate: Rate,
    /// Whether a repeated request is published again.
    repeats: bool,
}

/// A webhook with its secrets.
#[derive(Debug, Clone)]
pub struct Hook {
    recipe: Recipe,
    /// All are valid; the sender uses one of them.
    secrets: Vec<Secret>,
}

impl TryFrom<HookSection> for Recipe {
    type Error = String;

    fn try_from(table: HookSection) -> Result<Self, String> {
        let name = table.name.clone();
        Self::from_section(table).map_err(|error| format!("the hook {name:?}: {error}"))
    }
}

impl Recipe {
    fn from_section(table: HookSection) -> Result<Self, String> {
        if !is_name(&table.name) {
            return Err("`name` must be 1 to 64 letters, digits, '.', '_' or '-'".to_owned());
        }
        let is_unsigned = table.signature == UNSIGNED;
        let secret = match (table.secret_file, table.secret_env) {
            (Some(file), None) => Some(SecretSource::File(file)),
            (None, Some(variable)) => Some(SecretSource::EnvVar(variable)),
            (None, None) if is_unsigned => None,
            _ => return Err("expected either `secret-file` or `secret-env`".to_owned()),
        };
        if is_unsigned && (secret.is_some() || table.senders.is_none()) {
            let text = "with `signature = \"none\"` it needs `senders`, and no secret";
            return Err(text.to_owned());
        }
        let topic = table.topic.as_deref().unwrap_or(DEFAULT_TOPIC);
        let prefixes = table.prefixes.iter().map(|prefix| prefix.parse());
        let prefixes: Vec<UrlPrefix> =
            prefixes.collect::<Result<_, _>>().map_err(|error| format!("`prefixes`: {error}"))?;
        if prefixes.is_empty() {
            let text = "`prefixes` is empty; list the URL prefixes that it may announce";
            return Err(text.to_owned());
        }
        let senders = match table.senders {
            None => SourceFilter::default(),
            Some(networks) if networks.is_empty() => {
                return Err("`senders` is empty; leave it out to accept any address".to_owned());
            }
            Some(networks) => {
                let networks: Result<Vec<_>, _> =
                    networks.iter().map(|network| network.parse()).collect();
                SourceFilter::only(networks.map_err(|error| format!("`senders`: {error}"))?)
            }
        };
        let number = |key, value: Option<u32>, default| match value.unwrap_or(default) {
            number @ 1..=RATE_MAX => Ok(number),
            number => Err(format!("`{key}` is {number}: expected a number from 1 to {RATE_MAX}")),
        };
        Ok(Self {
            name: table.name,
            secret,
            topic: topic.parse().map_err(|error| format!("`topic`: {error}"))?,
            scheme: (!is_unsigned)
                .then(|| SignatureScheme::from_config(&table.signature))
                .transpose()
                .map_err(|error| {
                    // The presets are those of signatures.
                    let or_none = if table.signature.is_string() { ", or none" } else { "" };
                    format!("`signature`: {error}{or_none}")
                })?,
            url_locations: UrlLocation::parse_list(&table.url)
                .map_err(|error| format!("`url`: {error}"))?,
            prefixes,
            attributes: attribute_words(&table.attributes)?,
            senders,
            rate: Rate {
                per_minute: number("rate", table.rate, DEFAULT_RATE.per_minute)?,
                burst: number("burst", table.burst, DEFAULT_RATE.burst)?,
            },
            // A third party cannot replay what needs no signature.
            repeats: table.repeats.unwrap_or(is_unsigned),
        })
    }

    /// Adds the content of the file or the environment variable: one secret per line. Without a
    /// signature, the text has no effect.
    pub fn with_secret(self, text: &str) -> Result<Hook, String> {
        let Some(scheme) = &self.scheme else {
            return Ok(Hook { recipe: self, secrets: Vec::new() });
        };
        let lines = text.lines().filter(|line| !line.is_empty());
        let secrets: Vec<Secret> =
            lines.map(|line| scheme.parse_secret(line)).collect::<Result<_, _>>()?;
        if let Some(secret) = secrets.iter().find(|secret| secret.len() < SECRET_BYTES_MIN) {
            return Err(format!(
                "a secret of {} bytes can be guessed: use at least {SECRET_BYTES_MIN} bytes, for \
                 example the output of `openssl rand -hex 32`",
                secret.len()
            ));
        }
        match secrets.len() {
            0 => Err("the secret is empty".to_owned()),
            1..=SECRETS_MAX => Ok(Hook { recipe: self, secrets }),
            count => Err(format!(
                "{count} secrets, one per line: at most {SECRETS_MAX} can be valid at a time"
            )),
        }
    }
}

/// Encodes attributes as words of an event, and checks that parsing returns them unchanged.
fn attribute_words(table: &BTreeMap<String, Value>) -> Result<String, String> {
    let mut words = String::new();
    for (key, value) in table {
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return Err(format!("`attributes`: {key:?} must be a string or a number")),
        };
        let line = format!("/ {key}={value}");
        if !Payload::parse(&line).attributes().eq([(key.as_str(), value.as_str())])
            || value.contains(char::is_control)
        {
            return Err(format!(
                "`attributes`: {key:?} must consist of letters, digits, '-', '_' and '.', and its \
                 value must be one word"
            ));
        }
        if key == "id" {
            let text = "`attributes`: `id` is reserved, because each event gets its own";
            return Err(text.to_owned());
        }
        push_attribute(&mut words, key, &value);
    }
    if words.len() > ATTRIBUTES_BYTES_MAX {
        return Err(format!("`attributes` are longer than {ATTRIBUTES_BYTES_MAX} bytes"));
    }
    Ok(words)
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct HookEvents {
    pub(super) payloads: Vec<String>,
    /// Equal for repeated requests; `None` if the recipe publishes repeated requests again.
    pub(super) idempotency_key: Option<String>,
}

impl Hook {
    /// The recipe of the hook.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// A hook that takes as long to verify a request, with random secrets that no sender knows.
    pub(super) fn decoy(&self) -> Self {
        let random = |secret: &Secret| {
            let bytes: Vec<u8> =
                std::iter::repeat_with(|| fastrand::u8(..)).take(secret.len()).collect();
            Secret::from(bytes)
        };
        let secrets = self.secrets.iter().map(random).collect();
        Self { recipe: self.recipe.clone(), secrets }
    }

    /// Verifies the signature of a request, if it must have one.
    pub(super) fn verify(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now_unix_ms: i64,
    ) -> Result<VerifiedRequest, SignatureError> {
        let Some(scheme) = &self.recipe.scheme else {
            return Ok(VerifiedRequest { digest: digest_parts(&[body]), signed_unix_ms: None });
        };
        let single_value = |name: &str| {
            let mut values = headers.get_all(name).iter();
            values.next().filter(|_| values.next().is_none())?.to_str().ok()
        };
        scheme.verify(&self.secrets, &single_value, body, now_unix_ms)
    }

    /// Returns the events of a verified request. Fails if one of the URLs is not below a prefix.
    pub(super) fn events(
        &self,
        verified: &VerifiedRequest,
        headers: &HeaderMap,
        body: &[u8],
    ) -> HttpResult<HookEvents> {
        let recipe = &self.recipe;
        let mut payloads = Vec::new();
        for text in url_location::urls(&recipe.url_locations, headers, body)? {
            let number = payloads.len() + 1;
            let url = CanonicalUrl::parse(&text).map_err(|error| {
                url_location::unprocessable(format!("URL {number} of the request: {error}"))
            })?;
            if !recipe.prefixes.iter().any(|prefix| prefix.contains(&url)) {
                let message = format!(
                    "URL {number} of the request is below none of the prefixes of this hook"
                );
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                return Err(ErrorResponse::new(status, "denied", message));
            }
            let mut payload = format!("{url}{}", recipe.attributes);
            if !recipe.repeats {
                let parts = [recipe.name.as_bytes(), &verified.digest, url.as_str().as_bytes()];
                let id = format!("{}-{}", recipe.name, short_digest(&parts));
                push_attribute(&mut payload, "id", &id);
            }
            payloads.push(payload);
        }
        let mut parts = vec![recipe.name.as_bytes(), &verified.digest[..]];
        parts.extend(payloads.iter().map(String::as_bytes));
        let idempotency_key = (!recipe.repeats).then(|| short_digest(&parts));
        Ok(HookEvents { payloads, idempotency_key })
    }
}

/// The first 128 bits of the SHA-256 of the parts, which are collision-resistant.
fn short_digest(parts: &[&[u8]]) -> String {
    HEXLOWER.encode(&digest_parts(parts)[..16])
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use serde_json::json;

    use super::*;

    const SECRET: &str = "hush, this secret is long enough";

    fn recipe_table() -> Value {
        json!({
            "name": "forge",
            "secret-env": "FORGE",
            "signature": "gitlab",
            "url": { "pointer": "/u/*" },
            "prefixes": ["https://a.example/x/"],
        })
    }

    fn read(table: Value) -> Result<Recipe, String> {
        serde_json::from_value(table).map_err(|error| error.to_string())
    }

    fn recipe_with(key: &str, value: Value) -> Result<Recipe, String> {
        let mut table = recipe_table();
        table[key] = value;
        read(table)
    }

    fn events(hook: &Hook, body: &str) -> HttpResult<HookEvents> {
        let mut headers = HeaderMap::new();
        headers.insert("x-gitlab-token", HeaderValue::from_static(SECRET));
        let verified = hook.verify(&headers, body.as_bytes(), 0).unwrap();
        hook.events(&verified, &headers, body.as_bytes())
    }

    // PROTOCOL: W4
    #[test]
    fn a_request_becomes_events_of_the_recipe_with_ids() {
        let recipe =
            recipe_with("attributes", json!({ "source": "forge", "prio": 5, "every": "1h" }));
        let hook = recipe.unwrap().with_secret(&format!("{SECRET}\n")).unwrap();
        let body = r#"{"u":["HTTPS://a.example:443/x/1","https://a.example/x/2"]}"#;
        let HookEvents { payloads, idempotency_key } = events(&hook, body).unwrap();
        let mut ids = Vec::new();
        for (payload, url) in
            payloads.iter().zip(["https://a.example/x/1", "https://a.example/x/2"])
        {
            let read = Payload::parse(payload);
            assert_eq!(read.target(), Some(url));
            let expected = [("every", "1h"), ("prio", "5"), ("source", "forge")];
            assert!(read.attributes().take(3).eq(expected), "{payload}");
            let id = read.attribute("id").unwrap();
            assert!(id.starts_with("forge-") && id.len() == "forge-".len() + 32, "{id}");
            ids.push(id.to_owned());
        }
        assert_ne!(ids[0], ids[1]);
        assert!(idempotency_key.is_some());
        assert_eq!(
            events(&hook, body).unwrap(),
            HookEvents { payloads, idempotency_key },
            "repeated request"
        );
        let other = events(&hook, r#"{"u":["https://a.example/x/1"]}"#).unwrap();
        assert_ne!(Payload::parse(&other.payloads[0]).attribute("id"), Some(&*ids[0]));
    }

    // PROTOCOL: W3
    #[test]
    fn one_url_outside_the_prefixes_rejects_the_request() {
        let hook = recipe_with("topic", json!("news")).unwrap().with_secret(SECRET).unwrap();
        for url in [
            "https://b.example/x/",
            "https://a.example/y",
            "nonsense",
            "https://a@a.example/x/",
            "",
        ] {
            let body = json!({ "u": ["https://a.example/x/1", url] }).to_string();
            assert!(events(&hook, &body).is_err(), "{url}");
        }
        // The canonical form encodes spaces and line ends, so a URL adds no word and no line.
        let body = json!({ "u": ["https://a.example/x/a b\n job=x\u{2028}"] }).to_string();
        let payloads = events(&hook, &body).unwrap().payloads;
        assert!(payloads[0].starts_with("https://a.example/x/a%20b%20job=x%E2%80%A8 id="));
        assert_eq!(Payload::parse(&payloads[0]).attributes().count(), 1);
    }

    #[test]
    fn with_repeats_events_have_no_ids() {
        let hook = recipe_with("repeats", json!(true)).unwrap().with_secret(SECRET).unwrap();
        let events = events(&hook, r#"{"u":["https://a.example/x/"]}"#).unwrap();
        assert_eq!(events.payloads, ["https://a.example/x/"]);
        assert_eq!(events.idempotency_key, None);
    }

    #[test]
    fn invalid_recipes_are_rejected_with_a_reason() {
        assert!(read(recipe_table()).is_ok());
        for (key, value, part) in [
            ("name", json!("a/b"), "`name` must be"),
            ("secret-file", json!("/x"), "either `secret-file` or `secret-env`"),
            ("topic", json!("a b"), "`topic`: "),
            ("signature", json!("gitbul"), "or a table, or none"),
            ("url", json!({ "field": 7 }), "`url`: "),
            ("prefixes", json!([]), "`prefixes` is empty"),
            ("prefixes", json!(["a.example"]), "`prefixes`: \"a.example\""),
            ("senders", json!([]), "`senders` is empty"),
            ("senders", json!(["10/8"]), "`senders`: "),
            ("attributes", json!({ "a b": "c" }), "`attributes`: "),
            ("attributes", json!({ "a": "c d" }), "one word"),
            ("attributes", json!({ "a": "c\u{7f}" }), "one word"),
            ("attributes", json!({ "id": "c" }), "`id` is reserved"),
            ("attributes", json!({ "a": ["c"] }), "a string or a number"),
            ("attributes", json!({ "a": "x".repeat(5_000) }), "longer than 4096"),
            ("rate", json!(0), "`rate` is 0: expected a number from 1"),
            ("rate", json!(-1), "invalid value"),
            ("burst", json!(60_001), "`burst` is 60001: expected a number from 1"),
            ("secret", json!("hush"), "unknown field `secret`"),
            ("signature", json!("none"), "it needs `senders`, and no secret"),
        ] {
            let error = recipe_with(key, value.clone()).unwrap_err();
            assert!(error.contains(part), "{key} = {value}: {error}");
        }
    }

    #[test]
    fn requests_without_a_signature_need_known_senders() {
        let mut table = recipe_table();
        table["signature"] = json!("none");
        table.as_object_mut().unwrap().remove("secret-env");
        let error = read(table.clone()).unwrap_err();
        assert!(error.contains("it needs `senders`"), "{error}");
        table["senders"] = json!(["192.0.2.0/24"]);
        let hook = read(table.clone()).unwrap().with_secret("").unwrap();
        let verified = hook.verify(&HeaderMap::new(), b"", 0).unwrap();
        let body = br#"{"u":["https://a.example/x/1"]}"#;
        let events = hook.events(&verified, &HeaderMap::new(), body).unwrap();
        assert_eq!(events.payloads, ["https://a.example/x/1"], "a repeated ping is an event");
        table["secret-env"] = json!("FORGE");
        assert!(read(table).is_err());
    }

    #[test]
    fn a_decoy_has_random_secrets_of_the_same_lengths() {
        let other = "b".repeat(40);
        let hook =
            recipe_with("rate", json!(1)).unwrap().with_secret(&format!("{SECRET}\n{other}"));
        let hook = hook.unwrap();
        let decoy = hook.decoy();
        let lengths = |hook: &Hook| hook.secrets.iter().map(Secret::len).collect::<Vec<_>>();
        assert_eq!(lengths(&decoy), lengths(&hook));
        assert_eq!(decoy.recipe.scheme, hook.recipe.scheme);
        let mut headers = HeaderMap::new();
        headers.insert("x-gitlab-token", HeaderValue::from_static(SECRET));
        assert!(hook.verify(&headers, b"{}", 0).is_ok());
        assert!(decoy.verify(&headers, b"{}", 0).is_err());
    }

    #[test]
    fn secrets_are_one_per_line() {
        let hook = |text: &str| recipe_with("rate", json!(1)).unwrap().with_secret(text);
        let other = "b".repeat(SECRET_BYTES_MIN);
        assert_eq!(hook(&format!("{SECRET}\r\n{other}\n\n")).unwrap().secrets.len(), 2);
        let (short, many) = (&other[1..], format!("{other}\n").repeat(5));
        for invalid in ["", "\n", short, &format!("{other}\n{short}"), &many] {
            let error = hook(invalid).unwrap_err();
            assert!(!error.contains(short), "{invalid:?}: {error}");
        }
        assert!(!format!("{:?}", hook(SECRET).unwrap()).contains("hush"));
    }
}
