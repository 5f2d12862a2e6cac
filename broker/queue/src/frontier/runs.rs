//! The dormant entries of one key, in order: a run for each lane and priority, oldest entry first.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::lane::Lane;
use crate::entry::{EntryId, JobNumber};

/// Index of a dormant entry in memory.
pub(crate) type SlotId = u32;

/// No slot.
pub(crate) const NO_SLOT: SlotId = SlotId::MAX;

/// A lane in 32 bits, with the information whether its entries need a browser. Order: jobs by
/// number, announced entries, then the same for entries that need a browser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PackedLane(u32);

impl PackedLane {
    const RENDER: u32 = 1 << 31;
    const ANNOUNCED: u32 = Self::RENDER - 1;

    /// Packs a lane. Returns `None` for a job number above 31 bits; such entries are never dormant.
    pub(crate) fn new(lane: Lane, render: bool) -> Option<Self> {
        let number = match lane {
            Lane::Announced => Self::ANNOUNCED,
            Lane::Job(number) => {
                u32::try_from(number).ok().filter(|number| *number < Self::ANNOUNCED)?
            }
        };
        Some(Self(if render { number | Self::RENDER } else { number }))
    }

    /// Packs a lane both ways: for entries that need no browser, and for those that do.
    pub(crate) fn both(lane: Lane) -> impl Iterator<Item = Self> {
        [false, true].into_iter().filter_map(move |render| Self::new(lane, render))
    }

    /// Reports whether its entries need a browser.
    pub(crate) fn needs_render(self) -> bool {
        self.0 >= Self::RENDER
    }

    /// Returns the lane.
    pub(crate) fn lane(self) -> Lane {
        self.job().map_or(Lane::Announced, Lane::Job)
    }

    /// Returns the job of the lane, if it has one.
    pub(crate) fn job(self) -> Option<JobNumber> {
        let number = self.0 & !Self::RENDER;
        (number != Self::ANNOUNCED).then(|| number.into())
    }
}

/// The entries of one lane and priority: a linked list of slots, sorted by id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DormantRun {
    /// The id of the first entry.
    pub(crate) first_entry: EntryId,
    /// The first and the last slot.
    pub(crate) first: SlotId,
    pub(crate) last: SlotId,
    pub(crate) lane: PackedLane,
    pub(crate) prio: i16,
}

impl DormantRun {
    fn order(&self) -> (PackedLane, Reverse<i16>) {
        (self.lane, Reverse(self.prio))
    }
}

/// The runs of a key. None of them is empty.
#[derive(Debug, Default)]
pub(crate) struct DormantRuns {
    /// Sorted by lane, then by priority from high to low. Inline for one run, because most keys
    /// have one, and there may be millions of keys.
    runs: SmallVec<[DormantRun; 1]>,
    len: u32,
}

impl DormantRuns {
    /// Counts the entries of all runs.
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Reports whether the runs have no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reports whether any entry needs a browser.
    pub(crate) fn has_rendered(&self) -> bool {
        self.runs.last().is_some_and(|run| run.lane.needs_render())
    }

    /// Returns priority and id of the first entry of a lane, of those that need a browser or of the
    /// others.
    pub(crate) fn first_of(&self, render: bool, lane: Lane) -> Option<(Reverse<i16>, EntryId)> {
        let lane = PackedLane::new(lane, render)?;
        let run = self.runs.get(self.runs.partition_point(|run| run.lane < lane))?;
        (run.lane == lane).then_some((Reverse(run.prio), run.first_entry))
    }

    /// Returns the first job from this number on that has a run of entries that need a browser, or
    /// of others.
    pub(crate) fn job_from(&self, render: bool, number: JobNumber) -> Option<JobNumber> {
        let lane = PackedLane::new(Lane::Job(number), render)?;
        let found = self.runs.get(self.runs.partition_point(|run| run.lane < lane))?.lane;
        found.job().filter(|_| found.needs_render() == render)
    }

    /// Returns the first slot of any run of a lane.
    pub(crate) fn first_slot_of(&self, lane: PackedLane) -> Option<SlotId> {
        let run = self.runs.get(self.runs.partition_point(|run| run.lane < lane))?;
        (run.lane == lane).then_some(run.first)
    }

    /// Returns any run, usually the only one.
    pub(crate) fn any_run(&self) -> Option<&DormantRun> {
        self.runs.first()
    }

    /// Reports whether a lane has a run.
    pub(crate) fn has_lane(&self, lane: PackedLane) -> bool {
        self.first_slot_of(lane).is_some()
    }

    /// Appends an entry to the run of its lane and priority. Returns the slot before it, if any.
    pub(crate) fn append(
        &mut self,
        lane: PackedLane,
        prio: i16,
        id: EntryId,
        slot: SlotId,
    ) -> Option<SlotId> {
        self.len += 1;
        match self.runs.binary_search_by_key(&(lane, Reverse(prio)), DormantRun::order) {
            Ok(at) => Some(std::mem::replace(&mut self.runs[at].last, slot)),
            Err(at) => {
                let run = DormantRun { first_entry: id, first: slot, last: slot, lane, prio };
                self.runs.insert(at, run);
                None
            }
        }
    }

    /// Removes the entry between `before` and `after`; `after` comes with its id.
    pub(crate) fn remove(
        &mut self,
        (lane, slot): (PackedLane, SlotId),
        before: SlotId,
        after: Option<(SlotId, EntryId)>,
    ) {
        self.len -= 1;
        if before != NO_SLOT && after.is_some() {
            return;
        }
        let of_lane = self.runs.partition_point(|run| run.lane < lane);
        let at = self.runs[of_lane..].iter().position(|run| run.first == slot || run.last == slot);
        let at = of_lane + at.expect("a run knows its first and last entry");
        match after {
            Some((after, id)) => (self.runs[at].first, self.runs[at].first_entry) = (after, id),
            None if before == NO_SLOT => {
                self.runs.remove(at);
                if self.runs.is_empty() {
                    self.runs = SmallVec::new();
                }
            }
            None => self.runs[at].last = before,
        }
    }

    /// Returns the runs, for sorting.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut DormantRun> {
        self.runs.iter_mut()
    }
}
