//! `POST /topics/{topic}`: one event per line of the body, or JSON.

mod json_body;

use std::borrow::Cow;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use serde_json::json;
use tidings_protocol::{
    Code, Durability, PAYLOAD_BYTES_MAX, Payload, ProtocolError, Seq, TRACEPARENT, TopicName,
    bad_argument, is_traceparent, text,
};
use xxhash_rust::xxh3::xxh3_128;

use super::HttpState;
use super::client::ConnectedClient;
use super::error::{ErrorResponse, HttpResult, bad_request};
use super::idempotency::{IdempotencyKey, KeyState, KeyUseId};
use super::json_objects::JsonResponse;
use super::request_input::{NamedRequest, content_type};
use crate::access::{Action, Identity};
use crate::topic::{Topic, dedup_id};

/// Content types of a body of lines. `curl --data` sends the last one by default.
const LINE_TYPES: [&str; 3] =
    ["text/plain", "application/octet-stream", "application/x-www-form-urlencoded"];
const JSON_TYPE: &str = "application/json";

/// Events of one request. An event in a waiting request takes more memory than its bytes.
const EVENTS_MAX: usize = 100_000;

/// The longest `Idempotency-Key`, in bytes.
const KEY_BYTES_MAX: usize = 128;

/// Responds when all events are as safe as the topic promises. If one of them is invalid, none is
/// published.
pub(super) async fn publish(
    request: NamedRequest<TopicName>,
    body: Body,
) -> HttpResult<JsonResponse> {
    let NamedRequest { http, client, name, headers, .. } = request;
    let action = Action::Publish(name.as_str());
    client.check_action(action)?;
    client.check_rate()?;
    let types = [LINE_TYPES.as_slice(), &[JSON_TYPE]].concat();
    let body = http.bodies.receive(&headers, body, &types);
    let received =
        client.receive_while_allowed(|identity| identity.check_action(action), body).await??;
    // Bodies of other requests may have arrived in the meantime, so the rate is checked again. The
    // bytes of this body count even if it is rejected.
    let is_within_rate = client.check_rate();
    client.count_published(0, received.bytes.len());
    is_within_rate?;
    let is_json = content_type(&headers).is_some_and(|kind| kind == JSON_TYPE);
    let mut payloads: Vec<Cow<'_, str>> = if is_json {
        json_body::JsonBody::payloads_of(&received.bytes)?
    } else {
        parse_lines(&received.bytes)?.map(Cow::Borrowed).collect()
    };
    if payloads.is_empty() {
        return Err(bad_request(
            "the body has no event: send one event per line; empty lines are ignored",
        ));
    }
    client.count_published(payloads.len(), 0);
    let key = idempotency_key(&headers)?;
    let (topic, principal) = {
        let session = client.session();
        for (at, payload) in payloads.iter().enumerate() {
            let authorized = session.authorize_event(name.as_str(), payload);
            authorized.map_err(|error| event_error(at, &error))?;
        }
        (session.topic_for_publish(&name)?, session.identity().name().to_owned())
    };
    add_traceparent(&mut payloads, &headers);
    let Some(key) = key else {
        let seqs = append_while_allowed(&http, &client, &topic, &payloads).await?;
        return confirm(&topic, seqs).await;
    };
    let key = IdempotencyKey { topic_id: topic.id(), principal, key: key.to_owned() };
    add_ids(&mut payloads, &key.key);
    publish_once(&http, &client, &topic, &key, xxh3_128(&received.bytes), &payloads).await
}

