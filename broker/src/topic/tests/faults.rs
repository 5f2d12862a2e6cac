//! Tests of topics on full and failing disks, and at shutdown.

use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use tidings_log::{DiskFaults, SimulatedDisk};

use super::disk::{expected, keep, named, numbered, open, replay, settle, waker};
use super::*;
use tidings_protocol::Sync;

use crate::TEST_LIMIT;
use crate::catalog::CatalogRecord;

/// Waits until a condition is met, which a waker reports.
#[track_caller]
pub(super) fn until(mut is_so: impl FnMut(&Waker) -> bool) {
    let waker = waker();
    // Some changes wake no task.
    let step = Duration::from_millis(10);
    for _ in 0..TEST_LIMIT.as_millis() / step.as_millis() {
        if is_so(&waker) {
            return;
        }
        thread::park_timeout(step);
    }
    panic!("the condition was not met in time");
}

#[test]
fn a_failed_deletion_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { deleted_topics_max: 0, ..Limits::default() };
    let topics = open(folder.path(), &limits);
    let topic = named(&topics, "t");
    keep(&topic, &numbered(1..4));
    let (sender, receiver) = channel();
    topics.delete(&topic, move |result| sender.send(result).unwrap()).unwrap();
    let refusal = receiver.recv_timeout(TEST_LIMIT).unwrap().unwrap_err();
    assert_eq!(refusal.code, Code::Limit);
    let again = named(&topics, "t");
    assert_eq!(again.head(), Seq(4), "no seq is assigned twice");
    keep(&again, &numbered(4..6));
    assert_eq!(replay(&again, StartAt::First), (expected(1..6), vec![]));
    topics.close();
    drop((topic, again, topics));
    let topics = open(folder.path(), &limits);
    assert_eq!(replay(&named(&topics, "t"), StartAt::First), (expected(1..6), vec![]));
}

// PROTOCOL: R7
#[test]
fn a_topic_is_deleted_while_its_first_seqs_are_reserved() {
    let disk = SimulatedDisk::new(1);
    let topics = Topics::simulated(&disk, &Limits::default(), Sync::Always).unwrap();
    disk.stall_syncs(Path::new("data/topics/t"));
    let files = || {
        let files = disk.files().into_iter();
        files.filter(|(path, _)| path.starts_with("data/topics/t")).count()
    };
    let topic = topics.create(&"t".parse().unwrap(), topics.defaults(), |_| ()).unwrap();
    until(|_| files() > 0);
    let (sender, receiver) = channel();
    topics.delete(&topic, move |result| sender.send(result).unwrap()).unwrap();
    disk.resume_syncs();
    receiver.recv_timeout(TEST_LIMIT).unwrap().unwrap();
    assert_eq!(files(), 0);
    keep(&named(&topics, "t"), &numbered(1..3));
    assert_eq!(replay(&named(&topics, "t"), StartAt::First), (expected(1..3), vec![]));
    topics.close();
}

// PROTOCOL: A9
#[test]
fn publishing_fails_after_the_ends_are_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let memory = TopicSettings { sync: Sync::Memory, ..TopicSettings::default() };
    let topics = open(folder.path(), &Limits::default());
    let disk = named(&topics, "t");
    let memory = topics.create(&"m".parse().unwrap(), memory, |result| result.unwrap()).unwrap();
    keep(&disk, &numbered(1..4));
    topics.close();
    for topic in [disk, memory] {
        let refusal = topic.append(ConnId(1), ["late"]).unwrap_err();
        assert_eq!(refusal.code, Code::Closing, "its seq would be assigned again");
    }
    assert_eq!(topics.open(&"new".parse().unwrap()).unwrap_err().code, Code::Closing);
}

// PROTOCOL: A9, R5
#[test]
fn publishers_to_a_failed_topic_are_rejected_at_once() {
    let disk = SimulatedDisk::new(1);
    let topics = Topics::simulated(&disk, &Limits::default(), Sync::Always).unwrap();
    let topic = named(&topics, "t");
    keep(&topic, &numbered(1..2));
    disk.set_faults(DiskFaults { power_off_after: Some(0), ..DiskFaults::default() });
    // More events than reserved seqs.
    topic.append(ConnId(1), vec!["x"; 10_000]).unwrap();
    until(|waker| topic.wait_durable(Seq(10_001), None, waker).is_none());
    assert_eq!(topic.stats().health, Health::Failed);
    assert_eq!(topic.fate(Seq(10_001)).0, Durability::Lost(Code::NotDurable));
    assert!(!topic.is_backpressured(None), "the publisher would wait for ever");
    assert_eq!(topic.append(ConnId(1), ["x"]).unwrap_err().code, Code::NotDurable);
}

