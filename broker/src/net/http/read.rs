//! `GET /topics/{topic}`: events from a number on, and if there are none yet, the next ones that come.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::State;
use axum::http::Uri;
use serde_json::{Value, json};
use tidings_protocol::{Seq, StartAt, TopicName};

use super::error::Refusal;
use super::following::{Filter, Following, Next};
use super::input::{Named, Params};
use super::objects::Object;
use super::{Http, within};
use crate::topic::payloads;

/// How long is waited for the first event if nobody says.
const WAIT_MS: u64 = 30_000;

/// Events of one answer, if nobody says, and at most.
const LIMIT: usize = 1_000;
const LIMIT_MAX: usize = 10_000;

/// Bytes of payloads of one answer, about.
const BYTES_MAX: usize = 4 << 20;

/// Answered at once if there is anything from `from` on, and otherwise when there is, or after `wait`.
pub(super) async fn read(
    State(http): State<Arc<Http>>,
    Named(topic): Named<TopicName>,
    uri: Uri,
) -> Result<Object, Refusal> {
    let known = [["from", "limit", "wait"].as_slice(), &Filter::PARAMS].concat();
    let params = Params::of(&uri, &known)?;
    let from = params.get("from").map(str::parse::<StartAt>).transpose()?;
    let limit = params.number("limit", LIMIT, LIMIT_MAX)?;
    let wait = params.wait(WAIT_MS, http.config.wait_ms_max)?;
    let following = Following::begin(&http.hub, &topic, from)?;
    let mut page = Page { limit, filter: Filter::of(&params), ..Page::new(topic, following) };
    let stop = http.stop.clone();
    let collected = within(wait, poll_fn(|cx| page.poll(cx)));
    tokio::select! {
        biased;
        _ = collected => {}
        () = stop.cancelled_owned() => {}
    }
    // What the disk was just asked for is not waited for by the clock: it was there.
    poll_fn(|cx| page.poll_disk(cx)).await;
    Ok(Object(page.into_json()))
}

/// What an answer has so far.
struct Page {
    topic: TopicName,
    following: Following,
    filter: Filter,
    limit: usize,
    events: Vec<Value>,
    bytes: usize,
    missed: Vec<Value>,
    /// The number behind the last one that was looked at.
    next: Seq,
}

impl Page {
    fn new(topic: TopicName, following: Following) -> Self {
        Self {
            topic,
            next: following.cursor(),
            following,
            filter: Filter::default(),
            limit: LIMIT,
            events: Vec::new(),
            bytes: 0,
            missed: Vec::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.events.len() >= self.limit || self.bytes >= BYTES_MAX
    }

    /// Takes what there is; ready when that was anything.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.take(cx);
        let has_something = !self.events.is_empty() || !self.missed.is_empty();
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
        for (seq, payload) in payloads(&self.topic, first, lines) {
            if self.events.len() >= self.limit {
                return;
            }
            self.next = Seq(seq.0 + 1);
            if self.filter.wants(&payload) {
                self.bytes += payload.len();
                self.events.push(json!({ "seq": seq.0, "payload": payload }));
            }
        }
    }

    fn miss(&mut self, kind: &str, from: Seq, to: Seq) {
        self.missed.push(json!({ "kind": kind, "from": from.0, "to": to.0 }));
        self.next = Seq(to.0 + 1);
    }

    fn into_json(self) -> Value {
        json!({
            "topic": self.topic.as_str(),
            "events": self.events,
            "missed": self.missed,
            "next": self.next.0,
        })
    }
}
