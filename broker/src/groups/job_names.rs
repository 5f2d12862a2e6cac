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
pub(super) struct JobNames(RwLock<HashMap<JobName, Vec<GroupName>>>);

impl JobNames {
    /// The group has a job of that name, or not any more.
    pub(super) fn set(&self, name: &JobName, group: &GroupName, known: bool) {
        let mut names = self.0.write();
        if known {
            let groups = names.entry(name.clone()).or_default();
            if !groups.contains(group) {
                groups.push(group.clone());
            }
        } else if let Some(groups) = names.get_mut(name) {
            groups.retain(|other| other != group);
            if groups.is_empty() {
                names.remove(name);
            }
        }
    }

    /// The group is no more.
    pub(super) fn forget(&self, group: &GroupName) {
        self.0.write().retain(|_, groups| {
            groups.retain(|other| other != group);
            !groups.is_empty()
        });
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
        let elsewhere = found.filter(|(_, groups)| groups.iter().any(|other| other != group));
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
        names.set(&docs, &a, true);
        names.set(&docs, &a, true);
        assert_eq!(found(&a), [].into());
        assert_eq!(found(&b), [docs.clone()].into());
        names.set(&docs, &b, true);
        names.set(&blog, &b, true);
        assert_eq!(found(&a), [docs.clone(), blog.clone()].into());
        names.set(&docs, &b, false);
        assert_eq!(found(&a), [blog].into());
        names.forget(&b);
        assert_eq!(found(&a), [].into());
        names.set(&docs, &a, false);
        assert!(names.0.read().is_empty());
    }
}
