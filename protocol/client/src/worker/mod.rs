//! A member of a group: takes tasks, and holds them over the loss of connections.

mod clock;
mod link;
mod run;
mod task;
#[cfg(test)]
mod tests;

use std::future;
use std::pin::Pin;
use std::time::Duration;

use tidings_protocol::status::{BrowserFields, MemberStatus};
use tidings_protocol::{Code, Command, GroupName, MemberId, ProtocolError, partial_debug};

pub use self::link::{ReplyOutcome, WorkerLink};
pub use self::run::{TaskHandler, WorkerError};
pub use self::task::{TaskEnd, TaskLease, WorkerTask};
use crate::connection::{CommandAnswer, Delivery, PendingAnswer, output_of};
use crate::connector::{Connection, Connector};
use crate::error::ClientError;

/// The tasks that a worker holds at once. A server that sends more is not a broker. Twice the
/// largest credit, because after a reconnection tasks arrive again, and new ones arrive before the
/// end of the answered ones.
pub const TASKS_MAX: usize = 20_000;

/// What a worker reports.
#[derive(Debug)]
pub enum WorkerEvent {
    /// The worker has joined its group, on a new connection. The broker sends again the tasks that
    /// the member holds.
    Joined {
        /// The `since` of the group `[T15]`, if the broker sends it.
        since: Option<u64>,
    },
    /// A task. After a loss of the connection it may be one that the worker has received before,
    /// with the same id.
    Task(WorkerTask),
    /// A refusal that answers nothing, or that of a change of the credit.
    Notice(ProtocolError),
    /// The connection is lost, or an attempt to connect and join has failed. The worker makes
    /// another one after a pause.
    Lost(ClientError),
    /// After [`Worker::drain`]: no further task arrives.
    Drained,
}

/// A member of a group.
///
/// [`run`](Self::run) handles its tasks and keeps their leases. A program with rules of its own
/// calls [`next`](Self::next) in a loop, and answers through [`link`](Self::link).
///
/// After any loss of the connection the worker connects and joins again as the same member, so it
/// keeps the tasks that it holds. It sends unanswered replies again.
#[derive(Debug)]
pub struct Worker {
    connector: Connector,
    group: GroupName,
    credit: WorkerCredit,
    is_draining: bool,
    link: WorkerLink,
    connection: Option<JoinedConnection>,
    has_joined: bool,
    /// The longest lease seen so far: a task with a shorter one was leased before.
    lease_max: Duration,
}

/// What a member may hold at once.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WorkerCredit {
    tasks: u32,
    /// How many of the tasks may need a browser; `None` for a member without one.
    render: Option<u32>,
    /// What the member reports about its browsers.
    browsers: BrowserFields,
}

/// A connection, and how far it is in joining the group.
struct JoinedConnection {
    connection: Connection,
    /// The credit of the last `JOIN`, and its answer if that is still to come.
    credit: Option<WorkerCredit>,
    join: Option<PendingAnswer>,
    /// Compares clocks, once the group is joined.
    watch: Option<Pin<Box<dyn Future<Output = ClientError> + Send>>>,
    /// The answer to the `PING` behind which no task can arrive `[T11]`.
    drain: Drain,
}

enum Drain {
    Not,
    Pinged(PendingAnswer),
    /// Tasks from before the answer may still wait in the queue of deliveries.
    Answered,
    Done,
}

partial_debug!(JoinedConnection { credit });

/// What happens next on a connection.
enum Step {
    Delivery(Option<Delivery>),
    Joined(Result<CommandAnswer, ClientError>),
    Drained(Result<CommandAnswer, ClientError>),
    AllDelivered,
    Lost(ClientError),
}

impl Worker {
    /// A member of this group that takes up to `credit` tasks at once. It connects with the first
    /// [`next`](Self::next).
    pub fn new(connector: Connector, group: GroupName, credit: u32) -> Self {
        Self {
            connector,
            group,
            credit: WorkerCredit {
                tasks: credit,
                render: None,
                browsers: BrowserFields::default(),
            },
            is_draining: false,
            link: WorkerLink::new(),
            connection: None,
            has_joined: false,
            lease_max: Duration::ZERO,
        }
    }

    /// The same on a connection that its connector has opened already.
    #[must_use]
    pub fn on(mut self, connection: Connection) -> Self {
        self.begin(connection);
        self
    }

    /// The replies of this worker.
    pub fn link(&self) -> WorkerLink {
        self.link.clone()
    }

    /// The group.
    pub fn group(&self) -> &GroupName {
        &self.group
    }

