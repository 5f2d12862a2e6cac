//! TLS, HTTP/2, proxies, and names that resolve differently the next time.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use hyper::body::Frame;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, ServerConfig};
use tidings_egress::connect::Lookup;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::*;

/// Returns the given answers in order, the last one forever.
#[derive(Debug)]
struct Names(Mutex<Vec<Vec<IpAddr>>>);

impl Names {
    fn always(address: IpAddr) -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![vec![address]])))
    }
}

impl Lookup for Names {
    fn lookup(&self, _: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let mut answers = self.0.lock();
        let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
        Box::pin(async move { Ok(answer) })
    }
}

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// An authority whose certificate this one has signed.
    fn intermediate(&self) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "intermediate");
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::signed_by(params, key, &self.0).unwrap())
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        roots
    }

    fn acceptor(&self, names: &[&str], years: (i32, i32), protocols: &[&[u8]]) -> TlsAcceptor {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        acceptor(certificate.der().clone(), &key, protocols)
    }
}

fn acceptor(
    certificate: CertificateDer<'static>,
    key: &KeyPair,
    protocols: &[&[u8]],
) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

const YEARS: (i32, i32) = (2000, 2100);

/// An HTTP/1.1 server over TLS that answers every request alike. With `closing` it ends the
/// connection without `close_notify`.
async fn tls_origin(acceptor: TlsAcceptor, answer: Vec<u8>, closing: bool) -> Origin {
    let answer = Arc::new(answer);
    Origin::start(move |stream| {
        let (acceptor, answer) = (acceptor.clone(), Arc::clone(&answer));
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            while !read_head(&mut stream).await.is_empty() {
                stream.write_all(&answer).await.unwrap();
                if closing {
                    stream.flush().await.unwrap();
                    let (mut stream, _) = stream.into_inner();
                    stream.shutdown().await.unwrap();
                    return;
                }
            }
        }
    })
    .await
}

fn http2_answer(request: &hyper::Request<Incoming>) -> io::Result<Response<String>> {
    let body = match request.uri().path() {
        "/reset" => return Err(io::Error::other("not today")),
        "/long" => "x".repeat(1 << 20),
        _ => String::from_utf8_lossy(PAGE).into(),
    };
    let mut answer = Response::builder().header("content-type", "text/html");
    if request.uri().path() == "/flood" {
        for _ in 0..300 {
            answer = answer.header("x", "y");
        }
    }
    let host = request.uri().authority().unwrap().as_str();
    Ok(answer.header("x-host", host).body(body).unwrap())
}

/// An HTTP/2 server over TLS: `/long` has a body of 1 MiB, `/reset` none, `/flood` too many
/// headers.
async fn http2_origin(acceptor: TlsAcceptor) -> Origin {
    Origin::start(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(|request| std::future::ready(http2_answer(&request)));
            let server = http2::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        }
    })
    .await
}

fn web(config: &FetchConfig, names: Arc<Names>, roots: RootCertStore) -> Fetcher {
    Fetcher::with(config, Connector::with(&config.connect, names, roots).unwrap()).unwrap()
}

fn https(origin: &Origin, host: &str, path: &str) -> CanonicalUrl<'static> {
    format!("https://{host}:{}{path}", origin.address.port()).parse().unwrap()
}

#[tokio::test]
async fn pages_come_over_tls_by_name_and_by_address() {
    let authority = Authority::new();
    let acceptor = authority.acceptor(&["a.example", "127.0.0.1"], YEARS, &[]);
    let origin = tls_origin(acceptor, with_length("", PAGE), false).await;
    let web = web(&config(), Names::always(LOCALHOST), authority.roots());
    for host in ["a.example", "127.0.0.1", "a.example"] {
        let fetched = web.page(&https(&origin, host, "/")).await;
        assert_eq!((fetched.status, &fetched.failure), (Some(200), &None), "{host}");
        assert_eq!(
            (fetched.version, fetched.remote),
            (Some(Version::HTTP_11), Some(origin.address))
        );
    }
    assert_eq!(origin.connections.load(SeqCst), 2);
}

