use std::io::{self, ErrorKind};
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderName};
use hyper::server::conn::{http1, http2 as server};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::address::AllowPrivate;
use crate::connect::{ConnectConfig, SystemLookup};

/// Much longer than anything that ends takes here.
const PATIENCE: Duration = Duration::from_mins(1);

fn config() -> ConnectConfig {
    ConnectConfig { allow_private: AllowPrivate::All, ..ConnectConfig::default() }
}

fn outgoing_with(
    config: &ConnectConfig,
    roots: RootCertStore,
    timeout: Duration,
) -> OutgoingClient {
    let connector = Connector::with(config, Arc::new(SystemLookup), roots).unwrap();
    OutgoingClient::new(connector, HeaderValue::from_static("tester/1"), timeout)
}

fn outgoing() -> OutgoingClient {
    outgoing_with(&config(), RootCertStore::empty(), PATIENCE)
}

/// A server for one request: it sends this response and closes. Its task returns the request.
struct Server {
    url: String,
    task: JoinHandle<String>,
}

impl Server {
    async fn responding(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start(async move |mut stream| {
            // The client may have closed the connection.
            let _ = stream.write_all(&answer).await;
        })
        .await
    }

    async fn start<F>(answer: impl FnOnce(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let task = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let received = request(&mut stream).await;
            answer(stream).await;
            received
        });
        Self { url, task }
    }

    /// Sends an empty POST.
    async fn ask(
        &self,
        outgoing: &OutgoingClient,
        body_max: usize,
    ) -> Result<OutgoingResponse, Failure> {
        let url = format!("{}/hook", self.url);
        post(outgoing, &url, body_max).await
    }
}

/// The head, and a body of its Content-Length.
async fn request(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    loop {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await.unwrap();
        text.push_str(str::from_utf8(&buffer[..read]).unwrap());
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
            return text;
        }
    }
}

async fn post(
    outgoing: &OutgoingClient,
    url: &str,
    body_max: usize,
) -> Result<OutgoingResponse, Failure> {
    let url = CanonicalUrl::parse(url).unwrap();
    outgoing.send(Method::POST, &url, HeaderMap::new(), Bytes::new(), body_max).await
}

#[tokio::test]
async fn a_request_has_the_given_method_headers_and_body() {
    let server =
        Server::responding("HTTP/1.1 202 Accepted\r\nX-A: b\r\nContent-Length: 2\r\n\r\nok").await;
    let url = format!("{}/a/b?c=d%20e#f", server.url);
    let url = CanonicalUrl::parse(&url).unwrap();
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/x")),
        (HeaderName::from_static("x-hub"), HeaderValue::from_static("1")),
    ];
    let body = Bytes::from_static(b"some body");
    let headers = HeaderMap::from_iter(headers);
    let answered = outgoing().send(Method::PUT, &url, headers, body, 10).await.unwrap();
    assert_eq!((answered.status, &answered.body[..]), (StatusCode::ACCEPTED, &b"ok"[..]));
    assert_eq!(answered.headers["x-a"], "b");
    assert!(answered.is_complete);
    let received = server.task.await.unwrap();
    let (head, body) = received.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, "some body");
    let mut lines: Vec<_> = head.lines().collect();
    assert_eq!(lines.remove(0), "PUT /a/b?c=d%20e HTTP/1.1");
    lines.sort_unstable();
    let host = format!("Host: {}", url.authority());
    let expected = [
        "Accept-Encoding: identity",
        "Accept: */*",
        "Content-Length: 9",
        "Content-Type: text/x",
        &host,
        "User-Agent: tester/1",
        "X-Hub: 1",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn a_body_is_read_up_to_the_limit() {
    for (answer, is_whole_at_4, body) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef", false, "abcd"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd", true, "abcd"),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n",
            false,
            "abcd",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n3\r\nbcd\r\n0\r\n\r\n",
            true,
            "abcd",
        ),
        ("HTTP/1.0 200 OK\r\n\r\nabc", true, "abc"),
        ("HTTP/1.1 204 No\r\n\r\n", true, ""),
        (
            "HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
            true,
            "a",
        ),
    ] {
        let server = Server::responding(answer).await;
        let answered = server.ask(&outgoing(), 4).await.unwrap();
        assert_eq!(answered.body, body, "{answer:?}");
        assert_eq!(answered.is_complete, is_whole_at_4, "{answer:?}");
    }
}

