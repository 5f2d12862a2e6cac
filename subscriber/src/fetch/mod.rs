//! Sends one HTTP request, with limits in bytes and time for any server.
//!
//! A body is never buffered as a whole: it is decoded, counted, hashed and searched for links chunk
//! by chunk. There are three time limits: for the connection, for each silence, and for the whole
//! request. Redirects are not followed here; each hop is a request of its own, with its own
//! permission.
//!
//! A connection is reused for the next request to the same scheme, host and port. If the server has
//! closed it before a byte of the request was written, no request was made, and a new connection is
//! opened at once. If the connection ends later and before the head of the response, the server may
//! have read the request: [`Fetched::reused_connection_ended`] reports this, and a retry needs a
//! permission of its own.

#![expect(clippy::disallowed_methods, reason = "requests have time limits here")]

mod body;
mod cookies;
mod decode;
mod head;
mod headers;
mod http_connection;
mod meter;
mod pool;
mod request_timer;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::body::Incoming;
use hyper::http::response;
use hyper::{HeaderMap, Response, Version, header};
use tidings_documents::document::DocumentReader;
use tidings_documents::page::{LinkConfig, PageOptions, PageReader};
use tidings_egress::connect::{
    AddressPermit, ConnectConfig, ConnectTarget, Connector, HttpProtocol, Proxy, ProxyError,
};
use tidings_egress::failure::{Failure, Reason};
use tidings_egress::retry_after;
use tidings_protocol::CanonicalUrl;
use tokio::time::{Instant, sleep_until};

use self::body::{DecodedBody, RawBody};
use self::cookies::CookieJar;
use self::head::RequestTemplate;
use self::headers::RequestHeaders;
pub use self::headers::{AddedHeader, HeaderError};
use self::http_connection::HttpConnection;
use self::meter::WireCopy as Copied;
use self::pool::ConnectionPool;
use self::request_timer::{Elapsed, RequestTimer};
use crate::memory_budget::{MemoryBudget, MemoryPermit};
use crate::report::{Exchange, KeepBodies, Validators};
use crate::robots::{
    Availability, ROBOTS_BYTES_MAX, ROBOTS_HOPS_MAX, RobotsResponse, product_token,
};
use crate::spool::{Spool, Spools};

/// Limit of the head of an answer in bytes. Browsers allow 256 KiB; honest servers stay below 16
/// KiB.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Bytes read before the end of a head: `1xx` answers, and the head itself. One read may include a
/// part of the body, so this is more than a head.
const BEFORE_HEAD_BYTES_MAX: u64 = 256 * 1024;
/// Bytes read of an unwanted body (redirects, errors), so that the connection can be used again. A
/// longer body costs the connection.
const DISCARDED_BODY_BYTES_MAX: u64 = 256 * 1024;
/// Bytes of an encoded robots.txt: no coding makes it much longer than its text.
const ROBOTS_WIRE_BYTES_MAX: u64 = 2 * ROBOTS_BYTES_MAX as u64;
/// Memory of a document's links until it is stored, before it needs a permit of
/// `LINKS_BUDGET_BYTES`: about a thousand links.
const LINKS_FREE_BYTES: usize = 128 * 1024;

/// Sends requests. Cheap to share. All users share one connection pool, which is closed with it.
pub struct Fetcher {
    connector: Connector,
    headers: RequestHeaders,
    cookies: Option<CookieJar>,
    pool: ConnectionPool,
    spools: Option<Spools>,
    memory_budget: MemoryBudget,
    read_timeout: Duration,
    body_bytes_max: u64,
    page_options: Arc<PageOptions>,
}

/// Why no request can be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FetcherError {
    /// The agent, or a header in the configuration.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The proxy in the configuration.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct FetchRequest<'a> {
    /// The URL.
    pub url: &'a CanonicalUrl<'a>,
    /// The purpose.
    pub purpose: FetchPurpose,
    /// From an earlier response: an unchanged document is not sent again (`304`).
    pub validators: Option<&'a Validators>,
    /// What is kept of the response.
    pub keep: KeepBodies,
    /// The time limit.
    pub deadline: Instant,
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchPurpose {
    /// The whole body, searched for links if it is a page.
    Page,
    /// The first 500 KiB as text.
    Robots,
}

