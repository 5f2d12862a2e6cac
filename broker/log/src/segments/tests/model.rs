//! A naive model of a log.

use std::collections::{BTreeMap, BTreeSet};

use super::Heard;

/// An appended event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) line: Vec<u8>,
    pub(super) unix_ms: i64,
    /// The event was synced, or found by a start.
    pub(super) confirmed: bool,
}

/// The history of one topic over all runs.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// The next seq to assign.
    pub(super) next: u64,
    /// Events that were appended and not lost, including those that retention has removed.
    pub(super) events: BTreeMap<u64, Event>,
    /// Events since the last sync, in order.
    pub(super) unsynced: Vec<u64>,
    /// Events that subscribers may have seen. Their seqs must not get other events.
    pub(super) seen: BTreeMap<u64, Vec<u8>>,
    /// Events that the log has rejected, or lost before they were confirmed.
    pub(super) refused: BTreeSet<u64>,
    /// Seqs below this are durably reserved in this run.
    pub(super) reserved: u64,
    /// After a crash, no seq below this is assigned.
    pub(super) floor: u64,
    /// Events before this may be gone.
    pub(super) kept_from: u64,
    /// Events before this must be gone.
    pub(super) cleared_to: u64,
}

impl Model {
    pub(super) fn new() -> Self {
        Self { next: 1, floor: 1, kept_from: 1, ..Self::default() }
    }

    /// Assigns the next seq to an event, which becomes visible at once if its seq is reserved.
    pub(super) fn give(&mut self, line: &[u8]) {
        let seq = self.next;
        self.next += 1;
        let before = self.seen.get(&seq);
        assert!(before.is_none_or(|before| before == line), "{seq} names two events");
        assert!(!self.events.contains_key(&seq), "{seq} names an event that is kept");
        if seq < self.reserved {
            self.show(seq, line);
        }
    }

    fn show(&mut self, seq: u64, line: &[u8]) {
        let before = self.seen.insert(seq, line.to_vec());
        assert!(before.is_none_or(|before| before == line), "{seq} names two events");
    }

    /// Everything appended is durable, and seqs below `reserved` are reserved.
    pub(super) fn synced(&mut self, reserved: u64) {
        for seq in std::mem::take(&mut self.unsynced) {
            let event = self.events.get_mut(&seq).expect("the event was appended");
            event.confirmed = true;
            let line = event.line.clone();
            self.show(seq, &line);
        }
        self.reserved = self.reserved.max(reserved);
        self.floor = self.floor.max(reserved);
    }

    /// Retention has removed the segments with the events before `first`.
    pub(super) fn let_go(&mut self, first: u64) {
        self.kept_from = self.kept_from.max(first);
        self.unsynced.retain(|seq| *seq >= first);
    }

    /// The seq after the newest event.
    pub(super) fn end(&self) -> u64 {
        self.events.last_key_value().map_or(0, |(seq, _)| seq + 1)
    }

    /// Compares what a reader of the running log receives from `from` on.
    pub(super) fn check(&self, from: u64, heard: &[Heard]) {
        let mut cursor = from;
        for heard in heard {
            match heard {
                Heard::Event(seq, line) => {
                    let event = self.events.get(seq);
                    assert_eq!(event.map(|event| &event.line), Some(line), "event {seq}");
                    assert!(*seq >= self.cleared_to, "event {seq} should be gone");
                    cursor = seq + 1;
                }
                Heard::Lag(first, last) => {
                    assert!(*last < self.kept_from, "{first}..={last} should be kept");
                    cursor = last + 1;
                }
                Heard::Gap(first, last) => {
                    let kept = self.events.range(first..=last).next();
                    assert!(kept.is_none(), "{first}..={last} is not a gap: {kept:?}");
                    cursor = last + 1;
                }
            }
        }
        assert!(cursor >= self.end(), "the log ends at {cursor} before {}", self.end());
    }

    /// After a crash, unconfirmed events may be there or not, but no others.
    pub(super) fn recovered(&mut self, heard: &[Heard], next: u64) {
        let found: BTreeSet<u64> = heard
            .iter()
            .filter_map(|heard| if let Heard::Event(seq, _) = heard { Some(*seq) } else { None })
            .collect();
        let unsynced = std::mem::take(&mut self.unsynced);
        let survived = unsynced.iter().take_while(|seq| found.contains(seq)).count();
        for (at, seq) in unsynced.into_iter().enumerate() {
            if at < survived {
                let event = self.events.get_mut(&seq).expect("the event was appended");
                event.confirmed = true;
                let line = event.line.clone();
                self.show(seq, &line);
            } else {
                assert!(!found.contains(&seq), "event {seq} survived, but not those before it");
                self.events.remove(&seq);
                self.refused.insert(seq);
            }
        }
        self.check(1, heard);
        assert!(
            next >= self.floor,
            "{next} is assigned although seqs below {} may be known",
            self.floor
        );
        assert!(next >= self.end(), "{next} is assigned although events end at {}", self.end());
        let newest_seen = self.seen.last_key_value().map_or(0, |(seq, _)| *seq);
        assert!(next > newest_seen, "{next} is assigned although {newest_seen} was seen");
        (self.next, self.reserved, self.floor) = (next, next, next);
    }
}
