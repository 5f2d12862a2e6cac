//! Tests of the canonical URL.

use proptest::prelude::*;
use url::{Host, Position, Url};

use super::*;

#[track_caller]
fn same(text: &str, canonical: &str) {
    assert_eq!(CanonicalUrl::parse(text).map(|url| url.to_string()).as_deref(), Ok(canonical));
}

// PROTOCOL: U1
#[test]
fn equal_pages_have_equal_texts() {
    same("HTTP://Example.ORG", "http://example.org/");
    same("http://example.org:80/a#b", "http://example.org/a");
    same("https://example.org:443/", "https://example.org/");
    same("http://example.org:443/", "http://example.org:443/");
    same("http://example.org./a", "http://example.org/a");
    same("http://example.org/a/./b/../c", "http://example.org/a/c");
    same("http://exämple.org/ä b", "http://xn--exmple-cua.org/%C3%A4%20b");
    same("http://127.1/", "http://127.0.0.1/");
    same("http://127.0.0.1./", "http://127.0.0.1/");
    same("http://[::0001]:80/", "http://[::1]/");
    same("  http://example.org/\t", "http://example.org/");
    same("\u{1}http://example.org/a\u{a0}", "http://example.org/a%C2%A0");
    same("http://example.org/%70/%7Ea?%70=%2d", "http://example.org/p/~a?p=-");
    same("http://example.org/a%c3%a4%2f?%c3", "http://example.org/a%C3%A4%2F?%C3");
    same("http://example.org/a^b?c^d", "http://example.org/a%5Eb?c^d");
}

// PROTOCOL: U1
#[test]
fn only_escapes_are_decoded() {
    // Decoded once and no further.
    same("http://example.org/%2541%252e", "http://example.org/%2541%252e");
    same("http://example.org/%25%34%31", "http://example.org/%2541");
    // `%` without two digits is itself, and must not find them.
    same("http://example.org/%%34%31", "http://example.org/%%341");
    same("http://example.org/%4%31%31", "http://example.org/%4%311");
    same("http://example.org/%%61b%g%61%61?%", "http://example.org/%%61b%g%61a?%");
    same("http://example.org/%?%41%", "http://example.org/%?A%");
}

// PROTOCOL: U1
#[test]
fn decoded_dots_resolve_nothing() {
    same("http://example.org/a/%2e%2E/b", "http://example.org/b");
    same("http://example.org/a/.%2e/%2e/b", "http://example.org/b");
    same("http://example.org/a/%2e%2E%2e/b%2e/%2eb", "http://example.org/a/.../b./.b");
    same("http://example.org/a/%252e%252e/b", "http://example.org/a/%252e%252e/b");
    same("http://example.org/a/%%32e/..%2f/b", "http://example.org/a/%%32e/..%2F/b");
    same("http://example.org/a?/%2e%2e/", "http://example.org/a?/../");
}

// PROTOCOL: U1
#[test]
fn urls_that_only_a_server_can_equate_stay_distinct() {
    same("http://example.org/A/?b=2&a=1", "http://example.org/A/?b=2&a=1");
    same("http://example.org/?", "http://example.org/?");
    same("http://example.org/a//b", "http://example.org/a//b");
    same("http://example.org/a+b%20c%2B?d+e%20f%2B", "http://example.org/a+b%20c%2B?d+e%20f%2B");
    same("http://example.org/%2F%3F%26?%26=%3D", "http://example.org/%2F%3F%26?%26=%3D");
}

// PROTOCOL: U2
#[test]
fn urls_that_are_not_pages_are_refused_with_the_reason() {
    for (text, error) in [
        ("ftp://example.org/", UrlError::Scheme),
        ("mailto:a@b", UrlError::Scheme),
        ("file:///etc/passwd", UrlError::Scheme),
        ("http://a:b@example.org/", UrlError::Credentials),
        ("http://a@example.org/", UrlError::Credentials),
        ("http://", UrlError::Host),
        ("http://[::1", UrlError::Host),
        ("http://1.2.3.4.5/", UrlError::Host),
        ("http://./", UrlError::Host),
        ("/a", UrlError::Syntax(ParseError::RelativeUrlWithoutBase)),
        ("hello", UrlError::Syntax(ParseError::RelativeUrlWithoutBase)),
    ] {
        assert_eq!(CanonicalUrl::parse(text).map(|url| url.to_string()), Err(error), "{text}");
    }
}

