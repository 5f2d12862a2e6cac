//! Ends a task: stores its page, sends the report, and replies to the broker.

#![expect(clippy::disallowed_methods, reason = "waits for sinks and for leases")]

use std::sync::Arc;
use std::time::Duration;

use tidings_client::ReplyOutcome;
use tidings_protocol::{
    CanonicalUrl, Code, Command, KeyRest, Outcome, Prio, ProtocolError, RetryMode, TaskAction,
    TaskReply, TaskReport,
};
use tokio::time::{Instant, sleep, timeout_at};

use super::Crawler;
use super::task::{Task, milliseconds, return_for_request};
use crate::pass::PassKey;
use crate::report::{PageOutcome, PageRecord};
use crate::sink::Sinks;

/// How long a fetched page waits for a full or failing disk before its task is returned; its lease
/// is renewed meanwhile.
const STORE_TIMEOUT: Duration = Duration::from_mins(1);
/// The delay of a page, before it is fetched again, if the group had no room for its links: many
/// entries must end before a retry helps.
pub(crate) const NO_ROOM_NACK_AFTER: Duration = Duration::from_mins(10);

/// The longest delay of a `NACK after=`.
const NACK_MAX: Duration = Duration::from_hours(24);

/// Why a task is returned without an outcome.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TaskFailure {
    /// For people.
    pub(super) error: String,
    /// The page, or what is done with it, is the cause, so this counts as an attempt.
    pub(super) counts_as_attempt: bool,
    /// For a counted attempt: when it is due again, a day at most; without it, the group's backoff.
    pub(super) retry_after: Option<Duration>,
}

impl TaskFailure {
    pub(super) fn new(error: impl Into<String>, counts_as_attempt: bool) -> Self {
        Self { error: error.into(), counts_as_attempt, retry_after: None }
    }
}

/// Stores the page, sends the report, and replies to the broker.
///
/// `over` is set if a request was made and has ended: its host is freed at once, while `read` fills
/// the record from the page and the record is stored. `then` runs before the reply. With cookies, a
/// redirect in a job frees its host by the reply: other pages would be redirected, too, before its
/// target can set a cookie.
pub(super) async fn finish(
    crawler: &Crawler,
    task: &Task,
    mut record: Arc<PageRecord>,
    over: Option<KeyRest>,
    read: impl FnOnce(&mut PageRecord),
    then: impl Future<Output = Result<(), TaskFailure>>,
) {
    let was_requested = over.is_some();
    let may_be_gate = crawler.config.fetch.cookies
        && record.report.job.is_some()
        && record.report.outcome == PageOutcome::Redirect;
    let (over, with_reply) = if may_be_gate { (None, over) } else { (over, None) };
    let rest = with_reply.unwrap_or_default();
    let free = async {
        let Some(hold) = over else { return true };
        let over = task.touch(true, hold);
        !matches!(crawler.reply(&[], &over).await, ReplyOutcome::Refused(_))
    };
    let store = async {
        // Hosts wait for the message that frees them and for other requests: those go first.
        tokio::task::yield_now().await;
        read(Arc::get_mut(&mut record).expect("the record is not shared yet"));
        let stored = async {
            store(&crawler.sinks, &record, STORE_TIMEOUT).await?;
            then.await
        };
        let stored = tokio::select! {
            biased;
            stored = stored => stored,
            () = crawler.abandon.cancelled() => {
                Err(TaskFailure::new("the crawler stopped before the page was stored", false))
            }
            () = renew_lease(crawler, task) => return None,
        };
        Some(stored)
    };
    let (true, Some(stored)) = tokio::join!(free, store) else { return };
    if let Err(undone) = stored {
        let back = return_task(crawler, task, (&record, was_requested, rest), undone);
        return Box::pin(back).await;
    }
    crawler.config.metrics.count_page(&record.report);
    tokio::select! {
        // The receiver may be gone.
        _ = crawler.reports.send(record.report.clone()) => {}
        // The crawler is stopping: the receiver may not read any more.
        () = crawler.abandon.cancelled() => drop(crawler.reports.try_send(record.report.clone())),
        // A slow receiver must not cost the lease.
        () = renew_lease(crawler, task) => return,
    }
    reply_outcome(crawler, task, &record, rest).await;
}

/// Returns a task. If a request was made and no attempt counts, the next request is for its page.
async fn return_task(
    crawler: &Crawler,
    task: &Task,
    (record, was_requested, rest): (&PageRecord, bool, KeyRest),
    undone: TaskFailure,
) {
    let TaskFailure { error, counts_as_attempt, retry_after } = undone;
    let report = returned_report(record, Some(error));
    let back = match (counts_as_attempt, was_requested) {
        (false, true) => {
            let url = &record.report.url;
            return return_for_request(crawler, task, url, (rest, Some(report))).await;
        }
        (false, false) => RetryMode::Uncounted { after_ms: None },
        (true, _) => {
            let after_ms = retry_after.map(|after| milliseconds(after.min(NACK_MAX)));
            RetryMode::Counted { after_ms }
        }
    };
    crawler.reply(&[], &task.nack(back, rest, Some(report))).await;
}

/// The report of a task that is returned although its page was fetched. It says nothing about the
/// content: the page may not be stored, and another attempt may find other content.
fn returned_report(record: &PageRecord, error: Option<String>) -> TaskReport {
    TaskReport { error, changed: None, hash: None, ..record.task_report() }
}

