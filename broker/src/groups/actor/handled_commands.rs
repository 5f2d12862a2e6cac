//! Commands that have no answer yet: those that are being handled, and those that wait for texts.

use std::collections::VecDeque;

use hashbrown::HashMap;
use tidings_protocol::{ProtocolError, Slot};
use tidings_queue::Requester;

use crate::groups::message::reject;
use crate::mailbox::{ConnId, Mailbox};

/// Commands without an answer, and the mailboxes for their answers.
#[derive(Default)]
pub(super) struct HandledCommands {
    /// The commands that are being handled, in order.
    handled: VecDeque<Requester>,
    mailbox: Option<Mailbox>,
    /// Earlier commands, which wait for texts.
    waiting: HashMap<(ConnId, Slot), (Requester, Mailbox)>,
}

impl HandledCommands {
    /// These commands are being handled from now on. Without a mailbox, their answers go to a
    /// connection that waits.
    pub(super) fn begin(
        &mut self,
        commands: impl IntoIterator<Item = Requester>,
        mailbox: Option<&Mailbox>,
    ) {
        self.handled.extend(commands);
        self.mailbox = mailbox.cloned();
    }

    /// A command is answered. Returns the mailbox for the answer.
    pub(super) fn answered(&mut self, command: &Requester) -> Option<Mailbox> {
        // Nearly always they are answered in order.
        let index = self.handled.iter().position(|handled| handled == command);
        if let Some(index) = index {
            self.handled.remove(index);
            return self.mailbox.clone();
        }
        let waiting = self.waiting.remove(&(command.conn, command.slot));
        waiting.map(|(_, mailbox)| mailbox)
    }

    /// The commands were handled. Those without an answer wait for it.
    pub(super) fn end(&mut self) {
        let mailbox = self.mailbox.take();
        for command in self.handled.drain(..) {
            if let Some(mailbox) = &mailbox {
                let waiting = (command, mailbox.clone());
                self.waiting.insert((command.conn, command.slot), waiting);
            }
        }
    }

    /// Removes a connection that has ended.
    pub(super) fn remove(&mut self, conn: ConnId) {
        self.waiting.retain(|(waiting, _), _| *waiting != conn);
    }

    /// Rejects all commands without an answer.
    pub(super) fn reject_all(&mut self, error: &ProtocolError) {
        self.end();
        for (_, (command, mailbox)) in self.waiting.drain() {
            reject([command].into_iter(), &mailbox, error);
        }
    }
}
