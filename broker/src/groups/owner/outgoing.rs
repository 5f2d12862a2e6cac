//! Queue of outputs that wait for their records: lines for connections and events for topics.
//!
//! An output is sent once the records it depends on are durable. Lines for the member in the
//! broker's own process are sent once the records are written. That is enough: after a crash of the
//! process the records are still there, and a crash of the machine ends the worker, too.

use std::collections::{BTreeSet, VecDeque};

use indexmap::IndexMap;
use tidings_protocol::ProtocolError;

use crate::groups::log::Mark;
use crate::mailbox::{ConnId, Lines, Mailbox, Parcel};

/// Waiting outputs, in order for each connection and each topic.
#[derive(Default)]
pub(super) struct Outgoing {
    /// Lines that depend on records since the last mark, or earlier ones: one message per
    /// connection.
    open: IndexMap<ConnId, (Mailbox, Lines)>,
    /// Outputs that may be sent once the records before their mark are durable. Marks rise.
    marked: VecDeque<(Mark, Leaving)>,
    /// Outputs that may be sent once the records before their mark are written.
    own: VecDeque<(Mark, Leaving)>,
}

/// One output.
pub(super) enum Leaving {
    /// For a connection.
    Parcel(Mailbox, Parcel),
    /// For a topic: serial, topic, payload.
    Event(u64, &'static str, String),
}

impl Outgoing {
    /// The line buffer of a connection.
    pub(super) fn lines(&mut self, conn: ConnId, mailbox: &Mailbox) -> &mut Lines {
        let new = || (mailbox.clone(), Lines::default());
        &mut self.open.entry(conn).or_insert_with(new).1
    }

    /// Adds an output that depends on the records before `mark`. `mark` must not be below an
    /// earlier one.
    pub(super) fn push(&mut self, mark: Mark, leaving: Leaving) {
        self.marked.push_back((mark, leaving));
    }

    /// Sets the mark for the lines of all connections. `own` names the connections in the broker's
    /// process.
    pub(super) fn mark(&mut self, mark: Mark, own: &BTreeSet<ConnId>) {
        for (conn, (mailbox, lines)) in self.open.drain(..) {
            let leaving = Leaving::Parcel(mailbox, Parcel::Lines(lines));
            let queue = if own.contains(&conn) { &mut self.own } else { &mut self.marked };
            queue.push_back((mark, leaving));
        }
    }

    /// All outputs can be sent once everything before this mark is durable.
    pub(super) fn awaited(&self) -> Mark {
        self.marked.back().map_or(0, |(mark, _)| *mark)
    }

    /// Removes the next output that may be sent when everything before these marks is durable, or
    /// written.
    pub(super) fn pop(&mut self, safe: Mark, written: Mark) -> Option<Leaving> {
        let own = self.own.pop_front_if(|(mark, _)| *mark <= written);
        let next = own.or_else(|| self.marked.pop_front_if(|(mark, _)| *mark <= safe))?;
        Some(next.1)
    }

    /// Drops all outputs, and answers their commands with an error.
    pub(super) fn fail(&mut self, error: &ProtocolError) {
        self.mark(Mark::MAX, &BTreeSet::new());
        for (_, leaving) in self.own.drain(..).chain(self.marked.drain(..)) {
            if let Leaving::Parcel(mailbox, Parcel::Lines(lines)) = leaving {
                let mut refusals = Lines::default();
                for slot in lines.slots() {
                    refusals.answer(slot, |out| error.encode(out));
                }
                mailbox.send(Parcel::Lines(refusals));
            }
        }
    }
}
