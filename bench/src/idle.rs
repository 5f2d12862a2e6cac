//! Memory of idle subscribers, and the time until one event has reached all of them.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use tidings_load::command::protection::ProtectionFlags;
use tidings_load::command::text::plural;
use tidings_load::command::{Benchmark, Outcome};
use tidings_load::connection::{self, PublisherSocket};
use tidings_load::figure::to_f64;
use tidings_load::load::connect_subscribers;
use tidings_load::poller::{DiscardBuffer, Poller};
use tidings_load::{Figure, Progress, Target, server};

/// Time limit for one event to reach all subscribers.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// After many connections, the broker may free memory during this pause before it is measured.
const SETTLE_TIME: Duration = Duration::from_millis(500);

/// Many subscribers and few events.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub struct Idle {
    /// Connections that subscribe
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(1..))]
    pub subscribers: u16,

    /// Events, one after the other, each to all subscribers
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub events: u16,

    /// The protection of the broker.
    #[command(flatten)]
    #[serde(flatten)]
    pub guard: ProtectionFlags,
}

impl Benchmark for Idle {
    const NAME: &'static str = "idle";

    fn guard(&self) -> ProtectionFlags {
        self.guard
    }

    fn title(&self) -> String {
        let subscribers = plural(self.subscribers.into(), "subscriber");
        let events = plural(self.events.into(), "event");
        format!("{subscribers}, {events} to all of them{}", self.guard.title())
    }

    /// A missing event is an error.
    fn measure(&self, target: Target<'_>, progress: Progress<'_>) -> Result<Outcome> {
        connection::create_topic(&target)?;
        // One publisher and one subscriber come first, so that the memory that a broker allocates
        // once does not count for the others.
        let mut publisher = connection::publisher(&target, 1)?;
        let _first = connection::subscriber(&target)?;
        let empty = target.server.map(server::Server::resident_bytes).transpose()?;

        let mut poller = Poller::new()?;
        let mut sockets = connect_subscribers(&target, &poller, self.subscribers, progress)?;
        thread::sleep(SETTLE_TIME);
        let mut figures = Vec::new();
        if let (Some(server), Some(empty)) = (target.server, empty) {
            let used = server.resident_bytes()?.saturating_sub(empty);
            let each = to_f64(used) / 1024.0 / f64::from(self.subscribers);
            let key = "kib_per_subscriber";
            figures.push(Figure::new(key, "KiB per subscriber", 2).with_runs([each]));
        }

        let stream = target.stream_layout();
        let mut last = Figure::new("to_all_ms", "one event to all, ms", 1);
        let mut received = vec![0; sockets.len()];
        let mut discard = DiscardBuffer::default();
        let mut ready = Vec::new();
        let before = target.server.map(server::Server::cpu_time).transpose()?;
        for event in 1..=u64::from(self.events) {
            progress(&format!("event {event} of {} to all", self.events))?;
            let began = Instant::now();
            publish(&mut publisher)?;
            let expected = stream.bytes(event);
            let mut missing = sockets.len();
            while missing > 0 {
                poller.wait(DELIVERY_TIMEOUT, &mut ready)?;
                for &token in &ready {
                    let Some(bytes) = sockets[token].count_available(&mut discard)? else {
                        continue;
                    };
                    ensure!(bytes > 0, "the broker closed a subscriber's connection");
                    let before_read: u64 = received[token];
                    received[token] = before_read + bytes;
                    missing -= usize::from(before_read < expected && received[token] >= expected);
                }
                if began.elapsed() > DELIVERY_TIMEOUT {
                    bail!(
                        "an event did not reach {missing} subscribers within {DELIVERY_TIMEOUT:?}"
                    );
                }
            }
            last.runs.push(began.elapsed().as_secs_f64() * 1e3);
        }
        figures.push(last);
        if let (Some(server), Some(before)) = (target.server, before) {
            let used = server.cpu_time()?.saturating_sub(before).as_secs_f64() * 1e3;
            let each = used / f64::from(self.events.max(1));
            let label = "broker ms per event";
            figures.push(Figure::new("broker_cpu_ms_per_event", label, 1).with_runs([each]));
            figures.push(server::peak_memory(server)?);
        }
        Ok(figures.into())
    }
}

fn publish(publisher: &mut PublisherSocket) -> Result<()> {
    publisher.start_write();
    ensure!(publisher.flush()?, "the broker did not read an event; its socket is full");
    Ok(())
}
