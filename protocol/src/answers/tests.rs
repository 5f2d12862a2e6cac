use proptest::prelude::*;

use super::*;

const ALL: fn(u64) -> Seq = |_| Seq(u64::MAX);

/// Durable below the mark of the stream, pending from there on.
fn marked(mark: impl Fn(u64) -> Seq) -> impl Fn(u64, Seq) -> (Durability, Seq) {
    move |stream, seq| match mark(stream) {
        mark if seq < mark => (Durability::Durable, mark),
        _ => (Durability::Pending, Seq(u64::MAX)),
    }
}

fn refusal(code: Code) -> ProtocolError {
    ProtocolError::new(code, "no")
}

#[track_caller]
fn drained(answers: &mut Answers, durable: impl Fn(u64) -> Seq) -> String {
    drained_by(answers, marked(durable))
}

#[track_caller]
fn drained_by(answers: &mut Answers, fate: impl Fn(u64, Seq) -> (Durability, Seq)) -> String {
    let mut out = BytesMut::new();
    answers.drain(fate, &mut out);
    String::from_utf8(out.to_vec()).unwrap()
}

// PROTOCOL: A3, A5
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

// PROTOCOL: A3
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

// PROTOCOL: A4
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

// PROTOCOL: A1
#[test]
fn later_answers_keep_their_place() {
    let mut answers = Answers::new();
    answers.push(|out| out.extend_from_slice(b"a\r\n"));
    let first = answers.reserve();
    answers.push(|out| out.extend_from_slice(b"b\r\n"));
    let second = answers.reserve();
    answers.push(|out| out.extend_from_slice(b"c\r\n"));
    answers.push(|out| out.extend_from_slice(b"d\r\n"));
    answers.fill(second, Bytes::from_static(b"2\r\n"));
    assert_eq!(answers.bytes(), 15);
    assert_eq!(drained(&mut answers, ALL), "a\r\n");
    answers.fill(first, Bytes::from_static(b"1\r\n"));
    answers.fill(first, Bytes::from_static(b"ignored\r\n"));
    assert_eq!(drained(&mut answers, ALL), "1\r\nb\r\n2\r\nc\r\nd\r\n");
    answers.fill(first, Bytes::from_static(b"ignored\r\n"));
    answers.fill(Slot(99), Bytes::from_static(b"ignored\r\n"));
    assert_eq!(drained(&mut answers, ALL), "");
    assert_eq!(answers.bytes(), 0);
}

#[test]
fn only_the_newest_progress_is_sent_before_its_answer() {
    let mut answers = Answers::new();
    let line = |text: &'static str| Bytes::from_static(text.as_bytes());
    answers.publish(0, Seq(7));
    let watch = answers.reserve();
    answers.push(|out| out.extend_from_slice(b"+OK\r\n"));
    answers.progress(watch, line("+ 1\r\n"));
    answers.progress(watch, line("+ 2\r\n"));
    assert_eq!(drained(&mut answers, |_| Seq(7)), "", "a publish before it is pending");
    assert_eq!(drained(&mut answers, ALL), "+OK 7 1\r\n+ 2\r\n");
    assert_eq!(drained(&mut answers, ALL), "");
    answers.progress(watch, line("+ 3\r\n"));
    assert_eq!(drained(&mut answers, ALL), "+ 3\r\n");
    answers.progress(watch, line("+ 4\r\n"));
    answers.fill(watch, line("+OK end\r\n"));
    assert_eq!(drained(&mut answers, ALL), "+ 4\r\n+OK end\r\n+OK\r\n");
    answers.progress(watch, line("+ late\r\n"));
    answers.reserve();
    assert_eq!(drained(&mut answers, ALL), "", "it has been answered");
}

#[test]
fn pending_answers_fold_into_few_entries() {
    let mut answers = Answers::new();
    // Two topics in turn, and another publisher in between on one of them.
    for round in 0..1_000 {
        answers.publish(0, Seq(1 + round));
        answers.publish(1, Seq(1 + 2 * round));
    }
    assert_eq!(answers.len(), 2_000);
    answers.fold(marked(|stream| if stream == 1 { Seq(1_001) } else { Seq(u64::MAX) }));
    assert_eq!(answers.len(), 1_000, "500 rounds are one, the rest waits for stream 1");
    answers.fold(marked(ALL));
    assert_eq!(answers.len(), 1);
    answers.publish_refused(&refusal(Code::Full));
    answers.publish(0, Seq(2_000));
    answers.fold(marked(ALL));
    assert_eq!(
        drained(&mut answers, ALL),
        "+OK 1999 2000\r\n-ERR full n=2001 no\r\n+OK 2000 2002\r\n"
    );
}

#[test]
fn a_lost_publish_is_remembered() {
    let lost = |_, Seq(seq)| (Durability::Lost(Code::Full), Seq(seq + 1));
    for folded in [false, true] {
        let mut answers = Answers::new();
        answers.publish(0, Seq(1));
        assert!(!answers.has_failed_publish());
        if folded {
            answers.fold(lost);
        } else {
            drained_by(&mut answers, lost);
        }
        assert!(answers.has_failed_publish());
    }
}

