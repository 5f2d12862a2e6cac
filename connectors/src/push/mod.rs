//! Pushes: the events of a topic are sent to a URL, one by one or in batches.
//!
//! A group for each push takes the events of the topic that its filter selects. An event is
//! acknowledged when the receiver has accepted it. So it waits, is retried and ends as a dead letter
//! like any other entry, and no push waits for another one.
//!
//! While a receiver does not answer, redirects or has no capacity, the events of its push wait, and
//! are not tried one after the other. Such an attempt does not count, because it says nothing about
//! the event. So a receiver that is down for a night makes no dead letters. An event that has waited
//! for such an attempt again and again, for [`Push::retry_for`] together, is one.

#![expect(clippy::disallowed_methods, reason = "batches and pauses have a time")]

mod format;
mod pause;
mod receiver_log;
mod template;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tidings_client::{
    ClientError, ClientOptions, Connector, GroupSetup, TaskEnd, TaskHandler, Worker, WorkerTask,
};
use tidings_protocol::{
    AttributeFilter, CanonicalUrl, GroupName, KeyRest, Payload, RetryMode, TopicName,
};
use tidings_signature::digest_parts;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub use self::format::{Format, FormatError};
use self::pause::{Pause, pause_after, waited_until};
use self::receiver_log::ReceiverLog;
pub use self::template::Template;
use crate::delivery::{Attempt, Delivery, GROUP_SETTINGS, Message, Receiver, id_without_dots};

/// The events of a batch.
const BATCH_EVENTS_MAX: usize = 100;

/// Bytes of payloads after which a batch takes no further event.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// The events that a push holds in memory: one batch that is sent, and the next one. Each has at
/// most 60 KiB.
const CREDIT: u32 = 200;

/// Requests at once without batches.
const REQUESTS_MAX: usize = 4;

/// Events of a topic that are sent to a URL.
#[derive(Debug, Clone)]
pub struct Push {
    /// Its group, which also names the push.
    pub group: GroupName,
    /// The topic.
    pub topic: TopicName,
    /// The events that are sent.
    pub filter: AttributeFilter,
    /// The receiver.
    pub url: CanonicalUrl<'static>,
    /// The form of the requests.
    pub format: Format,
    /// For how long events are collected into one request; `None` sends each one alone.
    pub batch: Option<Duration>,
    /// For how long at least an event is sent again while the receiver is down.
    pub retry_for: Duration,
}

/// Sends the events of a push until `stop` is cancelled, and then returns unfinished tasks to the
/// group. After an error it connects to the broker again.
pub async fn run(push: Push, delivery: Delivery, stop: CancellationToken) {
    let (group, topic) = (push.group.clone(), push.topic.clone());
    let setup = GroupSetup {
        group: group.clone(),
        topic,
        key: "seq",
        is_exclusive: true,
        filter: push.filter.clone(),
        settings: GROUP_SETTINGS,
    };
    let options = ClientOptions { name: Some(group.to_string()), ..ClientOptions::default() };
    let connector = Connector::new(&delivery.broker, options).persistent().with_group(setup);
    let (events, collected) = mpsc::channel(2 * BATCH_EVENTS_MAX);
    let sender = Sender {
        delivery,
        pause: Pause::default(),
        log: ReceiverLog::default(),
        push,
        stop: stop.clone(),
    };
    let sender = Arc::new(sender);
    let handler =
        PushHandler { sender: Arc::clone(&sender), requests: Semaphore::new(REQUESTS_MAX), events };
    let worker = Worker::new(connector, group.clone(), CREDIT);
    // The handler has the other end of `collected`, and ends with the worker.
    let (ended, ()) = tokio::join!(worker.run(handler, None, stop), sender.send_batches(collected));
    if let Err(error) = ended {
        tracing::error!(%group, "events are not pushed any more: {error}");
    }
}

/// An event of the topic.
#[derive(Debug)]
struct Event {
    /// `<topic>/<seq>`
    id: String,
    payload: String,
}

impl Event {
    fn payload(&self) -> Payload<'_> {
        Payload::parse(&self.payload)
    }

    /// The event of a task; `None` if the group has not `key=seq`.
    fn of_task(payload: &str, topic: &TopicName) -> Option<Self> {
        let (id, payload) = payload.split_once(' ')?;
        let (of, seq) = id.rsplit_once('/')?;
        let is_seq = seq.parse::<u64>().is_ok() && of == topic.as_str();
        is_seq.then(|| Self { id: id.to_owned(), payload: payload.to_owned() })
    }
}

/// An event that waits for its batch.
struct CollectedEvent {
    event: Event,
    /// When a batch that begins with it must be sent.
    until: Instant,
    end: oneshot::Sender<Result<TaskEnd, Option<String>>>,
}

struct Sender {
    push: Push,
    delivery: Delivery,
    pause: Pause,
    log: ReceiverLog,
    stop: CancellationToken,
}

