//! Works on one task: at most one request, then one reply.

#![expect(clippy::disallowed_methods, reason = "stamps requests")]

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use tidings_client::{ReplyOutcome, TaskLease};
use tidings_egress::failure::{Failure, Reason};
use tidings_protocol::{
    CanonicalUrl, Code, Command, KeyRest, RetryMode, TaskAction, TaskId, TaskReply, TaskReport,
};
use tokio::time::Instant;

use super::finish::finish;
use super::record::{outcome_of, unix_ms};
use super::robots_cache::{ClockReading, RobotsStep, StoredRobots};
use super::task_spec::TaskSpec;
use super::{Crawler, EntryKey};
use crate::fetch::{FetchPurpose, FetchRequest, Fetched};
use crate::report::{KeepBodies, PageId, PageOutcome, PageRecord};
use crate::robots::RobotsRules;

/// The delay of a page for which this crawler had no room. It has waited for a while already.
pub(crate) const BUSY_NACK_AFTER: Duration = Duration::from_secs(1);

/// The delay of a page that was requested while the network was away. The crawler takes it again
/// when the network is back; another crawler of the group may take it before.
const AWAY_NACK_AFTER: Duration = Duration::from_secs(1);

/// A task as delivered.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) id: TaskId,
    /// The id of the page in the sinks.
    pub(super) page: PageId,
    pub(super) lease: TaskLease,
    pub(super) spec: TaskSpec,
}

/// A task in progress.
pub(super) struct TaskWork<'a> {
    pub(super) crawler: &'a Arc<Crawler>,
    pub(super) task: &'a Task,
    pub(super) page: CanonicalUrl<'a>,
    /// Until when the task is held, unless its lease is renewed.
    pub(super) held_until: Instant,
    /// A request must end by this time.
    pub(super) deadline: Instant,
}

/// The next step of a task.
enum NextStep {
    Page(Arc<RobotsRules>),
    Robots {
        url: CanonicalUrl<'static>,
        hops: u8,
    },
    Disallowed,
    /// A recent request for its robots.txt failed.
    Unreachable(Failure),
    /// The task was released for another host than that of this URL, which must be requested now.
    OtherHost(CanonicalUrl<'static>),
}

impl Task {
    pub(super) fn entry(&self) -> EntryKey {
        (self.id.run, self.id.entry)
    }
}

/// Works on a task until it is answered. Dropping the future aborts its request.
pub(super) async fn work(crawler: &Arc<Crawler>, mut task: Task) {
    if crawler.stop.is_cancelled() {
        return_uncounted(crawler, &task, None).await;
        return;
    }
    let url = task.spec.url();
    let page = match CanonicalUrl::parse(url).map(CanonicalUrl::into_owned) {
        Ok(page) => page,
        Err(error) => {
            let failure = Failure::new(Reason::Url, error.to_string());
            let record = task.record_without_request(url, PageOutcome::Failed, failure);
            let end = finish(crawler, &task, Arc::new(record), None, |_| (), ready(Ok(())));
            return Box::pin(end).await;
        }
    };
    let Some(held_until) = hold(crawler, &mut task).await else { return };
    let deadline = held_until.min(Instant::now() + crawler.config.fetch.request_timeout);
    let work = TaskWork { crawler, task: &task, page, held_until, deadline };
    work.run().await;
}

/// Until when the task is held; `None` if no request may be made. A request must end by then, so
/// that none is made for a task that another member may hold.
async fn hold(crawler: &Crawler, task: &mut Task) -> Option<Instant> {
    let held_until = crawler.broker.hold(&task.id, &mut task.lease).await?;
    if crawler.stop.is_cancelled() {
        return_uncounted(crawler, task, None).await;
        return None;
    }
    Some(held_until)
}

/// Returns a task without counting an attempt.
pub(super) async fn return_uncounted(crawler: &Crawler, task: &Task, after: Option<Duration>) {
    let back = RetryMode::Uncounted { after_ms: after.map(milliseconds) };
    crawler.reply(&[], &task.nack(back, KeyRest::default(), None)).await;
}

/// Returns a task for a request to this URL, without counting an attempt. If the group allows this
/// attempt no further request, the task is returned for another attempt, so that it does not stay
/// here until its lease expires.
pub(super) async fn return_for_request(
    crawler: &Crawler,
    task: &Task,
    url: &str,
    (hold, report): (KeyRest, Option<TaskReport>),
) {
    let nack = task.nack_again(url, hold, report.clone());
    let refused = crawler.reply(&[], &nack).await;
    if matches!(&refused, ReplyOutcome::Refused(refusal) if refusal.code != Code::Stale) {
        let report = report.unwrap_or_else(|| error_report("its next request was refused"));
        let nack = task.nack(RetryMode::Counted { after_ms: None }, hold, Some(report));
        crawler.reply(&[], &nack).await;
    }
}

impl TaskWork<'_> {
    async fn run(&self) {
        match self.next_request() {
            // Boxed: needed once for each host, but part of every task's future.
            NextStep::Robots { .. } => Box::pin(self.fetch_robots()).await,
            next => self.continue_with(next).await,
        }
    }

