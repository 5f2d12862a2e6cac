//! The subscriptions of one connection.

use bytes::BytesMut;
use tidings_protocol::{Answers, Seq, Slot, TopicName, encode_gap, encode_lag, encode_peer_lag};

use super::outbound::OutboundQueue;
use crate::topic::{Fetched, Reader};

/// The subscriptions of a connection, served in turn.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    list: Vec<Subscription>,
    next_id: u32,
    /// The index of the subscription to serve first.
    next_turn: usize,
    /// Each subscription ends at its `end_seq`.
    is_finishing: bool,
}

#[derive(Debug)]
struct Subscription {
    id: u32,
    reader: Reader,
    kind: SubscriptionKind,
    /// The seq behind the last event to send; `None`: no end.
    end_seq: Option<Seq>,
}

/// How a subscription was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubscriptionKind {
    /// For a peer, when it was greeted.
    Peer,
    /// By a `SUB`. The answer in this slot is sent before the first event.
    Command(Slot),
}

impl Subscriptions {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn contains(&self, topic: &str) -> bool {
        self.list.iter().any(|subscription| subscription.reader.topic().name().as_str() == topic)
    }

    pub(super) fn add(&mut self, reader: Reader, kind: SubscriptionKind) {
        if self.list.is_empty() {
            // Most connections have one subscription, and a growing vector starts with four.
            self.list.reserve_exact(1);
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        self.list.push(Subscription { id, reader, kind, end_seq: None });
    }

    /// Ends the subscription to a topic and returns whether there was one.
    pub(super) fn remove(&mut self, topic: &str) -> bool {
        let before = self.list.len();
        self.list.retain(|subscription| subscription.reader.topic().name().as_str() != topic);
        self.list.len() < before
    }

    /// Ends the subscription of the `SUB` with this slot and returns the name of its topic.
    pub(super) fn remove_by_slot(&mut self, slot: Slot) -> Option<TopicName> {
        let kind = SubscriptionKind::Command(slot);
        let index = self.list.iter().position(|subscription| subscription.kind == kind)?;
        Some(self.list.remove(index).reader.topic().name().clone())
    }

    /// Ends the subscription of a peer, because the connection is a client.
    pub(super) fn remove_peer_subscription(&mut self) {
        self.list.retain(|subscription| subscription.kind != SubscriptionKind::Peer);
    }

    pub(super) fn clear(&mut self) {
        self.list = Vec::new();
    }

    /// Ends each subscription at the current head of its topic.
    pub(super) fn finish(&mut self) {
        self.is_finishing = true;
        for subscription in &mut self.list {
            subscription.end_seq = Some(subscription.reader.topic().public_head());
        }
    }

    /// Adds events to `outbound`, up to one write of `bytes_max`. A reader at the end of its topic
    /// wakes the connection at the next event.
    pub(super) fn fetch(
        &mut self,
        outbound: &mut OutboundQueue,
        answers: &Answers,
        bytes_max: usize,
    ) {
        let count = self.list.len();
        for at in (self.next_turn..count).chain(0..self.next_turn.min(count)) {
            let subscription = &mut self.list[at];
            if let SubscriptionKind::Command(slot) = subscription.kind
                && !answers.is_drained(slot)
            {
                continue;
            }
            subscription.fetch(outbound, bytes_max);
            let (bytes, pieces) = outbound.capacity_left(bytes_max);
            if bytes == 0 || pieces == 0 {
                self.next_turn = at + 1;
                break;
            }
        }
        if self.is_finishing {
            self.list.retain(|subscription| {
                subscription
                    .end_seq
                    .is_none_or(|until| subscription.reader.has_unread_before(until))
            });
        }
    }

    /// Moves a subscription back to `seq`, because events from there on were not sent.
    pub(super) fn rewind(&mut self, id: u32, seq: Seq) {
        // The subscription may have ended in the meantime.
        if let Some(subscription) = self.list.iter_mut().find(|found| found.id == id) {
            subscription.reader.rewind(seq);
        }
    }

    /// Whether a reader waits for the disk. Its read takes a shared buffer.
    pub(super) fn is_waiting_for_disk(&self) -> bool {
        self.list.iter().any(|subscription| subscription.reader.waits_for_disk())
    }

    /// Cancels the disk reads of all readers and releases their buffers. They read again later.
    pub(super) fn cancel_disk_reads(&mut self) {
        for subscription in &mut self.list {
            let cursor = subscription.reader.cursor();
            if subscription.reader.waits_for_disk() {
                subscription.reader.rewind(cursor);
            }
        }
    }
}

impl Subscription {
    fn fetch(&mut self, outbound: &mut OutboundQueue, bytes_max: usize) {
        loop {
            let (bytes, pieces) = outbound.capacity_left(bytes_max);
            if bytes == 0 || pieces == 0 {
                return;
            }
            let id = self.id;
            let fetched = self.reader.fetch(bytes, pieces, |first, lines| {
                outbound.push_events(id, first, lines);
            });
            let topic = self.reader.topic().name().as_str();
            let mut line = BytesMut::new();
            match (fetched, self.kind) {
                (Fetched::Delivered, _) => return,
                // Peers see no seqs, and a gap contains no stored event.
                (Fetched::Gap(_), SubscriptionKind::Peer) => continue,
                (Fetched::Lag(lag), SubscriptionKind::Peer) => {
                    encode_peer_lag(lag.from, lag.to, &mut line);
                }
                (Fetched::Lag(lag), SubscriptionKind::Command(_)) => {
                    encode_lag(topic, lag.from, lag.to, &mut line);
                }
                (Fetched::Gap(gap), SubscriptionKind::Command(_)) => {
                    encode_gap(topic, gap.from, gap.to, &mut line);
                }
            }
            outbound.push(line.freeze());
        }
    }
}
