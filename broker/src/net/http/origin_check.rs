//! Protection against pages of other sites: checks of `Host` and `Origin`, and security headers.
//! A browser sends requests on behalf of any page that it shows, and such a page must neither
//! publish here nor read.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};

use super::error::{ErrorResponse, HttpResult, bad_request};

/// Default headers of each response. For a browser the response is then not a page: it loads
/// nothing, no page can embed it, and it is not cached.
const SECURITY_HEADERS: [(HeaderName, HeaderValue); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"),
    ),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
];

const OTHER_SITE: &str = "pages of other sites may not send requests to this broker";

/// Adds the security headers that a response does not set itself.
pub fn add_security_headers(headers: &mut HeaderMap) {
    for (name, value) in SECURITY_HEADERS {
        headers.entry(name).or_insert(value);
    }
}

/// Rejects requests from pages of other sites, and requests for an unknown host.
///
/// - The host of the request must be an address, `localhost`, or one of `allowed_hosts`. A page can
///   point its own name at this machine (DNS rebinding) and has the same origin then, but it cannot
///   hide the name.
/// - If a browser sends the origin of the request, it must be this one.
/// - A link on another site may lead to `/`: the response is the same for every client.
pub(super) fn check_host_and_origin(
    allowed_hosts: &[String],
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> HttpResult<()> {
    let denied = |message: String| ErrorResponse::new(StatusCode::FORBIDDEN, "denied", message);
    let host = match uri.authority() {
        Some(authority) => authority.as_str(),
        None => headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default(),
    };
    if host.is_empty() || headers.get_all(header::HOST).iter().count() > 1 {
        return Err(bad_request("a request must have exactly one Host header"));
    }
    let name = without_port(host).to_ascii_lowercase();
    let is_ours = is_address_or_localhost(host)
        || allowed_hosts.iter().any(|known| known.eq_ignore_ascii_case(&name));
    if !is_ours {
        let message =
            format!("unknown host {name}; to allow it, start the broker with --http-host {name}");
        return Err(denied(message));
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        // Current browsers send this header where they leave out the origin.
        let site = headers.get("sec-fetch-site").and_then(|site| site.to_str().ok());
        return match site {
            None | Some("same-origin" | "none") => Ok(()),
            _ if method == Method::GET && uri.path() == "/" && is_navigation(headers) => Ok(()),
            Some(_) => Err(denied(OTHER_SITE.into())),
        };
    };
    let is_same = origin.to_str().is_ok_and(|origin| {
        let origin_host = origin.split_once("://").map_or("", |(_, host)| host);
        origin_host.eq_ignore_ascii_case(host)
    });
    if is_same { Ok(()) } else { Err(denied(OTHER_SITE.into())) }
}

/// Whether a browser will show the response as a page of its own, and not in a frame.
fn is_navigation(headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|sent| sent == value);
    is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document")
}

/// Whether a `Host`, with or without a port, is an IP address, `localhost`, or a name under it. No
/// site can own such a name, so DNS rebinding is not possible with it.
pub fn is_address_or_localhost(host: &str) -> bool {
    let name = without_port(host).to_ascii_lowercase();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    name == "localhost"
        || name.ends_with(".localhost")
        || name.parse::<std::net::Ipv4Addr>().is_ok()
        || address.is_some_and(|name| name.parse::<std::net::Ipv6Addr>().is_ok())
}

fn without_port(host: &str) -> &str {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn is_allowed(headers: &[(&'static str, &'static str)]) -> bool {
        is_allowed_at(&Method::GET, "/topics", headers)
    }

    fn is_allowed_at(
        method: &Method,
        path: &'static str,
        headers: &[(&'static str, &'static str)],
    ) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let (hosts, uri) = (["tidings.example".into()], Uri::from_static(path));
        check_host_and_origin(&hosts, method, &uri, &map).is_ok()
    }

    #[test]
    fn addresses_localhost_and_known_names_are_allowed() {
        for host in [
            "127.0.0.1:12346",
            "10.0.0.7",
            "[::1]:12346",
            "[::1]",
            "localhost:12346",
            "LOCALHOST",
            "a.localhost:1",
            "Tidings.example",
            "tidings.example:443",
        ] {
            assert!(is_allowed(&[("host", host)]), "{host}");
        }
    }

    // PROTOCOL: H8
    #[test]
    fn requests_for_an_unknown_host_are_rejected() {
        for host in ["evil.example", "127.0.0.1.evil.example:12346", "localhost.evil.example", ""] {
            assert!(!is_allowed(&[("host", host)]), "{host}");
        }
        assert!(!is_allowed(&[]));
        assert!(!is_allowed(&[("host", "localhost"), ("host", "localhost")]));
    }

    // PROTOCOL: H8
    #[test]
    fn requests_from_pages_of_other_origins_are_rejected() {
        let host = ("host", "localhost:12346");
        assert!(is_allowed(&[host, ("origin", "http://localhost:12346")]));
        assert!(is_allowed(&[host, ("sec-fetch-site", "same-origin")]));
        assert!(is_allowed(&[host, ("sec-fetch-site", "none")]), "a URL that a person has typed");
        for origin in ["http://evil.example", "http://localhost:8000", "null", "localhost:12346"] {
            assert!(!is_allowed(&[host, ("origin", origin)]), "{origin}");
        }
        for site in ["cross-site", "same-site"] {
            assert!(!is_allowed(&[host, ("sec-fetch-site", site)]), "{site}");
        }
    }

    // PROTOCOL: H8
    #[test]
    fn a_link_on_another_site_may_lead_to_the_page() {
        let site = ("sec-fetch-site", "cross-site");
        let link = [
            ("host", "localhost:12346"),
            site,
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        assert!(is_allowed_at(&Method::GET, "/", &link));
        assert!(is_allowed_at(&Method::GET, "/?a=b", &link));
        for path in ["/topics", "/me", "//", "/dashboard/0/main.js"] {
            assert!(!is_allowed_at(&Method::GET, path, &link), "{path}");
        }
        for method in [Method::POST, Method::HEAD, Method::OPTIONS] {
            assert!(!is_allowed_at(&method, "/", &link), "{method}");
        }
        let with_origin = [&link[..], &[("origin", "http://evil.example")]].concat();
        assert!(!is_allowed_at(&Method::GET, "/", &with_origin), "a form");
        let with = |name: &'static str, value: &'static str| {
            let others = link.iter().copied().filter(|header| header.0 != name);
            is_allowed_at(&Method::GET, "/", &others.chain([(name, value)]).collect::<Vec<_>>())
        };
        for dest in ["iframe", "frame", "embed", "object", "image", "script", "empty"] {
            assert!(!with("sec-fetch-dest", dest), "{dest}");
        }
        for mode in ["no-cors", "cors", "same-origin", "websocket"] {
            assert!(!with("sec-fetch-mode", mode), "{mode}");
        }
        assert!(!with("host", "evil.example"));
    }
}
