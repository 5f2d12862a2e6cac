//! Servers that send too much, too little, too late or invalid data.

use async_compression::tokio::write::{BrotliEncoder, DeflateEncoder, GzipEncoder, ZlibEncoder};
use proptest::prelude::*;
use tidings_documents::document::PAGE_BUDGET_BYTES;
use tidings_egress::http::{
    BEFORE_HEAD_BYTES_MAX, DECODED_RATIO_MAX, HEAD_BYTES_MAX, HEADERS_MAX, SLOW_BYTES_PER_SECOND,
    SLOW_WINDOW, WINDOWS_BUDGET_BYTES,
};
use tokio::net::TcpStream;

use super::*;
use crate::fetch::LINKS_BUDGET_BYTES;

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n";

macro_rules! encoded {
    ($encoder:ident, $plain:expr) => {{
        let mut encoder = $encoder::new(Vec::new());
        encoder.write_all($plain).await.unwrap();
        encoder.shutdown().await.unwrap();
        encoder.into_inner()
    }};
}

/// Sends a head, and then the same bytes forever, with this pause in between.
async fn endless(head: &'static str, word: &'static [u8], pause: Duration) -> Origin {
    Origin::start(move |mut stream| async move {
        read_head(&mut stream).await;
        let mut tick = tokio::time::interval(pause.max(Duration::from_nanos(1)));
        let mut going = stream.write_all(head.as_bytes()).await.is_ok();
        while going {
            if !pause.is_zero() {
                tick.tick().await;
            }
            going = stream.write_all(word).await.is_ok();
        }
    })
    .await
}

#[tokio::test]
async fn encoded_bodies_are_decoded() {
    let gzip = encoded!(GzipEncoder, PAGE);
    let twice = encoded!(BrotliEncoder, &gzip);
    let trailing = [&*gzip, b"trailing garbage"].concat();
    let empty = encoded!(GzipEncoder, b"");
    let members = [&PAGE[..9], b"", &PAGE[9..]];
    let mut packed = Vec::new();
    for member in members {
        packed.extend(encoded!(GzipEncoder, member));
    }
    let padded = [&*packed, &empty.repeat(50), &[0; 512]].concat();
    for (name, body) in [
        ("gzip", packed),
        ("gzip", padded),
        ("UTF-8", PAGE.to_vec()),
        ("aws-chunked, 8bit, binary", PAGE.to_vec()),
        ("text/html", PAGE.to_vec()),
        ("none", PAGE.to_vec()),
        ("\u{e9}, gzip, chunked", gzip.clone()),
        ("gzip", gzip.clone()),
        ("X-GZIP", gzip.clone()),
        ("gzip", trailing),
        ("br", encoded!(BrotliEncoder, PAGE)),
        ("deflate", encoded!(ZlibEncoder, PAGE)),
        ("deflate", encoded!(DeflateEncoder, PAGE)),
        ("gzip, br", twice.clone()),
        ("gzip\r\nContent-Encoding: br", twice),
        ("identity", PAGE.to_vec()),
        ("gzip", Vec::new()),
    ] {
        let headers = format!("Content-Encoding: {name}\r\nContent-Type: text/html\r\n");
        let fetched = fetch(&Origin::answering(with_length(&headers, &body)).await).await;
        assert_eq!(fetched.failure, None, "{name}");
        let expected = if body.is_empty() { b"" } else { PAGE };
        assert_eq!(fetched.hash, Some(blake3::hash(expected)), "{name}");
        assert_eq!((fetched.bytes, fetched.wire_bytes), (expected.len() as u64, body.len() as u64));
    }
}

