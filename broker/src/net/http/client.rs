//! One connection of HTTP, as groups and topics see it: a connection like any other, that asks one
//! thing at a time.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tidings_protocol::{
    Code, Command, ProtocolError, Reply as Line, Slot, TopicName, Verb, error_from_wire,
};

use super::super::{Hub, login, topic_commands};
use super::error::ErrorResponse;
use super::with_timeout;
use crate::access::{Action, Identity, Transport};
use crate::audit::{AuditEvent, Initiator};
use crate::groups::Caller;
use crate::mailbox::{ConnId, ConnMessage, Mailbox};
use crate::net::listener::AdmittedConnection;
use crate::net::stream::RemoteInfo;
use crate::quota::{Quantity, Usage};

/// An answer: its lines, and the text of the last.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CommandReply {
    pub(super) lines: Vec<String>,
    pub(super) ok: String,
}

/// The connection behind a request.
#[derive(Debug)]
pub(super) struct ConnectedClient {
    hub: Arc<Hub>,
    /// Its number, which events that it publishes have as their origin.
    pub(super) conn: ConnId,
    mailbox: Mailbox,
    /// Who is at the other end.
    pub(super) remote: RemoteInfo,
    /// How long an answer is waited for.
    command_timeout: Duration,
    /// How much was asked so far.
    next_slot: AtomicU64,
    /// Of whoever sent the request that is being answered: there is one at a time.
    identity: Mutex<Identity>,
    /// A request was from whom it should be without a token: it was signed, say.
    is_verified: AtomicBool,
    /// What the connection has of what one may have.
    usage: Mutex<Usage>,
}

impl ConnectedClient {
    pub(super) fn new(
        hub: Arc<Hub>,
        AdmittedConnection { conn, mailbox, usage: held }: AdmittedConnection,
        remote: RemoteInfo,
        command_timeout: Duration,
    ) -> Self {
        let identity = Mutex::new(login::identity_of(&hub.access, Transport::Http, &remote));
        let (next_slot, usage) = (AtomicU64::new(0), Mutex::new(held));
        let is_verified = AtomicBool::new(false);
        Self {
            hub,
            conn,
            mailbox,
            remote,
            command_timeout,
            next_slot,
            identity,
            is_verified,
            usage,
        }
    }

    /// The request that comes now is of somebody who has that pass. Refused with [`Code::Limit`] if
    /// they have too much already.
    pub(super) fn set_identity(&self, pass: Identity) -> Result<(), ProtocolError> {
        self.hub.assign_usage(&mut self.usage.lock(), &pass)?;
        let is_other = {
            let current = &mut *self.identity.lock();
            let is_other = current.name() != pass.name();
            *current = pass;
            is_other
        };
        if is_other {
            self.hub.audit.identity_changed(self.conn.0);
            let is_stranger = self.identity.lock().is_anonymous();
            if !is_stranger {
                self.audit(AuditEvent::LoggedIn);
            }
        }
        Ok(())
    }

    /// What came by it was found to be from whom it should be. So is what comes next, most likely:
    /// who signs, or the proxy in front of them.
    pub(super) fn mark_verified(&self) {
        self.is_verified.store(true, Ordering::Relaxed);
    }

    /// Whether it is of somebody who has shown nothing that gives anything.
    pub(super) fn is_untrusted(&self) -> bool {
        !self.is_verified.load(Ordering::Relaxed) && self.identity.lock().has_no_permissions()
    }

    /// Whoever sent the request may publish on that topic, which comes into being if it is new, and
    /// is not too fast.
    pub(super) fn check_publish_quota(&self, topic: &TopicName) -> Result<(), ErrorResponse> {
        self.check_rate()?;
        Ok(self.hub.check_topic_creation(self.usage.lock().as_deref(), topic)?)
    }

    /// Whoever sent the request is not too fast.
    pub(super) fn check_rate(&self) -> Result<(), ErrorResponse> {
        let held = self.usage.lock();
        let wait_ms = held.as_deref().map_or(0, |held| held.wait_ms(self.hub.clock.now()));
        if wait_ms == 0 {
            return Ok(());
        }
        let seconds = u32::try_from(wait_ms.div_ceil(1_000)).unwrap_or(u32::MAX);
        let text = format!("faster than one may go on; try again in {seconds} s");
        Err(ErrorResponse::from(ProtocolError::new(Code::Limit, text)).with_retry_after(seconds))
    }

    /// So many events came, in so many bytes; they count, whatever becomes of them.
    pub(super) fn count_published(&self, events: usize, bytes: usize) {
        if let Some(held) = self.usage.lock().as_deref_mut() {
            held.count_published(events as u64);
            held.charge(bytes as u64, self.hub.clock.now());
        }
    }

    /// The connection hears something more, until what is returned is dropped.
    pub(super) fn begin_subscription(self: &Arc<Self>) -> Result<SubscriptionGuard, ProtocolError> {
        if let Some(held) = self.usage.lock().as_deref_mut() {
            held.add(Quantity::Subscriptions)?;
        }
        Ok(SubscriptionGuard(Arc::clone(self)))
    }

