//! The headers of requests: the agent, the accepted formats, and those that the operator adds.
//!
//! An added header is sent to all servers (`Name: value`), or to one scheme, host and port
//! (`https://host=Name: value`). A credential must be of the second kind: it is sent to that server
//! only, wherever redirects and links lead.

use std::str::FromStr;

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use tidings_protocol::CanonicalUrl;

use super::origin;

/// A header that the operator adds: `Name: value`, or `https://host=Name: value` for one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedHeader {
    /// `scheme://host[:port]`; `None`: all servers.
    origin: Option<String>,
    name: HeaderName,
    value: HeaderValue,
}

/// A header that cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("header {name}: {what}")]
pub struct HeaderError {
    /// The name, if there is one. The value is not included, because it may be a secret.
    pub name: String,
    /// What is wrong.
    pub what: &'static str,
}

/// The headers of all requests, by server.
#[derive(Debug)]
pub(super) struct RequestHeaders {
    everywhere: HeaderMap,
    per_origin: Vec<AddedHeader>,
}

impl RequestHeaders {
    /// A header in `added` replaces a default header of the same name.
    pub(super) fn new(agent: &str, added: &[AddedHeader]) -> Result<Self, HeaderError> {
        let error = |what| HeaderError { name: "User-Agent".to_owned(), what };
        let agent = HeaderValue::from_str(agent)
            .map_err(|_| error("it contains characters that cannot be sent"))?;
        let accept = HeaderValue::from_static("text/html,application/xhtml+xml,*/*;q=0.5");
        // Readers of WARC files decode these, and no zstd.
        let encodings = HeaderValue::from_static("gzip, br");
        let mut everywhere = HeaderMap::new();
        everywhere.insert(header::USER_AGENT, agent);
        everywhere.insert(header::ACCEPT, accept);
        everywhere.insert(header::ACCEPT_ENCODING, encodings);
        let (scoped, general): (Vec<_>, Vec<_>) =
            added.iter().cloned().partition(|added| added.origin.is_some());
        for added in general {
            everywhere.insert(added.name, added.value);
        }
        Ok(Self { everywhere, per_origin: scoped })
    }

    /// The headers of requests to this server.
    pub(super) fn for_url(&self, url: &CanonicalUrl) -> HeaderMap {
        let mut headers = self.everywhere.clone();
        for added in &self.per_origin {
            if added.origin.as_deref() == Some(origin(url)) {
                headers.insert(added.name.clone(), added.value.clone());
            }
        }
        headers
    }
}

impl FromStr for AddedHeader {
    type Err = HeaderError;

    fn from_str(text: &str) -> Result<Self, HeaderError> {
        let of = |name: &str, what| HeaderError { name: name.to_owned(), what };
        // Text that begins like a URL is a URL, not a header with the name `https`.
        let begins_with_url = text.split_once(':').is_some_and(|(_, rest)| rest.starts_with("//"));
        let (origin, header) = if begins_with_url {
            let (origin, header) = text.split_once('=').unwrap_or((text, ""));
            (Some(origin.trim()), header)
        } else {
            (None, text)
        };
        let Some((name, value)) = header.split_once(':') else {
            return Err(of("without a name", "give `Name: value`, or `https://host=Name: value`"));
        };
        let error = |what| of(name, what);
        let name_bytes = name.trim().as_bytes();
        let parsed = HeaderName::from_bytes(name_bytes)
            .map_err(|_| error("it is not a valid header name"))?;
        let mut value = HeaderValue::from_str(value.trim())
            .map_err(|_| error("its value contains characters that cannot be sent"))?;
        if RESERVED.contains(&parsed) {
            return Err(error("the crawler sets this header itself"));
        }
        if parsed == header::USER_AGENT {
            return Err(error("set it with --agent, because robots.txt rules refer to it"));
        }
        if parsed == header::PROXY_AUTHORIZATION {
            return Err(error("set the password with the proxy: http://USER:PASSWORD@HOST:PORT"));
        }
        let is_secret = matches!(parsed, header::AUTHORIZATION | header::COOKIE);
        if is_secret && origin.is_none() {
            return Err(error("name the server that receives it: `https://host=Name: value`"));
        }
        value.set_sensitive(is_secret);
        let origin = match origin {
            None => None,
            Some(text) => {
                let url: CanonicalUrl =
                    text.parse().map_err(|_| error("the text before = is not a URL"))?;
                if url.path_and_query() != "/" {
                    return Err(error("it applies to a scheme, host and port, not to a path"));
                }
                Some(super::origin(&url).to_owned())
            }
        };
        Ok(Self { origin, name: parsed, value })
    }
}

/// Headers that control framing or routing.
const RESERVED: [HeaderName; 8] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TRAILER,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(added: &[&str]) -> Result<RequestHeaders, HeaderError> {
        let added = added.iter().map(|added| added.parse()).collect::<Result<Vec<_>, _>>()?;
        RequestHeaders::new("bot/1", &added)
    }

    #[test]
    fn a_plain_header_goes_everywhere_and_a_secret_to_one_server() {
        let headers = headers(&[
            "Accept-Language: de",
            "X-Equals: a=b",
            " HTTPS://A.example=Authorization: Basic x",
            "http://a.example:8080/=Cookie: k=v",
        ])
        .unwrap();
        for (url, authorization, cookie) in [
            ("https://a.example/deep", Some("Basic x"), None),
            ("https://a.example:443/", Some("Basic x"), None),
            ("http://a.example/", None, None),
            ("https://a.example:444/", None, None),
            ("https://b.a.example/", None, None),
            ("http://a.example:8080/", None, Some("k=v")),
        ] {
            let to = headers.for_url(&url.parse().unwrap());
            let field = |name| to.get(name).map(|value: &HeaderValue| value.to_str().unwrap());
            assert_eq!(field(header::AUTHORIZATION), authorization, "{url}");
            assert_eq!(field(header::COOKIE), cookie, "{url}");
            assert_eq!(field(header::ACCEPT_LANGUAGE), Some("de"));
            assert_eq!(to["x-equals"], "a=b");
            assert_eq!(field(header::USER_AGENT), Some("bot/1"));
        }
    }

    #[test]
    fn invalid_headers_are_rejected_without_showing_the_value() {
        for (text, says) in [
            ("nonsense", "give `Name: value`"),
            ("na me: x", "it is not a valid header name"),
            ("X: a\nb", "characters that cannot be sent"),
            ("Host: secret", "the crawler sets this header itself"),
            ("User-Agent: secret", "--agent"),
            ("Authorization: secret", "name the server"),
            ("Cookie: secret", "name the server"),
            ("Proxy-Authorization: secret", "with the proxy"),
            ("https://h/path=Authorization: secret", "not to a path"),
            ("https://=Authorization: secret", "not a URL"),
            ("ftp://h=X-Key: secret", "not a URL"),
            ("https://h Authorization: secret", "give `Name: value`"),
        ] {
            let error = headers(&[text]).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("secret"), "{text}: {error}");
        }
        assert!(RequestHeaders::new("bot\n", &[]).is_err());
    }
}
