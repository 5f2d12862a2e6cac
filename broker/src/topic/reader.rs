//! A reader: a cursor on a topic. It costs a position, not a queue.

use std::sync::Arc;
use std::task::{Wake, Waker};

use bytes::Bytes;
use tidings_protocol::Seq;
use tokio::sync::Notify;

use super::Topic;
use super::cold::{Pending, Read};
use super::tail::Form;
use super::waiters::Place;
use crate::log::{Found, Position};

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
/// was, and will be woken; that may also be because more is on its way from the disk.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// What the reader missed before `events`.
    pub lag: Option<Lag>,
    /// In order, without holes.
    pub events: Vec<Event>,
}

/// A cursor on a topic: the next number to take.
///
/// It is woken once when there is something after it was seen to have everything. It is to be asked
/// again whenever it is woken, and as long as it gives something.
#[derive(Debug)]
pub struct Reader {
    topic: Arc<Topic>,
    form: Form,
    /// A group's reader: what is not durable is not there for it yet, and what it has not taken is
    /// kept for it. Its place among the tail's keepers.
    keeper: Option<usize>,
    cursor: Seq,
    /// Events before this time are of no interest.
    since: Option<i64>,
    waker: Waker,
    /// Where it waits, if it had everything when it was last asked.
    place: Option<Place>,
    /// What was asked of the log.
    pending: Option<Pending>,
    /// Where the log is read on.
    position: Option<Position>,
}

/// What [`Reader::fetch`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// What there was (perhaps nothing) was taken.
    Taken,
    /// These were kept and are gone; asking again goes on behind them.
    Lag(Lag),
    /// These were never given to an event that was kept; asking again goes on behind them.
    Gap(Lag),
}