    /// Notes what whoever sent the request does, if that is kept.
    pub(super) fn audit(&self, what: AuditEvent<'_>) {
        if !self.identity.lock().is_internal() {
            self.hub.audit.record(|| (what, self.initiator()));
        }
    }

    pub(super) fn initiator(&self) -> Initiator {
        Initiator::identified(self.conn.0, &self.remote, &self.identity.lock())
    }

    /// What may not be done is noted.
    fn audit_denial<T>(
        &self,
        topic: Option<&str>,
        judged: Result<T, ProtocolError>,
    ) -> Result<T, ProtocolError> {
        if let Err(error) = &judged {
            self.audit(AuditEvent::Denied { topic, why: &error.text });
        }
        judged
    }

    /// Whether an event may be published.
    pub(super) fn check_publish(
        &self,
        pass: &Identity,
        topic: &str,
        payload: &str,
    ) -> Result<(), ProtocolError> {
        self.audit_denial(Some(topic), self.hub.access.check_publish(pass, topic, payload))
    }

    /// The pass of whoever sent the request, as it is now: a body may have taken its time.
    pub(super) fn current_identity(&self) -> Identity {
        let pass = self.identity.lock().clone();
        let renewed = self.hub.access.renew(&pass);
        renewed.unwrap_or_else(|| self.hub.access.anonymous(pass.transport()))
    }

    /// Whether whoever sent the request may do that.
    pub(super) fn check_action(&self, deed: Action<'_>) -> Result<(), ProtocolError> {
        let topic = match deed {
            Action::Publish(topic) | Action::Subscribe(topic) | Action::ViewTopic(topic) => {
                Some(topic)
            }
            _ => None,
        };
        self.audit_denial(topic, self.current_identity().check_action(deed))
    }

    /// Asks what a command of the line protocol asks, and waits for the answer, but not for ever:
    /// what was decided and meets a disk that takes nothing is answered when that takes it.
    /// [`Code::Idle`] says so.
    pub(super) async fn run(&self, command: &Command<'_>) -> Result<CommandReply, ProtocolError> {
        let slot = self.start_command(command)?;
        self.with_command_timeout(self.wait_for_reply(slot, &mut Vec::new())).await
    }

    /// The same for what may take as long as it likes, such as a job. Whoever does not wait for the
    /// end of it must say so ([`stop_waiting`](Self::give_up)).
    pub(super) async fn run_without_timeout(
        &self,
        command: &Command<'_>,
    ) -> Result<CommandReply, ProtocolError> {
        let slot = self.start_command(command)?;
        self.wait_for_reply(slot, &mut Vec::new()).await
    }

    /// An answer, if it comes soon. One that comes later finds nobody, and is dropped.
    async fn with_command_timeout(
        &self,
        answer: impl Future<Output = Result<CommandReply, ProtocolError>>,
    ) -> Result<CommandReply, ProtocolError> {
        with_timeout(self.command_timeout, answer).await.unwrap_or_else(|| {
            let text = "there is no answer yet: the disk takes nothing at the moment, or takes it slowly. It is not \
                        known whether this is kept; to ask again is safe, and does nothing twice";
            Err(ProtocolError::new(Code::Idle, text))
        })
    }

