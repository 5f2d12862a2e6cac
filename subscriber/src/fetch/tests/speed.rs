//! Measures what a request costs. Figures, not a test: `cargo test --release -p tidings-subscriber
//! --lib speed -- --ignored --nocapture`.

#![expect(clippy::print_stdout, reason = "figures are for people")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant as Clock;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::*;

const HOSTS: u8 = 20;
const REQUESTS_PER_HOST: u32 = 5_000;

/// 10 KB with 30 links.
fn page() -> String {
    let words = "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod. ";
    let paragraphs: Vec<String> = (0..30)
        .map(|n| {
            format!(
                "<p class=\"text\">{} <a href=\"/page/{n}\">link {n}</a></p>\n",
                words.repeat(4)
            )
        })
        .collect();
    format!("<!doctype html><title>A page</title><body>{}</body>", paragraphs.concat())
}

/// On a thread of its own, at all addresses of 127.0.0.0/8.
fn origin(content_type: &'static str) -> SocketAddr {
    let (sender, receiver) = std::sync::mpsc::channel();
    let serve = async move {
        let listener = TcpListener::bind(("0.0.0.0", 0)).await.unwrap();
        sender.send(listener.local_addr().unwrap()).unwrap();
        let page = bytes::Bytes::from(page());
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let page = page.clone();
            tokio::spawn(async move {
                let service = service_fn(|_| {
                    let body = OnePiece(Some(page.clone()));
                    let answer = Response::builder().header("content-type", content_type);
                    std::future::ready(answer.body(body))
                });
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    };
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(serve);
    });
    receiver.recv().unwrap()
}

struct OnePiece(Option<bytes::Bytes>);

impl hyper::body::Body for OnePiece {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<bytes::Bytes>, Self::Error>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(hyper::body::Frame::data(bytes))))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        let length = self.0.as_ref().map_or(0, bytes::Bytes::len);
        hyper::body::SizeHint::with_exact(length as u64)
    }
}

/// CPU time of this thread in nanoseconds.
fn thread_nanoseconds() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

#[test]
#[ignore = "prints figures"]
fn kept_connections_over_loopback() {
    let (nothing, whole) = (KeepBodies::default(), KeepBodies { raw: true, decoded: true });
    for (what, content_type, keep) in [
        ("fetch", "image/png", nothing),
        ("fetch and keep", "image/png", whole),
        ("fetch and read", "text/html", nothing),
    ] {
        let port = origin(content_type).port();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let spools = Spools::open(directory.path()).unwrap();
        let web = Arc::new(Fetcher::new(&config()).unwrap().with_spools(spools));
        let all = async {
            let hosts = (1..=HOSTS).map(|host| {
                let web = Arc::clone(&web);
                tokio::spawn(async move {
                    for number in 0..REQUESTS_PER_HOST {
                        let url = format!("http://127.0.0.{host}:{port}/page/{number}");
                        let url = CanonicalUrl::parse(&url).unwrap();
                        let request = request(&url, FetchPurpose::Page, Duration::from_secs(20));
                        let fetched = web.fetch(&FetchRequest { keep, ..request }).await;
                        assert_eq!(fetched.failure, None);
                        if let Some(page) = fetched.page {
                            let links = if content_type == "text/html" { 30 } else { 0 };
                            assert_eq!(page.finish(&url).links.len(), links);
                        }
                    }
                })
            });
            for host in hosts.collect::<Vec<_>>() {
                host.await.unwrap();
            }
        };
        let (started, cpu) = (Clock::now(), thread_nanoseconds());
        runtime.block_on(all);
        let count = u64::from(HOSTS) * u64::from(REQUESTS_PER_HOST);
        let (took, cpu) = (started.elapsed(), thread_nanoseconds() - cpu);
        println!(
            "{what}: {:.0} requests/s, {:.1} us of the processor each, {} bytes",
            f64::from(u32::try_from(count).unwrap()) / took.as_secs_f64(),
            Duration::from_nanos(cpu / count).as_secs_f64() * 1e6,
            page().len(),
        );
    }
}
