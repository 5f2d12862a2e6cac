//! Cold reads: threads that read events which a tail has evicted, with a bounded number of buffers.
//!
//! A reader requests a read, continues when it is woken, and returns the buffer when its socket has
//! taken the bytes. So all lagging readers together use at most
//! [`Limits::cold_read_bytes_max`](crate::Limits).

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::thread;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tidings_log::{LineRun, LogError, LogRead, ReadPosition, TopicLog};
use tidings_protocol::Seq;

use super::reader::EventRun;

/// Bytes of a buffer: enough for the longest batch with its header, and for a few sends.
const BUFFER_BYTES: usize = 256 << 10;

/// The threads that read logs.
#[derive(Debug)]
pub(super) struct ColdReads(Arc<ReaderPool>);

impl Drop for ColdReads {
    fn drop(&mut self) {
        self.close();
    }
}

#[derive(Debug)]
struct ReaderPool {
    state: Mutex<ReaderPoolState>,
    /// There is a request and a buffer for it.
    ready: Condvar,
    threads: usize,
    buffers_max: usize,
}

#[derive(Default)]
struct ReaderPoolState {
    reads: VecDeque<ReadRequest>,
    /// Blocking calls that need no buffer, such as the verification of a log.
    blocking_calls: VecDeque<Box<dyn FnOnce() + Send>>,
    /// The free buffers; below, the number of all buffers.
    idle_buffers: Vec<Box<[u8]>>,
    buffer_count: usize,
    closed: bool,
}

