//! A worker within a group. It takes tasks, renews their leases, and repeats each answer over as
//! many connections as needed until the broker has replied.
//!
//! A future of its own handles each task. It starts once the broker has confirmed that the worker
//! still holds the task.

#![expect(
    clippy::disallowed_methods,
    reason = "spawns tasks, renews leases, and waits between attempts to connect"
)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidings_client::{Backoff, Client, ClientError, ClientOptions, Deliveries, Delivery};
use tidings_protocol::{
    Code, Command, GroupName, KeyRest, ManageCommand, MemberId, Outcome, RetryMode, TaskAction,
    TaskId, TaskReply, TopicName, field, field_number,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

/// The wait after a transient refusal of an answer.
const REFUSED_RETRY: Duration = Duration::from_secs(1);

/// The group that is joined, and how many tasks are taken.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Address of the broker.
    pub broker: String,
    /// The label that the broker shows.
    pub name: &'static str,
    /// The group, which must exist.
    pub group: GroupName,
    /// Tasks at once.
    pub credit: u32,
    /// Take no new tasks after this many.
    pub count: Option<u64>,
}

/// A task that this worker holds.
#[derive(Debug, Clone)]
pub struct WorkerTask {
    /// The id that answers name.
    pub id: TaskId,
    /// The payload, as in `[T1]`.
    pub payload: String,
}

/// How a task ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEnd {
    /// Acknowledged with an outcome.
    Ack(Outcome, KeyRest),
    /// Returned to the group; the reason is sent with it.
    Nack(RetryMode, KeyRest, Option<String>),
    /// Returned uncounted. A request was interrupted, so the key rests first.
    Interrupted,
}

impl TaskEnd {
    /// Done.
    pub fn done() -> Self {
        Self::Ack(Outcome::Done, KeyRest::default())
    }

    /// Failed for this reason; the group decides when to retry.
    pub fn failed(reason: String) -> Self {
        Self::Nack(RetryMode::Counted { after_ms: None }, KeyRest::default(), Some(reason))
    }

    /// Returned uncounted; nothing was done.
    pub fn not_started() -> Self {
        Self::Nack(RetryMode::Uncounted { after_ms: None }, KeyRest::default(), None)
    }
}

/// Handles tasks.
pub trait TaskHandler: Send + Sync + 'static {
    /// The error that ends the worker.
    type Error: Send + 'static;

    /// Handles a task, which this worker holds meanwhile. When `lost` is cancelled, the lease has
    /// expired or may soon expire, so the handler must return at once, and its result is discarded.
    /// After an error the task is returned uncounted, and the worker ends.
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

/// Why a worker has ended.
#[derive(Debug)]
pub enum WorkerError<E> {
    /// The broker refused the worker, or another connection resumed its member.
    Broker(ClientError),
    /// The handler's error.
    Handler(E),
}

/// State that the futures of all tasks share.
struct Worker<H> {
    config: WorkerConfig,
    handler: H,
    /// The connection after its `JOIN`, and its number from 1; `None` while reconnecting.
    connection: watch::Sender<(u64, Option<Client>)>,
    /// Tasks that are being handled: by run and entry, the attempt and a token for its end.
    held: Mutex<HashMap<(u64, u64), (u32, CancellationToken)>>,
    /// Tasks started so far.
    started: AtomicU64,
    /// No new tasks are started.
    is_draining: AtomicBool,
}

/// Why a group cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnsureGroupError {
    /// The broker refused a command, or the connection has ended.
    #[error("{0}")]
    Broker(#[from] ClientError),
    /// The group would never receive the events of the topic.
    #[error(
        "group {group} has topics {topics}, without {topic}; add it with: tidings group set {group} \
         topics={topics},{topic}"
    )]
    TopicMissing {
        /// The existing group.
        group: GroupName,
        /// Its topics.
        topics: String,
        /// The topic that is missing.
        topic: TopicName,
    },
}

/// Creates the group if it does not exist, fed by the topic, with this key and these settings. An
/// existing group keeps its settings, which are the operator's.
pub async fn ensure_group(
    client: &Client,
    group: &GroupName,
    topic: &TopicName,
    key: &str,
    settings: &[(&str, &str)],
) -> Result<(), EnsureGroupError> {
    let ask = async |action, settings| {
        let manage = ManageCommand { action, name: Some(group.as_str()), settings };
        client.request(&Command::Group(manage)).await
    };
    let mut shown = ask("show", Vec::new()).await;
    if matches!(&shown, Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound) {
        let settings = [&[("topics", topic.as_str()), ("key", key)], settings].concat();
        shown = match ask("create", settings).await {
            // Another client has created it in between.
            Err(ClientError::Refused(refusal)) if refusal.code == Code::Exists => {
                ask("show", Vec::new()).await
            }
            created => created,
        };
    }
    let shown = shown?.ok;
    let topics = field(&shown, "topics").unwrap_or_default();
    if topics.split(',').any(|one| one == topic.as_str()) {
        return Ok(());
    }
    let (group, topic, topics) = (group.clone(), topic.clone(), topics.to_owned());
    Err(EnsureGroupError::TopicMissing { group, topics, topic })
}

