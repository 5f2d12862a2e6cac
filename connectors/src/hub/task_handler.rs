//! Handles the tasks of the hub: verify a subscriber, fetch a topic, deliver content.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_ENCODING, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use tidings_protocol::{
    CanonicalUrl, ClientError, KeyRest, Outcome, Payload, RetryMode, push_attribute,
};
use tidings_subscriber::outcome::{Failure, Reason};
use tokio_util::sync::CancellationToken;

use super::callback_request::{self, Challenge};
use super::hub_request::SubscriptionRequest;
use super::store::{DueDelivery, GrantOutcome, RowId, StoredVersion, TopicContent};
use super::{DELIVERY_QUEUE, Hub, host_of, now_unix_ms};
use crate::outgoing::OutgoingResponse;
use crate::worker::{TaskEnd, TaskHandler, WorkerTask};

/// Limit of a topic's content, and of all contents in the cache.
pub(super) const CONTENT_BYTES_MAX: usize = 4 << 20;

/// Limit of the redirects of one fetch.
const REDIRECTS_MAX: u32 = 5;

/// Deliveries that are published in one batch.
const RECIPIENT_BATCH: u32 = 1000;

/// Wait before a task is retried because another task with its target is running.
const BUSY_RETRY_MS: u64 = 500;
/// Wait before a task is retried after an error of the store or the broker.
const ERROR_RETRY_MS: u64 = 10_000;

/// Limit of the characters of an invalid event in the log.
const LOGGED_CHARS_MAX: usize = 200;

/// Runs one group's tasks.
pub(super) struct HubTaskHandler {
    pub(super) hub: Arc<Hub>,
    pub(super) stop: CancellationToken,
}

/// An error of the store or the broker. The task is retried uncounted, because the subscriber did
/// not cause it.
enum HubError {
    Store(rusqlite::Error),
    Broker(ClientError),
}

impl From<rusqlite::Error> for HubError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error)
    }
}

/// Permission to work on a target. No other task with this target runs before it is dropped.
struct TargetPermit<'a> {
    hub: &'a Hub,
    target: String,
}

impl Drop for TargetPermit<'_> {
    fn drop(&mut self) {
        self.hub.active_targets.lock().remove(&self.target);
    }
}

impl TaskHandler for HubTaskHandler {
    type Error = Infallible;

    async fn handle(
        &self,
        task: &WorkerTask,
        lost: &CancellationToken,
    ) -> Result<TaskEnd, Infallible> {
        Ok(tokio::select! {
            biased;
            () = lost.cancelled() => TaskEnd::not_started(),
            () = self.stop.cancelled() => TaskEnd::Interrupted,
            end = self.hub.process(&task.payload) => end,
        })
    }

    fn disconnected(&self, error: &ClientError) {
        tracing::warn!(%error, "the hub has lost its connection to the broker; it reconnects");
    }
}

impl Hub {
    async fn process(&self, payload: &str) -> TaskEnd {
        let payload = Payload::parse(payload);
        let Some(target) = payload.target() else { return self.invalid_event(payload.text()) };
        let Some(_turn) = self.acquire_target(target) else {
            return TaskEnd::Nack(
                RetryMode::Uncounted { after_ms: Some(BUSY_RETRY_MS) },
                KeyRest::default(),
                None,
            );
        };
        let number = |key| payload.attribute(key).and_then(|id| id.parse::<RowId>().ok());
        let is_last = payload.attribute("last") == Some("yes");
        let done = if let Some(id) = number("verify") {
            self.verify(id, is_last).await
        } else if let Some(id) = number("deliver") {
            self.deliver(id, is_last).await
        } else if payload.attribute("fetch") == Some("yes")
            && let Ok(url) = CanonicalUrl::parse(target)
            && self.config.rules.has_topic(&url)
        {
            self.fetch(&url).await
        } else {
            return self.invalid_event(target);
        };
        done.unwrap_or_else(|trouble| {
            match trouble {
                HubError::Store(error) => tracing::error!(%error, "cannot access hub.db"),
                HubError::Broker(error) => tracing::error!(%error, "the hub cannot publish"),
            }
            TaskEnd::Nack(
                RetryMode::Uncounted { after_ms: Some(ERROR_RETRY_MS) },
                KeyRest::default(),
                None,
            )
        })
    }

