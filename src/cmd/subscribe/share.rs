//! `tidings sub --group`: the events of a group, as one of those who share them.
//!
//! Each task is dealt with by a future of its own, over as many connections as it takes: it is begun
//! once the broker has said that it is still ours, kept while it runs, and answered.

#![expect(
    clippy::disallowed_methods,
    reason = "owns its tasks, keeps their leases, and waits between tries to connect"
)]

use std::{
    collections::HashMap,
    future, io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tidings_protocol::{
    Client, ClientError, Code, Command, Deliveries, Delivery, GroupName, Hold, Manage, MemberId,
    Outcome, Return, TaskId, TopicName, field, field_number, format_ms,
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    failed,
    program::{self, Program},
    task_json,
    writer::Writer,
};
use crate::{
    address::BrokerAddress,
    failure::Failure,
    flags::milliseconds,
    link,
    output::{note, plural, printable},
};

/// The label that the broker shows.
const NAME: &str = "tidings-sub";

/// Pauses between tries to reach a broker that was there before.
const RECONNECT_MIN: Duration = Duration::from_millis(100);
const RECONNECT_MAX: Duration = Duration::from_secs(5);

/// How long to wait when the broker has no room for an answer.
const REFUSED_RETRY: Duration = Duration::from_secs(1);

/// What is to be done, and for whom.
pub(super) struct Share {
    pub(super) broker: BrokerAddress,
    pub(super) topic: TopicName,
    pub(super) group: GroupName,
    /// Tasks at once.
    pub(super) credit: u32,
    /// Stop after so many.
    pub(super) count: Option<u64>,
    pub(super) json: bool,
    /// A program is ended when it runs for so long.
    pub(super) timeout: Option<Duration>,
    /// Nothing to run: events are printed.
    pub(super) program: Option<Program>,
}

/// What the futures of all tasks have in common.
struct Worker {
    share: Share,
    /// The connection that stands, after its `JOIN`; numbered from 1.
    current: watch::Sender<(u64, Option<Client>)>,
    /// What is being dealt with, by the group's run and the entry: the attempt, and its end.
    held: Mutex<HashMap<(u64, u64), (u32, CancellationToken)>>,
    /// Somebody wants it to end.
    stop: CancellationToken,
    /// How many were.
    begun: AtomicU64,
    /// Nothing is begun any more.
    drains: AtomicBool,
    /// Standard output, and errors of programs.
    writers: [Writer; 2],
}

struct Task {
    id: TaskId,
    payload: String,
}

/// How a program failed.
struct Failed {
    /// As one word.
    failure: String,
    /// The end of what it printed, as one, too.
    last_words: String,
}

impl Failed {
    fn is_signal(&self) -> bool {
        program::is_signal(&self.failure)
    }

    /// As the broker keeps it, with a dead letter in the end.
    fn reason(&self) -> String {
        let Self { failure, last_words } = self;
        if last_words.is_empty() { failure.clone() } else { format!("{failure}:_{last_words}") }
    }
}

/// What became of an answer.
enum Answered {
    /// What the broker said of it.
    Applied(String),
    /// The task is somebody else's, or the broker will never take this.
    Refused,
}

/// Deals with tasks until `stop` or the count, and ends what was begun.
pub(super) async fn run(share: Share, stop: CancellationToken) -> Result<(), Failure> {
    let (client, deliveries) = link::connect(&share.broker, NAME).await?;
    prepare(&client, &share).await?;
    let worker = Arc::new(Worker {
        share,
        current: watch::Sender::new((0, None)),
        held: Mutex::default(),
        stop: stop.clone(),
        begun: AtomicU64::new(0),
        drains: AtomicBool::new(false),
        writers: [Writer::new(io::stdout()), Writer::new(io::stderr())],
    });
    let member = client.hello().resume;
    let mut tasks = JoinSet::new();
    let mut connected = (client, deliveries);
    loop {
        let Some(lost) = worker.serve(connected, &mut tasks, &stop).await? else { return Ok(()) };
        worker.current.send_modify(|(_, current)| *current = None);
        if matches!(&lost, ClientError::Ended(error) if error.code == Code::Replaced) {
            return Err(failed(&worker.share.broker, &lost));
        }
        note(&format!("{}: {lost}; connecting again", worker.share.broker));
        connected = tokio::select! {
            connected = worker.reconnect(member) => connected,
            // What runs ends with us: what became of it could be told nobody.
            () = stop.cancelled() => return Ok(()),
        };
    }
}

/// Makes the group if there is none. One that the topic does not feed would wait for ever.
async fn prepare(client: &Client, share: &Share) -> Result<(), Failure> {
    let Share { broker, topic, group, .. } = share;
    let ask = async |action, settings| {
        let manage = Manage { action, name: Some(group.as_str()), settings };
        client.request(&Command::Group(manage)).await
    };
    let mut shown = ask("show", Vec::new()).await;
    if matches!(&shown, Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound) {
        let settings = vec![("topics", topic.as_str()), ("key", "none")];
        shown = match ask("create", settings).await {
            // Somebody else was faster.
            Err(ClientError::Refused(refusal)) if refusal.code == Code::Exists => {
                ask("show", Vec::new()).await
            }
            created => created,
        };
    }
    let shown = shown.map_err(|error| failed(broker, &error))?.ok;
    let topics = field(&shown, "topics").unwrap_or_default();
    if topics.split(',').any(|one| one == topic.as_str()) {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "group {group} is fed by {topics} and not by {topic}; tidings group set {group} \
         topics={topics},{topic} changes that"
    )))
}

