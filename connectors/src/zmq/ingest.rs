//! Publishes the messages of a PULL or SUB socket.

#![expect(clippy::disallowed_methods, reason = "connections are counted every second")]

use std::collections::HashMap;
use std::time::Duration;

use tidings_client::{Backoff, ClientOptions, Connector, PublishEvent, Publisher};
use tidings_protocol::{Seq, TopicName};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::frames::{self, FrameError, ZmqEvent};
use super::limits::{RETRY_DELAY, TICK, TRACKED_TOPICS_MAX, UNCONFIRMED_BYTES_MAX};
use super::reachability::wait_until_reachable;
use super::socket::{Frames, ZmqPuller, ZmqSubscriber};
use super::{BridgeConfig, BridgeReport, ZmqConfig, ZmqRunError, ZmqStartError};
use crate::rate_limited_log::RateLimitedLog;

/// Limit of the messages between two checks of `stop`.
const MESSAGE_BATCH: usize = 64;

/// Time limit for the broker's last answers at a stop. The stop of the process has a longer one.
const FINISH_TIMEOUT: Duration = Duration::from_millis(200);

/// A socket, and how its messages become events.
pub(crate) enum MessageSource {
    /// Messages from any PUSH socket.
    Pull(ZmqPuller),
    /// Messages from a foreign PUB socket.
    Bridge { subscriber: Box<ZmqSubscriber>, bridge: BridgeConfig, seqs: SeqTracker },
}

impl MessageSource {
    /// Connects to a foreign PUB socket, once it is reachable; `None`: stopped before.
    pub(crate) async fn connect_bridge(
        bridge: BridgeConfig,
        stop: &CancellationToken,
    ) -> Result<Option<Self>, ZmqStartError> {
        let connecting = async {
            wait_until_reachable(&bridge.connect).await;
            ZmqSubscriber::connect(&bridge.connect, &bridge.prefixes).await
        };
        let subscriber = tokio::select! {
            subscriber = connecting => subscriber?,
            () = stop.cancelled() => return Ok(None),
        };
        Ok(Some(Self::Bridge { subscriber: Box::new(subscriber), bridge, seqs: SeqTracker::new() }))
    }

    /// The label that the broker shows.
    fn client_name(&self) -> &'static str {
        match self {
            Self::Pull(_) => "zmq-pull",
            Self::Bridge { .. } => "zmq-bridge",
        }
    }

    /// The next message. Cancel-safe.
    async fn receive(&mut self) -> Frames {
        match self {
            Self::Pull(puller) => puller.receive().await,
            Self::Bridge { subscriber, .. } => subscriber.receive().await,
        }
    }

    /// Converts a message to an event. Every message from outside passes this check.
    fn parse_event(&mut self, frames: &Frames) -> Result<ZmqEvent, FrameError> {
        match self {
            Self::Pull(_) => frames::parse_event(frames),
            Self::Bridge { bridge, seqs, .. } => {
                seqs.record(frames);
                let payload = frames::payload_of(frames, bridge.frame)?.to_owned();
                Ok(ZmqEvent { topic: bridge.topic.clone(), payload })
            }
        }
    }

    fn tick(&mut self) -> std::io::Result<()> {
        match self {
            Self::Pull(puller) => puller.tick(),
            Self::Bridge { subscriber, seqs, .. } => {
                subscriber.tick();
                seqs.missed.flush();
                Ok(())
            }
        }
    }
}

/// What became of the messages.
struct Results {
    confirmed: u64,
    dropped: RateLimitedLog,
    errors: RateLimitedLog,
}

impl Results {
    fn new() -> Self {
        Self {
            confirmed: 0,
            dropped: RateLimitedLog::new("messages dropped"),
            errors: RateLimitedLog::new("the broker is unreachable or rejects events for now"),
        }
    }

    fn add(&mut self, event: PublishEvent) {
        match event {
            PublishEvent::Confirmed { .. } => self.confirmed += 1,
            PublishEvent::Refused { refusal, .. } => self.dropped.add(1, refusal),
            PublishEvent::Deferred { refusal, .. } => self.errors.add(1, refusal),
            PublishEvent::Lost(error) => self.errors.add(1, error),
            PublishEvent::Connected { .. } => {}
        }
    }

    fn flush_logs(&mut self) {
        self.dropped.flush();
        self.errors.flush();
    }
}

/// A publisher of messages. The broker may store one twice, because messages get no id.
fn publisher(config: &ZmqConfig, name: &str) -> Publisher {
    let options = ClientOptions {
        name: Some(name.to_owned()),
        // Peers are unknown, so the broker applies the permissions of this transport.
        via: Some("zmq".to_owned()),
        security: config.security.clone(),
        ..ClientOptions::default()
    };
    let connector = Connector::new(&config.broker, options).persistent();
    let connector = connector.with_backoff(Backoff::up_to(RETRY_DELAY));
    Publisher::new(connector).with_window(UNCONFIRMED_BYTES_MAX).retrying(RETRY_DELAY)
}

