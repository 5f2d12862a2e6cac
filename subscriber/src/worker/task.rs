//! The life of one task: at most one request, then one answer.

#![expect(
    clippy::disallowed_methods,
    reason = "stamps requests and waits for the disk and for leases"
)]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tidings_protocol::{
    CanonicalUrl, Command, Hold, Outcome, Payload, Return, TaskId, field_number,
};
use tokio::time::{Instant, sleep};

use super::Crawler;
use super::link::Answered;
use super::verdicts::{Entry, Step};
use crate::config::{STORE_NACK_AFTER, STORE_PATIENCE, STORE_RETRY};
use crate::fetch::{Fetched, Keep, Request, Wanted};
use crate::links::Content;
use crate::outcome::{Failure, Reason};
use crate::report::{PageOutcome, PageRecord, PageReport};
use crate::robots::Rules;

/// A task as it was delivered.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) id: TaskId,
    /// The broker's clock when it was sent.
    pub(super) clock_ms: u64,
    /// What was left of its lease then; all of it, once the broker has extended it.
    pub(super) lease: Duration,
    pub(super) payload: String,
    /// Its lease has been running for unknown reasons before it was delivered.
    pub(super) resumed: bool,
}

/// A task while it is worked on.
struct Work<'a> {
    crawler: &'a Crawler,
    task: &'a Task,
    page: CanonicalUrl<'a>,
    /// A request must have ended by then.
    deadline: Instant,
}

/// What is to be done with a task.
enum Next {
    Page(Arc<Rules>),
    Robots {
        url: CanonicalUrl<'static>,
        hops: u8,
    },
    Disallowed,
    /// Its permission is for another host than the one that has to be asked now.
    Elsewhere,
}

impl Task {
    pub(super) fn entry(&self) -> Entry {
        (self.id.run, self.id.entry)
    }
}

/// Works on a task until it is answered. Dropping the future ends its request.
pub(super) async fn work(crawler: &Crawler, mut task: Task) {
    if crawler.stop.is_cancelled() {
        hand_back(crawler, &task).await;
        return;
    }
    let target = Payload::parse(&task.payload).target().unwrap_or(&task.payload);
    let page = match CanonicalUrl::parse(target).map(CanonicalUrl::into_owned) {
        Ok(page) => page,
        Err(error) => {
            let record = task.record(
                target,
                PageOutcome::Failed,
                &Fetched::default(),
                Some(Failure::new(Reason::Url, error.to_string())),
            );
            finish(crawler, &task, record, None, |_| ()).await;
            return;
        }
    };
    let Some(deadline) = permitted_until(crawler, &mut task).await else { return };
    let work = Work { crawler, task: &task, page, deadline };
    work.run().await;
}

/// Until when a request for this task may run; `None` if none may.
///
/// A lease counts from the release, so the time since then is over already. A task that may be
/// older than a tenth of its lease is begun only when the broker says that it is still ours: then
/// the lease counts from the moment at which that was asked, and is as long as the answer says: of one
/// that comes again after a reconnection there may be next to nothing left. An answer that took long
/// (a connection was lost meanwhile) leaves too little of it, so it is asked again.
async fn permitted_until(crawler: &Crawler, task: &mut Task) -> Option<Instant> {
    let mut now = Instant::now();
    let age = crawler.link.age_max(task.clock_ms).filter(|age| *age <= task.lease / 10);
    let age = match age {
        Some(age) if !task.resumed => age,
        _ => {
            let touch = task.touch(false, Hold::default());
            loop {
                let answer = crawler.link.answer(&[], &touch).await;
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
                hand_back(crawler, task).await;
                return None;
            }
            Duration::ZERO
        }
    };
    let lease = (task.lease * 4 / 5).saturating_sub(age);
    Some((now + lease).min(Instant::now() + crawler.config.request_timeout))
}

/// No request was made.
async fn hand_back(crawler: &Crawler, task: &Task) {
    let back = Return::Uncounted { after_ms: None };
    crawler.link.answer(&[], &task.nack(back, Hold::default(), None)).await;
}

