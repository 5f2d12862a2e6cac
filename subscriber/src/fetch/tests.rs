//! Against servers of a few lines that say what real ones would not dare.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::SeqCst;

use async_compression::tokio::write::{BrotliEncoder, GzipEncoder, ZlibEncoder, ZstdEncoder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::config::DECODED_RATIO_MAX;
use crate::testing::{Origin, read_head};

fn config() -> CrawlerConfig {
    CrawlerConfig {
        allow_private: AllowPrivate::All,
        connect_timeout: Duration::from_millis(800),
        read_timeout: Duration::from_millis(400),
        body_bytes_max: 8 * 1024 * 1024,
        ..CrawlerConfig::default()
    }
}

async fn fetch_as(wanted: Wanted, url: &CanonicalUrl<'_>) -> Fetched {
    let web = Fetcher::new(&config()).unwrap();
    web.fetch(url, wanted, Instant::now() + Duration::from_secs(20)).await
}

async fn fetch(origin: &Origin) -> Fetched {
    fetch_as(Wanted::Page, &origin.url("/dir/page")).await
}

#[track_caller]
fn failed(fetched: &Fetched, transient: bool, says: &str) {
    let failure = fetched.failure.as_ref().expect("the request fails");
    assert!(failure.text.contains(says), "{failure}");
    assert_eq!(failure.transient, transient, "{failure}");
    assert!(!failure.text.contains('\n'));
}

fn with_length(headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

const PAGE: &[u8] = b"<title>T</title><a href=next>n</a>";

#[tokio::test]
async fn a_page_is_read_hashed_and_searched_for_links() {
    let origin = Origin::saying(with_length("Content-Type: text/html\r\n", PAGE)).await;
    let fetched = fetch(&origin).await;
    assert_eq!(
        (fetched.status, fetched.bytes, &fetched.failure),
        (Some(200), PAGE.len() as u64, &None)
    );
    assert_eq!(fetched.hash, Some(blake3::hash(PAGE)));
    let content = fetched.page.unwrap().finish(&origin.url("/dir/page"));
    assert_eq!(content.title.as_deref(), Some("T"));
    assert_eq!(&*content.links[0].url, origin.url("/dir/next").as_str());
}

#[tokio::test]
async fn what_is_no_page_is_only_counted_and_hashed() {
    let origin = Origin::saying(with_length("Content-Type: image/png\r\n", PAGE)).await;
    let fetched = fetch(&origin).await;
    assert_eq!(fetched.hash, Some(blake3::hash(PAGE)));
    assert!(fetched.page.is_none());
}

#[tokio::test]
async fn what_does_not_say_what_it_is_is_read_as_a_page() {
    let origin = Origin::saying(with_length("", PAGE)).await;
    let content = fetch(&origin).await.page.unwrap().finish(&origin.url("/dir/page"));
    assert_eq!((content.title.as_deref(), content.links.len()), (Some("T"), 1));
}

#[tokio::test]
async fn the_request_names_the_crawler_and_what_it_can_decode() {
    let (sender, mut heads) = tokio::sync::mpsc::unbounded_channel();
    let origin = Origin::start(move |mut stream| {
        let sender = sender.clone();
        async move {
            loop {
                let head = read_head(&mut stream).await;
                if head.is_empty() {
                    break;
                }
                sender.send(head).unwrap();
                stream.write_all(&with_length("", b"x")).await.unwrap();
            }
        }
    })
    .await;
    let web = Fetcher::new(&config()).unwrap();
    for _ in 0..3 {
        let deadline = Instant::now() + Duration::from_secs(5);
        let fetched = web.fetch(&origin.url("/a?b"), Wanted::Page, deadline).await;
        assert_eq!(fetched.failure, None);
        let head = heads.recv().await.unwrap().to_ascii_lowercase();
        assert!(head.starts_with("get /a?b http/1.1\r\n"), "{head}");
        assert!(
            head.contains(concat!("user-agent: tidings/", env!("CARGO_PKG_VERSION"), "\r\n")),
            "{head}"
        );
        assert!(head.contains("accept-encoding: gzip, br, zstd\r\n"), "{head}");
        assert!(!head.contains("cookie") && !head.contains("referer"), "{head}");
    }
    assert_eq!(origin.connections.load(SeqCst), 1, "the connection is used again");
}

#[tokio::test]
async fn redirects_are_reported_and_not_followed() {
    for status in [301, 302, 303, 307, 308] {
        let answer = format!(
            "HTTP/1.1 {status} Moved\r\nLocation: /else where\r\nContent-Length: 4\r\n\r\nbody"
        );
        let origin = Origin::saying(answer).await;
        let fetched = fetch(&origin).await;
        assert_eq!(
            (fetched.status, fetched.location.as_deref()),
            (Some(status), Some("/else where"))
        );
        assert_eq!(fetched.failure, None);
        assert_eq!(origin.connections.load(SeqCst), 1);
    }
}

#[tokio::test]
async fn encoded_bodies_are_decoded() {
    let mut gzip = GzipEncoder::new(Vec::new());
    gzip.write_all(PAGE).await.unwrap();
    gzip.shutdown().await.unwrap();
    let mut brotli = BrotliEncoder::new(Vec::new());
    brotli.write_all(PAGE).await.unwrap();
    brotli.shutdown().await.unwrap();
    let mut zstd = ZstdEncoder::new(Vec::new());
    zstd.write_all(PAGE).await.unwrap();
    zstd.shutdown().await.unwrap();
    let mut zlib = ZlibEncoder::new(Vec::new());
    zlib.write_all(PAGE).await.unwrap();
    zlib.shutdown().await.unwrap();
    for (name, body) in [
        ("gzip", gzip.get_ref()),
        ("X-GZIP", gzip.get_ref()),
        ("br", brotli.get_ref()),
        ("zstd", zstd.get_ref()),
        ("deflate", zlib.get_ref()),
        ("identity", &PAGE.to_vec()),
        ("gzip", &Vec::new()),
    ] {
        let headers = format!("Content-Encoding: {name}\r\nContent-Type: text/html\r\n");
        let fetched = fetch(&Origin::saying(with_length(&headers, body)).await).await;
        assert_eq!(fetched.failure, None, "{name}");
        let expected = if body.is_empty() { b"" } else { PAGE };
        assert_eq!(fetched.hash, Some(blake3::hash(expected)), "{name}");
    }
}

#[tokio::test]
async fn encodings_that_lie_or_are_unknown_are_failures() {
    for (headers, says) in [
        ("Content-Encoding: gzip\r\n", "body: "),
        ("Content-Encoding: zstd\r\n", "body: "),
        ("Content-Encoding: compress\r\n", "content-encoding compress is not supported"),
        ("Content-Encoding: gzip, br\r\n", "more than one content-encoding"),
    ] {
        failed(&fetch(&Origin::saying(with_length(headers, PAGE)).await).await, false, says);
    }
}

#[tokio::test]
async fn a_bomb_is_noticed_by_its_growth() {
    let mut bomb = GzipEncoder::new(Vec::new());
    for _ in 0..7 {
        bomb.write_all(&vec![0; 1 << 20]).await.unwrap();
    }
    bomb.shutdown().await.unwrap();
    let answer =
        with_length("Content-Encoding: gzip\r\nContent-Type: text/html\r\n", bomb.get_ref());
    let fetched = fetch(&Origin::saying(answer).await).await;
    failed(&fetched, false, &format!("body grows over {DECODED_RATIO_MAX} times"));
}

#[tokio::test]
async fn an_endless_body_ends_at_the_limit() {
    let origin = Origin::start(|mut stream| async move {
        read_head(&mut stream).await;
        let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n";
        let mut going = stream.write_all(head).await.is_ok();
        while going {
            going = stream.write_all(&[b'x'; 8192]).await.is_ok();
        }
    })
    .await;
    failed(&fetch(&origin).await, false, "body over the limit of 8388608 bytes");
}

#[tokio::test]
async fn a_body_announced_too_long_is_not_read() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\nx";
    let fetched = fetch(&Origin::saying(answer).await).await;
    failed(&fetched, false, "body over the limit");
    assert_eq!((fetched.status, fetched.bytes), (Some(200), 0));
}

#[tokio::test]
async fn garbage_is_a_permanent_failure() {
    for answer in [
        "garbage\r\n\r\n",
        "HTTP/0.9 200 OK\r\n\r\n",
        "HTTP/1.1 999999 No\r\n\r\n",
        "HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        "<html>no head at all</html>\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot hexadecimal\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
    ] {
        let fetched = fetch(&Origin::saying(answer).await).await;
        failed(&fetched, false, "");
    }
    let endless = [b"HTTP/1.1 200 OK\r\nx: ".as_slice(), &vec![b'x'; 1 << 20]].concat();
    failed(&fetch(&Origin::saying(endless).await).await, false, "");
}

#[tokio::test]
async fn a_body_that_breaks_off_is_a_transient_failure() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nContent-Len",
        "",
    ] {
        let fetched = fetch(&Origin::saying(answer).await).await;
        failed(&fetched, true, "");
        assert_eq!(fetched.hash, None);
    }
}

