//! A reader: a cursor on a topic. It costs a position, not a queue.

use std::sync::Arc;
use std::task::{Wake, Waker};

use bytes::Bytes;
use tidings_concurrent::{Mark, Wait};
use tidings_protocol::Seq;
use tokio::sync::Notify;

use super::Topic;
use super::batch::first_lines;
use super::cold::{Pending, Read};
use super::tail::Form;
use crate::log::{Found, Position};

/// Events that were kept and are gone: the seqs from `from` to `to`, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lag {
    /// The first seq that is gone.
    pub from: Seq,
    /// The last seq that is gone.
    pub to: Seq,
}

/// One event of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its seq.
    pub seq: Seq,
    /// Its text, without a line end.
    pub payload: String,
}

/// What a reader receives. Fewer events than requested mean that the reader has everything, or that
/// more is being read from the disk. In both cases it will be woken.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// The events that the reader missed before `events`.
    pub lag: Option<Lag>,
    /// In order, without gaps.
    pub events: Vec<Event>,
}

/// Where a reader begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    pub(super) cursor: Seq,
    /// Skip events before this time.
    pub(super) since: Option<i64>,
    /// The cursor is at the first of these events, or below it.
    pub(super) newest: Option<Newest>,
}

impl Start {
    pub(super) fn at(cursor: Seq) -> Self {
        Self { cursor, since: None, newest: None }
    }
}

/// A request for the newest events of a log before a seq.
#[derive(Debug, Clone, Copy)]
pub(super) struct Newest {
    pub(super) count: u64,
    pub(super) before: Seq,
    /// Where the reader begins if there are fewer. By default it begins at the missing ones, so
    /// that it receives a `Lag`.
    pub(super) otherwise: Option<Seq>,
}

/// A cursor on a topic: the next seq to read.
///
/// The reader is woken once when there are events after it had read everything. Call it again after
/// each wake-up, and for as long as it returns events.
#[derive(Debug)]
pub struct Reader {
    topic: Arc<Topic>,
    form: Form,
    /// The index of a group's reader among the tail's consumers. Such a reader takes durable events
    /// only, although the disk may hold more, and the topic keeps everything that it has not
    /// consumed.
    keeper: Option<usize>,
    cursor: Seq,
    /// Skip events before this time.
    since: Option<i64>,
    /// The cursor first moves up to where these events begin.
    newest: Option<Newest>,
    waker: Waker,
    /// Whether the reader had everything at the last call.
    wait: Wait,
    /// The pending read of the log, and the first seq that was in memory when it was requested.
    /// Events before that seq that the log does not have were never kept.
    pending: Option<(Pending, Seq)>,
    /// Where to continue in the log.
    position: Option<Position>,
}

/// The result of [`Reader::fetch`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// All available events, perhaps none, were passed on.
    Taken,
    /// These events were kept and are gone; the next call continues after them.
    Lag(Lag),
    /// No kept event ever had these seqs; the next call continues after them.
    Gap(Lag),
}

impl Reader {
    pub(super) fn new(topic: Arc<Topic>, form: Form, start: Start, waker: Waker) -> Self {
        let Start { cursor, since, newest } = start;
        Self {
            topic,
            form,
            keeper: None,
            cursor,
            since,
            newest,
            waker,
            wait: Wait::new(Mark::Visible),
            pending: None,
            position: None,
        }
    }

    /// Makes this a group's reader: it stops at the durable mark, and the topic keeps what it has
    /// not consumed.
    pub(super) fn keeping(mut self) -> Self {
        self.keeper = Some(self.topic.tail.lock().keep(self.cursor));
        self.wait = Wait::new(Mark::Durable);
        self
    }

    /// The next seq to read.
    pub fn cursor(&self) -> Seq {
        self.cursor
    }

    /// The topic that is read.
    pub fn topic(&self) -> &Arc<Topic> {
        &self.topic
    }

