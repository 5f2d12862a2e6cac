//! The ways to misbehave.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::Way;

/// A whole answer.
fn answer(head: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let head =
        format!("HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

pub(super) fn html(body: &str) -> Vec<u8> {
    answer("200 OK\r\nContent-Type: text/html", body)
}

/// An answer that lacks its last byte.
fn unfinished(header: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len() + 1;
    let head = format!("HTTP/1.1 200 OK\r\n{header}\r\nContent-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// 4 MiB of blanks in the zstd format, in blocks of 128 KiB, with a window of 8 MiB.
fn window() -> Vec<u8> {
    let block = u32::to_le_bytes((128 << 10) << 3 | 1 << 1);
    let block = [&block[..3], b" "].concat();
    [b"\x28\xb5\x2f\xfd\x00\x68".to_vec(), block.repeat(32)].concat()
}

fn found(target: &str) -> Vec<u8> {
    answer(&format!("302 Found\r\nLocation: {target}"), "")
}

/// So many zeros, compressed by a program.
fn zeros(cell: &'static OnceLock<Vec<u8>>, command: &str) -> Vec<u8> {
    let made = cell.get_or_init(|| {
        let shell = Command::new("sh").args(["-c", command]).stderr(Stdio::inherit()).output();
        let made = shell.expect("there is a shell").stdout;
        assert!(made.len() > 1000, "{command}");
        made
    });
    made.clone()
}

pub(super) fn gzip_bomb() -> Vec<u8> {
    static CELL: OnceLock<Vec<u8>> = OnceLock::new();
    let body = zeros(&CELL, "head -c 1G /dev/zero | gzip -1");
    answer("200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip", body)
}

pub(super) fn gzip_twice_bomb() -> Vec<u8> {
    static CELL: OnceLock<Vec<u8>> = OnceLock::new();
    let body = zeros(&CELL, "head -c 1G /dev/zero | gzip -9 | gzip -9");
    answer("200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip, gzip", body)
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

/// Every way, by name.
pub(crate) const WAYS: &[(&str, Way)] = &[
    // Answers that are errors.
    ("status-404", Way::Says(|| answer("404 Not Found", "gone"))),
    ("status-500", Way::Says(|| answer("500 Internal Server Error", "broken"))),
    (
        "status-429-for-ever",
        Way::Says(|| answer("429 Too Many Requests\r\nRetry-After: 99999999999999999999", "")),
    ),
    ("status-999", Way::Says(|| answer("999 Denied", "no"))),
    ("status-099", Way::Says(|| answer("099 Odd", "no"))),
    ("status-204-with-body", Way::Says(|| answer("204 No Content", "<a href=/x>"))),
    ("status-304-unasked", Way::Says(|| answer("304 Not Modified", ""))),
    (
        "status-206-unasked",
        Way::Says(|| answer("206 Partial Content\r\nContent-Range: bytes 5-9/1000", "parts")),
    ),
    (
        "status-101",
        Way::Says(|| {
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
                .to_vec()
        }),
    ),
    // Connections.
    ("nothing", Way::Says(Vec::new)),
    ("silent", Way::Hangs(b"")),
    ("reset-at-once", Way::Resets(b"")),
    ("reset-in-head", Way::Resets(b"HTTP/1.1 200 OK\r\nContent-")),
    (
        "reset-in-body",
        Way::Resets(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n<a href=/half>"),
    ),
    ("drip-of-a-head", Way::Drips(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x")),
    ("drip-of-a-body", Way::Drips(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"x")),
    (
        "drip-of-chunks",
        Way::Drips(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ),
    ("hang-after-head", Way::Hangs(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")),
    (
        "hang-before-the-last-byte",
        Way::Hangs(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n123456789"),
    ),
    // What is hardly HTTP.
    ("garbage", Way::Says(|| (0..=255).cycle().take(4096).collect())),
    ("http-0.9", Way::Says(|| b"<html><title>Old</title><a href=/x>x</a></html>".to_vec())),
    ("http-1.0-to-the-end", Way::Says(|| b"HTTP/1.0 200 OK\r\n\r\n<title>Old".to_vec())),
    ("http-2-in-words", Way::Says(|| b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec())),
    (
        "http-2-frames",
        Way::Says(|| {
            b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x64\0\x04\0\x10\0\0\0\x06\0\0\x40\0".to_vec()
        }),
    ),
    ("tls-alert", Way::Says(|| b"\x15\x03\x01\x00\x02\x02\x46".to_vec())),
    ("smtp", Way::Says(|| b"220 mail.example.org ESMTP\r\n".to_vec())),
    ("bare-line-feeds", Way::Says(|| b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello".to_vec())),
    (
        "header-without-colon",
        Way::Says(|| b"HTTP/1.1 200 OK\r\nno colon here\r\nContent-Length: 0\r\n\r\n".to_vec()),
    ),
    (
        "header-with-nul",
        Way::Says(|| b"HTTP/1.1 200 OK\r\nX-Nul: a\0b\r\nContent-Length: 0\r\n\r\n".to_vec()),
    ),
    (
        "header-folded",
        Way::Says(|| b"HTTP/1.1 200 OK\r\nX-Fold: a\r\n b\r\nContent-Length: 0\r\n\r\n".to_vec()),
    ),
    // Floods.
    ("endless-header-line", Way::Repeats(b"HTTP/1.1 200 OK\r\nX-Long: ", || vec![b'h'; 64 << 10])),
    (
        "endless-headers",
        Way::Repeats(b"HTTP/1.1 200 OK\r\n", || b"X-More: and more\r\n".repeat(1000)),
    ),
    ("endless-status-line", Way::Repeats(b"HTTP/1.1 200 ", || vec![b'O'; 64 << 10])),
    (
        "endless-1xx",
        Way::Repeats(b"", || b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n".repeat(100)),
    ),
    ("endless-blank-lines", Way::Repeats(b"", || b"\r\n".repeat(1000))),
    (
        "endless-body",
        Way::Repeats(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n", || {
            b"<p>more and more ".repeat(4000)
        }),
    ),
    (
        "endless-chunks",
        Way::Repeats(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/html\r\n\r\n",
            || b"10\r\n<p>0123456789</p\r\n".repeat(3000),
        ),
    ),
    (
        "endless-tiny-chunks",
        Way::Repeats(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", || {
            b"1\r\nx\r\n".repeat(3000)
        }),
    ),
    (
        "endless-chunk-extension",
        Way::Repeats(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", || {
            vec![b'e'; 64 << 10]
        }),
    ),
    (
        "endless-trailers",
        Way::Repeats(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
            || b"X-T: t\r\n".repeat(1000),
        ),
    ),
    (
        "endless-redirect-body",
        Way::Repeats(b"HTTP/1.1 302 Found\r\nLocation: /there\r\n\r\n", || vec![b'r'; 64 << 10]),
    ),
    // Lengths.
    ("length-over-10-gb", Way::Hangs(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")),
    (
        "length-over-64-bits",
        Way::Says(|| {
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nx".to_vec()
        }),
    ),
    ("length-negative", Way::Says(|| b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nx".to_vec())),
    (
        "length-twice",
        Way::Says(|| {
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy".to_vec()
        }),
    ),
    (
        "length-and-chunks",
        Way::Says(|| {
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n".to_vec()
        }),
    ),
    (
        "length-too-short",
        Way::Says(|| {
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and a great deal more".to_vec()
        }),
    ),
    ("length-too-long", Way::Resets(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello")),
    (
        "chunk-size-garbage",
        Way::Says(|| {
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n0\r\n\r\n".to_vec()
        }),
    ),
    (
        "chunk-size-over-64-bits",
        Way::Says(|| {
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nx".to_vec()
        }),
    ),
    // Encodings.
    ("gzip-bomb", Way::Says(gzip_bomb)),
    ("gzip-twice-bomb", Way::Says(gzip_twice_bomb)),
    ("gzip-that-is-none", Way::Says(|| answer("200 OK\r\nContent-Encoding: gzip", "plain text"))),
    (
        "gzip-cut",
        Way::Says(|| {
            answer("200 OK\r\nContent-Encoding: gzip", b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x4b")
        }),
    ),
    ("brotli-that-is-none", Way::Says(|| answer("200 OK\r\nContent-Encoding: br", [0xff; 64]))),
    (
        "zstd-with-a-huge-window",
        Way::Says(|| {
            answer("200 OK\r\nContent-Encoding: zstd", b"\x28\xb5\x2f\xfd\x00\xff\x00\x00\x00")
        }),
    ),
    (
        "brotli-with-a-huge-window",
        Way::Says(|| answer("200 OK\r\nContent-Encoding: br", b"\x11\x1e\x03\x00")),
    ),
    (
        "zstd-of-empty-frames",
        Way::Repeats(b"HTTP/1.1 200 OK\r\nContent-Encoding: zstd\r\n\r\n", || {
            b"\x28\xb5\x2f\xfd\x00\x00\x01\x00\x00".repeat(7000)
        }),
    ),
    (
        "deflate-of-nothing",
        Way::Repeats(b"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\n\r\n", || {
            b"\x00\x00\x00\xff\xff".repeat(13_000)
        }),
    ),
    (
        "gzip-then-garbage",
        Way::Repeats(
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\
              \x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0",
            || vec![b'g'; 64 << 10],
        ),
    ),
    ("window-and-silence", Way::Says(|| unfinished("Content-Encoding: zstd", &window()))),
    (
        "links-and-silence",
        Way::Says(|| {
            let long = format!("<a href=\"/{}", "x".repeat(200));
            let links = links(11_000).replace("<a href=\"http://127.5.0.1:1", &long);
            unfinished("Content-Type: text/html", links.as_bytes())
        }),
    ),
    ("encoding-unknown", Way::Says(|| answer("200 OK\r\nContent-Encoding: rot13", "uryyb"))),
    (
        "encoding-a-hundred-times",
        Way::Says(|| {
            answer(&format!("200 OK\r\nContent-Encoding: {}gzip", "gzip, ".repeat(100)), "x")
        }),
    ),
    // Pages.
    (
        "charset-unknown",
        Way::Says(|| {
            answer("200 OK\r\nContent-Type: text/html; charset=klingon", "<title>x</title>")
        }),
    ),
    (
        "charset-wrong",
        Way::Says(|| {
            answer(
                "200 OK\r\nContent-Type: text/html; charset=utf-16",
                "<title>plain ASCII</title>",
            )
        }),
    ),
    (
        "charset-utf-7",
        Way::Says(|| {
            answer(
                "200 OK\r\nContent-Type: text/html; charset=utf-7",
                "+ADw-a href=+ACI-/x+ACI-+AD4-",
            )
        }),
    ),
    (
        "bytes-under-text-html",
        Way::Says(|| {
            answer(
                "200 OK\r\nContent-Type: text/html",
                (0..=255).cycle().take(1 << 20).collect::<Vec<u8>>(),
            )
        }),
    ),
    ("deep-html", Way::Says(|| html(&"<div>".repeat(1_000_000)))),
    (
        "broken-html",
        Way::Says(|| html(&"<a href='/x<b \"><!-- <![CDATA[ </script <x y=".repeat(10_000))),
    ),
    ("a-million-attributes", Way::Says(|| html(&format!("<a {}>", "a=b ".repeat(1_000_000))))),
    (
        "an-attribute-of-10-mb",
        Way::Says(|| html(&format!("<a href=\"/{}\">", "x".repeat(10 << 20)))),
    ),
    ("a-comment-of-10-mb", Way::Says(|| html(&format!("<!--{}", "- ".repeat(5 << 20))))),
    ("a-title-of-10-mb", Way::Says(|| html(&format!("<title>{}", "t".repeat(10 << 20))))),
    ("half-a-million-links", Way::Says(|| html(&links(500_000)))),
    (
        "links-below-a-long-base",
        Way::Says(|| {
            html(&format!(
                "<base href=\"http://127.5.0.1:1/{}/\">{}",
                "b".repeat(8000),
                links(10_000).replace("http://127.5.0.1:1/", "")
            ))
        }),
    ),
    (
        "entity-bomb-xhtml",
        Way::Says(|| {
            answer("200 OK\r\nContent-Type: application/xhtml+xml", billion_laughs("html"))
        }),
    ),
    (
        "entity-bomb-rss",
        Way::Says(|| answer("200 OK\r\nContent-Type: application/rss+xml", billion_laughs("rss"))),
    ),
    (
        "entity-bomb-sitemap",
        Way::Says(|| answer("200 OK\r\nContent-Type: application/xml", billion_laughs("urlset"))),
    ),
    (
        "deep-xml",
        Way::Says(|| {
            answer("200 OK\r\nContent-Type: application/rss+xml", "<rss>".repeat(500_000))
        }),
    ),
    (
        "deep-json-feed",
        Way::Says(|| {
            answer("200 OK\r\nContent-Type: application/feed+json", "[".repeat(1_000_000))
        }),
    ),
    (
        "feed-of-bases",
        Way::Says(|| {
            let base = format!("http://a.example/{}", "x".repeat(1900));
            let tags = "<a xml:base='x'/>".repeat(50_000);
            let feed = format!("<rss xml:base='{base}'>{tags}</rss>");
            answer("200 OK\r\nContent-Type: application/rss+xml", feed)
        }),
    ),
    // Redirects and mazes.
    ("redirect-to-itself", Way::Maze(|_| found("/"))),
    ("redirect-loop-of-two", Way::Maze(|path| found(if path == "/a" { "/b" } else { "/a" }))),
    ("redirect-maze", Way::Maze(|path| found(&format!("{path}x")))),
    ("redirect-to-another-scheme", Way::Maze(|_| found("ftp://127.0.0.1/x"))),
    ("redirect-to-credentials", Way::Maze(|_| found("http://user:secret@127.0.0.1/"))),
    ("redirect-to-nothing", Way::Maze(|_| answer("302 Found", ""))),
    ("redirect-to-a-closed-port", Way::Maze(|_| found("http://127.0.0.1:1/"))),
    ("redirect-of-8-mb", Way::Says(|| found(&"/x".repeat(4 << 20)))),
    (
        "refresh-to-itself",
        Way::Maze(|path| html(&format!("<meta http-equiv=refresh content=\"0;url={path}?\">"))),
    ),
    ("maze-of-segments", Way::Maze(|path| html(&format!("<a href=\"{path}a/b/\">deeper</a>")))),
    (
        "maze-of-days",
        Way::Maze(|path| {
            let day: u64 = path.rsplit('/').next().and_then(|day| day.parse().ok()).unwrap_or(0);
            html(&format!("<title>Day {day}</title><a href=\"/calendar/{}\">next</a>", day + 1))
        }),
    ),
    (
        "maze-of-sessions",
        Way::Maze(|path| {
            let number = path.len();
            html(
                &format!("<a href=\"/page;jsessionid={number}{path}\">again</a>")
                    .replace("=1/", "=1"),
            )
        }),
    ),
    // robots.txt.
    ("robots-of-100-mb", Way::Robots(|| answer("200 OK", "Disallow: /nothing\n".repeat(5 << 20)))),
    (
        "robots-of-bytes",
        Way::Robots(|| answer("200 OK", (0..=255).cycle().take(1 << 20).collect::<Vec<u8>>())),
    ),
    ("robots-in-a-loop", Way::Robots(|| found("/robots.txt"))),
    ("robots-broken", Way::Robots(|| answer("500 Oh", ""))),
    (
        "robots-with-stars",
        Way::Robots(|| {
            answer("200 OK", format!("User-agent: *\nDisallow: {}$\n", "*a".repeat(10_000)))
        }),
    ),
    (
        "robots-with-odd-delays",
        Way::Robots(|| {
            answer("200 OK", "User-agent: *\nCrawl-delay: -1\nCrawl-delay: NaN\nCrawl-delay: 2\n")
        }),
    ),
];
