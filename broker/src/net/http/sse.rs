//! `GET /topics/{topic}/events`: Server-Sent Events, as the HTML standard defines them. A stream is
//! a cursor, like any subscription. Streams of a topic share the bytes that are encoded for one.
#![expect(clippy::disallowed_methods, reason = "an idle stream sends keep-alives")]

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use http_body::Frame;
use tidings_protocol::{Seq, StartAt, TopicName};
use tokio::time::{Instant, Sleep};

use super::HttpState;
use super::client::StreamEnd;
use super::error::{HttpResult, bad_request};
use super::request_input::NamedRequest;
use super::sse_buffers::SseBuffer;
use super::topic_cursor::{EventFilter, NextEvents, TopicCursor};
use crate::access::{Action, Identity};
use crate::topic::{EventRun, payloads};

/// Bytes of events that a connection gets at a time; one read from the disk may find more. A client
/// that reads nothing pins this much, and no buffer of the disk: it is sent a copy.
const FRAME_BYTES: usize = 64 << 10;

/// Bytes of events that one poll searches without a match.
const SCAN_BYTES_MAX: usize = 1 << 20;

/// The beginning of every stream: the client reconnects after 1,000 ms.
pub(super) const RETRY_FIELD: Bytes = Bytes::from_static(b"retry: 1000\n");

/// A comment, which is not an event.
pub(super) const KEEP_ALIVE_COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// Begins after `Last-Event-ID`, else at `from`, else with new events.
pub(super) async fn stream(request: NamedRequest<TopicName>) -> HttpResult<Response> {
    let NamedRequest { http, client, name: topic, params, headers, .. } = request;
    let from = params.get("from").map(str::parse::<StartAt>).transpose()?;
    let from = start_from_last_event_id(&headers)?.or(from);
    let name = topic.clone();
    let check = move |identity: &Identity| identity.check_action(Action::Subscribe(name.as_str()));
    let end = client.begin_stream(Some(topic.as_str()), check, http.stop.clone())?;
    let cursor = TopicCursor::open(&http.shared, topic.clone(), from)?;
    let keep_alive = Duration::from_millis(http.config.keep_alive_interval_ms);
    let body = SseBody {
        cursor,
        filter: EventFilter::from_params(&params)?,
        http: Arc::clone(&http),
        shared_buffer: None,
        retry_sent: false,
        keep_alive_interval: keep_alive,
        keep_alive_timer: Box::pin(tokio::time::sleep(keep_alive)),
        end,
        topic,
    };
    Ok(event_stream(body))
}

