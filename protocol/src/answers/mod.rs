//! The answers of one connection, in the order of its commands, and folded where possible.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};

use crate::reply::encode_published;
use crate::{Code, ProtocolError, Seq};

/// A reserved place in the order of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u64);

impl Slot {
    /// The n-th place, for callers without [`Answers`] that send one command at a time.
    pub fn numbered(n: u64) -> Self {
        Self(n)
    }
}

/// What became of an event that has a seq.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Durability {
    /// It is as safe as its topic promises (`[A5]`). Final.
    Durable,
    /// Not known yet.
    Pending,
    /// It was not kept, although it may have been delivered: [`Code::Full`] or
    /// [`Code::NotDurable`]. Final.
    Lost(Code),
}

/// Answers that cannot be sent yet, because an earlier one is missing or an event is still pending.
///
/// - Every command is entered when it is read, in its order (`[A1]`).
/// - A publish is confirmed once it is [`Durability::Durable`], and refused once it is
///   [`Durability::Lost`]; [`drain`](Self::drain) receives this state.
/// - Adjacent confirmations become one `+OK <seq> <n>` (`[A3]`). Adjacent refusals of publishes
///   with the same code become one `-ERR <code> n=8-21 <text>` (`[A4]`).
///
/// A run of publishes with consecutive seqs takes one entry however long it is, and
/// [`fold`](Self::fold) merges entries, so a publisher that never reads costs next to nothing. Only
/// refusals that alternate with other answers need one line each.
#[derive(Debug, Default)]
pub struct Answers {
    entries: VecDeque<AnswerEntry>,
    /// Publishes entered so far, including refused ones: the next one is number `publishes + 1`.
    publishes: u64,
    /// The answers of the slots in `entries`, in their order.
    slots: VecDeque<Option<Bytes>>,
    /// The slot at the front of `slots`.
    first_slot: u64,
    /// The newest lines before the answer of a slot, if they have not been sent.
    progress: Option<(Slot, Bytes)>,
    /// An upper bound of the bytes in `entries` and `slots`: 0 when there are none.
    bytes: usize,
    has_failed_publish: bool,
}

#[derive(Debug)]
enum AnswerEntry {
    Published(PublishRun),
    Refused(RefusedRun),
    /// Complete lines.
    Ready(BytesMut),
    /// The next of `slots`.
    Slot,
}

/// Publishes to one stream with seqs `first..=last`; the last one is the n-th publish.
#[derive(Debug, Clone, Copy)]
struct PublishRun {
    stream: u64,
    first: Seq,
    last: Seq,
    n: u64,
}

impl PublishRun {
    /// Splits off the front, the part with the same durability as the first event. Also returns the
    /// rest, if there is one.
    fn split(
        self,
        durability: &impl Fn(u64, Seq) -> (Durability, Seq),
    ) -> (Durability, Self, Option<Self>) {
        let (state, end) = durability(self.stream, self.first);
        if end > self.last {
            return (state, self, None);
        }
        assert!(end > self.first, "the durability of an event applies to that event");
        let last = Seq(end.0 - 1);
        let front = Self { last, n: self.n - (self.last.0 - last.0), ..self };
        (state, front, Some(Self { first: end, ..self }))
    }

    fn refused(self, code: Code) -> RefusedRun {
        let first_n = self.n - (self.last.0 - self.first.0);
        RefusedRun { error: lost_error(code), first_n, last_n: self.n }
    }
}

/// Refused publishes `first_n..=last_n`.
#[derive(Debug)]
struct RefusedRun {
    error: ProtocolError,
    first_n: u64,
    last_n: u64,
}

impl RefusedRun {
    /// Takes in the refusals that follow directly, if one line can report both.
    fn merge(&mut self, next: &Self) -> bool {
        let absorbs = self.error.code == next.error.code;
        if absorbs {
            self.last_n = next.last_n;
        }
        absorbs
    }
}

impl Answers {
    /// No answers yet.
    pub fn new() -> Self {
        Answers::default()
    }

    /// Enters a publish with this seq in the stream. It is confirmed once durable.
    pub fn publish(&mut self, stream: u64, seq: Seq) {
        self.publishes += 1;
        let n = self.publishes;
        push_run(&mut self.entries, PublishRun { stream, first: seq, last: seq, n });
    }

    /// Enters publishes with the seqs from `first` to `last` in the stream, both included.
    pub fn publish_run(&mut self, stream: u64, first: Seq, last: Seq) {
        self.publishes += last.0 - first.0 + 1;
        let n = self.publishes;
        push_run(&mut self.entries, PublishRun { stream, first, last, n });
    }