#[tokio::test]
async fn encodings_that_lie_or_are_unknown_are_failures() {
    let three = encoded!(GzipEncoder, &encoded!(GzipEncoder, &encoded!(GzipEncoder, PAGE)));
    let mut broken = encoded!(GzipEncoder, PAGE);
    let crc_at = broken.len() - 8;
    broken[crc_at] ^= 1;
    let half = [encoded!(GzipEncoder, PAGE), b"\x1f no member".to_vec()].concat();
    for (encoding, body, says) in [
        ("gzip", PAGE, "body: "),
        ("br", PAGE, "body: "),
        ("deflate", PAGE, "body: "),
        ("gzip", &*broken, "body: "),
        ("gzip", &*half, "body: "),
        ("Compress", PAGE, "content-encoding compress is not supported"),
        ("zstd", PAGE, "content-encoding zstd is not supported"),
        ("gzip, x-bzip2", PAGE, "content-encoding x-bzip2 is not supported"),
        ("gzip, gzip, gzip", &*three, "more than 2 content-encodings"),
    ] {
        let answer = with_length(&format!("Content-Encoding: {encoding}\r\n"), body);
        failed(&fetch(&Origin::answering(answer).await).await, Reason::Encoding, says);
    }
}

#[tokio::test]
async fn an_encoded_body_that_ends_too_early_is_truncated() {
    let plain = PAGE.repeat(500);
    for (name, body) in [
        ("gzip", encoded!(GzipEncoder, &plain)),
        ("gzip", encoded!(GzipEncoder, &plain).repeat(2)),
        ("br", encoded!(BrotliEncoder, &plain)),
        ("deflate", encoded!(ZlibEncoder, &plain)),
    ] {
        for length in [1, body.len() / 2 + 1, body.len() - 1] {
            let headers = format!("Content-Encoding: {name}\r\n");
            let answer = with_length(&headers, &body[..length]);
            failed(&fetch(&Origin::answering(answer).await).await, Reason::Truncated, "body: ");
        }
    }
}

#[tokio::test]
async fn a_decompression_bomb_is_detected_by_its_growth() {
    let zeros = vec![0; 7 << 20];
    let twice = encoded!(GzipEncoder, &encoded!(GzipEncoder, &zeros));
    for (name, body) in [
        ("gzip", encoded!(GzipEncoder, &zeros)),
        ("br", encoded!(BrotliEncoder, &zeros)),
        ("gzip, gzip", twice),
    ] {
        let headers = format!("Content-Encoding: {name}\r\nContent-Type: text/html\r\n");
        let fetched = fetch(&Origin::answering(with_length(&headers, &body)).await).await;
        failed(&fetched, Reason::Bomb, &format!("body grows over {DECODED_RATIO_MAX} times"));
    }
}

/// A brotli stream that asks for a window of 1 GiB, which the format forbids and the decoder
/// supports.
#[tokio::test]
async fn a_window_beyond_the_format_is_refused() {
    let answer = with_length("Content-Encoding: br\r\n", &[0x11, 0x1e, 0x03]);
    failed(
        &fetch(&Origin::answering(answer).await).await,
        Reason::Encoding,
        "the window is over the limit",
    );
}

/// Endless compressed empty data: after the end of a coding, inside of it, and in members.
#[tokio::test]
async fn an_encoded_body_is_limited_as_received() {
    let gzip = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n";
    let deflate = "HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\n\r\n";
    let member: &'static [u8] = encoded!(GzipEncoder, PAGE).leak();
    // Stored blocks of length 0.
    let block: &'static [u8] = b"\x00\x00\x00\xff\xff".repeat(2000).leak();
    let members = encoded!(GzipEncoder, b"").repeat(50_000);
    let members = Origin::answering(with_length("Content-Encoding: gzip\r\n", &members)).await;
    failed(&fetch(&members).await, Reason::Encoding, "too many empty members");

    let blocks = endless(deflate, block, Duration::ZERO).await;
    failed(&fetch(&blocks).await, Reason::TooLarge, "body over the limit of 8388608 bytes");
    let blocks = endless(deflate, block, Duration::ZERO).await;
    let robots = fetch_as(FetchPurpose::Robots, &blocks.url("/robots.txt")).await;
    failed(&robots, Reason::TooLarge, "body over the limit of 1024000 bytes");

    let garbage = Origin::start(move |mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(gzip.as_bytes()).await.unwrap();
        let mut going = stream.write_all(member).await.is_ok();
        while going {
            going = stream.write_all(&[b'x'; 8192]).await.is_ok();
        }
    })
    .await;
    let fetched = fetch(&garbage).await;
    assert_eq!((fetched.failure, fetched.hash), (None, Some(blake3::hash(PAGE))));
    assert!(fetched.wire_bytes < 1 << 20, "{}", fetched.wire_bytes);
}

