//! The tail of a topic: its newest batches in memory, and the tasks that wait for the next one.

use std::collections::VecDeque;
use std::task::Waker;

use slab::Slab;
use tidings_concurrent::{Levels, Mark, Waiters, Watermarks};
use tidings_log::LogPiece;
use tidings_protocol::{MsgEncoder, Seq};

use super::arena::Arena;
use super::batch::{Batch, skip_lines};
use super::dedup_window::DedupWindow;
use super::reader::EventRun;
use super::watermarks::{Health, TopicWatermarks};
use crate::clock::Moment;
use crate::mailbox::ConnId;

/// A batch is sealed at this size, so that a reader receives about as many bytes as it requested.
const BATCH_BYTES: usize = 64 << 10;

/// Number of newest batches that are searched linearly before a binary search.
const LINEAR_SEARCH_BATCHES: usize = 4;

/// Bytes that `MSG <topic> <seq> <payload>` CRLF adds to topic and payload: the word, the spaces,
/// the longest seq and the line end.
const MSG_BYTES: usize = 4 + 1 + 20 + 1 + 2;

/// Time constant of the event rate, in milliseconds.
const RATE_MS: f64 = 10_000.0;

/// The form of the lines that a reader receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineForm {
    /// `MSG <topic> <seq> <payload>`.
    Wire,
    /// The payload alone, for peers. A peer does not receive the events that it sent (`origin`).
    Bare {
        /// Events of this connection are left out.
        origin: ConnId,
    },
}

/// The newest batches of a topic, bounded in bytes.
#[derive(Debug)]
pub(super) struct Tail {
    /// The next seq to assign; `first_kept <= head`, and `cursor <= head` for every reader.
    pub(super) head: Seq,
    /// The seq after the newest event that readers may see; always between batches.
    pub(super) visible: Seq,
    /// Which events are durable, reserved or lost.
    pub(super) watermarks: TopicWatermarks,
    /// The topic has a log: durable events can be read there, so only the others must stay here.
    is_logged: bool,
    /// Oldest first. A crash or a full disk leaves gaps.
    batches: VecDeque<Batch>,
    wire: Arena,
    bare: Arena,
    /// Bytes of batches that are not durable yet.
    uncommitted_bytes: usize,
    /// Readers see only durable events. Otherwise an event could be seen, lost in a crash, and
    /// published again under another seq.
    pub(super) is_durable_only: bool,
    /// Readers of bare lines. While there are none, bare lines are not encoded.
    bare_readers: usize,
    pub(super) readers: usize,
    /// The cursor of each group. Everything from the lowest one on is kept, here or in the log.
    consumers: Slab<Seq>,
    /// Publishers that wait until less data must stay in memory.
    waiting_publishers: Vec<Waker>,
    /// Readers that have read everything. An append takes and wakes all of them.
    visible_waiters: Waiters,
    /// Tasks that wait for the durable mark: groups and confirmations.
    durable_waiters: Waiters,
    /// The ids of the newest events.
    pub(super) dedup_window: DedupWindow,
    /// Append time of the newest evicted batch.
    evicted_unix_ms: Option<i64>,
    rate: EventRate,
}

impl Tail {
    /// An empty tail that begins at `next`. `newest_unix_ms` is the append time of the event before
    /// it.
    pub(super) fn new(
        watermarks: TopicWatermarks,
        is_logged: bool,
        newest_unix_ms: Option<i64>,
    ) -> Self {
        Self {
            head: watermarks.durable,
            visible: watermarks.durable,
            watermarks,
            is_logged,
            batches: VecDeque::new(),
            wire: Arena::default(),
            bare: Arena::default(),
            uncommitted_bytes: 0,
            is_durable_only: false,
            bare_readers: 0,
            readers: 0,
            consumers: Slab::new(),
            waiting_publishers: Vec::new(),
            visible_waiters: Waiters::default(),
            durable_waiters: Waiters::default(),
            dedup_window: DedupWindow::default(),
            evicted_unix_ms: newest_unix_ms,
            rate: EventRate::default(),
        }
    }