/// A request for the head alone does not wait for the body.
#[tokio::test]
async fn a_head_is_enough_where_no_body_is_wanted() {
    for head in ["HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n", "HTTP/1.1 410 Gone\r\n\r\n"] {
        let server = Server::start(async move |mut stream: TcpStream| {
            stream.write_all(head.as_bytes()).await.unwrap();
            // Until the client closes.
            let _ = stream.read(&mut [0]).await;
        })
        .await;
        let answered = server.ask(&outgoing(), 0).await.unwrap();
        assert!(answered.body.is_empty() && !answered.is_complete, "{head:?}");
        server.task.await.unwrap();
    }
    let server = Server::responding("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    assert!(server.ask(&outgoing(), 0).await.unwrap().is_complete);
}

#[tokio::test]
async fn invalid_responses_are_named() {
    for (answer, reason) in [
        ("", Reason::Reset),
        ("HTTP/1.1 200", Reason::Reset),
        ("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc", Reason::Reset),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nabc", Reason::Reset),
        ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", Reason::BadHttp),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n", Reason::BadHttp),
    ] {
        let server = Server::responding(answer).await;
        let failure = server.ask(&outgoing(), 100).await.unwrap_err();
        assert_eq!(failure.reason, reason, "{answer:?}: {failure:?}");
    }
}

#[tokio::test]
async fn a_head_over_the_limit_is_rejected() {
    let many = "x: y\r\n".repeat(1_000);
    let long = format!("x: {}\r\n", "y".repeat(2 * HEAD_BYTES_MAX));
    for headers in [many, long] {
        let server = Server::responding(format!("HTTP/1.1 200 OK\r\n{headers}\r\n")).await;
        let failure = server.ask(&outgoing(), 100).await.unwrap_err();
        assert_eq!(failure.reason, Reason::BadHttp, "{failure:?}");
    }
    let server = Server::start(async |mut stream: TcpStream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nx: ").await;
        while stream.write_all(&[b'y'; 1024]).await.is_ok() {}
    })
    .await;
    assert!(server.ask(&outgoing(), 100).await.is_err());
    server.task.await.unwrap();
}

