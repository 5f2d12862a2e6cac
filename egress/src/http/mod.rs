//! Sends requests for documents, with limits in bytes and time for any server.
//!
//! A body is never buffered as a whole: it is decoded and counted chunk by chunk. There are three
//! time limits: for the connection, for each silence, and for the whole request. Redirects are not
//! followed here; each hop is a request of its own, with its own permission.
//!
//! A connection is reused for the next request to the same scheme, host and port. If the server has
//! closed it before a byte of the request was written, no request was made, and a new connection is
//! opened at once. If the connection ends later and before the head of the response, the server may
//! have read the request: [`HttpError::reused_connection_ended`] reports this, and a retry needs a
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

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::response;
use hyper::{HeaderMap, Method, Response, header};
use tidings_protocol::{CanonicalUrl, partial_debug};
use tidings_signature::identity::RequestSigner;
use tokio::time::Instant;

pub use self::body::{
    BodyCopy, DecodedBody, RawBody, SLOW_BYTES_PER_SECOND, SLOW_WINDOW, append_copy, too_large,
};
use self::cookies::CookieJar;
pub use self::decode::DECODED_RATIO_MAX;
use self::head::RequestTemplate;
pub use self::head::{Validators, content_type, location, validators};
use self::headers::RequestHeaders;
pub use self::headers::{AddedHeader, HeaderError};
pub use self::http_connection::HEADERS_MAX;
use self::http_connection::HttpConnection;
pub use self::meter::WireCopy;
use self::pool::ConnectionPool;
pub use self::pool::POOL_IDLE;
use self::request_timer::Elapsed;
pub use self::request_timer::RequestTimer;
use crate::connect::{AddressPermit, ConnectTarget, Connector, HttpProtocol, Proxy};
use crate::failure::{Failure, Reason};
use crate::memory_budget::MemoryBudget;

/// Limit of the head of an answer in bytes. Browsers allow 256 KiB; honest servers stay below 16
/// KiB.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Bytes read before the end of a head: `1xx` answers, and the head itself. One read may include a
/// part of the body, so this is more than a head.
pub const BEFORE_HEAD_BYTES_MAX: u64 = 256 * 1024;
/// Decoder windows of all requests together: six of brotli's usual size, or one of the largest.
pub const WINDOWS_BUDGET_BYTES: usize = 24 * 1024 * 1024;
/// Bytes read of an unwanted body (redirects, errors), so that the connection can be used again. A
/// longer body costs the connection.
const DISCARDED_BODY_BYTES_MAX: u64 = 256 * 1024;

/// Sends requests. All of them share one connection pool, which is closed with it.
pub struct HttpClient {
    connector: Connector,
    headers: RequestHeaders,
    cookies: Option<CookieJar>,
    signer: Option<Arc<RequestSigner>>,
    pool: ConnectionPool,
    windows_budget: MemoryBudget,
    read_timeout: Duration,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequest<'a> {
    /// The URL.
    pub url: &'a CanonicalUrl<'a>,
    /// From an earlier response: an unchanged document is not sent again (`304`).
    pub validators: Option<&'a Validators>,
    /// Whether the bytes on the wire are copied, up to the head of the response.
    pub copies: bool,
    /// The method, of a request without a body.
    pub method: &'a Method,
    /// Further headers; they replace those of the client.
    pub headers: Option<&'a HeaderMap>,
}

impl<'a> HttpRequest<'a> {
    /// A plain `GET` request.
    pub fn get(url: &'a CanonicalUrl<'a>) -> Self {
        Self { url, validators: None, copies: false, method: &Method::GET, headers: None }
    }
}

/// A response with an unread body.
pub struct HttpResponse<C> {
    /// The head of the response.
    pub head: response::Parts,
    /// The copied bytes, if they were requested.
    pub copied: Option<WireCopy>,
    /// The next request to this URL has other cookies.
    pub cookies_changed: bool,
    /// The body.
    pub body: RawBody<C>,
}

/// A request without a response.
#[derive(Debug)]
pub struct HttpError {
    /// Why there is none.
    pub failure: Failure,
    /// The request was written to a reused connection, which ended before the head of the response.
    /// For a while, requests to this origin use new connections.
    pub reused_connection_ended: bool,
}

impl From<Failure> for HttpError {
    fn from(failure: Failure) -> Self {
        Self { failure, reused_connection_ended: false }
    }
}

/// `scheme://host[:port]`: the scope of a connection, a cookie and a credential. The default port
/// is omitted.
fn origin<'a>(url: &'a CanonicalUrl<'_>) -> &'a str {
    let end = url.as_str().len() - url.path_and_query().len();
    &url.as_str()[..end]
}

impl HttpClient {
    /// Sends requests through `connector` as `agent`, with the headers that the operator adds, and
    /// returns cookies to the servers that set them if `cookies` is set. `read_timeout` is the
    /// longest silence of a server, before its answer begins and within the body.
    pub fn new(
        connector: Connector,
        agent: &str,
        added: &[AddedHeader],
        cookies: bool,
        read_timeout: Duration,
    ) -> Result<Self, HeaderError> {
        Ok(Self {
            connector,
            headers: RequestHeaders::new(agent, added)?,
            cookies: cookies.then(CookieJar::default),
            signer: None,
            pool: ConnectionPool::default(),
            windows_budget: MemoryBudget::new(WINDOWS_BUDGET_BYTES),
            read_timeout,
        })
    }