    /// Restricts readers to durable events from now on.
    pub(super) fn show_durable_only(&mut self) {
        self.is_durable_only = true;
        self.watermarks.disable_reservation();
    }

    /// The next seq, as others may know it. If readers see durable events only, an assigned seq
    /// that is not durable may be assigned again.
    pub(super) fn public_head(&self) -> Seq {
        if self.is_durable_only { self.visible } else { self.head }
    }

    /// The first seq that is not yet as safe as the topic promises; `<= head`, always between
    /// batches.
    pub(super) fn durable(&self) -> Seq {
        self.watermarks.durable
    }

    /// The oldest event in memory; the head if there is none.
    pub(super) fn first_kept(&self) -> Seq {
        self.batches.front().map_or(self.head, |batch| batch.first)
    }

    pub(super) fn bytes(&self) -> usize {
        self.wire.bytes + self.bare.bytes + self.batches.capacity() * size_of::<Batch>()
    }

    pub(super) fn batches(&self) -> usize {
        self.batches.len()
    }

    /// Events per second at `now`, averaged over the last ten seconds or so.
    pub(super) fn rate(&self, now: Moment) -> f64 {
        self.rate.at(now)
    }

    /// Encodes `payloads` and assigns seqs, in one batch unless they are too many bytes.
    /// `identified`: at least one payload has an `id=`.
    pub(super) fn append<'a>(
        &mut self,
        topic: &str,
        origin: ConnId,
        payloads: impl IntoIterator<Item = &'a str>,
        identified: bool,
        now: Moment,
        unix_ms: i64,
    ) {
        let newest = self.batches.back().map(|batch| batch.unix_ms).or(self.evicted_unix_ms);
        let unix_ms = newest.map_or(unix_ms, |newest| newest.max(unix_ms));
        let before = self.head;
        let mut first = self.head;
        let mut encoder = MsgEncoder::new(topic, first);
        for payload in payloads {
            let wire = MSG_BYTES + topic.len() + payload.len();
            let bare = if self.bare_readers > 0 { payload.len() + 2 } else { 0 };
            let full = self.wire.open_len() >= BATCH_BYTES;
            if full || !self.wire.has_room(wire) || !self.bare.has_room(bare) {
                self.seal(first, origin, identified, unix_ms);
                first = self.head;
                if !self.wire.has_room(wire) {
                    self.wire.begin_block(wire);
                }
                if !self.bare.has_room(bare) {
                    self.bare.begin_block(bare);
                }
            }
            encoder.encode(payload, self.wire.open());
            if self.bare_readers > 0 {
                self.bare.open().extend_from_slice(payload.as_bytes());
                self.bare.open().extend_from_slice(b"\r\n");
            }
            self.head.0 += 1;
        }
        self.seal(first, origin, identified, unix_ms);
        self.rate.add(self.head.0 - before.0, now);
    }

    fn seal(&mut self, first: Seq, origin: ConnId, identified: bool, unix_ms: i64) {
        let count = self.head.0 - first.0;
        if count > 0 {
            let (wire, bare) = (self.wire.seal(), self.bare.seal());
            self.uncommitted_bytes += wire.len();
            self.batches.push_back(Batch {
                first,
                count,
                origin,
                unix_ms,
                wire,
                bare,
                identified,
                lost: false,
            });
        }
    }

    /// Advances the visible mark. In memory, a visible event is as safe as the topic promises, and
    /// its seq must not be assigned again either.
    pub(super) fn advance_visible(&mut self) {
        let before = self.visible;
        if self.head <= self.watermarks.reserved {
            self.visible = self.head;
        } else {
            let reserved = self.watermarks.reserved;
            let shown = self.batches.partition_point(|batch| batch.end() <= reserved);
            let end = shown.checked_sub(1).map(|newest| self.batches[newest].end());
            self.visible = end.map_or(before, |end| end.max(before));
        }
        if self.is_durable_only {
            self.visible = self.visible.min(self.watermarks.durable.max(before));
        }
        if !self.is_logged {
            self.uncommitted_bytes = 0;
            self.watermarks.durable = self.watermarks.durable.max(self.visible);
            self.watermarks.submitted = self.watermarks.durable;
        }
    }

    /// Takes the batches that were not handed to the log yet: up to `bytes_max`, and at least one.
    pub(super) fn take_pieces(&mut self, bytes_max: usize) -> Vec<LogPiece> {
        let start = self.batch_index(self.watermarks.submitted);
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        for batch in self.batches.range(start..).filter(|batch| !batch.lost) {
            if bytes > 0 && bytes + batch.wire.len() > bytes_max {
                break;
            }
            bytes += batch.wire.len();
            self.watermarks.submitted = batch.end();
            pieces.push(LogPiece {
                first: batch.first,
                count: batch.count,
                unix_ms: batch.unix_ms,
                wire: batch.wire.clone(),
                identified: batch.identified,
            });
        }
        pieces
    }

    /// Bytes that wait for the committer.
    pub(super) fn waiting_bytes(&self) -> usize {
        let start = self.batch_index(self.watermarks.submitted);
        self.batches.range(start..).map(|batch| batch.wire.len()).sum()
    }

    /// Records that events before `durable` are safe and seqs before `reserved` are reserved.
    pub(super) fn set_durable(&mut self, durable: Seq, reserved: Seq) {
        let (start, end) = (self.batch_index(self.watermarks.durable), self.batch_index(durable));
        let settled: usize = self.batches.range(start..end).map(|batch| batch.wire.len()).sum();
        self.uncommitted_bytes -= settled;
        self.watermarks.advance(durable, reserved);
    }

    /// Records that seqs before `reserved` are reserved, and clears an earlier failure.
    pub(super) fn set_reserved(&mut self, reserved: Seq) {
        self.watermarks.is_queued = false;
        self.watermarks.health = Health::Good;
        self.watermarks.advance(self.watermarks.durable, reserved);
    }

    /// Marks every event that is not durable as lost.
    pub(super) fn mark_lost(&mut self, health: Health) {
        let lost = self.watermarks.mark_lost(self.head, health);
        let start = self.batches.partition_point(|batch| batch.end() <= lost.start);
        for batch in self.batches.range_mut(start..) {
            batch.lost = true;
        }
        self.dedup_window.forget_from(lost.start);
        self.uncommitted_bytes = 0;
    }

    /// Counts the lost seqs from `end` on that are in memory.
    pub(super) fn lost_from(&self, end: Seq) -> u64 {
        if !self.watermarks.has_lost() {
            return 0;
        }
        let start = self.batches.partition_point(|batch| batch.end() <= end);
        let lost = self.batches.range(start..).filter(|batch| batch.lost);
        lost.map(|batch| batch.end().0 - batch.first.max(end).0).sum()
    }

    /// Evicts the oldest batches until at most `bytes_max` are allocated or one batch is left.
    pub(super) fn shrink_to(&mut self, bytes_max: usize) {
        while self.bytes() > bytes_max && self.batches.len() > 1 && self.evict().is_some() {}
    }

    pub(super) fn add_consumer(&mut self, cursor: Seq) -> usize {
        self.consumers.insert(cursor)
    }

    /// A group has consumed everything before `cursor`.
    pub(super) fn set_consumed(&mut self, keeper: usize, cursor: Seq) {
        self.consumers[keeper] = cursor;
    }

    pub(super) fn remove_consumer(&mut self, keeper: usize) {
        self.consumers.remove(keeper);
    }

    /// The seq before which every group has consumed the events.
    pub(super) fn consumed_by_all(&self) -> Option<Seq> {
        self.consumers.iter().map(|(_, cursor)| *cursor).min()
    }

    /// Whether the oldest batch must stay: it is not durable yet or, without a log, a group has not
    /// consumed it.
    fn is_oldest_needed(&self) -> bool {
        let end = self.batches.front().map_or(self.head, Batch::end);
        let needed =
            if self.is_logged { Some(self.watermarks.durable) } else { self.consumed_by_all() };
        needed.is_some_and(|needed| needed < end)
    }

    /// Whether publishers must wait, because too much in memory is not durable or was not consumed
    /// by a group. A topic that accepts no events rejects publishers at once, so none waits for it.
    pub(super) fn is_backpressured(&self, bytes_max: usize, ahead_max: usize) -> bool {
        if self.watermarks.health != Health::Good {
            return false;
        }
        if self.is_logged {
            let waits_for_numbers = !self.is_durable_only && self.head > self.watermarks.reserved;
            return self.uncommitted_bytes > ahead_max || waits_for_numbers;
        }
        self.head > self.watermarks.reserved
            || self.bytes() > bytes_max && self.batches.len() > 1 && self.is_oldest_needed()
    }

    /// Wakes a publisher when a group has consumed something.
    pub(super) fn wait_to_publish(&mut self, waker: &Waker) {
        if !self.waiting_publishers.iter().any(|waiting| waiting.will_wake(waker)) {
            self.waiting_publishers.push(waker.clone());
        }
    }

    pub(super) fn take_publishers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.waiting_publishers)
    }

    /// Frees at least a quarter of the memory, because all tails together exceed their limit.
    /// Evicts the oldest events, and no more than necessary.
    pub(super) fn evict_quarter(&mut self) {
        let bytes_max = self.bytes() / 4 * 3;
        while self.bytes() > bytes_max
            && self.wire.blocks().max(self.bare.blocks()) > 1
            && self.evict().is_some()
        {}
        if self.bytes() > bytes_max && !self.is_oldest_needed() {
            // The remaining batches lie in a block that is too large for them.
            let mut kept: usize = self.batches.iter().map(Batch::bytes).sum();
            while kept > bytes_max
                && let Some(evicted) = self.evict()
            {
                kept -= evicted.bytes();
            }
            self.repack();
        }
    }

    /// Moves the batches into memory of exactly their size. A reader that still holds slices keeps
    /// the old memory alive until it drops them.
    fn repack(&mut self) {
        self.wire = Arena::with_block(self.batches.iter().map(|batch| batch.wire.len()).sum());
        self.bare = Arena::with_block(self.batches.iter().map(|batch| batch.bare.len()).sum());
        for batch in &mut self.batches {
            batch.wire = self.wire.copy_in(&batch.wire);
            batch.bare = self.bare.copy_in(&batch.bare);
        }
        self.batches.shrink_to_fit();
    }

    /// Evicts the oldest batch; `None` if there is none or it must stay.
    fn evict(&mut self) -> Option<Batch> {
        if self.is_oldest_needed() {
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

    pub(super) fn add_reader(&mut self, form: LineForm) {
        self.readers += 1;
        self.bare_readers += usize::from(form != LineForm::Wire);
    }

    pub(super) fn remove_reader(&mut self, form: LineForm) {
        self.readers -= 1;
        self.bare_readers -= usize::from(form != LineForm::Wire);
    }

    /// The seq of the first of the newest `count` events; if there are fewer here, how many are
    /// missing. Lost events do not count.
    pub(super) fn newest(&self, count: u64) -> Result<Seq, u64> {
        let next = self.public_head();
        if !self.watermarks.has_lost() {
            // Then every seq here has an event.
            let here = next.0.saturating_sub(self.first_kept().0);
            return if count <= here { Ok(Seq(next.0 - count)) } else { Err(count - here) };
        }
        let mut missing = count;
        for batch in self.batches.iter().rev().filter(|batch| !batch.lost && batch.end() <= next) {
            if missing <= batch.count {
                return Ok(Seq(batch.end().0 - missing));
            }
            missing -= batch.count;
        }
        Err(missing)
    }

    /// The first event at or after this time; `None` if an evicted event may also be that recent.
    pub(super) fn resolve_time(&self, unix_ms: i64) -> Option<Seq> {
        if self.evicted_unix_ms.is_some_and(|evicted| evicted >= unix_ms) {
            return None;
        }
        let later = self.batches.partition_point(|batch| batch.unix_ms < unix_ms);
        Some(self.batches.get(later).map_or(self.head, |batch| batch.first))
    }

    /// The first batch that ends after `cursor`. Nearly all readers want the newest one.
    fn batch_index(&self, cursor: Seq) -> usize {
        let near = self.batches.len().saturating_sub(LINEAR_SEARCH_BATCHES);
        match self.batches.get(near) {
            Some(batch) if batch.end() <= cursor => {
                let newest = self.batches.range(near..);
                near + newest.take_while(|batch| batch.end() <= cursor).count()
            }
            _ => self.batches.partition_point(|batch| batch.end() <= cursor),
        }
    }

    /// Passes the next lines for a reader at `cursor` to `take`: at most `runs_max`
    /// runs, and no further run after `bytes_max`. Returns the new cursor.
    ///
    /// `first_kept <= cursor <= end <= head`, and `end` lies between batches.
    pub(super) fn read(
        &self,
        mut cursor: Seq,
        end: Seq,
        form: LineForm,
        bytes_max: usize,
        runs_max: usize,
        mut take: impl FnMut(EventRun),
    ) -> Seq {
        let start = self.batch_index(cursor);
        let (mut bytes, mut runs) = (0, 0);
        for batch in self.batches.range(start..) {
            let hole = batch.lost || batch.first > cursor;
            if hole || runs >= runs_max || bytes >= bytes_max || batch.end() > end {
                break;
            }
            let encoded = match form {
                LineForm::Wire => Some(&batch.wire),
                // A peer begins at the head after it was counted as a reader, so its bare lines
                // exist.
                LineForm::Bare { origin } => (batch.origin != origin).then_some(&batch.bare),
            };
            if let Some(encoded) = encoded {
                let lines = skip_lines(encoded, cursor.0 - batch.first.0);
                bytes += lines.len();
                runs += 1;
                let unix_ms = batch.unix_ms;
                take(EventRun { first: cursor, unix_ms, later: Vec::new(), lines });
            }
            cursor = batch.end();
        }
        cursor
    }

    /// If no event is at `cursor`, the seq of the next event. `cursor < end`, and both are at or
    /// above `first_kept`.
    pub(super) fn gap_end(&self, cursor: Seq, end: Seq) -> Option<Seq> {
        let start = self.batch_index(cursor);
        let there = self.batches.range(start..).find(|batch| !batch.lost);
        let next = there.map_or(end, |batch| batch.first.min(end));
        (next > cursor).then_some(next)
    }
}

impl Watermarks for Tail {
    fn levels(&self) -> Levels {
        Levels {
            head: self.head.0,
            visible: self.visible.0,
            durable: self.watermarks.durable.0,
            has_lost: self.watermarks.has_lost(),
        }
    }

    fn waiters(&mut self, mark: Mark) -> &mut Waiters {
        match mark {
            Mark::Visible => &mut self.visible_waiters,
            Mark::Durable => &mut self.durable_waiters,
        }
    }
}

/// An exponentially decaying average of events per second.
#[derive(Debug, Default)]
struct EventRate {
    per_second: f64,
    at: Moment,
}

impl EventRate {
    #[expect(clippy::cast_precision_loss, reason = "a rate for display")]
    fn add(&mut self, events: u64, now: Moment) {
        self.per_second = self.at(now) + events as f64 * 1_000.0 / RATE_MS;
        self.at = now;
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate for display")]
    fn at(&self, now: Moment) -> f64 {
        self.per_second * (-(now.since(self.at) as f64) / RATE_MS).exp()
    }
}
