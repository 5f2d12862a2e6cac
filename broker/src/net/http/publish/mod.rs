//! `POST /topics/{topic}`: one event per line of the body, or JSON.

mod json_body;

use std::borrow::Cow;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use serde_json::json;
use tidings_protocol::{
    Code, Durability, PAYLOAD_BYTES_MAX, Payload, ProtocolError, Seq, TopicName, text,
};
use xxhash_rust::xxh3::xxh3_128;

use super::HttpState;
use super::client::ConnectedClient;
use super::error::ErrorResponse;
use super::idempotency::{IdempotencyKey, KeyState, KeyUseId};
use super::json_objects::JsonResponse;
use super::request_input::{PathName, QueryParams, content_type, parse_json};
use crate::access::{Action, Identity};
use crate::audit::Initiator;
use crate::mailbox::ConnId;
use crate::topic::{Topic, dedup_id};

/// Types of a body of lines. The last is what programs say that say nothing (`curl --data`).
const LINE_TYPES: [&str; 3] =
    ["text/plain", "application/octet-stream", "application/x-www-form-urlencoded"];
const JSON_TYPE: &str = "application/json";

/// Events of one request: what is kept of each while it waits is more than the event itself.
const EVENTS_MAX: usize = 100_000;

/// The longest `Idempotency-Key`, in bytes.
const KEY_BYTES_MAX: usize = 128;

/// Answered when all of them are as safe as the topic promises. If one of them cannot be an event
/// none is published.
pub(super) async fn publish(
    State(http): State<Arc<HttpState>>,
    Extension(client): Extension<Arc<ConnectedClient>>,
    PathName(name): PathName<TopicName>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<JsonResponse, ErrorResponse> {
    QueryParams::parse(&uri, &[])?;
    let deed = Action::Publish(name.as_str());
    client.check_action(deed)?;
    client.check_publish_quota(&name)?;
    let types = [LINE_TYPES.as_slice(), &[JSON_TYPE]].concat();
    let body = http.bodies.receive(&headers, body, &types);
    let received = client.receive_while_allowed(|pass| pass.check_action(deed), body).await??;
    // The body may have taken its time, and others come beside it; its bytes have come, whatever
    // becomes of it.
    let may_go_on = client.check_rate();
    client.count_published(0, received.bytes.len());
    may_go_on?;
    let pass = client.current_identity();
    let is_json = content_type(&headers).is_some_and(|given| given == JSON_TYPE);
    let mut payloads: Vec<Cow<'_, str>> = if is_json {
        parse_json::<json_body::JsonBody<'_>>(&received.bytes)?.payloads()?
    } else {
        parse_lines(&received.bytes)?.map(Cow::Borrowed).collect()
    };
    if payloads.is_empty() {
        return Err(ErrorResponse::bad_request(
            "the body has no event: one a line, empty lines are none",
        ));
    }
    client.count_published(payloads.len(), 0);
    for (at, payload) in payloads.iter().enumerate() {
        let judged = client.check_publish(&pass, name.as_str(), payload);
        judged.map_err(|error| event_error(at, &error))?;
    }
    let Some(key) = idempotency_key(&headers)? else {
        let topic = http.hub.topics.open(&name)?;
        wait_while_allowed(&http, &client, &topic, &payloads).await?;
        let seqs = append(&http, &topic, client.initiator(), &payloads)?;
        return confirm(&topic, seqs).await;
    };
    let body = xxh3_128(&received.bytes);
    let topic = http.hub.topics.open(&name)?;
    let id = IdempotencyKey {
        topic_id: topic.id(),
        principal: pass.name().to_owned(),
        key: key.to_owned(),
    };
    let earlier = http.idempotency_keys.begin(&id, body, http.hub.clock.now());
    let (serial, seqs) = match earlier {
        KeyState::New(serial) => {
            // Until it is appended: whoever goes away meanwhile leaves nothing half-way.
            let mut underway = KeyGuard { http: &http, key: &id, use_id: serial, seqs: None };
            add_ids(&mut payloads, key);
            wait_while_allowed(&http, &client, &topic, &payloads).await?;
            let seqs = append(&http, &topic, client.initiator(), &payloads)?;
            underway.seqs = Some(seqs.clone());
            (Some(serial), seqs)
        }
        KeyState::Completed(seqs) => (None, seqs),
        KeyState::InProgress => {
            let message = "a request with this Idempotency-Key is just being done";
            let conflict = StatusCode::CONFLICT;
            return Err(
                ErrorResponse::new(conflict, Code::Busy.as_str(), message).with_retry_after(1)
            );
        }
        KeyState::BodyMismatch => {
            let message = "this Idempotency-Key came with another body before";
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            return Err(ErrorResponse::new(status, Code::Conflict.as_str(), message));
        }
    };
    let answer = confirm(&topic, seqs).await;
    if let (Err(_), Some(serial)) = (&answer, serial) {
        // It is not kept, and to be done when it comes again.
        http.idempotency_keys.finish(&id, serial, None);
    }
    answer
}