    /// Whether the group is joined on a connection that is not known to be lost.
    pub fn is_joined(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.watch.is_some())
    }

    /// Changes how many tasks the member may hold at once, with the next call of
    /// [`next`](Self::next).
    pub fn set_credit(&mut self, credit: u32) {
        if !self.is_draining {
            self.credit.tasks = credit;
        }
    }

    /// Says that the member has a browser, and how many of its tasks may need one at once; `None`:
    /// it has none. Takes effect with the next call of [`next`](Self::next).
    pub fn set_render(&mut self, render: Option<u32>) {
        self.credit.render = render;
    }

    /// Reports about the browsers of the member, with the next call of [`next`](Self::next).
    pub fn set_browsers(&mut self, browsers: BrowserFields) {
        self.credit.browsers = browsers;
    }

    /// Takes no more tasks. Those that are on their way still arrive, then
    /// [`WorkerEvent::Drained`].
    pub fn drain(&mut self) {
        (self.credit.tasks, self.is_draining) = (0, true);
    }

    /// Closes the connection and opens another one, as after this error. For a broker that breaks
    /// the rules.
    pub fn disconnect(&mut self) {
        self.connection = None;
        self.link.disconnected();
    }

    /// The next event: connects, joins, and waits. An error ends the worker: another attempt would
    /// have the same result, or another connection has resumed the member. Every later call returns
    /// it again.
    ///
    /// Cancel-safe: nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Result<WorkerEvent, ClientError> {
        loop {
            if self.connection.is_none() {
                match self.connector.connect().await {
                    Ok(connection) => self.begin(connection),
                    Err(error) => return self.lost(error),
                }
            }
            let connection = self.connection.as_mut().expect("it was just set");
            if let Err(error) =
                connection.send_due(&self.group, &self.credit, self.is_draining).await
            {
                return self.lost(error);
            }
            let event = match connection.step().await {
                Step::Delivery(Some(delivery)) => self.deliver(delivery),
                Step::Delivery(None) => {
                    let error = connection.connection.deliveries.reason();
                    return self.lost(error);
                }
                Step::Joined(Ok(answer)) => self.joined(&answer),
                Step::Joined(Err(ClientError::Refused(refusal))) if connection.watch.is_some() => {
                    Some(WorkerEvent::Notice(refusal))
                }
                Step::Drained(Ok(_)) => {
                    connection.drain = Drain::Answered;
                    None
                }
                Step::AllDelivered => {
                    connection.drain = Drain::Done;
                    Some(WorkerEvent::Drained)
                }
                Step::Joined(Err(error)) | Step::Drained(Err(error)) | Step::Lost(error) => {
                    return self.lost(error);
                }
            };
            if let Some(event) = event {
                return Ok(event);
            }
        }
    }

    /// Uses a new connection.
    fn begin(&mut self, connection: Connection) {
        let hello = connection.client.hello();
        self.link.restart_clock(connection.started, hello.clock_ms);
        self.connector.resume(hello.resume);
        self.connection = Some(JoinedConnection {
            connection,
            credit: None,
            join: None,
            watch: None,
            drain: Drain::Not,
        });
    }

    /// The member, once the broker has named it.
    pub fn member(&self) -> Option<MemberId> {
        self.connection.as_ref().map(|joined| joined.connection.client.hello().resume)
    }

    /// `JOIN` was answered: replies may be sent on this connection `[T9]`.
    fn joined(&mut self, answer: &CommandAnswer) -> Option<WorkerEvent> {
        let connection = self.connection.as_mut().filter(|joined| joined.watch.is_none())?;
        let client = connection.connection.client.clone();
        self.link.connected(client.clone());
        connection.watch = Some(Box::pin(self.link.clone().watch_clock(client)));
        self.has_joined = true;
        Some(WorkerEvent::Joined { since: MemberStatus::parse(&answer.ok).since })
    }

    fn deliver(&mut self, delivery: Delivery) -> Option<WorkerEvent> {
        match delivery {
            Delivery::Task { id, clock_ms, lease_ms, payload } => {
                let length = Duration::from_millis(lease_ms);
                self.lease_max = self.lease_max.max(length);
                let is_resumed = length < self.lease_max;
                let lease = TaskLease { clock_ms, length, is_resumed };
                Some(WorkerEvent::Task(WorkerTask { id, payload, lease }))
            }
            Delivery::Notice(refusal) => Some(WorkerEvent::Notice(refusal)),
            // A worker subscribes to no topic and watches nothing.
            Delivery::Msg { .. }
            | Delivery::Lag { .. }
            | Delivery::Gap { .. }
            | Delivery::Skip { .. }
            | Delivery::More(_) => None,
        }
    }

    fn lost(&mut self, error: ClientError) -> Result<WorkerEvent, ClientError> {
        self.disconnect();
        // The group's log is damaged: an operator can repair it, as the broker's error text says.
        let is_damaged =
            matches!(&error, ClientError::Refused(refusal) if refusal.code == Code::Conflict);
        let error = if is_damaged { error } else { self.connector.lost(error)? };
        Ok(WorkerEvent::Lost(error))
    }
}

impl JoinedConnection {
    /// Sends the `JOIN` for this credit, or the `PING` of a drain, if it is due. Cancel-safe.
    async fn send_due(
        &mut self,
        group: &GroupName,
        credit: &WorkerCredit,
        is_draining: bool,
    ) -> Result<(), ClientError> {
        if self.join.is_some() {
            return Ok(());
        }
        let client = &self.connection.client;
        if self.credit.as_ref() != Some(credit) {
            let sent = credit.clone();
            let WorkerCredit { tasks, render, browsers } = credit.clone();
            let join =
                Command::Join { group: group.clone(), credit: Some(tasks), render, browsers };
            self.join = Some(client.start_request(&[], &join).await?);
            self.credit = Some(sent);
        } else if is_draining && matches!(self.drain, Drain::Not) {
            self.drain = Drain::Pinged(client.start_request(&[], &Command::Ping).await?);
        }
        Ok(())
    }

    /// Waits for the first of several events. Cancel-safe.
    async fn step(&mut self) -> Step {
        tokio::select! {
            // Deliveries that have arrived come before the end of a drain.
            biased;
            // A task arrives behind the answer to the `JOIN`, which says what the task belongs to.
            delivery = self.connection.deliveries.next(), if self.watch.is_some() => {
                Step::Delivery(delivery)
            }
            answer = output_of(self.join.as_mut()) => {
                self.join = None;
                Step::Joined(answer)
            }
            answer = output_of(match &mut self.drain {
                Drain::Pinged(answer) => Some(answer),
                Drain::Not | Drain::Answered | Drain::Done => None,
            }) => Step::Drained(answer),
            () = future::ready(()), if matches!(self.drain, Drain::Answered) => Step::AllDelivered,
            error = output_of(self.watch.as_mut()) => Step::Lost(error),
        }
    }
}
