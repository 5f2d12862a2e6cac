//! What the configuration says of a webhook: who may send, how that is known, what may be
//! announced, where.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use axum::http::HeaderMap;
use data_encoding::HEXLOWER;
use serde::Deserialize;
use serde_json::Value;
use tidings_protocol::{CanonicalUrl, DEFAULT_TOPIC, Payload, TopicName, is_name, push_attribute};

use super::super::error::ErrorResponse;
use super::signature::{Secret, SignatureError, SignatureScheme, VerifiedRequest, digest_parts};
use super::url_location::{self, UrlLocation};
use crate::access::{SourceFilter, UrlPrefix};
use crate::rate_limit::Rate;

/// Bytes of the attributes of a recipe.
const ATTRIBUTES_BYTES_MAX: usize = 4 << 10;

/// Secrets that are good at the same time: an old one and its successor, while the sender changes.
const SECRETS_MAX: usize = 4;

/// A shorter secret may be guessed: whoever signs is never told to wait for those who do not, so
/// that anybody may try as many as they like.
pub const SECRET_BYTES_MIN: usize = 16;

/// Requests a minute from one address, and at once, where a recipe does not say it.
const DEFAULT_RATE: Rate = Rate { per_minute: 60, burst: 60 };
const RATE_MAX: u32 = 60_000;

/// What stands in a `[[hook]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
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
    #[serde(default)]
    repeats: bool,
}

/// Where a secret is. It is never in the configuration itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// A file, with one secret a line.
    File(PathBuf),
    /// A variable of the environment.
    EnvVar(String),
}

/// A webhook as it is configured, without its secret.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// Its name in the path of requests.
    pub name: String,
    /// Where its secret is.
    pub secret: SecretSource,
    topic: TopicName,
    scheme: SignatureScheme,
    url_locations: Vec<UrlLocation>,
    prefixes: Vec<UrlPrefix>,
    /// ` key=value` for each attribute.
    attributes: String,
    senders: SourceFilter,
    rate: Rate,
    repeats: bool,
}

/// A webhook that can be received.
#[derive(Debug, Clone)]
pub struct Hook {
    recipe: Recipe,
    /// One of them is known to the sender.
    secrets: Vec<Secret>,
}

/// Of a table as JSON, as a flag has it.
impl FromStr for Recipe {
    type Err = String;

    fn from_str(json: &str) -> Result<Self, String> {
        let table: HookSection =
            serde_json::from_str(json).map_err(|error| without_location(&error))?;
        let name = table.name.clone();
        Self::from_section(table).map_err(|error| format!("the hook {name:?}: {error}"))
    }
}

/// What is wrong, without the line and column of JSON that nobody wrote.
fn without_location(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(text, _)| text.to_owned())
}

impl Recipe {
    fn from_section(table: HookSection) -> Result<Self, String> {
        if !is_name(&table.name) {
            return Err("a name is 1 to 64 letters, digits, '.', '_' or '-'".to_owned());
        }
        let secret = match (table.secret_file, table.secret_env) {
            (Some(file), None) => SecretSource::File(file),
            (None, Some(variable)) => SecretSource::EnvVar(variable),
            _ => return Err("give `secret-file` or `secret-env`".to_owned()),
        };
        let topic = table.topic.as_deref().unwrap_or(DEFAULT_TOPIC);
        let prefixes = table.prefixes.iter().map(|prefix| prefix.parse());
        let prefixes: Vec<UrlPrefix> =
            prefixes.collect::<Result<_, _>>().map_err(|error| format!("`prefixes`: {error}"))?;
        if prefixes.is_empty() {
            return Err("`prefixes` is empty, so that nothing could be announced".to_owned());
        }
        let senders = match table.senders {
            None => SourceFilter::default(),
            Some(nets) if nets.is_empty() => {
                return Err("`senders` is empty; leave it out if they may be anywhere".to_owned());
            }
            Some(nets) => {
                let nets = nets.iter().map(|net| net.parse()).collect::<Result<Vec<_>, _>>();
                SourceFilter::only(nets.map_err(|error| format!("`senders`: {error}"))?)
            }
        };
        let number = |key, given: Option<u32>, default| match given.unwrap_or(default) {
            number @ 1..=RATE_MAX => Ok(number),
            _ => Err(format!("`{key}` is a number from 1 to {RATE_MAX}")),
        };
        Ok(Self {
            name: table.name,
            secret,
            topic: topic.parse().map_err(|error| format!("`topic`: {error}"))?,
            scheme: SignatureScheme::from_config(&table.signature)
                .map_err(|error| format!("`signature`: {error}"))?,
            url_locations: UrlLocation::parse_list(&table.url)
                .map_err(|error| format!("`url`: {error}"))?,
            prefixes,
            attributes: attribute_words(&table.attributes)?,
            senders,
            rate: Rate {
                per_minute: number("rate", table.rate, DEFAULT_RATE.per_minute)?,
                burst: number("burst", table.burst, DEFAULT_RATE.burst)?,
            },
            repeats: table.repeats,
        })
    }

