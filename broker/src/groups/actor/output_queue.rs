//! Queue of outputs that wait for their records: batches for connections and events for topics.
//!
//! An output is sent once the records it depends on are durable. Batches for the member in the
//! broker's own process are sent once the records are written. That is enough: after a crash of the
//! process the records are still there, and a crash of the machine ends the worker, too.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use indexmap::IndexMap;
use tidings_protocol::{PAGE_READY_TOPIC, ProtocolError};

use crate::clock::Moment;
use crate::groups::log::RecordMark;
use crate::mailbox::{ConnId, ConnMessage, GroupBatch, Mailbox};

/// Shortest time between two batches of outcomes, in ms. Each batch costs a sync of `page-ready`.
/// With a worker in the broker's process nothing else waits for syncs, and a fast crawl would sync
/// for every few pages.
const OUTCOMES_EVERY_MS: u64 = 100;

/// Waiting outputs, in order for each connection and each topic.
#[derive(Default)]
pub(super) struct OutputQueue {
    /// What depends on records since the last mark, or earlier ones: one batch per connection.
    unmarked: IndexMap<ConnId, (Mailbox, GroupBatch)>,
    /// Messages that may be sent once the records before their mark are durable. Marks rise.
    marked: VecDeque<(RecordMark, Parcel)>,
    /// Messages that may be sent once the records before their mark are written.
    local: VecDeque<(RecordMark, Parcel)>,
    /// Events that may be published once the records before their mark are durable.
    events: VecDeque<(RecordMark, QueuedEvent)>,
    /// When the next batch of outcomes may be published.
    outcomes_at: Moment,
}

/// A message for a connection.
pub(super) struct Parcel(pub(super) Mailbox, pub(super) ConnMessage);

/// An event for a topic.
pub(super) struct QueuedEvent {
    pub(super) serial: u64,
    pub(super) topic: &'static str,
    pub(super) payload: Arc<str>,
}

impl OutputQueue {
    /// The batch of a connection.
    pub(super) fn batch(&mut self, conn: ConnId, mailbox: &Mailbox) -> &mut GroupBatch {
        let new = || (mailbox.clone(), GroupBatch::default());
        &mut self.unmarked.entry(conn).or_insert_with(new).1
    }

    /// Adds a message that depends on the records before `mark`. `mark` must not be below an
    /// earlier one.
    pub(super) fn push(&mut self, mark: RecordMark, parcel: Parcel) {
        self.marked.push_back((mark, parcel));
    }

    /// Adds an event that depends on the records before `mark`.
    pub(super) fn push_event(&mut self, mark: RecordMark, event: QueuedEvent) {
        if event.topic != PAGE_READY_TOPIC {
            // Nothing else is so frequent, and the outcomes of a pass come before its end.
            self.outcomes_at = Moment(0);
        }
        self.events.push_back((mark, event));
    }

    /// Sets the mark for the batches of all connections. `local` names the connections in the
    /// broker's process.
    pub(super) fn mark(&mut self, mark: RecordMark, own: &BTreeSet<ConnId>) {
        for (conn, (mailbox, batch)) in self.unmarked.drain(..) {
            let parcel = Parcel(mailbox, ConnMessage::Group(batch));
            let queue = if own.contains(&conn) { &mut self.local } else { &mut self.marked };
            queue.push_back((mark, parcel));
        }
    }

    /// All outputs that need not wait for time can be sent once everything before this mark is
    /// durable.
    pub(super) fn last_mark(&self, now: Moment) -> RecordMark {
        // A steady stream of outcomes needs no syncs of its own: the log syncs soon by itself.
        let is_after_pause = self.outcomes_at + OUTCOMES_EVERY_MS <= now;
        let events = self.events.back().filter(|_| is_after_pause);
        let marks = self.marked.back().map(|(mark, _)| mark).into_iter();
        marks.chain(events.map(|(mark, _)| mark)).max().copied().unwrap_or(0)
    }

    /// When events can leave that wait for time.
    pub(super) fn next_outcomes(&self, now: Moment) -> Option<Moment> {
        (!self.events.is_empty() && now < self.outcomes_at).then_some(self.outcomes_at)
    }

