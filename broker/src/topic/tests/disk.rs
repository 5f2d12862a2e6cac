//! Tests of topics on disk: restarts and lagging readers.

use std::path::Path;
use std::thread::{self, Thread};

use proptest::prelude::*;
use tidings_log::{FileSystem, SegmentStore, Store};

use super::*;
use tidings_protocol::{Sync, TopicSettings};

use crate::TEST_LIMIT;
use crate::catalog::Catalog;

struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A waker for this thread.
pub(super) fn waker() -> Waker {
    Waker::from(Arc::new(Unparks(thread::current())))
}

pub(super) fn open(dir: &Path, limits: &Limits) -> Arc<Topics> {
    let clock = Clock::new();
    let store: Arc<dyn Store> = Arc::new(SegmentStore::new(Arc::new(FileSystem), dir));
    let (catalog, findings) = Catalog::open(&*store, limits, clock).unwrap();
    assert_eq!(findings, Vec::<String>::new());
    Topics::start(limits, clock, catalog, Some(store), TopicSettings::default()).unwrap()
}

pub(super) fn named(topics: &Topics, name: &str) -> Arc<Topic> {
    topics.open(&name.parse().unwrap()).unwrap()
}

/// Waits until everything appended is durable.
pub(super) fn settle(topic: &Arc<Topic>) {
    let waker = waker();
    let last = Seq(topic.head().0 - 1);
    while topic.wait_durable(last, None, &waker).is_some() {
        thread::park_timeout(TEST_LIMIT);
    }
}

/// Publishes, and waits until the events are durable.
pub(super) fn keep(topic: &Arc<Topic>, payloads: &[String]) {
    topic.append(ConnId(1), payloads.iter().map(String::as_str)).unwrap();
    settle(topic);
}

pub(super) fn numbered(range: Range<u64>) -> Vec<String> {
    range.map(|n| format!("event {n}")).collect()
}

/// Reads from `from` up to the newest event. Returns payloads with their seqs, and the missed
/// ranges.
pub(super) fn replay(topic: &Arc<Topic>, from: StartAt) -> (Vec<(u64, String)>, Vec<String>) {
    let mut reader = topic.subscribe(Some(from), LineForm::Wire, waker());
    let (mut events, mut missed) = (Vec::new(), Vec::new());
    while reader.cursor() < topic.head() {
        let before = reader.cursor();
        let mut lines = Vec::new();
        match reader.fetch(1 << 20, 64, |run| lines.push(run.lines)) {
            Fetched::Lag(lag) => missed.push(format!("lag {} {}", lag.from, lag.to)),
            Fetched::Gap(gap) => missed.push(format!("gap {} {}", gap.from, gap.to)),
            Fetched::Delivered => {}
        }
        for line in lines.iter().flat_map(|bytes| bytes.split_inclusive(|byte| *byte == b'\n')) {
            let line = std::str::from_utf8(line).unwrap().strip_suffix("\r\n").unwrap();
            let mut words = line.splitn(4, ' ').skip(2);
            let seq = words.next().unwrap().parse().unwrap();
            events.push((seq, words.next().unwrap().to_owned()));
        }
        if reader.cursor() == before {
            thread::park_timeout(TEST_LIMIT);
        }
    }
    (events, missed)
}

pub(super) fn expected(range: Range<u64>) -> Vec<(u64, String)> {
    range.map(|n| (n, format!("event {n}"))).collect()
}

// PROTOCOL: R3
#[test]
fn an_orderly_restart_leaves_no_gap() {
    let folder = tempfile::tempdir().unwrap();
    for start in 0..3_u64 {
        let topics = open(folder.path(), &Limits::default());
        let topic = named(&topics, "t");
        assert_eq!(topic.head(), Seq(1 + 10 * start));
        keep(&topic, &numbered(1 + 10 * start..11 + 10 * start));
        assert_eq!(replay(&topic, StartAt::First), (expected(1..11 + 10 * start), vec![]));
        assert_eq!(replay(&topic, StartAt::Newest(3)).0, expected(8 + 10 * start..11 + 10 * start));
        topics.close();
    }
}

