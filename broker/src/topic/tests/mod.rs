//! Tests of topics through their readers.

mod disk;
mod faults;
mod model;
mod newest;
mod simulation;

use std::fmt::Write;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::task::Wake;

use tidings_log::{Disk, SegmentStore, SimulatedDisk, Store};

use super::*;
use tidings_protocol::Sync;

use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::limits::Limits;

impl Topic {
    /// Events published from now on wait, as if the disk were slow.
    pub(crate) fn hold(&self) {
        self.tail.lock().watermarks.is_queued = true;
    }

    /// The [held](Self::hold) events are lost on a full disk, which then has room again.
    pub(crate) fn lose_held(&self) {
        let mut tail = self.tail.lock();
        tail.mark_lost(Health::Full);
        (tail.watermarks.health, tail.watermarks.is_queued) = (Health::Good, false);
        self.publish_watermarks(tail);
    }
}

impl Topic {
    /// Refuses further events, as while it is being deleted.
    pub(crate) fn refuse_events(&self) {
        self.deleted.store(true, Ordering::Release);
    }
}

impl Topics {
    /// Topics on a simulated disk.
    pub(crate) fn simulated(
        disk: &SimulatedDisk,
        limits: &Limits,
        sync: Sync,
    ) -> io::Result<Arc<Self>> {
        let (clock, dir) = (Clock::new(), Path::new("data"));
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        disk.create_dir(dir)?;
        disk.sync_dir(Path::new(""))?;
        let store: Arc<dyn Store> = Arc::new(SegmentStore::new(disk, dir));
        let (catalog, _) = Catalog::open(&*store, limits, clock)?;
        let defaults = TopicSettings { sync, ..TopicSettings::default() };
        Self::start(limits, clock, catalog, Some(store), defaults)
    }
}

/// Counts its wake-ups.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Wakes {
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

fn topics(limits: &Limits) -> Arc<Topics> {
    Topics::in_memory(limits, Clock::new())
}

fn topic(tail_bytes_max: usize) -> Arc<Topic> {
    topics(&Limits { tail_bytes_max, ..Limits::default() }).default_topic()
}

fn wire(topic: &Arc<Topic>, from: Option<StartAt>) -> Reader {
    topic.subscribe(from, LineForm::Wire, Waker::noop().clone())
}

fn peer(topic: &Arc<Topic>, origin: u64) -> Reader {
    let form = LineForm::Bare { origin: ConnId(origin) };
    topic.subscribe(None, form, Waker::noop().clone())
}

/// Everything that a reader receives now, as text; a lag as `LAG from to`.
fn text(reader: &mut Reader) -> String {
    let mut text = String::new();
    loop {
        let before = text.len();
        let fetched = reader.fetch(usize::MAX, 64, |run| {
            text.push_str(std::str::from_utf8(&run.lines).unwrap());
        });
        if let Fetched::Lag(lag) = fetched {
            write!(text, "LAG {} {}\r\n", lag.from, lag.to).unwrap();
        } else if text.len() == before {
            return text;
        }
    }
}

fn append(topic: &Arc<Topic>, origin: u64, payloads: &[&str]) {
    topic.append(ConnId(origin), payloads.iter().copied()).unwrap();
}

#[test]
fn events_are_numbered_from_one_and_encoded_as_they_are_sent() {
    let topic = topic(1 << 20);
    let mut reader = wire(&topic, None);
    assert_eq!(text(&mut reader), "");
    let numbers = topic.append(ConnId(1), ["a", "b c"]);
    assert_eq!(numbers.unwrap(), Seq(1)..Seq(3));
    assert_eq!(text(&mut reader), "MSG new-url 1 a\r\nMSG new-url 2 b c\r\n");
    assert_eq!(topic.append(ConnId(1), []).unwrap(), Seq(3)..Seq(3));
    assert_eq!(text(&mut reader), "");
    assert_eq!((topic.head(), topic.durable(), topic.stats().first_kept), (Seq(3), Seq(3), Seq(1)));
}

