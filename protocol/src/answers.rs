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
pub enum Fate {
    /// It is as safe as its topic promises (`[A5]`). Final.
    Safe,
    /// Not known yet.
    Waiting,
    /// It was not kept, although it may have been delivered: [`Code::Full`] or
    /// [`Code::NotDurable`]. Final.
    Lost(Code),
}

/// Answers that cannot be sent yet, because an earlier one is missing or an event is still pending.
///
/// - Every command is entered when it is read, in its order (`[A1]`).
/// - A publish is confirmed once it is [`Fate::Safe`], and refused once it is [`Fate::Lost`];
///   [`drain`](Self::drain) receives this state.
/// - Adjacent confirmations become one `+OK <seq> <n>` (`[A3]`). Adjacent refusals of publishes
///   with the same code become one `-ERR <code> n=8-21 <text>` (`[A4]`).
///
/// A run of publishes with consecutive seqs takes one entry however long it is, and
/// [`fold`](Self::fold) merges entries, so a publisher that never reads costs next to nothing. Only
/// refusals that alternate with other answers need one line each.
#[derive(Debug, Default)]
pub struct Answers {
    entries: VecDeque<Entry>,
    /// Publishes entered so far, including refused ones: the next one is number `publishes + 1`.
    publishes: u64,
    /// The answers of the slots in `entries`, in their order.
    slots: VecDeque<Option<Bytes>>,
    /// The slot at the front of `slots`.
    first_slot: u64,
    /// The newest lines before the answer of a slot, if they have not been sent.
    progress: Option<(Slot, Bytes)>,
}

#[derive(Debug)]
enum Entry {
    Published(Run),
    Refused(Refusals),
    /// Complete lines.
    Ready(BytesMut),
    /// The next of `slots`.
    Slot,
}

/// Publishes to one stream with seqs `first..=last`; the last one is the n-th publish.
#[derive(Debug, Clone, Copy)]
struct Run {
    stream: u64,
    first: Seq,
    last: Seq,
    n: u64,
}

impl Run {
    /// Splits off the front, the part with the same durability as the first event. Also returns the
    /// rest, if there is one.
    fn split(self, durability: &impl Fn(u64, Seq) -> (Fate, Seq)) -> (Fate, Self, Option<Self>) {
        let (state, end) = durability(self.stream, self.first);
        if end > self.last {
            return (state, self, None);
        }
        assert!(end > self.first, "the durability of an event applies to that event");
        let last = Seq(end.0 - 1);
        let front = Self { last, n: self.n - (self.last.0 - last.0), ..self };
        (state, front, Some(Self { first: end, ..self }))
    }

    fn refused(self, code: Code) -> Refusals {
        let first_n = self.n - (self.last.0 - self.first.0);
        Refusals { error: lost(code), first_n, last_n: self.n }
    }
}

/// Refused publishes `first_n..=last_n`.
#[derive(Debug)]
struct Refusals {
    error: ProtocolError,
    first_n: u64,
    last_n: u64,
}

impl Refusals {
    /// Takes in the refusals that follow directly, if one line can report both.
    fn absorb(&mut self, next: &Self) -> bool {
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
        push_run(&mut self.entries, Run { stream, first: seq, last: seq, n });
    }

    /// Enters publishes with the seqs from `first` to `last` in the stream, both included.
    pub fn publish_run(&mut self, stream: u64, first: Seq, last: Seq) {
        self.publishes += last.0 - first.0 + 1;
        let n = self.publishes;
        push_run(&mut self.entries, Run { stream, first, last, n });
    }

    /// Enters a publish that is refused.
    pub fn publish_refused(&mut self, error: &ProtocolError) {
        self.publishes += 1;
        let n = self.publishes;
        let refusals = Refusals { error: error.clone(), first_n: n, last_n: n };
        push_refusals(&mut self.entries, refusals);
    }

    /// Enters an answer that is known already: complete lines with their line ends.
    pub fn ready(&mut self, lines: &[u8]) {
        if let Some(Entry::Ready(ready)) = self.entries.back_mut() {
            ready.extend_from_slice(lines);
        } else {
            self.entries.push_back(Entry::Ready(BytesMut::from(lines)));
        }
    }

    /// Enters an answer that follows with [`fill`](Self::fill).
    pub fn later(&mut self) -> Slot {
        self.entries.push_back(Entry::Slot);
        self.slots.push_back(None);
        Slot(self.first_slot + self.slots.len() as u64 - 1)
    }

    /// Sets the answer of a slot: complete lines with their line ends. A second one is ignored.
    pub fn fill(&mut self, slot: Slot, lines: Bytes) {
        let at = slot.0.checked_sub(self.first_slot).and_then(|at| usize::try_from(at).ok());
        if let Some(answer) = at.and_then(|at| self.slots.get_mut(at)) {
            answer.get_or_insert(lines);
        }
    }

    /// Adds complete lines before the answer of a slot, to be sent as soon as possible. Only the
    /// newest are kept, for whichever slot: a client that reads slowly receives the current state,
    /// not its history.
    pub fn progress(&mut self, slot: Slot, lines: Bytes) {
        if !self.has_left(slot) {
            self.progress = Some((slot, lines));
        }
    }