/// The result of a request, as far as it got.
#[derive(Debug, Default)]
pub struct Fetched {
    /// The status; `None` without a response.
    pub status: Option<u16>,
    /// The HTTP version.
    pub version: Option<Version>,
    /// The headers.
    pub headers: HeaderMap,
    /// As the server sent it.
    pub content_type: Option<String>,
    /// The target of a redirect, as the server sent it.
    pub location: Option<String>,
    /// How long the server asks clients to wait.
    pub retry_after: Option<Duration>,
    /// For the next, conditional request.
    pub validators: Validators,
    /// The address of the server; `None` behind a proxy.
    pub remote: Option<SocketAddr>,
    /// Bytes of the decoded body. If the body is not wanted (that of an error), its bytes as
    /// received.
    pub bytes: u64,
    /// Bytes of the body as received.
    pub wire_bytes: u64,
    /// BLAKE3 of the decoded body of a page that was read to its end.
    pub hash: Option<blake3::Hash>,
    /// Has read the whole document, if that arrived.
    pub page: Option<DocumentReader>,
    /// The shared memory for the links of a large document; it must be kept as long as the links.
    pub memory_permit: Option<MemoryPermit>,
    /// The beginning of a robots.txt.
    pub text: Vec<u8>,
    /// The decoded body of a page as far as it was read, if it is kept.
    pub body: Option<Spool>,
    /// The bytes of the exchange from the head of the response on, if they are kept.
    pub exchange: Option<Exchange>,
    /// Why the response is missing or incomplete.
    pub failure: Option<Failure>,
    /// The request was written to a reused connection, which ended before the head of the response.
    /// For a while, requests to this origin use new connections.
    pub reused_connection_ended: bool,
}

/// The head of a response, and the connection that its body arrives on.
struct ResponseHead {
    http: HttpConnection,
    /// The permit for the address.
    permit: Option<AddressPermit>,
    response: Response<Incoming>,
    copied: Option<Copied>,
}

/// `scheme://host[:port]`: the scope of a connection, a cookie and a credential. The default port
/// is omitted.
fn origin<'a>(url: &'a CanonicalUrl<'_>) -> &'a str {
    let end = url.as_str().len() - url.path_and_query().len();
    &url.as_str()[..end]
}

/// How requests are made.
#[derive(Clone, Debug)]
pub struct FetchConfig {
    /// Which connections may be made, and how.
    pub connect: ConnectConfig,
    /// The `User-Agent` header; the part before the first `/` is the product token that
    /// robots.txt rules are matched with. Default: `tidings/<version>`.
    pub agent: String,
    /// A URL or an e-mail address for questions about this crawler, which [`agent`](Self::agent)
    /// contains already. Default: none, which is reported as a warning at the start.
    pub contact: Option<String>,
    /// Additional headers of requests. Default: none.
    pub headers: Vec<AddedHeader>,
    /// Whether cookies are returned to the server that set them. Default: no.
    pub cookies: bool,
    /// What counts as a link of a page.
    pub links: LinkConfig,
    /// The longest silence of a server, before its answer begins and within the body. Default: 15
    /// s.
    pub read_timeout: Duration,
    /// Time limit for one request. Default: 40 s; never more than eight tenths of the task's lease,
    /// so that a request ends before the broker can release the host to another crawler.
    pub request_timeout: Duration,
    /// Limit of a decoded body in bytes; a longer one fails the page. Default: 64 MiB. Bodies are
    /// streamed, so this bounds work rather than memory.
    pub body_bytes_max: u64,
}

impl Default for FetchConfig {
    fn default() -> Self {
        Self {
            connect: ConnectConfig::default(),
            agent: concat!("tidings/", env!("CARGO_PKG_VERSION")).to_owned(),
            contact: None,
            headers: Vec::new(),
            cookies: false,
            links: LinkConfig::default(),
            read_timeout: Duration::from_secs(15),
            request_timeout: Duration::from_secs(40),
            body_bytes_max: 64 * 1024 * 1024,
        }
    }
}

