//! `fan-out`: deliveries per second to subscribers that only count bytes, also by a broker that
//! checks tokens or encrypts.

#![expect(clippy::disallowed_methods, reason = "a load generator reads the clock")]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;

use crate::command::flags::RunFlags;
use crate::command::protection::ProtectionFlags;
use crate::command::{Benchmark, Subject};
use crate::connection::{self, Publisher};
use crate::figure::to_f64;
use crate::load::{Load, Rates, WARM_UP};
use crate::poller::{DiscardBuffer, Poller};
use crate::receive_positions::ReceivePositions;
use crate::text::{format_count, plural};
use crate::tls::SubscriberSocket;
use crate::wire::StreamLayout;
use crate::{Figure, Progress, Target, encryption};

/// Warm-up of a broker after the turn of the other one.
const TURN_WARM_UP: Duration = Duration::from_millis(200);

/// A load, its duration, and the protection whose cost is measured.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub struct FanOut {
    /// Connections that publish
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub publishers: u16,

    /// Connections that subscribe
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    pub subscribers: u16,

    /// Most messages between a publisher and the slowest subscriber
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub window: u64,

    /// Duration of the runs, which use the same connections.
    #[command(flatten)]
    #[serde(flatten)]
    pub length: RunFlags,

    /// The protection of a second broker.
    #[command(flatten)]
    #[serde(flatten)]
    pub guard: ProtectionFlags,
}

impl Benchmark for FanOut {
    const NAME: &'static str = "fan-out";

    fn title(&self) -> String {
        let publishers = plural(self.publishers.into(), "publisher");
        let subscribers = plural(self.subscribers.into(), "subscriber");
        let (window, length) = (format_count(self.window), self.length.title());
        let guard = self.guard.title();
        format!("{publishers} to {subscribers}, window {window}, {length}{guard}")
    }

    fn measure(&self, subject: &Subject<'_>, progress: Progress<'_>) -> Result<Vec<Figure>> {
        let &Subject { target, common, program, .. } = subject;
        if !self.guard.is_some() {
            return self.measure_target(target, progress);
        }
        // Its data lie beside those of the first broker.
        let guarded = self.guard.start(program, common, "-guarded")?;
        let guarded = guarded.target(target.topic, target.payload_bytes);
        self.compare(target, guarded, common.pin.map(|(server, _)| server), progress)
    }
}

impl FanOut {
    /// Measures this broker. A missing event is an error.
    pub fn measure_target(
        &self,
        target: Target<'_>,
        progress: Progress<'_>,
    ) -> Result<Vec<Figure>> {
        let mut load = FanLoad::connect(target, self, progress)?;
        load.run_until(Instant::now() + WARM_UP, progress)?;
        let mut rates = rates(target);
        let mut publishes = Figure::new("publishes_per_second", "publishes/s", 0);
        for _ in 0..self.length.runs {
            let before = load.published;
            let took = rates.run(&mut load, self.length.run(), progress)?;
            publishes.runs.push(to_f64(load.published - before) / took);
        }
        load.finish(progress)?;
        rates.figures([publishes])
    }

    /// Measures both brokers in every round, and alternates which one begins. `guarded` is the one
    /// that requires tokens or encrypts. With TLS, each round also measures the encryption alone.
    fn compare(
        &self,
        plain: Target<'_>,
        guarded: Target<'_>,
        processor: Option<usize>,
        progress: Progress<'_>,
    ) -> Result<Vec<Figure>> {
        let mut brokers =
            [self.connect_broker(plain, progress)?, self.connect_broker(guarded, progress)?];
        let mut encryption = Vec::new();
        for round in 0..usize::from(self.length.runs) {
            if self.guard.tls {
                progress("AES-256-GCM alone")?;
                encryption.push(encryption::aes_gcm_bytes_per_second(processor)?);
            }
            for turn in [round, round + 1] {
                brokers[turn % 2].run_turn(self.length.run(), progress)?;
            }
        }
        Ok(comparison(&brokers.map(|broker| broker.result), &encryption))
    }

    fn connect_broker<'a>(
        &self,
        target: Target<'a>,
        progress: Progress<'_>,
    ) -> Result<ComparedBroker<'a>> {
        let mut load = FanLoad::connect(target, self, progress)?;
        load.run_until(Instant::now() + WARM_UP, progress)?;
        load.finish(progress)?;
        let result = TurnResults { rates: rates(target), bytes_per_second: Vec::new() };
        Ok(ComparedBroker { load, result })
    }
}

