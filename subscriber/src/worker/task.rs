//! Works on one task: at most one request, then one reply.

#![expect(clippy::disallowed_methods, reason = "stamps requests")]

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use tidings_protocol::{CanonicalUrl, Command, Hold, Return, TaskId, field_number};
use tokio::time::Instant;

use super::finish::finish;
use super::link::Answered;
use super::order::Order;
use super::record::{outcome_of, unix_ms};
use super::verdicts::{Now, Remember, Remembered, Step, authority};
use super::{Crawler, Entry};
use crate::config::{BUSY_NACK_AFTER, ROBOTS_FRESH, ROBOTS_OUTAGE_PAUSE_MIN, SITEMAPS_KIND};
use crate::fetch::{Fetched, Request, Wanted};
use crate::outcome::{Failure, Reason};
use crate::report::{Keep, PageId, PageOutcome, PageRecord};
use crate::robots::{Rules, sitemaps};

/// A task as delivered.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) id: TaskId,
    /// The id of the page in the sinks.
    pub(super) page: PageId,
    /// The broker's clock when the task was sent.
    pub(super) clock_ms: u64,
    /// The rest of the lease at that time; the whole lease once the broker has renewed it.
    pub(super) lease: Duration,
    pub(super) order: Order,
    /// The lease began before this delivery, at an unknown time.
    pub(super) resumed: bool,
}

/// A task in progress.
pub(super) struct Work<'a> {
    pub(super) crawler: &'a Crawler,
    pub(super) task: &'a Task,
    pub(super) page: CanonicalUrl<'a>,
    /// A request must end by this time.
    pub(super) deadline: Instant,
}

/// The next step of a task.
enum Next {
    Page(Arc<Rules>),
    Robots {
        url: CanonicalUrl<'static>,
        hops: u8,
    },
    Disallowed,
    /// A recent request for its robots.txt failed; the next one is due after this time.
    Unreachable(Failure, Duration),
    /// The task was released for another host than that of this URL, which must be requested now.
    Elsewhere(CanonicalUrl<'static>),
}

impl Task {
    pub(super) fn entry(&self) -> Entry {
        (self.id.run, self.id.entry)
    }
}

/// Works on a task until it is answered. Dropping the future aborts its request.
pub(super) async fn work(crawler: &Crawler, mut task: Task) {
    if crawler.stop.is_cancelled() {
        hand_back(crawler, &task, None).await;
        return;
    }
    let url = task.order.url();
    let page = match CanonicalUrl::parse(url).map(CanonicalUrl::into_owned) {
        Ok(page) => page,
        Err(error) => {
            let failure = Failure::new(Reason::Url, error.to_string());
            let record = task.refusal(url, PageOutcome::Failed, failure);
            let end = finish(crawler, &task, Arc::new(record), None, |_| (), ready(Ok(())));
            return Box::pin(end).await;
        }
    };
    let Some(deadline) = permitted_until(crawler, &mut task).await else { return };
    let work = Work { crawler, task: &task, page, deadline };
    work.run().await;
}

/// The time by which a request for this task must end; `None` if no request may be made.
///
/// A lease counts from the release, so the age of the task is subtracted. A task that may be older
/// than a tenth of its lease, or that was resumed after a reconnection, is renewed first with
/// `TOUCH`. Then the lease counts from the moment the `TOUCH` was sent, and its length is the one
/// in the answer. If the answer took long (a connection was lost meanwhile), too little of the
/// lease is left, and the `TOUCH` is sent again.
async fn permitted_until(crawler: &Crawler, task: &mut Task) -> Option<Instant> {
    let mut now = Instant::now();
    let age = crawler.link.age_max(task.clock_ms).filter(|age| *age <= task.lease / 10);
    let age = match age {
        Some(age) if !task.resumed => age,
        _ => {
            let touch = task.touch(false, Hold::default());
            loop {
                let answer = Box::pin(crawler.link.answer(&[], &touch)).await;
                let Answered::Applied(ok) = answer else { return None };
                let answered = Instant::now();
                if let Some(lease_ms) = field_number(&ok, "lease") {
                    task.lease = Duration::from_millis(lease_ms);
                }
                if answered - now <= task.lease * 2 / 5 {
                    break;
                }
                now = answered;
            }
            if crawler.stop.is_cancelled() {
                hand_back(crawler, task, None).await;
                return None;
            }
            Duration::ZERO
        }
    };
    let lease = (task.lease * 4 / 5).saturating_sub(age);
    Some((now + lease).min(Instant::now() + crawler.config.request_timeout))
}

/// Returns a task without counting an attempt.
pub(super) async fn hand_back(crawler: &Crawler, task: &Task, after: Option<Duration>) {
    let back = Return::Uncounted { after_ms: after.map(milliseconds) };
    crawler.link.answer(&[], &task.nack(back, Hold::default(), None)).await;
}

/// Returns a task for a request to this URL, without counting an attempt. If the group allows this
/// attempt no further request, the task is returned for another attempt, so that it does not stay
/// here until its lease expires.
pub(super) async fn again(
    crawler: &Crawler,
    task: &Task,
    url: &str,
    (hold, reason): (Hold, Option<String>),
) {
    let nack = task.nack_again(url, hold, reason.clone());
    if let Answered::Refused = crawler.link.answer(&[], &nack).await {
        let reason = reason.unwrap_or_else(|| "its next request was refused".to_owned());
        let nack = task.nack(Return::Retry { after_ms: None }, hold, Some(reason));
        crawler.link.answer(&[], &nack).await;
    }
}

impl Work<'_> {
    async fn run(&self) {
        match self.next_request() {
            // Boxed: needed once for each host, but part of every task's future.
            Next::Robots { .. } => Box::pin(self.find_out()).await,
            next => self.go_on(next).await,
        }
    }

