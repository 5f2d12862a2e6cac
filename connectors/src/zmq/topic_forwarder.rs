//! Topics of the broker to the PUB socket: from a durable cursor on each, which follows a little
//! behind.
//!
//! What was handed to the socket may still be in its queues, and is lost with the process. So a
//! cursor moves to where the socket was a second or two ago, and what came after that is sent again
//! by the next process, under the same numbers.

#![expect(clippy::disallowed_methods, reason = "topics are listed every second")]

use std::collections::{HashMap, VecDeque};
use std::future;

use bytes::Bytes;
use tidings_protocol::client::{
    self, Client, ClientError, ClientOptions, CommandAnswer, Deliveries, Delivery, PendingAnswer,
};
use tidings_protocol::{Code, Command, CursorName, ManageCommand, Seq, StartAt, TopicName};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::limits::{RECONNECT_GRACE, TICK};
use super::socket::ZmqPublisher;
use super::{TopicPattern, ZmqConfig, ZmqRunError};
use crate::rate_limited_log::RateLimitedLog;

/// The durable cursors, and the label that the broker shows.
const CURSOR_NAME: &str = "zmq-pub";

/// Events between two turns of the socket.
const EVENT_BATCH: u32 = 64;

/// How long a stop may take: for what is in the socket's queues, and for the last answers.
const STOP_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(200);

/// Follows all topics.
pub(crate) struct TopicForwarder<'a> {
    client: Client,
    patterns: &'a [TopicPattern],
    cursor: CursorName,
    topics: HashMap<TopicName, TopicProgress>,
    /// Questions to the broker, in whose order it answers.
    pending: VecDeque<(ForwarderCommand, PendingAnswer)>,
    /// Topics without a cursor are not heard from their beginning, but from what comes: nobody was
    /// here before.
    starts_at_head: bool,
    is_listing: bool,
    refused_log: RateLimitedLog,
    lost_events_log: RateLimitedLog,
}

/// A topic.
struct TopicProgress {
    /// Its name, which all of its messages share.
    topic_frame: Bytes,
    /// The last number that was handed to the socket; what it was at the last tick, and what the
    /// cursor was moved to.
    sent: Option<Seq>,
    sent_at_tick: Option<Seq>,
    cursor_seq: Option<Seq>,
}

enum ForwarderCommand {
    List,
    Subscribe(TopicName),
    ForgetCursor(TopicName),
    Seen,
}