// PROTOCOL: U2
#[test]
fn the_limit_holds_before_and_after() {
    let at_limit = format!("http://a/{}", "x".repeat(URL_BYTES_MAX - 9));
    assert!(CanonicalUrl::parse(&at_limit).is_ok());
    assert_eq!(CanonicalUrl::parse(&format!("{at_limit}x")), Err(UrlError::TooLong));
    let grows = format!("http://a/{}", "^".repeat(URL_BYTES_MAX / 2));
    assert_eq!(CanonicalUrl::parse(&grows), Err(UrlError::TooLong));
    let shrinks = format!("http://a/{}", "%41".repeat(URL_BYTES_MAX / 3 - 9));
    assert_eq!(CanonicalUrl::parse(&shrinks).unwrap().path().len(), URL_BYTES_MAX / 3 - 8);
    let grows = format!("http://a/{}", "ä".repeat(URL_BYTES_MAX / 4));
    assert_eq!(CanonicalUrl::parse(&grows), Err(UrlError::TooLong));
}

// PROTOCOL: U3
#[test]
fn parts() {
    let url = CanonicalUrl::parse("https://www.Example.co.uk:8443/a/b?c").unwrap();
    assert_eq!(url.scheme(), "https");
    assert_eq!(url.host(), "www.example.co.uk");
    assert_eq!(url.authority(), "www.example.co.uk:8443");
    assert_eq!(url.port(), 8443);
    assert_eq!(url.path(), "/a/b");
    assert_eq!(url.domain(), "example.co.uk");
    let address = CanonicalUrl::parse("http://[::1]/").unwrap();
    assert_eq!((address.host(), address.domain(), address.port()), ("[::1]", "[::1]", 80));
    let address = CanonicalUrl::parse("http://127.0.0.2:8000/").unwrap();
    assert_eq!((address.host(), address.domain()), ("127.0.0.2", "127.0.0.2"));
}

#[test]
fn links_are_resolved_against_their_page() {
    let base = CanonicalUrl::parse("http://example.org/a/b?c").unwrap();
    for (link, url) in [
        ("d#e", "http://example.org/a/d"),
        ("/d", "http://example.org/d"),
        ("//Other.org", "http://other.org/"),
        ("#top", "http://example.org/a/b?c"),
        ("?x", "http://example.org/a/b?x"),
        (" d ", "http://example.org/a/d"),
        ("///other.org/%61", "http://other.org/a"),
        (" /\\\t/\n/other.org", "http://other.org/"),
    ] {
        assert_eq!(CanonicalUrl::join(&base, link).unwrap().as_str(), url);
    }
    assert_eq!(CanonicalUrl::join(&base, "mailto:a@b"), Err(UrlError::Scheme));
    assert_eq!(CanonicalUrl::join(&base, "///"), Err(UrlError::Host));
}

#[test]
fn loopback_is_seen_in_every_spelling() {
    for text in [
        "http://localhost/",
        "http://a.localhost/",
        "http://127.9.9.9/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
    ] {
        assert!(CanonicalUrl::parse(text).unwrap().is_loopback(), "{text}");
    }
    for text in ["http://localhost.org/", "http://10.0.0.1/", "http://128.0.0.1/"] {
        assert!(!CanonicalUrl::parse(text).unwrap().is_loopback(), "{text}");
    }
}

#[test]
fn keys_are_stable() {
    // A fixed value: the key is stored, so a change of the hash must not go unnoticed.
    let url = CanonicalUrl::parse("http://example.org/").unwrap();
    assert_eq!(url.url_key().to_string(), "13dab8d42ad2218070c0198247c2304a");
}

