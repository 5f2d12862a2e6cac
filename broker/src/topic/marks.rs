//! How far the events of a topic have come: numbered, seen, handed to the log, safe.
//!
//! ```text
//!     kept on disk      │  being written   │    waits     │ not shown yet
//!  ─────────────────────┼──────────────────┼──────────────┼──────────────▶
//!                    durable             taken         visible         head
//! ```
//!
//! Subscribers are shown what is numbered, ahead of the disk, but no number that is not reserved:
//! after a crash every number below the reservation is skipped, so none is ever given twice.

use std::collections::VecDeque;
use std::ops::Range;

use tidings_protocol::{Code, Fate, Seq};

use crate::log::RESERVED_MAX;

/// Numbers that are reserved for a topic that gets few events, and are skipped after a crash.
const RESERVED_MIN: u64 = 1 << 10;

/// Commits, as large as the last one, that the reserved numbers should last for.
const RESERVED_COMMITS: u64 = 16;

/// Ranges of lost events that are remembered one by one.
const LOST_MAX: usize = 1024;

/// Whether a topic takes events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Good,
    /// The disk is full. It will when there is room again.
    Full,
    /// Writing failed. It will after a restart, which finds out what is on the disk.
    Failed,
}

impl Health {
    /// The refusal, if it takes none.
    pub(crate) fn refusal(self) -> Option<Code> {
        match self {
            Self::Good => None,
            Self::Full => Some(Code::Full),
            Self::Failed => Some(Code::NotDurable),
        }
    }
}

/// The marks of one topic; `durable <= taken <= head`.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and not a state")]
pub(super) struct Marks {
    /// The first number that is not as safe as the topic promises.
    pub(super) durable: Seq,
    /// The first number that was not handed to the log.
    pub(super) taken: Seq,
    /// Numbers below may be shown.
    pub(super) reserved: Seq,
    /// How many numbers are reserved at once; 0: none ever.
    reserve: u64,
    /// Events that were numbered and will never be safe, oldest first.
    lost: VecDeque<(Range<Seq>, Code)>,
    /// Of events before this number it is not remembered any more which were lost.
    forgotten: Option<(Seq, Code)>,
    pub(super) health: Health,
    /// The broker stops: no more numbers are given.
    pub(super) closed: bool,
    /// With the committer, or in its queue; in memory, numbers were asked for.
    pub(super) queued: bool,
    /// What was appended is to be synced though there is nothing to append.
    pub(super) sync_due: bool,
    /// The log holds something that was not synced (`sync=interval`).
    pub(super) unsynced: bool,
}

impl Marks {
    /// Begins at `next`, with numbers below `reserved` reserved.
    pub(super) fn new(next: Seq, reserved: Seq) -> Self {
        Self {
            durable: next,
            taken: next,
            reserved,
            reserve: RESERVED_MIN,
            lost: VecDeque::new(),
            forgotten: None,
            health: Health::Good,
            closed: false,
            queued: false,
            sync_due: false,
            unsynced: false,
        }
    }

    /// As [`new`](Self::new), for a topic that reserves so many numbers at once.
    pub(super) fn in_memory(next: Seq, reserved: Seq, reserve: u64) -> Self {
        Self { reserve, ..Self::new(next, reserved) }
    }

    /// Nobody is shown a number before its event is safe, so none need to be reserved.
    pub(super) fn reserve_none(&mut self) {
        self.reserve = 0;
    }

    /// Whether there is something for the committer when `head` is the next number.
    pub(super) fn has_work(&self, head: Seq) -> bool {
        self.health == Health::Good && (self.taken < head || self.sync_due)
            || self.lacks_numbers(head)
    }

    /// Whether numbers can and should be reserved.
    pub(super) fn lacks_numbers(&self, head: Seq) -> bool {
        self.health == Health::Good && self.reserves_little(head)
    }

    /// Whether so few reserved numbers are left that more should be.
    pub(super) fn reserves_little(&self, head: Seq) -> bool {
        self.reserved.0 < head.0.saturating_add(self.reserve / 2)
    }

    /// The numbers below this are to be reserved with a commit of `count` events. `synced`: it is
    /// synced, so that the next one can reserve more.
    pub(super) fn reserve(&mut self, head: Seq, count: u64, synced: bool) -> Seq {
        if self.reserve > 0 {
            let wanted = if synced { count * RESERVED_COMMITS } else { RESERVED_MAX };
            self.reserve = wanted.clamp(RESERVED_MIN, RESERVED_MAX);
        }
        Seq(head.0.saturating_add(self.reserve))
    }