type Tasks<E> = JoinSet<Result<(), E>>;

/// The reply to an answer.
enum AnswerResult {
    /// The broker's reply.
    Applied(String),
    /// Another member holds the task, or the broker rejects the answer permanently.
    Refused,
}

/// Handles tasks until `stop` is cancelled or the count is reached, beginning with this connection.
/// Tasks that were started are finished.
pub async fn run<H: TaskHandler>(
    config: WorkerConfig,
    connected: (Client, Deliveries),
    handler: H,
    stop: CancellationToken,
) -> Result<(), WorkerError<H::Error>> {
    let worker = Arc::new(Worker {
        config,
        handler,
        connection: watch::Sender::new((0, None)),
        held: Mutex::default(),
        started: AtomicU64::new(0),
        is_draining: AtomicBool::new(false),
    });
    let member = connected.0.hello().resume;
    let mut tasks = JoinSet::new();
    let mut connected = connected;
    loop {
        let Some(lost) = worker.serve(connected, &mut tasks, &stop).await? else { return Ok(()) };
        worker.connection.send_modify(|(_, current)| *current = None);
        if matches!(&lost, ClientError::Ended(error) if error.code == Code::Replaced) {
            return Err(WorkerError::Broker(lost));
        }
        worker.handler.disconnected(&lost);
        connected = tokio::select! {
            connected = worker.reconnect(member) => connected,
            // Running tasks are dropped: without a connection their results cannot be reported.
            () = stop.cancelled() => return Ok(()),
        };
    }
}

impl<H: TaskHandler> Worker<H> {
    /// Takes tasks until the connection ends. `None`: everything is done.
    async fn serve(
        self: &Arc<Self>,
        (client, mut deliveries): (Client, Deliveries),
        tasks: &mut Tasks<H::Error>,
        stop: &CancellationToken,
    ) -> Result<Option<ClientError>, WorkerError<H::Error>> {
        let credit = if self.is_draining() { 0 } else { self.config.credit };
        match client.request(&self.join(credit)).await {
            Ok(_) => {}
            Err(error @ ClientError::Refused(_)) => return Err(WorkerError::Broker(error)),
            Err(lost) => return Ok(Some(lost)),
        }
        self.connection.send_modify(|current| *current = (current.0 + 1, Some(client.clone())));
        let drain = async {
            client.request(&self.join(0)).await?;
            // Tasks under way arrive after the reply to `JOIN`, and before the reply to this ping.
            client.ping().await
        };
        tokio::pin!(drain);
        let mut is_drained = false;
        loop {
            if is_drained && tasks.is_empty() {
                return Ok(None);
            }
            tokio::select! {
                biased;
                () = stop.cancelled(), if !self.is_draining() => {
                    self.is_draining.store(true, Ordering::Relaxed);
                    if !tasks.is_empty() {
                        self.handler.draining(tasks.len());
                    }
                }
                Some(ended) = tasks.join_next() => {
                    ended.expect("the future of a task does not panic").map_err(WorkerError::Handler)?;
                }
                delivery = deliveries.next() => match delivery {
                    Some(Delivery::Task { id, payload, .. }) => {
                        self.start(WorkerTask { id, payload }, tasks);
                    }
                    Some(_) => {}
                    None => return Ok(Some(deliveries.reason())),
                },
                drained = &mut drain, if self.is_draining() && !is_drained => match drained {
                    Ok(_) => is_drained = true,
                    Err(lost) => return Ok(Some(lost)),
                },
            }
        }
    }

    /// Connects as the same member, with backoff.
    async fn reconnect(&self, member: MemberId) -> (Client, Deliveries) {
        let mut backoff = Backoff::default();
        loop {
            sleep(backoff.next_pause()).await;
            let name = Some(self.config.name.to_owned());
            let options = ClientOptions { name, resume: Some(member), ..ClientOptions::default() };
            if let Ok(connected) = tidings_client::connect(&self.config.broker, options).await {
                return connected;
            }
        }
    }