impl Work<'_> {
    async fn run(&self) {
        match self.next_request() {
            Next::Page(rules) => self.fetch_page(&rules).await,
            Next::Robots { url, hops } => self.fetch_robots(&url, hops).await,
            Next::Disallowed => self.finish(self.disallowed(), None).await,
            Next::Elsewhere => self.again(&self.page, Hold::default()).await,
        }
    }

    /// What the permission that this task carries is for: the page, or its robots.txt first.
    ///
    /// With `again=` the permission is for the host of that URL: the page itself, or the next hop
    /// of a robots.txt. If nothing is known of that hop, the walk begins anew, but not on this
    /// permission.
    fn next_request(&self) -> Next {
        let again = Payload::parse(&self.task.payload).attribute("again");
        let again = again.and_then(|again| CanonicalUrl::parse(again).ok());
        let (rules, walk) = {
            let mut verdicts = self.crawler.verdicts.lock();
            let walk = again.as_ref().and_then(|again| verdicts.walk(self.task.entry(), again));
            (verdicts.fresh(&self.page, Instant::now()), walk)
        };
        let elsewhere = again.filter(|again| again.host() != self.page.host());
        match (rules, walk) {
            (Some(rules), _) if !self.allowed(&rules) => Next::Disallowed,
            (Some(rules), _) if elsewhere.is_none() => Next::Page(rules),
            (None, Some(walk)) => Next::Robots { url: walk.target, hops: walk.hops },
            (None, None) if elsewhere.is_none() => {
                // Beside a host that fills the longest URL there is no room for a robots.txt.
                let url = self.page.join("/robots.txt");
                url.map_or(Next::Disallowed, |url| Next::Robots { url, hops: 0 })
            }
            _ => Next::Elsewhere,
        }
    }

    fn allowed(&self, rules: &Rules) -> bool {
        rules.allows(self.page.path_and_query())
    }

    async fn fetch_robots(&self, url: &CanonicalUrl<'_>, hops: u8) {
        let Some(fetched) = self.request(url, Wanted::Robots).await else { return };
        let entry = self.task.entry();
        let token = &self.crawler.token;
        let step = self.crawler.verdicts.lock().conclude(
            &self.page,
            entry,
            (url, hops),
            &fetched,
            token,
            Instant::now(),
        );
        let not_before_ms = fetched.retry_after.map(milliseconds);
        match step {
            Step::Elsewhere(walk) => self.again(&walk.target, Hold::default()).await,
            Step::Known(rules) if self.allowed(&rules) => {
                let hold = Hold { not_before_ms, ..pace(&rules) };
                self.again(&self.page, hold).await;
            }
            // This request has ended, and no other follows: the host is free.
            Step::Known(rules) => {
                let hold = Hold { not_before_ms, ..pace(&rules) };
                self.finish(self.disallowed(), Some(hold)).await;
            }
            Step::Unknown(failure) => {
                let outcome = outcome_of(&failure);
                // Status and bytes are those of another page.
                let record = self.task.record(
                    self.page.as_str(),
                    outcome,
                    &Fetched::default(),
                    Some(failure),
                );
                let hold = Hold { not_before_ms, pace_ms: None };
                self.finish(record, Some(hold)).await;
            }
        }
    }

    async fn fetch_page(&self, rules: &Rules) {
        let started = Instant::now();
        let Some(mut fetched) = self.request(&self.page, Wanted::Page).await else { return };
        let duration = started.elapsed();
        let (outcome, error) = judge(&self.page, &mut fetched);
        let hold = Hold { not_before_ms: fetched.retry_after.map(milliseconds), ..pace(rules) };
        let mut record = self.task.record(self.page.as_str(), outcome, &fetched, error);
        record.report.duration = duration;
        record.redirect = fetched.location.filter(|_| outcome == PageOutcome::Redirect);
        let read = |record: &mut PageRecord| {
            let Some(page) = fetched.page else { return };
            let Content { title, links, cut } = page.finish(&self.page);
            record.report.title = title;
            record.report.links = links.len();
            record.report.error = cut.map(str::to_owned);
            record.links = links;
        };
        finish(self.crawler, self.task, record, Some(hold), read).await;
    }

    /// Makes the request. When the crawler stops and it takes too long, it is ended and the task
    /// handed back (`None`): that costs the host's delay, but no attempt.
    async fn request(&self, url: &CanonicalUrl<'_>, wanted: Wanted) -> Option<Fetched> {
        let fetched = {
            let (keep, deadline) = (Keep::default(), self.deadline);
            let request = Request { url, wanted, validators: None, keep, deadline };
            tokio::select! {
                biased;
                fetched = self.crawler.fetcher.fetch(&request) => Some(fetched),
                () = self.crawler.abandon.cancelled() => None,
            }
        };
        if fetched.is_none() {
            self.again(url, Hold::default()).await;
        }
        fetched
    }

    /// Hands the task back for its next request; where the group gives none to this attempt, for
    /// another attempt, so that the task does not lie here until its lease is over.
    async fn again(&self, url: &CanonicalUrl<'_>, hold: Hold) {
        let back = Return::Again { url: url.as_str().to_owned() };
        let answered = self.crawler.link.answer(&[], &self.task.nack(back, hold, None)).await;
        if let Answered::Refused = answered {
            let back = Return::Retry { after_ms: None };
            let reason = Some("its next request was refused".to_owned());
            self.crawler.link.answer(&[], &self.task.nack(back, hold, reason)).await;
        }
    }

    fn disallowed(&self) -> PageRecord {
        let error = Some(Failure::new(Reason::Robots, "disallowed by robots.txt"));
        let page = self.page.as_str();
        self.task.record(page, PageOutcome::Robots, &Fetched::default(), error)
    }

    async fn finish(&self, record: PageRecord, over: Option<Hold>) {
        finish(self.crawler, self.task, record, over, |_| ()).await;
    }
}