/// Notes what becomes of a request with a key, also when nobody waits for its end any more.
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

fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, ErrorResponse> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    // The draft of the header has it as a quoted string; most send it bare.
    let key =
        key.to_str().map_err(|_| ErrorResponse::bad_request("Idempotency-Key: only ASCII"))?;
    let bare = key.strip_prefix('"').and_then(|key| key.strip_suffix('"')).unwrap_or(key);
    let is_plain = bare.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
    if is_plain && (1..=KEY_BYTES_MAX).contains(&bare.len()) {
        return Ok(Some(bare));
    }
    let message = format!("Idempotency-Key: 1 to {KEY_BYTES_MAX} letters, digits and signs");
    Err(ErrorResponse::bad_request(message))
}

/// The lines of a body, each checked. A line end may be LF or CRLF; empty lines are nothing.
fn parse_lines(body: &[u8]) -> Result<impl Iterator<Item = &str>, ErrorResponse> {
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
    // All of them were just looked at.
    Ok(lines().filter_map(|line| std::str::from_utf8(line).ok()))
}

fn too_many_events() -> ErrorResponse {
    let message =
        format!("the body has more than {EVENTS_MAX} events; send it in several requests");
    ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, Code::TooLong.as_str(), message)
}

fn check_payload(at: usize, line: &[u8]) -> Result<(), ErrorResponse> {
    let judged = match line.len() {
        0 => Err(ProtocolError::new(Code::BadArgument, "an event is not empty")),
        1..=PAYLOAD_BYTES_MAX => text::check(line).map(|_| ()),
        bytes => Err(payload_too_long(bytes)),
    };
    judged.map_err(|error| event_error(at, &error))
}

fn payload_too_long(bytes: usize) -> ProtocolError {
    let text = format!("{bytes} bytes are more than the {PAYLOAD_BYTES_MAX} of a payload");
    ProtocolError::new(Code::TooLong, text)
}

/// Says which event of a body it was; nothing of the body was published.
fn event_error(at: usize, error: &ProtocolError) -> ErrorResponse {
    let text = format!("event {} of the body: {}; nothing was published", at + 1, error.text);
    ProtocolError::new(error.code, text).into()
}

