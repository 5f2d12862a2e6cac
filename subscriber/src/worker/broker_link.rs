//! The crawler's link to the broker across connections: a reply that was in flight when a
//! connection broke is sent again on the next one. The broker applies each reply at most once.

#![expect(
    clippy::disallowed_methods,
    reason = "compares the broker's clock with ours and waits between retries"
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidings_client::{Client, ClientError};
use tidings_protocol::{Code, Command, ProtocolError, RetryMode, TaskAction, TaskReply, TopicName};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::clock::BrokerClock;

/// Pause before a reply is sent again that the broker had no room for.
const REFUSED_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The link to the broker.
#[derive(Debug)]
pub(super) struct BrokerLink {
    /// The client of the current connection, after its `JOIN`; connections are numbered from 1.
    current: watch::Sender<(u64, Option<Client>)>,
    clock: Mutex<BrokerClock>,
    epoch: Instant,
    /// Cancelled: no reply can be sent any more.
    given_up: CancellationToken,
    /// Whether the log has reported that the group was full.
    was_full: AtomicBool,
}

/// The result of a reply.
#[derive(Debug)]
pub(super) enum ReplyResult {
    /// The broker applied it; the text of its answer.
    Applied(String),
    /// The task belongs to another member, or an earlier connection has delivered this reply.
    Stale,
    /// The broker will never accept this reply; the task may still be held.
    Refused,
    /// The group has no room for the links of an `ACK`: nothing has changed, and the task is still
    /// held.
    GroupFull,
    /// The crawler is stopping.
    Cancelled,
}

impl BrokerLink {
    pub(super) fn new() -> Self {
        Self {
            current: watch::Sender::new((0, None)),
            clock: Mutex::default(),
            epoch: Instant::now(),
            given_up: CancellationToken::new(),
            was_full: AtomicBool::default(),
        }
    }

    /// A connection has joined the group: replies use it from now on.
    pub(super) fn connected(&self, client: Client) {
        self.current.send_modify(|(number, current)| {
            *number += 1;
            *current = Some(client);
        });
    }

    /// The connection is lost: replies wait for the next one.
    pub(super) fn disconnected(&self) {
        self.current.send_modify(|(_, current)| *current = None);
    }

    /// Drops the replies that still wait; the broker will release their tasks to other members.
    pub(super) fn cancel_replies(&self) {
        self.given_up.cancel();
    }

    /// Our time, in the unit of the clock samples.
    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Takes the first sample of the clock of a new connection.
    pub(super) fn restart_clock(&self, sent_ms: u64, reading_ms: u64) {
        let mut clock = self.clock.lock();
        clock.reset();
        clock.add_sample(sent_ms, reading_ms);
    }

    /// Samples the broker's clock.
    pub(super) async fn read_clock(&self, client: &Client) -> Result<(), ClientError> {
        let sent_ms = self.now_ms();
        let reading_ms = client.ping().await?;
        self.clock.lock().add_sample(sent_ms, reading_ms);
        Ok(())
    }

    /// The maximum age of a task that was sent at this time of the broker's clock.
    pub(super) fn age_max(&self, task_clock_ms: u64) -> Option<Duration> {
        let age_ms = self.clock.lock().task_age_max_ms(self.now_ms(), task_clock_ms);
        age_ms.map(Duration::from_millis)
    }

    /// Sends a reply with its links, and again on each new connection until the broker answers.
    pub(super) async fn reply(
        &self,
        children: &[Command<'_>],
        command: &Command<'_>,
    ) -> ReplyResult {
        tokio::select! {
            biased;
            () = self.given_up.cancelled() => ReplyResult::Cancelled,
            answered = self.reply_on_any_connection(children, command) => answered,
        }
    }

    /// Publishes an event, and again on each new connection until it is confirmed. The error is
    /// text for a person.
    pub(super) async fn publish(&self, topic: &TopicName, payload: &str) -> Result<(), String> {
        let publish = async {
            let mut tried = 0;
            loop {
                let (number, client) = self.connection_after(tried).await;
                let confirmed = match client.publish(topic, payload).await {
                    Ok(confirmed) => confirmed.await.map(drop),
                    Err(error) => Err(error),
                };
                match confirmed {
                    Ok(()) => return Ok(()),
                    Err(ClientError::Refused(refusal)) => return Err(refusal.to_string()),
                    Err(_gone) => tried = number,
                }
            }
        };
        tokio::select! {
            biased;
            () = self.given_up.cancelled() => Err("the crawler is stopping".to_owned()),
            published = publish => published,
        }
    }

    /// Logs once that the group is full: this may change back and forth many times.
    pub(super) fn log_group_full(&self) {
        if !self.was_full.swap(true, Ordering::Relaxed) {
            tracing::warn!("the group is full; pages with new links will be fetched again later");
        }
    }

    async fn reply_on_any_connection(
        &self,
        children: &[Command<'_>],
        command: &Command<'_>,
    ) -> ReplyResult {
        let mut tried = 0;
        loop {
            let (number, client) = self.connection_after(tried).await;
            let answer = match client.start_request(children, command).await {
                Ok(answer) => answer.await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(answer) => return ReplyResult::Applied(answer.ok),
                Err(ClientError::Refused(refusal)) if is_retryable(&refusal, command) => {
                    sleep(REFUSED_RETRY_AFTER).await;
                }
                Err(ClientError::Refused(refusal)) => {
                    log_refusal(&refusal, command);
                    return match (refusal.code, command) {
                        (Code::Stale, _) => ReplyResult::Stale,
                        (Code::Limit, Command::Reply(reply)) if is_ack(reply) => {
                            ReplyResult::GroupFull
                        }
                        _ => ReplyResult::Refused,
                    };
                }
                Err(_gone) => tried = number,
            }
        }
    }

    /// Waits for a connection with a number above `tried`.
    async fn connection_after(&self, tried: u64) -> (u64, Client) {
        let mut current = self.current.subscribe();
        let usable = |(number, client): &(u64, Option<Client>)| *number > tried && client.is_some();
        let current = current.wait_for(usable).await.expect("the sender is in self");
        (current.0, current.1.clone().expect("waited for one"))
    }
}

/// Whether the same reply can succeed later. With `again=`, `limit` means that the task has used up
/// its requests, which waiting does not change. For `ACK` it means that the group has no room,
/// which changes when other entries end, and perhaps not before the lease expires.
fn is_retryable(refusal: &ProtocolError, command: &Command<'_>) -> bool {
    let Command::Reply(TaskReply { action, .. }) = command else {
        return refusal.code.is_transient();
    };
    let is_own = matches!(
        action,
        TaskAction::Ack(_) | TaskAction::Nack { retry: RetryMode::OtherUrl { .. }, .. }
    );
    refusal.code.is_transient() && !(is_own && refusal.code == Code::Limit)
}

fn is_ack(reply: &TaskReply) -> bool {
    matches!(reply.action, TaskAction::Ack(_))
}

/// Logs a refused reply. A stale reply is normal after a stall or a lost connection, and so is a
/// full group; any other refusal is a bug in the crawler.
fn log_refusal(refusal: &ProtocolError, command: &Command<'_>) {
    match (refusal.code, command) {
        (Code::Stale, _) => tracing::debug!("{:?}: {}", command.verb(), refusal.text),
        (Code::Limit, Command::Reply(reply)) if is_ack(reply) => {
            tracing::debug!("ACK: {}", refusal.text);
        }
        _ => tracing::error!("the broker refused {:?}: {refusal}", command.verb()),
    }
}
