//! HTTP requests to the servers of others: callbacks, deliveries and verifications of the hub, and
//! requests to hubs.
//!
//! `connections.rs` makes the connections and keeps them for the next request to the same server.
//! It connects only to addresses that the operator allows, as the crawler does
//! ([`crate::connect`]). A redirect counts as a response and is not followed. A failed request is
//! not repeated here: the caller decides, and sends it again later.

#![expect(clippy::disallowed_methods, reason = "limits requests, and Retry-After may be a date")]

mod connections;

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_LENGTH, HeaderValue, LOCATION, TRANSFER_ENCODING, USER_AGENT,
};
use hyper::{HeaderMap, Method, StatusCode};
use reqwest::{Client, Response, Url};
use tidings_protocol::{CanonicalUrl, UncallableHost};
use tidings_signature::identity::RequestSigner;

use self::connections::{AllowedResolver, build_client};
use crate::connect::{ConnectTarget, Connector};
use crate::failure::{Failure, Reason, causes};
use crate::http::{HEAD_BYTES_MAX, sign};
use crate::retry_after::retry_after;

/// Bytes of an unwanted body that are read to keep the connection.
const DRAIN_BYTES_MAX: usize = 64 << 10;

/// Time limit for that. A body mostly arrives with its head.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(100);

/// Sends requests.
#[derive(Debug)]
pub struct OutgoingClient {
    connector: Arc<Connector>,
    client: Client,
    agent: HeaderValue,
    signer: Option<Arc<RequestSigner>>,
    /// Time limit of a request, from the name lookup to the last byte.
    timeout: Duration,
}

/// A response.
#[derive(Debug, Clone)]
pub struct OutgoingResponse {
    /// Any status except 1xx.
    pub status: StatusCode,
    /// Limited in bytes and number.
    pub headers: HeaderMap,
    /// The body, up to the limit of the request.
    pub body: Bytes,
    /// The body was not cut off.
    pub is_complete: bool,
}

impl OutgoingResponse {
    /// How long the server asks clients to wait, with 429 and 503.
    pub fn retry_after(&self) -> Option<Duration> {
        retry_after(self.status, &self.headers, SystemTime::now())
    }

    /// The target of a redirect, absolute.
    pub fn redirect(&self, of: &CanonicalUrl<'_>) -> Option<CanonicalUrl<'static>> {
        if !matches!(self.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
            return None;
        }
        of.join(self.headers.get(LOCATION)?.to_str().ok()?).ok()
    }
}

impl OutgoingClient {
    /// Sends requests through `connector`, with its address rules and its proxy, as `agent`, each
    /// within `timeout`.
    pub fn new(connector: Connector, agent: HeaderValue, timeout: Duration) -> Self {
        let connector = Arc::new(connector);
        let client = build_client(&connector, Arc::new(AllowedResolver(Arc::clone(&connector))));
        Self { connector, client, agent, signer: None, timeout }
    }

    /// The same client, which signs its `https` requests.
    #[must_use]
    pub fn with_signer(self, signer: Option<Arc<RequestSigner>>) -> Self {
        Self { signer, ..self }
    }

    /// Sends a request and waits for the response. At most `body_max` bytes of the body are read;
    /// with 0 only the head is needed. A failure is for people; the request may have arrived
    /// nonetheless.
    pub async fn send(
        &self,
        method: Method,
        url: &CanonicalUrl<'_>,
        headers: HeaderMap,
        body: Bytes,
        body_max: usize,
    ) -> Result<OutgoingResponse, Failure> {
        let exchange = self.exchange(method, url, headers, body, body_max);
        let timed_out =
            || Failure::new(Reason::Timeout, format!("no answer within {:?}", self.timeout));
        tokio::time::timeout(self.timeout, exchange).await.unwrap_or_else(|_| Err(timed_out()))
    }

