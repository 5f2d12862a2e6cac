//! Watermarks of a topic: which events are visible, handed to the log, and durable.
//!
//! ```text
//!     kept on disk      │  being written   │    waits     │ not shown yet
//!  ─────────────────────┼──────────────────┼──────────────┼──────────────▶
//!                    durable           submitted       visible         head
//! ```
//!
//! Subscribers see an event before it is on disk, but only if its seq is reserved. After a crash
//! the broker skips all reserved seqs, so no seq is ever assigned twice.

use std::collections::VecDeque;
use std::ops::Range;

use tidings_log::RESERVED_MAX;
use tidings_protocol::{Code, Durability, Seq};

/// Seqs that a topic with few events reserves. A crash skips them.
const RESERVED_MIN: u64 = 1 << 10;

/// A reservation lasts for this many commits of the size of the last one.
const RESERVED_COMMITS: u64 = 16;

/// Ranges of lost events that are remembered exactly.
const LOST_MAX: usize = 1024;

/// Whether a topic accepts events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It accepts events.
    Good,
    /// The disk is full. The topic accepts events again when there is room.
    Full,
    /// A write failed. The topic accepts events after a restart, which finds out what is on the
    /// disk.
    Failed,
}

impl Health {
    /// The error code for publishers; `None` if events are accepted.
    pub(crate) fn refusal(self) -> Option<Code> {
        match self {
            Self::Good => None,
            Self::Full => Some(Code::Full),
            Self::Failed => Some(Code::NotDurable),
        }
    }
}

/// The watermarks of one topic; `durable <= taken <= head`.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and not a state")]
pub(super) struct TopicWatermarks {
    /// The first seq that is not as safe as the topic promises.
    pub(super) durable: Seq,
    /// The first seq that was not handed to the log.
    pub(super) submitted: Seq,
    /// Seqs below this are reserved, so their events may be shown.
    pub(super) reserved: Seq,
    /// Number of seqs reserved at once; 0 turns reservation off.
    reserve_count: u64,
    /// Ranges of events that got a seq and can never become durable, oldest first.
    lost_ranges: VecDeque<(Range<Seq>, Code)>,
    /// Below this seq, lost ranges have been forgotten; treat every event there as possibly lost.
    lost_forgotten: Option<(Seq, Code)>,
    pub(super) health: Health,
    /// The broker stops: no seq is assigned any more.
    pub(super) closed: bool,
    /// The topic is in the committer's queue or being committed; in memory, a reservation is
    /// pending.
    pub(super) is_queued: bool,
    /// A sync is due, even if there is nothing to append.
    pub(super) sync_due: bool,
    /// The log holds data that was not synced yet (`sync=interval`).
    pub(super) has_unsynced: bool,
}

impl TopicWatermarks {
    /// Watermarks that begin at `next`, with seqs below `reserved` reserved.
    pub(super) fn new(next: Seq, reserved: Seq) -> Self {
        Self {
            durable: next,
            submitted: next,
            reserved,
            reserve_count: RESERVED_MIN,
            lost_ranges: VecDeque::new(),
            lost_forgotten: None,
            health: Health::Good,
            closed: false,
            is_queued: false,
            sync_due: false,
            has_unsynced: false,
        }
    }

    /// As [`new`](Self::new), for a topic that always reserves `reserve` seqs at once.
    pub(super) fn in_memory(next: Seq, reserved: Seq, reserve_count: u64) -> Self {
        Self { reserve_count, ..Self::new(next, reserved) }
    }

    /// Turns reservation off: readers see no event before it is durable.
    pub(super) fn disable_reservation(&mut self) {
        self.reserve_count = 0;
    }

    /// Whether the committer has work, when `head` is the next seq.
    pub(super) fn has_work(&self, head: Seq) -> bool {
        self.health == Health::Good && (self.submitted < head || self.sync_due)
            || self.needs_reservation(head)
    }

    /// Whether seqs can and should be reserved.
    pub(super) fn needs_reservation(&self, head: Seq) -> bool {
        self.health == Health::Good && self.is_reservation_low(head)
    }

    /// Whether few reserved seqs are left, so that more are needed.
    pub(super) fn is_reservation_low(&self, head: Seq) -> bool {
        self.reserved.0 < head.0.saturating_add(self.reserve_count / 2)
    }

    /// Returns the seq below which to reserve, for a commit of `count` events. `synced`: every
    /// commit is synced, so the next one can extend the reservation.
    pub(super) fn reserve(&mut self, head: Seq, count: u64, synced: bool) -> Seq {
        if self.reserve_count > 0 {
            let wanted = if synced { count * RESERVED_COMMITS } else { RESERVED_MAX };
            self.reserve_count = wanted.clamp(RESERVED_MIN, RESERVED_MAX);
        }
        Seq(head.0.saturating_add(self.reserve_count))
    }

