//! The order of release: which of the free keys goes next.
//!
//! Each free key is listed once, under the class of its next entry. Announced entries take turns
//! with those of jobs, and jobs take turns with each other. Within a lane the highest priority goes
//! first. Among equals the choice is random, so that no host is always last. In a group without keys,
//! where each event has its own key, the oldest goes first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use hashbrown::HashMap;
use smallvec::SmallVec;
use tidings_protocol::MemberId;

use super::keys::KeyId;
use super::lane::Lane;
use crate::entry::{Demand, EntryId, JobNumber};
use crate::leases::Members;
use crate::mutants::{self, Mutant};

/// The class of a free key's next entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadyClass {
    /// The entry is pinned to one member.
    Pinned(Pin),
    /// The entry is a suspect, only for a member that holds no other suspect.
    Suspect(Lane),
    /// Any member may receive the entry.
    Any(Lane, Rank),
}

/// The place of an entry in its lane: lower ranks go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    prio: Reverse<i16>,
    /// The entry, in a group without keys. `None` in other groups, where entries of one priority
    /// are equal.
    entry: Option<EntryId>,
}

impl Rank {
    /// Lower than all others.
    pub(super) const FIRST: Self = Self::new(i16::MAX, None);

    pub(super) const fn new(prio: i16, entry: Option<EntryId>) -> Self {
        Self { prio: Reverse(prio), entry }
    }

    /// The first rank of its priority.
    pub(crate) fn first_of_priority(self) -> Self {
        Self { entry: None, ..self }
    }
}

/// The member for which an entry waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pin {
    /// The only member that can continue the task.
    pub(crate) member: MemberId,
    /// Whether it is also a suspect, so that the member must hold no other.
    pub(crate) suspect: bool,
}

/// The free keys by the class of their next entry.
#[derive(Debug, Default)]
pub(crate) struct ReadyKeys {
    /// Whether the entries need a browser.
    render: bool,
    /// The position of each key, by its id.
    positions: Vec<Option<Position>>,
    pins: HashMap<KeyId, Pin>,
    /// The next entry of each key that any member may receive, in a group without keys.
    entries: HashMap<KeyId, EntryId>,
    pinned: BTreeMap<Pin, KeySet>,
    suspects: BTreeMap<Lane, KeySet>,
    announced: KeysByRank,
    jobs: BTreeMap<JobNumber, KeysByRank>,
    /// Jobs with their whole budget in flight, and the keys of these jobs. Nothing of them is
    /// released until some of the budget is returned. Pinned entries are part of the budget in
    /// flight.
    blocked: BTreeMap<JobNumber, KeysByRank>,
    last_was_announced: bool,
    last_job: JobNumber,
    /// While set, no key is listed, and nothing is released.
    is_deferred: bool,
}

/// The class of a key and its index there. Small, because there are millions.
#[derive(Debug, Clone, Copy)]
struct Position {
    class: PositionClass,
    index: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PositionClass {
    /// The member is in `pins`.
    Pinned,
    Suspect(Lane),
    /// The rest of the rank is in `entries`.
    Any(Lane, i16),
}

/// In a group without keys, most sets have one key.
type KeySet = SmallVec<[KeyId; 2]>;

impl ReadyKeys {
    /// Creates an empty set. `render` says whether the entries need a browser.
    pub(super) fn new(render: bool) -> Self {
        Self { render, ..Self::default() }
    }

    /// Lists no keys before [`start`](Self::start). A start is faster when it lists all keys at its
    /// end.
    pub(crate) fn defer(&mut self) {
        self.is_deferred = true;
    }

    /// Ends the deferral: the caller lists every key.
    pub(crate) fn start(&mut self) {
        debug_assert!(self.is_deferred, "a start defers the listing of keys");
        self.is_deferred = false;
    }

    /// Returns an empty set that is deferred in the same way.
    pub(crate) fn cleared(&self) -> Self {
        Self { is_deferred: self.is_deferred, ..Self::new(self.render) }
    }

    /// Lists a key under a class, or removes it (`None`).
    pub(crate) fn set_class(
        &mut self,
        key: KeyId,
        place: Option<ReadyClass>,
        rng: &mut fastrand::Rng,
    ) {
        if self.is_deferred || self.class_of(key) == place {
            return;
        }
        self.remove(key);
        if let Some(place) = place {
            self.insert(key, place, Some(rng));
        }
    }

    /// Lists a key that is in no class, so that it goes next in this one.
    pub(crate) fn set_next(&mut self, key: KeyId, place: ReadyClass) {
        debug_assert!(self.class_of(key).is_none(), "the key is not listed");
        self.insert(key, place, None);
    }