async fn reply_outcome(crawler: &Crawler, task: &Task, record: &PageRecord, rest: KeyRest) {
    let report = || Some(record.task_report());
    let ack = |outcome| task.reply(TaskAction::Ack(outcome), rest, report());
    // With cookies, the target of a redirect may be the page that sets one for the whole site.
    let first = Prio::new(Prio::LIMIT).filter(|_| crawler.config.fetch.cookies);
    let link = |url, redirect| {
        let prio = first.filter(|_| redirect);
        Command::Link { task: task.id.clone(), url, redirect, prio }
    };
    let mut sent = None;
    let (children, command) = match record.report.outcome {
        PageOutcome::Done => {
            let found = NewLinks::of(crawler, task, record);
            let children = found.urls.iter().map(|url| link(url, false)).collect();
            sent = Some(found.fingerprints);
            (children, ack(Outcome::Done))
        }
        PageOutcome::Redirect => {
            let target = record.redirect.iter();
            (target.map(|target| link(target, true)).collect(), ack(Outcome::Redirect))
        }
        _ if record.is_transient => {
            let back = RetryMode::Counted { after_ms: None };
            let report = returned_report(record, record.report.error.clone());
            (Vec::new(), task.nack(back, rest, Some(report)))
        }
        PageOutcome::Failed | PageOutcome::Retry => (Vec::new(), ack(Outcome::Failed)),
        PageOutcome::Robots => (Vec::new(), ack(Outcome::Robots)),
        PageOutcome::Trap => (Vec::new(), ack(Outcome::Trap)),
    };
    match crawler.reply(&children, &command).await {
        ReplyOutcome::Applied(_) => {}
        // No link is lost: the page is fetched again and sends them then. After its last attempt it
        // is a dead letter with this reason, so that a job which never gets room still ends.
        ReplyOutcome::Refused(refusal) if is_group_full(&refusal, &command) => {
            crawler.log_group_full();
            let back = RetryMode::Counted { after_ms: Some(milliseconds(NO_ROOM_NACK_AFTER)) };
            let error = Some("the group has no room for its links".to_owned());
            let report = returned_report(record, error);
            let nack = task.nack(back, rest, Some(report));
            crawler.reply(&[], &nack).await;
            return;
        }
        // After a stale reply it is unknown here whether a member still holds the task.
        ReplyOutcome::Refused(_) | ReplyOutcome::Cancelled => return,
    }
    if record.is_final() {
        crawler.sinks.settled(&record.page);
    }
    if let (Some(pass), Some(prints)) = (task.spec.scoped_pass, sent) {
        crawler.acked_links.lock().acked(pass, prints, links_depth(record));
    }
}

/// Whether the group has no room for the links of an `ACK`: nothing has changed, and the task is
/// still held.
fn is_group_full(refusal: &ProtocolError, reply: &Command<'_>) -> bool {
    refusal.code == Code::Limit
        && matches!(reply, Command::Reply(TaskReply { action: TaskAction::Ack(_), .. }))
}

/// The links of a page that the broker may not have yet.
#[derive(Default)]
struct NewLinks<'a> {
    urls: Vec<&'a str>,
    fingerprints: Vec<u64>,
}

impl<'a> NewLinks<'a> {
    fn of(crawler: &Crawler, task: &Task, record: &'a PageRecord) -> Self {
        let mut found = Self::default();
        // Without a job no link is followed, so none is sent.
        if record.report.job.is_none() {
            return found;
        }
        let (pass, depth) = (task.spec.scoped_pass, links_depth(record));
        let mut known = crawler.acked_links.lock();
        for link in record.links.iter().filter(|link| !link.nofollow) {
            let print = CanonicalUrl::key_of(&link.url).fingerprint();
            if pass.is_none_or(|pass| !known.may_omit(pass, print, depth)) {
                found.urls.push(&link.url);
                found.fingerprints.push(print);
            }
        }
        found
    }
}

fn links_depth(record: &PageRecord) -> u32 {
    let depth = record.depth.unwrap_or_default().saturating_add(1);
    u32::try_from(depth).unwrap_or(u32::MAX)
}

impl Task {
    /// The pass that the task belongs to, if its job has a number.
    pub(super) fn pass(&self) -> Option<PassKey> {
        self.spec.scoped_pass.map(|of| of.pass)
    }
}

/// Stores a record. Waits up to `patience` while a sink is in trouble, and without limit for a sink
/// that is only slow.
pub(super) async fn store(
    sinks: &Sinks,
    record: &Arc<PageRecord>,
    patience: Duration,
) -> Result<(), TaskFailure> {
    let mut stored = std::pin::pin!(sinks.store(record));
    let mut until = Instant::now() + patience;
    loop {
        match timeout_at(until, stored.as_mut()).await {
            // A closed sink is not the page's fault.
            Ok(stored) => {
                return stored.map_err(|error| TaskFailure::new(error.to_string(), !error.closed));
            }
            Err(_) => match sinks.trouble() {
                Some(trouble) => return Err(TaskFailure::new(trouble.to_string(), false)),
                None => until += patience,
            },
        }
    }
}

/// Renews the lease until it is dropped; returns when another member holds the task.
async fn renew_lease(crawler: &Crawler, task: &Task) {
    loop {
        sleep(task.lease.length / 3).await;
        let touch = task.touch(false, KeyRest::default());
        // Boxed: rarely needed, but part of every task's future.
        match Box::pin(crawler.reply(&[], &touch)).await {
            ReplyOutcome::Applied(_) => {}
            ReplyOutcome::Refused(_) => return,
            // The page is stored in any case.
            ReplyOutcome::Cancelled => std::future::pending().await,
        }
    }
}
