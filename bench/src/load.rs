//! Publishers that go as fast as the window allows, and subscribers that only count.

#![expect(clippy::disallowed_methods, reason = "a load generator reads the clock")]

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use memchr::memmem;

use crate::connection::{self, PublisherSocket};
use crate::figure::to_f64;
use crate::poller::{DiscardBuffer, Poller};
use crate::receive_positions::ReceivePositions;
use crate::tls::SubscriberSocket;
use crate::wire::StreamLayout;
use crate::{ProgressFn, Target};

/// How often somebody is told how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// How long no byte may come while something is missing. Some brokers wait 10 s for one subscriber
/// before they go on with the others.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// How many there are of everything.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoadSize {
    pub(crate) publishers: usize,
    pub(crate) subscribers: usize,
    /// Most events between what is published and what the slowest subscriber has.
    pub(crate) window: u64,
}

/// How far a load is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LoadCounters {
    /// Events that were written, or begun to.
    pub(crate) published: u64,
    /// Events that arrived, all subscribers together that read.
    pub(crate) delivered: u64,
    /// Their bytes, before they were encrypted.
    pub(crate) delivered_bytes: u64,
}

/// A load that runs in turns.
pub(crate) struct Load<'a> {
    target: Target<'a>,
    stream: StreamLayout,
    window: u64,
    poller: Poller,
    ready: Vec<usize>,
    discard: DiscardBuffer,
    subscribers: Vec<SubscriberSocket>,
    publishers: Vec<PublisherSocket>,
    /// Publishers that have nothing under way, in the order of their turns.
    idle_publishers: VecDeque<usize>,
    positions: ReceivePositions,
    burst: usize,
    published: u64,
    is_stopped: bool,
    read_buffer: Vec<u8>,
}