    fn class_of(&self, key: KeyId) -> Option<ReadyClass> {
        let spot = self.positions.get(key.index()).copied().flatten()?;
        Some(match spot.class {
            PositionClass::Pinned => ReadyClass::Pinned(self.pins[&key]),
            PositionClass::Suspect(lane) => ReadyClass::Suspect(lane),
            PositionClass::Any(lane, prio) => {
                ReadyClass::Any(lane, Rank::new(prio, self.entries.get(&key).copied()))
            }
        })
    }

    /// Returns the key that is released next to one of the members, and its class. Only pinned keys
    /// and suspects of the `skipped` lanes are released.
    pub(crate) fn next(&self, members: &Members, skipped: &[Lane]) -> Option<(KeyId, ReadyClass)> {
        let demand = |suspect| Demand { suspect, render: self.render };
        let pinned =
            self.pinned.iter().find(|(pin, _)| members.has_credit(pin.member, demand(pin.suspect)));
        if let Some((pin, keys)) = pinned {
            return Some((next_key(keys), ReadyClass::Pinned(*pin)));
        }
        if members.any_has_credit(demand(true)) {
            let mut open = self.suspects.iter().filter(|(lane, _)| !self.is_blocked(**lane));
            if let Some((lane, keys)) = open.next() {
                return Some((next_key(keys), ReadyClass::Suspect(*lane)));
            }
        }
        if !members.any_has_credit(demand(false)) {
            return None;
        }
        let jobs = || self.next_job(skipped);
        let has_announced = !self.announced.is_empty() && !skipped.contains(&Lane::Announced);
        let announced = || has_announced.then_some((Lane::Announced, &self.announced));
        let (lane, keys) = if self.last_was_announced {
            jobs().or_else(announced)
        } else {
            announced().or_else(jobs)
        }?;
        let (rank, keys) = if mutants::is(Mutant::LowestPriorityFirst) {
            keys.sets.last_key_value()?
        } else {
            keys.sets.first_key_value()?
        };
        Some((next_key(keys), ReadyClass::Any(lane, *rank)))
    }

    /// Returns the keys that are likely to be released together with the next one of this class, in
    /// their order.
    pub(crate) fn upcoming(&self, place: ReadyClass, count: usize) -> impl Iterator<Item = KeyId> {
        let next = match place {
            ReadyClass::Pinned(_) | ReadyClass::Suspect(_) => None,
            ReadyClass::Any(Lane::Announced, rank) => Some((&self.announced, rank)),
            ReadyClass::Any(Lane::Job(job), rank) => self.jobs.get(&job).map(|keys| (keys, rank)),
        };
        let sets = next.into_iter().flat_map(|(keys, rank)| keys.sets.range(rank..));
        sets.flat_map(|(_, keys)| keys.iter().rev().copied()).take(count)
    }

    /// Ends the turn of a lane.
    pub(crate) fn served(&mut self, lane: Lane) {
        self.last_was_announced = lane == Lane::Announced;
        if let Lane::Job(job) = lane {
            self.last_job = job;
        }
    }

    /// Counts the free keys that would release an entry of this job to any member with credit.
    pub(crate) fn queued_of(&self, job: JobNumber) -> usize {
        self.jobs.get(&job).map_or(0, KeysByRank::len)
    }

    /// Reports whether no key is listed that may release.
    pub(super) fn is_empty(&self) -> bool {
        self.pinned.is_empty()
            && self.suspects.is_empty()
            && self.announced.is_empty()
            && self.jobs.is_empty()
    }

    /// Counts the keys that only wait for a member.
    pub(crate) fn len(&self) -> usize {
        let pinned = self.pinned.values().map(KeySet::len).sum::<usize>();
        let suspects = self.suspects.iter().filter(|(lane, _)| !self.is_blocked(**lane));
        let suspects = suspects.map(|(_, keys)| keys.len()).sum::<usize>();
        let jobs = self.jobs.values().map(KeysByRank::len).sum::<usize>();
        pinned + suspects + self.announced.len() + jobs
    }

    /// Blocks or unblocks all releases of a job.
    pub(crate) fn block(&mut self, job: JobNumber, blocked: bool) {
        if blocked {
            let keys = self.jobs.remove(&job).unwrap_or_default();
            self.blocked.entry(job).or_insert(keys);
        } else if let Some(keys) = self.blocked.remove(&job)
            && !keys.is_empty()
        {
            self.jobs.insert(job, keys);
        }
    }

    fn is_blocked(&self, lane: Lane) -> bool {
        matches!(lane, Lane::Job(job) if self.blocked.contains_key(&job))
    }

    /// Reports whether a key is listed and its job may release, so that it only waits for a
    /// member's credit.
    pub(crate) fn offers(&self, key: KeyId) -> bool {
        let spot = self.positions.get(key.index()).copied().flatten();
        spot.is_some_and(|spot| match spot.class {
            PositionClass::Pinned => true,
            PositionClass::Suspect(lane) | PositionClass::Any(lane, _) => !self.is_blocked(lane),
        })
    }

