//! Servers that send what nobody should: one host (an address in 127.2.0.0/16) for each way to misbehave, and as many
//! good ones beside them, all on one port.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use socket2::SockRef;

/// Between two bytes of who sends one at a time.
const DRIP: Duration = Duration::from_millis(100);

/// Whoever never ends does so when it has sent this much: nobody should have read as far.
const ENDLESS_BYTES: usize = 1 << 30;

/// What a host does when it is asked for `/`.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// These bytes, and the end of the connection.
    Says(fn() -> Vec<u8>),
    /// The first bytes, then the others again and again.
    Repeats(&'static [u8], fn() -> Vec<u8>),
    /// The first bytes at once, the others one at a time.
    Drips(&'static [u8], &'static [u8]),
    /// The bytes, then a reset.
    Resets(&'static [u8]),
    /// The bytes, and then silence.
    Hangs(&'static [u8]),
    /// An answer that depends on the path that was asked for.
    Maze(fn(&str) -> Vec<u8>),
    /// Its robots.txt is this; its page is good.
    Robots(fn() -> Vec<u8>),
}

/// One request, as it was seen.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) host: Ipv4Addr,
    pub(crate) path: String,
    pub(crate) at: Duration,
}

/// The running servers; they stop when dropped.
#[derive(Debug)]
pub(crate) struct Hostile {
    shared: Arc<Shared>,
    port: u16,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    began: Instant,
    seen: Mutex<Vec<Seen>>,
    stopping: AtomicBool,
}

impl Hostile {
    /// Serves on a free port of all loopback addresses.
    #[track_caller]
    pub(crate) fn serve() -> Self {
        // Making them takes a while, and nobody should wait for that later.
        let _ = (gzip_bomb(), gzip_twice_bomb());
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        SockRef::from(&listener).listen(4096).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            began: Instant::now(),
            seen: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        Self { shared, port, acceptor: Some(acceptor) }
    }

    /// The first page of the host with this way.
    pub(crate) fn url(&self, way: &str) -> String {
        let at = WAYS.iter().position(|(name, _)| *name == way).unwrap();
        format!("http://{}:{}/", host(2, at), self.port)
    }

    /// The first page of a good host, of which there are as many as one likes.
    pub(crate) fn good(&self, number: usize) -> String {
        format!("http://{}:{}/0", host(3, number), self.port)
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub(crate) fn now(&self) -> Duration {
        self.shared.began.elapsed()
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        let _ = self.acceptor.take().map(JoinHandle::join);
    }
}

fn host(net: u8, number: usize) -> Ipv4Addr {
    let [high, low] = [number / 250, number % 250 + 1].map(|part| u8::try_from(part).unwrap());
    Ipv4Addr::new(127, net, high, low)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            let (Ok(IpAddr::V4(host)), Ok(peer)) =
                (stream.local_addr().map(|address| address.ip()), stream.peer_addr())
            else {
                return;
            };
            if peer.ip().is_loopback() {
                // What the client makes of it is in what it stores.
                let _: io::Result<()> = connection(stream, host, &shared);
            }
        });
    }
}

fn connection(mut stream: TcpStream, host: Ipv4Addr, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let path = read_path(&mut stream)?;
    let seen = Seen { host, path: path.clone(), at: shared.began.elapsed() };
    shared.seen.lock().unwrap().push(seen);
    let [_, net, high, low] = host.octets().map(usize::from);
    if net != 2 {
        return stream.write_all(&good(&path));
    }
    let (_, way) = WAYS[high * 250 + low - 1];
    match way {
        Way::Robots(robots) if path == "/robots.txt" => stream.write_all(&robots()),
        _ if path == "/robots.txt" => stream.write_all(NOT_FOUND),
        Way::Robots(_) => stream.write_all(&html("<title>Fine</title>")),
        Way::Says(bytes) => {
            stream.write_all(&bytes())?;
            finish(&mut stream)
        }
        Way::Maze(answer) => stream.write_all(&answer(&path)),
        Way::Repeats(first, again) => {
            stream.write_all(first)?;
            let again = again();
            for _ in 0..ENDLESS_BYTES / again.len() {
                stream.write_all(&again)?;
            }
            Ok(())
        }
        Way::Drips(first, rest) => {
            stream.write_all(first)?;
            for byte in rest.iter().cycle() {
                if shared.stopping.load(Ordering::SeqCst) {
                    break;
                }
                stream.write_all(&[*byte])?;
                thread::sleep(DRIP);
            }
            Ok(())
        }
        Way::Hangs(bytes) => {
            stream.write_all(bytes)?;
            finish(&mut stream)
        }
        Way::Resets(bytes) => {
            stream.write_all(bytes)?;
            // Time for the client to read what there is.
            thread::sleep(DRIP);
            SockRef::from(&stream).set_linger(Some(Duration::ZERO))
        }
    }
}

/// Nothing more is sent; ends when the client leaves, so that what was sent is not lost to a reset.
fn finish(stream: &mut TcpStream) -> io::Result<()> {
    let mut rest = [0; 1024];
    while stream.read(&mut rest)? > 0 {}
    Ok(())
}

fn read_path(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut chunk = [0; 4096];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => head.extend_from_slice(&chunk[..count]),
        }
    }
    let head = String::from_utf8_lossy(&head);
    Ok(head.split(' ').nth(1).unwrap_or("/").to_owned())
}

const NOT_FOUND: &[u8] =
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// Pages of a good host.
pub(crate) const GOOD_PAGES: usize = 20;

fn good(path: &str) -> Vec<u8> {
    match path[1..].parse::<usize>() {
        Ok(page) if page < GOOD_PAGES => {
            html(&format!("<title>Page {page}</title><a href=\"/{}\">next</a>", page + 1))
        }
        _ => NOT_FOUND.to_vec(),
    }
}

/// A whole answer.
fn answer(head: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let head =
        format!("HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn html(body: &str) -> Vec<u8> {
    answer("200 OK\r\nContent-Type: text/html", body)
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

fn gzip_bomb() -> Vec<u8> {
    static CELL: OnceLock<Vec<u8>> = OnceLock::new();
    let body = zeros(&CELL, "head -c 1G /dev/zero | gzip -1");
    answer("200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip", body)
}

fn gzip_twice_bomb() -> Vec<u8> {
    static CELL: OnceLock<Vec<u8>> = OnceLock::new();
    let body = zeros(&CELL, "head -c 1G /dev/zero | gzip -9 | gzip -9");
    answer("200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip, gzip", body)
}

fn links(count: usize) -> String {
    (0..count).map(|number| format!("<a href=\"http://127.5.0.1:1/{number}\">x</a>")).collect()
}

fn billion_laughs(root: &str) -> String {
    let mut text = String::from("<?xml version=\"1.0\"?>\n<!DOCTYPE lolz [<!ENTITY lol \"lol\">");
    let mut before = "lol".to_owned();
    for level in 1..10 {
        let name = format!("lol{level}");
        text += &format!("<!ENTITY {name} \"{}\">", format!("&{before};").repeat(10));
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
