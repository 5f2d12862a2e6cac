//! The client of an HTTP connection: its session, and the commands that it runs. For topics and
//! groups it is a connection like any other.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tidings_protocol::status::Answer;
use tidings_protocol::{Code, Command, ProtocolError, Slot};
use tokio_util::sync::CancellationToken;

use super::super::{Shared, topic_commands};
use super::error::{ErrorResponse, HttpResult};
use super::with_timeout;
use crate::access::{Action, Identity, Transport};
use crate::audit::AuditEvent;
use crate::groups::{Caller, GroupRequest};
use crate::mailbox::{ConnId, ConnMessage, Mailbox};
#[cfg(test)]
use crate::net::client_session::AdmittedConnection;
use crate::net::client_session::ClientSession;
#[cfg(test)]
use crate::remote::RemoteInfo;

/// The client of an HTTP connection. Its requests are handled one at a time.
#[derive(Debug)]
pub(super) struct ConnectedClient {
    shared: Arc<Shared>,
    /// Number of the connection, which is the origin of the events that it publishes.
    pub(super) conn: ConnId,
    mailbox: Mailbox,
    /// Time limit for the reply to a command.
    command_timeout: Duration,
    next_slot: AtomicU64,
    session: Mutex<ClientSession>,
    /// The sender of an earlier request was verified without a token, for example by a signature.
    is_verified: AtomicBool,
}

impl ConnectedClient {
    pub(super) fn new(
        shared: Arc<Shared>,
        (session, mailbox): (ClientSession, Mailbox),
        command_timeout: Duration,
    ) -> Self {
        Self {
            shared,
            conn: session.conn(),
            mailbox,
            command_timeout,
            next_slot: AtomicU64::new(0),
            session: Mutex::new(session),
            is_verified: AtomicBool::new(false),
        }
    }

    /// The broker itself as a client.
    pub(super) fn internal(shared: Arc<Shared>, command_timeout: Duration) -> Self {
        let session = ClientSession::internal(Arc::clone(&shared), Transport::Http);
        Self::new(shared, session, command_timeout)
    }

