//! The tail of a topic: its newest batches in memory, and who waits for the next one.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;
use slab::Slab;
use tidings_protocol::{Seq, StartAt, encode_msg};

use super::arena::Arena;
use super::batch::{Batch, skip_lines};
use crate::clock::Moment;
use crate::mailbox::ConnId;

/// Encoded bytes after which a batch is closed and the next one begun, so that a reader can be
/// handed about as much as it asked for.
const BATCH_BYTES: usize = 64 << 10;

/// What `MSG <topic> <seq> <payload>` CRLF adds to topic and payload: words, spaces, the longest
/// number, the line end.
const MSG_BYTES: usize = 4 + 1 + 20 + 1 + 2;

/// Time constant of the rate that a topic shows, in milliseconds.
const RATE_MS: f64 = 10_000.0;

/// Which lines a reader receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `MSG <topic> <seq> <payload>`.
    Wire,
    /// The bare payload, without what `origin` sent itself: the notifier's peers.
    Bare {
        /// Whose events are left out.
        origin: ConnId,
    },
}

/// The newest batches of a topic, bounded in bytes.
#[derive(Debug)]
pub(super) struct Tail {
    /// The next number to be given; `first_kept <= head`, and so is every reader's cursor.
    head: Seq,
    /// Oldest first, without holes.
    batches: VecDeque<Batch>,
    wire: Arena,
    bare: Arena,
    /// Readers of the bare form; while there are none it is not encoded.
    bare_readers: usize,
    readers: usize,
    /// What each group has taken: batches from there on are not let go of.
    keepers: Slab<Seq>,
    /// Publishers that wait until groups have taken something.
    publishers: Vec<Waker>,
    /// Readers that have everything. Whoever appends takes all of them and wakes them.
    ///
    /// Those who wait for the durable mark (groups, confirmations) will need a list of their own
    /// beside this one, taken by whoever moves the mark. As long as the mark is the head, it is
    /// this one.
    waiting: Slab<Waker>,
    /// Rises when `waiting` is taken: a place in it is valid in its own epoch only.
    epoch: u64,
    /// When the newest batch that is gone was appended.
    evicted_unix_ms: Option<i64>,
    rate: Rate,
}

/// The place of a reader among those that wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    epoch: u64,
    key: usize,
}

impl Tail {
    /// An empty tail.
    pub(super) fn new() -> Self {
        Self {
            head: Seq(1),
            batches: VecDeque::new(),
            wire: Arena::default(),
            bare: Arena::default(),
            bare_readers: 0,
            readers: 0,
            keepers: Slab::new(),
            publishers: Vec::new(),
            waiting: Slab::new(),
            epoch: 0,
            evicted_unix_ms: None,
            rate: Rate::default(),
        }
    }

    pub(super) fn head(&self) -> Seq {
        self.head
    }

    /// The first number that is not yet as safe as the topic promises; `<= head`, between batches.
    /// Topics are in memory and promise nothing, so this is the head.
    pub(super) fn durable(&self) -> Seq {
        self.head
    }

    /// The oldest event kept; head if there is none.
    pub(super) fn first_kept(&self) -> Seq {
        self.batches.front().map_or(self.head, |batch| batch.first)
    }

    /// Bytes allocated for what is kept.
    pub(super) fn bytes(&self) -> usize {
        self.wire.bytes() + self.bare.bytes() + self.batches.capacity() * size_of::<Batch>()
    }

    pub(super) fn batches(&self) -> usize {
        self.batches.len()
    }

    pub(super) fn readers(&self) -> usize {
        self.readers
    }

    /// Events per second at `now`, averaged over the last ten seconds or so.
    pub(super) fn rate(&self, now: Moment) -> f64 {
        self.rate.at(now)
    }