#[tokio::test]
async fn an_endless_response_ends_with_the_time_limit() {
    let outgoing = outgoing_with(&config(), RootCertStore::empty(), Duration::from_millis(50));
    for begin in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n"] {
        let server = Server::start(async move |mut stream: TcpStream| {
            stream.write_all(begin.as_bytes()).await.unwrap();
            let _ = stream.read(&mut [0]).await;
        })
        .await;
        let failure = server.ask(&outgoing, 9_999_999).await.unwrap_err();
        assert_eq!(failure.reason, Reason::Timeout, "{failure:?}");
        // The server has seen the end of the connection.
        server.task.await.unwrap();
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    for (status, location, target) in [
        (301, "/b?c", Some("/b?c")),
        (308, "b", Some("/b")),
        (200, "/b", None),
        (304, "/b", None),
        (302, "ftp://a.example/", None),
        (302, "\u{e9}", None),
    ] {
        let answer =
            format!("HTTP/1.1 {status} X\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
        let server = Server::responding(answer).await;
        let answered = server.ask(&outgoing(), 0).await.unwrap();
        let url = CanonicalUrl::parse(&format!("{}/hook", server.url)).unwrap().into_owned();
        let found = answered.redirect(&url).map(|target| target.as_str().to_owned());
        assert_eq!(
            found,
            target.map(|path| format!("{}{path}", server.url)),
            "{status} {location}"
        );
        assert!(server.task.await.unwrap().starts_with("POST /hook "));
    }
}

#[tokio::test]
async fn forbidden_addresses_receive_no_connection() {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let outgoing = outgoing_with(&ConnectConfig::default(), RootCertStore::empty(), PATIENCE);
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433"] {
        let failure = post(&outgoing, &format!("http://{host}:{port}/"), 0).await.unwrap_err();
        assert_eq!(failure.reason, Reason::Address, "{host}: {failure:?}");
    }
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[tokio::test]
async fn a_proxy_receives_the_target_and_credentials() {
    let server = Server::responding("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let proxy = server.url.replace("http://", "http://me:secret@");
    let config = ConnectConfig { proxy: Some(proxy), ..ConnectConfig::default() };
    let outgoing = outgoing_with(&config, RootCertStore::empty(), PATIENCE);
    post(&outgoing, "http://192.88.98.1:81/hook", 0).await.unwrap();
    let received = server.task.await.unwrap();
    assert!(received.starts_with("POST http://192.88.98.1:81/hook HTTP/1.1\r\n"), "{received}");
    assert!(received.contains("\r\nHost: 192.88.98.1:81\r\n"), "{received}");
    assert!(received.contains("\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n"), "{received}");
}

/// Resolves every name to loopback, without the checks of the connector.
struct Rebound;

impl reqwest::dns::Resolve for Rebound {
    fn resolve(&self, _: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let address = "127.0.0.1:0".parse().unwrap();
        Box::pin(async move { Ok(Box::new([address].into_iter()) as reqwest::dns::Addrs) })
    }
}

/// The name was allowed when it was checked, and resolves to another address when the connection is
/// made.
#[tokio::test]
async fn a_connection_to_a_forbidden_address_carries_no_byte() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connector =
        Connector::with(&ConnectConfig::default(), Arc::new(SystemLookup), RootCertStore::empty());
    let connector = Arc::new(connector.unwrap());
    for url in [format!("http://rebound.example:{port}/"), format!("http://127.0.0.1:{port}/")] {
        let client = build_client(&connector, Arc::new(Rebound));
        let (sent, accepted) = tokio::join!(client.get(url).send(), async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.unwrap();
            bytes
        });
        let error = sent.unwrap_err();
        let failure = causes(&error).find_map(|cause| cause.downcast_ref::<Failure>()).unwrap();
        assert_eq!(failure.reason, Reason::Address, "{failure:?}");
        assert!(accepted.is_empty(), "{accepted:?}");
    }
}

/// Loopback in other notations.
#[tokio::test]
async fn every_notation_of_a_forbidden_address_is_refused() {
    let outgoing = outgoing_with(&ConnectConfig::default(), RootCertStore::empty(), PATIENCE);
    for host in ["127.1", "0x7f.1", "0177.0.0.1", "[::ffff:7f00:1]", "[::1]", "0", "127.0.0.1."] {
        let failure = post(&outgoing, &format!("http://{host}:9/"), 0).await.unwrap_err();
        assert_eq!(failure.reason, Reason::Address, "{host}: {failure:?}");
    }
}

/// The server has read the request, so it may have arrived: the caller repeats it, not the client.
#[tokio::test]
async fn a_request_on_a_connection_that_its_server_closes_is_sent_once() {
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut kept, _) = listener.accept().await.unwrap();
        request(&mut kept).await;
        kept.write_all(ANSWER).await.unwrap();
        request(&mut kept).await;
        drop(kept);
        let (mut fresh, _) = listener.accept().await.unwrap();
        let third = request(&mut fresh).await;
        fresh.write_all(ANSWER).await.unwrap();
        third
    });
    let outgoing = outgoing();
    post(&outgoing, &format!("{url}1"), 0).await.unwrap();
    let failure = post(&outgoing, &format!("{url}2"), 0).await.unwrap_err();
    assert!(failure.reason == Reason::Reset && failure.is_transient(), "{failure:?}");
    post(&outgoing, &format!("{url}3"), 0).await.unwrap();
    assert!(server.await.unwrap().starts_with("POST /3 "));
}

/// Interim responses do not extend the time limit.
#[tokio::test]
async fn endless_interim_responses_end_with_the_time_limit() {
    let outgoing = outgoing_with(&config(), RootCertStore::empty(), Duration::from_millis(200));
    let server =
        Server::start(
            async |mut stream: TcpStream| {
                while stream.write_all(b"HTTP/1.1 103 Early\r\n\r\n").await.is_ok() {}
            },
        )
        .await;
    let failure = server.ask(&outgoing, 10).await.unwrap_err();
    assert_eq!(failure.reason, Reason::Timeout, "{failure:?}");
    server.task.await.unwrap();
}