    /// The session with the present permissions of the client, which may have changed since the
    /// request began.
    pub(super) fn session(&self) -> MutexGuard<'_, ClientSession> {
        let mut session = self.session.lock();
        session.renew();
        session
    }

    /// The address of the remote end.
    pub(super) fn peer_ip(&self) -> IpAddr {
        self.session.lock().remote().peer.ip()
    }

    /// Notes that the sender of a request was verified. Later requests on the connection are
    /// probably from the same sender, or from others behind the same proxy.
    pub(super) fn mark_verified(&self) {
        self.is_verified.store(true, Ordering::Relaxed);
    }

    /// Whether the client has no permissions, and none of its requests was verified.
    pub(super) fn is_untrusted(&self) -> bool {
        !self.is_verified.load(Ordering::Relaxed)
            && self.session.lock().identity().has_no_permissions()
    }

    /// Checks the client's rate limit.
    pub(super) fn check_rate(&self) -> HttpResult<()> {
        let checked = self.session.lock().check_rate();
        checked.map_err(|(error, seconds)| ErrorResponse::from(error).with_retry_after(seconds))
    }

    /// Counts received events and bytes against the quota, even if the request fails later.
    pub(super) fn count_published(&self, events: usize, bytes: usize) {
        let mut session = self.session.lock();
        session.count_events(events);
        session.charge(bytes, self.shared.clock.now());
    }

    /// Counts and records published events; `hook` is the name of the webhook that has them.
    pub(super) fn record_published(&self, topic: &str, events: usize, hook: Option<&str>) {
        self.session.lock().record_published(topic, events, hook);
    }

    /// Begins a stream that must pass `check` until it ends or `stop` is cancelled. It counts as a
    /// subscription.
    pub(super) fn begin_stream(
        self: &Arc<Self>,
        topic: Option<&str>,
        check: impl Fn(&Identity) -> Result<(), ProtocolError> + Send + Sync + 'static,
        stop: CancellationToken,
    ) -> Result<StreamEnd, ProtocolError> {
        {
            let mut session = self.session();
            session.check(topic, &check)?;
            session.begin_subscription()?;
        }
        let subscription = SubscriptionGuard(Arc::clone(self));
        Ok(Box::pin(async move {
            let denied = subscription.0.wait_until_denied(check);
            stop.run_until_cancelled(denied).await;
        }))
    }

    /// Records an event of this client in the audit log.
    pub(super) fn audit(&self, event: AuditEvent<'_>) {
        self.session.lock().audit(event);
    }

    pub(super) fn check_action(&self, action: Action<'_>) -> Result<(), ProtocolError> {
        self.session().authorize_action(action)
    }

    /// Runs a command of the line protocol and returns its reply. Fails with [`Code::Idle`] after
    /// the time limit: while the disk accepts no writes, the reply to a change is held back.
    pub(super) async fn run(&self, command: &Command<'_>) -> Result<Answer, ProtocolError> {
        let slot = self.start_command(command)?;
        self.with_command_timeout(self.wait_for_reply(slot, &mut Vec::new())).await
    }

    /// Runs a command that may take any time, such as waiting for a job. A caller that drops the
    /// future early must call [`stop_waiting`](Self::stop_waiting).
    pub(super) async fn run_without_timeout(
        &self,
        command: &Command<'_>,
    ) -> Result<Answer, ProtocolError> {
        let slot = self.start_command(command)?;
        self.wait_for_reply(slot, &mut Vec::new()).await
    }

    /// The reply, or an error after the time limit. A later reply is dropped.
    async fn with_command_timeout(
        &self,
        reply: impl Future<Output = Result<Answer, ProtocolError>>,
    ) -> Result<Answer, ProtocolError> {
        with_timeout(self.command_timeout, reply).await.unwrap_or_else(|| {
            let text = "no reply yet: the disk is slow or accepts no writes at the moment, or \
                        requests to a key with a new rule are in flight. The change may still be \
                        stored; repeating the request is safe and applies it only once";
            Err(ProtocolError::new(Code::Idle, text))
        })
    }

    /// Starts all commands and then waits for their replies. The results are in the order of the
    /// commands and end with the first that has timed out.
    pub(super) async fn run_all(
        &self,
        commands: &[Command<'_>],
    ) -> Vec<Result<Answer, ProtocolError>> {
        let slots: Vec<_> = commands.iter().map(|command| self.start_command(command)).collect();
        let mut replies = Vec::with_capacity(slots.len());
        let mut early = Vec::new();
        for slot in slots {
            let reply = match slot {
                Ok(slot) => self.with_command_timeout(self.wait_for_reply(slot, &mut early)).await,
                Err(error) => Err(error),
            };
            let has_timed_out = reply.as_ref().is_err_and(|error| error.code == Code::Idle);
            replies.push(reply);
            if has_timed_out {
                break;
            }
        }
        replies
    }

    /// Waits until the client may no longer do `action`.
    pub(super) async fn revoked(&self, action: Action<'_>) {
        self.wait_until_denied(|identity| identity.check_action(action)).await;
    }

    /// Waits until `check` fails with the permissions of the client.
    pub(super) async fn wait_until_denied(
        &self,
        check: impl Fn(&Identity) -> Result<(), ProtocolError>,
    ) {
        let mut changes = self.shared.access.changes();
        let (identity, initiator) = {
            let session = self.session();
            (session.identity().clone(), session.initiator())
        };
        let renew = || self.shared.access.renew(&identity);
        let is_allowed = || renew().is_some_and(|identity| check(&identity).is_ok());
        while is_allowed() {
            if changes.changed().await.is_err() {
                return;
            }
        }
        let why = "the permissions of a running request were changed or revoked";
        self.shared.audit.record(|| (AuditEvent::Revoked { why }, initiator));
    }

    /// Receives a body for a request that must pass `check`. Fails at once if the client may not
    /// send it, and as soon as the permission is revoked, because a body can take long.
    pub(super) async fn receive_while_allowed<T>(
        &self,
        check: impl Fn(&Identity) -> Result<(), ProtocolError>,
        body: impl Future<Output = T>,
    ) -> Result<T, ProtocolError> {
        self.session().check(None, &check)?;
        tokio::select! {
            biased;
            // A body that is complete already is accepted.
            received = body => return Ok(received),
            () = self.wait_until_denied(&check) => {}
        }
        check(self.session().identity())?;
        // The permission was revoked and granted again.
        Err(permissions_changed())
    }

    pub(super) fn check_commands(&self, commands: &[Command<'_>]) -> Result<(), ProtocolError> {
        self.session().check(None, |identity| {
            commands.iter().try_for_each(|command| identity.check_command(command))
        })
    }

    fn start_command(&self, command: &Command<'_>) -> Result<Slot, ProtocolError> {
        let is_monitor = {
            let session = self.session();
            session.authorize(command)?;
            session.may_monitor()
        };
        let slot = Slot::numbered(self.next_slot.fetch_add(1, Ordering::Relaxed));
        if let Command::Topic(manage) = command {
            let reply = topic_commands::PendingReply { mailbox: self.mailbox.clone(), slot };
            topic_commands::handle_topic_command(&self.shared, manage, reply);
            return Ok(slot);
        }
        let request = GroupRequest::of(command).ok_or_else(|| {
            ProtocolError::new(Code::Internal, "HTTP requests run no other commands")
        })?;
        let member = self.shared.new_member_id(self.conn);
        let caller = Caller { member, conn: self.conn, mailbox: self.mailbox.clone(), is_monitor };
        self.shared.groups.manage(&caller, slot, request)?;
        Ok(slot)
    }

    /// The reply for `slot`. Replies for other slots are put into `early`, which is searched first.
    async fn wait_for_reply(
        &self,
        slot: Slot,
        early: &mut Vec<(Slot, Result<Answer, ProtocolError>)>,
    ) -> Result<Answer, ProtocolError> {
        poll_fn(|cx| {
            let taken = self.mailbox.drain(cx.waker());
            for message in taken.messages {
                match message {
                    ConnMessage::Answer { slot, answer } => early.push((slot, answer)),
                    ConnMessage::Group(batch) => early.extend(batch.answers),
                    // An HTTP client watches no jobs, stores no cursors, and has nothing that
                    // another connection may claim.
                    ConnMessage::Progress { .. }
                    | ConnMessage::Stored { .. }
                    | ConnMessage::End(_) => {}
                }
            }
            if let Some(at) = early.iter().position(|(other, _)| *other == slot) {
                return Poll::Ready(early.swap_remove(at).1);
            }
            if taken.close_requested {
                return Poll::Ready(Err(ProtocolError::new(Code::Closing, "the broker stops")));
            }
            Poll::Pending
        })
        .await
    }

    /// Tells the groups that nothing waits for a reply any more.
    pub(super) fn stop_waiting(&self) {
        self.shared.groups.connection_ended(self.conn);
    }
}

#[cfg(test)]
impl ConnectedClient {
    /// The client of a new connection.
    pub(super) fn connected(shared: &Arc<Shared>, remote: RemoteInfo) -> Self {
        let admitted = AdmittedConnection::admit(shared, remote.peer, Transport::Http).unwrap();
        let session = ClientSession::begin(Arc::clone(shared), admitted, Transport::Http, remote);
        Self::new(Arc::clone(shared), session, crate::TEST_LIMIT)
    }
}

/// The error of a request that is running when the permissions of its client change.
pub(super) fn permissions_changed() -> ProtocolError {
    let text = "your permissions changed during the request; send it again";
    ProtocolError::new(Code::Unauthenticated, text)
}

/// Ready when a stream must end: the broker stops, or its client may not receive it any more. The
/// stream is counted until this is dropped.
pub(super) type StreamEnd = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Counts one subscription against the client's quota until it is dropped.
struct SubscriptionGuard(Arc<ConnectedClient>);

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        self.0.session.lock().end_subscription();
    }
}

impl Drop for ConnectedClient {
    fn drop(&mut self) {
        let session = self.session.get_mut();
        tracing::debug!(conn = %self.conn, peer = %session.remote(), "closed");
        session.audit(AuditEvent::Disconnected { why: "left" });
        self.stop_waiting();
        self.mailbox.discard();
        self.shared.registry.unregister(self.conn);
    }
}