    /// Encodes and numbers `payloads`, as one batch unless they are many bytes.
    pub(super) fn append<'a>(
        &mut self,
        topic: &str,
        origin: ConnId,
        payloads: impl IntoIterator<Item = &'a str>,
        now: Moment,
        unix_ms: i64,
    ) {
        let newest = self.batches.back().map(|batch| batch.unix_ms).or(self.evicted_unix_ms);
        let unix_ms = newest.map_or(unix_ms, |newest| newest.max(unix_ms));
        let before = self.head;
        let mut first = self.head;
        for payload in payloads {
            let wire = MSG_BYTES + topic.len() + payload.len();
            let bare = if self.bare_readers > 0 { payload.len() + 2 } else { 0 };
            let full = self.wire.open_len() >= BATCH_BYTES;
            if full || !self.wire.has_room(wire) || !self.bare.has_room(bare) {
                self.seal(first, origin, unix_ms);
                first = self.head;
                if !self.wire.has_room(wire) {
                    self.wire.begin_block(wire);
                }
                if !self.bare.has_room(bare) {
                    self.bare.begin_block(bare);
                }
            }
            encode_msg(topic, self.head, payload, self.wire.open());
            if self.bare_readers > 0 {
                self.bare.open().extend_from_slice(payload.as_bytes());
                self.bare.open().extend_from_slice(b"\r\n");
            }
            self.head.0 += 1;
        }
        self.seal(first, origin, unix_ms);
        self.rate.add(self.head.0 - before.0, now);
    }

    fn seal(&mut self, first: Seq, origin: ConnId, unix_ms: i64) {
        let count = self.head.0 - first.0;
        if count > 0 {
            let (wire, bare) = (self.wire.seal(), self.bare.seal());
            self.batches.push_back(Batch { first, count, origin, unix_ms, wire, bare });
        }
    }

    /// Lets go of the oldest batches until at most `bytes_max` are allocated or one batch is left.
    pub(super) fn shrink_to(&mut self, bytes_max: usize) {
        while self.bytes() > bytes_max && self.batches.len() > 1 && self.evict().is_some() {}
    }

    /// A group begins to take events.
    pub(super) fn keep(&mut self, cursor: Seq) -> usize {
        self.keepers.insert(cursor)
    }

    /// A group has taken everything before `cursor`.
    pub(super) fn taken(&mut self, keeper: usize, cursor: Seq) {
        self.keepers[keeper] = cursor;
    }

    pub(super) fn forget_keeper(&mut self, keeper: usize) {
        self.keepers.remove(keeper);
    }

    /// Whether the oldest batch is still to be taken by a group.
    fn is_kept(&self) -> bool {
        let end = self.batches.front().map_or(self.head, Batch::end);
        self.keepers.iter().any(|(_, cursor)| *cursor < end)
    }

    /// Whether there is more than `bytes_max` because a group has not taken it.
    pub(super) fn is_held_up(&self, bytes_max: usize) -> bool {
        self.bytes() > bytes_max && self.batches.len() > 1 && self.is_kept()
    }

    /// Has a publisher woken when a group has taken something.
    pub(super) fn wait_to_publish(&mut self, waker: &Waker) {
        if !self.publishers.iter().any(|waiting| waiting.will_wake(waker)) {
            self.publishers.push(waker.clone());
        }
    }

    /// Takes the publishers that wait.
    pub(super) fn take_publishers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.publishers)
    }

    /// Gives up at least a quarter of its memory because there is not enough for all tails: the
    /// oldest events, and no more of them than it must.
    pub(super) fn give_way(&mut self) {
        let bytes_max = self.bytes() / 4 * 3;
        while self.bytes() > bytes_max
            && self.wire.blocks().max(self.bare.blocks()) > 1
            && self.evict().is_some()
        {}
        if self.bytes() > bytes_max && !self.is_kept() {
            // What is left lies in a block that is too large for it.
            let mut kept: usize = self.batches.iter().map(Batch::bytes).sum();
            while kept > bytes_max
                && let Some(gone) = self.evict()
            {
                kept -= gone.bytes();
            }
            self.repack();
        }
    }

    /// Moves what is kept into memory of just its size. Readers in the middle of something keep
    /// the old memory until they are done.
    fn repack(&mut self) {
        self.wire = Arena::of(self.batches.iter().map(|batch| batch.wire.len()).sum());
        self.bare = Arena::of(self.batches.iter().map(|batch| batch.bare.len()).sum());
        for batch in &mut self.batches {
            batch.wire = self.wire.adopt(&batch.wire);
            batch.bare = self.bare.adopt(&batch.bare);
        }
        self.batches.shrink_to_fit();
    }

    /// Lets go of the oldest batch; `None` if there is none or a group has not taken it yet.
    fn evict(&mut self) -> Option<Batch> {
        if self.is_kept() {
            return None;
        }
        let oldest = self.batches.pop_front()?;
        self.wire.release();
        if !oldest.bare.is_empty() {
            self.bare.release();
        }
        self.evicted_unix_ms = Some(oldest.unix_ms);
        if self.batches.capacity() > 64 && self.batches.len() * 4 < self.batches.capacity() {
            self.batches.shrink_to(self.batches.len() * 2);
        }
        Some(oldest)
    }

    /// Takes the readers that wait, for being woken without the lock.
    pub(super) fn take_waiting(&mut self) -> Slab<Waker> {
        self.epoch += 1;
        std::mem::take(&mut self.waiting)
    }

    /// Gives the memory of [`take_waiting`](Self::take_waiting) back for the next time.
    pub(super) fn give_back(&mut self, woken: Slab<Waker>) {
        if self.waiting.is_empty() && self.waiting.capacity() < woken.capacity() {
            self.waiting = woken;
        }
    }

    /// Has `waker` woken by the next append, once.
    pub(super) fn wait(&mut self, place: Option<Place>, waker: &Waker) -> Place {
        match place {
            Some(place) if place.epoch == self.epoch => place,
            _ => Place { epoch: self.epoch, key: self.waiting.insert(waker.clone()) },
        }
    }

    pub(super) fn enter(&mut self, form: Form) {
        self.readers += 1;
        self.bare_readers += usize::from(form != Form::Wire);
    }

    pub(super) fn leave(&mut self, form: Form, place: Option<Place>) {
        self.readers -= 1;
        self.bare_readers -= usize::from(form != Form::Wire);
        if let Some(place) = place.filter(|place| place.epoch == self.epoch) {
            self.waiting.remove(place.key);
        }
    }

    /// Where a reader that asks for `from` begins. What it asked for and is gone lies below
    /// `first_kept`, so that it is told.
    pub(super) fn resolve(&self, from: Option<StartAt>) -> Seq {
        let seq = match from {
            None => self.head,
            Some(StartAt::First) => self.first_kept(),
            Some(StartAt::Last) => Seq((self.head.0 - 1).max(self.first_kept().0)),
            Some(StartAt::Seq(seq)) => seq,
            Some(StartAt::Newest(n)) => Seq(self.head.0.saturating_sub(n)),
            Some(StartAt::Time(unix_ms)) => self.resolve_time(unix_ms),
        };
        seq.clamp(Seq(1), self.head)
    }

    fn resolve_time(&self, unix_ms: i64) -> Seq {
        if self.evicted_unix_ms.is_some_and(|gone| gone >= unix_ms) {
            // Some of what was asked for is gone; how much, nobody remembers.
            return Seq(1);
        }
        let later = self.batches.partition_point(|batch| batch.unix_ms < unix_ms);
        self.batches.get(later).map_or(self.head, |batch| batch.first)
    }

    /// Hands over what a reader at `cursor` gets next: whole lines from the cursor on, at most
    /// `slices_max` pieces, and no further piece once there are `bytes_max`. Returns the new cursor.
    ///
    /// `first_kept <= cursor <= end <= head`, and `end` lies between batches.
    pub(super) fn read(
        &self,
        mut cursor: Seq,
        end: Seq,
        form: Form,
        bytes_max: usize,
        slices_max: usize,
        mut take: impl FnMut(Seq, Bytes),
    ) -> Seq {
        let start = self.batches.partition_point(|batch| batch.end() <= cursor);
        let (mut bytes, mut slices) = (0, 0);
        for batch in self.batches.range(start..) {
            if slices >= slices_max || bytes >= bytes_max || batch.end() > end {
                break;
            }
            let encoded = match form {
                Form::Wire => Some(&batch.wire),
                // Peers begin at the head, after they were entered, so the bare form is there.
                Form::Bare { origin } => (batch.origin != origin).then_some(&batch.bare),
            };
            if let Some(encoded) = encoded {
                let encoded = skip_lines(encoded, cursor.0 - batch.first.0);
                bytes += encoded.len();
                slices += 1;
                take(cursor, encoded);
            }
            cursor = batch.end();
        }
        cursor
    }
}

/// An exponentially decaying average of events per second.
#[derive(Debug, Default)]
struct Rate {
    per_second: f64,
    at: Moment,
}

impl Rate {
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    fn add(&mut self, events: u64, now: Moment) {
        self.per_second = self.at(now) + events as f64 * 1_000.0 / RATE_MS;
        self.at = now;
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    fn at(&self, now: Moment) -> f64 {
        self.per_second * (-(now.since(self.at) as f64) / RATE_MS).exp()
    }
}
