//! An HTTP connection with one request at a time.
//!
//! HTTP/1.1 has no task of its own: the request drives the connection, and an idle connection is
//! polled only to check its state. HTTP/2 must answer pings and the like at any time, so a task
//! drives it, which ends with its owner.

#![expect(clippy::disallowed_methods, reason = "a task drives an HTTP/2 connection")]

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_util::task::AbortOnDropHandle;

use super::head::RequestTemplate;
use super::meter::{ConnectionMeter, MeteredStream, WireCopy};
use super::{BEFORE_HEAD_BYTES_MAX, HEAD_BYTES_MAX};
use crate::connect::{Connection, HttpProtocol};
use crate::failure::{Failure, Reason, causes};

/// Limit of the headers of an answer.
pub const HEADERS_MAX: usize = 256;
/// HTTP/2 flow control: what a server may send ahead on a stream or a connection.
const HTTP2_STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// See `HTTP2_STREAM_WINDOW_BYTES`. One request per host at a time: twice a stream is enough.
const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 512 * 1024;

/// A connection to one scheme, host and port.
pub(super) struct HttpConnection {
    kind: HttpState,
    meter: Arc<ConnectionMeter>,
    /// The address of the server; `None` behind a proxy.
    pub(super) remote: Option<SocketAddr>,
    /// The common part of all requests on it.
    pub(super) template: RequestTemplate,
}

enum HttpState {
    One(Box<Http1>),
    Http2 { sender: http2::SendRequest<NoBody>, driver: AbortOnDropHandle<()> },
}

struct Http1 {
    sender: http1::SendRequest<NoBody>,
    connection: http1::Connection<TokioIo<MeteredStream>, NoBody>,
    /// The connection must not be polled any more.
    ended: bool,
}

/// The empty body of a `GET`.
pub(super) type NoBody = Empty<Bytes>;

