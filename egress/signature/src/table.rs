//! Signature schemes in the configuration: presets and tables.

use serde::Deserialize;
use serde_json::Value;
use tidings_protocol::parse_ms;

use super::{
    Algorithm, DEFAULT_TOLERANCE_MS, HmacScheme, SchemeKind, SecretEncoding, SignatureScheme,
    SignedPart, TimestampSource, parse_header_name,
};
use crate::encoding::Encoding;

/// The schemes of known senders, as tables.
pub(super) const PRESETS: [(&str, &str); 8] = [
    ("github", r#"{"header":"X-Hub-Signature-256","prefix":"sha256="}"#),
    ("gitea", r#"{"header":"X-Gitea-Signature"}"#),
    ("gitlab", r#"{"token":"X-Gitlab-Token"}"#),
    (
        "standard-webhooks",
        r#"{"header":"webhook-signature","prefix":"v1,","separator":" ","encoding":"base64",
            "signs":"{id}.{timestamp}.{body}","timestamp":"webhook-timestamp","id":"webhook-id",
            "secret":"base64"}"#,
    ),
    (
        "slack",
        r#"{"header":"X-Slack-Signature","prefix":"v0=","signs":"v0:{timestamp}:{body}",
            "timestamp":"X-Slack-Request-Timestamp"}"#,
    ),
    (
        "stripe",
        r#"{"header":"Stripe-Signature","prefix":"v1=","separator":",",
            "signs":"{timestamp}.{body}","timestamp-item":"t="}"#,
    ),
    (
        "ghost",
        r#"{"header":"X-Ghost-Signature","prefix":"sha256=","separator":",",
            "signs":"{body}{timestamp}","timestamp-item":"t="}"#,
    ),
    ("woocommerce", r#"{"header":"X-WC-Webhook-Signature","encoding":"base64"}"#),
];

/// A table under `signature` in a recipe.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SchemeTable {
    header: String,
    #[serde(default)]
    prefix: String,
    separator: Option<char>,
    #[serde(default)]
    encoding: Encoding,
    #[serde(default)]
    algorithm: Algorithm,
    signs: Option<String>,
    timestamp: Option<String>,
    timestamp_item: Option<String>,
    id: Option<String>,
    tolerance: Option<String>,
    #[serde(default)]
    secret: SecretEncoding,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenTable {
    token: String,
}

impl SignatureScheme {
    /// Parses the name of a preset, or a table.
    pub fn from_config(value: &Value) -> Result<Self, String> {
        let is_token = |value: &Value| value.get("token").is_some();
        match value {
            Value::String(name) => {
                let preset = PRESETS.iter().find(|(preset, _)| preset == name);
                let Some((_, table)) = preset else {
                    let names = PRESETS.map(|(name, _)| name).join(", ");
                    return Err(format!("unknown preset {name:?}; use {names}, or a table"));
                };
                let table = serde_json::from_str(table).expect("presets are JSON");
                Self::from_config(&table)
            }
            Value::Object(_) if is_token(value) => {
                let TokenTable { token } =
                    TokenTable::deserialize(value).map_err(|error| error.to_string())?;
                Ok(Self(SchemeKind::Token { header: parse_header_name(&token)? }))
            }
            Value::Object(_) => HmacScheme::from_table(
                SchemeTable::deserialize(value).map_err(|error| error.to_string())?,
            )
            .map(|scheme| Self(SchemeKind::Hmac(scheme))),
            _ => Err("expected the name of a preset, or a table".to_owned()),
        }
    }
}

impl HmacScheme {
    fn from_table(table: SchemeTable) -> Result<Self, String> {
        let timestamp = match (table.timestamp, table.timestamp_item) {
            (None, None) => None,
            (Some(name), None) => Some(TimestampSource::Header(parse_header_name(&name)?)),
            (None, Some(item)) if !item.is_empty() && table.separator.is_some() => {
                Some(TimestampSource::Item(item))
            }
            (None, Some(_)) => {
                return Err(
                    "`timestamp-item` is the prefix of an item, and needs a `separator`".to_owned()
                );
            }
            (Some(_), Some(_)) => {
                return Err("expected either `timestamp` or `timestamp-item`".to_owned());
            }
        };
        let signed_parts = parse_template(table.signs.as_deref().unwrap_or("{body}"))?;
        // A third party can change parts that are not signed.
        for (part, is_configured, name) in [
            (SignedPart::Body, true, "body"),
            (SignedPart::Timestamp, timestamp.is_some(), "timestamp"),
            (SignedPart::Id, table.id.is_some(), "id"),
        ] {
            let count = signed_parts.iter().filter(|signed| **signed == part).count();
            if count != usize::from(is_configured) {
                return Err(format!(
                    "`signs` must have {{body}} once, and {{timestamp}} and {{id}} once if their \
                     headers are configured: check {{{name}}}"
                ));
            }
        }
        let tolerance_ms = match &table.tolerance {
            None => DEFAULT_TOLERANCE_MS,
            Some(text) => parse_ms(text).map_err(|error| format!("`tolerance`: {error}"))?,
        };
        Ok(Self {
            header: parse_header_name(&table.header)?,
            separator: table.separator,
            prefix: table.prefix,
            encoding: table.encoding,
            algorithm: table.algorithm,
            signed_parts,
            timestamp,
            tolerance_ms,
            id_header: table.id.as_deref().map(parse_header_name).transpose()?,
            secret_encoding: table.secret,
        })
    }
}

/// Parses a text with `{body}`, `{timestamp}` and `{id}` in it.
fn parse_template(template: &str) -> Result<Vec<SignedPart>, String> {
    let (mut parts, mut rest) = (Vec::new(), template);
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        if !before.is_empty() {
            parts.push(SignedPart::Text(before.to_owned()));
        }
        parts.push(match name {
            "body" => SignedPart::Body,
            "timestamp" => SignedPart::Timestamp,
            "id" => SignedPart::Id,
            _ => {
                return Err(format!(
                    "`signs` may have {{body}}, {{timestamp}} and {{id}}, but not {name:?}"
                ));
            }
        });
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(SignedPart::Text(rest.to_owned()));
    }
    Ok(parts)
}