/// The window that the brotli encoder declares.
const BROTLI_WINDOW_BYTES: usize = 4 << 20;

/// Running requests keep all the memory until they end, so a new one waits.
#[tokio::test]
async fn large_windows_and_many_links_share_their_memory() {
    let links = (0..5000).map(|n| format!("<a href='/{n}/{n}/{n}/{n}/{n}'>"));
    let links = links.collect::<Vec<_>>().concat();
    let links = format!("{HEAD}Content-Length: {}\r\n\r\n{links}", links.len());
    let mut window = encoded!(BrotliEncoder, &vec![b' '; 1 << 20]);
    // The byte that is held back below, which is ignored.
    window.push(b'x');
    let window = with_length("Content-Encoding: br\r\n", &window);
    for (answer, at_once) in [
        (window, WINDOWS_BUDGET_BYTES / BROTLI_WINDOW_BYTES),
        (links.into_bytes(), LINKS_BUDGET_BYTES / PAGE_BUDGET_BYTES),
    ] {
        let origin = Origin::start(move |mut stream| {
            let answer = answer.clone();
            async move {
                let is_first = read_head(&mut stream).await.starts_with("GET /first");
                let keep = usize::from(is_first);
                // The first requests do not end.
                let _ = stream.write_all(&answer[..answer.len() - keep]).await;
                let _ = stream.read(&mut [0; 1]).await;
            }
        })
        .await;
        let web = Fetcher::new(&config()).unwrap();
        let first: Vec<_> = (0..at_once).map(|n| origin.url(&format!("/first{n}"))).collect();
        let mut holding = futures_util::future::join_all(first.iter().map(|url| web.page(url)));
        let has_room = || web.client.has_memory() && web.links_budget.has_any();
        let url = origin.url("/next");
        tokio::select! {
            _ = &mut holding => panic!("the first requests do not end"),
            () = async { while has_room() { tokio::task::yield_now().await } } => {}
        }
        let says = "waiting for memory that other documents use";
        let mut limit = Duration::from_millis(200);
        let late = loop {
            let late = tokio::select! {
                _ = &mut holding => panic!("the first requests do not end"),
                late = web.page_within(&url, limit) => late,
            };
            // On a busy machine the limit may end before the answer has arrived.
            if limit > AMPLE || late.failure.as_ref().is_none_or(|it| it.text.contains(says)) {
                break late;
            }
            limit *= 4;
        };
        failed(&late, Reason::Timeout, says);
        drop(holding);
        assert_eq!(web.page(&url).await.failure, None);
    }
}

#[tokio::test]
async fn an_endless_body_ends_at_the_limit() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n";
    let origin = endless(head, &[b'x'; 8192], Duration::ZERO).await;
    failed(&fetch(&origin).await, Reason::TooLarge, "body over the limit of 8388608 bytes");
}

#[tokio::test]
async fn a_body_announced_too_long_is_not_read() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\nx";
    let fetched = fetch(&Origin::answering(answer).await).await;
    failed(&fetched, Reason::TooLarge, "body over the limit");
    assert_eq!((fetched.status, fetched.bytes), (Some(200), 0));
}

#[tokio::test]
async fn invalid_http_is_reported() {
    for answer in [
        "garbage\r\n\r\n",
        "HTTP/0.9 200 OK\r\n\r\n",
        "HTTP/1.1 999999 No\r\n\r\n",
        "HTTP/1.1 200 OK\r\nna\0me: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nna\rme: x\r\n\r\n",
        "<html>no head at all</html>\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot hexadecimal\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nx",
        "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let fetched = fetch(&Origin::answering(answer).await).await;
        failed(&fetched, Reason::BadHttp, "");
        assert_eq!(fetched.hash, None, "{answer}");
    }
}