/// Gives an id, made of the key, to each event that can carry one and has none.
fn add_ids(payloads: &mut [Cow<'_, str>], key: &str) {
    for (at, payload) in payloads.iter_mut().enumerate() {
        let read = Payload::parse(payload);
        let id = format!(" id={key}-{}", at + 1);
        let can = read.target().is_some() && read.attribute("id").is_none();
        if can && payload.len() + id.len() <= PAYLOAD_BYTES_MAX {
            payload.to_mut().push_str(&id);
        }
    }
}

/// Waits until the topic has room for them in memory, and whoever sent them may publish all of them
/// still.
async fn wait_while_allowed(
    http: &HttpState,
    client: &ConnectedClient,
    topic: &Topic,
    payloads: &[Cow<'_, str>],
) -> Result<(), ErrorResponse> {
    // Nearly always there is, and all of them have just been judged.
    if !topic.is_backpressured(None) {
        return Ok(());
    }
    let may = |pass: &Identity| {
        let judge = |payload| http.hub.access.check_publish(pass, topic.name().as_str(), payload);
        payloads.iter().try_for_each(|payload| judge(payload))
    };
    client.receive_while_allowed(may, wait_for_memory(http, topic)).await?
}

/// Waits until a topic has room in memory, but not for ever.
pub(super) async fn wait_for_memory(http: &HttpState, topic: &Topic) -> Result<(), ErrorResponse> {
    let room = poll_fn(|cx| {
        let held_up = topic.is_backpressured(Some(cx.waker()));
        if held_up { Poll::Pending } else { Poll::Ready(()) }
    });
    let patience = Duration::from_millis(http.config.backpressure_timeout_ms);
    super::with_timeout(patience, room).await.ok_or_else(|| {
        let message = format!("{} is being published to faster than it can be kept", topic.name());
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        ErrorResponse::new(unavailable, Code::Busy.as_str(), message).with_retry_after(1)
    })
}

/// Appends them in one piece, and notes who did.
pub(super) fn append(
    http: &HttpState,
    topic: &Arc<Topic>,
    by: Initiator,
    payloads: &[Cow<'_, str>],
) -> Result<Vec<Seq>, ErrorResponse> {
    let conn = ConnId(by.conn);
    let ids =
        payloads.iter().enumerate().filter_map(|(at, payload)| Some((at, dedup_id(payload)?)));
    let ids: Vec<_> = ids.collect();
    let seqs = if ids.is_empty() {
        let numbers = topic.append(conn, payloads.iter().map(AsRef::as_ref))?;
        (numbers.start.0..numbers.end.0).map(Seq).collect()
    } else {
        let payloads: Vec<&str> = payloads.iter().map(AsRef::as_ref).collect();
        topic.append_deduplicated(conn, &payloads, &ids)?
    };
    http.hub.stats.events.add(payloads.len() as u64);
    http.hub.audit.record_published(topic.name().as_str(), payloads.len() as u64, by.conn, || by);
    Ok(seqs)
}

/// Waits until all of them are as safe as the topic promises.
pub(super) async fn confirm(topic: &Topic, seqs: Vec<Seq>) -> Result<JsonResponse, ErrorResponse> {
    let last = seqs.iter().copied().max().expect("there is an event");
    let mut place = None;
    poll_fn(|cx| {
        if topic.fate(last).0 != Durability::Pending {
            return Poll::Ready(());
        }
        place = topic.wait_durable(last, place, cx.waker());
        if place.is_none() {
            // It has become safe since the look at its fate.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await;
    for seq in &seqs {
        if let (Durability::Lost(code), _) = topic.fate(*seq) {
            let text = format!("event {seq} of {} could not be kept", topic.name());
            return Err(ProtocolError::new(code, text).into());
        }
    }
    let seqs: Vec<u64> = seqs.into_iter().map(|seq| seq.0).collect();
    Ok(JsonResponse(json!({ "topic": topic.name().as_str(), "seqs": seqs })))
}

#[cfg(test)]
mod tests {
    use tidings_protocol::StartAt;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::access::{AccessConfig, Credential, PermissionSet, Principal, TokenHash, new_token};
    use crate::{Broker, BrokerConfig, HttpConfig, Limits};

    /// Somebody who reads a topic holds up who publishes to it, until he has taken something.
    #[tokio::test]
    async fn a_publish_that_waits_for_memory_is_rejected_after_revocation() {
        for key in ["", "Idempotency-Key: k\r\n"] {
            let listen = "127.0.0.1:0".parse().unwrap();
            let http =
                HttpConfig { listen, backpressure_timeout_ms: 3_600_000, ..HttpConfig::default() };
            let token = new_token();
            let rights = PermissionSet::new(vec!["pub:t".parse().unwrap()], Vec::new());
            let she = Principal::new("she", Credential::Token(TokenHash::of(&token)), rights);
            let access = AccessConfig { principals: Some(vec![she]), ..AccessConfig::default() };
            let limits = Limits { tail_bytes_max: 64 << 10, ..Limits::default() };
            let config = BrokerConfig {
                listen,
                http: Some(http),
                access,
                limits,
                ..BrokerConfig::default()
            };
            let broker = Broker::start(config).await.unwrap();
            let topic = broker.hub.topics.open(&"t".parse().unwrap()).unwrap();
            let reader = topic.reader(StartAt::First, Arc::default());
            let payload = "x".repeat(10_000);
            for _ in 0..100 {
                topic.append(ConnId(1), [payload.as_str()]).unwrap();
            }
            assert!(topic.is_backpressured(None));
            let mut stream = TcpStream::connect(broker.http_addr().unwrap()).await.unwrap();
            let ask = format!(
                "POST /topics/t HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n{key}\
                 Content-Length: 6\r\nConnection: close\r\n\r\nsecret",
                token.secret()
            );
            stream.write_all(ask.as_bytes()).await.unwrap();
            while broker.hub.stats.lines.value() == 0 {
                tokio::task::yield_now().await;
            }
            // It comes as far as it can.
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
            broker.hub.access.replace_principals(Vec::new());
            let mut heard = String::new();
            let end = crate::net::http::with_timeout(
                Duration::from_mins(1),
                stream.read_to_string(&mut heard),
            );
            end.await.expect("it is answered").unwrap();
            assert!(heard.starts_with("HTTP/1.1 401 "), "{heard}");
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
