//! A reader: a cursor on a topic. It costs a position, not a queue.

use std::sync::Arc;
use std::task::{Wake, Waker};

use bytes::Bytes;
use tidings_concurrent::{Mark, MarkWait};
use tidings_log::{LogRead, ReadPosition};
use tidings_protocol::Seq;
use tokio::sync::Notify;

use super::Topic;
use super::batch::first_lines;
use super::cold_reads::{PendingRead, ReadKind, ReadResult};
use super::tail::LineForm;

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

/// Consecutive encoded lines of a topic.
#[derive(Debug, Clone)]
pub(crate) struct EventRun {
    /// The seq of the first line.
    pub(crate) first: Seq,
    /// Append time of the first line.
    pub(crate) unix_ms: i64,
    /// The lines at which the second of the append time changes, and their append times.
    pub(crate) later: Vec<(Seq, i64)>,
    /// Whole lines.
    pub(crate) lines: Bytes,
}

/// Where a reader begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReaderStart {
    pub(super) cursor: Seq,
    /// Skip events before this time.
    pub(super) since: Option<i64>,
    /// The cursor is at the first of these events, or below it.
    pub(super) newest: Option<NewestQuery>,
}

impl ReaderStart {
    pub(super) fn at(cursor: Seq) -> Self {
        Self { cursor, since: None, newest: None }
    }
}

/// A request for the newest events of a log before a seq.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewestQuery {
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
    form: LineForm,
    /// The index of a group's reader among the tail's consumers. Such a reader takes durable events
    /// only, although the disk may hold more, and the topic keeps everything that it has not
    /// consumed.
    consumer: Option<usize>,
    cursor: Seq,
    /// Skip events before this time.
    since: Option<i64>,
    /// The cursor first moves up to where these events begin.
    newest: Option<NewestQuery>,
    waker: Waker,
    /// Whether the reader had everything at the last call.
    wait: MarkWait,
    /// The pending read of the log, and the first seq that was in memory when it was requested.
    /// Events before that seq that the log does not have were never kept.
    pending: Option<(PendingRead, Seq)>,
    /// Where to continue in the log.
    position: Option<ReadPosition>,
    /// Whether the next lines of the log are read while the last ones are sent.
    reads_ahead: bool,
}

/// The result of [`Reader::fetch`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// All available events, perhaps none, were passed on.
    Delivered,
    /// These events were kept and are gone; the next call continues after them.
    Lag(Lag),
    /// No kept event ever had these seqs; the next call continues after them.
    Gap(Lag),
}

impl Reader {
    pub(super) fn new(topic: Arc<Topic>, form: LineForm, start: ReaderStart, waker: Waker) -> Self {
        let ReaderStart { cursor, since, newest } = start;
        Self {
            topic,
            form,
            consumer: None,
            cursor,
            since,
            newest,
            waker,
            wait: MarkWait::new(Mark::Visible),
            pending: None,
            position: None,
            reads_ahead: true,
        }
    }

    /// Makes this a reader that holds no buffer of the disk between two calls that return events.
    pub(crate) fn without_read_ahead(mut self) -> Self {
        self.reads_ahead = false;
        self
    }