/// Publishes the events, unless a request with this key has done so.
async fn publish_once(
    http: &HttpState,
    client: &ConnectedClient,
    topic: &Arc<Topic>,
    key: &IdempotencyKey,
    body_hash: u128,
    payloads: &[Cow<'_, str>],
) -> HttpResult<JsonResponse> {
    let (use_id, seqs) = match http.idempotency_keys.begin(key, body_hash, http.shared.clock.now())
    {
        KeyState::New(use_id) => {
            // Releases the key if the client disconnects before the events are appended.
            let mut guard = KeyGuard { http, key, use_id, seqs: None };
            let seqs = append_while_allowed(http, client, topic, payloads).await?;
            guard.seqs = Some(seqs.clone());
            (Some(use_id), seqs)
        }
        KeyState::Completed(seqs) => (None, seqs),
        KeyState::InProgress => {
            let message = "a request with this Idempotency-Key is in progress; try again in 1 s";
            return Err(
                ErrorResponse::from(ProtocolError::new(Code::Busy, message)).with_retry_after(1)
            );
        }
        KeyState::BodyMismatch => {
            let message =
                "this Idempotency-Key was used with another body; send this body with a new key";
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            return Err(ErrorResponse::new(status, Code::Conflict.as_str(), message));
        }
    };
    let response = confirm(topic, seqs).await;
    if let (Err(_), Some(use_id)) = (&response, use_id) {
        // The events are not stored, so the next request with the key publishes them again.
        http.idempotency_keys.finish(key, use_id, None);
    }
    response
}

/// Finishes the use of a key when it is dropped, also when the request is cancelled.
struct KeyGuard<'a> {
    http: &'a HttpState,
    key: &'a IdempotencyKey,
    use_id: KeyUseId,
    seqs: Option<Vec<Seq>>,
}

impl Drop for KeyGuard<'_> {
    fn drop(&mut self) {
        self.http.idempotency_keys.finish(self.key, self.use_id, self.seqs.as_deref());
    }
}

fn idempotency_key(headers: &HeaderMap) -> HttpResult<Option<&str>> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let Some(key) = keys.next() else { return Ok(None) };
    if keys.next().is_some() {
        return Err(bad_request("Idempotency-Key: expected one key"));
    }
    // The draft of the header requires a quoted string; most clients send the key without quotes.
    let key = key.to_str().map_err(|_| bad_request("Idempotency-Key: expected only ASCII"))?;
    let bare = key.strip_prefix('"').and_then(|key| key.strip_suffix('"')).unwrap_or(key);
    let is_plain = bare.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
    if is_plain && (1..=KEY_BYTES_MAX).contains(&bare.len()) {
        return Ok(Some(bare));
    }
    let message = format!(
        "Idempotency-Key: expected 1 to {KEY_BYTES_MAX} ASCII characters without spaces and quotes"
    );
    Err(bad_request(message))
}

/// Checks and returns the lines of a body. A line ends in LF or CRLF; empty lines are ignored.
fn parse_lines(body: &[u8]) -> HttpResult<impl Iterator<Item = &str>> {
    let lines = || {
        let lines = body.split(|byte| *byte == b'\n');
        lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line)).filter(|line| !line.is_empty())
    };
    for (at, line) in lines().enumerate() {
        if at == EVENTS_MAX {
            return Err(too_many_events());
        }
        check_payload(at, line)?;
    }
    // `check_payload` has checked that every line is UTF-8.
    Ok(lines().filter_map(|line| std::str::from_utf8(line).ok()))
}

fn too_many_events() -> ErrorResponse {
    let message =
        format!("the body has more than {EVENTS_MAX} events; send it in several requests");
    ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, Code::TooLong.as_str(), message)
}

fn check_payload(at: usize, line: &[u8]) -> HttpResult<()> {
    let checked = match line.len() {
        0 => Err(bad_argument("an event must not be empty")),
        1..=PAYLOAD_BYTES_MAX => text::check(line).map(|_| ()),
        bytes => Err(payload_too_long(bytes)),
    };
    checked.map_err(|error| event_error(at, &error))
}

fn payload_too_long(bytes: usize) -> ProtocolError {
    let text = format!("{bytes} bytes exceed the limit of a payload, {PAYLOAD_BYTES_MAX} bytes");
    ProtocolError::new(Code::TooLong, text)
}

/// An error that names the event of the body by its number. Nothing of the body is published.
fn event_error(at: usize, error: &ProtocolError) -> ErrorResponse {
    let text = format!("event {} of the body: {}; nothing was published", at + 1, error.text);
    ProtocolError::new(error.code, text).into()
}

