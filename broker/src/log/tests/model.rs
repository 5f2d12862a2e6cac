//! What a log owes, kept as naively as possible.

use std::collections::{BTreeMap, BTreeSet};

use super::Heard;

/// An event that was appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) line: Vec<u8>,
    pub(super) unix_ms: i64,
    /// It was synced, or found by a start.
    pub(super) confirmed: bool,
}

/// Everything that happened to one topic in all its runs.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// The next number to be given.
    pub(super) next: u64,
    /// What was appended and not lost, also what retention has let go of.
    pub(super) events: BTreeMap<u64, Event>,
    /// Events in the order in which they were appended since the last sync.
    pub(super) unsynced: Vec<u64>,
    /// What subscribers may have seen: their numbers name these events for ever.
    pub(super) seen: BTreeMap<u64, Vec<u8>>,
    /// Events that the log has refused, or lost before they were confirmed.
    pub(super) refused: BTreeSet<u64>,
    /// Numbers below are reserved safely in this run.
    pub(super) reserved: u64,
    /// After a crash no number below is given.
    pub(super) floor: u64,
    /// Events before may be gone.
    pub(super) kept_from: u64,
    /// Events before must be gone.
    pub(super) cleared_to: u64,
}

impl Model {
    pub(super) fn new() -> Self {
        Self { next: 1, floor: 1, kept_from: 1, ..Self::default() }
    }

    /// Gives the next number to an event, which is shown at once if that is allowed.
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

    /// Everything that was appended is safe, and so are the numbers below `reserved`.
    pub(super) fn synced(&mut self, reserved: u64) {
        for seq in std::mem::take(&mut self.unsynced) {
            let event = self.events.get_mut(&seq).expect("it was appended");
            event.confirmed = true;
            let line = event.line.clone();
            self.show(seq, &line);
        }
        self.reserved = self.reserved.max(reserved);
        self.floor = self.floor.max(reserved);
    }

    /// Events before `first` went with their segments.
    pub(super) fn let_go(&mut self, first: u64) {
        self.kept_from = self.kept_from.max(first);
        self.unsynced.retain(|seq| *seq >= first);
    }

    /// The number after the newest event.
    pub(super) fn end(&self) -> u64 {
        self.events.last_key_value().map_or(0, |(seq, _)| seq + 1)
    }

    /// Compares what a running log says from `from` on.
    pub(super) fn check(&self, from: u64, heard: &[Heard]) {
        let mut cursor = from;
        for heard in heard {
            match heard {
                Heard::Event(seq, line) => {
                    let event = self.events.get(seq);
                    assert_eq!(event.map(|event| &event.line), Some(line), "event {seq}");
                    assert!(*seq >= self.cleared_to, "event {seq} was cleared away");
                    cursor = seq + 1;
                }
                Heard::Lag(first, last) => {
                    assert!(*last < self.kept_from, "{first}..={last} were not let go of");
                    cursor = last + 1;
                }
                Heard::Gap(first, last) => {
                    let kept = self.events.range(first..=last).next();
                    assert!(kept.is_none(), "{first}..={last} is no gap: {kept:?}");
                    cursor = last + 1;
                }
            }
        }
        assert!(cursor >= self.end(), "it ends at {cursor} before {}", self.end());
    }

    /// A start after a crash: what was not confirmed is there or not, but nothing else.
    pub(super) fn recovered(&mut self, heard: &[Heard], next: u64) {
        let found: BTreeSet<u64> = heard
            .iter()
            .filter_map(|heard| if let Heard::Event(seq, _) = heard { Some(*seq) } else { None })
            .collect();
        let unsynced = std::mem::take(&mut self.unsynced);
        let survived = unsynced.iter().take_while(|seq| found.contains(seq)).count();
        for (at, seq) in unsynced.into_iter().enumerate() {
            if at < survived {
                let event = self.events.get_mut(&seq).expect("it was appended");
                event.confirmed = true;
                let line = event.line.clone();
                self.show(seq, &line);
            } else {
                assert!(!found.contains(&seq), "{seq} survived, and others before it did not");
                self.events.remove(&seq);
                self.refused.insert(seq);
            }
        }
        self.check(1, heard);
        assert!(
            next >= self.floor,
            "{next} is given although those below {} may be known",
            self.floor
        );
        assert!(next >= self.end(), "{next} is given although events end at {}", self.end());
        let newest_seen = self.seen.last_key_value().map_or(0, |(seq, _)| *seq);
        assert!(next > newest_seen, "{next} is given although {newest_seen} was seen");
        (self.next, self.reserved, self.floor) = (next, next, next);
    }
}
