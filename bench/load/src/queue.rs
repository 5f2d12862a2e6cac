//! A queue of tasks: publish, release to a worker, acknowledge.
//!
//! A task is final when the broker has answered its acknowledgement; until then it counts in the
//! window of published tasks. The ledger must balance at the end: each published task went to one
//! worker, once, and its acknowledgement took effect. The broker also reports how many tasks are
//! not final.

#![expect(clippy::disallowed_methods, reason = "a load generator reads the clock and sleeps")]

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use memchr::memmem;
use serde::Serialize;

use crate::command::flags::RunFlags;
use crate::command::text::{format_count, plural};
use crate::command::{Benchmark, Outcome};
use crate::connection::{self, PublisherSocket};
use crate::figure::to_f64;
use crate::poller::Poller;
use crate::publish::PublishCounter;
use crate::replies::Replies;
use crate::server::{CpuCost, RunStart};
use crate::task_ledger::TaskLedger;
pub use crate::task_ledger::{KEYS_MAX, TASK_BYTES_MIN};
use crate::wire::{BacklogQuery, WorkerEvent, WorkerPool};
use crate::worker_connection::WorkerConnection;
use crate::{Figure, PROGRESS_INTERVAL, Progress, Target};

/// Longest time without progress while tasks are missing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause between two requests for the backlog.
const BACKLOG_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The load of a queue and its duration.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub struct Queue {
    /// Connections that work
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub workers: u16,

    /// Keys (hosts) of the tasks; one task per key at once
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=i64::from(KEYS_MAX)))]
    pub keys: u32,

    /// Most tasks that a worker holds at once
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub credit: u64,

    /// Most tasks that are published and not acknowledged
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub window: u64,

    /// Duration of the runs, which use the same connections.
    #[command(flatten)]
    #[serde(flatten)]
    pub length: RunFlags,
}

impl Benchmark for Queue {
    const NAME: &'static str = "queue";

    const MEASURES_DISK: bool = true;

    fn title(&self) -> String {
        format!(
            "{}, {}, credit {}, window {}, {}",
            plural(self.workers.into(), "worker"),
            plural(self.keys.into(), "key"),
            format_count(self.credit),
            format_count(self.window),
            self.length.title()
        )
    }

    /// It is an error if a task is not acknowledged exactly once.
    fn measure(&self, target: Target<'_>, progress: Progress<'_>) -> Result<Outcome> {
        let mut load = QueueLoad::connect(target, self)?;
        load.run_until(Instant::now() + self.length.warm_up, progress)?;
        let mut rate = Figure::new("tasks_per_second", "tasks/s", 0);
        let mut cost =
            CpuCost::new(Figure::new("broker_cpu_us_per_task", "broker us per task", 2), 1.0);
        for _ in 0..self.length.runs {
            let (before, start) = (load.ledger.acked, RunStart::now(target.server)?);
            load.run_until(start.began + self.length.run(), progress)?;
            let tasks = load.ledger.acked - before;
            rate.runs.push(to_f64(tasks) / cost.end_run(start, target.server, tasks)?);
        }
        load.finish(progress)?;
        let all = Figure::new("tasks_acked_once", "all acked exactly once", 0);
        let figures = vec![rate, all.with_runs([to_f64(load.ledger.acked)])];
        Ok(cost.append_to(figures, target.server)?.into())
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
    fn connect(target: Target<'a>, queue: &Queue) -> Result<Self> {
        ensure!(
            queue.workers > 0 && queue.credit > 0,
            "a queue needs at least one worker and a credit of at least 1"
        );
        let ledger = TaskLedger::new(target.payload_bytes, queue.keys)?;
        let pool = WorkerPool { workers: queue.workers.into(), credit: queue.credit };
        let setup = target.wire.queue_setup(target.topic, pool)?;
        let open = |address, steps| {
            connection::open(address, target.wire.handshake().into_iter().chain(steps))
        };
        open(target.address, setup.create_steps).context("cannot create the queue")?;
        let poller = Poller::new()?;
        // Workers join before anything is published, so only the answers arrive during their setup.
        let mut workers = Vec::with_capacity(pool.workers);
        for (token, (steps, worker)) in setup.workers.into_iter().enumerate() {
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
        let replies = Replies::new(target.wire.rejections());
        let publisher = PublisherSocket::new(socket, confirmed.message.repeat(burst), replies)?;
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
            payload_at: payload_at.context("a publish does not contain its payload")?,
            burst: u64::try_from(burst)?,
            window: queue.window,
            ledger,
            backlog: setup.backlog,
            is_stopped: false,
            read_buffer: vec![0; 64 * 1024],
        })
    }

