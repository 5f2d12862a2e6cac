//! One request over HTTP, bounded in bytes and time whatever the server does.
//!
//! A body is never held: it is decoded, counted, hashed and read for links chunk by chunk. There
//! are three clocks: until the connection stands, for every silence, and for the whole request.
//! Redirects are not followed here; each hop is a request of its own, with its own permission.
//!
//! A connection is used again for the next request to the same scheme, host and port. If the server has
//! closed it before a byte of the request was written, no request was made, and a new connection is opened
//! at once. If the connection ends later and before the head of the answer, the server may have read the
//! request: [`Fetched::kept_ended`] says so, and the repetition needs a permission of its own.

#![expect(clippy::disallowed_methods, reason = "this is where requests are bounded in time")]

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

/// Makes requests. Cheap to share; one pool of connections for all, which ends with it.
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

/// Why requests cannot be made at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FetcherError {
    /// The agent, or a header of the configuration.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The proxy of the configuration.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What to ask for.
    pub url: &'a CanonicalUrl<'a>,
    /// What for.
    pub wanted: Wanted,
    /// Of an earlier answer: one that has not changed need not come again (`304`).
    pub validators: Option<&'a Validators>,
    /// What is kept of the answer.
    pub keep: Keep,
    /// It is over by then.
    pub deadline: Instant,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The whole body, read for links if it is a page.
    Page,
    /// The first 500 KiB as text.
    Robots,
}

/// What came of a request, as far as it got.
#[derive(Debug, Default)]
pub struct Fetched {
    /// Of the answer; `None` if none came.
    pub status: Option<u16>,
    /// Of the answer.
    pub version: Option<Version>,
    /// Of the answer.
    pub headers: HeaderMap,
    /// As the server named it.
    pub content_type: Option<String>,
    /// Where a redirect leads, as the server wrote it.
    pub location: Option<String>,
    /// How long the server asks to be left alone.
    pub retry_after: Option<Duration>,
    /// What to ask with the next time.
    pub validators: Validators,
    /// Who answered; `None` behind a proxy.
    pub remote: Option<SocketAddr>,
    /// Bytes of the body, decoded; of one that is not wanted (that of an error), as it came.
    pub bytes: u64,
    /// Bytes of the body as it came.
    pub wire_bytes: u64,
    /// BLAKE3 of the decoded body of a page that was read to its end.
    pub hash: Option<blake3::Hash>,
    /// Has seen the whole document, if it was read to its end.
    pub page: Option<Reader>,
    /// Memory that all share, if the document has many links: to be held as long as they are.
    pub share: Option<Share>,
    /// The beginning of a robots.txt.
    pub text: Vec<u8>,
    /// The decoded body of a page, as far as it was read, if it was to be kept.
    pub body: Option<Spool>,
    /// What went over the wire from the head of the answer on, if that was to be kept.
    pub exchange: Option<Exchange>,
    /// Why there is no complete answer.
    pub failure: Option<Failure>,
    /// The request was written to a kept connection that ended before the head of the answer. The next
    /// requests to this origin use new connections for a while.
    pub kept_ended: bool,
}

/// The head of an answer, and the connection that its body comes on.
struct Answer {
    http: Http,
    /// Of the limit per address.
    permit: Option<Permit>,
    response: Response<Incoming>,
    copied: Option<Copied>,
}

/// `scheme://host[:port]`: what a connection, a cookie and a credential are for. The port is left out
/// where it is the default one.
fn origin<'a>(url: &'a CanonicalUrl<'_>) -> &'a str {
    let end = url.as_str().len() - url.path_and_query().len();
    &url.as_str()[..end]
}

impl Fetcher {
    /// Reads the certificates of the system. Fails if the configuration asks for what cannot be sent.
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

    /// The same, able to keep bodies.
    #[must_use]
    pub fn keeping(self, spools: Spools) -> Self {
        Self { spools: Some(spools), ..self }
    }

    /// Makes one request and reads its answer; over at its deadline at the latest. Dropping the
    /// future closes the connection and so ends the request.
    pub async fn fetch(&self, request: &Request<'_>) -> Fetched {
        let mut fetched = Fetched::default();
        let started = Instant::now();
        let mut timer = pin!(sleep_until(request.deadline));
        let mut watch = Watch::new(timer.as_mut(), started, request.deadline);
        let result = self.exchange(request, &mut watch, &mut fetched).await;
        // An answer of which nobody wants the body is complete without it, however it ended; unless it was to be kept.
        let unwanted = fetched.status.is_some_and(|status| !is_whole(status));
        let counts = |failure: &Failure| !unwanted || failure.reason == Reason::Storage;
        fetched.failure = result.err().filter(counts);
        fetched
    }

