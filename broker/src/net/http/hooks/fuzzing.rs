//! Requests to a webhook, and recipes that somebody wrote.

use std::sync::LazyLock;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tidings_protocol::{CanonicalUrl, Payload, text};

use super::recipe::{Hook, Recipe};
use super::signature::VerifiedRequest;
use crate::access::is_below;

const PREFIX: &str = "https://a.example/x/";
const SECRET: &str = "whsec_aHVzaC1odXNoLWh1c2gtaHVzaC1odXNo";

/// One of each kind of sender, and of each place of URLs.
static HOOKS: LazyLock<Vec<Hook>> = LazyLock::new(|| {
    let signatures = ["github", "gitlab", "standard-webhooks", "slack", "stripe", "ghost"];
    let places = [
        json!({ "pointer": "/u/*" }),
        json!([{ "pointer": "/a/0/b~1c" }, { "header": "X-Url" }]),
        json!({ "field": "url" }),
        json!([{ "field": "payload", "pointer": "/u/*/v" }, { "field": "url" }]),
    ];
    let hooks = signatures.iter().zip(places.iter().cycle()).map(|(signature, url)| {
        let table = json!({
            "name": "forge", "secret-env": "FORGE", "signature": signature, "url": url,
            "prefixes": [PREFIX], "attributes": { "source": "forge", "prio": 5 },
        });
        let recipe: Recipe = table.to_string().parse().expect("this recipe is right");
        recipe.with_secret(SECRET).expect("this secret is of every form")
    });
    hooks.collect()
});

/// Which hook, the headers up to an empty line, and the body; or, first of all `{`, a recipe.
pub(crate) fn fuzz_webhook(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    if *first == b'{' {
        return fuzz_recipe(bytes);
    }
    let hook = &HOOKS[usize::from(*first) % HOOKS.len()];
    let (headers, body) = parse_request(rest);
    // Nobody guesses a signature.
    let verified = hook.verify(&headers, body, 1_700_000_000_000);
    let authentic = verified.unwrap_or(VerifiedRequest { digest: [7; 32], signed_unix_ms: None });
    check_events(hook, &authentic, &headers, body);
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

/// What is announced is below the prefix, and says what the recipe says.
fn check_events(hook: &Hook, authentic: &VerifiedRequest, headers: &HeaderMap, body: &[u8]) {
    let Ok(announced) = hook.events(authentic, headers, body) else { return };
    assert!((1..=100).contains(&announced.payloads.len()), "{}", announced.payloads.len());
    let prefix = CanonicalUrl::parse(PREFIX).expect("it is a URL");
    for payload in &announced.payloads {
        assert!(text::check(payload.as_bytes()).is_ok(), "{payload:?} is a line");
        let read = Payload::parse(payload);
        let url =
            CanonicalUrl::parse(read.target().expect("it is about a URL")).expect("it is one");
        assert!(is_below(&url, &prefix), "{url} is somebody else's");
        let said: Vec<_> = read.attributes().collect();
        assert!(said.starts_with(&[("prio", "5"), ("source", "forge")]), "{payload:?}");
        assert!(said.len() == 3 && said[2].0 == "id", "{payload:?}");
    }
}

/// What somebody wrote is understood or refused in a line; URLs are where it says.
fn fuzz_recipe(bytes: &[u8]) {
    let Ok(json) = std::str::from_utf8(bytes) else { return };
    // Below the table in its first line, a request in the others.
    let (table, rest) = json.split_once('\n').unwrap_or((json, ""));
    let written: Result<Value, _> = serde_json::from_str(table);
    match table.parse::<Recipe>() {
        Ok(recipe) => {
            assert!(written.is_ok());
            let Ok(hook) = recipe.with_secret(SECRET) else { return };
            let (headers, body) = parse_request(rest.as_bytes());
            let authentic = VerifiedRequest { digest: [7; 32], signed_unix_ms: None };
            if let Ok(announced) = hook.events(&authentic, &headers, body) {
                for payload in &announced.payloads {
                    assert!(text::check(payload.as_bytes()).is_ok(), "{payload:?} is a line");
                    assert!(Payload::parse(payload).target().is_some(), "{payload:?} has a target");
                }
            }
        }
        Err(error) => assert!(!error.is_empty()),
    }
}
