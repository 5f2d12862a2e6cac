//! ASCII hosts that the URL standard accepts and the `url` crate rejects.
//!
//! Since 2026 (whatwg/url pull request 914) the standard writes an ASCII host in lower case,
//! whether or not IDNA accepts its `xn--` labels. The crate rejects a host with a label that IDNA
//! rejects. Here such a host is parsed with `xx--` in place of every `xn--`: to the crate, that is
//! an ASCII label without further rules. All other rules of a URL and of its host still hold, for
//! example that a last label which is a number makes it an IPv4 address. Both texts are equally
//! long, so the host can be put back.

use std::ops::Range;

use percent_encoding::percent_decode_str;
use url::Url;

/// The prefix of IDNA labels, and its placeholder.
const ACE_PREFIX: &str = "xn--";
const PLACEHOLDER_PREFIX: &str = "xx--";

/// A text with placeholders in its host.
pub(super) struct HostPlaceholder {
    pub(super) text: String,
    /// The host as the standard writes it.
    pub(super) host: String,
}

impl HostPlaceholder {
    /// `None` if the text contains no host, or one that is not ASCII, or one without IDNA labels.
    pub(super) fn of(text: &str, base: Option<&Url>) -> Option<Self> {
        let text = strip_ignored(text);
        let range = host_range(&text, base)?;
        let host = ascii_host(text.get(range.clone())?)?;
        let labels: Vec<_> = host.split('.').map(placeholder_label).collect();
        if labels.iter().all(Option::is_none) {
            return None;
        }
        let stand_ins = labels.iter().zip(host.split('.'));
        let stand_ins = stand_ins.map(|(stand_in, label)| stand_in.as_deref().unwrap_or(label));
        let stand_ins = stand_ins.collect::<Vec<_>>().join(".");
        let (before, after) = (text.get(..range.start)?, text.get(range.end..)?);
        Some(Self { text: format!("{before}{stand_ins}{after}"), host })
    }
}

/// Whether a text that is resolved against a base contains a host.
pub(super) fn has_host(text: &str, base: &Url) -> bool {
    host_range(&strip_ignored(text), Some(base)).is_some()
}

/// The schemes for which the standard defines hosts.
pub(super) fn is_special(scheme: &str) -> bool {
    matches!(scheme, "http" | "https" | "ws" | "wss" | "ftp" | "file")
}

fn placeholder_label(label: &str) -> Option<String> {
    Some(format!("{PLACEHOLDER_PREFIX}{}", label.strip_prefix(ACE_PREFIX)?))
}

/// Removes what the standard ignores: control characters and blanks around a text, and tabs and
/// line ends anywhere.
fn strip_ignored(text: &str) -> String {
    let text = text.trim_matches(|character| character <= ' ');
    text.replace(['\t', '\n', '\r'], "")
}

/// The range of the host in a text, without port; `None` if the text contains none. With an unknown
/// scheme a host is opaque text, and does not count.
fn host_range(text: &str, base: Option<&Url>) -> Option<Range<usize>> {
    let is_slash = |byte: &u8| matches!(byte, b'/' | b'\\');
    let base = base.map(Url::scheme);
    let own = scheme(text);
    let scheme = own.as_deref().or(base).filter(|scheme| is_special(scheme))?;
    let rest = own.as_ref().map_or(0, |own| own.len() + ":".len());
    let slashes = text.bytes().skip(rest).take_while(|byte| is_slash(byte)).count();
    let start = match scheme {
        // The path begins with the third slash.
        "file" if slashes >= 2 => rest + 2,
        "file" => return None,
        // `http:a` is a path if the base has the scheme `http`, too.
        _ if slashes < 2 && (own.is_none() || base == Some(scheme)) => return None,
        _ => rest + slashes,
    };
    let authority = text.get(start..)?;
    let end = authority.find(['/', '\\', '?', '#']).unwrap_or(authority.len());
    let authority = authority.get(..end)?;
    if scheme == "file" {
        return Some(start..start + end);
    }
    let name = authority.rfind('@').map_or(0, |at| at + 1);
    let host = authority.get(name..)?;
    let host_end = host.find(':').unwrap_or(host.len());
    Some(start + name..start + name + host_end)
}

/// The scheme in lower case, if a text begins with one.
fn scheme(text: &str) -> Option<String> {
    let (scheme, _rest) = text.split_once(':')?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    is_scheme.then(|| scheme.to_ascii_lowercase())
}

/// The host, decoded and in lower case, if all of it is ASCII and allowed in a name.
fn ascii_host(host: &str) -> Option<String> {
    let host = percent_decode_str(host).decode_utf8().ok()?;
    host.bytes().all(may_be_in_a_name).then(|| host.to_ascii_lowercase())
}

/// All bytes but the "forbidden domain code points" of the standard.
fn may_be_in_a_name(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"#%/:<>?@[\\]^|".contains(&byte)
}
