//! The host of a rule, as a person types it.

use tidings_protocol::{CanonicalUrl, HostPattern, HostPatternError};

/// The key of a rule for a host. Accepts the URL of the first page of a host, because people copy it
/// from a browser.
pub(super) fn parse_host(text: &str) -> Result<HostPattern, String> {
    let (star, name) = text.strip_prefix("*.").map_or(("", text), |name| ("*.", name));
    let is_url = name.contains("://");
    let url = if is_url { name.to_owned() } else { format!("http://{name}/") };
    let host = match CanonicalUrl::parse(&url) {
        Ok(url) if url.path_and_query() != "/" => {
            return Err(format!("a rule covers all pages of a host; write {}", url.host()));
        }
        Ok(url) if url.authority() != url.host() => {
            return Err(format!("a rule covers all ports of a host; write {}", url.host()));
        }
        Ok(url) if is_url && star.is_empty() => url.host().to_owned(),
        // The other forms have errors of their own.
        _ => name.to_owned(),
    };
    format!("{star}{host}").parse().map_err(|error: HostPatternError| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_as_people_type_them() {
        for (typed, host) in [
            ("example.org", "example.org"),
            ("WWW.Example.ORG.", "www.example.org"),
            ("*.example.org", "*.example.org"),
            ("https://example.org/", "example.org"),
            ("http://example.org", "example.org"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]", "[::1]"),
            ("localhost", "localhost"),
        ] {
            assert_eq!(parse_host(typed).unwrap().to_string(), host, "{typed}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_the_right_form() {
        for (typed, problem) in [
            ("", "expected a host such as example.org"),
            ("*", "expected a host"),
            ("*.", "expected a host"),
            ("*.*.org", "expected a host"),
            ("www.*.org", "expected a host"),
            ("a..b", "expected a host name"),
            ("example.org:80", "expected a host without port"),
            ("*.https://example.org/", "expected a host"),
            ("two words", "expected a host"),
            ("ftp://example.org/", "expected a host"),
            ("user@example.org", "expected a host"),
            ("example.org/docs/", "all pages of a host; write example.org"),
            ("https://example.org/?page=2", "all pages of a host; write example.org"),
            ("example.org:8080", "all ports of a host; write example.org"),
            ("https://example.org:80/", "all ports of a host; write example.org"),
        ] {
            let error = parse_host(typed).unwrap_err();
            assert!(error.contains(problem), "{typed}: {error}");
        }
    }
}