impl Fetched {
    /// The meaning of the response to a request for the robots.txt `requested`, after `hops`
    /// redirects.
    pub fn robots_response(&self, requested: &CanonicalUrl, hops: u8) -> RobotsResponse<'_> {
        if let Some(failure) = &self.failure {
            return RobotsResponse::Unreachable(failure.clone());
        }
        let status = self.status.unwrap_or_default();
        if (300..400).contains(&status)
            && hops < ROBOTS_HOPS_MAX
            && let Some(location) = &self.location
            && let Ok(target) = requested.join(location)
        {
            return RobotsResponse::Redirect(target);
        }
        match Availability::of_status(status) {
            Availability::Readable => RobotsResponse::Text(&self.text),
            Availability::Unavailable => RobotsResponse::Missing,
            Availability::Unreachable => RobotsResponse::Unreachable(Failure::of_status(status)),
        }
    }
}

impl Fetcher {
    /// Loads the certificates of the system. Fails if the configuration contains values that cannot
    /// be sent.
    pub fn new(config: &FetchConfig) -> Result<Self, FetcherError> {
        Self::with(config, Connector::new(&config.connect)?)
    }

    fn with(config: &FetchConfig, connector: Connector) -> Result<Self, FetcherError> {
        Ok(Self {
            connector,
            headers: RequestHeaders::new(&config.agent, &config.headers)?,
            cookies: config.cookies.then(CookieJar::default),
            pool: ConnectionPool::default(),
            spools: None,
            memory_budget: MemoryBudget::default(),
            read_timeout: config.read_timeout,
            body_bytes_max: config.body_bytes_max,
            page_options: Arc::new(PageOptions {
                token: product_token(&config.agent).into(),
                images: config.links.images,
            }),
        })
    }

    /// The same fetcher, which can keep bodies.
    #[must_use]
    pub fn with_spools(self, spools: Spools) -> Self {
        Self { spools: Some(spools), ..self }
    }

    /// Sends a request and reads its response, within its deadline. Dropping the future closes the
    /// connection and so cancels the request.
    pub async fn fetch(&self, request: &FetchRequest<'_>) -> Fetched {
        let mut fetched = Fetched::default();
        let started = Instant::now();
        let mut sleep = pin!(sleep_until(request.deadline));
        let mut timer = RequestTimer::new(sleep.as_mut(), started, request.deadline);
        let result = self.exchange(request, &mut timer, &mut fetched).await;
        // If the body is not wanted, the response is complete without it, unless it was to be kept.
        let unwanted = fetched.status.is_some_and(|status| !has_full_body(status));
        let counts = |failure: &Failure| !unwanted || failure.reason == Reason::Storage;
        fetched.failure = result.err().filter(counts);
        fetched
    }

    async fn exchange(
        &self,
        request: &FetchRequest<'_>,
        timer: &mut RequestTimer<'_>,
        fetched: &mut Fetched,
    ) -> Result<(), Failure> {
        let started = SystemTime::now();
        let ResponseHead { mut http, permit, response, copied } =
            self.send(request, timer, fetched).await?;
        let (head, incoming) = response.into_parts();
        if let Some(copied) = copied {
            fetched.exchange = Some(record_exchange(copied, &head, http.remote, started));
        }
        if let Some(cookies) = &self.cookies {
            cookies.store(request.url, &head.headers, started);
        }
        fetched.record_head(head, http.remote);
        let spools = self.spools.as_ref();
        let spool = spools.filter(|_| fetched.exchange.is_some()).map(Spools::begin);
        let mut raw = RawBody::new(&mut http, incoming, self.read_timeout, spool);
        let result = match request.purpose {
            _ if !fetched.status.is_some_and(has_full_body) => {
                drain(&mut raw, timer, fetched).await
            }
            FetchPurpose::Page => self.read_page(request, &mut raw, timer, fetched).await,
            FetchPurpose::Robots => self.read_robots(&mut raw, timer, fetched).await,
        };
        let (ended, spool) = (raw.ended, raw.spool.take());
        fetched.wire_bytes = raw.bytes;
        if let Some(exchange) = &mut fetched.exchange {
            exchange.body = spool;
            exchange.truncated = (!ended).then(|| warc_truncation(result.as_ref().err()));
        }
        drop(permit);
        // A response with two lengths is ambiguous, so its connection is not reused.
        let one_length = !(fetched.headers.contains_key(header::TRANSFER_ENCODING)
            && fetched.headers.contains_key(header::CONTENT_LENGTH));
        if ended && one_length && http.is_ready() {
            self.pool.put(origin(request.url), http);
        }
        result
    }

