//! What is sent to which server, and what is kept.

use std::io::Read;
use std::sync::Arc;

use parking_lot::Mutex;

use super::*;

/// Answers every request with the result of `answer` for its head; stores the heads.
async fn recording(
    answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
) -> (Origin, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let stored = Arc::clone(&heads);
    let answer = Arc::new(answer);
    let origin = Origin::start(move |mut stream| {
        let (stored, answer) = (Arc::clone(&stored), Arc::clone(&answer));
        async move {
            loop {
                let head = read_head(&mut stream).await;
                if head.is_empty() {
                    break;
                }
                let answer = answer(&head);
                stored.lock().push(head);
                let _ = stream.write_all(&answer).await;
            }
        }
    })
    .await;
    (origin, heads)
}

#[tokio::test]
async fn an_unchanged_document_is_not_sent_again() {
    let (origin, _) = recording(|head| {
        if head.contains("If-None-Match: W/\"v1\"") && head.contains("If-Modified-Since: yesterday")
        {
            b"HTTP/1.1 304 Not Modified\r\nETag: W/\"v1\"\r\n\r\n".to_vec()
        } else {
            with_length("ETag: W/\"v1\"\r\nLast-Modified: yesterday\r\n", PAGE)
        }
    })
    .await;
    let web = Fetcher::new(&config()).unwrap();
    let url = origin.url("/");
    let first = web.page(&url).await;
    let expected = Validators {
        etag: Some("W/\"v1\"".to_owned()),
        last_modified: Some("yesterday".to_owned()),
    };
    assert_eq!((first.status, &first.validators), (Some(200), &expected));
    let again = FetchRequest {
        validators: Some(&first.validators),
        ..request(&url, FetchPurpose::Page, AMPLE)
    };
    let second = web.fetch(&again).await;
    assert_eq!((second.status, second.bytes, &second.failure), (Some(304), 0, &None));
    assert!(second.page.is_none() && second.hash.is_none());
    // A stored record may contain any value.
    let broken = Validators { etag: Some("a\r\nb: c".to_owned()), last_modified: None };
    let third = web.fetch(&FetchRequest { validators: Some(&broken), ..again }).await;
    assert_eq!(third.status, Some(200));
    assert_eq!(origin.connections.load(SeqCst), 1);
}

#[tokio::test]
async fn the_headers_of_a_response_are_available() {
    let headers = "Link: <a>; rel=next\r\nLink: <b>\r\nX-Robots-Tag: noindex\r\nETag: \r\n";
    let origin = Origin::answering(with_length(headers, PAGE)).await;
    let fetched = fetch(&origin).await;
    assert_eq!(fetched.headers.get_all("link").iter().count(), 2);
    assert_eq!(fetched.headers["x-robots-tag"], "noindex");
    assert_eq!((fetched.version, fetched.remote), (Some(Version::HTTP_11), Some(origin.address)));
    assert_eq!(fetched.validators, Validators::default());
    let long = format!("ETag: \"{}\"\r\n", "x".repeat(2000));
    let fetched = fetch(&Origin::answering(with_length(&long, PAGE)).await).await;
    assert_eq!(fetched.validators, Validators::default());
}

#[tokio::test]
async fn credentials_and_cookies_stay_with_their_server() {
    let answer = |_: &str| with_length("Set-Cookie: seen=1\r\n", PAGE);
    let (one, one_heads) = recording(answer).await;
    let (other, other_heads) = recording(answer).await;
    let secret = format!("http://{}=Authorization: Bearer x", one.address);
    let headers = vec!["X-Everywhere: yes".parse().unwrap(), secret.parse().unwrap()];
    let web = Fetcher::new(&FetchConfig { headers, cookies: true, ..config() }).unwrap();
    for origin in [&one, &other] {
        web.page(&origin.url("/")).await;
    }
    // Only cookies that the server set itself; this port has set none yet.
    for (heads, authorized) in [(&one_heads, true), (&other_heads, false)] {
        let head = heads.lock()[0].clone();
        assert_eq!(head.contains("Authorization: Bearer x\r\n"), authorized, "{head}");
        assert!(head.contains("X-Everywhere: yes\r\n") && !head.contains("Cookie:"), "{head}");
    }
    web.page(&one.url("/again")).await;
    assert!(one_heads.lock()[1].contains("Cookie: seen=1\r\n"));
    let forgetful = Fetcher::new(&config()).unwrap();
    for _ in 0..2 {
        forgetful.page(&other.url("/")).await;
    }
    assert!(other_heads.lock().iter().all(|head| !head.contains("Cookie:")));
}

fn text(spool: &Spool) -> Vec<u8> {
    let mut text = Vec::new();
    spool.read().unwrap().read_to_end(&mut text).unwrap();
    text
}

