//! What happened in a run.

use std::ops::AddAssign;

use crate::Group;
use crate::frontier::entry_text::DormantRef;

/// Counts of events, to check that a run was hard enough.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::tests) struct RunTotals {
    pub(in crate::tests) releases: u64,
    pub(in crate::tests) requests: u64,
    pub(in crate::tests) faults: u64,
    pub(in crate::tests) crashes: u64,
    pub(in crate::tests) clock_jumps: u64,
    pub(in crate::tests) outages: u64,
    pub(in crate::tests) network_losses: u64,
    pub(in crate::tests) unreadable_texts: u64,
    /// Answers to commands about rules.
    pub(in crate::tests) rules: u64,
    /// Requests for parts of pages.
    pub(in crate::tests) parts_permitted: u64,
    pub(in crate::tests) parts_refused: u64,
    /// Changes of the priority of pages that wait.
    pub(in crate::tests) bumps: u64,
    /// Entries that need a browser, with their texts outside memory, counted at each step.
    pub(in crate::tests) rendered_outside: u64,
}

impl AddAssign for RunTotals {
    fn add_assign(&mut self, other: Self) {
        self.releases += other.releases;
        self.requests += other.requests;
        self.faults += other.faults;
        self.crashes += other.crashes;
        self.clock_jumps += other.clock_jumps;
        self.outages += other.outages;
        self.network_losses += other.network_losses;
        self.unreadable_texts += other.unreadable_texts;
        self.rules += other.rules;
        self.parts_permitted += other.parts_permitted;
        self.parts_refused += other.parts_refused;
        self.bumps += other.bumps;
        self.rendered_outside += other.rendered_outside;
    }
}

impl RunTotals {
    /// Counts the entries that need a browser and have their texts outside memory now.
    pub(super) fn count_rendered_outside(&mut self, group: &Group) {
        let dormant = group.state.dormant();
        let is_outside = |entry: &DormantRef| entry.needs_render() && dormant.must_read(*entry);
        self.rendered_outside += dormant.iter().filter(is_outside).count() as u64;
    }
}