/// A broker of a comparison.
struct ComparedBroker<'a> {
    load: FanLoad,
    result: TurnResults<'a>,
}

/// The results of its turns.
struct TurnResults<'a> {
    rates: Rates<'a>,
    /// Delivered bytes, one rate per turn.
    bytes_per_second: Vec<f64>,
}

impl ComparedBroker<'_> {
    /// Runs one turn and waits until nothing of it is in flight.
    fn run_turn(&mut self, length: Duration, progress: Progress<'_>) -> Result<()> {
        let Self { load, result } = self;
        load.run_until(Instant::now() + TURN_WARM_UP, progress)?;
        let before = load.received_bytes();
        let took = result.rates.run(load, length, progress)?;
        result.bytes_per_second.push(to_f64(load.received_bytes() - before) / took);
        load.finish(progress)
    }
}

fn rates(target: Target<'_>) -> Rates<'_> {
    let rate = Figure::new("deliveries_per_second", "deliveries/s", 0);
    let cost = Figure::new("broker_cpu_us_per_1000_deliveries", "broker us per 1,000", 1);
    Rates::new(target.server, rate, cost, 1000.0)
}

/// The figures of the plain and the guarded broker, their ratio in each round, and the ratio to the
/// limit of encryption.
fn comparison([plain, guarded]: &[TurnResults<'_>; 2], encryption: &[f64]) -> Vec<Figure> {
    let named = |key, label, of: &Figure| Figure { key, label, ..of.clone() };
    let ratio = |key, label, of: &Figure, to: &Figure| {
        let ratios = of.runs.iter().zip(&to.runs).map(|(of, to)| of / to);
        Figure::new(key, label, 3).with_runs(ratios)
    };
    let (ours, base) = (&guarded.rates, &plain.rates);
    let mut figures = vec![
        ours.rate.clone(),
        named("plain_deliveries_per_second", "plain, deliveries/s", &base.rate),
        ratio("of_plain", "ratio to plain", &ours.rate, &base.rate),
        ours.cost.clone(),
        named("plain_broker_cpu_us_per_1000_deliveries", "plain, us per 1,000", &base.cost),
        ratio("of_plain_by_cpu", "ratio to plain, by CPU", &base.cost, &ours.cost),
        ours.processors.clone(),
        named("plain_broker_cpus", "plain, processors", &base.processors),
    ];
    if encryption.is_empty() {
        return figures;
    }
    let megabytes = |key, label, rates: &[f64]| {
        Figure::new(key, label, 0).with_runs(rates.iter().map(|rate| rate / 1e6))
    };
    // In that time the guarded broker encrypts, and does what the plain one does.
    let by_time = |broker: &TurnResults<'_>, run: usize| broker.bytes_per_second[run];
    let by_cpu = |broker: &TurnResults<'_>, run: usize| {
        broker.bytes_per_second[run] / broker.rates.processors.runs[run]
    };
    let of_limit = |key, label, rate: &dyn Fn(&TurnResults<'_>, usize) -> f64| {
        let limit = |(run, aes): (usize, &f64)| 1.0 / (1.0 / aes + 1.0 / rate(plain, run));
        let ratio = |(run, aes)| rate(guarded, run) / limit((run, aes));
        Figure::new(key, label, 3).with_runs(encryption.iter().enumerate().map(ratio))
    };
    figures.extend([
        megabytes("mb_per_second", "MB/s", &guarded.bytes_per_second),
        megabytes("plain_mb_per_second", "plain, MB/s", &plain.bytes_per_second),
        megabytes("aes_mb_per_second", "AES-256-GCM, MB/s", encryption),
        of_limit("of_limit", "of 1/(1/AES + 1/plain)", &by_time),
        of_limit("of_limit_by_cpu", "the same, by CPU", &by_cpu),
    ]);
    figures
}

/// Publishers that write as fast as the window allows, and subscribers.
struct FanLoad {
    stream: StreamLayout,
    window: u64,
    poller: Poller,
    ready: Vec<usize>,
    discard: DiscardBuffer,
    subscribers: Vec<SubscriberSocket>,
    publishers: Vec<Publisher>,
    /// Publishers without a write in flight, in the order of their turns.
    idle_publishers: VecDeque<usize>,
    positions: ReceivePositions,
    /// Events per write.
    burst: u64,
    /// Events that were written completely or in part.
    published: u64,
}

impl FanLoad {
    /// Connects all subscribers and publishers.
    fn connect(target: Target<'_>, size: &FanOut, progress: Progress<'_>) -> Result<Self> {
        target.create_topic()?;
        let poller = Poller::new()?;
        let subscribers = target.subscribers(&poller, size.subscribers, progress)?;
        let burst = connection::burst(target.payload_bytes, size.window, size.publishers);
        let mut publishers = Vec::with_capacity(size.publishers.into());
        for token in subscribers.len()..subscribers.len() + usize::from(size.publishers) {
            let publisher = target.publisher(&target.payload(), burst)?;
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
            burst: u64::try_from(burst)?,
            published: 0,
        })
    }

    /// Bytes that arrived at all subscribers, before encryption.
    fn received_bytes(&self) -> u64 {
        self.positions.received.iter().sum()
    }

    fn publish(&mut self) -> Result<()> {
        while let Some(&publisher) = self.idle_publishers.front() {
            let needed = (self.published + self.burst).saturating_sub(self.window);
            if !self.positions.all_reached(self.stream.bytes(needed)) {
                return Ok(());
            }
            self.published += self.burst;
            self.idle_publishers.pop_front();
            if self.publishers[publisher].write()? {
                self.idle_publishers.push_back(publisher);
            }
        }
        Ok(())
    }

    fn receive(&mut self, subscriber: usize) -> Result<()> {
        let socket = &mut self.subscribers[subscriber];
        match socket.count_available(&mut self.discard).context("a subscriber")? {
            None => {}
            Some(0) => {
                let events = self.stream.events(self.positions.received[subscriber]);
                bail!("the broker closed a subscriber's connection after {events} events")
            }
            Some(bytes) => self.positions.add(subscriber, bytes),
        }
        Ok(())
    }

    /// Handles a publisher that is writable or has received bytes.
    fn handle_publisher(&mut self, index: usize) -> Result<()> {
        let publisher = &mut self.publishers[index];
        publisher.read_replies()?;
        if !publisher.is_idle() && publisher.flush()? {
            self.idle_publishers.push_back(index);
        }
        Ok(())
    }
}

