//! What the events of the hub ask for, done.

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

use super::deliver::{self, Challenge};
use super::request::Wish;
use super::store::{Content, Due, Granted, Id, Stored};
use super::{Hub, SENDING, host_of, unix_ms};
use crate::outgoing::OutgoingResponse;
use crate::worker::{TaskEnd, TaskHandler, WorkerTask};

/// Bytes of a topic's content, and of all that are kept in memory.
pub(super) const CONTENT_BYTES_MAX: usize = 4 << 20;

/// Redirects of a topic, one after the other.
const REDIRECTS_MAX: u32 = 5;

/// Subscribers that are told together.
const TOGETHER: u32 = 1000;

/// When something of a topic or subscription that is being worked on is tried again.
const BUSY_MS: u64 = 500;
/// When what could not be read or written is.
const STORE_MS: u64 = 10_000;

/// Characters of an event that is not the hub's, for the log.
const SHOWN_CHARS_MAX: usize = 200;

/// Does it.
pub(super) struct HubHandler {
    pub(super) hub: Arc<Hub>,
    pub(super) stop: CancellationToken,
}

/// What could not be read, written or published, which is none of the subscriber's doing.
enum Trouble {
    Store(rusqlite::Error),
    Broker(ClientError),
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error)
    }
}

/// Nobody else works on it meanwhile.
struct Turn<'a> {
    hub: &'a Hub,
    target: String,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.hub.busy.lock().remove(&self.target);
    }
}

impl TaskHandler for HubHandler {
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
            end = self.hub.work(&task.payload) => end,
        })
    }

    fn disconnected(&self, error: &ClientError) {
        tracing::warn!(%error, "the hub connects again");
    }
}

impl Hub {
    async fn work(&self, payload: &str) -> TaskEnd {
        let payload = Payload::parse(payload);
        let Some(target) = payload.target() else { return self.unknown(payload.text()) };
        let Some(_turn) = self.turn(target) else {
            return TaskEnd::Nack(
                RetryMode::Uncounted { after_ms: Some(BUSY_MS) },
                KeyRest::default(),
                None,
            );
        };
        let number = |key| payload.attribute(key).and_then(|id| id.parse::<Id>().ok());
        let is_last = payload.attribute("last") == Some("yes");
        let done = if let Some(id) = number("verify") {
            self.verify(id, is_last).await
        } else if let Some(id) = number("deliver") {
            self.deliver(id, is_last).await
        } else if payload.attribute("fetch") == Some("yes")
            && let Ok(url) = CanonicalUrl::parse(target)
            && self.config.rules.has(&url)
        {
            self.fetch(&url).await
        } else {
            return self.unknown(target);
        };
        done.unwrap_or_else(|trouble| {
            match trouble {
                Trouble::Store(error) => tracing::error!(%error, "hub.db"),
                Trouble::Broker(error) => tracing::error!(%error, "the hub cannot publish"),
            }
            TaskEnd::Nack(
                RetryMode::Uncounted { after_ms: Some(STORE_MS) },
                KeyRest::default(),
                None,
            )
        })
    }

