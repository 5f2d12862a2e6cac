//! The responses of the misbehaving hosts.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::Misbehaviour::{
    self, Drips, Hangs, Repeats, Resets, Responds, RespondsByPath, Robots, Sends,
};

/// A complete response.
fn response(head: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let head =
        format!("HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

pub(super) fn html_response(body: &str) -> Vec<u8> {
    response("200 OK\r\nContent-Type: text/html", body)
}

/// A response without its last byte.
fn truncated_response(header: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len() + 1;
    let head = format!("HTTP/1.1 200 OK\r\n{header}\r\nContent-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// 4 MiB of spaces in brotli with a window of 16 MiB: `brotli.compress(b" " * (4 << 20), lgwin=24)`
/// of Python, without the last byte.
const BROTLI_WINDOW: &[u8] = b"\x9f\xff\xff?\x00$@\xea\xb0\xc7\n@\xe6\xde\x0f\xa4{?\x80\xee\xfd\
    \x00\xba\xf7\x03\xe8\xde\x0f\xa0{?\x80\xee\xfd\x00\xba\xf7\x03\xe8\xde\x0f\xa0{?\x80\xee\xfd\
    \x00\xba\xf7\x03\xe8\xde\x0f\xa0{?\x80\xee\xfd\x00\xba\xf7\x03";

fn redirect(target: &str) -> Vec<u8> {
    response(&format!("302 Found\r\nLocation: {target}"), "")
}

/// Zeros, compressed by a shell command.
fn compressed_zeros(cell: &'static OnceLock<Vec<u8>>, command: &str) -> Vec<u8> {
    let zeros = cell.get_or_init(|| {
        let shell = Command::new("sh").args(["-c", command]).stderr(Stdio::inherit()).output();
        let zeros = shell.expect("sh exists").stdout;
        assert!(zeros.len() > 100, "{command}");
        zeros
    });
    zeros.clone()
}

pub(super) fn gzip_bomb() -> Vec<u8> {
    static CELL: OnceLock<Vec<u8>> = OnceLock::new();
    let body = compressed_zeros(&CELL, "head -c 256M /dev/zero | gzip -1");
    response("200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip", body)
}

pub(super) fn gzip_twice_bomb() -> Vec<u8> {
    static CELL: OnceLock<Vec<u8>> = OnceLock::new();
    let body = compressed_zeros(&CELL, "head -c 256M /dev/zero | gzip -9 | gzip -9");
    response("200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip, gzip", body)
}

fn links(count: usize) -> String {
    (0..count).fold(String::new(), |mut links, number| {
        let _ = write!(links, "<a href=\"http://127.5.0.1:1/{number}\">x</a>");
        links
    })
}

fn billion_laughs(root: &str) -> String {
    let mut text = String::from("<?xml version=\"1.0\"?>\n<!DOCTYPE lolz [<!ENTITY lol \"lol\">");
    let mut before = "lol".to_owned();
    for level in 1..10 {
        let name = format!("lol{level}");
        let _ = write!(text, "<!ENTITY {name} \"{}\">", format!("&{before};").repeat(10));
        before = name;
    }
    text + &format!("]>\n<{root}><title>&{before};</title><a href=\"/x\">&{before};</a></{root}>")
}

/// Every misbehaviour with its name, and the outcome and reason of the first page of its host. There
/// are two where the speed of the machine decides.
pub(crate) const MISBEHAVIOURS: &[(&str, &str, Misbehaviour)] = &[
    // Error statuses.
    ("status-404", "failed status", Responds(|| response("404 Not Found", "gone"))),
    (
        "status-500",
        "failed try-later",
        Responds(|| response("500 Internal Server Error", "broken")),
    ),
    (
        "status-429-for-ever",
        "failed try-later",
        Responds(|| response("429 Too Many Requests\r\nRetry-After: 99999999999999999999", "")),
    ),
    ("status-999", "failed status", Responds(|| response("999 Denied", "no"))),
    ("status-099", "failed bad-http", Responds(|| response("099 Odd", "no"))),
    ("status-204-with-body", "done", Responds(|| response("204 No Content", "<a href=/x>"))),
    ("status-304-unasked", "failed status", Responds(|| response("304 Not Modified", ""))),
    (
        "status-206-unasked",
        "failed status",
        Responds(|| response("206 Partial Content\r\nContent-Range: bytes 5-9/1000", "parts")),
    ),
    (
        "status-101",
        "failed status",
        Sends(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
    ),
    // Connections.
    ("nothing", "failed silent", Responds(Vec::new)),
    ("silent", "failed silent", Hangs(b"")),
    ("reset-at-once", "failed reset", Resets(b"")),
    ("reset-in-head", "failed reset", Resets(b"HTTP/1.1 200 OK\r\nContent-")),
    (
        "reset-in-body",
        "failed reset|failed truncated",
        Resets(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n<a href=/half>"),
    ),
    ("drip-of-a-head", "failed slow", Drips(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x")),
    (
        "drip-of-a-body",
        "failed timeout|failed slow",
        Drips(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"x"),
    ),
    (
        "drip-of-chunks",
        "failed timeout|failed slow",
        Drips(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ),
    ("hang-after-head", "failed silent", Hangs(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")),
    (
        "hang-before-the-last-byte",
        "failed silent",
        Hangs(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n123456789"),
    ),
    // Invalid HTTP.
    ("garbage", "failed bad-http", Responds(|| (0..=255).cycle().take(4096).collect())),
    (
        "http-0.9",
        "failed bad-http",
        Sends(b"<html><title>Old</title><a href=/x>x</a></html>"),
    ),
    (
        "http-1.0-to-the-end",
        "failed silent",
        Sends(b"HTTP/1.0 200 OK\r\n\r\n<title>Old"),
    ),
    (
        "http-2-in-words",
        "failed bad-http",
        Sends(b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ),
    (
        "http-2-frames",
        "failed bad-http",
        Sends(b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x64\0\x04\0\x10\0\0\0\x06\0\0\x40\0"),
    ),
    ("tls-alert", "failed bad-http", Sends(b"\x15\x03\x01\x00\x02\x02\x46")),
    ("smtp", "failed bad-http", Sends(b"220 mail.example.org ESMTP\r\n")),
    (
        "bare-line-feeds",
        "done",
        Sends(b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello"),
    ),
    (
        "header-without-colon",
        "done",
        Sends(b"HTTP/1.1 200 OK\r\nno colon here\r\nContent-Length: 0\r\n\r\n"),
    ),
    (
        "header-with-nul",
        "failed bad-http",
        Sends(b"HTTP/1.1 200 OK\r\nX-Nul: a\0b\r\nContent-Length: 0\r\n\r\n"),
    ),
    (
        "header-folded",
        "done",
        Sends(b"HTTP/1.1 200 OK\r\nX-Fold: a\r\n b\r\nContent-Length: 0\r\n\r\n"),
    ),
    // Endless responses.
    (
        "endless-header-line",
        "failed head-too-large",
        Repeats(b"HTTP/1.1 200 OK\r\nX-Long: ", || vec![b'h'; 64 << 10]),
    ),
    (
        "endless-headers",
        "failed head-too-large",
        Repeats(b"HTTP/1.1 200 OK\r\n", || b"X-More: and more\r\n".repeat(1000)),
    ),
    (
        "endless-status-line",
        "failed head-too-large",
        Repeats(b"HTTP/1.1 200 ", || vec![b'O'; 64 << 10]),
    ),
    (
        "endless-1xx",
        "failed interim",
        Repeats(b"", || b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n".repeat(100)),
    ),
    ("endless-blank-lines", "failed head-too-large", Repeats(b"", || b"\r\n".repeat(1000))),
    (
        "endless-body",
        "failed too-large|failed timeout",
        Repeats(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n", || {
            b"<p>more and more ".repeat(4000)
        }),
    ),
    (
        "endless-chunks",
        "failed too-large|failed timeout",
        Repeats(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/html\r\n\r\n",
            || [b"1000\r\n", &*b"<p>0123456789</p".repeat(256), b"\r\n"].concat(),
        ),
    ),
    (
        "endless-tiny-chunks",
        "failed timeout|failed too-large|failed bad-http",
        Repeats(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", || {
            b"8\r\nxxxxxxxx\r\n".repeat(3000)
        }),
    ),
    (
        "endless-chunk-extension",
        "failed bad-http",
        Repeats(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", || {
            vec![b'e'; 64 << 10]
        }),
    ),
    (
        "endless-trailers",
        "failed bad-http",
        Repeats(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", || {
            b"X-T: t\r\n".repeat(1000)
        }),
    ),
    (
        "endless-redirect-body",
        "redirect",
        Repeats(b"HTTP/1.1 302 Found\r\nLocation: /there\r\n\r\n", || vec![b'r'; 64 << 10]),
    ),
    // Lengths.
    (
        "length-over-10-gb",
        "failed too-large",
        Hangs(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n"),
    ),
    (
        "length-over-64-bits",
        "failed bad-http",
        Sends(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nx"),
    ),
    (
        "length-negative",
        "failed bad-http",
        Sends(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nx"),
    ),
    (
        "length-twice",
        "failed bad-http",
        Sends(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy"),
    ),
    (
        "length-and-chunks",
        "done",
        Sends(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"),
    ),
    (
        "length-too-short",
        "done",
        Sends(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and a great deal more"),
    ),
    (
        "length-too-long",
        "failed reset|failed truncated",
        Resets(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello"),
    ),
    (
        "chunk-size-garbage",
        "failed bad-http",
        Sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n0\r\n\r\n"),
    ),
    (
        "chunk-size-over-64-bits",
        "failed bad-http",
        Sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nx"),
    ),
    // Encodings.
    ("gzip-bomb", "failed too-large|failed bomb", Responds(gzip_bomb)),
    ("gzip-twice-bomb", "failed bomb", Responds(gzip_twice_bomb)),
    (
        "gzip-that-is-none",
        "failed encoding",
        Responds(|| response("200 OK\r\nContent-Encoding: gzip", "plain text")),
    ),
    (
        "gzip-cut",
        "failed truncated",
        Responds(|| {
            response("200 OK\r\nContent-Encoding: gzip", b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x4b")
        }),
    ),
    (
        "brotli-that-is-none",
        "failed encoding",
        Responds(|| response("200 OK\r\nContent-Encoding: br", [0xff; 64])),
    ),
    (
        "zstd-unasked",
        "failed encoding",
        Responds(|| {
            response("200 OK\r\nContent-Encoding: zstd", b"\x28\xb5\x2f\xfd\x00\x00\x01\x00\x00")
        }),
    ),
    (
        "brotli-with-a-huge-window",
        "failed encoding",
        Responds(|| response("200 OK\r\nContent-Encoding: br", b"\x11\x1e\x03\x00")),
    ),
    (
        "gzip-of-empty-members",
        "failed encoding",
        Repeats(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", || {
            b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0".repeat(3000)
        }),
    ),
    (
        "deflate-of-nothing",
        "failed too-large|failed timeout",
        Repeats(b"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\n\r\n", || {
            b"\x00\x00\x00\xff\xff".repeat(13_000)
        }),
    ),
    (
        "gzip-then-garbage",
        "done",
        Repeats(
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\
              \x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0",
            || vec![b'g'; 64 << 10],
        ),
    ),
    (
        "window-and-silence",
        "failed silent|failed timeout",
        Responds(|| truncated_response("Content-Encoding: br", BROTLI_WINDOW)),
    ),
    (
        "links-and-silence",
        "failed silent|failed timeout",
        Responds(|| {
            let long = format!("<a href=\"/{}", "x".repeat(200));
            let links = links(11_000).replace("<a href=\"http://127.5.0.1:1", &long);
            truncated_response("Content-Type: text/html", links.as_bytes())
        }),
    ),
    (
        "encoding-unknown",
        "done",
        Responds(|| response("200 OK\r\nContent-Encoding: rot13", "uryyb")),
    ),
    (
        "encoding-a-hundred-times",
        "failed encoding",
        Responds(|| {
            response(&format!("200 OK\r\nContent-Encoding: {}gzip", "gzip, ".repeat(100)), "x")
        }),
    ),
    // Pages.
    (
        "charset-unknown",
        "done",
        Responds(|| {
            response("200 OK\r\nContent-Type: text/html; charset=klingon", "<title>x</title>")
        }),
    ),
    (
        "charset-wrong",
        "done",
        Responds(|| {
            response(
                "200 OK\r\nContent-Type: text/html; charset=utf-16",
                "<title>plain ASCII</title>",
            )
        }),
    ),
    (
        "charset-utf-7",
        "done",
        Responds(|| {
            response(
                "200 OK\r\nContent-Type: text/html; charset=utf-7",
                "+ADw-a href=+ACI-/x+ACI-+AD4-",
            )
        }),
    ),
    (
        "bytes-under-text-html",
        "done",
        Responds(|| {
            response(
                "200 OK\r\nContent-Type: text/html",
                (0..=255).cycle().take(1 << 20).collect::<Vec<u8>>(),
            )
        }),
    ),
    ("deep-html", "done", Responds(|| html_response(&"<div>".repeat(1_000_000)))),
    (
        "broken-html",
        "done",
        Responds(|| {
            html_response(&"<a href='/x<b \"><!-- <![CDATA[ </script <x y=".repeat(10_000))
        }),
    ),
    (
        "a-million-attributes",
        "done",
        Responds(|| html_response(&format!("<a {}>", "a=b ".repeat(1_000_000)))),
    ),
    (
        "an-attribute-of-10-mb",
        "done",
        Responds(|| html_response(&format!("<a href=\"/{}\">", "x".repeat(10 << 20)))),
    ),
    (
        "a-comment-of-10-mb",
        "done",
        Responds(|| html_response(&format!("<!--{}", "- ".repeat(5 << 20)))),
    ),
    (
        "a-title-of-10-mb",
        "done",
        Responds(|| html_response(&format!("<title>{}", "t".repeat(10 << 20)))),
    ),
    ("half-a-million-links", "done", Responds(|| html_response(&links(500_000)))),
    (
        "links-below-a-long-base",
        "done",
        Responds(|| {
            html_response(&format!(
                "<base href=\"http://127.5.0.1:1/{}/\">{}",
                "b".repeat(8000),
                links(10_000).replace("http://127.5.0.1:1/", "")
            ))
        }),
    ),
    (
        "entity-bomb-xhtml",
        "done",
        Responds(|| {
            response("200 OK\r\nContent-Type: application/xhtml+xml", billion_laughs("html"))
        }),
    ),
    (
        "entity-bomb-rss",
        "done",
        Responds(|| response("200 OK\r\nContent-Type: application/rss+xml", billion_laughs("rss"))),
    ),
    (
        "entity-bomb-sitemap",
        "done",
        Responds(|| response("200 OK\r\nContent-Type: application/xml", billion_laughs("urlset"))),
    ),
    // It may have to wait for memory that other pages hold.
    (
        "deep-xml",
        "done|failed timeout",
        Responds(|| {
            response("200 OK\r\nContent-Type: application/rss+xml", "<rss>".repeat(500_000))
        }),
    ),
    (
        "deep-json-feed",
        "done",
        Responds(|| {
            response("200 OK\r\nContent-Type: application/feed+json", "[".repeat(1_000_000))
        }),
    ),
    (
        "feed-of-bases",
        "done",
        Responds(|| {
            let base = format!("http://a.example/{}", "x".repeat(1900));
            let tags = "<a xml:base='x'/>".repeat(10_000);
            let feed = format!("<rss xml:base='{base}'>{tags}</rss>");
            response("200 OK\r\nContent-Type: application/rss+xml", feed)
        }),
    ),
    // Redirects and endless sites.
    ("redirect-to-itself", "failed too-many-redirects", RespondsByPath(|_| redirect("/"))),
    (
        "redirect-loop-of-two",
        "redirect",
        RespondsByPath(|path| redirect(if path == "/a" { "/b" } else { "/a" })),
    ),
    ("redirect-maze", "redirect", RespondsByPath(|path| redirect(&format!("{path}x")))),
    (
        "redirect-to-another-scheme",
        "failed redirect",
        RespondsByPath(|_| redirect("ftp://127.0.0.1/x")),
    ),
    (
        "redirect-to-credentials",
        "failed redirect",
        RespondsByPath(|_| redirect("http://user:secret@127.0.0.1/")),
    ),
    ("redirect-to-nothing", "failed status", RespondsByPath(|_| response("302 Found", ""))),
    ("redirect-to-a-closed-port", "redirect", RespondsByPath(|_| redirect("http://127.0.0.1:1/"))),
    ("redirect-of-8-mb", "failed head-too-large", Responds(|| redirect(&"/x".repeat(4 << 20)))),
    (
        "refresh-to-itself",
        "done",
        RespondsByPath(|path| {
            html_response(&format!("<meta http-equiv=refresh content=\"0;url={path}?\">"))
        }),
    ),
    (
        "maze-of-segments",
        "done",
        RespondsByPath(|path| html_response(&format!("<a href=\"{path}a/b/\">deeper</a>"))),
    ),
    (
        "maze-of-days",
        "done",
        RespondsByPath(|path| {
            let day: u64 = path.rsplit('/').next().and_then(|day| day.parse().ok()).unwrap_or(0);
            html_response(&format!(
                "<title>Day {day}</title><a href=\"/calendar/{}\">next</a>",
                day + 1
            ))
        }),
    ),
    (
        "maze-of-sessions",
        "done",
        RespondsByPath(|path| {
            let number = path.len();
            html_response(
                &format!("<a href=\"/page;jsessionid={number}{path}\">again</a>")
                    .replace("=1/", "=1"),
            )
        }),
    ),
    // robots.txt.
    (
        "robots-of-100-mb",
        "done",
        Robots(|| response("200 OK", "Disallow: /nothing\n".repeat(5 << 20))),
    ),
    (
        "robots-of-bytes",
        "done",
        Robots(|| response("200 OK", (0..=255).cycle().take(1 << 20).collect::<Vec<u8>>())),
    ),
    ("robots-in-a-loop", "done", Robots(|| redirect("/robots.txt"))),
    ("robots-broken", "failed try-later", Robots(|| response("500 Oh", ""))),
    (
        "robots-with-stars",
        "done",
        Robots(|| {
            response("200 OK", format!("User-agent: *\nDisallow: {}$\n", "*a".repeat(10_000)))
        }),
    ),
    (
        "robots-with-odd-delays",
        "done",
        Robots(|| {
            response("200 OK", "User-agent: *\nCrawl-delay: -1\nCrawl-delay: NaN\nCrawl-delay: 2\n")
        }),
    ),
];