impl Load for FanLoad {
    const WORK: &'static str = "deliveries";

    fn completed(&self) -> u64 {
        self.positions.received.iter().map(|&bytes| self.stream.events(bytes)).sum()
    }

    /// Every subscriber must have received exactly the published bytes. More bytes mean a line that
    /// is not an event; fewer mean a loss.
    fn is_finished(&self) -> Result<bool> {
        if !self.publishers.iter().all(Publisher::is_idle) {
            return Ok(false);
        }
        let received = &self.positions.received;
        let most = self.stream.bytes_max(self.published);
        ensure!(received.iter().all(|&bytes| bytes <= most), "{}", self.missing());
        Ok(received.iter().all(|&bytes| self.stream.is_complete(bytes, self.published)))
    }

    fn missing(&self) -> String {
        let (received, published) = (&self.positions.received, self.published);
        let expected = self.stream.bytes(published);
        let short = received.iter().filter(|&&bytes| bytes < expected).count();
        let over = received.iter().filter(|&&bytes| bytes > expected).count();
        let lost =
            received.iter().map(|&bytes| published.saturating_sub(self.stream.events(bytes)));
        format!(
            "not every subscriber received the {published} published events: {short} received less \
             ({} events in total), and {over} received other bytes, such as a notice of lost \
             events; try a smaller window",
            lost.sum::<u64>()
        )
    }