// PROTOCOL: U1
#[test]
fn hosts_with_labels_that_idna_rejects_serve_only_pages() {
    let check = |url: &str| CanonicalUrl::parse(url).unwrap().check_callable();
    for url in ["http://xn--bcher-kva.example/?q", "https://[::1]:8443/", "http://a_b.example/"] {
        assert_eq!(check(url), Ok(()), "{url}");
    }
    let error = check("https://x.xn--pokxncvks:8443/done").unwrap_err().to_string();
    assert!(error.starts_with("the host x.xn--pokxncvks has an xn-- label"), "{error}");
}

#[test]
fn ascii_hosts_are_kept_as_they_are() {
    // Real hosts, and tests of the standard (web-platform-tests, pull request 60476).
    same("http://xn--8i7caa.famitei.net/sekou/all", "http://xn--8i7caa.famitei.net/sekou/all");
    same("https://XN--Board-NGR.palungjit.org", "https://xn--board-ngr.palungjit.org/");
    same("http://a.b.c.XN--pokxncvks/", "http://a.b.c.xn--pokxncvks/");
    same("https://xn--:8443/a^b?c#d", "https://xn--:8443/a%5Eb?c");
    same("http://xn--a.xn--zca/", "http://xn--a.xn--zca/");
    same("http://2.xn--mgbb/", "http://2.xn--mgbb/");
    same("http://xn--ls8h=/", "http://xn--ls8h=/");
    same("http://xn--/%2541/%41", "http://xn--/%2541/A");
    same("http://xx--a.xn--a/", "http://xx--a.xn--a/");
    // Decoded before the check, without what the standard ignores.
    same(" HTTP:\\\\%58n\t%2D-%61%2e\nexample/", "http://xn--a.example/");
    same("http:xn--a/b", "http://xn--a/b");
    same("http://xn--a/@b:c", "http://xn--a/@b:c");
    same("http://xn--a..b/", "http://xn--a..b/");
    same("http://xn--a../b", "http://xn--a/b");
    for wrong in [
        // Not ASCII: all rules of IDNA hold.
        "http://xn--te\u{161}la/",
        "http://xn--a.\u{df}/",
        "http://xn--a.%C3%9F/",
        // The last label is a number: an address, and a wrong one.
        "http://xn--mhb.1/",
        "http://xn--a.0x/",
        "http://xn--a.1./",
        // Bytes that are forbidden in a name.
        "http://xn--a%20/",
        "http://xn--a%25/",
        "http://xn--a%2F/",
        "http://xn--a%3A/",
        "http://xn--a%7F/",
        "http://xn--a^/",
        "http://[xn--a]/",
    ] {
        assert_eq!(CanonicalUrl::parse(wrong), Err(UrlError::Host), "{wrong}");
    }
    assert_eq!(CanonicalUrl::parse("http://a@xn--a/"), Err(UrlError::Credentials));
    assert_eq!(CanonicalUrl::parse("ftp://xn--a/"), Err(UrlError::Scheme));
    let out_of_range = CanonicalUrl::parse("http://xn--a:65536/");
    assert_eq!(out_of_range, Err(UrlError::Syntax(ParseError::InvalidPort)));

    let url = CanonicalUrl::parse("http://www.xn--8i7caa.co.uk./a").unwrap();
    assert_eq!((url.host(), url.path()), ("www.xn--8i7caa.co.uk", "/a"));
    assert_eq!((url.domain(), url.port()), ("xn--8i7caa.co.uk", 80));
    assert_eq!((url.address(), url.is_loopback()), (None, false));
    assert!(CanonicalUrl::parse("http://xn--a.localhost/").unwrap().is_loopback());
}