    /// Sends the request and waits for the head of its response.
    async fn send(
        &self,
        request: &FetchRequest<'_>,
        timer: &mut RequestTimer<'_>,
        fetched: &mut Fetched,
    ) -> Result<ResponseHead, Failure> {
        if let Some(mut http) = self.pool.take(origin(request.url)) {
            let permit = match http.remote {
                Some(remote) => timer.run(self.connector.permit(remote.ip())).await??,
                None => None,
            };
            match self.send_on(&mut http, request, timer).await {
                Err(failure) if failure.reason == Reason::Reset && http.has_sent_nothing() => {}
                Err(failure) => {
                    if failure.reason == Reason::Reset {
                        self.pool.suspend_reuse(origin(request.url));
                        fetched.reused_connection_ended = true;
                    }
                    return Err(failure);
                }
                Ok((response, copied)) => {
                    return Ok(ResponseHead { http, permit, response, copied });
                }
            }
        }
        // Boxed because it is large and seldom needed.
        let (mut http, permit) = Box::pin(self.open(request.url, timer)).await?;
        let (response, copied) = self.send_on(&mut http, request, timer).await?;
        Ok(ResponseHead { http, permit, response, copied })
    }

    async fn open(
        &self,
        url: &CanonicalUrl<'_>,
        timer: &mut RequestTimer<'_>,
    ) -> Result<(HttpConnection, Option<AddressPermit>), Failure> {
        let target = ConnectTarget::of(url);
        let mut connection = timer.run(self.connector.connect(&target)).await??;
        let permit = connection.permit.take();
        let mut headers = self.headers.for_url(url);
        let proxy =
            self.connector.proxy().filter(|proxy| !proxy.needs_tunnel(url.scheme() == "https"));
        if let Some(authorization) = proxy.and_then(Proxy::authorization) {
            headers.insert(header::PROXY_AUTHORIZATION, authorization.clone());
        }
        let template = RequestTemplate::new(url, connection.protocol, proxy.is_some(), headers)?;
        let opened = timer.run(HttpConnection::open(connection, template)).await?;
        Ok((opened.map_err(|error| Failure::of(Reason::Reset, &error))?, permit))
    }

    async fn send_on(
        &self,
        http: &mut HttpConnection,
        request: &FetchRequest<'_>,
        timer: &mut RequestTimer<'_>,
    ) -> Result<(Response<Incoming>, Option<Copied>), Failure> {
        let cookies = self.cookies.as_ref();
        let cookies = cookies.and_then(|jar| jar.header_for(request.url, SystemTime::now()));
        let head = http.template.request(request.url, request.validators, cookies)?;
        let copies = request.keep.raw && self.spools.is_some();
        let text =
            (copies && http.protocol() == HttpProtocol::Http2).then(|| head::request_text(&head));
        let until = Instant::now() + self.read_timeout;
        match timer.run_until(until, http.send(head, copies)).await? {
            Ok(answer) => answer.map(|(response, copied)| {
                (response, text.map(|sent| Copied { sent, received: Vec::new() }).or(copied))
            }),
            Err(Elapsed) if http.has_received_nothing() => {
                let text = format!("no answer within {:?}", self.read_timeout);
                Err(Failure::new(Reason::Silent, text))
            }
            Err(Elapsed) => {
                let text = format!("only a part of an answer within {:?}", self.read_timeout);
                Err(Failure::new(Reason::Slow, text))
            }
        }
    }