#[tokio::test]
async fn the_exchange_is_kept_if_requested() {
    let (page, gzip) = (PAGE, {
        use async_compression::tokio::write::GzipEncoder;
        let mut encoder = GzipEncoder::new(Vec::new());
        encoder.write_all(PAGE).await.unwrap();
        encoder.shutdown().await.unwrap();
        encoder.into_inner()
    });
    let (gzip_head, gzip_length) = ("Content-Encoding: gzip\r\nx-Odd:  1\r\n", gzip.len());
    let body = gzip.clone();
    let (origin, heads) = recording(move |head| match head.split(' ').nth(1).unwrap() {
        "/error" => b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno".to_vec(),
        "/broken" => b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\nx".to_vec(),
        _ => [b"HTTP/1.1 103 Hints\r\n\r\n".to_vec(), with_length(gzip_head, &body)].concat(),
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let web = Fetcher::new(&config()).unwrap().with_spools(Spools::open(directory.path()).unwrap());
    let url = origin.url("/");
    let keep = KeepBodies { raw: true, decoded: true };
    let whole = FetchRequest { keep, ..request(&url, FetchPurpose::Page, AMPLE) };
    for round in 0..2 {
        let fetched = web.fetch(&whole).await;
        assert_eq!(text(fetched.body.as_ref().unwrap()), page);
        let exchange = fetched.exchange.unwrap();
        assert_eq!(exchange.request_head, heads.lock()[round].as_bytes());
        let expected =
            format!("HTTP/1.1 200 OK\r\n{gzip_head}Content-Length: {gzip_length}\r\n\r\n");
        assert_eq!(exchange.response_head, expected.as_bytes());
        assert_eq!(text(exchange.body.as_ref().unwrap()), gzip);
        assert_eq!((exchange.remote, exchange.truncated), (Some(origin.address), None));
    }
    let url = origin.url("/error");
    let fetched = web.fetch(&FetchRequest { url: &url, ..whole }).await;
    let exchange = fetched.exchange.unwrap();
    assert_eq!((text(exchange.body.as_ref().unwrap()), exchange.truncated), (b"no".to_vec(), None));
    let url = origin.url("/broken");
    let fetched = web.fetch(&FetchRequest { url: &url, ..whole }).await;
    assert_eq!(fetched.exchange.unwrap().truncated, Some("length"));
    let fetched = web.page(&origin.url("/")).await;
    assert!(fetched.exchange.is_none() && fetched.body.is_none());
}

#[tokio::test]
async fn a_truncated_body_is_kept_as_far_as_it_arrived() {
    let directory = tempfile::tempdir().unwrap();
    let web = Fetcher::new(&config()).unwrap().with_spools(Spools::open(directory.path()).unwrap());
    for (answer, reason, truncated) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart", Reason::Truncated, "disconnect"),
        ("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\npart", Reason::Encoding, "unspecified"),
    ] {
        let url = Origin::answering(answer).await.url("/");
        let keep = KeepBodies { raw: true, decoded: false };
        let request = FetchRequest { keep, ..request(&url, FetchPurpose::Page, AMPLE) };
        let fetched = web.fetch(&request).await;
        failed(&fetched, reason, "");
        let exchange = fetched.exchange.unwrap();
        assert_eq!(text(exchange.body.as_ref().unwrap()), b"part");
        assert_eq!(exchange.truncated, Some(truncated));
    }
}

#[tokio::test]
async fn the_limit_per_address_covers_all_its_names() {
    let (requests, mut request_arrived) = tokio::sync::mpsc::unbounded_channel();
    let (go, wait) = tokio::sync::watch::channel(false);
    let origin = Origin::start(move |mut stream| {
        let (requests, mut wait) = (requests.clone(), wait.clone());
        async move {
            while !read_head(&mut stream).await.is_empty() {
                requests.send(()).unwrap();
                wait.wait_for(|go| *go).await.unwrap();
                let _ = stream.write_all(&with_length("", PAGE)).await;
            }
        }
    })
    .await;
    let web = Fetcher::new(&one_connection(Duration::from_secs(5))).unwrap();
    let (first, second) = (origin.url("/1"), origin.url("/2"));
    let (fetched, late) = tokio::join!(web.page(&first), async {
        request_arrived.recv().await.unwrap();
        let late = web.page(&second).await;
        go.send(true).unwrap();
        late
    });
    failed(&late, Reason::Busy, "other requests to 127.0.0.1");
    assert_eq!((fetched.status, origin.connections.load(SeqCst)), (Some(200), 1));
    assert_eq!(web.page(&second).await.status, Some(200));
}