#[test]
fn links_of_a_page_on_an_ascii_host_are_resolved() {
    let base = CanonicalUrl::parse("http://xn--a.example:81/a/b?c").unwrap();
    for (link, url) in [
        ("", "http://xn--a.example:81/a/b?c"),
        ("../d#e", "http://xn--a.example:81/d"),
        ("http:d", "http://xn--a.example:81/a/d"),
        ("//xx--a.example:81/", "http://xx--a.example:81/"),
        ("///XX--a.example:81/", "http://xx--a.example:81/"),
        ("http://xx--a.example:81/", "http://xx--a.example:81/"),
        ("https:xx--a.example:81/", "https://xx--a.example:81/"),
        ("//xn--b/", "http://xn--b/"),
        (" \\\n/\t/xn--b/", "http://xn--b/"),
        ("https:/xn--b", "https://xn--b/"),
    ] {
        assert_eq!(base.join(link).unwrap().as_str(), url, "{link:?}");
        assert_eq!(base.join_into(link, &mut String::new()).unwrap().as_str(), url, "{link:?}");
    }
    let plain = CanonicalUrl::parse("http://b.example/").unwrap();
    assert_eq!(plain.join("//xn--a/b").unwrap().as_str(), "http://xn--a/b");
    assert_eq!(plain.join("http:xn--a").unwrap().as_str(), "http://b.example/xn--a");
}

#[test]
fn any_url_is_read_as_the_standard_says() {
    let read = |text: &str, base: Option<&str>| {
        let url = StandardUrl::parse(text, base).ok()?;
        Some([url.href, url.host.unwrap_or_default(), url.domain.unwrap_or_default()].join(" "))
    };
    for (text, base, url) in [
        (
            "HTTP://a:b@WWW.Example.co.uk:80/%41^b?^#c",
            None,
            "http://a:b@www.example.co.uk/%41%5Eb?^#c www.example.co.uk example.co.uk",
        ),
        ("http://example.org./", None, "http://example.org./ example.org. example.org"),
        ("http://co.uk/", None, "http://co.uk/ co.uk "),
        ("http://.example.org/", None, "http://.example.org/ .example.org "),
        ("http://0x7f.1/", None, "http://127.0.0.1/ 127.0.0.1 "),
        ("ws://example.org", None, "ws://example.org/ example.org example.org"),
        ("ssh://example.org", None, "ssh://example.org example.org "),
        ("mailto:a^b  ?c", None, "mailto:a^b %20?c  "),
        ("file:///a^b", None, "file:///a%5Eb  "),
        ("////example.org", Some("ftp://a/"), "ftp://example.org/ example.org example.org"),
        ("///a", Some("ssh://b/c"), "ssh:///a  "),
        (
            "http://u:p@XN--a.co.uk.:81/^?q#f",
            None,
            "http://u:p@xn--a.co.uk.:81/%5E?q#f xn--a.co.uk. xn--a.co.uk",
        ),
        ("b", Some("http://u@xn--a/"), "http://u@xn--a/b xn--a "),
        ("//xx--a", Some("http://xn--a/"), "http://xx--a/ xx--a "),
        ("ssh://xx--a", Some("http://xn--a/"), "ssh://xx--a xx--a "),
        ("mailto:b", Some("http://xn--a/"), "mailto:b  "),
        ("FILE://xn--a/b", None, "file://xn--a/b xn--a "),
        ("/c", Some("file://xn--a/b"), "file://xn--a/c xn--a "),
        ("//xx--a/c", Some("file://xn--a/b"), "file://xx--a/c xx--a "),
        ("///c", Some("file://xn--a/b"), "file:///c  "),
        ("wss://xn--a", None, "wss://xn--a/ xn--a "),
        ("ssh://XN--a", None, "ssh://XN--a XN--a "),
    ] {
        assert_eq!(read(text, base).as_deref(), Some(url), "{text}");
    }
    for (text, base) in [("a", None), ("a", Some("b")), ("a", Some("mailto:b")), ("http://", None)]
    {
        assert_eq!(read(text, base), None, "{text}");
    }
}

