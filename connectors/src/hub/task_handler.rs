//! Handles the tasks of the hub: verify a subscriber, fetch a topic, deliver content.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_ENCODING, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use tidings_client::{ClientError, TaskEnd, TaskHandler, WorkerTask};
use tidings_egress::client::OutgoingResponse;
use tidings_egress::failure::{Failure, Reason};
use tidings_protocol::{CanonicalUrl, KeyRest, Payload, RetryMode, push_attribute};
use tokio_util::sync::CancellationToken;

use super::callback_request::{self, Challenge};
use super::hub_request::{SubscriberProtocol, SubscriptionRequest};
use super::store::{DueDelivery, GrantOutcome, HubStore, RowId, StoredVersion, TopicContent};
use super::{DELIVERY_QUEUE, Hub, host_of, now_unix_ms};

/// Limit of a topic's content, and of all contents in the cache.
pub(super) const CONTENT_BYTES_MAX: usize = 4 << 20;

const REDIRECTS_MAX: u32 = 5;

const RECIPIENT_BATCH: u32 = 1000;

/// Wait before a task is retried because another task with its target is running.
const BUSY_RETRY_MS: u64 = 500;
/// Wait before a task is retried after an error of the store or the broker.
const ERROR_RETRY_MS: u64 = 10_000;

const LOGGED_CHARS_MAX: usize = 200;

pub(super) struct HubTaskHandler {
    pub(super) hub: Arc<Hub>,
    pub(super) stop: CancellationToken,
}

