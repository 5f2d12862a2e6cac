use std::future::poll_fn;
use std::task::Poll;

use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::model::{assert_finds, check};

/// The watermarks of a topic's tail.
#[derive(Debug)]
struct Tail {
    levels: Levels,
    visible: Waiters,
    durable: Waiters,
}

impl Watermarks for Tail {
    fn levels(&self) -> Levels {
        self.levels
    }

    fn waiters(&mut self, mark: Mark) -> &mut Waiters {
        match mark {
            Mark::Visible => &mut self.visible,
            Mark::Durable => &mut self.durable,
        }
    }
}

/// A topic, and the seq up to which its disk has really synced.
#[derive(Debug)]
struct Topic {
    tail: Watermarked<Tail>,
    synced: AtomicU64,
}

impl Topic {
    /// A topic with `head` events. None is visible or durable.
    fn new(head: u64) -> Arc<Self> {
        let levels = Levels { head, visible: 0, durable: 0, has_lost: false };
        let (visible, durable) = Default::default();
        let tail = Watermarked::new(Tail { levels, visible, durable });
        Arc::new(Self { tail, synced: AtomicU64::new(0) })
    }

    fn change(&self, change: impl FnOnce(&mut Levels)) {
        let mut tail = self.tail.lock();
        change(&mut tail.levels);
        self.tail.publish_and_wake(tail, Vec::new());
    }

    /// A publisher appends an event, which is visible at once.
    fn append(&self) {
        self.change(|levels| {
            levels.head += 1;
            levels.visible = levels.head;
        });
    }

    /// A committer syncs everything before a seq.
    fn commit(&self, before: u64) {
        self.synced.store(before, Ordering::Relaxed);
        self.change(|levels| levels.durable = before);
    }

    /// The disk fails: events that are not durable are lost. Subscribers that see durable events
    /// only continue after them.
    fn lose(&self) {
        self.change(|levels| {
            (levels.durable, levels.visible) = (levels.head, levels.head);
            levels.has_lost = true;
        });
    }
}

/// Runs `act` in its own thread.
fn spawn(topic: &Arc<Topic>, act: fn(&Topic)) -> thread::JoinHandle<()> {
    let topic = Arc::clone(topic);
    thread::spawn(move || act(&topic))
}

/// Reads all marks twice without the lock, and checks every promise.
fn reads_without_lock() {
    let topic = Topic::new(0);
    let publisher = spawn(&topic, Topic::append);
    let committer = spawn(&topic, |topic| {
        let head = topic.tail.lock().levels.head;
        topic.commit(head);
    });
    let mut before = [0; 3];
    for _ in 0..2 {
        let durable = topic.tail.mark(Mark::Durable);
        let synced = topic.synced.load(Ordering::Relaxed);
        assert!(durable <= synced, "durable {durable} is beyond synced {synced}");
        let visible = topic.tail.mark(Mark::Visible);
        let head = topic.tail.head();
        assert!(durable <= head, "durable {durable} is beyond head {head}");
        assert!(visible <= head, "visible {visible} is beyond head {head}");
        let now = [head, visible, durable];
        assert!(before.iter().zip(now).all(|(before, now)| *before <= now), "a mark goes back");
        before = now;
    }
    for thread in [publisher, committer] {
        thread.join().expect("no thread of the model panics");
    }
}

/// Two publishers. Each moves the head.
fn two_publishers() {
    let topic = Topic::new(0);
    let publishers = [spawn(&topic, Topic::append), spawn(&topic, Topic::append)];
    let (first, second) = (topic.tail.head(), topic.tail.head());
    assert!(first <= second, "a mark goes back");
    for publisher in publishers {
        publisher.join().expect("no thread of the model panics");
    }
    assert_eq!(topic.tail.head(), 2, "a mark goes back");
}

/// A subscriber reads a mark while the disk fails.
fn loss(mark: Mark) {
    let topic = Topic::new(1);
    let committer = spawn(&topic, Topic::lose);
    let (mark, has_lost) = topic.tail.mark_and_loss(mark);
    assert!(mark == 0 || has_lost, "an event that was lost passes for one that is safe");
    committer.join().expect("no thread of the model panics");
}