impl<'a> TopicForwarder<'a> {
    /// Sends events until `stop`, or until the broker is gone.
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
        let (client, mut deliveries) = client::connect(&config.broker, options).await?;
        let mut outlet = Self {
            client,
            patterns: &config.topics,
            cursor: CURSOR_NAME.parse().expect("it is the name of a cursor"),
            topics: HashMap::new(),
            pending: VecDeque::new(),
            starts_at_head: false,
            is_listing: false,
            refused_log: RateLimitedLog::new("the broker refused something"),
            lost_events_log: RateLimitedLog::new("events that were gone before they could be sent"),
        };
        outlet.subscribe_existing().await?;
        outlet.forward(&mut deliveries, &mut socket, stop).await?;
        // What cannot be had in time comes again when the next process begins.
        let _ = timeout(STOP_TIMEOUT, outlet.finish(deliveries, &mut socket)).await;
        Ok(())
    }

    /// Subscribes to what there is. If one of the topics has a cursor, those without one are new.
    async fn subscribe_existing(&mut self) -> Result<(), ClientError> {
        let names = self
            .selected_topics(&self.client.request(&topic_command("ls", None, Vec::new())).await?);
        self.starts_at_head = true;
        for name in &names {
            let show = topic_command("show", Some(name.as_str()), Vec::new());
            match self.client.request(&show).await {
                Ok(answer) if answer.more.iter().any(|line| is_cursor_line(line, CURSOR_NAME)) => {
                    self.starts_at_head = false;
                    break;
                }
                // It was deleted meanwhile.
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

    /// The topics of a list that are to be sent.
    fn selected_topics(&self, list: &CommandAnswer) -> Vec<TopicName> {
        let wanted = |name: &str| {
            self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.matches(name))
        };
        let names = list.more.iter().filter_map(|line| line.split(' ').next());
        names.filter(|name| wanted(name)).filter_map(|name| TopicName::new(name).ok()).collect()
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
                (question, answer) = next_answer(&mut self.pending) => self.handle_answer(question, answer).await?,
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

    /// Hands an event to the socket.
    async fn deliver(
        &mut self,
        delivery: Delivery,
        socket: &mut ZmqPublisher,
    ) -> Result<(), ZmqRunError> {
        match delivery {
            Delivery::Msg { topic, seq, payload } => {
                if let Some(followed) = self.topics.get_mut(&topic) {
                    followed.sent = Some(seq);
                    let message = super::frames::event_frames(
                        &followed.topic_frame,
                        seq,
                        Bytes::from(payload),
                    );
                    socket.send(message).await?;
                }
            }
            // Who misses the number asks the broker, and is told the same.
            Delivery::Lag { topic, from, to } => {
                self.skip_to(&topic, to);
                self.lost_events_log.add(to.0 - from.0 + 1, "the topic keeps less");
            }
            Delivery::Gap { topic, to, .. } => self.skip_to(&topic, to),
            Delivery::Notice(error) => self.refused_log.add(1, error),
            Delivery::Task { .. } | Delivery::More(_) => {}
        }
        Ok(())
    }

    fn skip_to(&mut self, topic: &TopicName, to: Seq) {
        if let Some(followed) = self.topics.get_mut(topic) {
            followed.sent = Some(to);
        }
    }

    /// Asks for topics that have come, and moves cursors to where the socket was at the tick
    /// before.
    async fn tick(&mut self) -> Result<(), ClientError> {
        if !self.is_listing {
            self.is_listing = true;
            self.send_command(ForwarderCommand::List, &topic_command("ls", None, Vec::new()))
                .await?;
        }
        self.move_cursors(|followed| std::mem::replace(&mut followed.sent_at_tick, followed.sent))
            .await
    }

    /// Moves cursors behind what `which` says of each topic.
    async fn move_cursors(
        &mut self,
        which: impl Fn(&mut TopicProgress) -> Option<Seq>,
    ) -> Result<(), ClientError> {
        let mut moved = Vec::new();
        for (topic, followed) in &mut self.topics {
            if let Some(seq) = which(followed).filter(|seq| Some(*seq) > followed.cursor_seq) {
                followed.cursor_seq = Some(seq);
                moved.push(Command::Seen { topic: topic.clone(), seq });
            }
        }
        for seen in moved {
            self.send_command(ForwarderCommand::Seen, &seen).await?;
        }
        Ok(())
    }

    async fn send_command(
        &mut self,
        question: ForwarderCommand,
        command: &Command<'_>,
    ) -> Result<(), ClientError> {
        let answering = self.client.start_request(&[], command).await?;
        self.pending.push_back((question, answering));
        Ok(())
    }

    /// Hears a topic, from its cursor on; a process before this one may not have gone yet.
    async fn subscribe(&mut self, topic: TopicName) -> Result<(), ClientError> {
        let frame = Bytes::copy_from_slice(topic.as_str().as_bytes());
        let followed =
            TopicProgress { topic_frame: frame, sent: None, sent_at_tick: None, cursor_seq: None };
        self.topics.insert(topic.clone(), followed);
        let from = (!self.starts_at_head).then_some(StartAt::First);
        let cursor = Some(self.cursor.clone());
        let subscribe = Command::Sub { topic: topic.clone(), from, cursor, takeover: true };
        self.send_command(ForwarderCommand::Subscribe(topic), &subscribe).await
    }

    async fn handle_answer(
        &mut self,
        question: ForwarderCommand,
        answer: Result<CommandAnswer, ClientError>,
    ) -> Result<(), ClientError> {
        let error = match (question, answer) {
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
            // The cursor is beyond the end: the topic has lost what it had, and its numbers begin
            // anew.
            (ForwarderCommand::Subscribe(topic), Err(ClientError::Refused(error)))
                if error.code == Code::Conflict =>
            {
                let forget = vec![("cursor", CURSOR_NAME)];
                let forget = topic_command("forget", Some(topic.as_str()), forget);
                let answering = self.client.start_request(&[], &forget).await?;
                self.pending.push_back((ForwarderCommand::ForgetCursor(topic), answering));
                return Ok(());
            }
            // It is tried again when topics are listed next.
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

    /// Waits until the socket has sent everything, and moves the cursors behind it.
    async fn finish(&mut self, deliveries: Deliveries, socket: &mut ZmqPublisher) {
        // Nothing more is taken, so nothing may stand in the way of the last answers.
        drop(deliveries);
        let has_left = socket.drain().await;
        let moved = self.move_cursors(|it| if has_left { it.sent } else { it.sent_at_tick }).await;
        if moved.is_ok() {
            while !self.pending.is_empty() {
                let (_, _) = next_answer(&mut self.pending).await;
            }
        }
    }
}

/// The next answer, for ever if there is none. Cancel-safe.
async fn next_answer(
    asked: &mut VecDeque<(ForwarderCommand, PendingAnswer)>,
) -> (ForwarderCommand, Result<CommandAnswer, ClientError>) {
    let Some((_, answering)) = asked.front_mut() else { return future::pending().await };
    let answer = answering.await;
    let (question, _) = asked.pop_front().expect("it was just answered");
    (question, answer)
}

fn topic_command<'a>(
    action: &'a str,
    name: Option<&'a str>,
    settings: Vec<(&'a str, &'a str)>,
) -> Command<'a> {
    Command::Topic(ManageCommand { action, name, settings })
}

/// Whether a line of `TOPIC show` is about the cursor of this name.
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
