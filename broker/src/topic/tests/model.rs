//! Topics against a naive model: all events in a plain vector.

use proptest::prelude::*;
use tidings_protocol::Reply;

use super::*;

/// One random operation.
#[derive(Debug, Clone)]
enum Step {
    Append { origin: u64, payloads: Vec<String> },
    Subscribe { from: Option<StartAt> },
    Listen { origin: u64 },
    Read { reader: usize, bytes_max: usize, slices_max: usize },
    Rewind { reader: usize, back: u64 },
    Leave { reader: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let payload = prop_oneof![9 => "[ -~]{1,40}", 1 => "[a-z]{500,2000}"];
    let from = prop_oneof![
        Just(None),
        Just(Some(StartAt::First)),
        Just(Some(StartAt::Last)),
        (1_u64..200).prop_map(|seq| Some(StartAt::Seq(Seq(seq)))),
        (1_u64..50).prop_map(|n| Some(StartAt::Newest(n))),
    ];
    let step = prop_oneof![
        5 => (1_u64..4, prop::collection::vec(payload, 0..12))
            .prop_map(|(origin, payloads)| Step::Append { origin, payloads }),
        1 => from.prop_map(|from| Step::Subscribe { from }),
        1 => (1_u64..4).prop_map(|origin| Step::Listen { origin }),
        6 => (0_usize..8, 1_usize..3_000, 1_usize..5).prop_map(
            |(reader, bytes_max, slices_max)| Step::Read { reader, bytes_max, slices_max }),
        1 => (0_usize..8, 0_u64..5).prop_map(|(reader, back)| Step::Rewind { reader, back }),
        1 => (0_usize..8).prop_map(|reader| Step::Leave { reader }),
    ];
    prop::collection::vec(step, 1..150)
}

/// A reader, with what it should receive.
struct Pair {
    reader: Reader,
    /// For a peer, the connection that it does not receive events of.
    deaf_to: Option<u64>,
    /// The next seq that was neither received nor reported as missed.
    next: u64,
    wakes: Arc<Wakes>,
    /// The reader had everything, and nothing was appended since.
    waits: bool,
}

/// All events, in a plain vector.
#[derive(Default)]
struct Model {
    events: Vec<(u64, String)>,
}

impl Model {
    fn head(&self) -> u64 {
        self.events.len() as u64 + 1
    }

    fn event(&self, seq: u64) -> &(u64, String) {
        &self.events[usize::try_from(seq).unwrap() - 1]
    }

