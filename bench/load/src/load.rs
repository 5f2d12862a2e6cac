//! Publishers that write as fast as the window allows, and subscribers that only count bytes.

#![expect(clippy::disallowed_methods, reason = "a load generator reads the clock")]

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;

use crate::command::text::{format_count, plural};
use crate::connection::{self, PublisherSocket};
use crate::figure::to_f64;
use crate::poller::{DiscardBuffer, Poller};
use crate::receive_positions::ReceivePositions;
use crate::tls::SubscriberSocket;
use crate::wire::StreamLayout;
use crate::{PROGRESS_INTERVAL, Progress, Target};

/// Longest time without a received byte while events are missing. Some brokers wait 10 s for one
/// subscriber before they serve the others.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Numbers of connections, and the window.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub struct LoadSize {
    /// Connections that publish
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub publishers: u16,

    /// Connections that subscribe
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    pub subscribers: u16,

    /// Most messages between a publisher and the slowest subscriber
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub window: u64,
}

impl LoadSize {
    /// For the title of a report; `of` is a remark about the subscribers.
    pub fn title(self, of: &str) -> String {
        let publishers = plural(self.publishers.into(), "publisher");
        let subscribers = plural(self.subscribers.into(), "subscriber");
        format!("{publishers} to {subscribers}{of}, window {}", format_count(self.window))
    }
}

/// Progress of a load.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LoadCounters {
    /// Events that were written completely or in part.
    pub published: u64,
    /// Events that arrived, over all active subscribers.
    pub delivered: u64,
    /// Bytes of these, before encryption.
    pub delivered_bytes: u64,
}

/// A load that can pause and resume.
pub struct Load {
    stream: StreamLayout,
    window: u64,
    poller: Poller,
    ready: Vec<usize>,
    discard: DiscardBuffer,
    subscribers: Vec<SubscriberSocket>,
    publishers: Vec<PublisherSocket>,
    /// Publishers without a write in flight, in the order of their turns.
    idle_publishers: VecDeque<usize>,
    positions: ReceivePositions,
    burst: usize,
    published: u64,
    is_stopped: bool,
    read_buffer: Vec<u8>,
}

impl Load {
    /// Connects all subscribers and publishers.
    pub fn connect(target: Target<'_>, size: LoadSize, progress: Progress<'_>) -> Result<Self> {
        connection::create_topic(&target)?;
        let poller = Poller::new()?;
        let subscribers = connect_subscribers(&target, &poller, size.subscribers, progress)?;
        let burst = connection::burst(target.payload_bytes, size.window, size.publishers);
        let mut publishers = Vec::with_capacity(size.publishers.into());
        for token in subscribers.len()..subscribers.len() + usize::from(size.publishers) {
            let publisher = connection::publisher(&target, burst)?;
            poller.register_edge_triggered(publisher.socket(), token)?;
            publishers.push(publisher);
        }
        Ok(Self {
            stream: target.stream_layout(),
            window: size.window,
            poller,
            ready: Vec::new(),
            discard: DiscardBuffer::default(),
            positions: ReceivePositions::new(subscribers.len()),
            idle_publishers: (0..publishers.len()).collect(),
            subscribers,
            publishers,
            burst,
            published: 0,
            is_stopped: false,
            read_buffer: vec![0; 64 * 1024],
        })
    }

