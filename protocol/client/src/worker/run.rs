//! Handles the tasks of a worker, each in a future of its own. It starts once the broker has
//! confirmed that the worker still holds the task. The lease is renewed while it runs.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::link::WorkerLink;
use super::task::{TaskEnd, WorkerTask};
use super::{TASKS_MAX, Worker, WorkerEvent};
use crate::error::ClientError;

/// Handles tasks. A closure from a [`WorkerTask`] to a future of its [`TaskEnd`] is a handler; its
/// future is dropped when the task is lost.
pub trait TaskHandler: Send + Sync + 'static {
    /// The error that ends the worker.
    type Error: Send + 'static;

    /// Handles a task, which this worker holds meanwhile. When `lost` is cancelled, the lease has
    /// expired or may soon expire, so the handler must return at once, and its result is discarded.
    /// After an error the task is returned uncounted, and the worker drains and ends.
    fn handle(
        &self,
        task: &WorkerTask,
        lost: &CancellationToken,
    ) -> impl Future<Output = Result<TaskEnd, Self::Error>> + Send;

    /// The connection has ended; the worker reconnects.
    fn disconnected(&self, error: &ClientError) {
        let _ = error;
    }

    /// The worker drains: it starts no more tasks, and waits for these.
    fn draining(&self, tasks: usize) {
        let _ = tasks;
    }
}

impl<F, R> TaskHandler for F
where
    F: Fn(WorkerTask) -> R + Send + Sync + 'static,
    R: Future<Output = TaskEnd> + Send,
{
    type Error = Infallible;

    async fn handle(
        &self,
        task: &WorkerTask,
        lost: &CancellationToken,
    ) -> Result<TaskEnd, Infallible> {
        let handled = self(task.clone());
        tokio::select! {
            biased;
            () = lost.cancelled() => Ok(TaskEnd::not_started()),
            end = handled => Ok(end),
        }
    }
}

/// Why a worker has ended.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError<E> {
    /// The broker refused the worker, or another connection resumed its member.
    #[error("{0}")]
    Broker(ClientError),
    /// The handler's error.
    #[error("a task could not be handled: {0}")]
    Handler(E),
}

/// What the futures of all tasks share.
struct Shared<H> {
    link: WorkerLink,
    handler: H,
    /// Tasks that are being handled.
    held: Mutex<HashMap<EntryKey, HeldAttempt>>,
}

/// The run and the number of an entry, which all its attempts share.
type EntryKey = (u64, u64);

/// The attempt that is being handled, and a token for its end.
type HeldAttempt = (u32, CancellationToken);

type Tasks<E> = JoinSet<Result<(), E>>;

/// One run of a worker.
struct Run<H: TaskHandler> {
    worker: Worker,
    shared: Arc<Shared<H>>,
    tasks: Tasks<H::Error>,
    /// Tasks that may still be started.
    remaining: Option<u64>,
    is_draining: bool,
    is_drained: bool,
    /// The first error of the handler.
    failure: Option<H::Error>,
    /// Why the connection is lost, as far as the handler knows.
    reported_loss: Option<ClientError>,
}

impl Worker {
    /// Handles tasks until `stop` is cancelled or `count` tasks were started. Then no task is
    /// started. Those that run are finished if there is a connection; without one their ends cannot
    /// be reported.
    pub async fn run<H: TaskHandler>(
        self,
        handler: H,
        count: Option<u64>,
        stop: CancellationToken,
    ) -> Result<(), WorkerError<H::Error>> {
        let shared = Shared { link: self.link(), handler, held: Mutex::default() };
        let mut run = Run {
            worker: self,
            shared: Arc::new(shared),
            tasks: JoinSet::new(),
            remaining: count,
            is_draining: false,
            is_drained: false,
            failure: None,
            reported_loss: None,
        };
        run.until_done(&stop).await
    }
}