#[tokio::test]
async fn heads_are_accepted_up_to_their_limits() {
    let line = |length: usize| format!("x: {}\r\n", "v".repeat(length - 5));
    let many = |count: usize| "x: y\r\n".repeat(count);
    for (headers, allowed) in [
        (line(HEAD_BYTES_MAX - 100), true),
        (line(HEAD_BYTES_MAX), false),
        (many(HEADERS_MAX - 1), true),
        (many(HEADERS_MAX), false),
        (many(8000), false),
    ] {
        let fetched = fetch(&Origin::answering(with_length(&headers, PAGE)).await).await;
        if allowed {
            assert_eq!(fetched.failure, None);
        } else {
            failed(&fetched, Reason::HeadTooLarge, "65536 bytes or 256 headers");
        }
    }
    let origin = endless("HTTP/1.1 200 OK\r\nx: ", &[b'x'; 4096], Duration::ZERO).await;
    failed(&fetch(&origin).await, Reason::HeadTooLarge, "");
}

#[tokio::test]
async fn obsolete_header_syntax_is_read() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Type : text/html\r\nX: a\r\n  b\r\n\
        Content-Length: 1\r\n\r\nx";
    let fetched = fetch(&Origin::answering(answer).await).await;
    assert_eq!((&fetched.failure, fetched.bytes), (&None, 1));
    assert_eq!(fetched.content_type.as_deref(), Some("text/html"));
}

#[tokio::test]
async fn a_malformed_header_line_is_ignored_unless_it_may_frame_the_body() {
    let with_line = |line: &str| {
        format!("HTTP/1.1 200 OK\r\nX: a\r\n{line}\r\nContent-Type: text/html\r\n\r\nx")
    };
    let length = "\r\nContent-Length: 1";
    for line in [
        "Set-Cookie: v=a\x01b; path=/",
        "X: a\x7f",
        "X Powered: y",
        "X\tA: b",
        "X-\u{e9}: a",
        "\x0bX: a",
        "no colon",
        ": no name",
        ":",
        "(x): y",
        "Content Length: 3",
        "X: a\x01\r\n b: c\r\n\td\nY",
        "X: a\r\n b\x01\r\n : c",
        "X: transfer-encoding: chunked",
    ] {
        for line in
            [line.to_owned(), line.to_owned() + length, format!("{}\r\n{line}", &length[2..])]
        {
            let fetched = fetch(&Origin::answering(with_line(&line)).await).await;
            assert_eq!((&fetched.failure, fetched.bytes), (&None, 1), "{line:?}");
            assert_eq!(fetched.content_type.as_deref(), Some("text/html"), "{line:?}");
            assert_eq!(fetched.headers["x"], "a", "{line:?}");
        }
    }
    for line in [
        "Content-Length: 1\x01",
        "Content-Length\x01: 1",
        "Content-Length",
        "Content-Length\u{a0}: 1",
        "\x0bcontent-length: 1",
        "Content-Length: 1\r\n \x01",
        "X: a\x01\r\n Content-Length: 1",
        "X: a\r\n Content-Length: 1",
        "Transfer-Encoding: \x0bchunked",
        "Transfer-Encoding\x0c : chunked",
        "Transfer-\tEncoding: chunked",
        "TRANSFER-ENCODING\r\n: chunked",
    ] {
        for line in [line.to_owned(), line.to_owned() + length] {
            let fetched = fetch(&Origin::answering(with_line(&line)).await).await;
            failed(&fetched, Reason::BadHttp, " line");
        }
    }
    let nul = fetch(&Origin::answering(with_line("X: a\0b")).await).await;
    failed(&nul, Reason::BadHttp, "invalid HTTP header");
}

