//! Topics: append-only streams of one-line events, each encoded once as what readers receive.
//!
//! ```text
//!   append(run of payloads)         ┌───────────── tail, bounded in bytes ─────────────┐
//!   ─────────────────────▶  evicted │ batch │ batch │   batch   │ batch │ batch │ open │
//!                                   └───▲───────────────▲───────────────────▲──────────┘
//!                                  first_kept        cursor (a reader)     head
//! ```
//!
//! One append is one batch, one lock and one wake-up of each reader that has everything. A reader
//! copies nothing: it takes slices of the same memory. Nothing is ever skipped without a [`Lag`].
//!
//! | module | what it is |
//! |---|---|
//! | `tail`, `batch`, `arena` | the newest events in memory |
//! | `marks` | how far they are safe, and what may be shown |
//! | `reader` | cursors |
//! | `keeping` | what of a topic is about its disk: commits, reservations, retention, its end |
//! | `cold` | threads that read what fell out of the tail |
//! | `recent` | ids of events, so that one that is sent again is known |
//! | `topics`, `memory` | all topics of a broker, and the memory that they share |

mod arena;
mod batch;
mod cold;
mod keeping;
mod marks;
mod memory;
mod reader;
mod recent;
mod tail;
mod topics;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::Mutex;
use tidings_concurrent::{Mark, MutexGuard, Watermarked};
use tidings_protocol::{Code, Fate, ProtocolError, Seq, StartAt, TopicName};
use tokio::sync::Notify;

use self::cold::Pending;
use self::reader::{Newest, Start};
use self::tail::Tail;
use self::topics::Shared;
use crate::catalog::TopicSettings;
use crate::log::{self, Position, RESERVED_MAX, TopicLog};
use crate::mailbox::ConnId;

pub(crate) use self::batch::count_lines;
pub use self::marks::Health;
pub use self::reader::{Event, Events, Lag, Reader};
pub(crate) use self::reader::{Fetched, waker_of};
pub(crate) use self::recent::id_of;
pub(crate) use self::tail::Form;
pub(crate) use self::topics::Storage;
pub use self::topics::Topics;
pub(crate) use tidings_concurrent::Place;

/// Numbers that a topic without a log reserves at once: each costs a sync of the catalog.
const RESERVED_IN_MEMORY: u64 = RESERVED_MAX << 4;

/// One topic.
#[derive(Debug)]
pub struct Topic {
    name: TopicName,
    id: u64,
    /// So much has to be in memory that nobody should publish.
    pressed: AtomicBool,
    deleted: AtomicBool,
    /// The tail's bytes, for comparing tails without their locks.
    bytes: AtomicUsize,
    /// See [`Tail::next_told`].
    shows_safe: bool,
    /// How many ids it remembers.
    ids: AtomicUsize,
    settings: Mutex<TopicSettings>,
    /// Its marks are read without its lock.
    tail: Watermarked<Tail>,
    log: Option<Arc<dyn TopicLog>>,
    shared: Arc<Shared>,
}

impl Topic {
    /// Its name.
    pub fn name(&self) -> &TopicName {
        &self.name
    }

    /// A number that stands for it in this run of the broker.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// What it is told to keep, and how safely.
    pub fn settings(&self) -> TopicSettings {
        *self.settings.lock()
    }

