//! Sends topics of the broker to the PUB socket, from a durable cursor on each topic.
//!
//! An event that was handed to the socket may still be in its queues, and is lost with the process.
//! So the durable cursor moves only to where the socket was a second or two ago. The next process
//! sends the events after it again, with the same seqs.

#![expect(clippy::disallowed_methods, reason = "topics are listed every second")]

use std::collections::HashMap;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesOrdered;
use tidings_client::{Client, ClientError, ClientOptions, CommandAnswer, Deliveries, Delivery};
use tidings_protocol::{
    AttributeFilter, Code, Command, CursorName, Seq, StartAt, TopicAction, TopicCommand, TopicName,
};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::limits::{RECONNECT_GRACE, TICK};
use super::socket::ZmqPublisher;
use super::{TopicPattern, ZmqConfig, ZmqRunError};
use crate::rate_limited_log::RateLimitedLog;

/// The name of the durable cursors, and the label that the broker shows.
const CURSOR_NAME: &str = "zmq-pub";

/// Events between two flushes of the socket's queues.
const EVENT_BATCH: u32 = 64;

/// Time limit of a stop, for the socket's queues and the broker's last answers.
const STOP_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(200);

pub(crate) struct TopicForwarder<'a> {
    client: Client,
    patterns: &'a [TopicPattern],
    cursor: CursorName,
    topics: HashMap<TopicName, TopicProgress>,
    /// Commands without an answer, in the order in which the broker answers.
    pending: FuturesOrdered<BoxFuture<'static, ForwarderAnswer>>,
    /// Whether a topic without a cursor is read from its head instead of its first event. True
    /// while the existing topics are subscribed for the first time.
    starts_at_head: bool,
    is_listing: bool,
    refused_log: RateLimitedLog,
    lost_events_log: RateLimitedLog,
}

/// How far a topic has been sent.
struct TopicProgress {
    /// The name of the topic as a frame, which all of its messages share.
    topic_frame: Bytes,
    /// The last seq that was handed to the socket.
    sent: Option<Seq>,
    /// The value of `sent` at the last tick.
    sent_at_tick: Option<Seq>,
    /// The seq that the cursor was moved past.
    cursor_seq: Option<Seq>,
}

enum ForwarderCommand {
    List,
    Subscribe(TopicName),
    ForgetCursor(TopicName),
    Seen,
}

type ForwarderAnswer = (ForwarderCommand, Result<CommandAnswer, ClientError>);