// PROTOCOL: A5
#[test]
fn lost_events_are_refused_in_their_place() {
    let fates = |_, Seq(seq)| match seq {
        0..12 => (Durability::Durable, Seq(12)),
        12..15 => (Durability::Lost(Code::Full), Seq(15)),
        15..20 => (Durability::Lost(Code::NotDurable), Seq(20)),
        20..22 => (Durability::Durable, Seq(22)),
        22.. => (Durability::Pending, Seq(u64::MAX)),
    };
    let full = "the disk is full: the event was not kept, although subscribers may have received it; \
                publish it again later";
    let failed = "writing to the disk failed: the event may be lost, although subscribers may have \
                  received it; publish it again when the broker was repaired";
    for folded in [false, true] {
        let mut answers = Answers::new();
        for seq in 10..18 {
            answers.publish(0, Seq(seq));
        }
        answers.publish_refused(&refusal(Code::NotDurable));
        answers.publish(1, Seq(19));
        for seq in 20..24 {
            answers.publish(0, Seq(seq));
        }
        if folded {
            answers.fold(fates);
        }
        assert_eq!(
            drained_by(&mut answers, fates),
            format!(
                "+OK 11 2\r\n-ERR full n=3-5 {full}\r\n-ERR sync-failed n=6-10 {failed}\r\n\
                 +OK 21 12\r\n"
            )
        );
        assert_eq!(drained(&mut answers, ALL), "+OK 23 14\r\n");
    }
}

#[test]
fn a_long_run_of_lost_events_folds_into_one_entry() {
    let mut answers = Answers::new();
    for seq in 0..1_000 {
        answers.publish(seq % 2, Seq(1 + seq));
    }
    answers.fold(|_, Seq(seq)| (Durability::Lost(Code::Full), Seq(seq + 1)));
    assert_eq!(answers.len(), 1);
    assert!(drained(&mut answers, ALL).starts_with("-ERR full n=1-1000 the disk is full"));
}

/// One thing that happens to the answers of a connection.
#[derive(Debug, Clone)]
enum Step {
    Publish(u64),
    Refuse(bool),
    Ready,
    Later,
    /// Fills one of the reserved slots.
    Fill(usize),
    /// Decides the durability of the next events of a stream, as far as they exist.
    Decide(u64, usize, Durability),
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
        3 => (0_u64..2, 0_usize..4, fate()).prop_map(|(stream, by, fate)| {
            Step::Decide(stream, by, fate)
        }),
        2 => Just(Step::Fold),
        3 => Just(Step::Drain),
    ]
}

fn fate() -> impl Strategy<Value = Durability> {
    prop_oneof![
        4 => Just(Durability::Durable),
        1 => Just(Durability::Lost(Code::Full)),
        1 => Just(Durability::Lost(Code::NotDurable)),
    ]
}

/// The durability of the events of a stream from seq 1 on, as far as it is decided.
type Fates = [Vec<Durability>; 2];

fn decided(fates: &Fates) -> impl Fn(u64, Seq) -> (Durability, Seq) + '_ {
    |stream, seq| {
        let of_stream = &fates[usize::try_from(stream).unwrap()];
        let mut from_seq = of_stream.iter().skip(usize::try_from(seq.0).unwrap() - 1);
        let Some(first) = from_seq.next() else {
            return (Durability::Pending, Seq(u64::MAX));
        };
        (*first, Seq(seq.0 + 1 + from_seq.take_while(|fate| *fate == first).count() as u64))
    }
}

/// The model's entry for one command, unfolded.
#[derive(Debug, Clone, PartialEq)]
enum Expected {
    Published { stream: u64, seq: u64, n: u64 },
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
    /// Compares with a model that keeps one entry for each command and never folds.
    // PROTOCOL: A1, A3, A4
    #[test]
    fn folding_changes_nothing(steps in proptest::collection::vec(step(), 0..120)) {
        let mut answers = Answers::new();
        let mut model: VecDeque<Expected> = VecDeque::new();
        let (mut heads, mut fates, mut publishes) = ([1_u64; 2], Fates::default(), 0_u64);
        let (mut confirmed_up_to, mut refused) = (0, Vec::new());
        let mut lines = 0;
        for step in steps.into_iter().chain([Step::Drain]) {
            match step {
                Step::Publish(stream) => {
                    let head = &mut heads[usize::try_from(stream).unwrap()];
                    publishes += 1;
                    answers.publish(stream, Seq(*head));
                    model.push_back(Expected::Published { stream, seq: *head, n: publishes });
                    // Now and then another publisher comes in between.
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
                    answers.push(|out| out.extend_from_slice(format!("+OK line {lines}\r\n").as_bytes()));
                    model.push_back(Expected::Line(format!("+OK line {lines}")));
                }
                Step::Later => model.push_back(Expected::Slot(answers.reserve(), None)),
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
                Step::Decide(stream, by, fate) => {
                    let stream = usize::try_from(stream).unwrap();
                    let numbered = usize::try_from(heads[stream]).unwrap() - 1;
                    let of_stream = &mut fates[stream];
                    of_stream.resize((of_stream.len() + by).min(numbered), fate);
                }
                Step::Fold => answers.fold(decided(&fates)),
                Step::Drain => {
                    let out = drained_by(&mut answers, decided(&fates));
                    let mut expected = Vec::new();
                    let mut last = None;
                    while let Some(entry) = model.front() {
                        let line = match entry {
                            Expected::Published { stream, seq, n } => {
                                match decided(&fates)(*stream, Seq(*seq)).0 {
                                    Durability::Pending => break,
                                    Durability::Lost(code) => format!("refused {n} {code}"),
                                    Durability::Durable => {
                                        expected.push(format!("confirmed {n}"));
                                        last = Some(*seq);
                                        model.pop_front();
                                        continue;
                                    }
                                }
                            }
                            Expected::Refused { code, n } => format!("refused {n} {code}"),
                            Expected::Line(line) | Expected::Slot(_, Some(line)) => line.clone(),
                            Expected::Slot(_, None) => break,
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
