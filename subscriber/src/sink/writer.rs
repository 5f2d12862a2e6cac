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
use tokio::sync::{mpsc, oneshot, watch};

use super::{OpenError, Sink, StoreError};
use crate::config::{STORE_PACE, STORE_PACE_STEP, STORE_QUEUE_MAX, STORE_RETRY};
use crate::report::{PageId, PageRecord};

/// What is wrong with each sink.
pub(super) type Troubles = Vec<Option<StoreError>>;

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
    /// The sink's number among the troubles.
    number: usize,
    troubles: watch::Sender<Troubles>,
}

/// A thread has ended before its time, which takes a panic.
pub(super) fn gone() -> StoreError {
    StoreError { text: "its writer has ended".to_owned(), closed: false }
}

impl Writer {
    pub(super) fn start(
        sink: Box<dyn Sink>,
        number: usize,
        troubles: watch::Sender<Troubles>,
    ) -> Result<(Self, oneshot::Receiver<()>), OpenError> {
        let (queue, letters) = mpsc::channel(STORE_QUEUE_MAX);
        let (closed, closing) = oneshot::channel();
        let settled = sink.wants_settled().then(Arc::default);
        let name = sink.name();
        let thread = Thread { sink, letters, settled: settled.clone(), number, troubles };
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
        let batch_max = self.sink.batch_max();
        let mut began = None;
        while self.letters.blocking_recv_many(&mut letters, batch_max) > 0 {
            self.gather(&mut letters, batch_max, began);
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

    /// Lets more pages come while they stream in, if the last batch began just before: making a batch
    /// safe costs as much as many pages.
    fn gather(&mut self, letters: &mut Vec<Letter>, batch_max: usize, began: Option<Instant>) {
        while began.is_some_and(|began| began.elapsed() < STORE_PACE) && letters.len() < batch_max {
            thread::sleep(STORE_PACE_STEP);
            let before = letters.len();
            while letters.len() < batch_max
                && let Ok(letter) = self.letters.try_recv()
            {
                letters.push(letter);
            }
            // Then everybody may be waiting for these.
            if letters.len() == before {
                return;
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
            self.note(result.as_ref().err());
            match result {
                Err(error) if !error.closed && !self.letters.is_closed() => {
                    thread::sleep(STORE_RETRY);
                    let last = letters.pop().expect("a batch is never empty");
                    letters.retain(|letter| !letter.answer.is_closed());
                    letters.push(last);
                }
                result => return result,
            }
        }
    }

    /// Says once that it fails, and once that it does no more.
    fn note(&self, error: Option<&StoreError>) {
        let name = self.sink.name();
        let failed = self.troubles.borrow()[self.number].is_some();
        match error {
            // That is how a crawl into a pipe ends, and nobody is to wait for anything.
            Some(error) if error.closed => {}
            Some(error) if !failed => tracing::error!(
                "{name}: {}; pages wait, and no new ones are asked for, until it can be written again",
                error.text
            ),
            None if failed => tracing::info!("{name}: can be written again"),
            _ => return,
        }
        self.troubles.send_modify(|troubles| troubles[self.number] = error.cloned());
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
