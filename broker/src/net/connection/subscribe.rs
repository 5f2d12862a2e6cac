//! `SUB`, `UNSUB` and `SEEN`.

use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use tidings_protocol::{
    AttributeFilter, Code, Command, CursorName, ProtocolError, Seq, Slot, StartAt, TopicName,
    bad_argument, encode_ok,
};

use super::Connection;
use super::subscriptions::SubscriptionKind;
use crate::catalog::CatalogRecord;
use crate::cursors::CursorId;
use crate::quota::Quantity;

const OK: Bytes = Bytes::from_static(b"+OK\r\n");

impl Connection {
    /// Checks that another subscription, to that topic, is allowed.
    fn check_subscription(&mut self, name: &TopicName) -> Result<(), ProtocolError> {
        let max = self.shared.limits.subscriptions_max;
        if self.subscriptions.contains(name.as_str()) {
            let text =
                format!("this connection already subscribes to {name}; end it with UNSUB {name}");
            return Err(ProtocolError::new(Code::Exists, text));
        }
        if self.subscriptions.len() >= max {
            let text =
                format!("this connection has {max} subscriptions, the maximum; end one with UNSUB");
            return Err(ProtocolError::new(Code::Limit, text));
        }
        // The end of the poll corrects the count if the subscription fails.
        self.client.session.hold(Quantity::Subscriptions, self.subscriptions.len() + 1)
    }

    /// Subscribes, with a durable cursor if there is one; `true` takes it over from another
    /// connection.
    pub(super) fn subscribe(
        &mut self,
        name: &TopicName,
        from: Option<StartAt>,
        cursor: Option<(CursorName, bool)>,
        filter: AttributeFilter,
        waker: &Waker,
    ) -> Result<(), ProtocolError> {
        self.check_subscription(name)?;
        let Some((cursor, takeover)) = cursor else {
            let reader = self.shared.topics.subscribe(name, from, waker.clone())?;
            let slot = self.answers.reserve();
            self.fill(slot, OK);
            self.subscriptions.add(reader, SubscriptionKind::Command(slot), filter);
            return Ok(());
        };
        let id = CursorId { topic: name.clone(), cursor };
        let stored = self.shared.cursors.acquire(&id, self.id, &self.mailbox, takeover)?;
        let start = stored.map_or(from, |next| Some(StartAt::Seq(next)));
        let reader = self.shared.topics.subscribe(name, start, waker.clone()).map_err(|error| {
            self.shared.cursors.release(&id, self.id, self.shared.clock.unix_ms());
            if stored.is_some() { position_beyond_topic(&id, error) } else { error }
        })?;
        let (topic, next) = (Arc::clone(reader.topic()), reader.cursor());
        let slot = self.answers.reserve();
        self.subscriptions.add(reader, SubscriptionKind::Command(slot), filter);
        let cursors = self.cursors.get_or_insert_default();
        cursors.add(id.clone());
        if stored.is_some() {
            self.fill(slot, OK);
            return Ok(());
        }
        let pending_cursor = Some(self.shared.cursors.add_pending(&id));
        let CursorId { topic: name, cursor } = id;
        let unix_ms = self.shared.clock.unix_ms();
        let record = CatalogRecord::Cursor { topic: name, cursor, next, unix_ms };
        cursors.store(slot, record, pending_cursor, (topic, Seq(next.0 - 1)));
        self.store_durable_positions(waker);
        Ok(())
    }

    pub(super) fn unsubscribe(&mut self, name: &TopicName) -> Result<(), ProtocolError> {
        if !self.subscriptions.remove(name.as_str()) {
            let text = format!("this connection has no subscription to {name}");
            return Err(ProtocolError::new(Code::NotFound, text));
        }
        self.release_cursors(Some(name));
        // Before the answer: another connection may use at once what this one has returned.
        self.client.session.end_subscription();
        self.answers.push(|lines| encode_ok("", lines));
        Ok(())
    }

    pub(super) fn handle_seen(
        &mut self,
        name: &TopicName,
        last: Seq,
        waker: &Waker,
    ) -> Result<(), ProtocolError> {
        let id = self.cursors.as_ref().and_then(|cursors| cursors.on(name));
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
        self.cursors.get_or_insert_default().store(slot, record, None, (topic, last));
        self.store_durable_positions(waker);
        Ok(())
    }

    /// Answers after a position was stored. If storing a new cursor failed, its subscription ends.
    pub(super) fn handle_stored(&mut self, slot: Slot, result: Result<(), ProtocolError>) {
        self.cursors.get_or_insert_default().store_ended();
        match result {
            Ok(()) => self.fill(slot, OK),
            Err(error) => {
                if let Some(topic) = self.subscriptions.remove_by_slot(slot) {
                    self.release_cursors(Some(&topic));
                }
                self.fill_error(slot, &error);
            }
        }
    }

    /// Stores positions once their events are durable, and then runs the command that waits for
    /// that.
    pub(super) fn store_durable_positions(&mut self, waker: &Waker) {
        let Some(cursors) = &mut self.cursors else { return };
        cursors.poll_store(self.shared.topics.catalog(), &self.mailbox, waker);
        // A connection that closes drops it, like other input.
        if let Some(line) = cursors.take_deferred()
            && self.closing.is_none()
        {
            let command = Command::parse(line.trim_end()).expect("the line was a command");
            self.handle_command(command, waker);
        }
    }

    /// Releases the cursor on a topic whose subscription has ended, or all cursors.
    pub(super) fn release_cursors(&mut self, topic: Option<&TopicName>) {
        let Some(cursors) = &mut self.cursors else { return };
        for id in cursors.remove(topic) {
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