    /// Publishes until `end`.
    pub fn run_until(&mut self, end: Instant, progress: Progress<'_>) -> Result<()> {
        let (mut reported, mut before) = (Instant::now(), self.counters());
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(());
            }
            if now >= reported + PROGRESS_INTERVAL {
                let counters = self.counters();
                let per_second = to_f64(counters.delivered - before.delivered)
                    / now.duration_since(reported).as_secs_f64();
                progress(&format!("{:.2} million deliveries/s", per_second / 1e6))?;
                (reported, before) = (now, counters);
            }
            self.poll_once((end - now).min(PROGRESS_INTERVAL))?;
        }
    }

    /// Progress so far.
    pub(crate) fn counters(&self) -> LoadCounters {
        let delivered = self.positions.active().map(|bytes| self.stream.events(bytes)).sum();
        let delivered_bytes = self.positions.active().sum();
        LoadCounters { published: self.published, delivered, delivered_bytes }
    }

    /// Stops publishing and waits until every subscriber has received exactly the published bytes.
    /// More bytes mean a line that is not an event; fewer mean a loss.
    pub fn finish(&mut self, progress: Progress<'_>) -> Result<()> {
        self.is_stopped = true;
        let mut last = (Instant::now(), 0);
        loop {
            let is_written = self.publishers.iter().all(PublisherSocket::is_idle);
            let exact = |bytes| self.stream.is_complete(bytes, self.published);
            if is_written && self.positions.active().all(exact) {
                return Ok(());
            }
            progress("waiting for events in flight")?;
            let now: u64 = self.positions.active().sum();
            if now > last.1 {
                last = (Instant::now(), now);
            }
            let most = self.positions.active().max().unwrap_or(0);
            let is_over = is_written && most > self.stream.bytes_max(self.published);
            if is_over || last.0.elapsed() > IDLE_TIMEOUT {
                bail!("{}", self.incomplete_message());
            }
            self.poll_once(PROGRESS_INTERVAL)?;
        }
    }

    /// Publishes again after [`Self::finish`].
    pub(crate) fn resume(&mut self) {
        self.is_stopped = false;
    }

    fn incomplete_message(&self) -> String {
        let expected = self.stream.bytes(self.published);
        let short = self.positions.active().filter(|&bytes| bytes < expected).count();
        let over = self.positions.active().filter(|&bytes| bytes > expected).count();
        let lost: u64 = self
            .positions
            .active()
            .map(|bytes| self.published.saturating_sub(self.stream.events(bytes)))
            .sum();
        format!(
            "not every subscriber received the {} published events: {short} received less ({lost} events \
             in total), and {over} received other bytes, such as a notice of lost events; try a \
             smaller window",
            self.published
        )
    }

    /// Publishes as the window allows, then waits for sockets and handles them.
    fn poll_once(&mut self, timeout: Duration) -> Result<()> {
        self.publish()?;
        let mut ready = std::mem::take(&mut self.ready);
        self.poller.wait(timeout, &mut ready)?;
        for &token in &ready {
            if token < self.subscribers.len() {
                self.receive(token)?;
            } else {
                self.handle_publisher(token - self.subscribers.len())?;
            }
        }
        self.ready = ready;
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        let burst = u64::try_from(self.burst)?;
        while !self.is_stopped
            && let Some(&publisher) = self.idle_publishers.front()
        {
            let needed = (self.published + burst).saturating_sub(self.window);
            if !self.positions.all_reached(self.stream.bytes(needed)) {
                return Ok(());
            }
            self.published += burst;
            self.idle_publishers.pop_front();
            self.publishers[publisher].start_write();
            self.flush(publisher)?;
        }
        Ok(())
    }

    fn flush(&mut self, publisher: usize) -> Result<()> {
        if self.publishers[publisher].flush().context("a publisher")? {
            self.idle_publishers.push_back(publisher);
        }
        Ok(())
    }

    fn receive(&mut self, subscriber: usize) -> Result<()> {
        match self.subscribers[subscriber]
            .count_available(&mut self.discard)
            .context("a subscriber")?
        {
            None => {}
            Some(0) => {
                let events = self.stream.events(self.positions.received(subscriber));
                bail!("the broker closed a subscriber's connection after {events} events")
            }
            Some(bytes) => self.positions.add(subscriber, bytes),
        }
        Ok(())
    }

    /// Handles a publisher that is writable or has received bytes.
    fn handle_publisher(&mut self, publisher: usize) -> Result<()> {
        self.publishers[publisher].read_replies(&mut self.read_buffer, |_| Ok(()))?;
        if !self.publishers[publisher].is_idle() {
            self.flush(publisher)?;
        }
        Ok(())
    }

    /// Stops reading from this subscriber, and does not wait for it any more.
    pub fn stall(&mut self, subscriber: usize) -> Result<()> {
        self.poller.deregister(self.subscribers[subscriber].socket())?;
        self.positions.exclude(subscriber);
        Ok(())
    }

    /// Bytes that this subscriber received, and bytes of all published events.
    pub fn received_and_published(&self, subscriber: usize) -> (u64, u64) {
        (self.positions.received(subscriber), self.stream.bytes(self.published))
    }

    /// Complete events in `bytes`.
    pub fn events(&self, bytes: u64) -> u64 {
        self.stream.events(bytes)
    }

    /// Reads from a subscriber that is stalled; `None` if no bytes have arrived, 0 at the end of
    /// the stream.
    pub fn read_stalled(
        &mut self,
        subscriber: usize,
        buffer: &mut [u8],
    ) -> io::Result<Option<usize>> {
        match self.subscribers[subscriber].socket().read(buffer) {
            Ok(bytes) => {
                self.positions.add(subscriber, u64::try_from(bytes).expect("a length"));
                Ok(Some(bytes))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            // A reset loses the bytes in flight, too.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }
}

/// Connects subscribers; the token of each is its index.
pub fn connect_subscribers(
    target: &Target<'_>,
    poller: &Poller,
    count: u16,
    progress: Progress<'_>,
) -> Result<Vec<SubscriberSocket>> {
    let mut subscribers = Vec::with_capacity(count.into());
    for token in 0..usize::from(count) {
        if token.is_multiple_of(100) {
            progress(&format!("connecting, {token} of {count}"))?;
        }
        let subscriber = connection::subscriber(target)?;
        poller.register_readable(subscriber.socket(), token)?;
        subscribers.push(subscriber);
    }
    // Subscriptions without an answer take effect meanwhile.
    std::thread::sleep(target.wire.subscribe_delay());
    Ok(subscribers)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::thread::{self, JoinHandle};

    use super::*;
    use crate::wire::{ReadUntil, SetupStep, WireProtocol};

    /// Bare lines.
    struct TestProtocol;

    impl WireProtocol for TestProtocol {
        fn pipelined_subscribe(&self, _: &str) -> SetupStep {
            SetupStep::new([], ReadUntil::Nothing)
        }

        fn publish(&self, _: &str, payload: &[u8]) -> Vec<u8> {
            [payload, b"\n"].concat()
        }

        fn stream_layout(&self, _: &str, payload_bytes: usize) -> StreamLayout {
            StreamLayout::fixed(u64::try_from(payload_bytes + 1).unwrap())
        }

        fn rejections(&self) -> &'static [&'static str] {
            &["-ERR "]
        }
    }

    const SIZE: LoadSize = LoadSize { publishers: 1, subscribers: 1, window: 100 };

    /// A broker for one subscriber and one publisher; `run` serves the two connections.
    fn broker<T: Send + 'static>(
        run: impl FnOnce(TcpStream, TcpStream) -> T + Send + 'static,
    ) -> (SocketAddr, JoinHandle<T>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let accept = move || {
            let subscriber = listener.accept().unwrap().0;
            run(subscriber, listener.accept().unwrap().0)
        };
        (address, thread::spawn(accept))
    }

    fn target(address: SocketAddr) -> Target<'static> {
        Target { wire: &TestProtocol, address, topic: "t", payload_bytes: 9, server: None }
    }

    fn in_20_ms() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[test]
    fn publishers_stay_within_the_window() {
        let (address, broker) = broker(|_subscriber, mut publisher| {
            let mut taken = Vec::new();
            publisher.read_to_end(&mut taken).unwrap();
            taken.len()
        });
        let mut load = Load::connect(target(address), SIZE, &mut |_| Ok(())).unwrap();
        load.run_until(in_20_ms(), &mut |_| Ok(())).unwrap();
        assert_eq!(load.counters().published, SIZE.window);
        assert_eq!(load.counters().delivered, 0);
        drop(load);
        assert_eq!(broker.join().unwrap(), 100 * 10);
    }

    #[test]
    fn every_published_event_is_delivered() {
        let (address, broker) = broker(|mut subscriber, mut publisher| {
            // The copy fails when the generator closes the connections.
            let _ = io::copy(&mut publisher, &mut subscriber);
        });
        let mut load = Load::connect(target(address), SIZE, &mut |_| Ok(())).unwrap();
        load.run_until(in_20_ms(), &mut |_| Ok(())).unwrap();
        load.finish(&mut |_| Ok(())).unwrap();
        let LoadCounters { published, delivered, delivered_bytes } = load.counters();
        assert!(published > 0 && delivered == published && delivered_bytes == 10 * published);
        drop(load);
        broker.join().unwrap();
    }

    #[test]
    fn bytes_outside_of_events_are_reported() {
        let (address, broker) = broker(|mut subscriber, mut publisher| {
            subscriber.write_all(b"LAG 1 9\n").unwrap();
            let _ = io::copy(&mut publisher, &mut subscriber);
        });
        let mut load = Load::connect(target(address), SIZE, &mut |_| Ok(())).unwrap();
        load.run_until(in_20_ms(), &mut |_| Ok(())).unwrap();
        let error = load.finish(&mut |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("1 received other bytes"), "{error}");
        drop(load);
        broker.join().unwrap();
    }

    #[test]
    fn a_rejection_in_two_reads_is_reported() {
        let (address, broker) = broker(|subscriber, mut publisher| {
            for piece in ["-", "ERR no\n"] {
                publisher.write_all(piece.as_bytes()).unwrap();
                thread::sleep(Duration::from_millis(20));
            }
            (subscriber, publisher)
        });
        let mut load = Load::connect(target(address), SIZE, &mut |_| Ok(())).unwrap();
        let error = load.run_until(Instant::now() + IDLE_TIMEOUT, &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "the broker rejects: -ERR no");
        drop(broker.join().unwrap());
    }

    #[test]
    fn a_closed_subscriber_connection_is_reported() {
        let (address, broker) = broker(|subscriber, publisher| {
            drop(subscriber);
            publisher
        });
        let mut load = Load::connect(target(address), SIZE, &mut |_| Ok(())).unwrap();
        let error = load.run_until(Instant::now() + IDLE_TIMEOUT, &mut |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("closed a subscriber's connection"), "{error}");
        drop(broker.join().unwrap());
    }
}
