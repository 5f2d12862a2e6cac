//! Connections that are reused, and those that must not be.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tidings_egress::http::POOL_IDLE;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::*;

/// Answers every request on every connection alike, and sends the received heads to a channel.
async fn answering(answer: Vec<u8>) -> (Origin, mpsc::UnboundedReceiver<String>) {
    let (sender, heads) = mpsc::unbounded_channel();
    let answer = Arc::new(answer);
    let origin = Origin::start(move |mut stream| {
        let (sender, answer) = (sender.clone(), Arc::clone(&answer));
        async move {
            loop {
                let head = read_head(&mut stream).await;
                if head.is_empty() || stream.write_all(&answer).await.is_err() {
                    break;
                }
                let _ = sender.send(head);
            }
        }
    })
    .await;
    (origin, heads)
}

#[tokio::test]
async fn the_request_names_the_crawler_and_what_it_can_decode() {
    let (origin, mut heads) = answering(with_length("", b"x")).await;
    let web = Fetcher::new(&config()).unwrap();
    for _ in 0..3 {
        let fetched = web.page(&origin.url("/a?b")).await;
        assert_eq!(fetched.failure, None);
        let expected = format!(
            "GET /a?b HTTP/1.1\r\nHost: {}\r\nUser-Agent: tidings/{}\r\n\
             Accept: text/html,application/xhtml+xml,*/*;q=0.5\r\n\
             Accept-Encoding: gzip, br\r\n\r\n",
            origin.address,
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(heads.recv().await.unwrap(), expected);
    }
    assert_eq!(origin.connections.load(SeqCst), 1, "the connection is reused");
    assert_eq!(web.client.idle_connections(), 1);
}

#[tokio::test]
async fn a_connection_is_reused_after_errors_redirects_and_encodings() {
    for answer in [
        "HTTP/1.1 404 No\r\nContent-Length: 4\r\n\r\nbody",
        "HTTP/1.1 301 Moved\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nwrong",
        "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx",
    ] {
        let (origin, _heads) = answering(answer.into()).await;
        let web = Fetcher::new(&config()).unwrap();
        for _ in 0..2 {
            web.page(&origin.url("/")).await;
        }
        // After an invalid body the rest is unread.
        let expected = if answer.contains("wrong") { 2 } else { 1 };
        assert_eq!(origin.connections.load(SeqCst), expected, "{answer}");
    }
}

#[tokio::test]
async fn a_connection_with_ambiguous_framing_is_not_reused() {
    for answer in [
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx",
        "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxxxxx",
        "HTTP/1.1 200 OK\r\nContent-Length: 11\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    ] {
        let (origin, _heads) = answering(answer.into()).await;
        let web = Fetcher::new(&config()).unwrap();
        for _ in 0..2 {
            let fetched = web.page(&origin.url("/")).await;
            assert_eq!((&fetched.failure, fetched.bytes), (&None, 1), "{answer}");
        }
        assert_eq!(origin.connections.load(SeqCst), 2, "{answer}");
    }
}

/// Answers the first `good` requests of each connection, and calls `end` at the next one.
async fn closing_after(good: usize, end: fn(TcpStream)) -> (Origin, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    let origin = Origin::start(move |mut stream| {
        let requests = Arc::clone(&counter);
        async move {
            for _ in 0..good {
                read_head(&mut stream).await;
                requests.fetch_add(1, SeqCst);
                stream.write_all(&with_length("", PAGE)).await.unwrap();
            }
            if !read_head(&mut stream).await.is_empty() {
                requests.fetch_add(1, SeqCst);
            }
            end(stream);
        }
    })
    .await;
    (origin, requests)
}

#[tokio::test]
async fn a_reused_connection_that_ends_without_a_response_is_not_retried() {
    let with_reset = |stream: TcpStream| stream.set_zero_linger().unwrap();
    for end in [drop::<TcpStream>, with_reset] {
        let (origin, requests) = closing_after(1, end).await;
        let web = Fetcher::new(&config()).unwrap();
        assert_eq!(web.page(&origin.url("/")).await.status, Some(200));
        let failed_fetch = web.page(&origin.url("/")).await;
        failed(&failed_fetch, Reason::Reset, "");
        assert!(failed_fetch.reused_connection_ended);
        assert_eq!((origin.connections.load(SeqCst), requests.load(SeqCst)), (1, 2));
        // From then on each request has a new connection.
        for _ in 0..3 {
            let fetched = web.page(&origin.url("/")).await;
            assert_eq!((fetched.status, fetched.reused_connection_ended), (Some(200), false));
        }
        assert_eq!((origin.connections.load(SeqCst), requests.load(SeqCst)), (4, 5));
    }
    // A new connection that ends without a response is a failure of the server.
    let (origin, requests) = closing_after(0, drop).await;
    let fetched = fetch(&origin).await;
    failed(&fetched, Reason::Reset, "");
    assert!(!fetched.reused_connection_ended);
    assert_eq!((origin.connections.load(SeqCst), requests.load(SeqCst)), (1, 1));
}

#[tokio::test]
async fn a_reused_connection_that_ends_within_a_response_is_a_failure() {
    let connections = Arc::new(AtomicUsize::new(0));
    let origin = Origin::start(|mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(&with_length("", PAGE)).await.unwrap();
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1").await.unwrap();
    })
    .await;
    let web = Fetcher::new(&config()).unwrap();
    assert_eq!(web.page(&origin.url("/")).await.failure, None);
    let fetched = web.page(&origin.url("/")).await;
    failed(&fetched, Reason::Reset, "");
    assert!(fetched.reused_connection_ended, "the bytes may not belong to this request");
    assert_eq!(connections.load(SeqCst) + origin.connections.load(SeqCst), 1);
}

