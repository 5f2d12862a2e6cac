//! A queue of tasks: publish, release to a worker, acknowledge.
//!
//! A task is final when the broker has answered its acknowledgement; until then it counts in the
//! window of published tasks. The ledger must balance at the end: each published task went to one
//! worker, once, and its acknowledgement took effect. The broker also reports how many tasks are not final.

#![expect(clippy::disallowed_methods, reason = "a load generator reads the clock, and waits")]

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use memchr::memmem;

use crate::connection::{self, PublisherSocket};
use crate::figure::to_f64;
use crate::load::check_rejection;
use crate::poller::Poller;
use crate::publish::PublishCounter;
use crate::server::CpuCost;
use crate::task_ledger::TaskLedger;
pub use crate::task_ledger::{KEYS_MAX, TASK_BYTES_MIN};
use crate::wire::{BacklogQuery, WorkerEvent, WorkerPool};
use crate::worker_connection::WorkerConnection;
use crate::{Figure, ProgressFn, Target};

/// Interval of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Longest time without progress while tasks are missing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause between two requests for the backlog.
const BACKLOG_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The load of a queue and its duration.
#[derive(Debug, Clone, Copy)]
pub struct Queue {
    /// Number of workers.
    pub workers: usize,
    /// Keys (hosts) of the tasks.
    pub keys: u32,
    /// Most tasks that one worker holds at once.
    pub credit: u64,
    /// Most tasks that are published and not acknowledged.
    pub window: u64,
    /// Duration of a run.
    pub run: Duration,
    /// Number of runs, on the same connections.
    pub runs: usize,
    /// Time before the first run, in which caches and buffers fill.
    pub warm_up: Duration,
}

impl Queue {
    /// Runs the measurement. It is an error if a task is not acknowledged exactly once.
    pub fn measure(
        &self,
        target: Target<'_>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Vec<Figure>> {
        let mut load = QueueLoad::connect(target, self)?;
        load.run_until(Instant::now() + self.warm_up, watch)?;
        let mut rate = Figure::new("tasks_per_second", "tasks/s", 0);
        let mut cost = CpuCost::per_task();
        for _ in 0..self.runs {
            let (before, began) = (load.ledger.acked, Instant::now());
            let costing = CpuCost::snapshot(target.server)?;
            load.run_until(began + self.run, watch)?;
            let (tasks, took) = (to_f64(load.ledger.acked - before), began.elapsed());
            cost.add_run(costing, target.server, tasks, took)?;
            rate.runs.push(tasks / took.as_secs_f64());
        }
        load.finish(watch)?;
        let all = Figure::new("tasks_acked_once", "all acked exactly once", 0);
        let mut figures = vec![rate, all.with_runs([to_f64(load.ledger.acked)])];
        figures.extend(cost.figures(target.server)?);
        Ok(figures)
    }
}

/// One publisher, and workers that acknowledge at once.
struct QueueLoad<'a> {
    target: Target<'a>,
    poller: Poller,
    ready: Vec<usize>,
    /// The token of a worker is its index; that of the publisher is the number of workers.
    workers: Vec<WorkerConnection>,
    /// Tasks that workers have requested, if the broker needs requests.
    requested: u64,
    publisher: PublisherSocket,
    counter: PublishCounter,
    /// Bytes of one publish, and the offset of the payload in it.
    message_bytes: usize,
    payload_at: usize,
    burst: u64,
    window: u64,
    ledger: TaskLedger,
    backlog: BacklogQuery,
    is_stopped: bool,
    read_buffer: Vec<u8>,
}

impl<'a> QueueLoad<'a> {
    fn connect(target: Target<'a>, queue: &Queue) -> anyhow::Result<Self> {
        ensure!(queue.workers > 0 && queue.credit > 0, "nobody works");
        let ledger = TaskLedger::new(target.payload_bytes, queue.keys)?;
        let crew = WorkerPool { workers: queue.workers, credit: queue.credit };
        let tasks = target.wire.queue_setup(target.topic, crew)?;
        let open = |address, steps| {
            connection::open(address, target.wire.handshake().into_iter().chain(steps))
        };
        open(target.address, tasks.create_steps).context("making the queue")?;
        let poller = Poller::new()?;
        // Workers join before anything is published, so only the answers arrive during their setup.
        let mut workers = Vec::with_capacity(queue.workers);
        for (token, (steps, worker)) in tasks.workers.into_iter().enumerate() {
            let socket = open(target.address, steps).context("a worker")?;
            let worker = WorkerConnection::new(socket, worker)?;
            poller.register_edge_triggered(worker.socket(), token)?;
            workers.push(worker);
        }
        let confirmed = target.wire.confirmed_publish(target.topic, ledger.template())?;
        let payload_at = memmem::find(&confirmed.message, ledger.template());
        let burst = connection::burst(target.payload_bytes, queue.window, 1);
        let address = target.wire.publisher_address(target.address);
        let socket = open(address, confirmed.setup).context("the publisher")?;
        let publisher = PublisherSocket::new(socket, confirmed.message.repeat(burst))?;
        poller.register_edge_triggered(publisher.socket(), workers.len())?;
        Ok(Self {
            target,
            poller,
            ready: Vec::new(),
            workers,
            requested: 0,
            publisher,
            counter: PublishCounter::new(confirmed.confirmations),
            message_bytes: confirmed.message.len(),
            payload_at: payload_at.context("a publish without its payload")?,
            burst: u64::try_from(burst)?,
            window: queue.window,
            ledger,
            backlog: tasks.backlog,
            is_stopped: false,
            read_buffer: vec![0; 64 * 1024],
        })
    }