    /// With what is in the file or the variable: a secret, or several, one a line.
    pub fn with_secret(self, written: &str) -> Result<Hook, String> {
        let lines = written.lines().filter(|line| !line.is_empty());
        let secrets: Vec<Secret> =
            lines.map(|line| self.scheme.parse_secret(line)).collect::<Result<_, _>>()?;
        if let Some(secret) = secrets.iter().find(|secret| secret.len() < SECRET_BYTES_MIN) {
            return Err(format!(
                "a secret of {} bytes can be guessed: it takes {SECRET_BYTES_MIN}; `openssl rand -hex 32` makes a good one",
                secret.len()
            ));
        }
        match secrets.len() {
            0 => Err("the secret is empty".to_owned()),
            1..=SECRETS_MAX => Ok(Hook { recipe: self, secrets }),
            _ => Err(format!("there are more than {SECRETS_MAX} lines, and each is a secret")),
        }
    }
}

/// As they stand in an event, and are read in it again.
fn attribute_words(table: &BTreeMap<String, Value>) -> Result<String, String> {
    let mut words = String::new();
    for (key, value) in table {
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return Err(format!("`attributes`: {key:?} is a text or a number")),
        };
        let line = format!("/ {key}={value}");
        if !Payload::parse(&line).attributes().eq([(key.as_str(), value.as_str())])
            || value.contains(char::is_control)
        {
            return Err(format!(
                "`attributes`: {key:?} has to be letters, digits, '-', '_' and '.', and its value \
                 one word"
            ));
        }
        if key == "id" {
            return Err("`attributes`: each event gets an id of its own".to_owned());
        }
        push_attribute(&mut words, key, &value);
    }
    if words.len() > ATTRIBUTES_BYTES_MAX {
        return Err(format!("`attributes` are longer than {ATTRIBUTES_BYTES_MAX} bytes"));
    }
    Ok(words)
}

/// What is to be published.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HookEvents {
    pub(super) payloads: Vec<String>,
    /// The same for a request that is sent again; `None` if it is to be published again, too.
    pub(super) idempotency_key: Option<String>,
}

impl Hook {
    /// Its recipe.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// One that looks at a request as this one does, and that nobody can use: nobody has its
    /// secrets.
    pub(super) fn decoy(&self) -> Self {
        let secrets = self.secrets.iter().map(Secret::random_of_same_len).collect();
        Self { recipe: self.recipe.clone(), secrets }
    }

    pub(super) fn topic(&self) -> &TopicName {
        &self.recipe.topic
    }

    pub(super) fn senders(&self) -> &SourceFilter {
        &self.recipe.senders
    }

    pub(super) fn rate(&self) -> Rate {
        self.recipe.rate
    }

    /// Whether a request is the sender's.
    pub(super) fn verify(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now_unix_ms: i64,
    ) -> Result<VerifiedRequest, SignatureError> {
        let one = |name: &str| {
            let mut values = headers.get_all(name).iter();
            values.next().filter(|_| values.next().is_none())?.to_str().ok()
        };
        self.recipe.scheme.verify(&self.secrets, &one, body, now_unix_ms)
    }

