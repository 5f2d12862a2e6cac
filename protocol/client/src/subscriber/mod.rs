//! Reads the events of a topic, and goes on behind the last one after a loss of the connection.

#[cfg(test)]
mod tests;

use std::future;

use tidings_protocol::{
    AttributeFilter, Code, Command, CursorName, ProtocolError, Seq, StartAt, TopicName,
};

use crate::connection::{Client, CommandAnswer, Delivery, PendingAnswer, output_of};
use crate::connector::{Connection, Connector};
use crate::error::ClientError;

/// What a subscriber reads, and where it begins.
#[derive(Debug, Clone)]
pub struct Subscription {
    /// The topic. It is created if it does not exist.
    pub topic: TopicName,
    /// The first event; `None`: the next one that is published.
    pub from: Option<StartAt>,
    /// The durable cursor. If it exists, it decides, and `from` has no effect.
    pub cursor: Option<CursorName>,
    /// Take the cursor from the connection that holds it. After a loss of the connection a
    /// subscriber always does: the broker may not know yet that the old one is gone.
    pub takeover: bool,
    /// Which events arrive.
    pub filter: AttributeFilter,
}

impl Subscription {
    /// New events of this topic.
    pub fn new(topic: TopicName) -> Self {
        let filter = AttributeFilter::default();
        Self { topic, from: None, cursor: None, takeover: false, filter }
    }

    /// The same from this event on.
    #[must_use]
    pub fn from(self, from: StartAt) -> Self {
        Self { from: Some(from), ..self }
    }

    /// The same with a durable cursor.
    #[must_use]
    pub fn with_cursor(self, cursor: CursorName) -> Self {
        Self { cursor: Some(cursor), ..self }
    }

    /// The same for the events that match.
    #[must_use]
    pub fn matching(self, filter: AttributeFilter) -> Self {
        Self { filter, ..self }
    }
}

/// What a subscriber reports.
#[derive(Debug, PartialEq, Eq)]
pub enum SubscriberEvent {
    /// Subscribed, for the first time or again.
    Subscribed {
        /// Whether delivery goes on where it was. `false`: the connection was lost before the first
        /// event, so it is unknown which events were published meanwhile; or the topic has lost its
        /// events and is read from its first one.
        continues: bool,
    },
    /// An event.
    Event {
        /// Its seq.
        seq: Seq,
        /// Its payload, as published.
        payload: String,
    },
    /// These events were kept and are gone.
    Lag {
        /// The first one.
        from: Seq,
        /// The last one.
        to: Seq,
    },
    /// These seqs are empty, after a crash or because the disk was full.
    Gap {
        /// The first one.
        from: Seq,
        /// The last one.
        to: Seq,
    },
    /// All events up to this one have passed. Those that did not arrive do not match the filter. A
    /// subscriber that has finished the others may call [`seen`](Subscriber::seen) with it.
    Skipped(Seq),
    /// The durable cursor is stored behind this event.
    Seen(Seq),
    /// A refusal that answers nothing.
    Notice(ProtocolError),
    /// The broker refuses the `SUB`. The subscriber tries again after a pause.
    Refused(ProtocolError),
    /// The connection is lost, or an attempt to connect has failed, or the cursor could not be
    /// moved. The subscriber connects again after a pause.
    Lost(ClientError),
}

/// How far a subscriber has come, over all its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    New,
    /// A `SUB` was sent. The broker may have applied it although its answer was lost, so its cursor
    /// may be held by a connection of this subscriber.
    Sent,
    Subscribed,
}

/// A subscriber of one topic.
///
/// After any loss of the connection it connects again and goes on. Without a durable cursor it
/// continues behind the last event that [`next`](Self::next) returned or that the filter skipped.
/// With one it continues behind the last event for which [`seen`](Self::seen) was stored, so later
/// events may arrive again. If the broker has lost the cursor, for example because it was restored
/// from a backup, it is created there again; before the first event it is created where
/// [`from`](Subscription::from) says.
#[derive(Debug)]
pub struct Subscriber {
    connector: Connector,
    subscription: Subscription,
    connection: Option<OpenSubscription>,
    /// Where delivery goes on: behind the last event that was returned or skipped; with a cursor,
    /// where the cursor is, at the latest.
    next_seq: Option<Seq>,
    progress: Progress,
    /// The position is lost: see [`SubscriberEvent::Subscribed`].
    has_begun_again: bool,
    /// Up to where the caller has finished the events.
    finished: Option<Seq>,
    is_paused: bool,
}

/// A connection, and the commands that are not answered yet.
#[derive(Debug)]
struct OpenSubscription {
    connection: Connection,
    subscribing: Option<PendingAnswer>,
    is_subscribed: bool,
    /// The newest event of the last move of the cursor, and the answer if that is to come.
    moved: Option<Seq>,
    moving: Option<PendingAnswer>,
}

