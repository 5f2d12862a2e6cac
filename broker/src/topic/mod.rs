//! Topics: append-only streams of one-line events. Each event is encoded once, as the bytes that
//! readers receive.
//!
//! ```text
//!   append(run of payloads)         ┌───────────── tail, bounded in bytes ─────────────┐
//!   ─────────────────────▶  evicted │ batch │ batch │   batch   │ batch │ batch │ open │
//!                                   └───▲───────────────▲───────────────────▲──────────┘
//!                                  first_kept        cursor (a reader)     head
//! ```
//!
//! One append makes one batch, takes one lock, and wakes each waiting reader once. A reader copies
//! nothing: it takes slices of the same memory. A reader never skips events without a [`Lag`].
//!
//! | module | what it is |
//! |---|---|
//! | `tail`, `batch`, `arena` | the newest events in memory |
//! | `watermarks` | watermarks: which events are durable, and which may be shown |
//! | `reader` | cursors |
//! | `commit` | writing to disk: commits, reserved seqs, retention, close |
//! | `cold_reads` | threads that read events which the tail has evicted |
//! | `dedup_window` | the dedup window: ids of recent events, to recognize a repeated publish |
//! | `topics`, `tail_memory` | all topics of a broker, and the memory budget that they share |

mod arena;
mod batch;
mod cold_reads;
mod commit;
mod dedup_window;
mod reader;
mod tail;
mod tail_memory;
mod topics;
mod watermarks;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::Mutex;
pub(crate) use tidings_concurrent::WaiterSlot;
use tidings_concurrent::{Mark, MutexGuard, Watermarked};
use tidings_log::{LogBounds, NewestEvents, RESERVED_MAX, TopicLog};
use tidings_protocol::{Code, Durability, ProtocolError, Seq, StartAt, TopicName, TopicSettings};
use tokio::sync::Notify;

pub(crate) use self::batch::count_lines;
use self::cold_reads::{PendingRead, ReadKind};
pub(crate) use self::dedup_window::dedup_id;
pub use self::reader::{Event, Events, Lag, Reader};
pub(crate) use self::reader::{EventRun, Fetched, waker_of};
use self::reader::{NewestQuery, ReaderStart};
pub(crate) use self::tail::LineForm;
use self::tail::Tail;
pub use self::topics::Topics;
use self::topics::TopicsShared;
pub use self::watermarks::Health;
use crate::mailbox::ConnId;

/// Seqs that a topic without a log reserves at once. Each reservation costs a sync of the catalog.
const RESERVED_IN_MEMORY: u64 = RESERVED_MAX << 4;

/// One topic.
#[derive(Debug)]
pub struct Topic {
    name: TopicName,
    id: u64,
    /// Publishers must wait, because too much in the tail is not durable or not consumed.
    has_backpressure: AtomicBool,
    deleted: AtomicBool,
    /// Bytes of the tail, readable without its lock, to compare tails.
    tail_bytes: AtomicUsize,
    /// See [`Tail::public_head`].
    is_durable_only: bool,
    /// Number of ids in the dedup window.
    dedup_ids: AtomicUsize,
    settings: Mutex<TopicSettings>,
    /// The watermarks can be read without the lock.
    tail: Watermarked<Tail>,
    log: Option<Arc<dyn TopicLog>>,
    /// Held during a commit, so that [`clear`](Self::clear) waits for it.
    committing: Mutex<()>,
    shared: Arc<TopicsShared>,
}

impl Topic {
    /// The topic's name.
    pub fn name(&self) -> &TopicName {
        &self.name
    }

    /// Identifies the topic in this run of the broker.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Retention and sync settings.
    pub fn settings(&self) -> TopicSettings {
        *self.settings.lock()
    }