/// The result of the `url` crate alone, which is also that of version 2.
fn slowly(text: &str) -> Result<CanonicalUrl<'static>, UrlError> {
    canonicalize(Url::parse(text).map(ParsedUrl::from))
}

/// A URL that version 2 accepted keeps its text, and so its key. A URL that it rejected is rejected
/// for the same reason, or has an ASCII host with an IDNA label.
#[track_caller]
fn assert_keeps(
    url: &Result<CanonicalUrl<'_>, UrlError>,
    before: &Result<CanonicalUrl<'static>, UrlError>,
) {
    let is_new = match (url, before) {
        (Ok(url), Err(UrlError::Host)) => {
            url.host().split('.').any(|label| label.starts_with("xn--"))
        }
        // The standard checks the host first, and refuses a user name only in a URL with a host.
        (
            Err(UrlError::Credentials | UrlError::Scheme | UrlError::Syntax(_)),
            Err(UrlError::Host),
        ) => true,
        _ => false,
    };
    if !is_new {
        assert_eq!(url, before);
    }
}

/// A text that passes the fast check is what the `url` crate would make of it, part by part.
#[track_caller]
fn assert_agrees(text: &str) {
    let Some(parts) = UrlParts::parse_plain(text) else { return };
    let plain = CanonicalUrl { text: text.into(), parts };
    assert_eq!(Ok(plain), slowly(text));
}

/// The parts are those of the `url` crate.
#[track_caller]
fn assert_parts(url: &CanonicalUrl<'_>) {
    // The crate accepts only IDNA labels that IDNA accepts.
    let text = url.as_str().replacen(url.host(), &url.host().replace("xn--", "xx--"), 1);
    let same = Url::parse(&text).unwrap();
    let url = CanonicalUrl { text: text.into(), parts: url.parts };
    assert_eq!(url.as_str(), same.as_str());
    assert_eq!((url.scheme(), Some(url.host())), (same.scheme(), same.host_str()));
    assert_eq!(
        (url.authority(), Some(url.port())),
        (same.authority(), same.port_or_known_default())
    );
    assert_eq!((url.path(), url.path_and_query()), (same.path(), &same[Position::BeforePath..]));
    let address = match same.host().unwrap() {
        Host::Domain(_) => None,
        Host::Ipv4(address) => Some(address.into()),
        Host::Ipv6(address) => Some(address.into()),
    };
    assert_eq!(url.address(), address);
}

#[test]
fn every_character_at_every_place_is_accepted_as_by_the_url_crate() {
    for (place, taken) in [
        ("http://*/", 26),
        ("http://a*b/", 26 + 10 + 3),
        ("http://a.*/", 26),
        ("http://xn--*/", 0),
        ("http://a.0*/", 0),
        ("http://127.0.0.*/", 26 + 10),
        ("http://127.0.0.25*/", 6 + 1),
        ("http://127.0.0.0*/", 1),
        ("http://a*", 1),
        ("http://a:8*/", 9 + 1),
        ("http://a:*8/", 9),
        ("http://a:6553*/", 6 + 1),
        ("http://a/*", 26 + 26 + 10 + 18),
        ("http://a/b*c", 26 + 26 + 10 + 19),
        ("http://a/.*", 0),
        ("http://a/%2*", 10 + 4),
        ("http://a/%4*", 1),
        ("http://a/?%*F", 7 + 6),
        ("http://a/%%*F", 0),
        ("http://a/?b*c", 26 + 26 + 10 + 18),
    ] {
        let texts = ('\0'..'\u{100}').map(|character| place.replace('*', &character.to_string()));
        let texts: Vec<String> = texts.collect();
        for text in &texts {
            assert_agrees(text);
        }
        let count = texts.iter().filter(|text| UrlParts::parse_plain(text).is_some()).count();
        assert_eq!(count, taken, "{place}");
    }
}