    /// Of several tasks that need the same robots.txt, one requests it, unless a stored copy is
    /// fresh.
    async fn fetch_robots(&self) {
        let origin = self.page.origin();
        let robots_lock = self.crawler.robots_locks.lock(origin.to_owned()).await;
        if Instant::now() >= self.deadline {
            return return_uncounted(self.crawler, self.task, None).await;
        }
        let mut remembered = StoredRobots::default();
        if self.crawler.robots_cache.lock().fresh(&self.page, Instant::now()).is_none() {
            remembered = self.crawler.load_stored_robots(origin).await;
            self.crawler.robots_cache.lock().restore(&self.page, &remembered, now());
        }
        let (url, hops) = match self.next_request() {
            NextStep::Robots { url, hops } => (url, hops),
            next => {
                drop(robots_lock);
                return self.continue_with(next).await;
            }
        };
        let (wanted, keep, deadline) = (FetchPurpose::Robots, KeepBodies::default(), self.deadline);
        let request = FetchRequest { url: &url, purpose: wanted, validators: None, keep, deadline };
        let Some(fetched) = self.request(&request).await else { return };
        let step = self.crawler.process_robots(&self.page, (&url, hops), &fetched, &remembered);
        drop(robots_lock);
        self.reply_after_robots(&url, step, not_before(fetched.retry_after)).await;
    }

    async fn continue_with(&self, next: NextStep) {
        match next {
            NextStep::Page(rules) => self.fetch_page(&rules).await,
            NextStep::Robots { url, .. } | NextStep::OtherHost(url) => {
                self.return_for_request(&url, KeyRest::default()).await;
            }
            NextStep::Disallowed => Box::pin(self.finish(self.disallowed_record(), None)).await,
            NextStep::Unreachable(failure) => {
                Box::pin(self.finish(self.unreachable_record(failure), None)).await;
            }
        }
    }

    /// Which request this task was released for: the page, or its robots.txt first.
    ///
    /// With `again=` it was released for the host of that URL: that of the page, or of the next hop
    /// of a redirected robots.txt. All tasks of an origin follow the same redirects. If the next
    /// hop is unknown here, the redirects are followed from the beginning, but with another
    /// release.
    fn next_request(&self) -> NextStep {
        let again = self.task.spec.again.as_deref();
        let again = again.and_then(|again| CanonicalUrl::parse(again).ok());
        let permitted = again.as_ref().map_or(self.page.host(), CanonicalUrl::host);
        let (rules, walk) = {
            let (verdicts, now) = (self.crawler.robots_cache.lock(), Instant::now());
            if let Some(failure) = verdicts.outage(&self.page, now) {
                return NextStep::Unreachable(failure);
            }
            (verdicts.fresh(&self.page, now), verdicts.pending_redirect(&self.page, now))
        };
        match (rules, walk) {
            (Some(rules), _) if !self.allowed(&rules) => NextStep::Disallowed,
            (Some(rules), _) if permitted == self.page.host() => NextStep::Page(rules),
            (None, Some(walk)) if permitted == walk.target.host() => {
                NextStep::Robots { url: walk.target, hops: walk.hops }
            }
            (None, Some(walk)) => NextStep::OtherHost(walk.target),
            (None, None) if permitted == self.page.host() => {
                // A host that fills the longest URL leaves no room for the path of a robots.txt.
                let url = self.page.join("/robots.txt");
                url.map_or(NextStep::Disallowed, |url| NextStep::Robots { url, hops: 0 })
            }
            _ => NextStep::OtherHost(self.page.clone().into_owned()),
        }
    }

