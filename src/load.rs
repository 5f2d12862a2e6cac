//! A load generator over raw sockets: publishers that write pre-encoded lines in large pieces, and
//! subscribers that only count bytes, so that what is measured is the broker.
//!
//! All lines of a run have the same payload, so the bytes that a subscriber has received say which
//! event it has come to, without looking at a single one. For the same reason it shows at the end
//! whether anything is missing: the sum must be right to the byte.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use anyhow::{Context, bail, ensure};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    sync::Notify,
    task::spawn_local,
};

/// Bytes that a publisher writes at once.
const WRITE_BYTES: usize = 64 * 1024;

/// Bytes that a subscriber reads at once.
const READ_BYTES: usize = 256 * 1024;

/// What is generated.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// A topic that nobody used before: its events are numbered from 1.
    pub(crate) topic: String,
    pub(crate) publishers: usize,
    pub(crate) subscribers: usize,
    /// Bytes of a payload.
    pub(crate) payload_bytes: usize,
    /// Most messages between what is published and what the slowest subscriber has.
    pub(crate) window: u64,
}

/// How the bytes of a subscriber's stream add up to events.
#[derive(Debug, Clone, Copy)]
struct Stream {
    /// Bytes of a `MSG` line without the digits of its number.
    line_bytes: u64,
}

impl Stream {
    /// Whole events among the first `bytes` of the stream.
    fn events(self, mut bytes: u64) -> u64 {
        let (mut events, mut digits, mut of_digits) = (0, 1, 9);
        loop {
            let line = self.line_bytes + digits;
            if bytes < line * of_digits {
                return events + bytes / line;
            }
            bytes -= line * of_digits;
            events += of_digits;
            digits += 1;
            of_digits *= 10;
        }
    }

    /// Bytes of the first `events` of the stream.
    fn bytes(self, events: u64) -> u64 {
        let (mut bytes, mut left, mut digits, mut of_digits) = (0, events, 1, 9);
        while left > 0 {
            let now = left.min(of_digits);
            bytes += now * (self.line_bytes + digits);
            left -= now;
            digits += 1;
            of_digits *= 10;
        }
        bytes
    }
}

/// Counters of a running load, and the gate that keeps the publishers inside the window.
#[derive(Debug)]
struct Shared {
    stream: Stream,
    window: u64,
    /// Bytes that each subscriber has received.
    received: Vec<Cell<u64>>,
    published: Cell<u64>,
    /// Bytes that the slowest publisher waits for every subscriber to have; 0: none waits.
    awaited: Cell<u64>,
    /// Subscribers that have less than `awaited`.
    behind: Cell<usize>,
    caught_up: Notify,
    stopped: Cell<bool>,
    failure: RefCell<Option<anyhow::Error>>,
}

impl Shared {
    fn slowest(&self) -> u64 {
        self.received.iter().map(Cell::get).min().unwrap_or_default()
    }

    /// Waits until `count` more messages fit into the window, and counts them as published.
    async fn admit(&self, count: u64) {
        loop {
            let needed =
                self.stream.bytes((self.published.get() + count).saturating_sub(self.window));
            if self.slowest() >= needed {
                self.published.set(self.published.get() + count);
                return;
            }
            if self.awaited.get() == 0 || needed < self.awaited.get() {
                self.awaited.set(needed);
                self.behind.set(self.received.iter().filter(|bytes| bytes.get() < needed).count());
            }
            self.caught_up.notified().await;
        }
    }

    fn receive(&self, subscriber: usize, bytes: u64) {
        let before = self.received[subscriber].get();
        let now = before + bytes;
        self.received[subscriber].set(now);
        let awaited = self.awaited.get();
        if before < awaited && now >= awaited {
            self.behind.set(self.behind.get() - 1);
            if self.behind.get() == 0 {
                self.awaited.set(0);
                self.caught_up.notify_waiters();
            }
        }
    }

    fn fail(&self, error: anyhow::Error) {
        if !self.stopped.get() {
            self.failure.borrow_mut().get_or_insert(error);
        }
    }
}

/// A load that is running on this thread's `LocalSet`.
#[derive(Debug)]
pub(crate) struct Running(Rc<Shared>);

/// How far a load is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) published: u64,
    /// Events that arrived, all subscribers together.
    pub(crate) delivered: u64,
}

impl Running {
    /// Connects everybody and begins to publish as fast as the window allows.
    pub(crate) async fn start(broker: &str, load: &Load) -> anyhow::Result<Self> {
        let line_bytes = format!("MSG {}  \r\n", load.topic).len() + load.payload_bytes;
        let shared = Rc::new(Shared {
            stream: Stream { line_bytes: u64::try_from(line_bytes)? },
            window: load.window,
            received: vec![Cell::new(0); load.subscribers],
            published: Cell::new(0),
            awaited: Cell::new(0),
            behind: Cell::new(0),
            caught_up: Notify::new(),
            stopped: Cell::new(false),
            failure: RefCell::new(None),
        });
        let buffer = Rc::new(RefCell::new(vec![0; READ_BYTES]));
        for subscriber in 0..load.subscribers {
            let socket = open(broker, &format!("SUB {}", load.topic)).await?;
            let (shared, buffer) = (Rc::clone(&shared), Rc::clone(&buffer));
            spawn_local(async move {
                let result = subscribe(&socket, subscriber, &shared, &buffer).await;
                result.unwrap_or_else(|error| shared.fail(error.context("a subscriber")));
            });
        }
        for _ in 0..load.publishers {
            let socket = open(broker, "PING").await?;
            let (shared, load) = (Rc::clone(&shared), load.clone());
            spawn_local(async move {
                let result = publish(socket, &load, &shared).await;
                result.unwrap_or_else(|error| shared.fail(error.context("a publisher")));
            });
        }
        Ok(Self(shared))
    }

