//! Queue of outputs that wait for their records: batches for connections and events for topics.
//!
//! An output is sent once the records it depends on are durable. Batches for the member in the
//! broker's own process are sent once the records are written. That is enough: after a crash of the
//! process the records are still there, and a crash of the machine ends the worker, too.

use std::collections::{BTreeSet, VecDeque};

use indexmap::IndexMap;
use tidings_protocol::ProtocolError;

use crate::groups::log::RecordMark;
use crate::mailbox::{ConnId, ConnMessage, GroupBatch, Mailbox};

/// Waiting outputs, in order for each connection and each topic.
#[derive(Default)]
pub(super) struct OutputQueue {
    /// What depends on records since the last mark, or earlier ones: one batch per connection.
    unmarked: IndexMap<ConnId, (Mailbox, GroupBatch)>,
    /// Outputs that may be sent once the records before their mark are durable. Marks rise.
    marked: VecDeque<(RecordMark, GroupOutput)>,
    /// Outputs that may be sent once the records before their mark are written.
    local: VecDeque<(RecordMark, GroupOutput)>,
}

/// One output.
pub(super) enum GroupOutput {
    /// For a connection.
    Parcel(Mailbox, ConnMessage),
    /// For a topic: serial, topic, payload.
    Event(u64, &'static str, String),
}

impl OutputQueue {
    /// The batch of a connection.
    pub(super) fn batch(&mut self, conn: ConnId, mailbox: &Mailbox) -> &mut GroupBatch {
        let new = || (mailbox.clone(), GroupBatch::default());
        &mut self.unmarked.entry(conn).or_insert_with(new).1
    }

    /// Adds an output that depends on the records before `mark`. `mark` must not be below an
    /// earlier one.
    pub(super) fn push(&mut self, mark: RecordMark, leaving: GroupOutput) {
        self.marked.push_back((mark, leaving));
    }

    /// Sets the mark for the batches of all connections. `local` names the connections in the
    /// broker's process.
    pub(super) fn mark(&mut self, mark: RecordMark, own: &BTreeSet<ConnId>) {
        for (conn, (mailbox, batch)) in self.unmarked.drain(..) {
            let leaving = GroupOutput::Parcel(mailbox, ConnMessage::Group(batch));
            let queue = if own.contains(&conn) { &mut self.local } else { &mut self.marked };
            queue.push_back((mark, leaving));
        }
    }

    /// All outputs can be sent once everything before this mark is durable.
    pub(super) fn last_mark(&self) -> RecordMark {
        self.marked.back().map_or(0, |(mark, _)| *mark)
    }

    /// Removes the next output that may be sent when everything before these marks is durable, or
    /// written.
    pub(super) fn pop(&mut self, safe: RecordMark, written: RecordMark) -> Option<GroupOutput> {
        let own = self.local.pop_front_if(|(mark, _)| *mark <= written);
        let next = own.or_else(|| self.marked.pop_front_if(|(mark, _)| *mark <= safe))?;
        Some(next.1)
    }

    /// Drops all outputs, and answers their commands with an error.
    pub(super) fn fail(&mut self, error: &ProtocolError) {
        self.mark(RecordMark::MAX, &BTreeSet::new());
        while let Some(leaving) = self.pop(RecordMark::MAX, RecordMark::MAX) {
            if let GroupOutput::Parcel(mailbox, ConnMessage::Group(GroupBatch { answers, .. })) =
                leaving
            {
                for (slot, _) in answers {
                    mailbox.send(ConnMessage::Answer { slot, answer: Err(error.clone()) });
                }
            }
        }
    }
}
