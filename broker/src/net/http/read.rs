//! `GET /topics/{topic}`: events from a number on, and if there are none yet, the next ones that
//! come.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Extension;
use axum::body::{Body, HttpBody};
use axum::extract::State;
use axum::http::{HeaderValue, Uri, header};
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use serde_json::{Value, json};
use tidings_protocol::{Code, ProtocolError, Seq, StartAt, TopicName};
use tokio::sync::OwnedSemaphorePermit;

use super::client::Client;
use super::error::Refusal;
use super::following::{Filter, Following, Next};
use super::input::{Named, Params};
use super::{Http, within};
use crate::access::Action;
use crate::topic::payloads;

/// How long is waited for the first event if nobody says.
const WAIT_MS: u64 = 30_000;

/// Events of one answer, if nobody says, and at most.
const LIMIT: usize = 1_000;
const LIMIT_MAX: usize = 10_000;

/// Bytes of payloads of one answer, about.
const BYTES_MAX: usize = 1 << 20;

/// Bytes of events that are looked at for one answer, of which perhaps none is wanted.
const LOOKED_MAX: usize = 16 << 20;

/// Room for answers is given out in pieces of so many bytes.
pub(super) const PIECE_BYTES: usize = 1 << 10;

/// Answered at once if there is anything from `from` on, and otherwise when there is, or after
/// `wait`.
pub(super) async fn read(
    State(http): State<Arc<Http>>,
    Extension(client): Extension<Arc<Client>>,
    Named(topic): Named<TopicName>,
    uri: Uri,
) -> Result<Response, Refusal> {
    client.may(Action::Subscribe(topic.as_str()))?;
    let known = [["from", "limit", "wait"].as_slice(), &Filter::PARAMS].concat();
    let params = Params::of(&uri, &known)?;
    let from = params.get("from").map(str::parse::<StartAt>).transpose()?;
    let limit = params.number("limit", LIMIT, LIMIT_MAX)?;
    let wait = params.wait(WAIT_MS, http.config.wait_ms_max)?;
    let following = Following::begin(&http.hub, topic.clone(), from)?;
    let heard = topic.clone();
    let mut page = Page { limit, filter: Filter::of(&params), ..Page::new(topic, following) };
    let stop = http.stop.clone();
    let collected = within(wait, poll_fn(|cx| page.poll(cx)));
    tokio::select! {
        biased;
        () = client.loses(Action::Subscribe(heard.as_str())) => return Err(revoked()),
        _ = collected => {}
        () = stop.cancelled_owned() => {}
    }
    // What the disk was just asked for is not waited for by the clock: it was there.
    tokio::select! {
        biased;
        () = http.stop.cancelled() => {}
        () = poll_fn(|cx| page.poll_disk(cx)) => {}
    }
    let text = format!("{}\n", page.into_json());
    let pieces = u32::try_from(text.len().div_ceil(PIECE_BYTES)).unwrap_or(u32::MAX);
    // Whoever takes nothing of an answer is closed after a while, so there is room some time.
    let room = Arc::clone(&http.pages).acquire_many_owned(pieces).await;
    let room = room.expect("it is never closed");
    let mut response = Response::new(Body::new(Held { text: Some(text.into()), _room: room }));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(response)
}

fn revoked() -> Refusal {
    ProtocolError::new(Code::Unauthenticated, "what you may do has changed meanwhile").into()
}

/// The body of an answer, with the room that it takes until it was sent. It does not tell its
/// length, as the connection would not come back for its end then, when it has room for more.
struct Held {
    text: Option<Bytes>,
    _room: OwnedSemaphorePermit,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.text.take().map(|text| Ok(Frame::data(text))))
    }
}

/// What an answer has so far.
struct Page {
    topic: TopicName,
    following: Following,
    filter: Filter,
    limit: usize,
    events: Vec<Value>,
    bytes: usize,
    looked: usize,
    missed: Vec<Value>,
    /// The number behind the last one that was looked at, if any was.
    next: Option<Seq>,
}

impl Page {
    fn new(topic: TopicName, following: Following) -> Self {
        Self {
            topic,
            next: None,
            following,
            filter: Filter::default(),
            limit: LIMIT,
            events: Vec::new(),
            bytes: 0,
            looked: 0,
            missed: Vec::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.events.len() >= self.limit || self.bytes >= BYTES_MAX || self.looked >= LOOKED_MAX
    }

    /// Takes what there is; ready when that was anything.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.take(cx);
        let has_something = !self.events.is_empty() || !self.missed.is_empty() || self.is_full();
        if has_something { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Takes what there is, and waits for the disk, but for nothing else.
    fn poll_disk(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.take(cx) { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Whether the disk is asked for more.
    fn take(&mut self, cx: &mut Context<'_>) -> bool {
        while !self.is_full() {
            match self.following.next(cx, BYTES_MAX) {
                Next::Lines(first, lines) => self.add(first, &lines),
                Next::Lag(lag) => self.miss("lag", lag.from, lag.to),
                Next::Gap(gap) => self.miss("gap", gap.from, gap.to),
                Next::Nothing { reads } => return reads && self.events.is_empty(),
            }
        }
        false
    }

    fn add(&mut self, first: Seq, lines: &[u8]) {
        self.looked += lines.len();
        for (seq, payload) in payloads(&self.topic, first, lines) {
            if self.events.len() >= self.limit {
                return;
            }
            self.next = Some(Seq(seq.0 + 1));
            if self.filter.wants(&payload) {
                self.bytes += payload.len();
                self.events.push(json!({ "seq": seq.0, "payload": payload }));
            }
        }
    }

    fn miss(&mut self, kind: &str, from: Seq, to: Seq) {
        self.missed.push(json!({ "kind": kind, "from": from.0, "to": to.0 }));
        self.next = Some(Seq(to.0 + 1));
    }

    fn into_json(self) -> Value {
        json!({
            "topic": self.topic.as_str(),
            "events": self.events,
            "missed": self.missed,
            "next": self.next.unwrap_or_else(|| self.following.cursor()).0,
        })
    }
}