// PROTOCOL: N2, D6, R3
#[test]
fn no_seq_is_reused_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let topics = open(folder.path(), &Limits::default());
    let topic = named(&topics, "t");
    keep(&topic, &numbered(1..6));
    let shown = topic.tail.lock().watermarks.reserved;
    // As after a kill: the end of the log is not recorded.
    drop((topic, topics));
    let topics = open(folder.path(), &Limits::default());
    let topic = named(&topics, "t");
    assert!(topic.head() >= shown, "seqs below {shown} may have been seen");
    let next = topic.head().0;
    // The numbers without an event are not counted.
    assert_eq!(topic.stats().kept, 5);
    keep(&topic, &numbered(next..next + 2));
    assert_eq!(topic.stats().kept, 7);
    let gap = format!("gap 6 {}", next - 1);
    let events: Vec<_> = expected(1..6).into_iter().chain(expected(next..next + 2)).collect();
    assert_eq!(replay(&topic, StartAt::First), (events, vec![gap]));
    drop((topic, topics));
    let topics = open(folder.path(), &Limits::default());
    assert_eq!(named(&topics, "t").stats().kept, 7, "also after another crash");
    topics.close();
}

#[test]
fn a_reader_behind_the_tail_continues_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let limits =
        Limits { tail_bytes_max: 20_000, unsynced_bytes_max: 1 << 20, ..Limits::default() };
    let topics = open(folder.path(), &limits);
    let topic = named(&topics, "t");
    let mut slow = topic.subscribe(None, LineForm::Wire, waker());
    for chunk in 0..100 {
        keep(&topic, &numbered(1 + chunk * 100..101 + chunk * 100));
    }
    assert!(topic.tail.lock().first_kept() > Seq(5_000), "the tail has evicted too little");
    assert_eq!(replay(&topic, StartAt::First), (expected(1..10_001), vec![]));
    assert_eq!(replay(&topic, StartAt::Seq(Seq(777))), (expected(777..10_001), vec![]));
    let mut lines = 0;
    while slow.cursor() < topic.head() {
        let before = slow.cursor();
        let fetched = slow.fetch(10_000, 4, |run| lines += count_lines(&run.lines));
        assert_eq!(fetched, Fetched::Delivered);
        if slow.cursor() == before {
            thread::park_timeout(TEST_LIMIT);
        }
    }
    assert_eq!(lines, 10_000);
    topics.close();
}

// PROTOCOL: D2, D5
#[test]
fn events_in_memory_are_kept_after_retention_has_removed_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let topics = open(folder.path(), &Limits { tail_bytes_max: 3 << 20, ..Limits::default() });
    let small = TopicSettings { retain_bytes: 1 << 20, ..TopicSettings::default() };
    topics.create(&"t".parse().unwrap(), small, |result| result.unwrap()).unwrap();
    let topic = named(&topics, "t");
    let text = "x".repeat(40_000);
    for seq in 1..=150 {
        keep(&topic, &[format!("{seq} {text}")]);
    }
    topic.maintain();
    let first = topic.stats().first_kept;
    let files = topic.log.as_ref().unwrap().bounds().first;
    assert!(Seq(1) < first && first < files, "{first} of the memory, {files} of the files");
    for from in 1..=first.0 {
        let (events, missed) = replay(&topic, StartAt::Seq(Seq(from)));
        let seqs = events.iter().map(|(seq, _)| *seq);
        assert!(seqs.eq(first.0..=150), "from {from}: {:?}", events.first());
        let lag = (from < first.0).then(|| format!("lag {from} {}", first.0 - 1));
        assert_eq!(missed, Vec::from_iter(lag));
    }
    topics.close();
}

#[test]
fn a_group_reads_events_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { tail_bytes_max: 20_000, ..Limits::default() };
    let topics = open(folder.path(), &limits);
    let topic = named(&topics, "t");
    for chunk in 0..50 {
        keep(&topic, &numbered(1 + chunk * 100..101 + chunk * 100));
    }
    let wake = Arc::new(Notify::new());
    let mut reader = topic.reader(StartAt::First, Arc::clone(&wake));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let mut taken = Vec::new();
    while taken.len() < 5_000 {
        let found = reader.next_events(300);
        assert_eq!(found.lag, None);
        if found.events.is_empty() {
            runtime.block_on(wake.notified());
        }
        taken.extend(found.events.into_iter().map(|event| (event.seq.0, event.payload)));
    }
    assert_eq!(taken, expected(1..5_001));
    topics.close();
}

// PROTOCOL: P5
#[test]
fn the_dedup_window_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let topics = open(folder.path(), &Limits::default());
        let topic = named(&topics, "t");
        let payloads = ["http://a.example/ id=1", "http://a.example/ id=2", "plain"];
        let ids: Vec<_> =
            payloads.iter().filter_map(|payload| dedup_id(payload)).enumerate().collect();
        let numbers = topic.append_deduplicated(ConnId(1), &payloads, &ids).unwrap();
        assert_eq!(numbers[..2], [Seq(1), Seq(2)]);
        settle(&topic);
        drop((topic, topics));
    }
    let topics = open(folder.path(), &Limits::default());
    let (events, _) = replay(&named(&topics, "t"), StartAt::First);
    let texts: Vec<_> = events.iter().map(|(_, text)| text.as_str()).collect();
    let once = ["http://a.example/ id=1", "http://a.example/ id=2", "plain", "plain", "plain"];
    assert_eq!(texts, once);
}