    /// It was deleted; one of the same name is another.
    pub(crate) fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }

    /// Appends events, all of them one line without control characters (the protocol has seen to
    /// that), and returns their numbers. Wakes every reader that had everything, once.
    ///
    /// The topic is locked while `payloads` runs. Refused with [`Code::Full`] or
    /// [`Code::NotDurable`] while the disk takes nothing.
    pub fn append<'a>(
        self: &Arc<Self>,
        origin: ConnId,
        payloads: impl IntoIterator<Item = &'a str>,
    ) -> Result<Range<Seq>, ProtocolError> {
        let mut tail = self.tail.lock();
        self.refuse(&tail)?;
        let first = tail.head();
        self.add(&mut tail, origin, payloads, false);
        Ok(self.added(tail, first))
    }

    /// Appends events some of which have an id: `ids` are their places among `payloads`, rising,
    /// and what [`id_of`] says. Those that were published lately are not appended again. Returns
    /// the number of each event.
    pub(crate) fn append_once(
        self: &Arc<Self>,
        origin: ConnId,
        payloads: &[&str],
        ids: &[(usize, u128)],
    ) -> Result<Vec<Seq>, ProtocolError> {
        let mut tail = self.tail.lock();
        self.refuse(&tail)?;
        let first = tail.head();
        let (mut numbers, mut new) = (Vec::with_capacity(payloads.len()), Vec::new());
        let ids_max = self.shared.memory.ids_max();
        let mut ids = ids.iter().copied().peekable();
        for (at, payload) in payloads.iter().copied().enumerate() {
            let next = Seq(first.0 + new.len() as u64);
            let id = ids.next_if(|(of, _)| *of == at).map(|(_, id)| id);
            let known = id.and_then(|id| tail.recent.find(id));
            if known.is_none() {
                new.push(payload);
                if let Some(id) = id {
                    tail.recent.add(id, next, ids_max);
                }
            }
            numbers.push(known.unwrap_or(next));
        }
        self.add(&mut tail, origin, new, true);
        self.added(tail, first);
        Ok(numbers)
    }

    fn add<'a>(
        &self,
        tail: &mut Tail,
        origin: ConnId,
        payloads: impl IntoIterator<Item = &'a str>,
        identified: bool,
    ) {
        let (now, unix_ms) = (self.shared.clock.now(), self.shared.clock.unix_ms());
        tail.append(self.name.as_str(), origin, payloads, identified, now, unix_ms);
    }

    /// Why it takes no events, if so.
    fn refuse(&self, tail: &Tail) -> Result<(), ProtocolError> {
        if self.is_deleted() {
            let text = format!("topic {} was just deleted; publish again", self.name);
            return Err(ProtocolError::new(Code::Busy, text));
        }
        if tail.marks.closed {
            return Err(ProtocolError::new(Code::Closing, "the broker stops"));
        }
        let Some(code) = tail.marks.health.refusal() else { return Ok(()) };
        let text = match code {
            Code::Full => {
                format!("the disk is full: {} takes no events until it has room", self.name)
            }
            _ => format!(
                "writing to the disk failed: {} takes no events until the broker starts anew",
                self.name
            ),
        };
        Err(ProtocolError::new(code, text))
    }

    /// After events from `first` on were added: shows them, has them written, wakes who waits.
    fn added(self: &Arc<Self>, mut tail: MutexGuard<'_, Tail>, first: Seq) -> Range<Seq> {
        let head = tail.head();
        if head == first {
            // Who is woken may rely on finding something.
            return first..head;
        }
        let grown = self.shared.memory.account(self, &mut tail);
        let commit = self.wants_commit(&mut tail);
        self.moved(tail);
        if commit {
            self.request_commit(head);
        }
        if grown {
            self.shared.memory.relieve();
        }
        first..head
    }

    /// After a mark has moved: publishes the marks, and wakes the tasks that wait for them.
    fn moved(&self, mut tail: MutexGuard<'_, Tail>) {
        tail.show();
        let pressed = self.shared.memory.is_held_up(&tail);
        self.pressed.store(pressed, Ordering::Relaxed);
        let publishers = if pressed { Vec::new() } else { tail.take_publishers() };
        self.tail.moved(tail, publishers);
    }

    /// Whether a commit is to be asked for, which is noted as done.
    fn wants_commit(&self, tail: &mut Tail) -> bool {
        let head = tail.head();
        // Without a log there are only numbers to be reserved.
        let has_work = match self.log {
            Some(_) => tail.marks.has_work(head),
            None => tail.marks.lacks_numbers(head),
        };
        let wants = !tail.marks.queued && !self.is_deleted() && has_work;
        tail.marks.queued |= wants;
        wants
    }

    /// Whether it is kept on the disk.
    pub(crate) fn is_logged(&self) -> bool {
        self.log.is_some()
    }

    /// The next number to be given.
    pub fn head(&self) -> Seq {
        Seq(self.tail.head())
    }

    /// The next number, as subscribers and people are told it.
    pub(crate) fn next_told(&self) -> Seq {
        if self.shows_safe { self.visible() } else { self.head() }
    }

    /// The number after the newest event that subscribers are shown.
    fn visible(&self) -> Seq {
        Seq(self.tail.mark(Mark::Visible))
    }

    /// The first number that is not yet as safe as the topic promises.
    pub fn durable(&self) -> Seq {
        Seq(self.tail.mark(Mark::Durable))
    }

    /// What has become of an event, and up to which number the same is true of the next ones.
    pub(crate) fn fate(&self, seq: Seq) -> (Fate, Seq) {
        let (durable, has_lost) = self.tail.mark_and_loss(Mark::Durable);
        if has_lost {
            return self.tail.lock().marks.fate(seq);
        }
        let durable = Seq(durable);
        if seq < durable { (Fate::Safe, durable) } else { (Fate::Waiting, Seq(u64::MAX)) }
    }

    /// Where the events begin of which nobody knows whether they are on the disk.
    fn doubtful(&self) -> Seq {
        if self.tail.has_lost() { self.tail.lock().marks.doubtful() } else { Seq(u64::MAX) }
    }

    /// Where what a reader may take ends that waits for this mark.
    fn end(&self, mark: Mark) -> Seq {
        let (end, has_lost) = self.tail.mark_and_loss(mark);
        if has_lost { Seq(end).min(self.tail.lock().marks.doubtful()) } else { Seq(end) }
    }

    /// Has `waker` woken once the durable mark moves beyond `seq`; `None` if it has.
    pub(crate) fn wait_durable(
        &self,
        seq: Seq,
        place: Option<Place>,
        waker: &Waker,
    ) -> Option<Place> {
        self.tail.wait_durable(seq.0, place, waker)
    }

    /// Has `wake` notified once the durable mark moves beyond `seq`, or now if it has.
    pub(crate) fn notify_durable(&self, seq: Seq, wake: &Arc<Notify>) {
        let waker = waker_of(Arc::clone(wake));
        if self.wait_durable(seq, None, &waker).is_none() {
            wake.notify_one();
        }
    }

    /// A group's reader, which begins at `from` and takes what is durable. A number beyond the head
    /// begins at the head; one below what is kept begins with a [`Lag`].
    ///
    /// `wake` is notified when there is something to take after there was nothing.
    pub fn reader(self: &Arc<Self>, from: StartAt, wake: Arc<Notify>) -> Reader {
        self.subscribe(Some(from), Form::Wire, waker_of(wake)).keeping()
    }

    /// Whether there is more in memory than there should be, because it is not on the disk yet or a
    /// group has not taken it. Who publishes waits then: `waker` is woken when that has changed.
    pub(crate) fn is_held_up(&self, waker: Option<&Waker>) -> bool {
        if !self.pressed.load(Ordering::Relaxed) {
            return false;
        }
        let tail = &mut *self.tail.lock();
        let held_up = self.shared.memory.is_held_up(tail);
        if let (true, Some(waker)) = (held_up, waker) {
            tail.wait_to_publish(waker);
        }
        held_up
    }

    /// What every group is done with.
    #[cfg(test)]
    pub(crate) fn taken_by_all(&self) -> Option<Seq> {
        self.tail.lock().taken_by_all()
    }

    /// A group has taken everything before `cursor`: what only it has kept goes.
    fn taken(&self, keeper: usize, cursor: Seq) {
        self.let_go(|tail| tail.taken(keeper, cursor));
    }

    fn forget_keeper(&self, keeper: usize) {
        self.let_go(|tail| tail.forget_keeper(keeper));
    }

    fn let_go(&self, change: impl FnOnce(&mut Tail)) {
        let mut tail = self.tail.lock();
        change(&mut tail);
        self.shared.memory.account(self, &mut tail);
        self.moved(tail);
    }

    /// A reader that wakes a task, and takes events in the given form, by default those that
    /// come. The bare form is there from the head on only.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        from: Option<StartAt>,
        form: Form,
        waker: Waker,
    ) -> Reader {
        let start = {
            let tail = &mut *self.tail.lock();
            tail.enter(form);
            match form {
                Form::Wire => self.resolve(tail, from),
                Form::Bare { .. } => Start::at(tail.head()),
            }
        };
        Reader::new(Arc::clone(self), form, start, waker)
    }

    /// Where a reader begins.
    fn resolve(&self, tail: &Tail, from: Option<StartAt>) -> Start {
        let (here, told) = (tail.first_kept(), tail.next_told());
        let kept = self.log.as_ref().map(|log| log.bounds()).filter(|kept| kept.segments > 0);
        let first = kept.map_or(here, |kept| kept.first.min(here));
        let cursor = match from {
            None => told,
            Some(StartAt::First) => first,
            Some(StartAt::Seq(seq)) => seq,
            Some(StartAt::Last) => return self.resolve_newest(tail, 1, Some(told)),
            Some(StartAt::Newest(count)) => return self.resolve_newest(tail, count, None),
            Some(StartAt::Time(unix_ms)) => match (tail.resolve_time(unix_ms), kept) {
                (Some(seq), _) => seq,
                (None, None) => Seq(1),
                (None, Some(kept)) => {
                    // What is gone and what that was, nobody remembers, but it may have been later.
                    let some_gone = kept.oldest_unix_ms.is_some_and(|oldest| oldest > unix_ms);
                    let cursor = if some_gone { Seq(1) } else { first };
                    return Start { since: Some(unix_ms), ..Start::at(cursor) };
                }
            },
        };
        Start::at(cursor.clamp(Seq(1), told))
    }

    /// Where the newest `count` events begin; if there are fewer, at `otherwise`.
    fn resolve_newest(&self, tail: &Tail, count: u64, otherwise: Option<Seq>) -> Start {
        match tail.newest(count) {
            Ok(seq) => Start::at(seq),
            Err(count) => {
                // The log may hold events after that, of which it is not known whether they are safe.
                let before = tail.first_kept().min(tail.marks.doubtful());
                let newest = Newest { count, before, otherwise };
                let (cursor, unknown) = self.find_newest(newest);
                Start { newest: unknown.map(|_| newest), ..Start::at(cursor) }
            }
        }
    }

    /// Where these events begin, or no later than that, and the segment of the log that has to be
    /// [indexed](Self::index) first.
    fn find_newest(&self, newest: Newest) -> (Seq, Option<Seq>) {
        let Newest { count, before, otherwise } = newest;
        let found = match &self.log {
            Some(log) => log.newest(count, before),
            None => log::Newest { missing: count, from: before, unknown: None },
        };
        if let (1.., None, Some(otherwise)) = (found.missing, found.unknown, otherwise) {
            return (otherwise, None);
        }
        // As many as are missing lie below what is kept, so that the reader is told.
        (Seq(found.from.0.saturating_sub(found.missing).max(1)), found.unknown)
    }

    /// Has the log find out which events the segment that begins at `base` has, for a reader at `from`.
    fn index(&self, base: Seq, from: Seq, waker: &Waker) -> Option<Pending> {
        let log = self.log.as_ref()?;
        self.shared.cold().map(|cold| cold.index(log, base, from, waker))
    }

    /// Asks for events that are not in memory any more.
    fn read_log(
        &self,
        from: Seq,
        at: Option<Position>,
        since: Option<i64>,
        waker: &Waker,
    ) -> Option<Pending> {
        let log = self.log.as_ref()?;
        self.shared.cold().map(|cold| cold.read(log, from, at, since, waker))
    }

    /// Counts for people.
    pub fn show(&self) -> TopicShow {
        let kept = self.log.as_ref().map(|log| log.bounds()).filter(|kept| kept.segments > 0);
        let tail = self.tail.lock();
        TopicShow {
            head: tail.next_told(),
            durable: tail.durable().min(tail.next_told()),
            first_kept: kept.map_or(tail.first_kept(), |kept| kept.first.min(tail.first_kept())),
            bytes: tail.bytes(),
            batches: tail.batches(),
            readers: tail.readers(),
            per_second: tail.rate(self.shared.clock.now()),
            log_bytes: kept.map_or(0, |kept| kept.bytes),
            segments: kept.map_or(0, |kept| kept.segments),
            health: tail.marks.health,
        }
    }

    /// The events of encoded lines, of which the first has the number `first`.
    fn decode<'a>(&'a self, first: Seq, encoded: &'a [u8]) -> impl Iterator<Item = Event> + 'a {
        let payloads = payloads(&self.name, first, encoded);
        payloads.map(|(seq, payload)| Event { seq, payload: payload.into_owned() })
    }
}

/// The payloads of encoded lines of a topic, of which the first has the number `first`.
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

/// A topic in numbers, for people.
#[derive(Debug, Clone, Copy)]
pub struct TopicShow {
    /// The next number to be given.
    pub head: Seq,
    /// The first number that is not as safe as the topic promises.
    pub durable: Seq,
    /// The oldest number kept.
    pub first_kept: Seq,
    /// Bytes of memory of what is kept there.
    pub bytes: usize,
    /// Batches in memory.
    pub batches: usize,
    /// Readers: subscriptions, peers and groups.
    pub readers: usize,
    /// Events per second, averaged over the last ten seconds or so.
    pub per_second: f64,
    /// Bytes of the log's files.
    pub log_bytes: u64,
    /// The log's files.
    pub segments: usize,
    /// Whether it takes events.
    pub health: Health,
}

#[cfg(test)]
mod tests;