    /// Enters a publish that is refused.
    pub fn publish_refused(&mut self, error: &ProtocolError) {
        self.publishes += 1;
        self.has_failed_publish = true;
        let n = self.publishes;
        let refusals = RefusedRun { error: error.clone(), first_n: n, last_n: n };
        push_refusals(&mut self.entries, refusals);
    }

    /// Enters an answer that is known already: `encode` appends complete lines with their line ends.
    pub fn push(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        if !matches!(self.entries.back(), Some(AnswerEntry::Ready(_))) {
            self.entries.push_back(AnswerEntry::Ready(BytesMut::new()));
        }
        if let Some(AnswerEntry::Ready(ready)) = self.entries.back_mut() {
            let before = ready.len();
            encode(ready);
            self.bytes += ready.len() - before;
        }
    }

    /// Enters an answer that follows with [`fill`](Self::fill).
    pub fn reserve(&mut self) -> Slot {
        self.entries.push_back(AnswerEntry::Slot);
        self.slots.push_back(None);
        Slot(self.first_slot + self.slots.len() as u64 - 1)
    }

    /// Sets the answer of a slot: complete lines with their line ends. A second one is ignored.
    pub fn fill(&mut self, slot: Slot, lines: Bytes) {
        let at = slot.0.checked_sub(self.first_slot).and_then(|at| usize::try_from(at).ok());
        if let Some(answer) = at.and_then(|at| self.slots.get_mut(at)) {
            self.bytes += lines.len();
            answer.get_or_insert(lines);
        }
    }

    /// Adds complete lines before the answer of a slot, to be sent as soon as possible. Only the
    /// newest are kept, for whichever slot: a client that reads slowly receives the current state,
    /// not its history.
    pub fn progress(&mut self, slot: Slot, lines: Bytes) {
        if !self.is_drained(slot) {
            self.progress = Some((slot, lines));
        }
    }

    /// Whether the answer of a slot has been drained, so that what must follow it can be sent.
    pub fn is_drained(&self, slot: Slot) -> bool {
        slot.0 < self.first_slot
    }

    /// The stream and seq of the pending publish that blocks everything after it, if one does.
    pub fn blocking_publish(&self) -> Option<(u64, Seq)> {
        match self.entries.front()? {
            AnswerEntry::Published(run) => Some((run.stream, run.first)),
            _ => None,
        }
    }

    /// The number of entries, a run of publishes counted once. It bounds the memory.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether everything has been answered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// An upper bound of the bytes of the answers that are known.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a publish was refused, or was lost after it was accepted.
    pub fn has_failed_publish(&self) -> bool {
        self.has_failed_publish
    }

    /// Merges adjacent answers to publishes that could be sent as one line, for when nothing can be
    /// written and entries pile up. This does not change what is sent in the end. `durability` as
    /// in [`drain`](Self::drain).
    pub fn fold(&mut self, durability: impl Fn(u64, Seq) -> (Durability, Seq)) {
        let mut kept = VecDeque::new();
        // Whether the newest entry of `kept` is a run that could be confirmed as a whole.
        let mut confirmed = false;
        for entry in self.entries.drain(..) {
            let AnswerEntry::Published(run) = entry else {
                confirmed = false;
                match entry {
                    AnswerEntry::Refused(refusals) => push_refusals(&mut kept, refusals),
                    entry => kept.push_back(entry),
                }
                continue;
            };
            let mut rest = Some(run);
            while let Some(run) = rest.take() {
                let (state, front, behind) = run.split(&durability);
                match state {
                    Durability::Durable => {
                        if confirmed {
                            // The confirmation of the later run covers the earlier one.
                            kept.pop_back();
                        }
                        kept.push_back(AnswerEntry::Published(front));
                        rest = behind;
                    }
                    Durability::Lost(code) => {
                        self.has_failed_publish = true;
                        push_refusals(&mut kept, front.refused(code));
                        rest = behind;
                    }
                    Durability::Pending => push_run(&mut kept, run),
                }
                confirmed = state == Durability::Durable;
            }
        }
        self.entries = kept;
    }