    /// Of several tasks that need the same robots.txt, one requests it, unless a stored copy is
    /// fresh.
    async fn find_out(&self) {
        let authority = authority(&self.page);
        let robots_lock = self.crawler.turns.take(authority.clone()).await;
        if Instant::now() >= self.deadline {
            return hand_back(self.crawler, self.task, None).await;
        }
        let mut remembered = Remembered::default();
        if self.crawler.verdicts.lock().fresh(&self.page, Instant::now()).is_none() {
            remembered = self.recall(&authority).await;
            self.crawler.verdicts.lock().learn(&self.page, &remembered, now());
        }
        let (url, hops) = match self.next_request() {
            Next::Robots { url, hops } => (url, hops),
            next => {
                drop(robots_lock);
                return self.go_on(next).await;
            }
        };
        let (wanted, keep, deadline) = (Wanted::Robots, Keep::default(), self.deadline);
        let request = Request { url: &url, wanted, validators: None, keep, deadline };
        let Some(fetched) = self.request(&request).await else { return };
        let step = self.conclude((&url, hops), &fetched, &remembered);
        drop(robots_lock);
        self.answer_robots(&url, step, fetched.retry_after.map(milliseconds)).await;
    }

    async fn go_on(&self, next: Next) {
        match next {
            Next::Page(rules) => self.fetch_page(&rules).await,
            Next::Robots { url, .. } | Next::Elsewhere(url) => {
                self.again(&url, Hold::default()).await;
            }
            Next::Disallowed => Box::pin(self.finish(self.disallowed(), None)).await,
            Next::Unreachable(failure, pause) => {
                Box::pin(self.finish(self.without_robots(failure, pause), None)).await;
            }
        }
    }

