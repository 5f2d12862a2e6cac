//! Hides secrets in values: passwords, and headers that authenticate a client.

use std::borrow::Cow;

use super::value::in_one_line;

/// The replacement of a secret.
const HIDDEN: &str = "HIDDEN";

/// Headers without secrets. All other headers may contain one.
const PLAIN_HEADERS: [&str; 12] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "dnt",
    "from",
    "pragma",
    "range",
    "referer",
    "te",
    "upgrade-insecure-requests",
];

/// Parts of names of parameters with a secret: `password=`, `?access_token=`.
const SECRET_NAMES: [&str; 8] =
    ["auth", "credential", "key", "pass", "secret", "session", "sig", "token"];

/// The value of the flag `key` without its secrets.
pub(crate) fn hide<'v>(key: &str, value: &'v str) -> Cow<'v, str> {
    match key {
        "header" => hide_header(value),
        "push" => hide_path(value),
        _ => hide_words(key, value),
    }
}

fn hide_header(header: &str) -> Cow<'_, str> {
    // `https://HOST=` may stand before the header.
    let scope = match header.find("://").and_then(|at| header[at..].find('=').map(|to| at + to)) {
        Some(end) => end + 1,
        None => 0,
    };
    let Some((name, _)) = header[scope..].split_once(':') else {
        return hide_words("header", header);
    };
    if PLAIN_HEADERS.contains(&name.trim().to_ascii_lowercase().as_str()) {
        return Cow::Borrowed(header);
    }
    Cow::Owned(format!("{}{name}: {HIDDEN}", &header[..scope]))
}

/// Hides the path of the URL of a push: chats accept messages from every client that knows it.
fn hide_path(table: &str) -> Cow<'_, str> {
    let Ok(mut hidden) = table.parse::<toml::Value>() else { return Cow::Borrowed(HIDDEN) };
    let text = |key: &str| hidden.get(key).and_then(toml::Value::as_str);
    let is_secret = matches!(text("format"), Some("slack" | "text"));
    if is_secret && let Some(url) = text("url") {
        let host_at = url.find("://").map_or(0, |at| at + 3);
        let path_at = url[host_at..].find(['/', '?']).map_or(url.len(), |at| host_at + at);
        hidden["url"] = format!("{}/{HIDDEN}", &url[..path_at]).into();
        return Cow::Owned(in_one_line(&hidden));
    }
    hide_words("push", table)
}

/// Hides the user part of URLs, and the values of parameters with the name of a secret.
fn hide_words<'v>(key: &str, value: &'v str) -> Cow<'v, str> {
    let mut shown = String::new();
    let mut rest = value;
    while let Some(at) = rest.find("://") {
        let (before, behind) = rest.split_at(at + 3);
        shown.push_str(before);
        // Where a server is expected, a slash in the user part belongs to a password that was not
        // encoded.
        let ends: &[char] = match key {
            "proxy" | "postgres" => &[' ', '"'],
            _ => &[' ', '"', '/', '?', '#'],
        };
        let end = behind.find(ends).unwrap_or(behind.len());
        rest = match behind[..end].rfind('@') {
            Some(end) => {
                match behind[..end].split_once(':') {
                    // The user name of a database is not a secret, but that of other URLs may be
                    // (`https://TOKEN@host/`).
                    Some((user, _)) if key == "postgres" => shown.extend([user, ":", HIDDEN]),
                    None if key == "postgres" => shown.push_str(&behind[..end]),
                    _ => shown.push_str(HIDDEN),
                }
                &behind[end..]
            }
            None => behind,
        };
    }
    shown.push_str(rest);
    let shown = hide_named(&shown);
    if shown == value { Cow::Borrowed(value) } else { Cow::Owned(shown) }
}

/// Hides the values of `name=value` with the name of a secret, and headers in command lines.
fn hide_named(text: &str) -> String {
    let mut shown = String::new();
    let mut hides = false;
    for piece in text.split_inclusive([' ', '&', '?', ';', '"', '\'', ',', '{', '}']) {
        let word = piece.trim_end_matches([' ', '&', '?', ';', '"', '\'', ',', '{', '}']);
        let end = &piece[word.len()..];
        let name_of = |sign| word.split_once(sign).filter(|(name, _)| is_secret_name(name));
        if hides && !word.is_empty() {
            shown.push_str(HIDDEN);
            // `Authorization: Bearer x` has two words.
            hides = ["basic", "bearer", "digest"].contains(&word.to_ascii_lowercase().as_str());
        } else if let Some((name, _)) = name_of('=').filter(|(_, secret)| !secret.is_empty()) {
            shown.extend([name, "=", HIDDEN]);
        } else {
            shown.push_str(word);
            hides = name_of(':').is_some_and(|(_, rest)| rest.is_empty());
        }
        shown.push_str(end);
    }
    shown
}

/// Whether this is the name of a secret; names of files and variables are not.
fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_place = ["file", "env", "path"].iter().any(|end| name.ends_with(end));
    !is_place && SECRET_NAMES.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_secrets_are_hidden() {
        for (key, value, shown) in [
            ("proxy", "http://proxy.example:3128", "http://proxy.example:3128"),
            ("proxy", "http://u:hush@proxy.example:3128", "http://HIDDEN@proxy.example:3128"),
            ("proxy", "http://u:hu/sh@proxy.example/", "http://HIDDEN@proxy.example/"),
            ("proxy", "http://hush@proxy.example/", "http://HIDDEN@proxy.example/"),
            ("postgres", "postgres://u@db/pages", "postgres://u@db/pages"),
            ("postgres", "postgres://u:hush@db/pages", "postgres://u:HIDDEN@db/pages"),
            (
                "postgres",
                "postgres://db/pages?user=u&password=hush",
                "postgres://db/pages?user=u&password=HIDDEN",
            ),
            ("postgres", "host=db user=u password=hush", "host=db user=u password=HIDDEN"),
            ("header", "Accept: text/html", "Accept: text/html"),
            ("header", "X-Whatever: hush", "X-Whatever: HIDDEN"),
            (
                "header",
                "https://a.example=Authorization: Bearer hush",
                "https://a.example=Authorization: HIDDEN",
            ),
            (
                "feed",
                "http://a.example/f?token=hush every=1h",
                "http://a.example/f?token=HIDDEN every=1h",
            ),
            ("feed", "http://u:hush@a.example/f every=1h", "http://HIDDEN@a.example/f every=1h"),
            (
                "exec",
                "curl -H 'Authorization: Bearer hush' x",
                "curl -H 'Authorization: HIDDEN HIDDEN' x",
            ),
            ("callback-secret-file", "/etc/hush", "/etc/hush"),
            (
                "hook",
                r#"{ "name" = "a", "secret-file" = "/etc/s" }"#,
                r#"{ "name" = "a", "secret-file" = "/etc/s" }"#,
            ),
            (
                "push",
                r#"{ "format" = "slack", "url" = "https://a.example/services/hush" }"#,
                r#"{ "format" = "slack", "url" = "https://a.example/HIDDEN" }"#,
            ),
            (
                "push",
                r#"{ "format" = "cloudevents", "url" = "https://a.example/in?token=hush" }"#,
                r#"{ "format" = "cloudevents", "url" = "https://a.example/in?token=HIDDEN" }"#,
            ),
            ("feed", "https://a.example/@me every=1h", "https://a.example/@me every=1h"),
            ("agent", "bot/1 (+mailto:me@example.org)", "bot/1 (+mailto:me@example.org)"),
        ] {
            assert_eq!(hide(key, value), shown, "{key}: {value}");
        }
    }
}