    /// Removes the next message that may be sent when everything before these marks is durable, or
    /// written.
    pub(super) fn pop(&mut self, safe: RecordMark, written: RecordMark) -> Option<Parcel> {
        let own = self.local.pop_front_if(|(mark, _)| *mark <= written);
        let next = own.or_else(|| self.marked.pop_front_if(|(mark, _)| *mark <= safe))?;
        Some(next.1)
    }

    /// Removes the events that may be published when everything before this mark is durable.
    pub(super) fn take_events(
        &mut self,
        safe: RecordMark,
        now: Moment,
    ) -> impl Iterator<Item = QueuedEvent> {
        let is_due = self.outcomes_at <= now;
        let count = if is_due { self.events.partition_point(|(mark, _)| *mark <= safe) } else { 0 };
        // An event on another topic does not wait, nor do the outcomes before it.
        if count > 0 && self.events.range(count..).all(|(_, event)| event.topic == PAGE_READY_TOPIC)
        {
            self.outcomes_at = now + OUTCOMES_EVERY_MS;
        }
        self.events.drain(..count).map(|(_, event)| event)
    }

    /// Drops all outputs, and answers their commands with an error.
    pub(super) fn fail(&mut self, error: &ProtocolError) {
        self.mark(RecordMark::MAX, &BTreeSet::new());
        self.events.clear();
        while let Some(Parcel(mailbox, message)) = self.pop(RecordMark::MAX, RecordMark::MAX) {
            if let ConnMessage::Group(GroupBatch { answers, .. }) = message {
                for (slot, _) in answers {
                    mailbox.send(ConnMessage::Answer { slot, answer: Err(error.clone()) });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidings_protocol::JOB_DONE_TOPIC;

    use super::*;

    fn push(queue: &mut OutputQueue, serial: u64, topic: &'static str) {
        queue.push_event(serial, QueuedEvent { serial, topic, payload: "".into() });
    }

    fn taken(queue: &mut OutputQueue, safe: RecordMark, now: u64) -> Vec<u64> {
        queue.take_events(safe, Moment(now)).map(|event| event.serial).collect()
    }

    #[test]
    fn outcomes_leave_in_batches() {
        let mut queue = OutputQueue::default();
        push(&mut queue, 1, PAGE_READY_TOPIC);
        assert_eq!(queue.last_mark(Moment(1000)), 1);
        assert_eq!(taken(&mut queue, 1, 1000), [1], "the first one does not wait");
        push(&mut queue, 2, PAGE_READY_TOPIC);
        push(&mut queue, 3, PAGE_READY_TOPIC);
        assert_eq!(queue.next_outcomes(Moment(1099)), Some(Moment(1100)));
        assert_eq!(taken(&mut queue, 3, 1099), [0; 0]);
        assert_eq!(queue.next_outcomes(Moment(1100)), None);
        assert_eq!(queue.last_mark(Moment(1100)), 0, "the log syncs by itself");
        assert_eq!(taken(&mut queue, 3, 1100), [2, 3]);
        push(&mut queue, 4, PAGE_READY_TOPIC);
        assert_eq!(queue.last_mark(Moment(1299)), 0);
        assert_eq!(queue.last_mark(Moment(1300)), 4, "after a pause, it does not wait");
    }

    #[test]
    fn the_end_of_a_job_and_the_outcomes_before_it_do_not_wait() {
        let mut queue = OutputQueue::default();
        push(&mut queue, 1, PAGE_READY_TOPIC);
        assert_eq!(taken(&mut queue, 1, 1000), [1]);
        push(&mut queue, 2, PAGE_READY_TOPIC);
        push(&mut queue, 3, JOB_DONE_TOPIC);
        push(&mut queue, 4, PAGE_READY_TOPIC);
        assert_eq!(queue.last_mark(Moment(1001)), 4);
        assert_eq!(taken(&mut queue, 2, 1001), [2]);
        assert_eq!(taken(&mut queue, 3, 1001), [3], "its record became durable later");
        assert_eq!(taken(&mut queue, 4, 1100), [0; 0]);
        assert_eq!(taken(&mut queue, 4, 1101), [4]);
    }
}
