//! Workers ask for parts of pages (`TOUCH part=`), and the answer that each of them must get.

use tidings_protocol::{Code, KeyRest};

use super::commands::{CommandOrigin, WorkerCommand};
use super::promises::{CheckResult, Promise};
use super::task::ReceivedTask;
use super::{LEASE_MS, World};
use crate::moment::Moment;
use crate::tests::site::{HOSTS, LONELY_HOSTS, PAGES, host_of, is_on_never_list, page};

const NO_HTTP_URL: &str = "ftp://h0.org/";

/// The error that `TOUCH part=` must get (`None`: the part must be permitted) if the worker holds
/// the task, and the promise that any other answer breaks.
pub(super) type PartVerdict = (Promise, Option<Code>);

impl World {
    /// Whether a worker needs one of the parts of a page, as one of `one_in` does.
    pub(super) fn needs_part(&mut self, received: &ReceivedTask, one_in: u32) -> bool {
        self.nature.render
            && !self.outages.is_silent(&received.host())
            && self.render_rng.u32(0..one_in) == 0
    }

    /// A worker asks for a part of a page, sometimes so late that its lease may have expired.
    /// `over`: it has reported the end of its requests.
    pub(super) fn ask_for_part(
        &mut self,
        index: usize,
        received: &ReceivedTask,
        over: bool,
    ) -> CheckResult {
        let is_slow = self.is_faulty && self.render_rng.u32(0..8) == 0;
        let ms = self.render_rng.u64(1..if is_slow { LEASE_MS } else { 500 });
        let url = match self.render_rng.u32(0..16) {
            0 => NO_HTTP_URL.to_owned(),
            1 => format!("http://{}/robots.txt", received.host()),
            _ => self.any_part_url(),
        };
        let command = WorkerCommand::Touch { over, part: Some(url), hold: KeyRest::default() };
        self.schedule_answer(ms, index, &received.id, command)
    }

    pub(super) fn any_part_url(&mut self) -> String {
        let rng = &mut self.render_rng;
        page(rng.u64(..HOSTS + LONELY_HOSTS), rng.u64(..PAGES))
    }

    /// A command reaches the group, which decides now whether a part is permitted.
    pub(super) fn judge_part(&self, origin: &mut CommandOrigin) {
        if let CommandOrigin::Task {
            command: WorkerCommand::Touch { over, part: Some(url), .. },
            verdict,
            ..
        } = origin
        {
            *verdict = self.part_verdict(url, *over);
        }
    }

    /// `None`: a rule may be in force that decides it.
    fn part_verdict(&self, url: &str, over: bool) -> Option<PartVerdict> {
        let (host, rules) = (host_of(url), &self.hosts.rules);
        if url == NO_HTTP_URL {
            Some((Promise::PartsPermitted, Some(Code::BadArgument)))
        } else if !self.never_list.is_empty() && is_on_never_list(url) {
            Some((Promise::NeverAsked, Some(Code::Conflict)))
        } else if rules.surely_holds(&host, self.now) {
            Some((Promise::RulesKept, Some(Code::Conflict)))
        } else if over {
            Some((Promise::PartsPermitted, Some(Code::Conflict)))
        } else {
            let is_allowed = rules.surely_allows(&host, self.now);
            is_allowed.then_some((Promise::PartsPermitted, None))
        }
    }

    /// A worker may request a part until then, or (`None`) not at all.
    pub(super) fn part_is_answered(
        &mut self,
        url: &str,
        received: &ReceivedTask,
        until: Option<Moment>,
    ) -> CheckResult {
        let Some(until) = until else {
            self.totals.parts_refused += 1;
            return Ok(());
        };
        self.totals.parts_permitted += 1;
        self.hosts.permit_part(&host_of(url), &received.id, until, self.now)
    }
}
