//! The HTTP listener of a crawler: whether it lives, whether it works for its broker, and what it
//! has counted.
#![expect(clippy::disallowed_methods, reason = "serves connections, which have a time limit")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, WWW_AUTHENTICATE};
use hyper::http::response::Builder;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tidings_broker::{add_security_headers, is_address_or_localhost};
use tidings_metrics::{Exposition, Format, MetricsSource};
use tidings_subscriber::metrics::CrawlerMetrics;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::flags::address::{Listen, ListenHttp};
use crate::process::metrics::ProcessMetrics;
use crate::process::stack;
use crate::terminal::failure::Failure;

/// Connections at once; further ones are closed.
const CONNECTIONS_MAX: usize = 64;

/// The longest time of a connection, which has one request.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(10);

/// The longest head of a request. Hyper's minimum.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// The pause after a failed accept, which lacks a file descriptor, for example.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Flags for the HTTP listener of a crawler.
#[derive(Debug, Clone, Args)]
pub(crate) struct CrawlerHttpFlags {
    /// Serve /health, /ready and /metrics at this address, or off [default: off]
    // Not `http`: a configuration file or an environment that brokers and crawlers share would
    // give both the same port.
    #[arg(long = "crawler-http", visible_alias = "http", value_name = "HOST:PORT")]
    http: Option<ListenHttp>,

    /// File with the token that /metrics requires; addresses other than loopback need one
    #[arg(long, value_name = "FILE", requires = "http")]
    http_token_file: Option<PathBuf>,
}

/// A running listener, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct CrawlerHttp {
    pub(crate) address: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl CrawlerHttpFlags {
    /// Starts the listener, if it is on.
    pub(crate) fn start(
        &self,
        metrics: &Arc<CrawlerMetrics>,
    ) -> Result<Option<CrawlerHttp>, Failure> {
        let Some(ListenHttp::At(Listen(listen))) = self.http else { return Ok(None) };
        let token = self.http_token_file.as_ref().map(|path| {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the token in {}", path.display()))?;
            match text.trim() {
                "" => Err(Failure::Usage(format!("{} contains no token", path.display()))),
                token => Ok(blake3::hash(token.as_bytes())),
            }
        });
        let token = token.transpose()?;
        if token.is_none() && !listen.ip().to_canonical().is_loopback() {
            return Err(Failure::Usage(format!(
                "--http {listen} is open to other machines, and every client there could read the \
                 metrics of this crawler. Require a token: --http-token-file FILE, or listen on \
                 127.0.0.1"
            )));
        }
        let listener = stack::bind(listen, "--http")?;
        let address = listener.local_addr().context("the listener has no address")?;
        listener.set_nonblocking(true).context("cannot listen")?;
        let listener = TcpListener::from_std(listener).context("cannot listen")?;
        let endpoint =
            Endpoint { token, metrics: Arc::clone(metrics), process: ProcessMetrics::new() };
        let task = AbortOnDropHandle::new(tokio::spawn(serve(listener, Arc::new(endpoint))));
        Ok(Some(CrawlerHttp { address, _task: task }))
    }
}

async fn serve(listener: TcpListener, endpoint: Arc<Endpoint>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_RETRY).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
        let endpoint = Arc::clone(&endpoint);
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let mut response = endpoint.respond(&request);
                add_security_headers(response.headers_mut());
                std::future::ready(Ok::<_, Infallible>(response))
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .keep_alive(false)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service);
            // Errors of a client need no handling.
            let _ = timeout(CONNECTION_TIME_MAX, connection).await;
            drop(permit);
        });
    }
}

#[derive(Debug)]
struct Endpoint {
    /// The hash of the token, so that the time of a comparison does not depend on it.
    token: Option<blake3::Hash>,
    metrics: Arc<CrawlerMetrics>,
    process: ProcessMetrics,
}

impl Endpoint {
    fn respond<B>(&self, request: &Request<B>) -> Response<String> {
        let with_status = |status| Response::builder().status(status);
        let json = |response: Builder, body: &str| {
            let response = response.header(CONTENT_TYPE, "application/json");
            response.body(format!("{body}\n")).expect("the headers are valid")
        };
        let (status, body) = match (request.method(), request.uri().path()) {
            (method, _) if method != Method::GET => {
                (StatusCode::METHOD_NOT_ALLOWED, r#"{"code": "method-not-allowed"}"#)
            }
            _ if request.uri().query().is_some() => {
                (StatusCode::BAD_REQUEST, r#"{"code": "bad-argument"}"#)
            }
            (_, "/health") => (StatusCode::OK, r#"{"status": "ok"}"#),
            (_, "/ready") if self.metrics.is_connected() => (StatusCode::OK, r#"{"ready": true}"#),
            (_, "/ready") => (StatusCode::SERVICE_UNAVAILABLE, r#"{"ready": false}"#),
            (_, "/metrics") if self.allows(request.headers()) => {
                return self.metrics(request.headers());
            }
            (_, "/metrics") if self.token.is_some() => {
                let response = with_status(StatusCode::UNAUTHORIZED);
                let response = response.header(WWW_AUTHENTICATE, "Bearer");
                return json(response, r#"{"code": "unauthenticated"}"#);
            }
            (_, "/metrics") => (StatusCode::FORBIDDEN, r#"{"code": "denied"}"#),
            _ => (StatusCode::NOT_FOUND, r#"{"code": "unknown"}"#),
        };
        json(with_status(status), body)
    }

    /// Whether the client may read the metrics: it must send the token. If the crawler has no
    /// token, `Host` must be an address or `localhost`. Otherwise a page in a browser could point
    /// its own name at this machine (DNS rebinding), and read the response.
    fn allows(&self, headers: &HeaderMap) -> bool {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let Some(token) = self.token else {
            return text(HOST).is_some_and(is_address_or_localhost);
        };
        let words = text(AUTHORIZATION).and_then(|value| value.split_once(' '));
        words.is_some_and(|(scheme, shown)| {
            scheme.eq_ignore_ascii_case("bearer") && blake3::hash(shown.trim().as_bytes()) == token
        })
    }

    fn metrics(&self, headers: &HeaderMap) -> Response<String> {
        let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
        let format = Format::accepted(accept);
        let mut text = Exposition::new(format);
        self.metrics.add_to(&mut text);
        self.process.add_to(&mut text);
        let response = Response::builder().header(CONTENT_TYPE, format.content_type());
        response.body(text.finish()).expect("the headers are valid")
    }
}
