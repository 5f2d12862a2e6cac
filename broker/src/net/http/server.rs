//! The HTTP/1.1 server: accepts connections, reads the first head, and lets hyper serve requests.
#![expect(clippy::disallowed_methods, reason = "timeouts of connections")]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tidings_protocol::Token;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use super::client::ConnectedClient;
use super::config::HttpConfig;
use super::error::{ErrorResponse, HttpResult};
use super::history::run_sampler;
use super::request_head::read_first_head;
use super::write_timeout::{ResponseState, WriteTimeoutStream};
use super::{HttpState, origin_check, router};
use crate::access::{Transport, is_token};
use crate::audit::AuditEvent;
use crate::net::client_session::{AdmittedConnection, ClientSession};
use crate::net::listener::{secure, set_socket_options};
use crate::net::stream::SocketStream;
use crate::net::{Listener, Shared, spawn_accept_loop};
use crate::remote::{PeerAddr, RemoteInfo};
use crate::tls::Tls;

/// The response to a first head that is too long. Hyper sends the same for later heads.
const HEAD_TOO_LONG: &[u8] = b"HTTP/1.1 431 Request Header Fields Too Large\r\n\
    connection: close\r\ncontent-length: 0\r\n\r\n";

/// The minimum that hyper accepts for the buffer of a connection, in each direction.
const BUFFER_BYTES_MIN: usize = 8 << 10;

/// Accepts connections until `listening` is cancelled, and ends them when `stop` is. Returns the
/// state that all requests share.
pub(crate) fn serve(
    listener: Listener,
    config: HttpConfig,
    shared: Arc<Shared>,
    (listening, stop): (CancellationToken, CancellationToken),
    tasks: &TaskTracker,
) -> Arc<HttpState> {
    let http = Arc::new(HttpState::new(shared, config, stop.clone()));
    tasks.spawn(run_sampler(Arc::clone(&http), stop));
    let state = Arc::clone(&http);
    let router = router(&http, tasks);
    let connections = tasks.clone();
    spawn_accept_loop(listener, listening, tasks, move |stream, peer| {
        // At a limit the connection is closed without a response, before any request.
        let Ok(admitted) = AdmittedConnection::admit(&http.shared, peer, Transport::Http) else {
            return;
        };
        connections.spawn(serve_connection(
            Arc::clone(&http),
            router.clone(),
            admitted,
            stream,
            peer,
        ));
    });
    state
}

/// Serves a connection until its end. It takes little memory until its first head is complete.
async fn serve_connection(
    http: Arc<HttpState>,
    router: Router,
    admitted: AdmittedConnection,
    stream: TcpStream,
    peer: PeerAddr,
) {
    let config = &http.config;
    set_socket_options(&stream, http.shared.limits.unsent_bytes);
    // The comments of a stream of events hold the probes back. They, too, must be acknowledged.
    let unacknowledged_max = Duration::from_millis(http.shared.limits.keepalive_ms) * 2;
    let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(unacknowledged_max));
    let (mut stream, remote) = match http.shared.tls.as_ref().map(Tls::http_config) {
        None => (SocketStream::Plain(stream), RemoteInfo::unencrypted(peer)),
        Some(tls) => {
            let from = (peer, Transport::Http);
            let secured = secure(&http.shared, admitted.conn, tls, stream, from, &http.stop);
            match Box::pin(secured).await {
                Some(secured) => secured,
                None => return,
            }
        }
    };
    let command_timeout = Duration::from_millis(config.command_timeout_ms);
    let shared = || Arc::clone(&http.shared);
    let session = ClientSession::begin(shared(), admitted, Transport::Http, remote);
    let client = Arc::new(ConnectedClient::new(shared(), session, command_timeout));
    client.audit(AuditEvent::Connected);
    // A client that is not identified yet may take only little memory.
    let head_bytes_max = if http.shared.access.is_open() {
        config.head_bytes_max
    } else {
        config.anonymous_head_bytes_max
    };
    let limit = Duration::from_millis(first_head_timeout_ms(&http, &client));
    let head = tokio::select! {
        head = tokio::time::timeout(limit, read_first_head(&mut stream, head_bytes_max)) => head,
        () = http.stop.cancelled() => return,
    };
    match head {
        Ok(Ok(Some(head))) => {
            Box::pin(serve_requests(http, router, client, stream, head, head_bytes_max)).await;
        }
        Ok(Ok(None)) => reject_long_head(&http, stream).await,
        Ok(Err(_)) | Err(_) => {}
    }
}

