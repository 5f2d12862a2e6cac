use std::future::poll_fn;
use std::task::Poll;

use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::model::{check, finds};

/// The tail of a topic, as far as its marks go.
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

/// A topic, and a disk that has synced every event before a number, as the system knows it.
#[derive(Debug)]
struct Topic {
    tail: Watermarked<Tail>,
    synced: AtomicU64,
}

impl Topic {
    /// Nothing is shown and nothing is safe of the first `head` events.
    fn new(head: u64) -> Arc<Self> {
        let levels = Levels { head, visible: 0, durable: 0, has_lost: false };
        let (visible, durable) = Default::default();
        let tail = Watermarked::new(Tail { levels, visible, durable });
        Arc::new(Self { tail, synced: AtomicU64::new(0) })
    }

    fn change(&self, change: impl FnOnce(&mut Levels)) {
        let mut tail = self.tail.lock();
        change(&mut tail.levels);
        self.tail.moved(tail, Vec::new());
    }

    /// A publisher appends an event, which subscribers are shown.
    fn append(&self) {
        self.change(|levels| {
            levels.head += 1;
            levels.visible = levels.head;
        });
    }

    /// A committer syncs everything before a number.
    fn commit(&self, before: u64) {
        self.synced.store(before, Ordering::Relaxed);
        self.change(|levels| levels.durable = before);
    }

    /// The disk fails: no event that is not safe will ever be. Where subscribers are shown what is safe only, they go
    /// on behind what was lost.
    fn lose(&self) {
        self.change(|levels| {
            (levels.durable, levels.visible) = (levels.head, levels.head);
            levels.has_lost = true;
        });
    }
}

/// Runs `act` in a thread of its own.
fn beside(topic: &Arc<Topic>, act: fn(&Topic)) -> thread::JoinHandle<()> {
    let topic = Arc::clone(topic);
    thread::spawn(move || act(&topic))
}

/// Looks without waiting, twice, at everything that is promised of a look.
fn looks() {
    let topic = Topic::new(0);
    let publisher = beside(&topic, Topic::append);
    let committer = beside(&topic, |topic| {
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
        thread.join().expect("a thread of a model ends");
    }
}

/// Two publishers; each moves the head on.
fn two_publishers() {
    let topic = Topic::new(0);
    let publishers = [beside(&topic, Topic::append), beside(&topic, Topic::append)];
    let (first, second) = (topic.tail.head(), topic.tail.head());
    assert!(first <= second, "a mark goes back");
    for publisher in publishers {
        publisher.join().expect("a thread of a model ends");
    }
    assert_eq!(topic.tail.head(), 2, "a mark goes back");
}

/// A subscriber looks while the disk fails.
fn loss(mark: Mark) {
    let topic = Topic::new(1);
    let committer = beside(&topic, Topic::lose);
    let (mark, has_lost) = topic.tail.mark_and_loss(mark);
    assert!(mark == 0 || has_lost, "an event that was lost passes for one that is safe");
    committer.join().expect("a thread of a model ends");
}

/// A publisher waits until its event is safe; only then its confirmation leaves.
fn confirmation() {
    let topic = Topic::new(1);
    let committer = beside(&topic, |topic| topic.commit(1));
    let mut place = None;
    block_on(poll_fn(|cx| {
        if topic.tail.mark(Mark::Durable) > 0 {
            let synced = topic.synced.load(Ordering::Relaxed);
            assert_eq!(synced, 1, "a confirmation leaves before the sync");
            return Poll::Ready(());
        }
        place = topic.tail.wait_durable(0, place, cx.waker());
        if place.is_none() {
            // It has become safe since the look.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }));
    committer.join().expect("a thread of a model ends");
}

/// Takes events until it has all before `until`.
fn read(topic: &Topic, until: u64) {
    let (mut wait, mut cursor) = (Wait::new(Mark::Visible), 0);
    block_on(poll_fn(|cx| {
        if wait.goes_on(&topic.tail) {
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

/// A subscriber takes two events that come one after the other.
fn subscriber() {
    let topic = Topic::new(0);
    let publisher = beside(&topic, |topic| {
        topic.append();
        topic.append();
    });
    read(&topic, 2);
    publisher.join().expect("a thread of a model ends");
}

/// Of two subscribers that wait, one goes away.
fn leaving() {
    let topic = Topic::new(0);
    let leaver = beside(&topic, |topic| {
        let mut wait = Wait::new(Mark::Visible);
        wait.begin(&mut *topic.tail.lock(), Waker::noop());
        wait.leave(&mut *topic.tail.lock());
    });
    let publisher = beside(&topic, Topic::append);
    read(&topic, 1);
    for thread in [leaver, publisher] {
        thread.join().expect("a thread of a model ends");
    }
}

#[test]
fn marks_are_ordered_do_not_go_back_and_show_what_was_done_before() {
    check(looks);
}

#[test]
fn a_mark_that_two_threads_move_does_not_go_back() {
    check(two_publishers);
}

#[test]
fn a_mark_behind_lost_events_shows_the_loss() {
    check(|| loss(Mark::Durable));
    check(|| loss(Mark::Visible));
}

#[test]
fn a_confirmation_leaves_after_the_sync_and_is_never_forgotten() {
    check(confirmation);
}

#[test]
fn a_subscriber_never_sleeps_through_an_event() {
    check(subscriber);
}

#[test]
fn a_subscriber_that_leaves_takes_no_wake_up_from_another() {
    check(leaving);
}

#[test]
fn a_relaxed_store_is_found() {
    finds(Mutant::RelaxedStore, looks, " is beyond ");
}

#[test]
fn a_relaxed_load_is_found() {
    finds(Mutant::RelaxedLoad, looks, " is beyond ");
}

#[test]
fn a_head_that_is_stored_last_is_found() {
    finds(Mutant::HeadLast, looks, "visible 1 is beyond head 0");
}

#[test]
fn a_mark_that_is_stored_without_the_lock_is_found() {
    finds(Mutant::WakesFirst, two_publishers, "a mark goes back");
}

#[test]
fn a_loss_that_is_stored_after_the_visible_mark_is_found() {
    finds(Mutant::LossLast, || loss(Mark::Visible), "passes for one that is safe");
}

#[test]
fn a_loss_that_is_stored_after_the_durable_mark_is_found() {
    finds(Mutant::LossLast, || loss(Mark::Durable), "passes for one that is safe");
}

#[test]
fn a_relaxed_store_of_a_mark_behind_a_loss_is_found() {
    finds(Mutant::RelaxedStore, || loss(Mark::Visible), "passes for one that is safe");
}

#[test]
fn a_relaxed_load_is_found_by_a_confirmation() {
    finds(Mutant::RelaxedLoad, confirmation, "a confirmation leaves before the sync");
}

#[test]
fn a_waker_that_is_registered_after_the_look_is_found() {
    finds(Mutant::LooksOnce, confirmation, "deadlock");
}

#[test]
fn a_wake_up_before_the_mark_is_found() {
    finds(Mutant::WakesFirst, subscriber, "deadlock");
}
