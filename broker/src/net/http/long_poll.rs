//! `GET /topics/{topic}`: returns events from a seq on, or waits for the next ones (long poll).

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::header;
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use serde_json::{Value, json};
use tidings_protocol::{Seq, StartAt, TopicName};
use tokio::sync::OwnedSemaphorePermit;

use super::client::permissions_changed;
use super::error::HttpResult;
use super::json_objects::JSON;
use super::request_input::NamedRequest;
use super::topic_cursor::{EventFilter, NextEvents, TopicCursor};
use super::with_timeout;
use crate::access::Action;
use crate::topic::{EventRun, payloads};

/// How long a request without `wait` waits for the first event.
const DEFAULT_WAIT_MS: u64 = 30_000;

/// Events of a response without `limit`, and the largest `limit`.
const DEFAULT_LIMIT: usize = 1_000;
const LIMIT_MAX: usize = 10_000;

/// Bytes of payloads in one response, approximately.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// Bytes of events that one response searches; the filter may match none of them.
const SCAN_BYTES_MAX: usize = 16 << 20;

/// Responds at once if there is an event or a missing seq from `from` on; otherwise when there is
/// one, or after `wait`.
pub(super) async fn read(request: NamedRequest<TopicName>) -> HttpResult<Response> {
    let NamedRequest { http, client, name: topic, params, .. } = request;
    client.check_action(Action::Subscribe(topic.as_str()))?;
    let from = params.get("from").map(str::parse::<StartAt>).transpose()?;
    let limit = params.number("limit", DEFAULT_LIMIT, LIMIT_MAX)?;
    let wait = params.wait(DEFAULT_WAIT_MS, http.config.wait_ms_max)?;
    let cursor = TopicCursor::open(&http.shared, topic.clone(), from)?;
    let mut page = EventPage {
        topic: topic.clone(),
        cursor,
        filter: EventFilter::from_params(&params)?,
        limit,
        events: Vec::new(),
        payload_bytes: 0,
        scanned_bytes: 0,
        missed: Vec::new(),
        next_seq: None,
    };
    let stop = http.stop.clone();
    let collected = with_timeout(wait, poll_fn(|cx| page.poll_events(cx)));
    tokio::select! {
        biased;
        () = client.revoked(Action::Subscribe(topic.as_str())) => return Err(permissions_changed().into()),
        _ = collected => {}
        () = stop.cancelled_owned() => {}
    }
    // A read from the disk that is under way is finished even if `wait` is over: its events exist.
    tokio::select! {
        biased;
        () = http.stop.cancelled() => {}
        () = poll_fn(|cx| page.poll_disk(cx)) => {}
    }
    let text = format!("{}\n", page.into_json());
    let permit = http.reserve_page(text.len()).await;
    let mut response =
        Response::new(Body::new(BudgetedBody { text: Some(text.into()), _permit: permit }));
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    Ok(response)
}

/// A response body that holds its memory permit until it is sent. It does not report its length,
/// because the connection would then not poll for the end when it has room for more bytes.
struct BudgetedBody {
    text: Option<Bytes>,
    _permit: OwnedSemaphorePermit,
}

impl HttpBody for BudgetedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.text.take().map(|text| Ok(Frame::data(text))))
    }
}

/// The events that a response has collected so far.
struct EventPage {
    topic: TopicName,
    cursor: TopicCursor,
    filter: EventFilter,
    limit: usize,
    events: Vec<Value>,
    payload_bytes: usize,
    scanned_bytes: usize,
    missed: Vec<Value>,
    /// The seq after the last one that was searched, if any.
    next_seq: Option<Seq>,
}

impl EventPage {
    fn is_full(&self) -> bool {
        self.events.len() >= self.limit
            || self.payload_bytes >= PAGE_BYTES_MAX
            || self.scanned_bytes >= SCAN_BYTES_MAX
    }

    /// Collects available events; ready when there were any, or when seqs are missing.
    fn poll_events(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.fill(cx);
        let has_something = !self.events.is_empty() || !self.missed.is_empty() || self.is_full();
        if has_something { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Collects available events, and waits only while the disk is read.
    fn poll_disk(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.fill(cx) { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Collects available events, and returns whether to wait for a read from the disk.
    fn fill(&mut self, cx: &mut Context<'_>) -> bool {
        while !self.is_full() {
            match self.cursor.next(cx, PAGE_BYTES_MAX) {
                NextEvents::Lines(runs) => runs.iter().for_each(|run| self.add_run(run)),
                NextEvents::Lag(lag) => self.add_missed("lag", lag.from, lag.to),
                NextEvents::Gap(gap) => self.add_missed("gap", gap.from, gap.to),
                NextEvents::Empty { is_reading_disk } => {
                    return is_reading_disk && self.events.is_empty();
                }
            }
        }
        false
    }

    fn add_run(&mut self, run: &EventRun) {
        self.scanned_bytes += run.lines.len();
        let to_second = |ms: i64| StartAt::Time(ms - ms.rem_euclid(1_000)).to_string();
        let (mut time, mut later) = (to_second(run.unix_ms), run.later.iter().peekable());
        for (seq, payload) in payloads(&self.topic, run.first, &run.lines) {
            if self.events.len() >= self.limit {
                return;
            }
            if let Some((_, unix_ms)) = later.next_if(|(first, _)| *first == seq) {
                time = to_second(*unix_ms);
            }
            self.next_seq = Some(Seq(seq.0 + 1));
            if self.filter.matches(&payload) {
                self.payload_bytes += payload.len();
                self.events.push(json!({ "seq": seq.0, "time": time, "payload": payload }));
            }
        }
    }

    fn add_missed(&mut self, kind: &str, from: Seq, to: Seq) {
        self.missed.push(json!({ "kind": kind, "from": from.0, "to": to.0 }));
        self.next_seq = Some(Seq(to.0 + 1));
    }

    fn into_json(self) -> Value {
        json!({
            "topic": self.topic.as_str(),
            "events": self.events,
            "missed": self.missed,
            "next": self.next_seq.unwrap_or_else(|| self.cursor.next_seq()).0,
        })
    }
}