#[test]
fn a_topic_in_memory_waits_for_its_reservation() {
    let disk = SimulatedDisk::new(1);
    let topics = Topics::simulated(&disk, &Limits::default(), Sync::Memory).unwrap();
    disk.set_room(0);
    let topic = named(&topics, "m");
    let name = topic.name().clone();
    topic.append(ConnId(1), ["x"]).unwrap();
    let mut reader = topic.subscribe(None, LineForm::Wire, waker());
    until(|waker| topic.wait_durable(Seq(1), None, waker).is_none());
    assert_eq!(topic.fate(Seq(1)).0, Durability::Lost(Code::Full), "its seq may be assigned again");
    assert!(!topic.is_backpressured(None));
    assert_eq!(topic.append(ConnId(1), ["y"]).unwrap_err().code, Code::Full);
    disk.set_room(1 << 30);
    topic.maintain();
    let (sender, receiver) = channel();
    let record = CatalogRecord::Reserved { topic: name, below: Seq(2) };
    topics.catalog().write(record, move |result| sender.send(result).unwrap());
    receiver.recv_timeout(TEST_LIMIT).unwrap().unwrap();
    topic.append(ConnId(1), ["z"]).unwrap();
    let mut seen = String::new();
    until(|_| {
        seen.push_str(&text(&mut reader));
        !seen.is_empty()
    });
    assert_eq!(seen, "MSG m 2 z\r\n");
}

#[test]
fn settings_that_cannot_be_stored_do_not_take_effect() {
    let disk = SimulatedDisk::new(1);
    let topics = Topics::simulated(&disk, &Limits::default(), Sync::Always).unwrap();
    let topic = named(&topics, "t");
    let before = topic.settings();
    let configure = |sync| {
        let (sender, receiver) = channel();
        let settings = TopicSettings { sync, ..before };
        topics.configure(&topic, settings, move |result| sender.send(result).unwrap()).unwrap();
        receiver.recv_timeout(TEST_LIMIT).unwrap()
    };
    disk.set_room(0);
    assert_eq!(configure(Sync::Interval).unwrap_err().code, Code::Full);
    assert_eq!(topic.settings(), before);
    disk.set_room(1 << 30);
    configure(Sync::Interval).unwrap();
    assert_eq!(topic.settings().sync, Sync::Interval);
}

// PROTOCOL: R3
#[test]
fn a_reader_beyond_the_visible_mark_is_woken() {
    let topic = topic(1 << 20);
    let reserve = |below| {
        let mut tail = topic.tail.lock();
        // As if the catalog were slow.
        (tail.watermarks.reserved, tail.watermarks.is_queued) = (Seq(below), true);
        topic.publish_watermarks(tail);
    };
    reserve(1);
    append(&topic, 1, &["a"]);
    append(&topic, 1, &["b"]);
    let wakes = Arc::new(Wakes::default());
    let mut reader = topic.subscribe(None, LineForm::Wire, Waker::from(Arc::clone(&wakes)));
    assert_eq!((reader.cursor(), text(&mut reader)), (Seq(3), String::new()));
    append(&topic, 1, &["c"]);
    reserve(2);
    assert_eq!(text(&mut reader), "");
    wakes.take();
    reserve(100);
    assert_eq!(wakes.take(), 1);
    assert_eq!(text(&mut reader), "MSG new-url 3 c\r\n");
}

/// Evicts all but the newest batch.
fn forget(topic: &Topic) {
    topic.tail.lock().shrink_to(0);
}

/// Sends a message when it is woken.
struct Tells(std::sync::Mutex<std::sync::mpsc::Sender<()>>);

impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().unwrap().send(());
    }
}

