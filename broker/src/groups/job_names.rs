//! Which groups have a job of which name.
//!
//! An event names its job, and several groups may be fed by its topic: for those that have no such
//! job it is an event without one, if another group has it, and otherwise a mistake.

use std::collections::{BTreeSet, HashMap};

use parking_lot::RwLock;
use tidings_protocol::{GroupName, JobName, Payload};

/// The names of all jobs of all groups that are remembered. What one group looks up and what
/// another changes at that moment may come in either order; a name is there before the command
/// that opens its job reaches the group.
#[derive(Default)]
pub(super) struct JobNames(RwLock<HashMap<JobName, Vec<(GroupName, Remembered)>>>);

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
        let mut names = self.0.write();
        let groups = names.entry(name.clone()).or_default();
        groups.retain(|(other, _)| other != group);
        groups.extend(job.map(|job| (group.clone(), job)));
        if groups.is_empty() {
            names.remove(name);
        }
    }

    /// The group is no more.
    pub(super) fn forget(&self, group: &GroupName) {
        self.0.write().retain(|_, groups| {
            groups.retain(|(other, _)| other != group);
            !groups.is_empty()
        });
    }

    /// Whether the group has a job of that name which is not done.
    pub(super) fn is_unfinished(&self, name: &JobName, group: &GroupName) -> bool {
        let names = self.0.read();
        let unfinished = |(other, job): &(GroupName, Remembered)| {
            other == group && *job == Remembered::Unfinished
        };
        names.get(name).is_some_and(|groups| groups.iter().any(unfinished))
    }

    /// Those jobs that the payloads name and that other groups have.
    pub(super) fn elsewhere<'a>(
        &self,
        group: &GroupName,
        payloads: impl Iterator<Item = &'a str>,
    ) -> BTreeSet<JobName> {
        let names = self.0.read();
        let jobs = payloads
            .filter(|payload| payload.contains(" job="))
            .filter_map(|payload| Payload::parse(payload).attribute("job"));
        let found = jobs.filter_map(|job| names.get_key_value(job));
        let elsewhere = found.filter(|(_, groups)| groups.iter().any(|(other, _)| other != group));
        elsewhere.map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(names.0.read().is_empty());
    }
}
