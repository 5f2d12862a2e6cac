//! The subscriptions of one connection.

use bytes::{Bytes, BytesMut};
use memchr::memchr_iter;
use tidings_protocol::{
    Answers, AttributeFilter, Seq, Slot, TopicName, encode_gap, encode_lag, encode_peer_lag,
    encode_skip,
};

use super::outbound::OutboundQueue;
use crate::clock::Moment;
use crate::topic::{EventRun, Fetched, Reader, payloads};

/// Bytes of events that all filters of a connection search in one turn.
const SEARCH_BYTES_MAX: usize = 1 << 20;

/// Milliseconds in which a client learns that events were skipped.
const SKIP_INTERVAL_MS: u64 = 1_000;

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
    /// `None`: all events match.
    filter: Option<Box<Search>>,
}

/// The filter of a subscription, and what it has skipped.
#[derive(Debug)]
struct Search {
    topic: TopicName,
    filter: AttributeFilter,
    /// When to report the events that were skipped since the last line of the subscription; `None`:
    /// there are none.
    skip_deadline: Option<Moment>,
    /// The subscription has reached the end of its topic.
    has_caught_up: bool,
}

/// What subscriptions have handed over.
#[derive(Debug, Default)]
pub(super) struct Delivered {
    /// The filters may have more to search now.
    pub(super) has_more: bool,
    pub(super) events: u64,
    /// Notices of missed events.
    pub(super) lags: u64,
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

