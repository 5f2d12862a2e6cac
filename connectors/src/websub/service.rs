//! What is due, over the connection to the broker.

#![expect(
    clippy::disallowed_methods,
    reason = "requests to hubs are tasks, and what is due is waited for"
)]

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidings_protocol::client::{self, Client, ClientError, ClientOptions, Deliveries, Delivery};
use tidings_protocol::{
    CanonicalUrl, Command, DEFAULT_GROUP, Manage, Payload, Seq, StartAt, TopicName, field_number,
    push_attribute,
};
use tidings_subscriber::feed::event;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::ask::ask;
use super::book::Book;
use super::store::StoreError;
use super::subscription::{Asked, Wish};
use super::{WebSubConfig, unix_ms};
use crate::complaints::Complaints;
use crate::outgoing::Outgoing;

/// The label that the broker shows, and the name of the cursor.
const NAME: &str = "tidings-websub";
const CURSOR: &str = "websub";

/// Pauses between tries to reach the broker.
const RECONNECT_MIN: Duration = Duration::from_millis(100);
const RECONNECT_MAX: Duration = Duration::from_secs(5);

/// How long a publish may take until a hub is told to come again.
const PUBLISH_MAX: Duration = Duration::from_secs(10);

/// How long to wait at most before it is looked whether something is due: wall clocks are set.
const LOOK_EVERY: Duration = Duration::from_mins(1);

/// How long to wait when the disk or the broker is in trouble.
const TROUBLE_PAUSE: Duration = Duration::from_secs(1);

/// Hubs that are asked at once.
const ASKING_MAX: usize = 16;

/// Schedules of a host that are looked at; of one with more everything is taken to be watched.
const SCHEDULES_MAX: &str = "1000";

/// The subscriber, as all of its parts see it.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) config: WebSubConfig,
    pub(super) book: Mutex<Book>,
    outgoing: Outgoing,
    /// The connection that stands.
    client: watch::Sender<Option<Client>>,
    /// Something may be due earlier than it was.
    changed: Notify,
    complaints: Mutex<Complaints>,
}