impl<H: TaskHandler> Run<H> {
    async fn until_done(&mut self, stop: &CancellationToken) -> Result<(), WorkerError<H::Error>> {
        loop {
            let is_connected = self.worker.is_joined();
            if (self.is_drained && self.tasks.is_empty())
                || (self.failure.is_some() && !is_connected)
            {
                return self
                    .failure
                    .take()
                    .map_or(Ok(()), |error| Err(WorkerError::Handler(error)));
            }
            tokio::select! {
                biased;
                () = stop.cancelled(), if !self.is_draining || !is_connected => {
                    if !is_connected {
                        return Ok(());
                    }
                    self.drain();
                    if !self.tasks.is_empty() {
                        self.shared.handler.draining(self.tasks.len());
                    }
                }
                Some(ended) = self.tasks.join_next() => {
                    let ended = ended.expect("the future of a task does not panic");
                    if let Err(error) = ended {
                        // Until it is drained, the broker may send the same task again.
                        self.failure.get_or_insert(error);
                        self.drain();
                    }
                }
                event = self.worker.next() => {
                    self.handle(event.map_err(WorkerError::Broker)?)?;
                }
            }
        }
    }

    fn handle(&mut self, event: WorkerEvent) -> Result<(), WorkerError<H::Error>> {
        match event {
            WorkerEvent::Task(task) => {
                if self.shared.held().len() >= TASKS_MAX {
                    let error = ClientError::Protocol("it sent too many tasks".to_owned());
                    self.worker.disconnect();
                    self.lost(error);
                } else {
                    self.start(task);
                }
            }
            WorkerEvent::Lost(error) => {
                // The group is damaged. A worker that has just begun does not wait for its repair.
                if !self.worker.has_joined && self.worker.connector.is_final(&error) {
                    return Err(WorkerError::Broker(error));
                }
                self.lost(error);
            }
            WorkerEvent::Joined { .. } => self.reported_loss = None,
            WorkerEvent::Drained => self.is_drained = true,
            WorkerEvent::Notice(_) => {}
        }
        Ok(())
    }

    /// Reports the loss of a connection once, and after it each refusal that is new.
    fn lost(&mut self, error: ClientError) {
        self.is_drained = false;
        let is_refusal = matches!(
            error,
            ClientError::Refused(_)
                | ClientError::TopicMissing { .. }
                | ClientError::OtherFilter { .. }
                | ClientError::OtherGroup { .. }
        );
        if self.reported_loss.as_ref().is_none_or(|last| is_refusal && *last != error) {
            self.shared.handler.disconnected(&error);
            self.reported_loss = Some(error);
        }
    }

    fn drain(&mut self) {
        self.is_draining = true;
        self.worker.drain();
    }

    /// Starts handling a task unless that attempt is running already: each new connection delivers
    /// it again. An earlier attempt ends first, so that no event is handled twice at once.
    fn start(&mut self, task: WorkerTask) {
        let (entry, attempt) = ((task.id.run, task.id.entry), task.id.attempt);
        let ended = CancellationToken::new();
        let mut held = self.shared.held();
        if held.get(&entry).is_some_and(|(held, _)| *held == attempt) {
            return;
        }
        let earlier = held.insert(entry, (attempt, ended.clone()));
        drop(held);
        let starts = !self.is_draining;
        if starts && let Some(remaining) = &mut self.remaining {
            *remaining = remaining.saturating_sub(1);
            if *remaining == 0 {
                self.drain();
            }
        }
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            if let Some((_, earlier)) = earlier {
                earlier.cancelled().await;
            }
            let result = if starts {
                shared.process(task).await
            } else {
                shared.link.end(&task.id, TaskEnd::not_started()).await;
                Ok(())
            };
            ended.cancel();
            let mut held = shared.held();
            if held.get(&entry).is_some_and(|(held, _)| *held == attempt) {
                held.remove(&entry);
            }
            result
        });
    }
}

impl<H: TaskHandler> Shared<H> {
    fn held(&self) -> std::sync::MutexGuard<'_, HashMap<EntryKey, HeldAttempt>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn process(&self, mut task: WorkerTask) -> Result<(), H::Error> {
        let (id, mut lease) = (task.id.clone(), task.lease.clone());
        let Some(until) = self.link.hold(&id, &mut lease).await else { return Ok(()) };
        task.lease = lease.clone();
        let lost = CancellationToken::new();
        let mut work = std::pin::pin!(self.handler.handle(&task, &lost));
        let end = tokio::select! {
            biased;
            end = &mut work => end,
            () = self.link.keep(&id, &mut lease, until, |_| ()) => {
                lost.cancel();
                // Here the handler ends before the task may start again; another worker may start
                // it earlier.
                return work.await.map(drop);
            }
        };
        match end {
            Ok(end) => {
                self.link.end(&id, end).await;
                Ok(())
            }
            Err(error) => {
                self.link.end(&id, TaskEnd::not_started()).await;
                Err(error)
            }
        }
    }
}
