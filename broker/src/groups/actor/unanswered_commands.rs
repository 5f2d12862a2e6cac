//! Commands that have no answer yet, with the mailboxes for their answers: those that are being
//! handled, those that wait for texts or for the end of a job, and watches.

use std::collections::VecDeque;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use tidings_protocol::JobName;
use tidings_queue::{Input, Requester};

use crate::mailbox::{ConnId, Mailbox};

/// Commands without an answer, by connection.
#[derive(Default)]
pub(super) struct UnansweredCommands(HashMap<ConnId, CommandsOfConnection>);

struct CommandsOfConnection {
    mailbox: Mailbox,
    /// In the order of their arrival. Never empty.
    commands: VecDeque<UnansweredCommand>,
}

struct UnansweredCommand {
    requester: Requester,
    /// The job that it opens. The name is reserved until the answer.
    opens: Option<JobName>,
}

impl UnansweredCommands {
    /// Adds a command.
    pub(super) fn add(&mut self, requester: Requester, opens: Option<JobName>, mailbox: &Mailbox) {
        let new =
            || CommandsOfConnection { mailbox: mailbox.clone(), commands: VecDeque::default() };
        let of_connection = self.0.entry(requester.conn).or_insert_with(new);
        of_connection.commands.push_back(UnansweredCommand { requester, opens });
    }

    /// Adds the commands among inputs.
    pub(super) fn add_inputs(&mut self, inputs: &[Input], mailbox: &Mailbox) {
        for input in inputs {
            if let Some(requester) = input.requester() {
                let opens = match input {
                    Input::OpenJob { name, .. } => Some(name.clone()),
                    _ => None,
                };
                self.add(requester, opens, mailbox);
            }
        }
    }

    /// A command is answered. Returns the mailbox for the answer.
    pub(super) fn answered(&mut self, requester: &Requester) -> Option<Mailbox> {
        let Entry::Occupied(mut place) = self.0.entry(requester.conn) else { return None };
        let commands = &mut place.get_mut().commands;
        // Nearly always they are answered in order.
        let index = commands.iter().position(|command| command.requester == *requester)?;
        commands.remove(index);
        let is_last = commands.is_empty();
        Some(if is_last { place.remove().mailbox } else { place.get().mailbox.clone() })
    }

    /// Removes a connection that has ended. Reserved names remain.
    pub(super) fn remove(&mut self, conn: ConnId) {
        if let Entry::Occupied(mut place) = self.0.entry(conn) {
            let commands = &mut place.get_mut().commands;
            commands.retain(|command| command.opens.is_some());
            if commands.is_empty() {
                place.remove();
            }
        }
    }

    /// Removes any command, which will not be handled. Returns it with the mailbox for its answer
    /// and the job that it opens.
    pub(super) fn pop(&mut self) -> Option<(Requester, Mailbox, Option<JobName>)> {
        let conn = *self.0.keys().next()?;
        let first = self.0.get(&conn)?.commands.front()?;
        let (requester, opens) = (first.requester, first.opens.clone());
        Some((requester, self.answered(&requester)?, opens))
    }
}
