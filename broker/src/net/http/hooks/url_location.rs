//! Where the URLs of a webhook are: in its headers, form fields or JSON.

use std::borrow::Cow;

use axum::http::{HeaderMap, StatusCode};
use indexmap::IndexSet;
use serde::Deserialize;
use serde_json::Value;
use tidings_signature::parse_header_name;
use url::form_urlencoded;

use super::super::error::{ErrorResponse, HttpResult};
use super::super::request_input::{content_type, parse_json};

/// URLs of one request. The search stops at one more.
pub(super) const URLS_MAX: u32 = 100;
const FOUND_URLS_MAX: usize = URLS_MAX as usize + 1;

const FORM_TYPE: &str = "application/x-www-form-urlencoded";
/// The field with the JSON of an event, if a forge sends it as a form.
const JSON_FIELD: &str = "payload";

/// A table under `url` in a recipe.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { pointer = \"/a/b\" }")]
struct UrlLocationTable {
    pointer: Option<String>,
    field: Option<String>,
    header: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UrlLocation {
    Header(String),
    FormField(String),
    /// In a JSON body, or in the JSON of the form field `payload`.
    Json(JsonPointer),
    /// In the JSON of a form field.
    FormFieldJson(String, JsonPointer),
}

/// A JSON pointer (RFC 6901) in which `*` stands for each element of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JsonPointer(Vec<String>);

impl UrlLocation {
    /// Parses a table, or a list of tables.
    pub(super) fn parse_list(value: &Value) -> Result<Vec<Self>, String> {
        match value {
            Value::Array(values) if !values.is_empty() => values.iter().map(Self::parse).collect(),
            value => Ok(vec![Self::parse(value)?]),
        }
    }

    fn parse(value: &Value) -> Result<Self, String> {
        let table = UrlLocationTable::deserialize(value).map_err(|error| error.to_string())?;
        match (table.pointer, table.field, table.header) {
            (Some(pointer), None, None) => Ok(Self::Json(pointer.parse()?)),
            (Some(pointer), Some(field), None) => Ok(Self::FormFieldJson(field, pointer.parse()?)),
            (None, Some(field), None) => Ok(Self::FormField(field)),
            (None, None, Some(name)) => Ok(Self::Header(parse_header_name(&name)?)),
            _ => Err(
                "expected { pointer = \"/a/b\" }, { field = \"a\" }, { header = \"X-A\" }, or a \
                      field with a pointer in its JSON"
                    .to_owned(),
            ),
        }
    }
}

impl std::str::FromStr for JsonPointer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix('/') else {
            return Err(format!("{text:?}: a pointer begins with /"));
        };
        let unescape = |token: &str| token.replace("~1", "/").replace("~0", "~");
        Ok(Self(rest.split('/').map(unescape).collect()))
    }
}

/// Adds the strings to which a pointer leads, up to `FOUND_URLS_MAX`.
fn collect_texts(tokens: &[String], value: &Value, found: &mut Vec<String>) {
    let Some((token, rest)) = tokens.split_first() else {
        if let Value::String(text) = value
            && found.len() < FOUND_URLS_MAX
        {
            found.push(text.clone());
        }
        return;
    };
    let next = match value {
        Value::Array(values) if token == "*" => {
            return values.iter().for_each(|value| collect_texts(rest, value, found));
        }
        Value::Array(values) => token.parse::<usize>().ok().and_then(|at| values.get(at)),
        Value::Object(members) => members.get(token),
        _ => None,
    };
    if let Some(next) = next {
        collect_texts(rest, next, found);
    }
}

/// Returns the URLs of a request as written, each once, in the order of the locations; none if it
/// is only a ping. Fails if the content type fits no location, or if there are too many.
pub(super) fn urls(
    locations: &[UrlLocation],
    headers: &HeaderMap,
    body: &[u8],
) -> HttpResult<Vec<String>> {
    let kind = content_type(headers);
    let is_json = kind.as_deref().is_none_or(|kind| {
        kind == "application/json" || kind.starts_with("application/") && kind.ends_with("+json")
    });
    let is_form = kind.as_deref() == Some(FORM_TYPE);
    let json_field = form_values(body, JSON_FIELD).next().filter(|_| is_form);
    let (mut found, mut fits) = (Vec::new(), false);
    // Parsed JSON takes many times the bytes of the body. This function does not await, so at most
    // one such value per thread exists at a time.
    let mut parsed_body = None;
    for location in locations {
        let fits_here = match location {
            UrlLocation::Header(_) => true,
            UrlLocation::FormField(_) | UrlLocation::FormFieldJson(..) => is_form,
            UrlLocation::Json(_) => is_json || json_field.is_some(),
        };
        if !fits_here {
            continue;
        }
        fits = true;
        match location {
            UrlLocation::Header(name) => {
                let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
                found.extend(values.take(FOUND_URLS_MAX).map(str::to_owned));
            }
            UrlLocation::FormField(name) => {
                found.extend(form_values(body, name).take(FOUND_URLS_MAX).map(Cow::into_owned));
            }
            UrlLocation::FormFieldJson(name, pointer) => {
                if let Some(text) = form_values(body, name).next() {
                    collect_texts(&pointer.0, &parse_json(text.as_bytes())?, &mut found);
                }
            }
            UrlLocation::Json(pointer) => {
                if parsed_body.is_none() {
                    let json = json_field.as_deref().map_or(body, str::as_bytes);
                    parsed_body = Some(parse_json(json)?);
                }
                let value = parsed_body.as_ref().expect("it was parsed above");
                collect_texts(&pointer.0, value, &mut found);
            }
        }
    }
    if !fits {
        // None of the locations is a header, which fits every content type.
        let is_json = |location: &UrlLocation| matches!(location, UrlLocation::Json(_));
        let types = match locations.iter().filter(|location| is_json(location)).count() {
            0 => "application/x-www-form-urlencoded",
            count if count == locations.len() => {
                "application/json, or a form with the JSON in the field `payload`"
            }
            _ => "application/json or application/x-www-form-urlencoded",
        };
        let message = format!("this Content-Type is not supported by this hook; send {types}");
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(ErrorResponse::new(status, "unsupported-type", message));
    }
    let urls: IndexSet<String> = found.into_iter().collect();
    if urls.len() >= FOUND_URLS_MAX {
        return Err(unprocessable(format!("more than {URLS_MAX} URLs; send several requests")));
    }
    Ok(urls.into_iter().collect())
}

