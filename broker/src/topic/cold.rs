//! Cold reads: threads that read events which a tail has evicted, with a bounded number of buffers.
//!
//! A reader requests a read, continues when it is woken, and returns the buffer when its socket has
//! taken the bytes. So all lagging readers together use at most
//! [`Limits::cold_bytes_max`](crate::Limits).

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::thread;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tidings_protocol::Seq;

use crate::log::{Found, LogError, Position, TopicLog};

/// Bytes of a buffer: enough for the longest batch with its header, and for a few sends.
const BUFFER_BYTES: usize = 256 << 10;

/// Number of threads. Two, so that one long search does not block all other readers.
const THREADS: usize = 2;

/// The threads that read logs.
#[derive(Debug)]
pub(super) struct ColdReads(Arc<Pool>);

impl Drop for ColdReads {
    fn drop(&mut self) {
        self.close();
    }
}

#[derive(Debug)]
struct Pool {
    state: Mutex<State>,
    /// There is a request and a buffer for it.
    ready: Condvar,
    buffers_max: usize,
}

#[derive(Default)]
struct State {
    reads: VecDeque<Request>,
    /// Blocking calls that need no buffer, such as the verification of a log.
    errands: VecDeque<Box<dyn FnOnce() + Send>>,
    /// The free buffers; below, the number of all buffers.
    idle: Vec<Box<[u8]>>,
    buffers: usize,
    closed: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("reads", &self.reads.len())
            .field("buffers", &self.buffers)
            .finish_non_exhaustive()
    }
}

/// A requested read.
#[derive(Debug)]
struct Request {
    log: Arc<dyn TopicLog>,
    from: Seq,
    what: What,
    answer: Arc<Mutex<Answer>>,
}

/// What to read.
#[derive(Debug)]
enum What {
    /// Lines that are not older than `since`.
    Lines { at: Option<Position>, since: Option<i64> },
    /// Builds the index of the segment that begins at this seq. The result carries no lines.
    Index(Seq),
}

#[derive(Debug)]
struct Answer {
    waker: Option<Waker>,
    read: Option<Read>,
}

/// The result of a read.
#[derive(Debug)]
pub(super) enum Read {
    /// Runs of lines, each with the seq of its first line; the seq after the last line; where to
    /// continue.
    Lines(Vec<(Seq, Bytes)>, Seq, Position),
    /// Any other result of the log, or an error of the disk.
    Other(Result<Found, LogError>),
}

/// A requested read that may not have run yet. Dropping it cancels a read that has not begun.
#[derive(Debug)]
pub(super) struct Pending {
    /// The first seq to read.
    pub(super) from: Seq,
    answer: Arc<Mutex<Answer>>,
}

impl Pending {
    /// The result, if there is one.
    pub(super) fn take(&self) -> Option<Read> {
        self.answer.lock().read.take()
    }
}

impl ColdReads {
    /// Starts the threads. All buffers together have at most `bytes_max`, but there is at least one
    /// per thread.
    pub(super) fn start(bytes_max: usize) -> Self {
        let buffers_max = (bytes_max / BUFFER_BYTES).max(THREADS);
        let pool = Arc::new(Pool { state: Mutex::default(), ready: Condvar::new(), buffers_max });
        for number in 1..=THREADS {
            let pool = Arc::clone(&pool);
            let thread = thread::Builder::new().name(format!("cold-{number}"));
            thread.spawn(move || pool.run()).expect("the system can start a thread");
        }
        Self(pool)
    }

    /// Requests lines from `from` on; wakes `waker` with the result.
    pub(super) fn read(
        &self,
        log: &Arc<dyn TopicLog>,
        from: Seq,
        at: Option<Position>,
        since: Option<i64>,
        waker: &Waker,
    ) -> Pending {
        self.request(log, from, What::Lines { at, since }, waker)
    }