    pub(super) fn add(&mut self, reader: Reader, kind: SubscriptionKind, filter: AttributeFilter) {
        if self.list.is_empty() {
            // Most connections have one subscription, and a growing vector starts with four.
            self.list.reserve_exact(1);
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let topic = reader.topic().name().clone();
        let (skip_deadline, has_caught_up) = (None, false);
        let filter = (!filter.matches_all())
            .then(|| Box::new(Search { topic, filter, skip_deadline, has_caught_up }));
        self.list.push(Subscription { id, reader, kind, end_seq: None, filter });
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
        now: impl Fn() -> Moment,
    ) -> Delivered {
        let mut delivered = Delivered::default();
        let mut budget = SEARCH_BYTES_MAX;
        let count = self.list.len();
        for at in (self.next_turn..count).chain(0..self.next_turn.min(count)) {
            let subscription = &mut self.list[at];
            if let SubscriptionKind::Command(slot) = subscription.kind
                && !answers.is_drained(slot)
            {
                continue;
            }
            subscription.fetch(outbound, (bytes_max, &mut delivered), &mut budget, &now);
            let (bytes, pieces) = outbound.capacity_left(bytes_max);
            if bytes == 0 || pieces == 0 || budget == 0 {
                self.next_turn = at + 1;
                break;
            }
        }
        if self.is_finishing {
            self.list.retain(|subscription| {
                let search = subscription.filter.as_ref();
                !subscription.has_ended() || search.is_some_and(|it| it.skip_deadline.is_some())
            });
        }
        Delivered { has_more: budget == 0, ..delivered }
    }

    /// When [`fetch`](Self::fetch) has skipped events to report.
    pub(super) fn skip_deadline(&self) -> Option<Moment> {
        self.list
            .iter()
            .filter_map(|subscription| subscription.filter.as_ref()?.skip_deadline)
            .min()
    }

    /// Moves a subscription back to `seq`, because events from there on were not sent.
    pub(super) fn rewind(&mut self, id: u32, seq: Seq) {
        // The subscription may have ended in the meantime.
        if let Some(subscription) = self.list.iter_mut().find(|found| found.id == id) {
            subscription.reader.rewind(seq);
            if let Some(search) = &mut subscription.filter {
                // The event at `seq` is judged again.
                search.skip_deadline = None;
            }
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
    /// A filter reduces `budget`, the bytes that may be searched.
    fn fetch(
        &mut self,
        outbound: &mut OutboundQueue,
        (bytes_max, delivered): (usize, &mut Delivered),
        budget: &mut usize,
        now: &impl Fn() -> Moment,
    ) {
        while *budget > 0 {
            let (bytes, pieces) = outbound.capacity_left(bytes_max);
            if bytes == 0 || pieces == 0 {
                return;
            }
            let (id, before) = (self.id, *budget);
            let mut start = None;
            let fetched = self.reader.fetch(bytes, pieces, |EventRun { first, lines, .. }| {
                let Some(search) = &mut self.filter else {
                    start.get_or_insert(first);
                    return outbound.push_events(id, first, lines);
                };
                *budget = budget.saturating_sub(lines.len());
                delivered.events += search.push_matching(outbound, id, first, &lines, now);
            });
            if let Some(start) = start {
                delivered.events += self.reader.cursor().0 - start.0;
            }
            delivered.lags += u64::from(matches!(fetched, Fetched::Lag(_)));
            let topic = self.reader.topic().name().as_str();
            let mut line = BytesMut::new();
            let missed = match (fetched, self.kind) {
                (Fetched::Delivered, _) if *budget < before => continue,
                (Fetched::Delivered, _) => break,
                // Peers see no seqs, and a gap contains no stored event.
                (Fetched::Gap(_), SubscriptionKind::Peer) => continue,
                (Fetched::Lag(lag), SubscriptionKind::Peer) => {
                    encode_peer_lag(lag.from, lag.to, &mut line);
                    lag
                }
                (Fetched::Lag(lag), SubscriptionKind::Command(_)) => {
                    encode_lag(topic, lag.from, lag.to, &mut line);
                    lag
                }
                (Fetched::Gap(gap), SubscriptionKind::Command(_)) => {
                    encode_gap(topic, gap.from, gap.to, &mut line);
                    gap
                }
            };
            outbound.push_range(id, (missed.from, missed.to), line.freeze());
            if let Some(search) = &mut self.filter {
                search.skip_deadline = None;
            }
        }
        self.report_skipped(outbound, now);
    }

    /// Whether everything before `end_seq` was read.
    fn has_ended(&self) -> bool {
        self.end_seq.is_some_and(|until| !self.reader.has_unread_before(until))
    }

    /// Reports skipped events (`[D8]`), if that is due. The line takes the place of the last one.
    fn report_skipped(&mut self, outbound: &mut OutboundQueue, now: &impl Fn() -> Moment) {
        let has_ended = self.has_ended();
        let Some(search) = &mut self.filter else { return };
        let catches_up = !search.has_caught_up && !self.reader.is_behind();
        search.has_caught_up |= catches_up;
        let is_due = |deadline: &mut Moment| has_ended || catches_up || *deadline <= now();
        if search.skip_deadline.take_if(is_due).is_some() {
            let last = Seq(self.reader.cursor().0 - 1);
            let mut line = BytesMut::new();
            encode_skip(search.topic.as_str(), last, &mut line);
            outbound.push_range(self.id, (last, last), line.freeze());
        }
    }
}

impl Search {
    /// Adds the lines that match, and returns their number.
    fn push_matching(
        &mut self,
        outbound: &mut OutboundQueue,
        subscription: u32,
        first: Seq,
        lines: &Bytes,
        now: &impl Fn() -> Moment,
    ) -> u64 {
        let mut matching = 0;
        // The seq and the place of the first line of a run of matching lines.
        let mut run = None;
        let mut start = 0;
        let ends = memchr_iter(b'\n', lines).map(|at| at + 1);
        for ((seq, payload), end) in payloads(&self.topic, first, lines).zip(ends) {
            if self.filter.matches(&payload) {
                matching += 1;
                run.get_or_insert((seq, start));
                self.skip_deadline = None;
            } else if let Some((first, from)) = run.take() {
                outbound.push_events(subscription, first, lines.slice(from..start));
            }
            start = end;
        }
        match run {
            Some((first, from)) => outbound.push_events(subscription, first, lines.slice(from..)),
            None => _ = self.skip_deadline.get_or_insert_with(|| now() + SKIP_INTERVAL_MS),
        }
        matching
    }
}