enum Step {
    Subscribed(Result<CommandAnswer, ClientError>),
    Moved(Result<CommandAnswer, ClientError>),
    Delivery(Option<Delivery>),
}

impl Subscriber {
    /// It connects with the first [`next`](Self::next).
    pub fn new(connector: Connector, subscription: Subscription) -> Self {
        Self {
            connector,
            subscription,
            connection: None,
            next_seq: None,
            progress: Progress::New,
            has_begun_again: false,
            finished: None,
            is_paused: false,
        }
    }

    /// The same on a connection that its connector has opened already.
    #[must_use]
    pub fn on(mut self, connection: Connection) -> Self {
        self.begin(connection);
        self
    }

    /// The present connection, for other commands.
    pub fn client(&self) -> Option<&Client> {
        self.connection.as_ref().map(|open| &open.connection.client)
    }

    /// The caller has finished all events up to this one: the durable cursor moves behind it, one
    /// move at a time, while [`next`](Self::next) is awaited. Without a cursor it has no effect.
    pub fn seen(&mut self, seq: Seq) {
        if self.subscription.cursor.is_some() {
            self.finished = self.finished.max(Some(seq));
        }
    }

    /// Takes no events for now, or takes them again. They wait at the broker; the cursor moves
    /// meanwhile.
    pub fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Whether the cursor is being moved; the next move includes what is finished meanwhile.
    pub fn is_moving(&self) -> bool {
        self.connection.as_ref().is_some_and(|open| open.moving.is_some())
    }