/// Why an event could not be published, or something could not be kept; the same may be tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("there is no connection to the broker")]
    Away,
    #[error("the broker does not answer")]
    Late,
    #[error("{0}")]
    Broker(#[from] ClientError),
    #[error("websub.db: {0}")]
    Store(#[from] StoreError),
}

impl Service {
    pub(super) fn open(config: WebSubConfig, outgoing: Outgoing) -> Result<Self, StoreError> {
        let book = Mutex::new(Book::open(&config.database)?);
        let (client, changed) = (watch::Sender::new(None), Notify::new());
        let complaints = Mutex::new(Complaints::new("WebSub: what cannot be done now"));
        Ok(Self { config, book, outgoing, client, changed, complaints })
    }

    /// Whoever runs the broker is told, in the words of this process or of the broker.
    pub(super) fn complain(&self, trouble: &Trouble) {
        self.complaints.lock().add(1, trouble);
    }

    /// Something may be due earlier.
    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Publishes an event; returns when it is as safe as its topic promises.
    pub(super) async fn publish(&self, topic: &str, event: &str) -> Result<(), Trouble> {
        let client = self.client.borrow().clone().ok_or(Trouble::Away)?;
        let topic: TopicName = topic.parse().expect("a constant that is a name");
        let published = async { client.publish(&topic, event).await?.await };
        timeout(PUBLISH_MAX, published).await.map_err(|_| Trouble::Late)??;
        Ok(())
    }

    /// Has the crawlers look at a feed, and tells them until when news come of themselves.
    pub(super) async fn bring_forward(&self, watched: &str, until_ms: u64) -> Result<(), Trouble> {
        let mut event = watched.to_owned();
        push_attribute(&mut event, event::PUSHED, &until_ms.to_string());
        self.publish(event::SCHEDULES, &event).await
    }

    /// Lives until `stop`, over as many connections as it takes.
    pub(super) async fn run(self: Arc<Self>, broker: &str, stop: CancellationToken) {
        let living = async {
            let mut pause = RECONNECT_MIN;
            loop {
                let name = Some(NAME.to_owned());
                let options = ClientOptions { name, ..ClientOptions::default() };
                let lost = match client::connect(broker, options).await {
                    Ok((client, deliveries)) => {
                        pause = RECONNECT_MIN;
                        let lost = self.serve(client, deliveries).await;
                        self.client.send_replace(None);
                        lost
                    }
                    Err(error) => Trouble::Broker(error),
                };
                tracing::debug!("WebSub: {lost}; connecting again");
                if let Trouble::Store(_) = &lost {
                    self.complain(&lost);
                    pause = pause.max(TROUBLE_PAUSE);
                }
                sleep(pause).await;
                pause = (pause * 2).min(RECONNECT_MAX);
            }
        };
        tokio::select! {
            () = living => {}
            () = stop.cancelled() => {}
        }
    }

    async fn serve(self: &Arc<Self>, client: Client, mut deliveries: Deliveries) -> Trouble {
        let topic: TopicName = event::HUBS.parse().expect("a constant that is a name");
        let subscribe = Command::Sub {
            topic: topic.clone(),
            from: Some(StartAt::First),
            cursor: Some(CURSOR.parse().expect("a constant that is a name")),
            takeover: true,
        };
        if let Err(error) = client.request(&subscribe).await {
            return error.into();
        }
        self.client.send_replace(Some(client.clone()));
        let mut asking = JoinSet::new();
        loop {
            if let Err(trouble) = self.tell_crawlers().await {
                self.complain(&trouble);
                sleep(TROUBLE_PAUSE).await;
                if let Trouble::Broker(ClientError::Closed(_) | ClientError::Ended(_)) = trouble {
                    return trouble;
                }
            }
            for token in self.book.lock().take_due(unix_ms(), ASKING_MAX) {
                let (service, client) = (Arc::clone(self), client.clone());
                asking.spawn(async move {
                    if let Err(trouble) = service.ask(&client, &token).await {
                        service.complain(&trouble);
                        sleep(TROUBLE_PAUSE).await;
                    }
                    service.book.lock().was_asked(&token);
                });
            }
            let next_ms = self.book.lock().next_ms().unwrap_or(u64::MAX);
            let idle = Duration::from_millis(next_ms.saturating_sub(unix_ms())).min(LOOK_EVERY);
            // While as many are asked as may be, the end of one of them is what is waited for.
            let idle = if asking.len() >= ASKING_MAX { LOOK_EVERY } else { idle };
            tokio::select! {
                biased;
                delivery = deliveries.next() => match delivery {
                    Some(Delivery::Msg { seq, payload, .. }) => {
                        if let Err(trouble) = self.found(&client, &topic, seq, &payload).await {
                            return trouble;
                        }
                    }
                    Some(_) => {}
                    None => return deliveries.reason().into(),
                },
                Some(_) = asking.join_next() => {}
                () = self.changed.notified() => {}
                () = sleep(idle) => {}
            }
        }
    }

    /// A crawler has found a hub.
    async fn found(
        &self,
        client: &Client,
        topic: &TopicName,
        seq: Seq,
        payload: &str,
    ) -> Result<(), Trouble> {
        if let Some((feed, hubs, known)) = event::read_hubs(payload) {
            let watched = Payload::parse(payload).attribute(event::WATCHED).map(str::to_owned);
            let watched = watched.as_deref().unwrap_or(feed.as_str());
            self.book.lock().found(&feed, watched, &hubs, known, unix_ms())?;
        }
        client.request(&Command::Seen { topic: topic.clone(), seq }).await?;
        Ok(())
    }

    /// Tells crawlers what has changed: where news come of themselves, and where not any more.
    async fn tell_crawlers(&self) -> Result<(), Trouble> {
        let untold = self.book.lock().untold(unix_ms());
        for (token, until_ms) in untold {
            let watched = self.book.lock().get(&token).map(|one| one.watched.clone());
            let Some(watched) = watched else { continue };
            self.bring_forward(&watched, until_ms).await?;
            self.book.lock().change(&token, |one| one.crawlers_know(until_ms))?;
        }
        Ok(())
    }

    /// Asks a hub for what is wanted now.
    async fn ask(&self, client: &Client, token: &str) -> Result<(), Trouble> {
        let Some(one) = self.book.lock().get(token).cloned() else { return Ok(()) };
        if !one.is_leaving() && !is_watched(client, &one.watched).await? {
            self.book.lock().change(token, |one| one.leave(unix_ms()))?;
        }
        let is_over = self.book.lock().change(token, |one| one.is_hopeless(unix_ms()))?;
        if is_over == Some(true) {
            self.book.lock().remove(token)?;
            return Ok(());
        }
        let wish = self.book.lock().change(token, |one| one.ask(unix_ms()))?;
        let Some(wish) = wish else { return Ok(()) };
        let (asked, said) = ask(&self.outgoing, &self.config, &one, wish).await;
        if let Some(said) = said {
            let (feed, hub) = (&one.feed, one.teller.url());
            tracing::warn!(feed, hub, "WebSub: the hub says no to a subscription: {said}");
        }
        let mut book = self.book.lock();
        let is_cloud = matches!(one.teller, super::subscription::Teller::Cloud { .. });
        if wish == Wish::Unsubscribe && is_cloud && asked == Asked::Accepted {
            book.remove(token)?;
        } else if book.change(token, |one| one.was_asked(asked, unix_ms()))? == Some(true) {
            tracing::info!(feed = one.feed, "the feed's server tells what is new from now on");
        }
        Ok(())
    }
}

/// Whether crawlers look at that URL again and again.
async fn is_watched(client: &Client, watched: &str) -> Result<bool, Trouble> {
    let Ok(url) = CanonicalUrl::parse(watched) else { return Ok(false) };
    // What the group's key is made of is its setting: a host, or its domain.
    for key in [url.host(), url.domain()] {
        let settings = vec![("key", key), ("limit", SCHEDULES_MAX)];
        let schedules = Manage { action: "schedules", name: Some(DEFAULT_GROUP), settings };
        let answer = client.request(&Command::Group(schedules)).await?;
        let is_it = |line: &String| line.split(' ').next() == Some(watched);
        let (matched, listed) =
            (field_number(&answer.ok, "matched"), field_number(&answer.ok, "listed"));
        if matched > listed || answer.more.iter().any(is_it) {
            return Ok(true);
        }
    }
    Ok(false)
}