#[tokio::test]
async fn silence_is_noticed_before_and_within_an_answer() {
    let origin = Origin::start(|mut stream| async move {
        read_head(&mut stream).await;
        let _ = stream.read(&mut [0; 1]).await;
    })
    .await;
    failed(&fetch(&origin).await, true, "no answer within 1.2s");

    let origin = Origin::start(|mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx").await.unwrap();
        let _ = stream.read(&mut [0; 1]).await;
    })
    .await;
    failed(&fetch(&origin).await, true, "body: silent for 400ms");
}

#[tokio::test]
async fn one_byte_at_a_time_ends_at_the_deadline() {
    let origin = Origin::start(|mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n").await.unwrap();
        let mut tick = tokio::time::interval(Duration::from_millis(20));
        while stream.write_all(b"x").await.is_ok() {
            tick.tick().await;
        }
    })
    .await;
    let web = Fetcher::new(&config()).unwrap();
    let deadline = Instant::now() + Duration::from_millis(600);
    let fetched = web.fetch(&origin.url("/"), Wanted::Page, deadline).await;
    failed(&fetched, true, "not finished within");
    assert!(fetched.bytes > 0 && fetched.status == Some(200));
}

#[tokio::test]
async fn after_a_stall_of_the_process_nothing_is_begun_beyond_the_deadline() {
    let origin = Origin::saying(with_length("", PAGE)).await;
    let web = Fetcher::new(&config()).unwrap();
    let deadline = Instant::now() + Duration::from_millis(20);
    let url = origin.url("/");
    let mut fetch = pin!(web.fetch(&url, Wanted::Page, deadline));
    let mut look = async || poll_fn(|context| Poll::Ready(fetch.as_mut().poll(context))).await;
    assert!(look().await.is_pending(), "it has to connect");
    // The whole runtime stands still, as when the process is stopped: no timer fires.
    std::thread::sleep(Duration::from_millis(40));
    let Poll::Ready(fetched) = look().await else { panic!("it goes on") };
    failed(&fetched, true, "not finished within");
}

