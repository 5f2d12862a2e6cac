//! The client of an HTTP connection: its identity, its quota usage, and commands that it runs. For
//! topics and groups it is a connection like any other.

use std::future::poll_fn;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tidings_protocol::status::Answer;
use tidings_protocol::{Code, Command, ProtocolError, Slot, TopicName};

use super::super::{Shared, login, topic_commands};
use super::error::{ErrorResponse, HttpResult};
use super::with_timeout;
use crate::access::{Action, Identity, Transport};
use crate::audit::{AuditEvent, Initiator};
use crate::groups::{Caller, GroupRequest};
use crate::mailbox::{ConnId, ConnMessage, Mailbox};
use crate::net::listener::AdmittedConnection;
use crate::quota::{Quantity, Usage};
use crate::remote::{PeerAddr, RemoteInfo};

/// The client of an HTTP connection. Its requests are handled one at a time.
#[derive(Debug)]
pub(super) struct ConnectedClient {
    shared: Arc<Shared>,
    /// Number of the connection, which is the origin of the events that it publishes.
    pub(super) conn: ConnId,
    mailbox: Mailbox,
    pub(super) remote: RemoteInfo,
    /// Time limit for the reply to a command.
    command_timeout: Duration,
    next_slot: AtomicU64,
    /// Identity of the client in the current request.
    identity: Mutex<Identity>,
    /// The sender of an earlier request was verified without a token, for example by a signature.
    is_verified: AtomicBool,
    /// What the connection uses of its client's quota.
    usage: Mutex<Usage>,
}

impl ConnectedClient {
    pub(super) fn new(
        shared: Arc<Shared>,
        AdmittedConnection { conn, mailbox, usage }: AdmittedConnection,
        remote: RemoteInfo,
        command_timeout: Duration,
    ) -> Self {
        Self {
            identity: Mutex::new(login::identity_of(&shared.access, Transport::Http, &remote)),
            shared,
            conn,
            mailbox,
            remote,
            command_timeout,
            next_slot: AtomicU64::new(0),
            is_verified: AtomicBool::new(false),
            usage: Mutex::new(usage),
        }
    }

    /// The broker itself as a client. It has no connection, so it is neither counted nor limited.
    pub(super) fn internal(shared: Arc<Shared>, command_timeout: Duration) -> Self {
        let (conn, mailbox) = shared.registry.internal();
        let admitted = AdmittedConnection { conn, mailbox, usage: None };
        let remote = RemoteInfo::unencrypted(PeerAddr::Tcp((Ipv4Addr::LOCALHOST, 0).into()));
        let identity = shared.access.internal(Transport::Http);
        let client = Self::new(shared, admitted, remote, command_timeout);
        *client.identity.lock() = identity;
        client
    }

    /// Sets the identity of the client for the request that begins. Fails with [`Code::Limit`] if
    /// its principal has reached a quota.
    pub(super) fn set_identity(&self, identity: Identity) -> Result<(), ProtocolError> {
        self.shared.assign_usage(&mut self.usage.lock(), &identity)?;
        let is_anonymous = identity.is_anonymous();
        let has_changed = self.identity.lock().name() != identity.name();
        *self.identity.lock() = identity;
        if has_changed {
            self.shared.audit.identity_changed(self.conn.0);
            if !is_anonymous {
                self.audit(AuditEvent::LoggedIn);
            }
        }
        Ok(())
    }

    /// Notes that the sender of a request was verified. Later requests on the connection are
    /// probably from the same sender, or from others behind the same proxy.
    pub(super) fn mark_verified(&self) {
        self.is_verified.store(true, Ordering::Relaxed);
    }

    /// Whether the client has no permissions, and none of its requests was verified.
    pub(super) fn is_untrusted(&self) -> bool {
        !self.is_verified.load(Ordering::Relaxed) && self.identity.lock().has_no_permissions()
    }

    /// Checks the client's rate limit, and its quota of topics if publishing creates the topic.
    pub(super) fn check_publish_quota(&self, topic: &TopicName) -> HttpResult<()> {
        self.check_rate()?;
        Ok(self.shared.check_topic_creation(self.usage.lock().as_deref(), topic)?)
    }

    /// Checks the client's rate limit.
    pub(super) fn check_rate(&self) -> HttpResult<()> {
        let usage = self.usage.lock();
        let wait_ms = usage.as_deref().map_or(0, |usage| usage.wait_ms(self.shared.clock.now()));
        if wait_ms == 0 {
            return Ok(());
        }
        let seconds = u32::try_from(wait_ms.div_ceil(1_000)).unwrap_or(u32::MAX);
        let text = format!("rate limit exceeded; try again in {seconds} s");
        Err(ErrorResponse::from(ProtocolError::new(Code::Limit, text)).with_retry_after(seconds))
    }

    /// Counts received events and bytes against the quota, even if the request fails later.
    pub(super) fn count_published(&self, events: usize, bytes: usize) {
        if let Some(usage) = self.usage.lock().as_deref_mut() {
            usage.count_published(events as u64);
            usage.charge(bytes as u64, self.shared.clock.now());
        }
    }

