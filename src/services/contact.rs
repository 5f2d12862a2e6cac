//! The contact that a crawler gives to site owners.

use tidings_protocol::CanonicalUrl;

/// The warning, printed once, when a crawler without a contact fetches from foreign hosts.
pub(crate) const WARNING: &str = "warning: site owners cannot identify this crawler; name a page \
    about it or a mail address with --contact URL|MAIL (or contact = \"..\" in the configuration)";

/// Parses a URL or a mail address that can stand in a `User-Agent`.
pub(crate) fn parse(text: &str) -> Result<String, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"()".contains(&byte));
    let is_mail =
        text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty());
    if is_plain && (is_mail || CanonicalUrl::parse(text).is_ok()) {
        Ok(text.to_owned())
    } else {
        Err("expected an http(s) URL or an e-mail address".to_owned())
    }
}

/// A `User-Agent` with a contact, in the form that is usual among crawlers.
pub(crate) fn user_agent(agent: &str, contact: &str) -> String {
    format!("{agent} (+{contact})")
}

/// Whether the host of a URL is this machine.
pub(crate) fn is_local(url: &CanonicalUrl<'_>) -> bool {
    let host = url.host();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback =
        address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    host == "localhost" || host.ends_with(".localhost") || is_loopback
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contact_is_a_url_or_a_mail_address() {
        for right in ["https://example.org/bot", "crawler@example.org"] {
            assert_eq!(parse(right).as_deref(), Ok(right));
        }
        for wrong in ["", "me", "@", "a@", "ftp://example.org/", "a@b (c)", "a@b\nX: y"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_loopback_hosts_are_local() {
        let own = |text: &str| is_local(&CanonicalUrl::parse(text).unwrap());
        for url in
            ["http://127.0.0.9:80/", "http://[::1]/", "http://localhost/", "http://a.localhost/"]
        {
            assert!(own(url), "{url}");
        }
        for url in ["http://10.0.0.1/", "http://example.org/", "http://localhost.example.org/"] {
            assert!(!own(url), "{url}");
        }
    }
}
