//! Index of job names over all groups.
//!
//! An event names its job with `job=`, and its topic may feed several groups. A group without such
//! a job treats the event as one without a job if another group has it; if no group has it, the
//! event is an error.

use std::collections::BTreeSet;

use dashmap::DashMap;
use tidings_protocol::{GroupName, JobName, Payload};

/// The names of all jobs that groups remember. Entries are independent: if one group looks up a
/// name while another changes it, either order may take effect. A name is inserted before its group
/// receives the command that opens the job.
#[derive(Default)]
pub(super) struct JobNames(DashMap<JobName, Vec<(GroupName, JobStatus)>>);

/// The state of a remembered job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobStatus {
    /// A command that opens it was sent to the group.
    Reserved {
        /// Whether the group remembers a job of that name, which is done.
        is_done: bool,
    },
    /// Its current pass is not done.
    Unfinished,
    Done,
}

impl JobNames {
    /// Sets or removes the group's job of that name.
    pub(super) fn set(&self, name: &JobName, group: &GroupName, job: Option<JobStatus>) {
        self.change(name, group, |_| job);
    }

    /// Reserves a name for the job that a command opens, because its seeds may follow at once. The
    /// group sets it when it handles the command.
    pub(super) fn reserve(&self, name: &JobName, group: &GroupName) {
        self.change(name, group, |job| match job {
            None => Some(JobStatus::Reserved { is_done: false }),
            Some(JobStatus::Done) => Some(JobStatus::Reserved { is_done: true }),
            job => job,
        });
    }

    /// Ends the reservation of a name, because the command was rejected.
    pub(super) fn release(&self, name: &JobName, group: &GroupName) {
        self.change(name, group, |job| match job {
            Some(JobStatus::Reserved { is_done }) => is_done.then_some(JobStatus::Done),
            job => job,
        });
    }

    fn change(
        &self,
        name: &JobName,
        group: &GroupName,
        change: impl FnOnce(Option<JobStatus>) -> Option<JobStatus>,
    ) {
        // One guard covers the lookup and the change: between them, another group could change the
        // same name.
        let mut groups = self.0.entry(name.clone()).or_default();
        let index = groups.iter().position(|(other, _)| other == group);
        let before = index.map(|index| groups.swap_remove(index).1);
        groups.extend(change(before).map(|job| (group.clone(), job)));
        let is_empty = groups.is_empty();
        drop(groups);
        if is_empty {
            self.0.remove_if(name, |_, groups| groups.is_empty());
        }
    }

    /// Removes all jobs of a deleted group.
    pub(super) fn remove_group(&self, group: &GroupName) {
        self.0.retain(|_, groups| {
            groups.retain(|(other, _)| other != group);
            !groups.is_empty()
        });
    }

    /// Whether the group has a job of that name.
    pub(super) fn has(&self, name: &JobName, group: &GroupName) -> bool {
        self.status(name, group).is_some()
    }

    /// Whether the group has an unfinished job of that name.
    pub(super) fn is_unfinished(&self, name: &JobName, group: &GroupName) -> bool {
        self.status(name, group).is_some_and(|job| job != JobStatus::Done)
    }

    fn status(&self, name: &JobName, group: &GroupName) -> Option<JobStatus> {
        let groups = self.0.get(name)?;
        groups.iter().find(|(other, _)| other == group).map(|(_, job)| *job)
    }

    /// Jobs that the payloads name and that belong to other groups.
    pub(super) fn jobs_of_other_groups<'a>(
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
    use crate::concurrent_runs::run_concurrently;

    #[test]
    fn jobs_of_other_groups_are_found() {
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
        let found = |group| names.jobs_of_other_groups(group, payloads.iter().copied());
        let unfinished = Some(JobStatus::Unfinished);
        names.set(&docs, &a, unfinished);
        names.set(&docs, &a, unfinished);
        assert_eq!(found(&a), [].into());
        assert_eq!(found(&b), [docs.clone()].into());
        names.set(&docs, &b, Some(JobStatus::Done));
        names.set(&blog, &b, unfinished);
        assert!(names.is_unfinished(&docs, &a));
        assert!(!names.is_unfinished(&docs, &b));
        assert!(!names.is_unfinished(&blog, &a));
        assert_eq!(found(&a), [docs.clone(), blog.clone()].into());
        names.set(&docs, &b, None);
        assert_eq!(found(&a), [blog].into());
        names.remove_group(&b);
        assert_eq!(found(&a), [].into());
        names.set(&docs, &a, None);
        assert!(names.0.is_empty());
    }

    #[test]
    fn rejected_command_changes_no_job() {
        let names = JobNames::default();
        let (group, job): (GroupName, JobName) = ("a".parse().unwrap(), "docs".parse().unwrap());
        for before in [None, Some(JobStatus::Unfinished), Some(JobStatus::Done)] {
            names.set(&job, &group, before);
            names.reserve(&job, &group);
            assert!(names.is_unfinished(&job, &group));
            names.release(&job, &group);
            let now = names.0.get(&job).map(|groups| groups[0].1);
            assert_eq!(now, before);
        }
    }

    #[test]
    fn concurrent_changes_of_one_name_are_all_kept() {
        const GROUPS: usize = 8;
        let group = |number: usize| -> GroupName { format!("g{number}").parse().unwrap() };
        let name: JobName = "docs".parse().unwrap();
        for _ in 0..2_000 {
            let names = JobNames::default();
            // The name appears and disappears while other groups add theirs.
            run_concurrently(GROUPS, |number| {
                names.set(&name, &group(number), Some(JobStatus::Unfinished));
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
