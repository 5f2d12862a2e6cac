//! What leaves once the records that it rests on are safe: lines for connections, events for topics.

use std::collections::VecDeque;

use indexmap::IndexMap;
use tidings_protocol::ProtocolError;

use crate::groups::log::Mark;
use crate::mailbox::{ConnId, Lines, Mailbox, Parcel};

/// What leaves, in its order for each connection and each topic.
#[derive(Default)]
pub(super) struct Outgoing {
    /// Lines that rest on the records since the last mark, or before: one parcel for each connection.
    open: IndexMap<ConnId, (Mailbox, Lines)>,
    /// What rests on records up to a mark. Marks rise.
    marked: VecDeque<(Mark, Leaving)>,
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

    /// The lines of all connections rest on records up to this mark.
    pub(super) fn mark(&mut self, mark: Mark) {
        let parcels = self.open.drain(..).map(|(_, (mailbox, lines))| {
            let parcel = Parcel::Lines(lines);
            (mark, Leaving::Parcel(mailbox, parcel))
        });
        self.marked.extend(parcels);
    }

    /// The next that may leave if everything before `durable` is safe.
    pub(super) fn pop(&mut self, durable: Mark) -> Option<Leaving> {
        let next = self.marked.pop_front_if(|(mark, _)| *mark <= durable)?;
        Some(next.1)
    }

    /// Nothing leaves any more: whoever waits for an answer is told so.
    pub(super) fn fail(&mut self, error: &ProtocolError) {
        self.mark(Mark::MAX);
        for (_, leaving) in self.marked.drain(..) {
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
