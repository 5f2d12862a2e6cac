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
//! have read the request: [`Fetched::kept_ended`] reports this, and a retry needs a permission of
//! its own.

#![expect(clippy::disallowed_methods, reason = "requests have time limits here")]

mod body;
mod cookies;
mod decode;
mod head;
mod headers;
mod meter;
mod pool;
#[cfg(test)]
mod tests;
mod watch;
mod wire;

use std::fmt;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::body::Incoming;
use hyper::http::response;
use hyper::{HeaderMap, Response, Version, header};
use tidings_protocol::CanonicalUrl;
use tokio::time::{Instant, sleep_until};

use self::body::{Body, Raw};
use self::cookies::Jar;
use self::head::Template;
pub use self::head::retry_after;
use self::headers::Headers;
pub use self::headers::{AddedHeader, HeaderError};
use self::meter::Copy as Copied;
use self::pool::Pool;
use self::watch::{Late, Watch};
use self::wire::Http;
use crate::config::{
    CrawlerConfig, LINKS_FREE_BYTES, ROBOTS_BYTES_MAX, ROBOTS_WIRE_BYTES_MAX,
    UNWANTED_BODY_BYTES_MAX,
};
use crate::connect::{Connector, Permit, Protocol, Proxy, ProxyError, Target};
use crate::document::Reader;
use crate::outcome::{Failure, Reason};
use crate::page::{PageOptions, PageReader};
use crate::report::{Exchange, Keep, Validators};
use crate::robots::product_token;
use crate::room::{Room, Share};
use crate::spool::{Spool, Spools};

/// Sends requests. Cheap to share. All users share one connection pool, which is closed with it.
pub struct Fetcher {
    connector: Connector,
    headers: Headers,
    cookies: Option<Jar>,
    pool: Pool,
    spools: Option<Spools>,
    room: Room,
    read_timeout: Duration,
    body_bytes_max: u64,
    reading: Arc<PageOptions>,
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
pub struct Request<'a> {
    /// The URL.
    pub url: &'a CanonicalUrl<'a>,
    /// The purpose.
    pub wanted: Wanted,
    /// From an earlier response: an unchanged document is not sent again (`304`).
    pub validators: Option<&'a Validators>,
    /// What is kept of the response.
    pub keep: Keep,
    /// The time limit.
    pub deadline: Instant,
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
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
    pub page: Option<Reader>,
    /// The shared memory for the links of a large document; it must be kept as long as the links.
    pub share: Option<Share>,
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
    pub kept_ended: bool,
}

/// The head of a response, and the connection that its body arrives on.
struct Answer {
    http: Http,
    /// The permit for the address.
    permit: Option<Permit>,
    response: Response<Incoming>,
    copied: Option<Copied>,
}

/// `scheme://host[:port]`: the scope of a connection, a cookie and a credential. The default port
/// is omitted.
fn origin<'a>(url: &'a CanonicalUrl<'_>) -> &'a str {
    let end = url.as_str().len() - url.path_and_query().len();
    &url.as_str()[..end]
}

impl Fetcher {
    /// Loads the certificates of the system. Fails if the configuration contains values that cannot
    /// be sent.
    pub fn new(config: &CrawlerConfig) -> Result<Self, FetcherError> {
        Self::with(config, Connector::new(config)?)
    }

    fn with(config: &CrawlerConfig, connector: Connector) -> Result<Self, FetcherError> {
        Ok(Self {
            connector,
            headers: Headers::new(&config.agent, &config.headers)?,
            cookies: config.cookies.then(Jar::default),
            pool: Pool::default(),
            spools: None,
            room: Room::default(),
            read_timeout: config.read_timeout,
            body_bytes_max: config.body_bytes_max,
            reading: Arc::new(PageOptions {
                token: product_token(&config.agent).into(),
                images: config.links.images,
            }),
        })
    }

    /// The same fetcher, which can keep bodies.
    #[must_use]
    pub fn keeping(self, spools: Spools) -> Self {
        Self { spools: Some(spools), ..self }
    }

    /// Sends a request and reads its response, within its deadline. Dropping the future closes the
    /// connection and so cancels the request.
    pub async fn fetch(&self, request: &Request<'_>) -> Fetched {
        let mut fetched = Fetched::default();
        let started = Instant::now();
        let mut sleep = pin!(sleep_until(request.deadline));
        let mut timer = Watch::new(sleep.as_mut(), started, request.deadline);
        let result = self.exchange(request, &mut timer, &mut fetched).await;
        // If the body is not wanted, the response is complete without it, unless it was to be kept.
        let unwanted = fetched.status.is_some_and(|status| !is_whole(status));
        let counts = |failure: &Failure| !unwanted || failure.reason == Reason::Storage;
        fetched.failure = result.err().filter(counts);
        fetched
    }