    fn next_job(&self, skipped: &[Lane]) -> Option<(Lane, &KeysByRank)> {
        let after = self.jobs.range(self.last_job + 1..);
        let upto = self.jobs.range(..=self.last_job);
        let mut jobs = after.chain(upto).map(|(job, keys)| (Lane::Job(*job), keys));
        jobs.find(|(lane, _)| !skipped.contains(lane))
    }

    /// Without `rng`, the key goes next.
    fn insert(&mut self, key: KeyId, place: ReadyClass, rng: Option<&mut fastrand::Rng>) {
        let (kind, keys) = match place {
            ReadyClass::Pinned(pin) => {
                self.pins.insert(key, pin);
                (PositionClass::Pinned, self.pinned.entry(pin).or_default())
            }
            ReadyClass::Suspect(lane) => {
                (PositionClass::Suspect(lane), self.suspects.entry(lane).or_default())
            }
            ReadyClass::Any(lane, rank) => {
                self.entries.extend(rank.entry.map(|entry| (key, entry)));
                let keys = match lane {
                    Lane::Announced => &mut self.announced,
                    Lane::Job(job) => match self.blocked.get_mut(&job) {
                        Some(keys) => keys,
                        None => self.jobs.entry(job).or_default(),
                    },
                };
                (PositionClass::Any(lane, rank.prio.0), keys.add(rank))
            }
        };
        // The key at a random index moves to the end, where the next release takes it.
        keys.push(key);
        let last = keys.len() - 1;
        let index = rng.map_or(last, |rng| rng.usize(..=last));
        keys.swap(index, last);
        let moved = keys[last];
        let number = |index| u32::try_from(index).expect("keys have 32-bit ids");
        if self.positions.len() <= key.index() {
            self.positions.resize(key.index() + 1, None);
        }
        self.positions[key.index()] = Some(Position { class: kind, index: number(index) });
        if index != last {
            let spot = self.positions[moved.index()].as_mut();
            spot.expect("a listed key has a position").index = number(last);
        }
    }

    fn remove(&mut self, key: KeyId) {
        let Some(spot) = self.positions.get_mut(key.index()).and_then(Option::take) else { return };
        let index = spot.index as usize;
        let moved = match spot.class {
            PositionClass::Pinned => {
                let pin = self.pins.remove(&key).expect("a pinned key has a pin");
                remove_from(&mut self.pinned, &pin, index)
            }
            PositionClass::Suspect(lane) => remove_from(&mut self.suspects, &lane, index),
            PositionClass::Any(lane, prio) => {
                let rank = Rank::new(prio, self.entries.remove(&key));
                match lane {
                    Lane::Announced => self.announced.remove(rank, index),
                    Lane::Job(job) => self.remove_of_job(job, rank, index),
                }
            }
        };
        if let Some(moved) = moved {
            let spot = self.positions[moved.index()].as_mut().expect("a listed key has a position");
            spot.index = u32::try_from(index).expect("keys have 32-bit ids");
        }
    }

    fn remove_of_job(&mut self, job: JobNumber, rank: Rank, index: usize) -> Option<KeyId> {
        if let Some(keys) = self.blocked.get_mut(&job) {
            return keys.remove(rank, index);
        }
        let keys = self.jobs.get_mut(&job).expect("a listed key has the set of its job");
        let moved = keys.remove(rank, index);
        if keys.is_empty() {
            self.jobs.remove(&job);
        }
        moved
    }
}

/// Returns the key that goes first.
fn next_key(keys: &[KeyId]) -> KeyId {
    *keys.last().expect("the sets are not empty")
}

/// Removes the key at an index from one of the sets, which are not empty. Returns the key that
/// moved to that index.
fn remove_from<K: Ord>(sets: &mut BTreeMap<K, KeySet>, which: &K, index: usize) -> Option<KeyId> {
    let keys = sets.get_mut(which).expect("a listed key is in a set");
    keys.swap_remove(index);
    let moved = keys.get(index).copied();
    if keys.is_empty() {
        sets.remove(which);
    }
    moved
}

/// Keys by the rank of their next entry.
#[derive(Debug, Default)]
struct KeysByRank {
    /// None of them is empty.
    sets: BTreeMap<Rank, KeySet>,
    /// The number of keys.
    len: usize,
}

impl KeysByRank {
    /// Returns the set of a rank, to which the caller adds a key.
    fn add(&mut self, rank: Rank) -> &mut KeySet {
        self.len += 1;
        self.sets.entry(rank).or_default()
    }

    /// Does the same as [`remove_from`].
    fn remove(&mut self, rank: Rank, index: usize) -> Option<KeyId> {
        self.len -= 1;
        remove_from(&mut self.sets, &rank, index)
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn len(&self) -> usize {
        self.len
    }
}
