use std::collections::BTreeSet;
use std::sync::{Arc, mpsc as channel};

use tidings_documents::page::PageLink;

use super::*;
use crate::program::Programs;
use crate::report::KeepBodies;
use crate::sink::Sinks;
use crate::sink::ledger::Ledger;
use crate::sink::testing::record;
use crate::store_error::Troubles;

/// A sink with scripted results.
struct Told {
    /// Reports each batch.
    batches: channel::Sender<Vec<u64>>,
    /// The result of each batch, in turn.
    results: channel::Receiver<Result<(), StoreError>>,
    ledger: Option<Ledger>,
    /// Reports which of the ledger's first pages are settled, with each batch and at the end.
    settled: channel::Sender<BTreeSet<u64>>,
}

struct Teller {
    sinks: Sinks,
    batches: channel::Receiver<Vec<u64>>,
    results: channel::Sender<Result<(), StoreError>>,
    settled: channel::Receiver<BTreeSet<u64>>,
    closed: oneshot::Receiver<()>,
}

impl Sink for Told {
    fn name(&self) -> String {
        "told".to_owned()
    }

    fn write(&mut self, batch: &[Arc<PageRecord>]) -> Result<(), StoreError> {
        self.report_settled();
        self.batches.send(batch.iter().map(|record| record.page.entry).collect()).unwrap();
        self.results.recv().unwrap_or(Ok(()))
    }

    fn ledger(&mut self) -> Option<&mut Ledger> {
        self.ledger.as_mut()
    }

    fn close(&mut self) {
        self.report_settled();
    }
}

/// The pages that the ledger begins with.
const LEDGER_PAGES: [u64; 4] = [1, 2, 3, 9];

impl Told {
    fn report_settled(&self) {
        if let Some(ledger) = &self.ledger {
            let is_settled = |entry: &u64| !ledger.contains(&record(*entry, 1).page);
            // The receiver may be gone at the end.
            let _ = self.settled.send(LEDGER_PAGES.into_iter().filter(is_settled).collect());
        }
    }
}

fn start(has_ledger: bool) -> Teller {
    let (batches, heard) = channel::channel();
    let (tell, results) = channel::channel();
    let (settling, settled) = channel::channel();
    let mut ledger = Ledger::default();
    for entry in LEDGER_PAGES {
        ledger.insert(record(entry, 1).page);
    }
    let ledger = has_ledger.then_some(ledger);
    let sink = Told { batches, results, ledger, settled: settling };
    let troubles = Troubles::default();
    let (writer, closed) =
        SinkWriter::start(Box::new(sink), troubles.reporter(), Arc::default()).unwrap();
    let sinks = Sinks {
        writers: vec![writer],
        troubles,
        lookup: None,
        body_outputs: Vec::new(),
        keep: KeepBodies::default(),
        need_files: false,
        programs: Programs::default(),
    };
    Teller { sinks, batches: heard, results: tell, settled, closed }
}

fn full() -> StoreError {
    StoreError { text: "no space left".to_owned(), closed: false }
}

