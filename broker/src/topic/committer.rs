//! Group commit: threads that write what topics have gathered, sync it, and say so.
//!
//! While one commit of a topic is under way the next one gathers, so one sync serves everything that
//! arrived meanwhile, however many publishers there are. A topic is with one thread at a time.
#![expect(clippy::disallowed_methods, reason = "owns the threads that block on the disk")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Topic;

/// Threads that commit: as many topics can be synced at once.
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

/// The threads that commit.
#[derive(Debug)]
pub(super) struct Committers {
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
    topics: VecDeque<Arc<Topic>>,
    closed: bool,
}

impl Committers {
    /// Starts the threads.
    pub(super) fn start() -> Self {
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

    /// Has a topic committed; it is queued once until a thread has done all there is.
    pub(super) fn push(&self, topic: Arc<Topic>) {
        self.queue.state.lock().topics.push_back(topic);
        self.queue.ready.notify_one();
    }

    /// Commits what is queued, and ends the threads.
    pub(super) fn close(&self) {
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
    pub(super) fn abandon(&self) {
        self.queue.state.lock().topics.clear();
        self.close();
    }
}

impl Queue {
    fn run(&self) {
        while let Some(topic) = self.next() {
            let began = Instant::now();
            if let Some(waiting) = topic.commit() {
                self.pace(&topic, waiting, began);
                // However many events stream into this one, others have their turn.
                self.state.lock().topics.push_back(topic);
            }
        }
    }

    /// Lets events gather, after a commit that `began` then, if they stream in.
    fn pace(&self, topic: &Topic, mut waiting: usize, began: Instant) {
        while waiting > 0 && waiting < PACE_BYTES && began.elapsed() < PACE {
            let is_wanted = {
                let state = self.state.lock();
                state.closed || !state.topics.is_empty()
            };
            if is_wanted {
                return;
            }
            thread::sleep(PACE_STEP);
            let more = topic.waiting_bytes();
            if more == waiting {
                return;
            }
            waiting = more;
        }
    }

    fn next(&self) -> Option<Arc<Topic>> {
        let state = &mut self.state.lock();
        loop {
            if let Some(topic) = state.topics.pop_front() {
                return Some(topic);
            }
            if state.closed {
                return None;
            }
            self.ready.wait(state);
        }
    }
}