#[tokio::test]
async fn a_flood_of_interim_answers_ends_at_the_deadline() {
    let origin = Origin::start(|mut stream| async move {
        read_head(&mut stream).await;
        while stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n").await.is_ok() {}
    })
    .await;
    let web = Fetcher::new(&config()).unwrap();
    let deadline = Instant::now() + Duration::from_millis(300);
    let fetched = web.fetch(&origin.url("/"), Wanted::Page, deadline).await;
    assert!(fetched.failure.is_some());
}

#[tokio::test]
async fn nobody_there_is_a_transient_failure() {
    let address = {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        listener.local_addr().unwrap()
    };
    let url = format!("http://{address}/").parse().unwrap();
    failed(&fetch_as(Wanted::Page, &url).await, true, "cannot connect: Connection refused");
    let url = CanonicalUrl::parse("http://name.invalid/").unwrap();
    failed(&fetch_as(Wanted::Page, &url).await, true, "cannot connect: ");
}

#[tokio::test]
async fn private_addresses_are_refused_by_address_and_by_name() {
    let origin = Origin::saying(with_length("", PAGE)).await;
    let config = CrawlerConfig { allow_private: AllowPrivate::None, ..config() };
    let web = Fetcher::new(&config).unwrap();
    let port = origin.address.port();
    for host in ["127.0.0.1", "localhost", "[::1]", "0x7f.1", "[::ffff:127.0.0.1]"] {
        let url = format!("http://{host}:{port}/").parse().unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        let fetched = web.fetch(&url, Wanted::Page, deadline).await;
        failed(&fetched, false, "is a loopback address; start with --allow-private to crawl it");
    }
    assert_eq!(origin.connections.load(SeqCst), 0);
}