    fn allowed(&self, rules: &RobotsRules) -> bool {
        rules.allows(self.page.path_and_query())
    }

    async fn reply_after_robots(
        &self,
        requested: &CanonicalUrl<'_>,
        step: RobotsStep,
        rest: KeyRest,
    ) {
        // The pace is for the host that was requested; after a redirect that host may have no
        // rules.
        let hold = |rules: &RobotsRules| {
            let pace_ms = pace(rules).pace_ms.filter(|_| requested.host() == self.page.host());
            KeyRest { pace_ms, ..rest }
        };
        match step {
            RobotsStep::Redirected(walk) => {
                self.return_for_request(&walk.target, KeyRest::default()).await;
            }
            RobotsStep::Known(rules) if self.allowed(&rules) => {
                self.return_for_request(&self.page, hold(&rules)).await;
            }
            // This request has ended, and no other follows: the host is free.
            RobotsStep::Known(rules) => {
                self.finish(self.disallowed_record(), Some(hold(&rules))).await;
            }
            RobotsStep::Unreachable(failure) => {
                self.finish(self.unreachable_record(failure), Some(rest)).await;
            }
        }
    }

    /// Makes the request. Returns `None` if the task was returned instead:
    ///
    /// - The crawler stops and the request takes too long: the request is aborted, which costs the
    ///   host's delay, but no attempt.
    /// - Too many other requests to its address are running, or parts of rendered pages from its
    ///   host; or the host asks clients to wait, as a part was answered: no request was made, which
    ///   costs nothing.
    /// - The network of this machine is away: the task waits until it is back, which costs nothing.
    /// - A kept connection was closed before the answer: the task is returned for the same request
    ///   on a new connection, which costs the host's delay, but no attempt.
    pub(super) async fn request(&self, request: &FetchRequest<'_>) -> Option<Fetched> {
        let began = Instant::now();
        tokio::select! {
            biased;
            fetched = self.fetch(request) => {
                if let Some(server) = fetched.remote {
                    self.crawler.network.answered_by(server);
                }
                match &fetched.failure {
                    Some(why) if why.reason == Reason::Busy => {
                        let back =
                            RetryMode::Uncounted { after_ms: Some(milliseconds(BUSY_NACK_AFTER)) };
                        let nack = self.task.nack(back, self.crawler.rest_of(request.url), None);
                        Box::pin(self.crawler.reply(&[], &nack)).await;
                    }
                    Some(why) if self.is_for_network(why, began).await => {
                        let after = Some(AWAY_NACK_AFTER);
                        Box::pin(return_uncounted(self.crawler, self.task, after)).await;
                    }
                    Some(why) if fetched.reused_connection_ended => {
                        let why = failure_report(&why.clone().with_context("kept connection: "));
                        let (url, rest) = (request.url.as_str(), KeyRest::default());
                        let back = return_for_request(self.crawler, self.task, url, (rest, Some(why)));
                        Box::pin(back).await;
                    }
                    _ => return Some(fetched),
                }
                return None;
            }
            () = self.crawler.abandon.cancelled() => {}
        }
        Box::pin(self.return_for_request(request.url, KeyRest::default())).await;
        None
    }

    /// Reports whether a request that began at `began` failed because the network is away.
    async fn is_for_network(&self, why: &Failure, began: Instant) -> bool {
        why.reason.is_unanswered() && Box::pin(self.crawler.network.is_away(began)).await
    }

    async fn fetch(&self, request: &FetchRequest<'_>) -> Fetched {
        let mut fetched = if self.crawler.renderer.is_some() {
            self.fetch_between_parts(request).await
        } else {
            self.crawler.fetcher.fetch(request).await
        };
        self.move_to_file(&mut fetched).await;
        fetched
    }

    /// Makes a request between those for parts of rendered pages.
    async fn fetch_between_parts(&self, request: &FetchRequest<'_>) -> Fetched {
        let not_made = |text: &str| {
            let failure = Some(Failure::new(Reason::Busy, text));
            Fetched { failure, ..Fetched::default() }
        };
        let _turn = self.crawler.host_locks.lock(request.url.host().to_owned()).await;
        if Instant::now() >= request.deadline {
            return not_made("parts of rendered pages were requested from this host");
        }
        let fetched = self.crawler.fetch_unless_resting(request).await;
        fetched.unwrap_or_else(|| not_made("this host asks clients to wait"))
    }