    /// Which request this task was released for: the page, or its robots.txt first.
    ///
    /// With `again=` it was released for the host of that URL: that of the page, or of the next hop
    /// of a redirected robots.txt. All tasks of an authority follow the same redirects. If the next
    /// hop is unknown here, the redirects are followed from the beginning, but with another
    /// release.
    fn next_request(&self) -> Next {
        let again = self.task.order.again.as_deref();
        let again = again.and_then(|again| CanonicalUrl::parse(again).ok());
        let permitted = again.as_ref().map_or(self.page.host(), CanonicalUrl::host);
        let (rules, walk) = {
            let (verdicts, now) = (self.crawler.verdicts.lock(), Instant::now());
            if let Some((failure, pause)) = verdicts.outage(&self.page, now) {
                return Next::Unreachable(failure, pause);
            }
            (verdicts.fresh(&self.page, now), verdicts.walk(&self.page, now))
        };
        match (rules, walk) {
            (Some(rules), _) if !self.allowed(&rules) => Next::Disallowed,
            (Some(rules), _) if permitted == self.page.host() => Next::Page(rules),
            (None, Some(walk)) if permitted == walk.target.host() => {
                Next::Robots { url: walk.target, hops: walk.hops }
            }
            (None, Some(walk)) => Next::Elsewhere(walk.target),
            (None, None) if permitted == self.page.host() => {
                // A host that fills the longest URL leaves no room for the path of a robots.txt.
                let url = self.page.join("/robots.txt");
                url.map_or(Next::Disallowed, |url| Next::Robots { url, hops: 0 })
            }
            _ => Next::Elsewhere(self.page.clone().into_owned()),
        }
    }

    /// The key of an authority in `crawler.db`: rules are stored for each product token.
    fn state_key(&self, authority: &str) -> String {
        format!("{} {authority}", self.crawler.token)
    }

    async fn recall(&self, authority: &str) -> Remembered {
        let (state, key) = (&self.crawler.state, self.state_key(authority));
        let copy = state.load(Remember::COPY, &key);
        let (copy, outage) = tokio::join!(copy, state.load(Remember::OUTAGE, &key));
        Remembered { copy, outage }
    }

    fn conclude(
        &self,
        requested: (&CanonicalUrl, u8),
        fetched: &Fetched,
        remembered: &Remembered,
    ) -> Step {
        let known = (self.crawler.token.as_str(), remembered.outage.as_ref());
        let mut verdicts = self.crawler.verdicts.lock();
        let (step, remember) = verdicts.conclude(&self.page, requested, fetched, known, now());
        drop(verdicts);
        let authority = authority(&self.page);
        // Rules of an older copy, which stay in force during an outage, are stored already.
        let was_read = remember.iter().any(|remember| remember.kind == Remember::COPY);
        if self.crawler.config.links.sitemaps && was_read {
            let sitemaps = sitemaps(&fetched.text);
            let lines: Vec<_> = sitemaps.iter().map(CanonicalUrl::as_str).collect();
            let until = unix_ms() / 1000 + 2 * ROBOTS_FRESH.as_secs();
            self.crawler.state.store(SITEMAPS_KIND, &authority, lines.join("\n").into(), until);
        }
        let key = self.state_key(&authority);
        for Remember { kind, value, expires_unix_s } in remember {
            self.crawler.state.store(kind, &key, value, expires_unix_s);
        }
        step
    }

    fn allowed(&self, rules: &Rules) -> bool {
        rules.allows(self.page.path_and_query())
    }

    async fn answer_robots(
        &self,
        requested: &CanonicalUrl<'_>,
        step: Step,
        not_before_ms: Option<u64>,
    ) {
        // The pace is for the host that was requested; after a redirect that host may have no
        // rules.
        let hold = |rules: &Rules| {
            let pace_ms = pace(rules).pace_ms.filter(|_| requested.host() == self.page.host());
            Hold { not_before_ms, pace_ms }
        };
        match step {
            Step::Elsewhere(walk) => self.again(&walk.target, Hold::default()).await,
            Step::Known(rules) if self.allowed(&rules) => {
                self.again(&self.page, hold(&rules)).await;
            }
            // This request has ended, and no other follows: the host is free.
            Step::Known(rules) => self.finish(self.disallowed(), Some(hold(&rules))).await,
            Step::Unknown(failure, pause) => {
                let hold = Hold { not_before_ms, pace_ms: None };
                self.finish(self.without_robots(failure, pause), Some(hold)).await;
            }
        }
    }