    /// Whether the answer of a slot has been drained, so that what must follow it can be sent.
    pub fn has_left(&self, slot: Slot) -> bool {
        slot.0 < self.first_slot
    }

    /// The stream and seq of the pending publish that blocks everything after it, if one does.
    pub fn unsafe_publish(&self) -> Option<(u64, Seq)> {
        match self.entries.front()? {
            Entry::Published(run) => Some((run.stream, run.first)),
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

    /// Merges adjacent answers to publishes that could be sent as one line, for when nothing can be
    /// written and entries pile up. This does not change what is sent in the end. `durability` as
    /// in [`drain`](Self::drain).
    pub fn fold(&mut self, durability: impl Fn(u64, Seq) -> (Fate, Seq)) {
        let mut kept = VecDeque::new();
        // Whether the newest entry of `kept` is a run that could be confirmed as a whole.
        let mut confirmed = false;
        for entry in self.entries.drain(..) {
            let Entry::Published(run) = entry else {
                confirmed = false;
                match entry {
                    Entry::Refused(refusals) => push_refusals(&mut kept, refusals),
                    entry => kept.push_back(entry),
                }
                continue;
            };
            let mut rest = Some(run);
            while let Some(run) = rest.take() {
                let (state, front, behind) = run.split(&durability);
                match state {
                    Fate::Safe => {
                        if confirmed {
                            // The confirmation of the later run covers the earlier one.
                            kept.pop_back();
                        }
                        kept.push_back(Entry::Published(front));
                        rest = behind;
                    }
                    Fate::Lost(code) => {
                        push_refusals(&mut kept, front.refused(code));
                        rest = behind;
                    }
                    Fate::Waiting => push_run(&mut kept, run),
                }
                confirmed = state == Fate::Safe;
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
    pub fn drain(&mut self, durability: impl Fn(u64, Seq) -> (Fate, Seq), out: &mut BytesMut) {
        let mut last = Open::Nothing;
        while let Some(entry) = self.entries.pop_front() {
            match entry {
                Entry::Published(run) => {
                    let (state, front, rest) = run.split(&durability);
                    if state == Fate::Waiting {
                        self.entries.push_front(Entry::Published(run));
                        break;
                    }
                    if let Some(rest) = rest {
                        self.entries.push_front(Entry::Published(rest));
                    }
                    match state {
                        Fate::Lost(code) => last.refuse(front.refused(code), out),
                        Fate::Safe | Fate::Waiting => last.confirm(front, out),
                    }
                }
                Entry::Refused(refusals) => last.refuse(refusals, out),
                Entry::Ready(lines) => {
                    last.close(out);
                    out.put_slice(&lines);
                }
                Entry::Slot => {
                    let slot = Slot(self.first_slot);
                    if let Some((_, lines)) = self.progress.take_if(|(of, _)| *of == slot) {
                        last.close(out);
                        out.put_slice(&lines);
                    }
                    let Some(lines) = self.slots.front_mut().and_then(Option::take) else {
                        self.entries.push_front(Entry::Slot);
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
        }
    }
}

/// Adds a run, merged with the one before it if their seqs are consecutive. Their publish numbers
/// are consecutive in any case, because anything between two publishes is an entry.
fn push_run(entries: &mut VecDeque<Entry>, next: Run) {
    if let Some(Entry::Published(run)) = entries.back_mut()
        && run.stream == next.stream
        && run.last.0.checked_add(1) == Some(next.first.0)
    {
        (run.last, run.n) = (next.last, next.n);
    } else {
        entries.push_back(Entry::Published(next));
    }
}

fn push_refusals(entries: &mut VecDeque<Entry>, next: Refusals) {
    if let Some(Entry::Refused(refusals)) = entries.back_mut()
        && refusals.absorb(&next)
    {
        return;
    }
    entries.push_back(Entry::Refused(next));
}

/// The line that answers the newest publishes, while it may still grow.
enum Open {
    Nothing,
    Confirmed { seq: Seq, n: u64 },
    Refused(Refusals),
}

impl Open {
    fn confirm(&mut self, run: Run, out: &mut BytesMut) {
        if !matches!(self, Open::Confirmed { .. }) {
            self.close(out);
        }
        *self = Open::Confirmed { seq: run.last, n: run.n };
    }

    fn refuse(&mut self, next: Refusals, out: &mut BytesMut) {
        if let Open::Refused(refusals) = self
            && refusals.absorb(&next)
        {
            return;
        }
        self.close(out);
        *self = Open::Refused(next);
    }

    fn close(&mut self, out: &mut BytesMut) {
        match std::mem::replace(self, Open::Nothing) {
            Open::Nothing => {}
            Open::Confirmed { seq, n } => encode_published(seq, n, out),
            Open::Refused(Refusals { error, first_n, last_n }) => {
                error.encode_numbered(Some((first_n, last_n)), out);
            }
        }
    }
}

/// The refusal of an event that had a seq, and may have been delivered, before it turned out that
/// it cannot be kept.
fn lost(code: Code) -> ProtocolError {
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
