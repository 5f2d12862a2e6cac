//! The commits of a leader, between the threads that wait for them and the one that sends them.

use std::fmt::{self, Debug};
use std::mem;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tidings_log::LogError;

use crate::frame::Frame;
use crate::writer::Ticket;

/// Commits that wait to be sent, and what has become of those before.
pub struct Commits {
    state: Mutex<State>,
    /// A commit was applied, or the leader has ended.
    changed: Condvar,
    /// Wakes the sender.
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Bytes>,
    last: Ticket,
    applied: Ticket,
    /// Why nothing is committed any more.
    ended: Option<String>,
    /// Nobody can take a failure for an answer any more.
    is_released: bool,
}

impl Commits {
    /// `wake` is called when something waits. It must not block.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { state, changed, wake: Box::new(wake) }
    }

    /// Commits a frame. Blocks until the leader has applied it. After an error it may be in the shared
    /// log or not.
    pub(crate) fn commit(&self, frame: &Frame) -> Result<(), LogError> {
        let ticket = self.submit(frame)?;
        let state = &mut self.state.lock();
        loop {
            if state.applied >= ticket {
                return Ok(());
            }
            state.check()?;
            self.changed.wait(state);
        }
    }

    /// Commits a frame later.
    pub(crate) fn submit(&self, frame: &Frame) -> Result<Ticket, LogError> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let ticket = {
            let state = &mut *self.state.lock();
            state.check()?;
            state.waiting.push(bytes.into());
            state.last.0 += 1;
            state.last
        };
        (self.wake)();
        Ok(ticket)
    }

    /// What waits, in the order of the tickets.
    pub(crate) fn take(&self) -> Vec<Bytes> {
        mem::take(&mut self.state.lock().waiting)
    }

    /// All commits up to this one are applied.
    pub(crate) fn applied(&self, ticket: Ticket) {
        self.state.lock().applied = ticket;
        self.changed.notify_all();
    }

    /// Nothing is committed any more. Those who wait go on waiting until they are
    /// [released](Self::release): what they wrote may be in the shared log or not, and a client of this
    /// broker would take the failure for an answer.
    pub fn end(&self, why: &str) {
        self.state.lock().ended.get_or_insert_with(|| why.to_owned());
        self.changed.notify_all();
    }

    /// Those who wait when nothing is committed any more get the reason.
    pub fn release(&self) {
        self.state.lock().is_released = true;
        self.changed.notify_all();
    }
}

impl State {
    fn check(&self) -> Result<(), LogError> {
        match &self.ended {
            Some(why) if self.is_released => Err(LogError::Broken(why.clone())),
            _ => Ok(()),
        }
    }
}

impl Debug for Commits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.lock().fmt(f)
    }
}