    /// Replaces the waker. The caller must call the reader again, as after a wake-up.
    pub(crate) fn woken_by(&mut self, waker: &Waker) {
        if self.waker.will_wake(waker) {
            return;
        }
        self.waker.clone_from(waker);
        self.wait.leave(&mut *self.topic.tail.lock());
        // The pending read would wake the previous task.
        self.rewind(self.cursor);
    }

    /// The end of what the reader may take.
    fn end(&self) -> Seq {
        self.topic.end(self.wait.mark())
    }

    /// Whether there are events that the reader can take, without waiting.
    pub(crate) fn is_behind(&self) -> bool {
        self.cursor < self.end()
    }

    /// Whether the reader has not taken everything before `until`. Events of uncertain fate are not
    /// waited for.
    pub(crate) fn lacks(&self, until: Seq) -> bool {
        self.cursor < until.min(self.topic.doubtful())
    }

    /// Whether a read of the disk is pending. Its result will wake the reader, and occupies a
    /// buffer that other readers could use.
    pub(crate) fn waits_for_disk(&self) -> bool {
        self.pending.is_some()
    }

    /// Passes encoded lines from the cursor on to `take`, each slice with the seq of its first
    /// line: at most `slices_max` slices, and no further slice after `bytes_max`. Costs a short
    /// lock and nothing per event. Evicted events are read from the log and arrive with a later
    /// call.
    pub(crate) fn fetch(
        &mut self,
        bytes_max: usize,
        slices_max: usize,
        mut take: impl FnMut(Seq, Bytes),
    ) -> Fetched {
        if let Some(fetched) = self.fetch_pending(&mut take) {
            return fetched;
        }
        if !self.has_begun() && !self.begin() {
            return Fetched::Taken;
        }
        if self.wait.goes_on(&self.topic.tail) {
            return Fetched::Taken;
        }
        self.wait.end();
        let topic = Arc::clone(&self.topic);
        let tail = &mut *topic.tail.lock();
        let mark = if self.keeper.is_some() { tail.durable() } else { tail.visible() };
        // The reader may have seen more before a sync failed.
        let end = mark.min(tail.marks.doubtful()).max(self.cursor);
        let first_kept = tail.first_kept().min(end);
        if self.cursor < first_kept {
            if self.form == Form::Wire && topic.log.is_some() {
                self.ask(first_kept);
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
        if self.cursor >= end {
            self.wait.begin(tail, &self.waker);
        }
        Fetched::Taken
    }

    /// Whether the cursor has reached its start position.
    pub(crate) fn has_begun(&self) -> bool {
        self.newest.is_none()
    }

    /// Moves the cursor towards its start position, as far as that is known. If the log must be
    /// read to find it, requests that and returns false.
    fn begin(&mut self) -> bool {
        let Some(newest) = self.newest else { return true };
        let (cursor, unknown) = self.topic.find_newest(newest);
        self.cursor = cursor;
        match unknown {
            Some(base) => {
                let pending = self.topic.index(base, cursor, &self.waker);
                self.pending = pending.map(|pending| (pending, newest.before));
            }
            None => self.newest = None,
        }
        self.has_begun()
    }

    /// Handles the result of a pending read, if there is one, and requests the next read if there
    /// is more.
    fn fetch_pending(&mut self, take: &mut impl FnMut(Seq, Bytes)) -> Option<Fetched> {
        let (pending, in_memory) = self.pending.as_ref()?;
        let Some(read) = pending.take() else { return Some(Fetched::Taken) };
        let (from, in_memory) = (pending.from, *in_memory);
        self.pending = None;
        debug_assert!(from == self.cursor, "a move of the cursor cancels the pending read");
        let found = match read {
            Read::Lines(runs, end, at) => {
                // The log also holds events that are being written, and that are neither visible
                // nor durable yet.
                let until = self.end();
                if until <= from {
                    return None;
                }
                if end <= until {
                    for (first, lines) in runs {
                        take(first, lines);
                    }
                } else {
                    for (first, lines) in runs.into_iter().filter(|(first, _)| *first < until) {
                        take(first, first_lines(lines, until.0 - first.0));
                    }
                }
                (self.cursor, self.position) = (end.min(until), Some(at));
                let first_kept = self.topic.tail.lock().first_kept();
                if self.cursor < first_kept.min(until) {
                    // Read the next lines while these are sent.
                    self.ask(first_kept);
                }
                return Some(Fetched::Taken);
            }
            Read::Other(Ok(found)) => found,
            Read::Other(Err(error)) => {
                tracing::error!(topic = %self.topic.name, %error, "cannot read events from the log");
                self.newest = None;
                Found::Lag(from, Seq(in_memory.0 - 1))
            }
        };
        match found {
            Found::Lag(_, to) => Some(Fetched::Lag(self.miss(Seq(to.0 + 1)))),
            Found::Gap(_, to) => Some(Fetched::Gap(self.miss(Seq(to.0 + 1)))),
            Found::Skip(to) => {
                self.cursor = to;
                None
            }
            Found::End => {
                let next = in_memory.min(self.topic.doubtful());
                (from < next).then(|| Fetched::Gap(self.miss(next)))
            }
            Found::Lines { .. } => unreachable!("lines are handled above"),
        }
    }

    /// Requests the events from the cursor up to `in_memory` from the log.
    fn ask(&mut self, in_memory: Seq) {
        let (position, since) = (self.position.take(), self.since);
        let pending = self.topic.read_log(self.cursor, position, since, &self.waker);
        self.pending = pending.map(|pending| (pending, in_memory));
    }

    /// Continues at `next`, and returns the range that was missed.
    fn miss(&mut self, next: Seq) -> Lag {
        let lag = Lag { from: self.cursor, to: Seq(next.0 - 1) };
        (self.cursor, self.position) = (next, None);
        lag
    }

    /// Moves back to `seq`, because the events from there on were not delivered. Frees the reader's
    /// buffers.
    pub(crate) fn rewind(&mut self, seq: Seq) {
        debug_assert!(seq <= self.cursor, "rewinding goes back");
        self.cursor = seq;
        (self.pending, self.position) = (None, None);
        self.wait.end();
    }

    /// Returns the next durable events, at most `events_max`, and the range that was missed before
    /// them. Copies each payload. A topic on disk keeps the events until `let_go` says that they
    /// are not needed again. A topic in memory frees them at once, because a restart loses them
    /// anyway.
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
                // Nothing was missed: no event has these seqs.
                Fetched::Gap(_) => continue,
                // The lag comes after events that are returned first. The next call finds it again.
                Fetched::Lag(_) => {
                    self.rewind(before);
                    break;
                }
            }
            if runs.is_empty() {
                break;
            }
            for (first, bytes) in runs {
                let room = events_max - found.events.len();
                found.events.extend(self.topic.decode(first, &bytes).take(room));
            }
            let next = found.events.last().map_or(before, |last| Seq(last.seq.0 + 1));
            if next < self.cursor {
                self.rewind(next);
            }
        }
        if self.topic.log.is_none() {
            self.let_go(self.cursor);
        }
        found
    }

    /// The events before `next` will not be requested again, not even after a crash.
    pub(crate) fn let_go(&self, next: Seq) {
        if let Some(keeper) = self.keeper {
            self.topic.taken(keeper, next);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        {
            let tail = &mut *self.topic.tail.lock();
            tail.leave(self.form);
            self.wait.leave(tail);
        }
        if let Some(keeper) = self.keeper {
            self.topic.forget_keeper(keeper);
        }
    }
}

/// A waker that notifies the task waiting on a `Notify`, now or at its next wait.
pub(crate) fn waker_of(wake: Arc<Notify>) -> Waker {
    Waker::from(Arc::new(Notifies(wake)))
}

struct Notifies(Arc<Notify>);

impl Wake for Notifies {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}
