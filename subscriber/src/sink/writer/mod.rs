//! The thread of a sink: writes all waiting pages as one batch, and syncs it before the next.

#![expect(
    clippy::disallowed_methods,
    reason = "collects batches, and waits until a disk has room again"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{mem, thread};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::{OpenError, Sink, StoreError};
use crate::metrics::CrawlerMetrics;
use crate::report::{PageId, PageRecord};
use crate::store_error::{STORE_RETRY, TroubleReporter};

/// Pages waiting for a sink. Senders wait when the queue is full.
const STORE_QUEUE_MAX: usize = 1024;
/// While pages stream in, a batch begins at least this long after the one before ..
const STORE_BATCH_INTERVAL: Duration = Duration::from_millis(5);
/// .. unless no page came in this time.
const STORE_BATCH_GATHER: Duration = Duration::from_millis(1);
/// A batch with this many bytes is full, even with few pages. Usual pages have some KiB, nearly all
/// of it links; a few pages with `LINKS_ABSOLUTE_BYTES_MAX` are as much work as many others.
const STORE_BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The queue of a sink's thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct SinkWriter {
    queue: mpsc::Sender<StoreRequest>,
    /// Settled pages, at most as many as tasks are held; `None` if the sink does not need them.
    settled: Option<Arc<Mutex<Vec<PageId>>>>,
}

#[derive(Debug)]
struct StoreRequest {
    record: Arc<PageRecord>,
    answer: oneshot::Sender<Result<(), StoreError>>,
}

struct SinkThread {
    sink: Box<dyn Sink>,
    requests: mpsc::Receiver<StoreRequest>,
    settled: Option<Arc<Mutex<Vec<PageId>>>>,
    place: TroubleReporter,
    metrics: Arc<CrawlerMetrics>,
}

/// The error after a panic of the thread.
pub(super) fn writer_ended() -> StoreError {
    StoreError { text: "its writer has ended".to_owned(), closed: false }
}

impl SinkWriter {
    pub(super) fn start(
        mut sink: Box<dyn Sink>,
        place: TroubleReporter,
        metrics: Arc<CrawlerMetrics>,
    ) -> Result<(Self, oneshot::Receiver<()>), OpenError> {
        let (queue, requests) = mpsc::channel(STORE_QUEUE_MAX);
        let (closed, closing) = oneshot::channel();
        let settled = sink.ledger().map(|_| Arc::default());
        let name = sink.name();
        let thread = SinkThread { sink, requests, settled: settled.clone(), place, metrics };
        let started = thread::Builder::new().name("sink".to_owned()).spawn(move || {
            thread.run();
            // The receiver may be gone.
            let _ = closed.send(());
        });
        match started {
            Ok(_) => Ok((Self { queue, settled }, closing)),
            Err(source) => Err(OpenError::Io { path: name.into(), source }),
        }
    }

    /// Waits while the queue is full.
    pub(super) async fn send(
        &self,
        record: Arc<PageRecord>,
    ) -> Result<oneshot::Receiver<Result<(), StoreError>>, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.queue.send(StoreRequest { record, answer }).await.map_err(|_| writer_ended())?;
        Ok(answered)
    }

    pub(super) fn settled(&self, page: &PageId) {
        if let Some(settled) = &self.settled {
            settled.lock().push(page.clone());
        }
    }
}

impl SinkThread {
    fn run(mut self) {
        let mut requests = Vec::new();
        let mut began = None;
        while self.collect_batch(&mut requests, began) {
            began = Some(Instant::now());
            self.settle();
            let result = self.write(&mut requests);
            let refused: HashMap<_, _> = self.sink.take_refused().into_iter().collect();
            for request in requests.drain(..) {
                let refusal = refused.get(&request.record.page).cloned();
                let refusal = refusal.map(|text| StoreError { text, closed: false });
                // The caller may be gone.
                let _ = request.answer.send(refusal.map_or_else(|| result.clone(), Err));
            }
        }
        self.settle();
        self.sink.close();
    }

    /// Waits for pages, and collects a batch: at most as many as the sink takes, and few bytes more
    /// than the limit. Returns `false` after the last page.
    ///
    /// While pages stream in and the last batch `began` just before, it waits for more: a sync
    /// costs as much as many pages. Pages without a caller are left out: a crawler that stops
    /// writes nothing that another member can write.
    fn collect_batch(&mut self, requests: &mut Vec<StoreRequest>, began: Option<Instant>) -> bool {
        let (batch_max, mut bytes) = (self.sink.batch_max(), 0);
        loop {
            let before = requests.len();
            let mut next = match before {
                0 => self.requests.blocking_recv(),
                _ => self.requests.try_recv().ok(),
            };
            if before == 0 && next.is_none() {
                return false;
            }
            while let Some(request) = next {
                if !request.answer.is_closed() {
                    bytes += self.sink.batch_bytes(&request.record);
                    requests.push(request);
                }
                if requests.len() >= batch_max || bytes >= STORE_BATCH_BYTES_MAX {
                    return true;
                }
                next = self.requests.try_recv().ok();
            }
            let is_soon = began.is_some_and(|began| began.elapsed() < STORE_BATCH_INTERVAL);
            match requests.len() {
                0 => {}
                // If no more pages came, all callers may be waiting for these.
                length if !is_soon || length == before => return true,
                _ => thread::sleep(STORE_BATCH_GATHER),
            }
        }
    }

    fn settle(&mut self) {
        let Some(settled) = &self.settled else { return };
        let settled = mem::take(&mut *settled.lock());
        if let Some(ledger) = self.sink.ledger() {
            ledger.settle(&settled);
        }
    }

    /// Writes a batch, and retries until it succeeds, the output is closed, or the queue is closed.
    ///
    /// Pages without a caller are left out of a retry, except that a batch never becomes empty: its
    /// last page shows when there is room again, and no other page would come before.
    fn write(&mut self, requests: &mut Vec<StoreRequest>) -> Result<(), StoreError> {
        loop {
            let batch: Vec<_> =
                requests.iter().map(|request| Arc::clone(&request.record)).collect();
            let began = Instant::now();
            let result = self.sink.write(&batch);
            self.metrics.sink_times().observe(began.elapsed());
            // On shutdown all callers have gone.
            if self.requests.is_closed() {
                return result;
            }
            self.place.report(&self.sink.name(), result.as_ref().err());
            match result {
                Err(error) if !error.closed => {
                    thread::sleep(STORE_RETRY);
                    let last = requests.pop().expect("a batch is never empty");
                    requests.retain(|request| !request.answer.is_closed());
                    requests.push(last);
                }
                result => return result,
            }
        }
    }
}

#[cfg(test)]
mod tests;
