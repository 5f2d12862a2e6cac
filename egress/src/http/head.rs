//! Writes the heads of requests, and reads those of responses.

use std::borrow::Cow;

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::response;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{Request, StatusCode, Uri, Version};
use percent_encoding::{AsciiSet, percent_encode};
use tidings_protocol::CanonicalUrl;

use super::HttpRequest;
use super::http_connection::NoBody;
use crate::connect::HttpProtocol;
use crate::failure::{Failure, Reason};

/// A longer `ETag` or `Last-Modified` is not kept.
const VALIDATOR_BYTES_MAX: usize = 1024;
/// A header value is recorded up to this many bytes.
const HEADER_VALUE_BYTES_MAX: usize = 256;

/// The validators of a version of a page (RFC 9110 section 8.8), as the server sent them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validators {
    /// `ETag`.
    pub etag: Option<String>,
    /// `Last-Modified`.
    pub last_modified: Option<String>,
}

impl Validators {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.etag.is_none() && self.last_modified.is_none()
    }
}

/// The common part of all requests on a connection.
pub(super) struct RequestTemplate {
    headers: HeaderMap,
    form: UriForm,
}

/// The form of the request URI.
enum UriForm {
    /// Path and query; the `Host` header contains the rest.
    Origin,
    /// The whole URL, for a proxy that forwards the request.
    Absolute,
    /// Separate parts, for HTTP/2.
    Http2 { scheme: Scheme, authority: Authority },
}

impl RequestTemplate {
    /// `headers` are those of all requests to this server.
    pub(super) fn new(
        url: &CanonicalUrl,
        protocol: HttpProtocol,
        forwarded: bool,
        headers: HeaderMap,
    ) -> Result<Self, Failure> {
        if protocol == HttpProtocol::Http2 {
            let scheme = if url.scheme() == "https" { Scheme::HTTPS } else { Scheme::HTTP };
            let authority =
                Authority::try_from(url.authority()).map_err(|error| invalid_url(&error))?;
            let form = UriForm::Http2 { scheme, authority };
            return Ok(Self { headers, form });
        }
        let mut with_host = HeaderMap::with_capacity(headers.len() + 4);
        let host = HeaderValue::from_str(url.authority()).map_err(|error| invalid_url(&error))?;
        with_host.insert(header::HOST, host);
        with_host.extend(headers);
        let form = if forwarded { UriForm::Absolute } else { UriForm::Origin };
        Ok(Self { headers: with_host, form })
    }

    /// The head of a request to this server.
    pub(super) fn request(
        &self,
        sent: &HttpRequest<'_>,
        cookies: Option<HeaderValue>,
    ) -> Result<Request<NoBody>, Failure> {
        let mut request = Request::new(NoBody::new());
        *request.method_mut() = sent.method.clone();
        *request.uri_mut() = self.uri(sent.url)?;
        if let UriForm::Http2 { .. } = self.form {
            *request.version_mut() = Version::HTTP_2;
        }
        let headers = request.headers_mut();
        headers.clone_from(&self.headers);
        if let Some(Validators { etag, last_modified }) = sent.validators {
            let etags = etag.as_deref().map(if_none_match);
            let fields = [
                (header::IF_NONE_MATCH, etags.as_deref()),
                (header::IF_MODIFIED_SINCE, last_modified.as_deref()),
            ];
            for (name, value) in fields {
                // Validators come from stored records, which may contain invalid values.
                if let Some(value) = value.and_then(|value| value.parse().ok()) {
                    headers.insert(name, value);
                }
            }
        }
        for (name, value) in sent.headers.into_iter().flatten() {
            headers.insert(name, value.clone());
        }
        if let Some(cookies) = cookies {
            headers.insert(header::COOKIE, cookies);
        }
        Ok(request)
    }