    /// How far it is, unless a connection failed.
    pub(crate) fn progress(&self) -> anyhow::Result<Progress> {
        if let Some(error) = self.0.failure.borrow_mut().take() {
            return Err(error);
        }
        let delivered = self.0.received.iter().map(|bytes| self.0.stream.events(bytes.get())).sum();
        Ok(Progress { published: self.0.published.get(), delivered })
    }

    /// Stops publishing. What was published keeps arriving.
    pub(crate) fn stop(&self) {
        self.0.stopped.set(true);
    }

    /// Whether every subscriber has received exactly what was published, to the byte. More than
    /// that is a line that is no event, such as `LAG`.
    pub(crate) fn is_complete(&self) -> anyhow::Result<bool> {
        let bytes = self.0.stream.bytes(self.0.published.get());
        let most = self.0.received.iter().map(Cell::get).max().unwrap_or_default();
        ensure!(
            most <= bytes,
            "a subscriber received more bytes than there were events: probably it lagged; try a \
             smaller --window"
        );
        Ok(self.0.slowest() == bytes)
    }
}

/// Connects, becomes a client and says one command; returns when that is answered.
async fn open(broker: &str, command: &str) -> anyhow::Result<TcpStream> {
    let mut socket =
        TcpStream::connect(broker).await.with_context(|| format!("cannot connect to {broker}"))?;
    socket.set_nodelay(true)?;
    socket.write_all(b"HELLO name=bench echo=bench\r\n").await?;
    let mut lines = BufReader::new(&mut socket).lines();
    let mut said = false;
    loop {
        let line = lines.next_line().await?.context("the broker closed the connection")?;
        if line.starts_with("-ERR") {
            bail!("the broker refuses: {line}");
        } else if said && (line.starts_with("+OK") || line.starts_with("PONG")) {
            // Nothing follows before something is published, so the reader holds nothing back.
            drop(lines);
            return Ok(socket);
        } else if line.starts_with("+OK") && line.contains("echo=bench") {
            lines.get_mut().get_mut().write_all(format!("{command}\r\n").as_bytes()).await?;
            said = true;
        }
    }
}

async fn subscribe(
    socket: &TcpStream,
    subscriber: usize,
    shared: &Shared,
    buffer: &RefCell<Vec<u8>>,
) -> anyhow::Result<()> {
    loop {
        socket.readable().await?;
        match socket.try_read(&mut buffer.borrow_mut()) {
            Ok(0) => bail!("the broker closed the connection"),
            Ok(bytes) => shared.receive(subscriber, u64::try_from(bytes)?),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

async fn publish(mut socket: TcpStream, load: &Load, shared: &Shared) -> anyhow::Result<()> {
    let line = format!("PUB {} {}\n", load.topic, "x".repeat(load.payload_bytes));
    // A quarter of the window at most, so that there is always something under way.
    let publishers = u64::try_from(load.publishers)?;
    let burst = (WRITE_BYTES / line.len())
        .max(1)
        .min(usize::try_from(load.window / 4 / publishers)?.max(1));
    let piece = line.repeat(burst);
    let (mut answers, mut lines) = socket.split();
    let write = async {
        loop {
            shared.admit(u64::try_from(burst)?).await;
            if shared.stopped.get() {
                shared.published.set(shared.published.get() - u64::try_from(burst)?);
                return Ok::<_, anyhow::Error>(());
            }
            lines.write_all(piece.as_bytes()).await?;
        }
    };
    let read = async {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let bytes = answers.read(&mut buffer).await?;
            ensure!(bytes > 0, "the broker closed the connection");
            let refused = buffer[..bytes].windows(5).any(|window| window == b"-ERR ");
            ensure!(
                !refused,
                "the broker refuses: {}",
                String::from_utf8_lossy(&buffer[..bytes]).trim_end()
            );
        }
    };
    tokio::select! {
        result = write => result?,
        result = read => return result,
    }
    // The connection stays open until everything has arrived.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_events_agree_over_every_change_of_digits() {
        let stream = Stream { line_bytes: 140 };
        let mut bytes = 0;
        for event in 1_u64..20_000 {
            bytes += 140 + u64::from(event.ilog10()) + 1;
            assert_eq!(stream.bytes(event), bytes);
            assert_eq!(stream.events(bytes), event);
            assert_eq!(stream.events(bytes - 1), event - 1);
        }
        assert_eq!(stream.events(0), 0);
        assert_eq!(stream.bytes(0), 0);
    }
}