impl<'a> TopicForwarder<'a> {
    /// Forwards events until `stop` or an error.
    pub(crate) async fn run(
        config: &'a ZmqConfig,
        mut socket: ZmqPublisher,
        stop: &CancellationToken,
    ) -> Result<(), ZmqRunError> {
        if config.is_restart {
            tokio::select! {
                () = sleep(RECONNECT_GRACE) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
        let (name, security) = (Some(CURSOR_NAME.to_owned()), config.security.clone());
        let options = ClientOptions { name, security, ..ClientOptions::default() };
        let (client, mut deliveries) = tidings_client::connect(&config.broker, options).await?;
        let mut forwarder = Self {
            client,
            patterns: &config.sockets.topics,
            cursor: CURSOR_NAME.parse().expect("the constant is a valid name"),
            topics: HashMap::new(),
            pending: FuturesOrdered::new(),
            starts_at_head: false,
            is_listing: false,
            refused_log: RateLimitedLog::new("the broker rejected a command"),
            lost_events_log: RateLimitedLog::new("events that expired before they were sent"),
        };
        forwarder.subscribe_existing().await?;
        forwarder.forward(&mut deliveries, &mut socket, stop).await?;
        // The next process sends the events again if their cursor is not moved in time.
        let _ = timeout(STOP_TIMEOUT, forwarder.finish(deliveries, &mut socket)).await;
        Ok(())
    }

    /// Subscribes to the existing topics. If one of them has a cursor, topics without one are new,
    /// and are sent from their first event.
    async fn subscribe_existing(&mut self) -> Result<(), ClientError> {
        let names = self.selected_topics(&self.client.request(&list_topics()).await?);
        self.starts_at_head = true;
        for name in &names {
            let show =
                Command::Topic(TopicCommand::new(TopicAction::Show, name.as_str(), Vec::new()));
            match self.client.request(&show).await {
                Ok(answer) if answer.more.iter().any(|line| is_cursor_line(line, CURSOR_NAME)) => {
                    self.starts_at_head = false;
                    break;
                }
                // The topic was deleted since.
                Ok(_) | Err(ClientError::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        for name in names {
            self.subscribe(name).await?;
        }
        self.starts_at_head = false;
        Ok(())
    }

    /// The topics of a list that match the patterns.
    fn selected_topics(&self, list: &CommandAnswer) -> Vec<TopicName> {
        let is_selected = |name: &str| {
            self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.matches(name))
        };
        let names = list.more.iter().filter_map(|line| line.split(' ').next());
        names
            .filter(|name| is_selected(name))
            .filter_map(|name| TopicName::new(name).ok())
            .collect()
    }

    async fn forward(
        &mut self,
        deliveries: &mut Deliveries,
        socket: &mut ZmqPublisher,
        stop: &CancellationToken,
    ) -> Result<(), ZmqRunError> {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut in_batch = 0;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                _ = tick.tick() => {
                    self.tick().await?;
                    self.refused_log.flush();
                    self.lost_events_log.flush();
                    socket.tick()?;
                }
                Some((command, answer)) = self.pending.next() => {
                    self.handle_answer(command, answer).await?;
                }
                delivery = deliveries.next() => match delivery {
                    Some(delivery) => {
                        self.deliver(delivery, socket).await?;
                        in_batch += 1;
                    }
                    None => return Err(deliveries.reason().into()),
                },
            }
            if in_batch == EVENT_BATCH {
                in_batch = 0;
                socket.flush_queues().await?;
            }
        }
    }

    async fn deliver(
        &mut self,
        delivery: Delivery,
        socket: &mut ZmqPublisher,
    ) -> Result<(), ZmqRunError> {
        match delivery {
            Delivery::Msg { topic, seq, payload } => {
                if let Some(progress) = self.topics.get_mut(&topic) {
                    progress.sent = Some(seq);
                    let message = super::frames::event_frames(
                        &progress.topic_frame,
                        seq,
                        Bytes::from(payload),
                    );
                    socket.send(message).await?;
                }
            }
            // A subscriber that misses the seq can read the topic, and gets the same `LAG`.
            Delivery::Lag { topic, from, to } => {
                self.skip_to(&topic, to);
                self.lost_events_log.add(to.0 - from.0 + 1, "the topic has not kept them");
            }
            Delivery::Gap { topic, to, .. } => self.skip_to(&topic, to),
            Delivery::Notice(error) => self.refused_log.add(1, error),
            Delivery::Skip { .. } | Delivery::Task { .. } | Delivery::More(_) => {}
        }
        Ok(())
    }

    fn skip_to(&mut self, topic: &TopicName, to: Seq) {
        if let Some(progress) = self.topics.get_mut(topic) {
            progress.sent = Some(to);
        }
    }

    /// Requests the list of topics, and moves cursors to where the socket was at the previous tick.
    async fn tick(&mut self) -> Result<(), ClientError> {
        if !self.is_listing {
            self.is_listing = true;
            self.send_command(ForwarderCommand::List, &list_topics()).await?;
        }
        self.move_cursors(|progress| std::mem::replace(&mut progress.sent_at_tick, progress.sent))
            .await
    }

    /// Moves each cursor past the seq that `seq_of` returns.
    async fn move_cursors(
        &mut self,
        seq_of: impl Fn(&mut TopicProgress) -> Option<Seq>,
    ) -> Result<(), ClientError> {
        let mut commands = Vec::new();
        for (topic, progress) in &mut self.topics {
            if let Some(seq) = seq_of(progress).filter(|seq| Some(*seq) > progress.cursor_seq) {
                progress.cursor_seq = Some(seq);
                commands.push(Command::Seen { topic: topic.clone(), seq });
            }
        }
        for command in commands {
            self.send_command(ForwarderCommand::Seen, &command).await?;
        }
        Ok(())
    }

    async fn send_command(
        &mut self,
        kind: ForwarderCommand,
        command: &Command<'_>,
    ) -> Result<(), ClientError> {
        let answer = self.client.start_request(&[], command).await?;
        self.pending.push_back(Box::pin(async move { (kind, answer.await) }));
        Ok(())
    }

    /// Subscribes from the cursor of the topic. Takes the cursor over from an earlier process.
    async fn subscribe(&mut self, topic: TopicName) -> Result<(), ClientError> {
        let topic_frame = Bytes::copy_from_slice(topic.as_str().as_bytes());
        let progress =
            TopicProgress { topic_frame, sent: None, sent_at_tick: None, cursor_seq: None };
        self.topics.insert(topic.clone(), progress);
        let from = (!self.starts_at_head).then_some(StartAt::First);
        let cursor = Some(self.cursor.clone());
        let filter = AttributeFilter::default();
        let subscribe = Command::Sub { topic: topic.clone(), from, cursor, takeover: true, filter };
        self.send_command(ForwarderCommand::Subscribe(topic), &subscribe).await
    }

    async fn handle_answer(
        &mut self,
        kind: ForwarderCommand,
        answer: Result<CommandAnswer, ClientError>,
    ) -> Result<(), ClientError> {
        let error = match (kind, answer) {
            (ForwarderCommand::List, Ok(list)) => {
                self.is_listing = false;
                for name in self.selected_topics(&list) {
                    if !self.topics.contains_key(&name) {
                        self.subscribe(name).await?;
                    }
                }
                return Ok(());
            }
            (ForwarderCommand::ForgetCursor(topic), Ok(_)) => return self.subscribe(topic).await,
            (ForwarderCommand::Subscribe(_) | ForwarderCommand::Seen, Ok(_)) => return Ok(()),
            // The cursor is beyond the head: the topic has lost its events, and its seqs start at 1
            // again.
            (ForwarderCommand::Subscribe(topic), Err(ClientError::Refused(error)))
                if error.code == Code::Conflict =>
            {
                let forget = vec![("cursor", CURSOR_NAME)];
                let forget =
                    Command::Topic(TopicCommand::new(TopicAction::Forget, topic.as_str(), forget));
                return self
                    .send_command(ForwarderCommand::ForgetCursor(topic.clone()), &forget)
                    .await;
            }
            // Retried after the next list of topics.
            (
                ForwarderCommand::Subscribe(topic) | ForwarderCommand::ForgetCursor(topic),
                Err(error),
            ) => {
                self.topics.remove(&topic);
                error
            }
            (ForwarderCommand::List, Err(error)) => {
                self.is_listing = false;
                error
            }
            (ForwarderCommand::Seen, Err(error)) => error,
        };
        match error {
            ClientError::Refused(error) => {
                self.refused_log.add(1, error);
                Ok(())
            }
            error => Err(error),
        }
    }

    /// Waits until the socket has sent all messages, and moves the cursors.
    async fn finish(&mut self, deliveries: Deliveries, socket: &mut ZmqPublisher) {
        // No more deliveries are read, so they cannot block the last answers.
        drop(deliveries);
        let is_drained = socket.drain().await;
        let moved = self
            .move_cursors(|progress| if is_drained { progress.sent } else { progress.sent_at_tick })
            .await;
        if moved.is_ok() {
            while self.pending.next().await.is_some() {}
        }
    }
}

fn list_topics() -> Command<'static> {
    Command::Topic(TopicCommand::unnamed(TopicAction::Ls, Vec::new()))
}

/// Whether a line of `TOPIC show` describes the cursor of this name.
fn is_cursor_line(line: &str, name: &str) -> bool {
    let mut words = line.split(' ');
    words.next() == Some("cursor") && words.next() == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_line_is_recognized_by_its_name() {
        let line = "cursor zmq-pub next=5 behind=0 held=no moved=2026-11-22T17:00:00Z";
        assert!(is_cursor_line(line, CURSOR_NAME));
        assert!(!is_cursor_line(&line.replace("zmq-pub", "zmq-pub-2"), CURSOR_NAME));
        assert!(!is_cursor_line("log next=5", CURSOR_NAME));
    }
}
