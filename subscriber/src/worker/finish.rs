//! How a task ends: its page is stored, people are told, and then the broker.

#![expect(clippy::disallowed_methods, reason = "waits for sinks and for leases")]

use std::sync::Arc;

use tidings_protocol::{CanonicalUrl, Command, Hold, Outcome, Payload, Return};
use tokio::time::{Instant, sleep, timeout_at};

use super::Crawler;
use super::link::Answered;
use super::task::{Task, milliseconds};
use crate::config::{STORE_NACK_AFTER, STORE_PATIENCE};
use crate::pass::{PassKey, ScopedPass};
use crate::report::{PageOutcome, PageRecord};

/// Stores the page, tells the people, and then the broker.
///
/// `over`, if a request was made and has ended: the host is freed at once, while what the page says is
/// read into the record, and that is stored. What is to be done before the broker is told is done `then`.
pub(super) async fn finish(
    crawler: &Crawler,
    task: &Task,
    mut record: Arc<PageRecord>,
    over: Option<Hold>,
    read: impl FnOnce(&mut PageRecord),
    then: impl Future<Output = Result<(), String>>,
) {
    let free = async {
        let Some(hold) = over else { return true };
        let over = task.touch(true, hold);
        !matches!(crawler.link.answer(&[], &over).await, Answered::Stale | Answered::Refused)
    };
    let store = async {
        // First leaves what hosts wait for: that this one is free, and requests to others.
        tokio::task::yield_now().await;
        read(Arc::get_mut(&mut record).expect("nobody else has it yet"));
        let stored = async {
            store(crawler, &record).await?;
            then.await
        };
        tokio::select! {
            stored = stored => Some(stored),
            () = keep_lease(crawler, task) => None,
        }
    };
    let (true, Some(stored)) = tokio::join!(free, store) else { return };
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
    let ack = |outcome| Command::Ack { task: task.id.clone(), outcome, hold: Hold::default() };
    let link = |url, redirect| Command::Link { task: task.id.clone(), url, redirect, prio: None };
    let mut told = None;
    let (children, command) = match record.report.outcome {
        PageOutcome::Done => {
            let found = Found::of(crawler, task, record);
            let children = found.urls.iter().map(|url| link(url, false)).collect();
            told = Some(found.prints);
            (children, ack(Outcome::Done))
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
        PageOutcome::Trap => (Vec::new(), ack(Outcome::Trap)),
    };
    let answered = crawler.link.answer(&children, &command).await;
    // Of a stale answer nobody knows here whether the task is somebody's still.
    if !matches!(answered, Answered::Applied(_)) {
        return;
    }
    if record.is_final() {
        crawler.sinks.settled(&record.page);
    }
    if let (Some(pass), Some(prints)) = (task.scoped_pass(), told) {
        crawler.known.lock().acked(pass, prints, depth_of_links(record));
    }
}

/// The links of a page that the broker may not know yet.
#[derive(Default)]
struct Found<'a> {
    urls: Vec<&'a str>,
    prints: Vec<u64>,
}

impl<'a> Found<'a> {
    fn of(crawler: &Crawler, task: &Task, record: &'a PageRecord) -> Self {
        let mut found = Self::default();
        // Without a job nothing is followed, so nothing needs to be told.
        if record.report.job.is_none() {
            return found;
        }
        let (pass, depth) = (task.scoped_pass(), depth_of_links(record));
        let mut known = crawler.known.lock();
        for link in record.links.iter().filter(|link| !link.nofollow) {
            let print = CanonicalUrl::key_of(&link.url).print();
            if pass.is_none_or(|pass| !known.may_leave_out(pass, print, depth)) {
                found.urls.push(&link.url);
                found.prints.push(print);
            }
        }
        found
    }
}

fn depth_of_links(record: &PageRecord) -> u32 {
    let depth = record.depth.unwrap_or_default().saturating_add(1);
    u32::try_from(depth).unwrap_or(u32::MAX)
}

impl Task {
    /// The pass that it belongs to, if it belongs to a job that has a number.
    pub(super) fn pass(&self) -> Option<PassKey> {
        self.scoped_pass().map(|of| of.pass)
    }

    /// The same, with how far the scope of its job had grown when it was handed out.
    fn scoped_pass(&self) -> Option<ScopedPass> {
        let payload = Payload::parse(&self.payload);
        let pass = payload.attribute("pass")?.parse().ok()?;
        // Names are given again, numbers are not.
        let pass = PassKey::new(self.id.run, payload.attribute("number")?, pass);
        let scope = payload.attribute("scope").and_then(|scope| scope.parse().ok());
        Some(ScopedPass { pass, scope: scope.unwrap_or(0) })
    }
}

/// Waits for a full disk for a while; the error is for the broker. Sinks that are slow and not in
/// trouble are waited for.
async fn store(crawler: &Crawler, record: &Arc<PageRecord>) -> Result<(), String> {
    let sinks = &crawler.sinks;
    let stored = async {
        let mut stored = std::pin::pin!(sinks.store(record));
        let mut patience = Instant::now() + STORE_PATIENCE;
        loop {
            match timeout_at(patience, stored.as_mut()).await {
                Ok(stored) => return stored.map_err(|error| error.to_string()),
                Err(_) => match sinks.trouble() {
                    Some(trouble) => return Err(trouble.to_string()),
                    None => patience += STORE_PATIENCE,
                },
            }
        }
    };
    tokio::select! {
        biased;
        stored = stored => stored,
        () = crawler.abandon.cancelled() => {
            Err("the crawler ends before the page is stored".to_owned())
        }
    }
}

/// Extends the lease as long as it is awaited; ends when the task is not ours any more.
async fn keep_lease(crawler: &Crawler, task: &Task) {
    loop {
        sleep(task.lease / 3).await;
        let touch = task.touch(false, Hold::default());
        // Seldom needed, and a part of every task.
        match Box::pin(crawler.link.answer(&[], &touch)).await {
            Answered::Applied(_) => {}
            Answered::Stale | Answered::Refused => return,
            // The page is stored all the same.
            Answered::GivenUp => std::future::pending().await,
        }
    }
}
