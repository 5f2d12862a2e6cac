//! Stored events to one subscriber.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use memchr::memchr;
use serde::Serialize;
use tidings_load::command::text::plural;
use tidings_load::command::{Benchmark, Outcome};
use tidings_load::figure::to_f64;
use tidings_load::poller::DiscardBuffer;
use tidings_load::server::{CpuCost, RunStart};
use tidings_load::wire::{ReplayEnd, ReplayRequest as Request};
use tidings_load::{Figure, Progress, Target, connection, publish};

/// Longest time without a byte while events are missing.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Most unconfirmed publishes while the events are stored.
const WINDOW: u64 = 10_000;

/// Bytes per read where they are inspected.
const READ_BYTES: usize = 256 * 1024;

/// Bytes at the beginning in which a broker reports that the first events are gone.
const HEAD_BYTES: usize = 64;

/// A replay of stored events.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub struct Replay {
    /// Events that are stored
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub events: u64,

    /// How often they are read
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    #[serde(skip)]
    pub runs: u16,
}

impl Benchmark for Replay {
    const NAME: &'static str = "replay";

    const MEASURES_DISK: bool = true;

    fn title(&self) -> String {
        format!("{} read {} times", plural(self.events, "event"), self.runs)
    }

    /// Stores the events and measures how fast they are read, each time on a new connection. A
    /// missing event is an error.
    fn measure(&self, target: Target<'_>, progress: Progress<'_>) -> Result<Outcome> {
        // They are published in whole writes.
        let events = publish::round_up_to_writes(target, self.events, WINDOW)?;
        progress("storing")?;
        let payload = vec![b'x'; target.payload_bytes];
        if let Some(steps) = target.wire.fill_steps(target.topic, &payload, events) {
            connection::create_topic(&target)?;
            connection::open(target.address, target.wire.handshake().into_iter().chain(steps))?;
        } else {
            publish::publish_all(target, events, WINDOW, progress)?;
        }
        let mut rate = Figure::new("replayed_per_second", "replayed/s", 0);
        let mut cost = CpuCost::per_thousand_deliveries();
        for run in 1..=self.runs {
            progress(&format!("reading, {run} of {}", self.runs))?;
            let request = target.wire.replay_request(target.topic, target.payload_bytes, events)?;
            let steps = target.wire.handshake().into_iter().chain(request.setup.clone());
            let socket = connection::open(target.address, steps)?;
            socket.set_read_timeout(Some(READ_TIMEOUT))?;
            let start = RunStart::now(target.server)?;
            read_replay(socket, &request)?;
            rate.runs.push(to_f64(events) / cost.end_run(start, target.server, events)?);
        }
        Ok(cost.append_to(vec![rate], target.server)?.into())
    }
}

/// Requests all events and reads them.
fn read_replay(mut socket: TcpStream, request: &Request) -> Result<()> {
    socket.write_all(&request.request)?;
    let mut buffer = vec![0; READ_BYTES];
    match request.end {
        ReplayEnd::Bytes(bytes) => {
            let mut head = 0;
            while head < HEAD_BYTES.min(usize::try_from(bytes)?) {
                let more = socket.read(&mut buffer[head..]).context("no event arrived")?;
                ensure!(more > 0, "the broker closed the connection");
                head += more;
            }
            let lines = String::from_utf8_lossy(&buffer[..head.min(300)]);
            if let Some(line) = lines.lines().find(|line| line.starts_with(['-', 'L', 'G'])) {
                bail!("the broker did not store all events: {line}");
            }
            discard_until(&socket, u64::try_from(head)?, bytes)
        }
        ReplayEnd::NatsMessages(messages) => {
            let mut counter = NatsCounter::default();
            while counter.messages < messages {
                let bytes = socket.read(&mut buffer).with_context(|| {
                    format!("received {} of {messages} events", counter.messages)
                })?;
                ensure!(bytes > 0, "the broker closed the connection");
                counter.count(&buffer[..bytes])?;
            }
            Ok(())
        }
    }
}

/// Reads and discards bytes until there are `expected` of them.
fn discard_until(socket: &TcpStream, mut received: u64, expected: u64) -> Result<()> {
    let mut poller = tidings_load::poller::Poller::new()?;
    poller.register_readable(socket, 0)?;
    let (mut discard, mut ready) = (DiscardBuffer::default(), Vec::new());
    while received < expected {
        poller.wait(READ_TIMEOUT, &mut ready)?;
        ensure!(!ready.is_empty(), "received only {received} of {expected} bytes");
        let bytes = discard.discard_available(socket)?;
        ensure!(bytes != Some(0), "the broker closed the connection after {received} bytes");
        received += bytes.unwrap_or(0);
    }
    ensure!(
        received == expected,
        "received {received} bytes instead of {expected}: events are missing"
    );
    Ok(())
}

/// Counts `MSG` messages of the NATS protocol, in any split.
#[derive(Debug, Default)]
struct NatsCounter {
    messages: u64,
    /// Bytes of the current payload that have not arrived.
    payload_remaining: usize,
    /// The beginning of a header line.
    header: Vec<u8>,
}

impl NatsCounter {
    fn count(&mut self, mut bytes: &[u8]) -> Result<()> {
        loop {
            let skipped = self.payload_remaining.min(bytes.len());
            self.payload_remaining -= skipped;
            bytes = &bytes[skipped..];
            let Some(end) = memchr(b'\n', bytes) else {
                self.header.extend_from_slice(bytes);
                return Ok(());
            };
            self.header.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = str::from_utf8(&self.header)?.trim_end();
            if line.starts_with("MSG ") {
                let length = line.rsplit(' ').next().map(str::parse::<usize>);
                let Some(Ok(length)) = length else {
                    bail!("expected a MSG line, received {line:?}")
                };
                self.payload_remaining = length + "\r\n".len();
                self.messages += 1;
            } else if line.starts_with('-') {
                bail!("the broker rejects: {line}");
            }
            self.header.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_in_any_split() {
        let stream = b"PING\r\nMSG d 1 $JS.ACK.a 3\r\nx\ny\r\nMSG d 1 0\r\n\r\nMSG d 1 2\r\nab\r\n";
        for split in 0..stream.len() {
            let mut counter = NatsCounter::default();
            counter.count(&stream[..split]).unwrap();
            counter.count(&stream[split..]).unwrap();
            assert_eq!((counter.messages, counter.payload_remaining), (3, 0), "split at {split}");
        }
    }
}
