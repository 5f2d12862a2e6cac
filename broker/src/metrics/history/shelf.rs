//! Keeps series of those of many things that matter most.

use std::collections::{BTreeSet, HashMap};

use super::series::{Columns, RANGES, Reading, Series, Step};
use crate::clock::Moment;

/// A series without its subject has no values after this time.
const GONE_MS_MAX: u64 = 24 * 60 * 60 * 1_000;

/// Something that may have a series.
#[derive(Debug)]
pub(super) struct Candidate<'a, T> {
    pub(super) name: &'a str,
    /// Those with the largest weights have series. Another one must have twice the weight to replace
    /// one that has a series already, so that the two do not take turns.
    pub(super) weight: f64,
    pub(super) source: &'a T,
}

/// A limited number of series with the same columns.
#[derive(Debug)]
pub(super) struct Shelf {
    columns: Columns,
    series_max: usize,
    kept: Vec<Kept>,
}

#[derive(Debug)]
struct Kept {
    name: String,
    series: Series,
    /// When its subject was there last.
    seen: Moment,
}

impl Shelf {
    pub(super) fn new(columns: Columns, series_max: usize) -> Self {
        Self { columns, series_max, kept: Vec::new() }
    }

    /// The most bytes of all series, with names of this length.
    #[cfg(test)]
    pub(super) fn bytes_max(&self, name_bytes: usize) -> usize {
        // A vector may have room for twice as many items.
        let kept = 2 * size_of::<Kept>() + Series::bytes_max(self.columns.len()) + name_bytes;
        self.series_max * kept
    }

    /// The series of that name.
    pub(super) fn find(&self, name: &str) -> Option<&Series> {
        self.kept.iter().find(|kept| kept.name == name).map(|kept| &kept.series)
    }

    /// All series with their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Series)> {
        self.kept.iter().map(|kept| (&*kept.name, &kept.series))
    }

    /// Adds a sample of each candidate that has a series or gets one. Names are unique.
    pub(super) fn add<T>(
        &mut self,
        (steps, now): (&[Step; RANGES.len()], Moment),
        candidates: &[Candidate<'_, T>],
        read: impl Fn(&T) -> Reading,
    ) {
        self.kept.retain(|kept| now.since(kept.seen) <= GONE_MS_MAX);
        let present = self.choose(candidates);
        for (kept, candidate) in self.kept.iter_mut().zip(present) {
            let reading = candidate.map(|candidate| read(candidates[candidate].source));
            if reading.is_some() {
                kept.seen = now;
            }
            kept.series.add(steps, reading);
        }
    }

    /// Replaces series by those of more important candidates. Returns the candidate of each series,
    /// by its index, if it is there.
    fn choose<T>(&mut self, candidates: &[Candidate<'_, T>]) -> Vec<Option<usize>> {
        let mut present = vec![None; self.kept.len()];
        let places = self.kept.iter().enumerate().map(|(place, kept)| (&kept.name[..], place));
        let places: HashMap<_, _> = places.collect();
        let mut ranked: Vec<_> = Vec::with_capacity(candidates.len());
        for (at, Candidate { name, weight, .. }) in candidates.iter().enumerate() {
            let place = places.get(name).copied();
            if let Some(place) = place {
                present[place] = Some(at);
            }
            ranked.push((if place.is_some() { weight * 2.0 } else { *weight }, place, at));
        }
        if ranked.len() > self.series_max {
            ranked.select_nth_unstable_by(self.series_max, |one, other| {
                let order = other.0.total_cmp(&one.0);
                order.then(other.1.is_some().cmp(&one.1.is_some())).then(one.2.cmp(&other.2))
            });
            ranked.truncate(self.series_max);
        }
        let mut replaced: BTreeSet<_> =
            self.kept.iter().enumerate().map(|(place, kept)| (kept.seen, place)).collect();
        for place in ranked.iter().filter_map(|(_, place, _)| *place) {
            replaced.remove(&(self.kept[place].seen, place));
        }
        for (_, _, at) in ranked.into_iter().filter(|(_, place, _)| place.is_none()) {
            let (name, series) = (candidates[at].name.to_owned(), Series::new(self.columns));
            let new = Kept { name, series, seen: Moment(0) };
            if self.kept.len() < self.series_max {
                self.kept.push(new);
                present.push(Some(at));
            } else if let Some((_, place)) = replaced.pop_first() {
                // Those that have been gone for longest are replaced first.
                self.kept[place] = new;
                present[place] = Some(at);
            }
        }
        present
    }
}