#[tokio::test]
async fn invalid_certificates_are_refused() {
    let authority = Authority::new();
    let unknown = Authority::new();
    let alone = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
    for acceptor in [
        authority.acceptor(&["a.example"], (2000, 2001), &[]),
        authority.acceptor(&["a.example"], (2090, 2100), &[]),
        authority.acceptor(&["b.example"], YEARS, &[]),
        unknown.acceptor(&["a.example"], YEARS, &[]),
        acceptor(alone.cert.der().clone(), &alone.signing_key, &[]),
    ] {
        let origin = tls_origin(acceptor, with_length("", PAGE), false).await;
        let web = web(&config(), Names::always(LOCALHOST), authority.roots());
        let fetched = web.page(&https(&origin, "a.example", "/")).await;
        failed(&fetched, Reason::Certificate, "certificate");
        assert_eq!(fetched.status, None);
    }
}

/// As with a copy of the system's certificates in `SSL_CERT_FILE`, with one more.
#[tokio::test]
async fn a_missing_intermediate_certificate_can_be_given() {
    let authority = Authority::new();
    let intermediate = authority.intermediate();
    let acceptor = intermediate.acceptor(&["a.example"], YEARS, &[]);
    let origin = tls_origin(acceptor, with_length("", PAGE), false).await;
    let mut roots = authority.roots();
    let url = https(&origin, "a.example", "/");
    let fetched = web(&config(), Names::always(LOCALHOST), roots.clone()).page(&url).await;
    failed(&fetched, Reason::Certificate, "UnknownIssuer");
    roots.add(intermediate.0.der().clone()).unwrap();
    let fetched = web(&config(), Names::always(LOCALHOST), roots).page(&url).await;
    assert_eq!((fetched.status, fetched.failure), (Some(200), None));
}

#[tokio::test]
async fn servers_without_tls_are_reported() {
    let web = web(&config(), Names::always(LOCALHOST), RootCertStore::empty());
    let origin = Origin::start(|mut stream| async move {
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let _ = stream.read(&mut [0; 9]).await;
    })
    .await;
    failed(&web.page(&https(&origin, "a.example", "/")).await, Reason::Tls, "TLS: ");
    let origin = Origin::start(|stream| async { drop(stream) }).await;
    failed(&web.page(&https(&origin, "a.example", "/")).await, Reason::Reset, "TLS: ");
    let origin = Origin::start(|mut stream| async move {
        while stream.read(&mut [0; 99]).await.is_ok_and(|read| read > 0) {}
    })
    .await;
    let connect = ConnectConfig { timeout: Duration::from_millis(800), ..config().connect };
    let impatient = FetchConfig { connect, ..config() };
    let web = self::web(&impatient, Names::always(LOCALHOST), RootCertStore::empty());
    let fetched = web.page(&https(&origin, "a.example", "/")).await;
    failed(&fetched, Reason::ConnectTimeout, "no connection within 800ms");
}

#[tokio::test]
async fn a_tls_connection_may_end_without_close_notify() {
    let authority = Authority::new();
    let acceptor = authority.acceptor(&["a.example"], YEARS, &[]);
    for (answer, complete) in [
        ([b"HTTP/1.1 200 OK\r\n\r\n", PAGE].concat(), true),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx".to_vec(), false),
    ] {
        let origin = tls_origin(acceptor.clone(), answer, true).await;
        let web = web(&config(), Names::always(LOCALHOST), authority.roots());
        let fetched = web.page(&https(&origin, "a.example", "/")).await;
        if complete {
            assert_eq!((fetched.failure, fetched.bytes), (None, PAGE.len() as u64));
        } else {
            failed(&fetched, Reason::Truncated, "body: ");
        }
    }
}

