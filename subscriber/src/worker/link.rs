//! The tie to the broker, across connections: answers that were under way when a connection broke
//! are sent again on the next one, where the broker takes each at most once.

#![expect(
    clippy::disallowed_methods,
    reason = "compares the broker's clock with ours and waits between tries"
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidings_protocol::{Client, ClientError, Code, Command, ProtocolError, Return, TopicName};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::clock::BrokerClock;

/// How long to wait when the broker has no room for an answer.
const REFUSED_RETRY: Duration = Duration::from_secs(1);

/// The tie to the broker.
#[derive(Debug)]
pub(super) struct Link {
    /// The client of the connection that stands, after its `JOIN`; numbered from 1.
    current: watch::Sender<(u64, Option<Client>)>,
    clock: Mutex<BrokerClock>,
    epoch: Instant,
    /// No answer can be sent any more.
    given_up: CancellationToken,
    /// The group had no room at some time, which was said.
    was_full: AtomicBool,
}

/// What became of an answer.
#[derive(Debug)]
pub(super) enum Answered {
    /// It took effect; what the broker said of it.
    Applied(String),
    /// The task is somebody else's now, or the answer had taken effect on an earlier connection.
    Stale,
    /// The broker will never take this, and the task may still be ours.
    Refused,
    /// There is no room for the children of an `ACK`: nothing has changed, and the task is still ours.
    NoRoom,
    /// The crawler ends.
    GivenUp,
}

impl Link {
    pub(super) fn new() -> Self {
        Self {
            current: watch::Sender::new((0, None)),
            clock: Mutex::default(),
            epoch: Instant::now(),
            given_up: CancellationToken::new(),
            was_full: AtomicBool::default(),
        }
    }

    /// A connection has been joined: answers go there from now on.
    pub(super) fn up(&self, client: Client) {
        self.current.send_modify(|(number, current)| {
            *number += 1;
            *current = Some(client);
        });
    }

    /// The connection is gone: answers wait for the next one.
    pub(super) fn down(&self) {
        self.current.send_modify(|(_, current)| *current = None);
    }

    /// Answers that still wait are dropped; the broker will give their tasks to others.
    pub(super) fn give_up(&self) {
        self.given_up.cancel();
    }

    /// The time that the clock's notes are in.
    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A first reading of the clock of a broker that was just connected to.
    pub(super) fn restart_clock(&self, sent_ms: u64, reading_ms: u64) {
        let mut clock = self.clock.lock();
        clock.forget();
        clock.note(sent_ms, reading_ms);
    }

    /// Reads the broker's clock.
    pub(super) async fn read_clock(&self, client: &Client) -> Result<(), ClientError> {
        let sent_ms = self.now_ms();
        let reading_ms = client.ping().await?;
        self.clock.lock().note(sent_ms, reading_ms);
        Ok(())
    }

    /// How old a task with this clock is at most.
    pub(super) fn age_max(&self, task_clock_ms: u64) -> Option<Duration> {
        let age_ms = self.clock.lock().age_max_ms(self.now_ms(), task_clock_ms);
        age_ms.map(Duration::from_millis)
    }

    /// Sends an answer with its children until the broker has said what became of it.
    pub(super) async fn answer(&self, children: &[Command<'_>], command: &Command<'_>) -> Answered {
        tokio::select! {
            biased;
            () = self.given_up.cancelled() => Answered::GivenUp,
            answered = self.answer_somewhere(children, command) => answered,
        }
    }

    /// Publishes an event, on as many connections as it takes; `Ok` once it is confirmed. The error is for people.
    pub(super) async fn publish(&self, topic: &TopicName, payload: &str) -> Result<(), String> {
        let publish = async {
            let mut tried = 0;
            loop {
                let (number, client) = self.after(tried).await;
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
            () = self.given_up.cancelled() => Err("the crawler ends".to_owned()),
            published = publish => published,
        }
    }

    /// The group had no room for what was found. Said once: it may have some again in a moment, and then none.
    pub(super) fn note_no_room(&self) {
        if !self.was_full.swap(true, Ordering::Relaxed) {
            tracing::warn!("the group is full; pages with new links are fetched again later");
        }
    }

    async fn answer_somewhere(&self, children: &[Command<'_>], command: &Command<'_>) -> Answered {
        let mut tried = 0;
        loop {
            let (number, client) = self.after(tried).await;
            let answer = match client.start(children, command).await {
                Ok(answer) => answer.await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(answer) => return Answered::Applied(answer.ok),
                Err(ClientError::Refused(refusal)) if may_be_taken_later(&refusal, command) => {
                    sleep(REFUSED_RETRY).await;
                }
                Err(ClientError::Refused(refusal)) => {
                    note_refusal(&refusal, command);
                    return match (refusal.code, command) {
                        (Code::Stale, _) => Answered::Stale,
                        (Code::Limit, Command::Ack { .. }) => Answered::NoRoom,
                        _ => Answered::Refused,
                    };
                }
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

/// With `again=`, a limit is that of the task's turns, which no waiting changes. That of an `ACK` is what the group has room
/// for, which changes when others end, and perhaps not before the lease does.
fn may_be_taken_later(refusal: &ProtocolError, command: &Command<'_>) -> bool {
    let is_own =
        matches!(command, Command::Ack { .. } | Command::Nack { back: Return::Again { .. }, .. });
    refusal.code.is_transient() && !(is_own && refusal.code == Code::Limit)
}

/// Stale answers are normal after a stall or a lost connection, and so is a group that is full; others mean that we are
/// wrong.
fn note_refusal(refusal: &ProtocolError, command: &Command<'_>) {
    match (refusal.code, command) {
        (Code::Stale, _) | (Code::Limit, Command::Ack { .. }) => {
            tracing::debug!("{:?}: {}", command.verb(), refusal.text);
        }
        _ => tracing::error!("the broker refused {:?}: {refusal}", command.verb()),
    }
}
