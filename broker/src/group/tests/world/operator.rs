//! Somebody at the controls: what is done to the group and its jobs while workers work, and what
//! must then be true of them.

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::{After, JobName, MemberId, ProtocolError};

use super::World;
use crate::clock::Moment;
use crate::group::tasks::Selection;
use crate::group::tests::bench::slot;
use crate::group::tests::site::{host_of, reachable_from};
use crate::group::{Answer, Asked, Input, JobAction, Operation, Task};
use crate::job::JobSettings;
use crate::mailbox::ConnId;

const OPERATOR: ConnId = ConnId(0);
/// The connection of whoever waits for jobs.
pub(super) const WAITING: ConnId = ConnId(u64::MAX);

/// What must be true of a job.
#[derive(Default)]
pub(in crate::group::tests) struct Expected {
    pages: BTreeSet<String>,
    settings: JobSettings,
    /// Cancelled, or some of it was given up or purged: it need not have reached everything.
    marred: bool,
    paused: bool,
    /// When nothing more of it may be released.
    ends: Option<Moment>,
    completed: BTreeSet<String>,
    pub(in crate::group::tests) done: u32,
    /// Who waits for it.
    pub(super) waits: u32,
}

impl Expected {
    fn mar(&mut self) {
        self.marred = true;
    }

    pub(super) fn complete(&mut self, url: &str) {
        assert!(self.completed.insert(url.to_owned()), "{url} is answered once in its pass");
        let host = host_of(url);
        let pages = self.completed.iter().filter(|url| host_of(url) == host).count();
        let max = self.settings.host_pages_max.unwrap_or(u64::MAX);
        assert!(pages as u64 <= max, "{host} gives {max} pages and no more");
    }

    /// What must be true of a job that is done.
    pub(super) fn check_end(&self, name: &str) {
        assert!(self.completed.is_subset(&self.pages), "job {name} met pages of its own only");
        let bounded = self.settings.host_pages_max.is_some() || self.settings.time_ms_max.is_some();
        match self.settings.pages_max {
            _ if self.marred || bounded => {}
            Some(max) => {
                let wanted = max.min(self.pages.len() as u64);
                assert_eq!(self.completed.len() as u64, wanted, "job {name} has the pages it may");
            }
            None => assert_eq!(self.completed, self.pages, "job {name} has reached every page"),
        }
    }
}

impl World {
    pub(super) fn operate(&mut self) {
        let what = match self.rng.u32(0..10) {
            0..2 => Operation::Pause,
            2..6 => Operation::Resume,
            6..8 => Operation::Retry(Selection::default()),
            8 => Operation::Drop(Selection::default()),
            _ => Operation::Purge,
        };
        if what == Operation::Purge {
            // Nobody is owed what waited.
            self.announced.clear();
            self.jobs.values_mut().for_each(Expected::mar);
        }
        self.feed(Input::Operate { asked: operator(), what });
    }

    /// Nothing is held up any more.
    pub(super) fn leave_alone(&mut self) {
        self.feed(Input::Operate { asked: operator(), what: Operation::Resume });
        for name in self.unfinished() {
            self.jobs.get_mut(&name).unwrap().paused = false;
            self.with_job(operator(), &name, JobAction::Resume);
        }
    }

    pub(super) fn open_job(&mut self) {
        let name = format!("job{}", self.jobs.len());
        let seed = self.any_page();
        let pages = reachable_from(&seed);
        let mut settings = JobSettings::parse([("scope", "any")]).unwrap();
        settings.pages_max = (self.rng.u32(0..3) == 0).then(|| self.rng.u64(1..6));
        settings.host_pages_max = (self.rng.u32(0..4) == 0).then(|| self.rng.u64(1..3));
        settings.time_ms_max = (self.rng.u32(0..8) == 0).then(|| self.rng.u64(1..20_000));
        let ends = settings.time_ms_max.map(|ms| self.now + ms);
        let expected = Expected { pages, settings, ends, ..Expected::default() };
        self.jobs.insert(name.clone(), expected);
        let job: JobName = name.parse().unwrap();
        self.feed(Input::OpenJob { asked: operator(), name: job.clone(), settings });
        if self.rng.bool() {
            self.publish(&format!("{seed} job={name}"));
        } else {
            self.with_job(
                operator(),
                &name,
                JobAction::Add { url: seed.as_str().into(), prio: 0, after: After::Ms(0) },
            );
        }
        if self.rng.bool() {
            self.publish(&format!("{seed} job={name}"));
        }
        self.feed(Input::CloseJob { asked: operator(), name: job });
    }