    /// Asks several things at once. The answers are in the order of the questions, and end with the
    /// first that does not come.
    pub(super) async fn run_all(
        &self,
        commands: &[Command<'_>],
    ) -> Vec<Result<CommandReply, ProtocolError>> {
        let slots: Vec<_> = commands.iter().map(|command| self.start_command(command)).collect();
        let mut answers = Vec::with_capacity(slots.len());
        let mut early = Vec::new();
        for slot in slots {
            let answer = match slot {
                Ok(slot) => self.with_command_timeout(self.wait_for_reply(slot, &mut early)).await,
                Err(error) => Err(error),
            };
            let is_late = answer.as_ref().is_err_and(|error| error.code == Code::Idle);
            answers.push(answer);
            if is_late {
                break;
            }
        }
        answers
    }

    /// Waits until whoever sent the request may not do that any more.
    pub(super) async fn revoked(&self, deed: Action<'_>) {
        self.wait_until_denied(|pass| pass.check_action(deed)).await;
    }

    async fn wait_until_denied(&self, may: impl Fn(&Identity) -> Result<(), ProtocolError>) {
        let mut changes = self.hub.access.changes();
        let pass = self.current_identity();
        let is_allowed = || self.hub.access.renew(&pass).is_some_and(|pass| may(&pass).is_ok());
        while is_allowed() {
            if changes.changed().await.is_err() {
                return;
            }
        }
        self.audit(AuditEvent::Revoked {
            why: "what a request rests on was changed or taken away",
        });
    }

    /// What comes of receiving a body for something that whoever sends it may do; refused at once
    /// if it may not, and as soon as it may not any more: a body takes its time.
    pub(super) async fn receive_while_allowed<T>(
        &self,
        may: impl Fn(&Identity) -> Result<(), ProtocolError>,
        body: impl Future<Output = T>,
    ) -> Result<T, ProtocolError> {
        self.audit_denial(None, may(&self.current_identity()))?;
        tokio::select! {
            biased;
            // What is there already is judged as it is.
            received = body => return Ok(received),
            () = self.wait_until_denied(&may) => {}
        }
        may(&self.current_identity())?;
        // It may again, just now.
        Err(ProtocolError::new(Code::Unauthenticated, "what you may do has changed meanwhile"))
    }

    /// Whether whoever sent the request may do all of these.
    pub(super) fn check_commands(&self, commands: &[Command<'_>]) -> Result<(), ProtocolError> {
        let pass = self.current_identity();
        self.audit_denial(None, commands.iter().try_for_each(|command| pass.check_command(command)))
    }

    fn start_command(&self, command: &Command<'_>) -> Result<Slot, ProtocolError> {
        self.audit_denial(None, self.current_identity().check_command(command))?;
        let made = self.hub.check_creation(self.usage.lock().as_deref(), command);
        made.inspect_err(|error| self.audit(AuditEvent::LimitReached { why: &error.text }))?;
        if !self.identity.lock().is_internal() {
            self.hub.audit.record_command(command, self.conn.0, || self.initiator());
        }
        let slot = Slot::numbered(self.next_slot.fetch_add(1, Ordering::Relaxed));
        if let Command::Topic(manage) = command {
            let reply = topic_commands::PendingReply { mailbox: self.mailbox.clone(), slot };
            topic_commands::handle_topic_command(&self.hub, manage, reply);
            return Ok(slot);
        }
        debug_assert!(
            matches!(command.verb(), Verb::Group | Verb::Job | Verb::Explain),
            "nothing else is asked"
        );
        let member = self.hub.new_member_id(self.conn);
        let caller = Caller { member, conn: self.conn, mailbox: self.mailbox.clone() };
        self.hub.groups.manage(&caller, slot, command)?;
        Ok(slot)
    }

    /// The answer of a slot; answers of others are put into `early`, and looked for there first.
    async fn wait_for_reply(
        &self,
        slot: Slot,
        early: &mut Vec<(Slot, Bytes)>,
    ) -> Result<CommandReply, ProtocolError> {
        poll_fn(|cx| {
            let taken = self.mailbox.drain(cx.waker());
            for parcel in taken.messages {
                match parcel {
                    ConnMessage::Answer { slot, line } => early.push((slot, line)),
                    ConnMessage::Lines(lines) => early.extend(lines.into_parts().0),
                    // Nothing is watched, stored or claimed here.
                    ConnMessage::Progress { .. }
                    | ConnMessage::Stored { .. }
                    | ConnMessage::End(_) => {}
                }
            }
            if let Some(at) = early.iter().position(|(of, _)| *of == slot) {
                return Poll::Ready(parse_reply(&early.swap_remove(at).1));
            }
            if taken.close_requested {
                return Poll::Ready(Err(ProtocolError::new(Code::Closing, "the broker stops")));
            }
            Poll::Pending
        })
        .await
    }

    /// What was waited for is not waited for any more.
    pub(super) fn stop_waiting(&self) {
        self.hub.groups.connection_ended(self.conn);
    }
}

/// A stream of events, for as long as somebody hears it.
#[derive(Debug)]
pub(super) struct SubscriptionGuard(Arc<ConnectedClient>);

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        if let Some(held) = self.0.usage.lock().as_deref_mut() {
            held.remove(Quantity::Subscriptions);
        }
    }
}

impl Drop for ConnectedClient {
    fn drop(&mut self) {
        tracing::debug!(conn = %self.conn, peer = %self.remote, "closed");
        self.audit(AuditEvent::Disconnected { why: "left" });
        self.stop_waiting();
        self.mailbox.discard();
        self.hub.registry.unregister(self.conn);
    }
}

/// Reads the lines of an answer.
fn parse_reply(lines: &[u8]) -> Result<CommandReply, ProtocolError> {
    let mut answer = CommandReply::default();
    let text = String::from_utf8_lossy(lines);
    for line in text.split_terminator("\r\n") {
        match Line::parse(line) {
            Ok(Line::More(text)) => answer.lines.push(text.to_owned()),
            Ok(Line::Ok(text)) => text.clone_into(&mut answer.ok),
            Ok(Line::Err { code, text, .. }) => return Err(error_from_wire(code, text)),
            _ => return Err(ProtocolError::new(Code::Internal, "an answer that is none")),
        }
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_its_lines_or_an_error() {
        let answer = parse_reply(b"+ a x=1\r\n+ b\r\n+OK listed=2\r\n").unwrap();
        assert_eq!(answer.lines, ["a x=1", "b"]);
        assert_eq!(answer.ok, "listed=2");
        let error = parse_reply(b"-ERR unknown no job x\r\n").unwrap_err();
        assert_eq!(error, ProtocolError::new(Code::NotFound, "no job x"));
        assert_eq!(parse_reply(b"MSG a 1 x\r\n").unwrap_err().code, Code::Internal);
    }
}