    /// Whether the topic was deleted. A new topic of the same name is a different topic.
    pub(crate) fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }

    /// Appends events and returns their seqs. Each payload is one line without control characters;
    /// the protocol layer has checked that. Wakes every waiting reader once.
    ///
    /// The topic is locked while `payloads` is iterated. Fails with [`Code::Full`] or
    /// [`Code::NotDurable`] while the disk accepts no writes.
    pub fn append<'a>(
        self: &Arc<Self>,
        origin: ConnId,
        payloads: impl IntoIterator<Item = &'a str>,
    ) -> Result<Range<Seq>, ProtocolError> {
        let mut tail = self.tail.lock();
        self.check_accepts(&tail)?;
        let first = tail.head;
        self.append_to_tail(&mut tail, origin, payloads, false);
        Ok(self.finish_append(tail, first))
    }

    /// Appends events, some with an id. An event is skipped if its id is in the dedup window. `ids`
    /// holds pairs of an index into `payloads`, ascending, and the hash from [`dedup_id`]. Returns
    /// the seq of each event, new or repeated.
    pub(crate) fn append_deduplicated(
        self: &Arc<Self>,
        origin: ConnId,
        payloads: &[&str],
        ids: &[(usize, u128)],
    ) -> Result<Vec<Seq>, ProtocolError> {
        let mut tail = self.tail.lock();
        self.check_accepts(&tail)?;
        let first = tail.head;
        let (mut numbers, mut new) = (Vec::with_capacity(payloads.len()), Vec::new());
        let ids_max = self.shared.memory.ids_max();
        let mut ids = ids.iter().copied().peekable();
        for (at, payload) in payloads.iter().copied().enumerate() {
            let next = Seq(first.0 + new.len() as u64);
            let id = ids.next_if(|(of, _)| *of == at).map(|(_, id)| id);
            let known = id.and_then(|id| tail.dedup_window.find(id));
            if known.is_none() {
                new.push(payload);
                if let Some(id) = id {
                    tail.dedup_window.add(id, next, ids_max);
                }
            }
            numbers.push(known.unwrap_or(next));
        }
        self.append_to_tail(&mut tail, origin, new, true);
        self.finish_append(tail, first);
        Ok(numbers)
    }

    fn append_to_tail<'a>(
        &self,
        tail: &mut Tail,
        origin: ConnId,
        payloads: impl IntoIterator<Item = &'a str>,
        identified: bool,
    ) {
        let (now, unix_ms) = (self.shared.clock.now(), self.shared.clock.unix_ms());
        tail.append(self.name.as_str(), origin, payloads, identified, now, unix_ms);
    }

    /// The error for a publisher while the topic accepts no events.
    fn check_accepts(&self, tail: &Tail) -> Result<(), ProtocolError> {
        if self.is_deleted() {
            let text = format!("topic {} was just deleted; publish again", self.name);
            return Err(ProtocolError::new(Code::Busy, text));
        }
        if tail.watermarks.closed {
            return Err(ProtocolError::new(Code::Closing, "the broker stops"));
        }
        let Some(code) = tail.watermarks.health.refusal() else { return Ok(()) };
        let text = match code {
            Code::Full => {
                format!("the disk is full: {} accepts no events until there is room", self.name)
            }
            _ => format!(
                "writing to the disk failed: {} accepts no events until the broker is restarted",
                self.name
            ),
        };
        Err(ProtocolError::new(code, text))
    }

    /// Finishes an append that began at `first`: publishes the watermarks, requests a commit, and
    /// wakes readers.
    fn finish_append(self: &Arc<Self>, mut tail: MutexGuard<'_, Tail>, first: Seq) -> Range<Seq> {
        let head = tail.head;
        if head == first {
            // A woken task may rely on finding an event.
            return first..head;
        }
        let grown = self.shared.memory.account(self, &mut tail);
        let commit = self.claim_commit(&mut tail);
        self.publish_watermarks(tail);
        if commit {
            self.request_commit(head);
        }
        if grown {
            self.shared.memory.evict_excess();
        }
        first..head
    }

    /// Publishes the watermarks after one has moved, and wakes the tasks that wait for it.
    fn publish_watermarks(&self, mut tail: MutexGuard<'_, Tail>) {
        tail.advance_visible();
        let pressed = self.shared.memory.is_backpressured(&tail);
        self.has_backpressure.store(pressed, Ordering::Relaxed);
        let publishers = if pressed { Vec::new() } else { tail.take_publishers() };
        self.tail.publish_and_wake(tail, publishers);
    }

    /// Whether the caller must request a commit. If so, records that one is queued.
    fn claim_commit(&self, tail: &mut Tail) -> bool {
        let head = tail.head;
        // Without a log, the only work is to reserve seqs.
        let has_work = match self.log {
            Some(_) => tail.watermarks.has_work(head),
            None => tail.watermarks.needs_reservation(head),
        };
        let wants = !tail.watermarks.is_queued && !self.is_deleted() && has_work;
        tail.watermarks.is_queued |= wants;
        wants
    }

    pub(crate) fn is_logged(&self) -> bool {
        self.log.is_some()
    }

    /// The next seq to assign.
    pub fn head(&self) -> Seq {
        Seq(self.tail.head())
    }

    /// The next seq, as subscribers and operators see it.
    pub(crate) fn public_head(&self) -> Seq {
        if self.is_durable_only { self.visible() } else { self.head() }
    }

    /// The seq after the newest event that subscribers may see.
    fn visible(&self) -> Seq {
        Seq(self.tail.mark(Mark::Visible))
    }

    /// The first seq that is not yet as safe as the topic promises.
    pub fn durable(&self) -> Seq {
        Seq(self.tail.mark(Mark::Durable))
    }

    /// The state of an event, and the seq up to which the following events share it.
    pub(crate) fn fate(&self, seq: Seq) -> (Durability, Seq) {
        let (durable, has_lost) = self.tail.mark_and_loss(Mark::Durable);
        if has_lost {
            return self.tail.lock().watermarks.fate(seq);
        }
        let durable = Seq(durable);
        if seq < durable {
            (Durability::Durable, durable)
        } else {
            (Durability::Pending, Seq(u64::MAX))
        }
    }

    /// The first event that may or may not be on the disk, after a failed sync.
    fn uncertain_from(&self) -> Seq {
        if self.tail.has_lost() {
            self.tail.lock().watermarks.uncertain_from()
        } else {
            Seq(u64::MAX)
        }
    }

    /// The end of what a reader that waits for this mark may read.
    fn readable_end(&self, mark: Mark) -> Seq {
        let (end, has_lost) = self.tail.mark_and_loss(mark);
        if has_lost { Seq(end).min(self.tail.lock().watermarks.uncertain_from()) } else { Seq(end) }
    }

    /// Registers `waker` to be woken once the durable mark is beyond `seq`; `None` if it already
    /// is.
    pub(crate) fn wait_durable(
        &self,
        seq: Seq,
        place: Option<WaiterSlot>,
        waker: &Waker,
    ) -> Option<WaiterSlot> {
        self.tail.wait_durable(seq.0, place, waker)
    }

    /// Notifies `wake` once the durable mark is beyond `seq`, or now if it already is.
    pub(crate) fn notify_durable(&self, seq: Seq, wake: &Arc<Notify>) {
        let waker = waker_of(Arc::clone(wake));
        if self.wait_durable(seq, None, &waker).is_none() {
            wake.notify_one();
        }
    }

    /// Creates a group's reader, which begins at `from` and takes durable events only. A seq beyond
    /// the head begins at the head; one below the oldest event kept begins with a [`Lag`].
    ///
    /// `wake` is notified when there are events again after the reader had taken all.
    pub fn reader(self: &Arc<Self>, from: StartAt, wake: Arc<Notify>) -> Reader {
        self.subscribe(Some(from), LineForm::Wire, waker_of(wake)).into_consumer()
    }

    /// Whether publishers must wait, because too much in memory is not on the disk yet or was not
    /// consumed by a group. If so, `waker` is woken when that changes.
    pub(crate) fn is_backpressured(&self, waker: Option<&Waker>) -> bool {
        if !self.has_backpressure.load(Ordering::Relaxed) {
            return false;
        }
        let tail = &mut *self.tail.lock();
        let held_up = self.shared.memory.is_backpressured(tail);
        if let (true, Some(waker)) = (held_up, waker) {
            tail.wait_to_publish(waker);
        }
        held_up
    }

    /// The seq before which every group has consumed the events.
    #[cfg(test)]
    pub(crate) fn consumed_by_all(&self) -> Option<Seq> {
        self.tail.lock().consumed_by_all()
    }

    /// A group has consumed everything before `cursor`, so events kept only for it may be evicted.
    fn set_consumed(&self, keeper: usize, cursor: Seq) {
        self.update_consumers(|tail| tail.set_consumed(keeper, cursor));
    }

    fn remove_consumer(&self, keeper: usize) {
        self.update_consumers(|tail| tail.remove_consumer(keeper));
    }

    fn update_consumers(&self, change: impl FnOnce(&mut Tail)) {
        let mut tail = self.tail.lock();
        change(&mut tail);
        self.shared.memory.account(self, &mut tail);
        self.publish_watermarks(tail);
    }

    /// Creates a reader that wakes a task and takes events in the given form; by default it begins
    /// with the next event. Bare lines exist from the head on only.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        from: Option<StartAt>,
        form: LineForm,
        waker: Waker,
    ) -> Reader {
        let start = {
            let tail = &mut *self.tail.lock();
            tail.add_reader(form);
            match form {
                LineForm::Wire => self.resolve_start(tail, from),
                LineForm::Bare { .. } => ReaderStart::at(tail.head),
            }
        };
        Reader::new(Arc::clone(self), form, start, waker)
    }

    /// Resolves the position at which a reader begins.
    fn resolve_start(&self, tail: &Tail, from: Option<StartAt>) -> ReaderStart {
        let (here, next) = (tail.first_kept(), tail.public_head());
        let kept = self.log.as_ref().map(|log| log.bounds()).filter(|kept| kept.segments > 0);
        let first = kept.map_or(here, |kept| kept.first.min(here));
        let cursor = match from {
            None => next,
            Some(StartAt::First) => first,
            Some(StartAt::Seq(seq)) => seq,
            Some(StartAt::Last) => return self.resolve_newest(tail, 1, Some(next)),
            Some(StartAt::Newest(count)) => return self.resolve_newest(tail, count, None),
            Some(StartAt::Time(unix_ms)) => match (tail.resolve_time(unix_ms), kept) {
                (Some(seq), _) => seq,
                (None, None) => Seq(1),
                (None, Some(kept)) => {
                    // An event that is gone may have been later than this time, and nothing records
                    // whether it was.
                    let some_gone = kept.oldest_unix_ms.is_some_and(|oldest| oldest > unix_ms);
                    let cursor = if some_gone { Seq(1) } else { first };
                    return ReaderStart { since: Some(unix_ms), ..ReaderStart::at(cursor) };
                }
            },
        };
        ReaderStart::at(cursor.clamp(Seq(1), next))
    }

    /// Finds the position of the newest `count` events; if there are fewer, returns `otherwise`.
    fn resolve_newest(&self, tail: &Tail, count: u64, otherwise: Option<Seq>) -> ReaderStart {
        match tail.newest(count) {
            Ok(seq) => ReaderStart::at(seq),
            Err(count) => {
                // The log may hold later events that may or may not be safe.
                let before = tail.first_kept().min(tail.watermarks.uncertain_from());
                let newest = NewestQuery { count, before, otherwise };
                let (cursor, unknown) = self.find_newest(newest);
                ReaderStart { newest: unknown.map(|_| newest), ..ReaderStart::at(cursor) }
            }
        }
    }

    /// Returns where these events begin, or a lower seq, and the segment of the log that must be
    /// [indexed](ReadKind::Index) first.
    fn find_newest(&self, newest: NewestQuery) -> (Seq, Option<Seq>) {
        let NewestQuery { count, before, otherwise } = newest;
        let found = match &self.log {
            Some(log) => log.newest(count, before),
            None => NewestEvents { missing: count, from: before, unknown: None },
        };
        if let (1.., None, Some(otherwise)) = (found.missing, found.unknown, otherwise) {
            return (otherwise, None);
        }
        // Begins as far below the oldest event as events are missing, so that the reader receives a
        // `Lag`.
        (Seq(found.from.0.saturating_sub(found.missing).max(1)), found.unknown)
    }

    /// Requests a read of the log, for a reader at `from`.
    fn read_log(&self, from: Seq, kind: ReadKind, waker: &Waker) -> Option<PendingRead> {
        let log = self.log.as_ref()?;
        self.shared.cold().map(|cold| cold.request(log, from, kind, waker))
    }

    /// Returns metrics for operators.
    pub fn stats(&self) -> TopicStats {
        // Locked first: what the tail evicts is in the log by then.
        let tail = self.tail.lock();
        let bounds = self.log.as_ref().map(|log| log.bounds()).filter(|bounds| bounds.segments > 0);
        let (head, in_memory) = (tail.public_head(), tail.first_kept());
        let first_kept = bounds.map_or(in_memory, |bounds| bounds.first.min(in_memory));
        // After a crash, the seqs up to the first new event are empty, too.
        let skipped = |log: &LogBounds| in_memory.0.saturating_sub(log.end.0);
        let empty = bounds.map_or(0, |log| log.empty.saturating_add(skipped(&log)));
        let empty = empty.saturating_add(tail.lost_from(bounds.map_or(Seq(0), |log| log.end)));
        TopicStats {
            head,
            durable: tail.durable().min(head),
            first_kept,
            kept: head.0.saturating_sub(first_kept.0).saturating_sub(empty),
            bytes: tail.bytes(),
            waiting_bytes: tail.waiting_bytes(),
            batches: tail.batches(),
            readers: tail.readers,
            per_second: tail.rate(self.shared.clock.now()),
            log_bytes: bounds.map_or(0, |bounds| bounds.bytes),
            segments: bounds.map_or(0, |bounds| bounds.segments),
            health: tail.watermarks.health,
        }
    }

    /// Decodes encoded lines.
    fn decode<'a>(&'a self, run: &'a EventRun) -> impl Iterator<Item = Event> + 'a {
        let payloads = payloads(&self.name, run.first, &run.lines);
        payloads.map(|(seq, payload)| Event { seq, payload: payload.into_owned() })
    }
}

