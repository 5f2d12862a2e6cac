//! Tests with small servers that send what real ones do not.

mod limits;
mod manners;
mod reuse;
mod secure;

use std::future::poll_fn;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::SeqCst;
use std::task::Poll;

use hyper::Response;
use hyper::body::Incoming;
use tidings_egress::AllowPrivate;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::robots::Availability;
use crate::testing::{Origin, read_head};

/// Longer than any stall of a busy machine.
const AMPLE: Duration = Duration::from_mins(2);

/// The time limits are for servers that answer. Those of servers that do not are shorter, and most of
/// their tests have a clock that stands still while anything happens.
fn config() -> FetchConfig {
    FetchConfig {
        connect: ConnectConfig {
            allow_private: AllowPrivate::All,
            timeout: AMPLE,
            ..ConnectConfig::default()
        },
        read_timeout: AMPLE,
        body_bytes_max: 8 * 1024 * 1024,
        ..FetchConfig::default()
    }
}

/// One connection for each address at once.
fn one_connection(connect_timeout: Duration) -> FetchConfig {
    let connect =
        ConnectConfig { per_address: Some(1), timeout: connect_timeout, ..config().connect };
    FetchConfig { connect, ..config() }
}

fn request<'a>(
    url: &'a CanonicalUrl<'a>,
    wanted: FetchPurpose<'a>,
    within: Duration,
) -> FetchRequest<'a> {
    let deadline = Instant::now() + within;
    FetchRequest { url, purpose: wanted, validators: None, keep: KeepBodies::default(), deadline }
}

impl Fetcher {
    async fn page(&self, url: &CanonicalUrl<'_>) -> Fetched {
        self.page_within(url, 2 * AMPLE).await
    }

    async fn page_within(&self, url: &CanonicalUrl<'_>, within: Duration) -> Fetched {
        self.fetch(&request(url, FetchPurpose::Page, within)).await
    }
}

async fn fetch_as(wanted: FetchPurpose<'_>, url: &CanonicalUrl<'_>) -> Fetched {
    let web = Fetcher::new(&config()).unwrap();
    web.fetch(&request(url, wanted, 2 * AMPLE)).await
}

async fn fetch(origin: &Origin) -> Fetched {
    fetch_as(FetchPurpose::Page, &origin.url("/dir/page")).await
}

#[track_caller]
fn failed(fetched: &Fetched, reason: Reason, says: &str) {
    let failure = fetched.failure.as_ref().expect("the request fails");
    assert!(failure.text.contains(says), "{failure}");
    assert_eq!(failure.reason, reason, "{failure}");
    assert!(!failure.text.contains('\n'));
}