/// `METHOD AUTHORITY PATH TYPE AGENT BODY`; a body of 1 MiB at `/long`, 32 KiB at `/middle`, and
/// too many headers at `/flood`.
async fn echo(request: Request<Incoming>) -> io::Result<Response<String>> {
    let (head, body) = request.into_parts();
    let mut answer = Response::builder();
    if head.uri.path() == "/flood" {
        for number in 0..9_000 {
            answer = answer.header("x", format!("{number:032}"));
        }
    }
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let header = |name| head.headers.get(name).map_or("none", |value| value.to_str().unwrap());
    let (kind, agent) = (header(CONTENT_TYPE), header(USER_AGENT));
    let text = str::from_utf8(&body).unwrap();
    let (method, host) = (&head.method, head.uri.authority().map_or("", |host| host.as_str()));
    let text = format!("{method} {host} {} {kind} {agent} {text}", head.uri.path());
    let text = match head.uri.path() {
        "/long" => "x".repeat(1 << 20),
        "/middle" => "x".repeat(32 << 10),
        _ => text,
    };
    Ok(answer.status(201).body(text).unwrap())
}

/// An HTTP/2 server over TLS: its URL, and the root certificates that trust it.
async fn http2_server() -> (String, RootCertStore) {
    let (url, roots, _) = tls_server(&[b"h2"]).await;
    (url, roots)
}

/// A server for one of these protocols over TLS: its URL, the root certificates that trust it, and
/// the number of connections so far.
async fn tls_server(protocols: &[&[u8]]) -> (String, RootCertStore, Arc<AtomicUsize>) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            counter.fetch_add(1, Ordering::Relaxed);
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let stream = TokioIo::new(stream);
                if is_http2 {
                    let server = server::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(stream, service_fn(echo)).await;
                } else {
                    let server = http1::Builder::new();
                    let _ = server.serve_connection(stream, service_fn(echo)).await;
                }
            });
        }
    });
    (url, roots, connections)
}

#[tokio::test]
async fn a_connection_carries_many_requests() {
    for protocol in [&b"h2"[..], b"http/1.1"] {
        let (base, roots, connections) = tls_server(&[protocol]).await;
        let outgoing = outgoing_with(&config(), roots, PATIENCE);
        let long = format!("{base}/middle");
        for number in 0..100 {
            // Half of the requests leave the body unread.
            let body_max = if number % 2 == 0 { 0 } else { 4 << 10 };
            post(&outgoing, &long, body_max).await.unwrap();
        }
        let connections = connections.load(Ordering::Relaxed);
        assert!(connections <= 4, "{connections} connections for 100 requests");
    }
}

#[tokio::test]
async fn http2_is_used_where_it_was_negotiated() {
    let (base, roots) = http2_server().await;
    let outgoing = outgoing_with(&config(), roots, PATIENCE);
    let url = CanonicalUrl::parse(&format!("{base}/hook")).unwrap().into_owned();
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("text/x"))]);
    let body = Bytes::from("y".repeat(200_000));
    let answered = outgoing.send(Method::POST, &url, headers, body.clone(), 1 << 20).await.unwrap();
    let prefix = format!("POST {} /hook text/x tester/1 ", url.authority());
    assert_eq!(answered.status, StatusCode::CREATED);
    assert_eq!(answered.body.strip_prefix(prefix.as_bytes()), Some(&body[..]));
    assert!(answered.is_complete);

    let answered = post(&outgoing, &format!("{base}/long"), 70_000).await.unwrap();
    assert_eq!((answered.body.len(), answered.is_complete), (70_000, false));
    assert!(!post(&outgoing, &format!("{base}/long"), 0).await.unwrap().is_complete);
    assert!(post(&outgoing, &format!("{base}/flood"), 10).await.is_err());
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_not_trusted() {
    let (base, _) = http2_server().await;
    let (_, others) = http2_server().await;
    let outgoing = outgoing_with(&config(), others, PATIENCE);
    let failure = post(&outgoing, &base, 0).await.unwrap_err();
    assert_eq!(failure.reason, Reason::Certificate, "{failure:?}");
}
