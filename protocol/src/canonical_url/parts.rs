//! The parts of a canonical URL, and the fast check for texts that are canonical already.

use std::net::Ipv4Addr;

use url::Url;

use super::escapes;

/// Positions in the text of a canonical URL, in bytes: `host_start` < `host_end` <= `path_start` <
/// `path_end` <= the length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct UrlParts {
    /// After the scheme and `://`.
    pub(super) host_start: usize,
    /// From here to the path: the port and its `:`, or nothing.
    pub(super) host_end: usize,
    pub(super) path_start: usize,
    /// From here to the end: the query and its `?`, or nothing.
    pub(super) path_end: usize,
}

impl UrlParts {
    /// The parts of a text that the WHATWG rules certainly leave as it is. Nearly all texts are
    /// such: the URLs that a crawler finds are canonical when they are published, and this check
    /// costs a fraction of a parse.
    ///
    /// `None` means nothing about the text: it may need a change, be invalid, or be too unusual for
    /// this check.
    pub(super) fn parse_plain(text: &str) -> Option<Self> {
        let (rest, default_port) = match text.strip_prefix("http://") {
            Some(rest) => (rest, "80"),
            None => (text.strip_prefix("https://")?, "443"),
        };
        let host_start = text.len() - rest.len();
        let (host, rest) = split(rest, |byte| byte.host);
        let rest = match rest.strip_prefix(':') {
            Some(rest) => {
                let (port, rest) = split(rest, |byte| byte.host);
                (is_plain_port(port) && port != default_port).then_some(rest)?
            }
            None => rest,
        };
        let path_start = text.len() - rest.len();
        let (path, rest) = split(rest, |byte| byte.path);
        // Only a `?` can be in a query, and not in a path.
        let (_query, odd) = split(rest, |byte| byte.query);
        let is_plain = is_plain_host(host)
            && is_plain_path(path)
            && odd.is_empty()
            && escapes::are_normalized(text);
        is_plain.then(|| Self {
            host_start,
            host_end: host_start + host.len(),
            path_start,
            path_end: path_start + path.len(),
        })
    }

    /// The parts of a URL without user name, password and fragment.
    pub(super) fn from_url(url: &Url) -> Self {
        let host_start = url.scheme().len() + "://".len();
        let path_start = host_start + url.authority().len();
        Self {
            host_start,
            host_end: host_start + url.host_str().expect("http and https URLs have a host").len(),
            path_start,
            path_end: path_start + url.path().len(),
        }
    }
}

/// The places where a byte may occur.
#[derive(Clone, Copy)]
struct ByteClass {
    /// In lower-case labels, and between them.
    host: bool,
    /// In a path, by RFC 3986. A `%` is checked further.
    path: bool,
    /// In a query or before it, except the apostrophe, which becomes `%27`.
    query: bool,
}

impl ByteClass {
    /// For every byte: scans with a table take two thirds of the time of scans with comparisons.
    const TABLE: [Self; 256] = {
        let mut all = [Self::of(0); 256];
        let (mut byte, mut rest) = (0_u8, all.as_mut_slice());
        while let [first, after @ ..] = rest {
            *first = Self::of(byte);
            (byte, rest) = (byte.wrapping_add(1), after);
        }
        all
    };

    const fn of(byte: u8) -> Self {
        let host = matches!(byte, b'0'..=b'9' | b'a'..=b'z' | b'-' | b'.');
        let path = host || matches!(byte, b'!' | b'$'..=b';' | b'=' | b'@'..=b'Z' | b'_' | b'~');
        Self { host, path, query: byte == b'?' || (path && byte != b'\'') }
    }
}

/// Splits off the bytes at the beginning that may occur in one place, all of them ASCII.
fn split(text: &str, place: impl Fn(&ByteClass) -> bool) -> (&str, &str) {
    let is_out = |byte: u8| !ByteClass::TABLE.get(usize::from(byte)).is_some_and(&place);
    text.split_at(text.bytes().position(is_out).unwrap_or(text.len()))
}

/// A name, or an address of four decimal numbers without leading zeros. In all other forms of an
/// address the last label begins with a digit, too. Punycode has its own rules, and a dot at the
/// end would be dropped.
fn is_plain_host(host: &str) -> bool {
    let mut is_name = false;
    for label in host.as_bytes().split(|byte| *byte == b'.') {
        if label.starts_with(b"xn--") {
            return false;
        }
        is_name = matches!(label, [b'a'..=b'z', ..]);
    }
    is_name || host.parse::<Ipv4Addr>().is_ok()
}

/// `parse` would also accept leading zeros.
fn is_plain_port(port: &str) -> bool {
    !port.starts_with('0') && port.parse::<u16>().is_ok()
}

/// Without segments that are or may be `.` or `..`. The check of escapes finds `%2e`.
fn is_plain_path(path: &str) -> bool {
    let begins_segment = |dot: usize| path.as_bytes().get(dot - 1) == Some(&b'/');
    path.starts_with('/') && !memchr::memchr_iter(b'.', path.as_bytes()).any(begins_segment)
}