/// A publisher waits until its event is durable, and only then receives its confirmation.
fn confirmation() {
    let topic = Topic::new(1);
    let committer = spawn(&topic, |topic| topic.commit(1));
    let mut place = None;
    block_on(poll_fn(|cx| {
        if topic.tail.mark(Mark::Durable) > 0 {
            let synced = topic.synced.load(Ordering::Relaxed);
            assert_eq!(synced, 1, "a confirmation leaves before the sync");
            return Poll::Ready(());
        }
        place = topic.tail.wait_durable(0, place, cx.waker());
        if place.is_none() {
            // The mark has moved since the check.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }));
    committer.join().expect("no thread of the model panics");
}

/// Reads events up to before `until`.
fn read(topic: &Topic, until: u64) {
    let (mut wait, mut cursor) = (MarkWait::new(Mark::Visible), 0);
    block_on(poll_fn(|cx| {
        if wait.is_pending(&topic.tail) {
            return Poll::Pending;
        }
        wait.end();
        let tail = &mut *topic.tail.lock();
        cursor = tail.levels.visible;
        if cursor == until {
            return Poll::Ready(());
        }
        wait.begin(tail, cx.waker());
        Poll::Pending
    }));
}

/// A subscriber reads two events that are appended one after the other.
fn subscriber() {
    let topic = Topic::new(0);
    let publisher = spawn(&topic, |topic| {
        topic.append();
        topic.append();
    });
    read(&topic, 2);
    publisher.join().expect("no thread of the model panics");
}

/// One of two waiting subscribers leaves.
fn leaving() {
    let topic = Topic::new(0);
    let leaver = spawn(&topic, |topic| {
        let mut wait = MarkWait::new(Mark::Visible);
        wait.begin(&mut *topic.tail.lock(), Waker::noop());
        wait.leave(&mut *topic.tail.lock());
    });
    let publisher = spawn(&topic, Topic::append);
    read(&topic, 1);
    for thread in [leaver, publisher] {
        thread.join().expect("no thread of the model panics");
    }
}

#[test]
fn marks_are_ordered_and_only_rise() {
    check(reads_without_lock);
}

#[test]
fn a_mark_moved_by_two_threads_only_rises() {
    check(two_publishers);
}

#[test]
fn a_mark_beyond_lost_events_shows_the_loss() {
    check(|| loss(Mark::Durable));
    check(|| loss(Mark::Visible));
}

#[test]
fn every_confirmation_is_sent_after_the_sync() {
    check(confirmation);
}

#[test]
fn every_event_wakes_the_subscriber() {
    check(subscriber);
}

#[test]
fn a_leaving_subscriber_takes_no_wake_up_from_another() {
    check(leaving);
}

#[test]
fn a_relaxed_store_is_found() {
    assert_finds(Mutant::RelaxedStore, reads_without_lock, " is beyond ");
}

#[test]
fn a_relaxed_load_is_found() {
    assert_finds(Mutant::RelaxedLoad, reads_without_lock, " is beyond ");
}

#[test]
fn a_head_stored_last_is_found() {
    assert_finds(Mutant::HeadLast, reads_without_lock, "visible 1 is beyond head 0");
}

#[test]
fn a_mark_stored_without_the_lock_is_found() {
    assert_finds(Mutant::WakesFirst, two_publishers, "a mark goes back");
}

#[test]
fn a_loss_stored_after_the_visible_mark_is_found() {
    assert_finds(Mutant::LossLast, || loss(Mark::Visible), "passes for one that is safe");
}

#[test]
fn a_loss_stored_after_the_durable_mark_is_found() {
    assert_finds(Mutant::LossLast, || loss(Mark::Durable), "passes for one that is safe");
}

#[test]
fn a_relaxed_store_of_a_mark_beyond_a_loss_is_found() {
    assert_finds(Mutant::RelaxedStore, || loss(Mark::Visible), "passes for one that is safe");
}

#[test]
fn confirmation_finds_a_relaxed_load() {
    assert_finds(Mutant::RelaxedLoad, confirmation, "a confirmation leaves before the sync");
}

#[test]
fn a_waker_registered_after_the_check_is_found() {
    assert_finds(Mutant::ChecksOnce, confirmation, "deadlock");
}

#[test]
fn a_wake_up_before_the_store_is_found() {
    assert_finds(Mutant::WakesFirst, subscriber, "deadlock");
}