    /// Checks lines that a reader has received, and advances it.
    fn check(&self, pair: &mut Pair, first: Seq, lines: &[u8]) {
        let lines = std::str::from_utf8(lines).unwrap();
        if let Some(deaf_to) = pair.deaf_to {
            while self.event(pair.next).0 == deaf_to {
                pair.next += 1;
            }
        }
        assert_eq!(first.0, pair.next, "neither gap nor repetition");
        for line in lines.split_inclusive("\r\n") {
            let line = line.strip_suffix("\r\n").expect("whole lines");
            let (origin, payload) = self.event(pair.next);
            if let Some(deaf_to) = pair.deaf_to {
                assert_ne!(*origin, deaf_to);
                assert_eq!(line, payload);
            } else {
                let seq = Seq(pair.next);
                assert_eq!(Reply::parse(line), Ok(Reply::Msg { topic: "new-url", seq, payload }));
            }
            pair.next += 1;
        }
    }
}

fn read(model: &Model, pair: &mut Pair, topic: &Topic, bytes_max: usize, slices_max: usize) {
    let mut pieces = Vec::new();
    let fetched = pair.reader.fetch(bytes_max, slices_max, |run| {
        pieces.push((run.first, run.lines));
    });
    if let Fetched::Lag(lag) = fetched {
        assert!(pieces.is_empty());
        assert_eq!(lag.from.0, pair.next);
        let resume =
            if pair.deaf_to.is_some() { model.head() - 1 } else { topic.stats().first_kept.0 };
        assert_eq!(lag.to.0 + 1, resume.max(topic.stats().first_kept.0));
        pair.next = lag.to.0 + 1;
        return;
    }
    assert!(pieces.len() <= slices_max);
    for (first, lines) in &pieces {
        model.check(pair, *first, lines);
    }
    let has_all = pair.reader.cursor().0 == model.head();
    // A waiting reader is woken, even after a rewind.
    pair.waits |= has_all;
    if has_all {
        // The remaining events are the peer's own.
        let rest = pair.next..model.head();
        assert!(rest.clone().all(|seq| Some(model.event(seq).0) == pair.deaf_to));
        pair.next = model.head();
    }
}

fn run(steps: Vec<Step>) {
    let tail_bytes_max = 12_000;
    let topic = topic(tail_bytes_max);
    let (mut model, mut pairs) = (Model::default(), Vec::<Pair>::new());
    let new_pair = |form: LineForm, from: Option<StartAt>, deaf_to: Option<u64>, next: u64| {
        let wakes = Arc::new(Wakes::default());
        let reader = topic.subscribe(from, form, Waker::from(Arc::clone(&wakes)));
        assert_eq!(reader.cursor(), Seq(next));
        Pair { reader, deaf_to, next, wakes, waits: false }
    };
    for step in steps {
        let (head, first_kept) = (model.head(), topic.stats().first_kept.0);
        match step {
            Step::Append { origin, payloads } => {
                let numbers = topic.append(ConnId(origin), payloads.iter().map(String::as_str));
                model.events.extend(payloads.into_iter().map(|payload| (origin, payload)));
                assert_eq!(numbers.unwrap(), Seq(head)..Seq(model.head()));
                for pair in &mut pairs {
                    let woken = pair.wakes.take();
                    if head < model.head() {
                        assert_eq!(
                            woken,
                            usize::from(pair.waits),
                            "a waiting reader is woken once"
                        );
                        pair.waits = false;
                    }
                }
            }
            Step::Subscribe { from } if pairs.len() < 8 => {
                let next = match from {
                    None => head,
                    Some(StartAt::First) => first_kept,
                    Some(StartAt::Last) => first_kept.max(head - 1),
                    Some(StartAt::Seq(seq)) => seq.0.min(head),
                    Some(StartAt::Newest(n)) => head.saturating_sub(n).max(1),
                    Some(StartAt::Time(_)) => unreachable!("not generated"),
                };
                pairs.push(new_pair(LineForm::Wire, from, None, next));
            }
            Step::Listen { origin } if pairs.len() < 8 => {
                let form = LineForm::Bare { origin: ConnId(origin) };
                pairs.push(new_pair(form, None, Some(origin), head));
            }
            Step::Read { reader, bytes_max, slices_max } => {
                if let Some(pair) = pairs.get_mut(reader) {
                    read(&model, pair, &topic, bytes_max, slices_max);
                }
            }
            Step::Rewind { reader, back } => {
                // A connection rewinds only to events that it received, so a peer does not rewind
                // over skipped ones.
                if let Some(pair) = pairs.get_mut(reader).filter(|pair| pair.deaf_to.is_none()) {
                    let seq = pair.reader.cursor().0.saturating_sub(back).max(1);
                    if seq >= first_kept {
                        pair.reader.rewind(Seq(seq));
                        pair.next = seq;
                    }
                }
            }
            Step::Leave { reader } => {
                if reader < pairs.len() {
                    pairs.swap_remove(reader);
                }
            }
            Step::Subscribe { .. } | Step::Listen { .. } => {}
        }
        let show = topic.stats();
        assert!(show.bytes <= tail_bytes_max || show.batches == 1, "{show:?}");
        assert_eq!(show.readers, pairs.len());
    }
    for pair in &mut pairs {
        while pair.reader.is_behind() {
            read(&model, pair, &topic, 500, 3);
        }
        assert_eq!(pair.next, model.head());
    }
}

proptest! {
    /// After random appends and reads, every reader has received every event in order, or a lag
    /// with exactly the missed range.
    // PROTOCOL: D1, D2
    #[test]
    fn readers_agree_with_a_plain_vector(steps in steps()) {
        run(steps);
    }
}
