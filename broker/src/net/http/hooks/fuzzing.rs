//! Fuzz targets: requests to a webhook, and recipes.

use std::sync::LazyLock;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::json;
use tidings_protocol::{CanonicalUrl, Payload, text};
use tidings_signature::VerifiedRequest;

use super::recipe::{Hook, Recipe};

const PREFIX: &str = "https://a.example/x/";
const SECRET: &str = "whsec_aHVzaC1odXNoLWh1c2gtaHVzaC1odXNo";

/// Hooks with each kind of signature and each kind of URL location.
static HOOKS: LazyLock<Vec<Hook>> = LazyLock::new(|| {
    let signatures = ["github", "gitlab", "standard-webhooks", "slack", "stripe", "ghost"];
    let locations = [
        json!({ "pointer": "/u/*" }),
        json!([{ "pointer": "/a/0/b~1c" }, { "header": "X-Url" }]),
        json!({ "field": "url" }),
        json!([{ "field": "payload", "pointer": "/u/*/v" }, { "field": "url" }]),
    ];
    let hooks = signatures.iter().zip(locations.iter().cycle()).map(|(signature, url)| {
        let table = json!({
            "name": "forge", "secret-env": "FORGE", "signature": signature, "url": url,
            "prefixes": [PREFIX], "attributes": { "source": "forge", "prio": 5 },
        });
        let recipe: Recipe = serde_json::from_value(table).expect("the recipe is valid");
        recipe.with_secret(SECRET).expect("the secret is valid in each encoding")
    });
    hooks.collect()
});

/// Input: a byte that selects the hook, headers up to an empty line, and the body; or a recipe in
/// JSON and such a request, if the first byte is `{`.
pub(crate) fn fuzz_webhook(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    if *first == b'{' {
        return fuzz_recipe(bytes);
    }
    let hook = &HOOKS[usize::from(*first) % HOOKS.len()];
    let (headers, body) = parse_request(rest);
    // A fuzzer cannot produce a valid signature, so the events are checked without one.
    let result = hook.verify(&headers, body, 1_700_000_000_000);
    let verified = result.unwrap_or(VerifiedRequest { digest: [7; 32], signed_unix_ms: None });
    check_events(hook, &verified, &headers, body);
}

fn parse_request(bytes: &[u8]) -> (HeaderMap, &[u8]) {
    let (mut headers, mut rest) = (HeaderMap::new(), bytes);
    while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
        let line = &rest[..at];
        rest = &rest[at + 1..];
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { break };
        let name = HeaderName::from_bytes(&line[..colon]);
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    (headers, rest)
}

/// Each event has a URL below the prefix, the attributes of the recipe, and an id.
fn check_events(hook: &Hook, verified: &VerifiedRequest, headers: &HeaderMap, body: &[u8]) {
    let Ok(events) = hook.events(verified, headers, body) else { return };
    assert!(events.payloads.len() <= 100, "{}", events.payloads.len());
    let prefix = CanonicalUrl::parse(PREFIX).expect("the prefix is a URL");
    for payload in &events.payloads {
        assert!(text::check(payload.as_bytes()).is_ok(), "{payload:?} is not a line");
        let read = Payload::parse(payload);
        let target = read.target().expect("the event has no target");
        let url = CanonicalUrl::parse(target).expect("the target is not a URL");
        assert!(url.is_below(&prefix), "{url} is not below {prefix}");
        let attributes: Vec<_> = read.attributes().collect();
        assert!(attributes.starts_with(&[("prio", "5"), ("source", "forge")]), "{payload:?}");
        assert!(attributes.len() == 3 && attributes[2].0 == "id", "{payload:?}");
    }
}

/// A recipe is accepted or rejected with a message. An accepted one yields only valid events.
fn fuzz_recipe(bytes: &[u8]) {
    let Ok(json) = std::str::from_utf8(bytes) else { return };
    // The first line is the table of the recipe, the rest is a request.
    let (table, rest) = json.split_once('\n').unwrap_or((json, ""));
    match serde_json::from_str::<Recipe>(table) {
        Ok(recipe) => {
            let Ok(hook) = recipe.with_secret(SECRET) else { return };
            let (headers, body) = parse_request(rest.as_bytes());
            let verified = VerifiedRequest { digest: [7; 32], signed_unix_ms: None };
            if let Ok(events) = hook.events(&verified, &headers, body) {
                for payload in &events.payloads {
                    assert!(text::check(payload.as_bytes()).is_ok(), "{payload:?} is not a line");
                    assert!(
                        Payload::parse(payload).target().is_some(),
                        "{payload:?} has no target"
                    );
                }
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
