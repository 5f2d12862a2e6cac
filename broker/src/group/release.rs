//! The order of release: which of the keys that may be asked now goes next.
//!
//! A free key stands here exactly once, under what it would release. What was announced takes turns
//! with what jobs wait for; jobs take turns with one another; inside a job (or the announced lane)
//! the highest priority goes first, and among equals chance decides, so that no host is always last.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use indexmap::IndexSet;
use tidings_protocol::MemberId;

use super::entry::{JobNumber, Key};
use super::key_queue::Lane;
use super::member::Members;

/// Under what a free key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Its head is for one member only.
    Pinned(Pin),
    /// Its head is a suspect: only for a member that holds no other.
    Suspect(Lane),
    /// Anybody may have it.
    Open(Lane, i16),
}

/// For whom a head waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pin {
    /// The only member that can go on with it.
    pub(super) member: MemberId,
    /// It is a suspect, too: the member must hold no other.
    pub(super) suspect: bool,
}

/// Free keys by what they would release.
#[derive(Debug, Default)]
pub(super) struct Ready {
    places: HashMap<Key, Place>,
    pinned: BTreeMap<Pin, IndexSet<Key>>,
    suspects: BTreeMap<Lane, IndexSet<Key>>,
    announced: ByPrio,
    jobs: BTreeMap<JobNumber, ByPrio>,
    /// Jobs whose budget is taken by what is in flight, with their keys: nothing of them goes out
    /// until some of it is given back. What is pinned is part of what has taken it.
    blocked: BTreeMap<JobNumber, ByPrio>,
    announced_was_last: bool,
    last_job: JobNumber,
}

impl Ready {
    /// Puts a key where it belongs now; `None` takes it out.
    pub(super) fn place(&mut self, key: &Key, place: Option<Place>) {
        if self.places.get(key).copied() == place {
            return;
        }
        if let Some(old) = self.places.remove(key) {
            self.take_out(key, old);
        }
        if let Some(new) = place {
            self.places.insert(key.clone(), new);
            self.put_in(key, new);
        }
    }

    /// The key that goes next to one of the members, and where it stands.
    pub(super) fn next(&self, members: &Members, rng: &mut fastrand::Rng) -> Option<(Key, Place)> {
        let pinned = self.pinned.iter().find(|(pin, _)| members.has_room(pin.member, pin.suspect));
        if let Some((pin, keys)) = pinned {
            return Some((any(keys, rng), Place::Pinned(*pin)));
        }
        if members.any_room(true) {
            let mut open = self.suspects.iter().filter(|(lane, _)| !self.is_blocked(**lane));
            if let Some((lane, keys)) = open.next() {
                return Some((any(keys, rng), Place::Suspect(*lane)));
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
        let (Reverse(prio), keys) = keys.0.first_key_value()?;
        Some((any(keys, rng), Place::Open(lane, *prio)))
    }

    /// The lane has had its turn.
    pub(super) fn served(&mut self, lane: Lane) {
        self.announced_was_last = lane == Lane::Announced;
        if let Lane::Job(job) = lane {
            self.last_job = job;
        }
    }

    /// Free keys that would release an entry of this job, to anybody with credit.
    pub(super) fn queued_of(&self, job: JobNumber) -> usize {
        self.jobs.get(&job).map_or(0, ByPrio::len)
    }

    /// Lets nothing more of a job go out, or lets it again.
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

    /// Whether a key stands here and its job may release, so that it waits for nothing but a
    /// member's credit.
    pub(super) fn offers(&self, key: &str) -> bool {
        self.places.get(key).is_some_and(|place| match place {
            Place::Pinned(_) => true,
            Place::Suspect(lane) | Place::Open(lane, _) => !self.is_blocked(*lane),
        })
    }

    fn next_job(&self) -> Option<(Lane, &ByPrio)> {
        let after = self.jobs.range(self.last_job + 1..);
        let upto = self.jobs.range(..=self.last_job);
        after.chain(upto).next().map(|(job, keys)| (Lane::Job(*job), keys))
    }

    fn put_in(&mut self, key: &Key, place: Place) {
        match place {
            Place::Pinned(pin) => {
                self.pinned.entry(pin).or_default().insert(key.clone());
            }
            Place::Suspect(lane) => {
                self.suspects.entry(lane).or_default().insert(key.clone());
            }
            Place::Open(Lane::Announced, prio) => self.announced.insert(key, prio),
            Place::Open(Lane::Job(job), prio) => match self.blocked.get_mut(&job) {
                Some(keys) => keys.insert(key, prio),
                None => self.jobs.entry(job).or_default().insert(key, prio),
            },
        }
    }

    fn take_out(&mut self, key: &Key, place: Place) {
        match place {
            Place::Pinned(pin) => {
                if let Some(keys) = self.pinned.get_mut(&pin) {
                    keys.swap_remove(key);
                    if keys.is_empty() {
                        self.pinned.remove(&pin);
                    }
                }
            }
            Place::Suspect(lane) => {
                if let Some(keys) = self.suspects.get_mut(&lane) {
                    keys.swap_remove(key);
                    if keys.is_empty() {
                        self.suspects.remove(&lane);
                    }
                }
            }
            Place::Open(Lane::Announced, prio) => self.announced.remove(key, prio),
            Place::Open(Lane::Job(job), prio) => {
                if let Some(keys) = self.blocked.get_mut(&job) {
                    keys.remove(key, prio);
                } else if let Some(keys) = self.jobs.get_mut(&job) {
                    keys.remove(key, prio);
                    if keys.is_empty() {
                        self.jobs.remove(&job);
                    }
                }
            }
        }
    }
}

/// One of several keys, by chance.
fn any(keys: &IndexSet<Key>, rng: &mut fastrand::Rng) -> Key {
    let index = rng.usize(..keys.len());
    keys.get_index(index).expect("the index is below the length").clone()
}

/// Keys by the priority of what they would release, highest first. No set in it is empty.
#[derive(Debug, Default)]
struct ByPrio(BTreeMap<Reverse<i16>, IndexSet<Key>>);

impl ByPrio {
    fn insert(&mut self, key: &Key, prio: i16) {
        self.0.entry(Reverse(prio)).or_default().insert(key.clone());
    }

    fn remove(&mut self, key: &Key, prio: i16) {
        if let Some(keys) = self.0.get_mut(&Reverse(prio)) {
            keys.swap_remove(key);
            if keys.is_empty() {
                self.0.remove(&Reverse(prio));
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn len(&self) -> usize {
        self.0.values().map(IndexSet::len).sum()
    }
}