/// The time limit of the first head, in milliseconds. It is shorter for a client without
/// permissions. A client that needs no token may connect early and send its request later.
fn first_head_timeout_ms(http: &HttpState, client: &ConnectedClient) -> u64 {
    let untrusted_max =
        if client.is_untrusted() { http.shared.limits.login_timeout_ms } else { u64::MAX };
    http.config.head_timeout_ms.min(untrusted_max)
}

/// Responds to a head that is too long and closes the connection.
async fn reject_long_head(http: &HttpState, stream: SocketStream) {
    let write_timeout = Duration::from_millis(http.config.write_timeout_ms);
    let mut stream = WriteTimeoutStream::new(Vec::new(), stream, write_timeout, http.stop.clone());
    if stream.write_all(HEAD_TOO_LONG).await.is_ok() {
        let _ = stream.shutdown().await;
    }
}

/// Serves the requests of a connection. `head` is the head of the first, which was read already.
async fn serve_requests(
    http: Arc<HttpState>,
    router: Router,
    client: Arc<ConnectedClient>,
    stream: SocketStream,
    head: Vec<u8>,
    head_bytes_max: usize,
) {
    let config = &http.config;
    let write_timeout = Duration::from_millis(config.write_timeout_ms);
    let stream = WriteTimeoutStream::new(head, stream, write_timeout, http.stop.clone());
    let state = stream.response_state();
    let service = service_fn(|request: Request<Incoming>| {
        state.request_received();
        let response = respond(&http, &router, &client, request);
        let state = state.clone();
        async move { Ok::<_, Infallible>(track_response(&state, response.await)) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(config.head_timeout_ms))
        .max_buf_size(head_bytes_max.max(BUFFER_BYTES_MIN))
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // Errors need no handling: hyper responds to invalid requests, and the rest are network errors.
    tokio::select! {
        biased;
        _ = connection.as_mut() => return,
        () = http.stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Makes sure that the response is sent even if the client has shut down its sending side. A stream
/// of events is the exception, because it would not end.
fn track_response(state: &ResponseState, response: Response) -> Response {
    let content_type = response.headers().get(header::CONTENT_TYPE);
    if content_type.is_some_and(|value| value.as_bytes() == b"text/event-stream") {
        state.exempt_stream();
        return response;
    }
    response.map(|body| state.track_body(body))
}

/// Handles a request and adds the headers that all responses have.
async fn respond(
    http: &HttpState,
    router: &Router,
    client: &Arc<ConnectedClient>,
    request: Request<Incoming>,
) -> Response {
    let received_at = Instant::now();
    let mut response = route_request(http, router, client, request).await;
    if response.status().is_client_error() {
        http.shared.stats.refused_lines.add(1);
    }
    http.shared.stats.count_response(response.status().as_u16(), received_at.elapsed());
    origin_check::add_security_headers(response.headers_mut());
    // An untrusted client gets one response per connection, so that it cannot occupy memory between
    // requests.
    if client.is_untrusted() {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

async fn route_request(
    http: &HttpState,
    router: &Router,
    client: &Arc<ConnectedClient>,
    mut request: Request<Incoming>,
) -> Response {
    http.shared.stats.lines.add(1);
    if let Err(error) = origin_check::check_host_and_origin(
        &http.config.allowed_hosts,
        request.method(),
        request.uri(),
        request.headers(),
    ) {
        client.audit(AuditEvent::Refused { why: error.message() });
        return error.into_response();
    }
    if let Err(error) = identify(client, request.headers()).await {
        return error.into_response();
    }
    request.extensions_mut().insert(Arc::clone(client));
    let Ok(response) = router.clone().call(request).await;
    response
}

/// Sets the identity of the client for the request with these headers. `Authorization` without a
/// token of ours is ignored here, because it may be the signature of a webhook.
async fn identify(client: &ConnectedClient, headers: &HeaderMap) -> HttpResult<()> {
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let credentials = value.and_then(|value| value.split_once(' '));
    let token = credentials.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let token = token.and_then(|(_, token)| Token::new(token.trim()).ok()).filter(is_token);
    let rejected = {
        let mut session = client.session();
        let identity = match &token {
            Some(token) => session.log_in(token),
            None => Ok(session.identity_without_token()),
        };
        match identity {
            Ok(identity) => return Ok(session.identify(identity)?),
            Err(rejected) => rejected,
        }
    };
    tokio::time::sleep(Duration::from_millis(rejected.delay_ms)).await;
    let response = ErrorResponse::from(rejected.error);
    let seconds = u32::try_from(rejected.retry_after_ms.div_ceil(1_000)).unwrap_or(u32::MAX);
    Err(if seconds == 0 { response } else { response.with_retry_after(seconds) })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use axum::http::Method;
    use bytes::Bytes;
    use tokio::io::AsyncReadExt;

    use super::super::embedded_handlers::{EmbeddedHandler, HandlerFuture, HandlerReply};
    use super::super::hooks::{Hook, Recipe};
    use super::super::openapi::Operation;
    use super::*;
    use crate::access::{AccessConfig, Credential, PermissionSet, Principal};
    use crate::{Broker, BrokerConfig, Limits, TEST_LIMIT};

    #[tokio::test]
    async fn unfinished_heads_and_idle_connections_time_out() {
        let listen = "127.0.0.1:0".parse().unwrap();
        let http = HttpConfig { listen, head_timeout_ms: 50, ..HttpConfig::default() };
        let config = BrokerConfig { listen, http: Some(http), ..BrokerConfig::default() };
        let broker = Broker::start(config).await.unwrap();
        for (request, status_line) in [
            ("", ""),
            ("GET /health HTTP/1.1\r\nHost: local", ""),
            ("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 200 OK"),
        ] {
            let mut stream = TcpStream::connect(broker.http_addr().unwrap()).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut response = String::new();
            let end = tokio::time::timeout(TEST_LIMIT, stream.read_to_string(&mut response)).await;
            end.expect("the broker closes the connection").unwrap();
            let first_line = response.lines().next().unwrap_or_default();
            assert_eq!(first_line, status_line, "{request:?}: {response}");
        }
        broker.stop().await;
    }

    #[tokio::test]
    async fn an_untrusted_connection_gets_one_response() {
        let listen = "127.0.0.1:0".parse().unwrap();
        let access = AccessConfig { principals: Some(Vec::new()), ..AccessConfig::default() };
        let http = Some(HttpConfig { listen, ..HttpConfig::default() });
        let config = BrokerConfig { listen, http, access, ..BrokerConfig::default() };
        let broker = Broker::start(config).await.unwrap();
        let mut stream = TcpStream::connect(broker.http_addr().unwrap()).await.unwrap();
        let request = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request.repeat(2).as_bytes()).await.unwrap();
        let mut response = String::new();
        let end = tokio::time::timeout(TEST_LIMIT, stream.read_to_string(&mut response)).await;
        end.expect("the broker closes the connection").unwrap();
        assert_eq!(response.matches("HTTP/1.1 200 OK").count(), 1, "{response}");
        assert!(response.contains("connection: close"), "{response}");
        broker.stop().await;
    }

    #[tokio::test]
    async fn an_untrusted_head_has_the_login_timeout() {
        let listen = "127.0.0.1:0".parse().unwrap();
        let access = AccessConfig { principals: Some(Vec::new()), ..AccessConfig::default() };
        let limits = Limits { login_timeout_ms: 50, ..Limits::default() };
        let http = Some(HttpConfig { listen, head_timeout_ms: 600_000, ..HttpConfig::default() });
        let config = BrokerConfig { listen, http, access, limits, ..BrokerConfig::default() };
        let broker = Broker::start(config).await.unwrap();
        let mut stream = TcpStream::connect(broker.http_addr().unwrap()).await.unwrap();
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: local").await.unwrap();
        let mut response = Vec::new();
        let end = tokio::time::timeout(TEST_LIMIT, stream.read_to_end(&mut response)).await;
        end.expect("the broker closes the connection").unwrap();
        assert!(response.is_empty());
        broker.stop().await;
    }

    #[tokio::test]
    async fn a_client_with_permissions_has_the_full_head_timeout() {
        let principal =
            Principal::new("she", Credential::Certificate("she".into()), PermissionSet::all());
        for (anonymous, certificate, has_login_timeout) in [
            (PermissionSet::default(), None, true),
            (PermissionSet::default(), Some("he"), true),
            (PermissionSet::default(), Some("she"), false),
            (PermissionSet::all(), None, false),
        ] {
            let principals = Some(vec![principal.clone()]);
            let access = AccessConfig { principals, anonymous, ..AccessConfig::default() };
            let listen = "127.0.0.1:0".parse().unwrap();
            let config = BrokerConfig { listen, access, ..BrokerConfig::default() };
            let broker = Broker::start(config).await.unwrap();
            let shared = &broker.shared;
            let http =
                HttpState::new(Arc::clone(shared), HttpConfig::default(), CancellationToken::new());
            let certificate = certificate.map(Box::from);
            let remote =
                RemoteInfo { peer: PeerAddr::Tcp(listen), certificate, is_encrypted: true };
            let label = remote.to_string();
            let client = ConnectedClient::connected(shared, remote);
            let expected = if has_login_timeout {
                shared.limits.login_timeout_ms
            } else {
                http.config.head_timeout_ms
            };
            assert_eq!(first_head_timeout_ms(&http, &client), expected, "{label}");
            drop(client);
            broker.stop().await;
        }
    }

    const SECRET: &str = "the secret of the forge";

    /// The webhook `POST /hooks/forge`.
    fn forge_hook() -> Hook {
        let recipe = r#"{"name":"forge","secret-env":"","signature":"gitlab",
            "url":{"pointer":"/u"},"prefixes":["https://a.example/"]}"#;
        serde_json::from_str::<Recipe>(recipe).unwrap().with_secret(SECRET).unwrap()
    }

    /// Accepts POST as a verified request and rejects all others.
    #[derive(Debug)]
    struct CallbackHandler;

    impl EmbeddedHandler for CallbackHandler {
        fn operations(&self) -> Vec<Operation> {
            vec![Operation::new(Method::POST, "/callback", "callback", "A callback")]
        }

        fn handle(&self, request: Request<Bytes>, _peer: IpAddr) -> HandlerFuture<'_> {
            let is_verified = request.method() == Method::POST;
            let reply = if is_verified {
                HandlerReply::Verified(Response::default())
            } else {
                HandlerReply::Rejected("")
            };
            Box::pin(std::future::ready(reply))
        }
    }

    #[tokio::test]
    async fn signed_webhooks_keep_their_connection_open() {
        let listen = "127.0.0.1:0".parse().unwrap();
        let access = AccessConfig { principals: Some(Vec::new()), ..AccessConfig::default() };
        let (hooks, embedded_handlers) =
            (vec![forge_hook()], vec![Arc::new(CallbackHandler) as Arc<dyn EmbeddedHandler>]);
        let http = Some(HttpConfig { listen, hooks, embedded_handlers, ..HttpConfig::default() });
        let config = BrokerConfig { listen, http, access, ..BrokerConfig::default() };
        let broker = Broker::start(config).await.unwrap();
        let hook = |secret: &str| {
            let body = r#"{"u":"https://a.example/1"}"#;
            let head = "POST /hooks/forge HTTP/1.1\r\nHost: localhost\r\nX-Gitlab-Token";
            format!("{head}: {secret}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        };
        let callback = |method| format!("{method} /callback HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let last = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        for (verified, rejected) in
            [(hook(SECRET), hook("another, wrong secret")), (callback("POST"), callback("GET"))]
        {
            for (requests, responses) in
                [(verified.repeat(2) + last, 3), (rejected.repeat(2) + last, 1)]
            {
                let mut stream = TcpStream::connect(broker.http_addr().unwrap()).await.unwrap();
                stream.write_all(requests.as_bytes()).await.unwrap();
                let mut output = String::new();
                let end =
                    tokio::time::timeout(TEST_LIMIT, stream.read_to_string(&mut output)).await;
                end.expect("the broker closes the connection").unwrap();
                let count = output.matches("HTTP/1.1 ").count();
                assert_eq!(count, responses, "{requests}{output}");
                let has_404 = output.contains("HTTP/1.1 404");
                assert_eq!(has_404, responses == 1, "{output}");
            }
        }
        broker.stop().await;
    }
}