#[tokio::test]
async fn trailers_are_limited_and_ignored() {
    let chunked = format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n");
    let fetched = fetch(&Origin::answering(format!("{chunked}t: v\r\n\r\n")).await).await;
    assert_eq!((&fetched.failure, fetched.bytes), (&None, 1));
    let flood = format!("{chunked}{}\r\n", "t: v\r\n".repeat(10_000));
    failed(&fetch(&Origin::answering(flood).await).await, Reason::BadHttp, "body: ");
    let origin =
        endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x", Duration::ZERO);
    failed(&fetch(&origin.await).await, Reason::BadHttp, "body: ");
}

#[tokio::test]
async fn interim_responses_are_skipped_up_to_a_limit() {
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n";
    let few = [interim.repeat(20).into_bytes(), with_length("", PAGE)].concat();
    let fetched = fetch(&Origin::answering(few).await).await;
    assert_eq!((fetched.status, fetched.failure), (Some(200), None));
    let count = usize::try_from(BEFORE_HEAD_BYTES_MAX).unwrap() / interim.len();
    let many = [interim.repeat(2 * count).into_bytes(), with_length("", PAGE)].concat();
    failed(&fetch(&Origin::answering(many).await).await, Reason::Interim, "before the response");
    let origin = endless("", interim.as_bytes(), Duration::ZERO).await;
    failed(&fetch(&origin).await, Reason::Interim, "before the response");
}

#[tokio::test]
async fn a_body_that_breaks_off_is_truncated() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
    ] {
        let fetched = fetch(&Origin::answering(answer).await).await;
        failed(&fetched, Reason::Truncated, "body: ");
        assert_eq!(fetched.hash, None);
    }
}

#[tokio::test]
async fn a_length_counts_beside_a_transfer_encoding_that_is_not_chunked() {
    for headers in [
        "Transfer-Encoding: identity\r\nContent-Length: 34",
        "Content-Length: 34\r\nTransfer-Encoding:",
        "Transfer-Encoding: chunked\r\nContent-Length: 34\r\nTransfer-Encoding: x, identity",
    ] {
        let answer = |body: &[u8]| {
            [format!("HTTP/1.1 200 OK\r\n{headers}\r\n\r\n").as_bytes(), body].concat()
        };
        let whole = answer(&[PAGE, b"more"].concat());
        // The server keeps the connection open.
        let origin = Origin::start(move |mut stream| {
            let whole = whole.clone();
            async move {
                read_head(&mut stream).await;
                stream.write_all(&whole).await.unwrap();
                let _ = stream.read(&mut [0; 1]).await;
            }
        })
        .await;
        let web = Fetcher::new(&config()).unwrap();
        for connections in 1..=2 {
            let fetched = web.page(&origin.url("/")).await;
            assert_eq!((fetched.failure, fetched.hash), (None, Some(blake3::hash(PAGE))));
            assert_eq!(origin.connections.load(SeqCst), connections);
        }
        let cut = fetch(&Origin::answering(answer(&PAGE[1..])).await).await;
        failed(&cut, Reason::Truncated, "body: ");
    }
}

#[tokio::test]
async fn a_connection_that_ends_before_the_response_is_reset() {
    for answer in ["HTTP/1.1 200 OK\r\nContent-Len", "HTTP", "", "HTTP/1.1 100 Continue\r\n\r\n"] {
        failed(&fetch(&Origin::answering(answer).await).await, Reason::Reset, "");
    }
    let origin = Origin::start(|stream| async move { reset(stream) }).await;
    failed(&fetch(&origin).await, Reason::Reset, "");
    let within = |mut stream: TcpStream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx").await.unwrap();
        reset(stream);
    };
    failed(&fetch(&Origin::start(within).await).await, Reason::Reset, "");
}

fn reset(stream: TcpStream) {
    stream.set_zero_linger().unwrap();
    drop(stream);
}

async fn fetch_impatiently(origin: &Origin) -> Fetched {
    let read_timeout = Duration::from_millis(400);
    Fetcher::new(&FetchConfig { read_timeout, ..config() }).unwrap().page(&origin.url("/")).await
}

