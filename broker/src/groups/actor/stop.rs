//! Texts outside memory, and the end of a group that cannot read one, or that has panicked. Such a
//! group rejects all commands until the broker restarts. The other groups continue.

use tidings_protocol::ProtocolError;
use tidings_queue::Input;

use super::GroupActor;
use crate::groups::message::{group_stopped, texts_unreadable};
use crate::groups::page_file::PageFile;

/// How a group has stopped.
pub(super) struct GroupStop {
    /// The error for all commands.
    pub(super) error: ProtocolError,
    /// Whether its state may be inconsistent.
    pub(super) by_panic: bool,
}

impl GroupActor {
    /// Passes the replies of the page file to the group.
    pub(super) fn take_text_replies(&mut self) {
        while self.stopped.is_none()
            && !self.is_deleted
            && let Some(reply) = self.pages.as_mut().and_then(PageFile::poll_reply)
        {
            self.handle(Input::Texts(reply), None);
        }
    }

    /// Stops the group if it needs a text that cannot be read. Returns whether it has stopped.
    pub(super) fn stop_at_problem(&mut self) -> bool {
        if let (None, Some(problem)) = (&self.stopped, self.group.problem()) {
            let name = self.group.name();
            tracing::error!(
                group = %name, reason = %problem,
                "the group has stopped, because texts of waiting entries cannot be read back. Its log \
                 has them, and its topics keep the events that it has not consumed. Restart the \
                 broker to continue from the group's log"
            );
            self.stopped =
                Some(GroupStop { error: texts_unreadable(name, problem), by_panic: false });
            // Everything that waits is rejected in the next turn.
            self.wake.notify_one();
        }
        self.stopped.is_some()
    }

    /// Stops the group after a panic. Its state may be inconsistent, and is read only for waiting
    /// connections and job names; its log holds every earlier decision.
    pub(super) fn stop_after_panic(&mut self, reason: &str) {
        let name = self.group.name();
        tracing::error!(
            group = %name, reason,
            "bug: the group has panicked and stopped. Its topics keep the events that it has not consumed. \
             Restart the broker to continue from the group's log"
        );
        self.stopped = Some(GroupStop { error: group_stopped(name), by_panic: true });
    }
}