#[tokio::test]
async fn http2_is_used_where_it_is_offered() {
    let authority = Authority::new();
    let acceptor = authority.acceptor(&["a.example"], YEARS, &[b"h2", b"http/1.1"]);
    let origin = http2_origin(acceptor).await;
    let directory = tempfile::tempdir().unwrap();
    let web = web(&config(), Names::always(LOCALHOST), authority.roots())
        .with_spools(Spools::open(directory.path()).unwrap());
    let fetched = web.page(&https(&origin, "a.example", "/")).await;
    assert_eq!((fetched.status, &fetched.failure), (Some(200), &None));
    assert_eq!((fetched.version, fetched.remote), (Some(Version::HTTP_2), Some(origin.address)));
    assert_eq!(fetched.hash, Some(blake3::hash(PAGE)));
    let fetched = web.page(&https(&origin, "a.example", "/long")).await;
    assert_eq!((fetched.failure, fetched.bytes), (None, 1 << 20));
    failed(&web.page(&https(&origin, "a.example", "/reset")).await, Reason::Reset, "");
    failed(&web.page(&https(&origin, "a.example", "/flood")).await, Reason::HeadTooLarge, "256");
    let url = https(&origin, "a.example", "/x?y");
    let keep = KeepBodies { raw: true, decoded: false };
    let kept = FetchRequest { keep, ..request(&url, FetchPurpose::Page, AMPLE) };
    let exchange = web.fetch(&kept).await.exchange.unwrap();
    let head = String::from_utf8(exchange.request_head).unwrap();
    let host = format!("a.example:{}", origin.address.port());
    assert!(
        head.starts_with(&format!("GET /x?y HTTP/1.1\r\nhost: {host}\r\nuser-agent: ")),
        "{head}"
    );
    let head = String::from_utf8(exchange.response_head).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n"), "{head}");
    assert!(head.contains(&format!("x-host: {host}\r\n")) && head.ends_with("\r\n\r\n"), "{head}");
    // Failed requests cost their connections.
    assert_eq!(origin.connections.load(SeqCst), 3);
}

/// A body of these frames, and then an empty one that ends it.
struct Frames(std::collections::VecDeque<&'static [u8]>);

impl hyper::body::Body for Frames {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = self.0.pop_front();
        Poll::Ready(next.map(|data| Ok(Frame::data(Bytes::from_static(data)))))
    }
}

#[tokio::test]
async fn an_empty_http2_frame_may_be_anywhere() {
    let authority = Authority::new();
    let acceptor = authority.acceptor(&["a.example"], YEARS, &[b"h2"]);
    let origin = Origin::start(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let stream = acceptor.accept(stream).await.unwrap();
            let service = service_fn(async |_: hyper::Request<Incoming>| {
                let (first, last) = PAGE.split_at(9);
                io::Result::Ok(Response::new(Frames([first, b"", b"", last].into())))
            });
            let server = http2::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        }
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let web = web(&config(), Names::always(LOCALHOST), authority.roots())
        .with_spools(Spools::open(directory.path()).unwrap());
    let url = https(&origin, "a.example", "/");
    let keep = KeepBodies { raw: true, decoded: false };
    for _ in 0..2 {
        let kept = FetchRequest { keep, ..request(&url, FetchPurpose::Page, AMPLE) };
        let fetched = web.fetch(&kept).await;
        assert_eq!((&fetched.failure, fetched.hash), (&None, Some(blake3::hash(PAGE))));
        assert_eq!(fetched.exchange.unwrap().truncated, None);
    }
    assert_eq!(origin.connections.load(SeqCst), 1);
}