    /// Makes the request. Returns `None` if the task was returned instead:
    ///
    /// - The crawler stops and the request takes too long: the request is aborted, which costs the
    ///   host's delay, but no attempt.
    /// - Too many other requests to its address are running: no request was made, which costs
    ///   nothing.
    /// - A kept connection was closed before the answer: the task is returned for the same request
    ///   on a new connection, which costs the host's delay, but no attempt.
    pub(super) async fn request(&self, request: &Request<'_>) -> Option<Fetched> {
        tokio::select! {
            biased;
            fetched = self.fetch(request) => {
                match &fetched.failure {
                    Some(why) if why.reason == Reason::Busy => {
                        Box::pin(hand_back(self.crawler, self.task, Some(BUSY_NACK_AFTER))).await;
                    }
                    Some(why) if fetched.kept_ended => {
                        let hold_and_reason = (Hold::default(), Some(format!("kept connection: {why}")));
                        let url = request.url.as_str();
                        Box::pin(again(self.crawler, self.task, url, hold_and_reason)).await;
                    }
                    _ => return Some(fetched),
                }
                return None;
            }
            () = self.crawler.abandon.cancelled() => {}
        }
        Box::pin(self.again(request.url, Hold::default())).await;
        None
    }

    async fn fetch(&self, request: &Request<'_>) -> Fetched {
        let mut fetched = self.crawler.fetcher.fetch(request).await;
        self.move_to_file(&mut fetched).await;
        fetched
    }

    /// Moves the body to a file if a sink needs a path.
    async fn move_to_file(&self, fetched: &mut Fetched) {
        if let Some(body) = &mut fetched.body
            && self.crawler.sinks.keep().decoded
            && let Err(error) = body.path().await
        {
            fetched.failure = Some(Failure::of(Reason::Storage, &error));
        }
    }

    /// Returns the task for its next request.
    pub(super) async fn again(&self, url: &CanonicalUrl<'_>, hold: Hold) {
        again(self.crawler, self.task, url.as_str(), (hold, None)).await;
    }

    /// Returns the task without counting an attempt if this machine could not store the answer:
    /// that is not the page's fault. `false`: storage did not fail, or the group refused this kind
    /// of return.
    pub(super) async fn is_not_kept(&self, fetched: &Fetched, hold: Hold) -> bool {
        let failure = fetched.failure.as_ref();
        let Some(failure) = failure.filter(|failure| failure.reason == Reason::Storage) else {
            return false;
        };
        let nack = self.task.nack_again(self.page.as_str(), hold, Some(failure.text.clone()));
        !matches!(self.crawler.link.answer(&[], &nack).await, Answered::Refused)
    }

    /// The record of a page with an unreachable robots.txt: nothing may be fetched until a retry
    /// after this pause.
    fn without_robots(&self, failure: Failure, pause: Duration) -> PageRecord {
        let outcome = outcome_of(&failure);
        // The status and the bytes would be those of another page.
        let record = self.task.refusal(self.page.as_str(), outcome, failure);
        // The group's backoff is at least this long anyway.
        let again_after = Some(pause).filter(|pause| *pause > ROBOTS_OUTAGE_PAUSE_MIN);
        PageRecord { again_after, ..record }
    }

    fn disallowed(&self) -> PageRecord {
        let failure = Failure::new(Reason::Robots, "disallowed by robots.txt");
        self.task.refusal(self.page.as_str(), PageOutcome::Robots, failure)
    }

    pub(super) async fn finish(&self, record: PageRecord, over: Option<Hold>) {
        finish(self.crawler, self.task, Arc::new(record), over, |_| (), ready(Ok(()))).await;
    }
}

pub(super) fn pace(rules: &Rules) -> Hold {
    Hold { not_before_ms: None, pace_ms: rules.crawl_delay().map(milliseconds) }
}

pub(super) fn now() -> Now {
    Now { instant: Instant::now(), unix_s: unix_ms() / 1000 }
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Task {
    pub(super) fn touch(&self, over: bool, hold: Hold) -> Command<'static> {
        Command::Touch { task: self.id.clone(), over, hold }
    }

    fn nack_again(&self, url: &str, hold: Hold, reason: Option<String>) -> Command<'static> {
        self.nack(Return::Again { url: url.to_owned() }, hold, reason)
    }

    pub(super) fn nack(
        &self,
        back: Return,
        hold: Hold,
        reason: Option<String>,
    ) -> Command<'static> {
        Command::Nack { task: self.id.clone(), back, hold, reason }
    }
}