/// The response with a stream of events.
pub(super) fn event_stream(
    body: impl HttpBody<Data = Bytes, Error = Infallible> + Send + 'static,
) -> Response {
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Otherwise nginx buffers the events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The seq after the last event that a reconnecting client has received.
fn start_from_last_event_id(headers: &HeaderMap) -> HttpResult<Option<StartAt>> {
    let Some(id) = headers.get("last-event-id").filter(|id| !id.is_empty()) else {
        return Ok(None);
    };
    let seq = id.to_str().ok().and_then(|id| id.parse::<Seq>().ok());
    let next = seq.and_then(|seq| seq.0.checked_add(1));
    let invalid = || bad_request("Last-Event-ID: expected the seq of an event of this topic");
    next.map(|next| Some(StartAt::Seq(Seq(next)))).ok_or_else(invalid)
}

struct SseBody {
    topic: TopicName,
    cursor: TopicCursor,
    filter: EventFilter,
    http: Arc<HttpState>,
    /// Shared with the other streams of the topic; `None` until the first event.
    shared_buffer: Option<Arc<SseBuffer>>,
    retry_sent: bool,
    keep_alive_interval: Duration,
    keep_alive_timer: Pin<Box<Sleep>>,
    end: StreamEnd,
}

impl SseBody {
    /// Returns the next bytes, if there are any at the moment.
    fn next_frame(&mut self, cx: &mut Context<'_>) -> Option<Bytes> {
        if !std::mem::replace(&mut self.retry_sent, true) {
            return Some(RETRY_FIELD);
        }
        let mut scanned = 0;
        loop {
            let bytes = match self.cursor.next(cx, FRAME_BYTES) {
                NextEvents::Lines(runs) if self.filter.matches_all() => self.encode_shared(&runs),
                NextEvents::Lines(runs) => {
                    scanned += bytes_of(&runs);
                    let matching = encode_events(&self.topic, &self.filter, &runs);
                    // Yields to other tasks, and reports the position to the client.
                    if matching.is_empty() && scanned > SCAN_BYTES_MAX {
                        self.encode_keep_alive()
                    } else {
                        matching
                    }
                }
                NextEvents::Lag(lag) => encode_missed("lag", lag.from, lag.to),
                NextEvents::Gap(gap) => encode_missed("gap", gap.from, gap.to),
                NextEvents::Empty { .. } => return None,
            };
            if !bytes.is_empty() {
                return Some(bytes);
            }
        }
    }

    fn encode_shared(&mut self, runs: &[EventRun]) -> Bytes {
        let id = self.cursor.topic_id().unwrap_or_default();
        let buffer = self.shared_buffer.get_or_insert_with(|| self.http.sse_buffers.for_topic(id));
        let encode = || encode_events(&self.topic, &self.filter, runs);
        buffer.get_or_encode(runs[0].first, bytes_of(runs), encode)
    }

    /// A comment or, on a filtered stream, the position: an id without data, which is not an event.
    /// A client that reconnects then does not search the skipped events again.
    fn encode_keep_alive(&self) -> Bytes {
        let last = self.cursor.next_seq().0.saturating_sub(1);
        let sends_position =
            !self.filter.matches_all() && last > 0 && self.cursor.is_start_resolved();
        if sends_position { format!("id: {last}\n\n").into() } else { KEEP_ALIVE_COMMENT }
    }
}

impl HttpBody for SseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if this.end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        let mut bytes = this.next_frame(cx);
        if bytes.is_none() && this.keep_alive_timer.as_mut().poll(cx).is_ready() {
            bytes = Some(this.encode_keep_alive());
        }
        let Some(bytes) = bytes else { return Poll::Pending };
        this.keep_alive_timer.as_mut().reset(Instant::now() + this.keep_alive_interval);
        if this.keep_alive_timer.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

fn bytes_of(runs: &[EventRun]) -> usize {
    runs.iter().map(|run| run.lines.len()).sum()
}

/// Encodes the matching events as Server-Sent Events.
fn encode_events(topic: &TopicName, filter: &EventFilter, runs: &[EventRun]) -> Bytes {
    let capacity = if filter.matches_all() { bytes_of(runs) * 5 / 4 } else { 0 };
    let mut out = BytesMut::with_capacity(capacity);
    for run in runs {
        for (seq, payload) in payloads(topic, run.first, &run.lines) {
            if filter.matches(&payload) {
                put_event(seq, &payload, &mut out);
            }
        }
    }
    out.freeze()
}

/// A payload is one line without control characters, so it cannot end the field `data`.
fn put_event(seq: Seq, payload: &str, out: &mut BytesMut) {
    out.put_slice(b"id: ");
    out.put_slice(itoa::Buffer::new().format(seq.0).as_bytes());
    out.put_slice(b"\ndata: ");
    out.put_slice(payload.as_bytes());
    out.put_slice(b"\n\n");
}

fn encode_missed(kind: &str, from: Seq, to: Seq) -> Bytes {
    let data = format!("{{\"from\":{from},\"to\":{to}}}");
    format!("event: {kind}\nid: {to}\ndata: {data}\n\n").into()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::mailbox::ConnId;
    use crate::{Broker, BrokerConfig, HttpConfig, Limits};

    // PROTOCOL: H5
    #[tokio::test]
    async fn an_idle_stream_sends_a_comment_or_its_position() {
        let listen = "127.0.0.1:0".parse().unwrap();
        let http = HttpConfig { listen, keep_alive_interval_ms: 20, ..HttpConfig::default() };
        let config = BrokerConfig { listen, http: Some(http), ..BrokerConfig::default() };
        let broker = Broker::start(config).await.unwrap();
        let topic = broker.shared.topics.open(&"t".parse().unwrap()).unwrap();
        topic.append(ConnId(1), ["http://b.example/"]).unwrap();
        for (query, expected) in [("", "\n:\n\n"), ("?from=first&host=a.example", "\nid: 1\n\n")] {
            let mut stream = TcpStream::connect(broker.http_addr().unwrap()).await.unwrap();
            let request =
                format!("GET /topics/t/events{query} HTTP/1.0\r\nHost: localhost\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut received = String::new();
            let receive = async {
                while !received.contains(expected) {
                    let mut bytes = [0; 1_000];
                    let count = stream.read(&mut bytes).await.unwrap();
                    assert_ne!(count, 0, "the stream ended: {received}");
                    received += std::str::from_utf8(&bytes[..count]).unwrap();
                }
            };
            tokio::time::timeout(Duration::from_mins(1), receive).await.expect(expected);
            assert!(!received.contains("data:"), "{received}");
        }
        broker.stop().await;
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_holds_no_buffer_of_the_disk() {
        let data = tempfile::tempdir().unwrap();
        let config = BrokerConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            data: Some(data.path().to_owned()),
            // Two buffers.
            limits: Limits { cold_read_bytes_max: 0, ..Limits::default() },
            ..BrokerConfig::default()
        };
        let broker = Broker::start(config.clone()).await.unwrap();
        let name: TopicName = "t".parse().unwrap();
        let payload = "x".repeat(1_000);
        for _ in 0..20 {
            // More than one read, and each batch is a run.
            let topic = broker.shared.topics.open(&name).unwrap();
            topic.append(ConnId(1), [payload.as_str(); 40]).unwrap();
        }
        broker.stop().await;
        // The memory of a broker that has started is empty.
        let broker = Broker::start(config).await.unwrap();
        let mut cursors = Vec::new();
        for _ in 0..5 {
            let first = Some(StartAt::First);
            let mut cursor = TopicCursor::open(&broker.shared, name.clone(), first).unwrap();
            let read = poll_fn(|cx| match cursor.next(cx, FRAME_BYTES) {
                NextEvents::Lines(runs) => Poll::Ready(runs),
                NextEvents::Empty { .. } => Poll::Pending,
                missed => panic!("{missed:?}"),
            });
            let read = tokio::time::timeout(Duration::from_mins(1), read);
            let runs = read.await.expect("a buffer is free");
            assert!(runs.len() > 1 && cursor.next_seq() < Seq(800), "{:?}", cursor.next_seq());
            cursors.push(cursor);
        }
        drop(cursors);
        broker.stop().await;
    }

    #[test]
    fn the_seq_is_the_event_id_and_the_payload_is_unchanged() {
        let topic = "t".parse().unwrap();
        let run = |first, lines| EventRun {
            first: Seq(first),
            unix_ms: 0,
            later: Vec::new(),
            lines: Bytes::from_static(lines),
        };
        let runs =
            [run(9, b"MSG t 9 http://a.example/ x=1\r\n"), run(10, b"MSG t 10  data: two  \r\n")];
        let encoded = encode_events(&topic, &EventFilter::default(), &runs);
        let expected = "id: 9\ndata: http://a.example/ x=1\n\nid: 10\ndata:  data: two  \n\n";
        assert_eq!(encoded, expected.as_bytes());
        let lag = encode_missed("lag", Seq(3), Seq(7));
        assert_eq!(lag, "event: lag\nid: 7\ndata: {\"from\":3,\"to\":7}\n\n".as_bytes());
    }

    #[test]
    fn a_stream_resumes_after_the_last_event_id() {
        let from = |id: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("last-event-id", HeaderValue::from_static(id));
            start_from_last_event_id(&headers).ok()
        };
        assert_eq!(from("41"), Some(Some(StartAt::Seq(Seq(42)))));
        assert_eq!(from(""), Some(None), "no event received yet");
        for invalid in ["x", "-1", "1.5", "18446744073709551615"] {
            assert_eq!(from(invalid), None, "{invalid}");
        }
    }
}
