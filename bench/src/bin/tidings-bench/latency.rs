//! Time from publish to delivery, at a fixed rate.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tidings_load::connection::Publisher;
use tidings_load::figure::quantile;
use tidings_load::load::{Rates, WARM_UP};
use tidings_load::poller::{DiscardBuffer, Poller};
use tidings_load::tls::SubscriberSocket;
use tidings_load::wire::StreamLayout;
use tidings_load::{Figure, Progress, Target};

/// Time limit for the last events.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Events at a fixed rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Latency {
    /// Events per second.
    pub(crate) rate: u32,
    pub(crate) subscribers: u16,
    pub(crate) length: Duration,
}

impl Latency {
    /// It is an error if the broker cannot keep up or an event is missing.
    pub(crate) fn measure(
        &self,
        target: Target<'_>,
        progress: Progress<'_>,
    ) -> Result<Vec<Figure>> {
        target.create_topic()?;
        let poller = Poller::new()?;
        let sockets = target.subscribers(&poller, self.subscribers, progress)?;
        let publisher = target.publisher(&target.payload(), 1)?;
        poller.register_edge_triggered(publisher.socket(), sockets.len())?;
        let subscriber = |socket| TimedSubscriber { socket, bytes: 0, events: 0 };
        let mut load = LatencyLoad {
            stream: target.stream_layout(),
            interval: Duration::from_secs(1) / self.rate,
            poller,
            discard: DiscardBuffer::default(),
            subscribers: sockets.into_iter().map(subscriber).collect(),
            publisher,
            sent: Vec::new(),
            latencies_us: Vec::new(),
        };
        progress("publishing")?;
        load.run(WARM_UP)?;
        load.latencies_us.clear();
        let rate = Figure::new("deliveries_per_second", "deliveries/s", 0);
        let cost = Figure::new("broker_cpu_us_per_delivery", "broker us per delivery", 2);
        let mut rates = Rates::new(target.server, rate, cost, 1.0);
        rates.measure(|| {
            load.run(self.length)?;
            Ok(u64::try_from(load.latencies_us.len())?)
        })?;
        let quantiles =
            [("p50_us", "p50 us", 0.5), ("p99_us", "p99 us", 0.99), ("p999_us", "p99.9 us", 0.999)];
        rates.figures(quantiles.map(|(key, label, part)| {
            Figure::new(key, label, 0).with_runs(quantile(&load.latencies_us, part))
        }))
    }
}

/// A subscriber, and what it has received.
struct TimedSubscriber {
    socket: SubscriberSocket,
    bytes: u64,
    events: u64,
}

/// One publisher with a fixed rate, and its subscribers.
struct LatencyLoad {
    stream: StreamLayout,
    interval: Duration,
    poller: Poller,
    discard: DiscardBuffer,
    subscribers: Vec<TimedSubscriber>,
    publisher: Publisher,
    /// When each event was published.
    sent: Vec<Instant>,
    latencies_us: Vec<f64>,
}

impl LatencyLoad {
    /// Publishes at the rate for the time `length`, and waits until all events have arrived.
    fn run(&mut self, length: Duration) -> Result<()> {
        let (begin, mut ready) = (Instant::now(), Vec::new());
        let end = begin + length;
        let mut due = begin;
        loop {
            let now = Instant::now();
            // Events that are late are published at once, so the rate holds.
            while due <= now && due < end {
                self.publish()?;
                due += self.interval;
            }
            let expected = u64::try_from(self.sent.len())?;
            if due >= end && self.subscribers.iter().all(|one| one.events == expected) {
                return Ok(());
            }
            ensure!(now < end + DELIVERY_TIMEOUT, "events are missing after {DELIVERY_TIMEOUT:?}");
            let wait = if due < end { due.saturating_duration_since(now) } else { length };
            self.poller.wait(wait, &mut ready)?;
            for &token in &ready {
                self.handle_ready(token)?;
            }
        }
    }

    fn publish(&mut self) -> Result<()> {
        self.sent.push(Instant::now());
        ensure!(self.publisher.write()?, "the broker does not read events at this rate");
        Ok(())
    }

    fn handle_ready(&mut self, token: usize) -> Result<()> {
        let Some(subscriber) = self.subscribers.get_mut(token) else {
            return self.publisher.read_replies();
        };
        let Some(bytes) = subscriber.socket.count_available(&mut self.discard)? else {
            return Ok(());
        };
        ensure!(bytes > 0, "the broker closed a subscriber's connection");
        let now = Instant::now();
        subscriber.bytes += bytes;
        let events = self.stream.events(subscriber.bytes);
        for event in subscriber.events..events {
            let sent = self.sent.get(usize::try_from(event)?);
            let sent = sent.context("received more events than were published")?;
            self.latencies_us.push((now - *sent).as_secs_f64() * 1e6);
        }
        subscriber.events = events;
        Ok(())
    }
}