// PROTOCOL: N2, R7
#[test]
fn a_deleted_topic_continues_at_its_next_seq() {
    let folder = tempfile::tempdir().unwrap();
    let topics = open(folder.path(), &Limits::default());
    let topic = named(&topics, "t");
    keep(&topic, &numbered(1..4));
    let (sender, receiver) = std::sync::mpsc::channel();
    topics.delete(&topic, move |result| sender.send(result).unwrap()).unwrap();
    receiver.recv_timeout(TEST_LIMIT).unwrap().unwrap();
    assert!(topic.append(ConnId(1), ["late"]).is_err());
    let again = named(&topics, "t");
    assert_eq!(again.head(), Seq(4));
    keep(&again, &numbered(4..6));
    assert_eq!(replay(&again, StartAt::First).0, expected(4..6));
    topics.close();
    drop((topic, again, topics));
    let topics = open(folder.path(), &Limits::default());
    assert_eq!(replay(&named(&topics, "t"), StartAt::First), (expected(4..6), vec![]));
}

// PROTOCOL: R2, R3
#[test]
fn a_topic_in_memory_keeps_only_its_seqs() {
    let folder = tempfile::tempdir().unwrap();
    let memory = TopicSettings { sync: Sync::Memory, ..TopicSettings::default() };
    let topics = open(folder.path(), &Limits::default());
    let topic = topics.create(&"m".parse().unwrap(), memory, |result| result.unwrap()).unwrap();
    let mut reader = topic.subscribe(None, LineForm::Wire, waker());
    topic.append(ConnId(1), ["x"]).unwrap();
    while reader.cursor() < Seq(2) {
        // Its seq becomes visible once it is reserved.
        reader.fetch(1, 1, |_| {});
        if reader.cursor() < Seq(2) {
            thread::park_timeout(TEST_LIMIT);
        }
    }
    drop((reader, topic, topics));
    let topics = open(folder.path(), &Limits::default());
    let topic = topics.find("m").expect("a topic with settings exists");
    assert!(topic.head() > Seq(1), "number 1 was seen");
    assert_eq!(replay(&topic, StartAt::Seq(Seq(1))).1, [format!("lag 1 {}", topic.head().0 - 1)]);
    topics.close();
}

#[test]
fn a_topic_in_memory_reserves_many_seqs_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let memory = TopicSettings { sync: Sync::Memory, ..TopicSettings::default() };
    let topics = open(folder.path(), &Limits::default());
    let topic = topics.create(&"m".parse().unwrap(), memory, |result| result.unwrap()).unwrap();
    topic.append(ConnId(1), ["first"]).unwrap();
    settle(&topic);
    for _ in 0..1_000 {
        topic.append(ConnId(1), ["x"]).unwrap();
        assert!(!topic.tail.lock().watermarks.is_queued, "no reservation is pending");
    }
    topics.close();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// For every size of tail and reads, a reader from any seq receives every event once and in
    /// order.
    // PROTOCOL: D2
    #[test]
    fn a_reader_from_any_seq_receives_everything(
        sizes in proptest::collection::vec((1_usize..40, 1_usize..2_000), 1..30),
        tail_bytes_max in 4_000_usize..60_000,
        from in 1_u64..300,
        restarts in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { tail_bytes_max, ..Limits::default() };
        let mut topics = open(folder.path(), &limits);
        let mut all = Vec::new();
        for (count, length) in sizes {
            if restarts && all.len() % 3 == 1 {
                topics.close();
                topics = open(folder.path(), &limits);
            }
            let text = "x".repeat(length);
            let first = all.len() as u64 + 1;
            let new: Vec<_> = (0..count as u64).map(|n| format!("{} {text}", first + n)).collect();
            keep(&named(&topics, "t"), &new);
            all.extend(new);
        }
        let from = from.min(all.len() as u64);
        let (events, missed) = replay(&named(&topics, "t"), StartAt::Seq(Seq(from)));
        prop_assert_eq!(missed, Vec::<String>::new());
        let wanted = (1..).zip(all).skip_while(|(seq, _)| *seq < from);
        prop_assert!(events.into_iter().eq(wanted));
        topics.close();
    }
}