    async fn read_page(
        &self,
        request: &FetchRequest<'_>,
        raw: &mut RawBody<'_>,
        timer: &mut RequestTimer<'_>,
        fetched: &mut Fetched,
    ) -> Result<(), Failure> {
        let mut reader = self.document_reader(request.url, &fetched.headers);
        let mut hasher = blake3::Hasher::new();
        fetched.body = self.spools.as_ref().filter(|_| request.keep.decoded).map(Spools::begin);
        let mut body =
            DecodedBody::open(raw, &fetched.headers, self.body_bytes_max, &self.memory_budget)?;
        body.refuse_announced_over(self.body_bytes_max)?;
        while let Some(chunk) = body.next(timer).await? {
            fetched.bytes += chunk.len() as u64;
            if fetched.bytes > self.body_bytes_max {
                return Err(body::too_large(self.body_bytes_max));
            }
            hasher.update(chunk);
            let mut rest = chunk;
            while reader.step(&mut rest) {
                // Other tasks get their turn, and the deadline is checked.
                timer.run(tokio::task::yield_now()).await?;
            }
            let held_bytes = reader.memory_bytes();
            if let Some(spool) = &mut fetched.body
                && !spool.try_write_to_memory(chunk)
            {
                body::write_to_file(spool, chunk, timer).await?;
                body.restart_timers();
            }
            if fetched.memory_permit.is_none() && held_bytes > LINKS_FREE_BYTES {
                fetched.memory_permit =
                    Some(body.reserve_for_links(reader.memory_bytes_max(), timer).await?);
            }
        }
        fetched.hash = Some(hasher.finalize());
        fetched.page = Some(reader);
        Ok(())
    }

    async fn read_robots(
        &self,
        raw: &mut RawBody<'_>,
        timer: &mut RequestTimer<'_>,
        fetched: &mut Fetched,
    ) -> Result<(), Failure> {
        let mut body =
            DecodedBody::open(raw, &fetched.headers, ROBOTS_WIRE_BYTES_MAX, &self.memory_budget)?;
        while fetched.text.len() < ROBOTS_BYTES_MAX
            && let Some(chunk) = body.next(timer).await?
        {
            fetched.text.extend_from_slice(chunk);
        }
        fetched.bytes = fetched.text.len() as u64;
        Ok(())
    }

    /// The reader for the links of a body of any kind.
    fn document_reader(&self, url: &CanonicalUrl<'_>, headers: &HeaderMap) -> DocumentReader {
        let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let page = PageReader::new(url, pairs, &self.page_options);
        let content_type = headers.get(header::CONTENT_TYPE);
        let content_type = content_type.map(|value| String::from_utf8_lossy(value.as_bytes()));
        DocumentReader::new(content_type.as_deref(), url, page)
    }
}

/// Whether a response with this status contains the requested body. Partial content was not
/// requested.
fn has_full_body(status: u16) -> bool {
    (200..300).contains(&status) && status != 206
}

/// Reads an unwanted body so that the connection can be reused. An error only costs the connection.
async fn drain(
    raw: &mut RawBody<'_>,
    timer: &mut RequestTimer<'_>,
    fetched: &mut Fetched,
) -> Result<(), Failure> {
    while raw.bytes < DISCARDED_BODY_BYTES_MAX && raw.next(timer).await?.is_some() {
        fetched.bytes = raw.bytes;
    }
    Ok(())
}

/// The exchange up to the head of the response, for archives.
fn record_exchange(
    copied: Copied,
    head: &response::Parts,
    remote: Option<SocketAddr>,
    started: SystemTime,
) -> Exchange {
    let since_1970 = started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let response_head = match head::final_head(&copied.received) {
        Some(bytes) => bytes.to_vec(),
        None => head::response_text(head),
    };
    Exchange {
        request_head: copied.sent,
        response_head,
        remote,
        started_unix_ms: i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX),
        body: None,
        truncated: None,
    }
}

/// Why a body is incomplete, in the words of WARC/1.1.
fn warc_truncation(failure: Option<&Failure>) -> &'static str {
    match failure.map(|failure| failure.reason) {
        // Without a failure, reading stopped at a limit.
        None | Some(Reason::TooLarge | Reason::Bomb) => "length",
        Some(Reason::Timeout | Reason::Silent | Reason::Slow) => "time",
        Some(Reason::Encoding | Reason::Storage) => "unspecified",
        Some(_) => "disconnect",
    }
}

impl Fetched {
    fn record_head(&mut self, head: response::Parts, remote: Option<SocketAddr>) {
        let (status, headers) = (head.status, head.headers);
        self.status = Some(status.as_u16());
        self.version = Some(head.version);
        self.content_type = head::content_type(&headers);
        self.location = head::location(status, &headers);
        self.retry_after = retry_after(status, &headers, SystemTime::now());
        self.validators = head::validators(&headers);
        self.headers = headers;
        self.remote = remote;
    }
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Fetcher").field("connector", &self.connector).finish_non_exhaustive()
    }
}