    /// Makes this a group's reader: it stops at the durable mark, and the topic keeps what it has
    /// not consumed.
    pub(super) fn into_consumer(mut self) -> Self {
        self.consumer = Some(self.topic.tail.lock().add_consumer(self.cursor));
        self.wait = MarkWait::new(Mark::Durable);
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
    pub(crate) fn set_waker(&mut self, waker: &Waker) {
        if self.waker.will_wake(waker) {
            return;
        }
        self.waker.clone_from(waker);
        self.wait.leave(&mut *self.topic.tail.lock());
        // The pending read would wake the previous task.
        self.rewind(self.cursor);
    }

    /// The end of what the reader may take.
    fn readable_end(&self) -> Seq {
        self.topic.readable_end(self.wait.mark())
    }

    /// Whether there are events that the reader can take, without waiting.
    pub(crate) fn is_behind(&self) -> bool {
        self.cursor < self.readable_end()
    }

    /// Whether the reader has not taken everything before `until`. Events of uncertain fate are not
    /// waited for.
    pub(crate) fn has_unread_before(&self, until: Seq) -> bool {
        self.cursor < until.min(self.topic.uncertain_from())
    }

    /// Whether a read of the disk is pending. Its result will wake the reader, and occupies a
    /// buffer that other readers could use.
    pub(crate) fn waits_for_disk(&self) -> bool {
        self.pending.is_some()
    }

    /// Passes encoded lines from the cursor on to `take`: at most `runs_max` runs, and no further
    /// run after `bytes_max`. Costs a short lock and nothing per event. Evicted events are read
    /// from the log and arrive with a later call: all that fit into a buffer, in any number of
    /// runs.
    pub(crate) fn fetch(
        &mut self,
        bytes_max: usize,
        runs_max: usize,
        mut take: impl FnMut(EventRun),
    ) -> Fetched {
        if let Some(fetched) = self.fetch_pending(&mut take) {
            return fetched;
        }
        if !self.is_start_resolved() && !self.resolve_start() {
            return Fetched::Delivered;
        }
        if self.wait.is_pending(&self.topic.tail) {
            return Fetched::Delivered;
        }
        self.wait.end();
        let topic = Arc::clone(&self.topic);
        let tail = &mut *topic.tail.lock();
        let mark = if self.consumer.is_some() { tail.durable() } else { tail.visible };
        // The reader may have seen more before a sync failed.
        let end = mark.min(tail.watermarks.uncertain_from()).max(self.cursor);
        let first_kept = tail.first_kept().min(end);
        if self.cursor < first_kept {
            if self.form == LineForm::Wire && topic.log.is_some() {
                self.request_read(first_kept);
                return Fetched::Delivered;
            }
            let resume = match self.form {
                LineForm::Wire => first_kept,
                LineForm::Bare { .. } => Seq((tail.head.0 - 1).max(first_kept.0)),
            };
            return Fetched::Lag(self.skip_to(resume));
        }
        if let Some(since) = self.since.take()
            && let Some(first) = tail.resolve_time(since)
        {
            self.cursor = self.cursor.max(first.min(end));
        }
        if self.cursor < end
            && let Some(next) = tail.gap_end(self.cursor, end)
        {
            return Fetched::Gap(self.skip_to(next));
        }
        self.cursor = tail.read(self.cursor, end, self.form, bytes_max, runs_max, take);
        if self.cursor >= end {
            self.wait.begin(tail, &self.waker);
        }
        Fetched::Delivered
    }

    /// Whether the cursor has reached its start position.
    pub(crate) fn is_start_resolved(&self) -> bool {
        self.newest.is_none()
    }

    /// Moves the cursor towards its start position, as far as that is known. If the log must be
    /// read to find it, requests that and returns false.
    fn resolve_start(&mut self) -> bool {
        let Some(newest) = self.newest else { return true };
        let (cursor, unknown) = self.topic.find_newest(newest);
        self.cursor = cursor;
        match unknown {
            Some(base) => {
                let pending = self.topic.read_log(cursor, ReadKind::Index(base), &self.waker);
                self.pending = pending.map(|pending| (pending, newest.before));
            }
            None => self.newest = None,
        }
        self.is_start_resolved()
    }

    /// Handles the result of a pending read, if there is one, and requests the next read if there
    /// is more.
    fn fetch_pending(&mut self, take: &mut impl FnMut(EventRun)) -> Option<Fetched> {
        let (pending, in_memory) = self.pending.as_ref()?;
        let Some(read) = pending.take() else { return Some(Fetched::Delivered) };
        let (from, in_memory) = (pending.from, *in_memory);
        self.pending = None;
        debug_assert!(from == self.cursor, "a move of the cursor cancels the pending read");
        let found = match read {
            ReadResult::Lines(runs, end, at) => {
                // The log also holds events that are being written, and that are neither visible
                // nor durable yet.
                let until = self.readable_end();
                if until <= from {
                    return None;
                }
                for mut run in runs.into_iter().filter(|run| run.first < until) {
                    if end > until {
                        run.lines = first_lines(run.lines, until.0 - run.first.0);
                    }
                    take(run);
                }
                (self.cursor, self.position) = (end.min(until), Some(at));
                let first_kept = self.topic.tail.lock().first_kept();
                if self.reads_ahead && self.cursor < first_kept.min(until) {
                    // Read the next lines while these are sent.
                    self.request_read(first_kept);
                }
                return Some(Fetched::Delivered);
            }
            ReadResult::Log(Ok(found)) => found,
            ReadResult::Log(Err(error)) => {
                tracing::error!(topic = %self.topic.name, %error, "cannot read events from the log");
                self.newest = None;
                LogRead::Lag(from, Seq(in_memory.0 - 1))
            }
        };
        // Retention may have removed files whose events are still in memory.
        let after = |to: Seq| Seq(to.0 + 1).min(self.topic.tail.lock().first_kept());
        match found {
            LogRead::Lag(_, to) => Some(Fetched::Lag(self.skip_to(after(to)))),
            LogRead::Gap(_, to) => Some(Fetched::Gap(self.skip_to(after(to)))),
            LogRead::Skip(to) => {
                self.cursor = to;
                None
            }
            LogRead::End => {
                let next = in_memory.min(self.topic.uncertain_from());
                (from < next).then(|| Fetched::Gap(self.skip_to(next)))
            }
            LogRead::Lines { .. } => unreachable!("lines are handled above"),
        }
    }

    /// Requests the events from the cursor up to `in_memory` from the log.
    fn request_read(&mut self, in_memory: Seq) {
        let kind = ReadKind::Lines { at: self.position.take(), since: self.since };
        let pending = self.topic.read_log(self.cursor, kind, &self.waker);
        self.pending = pending.map(|pending| (pending, in_memory));
    }

    /// Continues at `next`, and returns the range that was missed.
    fn skip_to(&mut self, next: Seq) -> Lag {
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
    /// them. Copies each payload. A topic on disk keeps the events until `set_consumed` says that
    /// they are not needed again. A topic in memory frees them at once, because a restart loses
    /// them anyway.
    pub fn next_events(&mut self, events_max: usize) -> Events {
        let mut found = Events::default();
        while found.events.len() < events_max {
            let mut runs = Vec::new();
            let before = self.cursor;
            match self.fetch(1, 1, |run| runs.push(run)) {
                Fetched::Delivered => {}
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
            for run in runs {
                let room = events_max - found.events.len();
                found.events.extend(self.topic.decode(&run).take(room));
            }
            let next = found.events.last().map_or(before, |last| Seq(last.seq.0 + 1));
            if next < self.cursor {
                self.rewind(next);
            }
        }
        if self.topic.log.is_none() {
            self.set_consumed(self.cursor);
        }
        found
    }

    /// The events before `next` will not be requested again, not even after a crash.
    pub(crate) fn set_consumed(&self, next: Seq) {
        if let Some(keeper) = self.consumer {
            self.topic.set_consumed(keeper, next);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        {
            let tail = &mut *self.topic.tail.lock();
            tail.remove_reader(self.form);
            self.wait.leave(tail);
        }
        if let Some(keeper) = self.consumer {
            self.topic.remove_consumer(keeper);
        }
    }
}

/// A waker that notifies the task waiting on a `Notify`, now or at its next wait.
pub(crate) fn waker_of(wake: Arc<Notify>) -> Waker {
    Waker::from(Arc::new(NotifyWaker(wake)))
}

struct NotifyWaker(Arc<Notify>);

impl Wake for NotifyWaker {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}