    fn acquire_target(&self, target: &str) -> Option<TargetPermit<'_>> {
        let is_free = self.active_targets.lock().insert(target.to_owned());
        is_free.then(|| TargetPermit { hub: self, target: target.to_owned() })
    }

    /// Verifies a subscription request. The answer of the callback is final.
    async fn verify(&self, id: RowId, is_last: bool) -> Result<TaskEnd, HubError> {
        let Some(wish) = self.with_store(move |store| store.pending_request(id)).await? else {
            return Ok(TaskEnd::done());
        };
        let challenge = Challenge::for_request(&wish);
        let sent = match &challenge {
            Challenge::Echo { url, text } => {
                let body_max = text.len() + 1;
                self.send(Method::GET, url, HeaderMap::new(), Bytes::new(), body_max).await
            }
            Challenge::Notification => {
                self.notify_rsscloud(&wish.callback, &wish.topic.verbatim_url).await
            }
        };
        let (topic, host) = (wish.topic.url.as_str(), wish.callback.host());
        match sent {
            Ok(answered) if challenge.is_passed_by(&answered) => {
                let bounds = self.config.limits;
                let granted =
                    self.with_store(move |store| store.grant(id, &bounds, now_unix_ms())).await?;
                self.verification_waiters.resolve(id, granted == GrantOutcome::Applied);
                match granted {
                    GrantOutcome::Applied => {
                        let subscribed = wish.lease.is_some();
                        tracing::info!(
                            topic,
                            host,
                            subscribed,
                            "a subscriber of the hub is verified"
                        );
                    }
                    GrantOutcome::Superseded => {}
                    GrantOutcome::Full => self.deny(&wish).await,
                }
                Ok(TaskEnd::done())
            }
            Ok(answered)
                if !is_last && Reason::of_status(answered.status.as_u16()).is_transient() =>
            {
                Ok(retry_for_response(&answered))
            }
            Ok(answered) => {
                self.with_store(move |store| store.remove_request(id)).await?;
                self.verification_waiters.resolve(id, false);
                let status = answered.status.as_u16();
                tracing::info!(topic, host, status, "a subscriber of the hub declined a request");
                Ok(TaskEnd::done())
            }
            Err(failure) if failure.is_transient() && !is_last => {
                Ok(TaskEnd::failed(reason_word(&failure)))
            }
            Err(failure) => {
                self.with_store(move |store| store.remove_request(id)).await?;
                self.verification_waiters.resolve(id, false);
                self.log_unreachable(&failure, host);
                Ok(TaskEnd::Ack(Outcome::Failed, KeyRest::default()))
            }
        }
    }

    /// Notifies a verified subscriber that it exceeds a limit, once.
    async fn deny(&self, wish: &SubscriptionRequest) {
        self.logs.rejected_subscribers.lock().add(1, "--hub-subscribers was lowered");
        if let Some(url) = callback_request::denial_url(wish) {
            // A subscriber that misses the denial gets no content.
            let _ = self.send(Method::GET, &url, HeaderMap::new(), Bytes::new(), 0).await;
        }
    }

    /// Fetches a topic. If it has changed, publishes a delivery for each subscriber.
    async fn fetch(&self, url: &CanonicalUrl<'_>) -> Result<TaskEnd, HubError> {
        let topic = url.to_string();
        let asked = topic.clone();
        if !self.with_store(move |store| store.has_subscribers(&asked, now_unix_ms())).await? {
            return Ok(TaskEnd::done());
        }
        let (answered, why_not) = match self.fetch_content(url).await {
            Ok(read) => read,
            Err(failure) if failure.is_transient() => {
                return Ok(TaskEnd::failed(reason_word(&failure)));
            }
            Err(failure) => {
                tracing::warn!(topic, %failure, "the hub cannot fetch a topic");
                return Ok(TaskEnd::Ack(Outcome::Failed, KeyRest::default()));
            }
        };
        if let Some(reason) = why_not {
            let status = answered.status.as_u16();
            if Reason::of_status(status).is_transient() {
                return Ok(retry_for_response(&answered));
            }
            tracing::warn!(topic, status, %reason, "the hub cannot distribute a topic");
            return Ok(TaskEnd::Ack(Outcome::Failed, KeyRest::default()));
        }
        let content_type = callback_request::content_type(&answered.headers);
        let body = answered.body;
        let stored =
            self.with_store(move |store| store.put_content(&topic, content_type.as_deref(), &body));
        // Also if nothing has changed: all attempts of an earlier delivery may have failed.
        if let Some(stored) = stored.await? {
            self.enqueue_deliveries(stored).await?;
        }
        Ok(TaskEnd::done())
    }

    /// Fetches the content of a topic from the operator's own site. The second value is the reason
    /// if the response is not content. Redirects are followed only below the prefixes, because
    /// nothing else may be fetched this way or distributed.
    async fn fetch_content(
        &self,
        topic: &CanonicalUrl<'_>,
    ) -> Result<(OutgoingResponse, Option<Cow<'static, str>>), Failure> {
        // A cache in between may have an old version.
        let mut headers = HeaderMap::new();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        let mut at = topic.clone().into_owned();
        let mut redirects = 0;
        loop {
            let (headers, nothing) = (headers.clone(), Bytes::new());
            let sent = self.site_client.send(Method::GET, &at, headers, nothing, CONTENT_BYTES_MAX);
            let answered = sent.await?;
            let Some(next) = answered.redirect(&at) else {
                let why_not = content_error(&answered).map(Cow::Borrowed);
                return Ok((answered, why_not));
            };
            if !self.config.rules.has_topic(&next) {
                let why_not = format!("it redirects to {next}, which is not below --hub");
                return Ok((answered, Some(why_not.into())));
            }
            if redirects == REDIRECTS_MAX {
                return Ok((answered, Some("it has more than 5 redirects".into())));
            }
            (at, redirects) = (next, redirects + 1);
        }
    }

    /// Publishes a delivery for each subscriber that misses a content. After an interruption it
    /// starts again; the ids of events prevent duplicates.
    async fn enqueue_deliveries(&self, stored: StoredVersion) -> Result<(), HubError> {
        let (mut after, mut count) = (0, 0);
        loop {
            let recipients = move |store: &super::HubStore| {
                store.next_recipients(stored, after, RECIPIENT_BATCH, now_unix_ms())
            };
            let recipients = self.with_store(recipients).await?;
            let Some((last, ..)) = recipients.last() else { break };
            after = *last;
            count += recipients.len();
            let event = |(id, callback, begun): &(RowId, String, i64)| {
                let mut event = self.own_url("deliver", *id);
                push_attribute(&mut event, "host", &host_of(callback));
                push_attribute(&mut event, "deliver", &id.to_string());
                let StoredVersion { topic_id: topic, version, .. } = stored;
                let event_id = format!("hub-{}-{topic}-{version}-{id}-{begun}", self.database_id);
                push_attribute(&mut event, "id", &event_id);
                event
            };
            let events: Vec<_> = recipients.iter().map(event).collect();
            self.publisher
                .publish(&DELIVERY_QUEUE.topic(), &events)
                .await
                .map_err(HubError::Broker)?;
            let ids: Vec<RowId> = recipients.iter().map(|(id, ..)| *id).collect();
            self.with_store(move |store| store.mark_in_flight(&ids, stored, now_unix_ms())).await?;
        }
        self.with_store(move |store| store.mark_enqueued(stored)).await?;
        if count > 0 || !stored.is_enqueued {
            tracing::info!(subscribers = count, "the hub distributes a topic");
        }
        Ok(())
    }

    /// Delivers the newest content to a subscriber, until no newer one exists.
    async fn deliver(&self, id: RowId, is_last: bool) -> Result<TaskEnd, HubError> {
        loop {
            if let Some(end) = self.deliver_once(id, is_last).await? {
                return Ok(end);
            }
        }
    }

    /// `None`: delivered. Newer content may exist by then, for which this subscriber has no other
    /// delivery.
    async fn deliver_once(&self, id: RowId, is_last: bool) -> Result<Option<TaskEnd>, HubError> {
        let Some(due) = self.with_store(move |store| store.due_delivery(id, now_unix_ms())).await?
        else {
            return Ok(Some(TaskEnd::done()));
        };
        let Some(content) = self.load_content(&due).await? else {
            return Ok(Some(TaskEnd::done()));
        };
        let sent = if callback_request::sends_content(due.protocol) {
            let headers =
                callback_request::content_headers(&due, &content, &self.config.rules.hub_url);
            self.send(Method::POST, &due.callback, headers, content.body.clone(), 0).await
        } else {
            self.notify_rsscloud(&due.callback, &due.verbatim_url).await
        };
        let host = due.callback.host();
        let end = match &sent {
            Ok(answered) if answered.status.is_success() => {
                self.with_store(move |store| store.mark_delivered(id, content.version)).await?;
                return Ok(None);
            }
            Ok(answered) if answered.status == StatusCode::GONE => {
                self.with_store(move |store| store.remove_subscription(id)).await?;
                tracing::info!(
                    host,
                    topic = due.verbatim_url,
                    "a subscriber of the hub is gone (410)"
                );
                return Ok(Some(TaskEnd::done()));
            }
            Ok(answered) => retry_for_response(answered),
            Err(failure) => TaskEnd::failed(reason_word(failure)),
        };
        let bounds = self.config.limits;
        if self
            .with_store(move |store| store.record_failure(id, is_last, &bounds, now_unix_ms()))
            .await?
        {
            tracing::warn!(
                host,
                topic = due.verbatim_url,
                "a subscriber of the hub is dropped after too many failed deliveries"
            );
            return Ok(Some(TaskEnd::Ack(Outcome::Failed, KeyRest::default())));
        }
        if let Err(failure) = &sent
            && failure.reason == Reason::Address
        {
            self.log_unreachable(failure, host);
        }
        Ok(Some(end))
    }

    /// Returns the newest content of a topic.
    async fn load_content(&self, due: &DueDelivery) -> Result<Option<TopicContent>, HubError> {
        let number = due.topic_id;
        let kept = self.content_cache.lock().get(number, due.version);
        if kept.is_some() {
            return Ok(kept);
        }
        let content = self.with_store(move |store| store.content(number)).await?;
        if let Some(content) = &content {
            self.content_cache.lock().insert(number, content.clone());
        }
        Ok(content)
    }

    /// Notifies a callback of a change, by rssCloud.
    async fn notify_rsscloud(
        &self,
        callback: &CanonicalUrl<'_>,
        named: &str,
    ) -> Result<OutgoingResponse, Failure> {
        let (headers, body) = callback_request::rsscloud_notification(named);
        self.send(Method::POST, callback, headers, body, 0).await
    }

    async fn send(
        &self,
        method: Method,
        url: &CanonicalUrl<'_>,
        headers: HeaderMap,
        body: Bytes,
        body_max: usize,
    ) -> Result<OutgoingResponse, Failure> {
        self.subscriber_client.send(method, url, headers, body, body_max).await
    }

    /// Rejects an event that the hub did not publish.
    fn invalid_event(&self, what: &str) -> TaskEnd {
        let event: String = what.chars().take(LOGGED_CHARS_MAX).collect();
        self.logs.invalid_events.lock().add(1, format_args!("the event {event:?}"));
        TaskEnd::Ack(Outcome::Failed, KeyRest::default())
    }

    /// Logs a request that was not sent, because its address is not allowed, or that can never
    /// succeed.
    fn log_unreachable(&self, failure: &Failure, host: &str) {
        self.logs.unreachable_subscribers.lock().add(1, format_args!("{host}: {failure}"));
    }
}

fn content_error(answered: &OutgoingResponse) -> Option<&'static str> {
    let codings = answered.headers.get_all(CONTENT_ENCODING).iter();
    let mut codings = codings.map(HeaderValue::as_bytes);
    if codings.any(|coding| !coding.eq_ignore_ascii_case(b"identity")) {
        Some("its Content-Encoding was not requested")
    } else if !answered.is_complete {
        Some("it is longer than 4 MiB")
    } else if answered.status != StatusCode::OK {
        Some("its status is not 200")
    } else {
        None
    }
}

/// Retries after a response, no earlier than it permits.
fn retry_for_response(answered: &OutgoingResponse) -> TaskEnd {
    let after_ms = answered.retry_after().and_then(|wait| u64::try_from(wait.as_millis()).ok());
    let reason = format!("status_{}", answered.status.as_u16());
    TaskEnd::Nack(RetryMode::Counted { after_ms }, KeyRest::default(), Some(reason))
}

/// A failure as one word.
fn reason_word(failure: &impl Display) -> String {
    let text = failure.to_string();
    let is_plain = |c: &char| !c.is_control();
    let word = text.chars().filter(is_plain).map(|c| if c.is_whitespace() { '_' } else { c });
    word.take(120).collect()
}