    /// Requests the index of the segment that begins at `base`, for a reader at `from`; wakes
    /// `waker` when it is built.
    pub(super) fn index(
        &self,
        log: &Arc<dyn TopicLog>,
        base: Seq,
        from: Seq,
        waker: &Waker,
    ) -> Pending {
        self.request(log, from, What::Index(base), waker)
    }

    fn request(&self, log: &Arc<dyn TopicLog>, from: Seq, what: What, waker: &Waker) -> Pending {
        let answer = Arc::new(Mutex::new(Answer { waker: Some(waker.clone()), read: None }));
        let log = Arc::clone(log);
        let request = Request { log, from, what, answer: Arc::clone(&answer) };
        self.0.state.lock().reads.push_back(request);
        self.0.ready.notify_one();
        Pending { from, answer }
    }

    /// Runs a blocking call on one of the threads. After `close` the call is dropped.
    pub(super) fn run(&self, errand: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        if !state.closed {
            state.errands.push_back(Box::new(errand));
            drop(state);
            self.0.ready.notify_one();
        }
    }

    /// Ends the threads. Requests that have not begun are dropped.
    pub(super) fn close(&self) {
        let (reads, errands) = {
            let state = &mut *self.0.state.lock();
            state.closed = true;
            (std::mem::take(&mut state.reads), std::mem::take(&mut state.errands))
        };
        self.0.ready.notify_all();
        // Dropped outside the lock: a request may own the last reference to a value, and the drop
        // of that value may take this lock.
        drop((reads, errands));
    }
}

enum Work {
    Read(Request, Box<[u8]>),
    Errand(Box<dyn FnOnce() + Send>),
}

impl Pool {
    fn run(self: Arc<Self>) {
        while let Some(work) = self.next() {
            match work {
                Work::Errand(errand) => errand(),
                Work::Read(request, buffer) => self.serve(&request, buffer),
            }
        }
    }

    fn next(&self) -> Option<Work> {
        let state = &mut self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(errand) = state.errands.pop_front() {
                return Some(Work::Errand(errand));
            }
            // Drop the requests of readers that are gone.
            while state.reads.front().is_some_and(|read| Arc::strong_count(&read.answer) == 1) {
                state.reads.pop_front();
            }
            if !state.reads.is_empty()
                && let Some(buffer) = state.buffer(self.buffers_max)
            {
                let request = state.reads.pop_front().expect("the queue is not empty");
                return Some(Work::Read(request, buffer));
            }
            self.ready.wait(state);
        }
    }

    fn serve(self: &Arc<Self>, request: &Request, mut buffer: Box<[u8]>) {
        let found = match request.what {
            What::Lines { at, since } => request.log.read(request.from, at, since, &mut buffer),
            What::Index(base) => request.log.index(base).map(|()| Found::Skip(request.from)),
        };
        let lent = Lent { buffer, pool: Arc::clone(self) };
        let read = match found {
            Ok(Found::Lines { end, runs, at, .. }) => {
                let all = Bytes::from_owner(lent);
                let runs = runs.into_iter().map(|(first, run)| (first, all.slice(run)));
                Read::Lines(runs.collect(), end, at)
            }
            other => Read::Other(other),
        };
        let waker = {
            let mut answer = request.answer.lock();
            answer.read = Some(read);
            answer.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl State {
    fn buffer(&mut self, buffers_max: usize) -> Option<Box<[u8]>> {
        if let Some(buffer) = self.idle.pop() {
            return Some(buffer);
        }
        if self.buffers >= buffers_max {
            return None;
        }
        self.buffers += 1;
        Some(vec![0; BUFFER_BYTES].into_boxed_slice())
    }
}

/// A buffer that returns to the pool when its last slice is dropped.
struct Lent {
    buffer: Box<[u8]>,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        let mut state = self.pool.state.lock();
        // Keep few free buffers while no request waits.
        if state.reads.is_empty() && state.idle.len() >= THREADS {
            state.buffers -= 1;
        } else {
            state.idle.push(buffer);
        }
        drop(state);
        self.pool.ready.notify_one();
    }
}
