//! One of those who share the events of a group: it takes tasks over as many connections as it takes, keeps the leases of
//! those that are dealt with, and gives their answers until the broker has said what became of them.
//!
//! Each task is dealt with by a future of its own, which is begun once the broker has said that the task is still ours.

#![expect(
    clippy::disallowed_methods,
    reason = "owns its tasks, keeps their leases, and waits between tries to connect"
)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidings_protocol::client::{self, Client, ClientError, ClientOptions, Deliveries, Delivery};
use tidings_protocol::{
    Code, Command, GroupName, Hold, Manage, MemberId, Outcome, Return, TaskId, TopicName, field,
    field_number,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

/// Pauses between tries to reach a broker that was there before.
const RECONNECT_MIN: Duration = Duration::from_millis(100);
const RECONNECT_MAX: Duration = Duration::from_secs(5);

/// How long to wait when the broker has no room for an answer.
const REFUSED_RETRY: Duration = Duration::from_secs(1);

/// For whom, and how much.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Address of the broker.
    pub broker: String,
    /// The label that the broker shows.
    pub name: &'static str,
    /// The group that is joined; there is one.
    pub group: GroupName,
    /// Tasks at once.
    pub credit: u32,
    /// Take no more after so many.
    pub count: Option<u64>,
}

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Task {
    /// What answers name.
    pub id: TaskId,
    /// As `[T1]` says.
    pub payload: String,
}

/// What became of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It is final.
    Final(Outcome, Hold),
    /// It goes back, for the reason that is told.
    Back(Return, Hold, Option<String>),
    /// It goes back uncounted; whoever was asked rests first.
    BrokenOff,
}

impl End {
    /// Done, and nothing else.
    pub fn done() -> Self {
        Self::Final(Outcome::Done, Hold::default())
    }

    /// Failed, for this reason; the group decides when it is tried again.
    pub fn failed(reason: String) -> Self {
        Self::Back(Return::Retry { after_ms: None }, Hold::default(), Some(reason))
    }

    /// Nothing was done.
    pub fn untouched() -> Self {
        Self::Back(Return::Uncounted { after_ms: None }, Hold::default(), None)
    }
}

/// What is done with tasks.
pub trait Handler: Send + Sync + 'static {
    /// Why the worker has to end.
    type Error: Send + 'static;

    /// Deals with a task, which is ours for as long as this takes. Once `lost` is cancelled it is, or may soon be,
    /// somebody else's: then this is to return at once, and what it returns is told nobody. After an error the task goes
    /// back uncounted, and the worker ends.
    fn work(
        &self,
        task: &Task,
        lost: &CancellationToken,
    ) -> impl Future<Output = Result<End, Self::Error>> + Send;

    /// The connection is gone; another one is tried.
    fn disconnected(&self, error: &ClientError) {
        let _ = error;
    }

    /// Nothing is begun any more, as somebody wants an end, but so many tasks are still dealt with.
    fn draining(&self, tasks: usize) {
        let _ = tasks;
    }
}

/// Why a worker has ended.
#[derive(Debug)]
pub enum WorkerError<E> {
    /// The broker refuses it, or another one came back as this one.
    Broker(ClientError),
    /// The handler's.
    Handler(E),
}

/// What the futures of all tasks have in common.
struct Worker<H> {
    config: WorkerConfig,
    handler: H,
    /// The connection that stands, after its `JOIN`; numbered from 1.
    current: watch::Sender<(u64, Option<Client>)>,
    /// What is being dealt with, by the group's run and the entry: the attempt, and its end.
    held: Mutex<HashMap<(u64, u64), (u32, CancellationToken)>>,
    /// How many were.
    begun: AtomicU64,
    /// Nothing is begun any more.
    drains: AtomicBool,
}

/// Why a group is not there as it has to be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The broker says it, or is gone.
    #[error("{0}")]
    Broker(#[from] ClientError),
    /// It would wait for ever for what comes on the topic.
    #[error(
        "group {group} is fed by {topics} and not by {topic}; tidings group set {group} \
         topics={topics},{topic} changes that"
    )]
    Fed {
        /// The group that is there.
        group: GroupName,
        /// As it is set.
        topics: String,
        /// The one that it lacks.
        topic: TopicName,
    },
}