    fn uri(&self, url: &CanonicalUrl) -> Result<Uri, Failure> {
        if let UriForm::Absolute = self.form {
            return Uri::try_from(url.as_str()).map_err(|error| invalid_url(&error));
        }
        let path =
            PathAndQuery::try_from(url.path_and_query()).map_err(|error| invalid_url(&error))?;
        let UriForm::Http2 { scheme, authority } = &self.form else { return Ok(Uri::from(path)) };
        let mut parts = hyper::http::uri::Parts::default();
        parts.scheme = Some(scheme.clone());
        parts.authority = Some(authority.clone());
        parts.path_and_query = Some(path);
        Uri::from_parts(parts).map_err(|error| invalid_url(&error))
    }
}

/// The `If-None-Match` for this `ETag`. Apache httpd appends the coding to the tag of an answer that
/// it encodes, and compares a request with the tag without it.
fn if_none_match(etag: &str) -> Cow<'_, str> {
    let plain = ["-gzip\"", "-br\""].iter().find_map(|coding| etag.strip_suffix(coding));
    plain.map_or(Cow::Borrowed(etag), |plain| format!("{etag}, {plain}\"").into())
}

fn invalid_url(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::of(Reason::Url, error).with_context("the URL cannot be requested: ")
}

/// The head of an HTTP/2 request, written as HTTP/1.1.
pub(super) fn request_text(request: &Request<NoBody>) -> Vec<u8> {
    let path = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    let mut text = format!("{} {path} HTTP/1.1\r\n", request.method()).into_bytes();
    if let Some(authority) = request.uri().authority() {
        text.extend_from_slice(format!("host: {authority}\r\n").as_bytes());
    }
    push_headers(&mut text, request.headers());
    text
}

/// The head of a response, written as HTTP/1.1.
pub(super) fn response_text(head: &response::Parts) -> Vec<u8> {
    let reason = head.status.canonical_reason().unwrap_or_default();
    let mut text = format!("HTTP/1.1 {} {reason}\r\n", head.status.as_u16()).into_bytes();
    push_headers(&mut text, &head.headers);
    text
}

fn push_headers(text: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        for piece in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            text.extend_from_slice(piece);
        }
    }
    text.extend_from_slice(b"\r\n");
}

/// Finds the head of the final response in the received bytes; part of its body may follow. `None`
/// if it is incomplete.
pub(super) fn final_head(bytes: &[u8]) -> Option<&[u8]> {
    let bytes = &bytes[interim_bytes(bytes)..];
    Some(&bytes[..head_end(bytes)?])
}

/// The length of what precedes the head of the final response: empty lines, and `1xx` responses.
pub(super) fn interim_bytes(bytes: &[u8]) -> usize {
    let mut start = 0;
    loop {
        let is_line_end = |byte: &&u8| matches!(byte, b'\r' | b'\n');
        start += bytes[start..].iter().take_while(is_line_end).count();
        let Some(head_bytes) = head_end(&bytes[start..]) else { return start };
        let status = bytes.get(start + "HTTP/1.1 ".len()..).unwrap_or_default();
        if !status.starts_with(b"1") || status.starts_with(b"101") {
            return start;
        }
        start += head_bytes;
    }
}

/// Fails if a line of this head names a framing header, but `headers` lack it: the line is
/// malformed. Another client may read it, and so see another end of the body.
///
/// The name counts without blanks, control characters and non-ASCII bytes.
pub(super) fn check_framing(head: &[u8], headers: &HeaderMap) -> Result<(), Failure> {
    for header in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING] {
        let is_header = |line: &&[u8]| {
            let name = line.iter().take_while(|byte| **byte != b':');
            let name = name.filter(|byte| byte.is_ascii_graphic()).map(u8::to_ascii_lowercase);
            name.eq(header.as_str().bytes())
        };
        let lines = head.split(|byte| *byte == b'\n').filter(is_header).count();
        if lines != headers.get_all(&header).iter().count() {
            let text = format!("the head of the answer has a malformed {header} line");
            return Err(Failure::new(Reason::BadHttp, text));
        }
    }
    Ok(())
}

