//! Requests to servers that are not ours: hubs, subscribers, and who wants to be told that a job is done.
//!
//! Each is one request on one connection, which goes the same guarded way as those of the crawler
//! ([`tidings_subscriber::connect`]): whoever names a URL here reaches no address that the operator has not allowed.
//! Nothing is followed by itself; a redirect is an answer.

#![expect(
    clippy::disallowed_methods,
    reason = "requests are bounded in time, the date of a Retry-After is one of the wall clock, and a connection of HTTP/2 is a task"
)]

use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper::header::{
    ACCEPT_ENCODING, HOST, HeaderValue, LOCATION, PROXY_AUTHORIZATION, USER_AGENT,
};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Version, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidings_protocol::CanonicalUrl;
use tidings_subscriber::connect::{Connection, Connector, Protocol, Proxy, Target};
use tidings_subscriber::fetch;
use tidings_subscriber::outcome::{Failure, Reason};

/// Bytes of the head of an answer.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Makes requests.
#[derive(Debug)]
pub struct Outgoing {
    connector: Connector,
    agent: HeaderValue,
    /// For one request, from the look-up of the name to the last byte.
    timeout: Duration,
}

/// What was answered.
#[derive(Debug, Clone)]
pub struct Answered {
    /// Anything but 1xx.
    pub status: StatusCode,
    /// Bounded in bytes and number.
    pub headers: HeaderMap,
    /// Cut at the limit that was given.
    pub body: Bytes,
    /// Not cut.
    pub is_whole: bool,
}

impl Answered {
    /// For how long the server asks to be left alone, with 429 and 503.
    pub fn retry_after(&self) -> Option<Duration> {
        fetch::retry_after(self.status, &self.headers, SystemTime::now())
    }

    /// Where a redirect leads, absolute.
    pub fn redirect(&self, of: &CanonicalUrl<'_>) -> Option<CanonicalUrl<'static>> {
        if !matches!(self.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
            return None;
        }
        of.join(self.headers.get(LOCATION)?.to_str().ok()?).ok()
    }
}

impl Outgoing {
    /// Through `connector`, as `agent`, and each within `timeout`.
    pub fn new(connector: Connector, agent: HeaderValue, timeout: Duration) -> Self {
        Self { connector, agent, timeout }
    }

    /// Sends a request with these headers and this body, and waits for the answer, of whose body `body_max` bytes are
    /// read. The failure is for people; whether the request has arrived is not known then.
    pub async fn send(
        &self,
        method: Method,
        url: &CanonicalUrl<'_>,
        headers: HeaderMap,
        body: Bytes,
        body_max: usize,
    ) -> Result<Answered, Failure> {
        let exchange = self.exchange(method, url, headers, body, body_max);
        let late = || Failure::new(Reason::Timeout, format!("no answer within {:?}", self.timeout));
        tokio::time::timeout(self.timeout, exchange).await.unwrap_or_else(|_| Err(late()))
    }

    async fn exchange(
        &self,
        method: Method,
        url: &CanonicalUrl<'_>,
        headers: HeaderMap,
        body: Bytes,
        body_max: usize,
    ) -> Result<Answered, Failure> {
        let connection = self.connector.connect(&Target::of(url)).await?;
        let request = self.request(method, url, headers, body, connection.protocol)?;
        let Connection { stream, protocol, permit: _permit, .. } = connection;
        let io = TokioIo::new(stream);
        // Driven here, so that it ends when this does.
        match protocol {
            Protocol::Http1 => {
                let handshake = http1::Builder::new()
                    .title_case_headers(true)
                    .max_buf_size(HEAD_BYTES_MAX)
                    .handshake(io)
                    .await;
                let (mut sender, connection) = handshake.map_err(|error| broken(&error))?;
                let answer = async { read(sender.send_request(request).await, body_max).await };
                driven(connection, answer).await
            }
            Protocol::Http2 => {
                let handshake = http2::Builder::new(TokioExecutor::new())
                    .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).expect("it is small"))
                    .handshake(io)
                    .await;
                let (mut sender, connection) = handshake.map_err(|error| broken(&error))?;
                let answer = async { read(sender.send_request(request).await, body_max).await };
                driven(connection, answer).await
            }
        }
    }

    fn request(
        &self,
        method: Method,
        url: &CanonicalUrl<'_>,
        mut headers: HeaderMap,
        body: Bytes,
        protocol: Protocol,
    ) -> Result<Request<Full<Bytes>>, Failure> {
        headers.entry(USER_AGENT).or_insert_with(|| self.agent.clone());
        headers.entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static("identity"));
        let proxy = self.connector.proxy().filter(|_| url.scheme() == "http");
        if let Some(authorization) = proxy.and_then(Proxy::authorization) {
            headers.insert(PROXY_AUTHORIZATION, authorization.clone());
        }
        let (uri, version) = match protocol {
            Protocol::Http2 => (url.as_str(), Version::HTTP_2),
            Protocol::Http1 if proxy.is_some() => (url.as_str(), Version::HTTP_11),
            Protocol::Http1 => (url.path_and_query(), Version::HTTP_11),
        };
        if protocol == Protocol::Http1 {
            let host = HeaderValue::from_str(url.authority())
                .map_err(|error| Failure::of(Reason::BadHttp, &error))?;
            headers.insert(HOST, host);
        }
        let request = Request::builder().method(method).uri(uri).version(version);
        let mut request =
            request.body(Full::new(body)).map_err(|error| Failure::of(Reason::BadHttp, &error))?;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

/// What `answer` comes to while its connection is driven.
async fn driven(
    connection: impl Future<Output = Result<(), hyper::Error>>,
    answer: impl Future<Output = Result<Answered, Failure>>,
) -> Result<Answered, Failure> {
    let (mut connection, mut answer) = (std::pin::pin!(connection), std::pin::pin!(answer));
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // What had come before its end is still read.
        _ = &mut connection => answer.await,
    }
}

async fn read(
    answer: Result<Response<Incoming>, hyper::Error>,
    body_max: usize,
) -> Result<Answered, Failure> {
    let (head, mut incoming) = answer.map_err(|error| broken(&error))?.into_parts();
    let mut body = BytesMut::new();
    let mut is_whole = true;
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|error| broken(&error).within("body: "))?;
        let Ok(data) = frame.into_data() else { continue };
        let room = body_max - body.len();
        body.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() > room {
            is_whole = false;
            break;
        }
    }
    Ok(Answered { status: head.status, headers: head.headers, body: body.freeze(), is_whole })
}

fn broken(error: &hyper::Error) -> Failure {
    let reason = if error.is_parse() { Reason::BadHttp } else { Reason::Reset };
    Failure::of(reason, error)
}