/// Rejects a well-formed request with content that the hook does not accept (422).
pub(super) fn unprocessable(message: impl Into<String>) -> ErrorResponse {
    ErrorResponse::new(StatusCode::UNPROCESSABLE_ENTITY, "bad-argument", message)
}

fn form_values<'a>(body: &'a [u8], name: &str) -> impl Iterator<Item = Cow<'a, str>> {
    form_urlencoded::parse(body).filter(move |(key, _)| key == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use axum::http::header::CONTENT_TYPE;
    use serde_json::json;

    use super::*;

    fn find_urls(locations: &Value, kind: &'static str, body: &str) -> Option<Vec<String>> {
        let mut headers = HeaderMap::new();
        if !kind.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        headers.insert("x-url", HeaderValue::from_static("http://h.example/"));
        urls(&UrlLocation::parse_list(locations).unwrap(), &headers, body.as_bytes()).ok()
    }

    #[test]
    fn urls_are_found_where_the_recipe_says() {
        let body = r#"{"a":{"b~/":"x"},"list":[{"u":"1"},{"u":"2"},{"v":"3"},{"u":4},{"u":"1"}]}"#;
        for (locations, expected) in [
            (json!({ "pointer": "/a/b~0~1" }), vec!["x"]),
            (json!({ "pointer": "/list/1/u" }), vec!["2"]),
            (json!({ "pointer": "/list/*/u" }), vec!["1", "2"]),
            (json!([{ "pointer": "/list/*/v" }, { "pointer": "/a/b~0~1" }]), vec!["3", "x"]),
            (json!([{ "field": "x" }, { "pointer": "/list/0/u" }]), vec!["1"]),
            (json!({ "header": "X-Url" }), vec!["http://h.example/"]),
            (json!({ "pointer": "/list" }), vec![]),
            (json!({ "pointer": "/list/3/u" }), vec![]),
            (json!({ "pointer": "/nothing/*" }), vec![]),
            (json!({ "pointer": "/a/*" }), vec![]),
        ] {
            let found = find_urls(&locations, "application/json; charset=utf-8", body);
            let expected = expected.into_iter().map(str::to_owned).collect();
            assert_eq!(found, Some(expected), "{locations}");
        }
        let (form, field) = ("u=http%3A%2F%2Fa.example%2F&x=1&u=2", json!({ "field": "u" }));
        let expected = Some(vec!["http://a.example/".to_owned(), "2".to_owned()]);
        assert_eq!(find_urls(&field, FORM_TYPE, form), expected);
        let form = "payload=%7B%22u%22%3A%22x%22%7D&payload=%7B";
        for location in [json!({ "field": "payload", "pointer": "/u" }), json!({ "pointer": "/u" })]
        {
            assert_eq!(find_urls(&location, FORM_TYPE, form), Some(vec!["x".to_owned()]));
        }
        assert_eq!(find_urls(&json!({ "pointer": "/u" }), FORM_TYPE, "payload=%7B"), None);
    }

    #[test]
    fn a_body_of_another_type_is_rejected() {
        let (json, form) = (json!({ "pointer": "/u" }), json!({ "field": "u" }));
        for kind in ["", "application/json", "application/cloudevents+json", "Application/JSON"] {
            assert!(find_urls(&json, kind, r#"{"u":"x"}"#).is_some(), "{kind}");
        }
        for kind in ["text/plain", FORM_TYPE, "multipart/form-data", "text/x+json", "?"] {
            assert!(find_urls(&json, kind, r#"{"u":"x"}"#).is_none(), "{kind}");
        }
        for kind in ["", "application/json", "multipart/form-data; boundary=x"] {
            assert!(find_urls(&form, kind, "u=x").is_none(), "{kind}");
        }
    }

    #[test]
    fn urls_and_json_depth_are_limited() {
        let location = json!({ "pointer": "/*" });
        let list = |count: usize| json!((0..count).map(|n| n.to_string()).collect::<Vec<_>>());
        let found =
            |body: &str| find_urls(&location, "application/json", body).map(|urls| urls.len());
        assert_eq!(found(&list(FOUND_URLS_MAX - 1).to_string()), Some(FOUND_URLS_MAX - 1));
        assert_eq!(found(&list(FOUND_URLS_MAX).to_string()), None);
        assert_eq!(found(&"[".repeat(1_000_000)), None);
        assert_eq!(found(""), None);
        assert_eq!(found("[\"x\"] more"), None);
    }

    #[test]
    fn invalid_url_locations_are_rejected() {
        for location in [
            json!({}),
            json!([]),
            json!("/u"),
            json!({ "pointer": "u" }),
            json!({ "pointer": "" }),
            json!({ "header": "a b" }),
            json!({ "header": "X-A", "field": "u" }),
            json!({ "poniter": "/u" }),
        ] {
            assert!(UrlLocation::parse_list(&location).is_err(), "{location}");
        }
    }
}
