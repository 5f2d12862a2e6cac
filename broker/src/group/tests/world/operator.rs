//! Somebody at the controls: what is done to the group and its jobs while workers work.

use std::collections::BTreeMap;

use tidings_protocol::MemberId;

use super::{Expected, World};
use crate::group::tasks::Selection;
use crate::group::tests::bench::slot;
use crate::group::{Asked, Input, Operation};
use crate::mailbox::ConnId;

pub(super) const OPERATOR: ConnId = ConnId(0);

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
    }

    pub(super) fn dead_letter(&mut self, payload: &str) {
        if payload.ends_with(" no URL at all") || payload.contains("-job group=") {
            // The latter is a seed that the job can use no more, as it was cancelled or has its pages.
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

pub(super) fn operator() -> Asked {
    Asked { conn: OPERATOR, member: MemberId(0), slot: slot() }
}
