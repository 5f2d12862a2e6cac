//! Steering: the operator changes jobs that run, the never-list, and what waits.

use fastrand::Rng;
use tidings_protocol::{EntrySelection, WaitingAction, WaitingChange};

use super::commands::CommandOrigin;
use super::operator::operator;
use super::pass_check::Narrowing;
use super::promises::{CheckResult, Promise};
use super::task::ReceivedTask;
use super::{EXCLUDED, World};
use crate::tests::site::{
    HOSTS, LONELY_HOSTS, NEVER_LIST, PAGES, host_number, host_of, is_on_never_list, page,
};
use crate::{GroupQuery, Input, JobChange, JobOperation, NeverList, Operation};

/// One of this many steps steers.
const STEPS: u32 = 60;

/// Pages that an operator selects: those on a host, those that end with a digit, those for which
/// both are true, or all.
#[derive(Debug, Clone)]
pub(super) struct PageSelection {
    /// What has a decision number up to this took effect before the command.
    pub(super) after: u64,
    host: Option<u64>,
    digit: Option<u64>,
}

impl PageSelection {
    /// All pages.
    pub(super) fn all(after: u64) -> Self {
        Self { after, host: None, digit: None }
    }

    fn any(after: u64, rng: &mut Rng) -> Self {
        let host = rng.bool().then(|| rng.u64(..HOSTS + LONELY_HOSTS));
        let digit = (host.is_none() || rng.bool()).then(|| rng.u64(..10));
        Self { after, host, digit }
    }

    pub(super) fn has(&self, url: &str) -> bool {
        self.host.is_none_or(|host| host_number(url) == host)
            && self.digit.is_none_or(|digit| url.ends_with(&digit.to_string()))
    }

    fn entries(&self) -> EntrySelection {
        let key = self.host.map(|host| host_of(&page(host, 0)).into());
        let pattern = self.digit.map(|digit| format!("*{digit}$"));
        let matching = pattern.map(|pattern| pattern.parse().expect("the pattern is valid"));
        EntrySelection { key, matching, ..EntrySelection::default() }
    }
}

impl World {
    /// Sometimes changes an unfinished job, the never-list, or what waits.
    pub(super) fn steer(&mut self) -> CheckResult {
        match self.steering_rng.u32(0..STEPS) {
            0 => {}
            1 => {
                let text = if self.never_list.is_empty() { NEVER_LIST } else { "" };
                let list = NeverList::parse(text.as_bytes()).expect("the list is valid");
                self.never_list = list.into();
                self.broker.group.set_never_list(self.never_list.clone());
                return Ok(());
            }
            2 => return self.change_waiting(),
            _ => return Ok(()),
        }
        let Some(name) = self.steering_rng.choice(self.passes.names(false)) else { return Ok(()) };
        match self.steering_rng.u32(0..8) {
            0..2 => self.limit(&name),
            2..4 => self.try_narrowing(&name),
            _ => self.narrow(&name),
        }
    }

    /// Drops pages that wait, or gives them a priority.
    fn change_waiting(&mut self) -> CheckResult {
        let rng = &mut self.steering_rng;
        let (pages, prio) = (PageSelection::any(self.order, rng), rng.i16(-2..=2));
        let selection = pages.entries();
        let (action, origin) = match rng.u32(0..4) {
            0 => (WaitingAction::Drop, CommandOrigin::Purge(pages)),
            _ => (WaitingAction::Bump(prio), CommandOrigin::Bump(pages, prio)),
        };
        let change = WaitingChange { selection, after: 0, action };
        let operation = Operation::ChangeWaiting(change);
        self.feed(Input::Operate { requester: operator(), operation }, origin)
    }

    /// Excludes further pages of a job.
    fn narrow(&mut self, name: &str) -> CheckResult {
        let rng = &mut self.steering_rng;
        let mut by = Narrowing::default();
        if rng.bool() {
            by.depth_max = Some(rng.u32(0..3));
        }
        if by.depth_max.is_none() || rng.bool() {
            by.ends.extend([0; 3].map(|_| format!("/p{}", rng.u64(..PAGES))));
        }
        let pass = self.passes.find_mut(name);
        pass.narrow(by.clone());
        let mut changes = Vec::new();
        if !by.ends.is_empty() {
            let before = pass.settings.exclude.to_string();
            let ends = pass.narrowed.ends.iter().map(|end| format!("{end}$"));
            let all: Vec<_> =
                Some(before).filter(|before| !before.is_empty()).into_iter().chain(ends).collect();
            changes.push(("exclude", all.join(",")));
        }
        let depths = pass.settings.depth_max.into_iter().chain(pass.narrowed.depth_max);
        if let Some(depth) = depths.min() {
            changes.push(("max-depth", depth.to_string()));
        }
        let (name, opened) = (name.to_owned(), pass.opened);
        self.set_job(&name.clone(), &changes, CommandOrigin::Narrow { name, opened, by })
    }

    /// Asks what a change would drop.
    fn try_narrowing(&mut self, name: &str) -> CheckResult {
        let name = name.parse().expect("the name is valid");
        let exclude = format!("/p{}$", self.steering_rng.u64(..PAGES));
        let changes = vec![("exclude".into(), exclude.into())];
        let query = GroupQuery::JobChange(JobChange { name, changes, after: 0 });
        self.feed(Input::Query { requester: operator(), query }, CommandOrigin::Nothing)
    }

    /// Changes the limits of a job, so that it is not known which of its pages are fetched.
    fn limit(&mut self, name: &str) -> CheckResult {
        let rng = &mut self.steering_rng;
        let (pages, ms) = (rng.u64(1..6), rng.u64(1..60_000));
        let changes = match rng.u32(0..6) {
            0 => ("max-pages", pages.to_string()),
            1 => ("max-pages", "none".to_owned()),
            2 => ("max-per-host", pages.to_string()),
            3 => ("max-per-host", "none".to_owned()),
            4 => ("max-time", format!("{ms}ms")),
            _ => ("max-time", "none".to_owned()),
        };
        self.set_job(name, &[changes], CommandOrigin::Nothing)
    }

    fn set_job(
        &mut self,
        name: &str,
        changes: &[(&str, String)],
        origin: CommandOrigin,
    ) -> CheckResult {
        let name = name.parse().expect("the name is valid");
        let changes = changes.iter().map(|(key, value)| ((*key).into(), value.as_str().into()));
        let action = JobOperation::Set(changes.collect());
        self.feed(Input::JobAction { requester: operator(), name, action }, origin)
    }

    /// The change of a pass is safe.
    pub(super) fn narrowed(&mut self, name: &str, opened: u64, by: &Narrowing) {
        if let Some(pass) = self.passes.get_mut(name).filter(|pass| pass.opened == opened) {
            pass.narrowed_for_certain.add(by.clone());
        }
    }

    /// Checks that a released task is not of an event that the filter of the group excludes.
    pub(super) fn check_filter(received: &ReceivedTask) -> CheckResult {
        let is_selected = !EXCLUDED.starts_with(&received.url);
        Promise::FilterKept.holds(is_selected, || format!("{} was released", received.url))
    }

    /// Checks that neither the page of a released task nor its next request is on the never-list.
    pub(super) fn check_never_list(&self, received: &ReceivedTask) -> CheckResult {
        let urls = [received.url.as_str(), received.request()];
        let may_ask = self.never_list.is_empty() || !urls.into_iter().any(is_on_never_list);
        Promise::NeverAsked.holds(may_ask, || format!("{urls:?} were released"))
    }
}
