//! What leaves once the records that it rests on are safe: lines for connections, events for topics. Lines for the
//! member that lives in the broker's process leave once the records are written, which is enough: if the process
//! ends, they are there at the next start; if the machine does, there is nobody left who was told.

use std::collections::{BTreeSet, VecDeque};

use indexmap::IndexMap;
use tidings_protocol::ProtocolError;

use crate::groups::log::Mark;
use crate::mailbox::{ConnId, Lines, Mailbox, Parcel};

/// What leaves, in its order for each connection and each topic.
#[derive(Default)]
pub(super) struct Outgoing {
    /// Lines that rest on the records since the last mark, or before: one parcel for each connection.
    open: IndexMap<ConnId, (Mailbox, Lines)>,
    /// What rests on records up to a mark, and leaves once those are safe. Marks rise.
    marked: VecDeque<(Mark, Leaving)>,
    /// The same of what leaves once they are written.
    own: VecDeque<(Mark, Leaving)>,
}

/// Something that leaves.
pub(super) enum Leaving {
    /// To a connection.
    Parcel(Mailbox, Parcel),
    /// To a topic: serial, topic, event.
    Event(u64, &'static str, String),
}

impl Outgoing {
    /// Where lines for a connection go.
    pub(super) fn lines(&mut self, conn: ConnId, mailbox: &Mailbox) -> &mut Lines {
        let new = || (mailbox.clone(), Lines::default());
        &mut self.open.entry(conn).or_insert_with(new).1
    }

    /// Adds what rests on records up to a mark, which is not before an earlier one.
    pub(super) fn push(&mut self, mark: Mark, leaving: Leaving) {
        self.marked.push_back((mark, leaving));
    }

    /// The lines of all connections rest on records up to this mark. `own`: those in the broker's process.
    pub(super) fn mark(&mut self, mark: Mark, own: &BTreeSet<ConnId>) {
        for (conn, (mailbox, lines)) in self.open.drain(..) {
            let leaving = Leaving::Parcel(mailbox, Parcel::Lines(lines));
            let queue = if own.contains(&conn) { &mut self.own } else { &mut self.marked };
            queue.push_back((mark, leaving));
        }
    }

    /// Everything before this mark has to be safe before all has left.
    pub(super) fn awaited(&self) -> Mark {
        self.marked.back().map_or(0, |(mark, _)| *mark)
    }

    /// The next that may leave if everything before these marks is safe, and written.
    pub(super) fn pop(&mut self, safe: Mark, written: Mark) -> Option<Leaving> {
        let own = self.own.pop_front_if(|(mark, _)| *mark <= written);
        let next = own.or_else(|| self.marked.pop_front_if(|(mark, _)| *mark <= safe))?;
        Some(next.1)
    }

    /// Nothing leaves any more: whoever waits for an answer is told so.
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