/// The limit applies to the address that answered, not to one that is down.
#[tokio::test]
async fn a_permit_is_for_the_address_that_was_connected_to() {
    let (requests, mut request_arrived) = tokio::sync::mpsc::unbounded_channel();
    let origin = Origin::start(move |mut stream| {
        let requests = requests.clone();
        async move {
            read_head(&mut stream).await;
            requests.send(()).unwrap();
            let _ = stream.read(&mut [0; 1]).await;
        }
    })
    .await;
    let down: IpAddr = "127.0.0.99".parse().unwrap();
    // Nothing listens at that address: the origin uses its port at one address only.
    let names = Names(Mutex::new(vec![vec![down, LOCALHOST], vec![LOCALHOST]]));
    let config = one_connection(Duration::from_secs(5));
    let web = web(&config, Arc::new(names), RootCertStore::empty());
    let url = |name: &str| format!("http://{name}:{}/", origin.address.port()).parse().unwrap();
    let (first, second): (CanonicalUrl<'_>, CanonicalUrl<'_>) =
        (url("a.example"), url("b.example"));
    let late = tokio::select! {
        _ = web.page(&first) => panic!("the server does not answer"),
        late = async {
            request_arrived.recv().await.unwrap();
            web.page(&second).await
        } => late,
    };
    failed(&late, Reason::Busy, "other requests to 127.0.0.1");
}

#[tokio::test]
async fn dropping_an_http2_request_closes_its_connection() {
    let authority = Authority::new();
    let acceptor = authority.acceptor(&["a.example"], YEARS, &[b"h2"]);
    let (ended, mut has_ended) = tokio::sync::mpsc::unbounded_channel();
    let origin = Origin::start(move |stream| {
        let (acceptor, ended) = (acceptor.clone(), ended.clone());
        async move {
            let stream = acceptor.accept(stream).await.unwrap();
            let requests = ended.clone();
            let service = service_fn(move |_: hyper::Request<Incoming>| {
                requests.send("requested").unwrap();
                std::future::pending::<io::Result<Response<String>>>()
            });
            let server = http2::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
            ended.send("ended").unwrap();
        }
    })
    .await;
    let web = web(&config(), Names::always(LOCALHOST), authority.roots());
    let url = https(&origin, "a.example", "/");
    tokio::select! {
        _ = web.page(&url) => panic!("the server does not answer"),
        requests = has_ended.recv() => assert_eq!(requests, Some("requested")),
    }
    assert_eq!(has_ended.recv().await, Some("ended"));
}

/// A name resolves to an allowed address when it is checked, and to a private one a moment later.
#[tokio::test]
async fn a_connection_goes_to_the_address_that_was_checked() {
    let origin = Origin::answering(with_length("Connection: close\r\n", PAGE)).await;
    let private: IpAddr = "127.0.0.2".parse().unwrap();
    let names = Arc::new(Names(Mutex::new(vec![vec![private, LOCALHOST], vec![private]])));
    let allow_private = "127.0.0.1/32".parse().unwrap();
    let web = web(
        &FetchConfig { connect: ConnectConfig { allow_private, ..config().connect }, ..config() },
        names,
        RootCertStore::empty(),
    );
    let url = format!("http://a.example:{}/", origin.address.port()).parse().unwrap();
    for _ in 0..2 {
        let fetched = web.page(&url).await;
        assert_eq!((fetched.status, fetched.remote), (Some(200), Some(origin.address)));
    }
    // For another name the resolver is queried again.
    let url = format!("http://b.example:{}/", origin.address.port()).parse().unwrap();
    failed(&web.page(&url).await, Reason::Address, "127.0.0.2 is a loopback address");
    assert_eq!(origin.connections.load(SeqCst), 2);
}

