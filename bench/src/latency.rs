//! Time from publish to delivery, at a fixed rate.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use serde::Serialize;
use tidings_load::command::flags::RunFlags;
use tidings_load::command::text::{format_count, plural};
use tidings_load::command::{Benchmark, Outcome};
use tidings_load::connection::{self, PublisherSocket};
use tidings_load::load::connect_subscribers;
use tidings_load::poller::{DiscardBuffer, Poller};
use tidings_load::server::{CpuCost, RunStart};
use tidings_load::tls::SubscriberSocket;
use tidings_load::wire::StreamLayout;
use tidings_load::{Figure, PROGRESS_INTERVAL, Progress, Target};

use crate::histogram::Histogram;

/// Time limit for the last events of a run.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Events at a fixed rate.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub struct Latency {
    /// Events a second
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: u32,

    /// Connections that subscribe
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    pub subscribers: u16,

    /// Duration of the runs, which use the same connections.
    #[command(flatten)]
    #[serde(flatten)]
    pub length: RunFlags,
}

impl Benchmark for Latency {
    const NAME: &'static str = "latency";

    fn title(&self) -> String {
        let rate = format_count(self.rate.into());
        let subscribers = plural(self.subscribers.into(), "subscriber");
        format!("{rate} events/s to {subscribers}, {}", self.length.title())
    }

    /// It is an error if the broker cannot keep up or an event is missing.
    fn measure(&self, target: Target<'_>, progress: Progress<'_>) -> Result<Outcome> {
        let mut load = LatencyLoad::connect(target, self, progress)?;
        load.run(self.length.warm_up, progress)?;
        let name = |key, label| Figure::new(key, label, 0);
        let mut figures = [
            (0.5, name("p50_us", "p50 us")),
            (0.99, name("p99_us", "p99 us")),
            (0.999, name("p999_us", "p99.9 us")),
            (1.0, name("max_us", "longest us")),
        ];
        let key = "broker_cpu_us_per_delivery";
        let mut cost = CpuCost::new(Figure::new(key, "broker us per delivery", 2), 1.0);
        for _ in 0..self.length.runs {
            load.latencies = Histogram::new();
            let (before, start) = (load.delivered, RunStart::now(target.server)?);
            load.run(self.length.run(), progress)?;
            cost.end_run(start, target.server, load.delivered - before)?;
            for (part, figure) in &mut figures {
                figure.runs.push(load.latencies.quantile(*part));
            }
        }
        let figures = figures.into_iter().map(|(_, figure)| figure).collect();
        Ok(cost.append_to(figures, target.server)?.into())
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
    timer: OwnedFd,
    discard: DiscardBuffer,
    subscribers: Vec<TimedSubscriber>,
    publisher: PublisherSocket,
    /// When each event was published.
    sent: Vec<Instant>,
    delivered: u64,
    latencies: Histogram,
}

impl LatencyLoad {
    fn connect(target: Target<'_>, latency: &Latency, progress: Progress<'_>) -> Result<Self> {
        ensure!(latency.rate > 0, "a rate of 0: expected at least 1 event per second");
        connection::create_topic(&target)?;
        let poller = Poller::new()?;
        let sockets = connect_subscribers(&target, &poller, latency.subscribers, progress)?;
        let publisher = connection::publisher(&target, 1)?;
        poller.register_edge_triggered(publisher.socket(), sockets.len())?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        poller.register_readable(&timer, sockets.len() + 1)?;
        let subscriber = |socket| TimedSubscriber { socket, bytes: 0, events: 0 };
        Ok(Self {
            stream: target.stream_layout(),
            interval: Duration::from_secs(1) / latency.rate,
            poller,
            timer,
            discard: DiscardBuffer::default(),
            subscribers: sockets.into_iter().map(subscriber).collect(),
            publisher,
            sent: Vec::new(),
            delivered: 0,
            latencies: Histogram::new(),
        })
    }

    /// Publishes at the rate for the time `length`, and waits until all events have arrived.
    fn run(&mut self, length: Duration, progress: Progress<'_>) -> Result<()> {
        self.set_timer(self.interval)?;
        let begin = Instant::now();
        let first = self.sent.len();
        let (mut reported, mut ready) = (begin, Vec::new());
        loop {
            let now = Instant::now();
            if now >= reported + PROGRESS_INTERVAL {
                progress(&format!("{} events, {} deliveries", self.sent.len(), self.delivered))?;
                reported = now;
            }
            // Events that are late are published at once, so the rate holds.
            let due = (now.min(begin + length) - begin).as_nanos() / self.interval.as_nanos();
            while u128::try_from(self.sent.len() - first)? < due {
                self.publish()?;
            }
            let expected = u64::try_from(self.sent.len() * self.subscribers.len())?;
            if now >= begin + length && self.delivered == expected {
                return self.set_timer(Duration::ZERO);
            }
            if now >= begin + length + DELIVERY_TIMEOUT {
                bail!(
                    "{} deliveries did not arrive within {DELIVERY_TIMEOUT:?}",
                    expected - self.delivered
                );
            }
            self.poller.wait(PROGRESS_INTERVAL, &mut ready)?;
            for &token in &ready {
                self.handle_ready(token)?;
            }
        }
    }

    fn set_timer(&self, interval: Duration) -> Result<()> {
        let interval =
            Timespec::try_from(interval).context("the interval of the rate is out of range")?;
        let every = Itimerspec { it_interval: interval, it_value: interval };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &every)?;
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        self.sent.push(Instant::now());
        self.publisher.start_write();
        ensure!(
            self.publisher.flush()?,
            "the broker does not read events at this rate; use a smaller --rate"
        );
        Ok(())
    }

    fn handle_ready(&mut self, token: usize) -> Result<()> {
        let mut buffer = [0; 4096];
        if let Some(subscriber) = self.subscribers.get_mut(token) {
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
                self.latencies.record(now - *sent);
            }
            self.delivered += events - subscriber.events;
            subscriber.events = events;
        } else if token == self.subscribers.len() {
            self.publisher.read_replies(&mut buffer, |_| Ok(()))?;
        } else if let Err(error) = rustix::io::read(&self.timer, &mut buffer[..8]) {
            // Two ticks were reported and read as one.
            ensure!(error == rustix::io::Errno::AGAIN, "cannot read the timer: {error}");
        }
        Ok(())
    }
}
