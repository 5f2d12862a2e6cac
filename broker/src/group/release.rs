//! The order of release: which of the free keys goes next.
//!
//! Each free key is listed once, under the class of its next entry. Announced entries take turns
//! with those of jobs, and jobs take turns with each other. Within a lane the highest priority goes
//! first. Among equals the choice is random, so that no host is always last.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use hashbrown::HashMap;
use tidings_protocol::MemberId;

use super::entry::JobNumber;
use super::key_queue::Lane;
use super::keys::KeyId;
use super::member::Members;
use super::mutants::{self, Mutant};

/// The class of a free key's next entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The entry is pinned to one member.
    Pinned(Pin),
    /// The entry is a suspect, only for a member that holds no other suspect.
    Suspect(Lane),
    /// Any member may receive the entry.
    Open(Lane, i16),
}

/// The member for which an entry waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pin {
    /// The only member that can continue the task.
    pub(super) member: MemberId,
    /// Whether it is also a suspect, so that the member must hold no other.
    pub(super) suspect: bool,
}

/// The free keys by the class of their next entry.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// The position of each key, by its id.
    spots: Vec<Option<Spot>>,
    pins: HashMap<KeyId, Pin>,
    pinned: BTreeMap<Pin, Vec<KeyId>>,
    suspects: BTreeMap<Lane, Vec<KeyId>>,
    announced: ByPrio,
    jobs: BTreeMap<JobNumber, ByPrio>,
    /// Jobs with their whole budget in flight, and the keys of these jobs. Nothing of them is
    /// released until some of the budget is returned. Pinned entries are part of the budget in
    /// flight.
    blocked: BTreeMap<JobNumber, ByPrio>,
    announced_was_last: bool,
    last_job: JobNumber,
    /// While set, no key is listed, and nothing is released.
    is_put_off: bool,
}

/// The class of a key and its index there. Small, because there are millions.
#[derive(Debug, Clone, Copy)]
struct Spot {
    kind: Kind,
    index: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The member is in `pins`.
    Pinned,
    Suspect(Lane),
    Open(Lane, i16),
}

impl Ready {
    /// Lists no keys before [`begin`](Self::begin). A start is faster when it lists all keys at its
    /// end.
    pub(super) fn put_off(&mut self) {
        self.is_put_off = true;
    }

    /// Ends the deferral: the caller lists every key.
    pub(super) fn begin(&mut self) {
        debug_assert!(self.is_put_off, "a start defers the listing of keys");
        self.is_put_off = false;
    }

    /// Returns an empty set that is deferred in the same way.
    pub(super) fn emptied(&self) -> Self {
        Self { is_put_off: self.is_put_off, ..Self::default() }
    }

    /// Lists a key under a class, or removes it (`None`).
    pub(super) fn place(&mut self, key: KeyId, place: Option<Place>, rng: &mut fastrand::Rng) {
        if self.is_put_off || self.place_of(key) == place {
            return;
        }
        self.take_out(key);
        if let Some(place) = place {
            self.put_in(key, place, rng);
        }
    }

    fn place_of(&self, key: KeyId) -> Option<Place> {
        let spot = self.spots.get(key.index()).copied().flatten()?;
        Some(match spot.kind {
            Kind::Pinned => Place::Pinned(self.pins[&key]),
            Kind::Suspect(lane) => Place::Suspect(lane),
            Kind::Open(lane, prio) => Place::Open(lane, prio),
        })
    }

    /// Returns the key that is released next to one of the members, and its class.
    pub(super) fn next(&self, members: &Members) -> Option<(KeyId, Place)> {
        let pinned = self.pinned.iter().find(|(pin, _)| members.has_room(pin.member, pin.suspect));
        if let Some((pin, keys)) = pinned {
            return Some((last_of(keys), Place::Pinned(*pin)));
        }
        if members.any_room(true) {
            let mut open = self.suspects.iter().filter(|(lane, _)| !self.is_blocked(**lane));
            if let Some((lane, keys)) = open.next() {
                return Some((last_of(keys), Place::Suspect(*lane)));
            }
        }
        if !members.any_room(false) {
            return None;
        }
        let jobs = || self.next_job();
        let announced =
            || (!self.announced.is_empty()).then_some((Lane::Announced, &self.announced));
        let (lane, keys) = if self.announced_was_last {
            jobs().or_else(announced)
        } else {
            announced().or_else(jobs)
        }?;
        let (Reverse(prio), keys) = if mutants::is(Mutant::LeastUrgent) {
            keys.0.last_key_value()?
        } else {
            keys.0.first_key_value()?
        };
        Some((last_of(keys), Place::Open(lane, *prio)))
    }

    /// Returns the keys that are likely to be released together with the next one of this class.
    pub(super) fn coming(&self, place: Place, count: usize) -> &[KeyId] {
        let keys = match place {
            Place::Pinned(_) | Place::Suspect(_) => None,
            Place::Open(Lane::Announced, prio) => self.announced.0.get(&Reverse(prio)),
            Place::Open(Lane::Job(job), prio) => {
                self.jobs.get(&job).and_then(|keys| keys.0.get(&Reverse(prio)))
            }
        };
        let keys = keys.map_or(&[][..], Vec::as_slice);
        &keys[keys.len().saturating_sub(count)..]
    }

