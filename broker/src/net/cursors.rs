//! Commands on durable cursors: `SUB as=` and `SEEN`.
//!
//! ```text
//!   SUB as=, SEEN ──▶ pending ── events before it are durable ──▶ catalog ── stored ──▶ +OK
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use tidings_protocol::{
    AttributeFilter, Code, CursorName, ProtocolError, Seq, Slot, StartAt, TopicName, bad_argument,
};

use super::connection::Connection;
use super::subscriptions::SubscriptionKind;
use crate::catalog::CatalogRecord;
use crate::cursors::{CursorId, PendingCursor};
use crate::mailbox::ConnMessage;
use crate::topic::{Topic, WaiterSlot};

const OK: Bytes = Bytes::from_static(b"+OK\r\n");

/// State of a connection that uses durable cursors.
#[derive(Debug, Default)]
pub(super) struct ConnectionCursors {
    /// Cursors that the connection has acquired; another connection may have taken them over.
    acquired: Vec<CursorId>,
    /// Positions to store, in the order of their answers. Only the first one waits for the disk,
    /// because answers keep their order.
    pending_stores: VecDeque<PendingStore>,
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

impl Connection {
    pub(super) fn subscribe_durable(
        &mut self,
        name: &TopicName,
        from: Option<StartAt>,
        cursor: CursorName,
        takeover: bool,
        filter: AttributeFilter,
        waker: &Waker,
    ) -> Result<(), ProtocolError> {
        self.check_subscription(name)?;
        let id = CursorId { topic: name.clone(), cursor };
        let stored = self.shared.cursors.acquire(&id, self.id, &self.mailbox, takeover)?;
        let start = stored.map_or(from, |next| Some(StartAt::Seq(next)));
        let reader = match self.shared.topics.subscribe(name, start, waker.clone()) {
            Ok(reader) => reader,
            Err(error) => {
                self.shared.cursors.release(&id, self.id, self.shared.clock.unix_ms());
                return Err(if stored.is_some() {
                    position_beyond_topic(&id, error)
                } else {
                    error
                });
            }
        };
        let (topic, next) = (Arc::clone(reader.topic()), reader.cursor());
        let slot = self.answers.reserve();
        self.subscriptions.add(reader, SubscriptionKind::Command(slot), filter);
        let cursors = self.cursors.get_or_insert_default();
        cursors.acquired.push(id.clone());
        if stored.is_some() {
            self.fill(slot, OK);
            return Ok(());
        }
        let pending_cursor = Some(self.shared.cursors.add_pending(&id));
        let CursorId { topic: name, cursor } = id;
        let record = CatalogRecord::Cursor {
            topic: name,
            cursor,
            next,
            unix_ms: self.shared.clock.unix_ms(),
        };
        let last = Seq(next.0 - 1);
        cursors.pending_stores.push_back(PendingStore {
            slot,
            record,
            pending_cursor,
            topic,
            last,
            waiter: None,
        });
        self.store_durable_positions(waker);
        Ok(())
    }

    pub(super) fn handle_seen(
        &mut self,
        name: &TopicName,
        last: Seq,
        waker: &Waker,
    ) -> Result<(), ProtocolError> {
        let cursors = self.cursors.as_mut();
        let id = cursors.and_then(|cursors| cursors.acquired.iter().find(|id| id.topic == *name));
        let id = id.filter(|id| self.shared.cursors.is_used_by(id, self.id)).cloned();
        let topic = self.shared.topics.find(name.as_str());
        let (Some(CursorId { topic: name, cursor }), Some(topic)) = (id, topic) else {
            let text = format!(
                "this connection has no cursor on {name}; subscribe with SUB {name} as=<cursor>"
            );
            return Err(ProtocolError::new(Code::Conflict, text));
        };
        let next = topic.public_head();
        if last >= next {
            let text = format!("seq {last} is not published yet; the next seq of {name} is {next}");
            return Err(bad_argument(text));
        }
        let slot = self.answers.reserve();
        let stored = self.shared.topics.catalog().contents().cursor(&name, &cursor);
        if stored.is_some_and(|stored| stored.next > last) {
            // A cursor never moves backwards (`[K4]`).
            self.fill(slot, OK);
            return Ok(());
        }
        let (next, unix_ms) = (Seq(last.0 + 1), self.shared.clock.unix_ms());
        let record = CatalogRecord::Moved { topic: name, cursor, next, unix_ms };
        let pending_store =
            PendingStore { slot, record, pending_cursor: None, topic, last, waiter: None };
        self.cursors.get_or_insert_default().pending_stores.push_back(pending_store);
        self.store_durable_positions(waker);
        Ok(())
    }

    /// Stores positions once their events are durable. `waker` is woken when more events are.
    pub(super) fn store_durable_positions(&mut self, waker: &Waker) {
        let Some(cursors) = &mut self.cursors else { return };
        while let Some(first) = cursors.pending_stores.front_mut() {
            first.waiter = first.topic.wait_durable(first.last, first.waiter, waker);
            if first.waiter.is_some() {
                return;
            }
            let PendingStore { slot, record, pending_cursor, .. } =
                cursors.pending_stores.pop_front().expect("the queue has a first entry");
            let mailbox = self.mailbox.clone();
            let done = move |result| {
                drop(pending_cursor);
                mailbox.send(ConnMessage::Stored { slot, result });
            };
            self.shared.topics.catalog().write(record, done);
        }
    }

    /// Answers after a position was stored. If storing a new cursor failed, its subscription ends.
    pub(super) fn handle_stored(&mut self, slot: Slot, result: Result<(), ProtocolError>) {
        match result {
            Ok(()) => self.fill(slot, OK),
            Err(error) => {
                if let Some(topic) = self.subscriptions.remove_by_slot(slot) {
                    self.release_cursor(topic.as_str());
                }
                self.fill_error(slot, &error);
            }
        }
    }

    /// Releases the cursor on a topic after its subscription has ended.
    pub(super) fn release_cursor(&mut self, topic: &str) {
        let Some(cursors) = &mut self.cursors else { return };
        if let Some(index) = cursors.acquired.iter().position(|id| id.topic.as_str() == topic) {
            let id = cursors.acquired.swap_remove(index);
            self.shared.cursors.release(&id, self.id, self.shared.clock.unix_ms());
        }
    }

    /// Releases all cursors when the connection ends.
    pub(super) fn release_cursors(&mut self) {
        let acquired = self.cursors.as_mut().map(|cursors| std::mem::take(&mut cursors.acquired));
        for id in acquired.unwrap_or_default() {
            self.shared.cursors.release(&id, self.id, self.shared.clock.unix_ms());
        }
    }
}

/// The error for a cursor beyond the end of its topic; it tells how to reset the cursor.
fn position_beyond_topic(id: &CursorId, error: ProtocolError) -> ProtocolError {
    if error.code != Code::Conflict {
        return error;
    }
    let CursorId { topic, cursor } = id;
    let text =
        format!("{}; reset the cursor with TOPIC forget {topic} cursor={cursor}", error.text);
    ProtocolError::new(Code::Conflict, text)
}