/// Stores the page, tells the people, and then the broker.
///
/// `over`, if a request was made and has ended: the host is freed at once, while what the page says is
/// read into the record, and that is stored.
async fn finish(
    crawler: &Crawler,
    task: &Task,
    mut record: PageRecord,
    over: Option<Hold>,
    read: impl FnOnce(&mut PageRecord),
) {
    let free = async {
        let Some(hold) = over else { return true };
        let over = task.touch(true, hold);
        !matches!(crawler.link.answer(&[], &over).await, Answered::Stale | Answered::Refused)
    };
    let store = async {
        // First leaves what hosts wait for: that this one is free, and requests to others.
        tokio::task::yield_now().await;
        read(&mut record);
        let record = Arc::new(record);
        tokio::select! {
            stored = store(crawler, &record) => Some((stored, record)),
            () = keep_lease(crawler, task) => None,
        }
    };
    let (true, Some((stored, record))) = tokio::join!(free, store) else { return };
    if let Err(reason) = stored {
        let back = Return::Retry { after_ms: Some(milliseconds(STORE_NACK_AFTER)) };
        let nack = task.nack(back, Hold::default(), Some(reason));
        crawler.link.answer(&[], &nack).await;
        return;
    }
    tokio::select! {
        // Nobody may be listening.
        _ = crawler.reports.send(record.report.clone()) => {}
        // Somebody may be listening no more.
        () = crawler.abandon.cancelled() => drop(crawler.reports.try_send(record.report.clone())),
        // Or slowly, and the task must stay ours meanwhile.
        () = keep_lease(crawler, task) => return,
    }
    answer(crawler, task, &record).await;
}

async fn answer(crawler: &Crawler, task: &Task, record: &PageRecord) {
    let link = |url, redirect| Command::Link { task: task.id.clone(), url, redirect, prio: None };
    let ack = |outcome| Command::Ack { task: task.id.clone(), outcome, hold: Hold::default() };
    let (children, command) = match record.report.outcome {
        // Without a job nothing is followed, so nothing needs to be told.
        PageOutcome::Done if record.report.job.is_none() => (Vec::new(), ack(Outcome::Done)),
        PageOutcome::Done => {
            let followed = record.links.iter().filter(|link| !link.nofollow);
            (followed.map(|found| link(&found.url, false)).collect(), ack(Outcome::Done))
        }
        PageOutcome::Redirect => {
            let target = record.redirect.iter();
            (target.map(|target| link(target, true)).collect(), ack(Outcome::Redirect))
        }
        _ if record.transient => {
            let back = Return::Retry { after_ms: None };
            (Vec::new(), task.nack(back, Hold::default(), record.report.error.clone()))
        }
        PageOutcome::Failed | PageOutcome::Retry => (Vec::new(), ack(Outcome::Failed)),
        PageOutcome::Robots => (Vec::new(), ack(Outcome::Robots)),
    };
    crawler.link.answer(&children, &command).await;
}

