//! Checks jobs: what must be true of a pass while it runs, and when its end may be announced.

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::{JobSettings, Outcome};

use super::promises::{CheckResult, Promise};
use super::task::ReceivedTask;
use crate::moment::Moment;
use crate::tests::site::{host_number, is_on_never_list, links_of, redirect_of};

/// The current pass of every job, by name, and all announced ends.
#[derive(Debug, Default)]
pub(super) struct PassCheck {
    by_name: BTreeMap<String, PassModel>,
    /// Announced ends: number of the job and of the pass.
    ended: BTreeSet<(u64, u64)>,
    /// The same for decided ends, which a crash may undo.
    end_decided: BTreeSet<(u64, u64)>,
}

/// How changes of its settings have narrowed a pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Narrowing {
    /// Endings of the URLs that are excluded.
    pub(super) ends: BTreeSet<String>,
    pub(super) depth_max: Option<u32>,
}

impl Narrowing {
    pub(super) fn add(&mut self, other: Self) {
        self.ends.extend(other.ends);
        self.depth_max = self.depth_max.into_iter().chain(other.depth_max).min();
    }

    /// Whether a page ends if it waits. Seeds do not.
    fn drops(&self, url: &str, depth: u32) -> bool {
        let is_excluded = self.ends.iter().any(|end| url.ends_with(end));
        depth > 0 && (is_excluded || self.depth_max.is_some_and(|max| depth > max))
    }
}

/// What must be true of a pass.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is true or not whatever the others are")]
pub(super) struct PassModel {
    /// As it was opened.
    pub(super) settings: JobSettings,
    pub(super) opened: u64,
    /// How it was narrowed: what may be in force, and what is for certain.
    pub(super) narrowed: Narrowing,
    pub(super) narrowed_for_certain: Narrowing,
    /// Seeds that belong to it, and seeds that came late and may belong to it.
    pub(super) seeds: BTreeSet<String>,
    pub(super) late: BTreeSet<String>,
    pub(super) paused: bool,
    /// Whether it is open and will be closed.
    pub(super) held: bool,
    /// When its time limit ends, on the broker's clock, if that is known.
    pub(super) ends: Option<Moment>,
    /// Whether it was cancelled or purged, so that not all of its pages were fetched.
    pub(super) marred: bool,
    /// Hosts that a rule may have blocked meanwhile: their pages may not be fetched.
    pub(super) blocked: BTreeSet<u64>,
    pub(super) done: bool,
    pub(super) deleted: bool,
    /// Connections that wait for it.
    pub(super) waits: u32,
    completed: BTreeSet<String>,
    /// Redirect targets of its pages.
    targets: BTreeSet<String>,
    /// URLs with a final result other than a page.
    others: BTreeSet<String>,
    /// The same in earlier passes.
    others_before: BTreeSet<String>,
    /// Distances of each page from the seeds, one for each path that was found.
    depths: BTreeMap<String, BTreeSet<u32>>,
    /// Pages that were found and are not final, by host.
    missing: BTreeMap<u64, BTreeSet<String>>,
}

impl PassCheck {
    /// A pass begins, with this decision number. Events for the previous pass may count for this
    /// one.
    pub(super) fn open(&mut self, name: &str, settings: JobSettings, opened: u64) {
        let (mut late, mut others_before) = (BTreeSet::new(), BTreeSet::new());
        if let Some(before) = self.by_name.remove(name) {
            late.extend(before.seeds.into_iter().chain(before.late));
            others_before.extend(before.others.into_iter().chain(before.others_before));
        }
        let pass = PassModel { settings, opened, late, others_before, ..PassModel::default() };
        self.by_name.insert(name.to_owned(), pass);
    }

    pub(super) fn find(&self, name: &str) -> Option<&PassModel> {
        self.by_name.get(name)
    }