    /// The same client, which signs its `https` requests.
    #[must_use]
    pub fn with_signer(self, signer: Option<Arc<RequestSigner>>) -> Self {
        Self { signer, ..self }
    }

    /// Sends a request and waits for the head of its response. Dropping the future closes the
    /// connection and so cancels the request.
    pub async fn send<C: BodyCopy>(
        &self,
        request: &HttpRequest<'_>,
        timer: &mut RequestTimer<'_>,
    ) -> Result<HttpResponse<C>, HttpError> {
        let started = SystemTime::now();
        let (http, permit, response, copied) = self.send_on_any(request, timer).await?;
        let (head, incoming) = response.into_parts();
        let cookies_changed = self.cookies.as_ref().is_some_and(|jar| {
            let before = jar.header_for(request.url, started);
            jar.store(request.url, &head.headers, started);
            jar.header_for(request.url, started) != before
        });
        let body = RawBody::new(http, permit, (&head.headers, incoming), self.read_timeout);
        Ok(HttpResponse { head, copied, cookies_changed, body })
    }

    /// Whether a request to this URL would have cookies.
    pub fn has_cookies_for(&self, url: &CanonicalUrl<'_>) -> bool {
        let now = SystemTime::now();
        self.cookies.as_ref().is_some_and(|jar| jar.header_for(url, now).is_some())
    }

    /// Decodes a body. At most `wire_bytes_max` encoded bytes are read; the caller counts the
    /// decoded ones. Fails for encodings that were not requested.
    pub fn decode<'a, C: BodyCopy>(
        &'a self,
        body: &'a mut RawBody<C>,
        headers: &HeaderMap,
        wire_bytes_max: u64,
    ) -> Result<DecodedBody<'a, C>, Failure> {
        DecodedBody::open(body, headers, wire_bytes_max, &self.windows_budget)
    }

    /// Takes back the connection of a response for the next request to the same origin, if its body
    /// was read to the end.
    pub fn reclaim<C>(&self, url: &CanonicalUrl<'_>, headers: &HeaderMap, body: RawBody<C>) {
        // A response with two lengths is ambiguous, so its connection is not reused.
        let has_one_length = !(headers.contains_key(header::TRANSFER_ENCODING)
            && headers.contains_key(header::CONTENT_LENGTH));
        if let Some(mut http) = body.into_connection().filter(|_| has_one_length)
            && http.is_ready()
        {
            self.pool.put(origin(url), http);
        }
    }

    /// The number of idle connections.
    pub fn idle_connections(&self) -> usize {
        self.pool.len()
    }

    /// Whether memory for decoder windows is left.
    pub fn has_memory(&self) -> bool {
        self.windows_budget.has_any()
    }

    async fn send_on_any(
        &self,
        request: &HttpRequest<'_>,
        timer: &mut RequestTimer<'_>,
    ) -> Result<
        (HttpConnection, Option<AddressPermit>, Response<Incoming>, Option<WireCopy>),
        HttpError,
    > {
        if let Some(mut http) = self.pool.take(origin(request.url)) {
            let permit = match http.remote {
                Some(remote) => timer.run(self.connector.permit(remote.ip())).await??,
                None => None,
            };
            match self.send_on(&mut http, request, timer).await {
                Err(failure) if failure.reason == Reason::Reset && http.has_sent_nothing() => {}
                Err(failure) => {
                    let reused_connection_ended = failure.reason == Reason::Reset;
                    if reused_connection_ended {
                        self.pool.suspend_reuse(origin(request.url));
                    }
                    return Err(HttpError { failure, reused_connection_ended });
                }
                Ok((response, copied)) => return Ok((http, permit, response, copied)),
            }
        }
        // Boxed because it is large and seldom needed.
        let (mut http, permit) = Box::pin(self.open(request.url, timer)).await?;
        let (response, copied) = self.send_on(&mut http, request, timer).await?;
        Ok((http, permit, response, copied))
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
        request: &HttpRequest<'_>,
        timer: &mut RequestTimer<'_>,
    ) -> Result<(Response<Incoming>, Option<WireCopy>), Failure> {
        let cookies = self.cookies.as_ref();
        let now = SystemTime::now();
        let cookies = cookies.and_then(|jar| jar.header_for(request.url, now));
        let mut head = http.template.request(request, cookies)?;
        if let Some(signer) = &self.signer {
            sign(head.headers_mut(), signer, request.method, request.url, now);
        }
        let text = (request.copies && http.protocol() == HttpProtocol::Http2)
            .then(|| head::request_text(&head));
        let until = Instant::now() + self.read_timeout;
        match timer.run_until(until, http.send(head, request.copies)).await? {
            Ok(answer) => answer.map(|(response, copied)| {
                let copied = text.map(|sent| WireCopy { sent, received: Vec::new() }).or(copied);
                (response, copied)
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
}

/// Adds the headers that sign a request, if its URL is `https` and a key is valid.
pub(crate) fn sign(
    headers: &mut HeaderMap,
    signer: &RequestSigner,
    method: &Method,
    url: &CanonicalUrl<'_>,
    now: SystemTime,
) {
    let now_unix_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let fields = signer.sign(method.as_str(), url, now_unix_s);
    for (name, value) in fields.into_iter().flatten() {
        let value = HeaderValue::try_from(value).expect("URLs and Base64 are visible ASCII");
        headers.insert(HeaderName::from_static(name), value);
    }
}

impl<C> HttpResponse<C> {
    /// The address of the server; `None` behind a proxy.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.body.remote()
    }
}

partial_debug!(HttpClient { connector });