    /// Moves the body to a file if a sink needs a path.
    async fn move_to_file(&self, fetched: &mut Fetched) {
        if let Some(body) = &mut fetched.body
            && self.crawler.sinks.need_files()
            && let Err(error) = body.path().await
        {
            fetched.failure = Some(Failure::of(Reason::Storage, &error));
        }
    }

    /// Returns the task for its next request.
    pub(super) async fn return_for_request(&self, url: &CanonicalUrl<'_>, hold: KeyRest) {
        return_for_request(self.crawler, self.task, url.as_str(), (hold, None)).await;
    }

    /// Returns the task without counting an attempt if this machine could not store the answer:
    /// that is not the page's fault. `false`: storage did not fail, or the group refused this kind
    /// of return.
    pub(super) async fn return_unless_kept(&self, fetched: &Fetched, hold: KeyRest) -> bool {
        let failure = fetched.failure.as_ref();
        let Some(failure) = failure.filter(|failure| failure.reason == Reason::Storage) else {
            return false;
        };
        self.return_for_page(hold, Some(failure_report(failure))).await
    }

    /// Returns the task for another request to its page, without counting an attempt. `false`: the
    /// group refused that, and the task is still held.
    pub(super) async fn return_for_page(&self, hold: KeyRest, report: Option<TaskReport>) -> bool {
        let nack = self.task.nack_again(self.page.as_str(), hold, report);
        let refused = self.crawler.reply(&[], &nack).await;
        !matches!(&refused, ReplyOutcome::Refused(refusal) if refusal.code != Code::Stale)
    }

    /// The record of a page with an unreachable robots.txt: nothing may be fetched.
    fn unreachable_record(&self, failure: Failure) -> PageRecord {
        // The status and the bytes would be those of another page.
        let outcome = outcome_of(&failure);
        self.task.record_without_request(self.page.as_str(), outcome, failure)
    }

    fn disallowed_record(&self) -> PageRecord {
        let failure = Failure::new(Reason::Robots, "disallowed by robots.txt");
        self.task.record_without_request(self.page.as_str(), PageOutcome::Robots, failure)
    }

    pub(super) async fn finish(&self, record: PageRecord, over: Option<KeyRest>) {
        finish(self.crawler, self.task, Arc::new(record), over, |_| (), ready(Ok(()))).await;
    }
}

pub(super) fn pace(rules: &RobotsRules) -> KeyRest {
    KeyRest { not_before_ms: None, pace_ms: rules.crawl_delay().map(milliseconds) }
}

pub(super) fn not_before(retry_after: Option<Duration>) -> KeyRest {
    KeyRest { not_before_ms: retry_after.map(milliseconds), pace_ms: None }
}

pub(super) fn now() -> ClockReading {
    ClockReading { instant: Instant::now(), unix_s: unix_ms() / 1000 }
}

/// A report of an error that has no page.
pub(super) fn error_report(error: impl Into<String>) -> TaskReport {
    TaskReport { error: Some(error.into()), ..TaskReport::default() }
}

/// A report of a request that failed.
pub(super) fn failure_report(failure: &Failure) -> TaskReport {
    TaskReport { reason: Some(failure.reason.to_string()), ..error_report(&*failure.text) }
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Task {
    pub(super) fn reply(
        &self,
        action: TaskAction,
        rest: KeyRest,
        report: Option<TaskReport>,
    ) -> Command<'static> {
        let report = report.map(Box::new);
        Command::Reply(TaskReply { task: self.id.clone(), action, rest, report })
    }

    pub(super) fn touch(&self, request_ended: bool, rest: KeyRest) -> Command<'static> {
        self.reply(TaskAction::Touch { request_ended }, rest, None)
    }

    fn nack_again(&self, url: &str, hold: KeyRest, report: Option<TaskReport>) -> Command<'static> {
        self.nack(RetryMode::OtherUrl { url: url.to_owned() }, hold, report)
    }

    pub(super) fn nack(
        &self,
        retry: RetryMode,
        rest: KeyRest,
        report: Option<TaskReport>,
    ) -> Command<'static> {
        self.reply(TaskAction::Nack(retry), rest, report)
    }
}