#[tokio::test]
async fn pages_that_arrive_during_a_sync_are_the_next_batch() {
    let mut teller = start(false);
    let records: Vec<_> = (0..9).map(|entry| Arc::new(record(entry, 1))).collect();
    let mut storing = records.iter().map(|record| Box::pin(teller.sinks.store(record)));
    let mut first = storing.next().unwrap();
    assert!(futures_util::poll!(&mut first).is_pending());
    assert_eq!(teller.batches.recv().unwrap(), [0]);
    let mut others: Vec<_> = storing.collect();
    for other in &mut others {
        assert!(futures_util::poll!(other).is_pending());
    }
    teller.results.send(Ok(())).unwrap();
    first.await.unwrap();
    assert_eq!(teller.batches.recv().unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
    teller.results.send(Ok(())).unwrap();
    futures_util::future::join_all(others).await.into_iter().for_each(Result::unwrap);
    drop(teller.sinks);
    (&mut teller.closed).await.unwrap();
}

#[tokio::test]
async fn a_failing_sink_is_reported_and_retries_until_it_succeeds() {
    let teller = start(false);
    let pages = [0, 1].map(|entry| Arc::new(record(entry, 1)));
    let mut one = Box::pin(teller.sinks.store(&pages[0]));
    assert!(futures_util::poll!(&mut one).is_pending());
    assert_eq!(teller.batches.recv().unwrap(), [0]);
    assert_eq!(teller.sinks.trouble(), None);
    teller.results.send(Err(full())).unwrap();
    assert_eq!(teller.sinks.trouble_change(false).await, Some(full()));
    assert_eq!(teller.batches.recv().unwrap(), [0]);
    // Its caller has given up; it stays in the batch, to notice when there is room again.
    drop(one);
    teller.results.send(Err(full())).unwrap();
    assert_eq!(teller.batches.recv().unwrap(), [0]);
    let mut two = Box::pin(teller.sinks.store(&pages[1]));
    assert!(futures_util::poll!(&mut two).is_pending());
    teller.results.send(Ok(())).unwrap();
    assert_eq!(teller.sinks.trouble_change(true).await, None);
    assert_eq!(teller.batches.recv().unwrap(), [1]);
    teller.results.send(Ok(())).unwrap();
    two.await.unwrap();
}

#[tokio::test]
async fn a_retried_batch_omits_pages_without_a_caller() {
    let teller = start(false);
    let pages: Vec<_> = (0..6).map(|entry| Arc::new(record(entry, 1))).collect();
    let mut storing: Vec<_> = pages.iter().map(|page| Box::pin(teller.sinks.store(page))).collect();
    assert!(futures_util::poll!(&mut storing[0]).is_pending());
    assert_eq!(teller.batches.recv().unwrap(), [0]);
    for storing in &mut storing[1..] {
        assert!(futures_util::poll!(storing).is_pending());
    }
    teller.results.send(Ok(())).unwrap();
    assert_eq!(teller.batches.recv().unwrap(), [1, 2, 3, 4, 5]);
    storing.drain(..3);
    teller.results.send(Err(full())).unwrap();
    assert_eq!(teller.batches.recv().unwrap(), [3, 4, 5]);
    drop(storing);
    teller.results.send(Err(full())).unwrap();
    assert_eq!(teller.batches.recv().unwrap(), [5]);
    teller.results.send(Ok(())).unwrap();
}

#[tokio::test]
async fn pages_without_a_caller_are_not_written() {
    let mut teller = start(false);
    let pages: Vec<_> = (0..3).map(|entry| Arc::new(record(entry, 1))).collect();
    let mut storing: Vec<_> = pages.iter().map(|page| Box::pin(teller.sinks.store(page))).collect();
    assert!(futures_util::poll!(&mut storing[0]).is_pending());
    assert_eq!(teller.batches.recv().unwrap(), [0]);
    for storing in &mut storing[1..] {
        assert!(futures_util::poll!(storing).is_pending());
    }
    drop(storing);
    let sinks = mem::replace(&mut teller.sinks, start(false).sinks);
    drop(sinks);
    teller.results.send(Ok(())).unwrap();
    (&mut teller.closed).await.unwrap();
    assert!(teller.batches.recv().is_err());
}

#[tokio::test]
async fn a_batch_is_full_when_it_has_many_bytes() {
    let teller = start(false);
    let link =
        |number| PageLink { url: format!("http://{number}/{:8000}", "").into(), nofollow: false };
    let links: Vec<_> = (0..=STORE_BATCH_BYTES_MAX / 8000 / 2).map(link).collect();
    let pages: Vec<_> = (0..5)
        .map(|entry| Arc::new(PageRecord { links: links.clone(), ..record(entry, 1) }))
        .collect();
    let mut storing: Vec<_> = pages.iter().map(|page| Box::pin(teller.sinks.store(page))).collect();
    assert!(futures_util::poll!(&mut storing[0]).is_pending());
    assert_eq!(teller.batches.recv().unwrap(), [0]);
    for storing in &mut storing[1..] {
        assert!(futures_util::poll!(storing).is_pending());
    }
    for _ in 0..3 {
        teller.results.send(Ok(())).unwrap();
    }
    assert_eq!(teller.batches.recv().unwrap(), [1, 2]);
    assert_eq!(teller.batches.recv().unwrap(), [3, 4]);
    futures_util::future::join_all(storing).await.into_iter().for_each(Result::unwrap);
}

#[tokio::test]
async fn a_closed_output_is_not_retried() {
    let teller = start(false);
    let closed = StoreError { text: "broken pipe".to_owned(), closed: true };
    teller.results.send(Err(closed.clone())).unwrap();
    let page = Arc::new(record(0, 1));
    assert_eq!(teller.sinks.store(&page).await, Err(closed.clone()));
    assert_eq!(teller.sinks.trouble(), Some(closed));
    assert_eq!(teller.batches.iter().take(1).count(), 1);
}

#[tokio::test]
async fn a_failing_sink_does_not_delay_the_shutdown() {
    let mut teller = start(false);
    let page = Arc::new(record(0, 1));
    let mut storing = Box::pin(teller.sinks.store(&page));
    assert!(futures_util::poll!(&mut storing).is_pending());
    assert_eq!(teller.batches.recv().unwrap(), [0]);
    drop(storing);
    drop(teller.sinks);
    teller.results.send(Err(full())).unwrap();
    (&mut teller.closed).await.unwrap();
    assert!(teller.batches.recv().is_err());
}

#[tokio::test]
async fn settled_pages_are_passed_on_before_the_next_batch_and_at_the_end() {
    let mut teller = start(true);
    for entry in 1..=3 {
        teller.sinks.settled(&record(entry, 1).page);
    }
    assert!(teller.settled.try_recv().is_err());
    teller.results.send(Ok(())).unwrap();
    teller.sinks.store(&Arc::new(record(9, 1))).await.unwrap();
    assert_eq!(teller.settled.try_recv().unwrap(), BTreeSet::from([1, 2, 3]));
    teller.sinks.settled(&record(9, 1).page);
    let sinks = mem::replace(&mut teller.sinks, start(false).sinks);
    drop(sinks);
    (&mut teller.closed).await.unwrap();
    assert_eq!(teller.settled.try_recv().unwrap(), BTreeSet::from(LEDGER_PAGES));
}
