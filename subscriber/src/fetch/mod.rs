//! Fetches one document: sends its request, reads the answer for its purpose, and keeps what sinks
//! need.
//!
//! `tidings-egress` sends the request and limits its bytes and times. Here a body is hashed and
//! searched for links chunk by chunk, and copied for archives. Redirects are not followed here;
//! each hop is a request of its own, with its own permission.

#![expect(clippy::disallowed_methods, reason = "requests have time limits here")]

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::http::response;
use hyper::{HeaderMap, Method, Version, header};
use tidings_documents::document::DocumentReader;
use tidings_documents::page::{
    IgnoredTexts, LinkConfig, PageContent, PageOptions, PageReader, PageSigns,
};
use tidings_egress::connect::{ConnectConfig, Connector, ProxyError};
use tidings_egress::http::{
    self, AddedHeader, BodyCopy, HeaderError, HttpClient, HttpRequest, RawBody, RequestTimer,
    Validators, WireCopy,
};
use tidings_egress::memory_budget::{MemoryBudget, MemoryPermit};
use tidings_egress::{Failure, Reason, retry_after};
use tidings_protocol::{CanonicalUrl, with_defaults};
use tidings_signature::identity::RequestSigner;
use tokio::time::{Instant, sleep_until};

use crate::report::{Exchange, KeepBodies};
use crate::robots::{
    Availability, ROBOTS_BYTES_MAX, ROBOTS_HOPS_MAX, RobotsResponse, product_token,
};
use crate::spool::{Spool, Spools};

/// Links of large documents, of all requests together, until they are stored.
const LINKS_BUDGET_BYTES: usize = 24 * 1024 * 1024;
/// Bytes of an encoded robots.txt: no coding makes it much longer than its text.
const ROBOTS_WIRE_BYTES_MAX: u64 = 2 * ROBOTS_BYTES_MAX as u64;
/// Memory of a document's links until it is stored, before it needs a permit of
/// `LINKS_BUDGET_BYTES`: about a thousand links.
const LINKS_FREE_BYTES: usize = 128 * 1024;

