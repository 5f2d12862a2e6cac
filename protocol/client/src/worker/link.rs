//! The replies of a worker: each is sent over as many connections as it takes, until the broker has
//! answered. The broker applies each reply at most once.

#![expect(clippy::disallowed_methods, reason = "compares clocks, renews leases, and waits")]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidings_protocol::{
    Code, Command, ProtocolError, RetryMode, Seq, TaskAction, TaskId, TaskReply, TaskReport,
    TopicName, field_number,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::clock::BrokerClock;
use super::task::{TaskEnd, TaskLease, task_reply, touch};
use crate::connection::Client;
use crate::error::ClientError;

/// The pause before a reply is sent again that the broker had no room for.
const REFUSED_RETRY_AFTER: Duration = Duration::from_secs(1);
/// How often the broker's clock is compared with ours.
const CLOCK_SAMPLE_EVERY: Duration = Duration::from_secs(10);

/// The replies of a worker, across its connections. Clones share them.
#[derive(Debug, Clone)]
pub struct WorkerLink(Arc<LinkState>);

#[derive(Debug)]
struct LinkState {
    /// The client of the current connection, after its `JOIN`; connections are numbered from 1.
    current: watch::Sender<(u64, Option<Client>)>,
    clock: Mutex<BrokerClock>,
    epoch: Instant,
    /// Cancelled: no reply can be sent any more.
    given_up: CancellationToken,
}

/// What became of a reply.
#[derive(Debug)]
pub enum ReplyOutcome {
    /// The broker applied it; the text of its answer.
    Applied(String),
    /// The broker will never accept it.
    ///
    /// `stale`: the task belongs to another member, or an earlier connection has delivered this
    /// reply. `limit` after an `ACK`: the group has no room for its links; nothing has changed, and
    /// the task is still held.
    Refused(ProtocolError),
    /// [`WorkerLink::give_up`] was called.
    Cancelled,
}

impl WorkerLink {
    pub(super) fn new() -> Self {
        Self(Arc::new(LinkState {
            current: watch::Sender::new((0, None)),
            clock: Mutex::default(),
            epoch: Instant::now(),
            given_up: CancellationToken::new(),
        }))
    }

    /// A connection has joined the group: replies use it from now on.
    pub(super) fn connected(&self, client: Client) {
        self.0.current.send_modify(|(number, current)| {
            *number += 1;
            *current = Some(client);
        });
    }

    /// The connection is lost: replies wait for the next one.
    pub(super) fn disconnected(&self) {
        self.0.current.send_modify(|(_, current)| *current = None);
    }

    /// Drops the replies that still wait, and all later ones; the broker will release their tasks
    /// to other members.
    pub fn give_up(&self) {
        self.0.given_up.cancel();
    }