    /// Appends every answer that can be sent now. `durability` returns the state of an event of a
    /// stream (the caller's number for a topic), and the first later seq to which this state does
    /// not apply.
    ///
    /// There may be more answers after a call of any other method, and after an event has become
    /// durable or lost.
    pub fn drain(
        &mut self,
        durability: impl Fn(u64, Seq) -> (Durability, Seq),
        out: &mut BytesMut,
    ) {
        let mut last = OpenLine::Nothing;
        while let Some(entry) = self.entries.pop_front() {
            match entry {
                AnswerEntry::Published(run) => {
                    let (state, front, rest) = run.split(&durability);
                    if state == Durability::Pending {
                        self.entries.push_front(AnswerEntry::Published(run));
                        break;
                    }
                    if let Some(rest) = rest {
                        self.entries.push_front(AnswerEntry::Published(rest));
                    }
                    match state {
                        Durability::Lost(code) => {
                            self.has_failed_publish = true;
                            last.refuse(front.refused(code), out);
                        }
                        Durability::Durable | Durability::Pending => last.confirm(front, out),
                    }
                }
                AnswerEntry::Refused(refusals) => last.refuse(refusals, out),
                AnswerEntry::Ready(lines) => {
                    last.close(out);
                    out.put_slice(&lines);
                }
                AnswerEntry::Slot => {
                    let slot = Slot(self.first_slot);
                    if let Some((_, lines)) = self.progress.take_if(|(of, _)| *of == slot) {
                        last.close(out);
                        out.put_slice(&lines);
                    }
                    let Some(lines) = self.slots.front_mut().and_then(Option::take) else {
                        self.entries.push_front(AnswerEntry::Slot);
                        break;
                    };
                    self.slots.pop_front();
                    self.first_slot += 1;
                    last.close(out);
                    out.put_slice(&lines);
                }
            }
        }
        last.close(out);
        if self.entries.is_empty() {
            // There may be tens of thousands of connections, most of them idle. No slot is left
            // either, because each has its entry.
            self.entries = VecDeque::new();
            self.slots = VecDeque::new();
            self.bytes = 0;
        }
    }
}

/// Adds a run, merged with the one before it if their seqs are consecutive. Their publish numbers
/// are consecutive in any case, because anything between two publishes is an entry.
fn push_run(entries: &mut VecDeque<AnswerEntry>, next: PublishRun) {
    if let Some(AnswerEntry::Published(run)) = entries.back_mut()
        && run.stream == next.stream
        && run.last.0.checked_add(1) == Some(next.first.0)
    {
        (run.last, run.n) = (next.last, next.n);
    } else {
        entries.push_back(AnswerEntry::Published(next));
    }
}

fn push_refusals(entries: &mut VecDeque<AnswerEntry>, next: RefusedRun) {
    if let Some(AnswerEntry::Refused(refusals)) = entries.back_mut()
        && refusals.merge(&next)
    {
        return;
    }
    entries.push_back(AnswerEntry::Refused(next));
}

/// The line that answers the newest publishes, while it may still grow.
enum OpenLine {
    Nothing,
    Confirmed { seq: Seq, n: u64 },
    Refused(RefusedRun),
}

impl OpenLine {
    fn confirm(&mut self, run: PublishRun, out: &mut BytesMut) {
        if !matches!(self, OpenLine::Confirmed { .. }) {
            self.close(out);
        }
        *self = OpenLine::Confirmed { seq: run.last, n: run.n };
    }

    fn refuse(&mut self, next: RefusedRun, out: &mut BytesMut) {
        if let OpenLine::Refused(refusals) = self
            && refusals.merge(&next)
        {
            return;
        }
        self.close(out);
        *self = OpenLine::Refused(next);
    }

    fn close(&mut self, out: &mut BytesMut) {
        match std::mem::replace(self, OpenLine::Nothing) {
            OpenLine::Nothing => {}
            OpenLine::Confirmed { seq, n } => encode_published(seq, n, out),
            OpenLine::Refused(RefusedRun { error, first_n, last_n }) => {
                error.encode_numbered(Some((first_n, last_n)), out);
            }
        }
    }
}

/// The refusal of an event that had a seq, and may have been delivered, before it turned out that
/// it cannot be kept.
fn lost_error(code: Code) -> ProtocolError {
    let text = match code {
        Code::Full => {
            "the disk is full: the event was not kept, although subscribers may have received it; \
             publish it again later"
        }
        Code::NotDurable => {
            "writing to the disk failed: the event may be lost, although subscribers may have \
             received it; publish it again when the broker was repaired"
        }
        _ => "the event was not kept, although subscribers may have received it",
    };
    ProtocolError::new(code, text)
}

#[cfg(test)]
mod tests;
