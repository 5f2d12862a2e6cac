//! Group commit: threads that write what topics and groups have gathered, sync it, and say so.
//!
//! While one commit of a log is under way the next one gathers, so one sync serves everything that
//! arrived meanwhile, however many there are who wait for it. A log is with one thread at a time.
#![expect(clippy::disallowed_methods, reason = "owns the threads that block on the disk")]

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Threads that commit: as many logs can be synced at once.
const THREADS: usize = 4;

/// How far committers step back behind the threads that deliver.
const NICE: i32 = 10;

/// While events stream in, a sync is begun no sooner than so long after the one before, or when so
/// many bytes wait: a sync costs as much processor time as hundreds of events.
const PACE: Duration = Duration::from_millis(1);
const PACE_BYTES: usize = 32 << 10;
/// If nothing more came in so much time, everybody waits for a confirmation, and so nobody is served
/// by waiting for more.
const PACE_STEP: Duration = Duration::from_micros(100);

/// Until what was put off is done: so much that a disk has ended with one part of it before the next.
const PAUSE: Duration = Duration::from_millis(50);

/// Something that gathers what is to be written to a log of its own.
pub(crate) trait Commit: Debug + Send + Sync {
    /// Writes what has gathered. Returns how many bytes have gathered meanwhile; `None` if there is
    /// nothing more to do.
    fn commit(self: Arc<Self>) -> Option<usize>;

    /// Bytes that wait for the next commit.
    fn waiting_bytes(&self) -> usize;
}

/// The threads that commit.
#[derive(Debug)]
pub(crate) struct Committers {
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Debug, Default)]
struct State {
    logs: VecDeque<Arc<dyn Commit>>,
    /// What is queued at a moment, or when all ends; the earliest first.
    later: VecDeque<(Instant, Arc<dyn Commit>)>,
    closed: bool,
    /// What comes later is left.
    abandoned: bool,
}

impl Committers {
    /// Starts the threads.
    pub(crate) fn start() -> Self {
        let queue = Arc::new(Queue::default());
        let threads = (1..=THREADS)
            .map(|number| {
                let queue = Arc::clone(&queue);
                let thread = thread::Builder::new().name(format!("commit-{number}"));
                thread
                    .spawn(move || {
                        // Deliveries do not wait for a commit, so it does not push them aside. Where a
                        // system does not allow that, it does.
                        let _ = rustix::process::setpriority_process(None, NICE);
                        queue.run();
                    })
                    .expect("a thread can be started")
            })
            .collect();
        Self { queue, threads: Mutex::new(threads) }
    }

    /// Has a log committed. Who asks sees to it that it is queued once until all is done.
    pub(crate) fn push(&self, log: Arc<dyn Commit>) {
        self.queue.state.lock().logs.push_back(log);
        self.queue.ready.notify_one();
    }

    /// Has something committed after a pause: it is a part of what would keep the disk busy for long.
    pub(crate) fn push_later(&self, log: Arc<dyn Commit>) {
        // Inside the lock, so that moments rise.
        let state = &mut *self.queue.state.lock();
        if !state.abandoned {
            state.later.push_back((Instant::now() + PAUSE, log));
            self.queue.ready.notify_one();
        }
    }

    /// Commits what is queued, and ends the threads.
    pub(crate) fn close(&self) {
        self.queue.state.lock().closed = true;
        self.queue.ready.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        // The last of a broker may be dropped by what one of them wakes.
        for thread in threads.into_iter().filter(|one| one.thread().id() != thread::current().id())
        {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }

    /// Ends the threads, and leaves what is queued. What one is just writing it ends first, so that
    /// nothing is written any more after this.
    pub(crate) fn abandon(&self) {
        {
            let state = &mut *self.queue.state.lock();
            state.abandoned = true;
            state.logs.clear();
            state.later.clear();
        }
        self.close();
    }
}

impl Queue {
    fn run(&self) {
        while let Some(log) = self.next() {
            let began = Instant::now();
            if let Some(waiting) = Arc::clone(&log).commit() {
                self.pace(&*log, waiting, began);
                // However much streams into this one, others have their turn.
                self.state.lock().logs.push_back(log);
            }
        }
    }

    /// Lets events gather, after a commit that `began` then, if they stream in.
    fn pace(&self, log: &dyn Commit, mut waiting: usize, began: Instant) {
        while waiting > 0 && waiting < PACE_BYTES && began.elapsed() < PACE {
            let is_wanted = {
                let state = self.state.lock();
                state.closed || !state.logs.is_empty()
            };
            if is_wanted {
                return;
            }
            thread::sleep(PACE_STEP);
            let more = log.waiting_bytes();
            if more == waiting {
                return;
            }
            waiting = more;
        }
    }

    fn next(&self) -> Option<Arc<dyn Commit>> {
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