fn with_length(headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

const PAGE: &[u8] = b"<title>T</title><a href=next>n</a>";

#[tokio::test]
async fn a_page_is_read_hashed_and_searched_for_links() {
    let origin = Origin::answering(with_length("Content-Type: text/html\r\n", PAGE)).await;
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
async fn other_documents_are_only_counted_and_hashed() {
    let origin = Origin::answering(with_length("Content-Type: image/png\r\n", PAGE)).await;
    let fetched = fetch(&origin).await;
    assert_eq!(fetched.hash, Some(blake3::hash(PAGE)));
    let content = fetched.page.unwrap().finish(&origin.url("/dir/page"));
    assert!(content.links.is_empty() && content.title.is_none());
}

#[tokio::test]
async fn a_document_without_a_type_is_read_as_a_page() {
    let origin = Origin::answering(with_length("", PAGE)).await;
    let content = fetch(&origin).await.page.unwrap().finish(&origin.url("/dir/page"));
    assert_eq!((content.title.as_deref(), content.links.len()), (Some("T"), 1));
}

// PROTOCOL: T2
#[tokio::test]
async fn redirects_are_reported_and_not_followed() {
    for status in [301, 302, 303, 307, 308] {
        let answer = format!(
            "HTTP/1.1 {status} Moved\r\nLocation: /else where\r\nContent-Length: 4\r\n\r\nbody"
        );
        let origin = Origin::answering(answer).await;
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
async fn after_a_stall_nothing_starts_beyond_the_deadline() {
    let origin = Origin::answering(with_length("", PAGE)).await;
    let web = Fetcher::new(&config()).unwrap();
    let url = origin.url("/");
    let mut limit = Duration::from_millis(20);
    let fetched = loop {
        let mut fetch = pin!(web.page_within(&url, limit));
        let mut poll_once =
            async || poll_fn(|context| Poll::Ready(fetch.as_mut().poll(context))).await;
        if poll_once().await.is_pending() {
            // The whole runtime stands still, as when the process is stopped: no timer fires.
            std::thread::sleep(2 * limit);
            let Poll::Ready(fetched) = poll_once().await else { panic!("the fetch has not ended") };
            break fetched;
        }
        // The machine is so busy that the limit ended before the fetch began to connect.
        assert!(limit < AMPLE, "the fetch must connect first");
        limit *= 4;
    };
    failed(&fetched, Reason::Timeout, "not finished within");
}

#[tokio::test]
async fn an_unreachable_server_is_a_transient_failure() {
    let address = {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        listener.local_addr().unwrap()
    };
    let url = format!("http://{address}/").parse().unwrap();
    failed(
        &fetch_as(FetchPurpose::Page, &url).await,
        Reason::Connect,
        "cannot connect: Connection refused",
    );
    let url = CanonicalUrl::parse("http://name.invalid/").unwrap();
    failed(&fetch_as(FetchPurpose::Page, &url).await, Reason::Dns, "");
}

#[tokio::test]
async fn unrequested_partial_content_is_not_a_page() {
    let answer = "HTTP/1.1 206 Part\r\nContent-Range: bytes 0-3/9\r\nContent-Length: 4\r\n\r\npart";
    let origin = Origin::answering(answer).await;
    let fetched = fetch(&origin).await;
    assert_eq!((fetched.status, fetched.hash, fetched.page.is_none()), (Some(206), None, true));
    let robots = fetch_as(FetchPurpose::Robots, &origin.url("/robots.txt")).await;
    assert!(robots.text.is_empty());
    assert_eq!(Availability::of_status(206), Availability::Unreachable);
}

#[tokio::test]
async fn private_addresses_are_refused_by_address_and_by_name() {
    let origin = Origin::answering(with_length("", PAGE)).await;
    let config = FetchConfig {
        connect: ConnectConfig { allow_private: AllowPrivate::None, ..config().connect },
        ..config()
    };
    let web = Fetcher::new(&config).unwrap();
    let port = origin.address.port();
    for host in ["127.0.0.1", "localhost", "[::1]", "0x7f.1", "[::ffff:127.0.0.1]"] {
        let url = format!("http://{host}:{port}/").parse().unwrap();
        let fetched = web.page(&url).await;
        failed(
            &fetched,
            Reason::Address,
            "is a loopback address; start with --allow-private to crawl it",
        );
    }
    assert_eq!(origin.connections.load(SeqCst), 0);
}

#[tokio::test]
async fn robots_txt_is_read_up_to_its_limit() {
    let mut text = b"User-agent: *\n".to_vec();
    text.resize(3 * ROBOTS_BYTES_MAX, b'#');
    let origin = Origin::answering(with_length("", &text)).await;
    let fetched = fetch_as(FetchPurpose::Robots, &origin.url("/robots.txt")).await;
    assert_eq!(fetched.failure, None);
    assert!(fetched.text.len() >= ROBOTS_BYTES_MAX && fetched.text.len() < 2 * ROBOTS_BYTES_MAX);
}

#[tokio::test]
async fn an_error_page_is_drained_and_its_end_does_not_matter() {
    let answer = "HTTP/1.1 503 Later\r\nRetry-After: 120\r\nContent-Length: 100\r\n\r\nbroken";
    let fetched = fetch(&Origin::answering(answer).await).await;
    assert_eq!((fetched.status, fetched.retry_after), (Some(503), Some(Duration::from_mins(2))));
    assert_eq!(fetched.failure, None);
}

#[tokio::test]
async fn a_missing_robots_txt_is_missing_with_any_body() {
    for answer in [
        "HTTP/1.1 404 No\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nplain",
        "HTTP/1.1 404 No\r\nContent-Encoding: sdch\r\nContent-Length: 5\r\n\r\nplain",
        "HTTP/1.1 404 No\r\nContent-Length: 100\r\n\r\nbroken",
    ] {
        let origin = Origin::answering(answer).await;
        let fetched = fetch_as(FetchPurpose::Robots, &origin.url("/robots.txt")).await;
        assert_eq!((fetched.status, fetched.failure), (Some(404), None), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_endless_error_page_is_that_error() {
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
    let fetched = web.page_within(&origin.url("/"), Duration::from_millis(300)).await;
    assert_eq!((fetched.status, fetched.failure), (Some(404), None));
}

#[tokio::test]
async fn a_redirect_keeps_its_bytes_in_any_encoding() {
    let answer = b"HTTP/1.1 302 Moved\r\nLocation: /caf\xe9/\xc3\xa9\r\nContent-Length: 0\r\n\r\n";
    let fetched = fetch(&Origin::answering(*answer).await).await;
    assert_eq!(fetched.location.as_deref(), Some("/caf%E9/%C3%A9"));
}