/// Publishes messages until `stop`, no faster than the broker confirms them. Then waits for the
/// confirmations of messages in flight, up to a time limit.
pub(crate) async fn run(
    config: &ZmqConfig,
    mut source: MessageSource,
    stop: &CancellationToken,
) -> Result<Option<BridgeReport>, ZmqRunError> {
    let mut publisher = publisher(config, source.client_name());
    let mut results = Results::new();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            _ = tick.tick() => {
                source.tick()?;
                results.flush_logs();
                continue;
            }
            event = publisher.next() => {
                results.add(event?);
                continue;
            }
            message = source.receive(), if takes_more(&publisher) => message,
        };
        let mut message = Some(message);
        let mut remaining = MESSAGE_BATCH;
        while let Some(frames) = message {
            match source.parse_event(&frames) {
                // Its number has no meaning here.
                Ok(event) => publisher.push(0, &event.topic, event.payload),
                Err(reason) => results.dropped.add(1, reason),
            }
            remaining -= 1;
            // Takes messages that have arrived already, without polling the other branches.
            message = tokio::select! {
                biased;
                message = source.receive(), if remaining > 0 && takes_more(&publisher) => Some(message),
                () = std::future::ready(()) => None,
            };
        }
    }
    let finish = async {
        while let Ok(Some(event)) = publisher.flush().await {
            results.add(event);
        }
    };
    let _ = timeout(FINISH_TIMEOUT, finish).await;
    let unconfirmed = publisher.len() as u64;
    let MessageSource::Bridge { seqs, .. } = &source else {
        let (confirmed, dropped) = (results.confirmed, results.dropped.total());
        let text = format!(
            "ZeroMQ publishers: {confirmed} published, {dropped} dropped, {unconfirmed} not confirmed"
        );
        if dropped + unconfirmed > 0 {
            tracing::warn!("{text}");
        } else {
            tracing::info!("{text}");
        }
        return Ok(None);
    };
    Ok(Some(BridgeReport {
        published: results.confirmed,
        dropped: results.dropped.total(),
        missed: seqs.missed.total(),
        repeated: seqs.repeated,
        unconfirmed,
        has_lost_broker: !publisher.is_connected(),
    }))
}

/// Whether another message may be received: without a connection, senders wait.
fn takes_more(publisher: &Publisher) -> bool {
    publisher.is_connected() && publisher.has_room()
}

/// Finds missed and repeated messages by the seqs that another Tidings sends.
#[derive(Debug)]
pub(crate) struct SeqTracker {
    last_seqs: HashMap<TopicName, Seq>,
    /// Skipped seqs. Some of them may have had no event (`GAP`).
    missed: RateLimitedLog,
    /// Messages with a seq that was not higher than the one before, as after a restart of the other
    /// process.
    repeated: u64,
}

impl SeqTracker {
    fn new() -> Self {
        Self {
            last_seqs: HashMap::new(),
            missed: RateLimitedLog::new("messages missed"),
            repeated: 0,
        }
    }

    fn record(&mut self, frames: &Frames) {
        let Some((topic, seq)) = frames::topic_and_seq(frames) else { return };
        let is_full = self.last_seqs.len() == TRACKED_TOPICS_MAX;
        match self.last_seqs.get_mut(&topic) {
            Some(last) if seq <= *last => self.repeated += 1,
            Some(last) => {
                let missed = seq.0 - last.0 - 1;
                if missed > 0 {
                    self.missed.add(missed, format_args!("{topic} went from {last} to {seq}"));
                }
                *last = seq;
            }
            // At the limit no topic is added, so that a peer which invents topics cannot use up
            // memory.
            None if is_full => {}
            None => {
                self.last_seqs.insert(topic, seq);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(seqs: &mut SeqTracker, topic: &str, seq: &str) {
        seqs.record(&[topic, seq, "x"].map(|frame| frame.bytes().collect()).to_vec());
    }

    #[test]
    fn missed_seqs_are_counted_for_each_topic() {
        let mut seqs = SeqTracker::new();
        for (topic, seq) in [("a", "5"), ("b", "100"), ("a", "6"), ("a", "9"), ("b", "101")] {
            record(&mut seqs, topic, seq);
        }
        assert_eq!((seqs.missed.total(), seqs.repeated), (2, 0));
        record(&mut seqs, "a", "9");
        record(&mut seqs, "a", "3");
        record(&mut seqs, "a", "10");
        assert_eq!((seqs.missed.total(), seqs.repeated), (2, 2));
    }

    #[test]
    fn the_number_of_tracked_topics_is_limited() {
        let mut seqs = SeqTracker::new();
        for n in 0..TRACKED_TOPICS_MAX + 10 {
            record(&mut seqs, &format!("t{n}"), "1");
        }
        assert_eq!(seqs.last_seqs.len(), TRACKED_TOPICS_MAX);
    }
}