/// Adds an id, made of the key, to each event that has none.
fn add_ids(payloads: &mut [Cow<'_, str>], key: &str) {
    for (at, payload) in payloads.iter_mut().enumerate() {
        add_attribute(payload, "id", &format!("{key}-{}", at + 1));
    }
}

/// The trace context of a request. A header that is not one is ignored.
pub(super) fn traceparent_of(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
    value.filter(|value| is_traceparent(value))
}

/// Adds the trace context of the request to each event that has none.
fn add_traceparent(payloads: &mut [Cow<'_, str>], headers: &HeaderMap) {
    let Some(value) = traceparent_of(headers) else { return };
    for payload in payloads {
        add_attribute(payload, TRACEPARENT, value);
    }
}

/// Adds an attribute to an event that has a target and no attribute of that name, if it fits.
fn add_attribute(payload: &mut Cow<'_, str>, key: &str, value: &str) {
    let read = Payload::parse(payload);
    let word = format!(" {key}={value}");
    let needs_it = read.target().is_some() && read.attribute(key).is_none();
    if needs_it && payload.len() + word.len() <= PAYLOAD_BYTES_MAX {
        payload.to_mut().push_str(&word);
    }
}

/// Appends the events once the topic has no back-pressure. Fails as soon as the client may not
/// publish one of them any more.
async fn append_while_allowed(
    http: &HttpState,
    client: &ConnectedClient,
    topic: &Arc<Topic>,
    payloads: &[Cow<'_, str>],
) -> HttpResult<Vec<Seq>> {
    // Usually there is none, and the permissions have just been checked.
    if topic.is_backpressured(None) {
        let check_all = |identity: &Identity| {
            let access = &http.shared.access;
            let check = |payload| access.check_publish(identity, topic.name().as_str(), payload);
            payloads.iter().try_for_each(|payload| check(payload))
        };
        client.receive_while_allowed(check_all, wait_for_backpressure(http, topic)).await??;
    }
    append(client, topic, payloads, None)
}

/// Waits until a topic has no back-pressure; fails after a time limit.
pub(super) async fn wait_for_backpressure(http: &HttpState, topic: &Topic) -> HttpResult<()> {
    let relieved = poll_fn(|cx| {
        let is_backpressured = topic.is_backpressured(Some(cx.waker()));
        if is_backpressured { Poll::Pending } else { Poll::Ready(()) }
    });
    let timeout = Duration::from_millis(http.config.backpressure_timeout_ms);
    super::with_timeout(timeout, relieved).await.ok_or_else(|| {
        let message = format!(
            "events arrive on {} faster than they are stored or consumed; try again in 1 s",
            topic.name()
        );
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        ErrorResponse::new(unavailable, Code::Busy.as_str(), message).with_retry_after(1)
    })
}

/// Appends the events as one batch, and records them; `hook` is the webhook that has them.
pub(super) fn append(
    client: &ConnectedClient,
    topic: &Arc<Topic>,
    payloads: &[Cow<'_, str>],
    hook: Option<&str>,
) -> HttpResult<Vec<Seq>> {
    let conn = client.conn;
    let ids =
        payloads.iter().enumerate().filter_map(|(at, payload)| Some((at, dedup_id(payload)?)));
    let ids: Vec<_> = ids.collect();
    let seqs = if ids.is_empty() {
        let seqs = topic.append(conn, payloads.iter().map(AsRef::as_ref))?;
        (seqs.start.0..seqs.end.0).map(Seq).collect()
    } else {
        let payloads: Vec<&str> = payloads.iter().map(AsRef::as_ref).collect();
        topic.append_deduplicated(conn, &payloads, &ids)?
    };
    client.record_published(topic.name().as_str(), payloads.len(), hook);
    Ok(seqs)
}

/// Waits until all events are as safe as the topic promises.
pub(super) async fn confirm(topic: &Topic, seqs: Vec<Seq>) -> HttpResult<JsonResponse> {
    let last = seqs.iter().copied().max();
    let mut slot = None;
    poll_fn(|cx| {
        let Some(last) = last else { return Poll::Ready(()) };
        if topic.fate(last).0 != Durability::Pending {
            return Poll::Ready(());
        }
        slot = topic.wait_durable(last, slot, cx.waker());
        if slot.is_none() {
            // The event has become safe since the check above.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await;
    for seq in &seqs {
        if let (Durability::Lost(code), _) = topic.fate(*seq) {
            let text = format!("event {seq} of {} was not stored", topic.name());
            return Err(ProtocolError::new(code, text).into());
        }
    }
    let seqs: Vec<u64> = seqs.into_iter().map(|seq| seq.0).collect();
    Ok(JsonResponse(json!({ "topic": topic.name().as_str(), "seqs": seqs })))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use tidings_protocol::StartAt;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::access::{AccessConfig, Credential, PermissionSet, Principal, TokenHash, new_token};
    use crate::mailbox::ConnId;
    use crate::{Broker, BrokerConfig, HttpConfig, Limits};

    // PROTOCOL: H3
    #[test]
    fn a_request_has_one_idempotency_key() {
        let read = |keys: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for key in keys {
                headers.append("idempotency-key", HeaderValue::from_static(key));
            }
            idempotency_key(&headers).map(|key| key.map(str::to_owned)).ok()
        };
        assert_eq!(read(&[]), Some(None));
        assert_eq!(read(&["\"a\""]), Some(Some("a".to_owned())));
        assert_eq!(read(&["a", "b"]), None);
        assert_eq!(read(&["a b"]), None);
    }

    /// A reader that reads nothing causes back-pressure, so the publish waits.
    #[tokio::test]
    async fn a_publish_that_waits_for_memory_is_rejected_after_revocation() {
        for key in ["", "Idempotency-Key: k\r\n"] {
            let listen = "127.0.0.1:0".parse().unwrap();
            let http =
                HttpConfig { listen, backpressure_timeout_ms: 3_600_000, ..HttpConfig::default() };
            let token = new_token();
            let permissions = PermissionSet::new(vec!["pub:t".parse().unwrap()], Vec::new());
            let credential = Credential::Token(TokenHash::of(&token));
            let alice = Principal::new("alice", credential, permissions);
            let access = AccessConfig { principals: Some(vec![alice]), ..AccessConfig::default() };
            let limits = Limits { tail_bytes_max: 64 << 10, ..Limits::default() };
            let config = BrokerConfig {
                listen,
                http: Some(http),
                access,
                limits,
                ..BrokerConfig::default()
            };
            let broker = Broker::start(config).await.unwrap();
            let topic = broker.shared.topics.open(&"t".parse().unwrap()).unwrap();
            let reader = topic.reader(StartAt::First, Arc::default());
            let payload = "x".repeat(10_000);
            for _ in 0..100 {
                topic.append(ConnId(1), [payload.as_str()]).unwrap();
            }
            assert!(topic.is_backpressured(None));
            let mut stream = TcpStream::connect(broker.http_addr().unwrap()).await.unwrap();
            let request = format!(
                "POST /topics/t HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n{key}\
                 Content-Length: 6\r\nConnection: close\r\n\r\nsecret",
                token.secret()
            );
            stream.write_all(request.as_bytes()).await.unwrap();
            while broker.shared.stats.lines.value() == 0 {
                tokio::task::yield_now().await;
            }
            // The request proceeds until it waits for memory.
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
            broker.shared.access.replace_principals(Vec::new());
            let mut response = String::new();
            let read = crate::net::http::with_timeout(
                Duration::from_mins(1),
                stream.read_to_string(&mut response),
            );
            read.await.expect("no response within a minute").unwrap();
            assert!(response.starts_with("HTTP/1.1 401 "), "{response}");
            assert_eq!(topic.stats().head, Seq(101), "nothing was published");
            drop(reader);
            broker.stop().await;
        }
    }

    fn parsed_lines(body: &str) -> Option<Vec<&str>> {
        parse_lines(body.as_bytes()).ok().map(Iterator::collect)
    }

    // PROTOCOL: H2
    #[test]
    fn lines_end_with_lf_or_crlf_and_the_last_may_have_no_end() {
        assert_eq!(parsed_lines("a\r\n\n\r\nb\nc"), Some(vec!["a", "b", "c"]));
        assert_eq!(parsed_lines(""), Some(vec![]));
        assert_eq!(parsed_lines("a\rb\n"), None);
        assert_eq!(parsed_lines("a\n\u{85}\n"), None);
        assert!(parse_lines(b"a\xff\n").is_err());
        assert!(parsed_lines(&"x".repeat(PAYLOAD_BYTES_MAX)).is_some());
        assert!(parsed_lines(&"x".repeat(PAYLOAD_BYTES_MAX + 1)).is_none());
    }

    // PROTOCOL: H3
    #[test]
    fn events_without_an_id_get_one_from_the_key() {
        let mut payloads = ["/a", "text", "/b id=mine", "/c x=1"].map(Cow::Borrowed);
        add_ids(&mut payloads, "k");
        assert_eq!(payloads, ["/a id=k-1", "text", "/b id=mine", "/c x=1 id=k-4"]);
    }
}
