//! The durable cursors of a connection, and the positions that it stores.
//!
//! ```text
//!   SUB as=, SEEN ──▶ pending ── events before it are durable ──▶ catalog ── stored ──▶ +OK
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use tidings_protocol::{Command, Seq, Slot, TopicName};

use crate::catalog::{Catalog, CatalogRecord};
use crate::cursors::{CursorId, PendingCursor};
use crate::mailbox::{ConnMessage, Mailbox};
use crate::topic::{Topic, WaiterSlot};

/// State of a connection that uses durable cursors.
#[derive(Debug, Default)]
pub(super) struct ConnectionCursors {
    /// Cursors that the connection has acquired; another connection may have taken them over.
    acquired: Vec<CursorId>,
    /// Positions to store, in the order of their answers. Only the first one waits for the disk,
    /// because answers keep their order.
    pending_stores: VecDeque<PendingStore>,
    /// Positions that are not stored yet, also those that are being written to the catalog.
    unstored: usize,
    /// A line that reads cursors. It runs when all positions are stored, and until then the
    /// connection is not read.
    deferred_line: Option<String>,
}

/// A position that is stored once all events before it are durable (`[K5]`): after a crash no
/// cursor may be ahead of its topic.
#[derive(Debug)]
struct PendingStore {
    slot: Slot,
    record: CatalogRecord,
    /// Set for a new cursor.
    pending_cursor: Option<PendingCursor>,
    topic: Arc<Topic>,
    /// The last event before the position.
    last: Seq,
    /// The slot in which the connection waits for `last` to become durable.
    waiter: Option<WaiterSlot>,
}

impl ConnectionCursors {
    /// Adds a cursor that the connection has acquired.
    pub(super) fn add(&mut self, id: CursorId) {
        self.acquired.push(id);
    }

    /// The cursor on a topic.
    pub(super) fn on(&self, topic: &TopicName) -> Option<&CursorId> {
        self.acquired.iter().find(|id| id.topic == *topic)
    }

    /// Removes the cursor on a topic, or all.
    pub(super) fn remove(&mut self, topic: Option<&TopicName>) -> Vec<CursorId> {
        self.acquired.extract_if(.., |id| topic.is_none_or(|topic| id.topic == *topic)).collect()
    }

    /// Stores the position behind `last`, and then answers in `slot`.
    pub(super) fn store(
        &mut self,
        slot: Slot,
        record: CatalogRecord,
        pending_cursor: Option<PendingCursor>,
        (topic, last): (Arc<Topic>, Seq),
    ) {
        let store = PendingStore { slot, record, pending_cursor, topic, last, waiter: None };
        self.pending_stores.push_back(store);
        self.unstored += 1;
    }

    /// Defers a command that reads cursors, if positions before it are not stored yet. Returns
    /// whether it did.
    pub(super) fn defer(&mut self, command: &Command<'_>) -> bool {
        if self.unstored > 0 {
            let mut line = Vec::new();
            command.encode(&mut line);
            self.deferred_line = String::from_utf8(line).ok();
        }
        self.has_deferred()
    }

    pub(super) fn has_deferred(&self) -> bool {
        self.deferred_line.is_some()
    }

    /// The deferred line, once all positions are stored.
    pub(super) fn take_deferred(&mut self) -> Option<String> {
        self.deferred_line.take_if(|_| self.unstored == 0)
    }

    /// A position was stored, or could not be.
    pub(super) fn store_ended(&mut self) {
        self.unstored -= 1;
    }

    /// Stores positions whose events are durable, and sends the results to `mailbox`. `waker` is
    /// woken when more events are.
    pub(super) fn poll_store(&mut self, catalog: &Catalog, mailbox: &Mailbox, waker: &Waker) {
        while let Some(first) = self.pending_stores.front_mut() {
            first.waiter = first.topic.wait_durable(first.last, first.waiter, waker);
            if first.waiter.is_some() {
                return;
            }
            let PendingStore { slot, record, pending_cursor, .. } =
                self.pending_stores.pop_front().expect("the queue has a first entry");
            let mailbox = mailbox.clone();
            let done = move |result| {
                drop(pending_cursor);
                mailbox.send(ConnMessage::Stored { slot, result });
            };
            catalog.write(record, done);
        }
    }
}
