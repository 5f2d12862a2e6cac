//! An index of one segment: where its batches begin, and which seqs have no event.

use std::ops::Range;

use tidings_protocol::Seq;

use super::segment_log::{Segment, SegmentTable};
use crate::format::BatchHeader;
use crate::topic_log::NewestEvents;

/// Bytes of a segment between two entries of its index.
const INDEX_BYTES: u64 = 256 << 10;

/// Some offsets of a segment, and all its seqs without an event.
#[derive(Debug, Clone)]
pub(super) struct SegmentIndex {
    /// Pairs of a seq and an offset: no batch before the offset holds the seq. Both ascend, with
    /// about one pair per [`INDEX_BYTES`].
    offsets: Vec<(Seq, u64)>,
    /// Ranges of seqs that no batch holds, oldest first: a crash or a full disk left them, or their
    /// batch is damaged.
    empty_ranges: Vec<Range<Seq>>,
    /// The seq after the newest event of the added batches.
    pub(super) end: Seq,
}

impl SegmentIndex {
    /// The index of a segment that begins at `base` and has no batch yet.
    pub(super) fn new(base: Seq) -> Self {
        Self { offsets: Vec::new(), empty_ranges: Vec::new(), end: base }
    }

    /// Adds the next batch, at `offset`. Returns whether readers need the updated index.
    pub(super) fn add(&mut self, header: &BatchHeader, offset: u64) -> bool {
        let last = self.offsets.last();
        // Entries must ascend, even if the file holds misplaced batches.
        let is_far =
            last.is_none_or(|(seq, last)| header.first > *seq && offset >= last + INDEX_BYTES);
        if is_far {
            self.offsets.push((header.first, offset));
        }
        if header.count == 0 || header.end() <= self.end {
            return is_far;
        }
        let leaves_empty = header.first > self.end;
        if leaves_empty {
            self.empty_ranges.push(self.end..header.first);
        }
        self.end = header.end();
        is_far || leaves_empty
    }

    /// Completes the index of a segment that ends at `end`: seqs that no batch holds are empty.
    pub(super) fn end_at(&mut self, end: Seq) {
        if self.end < end {
            self.empty_ranges.push(self.end..end);
            self.end = end;
        }
    }

    /// The offset at which a search for `seq` begins; `None` for the first batch.
    pub(super) fn offset(&self, seq: Seq) -> Option<u64> {
        let after = self.offsets.partition_point(|(first, _)| *first <= seq);
        after.checked_sub(1).map(|at| self.offsets[at].1)
    }

    /// The seq of the first of the newest `count` events in `base..end`; if there are fewer, how
    /// many are missing.
    pub(super) fn newest(&self, base: Seq, end: Seq, count: u64) -> Result<Seq, u64> {
        let (mut missing, mut end) = (count, end);
        let below = self.empty_ranges.partition_point(|empty| empty.start < end);
        let lowest = base..base;
        for empty in self.empty_ranges[..below].iter().rev().chain([&lowest]) {
            let events = end.0.saturating_sub(empty.end.0);
            if missing <= events {
                return Ok(Seq(end.0 - missing));
            }
            missing -= events;
            end = end.min(empty.start);
        }
        Err(missing)
    }
}

impl SegmentTable {
    /// [`TopicLog::newest`](crate::topic_log::TopicLog::newest).
    pub(super) fn newest(&self, count: u64, before: Seq) -> NewestEvents {
        let (mut missing, mut limit, mut next) = (count, before, None::<&Segment>);
        for segment in self.segments.iter().rev() {
            // Where the events of this segment end.
            let end = next.map_or(self.end, |next| next.previous_end).min(limit);
            next = Some(segment);
            if end <= segment.base {
                continue;
            }
            let Some(index) = &segment.index else {
                return NewestEvents {
                    missing,
                    from: self.first(before),
                    unknown: Some(segment.base),
                };
            };
            match index.newest(segment.base, end, missing) {
                Ok(from) => return NewestEvents { missing: 0, from, unknown: None },
                Err(left) => (missing, limit) = (left, segment.base),
            }
        }
        NewestEvents { missing, from: self.first(before), unknown: None }
    }

    /// The seq below which no event is kept, or `before` if that is less.
    fn first(&self, before: Seq) -> Seq {
        self.segments.front().map_or(self.end, |oldest| oldest.previous_end).min(before)
    }
}