    /// The events of a request that is the sender's. Refused whole if one of the URLs is not below
    /// a prefix.
    pub(super) fn events(
        &self,
        authentic: &VerifiedRequest,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<HookEvents, ErrorResponse> {
        let recipe = &self.recipe;
        let mut payloads = Vec::new();
        let mut urls = Vec::new();
        for text in url_location::urls(&recipe.url_locations, headers, body)? {
            let nth = urls.len() + 1;
            let url = CanonicalUrl::parse(&text).map_err(|error| {
                url_location::unprocessable(format!("URL {nth} of the request: {error}"))
            })?;
            if !recipe.prefixes.iter().any(|prefix| prefix.contains(&url)) {
                let message = format!("URL {nth} of the request may not be announced by this hook");
                return Err(ErrorResponse::new(
                    axum::http::StatusCode::UNPROCESSABLE_ENTITY,
                    "denied",
                    message,
                ));
            }
            urls.push(url.into_owned());
        }
        for url in &urls {
            let mut payload = format!("{url}{}", recipe.attributes);
            if !recipe.repeats {
                let said = [recipe.name.as_bytes(), &authentic.digest, url.as_str().as_bytes()];
                push_attribute(
                    &mut payload,
                    "id",
                    &format!("{}-{}", recipe.name, short_digest(&said)),
                );
            }
            payloads.push(payload);
        }
        let mut said = vec![recipe.name.as_bytes(), &authentic.digest[..]];
        said.extend(payloads.iter().map(String::as_bytes));
        let key = (!recipe.repeats).then(|| short_digest(&said));
        Ok(HookEvents { payloads, idempotency_key: key })
    }
}

/// 128 bits of a hash that nobody finds two things for.
fn short_digest(parts: &[&[u8]]) -> String {
    HEXLOWER.encode(&digest_parts(parts)[..16])
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use serde_json::json;

    use super::*;

    const SECRET: &str = "hush, and let nobody hear it";

    fn recipe_table() -> Value {
        json!({
            "name": "forge",
            "secret-env": "FORGE",
            "signature": "gitlab",
            "url": { "pointer": "/u/*" },
            "prefixes": ["https://a.example/x/"],
        })
    }

    fn recipe_with(key: &str, value: Value) -> Result<Recipe, String> {
        let mut table = recipe_table();
        table[key] = value;
        table.to_string().parse()
    }

    fn events(hook: &Hook, body: &str) -> Result<HookEvents, ErrorResponse> {
        let mut headers = HeaderMap::new();
        headers.insert("x-gitlab-token", HeaderValue::from_static(SECRET));
        let authentic = hook.verify(&headers, body.as_bytes(), 0).unwrap();
        hook.events(&authentic, &headers, body.as_bytes())
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
            let wanted = [("every", "1h"), ("prio", "5"), ("source", "forge")];
            assert!(read.attributes().take(3).eq(wanted), "{payload}");
            let id = read.attribute("id").unwrap();
            assert!(id.starts_with("forge-") && id.len() == "forge-".len() + 32, "{id}");
            ids.push(id.to_owned());
        }
        assert_ne!(ids[0], ids[1]);
        assert!(idempotency_key.is_some());
        assert_eq!(
            events(&hook, body).unwrap(),
            HookEvents { payloads, idempotency_key },
            "sent again"
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
        // What a URL cannot hold is encoded in its canonical form: it adds no word and no line.
        let body = json!({ "u": ["https://a.example/x/a b\n job=x\u{2028}"] }).to_string();
        let payloads = events(&hook, &body).unwrap().payloads;
        assert!(payloads[0].starts_with("https://a.example/x/a%20b%20job=x%E2%80%A8 id="));
        assert_eq!(Payload::parse(&payloads[0]).attributes().count(), 1);
    }

    #[test]
    fn with_repeats_events_have_no_ids() {
        let hook = recipe_with("repeats", json!(true)).unwrap().with_secret(SECRET).unwrap();
        let announced = events(&hook, r#"{"u":["https://a.example/x/"]}"#).unwrap();
        assert_eq!(announced.payloads, ["https://a.example/x/"]);
        assert_eq!(announced.idempotency_key, None);
    }

    #[test]
    fn invalid_recipes_are_rejected_with_a_reason() {
        assert!(recipe_table().to_string().parse::<Recipe>().is_ok());
        for (key, value, part) in [
            ("name", json!("a/b"), "a name is"),
            ("secret-file", json!("/x"), "give `secret-file` or `secret-env`"),
            ("topic", json!("a b"), "`topic`: "),
            ("signature", json!("gitbul"), "`signature`: "),
            ("url", json!({ "field": 7 }), "`url`: "),
            ("prefixes", json!([]), "`prefixes` is empty"),
            ("prefixes", json!(["a.example"]), "`prefixes`: \"a.example\""),
            ("senders", json!([]), "`senders` is empty"),
            ("senders", json!(["10/8"]), "`senders`: "),
            ("attributes", json!({ "a b": "c" }), "`attributes`: "),
            ("attributes", json!({ "a": "c d" }), "one word"),
            ("attributes", json!({ "a": "c\u{7f}" }), "one word"),
            ("attributes", json!({ "id": "c" }), "an id of its own"),
            ("attributes", json!({ "a": ["c"] }), "a text or a number"),
            ("attributes", json!({ "a": "x".repeat(5_000) }), "longer than 4096"),
            ("rate", json!(0), "`rate` is a number from 1"),
            ("rate", json!(-1), "invalid value"),
            ("burst", json!(60_001), "`burst` is a number from 1"),
            ("secret", json!("hush"), "unknown field `secret`"),
        ] {
            let error = recipe_with(key, value.clone()).unwrap_err();
            assert!(error.contains(part), "{key} = {value}: {error}");
            assert!(!error.contains(" at line "), "{error}");
        }
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
        let of = |written: &str| recipe_with("rate", json!(1)).unwrap().with_secret(written);
        let other = "b".repeat(SECRET_BYTES_MIN);
        assert_eq!(of(&format!("{SECRET}\r\n{other}\n\n")).unwrap().secrets.len(), 2);
        let (short, many) = (&other[1..], format!("{other}\n").repeat(5));
        for wrong in ["", "\n", short, &format!("{other}\n{short}"), &many] {
            let error = of(wrong).unwrap_err();
            assert!(!error.contains(short), "{wrong:?}: {error}");
        }
        assert!(!format!("{:?}", of(SECRET).unwrap()).contains("hush"));
    }
}