/// An error of the store or the broker. The task is retried uncounted, because the subscriber did
/// not cause it.
#[derive(Debug, thiserror::Error)]
enum HubError {
    #[error("cannot access hub.db: {0}")]
    Store(#[from] rusqlite::Error),
    #[error("the hub cannot publish: {0}")]
    Broker(#[from] ClientError),
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
        let Some(_permit) = self.acquire_target(target) else {
            return TaskEnd::postponed(BUSY_RETRY_MS);
        };
        let number = |key| payload.attribute(key).and_then(|id| id.parse::<RowId>().ok());
        let is_last = payload.attribute("last") == Some("yes");
        let result = if let Some(id) = number("verify") {
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
        result.unwrap_or_else(|error| {
            tracing::error!("{error}");
            TaskEnd::postponed(ERROR_RETRY_MS)
        })
    }

    fn acquire_target(&self, target: &str) -> Option<TargetPermit<'_>> {
        let is_free = self.active_targets.lock().insert(target.to_owned());
        is_free.then(|| TargetPermit { hub: self, target: target.to_owned() })
    }

    /// Verifies a subscription request. A confirmation or a refusal is final. After no response or
    /// a transient status the task is retried.
    async fn verify(&self, id: RowId, is_last: bool) -> Result<TaskEnd, HubError> {
        let Some(request) = self.with_store(move |store| store.pending_request(id)).await? else {
            return Ok(TaskEnd::done());
        };
        let challenge = Challenge::for_request(&request);
        let sent = match &challenge {
            Challenge::Echo { url, text } => {
                let body_max = text.len() + 1;
                self.subscriber_client
                    .send(Method::GET, url, HeaderMap::new(), Bytes::new(), body_max)
                    .await
            }
            Challenge::Notification => {
                self.notify_rsscloud(&request.callback, &request.topic.verbatim_url).await
            }
        };
        let (topic, host) = (request.topic.url.as_str(), request.callback.host());
        match sent {
            Ok(response) if challenge.is_passed_by(&response) => {
                let limits = self.config.limits;
                let outcome =
                    self.with_store(move |store| store.grant(id, &limits, now_unix_ms())).await?;
                self.verification_waiters.resolve(id, outcome == GrantOutcome::Applied);
                match outcome {
                    GrantOutcome::Applied => {
                        let subscribed = request.lease.is_some();
                        tracing::info!(
                            topic,
                            host,
                            subscribed,
                            "a subscriber of the hub is verified"
                        );
                    }
                    GrantOutcome::Superseded => {}
                    GrantOutcome::Full => self.deny(&request).await,
                }
                Ok(TaskEnd::done())
            }
            Ok(response)
                if !is_last && Reason::of_status(response.status.as_u16()).is_transient() =>
            {
                Ok(retry_for_response(&response))
            }
            Ok(response) => {
                self.with_store(move |store| store.remove_request(id)).await?;
                self.verification_waiters.resolve(id, false);
                let status = response.status.as_u16();
                tracing::info!(
                    topic,
                    host,
                    status,
                    "a subscriber of the hub did not confirm a request"
                );
                Ok(TaskEnd::done())
            }
            Err(failure) if failure.is_transient() && !is_last => {
                Ok(TaskEnd::failed(reason_word(&failure)))
            }
            Err(failure) => {
                self.with_store(move |store| store.remove_request(id)).await?;
                self.verification_waiters.resolve(id, false);
                self.log_unreachable(&failure, host);
                Ok(TaskEnd::given_up())
            }
        }
    }

    /// Notifies a verified subscriber that it exceeds a limit, once.
    async fn deny(&self, request: &SubscriptionRequest) {
        self.logs.rejected_subscribers.lock().add(1, "--hub-subscribers was lowered");
        if let Some(url) = callback_request::denial_url(request) {
            // A subscriber that misses the denial gets no content.
            let _ = self
                .subscriber_client
                .send(Method::GET, &url, HeaderMap::new(), Bytes::new(), 0)
                .await;
        }
    }

    /// Fetches a topic. If it has changed, publishes a delivery for each subscriber.
    async fn fetch(&self, url: &CanonicalUrl<'_>) -> Result<TaskEnd, HubError> {
        let topic = url.to_string();
        let topic_url = topic.clone();
        if !self.with_store(move |store| store.has_subscribers(&topic_url, now_unix_ms())).await? {
            return Ok(TaskEnd::done());
        }
        let (response, content_problem) = match self.fetch_content(url).await {
            Ok(read) => read,
            Err(failure) if failure.is_transient() => {
                return Ok(TaskEnd::failed(reason_word(&failure)));
            }
            Err(failure) => {
                tracing::warn!(topic, %failure, "the hub cannot fetch a topic");
                return Ok(TaskEnd::given_up());
            }
        };
        if let Some(reason) = content_problem {
            let status = response.status.as_u16();
            if Reason::of_status(status).is_transient() {
                return Ok(retry_for_response(&response));
            }
            tracing::warn!(topic, status, %reason, "the hub cannot distribute a topic");
            return Ok(TaskEnd::given_up());
        }
        let content_type = callback_request::content_type(&response.headers);
        let body = response.body;
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
        let mut url = topic.clone().into_owned();
        let mut redirects = 0;
        loop {
            let (headers, empty_body) = (headers.clone(), Bytes::new());
            let response =
                self.site_client.send(Method::GET, &url, headers, empty_body, CONTENT_BYTES_MAX);
            let response = response.await?;
            let Some(next) = response.redirect(&url) else {
                let content_problem = content_error(&response).map(Cow::Borrowed);
                return Ok((response, content_problem));
            };
            if !self.config.rules.has_topic(&next) {
                let content_problem = format!("it redirects to {next}, which is not below --hub");
                return Ok((response, Some(content_problem.into())));
            }
            if redirects == REDIRECTS_MAX {
                return Ok((response, Some("it has more than 5 redirects".into())));
            }
            (url, redirects) = (next, redirects + 1);
        }
    }

    /// Publishes a delivery for each subscriber that misses a content. After an interruption it
    /// starts again; the ids of events prevent duplicates.
    async fn enqueue_deliveries(&self, stored: StoredVersion) -> Result<(), HubError> {
        let (mut after, mut count) = (0, 0);
        loop {
            let recipients = move |store: &HubStore| {
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
                let StoredVersion { topic_id, version, .. } = stored;
                let event_id =
                    format!("hub-{}-{topic_id}-{version}-{id}-{begun}", self.database_id);
                push_attribute(&mut event, "id", &event_id);
                event
            };
            let events: Vec<_> = recipients.iter().map(event).collect();
            self.publish(&DELIVERY_QUEUE, &events).await?;
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
        let sent = if due.protocol == SubscriberProtocol::WebSub {
            let headers =
                callback_request::content_headers(&due, &content, &self.config.rules.hub_url);
            self.subscriber_client
                .send(Method::POST, &due.callback, headers, content.body.clone(), 0)
                .await
        } else {
            self.notify_rsscloud(&due.callback, &due.verbatim_url).await
        };
        let host = due.callback.host();
        let end = match &sent {
            Ok(response) if response.status.is_success() => {
                self.with_store(move |store| store.mark_delivered(id, content.version)).await?;
                return Ok(None);
            }
            Ok(response) if response.status == StatusCode::GONE => {
                self.with_store(move |store| store.remove_subscription(id)).await?;
                tracing::info!(
                    host,
                    topic = due.verbatim_url,
                    "a subscriber of the hub is gone (410)"
                );
                return Ok(Some(TaskEnd::done()));
            }
            Ok(response) => retry_for_response(response),
            Err(failure) => TaskEnd::failed(reason_word(failure)),
        };
        let limits = self.config.limits;
        if self
            .with_store(move |store| store.record_failure(id, is_last, &limits, now_unix_ms()))
            .await?
        {
            tracing::warn!(
                host,
                topic = due.verbatim_url,
                "a subscriber of the hub is dropped after too many failed deliveries"
            );
            return Ok(Some(TaskEnd::given_up()));
        }
        if let Err(failure) = &sent
            && failure.reason == Reason::Address
        {
            self.log_unreachable(failure, host);
        }
        Ok(Some(end))
    }

    async fn load_content(&self, due: &DueDelivery) -> Result<Option<TopicContent>, HubError> {
        let topic_id = due.topic_id;
        let cached = self.content_cache.lock().get(topic_id, due.version);
        if cached.is_some() {
            return Ok(cached);
        }
        let content = self.with_store(move |store| store.content(topic_id)).await?;
        if let Some(content) = &content {
            self.content_cache.lock().insert(topic_id, content.clone());
        }
        Ok(content)
    }

    /// Notifies a callback of a change, by rssCloud.
    async fn notify_rsscloud(
        &self,
        callback: &CanonicalUrl<'_>,
        verbatim_url: &str,
    ) -> Result<OutgoingResponse, Failure> {
        let (headers, body) = callback_request::rsscloud_notification(verbatim_url);
        self.subscriber_client.send(Method::POST, callback, headers, body, 0).await
    }

    /// Rejects an event that the hub did not publish.
    fn invalid_event(&self, text: &str) -> TaskEnd {
        let event: String = text.chars().take(LOGGED_CHARS_MAX).collect();
        self.logs.invalid_events.lock().add(1, format_args!("the event {event:?}"));
        TaskEnd::given_up()
    }

    /// Logs a request that was not sent, because its address is not allowed, or that can never
    /// succeed.
    fn log_unreachable(&self, failure: &Failure, host: &str) {
        self.logs.unreachable_subscribers.lock().add(1, format_args!("{host}: {failure}"));
    }
}

fn content_error(response: &OutgoingResponse) -> Option<&'static str> {
    let codings = response.headers.get_all(CONTENT_ENCODING).iter();
    let mut codings = codings.map(HeaderValue::as_bytes);
    if codings.any(|coding| !coding.eq_ignore_ascii_case(b"identity")) {
        Some("its Content-Encoding was not requested")
    } else if !response.is_complete {
        Some("it is longer than 4 MiB")
    } else if response.status != StatusCode::OK {
        Some("its status is not 200")
    } else {
        None
    }
}

/// Retries after a response, no earlier than it permits.
fn retry_for_response(response: &OutgoingResponse) -> TaskEnd {
    let after_ms = response.retry_after().and_then(|wait| u64::try_from(wait.as_millis()).ok());
    let reason = format!("status_{}", response.status.as_u16());
    TaskEnd::Nack(RetryMode::Counted { after_ms }, KeyRest::default(), Some(reason))
}

/// A failure as one word.
fn reason_word(failure: &impl Display) -> String {
    let text = failure.to_string();
    let is_plain = |c: &char| !c.is_control();
    let word = text.chars().filter(is_plain).map(|c| if c.is_whitespace() { '_' } else { c });
    word.take(120).collect()
}