impl<'a> Load<'a> {
    /// Connects everybody.
    pub(crate) fn connect(
        target: Target<'a>,
        size: LoadSize,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Self> {
        connection::create_topic(&target)?;
        let poller = Poller::new()?;
        let subscribers = connect_subscribers(&target, &poller, size.subscribers, watch)?;
        let burst = connection::burst(target.payload_bytes, size.window, size.publishers);
        let mut publishers = Vec::with_capacity(size.publishers);
        for token in subscribers.len()..subscribers.len() + size.publishers {
            let publisher = connection::publisher(&target, burst)?;
            poller.register_edge_triggered(publisher.socket(), token)?;
            publishers.push(publisher);
        }
        Ok(Self {
            stream: target.stream_layout(),
            target,
            window: size.window,
            poller,
            ready: Vec::new(),
            discard: DiscardBuffer::new(),
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

    /// Publishes until then.
    pub(crate) fn run_until(
        &mut self,
        end: Instant,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<()> {
        let (mut shown, mut before) = (Instant::now(), self.counters());
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(());
            }
            if now >= shown + PROGRESS_INTERVAL {
                let counters = self.counters();
                let per_second = to_f64(counters.delivered - before.delivered)
                    / now.duration_since(shown).as_secs_f64();
                watch(&format!("{:.2} million deliveries/s", per_second / 1e6))?;
                (shown, before) = (now, counters);
            }
            self.poll_once((end - now).min(PROGRESS_INTERVAL))?;
        }
    }

    /// How far it is.
    pub(crate) fn counters(&self) -> LoadCounters {
        let delivered = self.positions.active().map(|bytes| self.stream.events(bytes)).sum();
        let delivered_bytes = self.positions.active().sum();
        LoadCounters { published: self.published, delivered, delivered_bytes }
    }

    /// Stops publishing, and waits until every subscriber has received exactly what was published,
    /// to the byte. More than that is a line that is no event; less is a loss.
    pub(crate) fn finish(&mut self, watch: &mut ProgressFn<'_>) -> anyhow::Result<()> {
        self.is_stopped = true;
        let mut last = (Instant::now(), 0);
        loop {
            let is_written = self.publishers.iter().all(PublisherSocket::is_idle);
            let exact = |bytes| self.stream.is_complete(bytes, self.published);
            if is_written && self.positions.active().all(exact) {
                return Ok(());
            }
            watch("waiting for what is under way")?;
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

    /// Publishes again, after it was [finished](Self::finish).
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
            "not every subscriber received what was published ({} events): {short} have less, together \
             {lost} events, and {over} have other bytes, such as a notice that something is gone; a \
             smaller window may help",
            self.published
        )
    }

    /// Publishes what fits into the window, then waits for something to do, and does it.
    fn poll_once(&mut self, longest: Duration) -> anyhow::Result<()> {
        self.publish()?;
        let mut ready = std::mem::take(&mut self.ready);
        self.poller.wait(longest, &mut ready)?;
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

    fn publish(&mut self) -> anyhow::Result<()> {
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

    fn flush(&mut self, publisher: usize) -> anyhow::Result<()> {
        if self.publishers[publisher].flush().context("a publisher")? {
            self.idle_publishers.push_back(publisher);
        }
        Ok(())
    }

    fn receive(&mut self, subscriber: usize) -> anyhow::Result<()> {
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

    /// A publisher can write again, or was told something.
    fn handle_publisher(&mut self, publisher: usize) -> anyhow::Result<()> {
        let refusal = self.target.wire.rejection_marker();
        self.publishers[publisher]
            .read_available(&mut self.read_buffer, |heard| check_rejection(refusal, heard))?;
        if !self.publishers[publisher].is_idle() {
            self.flush(publisher)?;
        }
        Ok(())
    }

    /// Reads no more from this subscriber, and waits for it no more.
    pub(crate) fn stall(&mut self, subscriber: usize) -> anyhow::Result<()> {
        self.poller.deregister(self.subscribers[subscriber].socket())?;
        self.positions.exclude(subscriber);
        Ok(())
    }

    /// Bytes that this subscriber has, and those of everything that was published.
    pub(crate) fn received_and_published(&self, subscriber: usize) -> (u64, u64) {
        (self.positions.received(subscriber), self.stream.bytes(self.published))
    }

    /// Whole events among so many bytes.
    pub(crate) fn events(&self, bytes: u64) -> u64 {
        self.stream.events(bytes)
    }

    /// Reads what is there for a subscriber that has stalled; `None` when there is nothing, 0 at
    /// the end.
    pub(crate) fn read_stalled(
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
            // Cut off with a reset: what was under way is lost, too.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }
}

/// Connects subscribers, which are reported under their index.
pub(crate) fn connect_subscribers(
    target: &Target<'_>,
    poller: &Poller,
    count: usize,
    watch: &mut ProgressFn<'_>,
) -> anyhow::Result<Vec<SubscriberSocket>> {
    let mut subscribers = Vec::with_capacity(count);
    for token in 0..count {
        if token.is_multiple_of(100) {
            watch(&format!("connecting, {token} of {count}"))?;
        }
        let subscriber = connection::subscriber(target)?;
        poller.register_readable(subscriber.socket(), token)?;
        subscribers.push(subscriber);
    }
    wait_for_subscriptions(target);
    Ok(subscribers)
}

/// Waits for subscriptions that are not answered.
fn wait_for_subscriptions(target: &Target<'_>) {
    std::thread::sleep(target.wire.subscribe_delay());
}

/// An error if the broker refused something.
pub(crate) fn check_rejection(refusal: &[u8], heard: &[u8]) -> anyhow::Result<()> {
    if refusal.is_empty() {
        return Ok(());
    }
    let at = memmem::find(heard, refusal);
    ensure!(
        at.is_none(),
        "the broker refuses: {}",
        String::from_utf8_lossy(&heard[at.unwrap_or(0)..]).lines().next().unwrap_or_default()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::thread::{self, JoinHandle};

    use super::*;
    use crate::wire::{ReadUntil, SetupStep, WireProtocol};

    /// Bare lines, and nothing else.
    struct TestProtocol;

    impl WireProtocol for TestProtocol {
        fn handshake(&self) -> Vec<SetupStep> {
            Vec::new()
        }

        fn subscribe(&self, _: &str) -> Vec<SetupStep> {
            Vec::new()
        }

        fn pipelined_subscribe(&self, _: &str) -> SetupStep {
            SetupStep::new([], ReadUntil::Nothing)
        }

        fn publish(&self, _: &str, payload: &[u8]) -> Vec<u8> {
            [payload, b"\n"].concat()
        }

        fn stream_layout(&self, _: &str, payload_bytes: usize) -> StreamLayout {
            StreamLayout::fixed(u64::try_from(payload_bytes + 1).unwrap())
        }
    }

    const SIZE: LoadSize = LoadSize { publishers: 1, subscribers: 1, window: 100 };

    /// A broker for one subscriber and one publisher, which does this with the two connections.
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
            // Ends with an error when the generator closes everything.
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
        let told = load.finish(&mut |_| Ok(())).unwrap_err().to_string();
        assert!(told.contains("1 have other bytes"), "{told}");
        drop(load);
        broker.join().unwrap();
    }

    #[test]
    fn a_closed_subscriber_connection_is_reported() {
        let (address, broker) = broker(|subscriber, publisher| {
            drop(subscriber);
            publisher
        });
        let mut load = Load::connect(target(address), SIZE, &mut |_| Ok(())).unwrap();
        let told = load.run_until(Instant::now() + IDLE_TIMEOUT, &mut |_| Ok(())).unwrap_err();
        assert!(told.to_string().contains("closed a subscriber's connection"), "{told}");
        drop(broker.join().unwrap());
    }
}