#[test]
fn a_subscription_begins_at_the_requested_position() {
    let topic = topic(1 << 20);
    let empty = |from| wire(&topic, from).cursor();
    for from in [None, Some(StartAt::First), Some(StartAt::Last), Some(StartAt::Newest(9))] {
        assert_eq!(empty(from), Seq(1), "{from:?} of an empty topic");
    }
    append(&topic, 1, &["a", "b", "c"]);
    append(&topic, 1, &["d", "e"]);
    for (from, begin) in [
        (None, 6),
        (Some(StartAt::First), 1),
        (Some(StartAt::Last), 5),
        (Some(StartAt::Seq(Seq(2))), 2),
        (Some(StartAt::Seq(Seq(6))), 6),
        (Some(StartAt::Seq(Seq(u64::MAX))), 6),
        (Some(StartAt::Newest(1)), 5),
        (Some(StartAt::Newest(4)), 2),
        (Some(StartAt::Newest(u64::MAX)), 1),
        (Some(StartAt::Time(0)), 1),
        (Some(StartAt::Time(i64::MAX)), 6),
    ] {
        let mut reader = wire(&topic, from);
        assert_eq!(reader.cursor(), Seq(begin as u64), "{from:?}");
        let all =
            ["1 a", "2 b", "3 c", "4 d", "5 e"].map(|event| format!("MSG new-url {event}\r\n"));
        assert_eq!(text(&mut reader), all[begin - 1..].concat(), "{from:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_time_finds_the_first_event_at_or_after_it() {
    let topic = topic(1 << 20);
    let start = topic.shared.clock.unix_ms();
    append(&topic, 1, &["a"]);
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
    append(&topic, 1, &["b"]);
    append(&topic, 1, &["c"]);
    for (after_ms, seq) in [(-1, 1), (0, 1), (1, 2), (5_000, 2), (5_001, 4)] {
        let reader = wire(&topic, Some(StartAt::Time(start + after_ms)));
        assert_eq!(reader.cursor(), Seq(seq), "{after_ms} ms after the start");
    }
}

// PROTOCOL: S11, D2
#[test]
fn missed_events_are_reported() {
    // The first blocks of a topic are small, so only a few batches are kept.
    let topic = topic(20_000);
    let big = "x".repeat(3_000);
    let mut reader = wire(&topic, None);
    let mut peer = peer(&topic, 7);
    for _ in 0..20 {
        append(&topic, 1, &[&big]);
    }
    let first = topic.stats().first_kept.0;
    assert!((2..20).contains(&first), "{first}");
    let heard = text(&mut reader);
    assert!(heard.starts_with(&format!("LAG 1 {}\r\nMSG new-url {first} x", first - 1)));
    assert_eq!(heard.lines().count() as u64, 1 + 21 - first);
    // A peer continues at the newest event.
    assert_eq!(text(&mut peer), format!("LAG 1 19\r\n{big}\r\n"));
    // A new subscription that names evicted events receives a lag as well.
    for from in [StartAt::Seq(Seq(1)), StartAt::Newest(20), StartAt::Time(0)] {
        assert!(text(&mut wire(&topic, Some(from))).starts_with("LAG 1 "), "{from:?}");
    }
    for from in [StartAt::First, StartAt::Last, StartAt::Time(i64::MAX)] {
        assert!(!text(&mut wire(&topic, Some(from))).contains("LAG"), "{from:?}");
    }
}

// PROTOCOL: S7
#[test]
fn a_peer_receives_the_events_of_others_only() {
    let topic = topic(1 << 20);
    append(&topic, 2, &["before"]);
    let mut peer = peer(&topic, 1);
    append(&topic, 1, &["mine"]);
    append(&topic, 2, &["yours", "too"]);
    append(&topic, 1, &["mine"]);
    assert_eq!(text(&mut peer), "yours\r\ntoo\r\n");
    assert!(!peer.is_behind(), "its own events are skipped");
}

#[test]
fn bare_lines_are_encoded_only_for_readers_of_them() {
    let topic = topic(1 << 20);
    append(&topic, 1, &["a"]);
    let unheard = topic.stats().bytes;
    let mut heard = peer(&topic, 9);
    append(&topic, 1, &["b"]);
    assert!(topic.stats().bytes > unheard);
    assert_eq!(text(&mut heard), "b\r\n");
    drop(heard);
    append(&topic, 1, &["c"]);
    let mut late = peer(&topic, 9);
    append(&topic, 1, &["d"]);
    assert_eq!(text(&mut late), "d\r\n");
    assert_eq!(topic.stats().readers, 1);
}

#[test]
fn waiting_readers_are_woken_once_per_append() {
    let topic = topic(1 << 20);
    let wakes = Arc::new(Wakes::default());
    let mut reader = topic.subscribe(None, LineForm::Wire, Waker::from(Arc::clone(&wakes)));
    append(&topic, 1, &["unasked"]);
    assert_eq!(wakes.take(), 0, "a new reader does not wait yet");
    text(&mut reader);
    append(&topic, 1, &["a", "b", "c"]);
    assert_eq!(wakes.take(), 1);
    append(&topic, 1, &["d"]);
    assert_eq!(wakes.take(), 0, "a reader that is behind is not woken");
    text(&mut reader);
    text(&mut reader);
    append(&topic, 1, &["e"]);
    assert_eq!(wakes.take(), 1);
    text(&mut reader);
    drop(reader);
    append(&topic, 1, &["f"]);
    assert_eq!(wakes.take(), 0, "a dropped reader is not woken");
}

#[test]
fn groups_take_events_in_any_portion() {
    let topic = topic(1 << 20);
    let mut reader = topic.reader(StartAt::First, Arc::new(Notify::new()));
    append(&topic, 1, &["a", "b", "c"]);
    append(&topic, 1, &["d"]);
    let mut seen = Vec::new();
    loop {
        let found = reader.next_events(2);
        assert_eq!(found.lag, None);
        assert!(found.events.len() <= 2);
        if found.events.is_empty() {
            break;
        }
        seen.extend(found.events.into_iter().map(|event| (event.seq.0, event.payload)));
    }
    let expected = [(1, "a"), (2, "b"), (3, "c"), (4, "d")];
    assert_eq!(seen, expected.map(|(seq, payload)| (seq, payload.to_owned())));
    assert_eq!(reader.cursor(), Seq(5));
}

#[test]
fn groups_receive_a_lag_together_with_the_next_events() {
    let topic = topic(20_000);
    for _ in 0..20 {
        append(&topic, 1, &[&"x".repeat(3_000)]);
    }
    let mut reader = topic.reader(StartAt::Seq(Seq(1)), Arc::new(Notify::new()));
    let first = topic.stats().first_kept;
    let found = reader.next_events(100);
    assert_eq!(found.lag, Some(Lag { from: Seq(1), to: Seq(first.0 - 1) }));
    assert_eq!(found.events.first().map(|event| event.seq), Some(first));
    assert_eq!(
        found.events.len() as u64,
        21 - first.0,
        "fewer events than requested are all events"
    );
}

#[test]
fn a_read_is_limited_in_bytes_and_slices_but_returns_something() {
    let topic = topic(1 << 20);
    for _ in 0..10 {
        append(&topic, 1, &["0123456789"]);
    }
    let one = "MSG new-url 1 0123456789\r\n".len();
    for (bytes_max, slices_max, pieces) in [(1, 64, 1), (one, 64, 1), (one + 1, 64, 2), (999, 3, 3)]
    {
        let mut reader = wire(&topic, Some(StartAt::First));
        let mut taken = 0;
        reader.fetch(bytes_max, slices_max, |_| taken += 1);
        assert_eq!(taken, pieces, "{bytes_max} bytes, {slices_max} pieces");
    }
}

#[test]
fn a_large_append_becomes_batches_of_limited_size() {
    let topic = topic(16 << 20);
    let payloads = vec!["x"; 40_000];
    append(&topic, 1, &payloads);
    assert!(topic.stats().batches > 10);
    let mut reader = wire(&topic, Some(StartAt::First));
    let mut lines = 0;
    while reader.is_behind() {
        reader.fetch(1, 1, |run| {
            assert_eq!(run.first.0, lines + 1);
            assert!(run.lines.len() <= 65 << 10);
            lines += count_lines(&run.lines);
        });
    }
    assert_eq!(lines, 40_000);
}

#[test]
fn all_tails_share_a_limit_and_the_largest_evicts() {
    let limits = Limits {
        tail_bytes_max: 1 << 20,
        all_tails_bytes_max: 2 << 20,
        topics_max: 100,
        ..Limits::default()
    };
    let topics = topics(&limits);
    let small = topics.open(&"small".parse().unwrap()).unwrap();
    append(&small, 1, &["kept"]);
    let payload = "x".repeat(1_000);
    for round in 0..3_000 {
        for name in ["a", "b", "c", "d", "e"] {
            let topic = topics.open(&name.parse().unwrap()).unwrap();
            append(&topic, 1, &[&payload]);
        }
        let bytes: usize = topics.list().iter().map(|topic| topic.stats().bytes).sum();
        assert!(bytes <= limits.all_tails_bytes_max, "round {round}: {bytes}");
    }
    assert_eq!(text(&mut wire(&small, Some(StartAt::First))), "MSG small 1 kept\r\n");
}

#[test]
fn many_topics_share_the_memory() {
    let limits = Limits { all_tails_bytes_max: 2 << 20, ..Limits::default() };
    let topics = topics(&limits);
    let used = || topics.list().iter().map(|topic| topic.stats().bytes).sum::<usize>();
    let open = |n: usize| topics.open(&format!("t{n}").parse().unwrap()).unwrap();
    let payload = "x".repeat(500);
    // One after the other, so that each topic has large blocks before it must free memory.
    for n in 0..32 {
        let topic = open(n);
        let _peer = peer(&topic, 9);
        for _ in 0..55 {
            append(&topic, 1, &[payload.as_str(); 20]);
            assert!(used() <= limits.all_tails_bytes_max, "topic {n}: {}", used());
        }
    }
    let kept = |topic: &Arc<Topic>| {
        let show = topic.stats();
        usize::try_from(show.head.0 - show.first_kept.0).unwrap() * payload.len()
    };
    let all: usize = topics.list().iter().map(kept).sum();
    assert!(
        all > limits.all_tails_bytes_max / 4,
        "only {all} bytes of events are kept in both forms"
    );
    for n in 0..32 {
        assert!(kept(&open(n)) > 0, "topic {n} keeps no event");
    }
    let mut reader = wire(&open(0), Some(StartAt::First));
    assert!(text(&mut reader).ends_with(&format!("MSG t0 1100 {payload}\r\n")));
}

#[test]
fn an_emptied_tail_continues() {
    let topic = topics(&Limits { all_tails_bytes_max: 1_000, ..Limits::default() }).default_topic();
    let mut reader = wire(&topic, None);
    append(&topic, 1, &["x".repeat(2_000).as_str()]);
    assert_eq!(topic.stats().bytes, 0);
    assert_eq!(text(&mut reader), "LAG 1 1\r\n");
    for from in [StartAt::First, StartAt::Last, StartAt::Time(i64::MAX)] {
        assert_eq!(wire(&topic, Some(from)).cursor(), Seq(2), "{from:?}");
    }
    assert_eq!(topic.append(ConnId(1), ["small"]).unwrap(), Seq(2)..Seq(3));
}

#[test]
fn a_subscription_beyond_the_next_seq_is_rejected() {
    let topics = topics(&Limits::default());
    let name: TopicName = "t".parse().unwrap();
    let from = |seq| topics.subscribe(&name, Some(StartAt::Seq(Seq(seq))), Waker::noop().clone());
    let refusal = from(1042).unwrap_err();
    assert_eq!(refusal.code, Code::Conflict);
    assert!(refusal.text.starts_with("next is 1; "), "{}", refusal.text);
    assert!(topics.find("t").is_none(), "a rejected subscription creates no topic");
    assert_eq!(from(1).unwrap().cursor(), Seq(1));
    append(&topics.find("t").unwrap(), 1, &["a", "b"]);
    assert_eq!(from(3).unwrap().cursor(), Seq(3));
    assert!(from(4).unwrap_err().text.starts_with("next is 3; "));
}

#[test]
fn a_reader_receives_whole_batches_before_a_mark() {
    let topic = topic(1 << 20);
    append(&topic, 1, &["a", "b"]);
    append(&topic, 1, &["c"]);
    let tail = topic.tail.lock();
    let read = |cursor, end| {
        let mut pieces = 0;
        let next =
            tail.read(Seq(cursor), Seq(end), LineForm::Wire, usize::MAX, 64, |_| pieces += 1);
        (next, pieces)
    };
    assert_eq!(read(1, 4), (Seq(4), 2));
    assert_eq!(read(1, 3), (Seq(3), 1));
    assert_eq!(read(2, 3), (Seq(3), 1));
    assert_eq!(read(3, 3), (Seq(3), 0));
    assert_eq!(read(1, 1), (Seq(1), 0));
}

#[test]
fn fixed_topics_exist_at_any_limit() {
    let topics = topics(&Limits { topics_max: 5, ..Limits::default() });
    topics.open(&"mine".parse().unwrap()).unwrap();
    topics.open(&"one-too-many".parse().unwrap()).unwrap_err();
    for name in ["new-url", "job-done", "dead-letter", "page-ready"] {
        topics.open(&name.parse().unwrap()).unwrap();
    }
    assert_eq!(topics.default_topic().name().as_str(), "new-url");
}

#[test]
fn one_topic_above_the_limit_is_rejected() {
    let topics = topics(&Limits { topics_max: 5, ..Limits::default() });
    topics.open(&"second".parse().unwrap()).unwrap();
    let refusal = topics.open(&"third".parse().unwrap()).unwrap_err();
    assert_eq!(refusal.code, Code::Limit);
    topics.open(&"second".parse().unwrap()).unwrap();
    assert!(topics.find("third").is_none());
    let names: Vec<String> = topics.list().iter().map(|topic| topic.name().to_string()).collect();
    assert_eq!(names, ["dead-letter", "job-done", "new-url", "page-ready", "second"]);
}

// PROTOCOL: D5
#[test]
fn events_not_consumed_by_a_group_are_kept_and_publishers_wait() {
    const TAIL_BYTES: usize = 64 << 10;
    let topic = topic(TAIL_BYTES);
    let mut group = topic.reader(StartAt::First, Arc::new(Notify::new()));
    let payload = "x".repeat(1000);
    for _ in 0..1000 {
        topic.append(ConnId(1), [payload.as_str()]).unwrap();
    }
    let woken = Arc::new(Notify::new());
    let waker = waker_of(woken.clone());
    assert!(topic.is_backpressured(Some(&waker)), "a megabyte in a tail of 64 KiB");
    let mut taken = 0;
    loop {
        let found = group.next_events(100);
        assert_eq!(found.lag, None, "a group receives every confirmed event");
        if found.events.is_empty() {
            break;
        }
        taken += found.events.len();
    }
    assert_eq!(taken, 1000);
    assert!(!topic.is_backpressured(Some(&waker)));
    assert!(topic.stats().bytes <= 2 * TAIL_BYTES, "{}", topic.stats().bytes);
    let mut notified = std::pin::pin!(woken.notified());
    let mut context = std::task::Context::from_waker(Waker::noop());
    assert!(notified.as_mut().poll(&mut context).is_ready(), "the publisher was woken");
}
