//! The end of a group that fails: it has panicked, cannot write its log, or cannot read texts of
//! waiting entries. Such a group rejects all commands until the broker restarts and replays the
//! log. The other groups continue.

use std::any::Any;

use tidings_protocol::ProtocolError;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::GroupActor;
use crate::groups::message::{GroupMessage, group_stopped, reject, texts_unreadable};
use crate::groups::watchers::Watchers;

impl GroupActor {
    /// Checks whether the group needs a text that cannot be read.
    pub(super) fn check_texts(&mut self) {
        if let (None, Some(problem)) = (&self.failure, self.group.problem()) {
            let name = self.group.name();
            tracing::error!(
                group = %name, reason = %problem,
                "the group has stopped, because texts of waiting entries cannot be read back. Its log \
                 has them, and its topics keep the events that it has not consumed. Restart the \
                 broker to continue from the group's log"
            );
            self.failure = Some(texts_unreadable(name, problem));
        }
    }

    /// Stops the group after a panic. Its state may be inconsistent and is not used any more; its
    /// log holds every earlier decision.
    pub(super) fn stop_after_panic(&mut self, panic: &(dyn Any + Send)) {
        let name = self.group.name();
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let reason = text.or_else(|| panic.downcast_ref().copied()).unwrap_or("unknown");
        tracing::error!(
            group = %name, reason,
            "bug: the group has panicked and stopped. Its topics keep the events that it has not consumed. \
             Restart the broker to continue from the group's log"
        );
        self.failure.get_or_insert_with(|| group_stopped(name));
    }

    /// Rejects everything that waits for an answer, and then every message, until the broker stops.
    /// A request is removed before it is rejected, so that a panic cannot repeat itself.
    pub(super) async fn reject_all(
        &mut self,
        error: &ProtocolError,
        messages: &mut mpsc::UnboundedReceiver<GroupMessage>,
        stop: &CancellationToken,
    ) {
        self.outgoing.fail(error);
        self.watchers = Watchers::default();
        self.members.clear();
        self.reject_commands(error);
        while let Some(message) = self.deferred.pop_front() {
            self.reject_message(message, error);
        }
        while let Some(Some(message)) = stop.run_until_cancelled(messages.recv()).await {
            self.reject_message(message, error);
        }
    }

    /// Rejects all commands that have no answer.
    pub(super) fn reject_commands(&mut self, error: &ProtocolError) {
        while let Some((requester, mailbox, opens)) = self.commands.pop() {
            if let Some(name) = opens {
                self.job_names.release(&name, self.group.name());
            }
            reject(requester, &mailbox, error);
        }
    }
}