/// Makes a group that is fed by the topic, with this key and these further settings, if there is none of that name. One
/// that is there keeps its settings, which are the operator's.
pub async fn prepare(
    client: &Client,
    group: &GroupName,
    topic: &TopicName,
    key: &str,
    settings: &[(&str, &str)],
) -> Result<(), PrepareError> {
    let ask = async |action, settings| {
        let manage = Manage { action, name: Some(group.as_str()), settings };
        client.request(&Command::Group(manage)).await
    };
    let mut shown = ask("show", Vec::new()).await;
    if matches!(&shown, Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound) {
        let settings = [&[("topics", topic.as_str()), ("key", key)], settings].concat();
        shown = match ask("create", settings).await {
            // Somebody else was faster.
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
    Err(PrepareError::Fed { group, topics, topic })
}

type Tasks<E> = JoinSet<Result<(), E>>;

/// What became of an answer.
enum Answered {
    /// What the broker said of it.
    Applied(String),
    /// The task is somebody else's, or the broker will never take this.
    Refused,
}

/// Deals with tasks, first on this connection, until `stop` or the count; what was begun is ended.
pub async fn run<H: Handler>(
    config: WorkerConfig,
    connected: (Client, Deliveries),
    handler: H,
    stop: CancellationToken,
) -> Result<(), WorkerError<H::Error>> {
    let worker = Arc::new(Worker {
        config,
        handler,
        current: watch::Sender::new((0, None)),
        held: Mutex::default(),
        begun: AtomicU64::new(0),
        drains: AtomicBool::new(false),
    });
    let member = connected.0.hello().resume;
    let mut tasks = JoinSet::new();
    let mut connected = connected;
    loop {
        let Some(lost) = worker.serve(connected, &mut tasks, &stop).await? else { return Ok(()) };
        worker.current.send_modify(|(_, current)| *current = None);
        if matches!(&lost, ClientError::Ended(error) if error.code == Code::Replaced) {
            return Err(WorkerError::Broker(lost));
        }
        worker.handler.disconnected(&lost);
        connected = tokio::select! {
            connected = worker.reconnect(member) => connected,
            // What runs ends with us: what became of it could be told nobody.
            () = stop.cancelled() => return Ok(()),
        };
    }
}

impl<H: Handler> Worker<H> {
    /// Takes tasks as long as the connection lasts; `None`: everything is done.
    async fn serve(
        self: &Arc<Self>,
        (client, mut deliveries): (Client, Deliveries),
        tasks: &mut Tasks<H::Error>,
        stop: &CancellationToken,
    ) -> Result<Option<ClientError>, WorkerError<H::Error>> {
        let credit = if self.drains() { 0 } else { self.config.credit };
        match client.request(&self.join(credit)).await {
            Ok(_) => {}
            Err(error @ ClientError::Refused(_)) => return Err(WorkerError::Broker(error)),
            Err(lost) => return Ok(Some(lost)),
        }
        self.current.send_modify(|current| *current = (current.0 + 1, Some(client.clone())));
        let drain = async {
            client.request(&self.join(0)).await?;
            // What was under way comes behind the first answer, and is here with the second.
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
                () = stop.cancelled(), if !self.drains() => {
                    self.drains.store(true, Ordering::Relaxed);
                    if !tasks.is_empty() {
                        self.handler.draining(tasks.len());
                    }
                }
                Some(ended) = tasks.join_next() => {
                    ended.expect("a task does not panic").map_err(WorkerError::Handler)?;
                }
                delivery = deliveries.next() => match delivery {
                    Some(Delivery::Task { id, payload, .. }) => {
                        self.begin(Task { id, payload }, tasks);
                    }
                    Some(_) => {}
                    None => return Ok(Some(deliveries.reason())),
                },
                told = &mut drain, if self.drains() && !is_drained => match told {
                    Ok(_) => is_drained = true,
                    Err(lost) => return Ok(Some(lost)),
                },
            }
        }
    }

    /// Another connection as the same member, as soon as there can be one.
    async fn reconnect(&self, member: MemberId) -> (Client, Deliveries) {
        let mut pause = RECONNECT_MIN;
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(RECONNECT_MAX);
            let name = Some(self.config.name.to_owned());
            let options = ClientOptions { name, resume: Some(member), ..ClientOptions::default() };
            if let Ok(connected) = client::connect(&self.config.broker, options).await {
                return connected;
            }
        }
    }

    fn join(&self, credit: u32) -> Command<'static> {
        Command::Join { group: self.config.group.clone(), credit: Some(credit) }
    }

    fn drains(&self) -> bool {
        self.drains.load(Ordering::Relaxed)
    }

    /// Deals with a task, unless that is being done already: it comes again on every new connection. An
    /// older attempt, which was lost, ends first, so that no event is dealt with twice at once.
    fn begin(self: &Arc<Self>, task: Task, tasks: &mut Tasks<H::Error>) {
        let (entry, attempt, ended) =
            ((task.id.run, task.id.entry), task.id.attempt, CancellationToken::new());
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.get(&entry).is_some_and(|(held, _)| *held == attempt) {
            return;
        }
        let earlier = held.insert(entry, (attempt, ended.clone()));
        drop(held);
        let drains = self.drains();
        let begun = self.begun.fetch_add(u64::from(!drains), Ordering::Relaxed) + 1;
        if self.config.count.is_some_and(|count| begun >= count) {
            self.drains.store(true, Ordering::Relaxed);
        }
        let worker = Arc::clone(self);
        tasks.spawn(async move {
            if let Some((_, earlier)) = earlier {
                earlier.cancelled().await;
            }
            let result = if drains {
                worker.tell(&task, End::untouched()).await;
                Ok(())
            } else {
                worker.work(&task).await
            };
            ended.cancel();
            let mut held = worker.held.lock().unwrap_or_else(PoisonError::into_inner);
            if held.get(&entry).is_some_and(|(held, _)| *held == attempt) {
                held.remove(&entry);
            }
            result
        });
    }

    async fn work(&self, task: &Task) -> Result<(), H::Error> {
        // A lease counts from its release, and nobody knows how long ago that was [T3].
        let Some(until) = self.extend(task).await else { return Ok(()) };
        let lost = CancellationToken::new();
        let mut work = std::pin::pin!(self.handler.work(task, &lost));
        let end = tokio::select! {
            biased;
            end = &mut work => end,
            () = self.keep(task, until) => {
                lost.cancel();
                // Here it has ended before it may come again; elsewhere that may be before.
                return work.await.map(drop);
            }
        };
        match end {
            Ok(end) => {
                self.tell(task, end).await;
                Ok(())
            }
            Err(error) => {
                self.tell(task, End::untouched()).await;
                Err(error)
            }
        }
    }

    /// Keeps the task ours; returns when it is not, or might not be.
    async fn keep(&self, task: &Task, mut until: Instant) {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            sleep_until(until - left / 2).await;
            match timeout_at(until, self.extend(task)).await {
                Ok(Some(later)) => until = later,
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Has the lease begin anew. Until when the task is ours then, with some time to spare; `None`: it is
    /// not any more.
    async fn extend(&self, task: &Task) -> Option<Instant> {
        let touch = Command::Touch { task: task.id.clone(), over: false, hold: Hold::default() };
        loop {
            let asked = Instant::now();
            let Answered::Applied(ok) = self.answer(&touch).await else { return None };
            let lease = Duration::from_millis(field_number(&ok, "lease")?);
            // It counts from when the broker was asked; an answer that took long leaves too little of it.
            if asked.elapsed() <= lease * 2 / 5 {
                return Some(asked + lease * 4 / 5);
            }
        }
    }

    /// Tells the broker what became of a task.
    async fn tell(&self, task: &Task, end: End) {
        let id = task.id.clone();
        let command = match end {
            End::Final(outcome, hold) => Command::Ack { task: id, outcome, hold },
            End::Back(back, hold, reason) => Command::Nack { task: id, back, hold, reason },
            End::BrokenOff => {
                // Whoever was asked something rests then [T4].
                let over = Command::Touch { task: id.clone(), over: true, hold: Hold::default() };
                self.answer(&over).await;
                let back = Return::Uncounted { after_ms: None };
                Command::Nack { task: id, back, hold: Hold::default(), reason: None }
            }
        };
        self.answer(&command).await;
    }

    /// Sends an answer, on one connection after the other, until the broker has said what became of it.
    async fn answer(&self, command: &Command<'_>) -> Answered {
        let mut tried = 0;
        loop {
            let (number, client) = self.after(tried).await;
            match client.request(command).await {
                Ok(answer) => return Answered::Applied(answer.ok),
                Err(ClientError::Refused(refusal)) if refusal.code.is_transient() => {
                    sleep(REFUSED_RETRY).await;
                }
                Err(ClientError::Refused(_)) => return Answered::Refused,
                Err(_gone) => tried = number,
            }
        }
    }

    /// The connection that stands, once it is another one than `tried`.
    async fn after(&self, tried: u64) -> (u64, Client) {
        let mut current = self.current.subscribe();
        let usable = |(number, client): &(u64, Option<Client>)| *number > tried && client.is_some();
        let current = current.wait_for(usable).await.expect("the sender is in self");
        (current.0, current.1.clone().expect("waited for one"))
    }
}
