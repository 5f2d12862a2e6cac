//! A queue of tasks: publish, release to a worker, acknowledge.
//!
//! A task is final when the broker has answered its acknowledgement; until then it counts in the
//! window of published tasks. The ledger must balance at the end: each published task went to one
//! worker, once, and its acknowledgement took effect.

#![expect(clippy::disallowed_methods, reason = "a load generator reads the clock")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use memchr::memmem;
use serde::Serialize;

use crate::command::flags::RunFlags;
use crate::command::{Benchmark, Subject};
use crate::connection::{self, LineConnection, Publisher};
use crate::figure::to_f64;
use crate::load::{Load, Rates, WARM_UP};
use crate::poller::Poller;
use crate::task_ledger::{KEYS_MAX, TaskLedger};
use crate::text::{format_count, plural};
use crate::wire::{QueueWorker, WorkerEvent, WorkerPool};
use crate::{Figure, Progress, Target};

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

    fn measure(&self, subject: &Subject<'_>, progress: Progress<'_>) -> Result<Vec<Figure>> {
        self.measure_target(subject.target, progress)
    }
}

impl Queue {
    /// Measures this broker. It is an error if a task is not acknowledged exactly once.
    pub fn measure_target(
        &self,
        target: Target<'_>,
        progress: Progress<'_>,
    ) -> Result<Vec<Figure>> {
        let mut load = QueueLoad::connect(target, self)?;
        load.run_until(Instant::now() + WARM_UP, progress)?;
        let rate = Figure::new("tasks_per_second", "tasks/s", 0);
        let cost = Figure::new("broker_cpu_us_per_task", "broker us per task", 2);
        let mut rates = Rates::new(target.server, rate, cost, 1.0);
        for _ in 0..self.length.runs {
            rates.run(&mut load, self.length.run(), progress)?;
        }
        load.finish(progress)?;
        let all = Figure::new("tasks_acked_once", "all acked exactly once", 0);
        rates.figures([all.with_runs([to_f64(load.ledger.acked)])])
    }
}

/// A worker, which acknowledges at once.
struct Worker {
    connection: LineConnection,
    protocol: Box<dyn QueueWorker>,
}

/// One publisher, and workers.
struct QueueLoad {
    poller: Poller,
    ready: Vec<usize>,
    /// The token of a worker is its index; that of the publisher is the number of workers.
    workers: Vec<Worker>,
    /// Tasks that workers have requested, if the broker needs requests.
    requested: u64,
    publisher: Publisher,
    /// Bytes of one publish, and the offset of the payload in it.
    message_bytes: usize,
    payload_at: usize,
    /// Tasks per write.
    burst: u64,
    window: u64,
    ledger: TaskLedger,
}

impl QueueLoad {
    fn connect(target: Target<'_>, queue: &Queue) -> Result<Self> {
        let ledger = TaskLedger::new(target.payload_bytes, queue.keys)?;
        let pool = WorkerPool { workers: queue.workers.into(), credit: queue.credit };
        let setup = target.wire.queue_setup(target.topic, pool)?;
        target.open(setup.create_steps).context("cannot create the queue")?;
        let poller = Poller::new()?;
        // Workers join before anything is published, so only the answers arrive during their setup.
        let mut workers = Vec::with_capacity(pool.workers);
        for (token, (steps, protocol)) in setup.workers.into_iter().enumerate() {
            let connection =
                LineConnection::new(target.open(steps).context("a worker")?, Vec::new())?;
            poller.register_edge_triggered(connection.socket(), token)?;
            workers.push(Worker { connection, protocol });
        }
        let message = target.wire.publish(target.topic, ledger.template());
        let payload_at = memmem::find(&message, ledger.template());
        let burst = connection::burst(target.payload_bytes, queue.window, 1);
        let publisher = target.publisher(ledger.template(), burst)?;
        poller.register_edge_triggered(publisher.socket(), workers.len())?;
        Ok(Self {
            poller,
            ready: Vec::new(),
            workers,
            requested: 0,
            publisher,
            message_bytes: message.len(),
            payload_at: payload_at.context("a publish does not contain its payload")?,
            burst: u64::try_from(burst)?,
            window: queue.window,
            ledger,
        })
    }

    fn publish(&mut self) -> Result<()> {
        while self.publisher.is_idle()
            && self.ledger.published + self.burst <= self.ledger.acked + self.window
        {
            for message in self.publisher.messages_mut().chunks_exact_mut(self.message_bytes) {
                self.ledger.publish(&mut message[self.payload_at..]);
            }
            self.publisher.write()?;
        }
        Ok(())
    }
}

impl Load for QueueLoad {
    const WORK: &'static str = "tasks";

    fn completed(&self) -> u64 {
        self.ledger.acked
    }

    fn is_finished(&self) -> Result<bool> {
        Ok(self.publisher.is_idle()
            && self.workers.iter().all(|worker| worker.connection.is_idle())
            && self.ledger.is_balanced()
            && self.publisher.confirmed == self.ledger.published)
    }

    fn missing(&self) -> String {
        let TaskLedger { published, received, acked, .. } = self.ledger;
        format!(
            "not every task was completed: {published} published, {} confirmed, {received} \
             received by workers, {acked} acknowledged",
            self.publisher.confirmed
        )
    }

    /// Workers also request tasks, if the broker needs that.
    fn poll_once(&mut self, may_publish: bool, timeout: Duration) -> Result<()> {
        if may_publish {
            self.publish()?;
        }
        for Worker { connection, protocol } in &mut self.workers {
            let unrequested = self.ledger.published - self.requested;
            self.requested += protocol.request_tasks(unrequested, connection.output_mut());
            connection.flush()?;
        }
        let mut ready = std::mem::take(&mut self.ready);
        self.poller.wait(timeout, &mut ready)?;
        for &token in &ready {
            let Some(Worker { connection, protocol }) = self.workers.get_mut(token) else {
                self.publisher.read_replies()?;
                self.publisher.flush()?;
                continue;
            };
            let handle = |line: &[u8], output: &mut Vec<u8>| {
                record_event(&mut self.ledger, protocol.handle_line(line, output)?)
            };
            connection.read_lines(handle).context("a worker")?;
        }
        self.ready = ready;
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