    /// What the committer took is as safe as the topic promises.
    pub(super) fn settle(&mut self, durable: Seq, reserved: Seq) {
        self.durable = self.durable.max(durable);
        self.reserved = self.reserved.max(reserved);
    }

    /// Nothing that is not safe yet will ever be. The events up to `head` are gone.
    pub(super) fn lose(&mut self, head: Seq, health: Health) -> Range<Seq> {
        let range = self.durable..head;
        self.health = health;
        if let Some(code) = health.refusal().filter(|_| range.start < range.end) {
            match self.lost.back_mut() {
                Some((last, known)) if last.end == range.start && *known == code => {
                    last.end = range.end;
                }
                _ => self.lost.push_back((range.clone(), code)),
            }
            if self.lost.len() > LOST_MAX {
                self.forgotten = self.lost.pop_front().map(|(range, code)| (range.end, code));
            }
        }
        (self.durable, self.taken) = (head, head);
        range
    }

    /// Where the events begin of which nobody knows whether they are on the disk, after a sync that
    /// failed. The next start finds out; until then nobody is told that they are not there.
    pub(super) fn doubtful(&self) -> Seq {
        let newest = self.lost.back().filter(|_| self.health == Health::Failed);
        newest.map_or(Seq(u64::MAX), |(range, code)| match code {
            Code::NotDurable => range.start,
            _ => Seq(u64::MAX),
        })
    }

    /// Whether anything was ever lost.
    pub(super) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// What has become of an event, and up to which number the same is true.
    pub(super) fn fate(&self, seq: Seq) -> (Fate, Seq) {
        if let Some((before, code)) = self.forgotten.filter(|(before, _)| seq < *before) {
            // It may have been kept. Who is told otherwise sends it again.
            return (Fate::Lost(code), before);
        }
        let at = self.lost.partition_point(|(range, _)| range.end <= seq);
        match self.lost.get(at) {
            Some((range, code)) if range.start <= seq => (Fate::Lost(*code), range.end),
            next if seq < self.durable => {
                let end = next.map_or(self.durable, |(range, _)| range.start.min(self.durable));
                (Fate::Safe, end)
            }
            _ => (Fate::Waiting, Seq(u64::MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_told_from_what_is_safe_and_what_waits() {
        let mut marks = Marks::new(Seq(10), Seq(100));
        assert_eq!(marks.fate(Seq(9)), (Fate::Safe, Seq(10)));
        assert_eq!(marks.fate(Seq(10)).0, Fate::Waiting);
        marks.settle(Seq(20), Seq(100));
        assert_eq!(marks.lose(Seq(30), Health::Full), Seq(20)..Seq(30));
        assert_eq!(marks.fate(Seq(15)), (Fate::Safe, Seq(20)));
        assert_eq!(marks.fate(Seq(20)), (Fate::Lost(Code::Full), Seq(30)));
        assert_eq!(marks.fate(Seq(30)).0, Fate::Waiting);
        marks.settle(Seq(40), Seq(100));
        assert_eq!(marks.fate(Seq(30)), (Fate::Safe, Seq(40)));
        assert_eq!(marks.doubtful(), Seq(u64::MAX), "what was lost on a full disk is not there");
        assert_eq!(marks.lose(Seq(40), Health::Failed), Seq(40)..Seq(40));
        assert_eq!(marks.health.refusal(), Some(Code::NotDurable));
        assert_eq!(marks.fate(Seq(40)).0, Fate::Waiting);
        assert_eq!(marks.doubtful(), Seq(u64::MAX), "nothing was lost");
        marks.lose(Seq(45), Health::Failed);
        assert_eq!(marks.doubtful(), Seq(40));
    }

    #[test]
    fn what_is_not_remembered_counts_as_lost() {
        let mut marks = Marks::new(Seq(0), Seq(100));
        for at in (0..10_000).step_by(2) {
            marks.settle(Seq(at + 1), Seq(0));
            marks.lose(Seq(at + 2), Health::Full);
        }
        assert_eq!(marks.lost.len(), LOST_MAX);
        assert_eq!(marks.fate(Seq(0)).0, Fate::Lost(Code::Full));
        assert_eq!(marks.fate(Seq(9_998)), (Fate::Safe, Seq(9_999)));
        assert_eq!(marks.fate(Seq(9_999)), (Fate::Lost(Code::Full), Seq(10_000)));
    }
}