impl Reader {
    pub(super) fn new(
        topic: Arc<Topic>,
        form: Form,
        (cursor, since): (Seq, Option<i64>),
        waker: Waker,
    ) -> Self {
        let (keeper, place, pending, position) = (None, None, None, None);
        Self { topic, form, keeper, cursor, since, waker, place, pending, position }
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

    /// Where what it may take ends.
    fn end(&self) -> Seq {
        let topic = &self.topic;
        let end = if self.keeper.is_some() { topic.durable() } else { topic.visible() };
        end.min(topic.doubtful())
    }

    /// Whether there is something that was not taken, without waiting for anybody.
    pub(crate) fn is_behind(&self) -> bool {
        self.cursor < self.end()
    }

    /// Whether it has not taken all there is before `until`. What nobody knows the fate of is not
    /// waited for.
    pub(crate) fn lacks(&self, until: Seq) -> bool {
        self.cursor < until.min(self.topic.doubtful())
    }

    /// Whether it holds memory that others could use.
    pub(crate) fn holds_memory(&self) -> bool {
        self.pending.is_some()
    }

    /// Hands encoded lines from the cursor on to `take`, with the first line's number: at most
    /// `slices_max` pieces, none further once there are `bytes_max`. Costs a short lock and
    /// nothing per event. What is not in memory any more comes from the log, a turn later.
    pub(crate) fn fetch(
        &mut self,
        bytes_max: usize,
        slices_max: usize,
        mut take: impl FnMut(Seq, Bytes),
    ) -> Fetched {
        if let Some(fetched) = self.fetch_pending(&mut take) {
            return fetched;
        }
        if self.place.is_some() && !self.is_behind() {
            return Fetched::Taken;
        }
        let topic = Arc::clone(&self.topic);
        let tail = &mut *topic.tail.lock();
        let end = if self.keeper.is_some() { tail.durable() } else { tail.visible() };
        // It may have been shown more before a sync failed.
        let end = end.min(tail.marks.doubtful()).max(self.cursor);
        let first_kept = tail.first_kept().min(end);
        if self.cursor < first_kept {
            if self.form == Form::Wire && topic.log.is_some() {
                self.ask();
                return Fetched::Taken;
            }
            let resume = match self.form {
                Form::Wire => first_kept,
                Form::Bare { .. } => Seq((tail.head().0 - 1).max(first_kept.0)),
            };
            return Fetched::Lag(self.miss(resume));
        }
        if let Some(since) = self.since.take()
            && let Some(first) = tail.resolve_time(since)
        {
            self.cursor = self.cursor.max(first.min(end));
        }
        if self.cursor < end
            && let Some(next) = tail.hole(self.cursor, end)
        {
            return Fetched::Gap(self.miss(next));
        }
        self.cursor = tail.read(self.cursor, end, self.form, bytes_max, slices_max, take);
        self.place = (self.cursor >= end).then(|| {
            let waiters =
                if self.keeper.is_some() { &mut tail.settling } else { &mut tail.waiting };
            waiters.wait(self.place, &self.waker)
        });
        Fetched::Taken
    }

    /// What the log has answered, if it was asked. Asks on if there is more.
    fn fetch_pending(&mut self, take: &mut impl FnMut(Seq, Bytes)) -> Option<Fetched> {
        let pending = self.pending.as_ref()?;
        let Some(read) = pending.take() else { return Some(Fetched::Taken) };
        let from = pending.from;
        self.pending = None;
        debug_assert!(from == self.cursor, "whoever moves the cursor asks anew");
        let found = match read {
            Read::Lines(runs, end, at) => {
                let limit = self.keeper.map_or(end, |_| self.topic.durable().min(end));
                for (first, lines) in runs.into_iter().filter(|(first, _)| *first < limit) {
                    take(first, lines);
                }
                (self.cursor, self.position) = (end, Some(at));
                if self.cursor < self.topic.tail.lock().first_kept() {
                    // The next ones are read while these are sent.
                    self.ask();
                }
                return Some(Fetched::Taken);
            }
            Read::Other(Ok(found)) => found,
            Read::Other(Err(error)) => {
                tracing::error!(topic = %self.topic.name, %error, "events cannot be read");
                let bounds = self.topic.log.as_ref().map(|log| log.bounds());
                Found::Lag(from, bounds.map_or(from, |bounds| Seq((bounds.end.0 - 1).max(from.0))))
            }
        };
        match found {
            Found::Lag(_, to) => Some(Fetched::Lag(self.miss(Seq(to.0 + 1)))),
            Found::Gap(_, to) => Some(Fetched::Gap(self.miss(Seq(to.0 + 1)))),
            Found::Skip(to) => {
                self.cursor = to;
                None
            }
            // What is between the end of the log and what is in memory was never kept.
            Found::End => {
                let next = {
                    let tail = self.topic.tail.lock();
                    tail.first_kept().min(tail.marks.doubtful())
                };
                (from < next).then(|| Fetched::Gap(self.miss(next)))
            }
            Found::Lines { .. } => unreachable!("lines were taken care of"),
        }
    }

    /// Asks the log for what comes next.
    fn ask(&mut self) {
        let (position, since) = (self.position.take(), self.since);
        self.pending = self.topic.read_log(self.cursor, position, since, &self.waker);
    }

    /// Goes on at `next`; tells what was missed.
    fn miss(&mut self, next: Seq) -> Lag {
        let lag = Lag { from: self.cursor, to: Seq(next.0 - 1) };
        (self.cursor, self.position) = (next, None);
        lag
    }

    /// Goes back to `seq`: what was fetched from there on was not delivered. Gives back what it
    /// holds.
    pub(crate) fn rewind(&mut self, seq: Seq) {
        debug_assert!(seq <= self.cursor, "rewinding goes back");
        self.cursor = seq;
        (self.pending, self.position) = (None, None);
    }

    /// The next events that are durable, as many as there are up to `events_max`, and what was
    /// missed before them. Costs a copy of each payload.
    pub fn next_events(&mut self, events_max: usize) -> Events {
        let mut found = Events::default();
        while found.events.len() < events_max {
            let mut runs = Vec::new();
            let before = self.cursor;
            match self.fetch(1, 1, |first, bytes| runs.push((first, bytes))) {
                Fetched::Taken => {}
                Fetched::Lag(lag) if found.events.is_empty() => {
                    found.lag = Some(lag);
                    continue;
                }
                // Nothing is missed: these numbers are nobody's.
                Fetched::Gap(_) => continue,
                // It lies behind events that are handed over first, so it is found again.
                Fetched::Lag(_) => {
                    self.rewind(before);
                    break;
                }
            }
            if runs.is_empty() {
                break;
            }
            let durable = self.topic.durable();
            let (taken, mut next) = (self.cursor, self.cursor);
            for (first, bytes) in runs {
                let events = self.topic.decode(first, &bytes);
                for event in events.take_while(|event| event.seq < durable) {
                    if found.events.len() == events_max {
                        next = next.min(event.seq);
                        break;
                    }
                    found.events.push(event);
                }
            }
            next = next.min(durable);
            if next < taken {
                self.rewind(next);
            }
        }
        if let Some(keeper) = self.keeper {
            self.topic.taken(keeper, self.cursor);
        }
        found
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        {
            let tail = &mut *self.topic.tail.lock();
            tail.leave(self.form);
            let waits_for_disk = self.keeper.is_some();
            let waiters = if waits_for_disk { &mut tail.settling } else { &mut tail.waiting };
            waiters.leave(self.place);
        }
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
