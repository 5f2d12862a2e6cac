//! Hosts as an operator names them: in a rule, and on the never-list.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use crate::CanonicalUrl;
use crate::canonical_url::registrable_domain;

/// Longest name, and longest label of a name, in bytes (RFC 1035, 2.3.4).
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// A host (`example.org`), or a host and every name below it (`*.example.org`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPattern {
    host: Box<str>,
    below: bool,
}

/// Why a text is no [`HostPattern`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostPatternError {
    /// It is something else than a host.
    #[error("expected a host such as example.org, or *.example.org for it and every name below it")]
    NoHost,
    /// It has a port, or is an IPv6 address without brackets.
    #[error("expected a host without port; an IPv6 address has brackets, as [::1]")]
    Port,
    /// It has a star in front of an address.
    #[error("there are no names below an address")]
    BelowAddress,
    /// No server can be found by this name.
    #[error(
        "expected a host name: labels of 1 to {LABEL_BYTES_MAX} letters, digits, - and _, with \
         dots between them, and at most {NAME_BYTES_MAX} characters"
    )]
    Name,
}

impl HostPattern {
    /// The host as in a canonical URL: in lower case, an international name in its ASCII form, an
    /// IPv6 address in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether every name below the host is included.
    pub fn is_below(&self) -> bool {
        self.below
    }

    /// Whether the host is an address.
    pub fn is_address(&self) -> bool {
        self.host.starts_with('[') || self.host.parse::<Ipv4Addr>().is_ok()
    }

    /// The registrable domain of the host by the public suffix list; `None` for an address, and for
    /// a public suffix.
    pub fn domain(&self) -> Option<&str> {
        if self.is_address() { None } else { registrable_domain(&self.host) }
    }
}

impl FromStr for HostPattern {
    type Err = HostPatternError;

    fn from_str(text: &str) -> Result<Self, HostPatternError> {
        let name = text.strip_prefix("*.");
        let (name, below) = (name.unwrap_or(text), name.is_some());
        // A URL ignores some of these, or ends the host at them.
        let is_foreign = |c: char| {
            c.is_whitespace() || c.is_control() || matches!(c, '/' | '\\' | '?' | '#' | '@' | '*')
        };
        if name.contains(is_foreign) {
            return Err(HostPatternError::NoHost);
        }
        if name.rsplit(']').next().is_some_and(|rest| rest.contains(':')) {
            return Err(HostPatternError::Port);
        }
        let url = format!("http://{name}/");
        let url = CanonicalUrl::parse(&url).map_err(|_| HostPatternError::NoHost)?;
        let pattern = Self { host: url.host().into(), below };
        match pattern.is_address() {
            true if below => Err(HostPatternError::BelowAddress),
            false if !is_host_name(&pattern.host) => Err(HostPatternError::Name),
            _ => Ok(pattern),
        }
    }
}

/// Reports whether a server can have this name. RFC 1123 has no `_`, and no `-` at the ends of a
/// label, but hosts with such names are on the web.
fn is_host_name(host: &str) -> bool {
    let is_label = |label: &str| {
        let own = label.strip_prefix("xn--").unwrap_or(label);
        label.len() <= LABEL_BYTES_MAX
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
            && own.contains(|c: char| c.is_ascii_alphanumeric())
    };
    host.len() <= NAME_BYTES_MAX && host.split('.').all(is_label)
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.below { "*." } else { "" }, self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_refused(text: &str, expected: HostPatternError) {
        assert_eq!(text.parse::<HostPattern>(), Err(expected), "{text:?}");
    }

    #[test]
    fn hosts_are_in_the_form_of_canonical_urls() {
        let label = "a".repeat(LABEL_BYTES_MAX);
        let longest = format!("{label}.{label}.{label}.{}", "a".repeat(61));
        for (text, canonical) in [
            ("example.org", "example.org"),
            ("WWW.Example.ORG.", "www.example.org"),
            ("*.Example.org", "*.example.org"),
            ("*.co", "*.co"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("xn--0.example", "xn--0.example"),
            ("127.1", "127.0.0.1"),
            ("[0::1]", "[::1]"),
            ("localhost", "localhost"),
            ("my_site.-a.b-.example", "my_site.-a.b-.example"),
            (&longest, &longest),
        ] {
            assert_eq!(text.parse::<HostPattern>().unwrap().to_string(), canonical, "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let foreign = ["", "*", "*.", "*.*.org", "a.*.org", "two words", "a\tb", "a\u{85}b", "."];
        let urls = ["http://a.org", "a.org/", "a.org\\b", "a.org?b", "a.org#b", "me@a.org"];
        for text in foreign.into_iter().chain(urls) {
            assert_refused(text, HostPatternError::NoHost);
        }
        for text in ["a.org:80", "a.org:", "[::1]:80", "[::1", "::1", "*.a.org:80"] {
            assert_refused(text, HostPatternError::Port);
        }
        for text in ["*.127.0.0.1", "*.1", "*.[::1]"] {
            assert_refused(text, HostPatternError::BelowAddress);
        }
        let label = "a".repeat(LABEL_BYTES_MAX + 1);
        let long = "a.".repeat(NAME_BYTES_MAX / 2) + "aa";
        let names = ["-", "--.org", "a..b", ".a", "xn--", "xn--.org", "_", "a,b", "a+b.org", "a'b"];
        for text in names.into_iter().chain([&*label, &*long]) {
            assert_refused(text, HostPatternError::Name);
            assert_refused(&format!("*.{text}"), HostPatternError::Name);
        }
    }

    #[test]
    fn a_public_suffix_and_an_address_have_no_domain() {
        let domain = |text: &str| text.parse::<HostPattern>().unwrap().domain().map(str::to_owned);
        assert_eq!(domain("*.www.example.co.uk").as_deref(), Some("example.co.uk"));
        for text in ["*.co.uk", "*.co", "localhost", "127.0.0.1", "[::1]"] {
            assert_eq!(domain(text), None, "{text}");
        }
    }
}
