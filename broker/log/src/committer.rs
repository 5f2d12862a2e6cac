//! Group commit: threads that write and sync the pending events of topics and groups.
//!
//! While one commit of a log runs, events for the next one gather. So one sync serves all
//! publishers that wait, however many there are. At most one thread commits a log at a time.
#![expect(clippy::disallowed_methods, reason = "owns the threads that block on the disk")]

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidings_metrics::{Durations, Histogram};

/// Niceness of the commit threads, so that threads which deliver events run first.
const NICE: i32 = 10;

/// Under a steady stream of events, a sync begins at the earliest this long after the one before,
/// or when this many bytes are pending. A sync costs as much CPU time as hundreds of events.
const SYNC_INTERVAL: Duration = Duration::from_millis(1);
const SYNC_BYTES: usize = 32 << 10;
/// If no event arrives within this time, all publishers are waiting for confirmations, so waiting
/// longer would help none of them.
const GATHER_STEP: Duration = Duration::from_micros(100);

/// Delay of work that was queued with `enqueue_later`: long enough for a disk to finish one part
/// before the next.
const LATER_DELAY: Duration = Duration::from_millis(50);

/// A topic or group that gathers writes for its own log.
pub trait CommitLog: Debug + Send + Sync {
    /// Writes what has gathered. Returns the bytes that have gathered meanwhile; `None` if nothing
    /// is left to do.
    fn commit(self: Arc<Self>) -> Option<usize>;

    /// Bytes that wait for the next commit.
    fn waiting_bytes(&self) -> usize;
}

/// The commit threads.
#[derive(Debug)]
pub struct Committers {
    queue: Arc<CommitQueue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct CommitQueue {
    state: Mutex<CommitQueueState>,
    ready: Condvar,
    /// How long commits took.
    durations: Histogram,
}

#[derive(Debug, Default)]
struct CommitQueueState {
    logs: VecDeque<Arc<dyn CommitLog>>,
    /// Work that is due at a time, or at shutdown; the earliest first.
    later: VecDeque<(Instant, Arc<dyn CommitLog>)>,
    closed: bool,
    /// Delayed work is dropped.
    abandoned: bool,
}

impl Committers {
    /// Starts this many threads. Each commits one log at a time.
    pub fn start(threads: usize) -> Self {
        let queue = Arc::new(CommitQueue::default());
        let threads = (1..=threads)
            .map(|number| {
                let queue = Arc::clone(&queue);
                let thread = thread::Builder::new().name(format!("commit-{number}"));
                thread
                    .spawn(move || {
                        // Deliveries do not wait for a commit, so a commit should not take CPU time
                        // from them. A system that forbids the change of priority runs both alike.
                        let _ = rustix::process::setpriority_process(None, NICE);
                        queue.run();
                    })
                    .expect("the system can start a thread")
            })
            .collect();
        Self { queue, threads: Mutex::new(threads) }
    }

    /// Queues a commit of a log. The caller must not queue it again before all is done.
    pub fn enqueue(&self, log: Arc<dyn CommitLog>) {
        self.queue.state.lock().logs.push_back(log);
        self.queue.ready.notify_one();
    }

    /// Queues a commit after a delay, for one part of work that would keep the disk busy for long.
    pub fn enqueue_later(&self, log: Arc<dyn CommitLog>) {
        // Taken inside the lock, so that the times ascend.
        let state = &mut *self.queue.state.lock();
        if !state.abandoned {
            state.later.push_back((Instant::now() + LATER_DELAY, log));
            self.queue.ready.notify_one();
        }
    }

    /// How long commits took, since the start.
    pub fn durations(&self) -> Durations {
        self.queue.durations.durations()
    }

    /// Commits everything queued, and ends the threads.
    pub fn close(&self) {
        self.queue.state.lock().closed = true;
        self.queue.ready.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        // A commit thread itself may drop the broker's last reference, and cannot join itself.
        for thread in threads.into_iter().filter(|one| one.thread().id() != thread::current().id())
        {
            // A panic of the thread has already been reported.
            let _ = thread.join();
        }
    }

    /// Ends the threads and drops everything queued. A running commit finishes first, so nothing is
    /// written after this call.
    pub fn abandon(&self) {
        {
            let state = &mut *self.queue.state.lock();
            state.abandoned = true;
            state.logs.clear();
            state.later.clear();
        }
        self.close();
    }
}

impl CommitQueue {
    fn run(&self) {
        while let Some(log) = self.next() {
            let began = Instant::now();
            let waiting = Arc::clone(&log).commit();
            self.durations.observe(began.elapsed());
            if let Some(waiting) = waiting {
                self.gather(&*log, waiting, began);
                // A log with a steady stream goes to the back of the queue, so that other logs get
                // their turn.
                self.state.lock().logs.push_back(log);
            }
        }
    }

    /// Under a steady stream, lets events gather after a commit that began at `began`.
    fn gather(&self, log: &dyn CommitLog, mut waiting: usize, began: Instant) {
        while waiting > 0 && waiting < SYNC_BYTES && began.elapsed() < SYNC_INTERVAL {
            let is_wanted = {
                let state = self.state.lock();
                state.closed || !state.logs.is_empty()
            };
            if is_wanted {
                return;
            }
            thread::sleep(GATHER_STEP);
            let more = log.waiting_bytes();
            if more == waiting {
                return;
            }
            waiting = more;
        }
    }

    fn next(&self) -> Option<Arc<dyn CommitLog>> {
        let state = &mut self.state.lock();
        loop {
            let closed = state.closed;
            let is_due = |(at, _): &mut (Instant, _)| closed || *at <= Instant::now();
            if let Some((_, log)) = state.later.pop_front_if(is_due) {
                state.logs.push_back(log);
            }
            if let Some(log) = state.logs.pop_front() {
                return Some(log);
            }
            if closed {
                return None;
            }
            match state.later.front().map(|(at, _)| *at) {
                Some(at) => drop(self.ready.wait_until(state, at)),
                None => self.ready.wait(state),
            }
        }
    }
}