impl Worker {
    /// Takes tasks as long as the connection lasts; `None`: everything is done.
    async fn serve(
        self: &Arc<Self>,
        (client, mut deliveries): (Client, Deliveries),
        tasks: &mut JoinSet<Result<(), Failure>>,
        stop: &CancellationToken,
    ) -> Result<Option<ClientError>, Failure> {
        let credit = if self.drains() { 0 } else { self.share.credit };
        match client.request(&self.join(credit)).await {
            Ok(_) => {}
            Err(error @ ClientError::Refused(_)) => return Err(failed(&self.share.broker, &error)),
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
                    if self.share.program.is_some() && !tasks.is_empty() {
                        let running = plural(tasks.len() as u64, "program");
                        note(&format!("waiting for {running}; a second signal ends what runs"));
                    }
                }
                Some(ended) = tasks.join_next() => ended.expect("a task does not panic")?,
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
            if let Ok(connected) = link::resume(&self.share.broker, NAME, member).await {
                return connected;
            }
        }
    }

    fn join(&self, credit: u32) -> Command<'static> {
        Command::Join { group: self.share.group.clone(), credit: Some(credit) }
    }

    fn drains(&self) -> bool {
        self.drains.load(Ordering::Relaxed)
    }

    /// Deals with a task, unless that is being done already: it comes again on every new connection. An
    /// older attempt, which was lost, ends first, so that there are never two programs for an event.
    fn begin(self: &Arc<Self>, task: Task, tasks: &mut JoinSet<Result<(), Failure>>) {
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
        if self.share.count.is_some_and(|count| begun >= count) {
            self.drains.store(true, Ordering::Relaxed);
        }
        let worker = Arc::clone(self);
        tasks.spawn(async move {
            if let Some((_, earlier)) = earlier {
                earlier.cancelled().await;
            }
            let result = if drains {
                worker.hand_back(&task).await;
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

    async fn work(&self, task: &Task) -> Result<(), Failure> {
        // A lease counts from its release, and nobody knows how long ago that was [T3].
        let Some(until) = self.extend(task).await else { return Ok(()) };
        let failed = match &self.share.program {
            None => {
                let printed = tokio::select! {
                    biased;
                    printed = self.print(task) => printed,
                    () = self.keep(task, until) => {
                        note(&format!("{}: lost, as nobody reads what is printed", task.id));
                        return Ok(());
                    }
                };
                if printed.is_err() {
                    self.hand_back(task).await;
                }
                printed?;
                None
            }
            Some(program) if program.would_be_option(&task.payload) => Some(Failed {
                failure: "begins_with_a_dash".to_owned(),
                last_words: "write_--_before_{}".to_owned(),
            }),
            Some(program) => match self.run_program(program, task, until).await {
                Ok(Some(failed)) => failed,
                Ok(None) => return Ok(()),
                Err(failure) => {
                    self.hand_back(task).await;
                    return Err(failure);
                }
            },
        };
        let (task_id, hold) = (task.id.clone(), Hold::default());
        if self.stop.is_cancelled() && failed.as_ref().is_some_and(Failed::is_signal) {
            // Somebody has ended both of us. It may have asked somebody something, who rests then [T4].
            self.answer(&Command::Touch { task: task_id, over: true, hold }).await;
            self.hand_back(task).await;
            return Ok(());
        }
        let Some(failed) = failed else {
            let ack = Command::Ack { task: task_id, outcome: Outcome::Done, hold };
            self.answer(&ack).await;
            return Ok(());
        };
        note(&format!("{}: {}: {}", task.id, failed.failure, printable(&task.payload, 200)));
        let (back, reason) = (Return::Retry { after_ms: None }, Some(failed.reason()));
        self.answer(&Command::Nack { task: task_id, back, hold, reason }).await;
        Ok(())
    }

    /// Runs the program to its end: why it failed, if it did. `None`: the task was lost meanwhile, and
    /// the program was ended.
    async fn run_program(
        &self,
        program: &Program,
        task: &Task,
        until: Instant,
    ) -> Result<Option<Option<Failed>>, Failure> {
        let id = task.id.to_string();
        let Share { topic, group, .. } = &self.share;
        let about =
            [("EVENT_TOPIC", topic.as_str()), ("EVENT_GROUP", group.as_str()), ("EVENT_TASK", &id)];
        let (mut running, mut tail) =
            program.start_with_tail(&task.payload, &about, &self.writers)?;
        let limit = async {
            match self.share.timeout {
                Some(limit) => sleep(limit).await,
                None => future::pending().await,
            }
        };
        let keep = self.keep(task, until);
        tokio::pin!(keep);
        let failure = tokio::select! {
            biased;
            ended = running.wait() => {
                let status = ended.map_err(|error| Failure::failed(error.to_string()))?;
                program::failure(status)
            }
            () = limit => {
                running.kill().await;
                let limit = format_ms(milliseconds(self.share.timeout.unwrap_or_default()));
                Some(format!("not_finished_within_{limit}"))
            }
            () = &mut keep => {
                note(&format!("{id}: lost; its program is ended: {}", printable(&task.payload, 200)));
                // Here it has ended before it may come again; elsewhere that may be before.
                running.kill().await;
                return Ok(None);
            }
        };
        // Where it is read slowly no more programs are begun than were asked for, and none of their tasks is lost.
        tokio::select! {
            biased;
            () = tail.passed_on() => {}
            () = &mut keep => {
                note(&format!("{id}: lost, as nobody reads what its program has printed"));
                return Ok(None);
            }
        }
        Ok(Some(failure.map(|failure| Failed { failure, last_words: tail.last_words() })))
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

    /// Nothing was done.
    async fn hand_back(&self, task: &Task) {
        let (back, hold) = (Return::Uncounted { after_ms: None }, Hold::default());
        let nack = Command::Nack { task: task.id.clone(), back, hold, reason: None };
        self.answer(&nack).await;
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

    async fn print(&self, task: &Task) -> Result<(), Failure> {
        let mut line = if self.share.json {
            task_json(&self.share.group, &task.id, &task.payload)
        } else {
            task.payload.clone()
        };
        line.push('\n');
        self.writers[0].write(line.into_bytes()).await.map_err(Failure::from_output)
    }
}
