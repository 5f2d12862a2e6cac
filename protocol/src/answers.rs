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
/// - Every command is entered when it is read, in its order (`[A1]`).
/// - A publish may be confirmed once the durable mark of its stream (the caller's number for a
///   topic) has passed it; the mark comes in with [`drain`](Self::drain).
/// - Adjacent confirmations become one `+OK <seq> <n>` (`[A3]`), adjacent refusals of publishes
///   with the same code one `-ERR <code> n=8-21 <text>` (`[A4]`).
///
/// A run of publishes whose numbers follow each other takes one entry however long it is, and
/// [`fold`](Self::fold) makes one of several, so a producer that never reads costs next to nothing.
/// Only refusals that alternate with something else cannot be told in less than one line each.
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

    /// Whether the answer of a slot has been drained: what must come after it may leave now.
    pub fn has_left(&self, slot: Slot) -> bool {
        slot.0 < self.first_slot
    }

    /// How many entries wait, a run of publishes counted once: what the memory is bounded by.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether everything has been answered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Makes one entry of adjacent confirmations that could leave together, for when nothing can be
    /// written and entries pile up. What is said in the end stays the same. `durable` as in
    /// [`drain`](Self::drain).
    pub fn fold(&mut self, durable: impl Fn(u64) -> Seq) {
        let mut kept = VecDeque::new();
        // Whether the newest of `kept` is a publish that could be confirmed whole.
        let mut confirmed = false;
        for entry in self.entries.drain(..) {
            let mark = match &entry {
                Entry::Published { stream, first, last, .. } => {
                    Some((durable(*stream), *first, *last))
                }
                _ => None,
            };
            // It may be confirmed in part at least, and that says the one before it as well.
            if confirmed && mark.is_some_and(|(mark, first, _)| mark > first) {
                kept.pop_back();
            }
            confirmed = mark.is_some_and(|(mark, _, last)| mark > last);
            kept.push_back(entry);
        }
        self.entries = kept;
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
        if self.entries.is_empty() {
            // There may be tens of thousands of connections, most of them idle. No slot is left
            // either, because each has its entry.
            self.entries = VecDeque::new();
            self.slots = VecDeque::new();
        }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: fn(u64) -> Seq = |_| Seq(u64::MAX);

    fn refusal(code: Code) -> ProtocolError {
        ProtocolError::new(code, "no")
    }

    #[track_caller]
    fn drained(answers: &mut Answers, durable: impl Fn(u64) -> Seq) -> String {
        let mut out = BytesMut::new();
        answers.drain(durable, &mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn publishes_are_confirmed_as_far_as_they_are_durable_and_folded() {
        let mut answers = Answers::new();
        for seq in 10..20 {
            answers.publish(0, Seq(seq));
        }
        assert_eq!(answers.len(), 1, "a run costs one entry");
        assert_eq!(drained(&mut answers, |_| Seq(10)), "");
        assert_eq!(drained(&mut answers, |_| Seq(13)), "+OK 12 3\r\n");
        assert_eq!(drained(&mut answers, |_| Seq(13)), "");
        answers.publish(0, Seq(25));
        assert_eq!(drained(&mut answers, |_| Seq(26)), "+OK 25 11\r\n");
        assert!(answers.is_empty());
    }

    #[test]
    fn one_confirmation_covers_several_topics() {
        let mut answers = Answers::new();
        answers.publish(0, Seq(7));
        answers.publish(1, Seq(3));
        answers.publish(0, Seq(8));
        let marks = |stream| if stream == 1 { Seq(3) } else { Seq(9) };
        assert_eq!(drained(&mut answers, marks), "+OK 7 1\r\n", "the second one is not durable");
        assert_eq!(drained(&mut answers, ALL), "+OK 8 3\r\n");
    }

    #[test]
    fn refusals_in_a_row_are_folded_and_named() {
        let mut answers = Answers::new();
        answers.publish(0, Seq(1));
        answers.publish_refused(&refusal(Code::Full));
        answers.publish_refused(&refusal(Code::Full));
        answers.publish_refused(&refusal(Code::Utf8));
        answers.publish(0, Seq(2));
        assert_eq!(
            drained(&mut answers, ALL),
            "+OK 1 1\r\n-ERR full n=2-3 no\r\n-ERR utf8 n=4 no\r\n+OK 2 5\r\n"
        );
    }

    #[test]
    fn a_refusal_waits_for_the_publish_before_it() {
        let mut answers = Answers::new();
        answers.publish(0, Seq(1));
        answers.publish_refused(&refusal(Code::Full));
        assert_eq!(drained(&mut answers, |_| Seq(1)), "");
        assert_eq!(drained(&mut answers, |_| Seq(2)), "+OK 1 1\r\n-ERR full n=2 no\r\n");
    }

    #[test]
    fn later_answers_keep_their_place() {
        let mut answers = Answers::new();
        answers.ready(b"a\r\n");
        let first = answers.later();
        answers.ready(b"b\r\n");
        let second = answers.later();
        answers.ready(b"c\r\n");
        answers.ready(b"d\r\n");
        answers.fill(second, Bytes::from_static(b"2\r\n"));
        assert_eq!(drained(&mut answers, ALL), "a\r\n");
        answers.fill(first, Bytes::from_static(b"1\r\n"));
        answers.fill(first, Bytes::from_static(b"ignored\r\n"));
        assert_eq!(drained(&mut answers, ALL), "1\r\nb\r\n2\r\nc\r\nd\r\n");
        answers.fill(first, Bytes::from_static(b"ignored\r\n"));
        answers.fill(Slot(99), Bytes::from_static(b"ignored\r\n"));
        assert_eq!(drained(&mut answers, ALL), "");
    }

    #[test]
    fn what_waits_to_be_written_folds_into_little() {
        let mut answers = Answers::new();
        // Two topics in turn, and a third party that publishes to one of them in between.
        for round in 0..1_000 {
            answers.publish(0, Seq(1 + round));
            answers.publish(1, Seq(1 + 2 * round));
        }
        assert_eq!(answers.len(), 2_000);
        answers.fold(|stream| if stream == 1 { Seq(1_001) } else { Seq(u64::MAX) });
        assert_eq!(answers.len(), 1_000, "500 rounds are one, the rest waits for stream 1");
        answers.fold(ALL);
        assert_eq!(answers.len(), 1);
        answers.publish_refused(&refusal(Code::Full));
        answers.publish(0, Seq(2_000));
        answers.fold(ALL);
        assert_eq!(
            drained(&mut answers, ALL),
            "+OK 1999 2000\r\n-ERR full n=2001 no\r\n+OK 2000 2002\r\n"
        );
    }

    /// One thing that happens to the answers of a connection.
    #[derive(Debug, Clone)]
    enum Step {
        Publish(u64),
        Refuse(bool),
        Ready,
        Later,
        /// Fills one of the open slots.
        Fill(usize),
        /// Moves the durable mark of a stream by so much, up to what was published.
        Durable(u64, u64),
        Fold,
        Drain,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            5 => (0_u64..2).prop_map(Step::Publish),
            1 => any::<bool>().prop_map(Step::Refuse),
            1 => Just(Step::Ready),
            1 => Just(Step::Later),
            1 => any::<usize>().prop_map(Step::Fill),
            3 => (0_u64..2, 0_u64..4).prop_map(|(stream, by)| Step::Durable(stream, by)),
            2 => Just(Step::Fold),
            3 => Just(Step::Drain),
        ]
    }

    /// What stands in the model for one command, unfolded.
    #[derive(Debug, Clone, PartialEq)]
    enum Expected {
        Confirmed { stream: u64, seq: u64, n: u64 },
        Refused { code: Code, n: u64 },
        Line(String),
        Slot(Slot, Option<String>),
    }

    /// Undoes the folding: which publish got which answer, in order, and the other lines.
    fn unfolded(out: &str, confirmed_up_to: &mut u64, refused: &mut Vec<u64>) -> Vec<String> {
        let mut all = Vec::new();
        for line in out.lines() {
            match crate::Reply::parse(line).unwrap() {
                crate::Reply::Published { seq, n } => {
                    for publish in *confirmed_up_to + 1..=n {
                        if !refused.contains(&publish) {
                            all.push(format!("confirmed {publish}"));
                        }
                    }
                    all.push(format!("the last one was {seq}"));
                    *confirmed_up_to = n;
                }
                crate::Reply::Err { code, n: Some((first, last)), .. } => {
                    for publish in first..=last {
                        all.push(format!("refused {publish} {code}"));
                        refused.push(publish);
                    }
                }
                _ => all.push(line.to_owned()),
            }
        }
        all
    }

    proptest! {
        /// Against a model that keeps one entry per command and never folds.
        #[test]
        fn folding_changes_nothing(steps in proptest::collection::vec(step(), 0..120)) {
            let mut answers = Answers::new();
            let mut model: VecDeque<Expected> = VecDeque::new();
            let (mut heads, mut marks, mut publishes) = ([1_u64; 2], [1_u64; 2], 0_u64);
            let (mut confirmed_up_to, mut refused) = (0, Vec::new());
            let mut lines = 0;
            for step in steps.into_iter().chain([Step::Drain]) {
                match step {
                    Step::Publish(stream) => {
                        let head = &mut heads[usize::try_from(stream).unwrap()];
                        publishes += 1;
                        answers.publish(stream, Seq(*head));
                        model.push_back(Expected::Confirmed { stream, seq: *head, n: publishes });
                        // Now and then somebody else publishes in between.
                        *head += 1 + u64::from(publishes % 3 == 0);
                    }
                    Step::Refuse(full) => {
                        let code = if full { Code::Full } else { Code::Utf8 };
                        publishes += 1;
                        answers.publish_refused(&refusal(code));
                        model.push_back(Expected::Refused { code, n: publishes });
                    }
                    Step::Ready => {
                        lines += 1;
                        answers.ready(format!("+OK line {lines}\r\n").as_bytes());
                        model.push_back(Expected::Line(format!("+OK line {lines}")));
                    }
                    Step::Later => model.push_back(Expected::Slot(answers.later(), None)),
                    Step::Fill(which) => {
                        let open: Vec<_> = model
                            .iter_mut()
                            .filter_map(|entry| match entry {
                                Expected::Slot(slot, answer @ None) => Some((*slot, answer)),
                                _ => None,
                            })
                            .collect();
                        if !open.is_empty() {
                            let count = open.len();
                            let (slot, answer) = open.into_iter().nth(which % count).unwrap();
                            lines += 1;
                            let line = format!("+OK slot {lines}");
                            answers.fill(slot, Bytes::from(format!("{line}\r\n")));
                            *answer = Some(line);
                        }
                    }
                    Step::Durable(stream, by) => {
                        let stream = usize::try_from(stream).unwrap();
                        marks[stream] = (marks[stream] + by).min(heads[stream]);
                    }
                    Step::Fold => {
                        answers.fold(|stream| Seq(marks[usize::try_from(stream).unwrap()]));
                    }
                    Step::Drain => {
                        let durable = |stream: u64| Seq(marks[usize::try_from(stream).unwrap()]);
                        let out = drained(&mut answers, durable);
                        let mut expected = Vec::new();
                        let mut last = None;
                        while let Some(entry) = model.front() {
                            let line = match entry {
                                Expected::Confirmed { stream, seq, n }
                                    if *seq < marks[usize::try_from(*stream).unwrap()] =>
                                {
                                    expected.push(format!("confirmed {n}"));
                                    last = Some(*seq);
                                    model.pop_front();
                                    continue;
                                }
                                Expected::Refused { code, n } => format!("refused {n} {code}"),
                                Expected::Line(line) | Expected::Slot(_, Some(line)) => line.clone(),
                                _ => break,
                            };
                            expected.extend(last.take().map(|seq| format!("the last one was {seq}")));
                            expected.push(line);
                            model.pop_front();
                        }
                        expected.extend(last.take().map(|seq| format!("the last one was {seq}")));
                        let got = unfolded(&out, &mut confirmed_up_to, &mut refused);
                        prop_assert_eq!(got, expected);
                        prop_assert_eq!(answers.is_empty(), model.is_empty());
                    }
                }
            }
        }
    }
}