    pub(super) fn find_mut(&mut self, name: &str) -> &mut PassModel {
        self.by_name.get_mut(name).expect("the job was opened")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &PassModel)> {
        self.by_name.iter().map(|(name, pass)| (name.as_str(), pass))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PassModel> {
        self.by_name.values_mut()
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut PassModel> {
        self.by_name.get_mut(name)
    }

    /// Names of finished, or of unfinished, jobs.
    pub(super) fn names(&self, done: bool) -> Vec<String> {
        let some = self.by_name.iter().filter(|(_, pass)| pass.done == done);
        some.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn are_done(&self) -> bool {
        self.by_name.values().all(|pass| pass.done)
    }

    /// Whether a task repairs a page of a finished pass: the page failed, or a repaired page
    /// redirects to it.
    pub(super) fn repairs(&mut self, name: &str, received: &ReceivedTask) -> bool {
        let ReceivedTask { url, pass, .. } = received;
        let has_ended = pass.is_some_and(|pass| self.end_decided.contains(&pass));
        let Some(pass) = self.by_name.get_mut(name).filter(|_| has_ended) else { return false };
        let is_known = pass.others.contains(url) || pass.others_before.contains(url);
        if is_known {
            pass.others_before.insert(redirect_of(url));
        }
        is_known
    }

    /// The end of a pass is decided.
    pub(super) fn end_is_decided(&mut self, announced: &str) {
        let counts = counts_of(announced);
        self.end_decided.insert((counts["number"], counts["pass"]));
    }

    /// A crash undoes decisions that were not announced.
    pub(super) fn forget_decided_ends(&mut self) {
        self.end_decided.clone_from(&self.ended);
    }

    /// Checks the counts of a finished pass when nothing waits any more: every URL has ended once,
    /// repaired ones included, and the page budget is kept. `shown` is the answer to `JOB show`.
    pub(super) fn check_counts(&self, name: &str, shown: &str) -> CheckResult {
        let counts = counts_of(shown);
        let (ended, completed) = (ended(&counts), counts["completed"]);
        let exact = ended == counts["found"];
        Promise::NeverEarly.holds(exact, || format!("{ended} URLs have ended: {shown}"))?;
        let max = self.by_name.get(name).and_then(|pass| pass.settings.pages_max);
        let kept = max.is_none_or(|max| completed <= max);
        Promise::BudgetKept.holds(kept, || format!("more than {max:?} pages: {shown}"))
    }

    /// Checks a release. `announced`: the page was also announced, so it may be released even if
    /// the job is blocked. `ticked`: the broker's time of its last tick.
    pub(super) fn check_release(
        &self,
        received: &ReceivedTask,
        announced: bool,
        ticked: Moment,
    ) -> CheckResult {
        let Some(name) = &received.job else { return Ok(()) };
        let url = &received.url;
        let Some(pass) = self.by_name.get(name) else {
            return Promise::NeverEarly
                .holds(false, || format!("{name} has ended, but {url} was released"));
        };
        let kept = announced || received.is_next_request() || !pass.paused;
        Promise::BudgetKept.holds(kept, || format!("{name} is paused, but {url} was released"))?;
        let kept = announced || received.is_next_request() || !pass.held;
        Promise::BudgetKept.holds(kept, || format!("{name} is open, but {url} was released"))?;
        let kept = pass.ends.is_none_or(|ends| ticked <= ends);
        Promise::BudgetKept
            .holds(kept, || format!("{name} is out of time, but {url} was released"))?;
        let is_out = pass.narrowed_for_certain.drops(url, received.depth);
        Promise::ChangesKept
            .holds(!is_out, || format!("{name} excludes {url} now, but it was released"))?;
        Promise::NeverEarly.holds(!pass.done, || format!("{name} is done, but {url} was released"))
    }

    /// Checks the depth of a released page.
    pub(super) fn check_depth(&self, received: &ReceivedTask) -> CheckResult {
        let ReceivedTask { url, depth, .. } = received;
        let Some(pass) = received.job.as_ref().and_then(|name| self.by_name.get(name)) else {
            return Ok(());
        };
        let max = pass.settings.depth_max.unwrap_or(u32::MAX);
        Promise::DepthKept
            .holds(*depth <= max, || format!("{url} has depth {depth}, above {max}"))?;
        let found = pass.depths.get(url);
        let is_late_seed = *depth == 0 && pass.late.contains(url);
        let is_there = is_late_seed || found.is_some_and(|depths| depths.contains(depth));
        Promise::DepthKept
            .holds(is_there, || format!("{url} has depth {depth} instead of one of {found:?}"))
    }

    /// A page of a job has its final result.
    pub(super) fn answered(
        &mut self,
        name: &str,
        received: &ReceivedTask,
        outcome: Outcome,
        with_links: bool,
    ) -> CheckResult {
        let ReceivedTask { url, depth, .. } = received;
        let hosts = [host_number(url), host_number(received.request())];
        let Some(pass) = self.by_name.get_mut(name).filter(|pass| !pass.done) else {
            let what = || format!("{name} is done, but then {url} is answered");
            return Promise::NeverEarly.holds(false, what);
        };
        // The children of a page on a blocked host are refused.
        let may_refuse = hosts.iter().any(|host| pass.blocked.contains(host));
        if outcome == Outcome::Redirect {
            let target = redirect_of(url);
            if *depth == 0 || pass.admits(&target) {
                pass.find(&target, *depth, may_refuse);
            }
            pass.targets.insert(target);
        }
        if outcome != Outcome::Done {
            pass.others.insert(url.clone());
            pass.no_longer_missing(url);
            return Ok(());
        }
        let is_first = pass.completed.insert(url.clone());
        Promise::DoneOnce.holds(is_first, || format!("{url} is answered twice for {name}"))?;
        pass.no_longer_missing(url);
        let is_too_deep = pass.settings.depth_max.is_some_and(|max| *depth >= max);
        let links = links_of(url).filter(|_| with_links && !is_too_deep);
        let links: Vec<_> = links.filter(|link| pass.admits(link)).collect();
        for link in links {
            pass.find(link, depth + 1, may_refuse);
        }
        pass.check_budget(name, url)
    }

    /// A page of a job has failed after its last attempt.
    pub(super) fn gave_up(&mut self, name: &str, url: &str) {
        if let Some(pass) = self.by_name.get_mut(name) {
            pass.others.insert(url.to_owned());
            pass.no_longer_missing(url);
        }
    }

    /// Checks the announced end of a pass.
    pub(super) fn announced(&mut self, payload: &str) -> CheckResult {
        let counts = counts_of(payload);
        self.end_is_decided(payload);
        let is_first = self.ended.insert((counts["number"], counts["pass"]));
        Promise::DoneOnce.holds(is_first, || format!("announced again: {payload}"))?;
        let name = payload.split(' ').next().expect("split returns at least one part");
        let pass = self.find_mut(name);
        pass.done = true;
        pass.check_end(name)?;
        let ended = ended(&counts);
        let exact = ended == counts["found"] && counts["completed"] == pass.completed.len() as u64;
        Promise::NeverEarly
            .holds(exact, || format!("{} pages were completed: {payload}", pass.completed.len()))
    }
}

impl PassModel {
    /// Adds a seed.
    pub(super) fn seed(&mut self, url: &str) {
        self.seeds.insert(url.to_owned());
        self.find(url, 0, false);
    }

    /// Whether its patterns, which are endings of URLs, admit a page.
    fn admits(&self, url: &str) -> bool {
        let patterns = self.settings.exclude.to_string();
        let mut ends = patterns.split(',').filter_map(|pattern| pattern.strip_suffix('$'));
        !ends.any(|end| url.ends_with(end))
    }

    /// Narrows it: pages that may have ended for that are not missing any more.
    pub(super) fn narrow(&mut self, by: Narrowing) {
        self.narrowed.add(by);
        let (narrowed, depths) = (&self.narrowed, &self.depths);
        for missing in self.missing.values_mut() {
            missing.retain(|url| !depths[url].iter().any(|depth| narrowed.drops(url, *depth)));
        }
    }

    /// Whether a page may have ended because it was narrowed.
    pub(super) fn may_drop(&self, url: &str) -> bool {
        let depths = self.depths.get(url);
        depths.is_some_and(|depths| depths.iter().any(|depth| self.narrowed.drops(url, *depth)))
    }

    fn find(&mut self, url: &str, depth: u32, may_be_refused: bool) {
        self.depths.entry(url.to_owned()).or_default().insert(depth);
        let is_final = self.completed.contains(url) || self.others.contains(url);
        if !may_be_refused && !is_final && !self.may_drop(url) && !is_on_never_list(url) {
            self.missing.entry(host_number(url)).or_default().insert(url.to_owned());
        }
    }

    fn no_longer_missing(&mut self, url: &str) {
        if let Some(missing) = self.missing.get_mut(&host_number(url)) {
            missing.remove(url);
        }
    }

    /// Found pages of a host that are not final.
    pub(super) fn missing_on(&self, host: u64) -> impl Iterator<Item = &String> {
        let missing = self.missing.get(&host).filter(|_| !self.blocked.contains(&host));
        missing.into_iter().flatten()
    }

    /// Whether it has found the page and the page is not final.
    pub(super) fn lacks(&self, url: &str) -> bool {
        self.missing_on(host_number(url)).any(|missing| missing == url)
    }

    /// Whether nothing in the job's own state blocks its releases.
    pub(super) fn wants_turns(&self) -> bool {
        !(self.done || self.paused || self.held || self.marred || self.is_limited())
    }

    fn is_limited(&self) -> bool {
        let JobSettings { pages_max, host_pages_max, time_ms_max, .. } = &self.settings;
        pages_max.is_some() || host_pages_max.is_some() || time_ms_max.is_some()
    }

    fn check_budget(&self, name: &str, url: &str) -> CheckResult {
        let (host, settings) = (host_number(url), &self.settings);
        let max = settings.pages_max.unwrap_or(u64::MAX);
        let kept = self.completed.len() as u64 <= max;
        Promise::BudgetKept.holds(kept, || format!("{name} has more than {max} pages"))?;
        let Some(max) = settings.host_pages_max else { return Ok(()) };
        let pages = self.completed.iter().filter(|url| host_number(url) == host).count() as u64;
        Promise::BudgetKept
            .holds(pages <= max, || format!("{name} has more than {max} pages of h{host}.org"))
    }

    /// Checks that all pages of the finished pass belong to it and are final, and that it has met
    /// their links.
    pub(super) fn check_end(&self, name: &str) -> CheckResult {
        let links: BTreeSet<&str> = self.completed.iter().flat_map(|url| links_of(url)).collect();
        let own = [&self.seeds, &self.late, &self.targets];
        let belongs = |url: &&String| {
            own.iter().any(|urls| urls.contains(*url)) || links.contains(url.as_str())
        };
        let stray = self.completed.iter().find(|url| !belongs(url));
        Promise::NeverEarly
            .holds(stray.is_none(), || format!("{stray:?} does not belong to {name}"))?;
        // With a budget, pages beyond it do not count. Neither do pages that were released from the
        // job at once while others used the rest of the budget without becoming pages, for example
        // because their host was blocked, or the job no longer wants them.
        let has_all = self.settings.pages_max.is_some_and(|max| {
            let may_be_unused = !self.others.is_empty()
                || !self.blocked.is_empty()
                || self.narrowed != Narrowing::default();
            self.completed.len() as u64 == max || may_be_unused
        });
        if self.marred
            || has_all
            || self.settings.time_ms_max.is_some()
            || self.settings.host_pages_max.is_some()
        {
            return Ok(());
        }
        let missing = self.missing.keys().flat_map(|host| self.missing_on(*host)).next();
        Promise::NeverEarly
            .holds(missing.is_none(), || format!("{name} has not finished {missing:?}"))
    }
}

/// The numbers in an announcement or an answer.
fn counts_of(text: &str) -> BTreeMap<&str, u64> {
    text.split(' ')
        .filter_map(|word| word.split_once('='))
        .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
        .collect()
}

fn ended(counts: &BTreeMap<&str, u64>) -> u64 {
    let ends = [
        "completed",
        "redirects",
        "failed",
        "robots",
        "scope",
        "blocked",
        "trap",
        "budget",
        "cancelled",
    ];
    ends.iter().map(|end| counts[end]).sum()
}