/// Waits for a full disk for a while; the error is for the broker.
async fn store(crawler: &Crawler, record: &Arc<PageRecord>) -> Result<(), String> {
    let patience = Instant::now() + STORE_PATIENCE;
    loop {
        let stored = tokio::select! {
            biased;
            stored = crawler.store.store(Arc::clone(record)) => stored,
            () = crawler.abandon.cancelled() => {
                return Err("the crawler ends before the page is stored".to_owned());
            }
        };
        let Err(error) = stored else { return Ok(()) };
        if Instant::now() >= patience {
            return Err(error.to_string());
        }
        tokio::select! {
            () = sleep(STORE_RETRY) => {}
            () = crawler.abandon.cancelled() => return Err(error.to_string()),
        }
    }
}

/// Extends the lease as long as it is awaited; ends when the task is not ours any more.
async fn keep_lease(crawler: &Crawler, task: &Task) {
    loop {
        sleep(task.lease / 3).await;
        let touch = task.touch(false, Hold::default());
        match crawler.link.answer(&[], &touch).await {
            Answered::Applied(_) => {}
            Answered::Stale | Answered::Refused => return,
            // The page is stored all the same.
            Answered::GivenUp => std::future::pending().await,
        }
    }
}

/// What became of the page, and why.
fn judge(page: &CanonicalUrl, fetched: &mut Fetched) -> (PageOutcome, Option<Failure>) {
    if let Some(failure) = fetched.failure.take() {
        return (outcome_of(&failure), Some(failure));
    }
    match (fetched.status.unwrap_or_default(), &fetched.location) {
        (200..=299, _) => (PageOutcome::Done, None),
        (301 | 302 | 303 | 307 | 308, Some(location)) => match CanonicalUrl::join(page, location) {
            Ok(target) => {
                fetched.location = Some(target.as_str().to_owned());
                (PageOutcome::Redirect, None)
            }
            Err(error) => {
                let text = format!("redirect to nowhere: {error}");
                (PageOutcome::Failed, Some(Failure::new(Reason::Redirect, text)))
            }
        },
        (status, _) => {
            let failure = Failure::of_status(status);
            (outcome_of(&failure), Some(failure))
        }
    }
}

fn outcome_of(failure: &Failure) -> PageOutcome {
    if failure.is_transient() { PageOutcome::Retry } else { PageOutcome::Failed }
}

fn pace(rules: &Rules) -> Hold {
    Hold { not_before_ms: None, pace_ms: rules.crawl_delay().map(milliseconds) }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Task {
    fn touch(&self, over: bool, hold: Hold) -> Command<'static> {
        Command::Touch { task: self.id.clone(), over, hold }
    }

    fn nack(&self, back: Return, hold: Hold, reason: Option<String>) -> Command<'static> {
        Command::Nack { task: self.id.clone(), back, hold, reason }
    }

    fn record(
        &self,
        url: &str,
        outcome: PageOutcome,
        fetched: &Fetched,
        failure: Option<Failure>,
    ) -> PageRecord {
        let payload = Payload::parse(&self.payload);
        let number = |key| payload.attribute(key).and_then(|value| value.parse().ok());
        let transient = outcome == PageOutcome::Retry;
        let is_last = payload.attribute("last") == Some("yes");
        let outcome = if transient && is_last { PageOutcome::Failed } else { outcome };
        let since_1970 =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        PageRecord {
            task: self.id.clone(),
            report: PageReport {
                url: url.to_owned(),
                status: fetched.status,
                outcome,
                bytes: fetched.bytes,
                duration: Duration::ZERO,
                title: None,
                links: 0,
                job: payload.attribute("job").map(str::to_owned),
                error: failure.map(|failure| failure.text),
            },
            transient,
            content_type: fetched.content_type.clone(),
            hash: fetched.hash,
            fetched_unix_ms: i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX),
            pass: number("pass"),
            depth: number("depth"),
            redirect: None,
            links: Vec::new(),
        }
    }
}
