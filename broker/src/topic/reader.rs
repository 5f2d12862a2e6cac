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

/// Where a reader begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    pub(super) cursor: Seq,
    /// Events before this time are of no interest.
    pub(super) since: Option<i64>,
    /// The cursor is where these events begin, or below.
    pub(super) newest: Option<Newest>,
}

impl Start {
    pub(super) fn at(cursor: Seq) -> Self {
        Self { cursor, since: None, newest: None }
    }
}

/// The newest events of a log before a number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Newest {
    pub(super) count: u64,
    pub(super) before: Seq,
    /// Where a reader begins if there are fewer; by default, at the missing ones, so that it is told.
    pub(super) otherwise: Option<Seq>,
}

/// A cursor on a topic: the next number to take.
///
/// It is woken once when there is something after it was seen to have everything. It is to be asked
/// again whenever it is woken, and as long as it gives something.
#[derive(Debug)]
pub struct Reader {
    topic: Arc<Topic>,
    form: Form,
    /// A group's reader: what is not durable is not there for it yet (the disk may know more), and
    /// what it has not taken is kept for it. Its place among the tail's keepers.
    keeper: Option<usize>,
    cursor: Seq,
    /// Events before this time are of no interest.
    since: Option<i64>,
    /// The cursor moves up to where these events begin, before anything is taken.
    newest: Option<Newest>,
    waker: Waker,
    /// Whether it had everything when it was last asked.
    wait: Wait,
    /// What was asked of the log, and where that began which was in memory then: what the log does
    /// not know before that number was never kept.
    pending: Option<(Pending, Seq)>,
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

    /// Does not run ahead of the durable mark, and is not left behind.
    pub(super) fn keeping(mut self) -> Self {
        self.keeper = Some(self.topic.tail.lock().keep(self.cursor));
        self.wait = Wait::new(Mark::Durable);
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

    /// Has somebody else woken from now on. To be asked again then, as if it had just been woken.
    pub(crate) fn woken_by(&mut self, waker: &Waker) {
        if self.waker.will_wake(waker) {
            return;
        }
        self.waker.clone_from(waker);
        self.wait.leave(&mut *self.topic.tail.lock());
        // The answer of the disk would wake whoever was waiting when it was asked.
        self.rewind(self.cursor);
    }

    /// Where what it may take ends.
    fn end(&self) -> Seq {
        self.topic.end(self.wait.mark())
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

    /// Whether it has asked the disk, so that it is woken with the answer, which takes memory that
    /// others could use.
    pub(crate) fn waits_for_disk(&self) -> bool {
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
        // It may have been shown more before a sync failed.
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

    /// Whether the cursor is where it is to begin, and not below.
    pub(crate) fn has_begun(&self) -> bool {
        self.newest.is_none()
    }

    /// Moves the cursor to where it is to begin, as far as that is known. If it is not, asks the log and returns
    /// false.
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

    /// What the log has answered, if it was asked. Asks on if there is more.
    fn fetch_pending(&mut self, take: &mut impl FnMut(Seq, Bytes)) -> Option<Fetched> {
        let (pending, in_memory) = self.pending.as_ref()?;
        let Some(read) = pending.take() else { return Some(Fetched::Taken) };
        let (from, in_memory) = (pending.from, *in_memory);
        self.pending = None;
        debug_assert!(from == self.cursor, "whoever moves the cursor asks anew");
        let found = match read {
            Read::Lines(runs, end, at) => {
                // The log knows what is being written, ahead of what is shown, and of what is safe.
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
                    // The next ones are read while these are sent.
                    self.ask(first_kept);
                }
                return Some(Fetched::Taken);
            }
            Read::Other(Ok(found)) => found,
            Read::Other(Err(error)) => {
                tracing::error!(topic = %self.topic.name, %error, "events cannot be read");
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
            Found::Lines { .. } => unreachable!("lines were taken care of"),
        }
    }

    /// Asks the log for what comes next and lies before `in_memory`.
    fn ask(&mut self, in_memory: Seq) {
        let (position, since) = (self.position.take(), self.since);
        let pending = self.topic.read_log(self.cursor, position, since, &self.waker);
        self.pending = pending.map(|pending| (pending, in_memory));
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
        self.wait.end();
    }

    /// The next events that are durable, as many as there are up to `events_max`, and what was
    /// missed before them. Costs a copy of each payload. On the disk they are kept until
    /// `let_go` says that nobody needs them again; what is in memory only, a process that ends
    /// does not have anyway.
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

    /// What is before `next` is not asked for again, also after a crash.
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

/// A waker for the task that waits on a `Notify`, now or next.
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