    fn turn(&self, target: &str) -> Option<Turn<'_>> {
        let is_free = self.busy.lock().insert(target.to_owned());
        is_free.then(|| Turn { hub: self, target: target.to_owned() })
    }

    /// Asks whoever is to be told, or not any more, whether it wants that. What it says is final.
    async fn verify(&self, id: Id, is_last: bool) -> Result<TaskEnd, Trouble> {
        let Some(wish) = self.ask(move |store| store.wish(id)).await? else {
            return Ok(TaskEnd::done());
        };
        let challenge = Challenge::of(&wish);
        let sent = match &challenge {
            Challenge::Asked { url, text } => {
                let body_max = text.len() + 1;
                self.send(Method::GET, url, HeaderMap::new(), Bytes::new(), body_max).await
            }
            Challenge::Told => self.tell(&wish.callback, &wish.topic.named).await,
        };
        let (topic, host) = (wish.topic.url.as_str(), wish.callback.host());
        match sent {
            Ok(answered) if challenge.is_met(&answered) => {
                let bounds = self.config.bounds;
                let granted = self.ask(move |store| store.grant(id, &bounds, unix_ms())).await?;
                self.awaited.settle(id, granted == Granted::Done);
                match granted {
                    Granted::Done => {
                        let subscribed = wish.lease.is_some();
                        tracing::info!(
                            topic,
                            host,
                            subscribed,
                            "a subscriber of the hub is verified"
                        );
                    }
                    Granted::Void => {}
                    Granted::Full => self.deny(&wish).await,
                }
                Ok(TaskEnd::done())
            }
            Ok(answered)
                if !is_last && Reason::of_status(answered.status.as_u16()).is_transient() =>
            {
                Ok(back(&answered))
            }
            Ok(answered) => {
                self.ask(move |store| store.forget(id)).await?;
                self.awaited.settle(id, false);
                let status = answered.status.as_u16();
                tracing::info!(
                    topic,
                    host,
                    status,
                    "a subscriber of the hub does not want what it was asked"
                );
                Ok(TaskEnd::done())
            }
            Err(failure) if failure.is_transient() && !is_last => {
                Ok(TaskEnd::failed(word(&failure)))
            }
            Err(failure) => {
                self.ask(move |store| store.forget(id)).await?;
                self.awaited.settle(id, false);
                self.complain(&failure, host);
                Ok(TaskEnd::Ack(Outcome::Failed, KeyRest::default()))
            }
        }
    }

    /// Who meant it has no place nevertheless, and is told so, once.
    async fn deny(&self, wish: &Wish) {
        self.complaints.full.lock().add(1, "--hub-subscribers is less than it was");
        if let Some(url) = deliver::denial(wish) {
            // Whoever does not hear it finds out when nothing comes.
            let _ = self.send(Method::GET, &url, HeaderMap::new(), Bytes::new(), 0).await;
        }
    }

    /// Looks at a topic, and has all its subscribers told if it has changed.
    async fn fetch(&self, url: &CanonicalUrl<'_>) -> Result<TaskEnd, Trouble> {
        let topic = url.to_string();
        let asked = topic.clone();
        if !self.ask(move |store| store.has_subscribers(&asked, unix_ms())).await? {
            return Ok(TaskEnd::done());
        }
        let (answered, why_not) = match self.read(url).await {
            Ok(read) => read,
            Err(failure) if failure.is_transient() => return Ok(TaskEnd::failed(word(&failure))),
            Err(failure) => {
                tracing::warn!(topic, %failure, "the hub cannot fetch a topic");
                return Ok(TaskEnd::Ack(Outcome::Failed, KeyRest::default()));
            }
        };
        if let Some(reason) = why_not {
            let status = answered.status.as_u16();
            if Reason::of_status(status).is_transient() {
                return Ok(back(&answered));
            }
            tracing::warn!(topic, status, %reason, "the hub cannot distribute a topic");
            return Ok(TaskEnd::Ack(Outcome::Failed, KeyRest::default()));
        }
        let content_type = deliver::content_type(&answered.headers);
        let body = answered.body;
        let stored = self.ask(move |store| store.put(&topic, content_type.as_deref(), &body));
        // Also where nothing has changed: somebody may have missed it for good.
        if let Some(stored) = stored.await? {
            self.announce(stored).await?;
        }
        Ok(TaskEnd::done())
    }

    /// Asks the site itself for a topic, and says why what it answers is no content, if it is none.
    /// Its redirects are followed while they stay below the prefixes: nothing else may be asked
    /// this way, nor be distributed.
    async fn read(
        &self,
        topic: &CanonicalUrl<'_>,
    ) -> Result<(OutgoingResponse, Option<Cow<'static, str>>), Failure> {
        // What is new must not be what some cache still has.
        let mut headers = HeaderMap::new();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        let mut at = topic.clone().into_owned();
        let mut redirects = 0;
        loop {
            let (headers, nothing) = (headers.clone(), Bytes::new());
            let sent = self.own_site.send(Method::GET, &at, headers, nothing, CONTENT_BYTES_MAX);
            let answered = sent.await?;
            let Some(next) = answered.redirect(&at) else {
                let why_not = why_no_content(&answered).map(Cow::Borrowed);
                return Ok((answered, why_not));
            };
            if !self.config.rules.has(&next) {
                let why_not = format!("it redirects to {next}, which is not below --hub");
                return Ok((answered, Some(why_not.into())));
            }
            if redirects == REDIRECTS_MAX {
                return Ok((answered, Some("it redirects too often".into())));
            }
            (at, redirects) = (next, redirects + 1);
        }
    }

    /// Has all who miss a content told. Where that was broken off it is done again, and events that
    /// are there already are dropped by their ids.
    async fn announce(&self, stored: Stored) -> Result<(), Trouble> {
        let (mut after, mut count) = (0, 0);
        loop {
            let recipients =
                move |store: &super::Store| store.recipients(stored, after, TOGETHER, unix_ms());
            let recipients = self.ask(recipients).await?;
            let Some((last, ..)) = recipients.last() else { break };
            after = *last;
            count += recipients.len();
            let event = |(id, callback, begun): &(Id, String, i64)| {
                let mut event = self.own("deliver", *id);
                push_attribute(&mut event, "host", &host_of(callback));
                push_attribute(&mut event, "deliver", &id.to_string());
                let Stored { topic, version, .. } = stored;
                let event_id = format!("hub-{}-{topic}-{version}-{id}-{begun}", self.mark);
                push_attribute(&mut event, "id", &event_id);
                event
            };
            let events: Vec<_> = recipients.iter().map(event).collect();
            self.line.publish(&SENDING.topic(), &events).await.map_err(Trouble::Broker)?;
            let ids: Vec<Id> = recipients.iter().map(|(id, ..)| *id).collect();
            self.ask(move |store| store.begun(&ids, stored, unix_ms())).await?;
        }
        self.ask(move |store| store.announced(stored)).await?;
        if count > 0 || !stored.is_announced {
            tracing::info!(subscribers = count, "the hub distributes a topic");
        }
        Ok(())
    }

    /// Sends a subscriber the newest that it misses, until it misses nothing.
    async fn deliver(&self, id: Id, is_last: bool) -> Result<TaskEnd, Trouble> {
        loop {
            if let Some(end) = self.deliver_once(id, is_last).await? {
                return Ok(end);
            }
        }
    }

    /// `None`: it was taken. By then something newer may be there, of which nobody else tells this
    /// subscriber.
    async fn deliver_once(&self, id: Id, is_last: bool) -> Result<Option<TaskEnd>, Trouble> {
        let Some(due) = self.ask(move |store| store.due(id, unix_ms())).await? else {
            return Ok(Some(TaskEnd::done()));
        };
        let Some(content) = self.content(&due).await? else {
            return Ok(Some(TaskEnd::done()));
        };
        let sent = if deliver::has_content(due.kind) {
            let headers = deliver::headers(&due, &content, &self.config.rules.hub);
            self.send(Method::POST, &due.callback, headers, content.body.clone(), 0).await
        } else {
            self.tell(&due.callback, &due.named).await
        };
        let host = due.callback.host();
        let end = match &sent {
            Ok(answered) if answered.status.is_success() => {
                self.ask(move |store| store.delivered(id, content.version)).await?;
                return Ok(None);
            }
            Ok(answered) if answered.status == StatusCode::GONE => {
                self.ask(move |store| store.remove(id)).await?;
                tracing::info!(host, topic = due.named, "a subscriber of the hub is gone (410)");
                return Ok(Some(TaskEnd::done()));
            }
            Ok(answered) => back(answered),
            Err(failure) => TaskEnd::failed(word(failure)),
        };
        let bounds = self.config.bounds;
        if self.ask(move |store| store.failed(id, is_last, &bounds, unix_ms())).await? {
            tracing::warn!(
                host,
                topic = due.named,
                "a subscriber of the hub is dropped, as nothing has reached it for so long"
            );
            return Ok(Some(TaskEnd::Ack(Outcome::Failed, KeyRest::default())));
        }
        if let Err(failure) = &sent
            && failure.reason == Reason::Address
        {
            self.complain(failure, host);
        }
        Ok(Some(end))
    }

    /// The newest content of a topic.
    async fn content(&self, due: &Due) -> Result<Option<Content>, Trouble> {
        let number = due.topic;
        let kept = self.contents.lock().find(number, due.version);
        if kept.is_some() {
            return Ok(kept);
        }
        let content = self.ask(move |store| store.content(number)).await?;
        if let Some(content) = &content {
            self.contents.lock().keep(number, content.clone());
        }
        Ok(content)
    }

    /// Tells somebody that a topic has changed, as rssCloud does it.
    async fn tell(
        &self,
        callback: &CanonicalUrl<'_>,
        named: &str,
    ) -> Result<OutgoingResponse, Failure> {
        let (headers, body) = deliver::notice(named);
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
        self.outgoing.send(method, url, headers, body, body_max).await
    }

    /// An event that is none of the hub's.
    fn unknown(&self, what: &str) -> TaskEnd {
        let event: String = what.chars().take(SHOWN_CHARS_MAX).collect();
        self.complaints.unknown.lock().add(1, format_args!("it is {event:?}"));
        TaskEnd::Ack(Outcome::Failed, KeyRest::default())
    }

    /// A request that was not made, since it must not be, or that will never do.
    fn complain(&self, failure: &Failure, host: &str) {
        self.complaints.unreachable.lock().add(1, format_args!("{host}: {failure}"));
    }
}

fn why_no_content(answered: &OutgoingResponse) -> Option<&'static str> {
    let codings = answered.headers.get_all(CONTENT_ENCODING).iter();
    let mut codings = codings.map(HeaderValue::as_bytes);
    if codings.any(|coding| !coding.eq_ignore_ascii_case(b"identity")) {
        Some("it comes compressed, though that was not asked for")
    } else if !answered.is_complete {
        Some("it is longer than 4 MiB")
    } else if answered.status != StatusCode::OK {
        Some("its status")
    } else {
        None
    }
}

/// It goes back for what was answered, for as long as that says.
fn back(answered: &OutgoingResponse) -> TaskEnd {
    let after_ms = answered.retry_after().and_then(|wait| u64::try_from(wait.as_millis()).ok());
    let reason = format!("status_{}", answered.status.as_u16());
    TaskEnd::Nack(RetryMode::Counted { after_ms }, KeyRest::default(), Some(reason))
}

/// A failure as one word.
fn word(failure: &impl Display) -> String {
    let text = failure.to_string();
    let is_plain = |c: &char| !c.is_control();
    let word = text.chars().filter(is_plain).map(|c| if c.is_whitespace() { '_' } else { c });
    word.take(120).collect()
}
