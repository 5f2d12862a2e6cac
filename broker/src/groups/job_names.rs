//! Which groups have a job of which name.
//!
//! An event names its job, and several groups may be fed by its topic: for those that have no such
//! job it is an event without one, if another group has it, and otherwise a mistake.

use std::collections::BTreeSet;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tidings_protocol::{GroupName, JobName, Payload};

/// The names of all remembered jobs of all groups. Each name is an entry of its own: a lookup by one group and a change
/// by another at the same moment may take effect in either order. A name is there before its group receives the command
/// that opens the job.
#[derive(Default)]
pub(super) struct JobNames(DashMap<JobName, Vec<(GroupName, Remembered)>>);

/// What a group knows of a job that it remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remembered {
    /// Its pass is not done.
    Unfinished,
    Done,
}

impl JobNames {
    /// The group has a job of that name, or not any more.
    pub(super) fn set(&self, name: &JobName, group: &GroupName, job: Option<Remembered>) {
        let own = job.map(|job| (group.clone(), job));
        // One guard for all of it: between a look and a change, another group could change the same name.
        match self.0.entry(name.clone()) {
            Entry::Occupied(mut groups) => {
                groups.get_mut().retain(|(other, _)| other != group);
                groups.get_mut().extend(own);
                if groups.get().is_empty() {
                    groups.remove();
                }
            }
            Entry::Vacant(place) => {
                if let Some(own) = own {
                    place.insert(vec![own]);
                }
            }
        }
    }

    /// The group is no more.
    pub(super) fn forget(&self, group: &GroupName) {
        self.0.retain(|_, groups| {
            groups.retain(|(other, _)| other != group);
            !groups.is_empty()
        });
    }

    /// Whether the group has a job of that name which is not done.
    pub(super) fn is_unfinished(&self, name: &JobName, group: &GroupName) -> bool {
        let unfinished = |(other, job): &(GroupName, Remembered)| {
            other == group && *job == Remembered::Unfinished
        };
        self.0.get(name).is_some_and(|groups| groups.iter().any(unfinished))
    }

    /// Those jobs that the payloads name and that other groups have.
    pub(super) fn elsewhere<'a>(
        &self,
        group: &GroupName,
        payloads: impl Iterator<Item = &'a str>,
    ) -> BTreeSet<JobName> {
        let jobs = payloads
            .filter(|payload| payload.contains(" job="))
            .filter_map(|payload| Payload::parse(payload).attribute("job"));
        let elsewhere = jobs.filter_map(|job| {
            let groups = self.0.get(job)?;
            let is_elsewhere = groups.iter().any(|(other, _)| other != group);
            is_elsewhere.then(|| groups.key().clone())
        });
        elsewhere.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::at_once::at_once;

    #[test]
    fn a_job_is_elsewhere_if_another_group_has_it() {
        let names = JobNames::default();
        let (a, b): (GroupName, GroupName) = ("a".parse().unwrap(), "b".parse().unwrap());
        let (docs, blog): (JobName, JobName) = ("docs".parse().unwrap(), "blog".parse().unwrap());
        let payloads = [
            "http://x.org/1 job=docs",
            "http://x.org/2 prio=1 job=blog",
            "http://x.org/3 job=other",
            "http://x.org/ job=blog and text",
            "http://x.org/4",
        ];
        let found = |group| names.elsewhere(group, payloads.iter().copied());
        let unfinished = Some(Remembered::Unfinished);
        names.set(&docs, &a, unfinished);
        names.set(&docs, &a, unfinished);
        assert_eq!(found(&a), [].into());
        assert_eq!(found(&b), [docs.clone()].into());
        names.set(&docs, &b, Some(Remembered::Done));
        names.set(&blog, &b, unfinished);
        assert!(names.is_unfinished(&docs, &a));
        assert!(!names.is_unfinished(&docs, &b));
        assert!(!names.is_unfinished(&blog, &a));
        assert_eq!(found(&a), [docs.clone(), blog.clone()].into());
        names.set(&docs, &b, None);
        assert_eq!(found(&a), [blog].into());
        names.forget(&b);
        assert_eq!(found(&a), [].into());
        names.set(&docs, &a, None);
        assert!(names.0.is_empty());
    }

    #[test]
    fn groups_that_change_one_name_at_the_same_time_lose_no_change() {
        const GROUPS: usize = 8;
        let group = |number: usize| -> GroupName { format!("g{number}").parse().unwrap() };
        let name: JobName = "docs".parse().unwrap();
        for _ in 0..2_000 {
            let names = JobNames::default();
            // The name comes and goes while others add theirs.
            at_once(GROUPS, |number| {
                names.set(&name, &group(number), Some(Remembered::Unfinished));
                if number % 2 == 0 {
                    names.set(&name, &group(number), None);
                }
            });
            let is_there = |number| names.is_unfinished(&name, &group(number));
            let there: Vec<usize> = (0..GROUPS).filter(|number| is_there(*number)).collect();
            assert_eq!(there, [1, 3, 5, 7]);
        }
    }
}