#[tokio::test]
async fn a_robots_txt_is_read_up_to_its_limit() {
    let mut text = b"User-agent: *\n".to_vec();
    text.resize(3 * ROBOTS_BYTES_MAX, b'#');
    let origin = Origin::saying(with_length("", &text)).await;
    let fetched = fetch_as(Wanted::Robots, &origin.url("/robots.txt")).await;
    assert_eq!(fetched.failure, None);
    assert!(fetched.text.len() >= ROBOTS_BYTES_MAX && fetched.text.len() < 2 * ROBOTS_BYTES_MAX);
}

#[tokio::test]
async fn an_error_page_is_drained_and_its_end_does_not_matter() {
    let answer = "HTTP/1.1 503 Later\r\nRetry-After: 120\r\nContent-Length: 100\r\n\r\nbroken";
    let fetched = fetch(&Origin::saying(answer).await).await;
    assert_eq!((fetched.status, fetched.retry_after), (Some(503), Some(Duration::from_mins(2))));
    assert_eq!(fetched.failure, None);
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
    assert_eq!(retry_after("120", now), Some(Duration::from_mins(2)));
    assert_eq!(retry_after("Sun, 06 Nov 1994 08:50:07 GMT", now), Some(Duration::from_secs(30)));
    assert_eq!(retry_after("Sun, 06 Nov 1994 08:00:00 GMT", now), None);
    assert_eq!(retry_after("99999999999", now), Some(RETRY_AFTER_MAX));
    assert_eq!(retry_after("99999999999999999999999", now), Some(RETRY_AFTER_MAX));
    for nonsense in ["", "-1", "soon", "1.5"] {
        assert_eq!(retry_after(nonsense, now), None, "{nonsense}");
    }
}

#[tokio::test]
async fn a_missing_robots_txt_is_missing_whatever_its_body_says() {
    for answer in [
        "HTTP/1.1 404 No\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nplain",
        "HTTP/1.1 404 No\r\nContent-Encoding: sdch\r\nContent-Length: 5\r\n\r\nplain",
        "HTTP/1.1 404 No\r\nContent-Length: 100\r\n\r\nbroken",
    ] {
        let origin = Origin::saying(answer).await;
        let fetched = fetch_as(Wanted::Robots, &origin.url("/robots.txt")).await;
        assert_eq!((fetched.status, fetched.failure), (Some(404), None), "{answer}");
    }
}

#[tokio::test]
async fn an_error_page_that_never_ends_is_that_error_all_the_same() {
    let origin = Origin::start(|mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 404 No\r\nContent-Length: 999999\r\n\r\n").await.unwrap();
        let mut tick = tokio::time::interval(Duration::from_millis(20));
        while stream.write_all(b"x").await.is_ok() {
            tick.tick().await;
        }
    })
    .await;
    let web = Fetcher::new(&config()).unwrap();
    let deadline = Instant::now() + Duration::from_millis(300);
    let fetched = web.fetch(&origin.url("/"), Wanted::Page, deadline).await;
    assert_eq!((fetched.status, fetched.failure), (Some(404), None));
}

#[tokio::test]
async fn a_redirect_in_any_encoding_leads_where_the_server_says() {
    let answer = b"HTTP/1.1 302 Moved\r\nLocation: /caf\xe9/\xc3\xa9\r\nContent-Length: 0\r\n\r\n";
    let fetched = fetch(&Origin::saying(*answer).await).await;
    assert_eq!(fetched.location.as_deref(), Some("/caf%E9/%C3%A9"));
}