/// The payloads of a topic's encoded lines; the first one has the seq `first`.
pub(crate) fn payloads<'a>(
    topic: &TopicName,
    first: Seq,
    encoded: &'a [u8],
) -> impl Iterator<Item = (Seq, Cow<'a, str>)> + use<'a> {
    // `MSG <topic> `, then the number, a space, the payload and CRLF.
    let name_end = "MSG ".len() + topic.as_str().len() + " ".len();
    let lines = encoded.split_inclusive(|byte| *byte == b'\n');
    lines.zip(first.0..).map(move |(line, seq)| {
        let numbered = &line[name_end..line.len() - "\r\n".len()];
        let space = memchr::memchr(b' ', numbered).expect("a space follows the number");
        (Seq(seq), String::from_utf8_lossy(&numbered[space + 1..]))
    })
}

/// Metrics of a topic, for operators.
#[derive(Debug, Clone, Copy)]
pub struct TopicStats {
    /// The next seq to assign.
    pub head: Seq,
    /// The first seq that is not as safe as the topic promises.
    pub durable: Seq,
    /// The oldest seq kept.
    pub first_kept: Seq,
    /// Events kept: the seqs from there that are not empty.
    pub kept: u64,
    /// Bytes of memory that the tail has allocated.
    pub bytes: usize,
    /// Bytes of events that wait to be written to the disk.
    pub waiting_bytes: usize,
    /// Batches in memory.
    pub batches: usize,
    /// Readers: subscriptions, peers and groups.
    pub readers: usize,
    /// Events per second, averaged over the last ten seconds or so.
    pub per_second: f64,
    /// Bytes of the log files.
    pub log_bytes: u64,
    /// Number of log files.
    pub segments: usize,
    /// Whether the topic accepts events.
    pub health: Health,
}

#[cfg(test)]
mod tests;