/// The octets of a server that decodes once, and keeps a `%` without digits as it is.
fn decoded(text: &str) -> Vec<u8> {
    let mut octets = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let digits = behind.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(digits) = digits.filter(|_| *first == b'%') {
            octets.push(u8::from_str_radix(digits, 16).unwrap());
            rest = &behind[2..];
        } else {
            octets.push(*first);
            rest = behind;
        }
    }
    octets
}

/// Texts that are nearly canonical: some piece is not.
fn near_canonical() -> impl Strategy<Value = String> {
    let scheme = prop_oneof![
        8 => Just("http://"),
        8 => Just("https://"),
        1 => select(&["HTTP://", "http:", "http:/", "http:///", "http:\\\\", "ftp://", " http://", ""]),
    ];
    let host = select(&[
        "a", "b-", "-", "--", "xn--", "XN--a", "xn--p1ai", ".", ".", ".", "0", "0x", "0xf", "7",
        "127", "256", "A", "_", "%41", "%2e", "ä", "。", "\u{ad}", "local", "[::1]", "@", ":",
        "\t", " ", "co.uk",
    ]);
    let port = prop_oneof![
        4 => Just(""),
        3 => select(&[":80", ":443", ":8080", ":65535"]),
        1 => select(&[":", ":0", ":080", ":65536", ":99999999999", ":+81", ":8a", ":٨", ":80:80"]),
    ];
    let rest = select(&[
        "/", "/", "/", ".", "..", "%2e", "%2E", "%2", "%", "%e4", "%C3", "%7e", "%31", "%41", "a",
        "Z", "0", "~", "'", "\"", "\\", "\t", "\n", " ", "|", "^", "[", "]", "{", "}", "ä", ":",
        "@", "?", "?", "#", ";", "=", "&", "<", "`", "\u{7f}", "//",
    ]);
    let some = |piece, range| {
        proptest::collection::vec(piece, range).prop_map(|pieces: Vec<&str>| pieces.concat())
    };
    (scheme, some(host, 1..6), port, some(rest, 0..8))
        .prop_map(|(scheme, host, port, rest)| format!("{scheme}{host}{port}{rest}"))
}

fn select(pieces: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    proptest::sample::select(pieces)
}