    /// Ends the turn of a lane.
    pub(super) fn served(&mut self, lane: Lane) {
        self.announced_was_last = lane == Lane::Announced;
        if let Lane::Job(job) = lane {
            self.last_job = job;
        }
    }

    /// Counts the free keys that would release an entry of this job to any member with credit.
    pub(super) fn queued_of(&self, job: JobNumber) -> usize {
        self.jobs.get(&job).map_or(0, ByPrio::len)
    }

    /// Blocks or unblocks all releases of a job.
    pub(super) fn block(&mut self, job: JobNumber, blocked: bool) {
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
    pub(super) fn offers(&self, key: KeyId) -> bool {
        let spot = self.spots.get(key.index()).copied().flatten();
        spot.is_some_and(|spot| match spot.kind {
            Kind::Pinned => true,
            Kind::Suspect(lane) | Kind::Open(lane, _) => !self.is_blocked(lane),
        })
    }

    fn next_job(&self) -> Option<(Lane, &ByPrio)> {
        let after = self.jobs.range(self.last_job + 1..);
        let upto = self.jobs.range(..=self.last_job);
        after.chain(upto).next().map(|(job, keys)| (Lane::Job(*job), keys))
    }

    fn put_in(&mut self, key: KeyId, place: Place, rng: &mut fastrand::Rng) {
        let (kind, keys) = match place {
            Place::Pinned(pin) => {
                self.pins.insert(key, pin);
                (Kind::Pinned, self.pinned.entry(pin).or_default())
            }
            Place::Suspect(lane) => (Kind::Suspect(lane), self.suspects.entry(lane).or_default()),
            Place::Open(lane, prio) => {
                let keys = match lane {
                    Lane::Announced => &mut self.announced,
                    Lane::Job(job) => match self.blocked.get_mut(&job) {
                        Some(keys) => keys,
                        None => self.jobs.entry(job).or_default(),
                    },
                };
                (Kind::Open(lane, prio), keys.0.entry(Reverse(prio)).or_default())
            }
        };
        // The key at a random index moves to the end, where the next release takes it.
        keys.push(key);
        let (index, last) = (rng.usize(..keys.len()), keys.len() - 1);
        keys.swap(index, last);
        let moved = keys[last];
        let number = |index| u32::try_from(index).expect("keys have 32-bit ids");
        if self.spots.len() <= key.index() {
            self.spots.resize(key.index() + 1, None);
        }
        self.spots[key.index()] = Some(Spot { kind, index: number(index) });
        if index != last {
            let spot = self.spots[moved.index()].as_mut();
            spot.expect("a listed key has a position").index = number(last);
        }
    }

    fn take_out(&mut self, key: KeyId) {
        let Some(spot) = self.spots.get_mut(key.index()).and_then(Option::take) else { return };
        let index = spot.index as usize;
        let moved = match spot.kind {
            Kind::Pinned => {
                let pin = self.pins.remove(&key).expect("a pinned key has a pin");
                take_from(&mut self.pinned, &pin, index)
            }
            Kind::Suspect(lane) => take_from(&mut self.suspects, &lane, index),
            Kind::Open(Lane::Announced, prio) => {
                take_from(&mut self.announced.0, &Reverse(prio), index)
            }
            Kind::Open(Lane::Job(job), prio) => {
                if let Some(keys) = self.blocked.get_mut(&job) {
                    take_from(&mut keys.0, &Reverse(prio), index)
                } else {
                    let keys =
                        self.jobs.get_mut(&job).expect("a listed key has the set of its job");
                    let moved = take_from(&mut keys.0, &Reverse(prio), index);
                    if keys.is_empty() {
                        self.jobs.remove(&job);
                    }
                    moved
                }
            }
        };
        if let Some(moved) = moved {
            let spot = self.spots[moved.index()].as_mut().expect("a listed key has a position");
            spot.index = u32::try_from(index).expect("keys have 32-bit ids");
        }
    }
}

/// Returns the key that goes first.
fn last_of(keys: &[KeyId]) -> KeyId {
    *keys.last().expect("the sets are not empty")
}

/// Removes the key at an index from one of the sets, which are not empty. Returns the key that
/// moved to that index.
fn take_from<K: Ord>(sets: &mut BTreeMap<K, Vec<KeyId>>, which: &K, index: usize) -> Option<KeyId> {
    let keys = sets.get_mut(which).expect("a listed key is in a set");
    keys.swap_remove(index);
    let moved = keys.get(index).copied();
    if keys.is_empty() {
        sets.remove(which);
    }
    moved
}

/// Keys by the priority of their next entry, highest first. No set in it is empty.
#[derive(Debug, Default)]
struct ByPrio(BTreeMap<Reverse<i16>, Vec<KeyId>>);

impl ByPrio {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}
