//! The topics that one connection follows.

use bytes::BytesMut;
use tidings_protocol::{Answers, Seq, Slot, TopicName, encode_gap, encode_lag, encode_peer_lag};

use super::outbound::OutboundQueue;
use crate::topic::{Fetched, Reader};

/// The readers of a connection, served in turn.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    list: Vec<Subscription>,
    /// Names the next subscription.
    next_id: u32,
    /// Where the next turn begins.
    next_turn: usize,
    /// No more than there was at a moment is wanted.
    is_finishing: bool,
}

#[derive(Debug)]
struct Subscription {
    id: u32,
    reader: Reader,
    kind: SubscriptionKind,
    /// The end of what is still wanted.
    end_seq: Option<Seq>,
}

/// How a subscription came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubscriptionKind {
    /// It is a peer's, and there from the greeting on.
    Peer,
    /// By `SUB`, whose answer in this slot comes before the first event.
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
            // Nearly everybody has one; a vector that grows by itself begins with four.
            self.list.reserve_exact(1);
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        self.list.push(Subscription { id, reader, kind, end_seq: None });
    }

    /// Ends the subscription to a topic; whether there was one.
    pub(super) fn remove(&mut self, topic: &str) -> bool {
        let before = self.list.len();
        self.list.retain(|subscription| subscription.reader.topic().name().as_str() != topic);
        self.list.len() < before
    }

    /// Ends the subscription whose `SUB` is to be answered in this slot; its topic's name, if there
    /// was one.
    pub(super) fn remove_by_slot(&mut self, slot: Slot) -> Option<TopicName> {
        let kind = SubscriptionKind::Command(slot);
        let at = self.list.iter().position(|subscription| subscription.kind == kind)?;
        Some(self.list.remove(at).reader.topic().name().clone())
    }

    /// Ends what a peer hears: it is none.
    pub(super) fn remove_peer_subscription(&mut self) {
        self.list.retain(|subscription| subscription.kind != SubscriptionKind::Peer);
    }

    pub(super) fn clear(&mut self) {
        self.list = Vec::new();
    }

    /// Wants no more than what there is now.
    pub(super) fn finish(&mut self) {
        self.is_finishing = true;
        for subscription in &mut self.list {
            subscription.end_seq = Some(subscription.reader.topic().public_head());
        }
    }

    /// Adds what there is to `outbound`, up to one write of `bytes_max`. Readers that have
    /// nothing more will wake the connection.
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

    /// Goes back: what was fetched from `seq` on was not sent.
    pub(super) fn rewind(&mut self, id: u32, seq: Seq) {
        // One that has ended meanwhile wants nothing.
        if let Some(subscription) = self.list.iter_mut().find(|found| found.id == id) {
            subscription.reader.rewind(seq);
        }
    }
}

impl Subscriptions {
    /// Whether readers have asked the disk. The answers take memory that others could use.
    pub(super) fn is_waiting_for_disk(&self) -> bool {
        self.list.iter().any(|subscription| subscription.reader.waits_for_disk())
    }

    /// Lets readers give back what they hold, and ask for it again later.
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
                // Peers know no numbers, and nothing that was kept is missing.
                (Fetched::Gap(_), SubscriptionKind::Peer) => continue,
                (Fetched::Lag(lag), SubscriptionKind::Peer) => {
                    encode_peer_lag(lag.from, lag.to, &mut line)
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
