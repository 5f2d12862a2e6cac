//! `epoll`, and reads that discard their bytes.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{RecvFlags, recv};

/// Most sockets per wait.
const EVENTS_MAX: usize = 1024;

/// Most bytes per discarding read: more than the buffer of a socket holds.
const DISCARD_BYTES: usize = 16 << 20;

/// Waits for sockets.
pub struct Poller {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Poller {
    /// Waits for nothing yet.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Reports `token` as long as the source is readable.
    pub fn register_readable(&self, source: impl AsFd, token: usize) -> io::Result<()> {
        self.register(source, token, EventFlags::IN)
    }

    /// Reports `token` each time that the source becomes readable or writable.
    pub fn register_edge_triggered(&self, source: impl AsFd, token: usize) -> io::Result<()> {
        self.register(source, token, EventFlags::IN | EventFlags::OUT | EventFlags::ET)
    }

    fn register(&self, source: impl AsFd, token: usize, flags: EventFlags) -> io::Result<()> {
        let data = EventData::new_u64(u64::try_from(token).expect("a usize has at most 64 bits"));
        Ok(epoll::add(&self.epoll, source, data, flags)?)
    }

    /// Waits until a source is ready, for `limit` at most, and puts the tokens into `ready`. Limits
    /// of a millisecond and more are rounded down to whole ones, so that the old system call
    /// suffices, which every kernel has; shorter limits need Linux 5.11.
    pub fn wait(&mut self, limit: Duration, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.clear();
        let whole = Duration::from_millis(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        let timeout = Timespec::try_from(if whole.is_zero() { limit } else { whole });
        let timeout = timeout.map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let token = |event: Event| {
            let data = event.data;
            usize::try_from(data.u64()).expect("tokens are made from usize")
        };
        ready.extend(self.events.drain(..).map(token));
        Ok(())
    }
}

/// Reads bytes from sockets and discards them, without a copy out of the kernel.
pub struct DiscardBuffer(Vec<u8>);

impl Default for DiscardBuffer {
    /// The memory is never touched, so it only takes address space.
    fn default() -> Self {
        Self(vec![0; DISCARD_BYTES])
    }
}

impl DiscardBuffer {
    /// Number of discarded bytes; `None` if none had arrived, `Some(0)` at the end of the stream.
    pub fn discard_available(&mut self, socket: &TcpStream) -> io::Result<Option<u64>> {
        self.discard_up_to(socket, DISCARD_BYTES)
    }

    /// The same, for at most `bytes` bytes.
    pub(crate) fn discard_up_to(
        &mut self,
        socket: &TcpStream,
        bytes: usize,
    ) -> io::Result<Option<u64>> {
        let flags = RecvFlags::TRUNC | RecvFlags::DONTWAIT;
        match recv(socket, &mut self.0[..bytes.min(DISCARD_BYTES)], flags) {
            Ok((_, bytes)) => Ok(Some(u64::try_from(bytes).expect("a length"))),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