    fn join(&self, credit: u32) -> Command<'static> {
        Command::Join { group: self.config.group.clone(), credit: Some(credit) }
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// Starts handling a task unless that attempt is running already: each new connection delivers
    /// it again. An earlier attempt ends first, so that no event is handled twice at once.
    fn start(self: &Arc<Self>, task: WorkerTask, tasks: &mut Tasks<H::Error>) {
        let (entry, attempt, ended) =
            ((task.id.run, task.id.entry), task.id.attempt, CancellationToken::new());
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.get(&entry).is_some_and(|(held, _)| *held == attempt) {
            return;
        }
        let earlier = held.insert(entry, (attempt, ended.clone()));
        drop(held);
        let drains = self.is_draining();
        let begun = self.started.fetch_add(u64::from(!drains), Ordering::Relaxed) + 1;
        if self.config.count.is_some_and(|count| begun >= count) {
            self.is_draining.store(true, Ordering::Relaxed);
        }
        let worker = Arc::clone(self);
        tasks.spawn(async move {
            if let Some((_, earlier)) = earlier {
                earlier.cancelled().await;
            }
            let result = if drains {
                worker.report(&task, TaskEnd::not_started()).await;
                Ok(())
            } else {
                worker.process(&task).await
            };
            ended.cancel();
            let mut held = worker.held.lock().unwrap_or_else(PoisonError::into_inner);
            if held.get(&entry).is_some_and(|(held, _)| *held == attempt) {
                held.remove(&entry);
            }
            result
        });
    }

    async fn process(&self, task: &WorkerTask) -> Result<(), H::Error> {
        // A lease counts from its release, which may be long ago [T3].
        let Some(until) = self.renew_lease(task).await else { return Ok(()) };
        let lost = CancellationToken::new();
        let mut work = std::pin::pin!(self.handler.handle(task, &lost));
        let end = tokio::select! {
            biased;
            end = &mut work => end,
            () = self.keep_lease(task, until) => {
                lost.cancel();
                // Here the handler ends before the task may start again; another worker may start
                // it earlier.
                return work.await.map(drop);
            }
        };
        match end {
            Ok(end) => {
                self.report(task, end).await;
                Ok(())
            }
            Err(error) => {
                self.report(task, TaskEnd::not_started()).await;
                Err(error)
            }
        }
    }

    /// Renews the lease; returns when it is lost, or may be.
    async fn keep_lease(&self, task: &WorkerTask, mut until: Instant) {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            sleep_until(until - left / 2).await;
            match timeout_at(until, self.renew_lease(task)).await {
                Ok(Some(later)) => until = later,
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Renews the lease. Returns until when it is valid, less a margin; `None`: it is lost.
    async fn renew_lease(&self, task: &WorkerTask) -> Option<Instant> {
        let touch =
            task_reply(task, TaskAction::Touch { request_ended: false }, KeyRest::default());
        loop {
            let sent_at = Instant::now();
            let AnswerResult::Applied(ok) = self.send_answer(&touch).await else { return None };
            let lease = Duration::from_millis(field_number(&ok, "lease")?);
            // The lease counts from when the broker received the command. After a slow reply too
            // little is left.
            if sent_at.elapsed() <= lease * 2 / 5 {
                return Some(sent_at + lease * 4 / 5);
            }
        }
    }

    /// Reports the end of a task to the broker.
    async fn report(&self, task: &WorkerTask, end: TaskEnd) {
        let command = match end {
            TaskEnd::Ack(outcome, rest) => task_reply(task, TaskAction::Ack(outcome), rest),
            TaskEnd::Nack(retry, rest, reason) => {
                task_reply(task, TaskAction::Nack { retry, reason }, rest)
            }
            TaskEnd::Interrupted => {
                // The key rests from the end of the request [T4].
                let ended = TaskAction::Touch { request_ended: true };
                self.send_answer(&task_reply(task, ended, KeyRest::default())).await;
                let retry = RetryMode::Uncounted { after_ms: None };
                task_reply(task, TaskAction::Nack { retry, reason: None }, KeyRest::default())
            }
        };
        self.send_answer(&command).await;
    }

    /// Sends an answer until the broker replies, on the next connection if one ends.
    async fn send_answer(&self, command: &Command<'_>) -> AnswerResult {
        let mut tried = 0;
        loop {
            let (number, client) = self.connection_after(tried).await;
            match client.request(command).await {
                Ok(answer) => return AnswerResult::Applied(answer.ok),
                Err(ClientError::Refused(refusal)) if refusal.code.is_transient() => {
                    sleep(REFUSED_RETRY).await;
                }
                Err(ClientError::Refused(_)) => return AnswerResult::Refused,
                Err(_gone) => tried = number,
            }
        }
    }

    /// Waits for a connection newer than `tried`.
    async fn connection_after(&self, tried: u64) -> (u64, Client) {
        let mut current = self.connection.subscribe();
        let usable = |(number, client): &(u64, Option<Client>)| *number > tried && client.is_some();
        let current = current.wait_for(usable).await.expect("the sender is in self");
        (current.0, current.1.clone().expect("wait_for returned one that is set"))
    }
}

fn task_reply(task: &WorkerTask, action: TaskAction, rest: KeyRest) -> Command<'static> {
    Command::Reply(TaskReply { task: task.id.clone(), action, rest })
}