    /// Publishes and acknowledges until `end`.
    fn run_until(&mut self, end: Instant, progress: Progress<'_>) -> Result<()> {
        let mut reported = (Instant::now(), self.ledger.acked);
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(());
            }
            if now >= reported.0 + PROGRESS_INTERVAL {
                let acked = self.ledger.acked;
                let per_second = to_f64(acked - reported.1) / (now - reported.0).as_secs_f64();
                progress(&format!("{:.0} thousand tasks/s", per_second / 1e3))?;
                reported = (now, acked);
            }
            self.poll_once((end - now).min(PROGRESS_INTERVAL))?;
        }
    }

    /// Stops publishing. Waits until every task is confirmed, received and acknowledged, and the
    /// backlog of the broker is empty.
    fn finish(&mut self, progress: Progress<'_>) -> Result<()> {
        self.is_stopped = true;
        let mut last_progress = (Instant::now(), self.ledger.acked);
        while !self.is_finished() {
            progress("waiting for the last tasks")?;
            if self.ledger.acked > last_progress.1 {
                last_progress = (Instant::now(), self.ledger.acked);
            }
            if last_progress.0.elapsed() > IDLE_TIMEOUT {
                bail!("{}", self.imbalance_message());
            }
            self.poll_once(PROGRESS_INTERVAL)?;
        }
        self.wait_for_empty_backlog(progress)
    }

    fn is_finished(&self) -> bool {
        self.publisher.is_idle()
            && self.workers.iter().all(WorkerConnection::is_idle)
            && self.ledger.is_balanced()
            && self.counter.confirmed == self.ledger.published
    }

    fn imbalance_message(&self) -> String {
        let TaskLedger { published, received, acked, .. } = self.ledger;
        format!(
            "not every task was completed: {published} published, {} confirmed, {received} received by workers, \
             {acked} acknowledged",
            self.counter.confirmed
        )
    }

    /// Requests the backlog until it is empty: an acknowledgement without an answer may take effect
    /// a moment later.
    fn wait_for_empty_backlog(&self, progress: Progress<'_>) -> Result<()> {
        let steps = self.target.wire.handshake().into_iter().chain(self.backlog.setup.clone());
        let mut socket = connection::open(self.target.address, steps)?;
        let began = Instant::now();
        loop {
            progress("requesting the backlog")?;
            socket.write_all(&self.backlog.request)?;
            let (mut answer, mut filled) = (vec![0; 64 * 1024], 0);
            let remaining = loop {
                let bytes = socket.read(&mut answer[filled..]).context("requesting the backlog")?;
                ensure!(
                    bytes > 0,
                    "the broker closed the connection instead of reporting its backlog"
                );
                filled += bytes;
                if let Some(remaining) = self.backlog.total(&answer[..filled]) {
                    break remaining;
                }
            };
            if remaining == 0 {
                return Ok(());
            }
            ensure!(
                began.elapsed() < IDLE_TIMEOUT,
                "the broker reports {remaining} tasks that are not final"
            );
            thread::sleep(BACKLOG_POLL_INTERVAL);
        }
    }

    /// Publishes as the window allows, requests tasks, then waits for sockets and handles them.
    fn poll_once(&mut self, timeout: Duration) -> Result<()> {
        self.publish()?;
        for worker in &mut self.workers {
            self.requested += worker.request_tasks(self.ledger.published - self.requested);
            worker.flush()?;
        }
        let mut ready = std::mem::take(&mut self.ready);
        self.poller.wait(timeout, &mut ready)?;
        for &token in &ready {
            match self.workers.get_mut(token) {
                Some(worker) => {
                    worker.read_available(|event| record_event(&mut self.ledger, event))?;
                }
                None => self.handle_publisher()?,
            }
        }
        self.ready = ready;
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
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

    fn handle_publisher(&mut self) -> Result<()> {
        self.publisher
            .read_replies(&mut self.read_buffer, |line| self.counter.count_confirmations(line))?;
        self.publisher.flush().context("the publisher")?;
        Ok(())
    }
}

/// Records in the ledger what a worker received.
fn record_event(ledger: &mut TaskLedger, event: WorkerEvent<'_>) -> Result<()> {
    match event {
        WorkerEvent::Ignored => Ok(()),
        WorkerEvent::Task(payload) => ledger.receive(payload),
        WorkerEvent::UnconfirmedTask(payload) => {
            ledger.receive(payload)?;
            ledger.ack(1)
        }
        WorkerEvent::Acked(tasks) => ledger.ack(tasks),
    }
}