/// The position after the empty line. Lines end with LF, with or without CR.
fn head_end(bytes: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', bytes).find_map(|at| match &bytes[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

/// As the server sent it, truncated to the stored length.
pub fn content_type(headers: &HeaderMap) -> Option<String> {
    let mut value = header_text(headers, &header::CONTENT_TYPE)?;
    value.truncate(value.floor_char_boundary(HEADER_VALUE_BYTES_MAX));
    Some(value)
}

/// The target of a redirect. Non-ASCII bytes are percent-encoded one by one, so the server receives
/// the bytes that it sent, in any encoding.
pub fn location(status: StatusCode, headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::LOCATION).filter(|_| status.is_redirection())?;
    let location = percent_encode(value.as_bytes().trim_ascii(), &AsciiSet::EMPTY).to_string();
    (!location.is_empty()).then_some(location)
}

/// The validators for the next request. A value over the limit is dropped, because a truncated one
/// is useless.
pub fn validators(headers: &HeaderMap) -> Validators {
    let field = |name| {
        let value = headers.get(name)?.to_str().ok()?;
        (!value.is_empty() && value.len() <= VALIDATOR_BYTES_MAX).then(|| value.to_owned())
    };
    Validators { etag: field(header::ETAG), last_modified: field(header::LAST_MODIFIED) }
}

/// The text of a header. Bytes that are not UTF-8 are replaced.
fn header_text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let value = headers.get(name)?.as_bytes().trim_ascii();
    (!value.is_empty()).then(|| String::from_utf8_lossy(value).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_final_head_is_found_in_the_received_bytes() {
        let last = "HTTP/1.1 200 OK\r\na: b\r\n\r\n";
        for (before, after) in [
            ("", ""),
            ("", "body\r\n\r\n"),
            ("HTTP/1.1 100 Continue\r\n\r\n", "x"),
            ("\r\n\nHTTP/1.1 100\r\na: b c 200\r\n\r\n\r\n", "x"),
            ("HTTP/1.1 103 Early Hints\r\nlink: <x>\r\n\r\nHTTP/1.1 102 Processing\n\n", ""),
        ] {
            let came = format!("{before}{last}{after}");
            assert_eq!(final_head(came.as_bytes()), Some(last.as_bytes()), "{came}");
        }
        assert_eq!(final_head(b"HTTP/1.1 200 OK\r\na: b\r\n"), None);
        assert_eq!(final_head(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"), None);
        assert_eq!(final_head(b""), None);
    }

    #[test]
    fn a_tag_is_sent_with_and_without_its_coding() {
        for (etag, expected) in [
            ("\"1\"", "\"1\""),
            ("\"1-gzip\"", "\"1-gzip\", \"1\""),
            ("W/\"1-br\"", "W/\"1-br\", W/\"1\""),
            ("\"1-gzip", "\"1-gzip"),
        ] {
            assert_eq!(if_none_match(etag), expected);
        }
    }

    #[test]
    fn every_canonical_url_can_be_requested() {
        for url in ["http://h/a|b^c[d]`e?q='\"{}|\\^`[]", "https://[::1]:8443/%zz?%", "http://h/?"]
        {
            let url: CanonicalUrl = url.parse().unwrap();
            for (protocol, forwarded) in [
                (HttpProtocol::Http1, false),
                (HttpProtocol::Http1, true),
                (HttpProtocol::Http2, false),
            ] {
                let template =
                    RequestTemplate::new(&url, protocol, forwarded, HeaderMap::new()).unwrap();
                let request = template.request(&HttpRequest::get(&url), None).unwrap();
                let sent = request.uri().path_and_query().unwrap().as_str();
                assert_eq!(sent, url.path_and_query(), "{url}");
            }
        }
    }
}
