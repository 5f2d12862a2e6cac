//! The thread of a sink: takes what has come as one batch, and does not go on before it is safe.

#![expect(
    clippy::disallowed_methods,
    reason = "lets batches gather, and waits until a disk has room again"
)]

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::{OpenError, Place, Sink, StoreError};
use crate::config::{
    STORE_BATCH_BYTES_MAX, STORE_PACE, STORE_PACE_STEP, STORE_QUEUE_MAX, STORE_RETRY,
};
use crate::report::{PageId, PageRecord};

/// Where a sink's thread is reached. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Writer {
    queue: mpsc::Sender<Letter>,
    /// Of pages that were stored, so never more than are held; `None` if the sink does not ask.
    settled: Option<Arc<Mutex<Vec<PageId>>>>,
}

#[derive(Debug)]
struct Letter {
    record: Arc<PageRecord>,
    answer: oneshot::Sender<Result<(), StoreError>>,
}

struct Thread {
    sink: Box<dyn Sink>,
    letters: mpsc::Receiver<Letter>,
    settled: Option<Arc<Mutex<Vec<PageId>>>>,
    place: Place,
}

/// A thread has ended before its time, which takes a panic.
pub(super) fn gone() -> StoreError {
    StoreError { text: "its writer has ended".to_owned(), closed: false }
}

impl Writer {
    pub(super) fn start(
        sink: Box<dyn Sink>,
        place: Place,
    ) -> Result<(Self, oneshot::Receiver<()>), OpenError> {
        let (queue, letters) = mpsc::channel(STORE_QUEUE_MAX);
        let (closed, closing) = oneshot::channel();
        let settled = sink.wants_settled().then(Arc::default);
        let name = sink.name();
        let thread = Thread { sink, letters, settled: settled.clone(), place };
        let started = thread::Builder::new().name("sink".to_owned()).spawn(move || {
            thread.run();
            // Nobody may be waiting any more.
            let _ = closed.send(());
        });
        match started {
            Ok(_) => Ok((Self { queue, settled }, closing)),
            Err(source) => Err(OpenError::Io { path: name.into(), source }),
        }
    }

    /// Waits while too many others wait.
    pub(super) async fn send(
        &self,
        record: Arc<PageRecord>,
    ) -> Result<oneshot::Receiver<Result<(), StoreError>>, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.queue.send(Letter { record, answer }).await.map_err(|_| gone())?;
        Ok(answered)
    }

    pub(super) fn settled(&self, page: &PageId) {
        if let Some(settled) = &self.settled {
            settled.lock().push(page.clone());
        }
    }
}

impl Thread {
    fn run(mut self) {
        let mut letters = Vec::new();
        let mut began = None;
        while self.take(&mut letters, began) {
            began = Some(Instant::now());
            self.settle();
            let result = self.write(&mut letters);
            let refused: HashMap<_, _> = self.sink.take_refused().into_iter().collect();
            for letter in letters.drain(..) {
                let refusal = refused.get(&letter.record.page).cloned();
                let refusal = refusal.map(|text| StoreError { text, closed: false });
                // Whoever asked may have been abandoned meanwhile.
                let _ = letter.answer.send(refusal.map_or_else(|| result.clone(), Err));
            }
        }
        self.settle();
        self.sink.close();
    }

    /// Waits for pages, and takes those that are to be made safe together: not more than the sink takes, nor many
    /// more bytes than the limit. `false`: nothing comes any more.
    ///
    /// While they stream in and the last batch `began` just before, more are waited for: making a batch safe costs
    /// as much as many pages. Those who have given up meanwhile are left out: a crawler that ends has nothing begun
    /// that can be begun elsewhere.
    fn take(&mut self, letters: &mut Vec<Letter>, began: Option<Instant>) -> bool {
        let (batch_max, mut bytes) = (self.sink.batch_max(), 0);
        loop {
            let before = letters.len();
            let mut next = match before {
                0 => self.letters.blocking_recv(),
                _ => self.letters.try_recv().ok(),
            };
            if before == 0 && next.is_none() {
                return false;
            }
            while let Some(letter) = next {
                if !letter.answer.is_closed() {
                    bytes += letter.record.bytes_in_memory();
                    letters.push(letter);
                }
                if letters.len() >= batch_max || bytes >= STORE_BATCH_BYTES_MAX {
                    return true;
                }
                next = self.letters.try_recv().ok();
            }
            let is_soon = began.is_some_and(|began| began.elapsed() < STORE_PACE);
            match letters.len() {
                0 => {}
                // If nothing more came, everybody may be waiting for these.
                length if !is_soon || length == before => return true,
                _ => thread::sleep(STORE_PACE_STEP),
            }
        }
    }

    fn settle(&mut self) {
        let Some(settled) = &self.settled else { return };
        let settled = mem::take(&mut *settled.lock());
        if !settled.is_empty() {
            self.sink.settle(&settled);
        }
    }

    /// Tries until it succeeds, or there is no use in it.
    ///
    /// Those who have given up meanwhile are not written, except that a batch never becomes empty: its
    /// last page tells when there is room again, and no other would come before.
    fn write(&mut self, letters: &mut Vec<Letter>) -> Result<(), StoreError> {
        loop {
            let batch: Vec<_> = letters.iter().map(|letter| Arc::clone(&letter.record)).collect();
            let result = self.sink.write(&batch);
            // Nobody is to wait for anything then.
            if self.letters.is_closed() {
                return result;
            }
            self.place.note(&self.sink.name(), result.as_ref().err());
            match result {
                Err(error) if !error.closed => {
                    thread::sleep(STORE_RETRY);
                    let last = letters.pop().expect("a batch is never empty");
                    letters.retain(|letter| !letter.answer.is_closed());
                    letters.push(last);
                }
                result => return result,
            }
        }
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