proptest! {
    #[test]
    fn canonical_texts_are_borrowed(
        text in "https?://(x?[a-mo-wyz0-9-][a-z0-9-]{0,8}\\.){0,3}[a-z]{2,9}(:8[1-9][0-9]{0,2})?\
            (/([A-Za-z0-9_~-][a-zA-Z0-9._~!$&'()*+,;=:@-]{0,9}(%(2[0-9ABCF]|3[A-F]|[A-F][0-9A-F]))?)?){1,4}\
            (\\?([a-zA-Z0-9._~!$&()*+,;=:@/?-]{0,9}(%[018-9A-F][0-9A-F])?){0,2})?",
    ) {
        prop_assert!(UrlParts::parse_plain(&text).is_some());
        assert_agrees(&text);
        let url = CanonicalUrl::parse(&text).unwrap();
        prop_assert!(matches!(url.text, Cow::Borrowed(_)));
    }

    #[test]
    fn nearly_canonical_texts_are_parsed_as_by_the_url_crate(text in near_canonical()) {
        assert_agrees(&text);
        let url = CanonicalUrl::parse(&text);
        assert_keeps(&url, &slowly(text.trim()));
        let base = "https://example.org/a/b?c";
        let joined = canonicalize(Url::parse(base).unwrap().join(text.trim()).map(ParsedUrl::from));
        assert_keeps(&CanonicalUrl::parse(base).unwrap().join(&text), &joined);
        if let Ok(url) = url {
            assert_parts(&url);
        }
    }

    /// A second implementation from the words of the standard: a host that is ASCII after decoding
    /// is written in lower case, if it has no forbidden character and does not end in a number.
    #[test]
    fn ascii_hosts_are_accepted_as_the_standard_says(
        host in "((xn--|XN--|%78n-%2d)?[a-zA-Z0-9_=-]{0,6}(%[2-7][0-9a-f])?\\.?){1,4}",
    ) {
        let name = String::from_utf8(decoded(&host)).unwrap().to_ascii_lowercase();
        let is_forbidden = |character: char| {
            character <= ' ' || "#/:<>?@[\\]^|%\u{7f}".contains(character)
        };
        let last = name.strip_suffix('.').unwrap_or(&name).rsplit('.').next().unwrap();
        let ends_in_number = last.strip_prefix("0x").map_or_else(
            || !last.is_empty() && last.bytes().all(|digit| digit.is_ascii_digit()),
            |digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()),
        );
        let is_name = !name.is_empty() && !name.contains(is_forbidden) && !ends_in_number;
        let text = format!("http://{host}/");
        let url = StandardUrl::parse(&text, None);
        if !ends_in_number || name.contains("xn--") {
            prop_assert_eq!(url.ok().and_then(|url| url.host), is_name.then(|| name.clone()));
        }
        let canonical = CanonicalUrl::parse(&text).ok();
        if let Some(canonical) = &canonical {
            assert_parts(canonical);
            prop_assert_eq!(&CanonicalUrl::parse(canonical.as_str()).unwrap(), canonical);
        }
    }

    /// Links resolve on such a host as on others.
    #[test]
    fn links_on_ascii_hosts_are_resolved_as_on_others(
        link in "(\\.?\\./|/|//|[a-z?#:.%@\t\\\\-]|http:|https:|ftp:|file:|ssh:|x[nx]--a|b){0,12}",
        base in "(http|https|ftp|file)://HOST(:81)?/a/b\\?c",
    ) {
        let base = base.replace("file://HOST:81", "file://HOST");
        let resolve = |host: &str| StandardUrl::parse(&link, Some(&base.replace("HOST", host)));
        let (plain, ascii) = (resolve("c.example"), resolve("xn--a.example"));
        let same = plain.map(|url| StandardUrl {
            href: url.href.replacen("//c.example", "//xn--a.example", 1),
            host: url.host.map(|host| host.replacen("c.example", "xn--a.example", 1)),
            domain: url.domain.map(|host| host.replacen("c.example", "xn--a.example", 1)),
        });
        prop_assert_eq!(ascii, same);
    }

    #[test]
    fn canonical_is_idempotent(
        text in "(http|HTTPS)://[a-zA-Z0-9.ä%-]{1,12}(:[0-9]{1,4})?(/[ -~ä]{0,20}){0,3}",
    ) {
        if let Ok(url) = CanonicalUrl::parse(&text) {
            prop_assert_eq!(CanonicalUrl::parse(url.as_str()), Ok(url.clone()));
        }
    }

    #[test]
    fn a_server_reads_the_same_octets(
        path in "(/([a%/^.;2e1]|%[0-9a-fA-F]{2}){0,12}){1,2}",
        query in "([a%?&=/^2e1]|%[0-9a-fA-F]{2}){0,12}",
    ) {
        let text = format!("http://a{path}?{query}");
        let standard = Url::parse(&text).unwrap();
        let url = CanonicalUrl::parse(&text).unwrap();
        prop_assert_eq!(decoded(url.path()), decoded(standard.path()));
        let query = url.path_and_query().strip_prefix(url.path()).unwrap();
        prop_assert_eq!(decoded(query), decoded(&standard[Position::AfterPath..]));
        // The same segments.
        let segments = |path: &str| path.split('/').map(decoded).collect::<Vec<_>>();
        prop_assert_eq!(segments(url.path()), segments(standard.path()));
        prop_assert_eq!(CanonicalUrl::parse(url.as_str()), Ok(url.clone()));
        assert_parts(&url);
    }

    #[test]
    fn no_text_panics(base in "https?://[!-~]{1,20}", link in ".{0,40}") {
        if let Ok(base) = CanonicalUrl::parse(&base)
            && let Ok(url) = CanonicalUrl::join(&base, &link)
        {
            prop_assert_eq!(CanonicalUrl::parse(url.as_str()), Ok(url.clone()));
        }
    }
}