    /// Counts a subscription against the quota until the guard is dropped.
    pub(super) fn begin_subscription(self: &Arc<Self>) -> Result<SubscriptionGuard, ProtocolError> {
        if let Some(usage) = self.usage.lock().as_deref_mut() {
            usage.add(Quantity::Subscriptions)?;
        }
        Ok(SubscriptionGuard(Arc::clone(self)))
    }

    /// Records an event of this client in the audit log, unless the broker itself is the client.
    pub(super) fn audit(&self, event: AuditEvent<'_>) {
        if !self.identity.lock().is_internal() {
            self.shared.audit.record(|| (event, self.initiator()));
        }
    }

    pub(super) fn initiator(&self) -> Initiator {
        Initiator::identified(self.conn.0, &self.remote, &self.identity.lock())
    }

    /// Records an error of a permission check in the audit log, and returns the result.
    fn audit_denial<T>(
        &self,
        topic: Option<&str>,
        result: Result<T, ProtocolError>,
    ) -> Result<T, ProtocolError> {
        if let Err(error) = &result {
            self.audit(AuditEvent::Denied { topic, why: &error.text });
        }
        result
    }

    pub(super) fn check_publish(
        &self,
        identity: &Identity,
        topic: &str,
        payload: &str,
    ) -> Result<(), ProtocolError> {
        self.audit_denial(Some(topic), self.shared.access.check_publish(identity, topic, payload))
    }

    /// The client's identity with its present permissions, which may have changed since the request
    /// began.
    pub(super) fn current_identity(&self) -> Identity {
        let identity = self.identity.lock().clone();
        let renewed = self.shared.access.renew(&identity);
        renewed.unwrap_or_else(|| self.shared.access.anonymous(identity.transport()))
    }

    pub(super) fn check_action(&self, action: Action<'_>) -> Result<(), ProtocolError> {
        let topic = match action {
            Action::Publish(topic) | Action::Subscribe(topic) | Action::ViewTopic(topic) => {
                Some(topic)
            }
            _ => None,
        };
        self.audit_denial(topic, self.current_identity().check_action(action))
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
        let identity = self.current_identity();
        let renew = || self.shared.access.renew(&identity);
        let is_allowed = || renew().is_some_and(|identity| check(&identity).is_ok());
        while is_allowed() {
            if changes.changed().await.is_err() {
                return;
            }
        }
        self.audit(AuditEvent::Revoked {
            why: "the permissions of a running request were changed or revoked",
        });
    }

    /// Receives a body for a request that must pass `check`. Fails at once if the client may not
    /// send it, and as soon as the permission is revoked, because a body can take long.
    pub(super) async fn receive_while_allowed<T>(
        &self,
        check: impl Fn(&Identity) -> Result<(), ProtocolError>,
        body: impl Future<Output = T>,
    ) -> Result<T, ProtocolError> {
        self.audit_denial(None, check(&self.current_identity()))?;
        tokio::select! {
            biased;
            // A body that is complete already is accepted.
            received = body => return Ok(received),
            () = self.wait_until_denied(&check) => {}
        }
        check(&self.current_identity())?;
        // The permission was revoked and granted again.
        Err(permissions_changed())
    }

    pub(super) fn check_commands(&self, commands: &[Command<'_>]) -> Result<(), ProtocolError> {
        let identity = self.current_identity();
        let result = commands.iter().try_for_each(|command| identity.check_command(command));
        self.audit_denial(None, result)
    }

    fn start_command(&self, command: &Command<'_>) -> Result<Slot, ProtocolError> {
        self.audit_denial(None, self.current_identity().check_command(command))?;
        let result = self.shared.check_creation(self.usage.lock().as_deref(), command);
        result.inspect_err(|error| self.audit(AuditEvent::LimitReached { why: &error.text }))?;
        if !self.identity.lock().is_internal() {
            self.shared.audit.record_command(command, self.conn.0, || self.initiator());
        }
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
        let is_monitor = self.current_identity().check_action(Action::Monitor).is_ok();
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

/// The error of a request that is running when the permissions of its client change.
pub(super) fn permissions_changed() -> ProtocolError {
    let text = "your permissions changed during the request; send it again";
    ProtocolError::new(Code::Unauthenticated, text)
}

/// Counts one subscription against the client's quota until it is dropped.
#[derive(Debug)]
pub(super) struct SubscriptionGuard(Arc<ConnectedClient>);

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        if let Some(usage) = self.0.usage.lock().as_deref_mut() {
            usage.remove(Quantity::Subscriptions);
        }
    }
}

impl Drop for ConnectedClient {
    fn drop(&mut self) {
        tracing::debug!(conn = %self.conn, peer = %self.remote, "closed");
        self.audit(AuditEvent::Disconnected { why: "left" });
        self.stop_waiting();
        self.mailbox.discard();
        self.shared.registry.unregister(self.conn);
    }
}