    /// Publishes and acknowledges until `end`.
    fn run_until(&mut self, end: Instant, watch: &mut ProgressFn<'_>) -> anyhow::Result<()> {
        let mut shown = (Instant::now(), self.ledger.acked);
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(());
            }
            if now >= shown.0 + PROGRESS_INTERVAL {
                let acked = self.ledger.acked;
                let per_second = to_f64(acked - shown.1) / (now - shown.0).as_secs_f64();
                watch(&format!("{:.0} thousand tasks/s", per_second / 1e3))?;
                shown = (now, acked);
            }
            self.poll_once((end - now).min(PROGRESS_INTERVAL))?;
        }
    }

    /// Stops publishing. Waits until every task is confirmed, received and acknowledged, and the
    /// backlog of the broker is empty.
    fn finish(&mut self, watch: &mut ProgressFn<'_>) -> anyhow::Result<()> {
        self.is_stopped = true;
        let mut moved = (Instant::now(), self.ledger.acked);
        while !self.is_finished() {
            watch("waiting for the last tasks")?;
            if self.ledger.acked > moved.1 {
                moved = (Instant::now(), self.ledger.acked);
            }
            if moved.0.elapsed() > IDLE_TIMEOUT {
                bail!("{}", self.imbalance_message());
            }
            self.poll_once(PROGRESS_INTERVAL)?;
        }
        self.wait_for_empty_backlog(watch)
    }

    fn is_finished(&self) -> bool {
        self.publisher.is_idle()
            && self.workers.iter().all(WorkerConnection::is_idle)
            && self.ledger.is_balanced()
            && self.counter.confirmed == self.ledger.published
    }

    fn imbalance_message(&self) -> String {
        let TaskLedger { published, received: came, acked, .. } = self.ledger;
        format!(
            "not every task was done: {published} were published, {} confirmed, {came} came to workers, \
             {acked} are acknowledged",
            self.counter.confirmed
        )
    }

    /// Requests the backlog until it is empty: an acknowledgement without an answer may take effect
    /// a moment later.
    fn wait_for_empty_backlog(&self, watch: &mut ProgressFn<'_>) -> anyhow::Result<()> {
        let steps = self.target.wire.handshake().into_iter().chain(self.backlog.setup.clone());
        let mut socket = connection::open(self.target.address, steps)?;
        let began = Instant::now();
        loop {
            watch("asking what is left")?;
            socket.write_all(&self.backlog.request)?;
            let (mut answer, mut filled) = (vec![0; 64 * 1024], 0);
            let left = loop {
                let bytes = socket.read(&mut answer[filled..]).context("asking what is left")?;
                ensure!(bytes > 0, "the broker does not say what is left");
                filled += bytes;
                if let Some(left) = self.backlog.total(&answer[..filled]) {
                    break left;
                }
            };
            if left == 0 {
                return Ok(());
            }
            ensure!(
                began.elapsed() < IDLE_TIMEOUT,
                "the broker says that {left} tasks are not final"
            );
            thread::sleep(BACKLOG_POLL_INTERVAL);
        }
    }

    /// Publishes as the window allows, requests tasks, then waits for sockets and handles them.
    fn poll_once(&mut self, longest: Duration) -> anyhow::Result<()> {
        self.publish()?;
        for worker in &mut self.workers {
            self.requested += worker.request_tasks(self.ledger.published - self.requested);
            worker.flush()?;
        }
        let mut ready = std::mem::take(&mut self.ready);
        self.poller.wait(longest, &mut ready)?;
        for &token in &ready {
            match self.workers.get_mut(token) {
                Some(worker) => {
                    worker.read_available(|heard| record_event(&mut self.ledger, heard))?
                }
                None => self.handle_publisher()?,
            }
        }
        self.ready = ready;
        Ok(())
    }

    fn publish(&mut self) -> anyhow::Result<()> {
        while !self.is_stopped
            && self.publisher.is_idle()
            && self.ledger.published + self.burst <= self.ledger.acked + self.window
        {
            for message in self.publisher.messages_mut().chunks_exact_mut(self.message_bytes) {
                self.ledger.publish(&mut message[self.payload_at..]);
            }
            self.publisher.start_write();
            self.publisher.flush().context("the publisher")?;
        }
        Ok(())
    }

    fn handle_publisher(&mut self) -> anyhow::Result<()> {
        let refusal = self.target.wire.rejection_marker();
        self.publisher.read_available(&mut self.read_buffer, |heard| {
            check_rejection(refusal, heard)?;
            self.counter.count_confirmations(heard)
        })?;
        self.publisher.flush().context("the publisher")?;
        Ok(())
    }
}

/// Records in the ledger what a worker received.
fn record_event(ledger: &mut TaskLedger, heard: WorkerEvent<'_>) -> anyhow::Result<()> {
    match heard {
        WorkerEvent::Ignored => Ok(()),
        WorkerEvent::Task(payload) => ledger.receive(payload),
        WorkerEvent::UnconfirmedTask(payload) => {
            ledger.receive(payload)?;
            ledger.ack(1)
        }
        WorkerEvent::Acked(tasks) => ledger.ack(tasks),
    }
}
