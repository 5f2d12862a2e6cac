//! The answers of one connection: in the order of its commands, folded where they may be.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};

use crate::reply::encode_published;
use crate::{Code, ProtocolError, Seq};

/// A place in the order of answers whose answer comes later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u64);

/// Answers that may not leave yet, because an earlier one is missing or an event is not durable.
///
/// - Every command is entered when it is read, in its order ([A1]).
/// - A publish may be confirmed once the durable mark of its stream (the caller's number for a
///   topic) has passed it; the mark comes in with [`drain`](Self::drain).
/// - Adjacent confirmations become one `+OK <seq> <n>` ([A3]), adjacent refusals of publishes
///   with the same code one `-ERR <code> n=8-21 <text>` ([A4]).
///
/// A run of publishes whose numbers follow each other takes one entry however long it is, so a
/// producer that never reads costs next to nothing.
#[derive(Debug, Default)]
pub struct Answers {
    entries: VecDeque<Entry>,
    /// Publishes entered so far, refused ones included: the next one is number `publishes + 1`.
    publishes: u64,
    /// The answers of slots that stand in `entries`, in their order.
    slots: VecDeque<Option<Bytes>>,
    /// The slot at the front of `slots`.
    first_slot: u64,
}

#[derive(Debug)]
enum Entry {
    /// Publishes to one stream with numbers `first..=last`; the last one is the n-th publish.
    Published { stream: u64, first: Seq, last: Seq, n: u64 },
    /// Refused publishes `first_n..=last_n`.
    Refused { code: Code, text: String, first_n: u64, last_n: u64 },
    /// Complete lines.
    Ready(BytesMut),
    /// The next of `slots`.
    Slot,
}

impl Answers {
    /// Nothing to answer yet.
    pub fn new() -> Self {
        Answers::default()
    }

    /// Enters a publish that got the number `seq` in the stream. Confirmed once durable.
    pub fn publish(&mut self, stream: u64, seq: Seq) {
        self.publishes += 1;
        if let Some(Entry::Published { stream: run, last, n, .. }) = self.entries.back_mut()
            && *run == stream
            && last.0.checked_add(1) == Some(seq.0)
        {
            *last = seq;
            *n = self.publishes;
            return;
        }
        let n = self.publishes;
        self.entries.push_back(Entry::Published { stream, first: seq, last: seq, n });
    }

    /// Enters a publish that is refused.
    pub fn publish_refused(&mut self, error: &ProtocolError) {
        self.publishes += 1;
        let n = self.publishes;
        if let Some(Entry::Refused { code, last_n, .. }) = self.entries.back_mut()
            && *code == error.code
        {
            *last_n = n;
            return;
        }
        let ProtocolError { code, text } = error.clone();
        self.entries.push_back(Entry::Refused { code, text, first_n: n, last_n: n });
    }

    /// Enters an answer that is known: complete lines with their line ends.
    pub fn ready(&mut self, lines: &[u8]) {
        if let Some(Entry::Ready(ready)) = self.entries.back_mut() {
            ready.extend_from_slice(lines);
        } else {
            self.entries.push_back(Entry::Ready(BytesMut::from(lines)));
        }
    }

    /// Enters an answer that comes with [`fill`](Self::fill).
    pub fn later(&mut self) -> Slot {
        self.entries.push_back(Entry::Slot);
        self.slots.push_back(None);
        Slot(self.first_slot + self.slots.len() as u64 - 1)
    }

    /// The answer of a slot: complete lines with their line ends. A second one is ignored.
    pub fn fill(&mut self, slot: Slot, lines: Bytes) {
        let at = slot.0.checked_sub(self.first_slot).and_then(|at| usize::try_from(at).ok());
        if let Some(answer) = at.and_then(|at| self.slots.get_mut(at)) {
            answer.get_or_insert(lines);
        }
    }

    /// How many entries wait, a run of publishes counted once: what the memory is bounded by.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether everything has been answered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Appends every answer that may leave now. `durable` is the first number of a stream that
    /// is not safe yet.
    ///
    /// May have more to say after any other method, and after a mark has moved.
    pub fn drain(&mut self, durable: impl Fn(u64) -> Seq, out: &mut BytesMut) {
        let mut confirmed: Option<(Seq, u64)> = None;
        while let Some(entry) = self.entries.front_mut() {
            if let Entry::Published { stream, first, last, n } = entry {
                let mark = durable(*stream);
                if mark > *last {
                    confirmed = Some((*last, *n));
                    self.entries.pop_front();
                    continue;
                }
                if mark > *first {
                    let seq = Seq(mark.0 - 1);
                    confirmed = Some((seq, *n - (last.0 - seq.0)));
                    *first = mark;
                }
                break;
            }
            if matches!(entry, Entry::Slot) && !matches!(self.slots.front(), Some(Some(_))) {
                break;
            }
            put_confirmed(confirmed.take(), out);
            let entry = self.entries.pop_front().expect("the front entry was just looked at");
            self.put(entry, out);
        }
        put_confirmed(confirmed, out);
    }

    /// Writes an entry that is not a publish and whose answer is there.
    fn put(&mut self, entry: Entry, out: &mut BytesMut) {
        match entry {
            Entry::Ready(lines) => out.put_slice(&lines),
            Entry::Refused { code, text, first_n, last_n } => {
                ProtocolError { code, text }.encode_numbered(Some((first_n, last_n)), out);
            }
            Entry::Slot => {
                self.first_slot += 1;
                out.put_slice(&self.slots.pop_front().flatten().unwrap_or_default());
            }
            Entry::Published { .. } => unreachable!("publishes leave in drain"),
        }
    }
}

fn put_confirmed(confirmed: Option<(Seq, u64)>, out: &mut BytesMut) {
    if let Some((seq, n)) = confirmed {
        encode_published(seq, n, out);
    }
}