    async fn exchange(
        &self,
        request: &Request<'_>,
        timer: &mut Watch<'_>,
        fetched: &mut Fetched,
    ) -> Result<(), Failure> {
        let started = SystemTime::now();
        let Answer { mut http, permit, response, copied } =
            self.ask(request, timer, fetched).await?;
        let (head, incoming) = response.into_parts();
        if let Some(copied) = copied {
            fetched.exchange = Some(exchange(copied, &head, http.remote, started));
        }
        if let Some(cookies) = &self.cookies {
            cookies.note(request.url, &head.headers, started);
        }
        fetched.note_head(head, http.remote);
        let spools = self.spools.as_ref();
        let spool = spools.filter(|_| fetched.exchange.is_some()).map(Spools::begin);
        let mut raw = Raw::new(&mut http, incoming, self.read_timeout, spool);
        let result = match request.wanted {
            _ if !fetched.status.is_some_and(is_whole) => drain(&mut raw, timer, fetched).await,
            Wanted::Page => self.read_page(request, &mut raw, timer, fetched).await,
            Wanted::Robots => self.read_robots(&mut raw, timer, fetched).await,
        };
        let (ended, spool) = (raw.ended, raw.spool.take());
        fetched.wire_bytes = raw.bytes;
        if let Some(exchange) = &mut fetched.exchange {
            exchange.body = spool;
            exchange.truncated = (!ended).then(|| truncated(result.as_ref().err()));
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
    async fn ask(
        &self,
        request: &Request<'_>,
        timer: &mut Watch<'_>,
        fetched: &mut Fetched,
    ) -> Result<Answer, Failure> {
        if let Some(mut http) = self.pool.take(origin(request.url)) {
            let permit = match http.remote {
                Some(remote) => timer.finish(self.connector.permit(remote.ip())).await??,
                None => None,
            };
            match self.ask_on(&mut http, request, timer).await {
                Err(failure) if failure.reason == Reason::Reset && http.is_unwritten() => {}
                Err(failure) => {
                    if failure.reason == Reason::Reset {
                        self.pool.keep_none(origin(request.url));
                        fetched.kept_ended = true;
                    }
                    return Err(failure);
                }
                Ok((response, copied)) => return Ok(Answer { http, permit, response, copied }),
            }
        }
        // Boxed because it is large and seldom needed.
        let (mut http, permit) = Box::pin(self.open(request.url, timer)).await?;
        let (response, copied) = self.ask_on(&mut http, request, timer).await?;
        Ok(Answer { http, permit, response, copied })
    }

    async fn open(
        &self,
        url: &CanonicalUrl<'_>,
        timer: &mut Watch<'_>,
    ) -> Result<(Http, Option<Permit>), Failure> {
        let target = Target::of(url);
        let mut connection = timer.finish(self.connector.connect(&target)).await??;
        let permit = connection.permit.take();
        let mut headers = self.headers.to(url);
        let proxy = self.connector.proxy().filter(|proxy| !proxy.tunnels(url.scheme() == "https"));
        if let Some(authorization) = proxy.and_then(Proxy::authorization) {
            headers.insert(header::PROXY_AUTHORIZATION, authorization.clone());
        }
        let template = Template::new(url, connection.protocol, proxy.is_some(), headers)?;
        let opened = timer.finish(Http::open(connection, template)).await?;
        Ok((opened.map_err(|error| Failure::of(Reason::Reset, &error))?, permit))
    }

    async fn ask_on(
        &self,
        http: &mut Http,
        request: &Request<'_>,
        timer: &mut Watch<'_>,
    ) -> Result<(Response<Incoming>, Option<Copied>), Failure> {
        let cookies = self.cookies.as_ref();
        let cookies = cookies.and_then(|jar| jar.to(request.url, SystemTime::now()));
        let head = http.template.request(request.url, request.validators, cookies)?;
        let copies = request.keep.raw && self.spools.is_some();
        let text =
            (copies && http.protocol() == Protocol::Http2).then(|| head::request_text(&head));
        let until = Instant::now() + self.read_timeout;
        match timer.wait(until, http.send(head, copies)).await? {
            Ok(answer) => answer.map(|(response, copied)| {
                (response, text.map(|sent| Copied { sent, received: Vec::new() }).or(copied))
            }),
            Err(Late) if http.is_untouched() => {
                let text = format!("no answer within {:?}", self.read_timeout);
                Err(Failure::new(Reason::Silent, text))
            }
            Err(Late) => {
                let text = format!("only a part of an answer within {:?}", self.read_timeout);
                Err(Failure::new(Reason::Slow, text))
            }
        }
    }

    async fn read_page(
        &self,
        request: &Request<'_>,
        raw: &mut Raw<'_>,
        timer: &mut Watch<'_>,
        fetched: &mut Fetched,
    ) -> Result<(), Failure> {
        let mut reader = self.reader(request.url, &fetched.headers);
        let mut hasher = blake3::Hasher::new();
        fetched.body = self.spools.as_ref().filter(|_| request.keep.decoded).map(Spools::begin);
        let mut body = Body::open(raw, &fetched.headers, self.body_bytes_max, &self.room)?;
        body.refuse_over(self.body_bytes_max)?;
        while let Some(chunk) = body.next(timer).await? {
            fetched.bytes += chunk.len() as u64;
            if fetched.bytes > self.body_bytes_max {
                return Err(body::over(self.body_bytes_max));
            }
            hasher.update(chunk);
            let mut rest = chunk;
            while reader.step(&mut rest) {
                // Other tasks get their turn, and the deadline is checked.
                timer.finish(tokio::task::yield_now()).await?;
            }
            let held_bytes = reader.held_bytes();
            if let Some(spool) = &mut fetched.body
                && !spool.write_to_memory(chunk)
            {
                body::write_to_file(spool, chunk, timer).await?;
                body.listen_again();
            }
            if fetched.share.is_none() && held_bytes > LINKS_FREE_BYTES {
                fetched.share = Some(body.room_for_links(reader.room_bytes(), timer).await?);
            }
        }
        fetched.hash = Some(hasher.finalize());
        fetched.page = Some(reader);
        Ok(())
    }

    async fn read_robots(
        &self,
        raw: &mut Raw<'_>,
        timer: &mut Watch<'_>,
        fetched: &mut Fetched,
    ) -> Result<(), Failure> {
        let mut body = Body::open(raw, &fetched.headers, ROBOTS_WIRE_BYTES_MAX, &self.room)?;
        while fetched.text.len() < ROBOTS_BYTES_MAX
            && let Some(chunk) = body.next(timer).await?
        {
            fetched.text.extend_from_slice(chunk);
        }
        fetched.bytes = fetched.text.len() as u64;
        Ok(())
    }

    /// The reader for the links of a body of any kind.
    fn reader(&self, url: &CanonicalUrl<'_>, headers: &HeaderMap) -> Reader {
        let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let page = PageReader::new(url, pairs, &self.reading);
        let content_type = headers.get(header::CONTENT_TYPE);
        let content_type = content_type.map(|value| String::from_utf8_lossy(value.as_bytes()));
        Reader::new(content_type.as_deref(), url, page)
    }
}

/// Whether a response with this status contains the requested body. Partial content was not
/// requested.
fn is_whole(status: u16) -> bool {
    (200..300).contains(&status) && status != 206
}

/// Reads an unwanted body so that the connection can be reused. An error only costs the connection.
async fn drain(
    raw: &mut Raw<'_>,
    timer: &mut Watch<'_>,
    fetched: &mut Fetched,
) -> Result<(), Failure> {
    while raw.bytes < UNWANTED_BODY_BYTES_MAX && raw.next(timer).await?.is_some() {
        fetched.bytes = raw.bytes;
    }
    Ok(())
}

/// The exchange up to the head of the response, for archives.
fn exchange(
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
fn truncated(failure: Option<&Failure>) -> &'static str {
    match failure.map(|failure| failure.reason) {
        // Without a failure, reading stopped at a limit.
        None | Some(Reason::TooLarge | Reason::Bomb) => "length",
        Some(Reason::Timeout | Reason::Silent | Reason::Slow) => "time",
        Some(Reason::Encoding | Reason::Storage) => "unspecified",
        Some(_) => "disconnect",
    }
}

impl Fetched {
    fn note_head(&mut self, head: response::Parts, remote: Option<SocketAddr>) {
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