    /// The next event: connects, subscribes, and waits. An error ends the subscriber: another
    /// attempt would have the same result, or another connection has taken the cursor over. Every
    /// later call returns it again.
    ///
    /// Cancel-safe: nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Result<SubscriberEvent, ClientError> {
        loop {
            if self.connection.is_none() {
                match self.connector.connect().await {
                    Ok(connection) => self.begin(connection),
                    Err(error) => return self.lost(error),
                }
            }
            if let Err(error) = self.send_due().await {
                return self.lost(error);
            }
            let continues_by_seq = self.continues_by_seq();
            let open = self.connection.as_mut().expect("it was just set");
            let event = match open.step(self.is_paused).await {
                Step::Subscribed(Ok(_)) => Some(self.subscribed()),
                Step::Subscribed(Err(ClientError::Refused(refusal)))
                    if refusal.code == Code::Conflict && continues_by_seq =>
                {
                    // The topic has never reached this seq: it was lost, and begins again.
                    (self.next_seq, self.has_begun_again) = (None, true);
                    self.subscription.from = Some(StartAt::First);
                    None
                }
                Step::Subscribed(Err(error)) => {
                    if matches!(error, ClientError::Refused(_)) && self.progress == Progress::Sent {
                        // Nothing was applied: another connection may hold the cursor.
                        self.progress = Progress::New;
                    }
                    return self.lost(error).map(|event| match event {
                        SubscriberEvent::Lost(ClientError::Refused(refusal)) => {
                            SubscriberEvent::Refused(refusal)
                        }
                        event => event,
                    });
                }
                Step::Moved(Ok(_)) => {
                    self.next_seq = open.moved.map(behind);
                    open.moved.map(SubscriberEvent::Seen)
                }
                // The cursor may have been removed, or the disk is full: the next connection
                // begins where the cursor is.
                Step::Moved(Err(error @ ClientError::Refused(_))) => {
                    self.connection = None;
                    return Ok(SubscriberEvent::Lost(error));
                }
                // The deliveries that have arrived come first; they end with the reason.
                Step::Moved(Err(_lost)) => None,
                Step::Delivery(Some(delivery)) => self.deliver(delivery),
                Step::Delivery(None) => {
                    let error = open.connection.deliveries.reason();
                    return self.lost(error);
                }
            };
            if let Some(event) = event {
                return Ok(event);
            }
        }
    }

    /// Moves the cursor behind the finished events, and releases it for the next subscriber.
    pub async fn close(self) -> Result<(), ClientError> {
        let gone = || ClientError::Closed("there is no connection".to_owned());
        let Some(open) = self.connection else { return Err(gone()) };
        // Undelivered events must not delay the last answers.
        drop(open.connection.deliveries);
        let (client, topic) = (open.connection.client, self.subscription.topic);
        if let Some(moving) = open.moving {
            moving.await?;
        }
        if let Some(seq) = self.finished.filter(|_| self.finished > open.moved) {
            client.request(&Command::Seen { topic: topic.clone(), seq }).await?;
        }
        // This also fails if the connection was lost before.
        client.request(&Command::Unsub { topic }).await.map(drop)
    }

    fn begin(&mut self, connection: Connection) {
        self.connection = Some(OpenSubscription {
            connection,
            subscribing: None,
            is_subscribed: false,
            moved: None,
            moving: None,
        });
        // With a cursor the broker knows what was finished.
        self.finished = None;
    }

    /// Sends `SUB`, or `SEEN` for what is finished, if it is due. Cancel-safe.
    async fn send_due(&mut self) -> Result<(), ClientError> {
        let Some(open) = &mut self.connection else { return Ok(()) };
        let Subscription { topic, from, cursor, takeover, filter } = &self.subscription;
        let client = &open.connection.client;
        if !open.is_subscribed && open.subscribing.is_none() {
            let sub = Command::Sub {
                topic: topic.clone(),
                // With a cursor that the broker has lost, the new one begins there.
                from: self.next_seq.map(StartAt::Seq).or(*from),
                cursor: cursor.clone(),
                takeover: cursor.is_some() && (*takeover || self.progress > Progress::New),
                filter: filter.clone(),
            };
            open.subscribing = Some(client.start_request(&[], &sub).await?);
            self.progress = self.progress.max(Progress::Sent);
        }
        if open.is_subscribed
            && open.moving.is_none()
            && self.finished > open.moved
            && let Some(seq) = self.finished
        {
            let seen = Command::Seen { topic: topic.clone(), seq };
            // If the connection is lost, the deliveries end with the reason.
            open.moving = client.start_request(&[], &seen).await.ok();
            open.moved = Some(seq);
        }
        Ok(())
    }

    /// Whether `SUB` names the seq of an event that a connection before has reached.
    fn continues_by_seq(&self) -> bool {
        let has_begun = self.progress == Progress::Subscribed && self.subscription.cursor.is_none();
        let begins_by_seq = matches!(self.subscription.from, Some(StartAt::Seq(_)));
        self.next_seq.is_some() || (has_begun && begins_by_seq)
    }

    fn subscribed(&mut self) -> SubscriberEvent {
        if let Some(open) = &mut self.connection {
            open.is_subscribed = true;
        }
        let Subscription { from, cursor, .. } = &self.subscription;
        let knows_place = from.is_some() || cursor.is_some() || self.next_seq.is_some();
        let before = std::mem::replace(&mut self.progress, Progress::Subscribed);
        let is_first = before < Progress::Subscribed;
        let has_begun_again = std::mem::take(&mut self.has_begun_again);
        SubscriberEvent::Subscribed { continues: is_first || (knows_place && !has_begun_again) }
    }

    fn deliver(&mut self, delivery: Delivery) -> Option<SubscriberEvent> {
        let (first, last, event) = match delivery {
            Delivery::Msg { seq, payload, .. } => {
                (seq, seq, SubscriberEvent::Event { seq, payload })
            }
            Delivery::Lag { from, to, .. } => (from, to, SubscriberEvent::Lag { from, to }),
            Delivery::Gap { from, to, .. } => (from, to, SubscriberEvent::Gap { from, to }),
            Delivery::Skip { seq, .. } => (seq, seq, SubscriberEvent::Skipped(seq)),
            Delivery::Notice(refusal) => return Some(SubscriberEvent::Notice(refusal)),
            // A subscriber joins no group and watches nothing.
            Delivery::Task { .. } | Delivery::More(_) => return None,
        };
        if self.subscription.cursor.is_none() {
            self.next_seq = Some(behind(last));
        } else {
            self.next_seq.get_or_insert(first);
        }
        Some(event)
    }

    fn lost(&mut self, error: ClientError) -> Result<SubscriberEvent, ClientError> {
        self.connection = None;
        self.connector.lost(error).map(SubscriberEvent::Lost)
    }
}

impl OpenSubscription {
    /// Waits for the first of several events. Cancel-safe.
    async fn step(&mut self, is_paused: bool) -> Step {
        tokio::select! {
            // Answers first: nothing is delivered before that to `SUB` [D3].
            biased;
            answer = output_of(self.subscribing.as_mut()) => {
                self.subscribing = None;
                Step::Subscribed(answer)
            }
            answer = output_of(self.moving.as_mut()) => {
                self.moving = None;
                Step::Moved(answer)
            }
            delivery = self.connection.deliveries.next(), if !is_paused && self.is_subscribed => {
                Step::Delivery(delivery)
            }
            // Paused or not yet subscribed, and no answer is awaited.
            () = future::pending() => unreachable!("it is never ready"),
        }
    }
}

fn behind(seq: Seq) -> Seq {
    Seq(seq.0.saturating_add(1))
}