#[tokio::test(start_paused = true)]
async fn silence_is_detected_before_and_within_a_response() {
    for (says, reason, text) in [
        ("", Reason::Silent, "no answer within 400ms"),
        ("HTTP/1.1 200 OK\r\n", Reason::Slow, "only a part of an answer within 400ms"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", Reason::Silent, "body: silent for 400ms"),
    ] {
        let origin = Origin::start(move |mut stream| async move {
            read_head(&mut stream).await;
            stream.write_all(says.as_bytes()).await.unwrap();
            let _ = stream.read(&mut [0; 1]).await;
        })
        .await;
        failed(&fetch_impatiently(&origin).await, reason, text);
    }
}

#[tokio::test(start_paused = true)]
async fn one_byte_at_a_time_ends_at_the_deadline() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n";
    let origin = endless(head, b"x", Duration::from_millis(20)).await;
    let web = Fetcher::new(&config()).unwrap();
    let fetched = web.page_within(&origin.url("/"), Duration::from_millis(600)).await;
    failed(&fetched, Reason::Timeout, "not finished within");
    assert!(fetched.bytes > 0 && fetched.status == Some(200));
}

/// With a clock that jumps from one byte to the next.
#[tokio::test(start_paused = true)]
async fn a_byte_per_second_is_too_slow_and_the_least_rate_is_not() {
    let rate = usize::try_from(SLOW_BYTES_PER_SECOND).unwrap();
    let web = Fetcher::new(&FetchConfig { read_timeout: SLOW_WINDOW, ..config() }).unwrap();
    for (bytes, ends) in [(1, Some(Reason::Slow)), (rate, Some(Reason::Timeout))] {
        let origin = Origin::start(move |mut stream| async move {
            read_head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let word = vec![b'x'; bytes];
            while stream.write_all(&word).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        })
        .await;
        let started = Instant::now();
        let fetched = web.page_within(&origin.url("/"), 5 * SLOW_WINDOW).await;
        assert_eq!(fetched.failure.map(|failure| failure.reason), ends);
        if ends == Some(Reason::Slow) {
            assert!(started.elapsed() < 2 * SLOW_WINDOW);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_times_out() {
    let origin = endless("HTTP/1.1 200 OK\r\n", b"x: y\r\n", Duration::from_millis(30)).await;
    let fetched = fetch_impatiently(&origin).await;
    failed(&fetched, Reason::Slow, "only a part of an answer within 400ms");
}

fn answers() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"HTTP/1.1 200 OK\r\n".to_vec()),
        Just(b"HTTP/1.0 301 x\r\nLocation: /\xff\r\n".to_vec()),
        Just(b"HTTP/1.1 100 x\r\n\r\n".to_vec()),
        Just(b"Transfer-Encoding: chunked\r\n".to_vec()),
        Just(b"Content-Length: 5\r\n".to_vec()),
        Just(b"Content-Encoding: gzip, br\r\n".to_vec()),
        Just(b"Content-Encoding: deflate\r\n".to_vec()),
        Just(b"ETag: \"\xe9\"\r\nSet-Cookie: =;;=\r\nRetry-After: x\r\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"5\r\nhello\r\n0\r\n\r\n".to_vec()),
        Just(vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3]),
        proptest::collection::vec(any::<u8>(), 0..40),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any input gives a response or a named failure, and no panic.
    #[test]
    fn anything_may_come(answer in answers()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let fetched = runtime.block_on(async {
            let config = FetchConfig { cookies: true, ..config() };
            let connector = Connector::with(
                &config.connect,
                Arc::new(tidings_egress::connect::SystemLookup),
                rustls::RootCertStore::empty(),
            );
            let web = Fetcher::with(&config, connector.unwrap()).unwrap();
            web.page(&Origin::answering(answer).await.url("/")).await
        });
        prop_assert!(fetched.failure.is_some() || fetched.status.is_some());
    }
}
