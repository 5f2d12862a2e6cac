//! Messages from outside to the broker.

#![expect(clippy::disallowed_methods, reason = "connections are counted every second")]

use std::collections::HashMap;
use std::time::Duration;

use tidings_protocol::{Seq, TopicName};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::frames::{self, Event, FrameError};
use super::inlet::Inlet;
use super::limits::{PLACES_MAX, TICK};
use super::reach::reach;
use super::socket::{Frames, Puller, Subscriber};
use super::{Bridge, Config, Heard, RunError, StartError};
use crate::rate_limited_log::RateLimitedLog;

/// Messages between two looks at whether it is to stop.
const BATCH: usize = 64;

/// How long a stop may take, for the last answers of the broker. The process has a little more.
const FINISH: Duration = Duration::from_millis(200);

/// Where messages come from, and what they mean.
pub(crate) enum Source {
    /// From anybody who pushes.
    Pull(Puller),
    /// From somebody else's PUB socket.
    Bridge { subscriber: Box<Subscriber>, bridge: Bridge, places: Places },
}

impl Source {
    /// Waits until the other side is there; `None` if it is to stop before.
    pub(crate) async fn bridge(
        bridge: Bridge,
        stop: &CancellationToken,
    ) -> Result<Option<Self>, StartError> {
        let connecting = async {
            reach(&bridge.connect).await;
            Subscriber::connect(&bridge.connect, &bridge.prefixes).await
        };
        let subscriber = tokio::select! {
            subscriber = connecting => subscriber?,
            () = stop.cancelled() => return Ok(None),
        };
        Ok(Some(Self::Bridge { subscriber: Box::new(subscriber), bridge, places: Places::new() }))
    }

    /// The label that the broker shows. It also tells that what comes is from people whom nobody
    /// knows.
    fn name(&self) -> &'static str {
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

    /// The event in a message. The one place that decides what is taken from outside.
    fn event(&mut self, frames: &Frames) -> Result<Event, FrameError> {
        match self {
            Self::Pull(_) => frames::event(frames),
            Self::Bridge { bridge, places, .. } => {
                places.note(frames);
                let payload = frames::payload(frames, bridge.frame)?.to_owned();
                Ok(Event { topic: bridge.topic.clone(), payload })
            }
        }
    }

    fn tend(&mut self) -> std::io::Result<()> {
        match self {
            Self::Pull(puller) => puller.tend(),
            Self::Bridge { subscriber, places, .. } => {
                subscriber.tend();
                places.missed.flush();
                Ok(())
            }
        }
    }
}

/// Publishes what comes, as fast as the broker confirms it, until `stop`; then waits a moment for
/// what is on its way.
pub(crate) async fn run(
    config: &Config,
    mut source: Source,
    stop: &CancellationToken,
) -> Result<Option<Heard>, RunError> {
    let (broker, security) = (config.broker.clone(), config.security.clone());
    let mut inlet = Inlet::new(broker, security, source.name());
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            // A connection that is slow to come is not begun anew every second.
            _ = tick.tick(), if inlet.is_connected() => {
                source.tend()?;
                inlet.flush_complaints();
                continue;
            }
            () = inlet.advance() => {
                if !inlet.is_connected() {
                    source.tend()?;
                    inlet.flush_complaints();
                }
                continue;
            }
            message = source.receive(), if inlet.has_room() => message,
        };
        let mut message = Some(message);
        let mut left = BATCH;
        while let Some(frames) = message {
            match source.event(&frames) {
                Ok(event) => inlet.push(event).await,
                Err(reason) => inlet.dropped.add(1, reason),
            }
            left -= 1;
            // What is there already is taken without asking everybody else each time.
            message = tokio::select! {
                biased;
                message = source.receive(), if left > 0 && inlet.has_room() => Some(message),
                () = std::future::ready(()) => None,
            };
        }
    }
    tokio::select! {
        () = inlet.finish() => {}
        () = sleep(FINISH) => {}
    }
    let Source::Bridge { places, .. } = &source else {
        let (published, dropped) = (inlet.confirmed, inlet.dropped.total());
        let unconfirmed = inlet.unconfirmed();
        let text = format!(
            "ZeroMQ publishers: {published} published, {dropped} dropped, {unconfirmed} not confirmed"
        );
        if dropped + unconfirmed > 0 {
            tracing::warn!("{text}");
        } else {
            tracing::info!("{text}");
        }
        return Ok(None);
    };
    Ok(Some(Heard {
        published: inlet.confirmed,
        dropped: inlet.dropped.total(),
        missed: places.missed.total(),
        repeated: places.repeated,
        unconfirmed: inlet.unconfirmed(),
        is_cut: !inlet.is_connected(),
    }))
}

/// The numbers of another broker's messages, where they have any: whether some were missed.
#[derive(Debug)]
pub(crate) struct Places {
    last: HashMap<TopicName, Seq>,
    /// Numbers that never came. Some may have been empty (`GAP`).
    missed: RateLimitedLog,
    /// Messages with a number that was there before, as after a restart of the other side.
    repeated: u64,
}

impl Places {
    fn new() -> Self {
        Self { last: HashMap::new(), missed: RateLimitedLog::new("messages missed"), repeated: 0 }
    }

    fn note(&mut self, frames: &Frames) {
        let Some((topic, seq)) = frames::place(frames) else { return };
        let is_full = self.last.len() == PLACES_MAX;
        match self.last.get_mut(&topic) {
            Some(last) if seq <= *last => self.repeated += 1,
            Some(last) => {
                let missed = seq.0 - last.0 - 1;
                if missed > 0 {
                    self.missed.add(missed, format_args!("{topic} went from {last} to {seq}"));
                }
                *last = seq;
            }
            // Whoever makes up topics does not make this larger.
            None if is_full => {}
            None => {
                self.last.insert(topic, seq);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(places: &mut Places, topic: &str, seq: &str) {
        places.note(&[topic, seq, "x"].map(|frame| frame.bytes().collect()).to_vec());
    }

    #[test]
    fn numbers_that_never_came_are_counted_for_each_topic() {
        let mut places = Places::new();
        for (topic, seq) in [("a", "5"), ("b", "100"), ("a", "6"), ("a", "9"), ("b", "101")] {
            note(&mut places, topic, seq);
        }
        assert_eq!((places.missed.total(), places.repeated), (2, 0));
        note(&mut places, "a", "9");
        note(&mut places, "a", "3");
        note(&mut places, "a", "10");
        assert_eq!((places.missed.total(), places.repeated), (2, 2));
    }

    #[test]
    fn whoever_makes_up_topics_is_forgotten() {
        let mut places = Places::new();
        for n in 0..PLACES_MAX + 10 {
            note(&mut places, &format!("t{n}"), "1");
        }
        assert_eq!(places.last.len(), PLACES_MAX);
    }
}