#[test]
fn events_evicted_during_a_cold_read_are_not_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let topics = open(folder.path(), &Limits::default());
    let topic = named(&topics, "t");
    keep(&topic, &numbered(1..11));
    topic.hold();
    topic.append(ConnId(1), ["lost"; 10]).unwrap();
    topic.lose_held();
    topic.hold();
    topic.append(ConnId(1), ["event 21"]).unwrap();
    forget(&topic);
    let (sender, receiver) = channel();
    let waker = Waker::from(Arc::new(Tells(sender.into())));
    let mut reader = topic.subscribe(Some(StartAt::Seq(Seq(11))), LineForm::Wire, waker);
    assert_eq!(text(&mut reader), "", "a read of the disk is pending");
    receiver.recv_timeout(TEST_LIMIT).unwrap();
    // The result is ready, but events are evicted before the reader takes it.
    topic.tail.lock().watermarks.is_queued = false;
    keep(&topic, &numbered(22..23));
    keep(&topic, &numbered(23..24));
    forget(&topic);
    let gap = Lag { from: Seq(11), to: Seq(20) };
    assert_eq!(reader.fetch(1, 1, |_| {}), Fetched::Gap(gap));
    topics.close();
}

#[test]
fn events_in_memory_are_readable_when_the_disk_is_not() {
    let disk = SimulatedDisk::new(1);
    let topics = Topics::simulated(&disk, &Limits::default(), Sync::Always).unwrap();
    let topic = named(&topics, "t");
    keep(&topic, &numbered(1..11));
    keep(&topic, &numbered(11..21));
    forget(&topic);
    disk.set_faults(DiskFaults { fail_read_after: Some(0), ..DiskFaults::default() });
    let missed = vec!["lag 1 10".to_owned()];
    assert_eq!(replay(&topic, StartAt::First), (expected(11..21), missed));
    assert_eq!(
        replay(&topic, StartAt::First),
        (expected(1..21), vec![]),
        "the disk is readable again"
    );
    settle(&topic);
}

/// The log holds events that are not durable, and its syncs wait. No subscriber may see an
/// unreserved seq, and no group may take an event that a crash could lose, however they read.
// PROTOCOL: R1
#[test]
fn unsynced_events_are_not_read_from_the_log() {
    let disk = SimulatedDisk::new(1);
    let limits = Limits { tail_bytes_max: 1, ..Limits::default() };
    let topics = Topics::simulated(&disk, &limits, Sync::Always).unwrap();
    let topic = named(&topics, "t");
    let mut reader = topic.subscribe(None, LineForm::Wire, waker());
    let mut group = topic.reader(StartAt::Seq(Seq(1)), Arc::new(Notify::new()));
    keep(&topic, &numbered(1..4));
    disk.stall_syncs(Path::new("data/topics/t"));
    let fourth = "x".repeat(100);
    topic.append(ConnId(1), vec![fourth.as_str(); 3_000]).unwrap();
    let log = Arc::clone(topic.log.as_ref().unwrap());
    until(|_| log.bounds().end > Seq(4));
    let visible = topic.visible();
    assert!(Seq(4) <= visible && visible < topic.head(), "the other events wait for reserved seqs");
    // Both find that what they want is not in memory any more.
    assert_eq!(group.next_events(10).events, []);
    assert_eq!(
        reader.fetch(usize::MAX, 10, |_| panic!("the events are not in memory")),
        Fetched::Delivered
    );
    assert!(group.waits_for_disk() && reader.waits_for_disk());
    let mut shown = 0;
    until(|_| {
        let count = |run: EventRun| shown += count_lines(&run.lines);
        reader.fetch(usize::MAX, 10, count);
        reader.cursor() > Seq(1)
    });
    assert_eq!((shown, reader.cursor()), (visible.0 - 1, visible));
    disk.set_faults(DiskFaults { fail_sync_after: Some(0), ..DiskFaults::default() });
    disk.resume_syncs();
    until(|_| topic.stats().health == Health::Failed);
    let mut taken = Vec::new();
    until(|_| {
        taken.extend(group.next_events(10).events.into_iter().map(|event| event.seq));
        !group.waits_for_disk() && taken.len() >= 3
    });
    assert_eq!(taken, [Seq(1), Seq(2), Seq(3)]);
}