    fn poll_once(&mut self, may_publish: bool, timeout: Duration) -> Result<()> {
        if may_publish {
            self.publish()?;
        }
        let mut ready = std::mem::take(&mut self.ready);
        self.poller.wait(timeout, &mut ready)?;
        for &token in &ready {
            match token.checked_sub(self.subscribers.len()) {
                None => self.receive(token)?,
                Some(publisher) => self.handle_publisher(publisher)?,
            }
        }
        self.ready = ready;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::thread::{self, JoinHandle};

    use super::*;
    use crate::wire::{SetupStep, WireProtocol};

    /// Bare lines.
    struct TestProtocol;

    impl WireProtocol for TestProtocol {
        fn subscribe(&self, _: &str) -> Vec<SetupStep> {
            Vec::new()
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

    /// Serves one subscriber and one publisher with `run`, and generates a load for 20 ms.
    fn generate<T: Send + 'static>(
        run: impl FnOnce(TcpStream, TcpStream) -> T + Send + 'static,
    ) -> (FanLoad, Result<()>, JoinHandle<T>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let broker = thread::spawn(move || {
            let subscriber = listener.accept().unwrap().0;
            run(subscriber, listener.accept().unwrap().0)
        });
        let target =
            Target { wire: &TestProtocol, address, topic: "t", payload_bytes: 9, server: None };
        let size = FanOut {
            publishers: 1,
            subscribers: 1,
            window: 100,
            length: RunFlags { seconds: 1, runs: 1 },
            guard: ProtectionFlags::default(),
        };
        let mut load = FanLoad::connect(target, &size, &mut |_| Ok(())).unwrap();
        let end = Instant::now() + Duration::from_millis(20);
        let result = load.run_until(end, &mut |_| Ok(()));
        (load, result, broker)
    }

    #[test]
    fn publishers_stay_within_the_window() {
        let (load, result, broker) = generate(|_subscriber, mut publisher| {
            let mut taken = Vec::new();
            publisher.read_to_end(&mut taken).unwrap();
            taken.len()
        });
        result.unwrap();
        assert_eq!((load.published, load.completed()), (100, 0));
        drop(load);
        assert_eq!(broker.join().unwrap(), 100 * 10);
    }

    #[test]
    fn every_published_event_is_delivered() {
        let (mut load, result, broker) = generate(|mut subscriber, mut publisher| {
            // The copy fails when the generator closes the connections.
            let _ = io::copy(&mut publisher, &mut subscriber);
        });
        result.unwrap();
        load.finish(&mut |_| Ok(())).unwrap();
        let (published, received) = (load.published, load.received_bytes());
        assert!(published > 0 && load.completed() == published && received == 10 * published);
        drop(load);
        broker.join().unwrap();
    }

    #[test]
    fn bytes_outside_of_events_are_reported() {
        let (mut load, result, broker) = generate(|mut subscriber, mut publisher| {
            subscriber.write_all(b"LAG 1 9\n").unwrap();
            let _ = io::copy(&mut publisher, &mut subscriber);
        });
        result.unwrap();
        let error = load.finish(&mut |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("1 received other bytes"), "{error}");
        drop(load);
        broker.join().unwrap();
    }

    #[test]
    fn a_rejection_and_a_closed_connection_are_reported() {
        let (mut load, result, rejecting) = generate(|subscriber, mut publisher| {
            publisher.write_all(b"-ERR no\n").unwrap();
            (subscriber, publisher)
        });
        let error = result.and_then(|()| load.finish(&mut |_| Ok(()))).unwrap_err();
        assert_eq!(error.root_cause().to_string(), "the broker rejects: -ERR no");
        drop(rejecting.join().unwrap());
        let (mut load, result, closing) = generate(|subscriber, publisher| {
            drop(subscriber);
            publisher
        });
        let error = result.and_then(|()| load.finish(&mut |_| Ok(()))).unwrap_err().to_string();
        assert!(error.contains("closed a subscriber's connection"), "{error}");
        drop(closing.join().unwrap());
    }

    #[test]
    fn the_encryption_limit_is_the_sum_of_both_times() {
        let result = |deliveries, bytes| {
            let target = Target {
                wire: &TestProtocol,
                address: ([127, 0, 0, 1], 1).into(),
                topic: "t",
                payload_bytes: 9,
                server: None,
            };
            let mut rates = rates(target);
            rates.rate.runs.push(deliveries);
            rates.cost.runs.push(7.0);
            rates.processors.runs.push(0.5);
            TurnResults { rates, bytes_per_second: vec![bytes] }
        };
        // Each takes as long as the other, so together they allow half the rate.
        let figures = comparison(&[result(100.0, 3e6), result(25.0, 0.75e6)], &[3e6]);
        let value = |key| figures.iter().find(|figure| figure.key == key).unwrap().median();
        assert_eq!(value("of_plain"), Some(0.25));
        assert_eq!(value("of_limit"), Some(0.5));
        assert_eq!(value("of_plain_by_cpu"), Some(1.0));
        assert_eq!(value("aes_mb_per_second"), Some(3.0));
    }
}
