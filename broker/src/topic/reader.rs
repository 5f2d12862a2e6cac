//! A reader: a cursor on a topic. It costs a position, not a queue.

use std::sync::Arc;
use std::task::{Wake, Waker};

use bytes::Bytes;
use tidings_protocol::Seq;
use tokio::sync::Notify;

use super::Topic;
use super::tail::{Form, Place};

/// Events that were kept and are gone: all numbers from `from` to `to`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lag {
    /// The first number that is gone.
    pub from: Seq,
    /// The last number that is gone.
    pub to: Seq,
}

/// One event of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its number.
    pub seq: Seq,
    /// Its line, without a line end.
    pub payload: String,
}

/// What a reader gets. If there are fewer events than it asked for, it has everything that there
/// was, and will be woken.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// What the reader missed before `events`.
    pub lag: Option<Lag>,
    /// In order, without holes.
    pub events: Vec<Event>,
}

/// A cursor on a topic: the next number to take.
///
/// It is woken once when something was appended after it was seen to have everything. It is to
/// be asked again whenever it is woken, and as long as it gives something.
#[derive(Debug)]
pub struct Reader {
    topic: Arc<Topic>,
    form: Form,
    /// A group's reader: what is not durable is not there for it yet, and what it has not taken is
    /// kept for it. Its place among the tail's keepers.
    keeper: Option<usize>,
    cursor: Seq,
    waker: Waker,
    /// Where it waits, if it had everything when it was last asked.
    place: Option<Place>,
}

/// What [`Reader::fetch`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// What there was (perhaps nothing) was taken.
    Taken,
    /// These are gone; asking again goes on behind them.
    Lag(Lag),
}

impl Reader {
    pub(super) fn new(topic: Arc<Topic>, form: Form, cursor: Seq, waker: Waker) -> Self {
        Self { topic, form, keeper: None, cursor, waker, place: None }
    }

    /// Does not run ahead of the durable mark, and is not left behind.
    pub(super) fn keeping(mut self) -> Self {
        self.keeper = Some(self.topic.tail.lock().keep(self.cursor));
        self
    }

    /// The next number to take.
    pub fn cursor(&self) -> Seq {
        self.cursor
    }

    /// The topic that is read.
    pub fn topic(&self) -> &Arc<Topic> {
        &self.topic
    }

    /// Whether there is something that was not taken, without waiting for anybody.
    pub(crate) fn is_behind(&self) -> bool {
        self.cursor < self.topic.head()
    }

    /// Hands encoded lines from the cursor on to `take`, with the first line's number: at most
    /// `slices_max` pieces, none further once there are `bytes_max`. Costs a short lock and
    /// nothing per event.
    pub(crate) fn fetch(
        &mut self,
        bytes_max: usize,
        slices_max: usize,
        take: impl FnMut(Seq, Bytes),
    ) -> Fetched {
        if self.place.is_some() && !self.is_behind() {
            return Fetched::Taken;
        }
        let tail = &mut *self.topic.tail.lock();
        let first_kept = tail.first_kept();
        if self.cursor < first_kept {
            let resume = match self.form {
                Form::Wire => first_kept,
                Form::Bare { .. } => Seq((tail.head().0 - 1).max(first_kept.0)),
            };
            let lag = Lag { from: self.cursor, to: Seq(resume.0 - 1) };
            self.cursor = resume;
            return Fetched::Lag(lag);
        }
        let end = if self.keeper.is_some() { tail.durable() } else { tail.head() };
        self.cursor = tail.read(self.cursor, end, self.form, bytes_max, slices_max, take);
        self.place = (self.cursor == end).then(|| tail.wait(self.place, &self.waker));
        Fetched::Taken
    }

    /// Goes back to `seq`: what was fetched from there on was not delivered.
    pub(crate) fn rewind(&mut self, seq: Seq) {
        debug_assert!(seq <= self.cursor, "rewinding goes back");
        self.cursor = seq;
    }

    /// The next events that are durable, as many as there are up to `events_max`, and what was
    /// missed before them. Costs a copy of each payload.
    pub fn next_events(&mut self, events_max: usize) -> Events {
        let mut found = Events::default();
        while found.events.len() < events_max {
            let mut encoded = None;
            let before = self.cursor;
            match self.fetch(1, 1, |first, bytes| encoded = Some((first, bytes))) {
                Fetched::Taken => {}
                Fetched::Lag(lag) if found.events.is_empty() => {
                    found.lag = Some(lag);
                    continue;
                }
                // It lies behind events that are handed over first, so it is found again.
                Fetched::Lag(_) => {
                    self.rewind(before);
                    break;
                }
            }
            let Some((first, bytes)) = encoded else { break };
            let (had, room) = (found.events.len(), events_max - found.events.len());
            found.events.extend(self.topic.decode(first, &bytes).take(room));
            self.rewind(Seq(first.0 + (found.events.len() - had) as u64));
        }
        if let Some(keeper) = self.keeper {
            self.topic.taken(keeper, self.cursor);
        }
        found
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.topic.tail.lock().leave(self.form, self.place);
        if let Some(keeper) = self.keeper {
            self.topic.forget_keeper(keeper);
        }
    }
}

/// Wakes whoever waits on a `Notify`, now or next.
pub(super) struct Notifies(pub(super) Arc<Notify>);

impl Wake for Notifies {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}