#[tokio::test]
async fn a_connection_closed_while_idle_is_not_reused() {
    let (closed, mut is_closed) = mpsc::unbounded_channel();
    let origin = Origin::start(move |mut stream| {
        let closed = closed.clone();
        async move {
            read_head(&mut stream).await;
            stream.write_all(&with_length("", PAGE)).await.unwrap();
            drop(stream);
            closed.send(()).unwrap();
        }
    })
    .await;
    let web = Fetcher::new(&config()).unwrap();
    for _ in 0..3 {
        assert_eq!(web.page(&origin.url("/")).await.failure, None);
        is_closed.recv().await.unwrap();
    }
    assert_eq!(origin.connections.load(SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_after_a_while_and_with_the_fetcher() {
    let (ended, mut has_ended) = mpsc::unbounded_channel();
    let origin = Origin::start(move |mut stream| {
        let ended = ended.clone();
        async move {
            while !read_head(&mut stream).await.is_empty() {
                stream.write_all(&with_length("", PAGE)).await.unwrap();
            }
            ended.send(()).unwrap();
        }
    })
    .await;
    let web = Fetcher::new(&FetchConfig { read_timeout: Duration::from_hours(1), ..config() });
    let web = web.unwrap();
    assert_eq!(web.page(&origin.url("/")).await.failure, None);
    assert_eq!(web.client.idle_connections(), 1);
    tokio::time::sleep(2 * POOL_IDLE).await;
    has_ended.recv().await.unwrap();
    assert_eq!(web.client.idle_connections(), 0);
    assert_eq!(web.page_within(&origin.url("/"), Duration::from_hours(1)).await.failure, None);
    drop(web);
    has_ended.recv().await.unwrap();
}

#[tokio::test]
async fn dropping_a_request_closes_its_connection() {
    let (ended, mut has_ended) = mpsc::unbounded_channel();
    let (requests, mut request_arrived) = mpsc::unbounded_channel();
    let origin = Origin::start(move |mut stream| {
        let (ended, requests) = (ended.clone(), requests.clone());
        async move {
            read_head(&mut stream).await;
            requests.send(()).unwrap();
            let read = stream.read(&mut [0; 1]).await;
            ended.send(read.is_err() || read.is_ok_and(|count| count == 0)).unwrap();
        }
    })
    .await;
    let web = Fetcher::new(&config()).unwrap();
    let url = origin.url("/");
    tokio::select! {
        _ = web.page(&url) => panic!("the server does not answer"),
        () = async { request_arrived.recv().await.unwrap() } => {}
    }
    assert_eq!(has_ended.recv().await, Some(true));
    assert_eq!(web.client.idle_connections(), 0);
}

#[tokio::test]
async fn concurrent_requests_to_a_host_leave_one_connection() {
    let (origin, _heads) = answering(with_length("", PAGE)).await;
    let web = Fetcher::new(&config()).unwrap();
    let url = origin.url("/");
    let all = futures_util::future::join_all((0..5).map(|_| web.page(&url))).await;
    assert!(all.iter().all(|fetched| fetched.failure.is_none()));
    assert_eq!((web.client.idle_connections(), origin.connections.load(SeqCst)), (1, 5));
}