    async fn exchange(
        &self,
        method: Method,
        url: &CanonicalUrl<'_>,
        mut headers: HeaderMap,
        body: Bytes,
        body_max: usize,
    ) -> Result<OutgoingResponse, Failure> {
        let pages_only = |error: UncallableHost| Failure::new(Reason::BadHttp, error.to_string());
        url.check_callable().map_err(pages_only)?;
        self.connector.check(&ConnectTarget::of(url)).await?;
        headers.entry(USER_AGENT).or_insert_with(|| self.agent.clone());
        headers.entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static("identity"));
        if let Some(signer) = &self.signer {
            sign(&mut headers, signer, &method, url, SystemTime::now());
        }
        let url = Url::parse(url.as_str()).map_err(|error| Failure::of(Reason::BadHttp, &error))?;
        let request = self.client.request(method, url).headers(headers).body(body);
        let answer = request.send().await.map_err(|error| self.failure(error))?;
        // reqwest receives at most 400 KiB of an HTTP/1 head, and has no other limit for it.
        let head_bytes: usize = answer
            .headers()
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + 4)
            .sum();
        if head_bytes > HEAD_BYTES_MAX {
            let text = format!("the head of the answer has more than {HEAD_BYTES_MAX} bytes");
            return Err(Failure::new(Reason::BadHttp, text));
        }
        self.read_body(answer, body_max).await
    }

    async fn read_body(
        &self,
        mut answer: Response,
        body_max: usize,
    ) -> Result<OutgoingResponse, Failure> {
        let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
        let ends_with_connection =
            !headers.contains_key(CONTENT_LENGTH) && !headers.contains_key(TRANSFER_ENCODING);
        let mut body = BytesMut::new();
        let mut is_whole = body_max > 0 || answer.content_length() == Some(0);
        while let Some(data) = self.chunk(&mut answer, body_max > 0, ends_with_connection).await? {
            let room = body_max - body.len();
            body.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() > room {
                is_whole = false;
                break;
            }
        }
        if !is_whole {
            drain(answer).await;
        }
        Ok(OutgoingResponse { status, headers, body: body.freeze(), is_complete: is_whole })
    }

    /// The next part of the body, if it is wanted and exists.
    async fn chunk(
        &self,
        answer: &mut Response,
        is_wanted: bool,
        ends_with_connection: bool,
    ) -> Result<Option<Bytes>, Failure> {
        if !is_wanted {
            return Ok(None);
        }
        match answer.chunk().await {
            // Many servers end a connection without the `close_notify` of TLS.
            Err(error) if ends_with_connection && is_eof(&error) => Ok(None),
            chunk => chunk.map_err(|error| self.failure(error).with_context("body: ")),
        }
    }

    fn failure(&self, error: reqwest::Error) -> Failure {
        // A URL may contain a secret, and the caller knows the URL.
        let error = error.without_url();
        let of = |reason| Failure::of(reason, &error);
        for cause in causes(&error) {
            if let Some(failure) = cause.downcast_ref::<Failure>() {
                return failure.clone();
            }
            match cause.downcast_ref::<rustls::Error>() {
                Some(rustls::Error::InvalidCertificate(_)) => return of(Reason::Certificate),
                Some(_) => return of(Reason::Tls),
                None => {}
            }
            if let Some(error) = cause.downcast_ref::<hyper::Error>()
                && error.is_parse()
            {
                return of(Reason::BadHttp);
            }
        }
        if !error.is_connect() {
            of(Reason::Reset)
        } else if error.is_timeout() {
            of(Reason::ConnectTimeout)
        } else if self.connector.proxy().is_some()
            && !causes(&error).any(<dyn std::error::Error>::is::<io::Error>)
        {
            of(Reason::Proxy)
        } else {
            of(Reason::Connect)
        }
    }
}

/// Reads the rest of a body, so that the connection is free for the next request. If the rest is
/// too long, late or broken, the connection is closed.
async fn drain(mut answer: Response) {
    let drained = async {
        let mut bytes = 0;
        while bytes <= DRAIN_BYTES_MAX
            && let Ok(Some(data)) = answer.chunk().await
        {
            bytes += data.len();
        }
    };
    let _ = tokio::time::timeout(DRAIN_TIME_MAX, drained).await;
}

fn is_eof(error: &reqwest::Error) -> bool {
    let mut causes = causes(error).filter_map(|error| error.downcast_ref::<io::Error>());
    causes.any(|error| error.kind() == io::ErrorKind::UnexpectedEof)
}

#[cfg(test)]
mod tests;