impl std::fmt::Debug for ReaderPoolState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("reads", &self.reads.len())
            .field("buffers", &self.buffer_count)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct ReadRequest {
    log: Arc<dyn TopicLog>,
    from: Seq,
    kind: ReadKind,
    slot: Arc<Mutex<ReadSlot>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum ReadKind {
    /// Lines that are not older than `since`.
    Lines { at: Option<ReadPosition>, since: Option<i64> },
    /// Builds the index of the segment that begins at this seq. The result carries no lines.
    Index(Seq),
}

#[derive(Debug)]
struct ReadSlot {
    waker: Option<Waker>,
    read: Option<ReadResult>,
}

#[derive(Debug)]
pub(super) enum ReadResult {
    /// Runs of lines; the seq after the last line; where to continue.
    Lines(Vec<EventRun>, Seq, ReadPosition),
    /// Any other result of the log, or an error of the disk.
    Log(Result<LogRead, LogError>),
}

/// A requested read that may not have run yet. Dropping it cancels a read that has not begun.
#[derive(Debug)]
pub(super) struct PendingRead {
    /// The first seq to read.
    pub(super) from: Seq,
    slot: Arc<Mutex<ReadSlot>>,
}

impl PendingRead {
    pub(super) fn take(&self) -> Option<ReadResult> {
        self.slot.lock().read.take()
    }
}

impl ColdReads {
    /// Starts the threads. All buffers together have at most `bytes_max`, but there is at least one
    /// per thread.
    pub(super) fn start(bytes_max: usize, threads: usize) -> Self {
        let buffers_max = (bytes_max / BUFFER_BYTES).max(threads);
        let (state, ready) = Default::default();
        let pool = Arc::new(ReaderPool { state, ready, threads, buffers_max });
        for number in 1..=threads {
            let pool = Arc::clone(&pool);
            let thread = thread::Builder::new().name(format!("cold-{number}"));
            thread.spawn(move || pool.run()).expect("the system can start a thread");
        }
        Self(pool)
    }

    /// Requests a read for a reader at `from`; wakes `waker` with the result.
    pub(super) fn request(
        &self,
        log: &Arc<dyn TopicLog>,
        from: Seq,
        kind: ReadKind,
        waker: &Waker,
    ) -> PendingRead {
        let answer = Arc::new(Mutex::new(ReadSlot { waker: Some(waker.clone()), read: None }));
        let log = Arc::clone(log);
        let request = ReadRequest { log, from, kind, slot: Arc::clone(&answer) };
        self.0.state.lock().reads.push_back(request);
        self.0.ready.notify_one();
        PendingRead { from, slot: answer }
    }

    /// Runs a blocking call on one of the threads. After `close` the call is dropped.
    pub(super) fn spawn_blocking(&self, errand: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        if !state.closed {
            state.blocking_calls.push_back(Box::new(errand));
            drop(state);
            self.0.ready.notify_one();
        }
    }

    /// Ends the threads. Requests that have not begun are dropped.
    pub(super) fn close(&self) {
        let (reads, errands) = {
            let state = &mut *self.0.state.lock();
            state.closed = true;
            (std::mem::take(&mut state.reads), std::mem::take(&mut state.blocking_calls))
        };
        self.0.ready.notify_all();
        // Dropped outside the lock: a request may own the last reference to a value, and the drop
        // of that value may take this lock.
        drop((reads, errands));
    }
}

enum PoolWork {
    Read(ReadRequest, Box<[u8]>),
    Blocking(Box<dyn FnOnce() + Send>),
}

impl ReaderPool {
    fn run(self: Arc<Self>) {
        while let Some(work) = self.next() {
            match work {
                PoolWork::Blocking(errand) => errand(),
                PoolWork::Read(request, buffer) => self.serve(&request, buffer),
            }
        }
    }

    fn next(&self) -> Option<PoolWork> {
        let state = &mut self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(errand) = state.blocking_calls.pop_front() {
                return Some(PoolWork::Blocking(errand));
            }
            // Drop the requests of readers that are gone.
            while state.reads.front().is_some_and(|read| Arc::strong_count(&read.slot) == 1) {
                state.reads.pop_front();
            }
            if !state.reads.is_empty()
                && let Some(buffer) = state.buffer(self.buffers_max)
            {
                let request = state.reads.pop_front().expect("the queue is not empty");
                return Some(PoolWork::Read(request, buffer));
            }
            self.ready.wait(state);
        }
    }

    fn serve(self: &Arc<Self>, request: &ReadRequest, mut buffer: Box<[u8]>) {
        let found = match request.kind {
            ReadKind::Lines { at, since } => request.log.read(request.from, at, since, &mut buffer),
            ReadKind::Index(base) => request.log.index(base).map(|()| LogRead::Skip(request.from)),
        };
        let lent = PooledBuffer { buffer, pool: Arc::clone(self) };
        let read = match found {
            Ok(LogRead::Lines { end, runs, at, .. }) => {
                let all = Bytes::from_owner(lent);
                let runs = runs.into_iter().map(|LineRun { first, unix_ms, later, place }| {
                    EventRun { first, unix_ms, later, lines: all.slice(place) }
                });
                ReadResult::Lines(runs.collect(), end, at)
            }
            other => ReadResult::Log(other),
        };
        let waker = {
            let mut answer = request.slot.lock();
            answer.read = Some(read);
            answer.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl ReaderPoolState {
    fn buffer(&mut self, buffers_max: usize) -> Option<Box<[u8]>> {
        if let Some(buffer) = self.idle_buffers.pop() {
            return Some(buffer);
        }
        if self.buffer_count >= buffers_max {
            return None;
        }
        self.buffer_count += 1;
        Some(vec![0; BUFFER_BYTES].into_boxed_slice())
    }
}

/// A buffer that returns to the pool when its last slice is dropped.
struct PooledBuffer {
    buffer: Box<[u8]>,
    pool: Arc<ReaderPool>,
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        let mut state = self.pool.state.lock();
        // Keep few free buffers while no request waits.
        if state.reads.is_empty() && state.idle_buffers.len() >= self.pool.threads {
            state.buffer_count -= 1;
        } else {
            state.idle_buffers.push(buffer);
        }
        drop(state);
        self.pool.ready.notify_one();
    }
}