impl Sender {
    /// Sends events in one request, and returns how their tasks end; an error is the reason of an
    /// attempt that does not count.
    async fn send(&self, events: &[&Event]) -> Result<TaskEnd, Option<String>> {
        let Push { group, topic, url, format, batch, .. } = &self.push;
        let send = async {
            self.pause.end().await;
            let (content_type, body) = format.body(topic, events, batch.is_some());
            let id = message_id(events, batch.is_some());
            let (subject, traceparent) = (group.as_str(), traceparent_of(events));
            let (receiver, id) = (subject, &*id);
            self.delivery
                .send(Message { subject, receiver, url, id, content_type, body, traceparent })
                .await
        };
        let attempt = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Ok(TaskEnd::Interrupted),
            attempt = send => attempt,
        };
        self.pause.add(&attempt);
        if let Some(line) = self.log.line_after(&attempt) {
            tracing::warn!(%group, "{line}");
        }
        match attempt {
            Attempt { end: TaskEnd::Nack(_, _, reason), receiver: Receiver::IsDown, .. } => {
                Err(reason)
            }
            Attempt { end, .. } => Ok(end),
        }
    }

    async fn send_batches(&self, mut collected: mpsc::Receiver<CollectedEvent>) {
        while let Some(batch) = self.collect(&mut collected).await {
            // Tasks that are lost meanwhile belong to another attempt.
            let batch: Vec<_> = batch.into_iter().filter(|one| !one.end.is_closed()).collect();
            if batch.is_empty() {
                continue;
            }
            let events: Vec<_> = batch.iter().map(|one| &one.event).collect();
            let end = self.send(&events).await;
            for CollectedEvent { end: task, .. } in batch {
                // The task may be lost.
                let _ = task.send(end.clone());
            }
        }
    }

    /// The events of the next batch, in the order of the topic; `None` at the end.
    async fn collect(
        &self,
        collected: &mut mpsc::Receiver<CollectedEvent>,
    ) -> Option<Vec<CollectedEvent>> {
        let first = collected.recv().await?;
        let mut until = first.until;
        let (mut bytes, mut batch) = (first.event.payload.len(), vec![first]);
        while batch.len() < BATCH_EVENTS_MAX && bytes < BATCH_BYTES_MAX {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                next = collected.recv() => {
                    let Some(next) = next else { break };
                    bytes += next.event.payload.len();
                    until = until.min(next.until);
                    batch.push(next);
                }
                () = sleep_until(until) => break,
            }
        }
        batch.sort_by_cached_key(|one| seq_of(&one.event.id));
        Some(batch)
    }
}

/// The id of a request. Events may come again in another batch, so that of a batch depends on all
/// of its events.
fn message_id(events: &[&Event], is_batch: bool) -> String {
    if !is_batch {
        return id_without_dots(&events[0].id);
    }
    let ids: Vec<_> = events.iter().map(|event| event.id.as_bytes()).collect();
    format!("batch-{}", data_encoding::HEXLOWER.encode(&digest_parts(&ids)[..16]))
}

/// The trace context that all events of a request have.
fn traceparent_of<'a>(events: &[&'a Event]) -> Option<&'a str> {
    let mut traces = events.iter().map(|event| event.payload().traceparent());
    let first = traces.next().flatten()?;
    traces.all(|trace| trace == Some(first)).then_some(first)
}

fn seq_of(id: &str) -> Option<u64> {
    id.rsplit_once('/')?.1.parse().ok()
}

struct PushHandler {
    sender: Arc<Sender>,
    requests: Semaphore,
    events: mpsc::Sender<CollectedEvent>,
}

impl PushHandler {
    /// Sends an event. One that comes again does not wait for others a second time.
    async fn push(&self, event: Event, is_first_attempt: bool) -> Result<TaskEnd, Option<String>> {
        let Some(wait) = self.sender.push.batch else {
            let permit = self.requests.acquire().await;
            let _permit = permit.expect("the semaphore is never closed");
            return self.sender.send(&[&event]).await;
        };
        let until = Instant::now() + if is_first_attempt { wait } else { Duration::ZERO };
        let (end, ended) = oneshot::channel();
        let event = CollectedEvent { event, until, end };
        // The other end lives until this handler is dropped.
        let _ = self.events.send(event).await;
        ended.await.unwrap_or_else(|_| Ok(TaskEnd::not_started()))
    }

    /// How the task of an event ends after an attempt that does not count.
    fn end_after_outage(&self, attempt: u32, reason: Option<String>) -> TaskEnd {
        let retry = if waited_until(attempt) < self.sender.push.retry_for {
            let after_ms = u64::try_from(pause_after(attempt.saturating_sub(1)).as_millis()).ok();
            RetryMode::Uncounted { after_ms }
        } else {
            RetryMode::Never
        };
        TaskEnd::Nack(retry, KeyRest::default(), reason)
    }
}

impl TaskHandler for PushHandler {
    type Error = Infallible;

    async fn handle(
        &self,
        task: &WorkerTask,
        lost: &CancellationToken,
    ) -> Result<TaskEnd, Infallible> {
        let Push { group, topic, .. } = &self.sender.push;
        let Some(event) = Event::of_task(&task.payload, topic) else {
            return Ok(TaskEnd::failed(format!("{group} is no group of {topic} with key=seq")));
        };
        Ok(tokio::select! {
            biased;
            () = lost.cancelled() => TaskEnd::not_started(),
            end = self.push(event, task.id.attempt == 1) => {
                end.unwrap_or_else(|reason| self.end_after_outage(task.id.attempt, reason))
            }
        })
    }

    fn disconnected(&self, error: &ClientError) {
        let group = &self.sender.push.group;
        tracing::warn!(%group, "events are not pushed, trying again: {error}");
    }
}