    /// Something is done with a job that is not done.
    pub(super) fn with_some_job(&mut self) {
        let open = self.unfinished();
        if open.is_empty() {
            return;
        }
        let name = &open[self.rng.usize(0..open.len())];
        let job = self.jobs.get_mut(name).unwrap();
        match self.rng.u32(0..6) {
            0 => {
                job.mar();
                let name = name.parse().unwrap();
                self.feed(Input::CancelJob { asked: operator(), name });
            }
            1 => {
                job.paused = true;
                self.with_job(operator(), name, JobAction::Pause);
            }
            2..4 => {
                job.paused = false;
                self.with_job(operator(), name, JobAction::Resume);
            }
            4 => {
                job.waits += 1;
                self.with_job(waiting(), name, JobAction::Wait);
            }
            _ => {
                let waits = self.jobs.values_mut().map(|job| &mut job.waits);
                waits.for_each(|waits| *waits = 0);
                self.feed(Input::Gone { conn: WAITING });
            }
        }
    }

    pub(super) fn delete_some_job(&mut self) {
        let name = format!("job{}", self.rng.usize(0..=self.jobs.len()));
        let is_done = self.jobs.get(&name).is_some_and(|job| job.done > 0);
        let name: JobName = name.parse().unwrap();
        let was_there = self.job_names.contains(&name);
        let asked = operator();
        let input = Input::WithJob { asked, name, what: JobAction::Delete };
        // None: the broker has ended meanwhile.
        let Some(answer) = self.feed(input) else { return };
        assert_eq!(answer.is_ok(), is_done && was_there, "{answer:?}");
    }

    fn unfinished(&self) -> Vec<String> {
        let open = self.jobs.iter().filter(|(_, job)| job.done == 0);
        open.map(|(name, _)| name.clone()).collect()
    }

    fn with_job(&mut self, asked: Asked, name: &str, what: JobAction) {
        let name = name.parse().unwrap();
        self.feed(Input::WithJob { asked, name, what });
    }

    /// Whoever waits for a job is told, once it is done and at once.
    pub(super) fn told(&mut self, answer: Result<Answer, ProtocolError>) {
        let ok = answer.expect("the end of a pass").ok;
        let job = self.jobs.get_mut(ok.split(' ').next().unwrap()).unwrap();
        assert_eq!(job.done, 1, "{ok}");
        job.waits -= 1;
    }

    /// Nothing is begun for a job that may begin nothing.
    pub(super) fn check_job(&self, task: &Task) {
        let Some(job) = task.payload.split(" job=").nth(1) else { return };
        if task.id.run < self.group.run() {
            // It was decided before a crash, and the worker hears of it now.
            return;
        }
        let name = job.split(' ').next().unwrap();
        let job = &self.jobs[name];
        let url = task.payload.split(' ').next().unwrap();
        let begun = task.payload.contains(" again=") || self.named.contains(url);
        assert!(begun || !job.paused, "{name} is paused, and {url} was released");
        let is_over = job.ends.is_some_and(|ends| ends < self.now);
        assert!(!is_over, "the time of {name} is over, and {url} was released");
        assert_eq!(job.done, 0, "{name} is done, and {url} was released");
    }

    pub(super) fn dead_letter(&mut self, payload: &str) {
        if payload.ends_with(" no URL at all") || payload.contains("-job group=") {
            // The latter is a seed that the job can use no more, as it was cancelled or is done.
            return;
        }
        assert!(payload.contains(" reason=max-attempts "), "unexpected: {payload}");
        if let Some(job) = payload.split(" job=").nth(1) {
            let name = job.split(' ').next().unwrap();
            self.jobs.get_mut(name).unwrap().mar();
        }
    }

    pub(super) fn job_done(&mut self, payload: &str) {
        let name = payload.split(' ').next().unwrap();
        let counts: BTreeMap<&str, u64> = payload
            .split(' ')
            .filter_map(|word| word.split_once('='))
            .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
            .collect();
        let ends = ["completed", "redirects", "failed", "robots", "scope", "trap", "budget"];
        let ended = ends.iter().map(|end| counts[end]).sum::<u64>() + counts["cancelled"];
        assert_eq!(ended, counts["found"], "every page has one end: {payload}");
        self.jobs.get_mut(name).unwrap().done += 1;
    }
}

fn operator() -> Asked {
    Asked { conn: OPERATOR, member: MemberId(0), slot: slot() }
}

fn waiting() -> Asked {
    Asked { conn: WAITING, ..operator() }
}