impl HttpConnection {
    pub(super) async fn open(
        connection: Connection,
        template: RequestTemplate,
    ) -> Result<Self, hyper::Error> {
        let Connection { stream, remote, protocol, .. } = connection;
        let meter = Arc::new(ConnectionMeter::new(protocol));
        let io = TokioIo::new(MeteredStream::new(stream, Arc::clone(&meter)));
        let kind = match protocol {
            HttpProtocol::Http1 => {
                let (sender, connection) = http1::Builder::new()
                    .title_case_headers(true)
                    .max_buf_size(HEAD_BYTES_MAX)
                    .max_header_size(HEAD_BYTES_MAX)
                    .max_headers(HEADERS_MAX)
                    .allow_obsolete_multiline_headers_in_responses(true)
                    .allow_spaces_after_header_name_in_responses(true)
                    // As in browsers. `WireCopy::check_framing` refuses what is not safe to ignore.
                    .ignore_invalid_headers_in_responses(true)
                    .handshake(io)
                    .await?;
                HttpState::One(Box::new(Http1 { sender, connection, ended: false }))
            }
            HttpProtocol::Http2 => {
                let head_bytes_max = u32::try_from(HEAD_BYTES_MAX).expect("the limit fits 32 bits");
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES)
                    .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES)
                    .max_header_list_size(head_bytes_max)
                    .handshake(io)
                    .await?;
                // The error of the connection also reaches its requests.
                let driver = tokio::spawn(async move { drop(connection.await) });
                HttpState::Http2 { sender, driver: AbortOnDropHandle::new(driver) }
            }
        };
        Ok(Self { kind, meter, remote, template })
    }

    pub(super) fn protocol(&self) -> HttpProtocol {
        match self.kind {
            HttpState::One(_) => HttpProtocol::Http1,
            HttpState::Http2 { .. } => HttpProtocol::Http2,
        }
    }

    /// Sends a request and waits for the head of its response. With `copies`, also returns the
    /// bytes sent and received so far, for HTTP/1.1.
    pub(super) async fn send(
        &mut self,
        request: Request<NoBody>,
        copies: bool,
    ) -> Result<(Response<Incoming>, Option<WireCopy>), Failure> {
        self.meter.begin();
        let answer = match &mut self.kind {
            HttpState::One(one) => one.send(request).await,
            HttpState::Http2 { sender, .. } => sender.send_request(request).await,
        };
        match answer {
            Ok(answer) if answer.headers().len() > HEADERS_MAX => {
                let text = format!("the answer has more than {HEADERS_MAX} headers");
                Err(Failure::new(Reason::HeadTooLarge, text))
            }
            Ok(answer) => {
                let heads = self.meter.head_received();
                if let Some(heads) = &heads {
                    heads.check_framing(answer.headers())?;
                }
                Ok((answer, heads.filter(|_| copies)))
            }
            Err(error) => Err(self.failure_of(&error, Reason::Reset)),
        }
    }

    /// The next bytes of a body on this connection; `None` at its end.
    pub(super) async fn chunk(&mut self, body: &mut Incoming) -> Result<Option<Bytes>, Failure> {
        let chunk = poll_fn(|context| {
            let data = poll_data(body, context);
            let HttpState::One(one) = &mut self.kind else { return data };
            if data.is_ready() || one.ended {
                return data;
            }
            one.drive(context);
            poll_data(body, context)
        })
        .await;
        chunk
            .transpose()
            .map_err(|error| self.failure_of(&error, Reason::Truncated).with_context("body: "))
    }

    /// Whether no byte arrived since the last request was sent.
    pub(super) fn has_received_nothing(&self) -> bool {
        self.meter.has_received_nothing()
    }

    /// Whether no byte was written since the last request began.
    pub(super) fn has_sent_nothing(&self) -> bool {
        self.meter.has_sent_nothing()
    }

    /// Whether another request may be sent. Does not wait, and leaves no waker of the current task
    /// behind, which would keep the task's memory.
    pub(super) fn is_ready(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        match &mut self.kind {
            HttpState::One(one) => {
                if !one.ended {
                    one.drive(&mut context);
                }
                !one.ended && matches!(one.sender.poll_ready(&mut context), Poll::Ready(Ok(())))
            }
            HttpState::Http2 { sender, driver } => !driver.is_finished() && sender.is_ready(),
        }
    }

    /// The failure for an error; `broken` is the reason if the connection just ended.
    fn failure_of(&self, error: &hyper::Error, broken: Reason) -> Failure {
        if self.meter.is_overrun() {
            let text =
                format!("more than {BEFORE_HEAD_BYTES_MAX} bytes arrived before the response");
            return Failure::new(Reason::Interim, text);
        }
        if error.is_parse_too_large() {
            let text = format!(
                "the head of the answer has more than {HEAD_BYTES_MAX} bytes or {HEADERS_MAX} headers"
            );
            return Failure::new(Reason::HeadTooLarge, text);
        }
        let reason = if error.is_parse() {
            Reason::BadHttp
        } else if error.is_incomplete_message() {
            broken
        } else {
            causes(error).find_map(reason_of_cause).map_or(Reason::Reset, |reason| {
                if reason == Reason::Truncated { broken } else { reason }
            })
        };
        Failure::of(reason, error)
    }
}

fn reason_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Reason> {
    if let Some(error) = cause.downcast_ref::<h2::Error>() {
        // A protocol error that we detected; anything else was caused by the other side or the
        // network.
        let ours = error.is_library() && (error.is_reset() || error.is_go_away());
        return ours.then_some(Reason::BadHttp);
    }
    if cause.is::<rustls::Error>() {
        return Some(Reason::Tls);
    }
    match cause.downcast_ref::<io::Error>()?.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => Some(Reason::BadHttp),
        io::ErrorKind::UnexpectedEof => Some(Reason::Truncated),
        _ => None,
    }
}

fn poll_data(
    body: &mut Incoming,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Bytes, hyper::Error>>> {
    loop {
        match std::task::ready!(Pin::new(&mut *body).poll_frame(context)) {
            // Trailers are ignored.
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Poll::Ready(Some(Ok(data)));
                }
            }
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            None => return Poll::Ready(None),
        }
    }
}

impl Http1 {
    async fn send(&mut self, request: Request<NoBody>) -> Result<Response<Incoming>, hyper::Error> {
        let mut answer = pin!(self.sender.send_request(request));
        poll_fn(|context| {
            if !self.ended {
                self.drive(context);
            }
            answer.as_mut().poll(context)
        })
        .await
    }

    /// The error of the connection also reaches the future that waits for a response or body.
    fn drive(&mut self, context: &mut Context<'_>) {
        self.ended = Pin::new(&mut self.connection).poll(context).is_ready();
    }
}