    /// Sends a reply with its `LINK`s, and again on each new connection until the broker answers.
    /// Cancel-safe as far as the broker is: the reply may or may not have been applied.
    pub async fn reply(&self, links: &[Command<'_>], reply: &Command<'_>) -> ReplyOutcome {
        tokio::select! {
            biased;
            () = self.0.given_up.cancelled() => ReplyOutcome::Cancelled,
            outcome = self.reply_on_any_connection(links, reply) => outcome,
        }
    }

    async fn reply_on_any_connection(
        &self,
        links: &[Command<'_>],
        reply: &Command<'_>,
    ) -> ReplyOutcome {
        let mut tried = 0;
        loop {
            let (number, client) = self.connection_after(tried).await;
            let answer = match client.start_request(links, reply).await {
                Ok(answer) => answer.await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(answer) => return ReplyOutcome::Applied(answer.ok),
                Err(ClientError::Refused(refusal)) if is_retryable(&refusal, reply) => {
                    sleep(REFUSED_RETRY_AFTER).await;
                }
                Err(ClientError::Refused(refusal)) => return ReplyOutcome::Refused(refusal),
                Err(_lost) => tried = number,
            }
        }
    }

    /// Reports how a task has ended.
    pub async fn end(&self, task: &TaskId, end: TaskEnd) -> ReplyOutcome {
        let reply = match end {
            TaskEnd::Ack(outcome, rest) => task_reply(task, TaskAction::Ack(outcome), rest),
            TaskEnd::Nack(retry, rest, reason) => {
                let report = TaskReport::of_reason(reason);
                let action = TaskAction::Nack(retry);
                Command::Reply(TaskReply { task: task.clone(), action, rest, report })
            }
            TaskEnd::Interrupted => {
                // The key rests from the end of the request [T4].
                self.reply(&[], &touch(task, true)).await;
                return Box::pin(self.end(task, TaskEnd::not_started())).await;
            }
        };
        self.reply(&[], &reply).await
    }

    /// Publishes an event, and again on each new connection until it is confirmed.
    pub async fn publish(&self, topic: &TopicName, payload: &str) -> Result<Seq, ClientError> {
        let publish = async {
            let mut tried = 0;
            loop {
                let (number, client) = self.connection_after(tried).await;
                let confirmed = match client.publish(topic, payload).await {
                    Ok(confirmed) => confirmed.await,
                    Err(error) => Err(error),
                };
                match confirmed {
                    Err(error) if !matches!(error, ClientError::Refused(_)) => tried = number,
                    confirmed => return confirmed,
                }
            }
        };
        tokio::select! {
            biased;
            () = self.0.given_up.cancelled() => {
                Err(ClientError::Closed("the worker is stopping".to_owned()))
            }
            published = publish => published,
        }
    }

    /// Makes sure that the task is held: until when it is, less a margin; `None`: it is lost.
    ///
    /// A lease counts from its release, which may be long ago `[T3]`. A task that is young by the
    /// broker's clock needs no `TOUCH`.
    pub async fn hold(&self, task: &TaskId, lease: &mut TaskLease) -> Option<Instant> {
        let age = self.age_max(lease.clock_ms).filter(|age| *age <= lease.length / 10);
        match age.filter(|_| !lease.is_resumed) {
            Some(age) => Some(Instant::now() + (lease.length * 4 / 5).saturating_sub(age)),
            // Boxed: rarely needed, but part of the future of every task.
            None => Box::pin(self.renew(task, lease)).await,
        }
    }

    /// Renews the lease: until when the task is held, less a margin; `None`: it is lost.
    pub async fn renew(&self, task: &TaskId, lease: &mut TaskLease) -> Option<Instant> {
        let touch = touch(task, false);
        loop {
            let sent = Instant::now();
            let ReplyOutcome::Applied(ok) = self.reply(&[], &touch).await else { return None };
            lease.is_resumed = false;
            if let Some(lease_ms) = field_number(&ok, "lease") {
                lease.length = Duration::from_millis(lease_ms);
            }
            // The lease counts from when the broker received the command. After a slow answer too
            // little is left.
            if sent.elapsed() <= lease.length * 2 / 5 {
                return Some(sent + lease.length * 4 / 5);
            }
        }
    }

    /// Renews the lease again and again, and calls `renewed` with the time until when the task is
    /// held; returns when the task is lost, or may be. Cancel-safe.
    pub async fn keep(
        &self,
        task: &TaskId,
        lease: &mut TaskLease,
        mut until: Instant,
        renewed: impl Fn(Instant),
    ) {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            sleep_until(until - left / 2).await;
            match timeout_at(until, self.renew(task, lease)).await {
                Ok(Some(later)) => {
                    until = later;
                    renewed(until);
                }
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// The longest time that may have passed since the broker's clock showed this.
    fn age_max(&self, clock_ms: u64) -> Option<Duration> {
        let now_ms = self.ms(Instant::now());
        self.clock(|clock| clock.task_age_max_ms(now_ms, clock_ms)).map(Duration::from_millis)
    }

    /// Takes the first sample of the clock of a new connection.
    pub(super) fn restart_clock(&self, sent: Instant, reading_ms: u64) {
        let sent_ms = self.ms(sent);
        self.clock(|clock| {
            clock.reset();
            clock.add_sample(sent_ms, reading_ms);
        });
    }

    /// Samples the broker's clock at intervals, until the connection ends.
    pub(super) async fn watch_clock(self, client: Client) -> ClientError {
        loop {
            let sent_ms = self.ms(Instant::now());
            match client.ping().await {
                Ok(reading_ms) => self.clock(|clock| clock.add_sample(sent_ms, reading_ms)),
                Err(error) => return error,
            }
            sleep(CLOCK_SAMPLE_EVERY).await;
        }
    }

    fn clock<T>(&self, read: impl FnOnce(&mut BrokerClock) -> T) -> T {
        read(&mut self.0.clock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Our time, in the unit of the clock samples.
    fn ms(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.0.epoch);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Waits for a connection with a number above `tried`.
    async fn connection_after(&self, tried: u64) -> (u64, Client) {
        let mut current = self.0.current.subscribe();
        let usable = |(number, client): &(u64, Option<Client>)| *number > tried && client.is_some();
        let current = current.wait_for(usable).await.expect("the sender is in self");
        (current.0, current.1.clone().expect("waited for one"))
    }
}

/// Whether the same reply can succeed later. With `again=`, `limit` means that the task has used up
/// its requests, which waiting does not change. For `ACK` it means that the group has no room,
/// which changes when other entries end, and perhaps not before the lease expires.
fn is_retryable(refusal: &ProtocolError, reply: &Command<'_>) -> bool {
    let is_own = matches!(
        reply,
        Command::Reply(TaskReply {
            action: TaskAction::Ack(_) | TaskAction::Nack(RetryMode::OtherUrl { .. }),
            ..
        })
    );
    refusal.code.is_transient() && !(is_own && refusal.code == Code::Limit)
}