/// Fetches documents. All users share one connection pool, which is closed with it.
#[derive(Debug)]
pub struct Fetcher {
    client: HttpClient,
    spools: Option<Spools>,
    links_budget: MemoryBudget,
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
    pub purpose: FetchPurpose<'a>,
    /// From an earlier response: an unchanged document is not sent again (`304`).
    pub validators: Option<&'a Validators>,
    /// What is kept of the response.
    pub keep: KeepBodies,
    /// The time limit.
    pub deadline: Instant,
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchPurpose<'a> {
    /// The whole body, searched for links if it is a page.
    Page,
    /// The first 500 KiB as text.
    Robots,
    /// The whole body, of any status, for a page that is rendered.
    Part(PartRequest<'a>),
}

/// A request of a rendered page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRequest<'a> {
    /// The method, of a request without a body.
    pub method: &'a Method,
    /// Further headers; they replace those of the crawler.
    pub headers: &'a HeaderMap,
    /// Limit of the decoded body in bytes; a longer one fails.
    pub body_bytes_max: u64,
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
    /// The next request to this URL has other cookies.
    pub cookies_changed: bool,
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
    /// The beginning of a robots.txt, or the body of a part.
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

with_defaults! {
    /// How requests are made.
    #[derive(Clone, Debug)]
    pub struct FetchConfig {
        /// Which connections may be made, and how.
        pub connect: ConnectConfig = ConnectConfig::default(),
        /// The `User-Agent` header; the part before the first `/` is the product token that
        /// robots.txt rules are matched with. Default: `tidings/<version>`.
        pub agent: String = concat!("tidings/", env!("CARGO_PKG_VERSION")).to_owned(),
        /// A URL or an e-mail address for questions about this crawler, which
        /// [`agent`](Self::agent) contains already. Default: none, which is reported as a warning
        /// at the start.
        pub contact: Option<String> = None,
        /// Additional headers of requests. Default: none.
        pub headers: Vec<AddedHeader> = Vec::new(),
        /// Whether cookies are returned to the server that set them. Default: no.
        pub cookies: bool = false,
        /// Signs `https` requests, of pages and of robots.txt. Default: none.
        pub signer: Option<Arc<RequestSigner>> = None,
        /// What counts as a link of a page.
        pub links: LinkConfig = LinkConfig::default(),
        /// Text that does not count when a page is compared with its last record. Default: none.
        pub ignored: IgnoredTexts = Arc::default(),
        /// The longest silence of a server, before its answer begins and within the body. Default:
        /// 15 s.
        pub read_timeout: Duration = Duration::from_secs(15),
        /// Time limit for one request. Default: 40 s; never more than eight tenths of the task's
        /// lease, so that a request ends before the broker can release the host to another crawler.
        pub request_timeout: Duration = Duration::from_secs(40),
        /// Limit of a decoded body in bytes; a longer one fails the page. Default: 64 MiB. Bodies
        /// are streamed, so this bounds work rather than memory.
        pub body_bytes_max: u64 = 64 * 1024 * 1024,
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
        let FetchConfig { agent, headers, cookies, read_timeout, .. } = config;
        Ok(Self {
            client: HttpClient::new(connector, agent, headers, *cookies, *read_timeout)?
                .with_signer(config.signer.clone()),
            spools: None,
            links_budget: MemoryBudget::new(LINKS_BUDGET_BYTES),
            body_bytes_max: config.body_bytes_max,
            page_options: Arc::new(PageOptions {
                token: product_token(agent).into(),
                images: config.links.images,
                ignored: Arc::clone(&config.ignored),
                ..PageOptions::default()
            }),
        })
    }

    /// The same fetcher, which can keep bodies.
    #[must_use]
    pub fn with_spools(self, spools: Spools) -> Self {
        Self { spools: Some(spools), ..self }
    }

    /// The same fetcher, which hashes the text of pages.
    #[must_use]
    pub fn with_text_hashes(mut self) -> Self {
        Arc::make_mut(&mut self.page_options).text_hash = true;
        self
    }

    /// The same fetcher, which counts the signs that a page needs its scripts.
    #[must_use]
    pub fn with_signs(mut self) -> Self {
        Arc::make_mut(&mut self.page_options).signs = true;
        self
    }

    /// Whether a request to this URL would have cookies.
    pub fn has_cookies_for(&self, url: &CanonicalUrl<'_>) -> bool {
        self.client.has_cookies_for(url)
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
        let is_part = matches!(request.purpose, FetchPurpose::Part(_));
        let unwanted = !is_part && fetched.status.is_some_and(|status| !has_full_body(status));
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
        let copies = request.keep.raw && self.spools.is_some();
        let sent =
            HttpRequest { validators: request.validators, copies, ..HttpRequest::get(request.url) };
        let sent = match request.purpose {
            FetchPurpose::Part(PartRequest { method, headers, .. }) => {
                HttpRequest { method, headers: Some(headers), ..sent }
            }
            FetchPurpose::Page | FetchPurpose::Robots => sent,
        };
        let response = self.client.send(&sent, timer).await.map_err(|error| {
            fetched.reused_connection_ended = error.reused_connection_ended;
            error.failure
        })?;
        let remote = response.remote();
        let http::HttpResponse { head, copied, cookies_changed, body: mut raw } = response;
        fetched.cookies_changed = cookies_changed;
        if let Some(copied) = copied {
            fetched.exchange = Some(record_exchange(copied, &head, remote, started));
        }
        fetched.record_head(head, remote);
        let spools = self.spools.as_ref();
        raw.copy = spools.filter(|_| fetched.exchange.is_some()).map(Spools::begin);
        let result = match request.purpose {
            FetchPurpose::Part(part) => self.read_part(&part, &mut raw, timer, fetched).await,
            _ if !fetched.status.is_some_and(has_full_body) => {
                let discarded = raw.discard(timer).await;
                fetched.bytes = raw.bytes();
                discarded
            }
            FetchPurpose::Page => self.read_page(request, &mut raw, timer, fetched).await,
            FetchPurpose::Robots => self.read_robots(&mut raw, timer, fetched).await,
        };
        fetched.wire_bytes = raw.bytes();
        if let Some(exchange) = &mut fetched.exchange {
            exchange.body = raw.copy.take();
            let has_ended = raw.has_ended();
            exchange.truncated = (!has_ended).then(|| warc_truncation(result.as_ref().err()));
        }
        self.client.reclaim(request.url, &fetched.headers, raw);
        result
    }

    async fn read_page(
        &self,
        request: &FetchRequest<'_>,
        raw: &mut RawBody<Spool>,
        timer: &mut RequestTimer<'_>,
        fetched: &mut Fetched,
    ) -> Result<(), Failure> {
        let mut reader = document_reader(request.url, &fetched.headers, &self.page_options);
        let mut hasher = blake3::Hasher::new();
        fetched.body = self.spools.as_ref().filter(|_| request.keep.decoded).map(Spools::begin);
        let mut body = self.client.decode(raw, &fetched.headers, self.body_bytes_max)?;
        body.refuse_announced_over(self.body_bytes_max)?;
        while let Some(chunk) = body.next(timer).await? {
            fetched.bytes += chunk.len() as u64;
            if fetched.bytes > self.body_bytes_max {
                return Err(http::too_large(self.body_bytes_max));
            }
            hasher.update(chunk);
            let mut rest = chunk;
            while reader.step(&mut rest) {
                // Other tasks get their turn, and the deadline is checked.
                timer.run(tokio::task::yield_now()).await?;
            }
            let held_bytes = reader.memory_bytes();
            if let Some(spool) = &mut fetched.body
                && !spool.try_append(chunk)
            {
                http::append_copy(spool, chunk, timer).await?;
                body.restart_timers();
            }
            if fetched.memory_permit.is_none() && held_bytes > LINKS_FREE_BYTES {
                let links = body.reserve(&self.links_budget, reader.memory_bytes_max(), timer);
                fetched.memory_permit = Some(links.await?);
            }
        }
        fetched.hash = Some(hasher.finalize());
        fetched.page = Some(reader);
        Ok(())
    }

    async fn read_robots(
        &self,
        raw: &mut RawBody<Spool>,
        timer: &mut RequestTimer<'_>,
        fetched: &mut Fetched,
    ) -> Result<(), Failure> {
        let mut body = self.client.decode(raw, &fetched.headers, ROBOTS_WIRE_BYTES_MAX)?;
        while fetched.text.len() < ROBOTS_BYTES_MAX
            && let Some(chunk) = body.next(timer).await?
        {
            fetched.text.extend_from_slice(chunk);
        }
        fetched.bytes = fetched.text.len() as u64;
        Ok(())
    }

    async fn read_part(
        &self,
        part: &PartRequest<'_>,
        raw: &mut RawBody<Spool>,
        timer: &mut RequestTimer<'_>,
        fetched: &mut Fetched,
    ) -> Result<(), Failure> {
        let max = part.body_bytes_max;
        let mut body = self.client.decode(raw, &fetched.headers, max)?;
        if *part.method != Method::HEAD {
            body.refuse_announced_over(max)?;
        }
        while let Some(chunk) = body.next(timer).await? {
            if (fetched.text.len() + chunk.len()) as u64 > max {
                return Err(http::too_large(max));
            }
            fetched.text.extend_from_slice(chunk);
        }
        fetched.bytes = fetched.text.len() as u64;
        Ok(())
    }

    /// The content of a document as a browser has rendered it. `headers` are those of the document
    /// as it was fetched.
    pub fn read_rendered(
        &self,
        url: &CanonicalUrl<'_>,
        headers: &HeaderMap,
        html: &str,
    ) -> PageContent {
        let fields = headers.iter().filter(|(name, _)| *name != header::CONTENT_TYPE);
        let fields = fields.map(|(name, value)| (name.as_str(), value.as_bytes()));
        let fields = fields.chain([("content-type", &b"text/html; charset=utf-8"[..])]);
        let mut page = PageReader::new(url, fields, &self.page_options);
        page.feed(html.as_bytes());
        page.finish(url)
    }

    /// The content of a document that was fetched before.
    pub fn read_again(
        &self,
        url: &CanonicalUrl<'_>,
        headers: &HeaderMap,
        body: &[u8],
    ) -> PageContent {
        let mut reader = document_reader(url, headers, &self.page_options);
        reader.feed(body);
        reader.finish(url)
    }

    /// The signs that a page which was fetched before needs its scripts. `None`: it is not HTML.
    pub fn signs(
        &self,
        url: &CanonicalUrl<'_>,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Option<PageSigns> {
        let options = PageOptions { signs: true, ..PageOptions::clone(&self.page_options) };
        let mut reader = document_reader(url, headers, &Arc::new(options));
        reader.feed(body);
        reader.finish(url).signs
    }
}

/// The reader for the links of a body of any kind.
fn document_reader(
    url: &CanonicalUrl<'_>,
    headers: &HeaderMap,
    options: &Arc<PageOptions>,
) -> DocumentReader {
    let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let page = PageReader::new(url, pairs, options);
    let content_type = headers.get(header::CONTENT_TYPE);
    let content_type = content_type.map(|value| String::from_utf8_lossy(value.as_bytes()));
    DocumentReader::new(content_type.as_deref(), url, page)
}

/// Whether a response with this status contains the requested body. Partial content was not
/// requested.
fn has_full_body(status: u16) -> bool {
    (200..300).contains(&status) && status != 206
}

/// The exchange up to the head of the response, for archives.
fn record_exchange(
    copied: WireCopy,
    head: &response::Parts,
    remote: Option<SocketAddr>,
    started: SystemTime,
) -> Exchange {
    let since_1970 = started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let response_head = copied.response_head(head);
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
        self.content_type = http::content_type(&headers);
        self.location = http::location(status, &headers);
        self.retry_after = retry_after(status, &headers, SystemTime::now());
        self.validators = http::validators(&headers);
        self.headers = headers;
        self.remote = remote;
    }
}