    async fn exchange(
        &self,
        request: &Request<'_>,
        watch: &mut Watch<'_>,
        fetched: &mut Fetched,
    ) -> Result<(), Failure> {
        let started = SystemTime::now();
        let Answer { mut http, permit, response, copied } =
            self.ask(request, watch, fetched).await?;
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
            _ if !fetched.status.is_some_and(is_whole) => drain(&mut raw, watch, fetched).await,
            Wanted::Page => self.read_page(request, &mut raw, watch, fetched).await,
            Wanted::Robots => self.read_robots(&mut raw, watch, fetched).await,
        };
        let (ended, spool) = (raw.ended, raw.spool.take());
        fetched.wire_bytes = raw.bytes;
        if let Some(exchange) = &mut fetched.exchange {
            exchange.body = spool;
            exchange.truncated = (!ended).then(|| truncated(result.as_ref().err()));
        }
        drop(permit);
        // Of two lengths that are said one is a lie, and who believes which is anybody's guess.
        let one_length = !(fetched.headers.contains_key(header::TRANSFER_ENCODING)
            && fetched.headers.contains_key(header::CONTENT_LENGTH));
        if ended && one_length && http.is_ready() {
            self.pool.put(origin(request.url), http);
        }
        result
    }

    /// Sends the request and waits for the head of its answer.
    async fn ask(
        &self,
        request: &Request<'_>,
        watch: &mut Watch<'_>,
        fetched: &mut Fetched,
    ) -> Result<Answer, Failure> {
        if let Some(mut http) = self.pool.take(origin(request.url)) {
            let permit = match http.remote {
                Some(remote) => watch.finish(self.connector.permit(remote.ip())).await??,
                None => None,
            };
            match self.ask_on(&mut http, request, watch).await {
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
        // It is large, and seldom needed.
        let (mut http, permit) = Box::pin(self.open(request.url, watch)).await?;
        let (response, copied) = self.ask_on(&mut http, request, watch).await?;
        Ok(Answer { http, permit, response, copied })
    }

    async fn open(
        &self,
        url: &CanonicalUrl<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<(Http, Option<Permit>), Failure> {
        let target = Target::of(url);
        let mut connection = watch.finish(self.connector.connect(&target)).await??;
        let permit = connection.permit.take();
        let mut headers = self.headers.to(url);
        let proxy = self.connector.proxy().filter(|proxy| !proxy.tunnels(url.scheme() == "https"));
        if let Some(authorization) = proxy.and_then(Proxy::authorization) {
            headers.insert(header::PROXY_AUTHORIZATION, authorization.clone());
        }
        let template = Template::new(url, connection.protocol, proxy.is_some(), headers)?;
        let opened = watch.finish(Http::open(connection, template)).await?;
        Ok((opened.map_err(|error| Failure::of(Reason::Reset, &error))?, permit))
    }

    async fn ask_on(
        &self,
        http: &mut Http,
        request: &Request<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<(Response<Incoming>, Option<Copied>), Failure> {
        let cookies = self.cookies.as_ref();
        let cookies = cookies.and_then(|jar| jar.to(request.url, SystemTime::now()));
        let head = http.template.request(request.url, request.validators, cookies)?;
        let copies = request.keep.raw && self.spools.is_some();
        let text =
            (copies && http.protocol() == Protocol::Http2).then(|| head::request_text(&head));
        let until = Instant::now() + self.read_timeout;
        match watch.wait(until, http.send(head, copies)).await? {
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
        watch: &mut Watch<'_>,
        fetched: &mut Fetched,
    ) -> Result<(), Failure> {
        let mut reader = self.reader(request.url, &fetched.headers);
        let mut hasher = blake3::Hasher::new();
        fetched.body = self.spools.as_ref().filter(|_| request.keep.decoded).map(Spools::begin);
        let mut body = Body::open(raw, &fetched.headers, self.body_bytes_max, &self.room)?;
        body.refuse_over(self.body_bytes_max)?;
        while let Some(chunk) = body.next(watch).await? {
            fetched.bytes += chunk.len() as u64;
            if fetched.bytes > self.body_bytes_max {
                return Err(body::over(self.body_bytes_max));
            }
            hasher.update(chunk);
            let mut rest = chunk;
            while reader.step(&mut rest) {
                // Others have their turn, and the deadline is looked at.
                watch.finish(tokio::task::yield_now()).await?;
            }
            let held_bytes = reader.held_bytes();
            if let Some(spool) = &mut fetched.body
                && !spool.write_to_memory(chunk)
            {
                body::write_to_file(spool, chunk, watch).await?;
                body.listen_again();
            }
            if fetched.share.is_none() && held_bytes > LINKS_FREE_BYTES {
                fetched.share = Some(body.room_for_links(reader.room_bytes(), watch).await?);
            }
        }
        fetched.hash = Some(hasher.finalize());
        fetched.page = Some(reader);
        Ok(())
    }

    async fn read_robots(
        &self,
        raw: &mut Raw<'_>,
        watch: &mut Watch<'_>,
        fetched: &mut Fetched,
    ) -> Result<(), Failure> {
        let mut body = Body::open(raw, &fetched.headers, ROBOTS_WIRE_BYTES_MAX, &self.room)?;
        while fetched.text.len() < ROBOTS_BYTES_MAX
            && let Some(chunk) = body.next(watch).await?
        {
            fetched.text.extend_from_slice(chunk);
        }
        fetched.bytes = fetched.text.len() as u64;
        Ok(())
    }

    /// Reads a body for links, whatever it is.
    fn reader(&self, url: &CanonicalUrl<'_>, headers: &HeaderMap) -> Reader {
        let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let page = PageReader::new(url, pairs, &self.reading);
        let content_type = headers.get(header::CONTENT_TYPE);
        let content_type = content_type.map(|value| String::from_utf8_lossy(value.as_bytes()));
        Reader::new(content_type.as_deref(), url, page)
    }
}

/// Whether an answer with this status has the body that was asked for. No part was.
fn is_whole(status: u16) -> bool {
    (200..300).contains(&status) && status != 206
}

/// Reads what nobody wants, so that the connection can be used again. What goes wrong with that costs the
/// connection and nothing else.
async fn drain(
    raw: &mut Raw<'_>,
    watch: &mut Watch<'_>,
    fetched: &mut Fetched,
) -> Result<(), Failure> {
    while raw.bytes < UNWANTED_BODY_BYTES_MAX && raw.next(watch).await?.is_some() {
        fetched.bytes = raw.bytes;
    }
    Ok(())
}

/// For archives: what was said until the head of the answer had come.
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

/// Why a body is not whole, in the words of WARC/1.1.
fn truncated(failure: Option<&Failure>) -> &'static str {
    match failure.map(|failure| failure.reason) {
        // Without a failure we had enough.
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