/// A proxy that tunnels each `CONNECT` to `to`, and answers other requests itself.
async fn proxy(to: SocketAddr, heads: Arc<Mutex<Vec<String>>>) -> Origin {
    Origin::start(move |mut stream| {
        let heads = Arc::clone(&heads);
        async move {
            let head = read_head(&mut stream).await;
            heads.lock().push(head.clone());
            if head.starts_with("CONNECT refused.example") {
                let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").await;
            } else if head.starts_with("CONNECT ") {
                stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
                let mut target = TcpStream::connect(to).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut target).await;
            } else {
                let _ = stream.write_all(&with_length("Connection: close\r\n", PAGE)).await;
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_proxy_reaches_servers_with_and_without_tls() {
    let authority = Authority::new();
    let acceptor = authority.acceptor(&["a.example"], YEARS, &[b"h2", b"http/1.1"]);
    let origin = http2_origin(acceptor).await;
    let heads = Arc::new(Mutex::new(Vec::new()));
    let proxy = proxy(origin.address, Arc::clone(&heads)).await;
    // The proxy's own address is not checked; some names do not resolve here.
    let config = FetchConfig {
        connect: ConnectConfig {
            proxy: Some(format!("http://user:pass@{}", proxy.address)),
            allow_private: AllowPrivate::None,
            ..config().connect
        },
        ..config()
    };
    let names = Arc::new(Names(Mutex::new(vec![vec![], vec!["9.9.9.9".parse().unwrap()]])));
    let web = web(&config, names, authority.roots());
    let fetched = web.page(&"https://a.example/x".parse().unwrap()).await;
    assert_eq!((fetched.status, &fetched.failure), (Some(200), &None));
    assert_eq!((fetched.version, fetched.remote), (Some(Version::HTTP_2), None));
    let expected = "CONNECT a.example:443 HTTP/1.1\r\nhost: a.example:443\r\n\
        proxy-authorization: Basic dXNlcjpwYXNz\r\n\r\n";
    assert_eq!(heads.lock()[0], expected);

    let fetched = web.page(&"http://b.example/y?z".parse().unwrap()).await;
    assert_eq!((fetched.status, fetched.remote), (Some(200), None));
    let head = heads.lock()[1].clone();
    assert!(head.starts_with("GET http://b.example/y?z HTTP/1.1\r\nHost: b.example\r\n"), "{head}");
    assert!(head.contains("Proxy-Authorization: Basic dXNlcjpwYXNz\r\n"), "{head}");

    let fetched = web.page(&"https://refused.example/".parse().unwrap()).await;
    failed(&fetched, Reason::Proxy, "proxy: HTTP/1.1 403 Forbidden");
}

#[tokio::test]
async fn a_proxy_does_not_bypass_the_address_check() {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let proxy = proxy("127.0.0.1:1".parse().unwrap(), Arc::clone(&heads)).await;
    let inside = "10.0.0.1".parse().unwrap();
    let targets =
        ["http://169.254.169.254/", "https://[::1]/", "http://localhost/", "http://name.example/"];
    let config = |scheme: &str| FetchConfig {
        connect: ConnectConfig {
            proxy: Some(format!("{scheme}://{}", proxy.address)),
            allow_private: AllowPrivate::None,
            ..config().connect
        },
        ..config()
    };
    // Where the proxy resolves names, a name may lead anywhere.
    for (scheme, targets) in
        [("http", &targets[..]), ("socks5", &targets), ("socks5h", &targets[..3])]
    {
        let web = web(&config(scheme), Names::always(inside), RootCertStore::empty());
        for url in targets {
            let fetched = web.page(&url.parse().unwrap()).await;
            failed(&fetched, Reason::Address, "start with --allow-private");
        }
    }
    assert!(heads.lock().is_empty());
    // A proxy that receives addresses gets no name that does not resolve here.
    let unresolvable = Arc::new(Names(Mutex::new(vec![vec![]])));
    let web = web(&config("socks5"), unresolvable, RootCertStore::empty());
    let fetched = web.page(&"http://name.example/".parse().unwrap()).await;
    failed(&fetched, Reason::Dns, "the name has no address");
    let config = FetchConfig {
        connect: ConnectConfig { proxy: Some("ftp://x".to_owned()), ..config("http").connect },
        ..config("http")
    };
    assert!(Fetcher::new(&config).unwrap_err().to_string().contains("invalid proxy"));
}