    /// Advances the watermarks after a commit.
    pub(super) fn advance(&mut self, durable: Seq, reserved: Seq) {
        self.durable = self.durable.max(durable);
        self.reserved = self.reserved.max(reserved);
    }

    /// Marks the events from `durable` to `head` as lost, and returns that range.
    pub(super) fn mark_lost(&mut self, head: Seq, health: Health) -> Range<Seq> {
        let range = self.durable..head;
        self.health = health;
        if let Some(code) = health.refusal().filter(|_| range.start < range.end) {
            match self.lost_ranges.back_mut() {
                Some((last, known)) if last.end == range.start && *known == code => {
                    last.end = range.end;
                }
                _ => self.lost_ranges.push_back((range.clone(), code)),
            }
            if self.lost_ranges.len() > LOST_MAX {
                self.lost_forgotten =
                    self.lost_ranges.pop_front().map(|(range, code)| (range.end, code));
            }
        }
        (self.durable, self.submitted) = (head, head);
        range
    }

    /// After a failed sync, the first event that may or may not be on the disk. The next start
    /// finds out. Until then the broker must not report it as missing.
    pub(super) fn uncertain_from(&self) -> Seq {
        let newest = self.lost_ranges.back().filter(|_| self.health == Health::Failed);
        newest.map_or(Seq(u64::MAX), |(range, code)| match code {
            Code::NotDurable => range.start,
            _ => Seq(u64::MAX),
        })
    }

    pub(super) fn has_lost(&self) -> bool {
        !self.lost_ranges.is_empty()
    }

    /// The state of an event, and the seq up to which the following events share it.
    pub(super) fn fate(&self, seq: Seq) -> (Durability, Seq) {
        if let Some((before, code)) = self.lost_forgotten.filter(|(before, _)| seq < *before) {
            // The event may have been kept. If the publisher sends it again, nothing is lost.
            return (Durability::Lost(code), before);
        }
        let at = self.lost_ranges.partition_point(|(range, _)| range.end <= seq);
        match self.lost_ranges.get(at) {
            Some((range, code)) if range.start <= seq => (Durability::Lost(*code), range.end),
            next if seq < self.durable => {
                let end = next.map_or(self.durable, |(range, _)| range.start.min(self.durable));
                (Durability::Durable, end)
            }
            _ => (Durability::Pending, Seq(u64::MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fate_distinguishes_lost_safe_and_waiting_events() {
        let mut marks = TopicWatermarks::new(Seq(10), Seq(100));
        assert_eq!(marks.fate(Seq(9)), (Durability::Durable, Seq(10)));
        assert_eq!(marks.fate(Seq(10)).0, Durability::Pending);
        marks.advance(Seq(20), Seq(100));
        assert_eq!(marks.mark_lost(Seq(30), Health::Full), Seq(20)..Seq(30));
        assert_eq!(marks.fate(Seq(15)), (Durability::Durable, Seq(20)));
        assert_eq!(marks.fate(Seq(20)), (Durability::Lost(Code::Full), Seq(30)));
        assert_eq!(marks.fate(Seq(30)).0, Durability::Pending);
        marks.advance(Seq(40), Seq(100));
        assert_eq!(marks.fate(Seq(30)), (Durability::Durable, Seq(40)));
        assert_eq!(
            marks.uncertain_from(),
            Seq(u64::MAX),
            "events lost on a full disk are certainly not there"
        );
        assert_eq!(marks.mark_lost(Seq(40), Health::Failed), Seq(40)..Seq(40));
        assert_eq!(marks.health.refusal(), Some(Code::NotDurable));
        assert_eq!(marks.fate(Seq(40)).0, Durability::Pending);
        assert_eq!(marks.uncertain_from(), Seq(u64::MAX), "nothing was lost");
        marks.mark_lost(Seq(45), Health::Failed);
        assert_eq!(marks.uncertain_from(), Seq(40));
    }

    #[test]
    fn events_in_forgotten_ranges_count_as_lost() {
        let mut marks = TopicWatermarks::new(Seq(0), Seq(100));
        for at in (0..10_000).step_by(2) {
            marks.advance(Seq(at + 1), Seq(0));
            marks.mark_lost(Seq(at + 2), Health::Full);
        }
        assert_eq!(marks.lost_ranges.len(), LOST_MAX);
        assert_eq!(marks.fate(Seq(0)).0, Durability::Lost(Code::Full));
        assert_eq!(marks.fate(Seq(9_998)), (Durability::Durable, Seq(9_999)));
        assert_eq!(marks.fate(Seq(9_999)), (Durability::Lost(Code::Full), Seq(10_000)));
    }
}
