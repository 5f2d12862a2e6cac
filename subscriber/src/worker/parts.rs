//! Makes the requests of a page that is rendered: for its scripts, frames and data.
//!
//! A part belongs to the task of its page. So its request ends before the task's lease may be over,
//! and the page's host rests from the last of them on. Each host is asked one thing at a time by
//! this crawler: parts wait for each other, and for the documents of other tasks.

#![expect(clippy::disallowed_methods, reason = "requests must end before the lease")]

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::SystemTime;

use hyper::http::request;
use parking_lot::Mutex;
use tidings_browser::visit::{Answer, Fetch, Request};
use tidings_client::ReplyOutcome;
use tidings_protocol::{
    CanonicalUrl, Code, Command, KeyRest, ProtocolError, TaskAction, TaskId, TaskReply,
};
use tokio::time::{Instant, timeout_at};

use super::Crawler;
use super::part_cache::{Lookup, PartResponse, head};
use super::robots_cache::RobotsStep;
use super::task::now;
use crate::fetch::{FetchPurpose, FetchRequest, Fetched, PartRequest};
use crate::rendered_page::{failed, pairs, part_request, refused};
use crate::report::{Exchange, KeepBodies};
use crate::robots::RobotsRules;

/// Why a part is not requested when the task is no longer held.
const TASK_ENDS: &str = "the task ends";

/// The requests of one page.
pub(super) struct Parts {
    crawler: Arc<Crawler>,
    task: TaskId,
    page: CanonicalUrl<'static>,
    /// Until when the page's task is held.
    pub(super) held_until: Mutex<Instant>,
    /// The requests on the wire with their URLs, if a sink needs them.
    pub(super) exchanges: Mutex<Vec<(String, Exchange)>>,
    /// Whether a rule of an operator has forbidden one, so that the page may be incomplete.
    pub(super) is_forbidden_by_rule: AtomicBool,
}

impl Fetch for Parts {
    fn answer(&self, request: Request) -> Pin<Box<dyn Future<Output = Answer> + Send + '_>> {
        Box::pin(async move { self.fetch(&request).await.unwrap_or_else(|refused| refused) })
    }
}

impl Parts {
    pub(super) fn new(
        crawler: Arc<Crawler>,
        task: TaskId,
        page: CanonicalUrl<'static>,
        held_until: Instant,
    ) -> Self {
        Self {
            crawler,
            task,
            page,
            held_until: Mutex::new(held_until),
            exchanges: Mutex::default(),
            is_forbidden_by_rule: AtomicBool::new(false),
        }
    }

    async fn fetch(&self, request: &Request) -> Result<Answer, Answer> {
        let (url, method, fields) = part_request(request)?;
        let head = head(&method, &url, fields);
        let rules = self.rules(&url).await?;
        if !rules.allows(url.path_and_query()) {
            return Err(refused("robots.txt"));
        }
        if let Lookup::Fresh(response) = self.find(&head) {
            return answer(response, request.body_bytes_max);
        }
        let _turn = self.crawler.host_locks.lock(url.host().to_owned()).await;
        // Another page may have requested it meanwhile.
        let head = match self.find(&head) {
            Lookup::Fresh(response) => return answer(response, request.body_bytes_max),
            Lookup::Stale(head) => *head,
            Lookup::Missing => head,
        };
        let part = PartRequest {
            method: &method,
            headers: &head.headers,
            body_bytes_max: request.body_bytes_max,
        };
        let mut fetched = self.request(&url, FetchPurpose::Part(part)).await?;
        // An archive would replay status 304 in place of the response whose freshness it confirms.
        if let Some(exchange) = fetched.exchange.take().filter(|_| fetched.status != Some(304)) {
            self.exchanges.lock().push((url.as_str().to_owned(), exchange));
        }
        if let Some(failure) = fetched.failure {
            return Err(failed(&failure));
        }
        let status = fetched.status.unwrap_or_default();
        let response = PartResponse { status, headers: fetched.headers, body: fetched.text.into() };
        let cache = &self.crawler.part_cache;
        let response = cache.store(&self.site(), &head, response, SystemTime::now());
        answer(response, request.body_bytes_max)
    }

    fn find(&self, head: &request::Parts) -> Lookup {
        self.crawler.part_cache.find(&self.site(), head, SystemTime::now())
    }

    /// The pages that share cached parts: those of one scheme, host and port.
    fn site(&self) -> String {
        self.page.origin().to_owned()
    }

    /// The rules for a URL, fetched if no fresh ones are known.
    async fn rules(&self, url: &CanonicalUrl<'_>) -> Result<Arc<RobotsRules>, Answer> {
        let crawler = &self.crawler;
        if let Some(rules) = crawler.robots_cache.lock().fresh(url, Instant::now()) {
            return Ok(rules);
        }
        let _turn = crawler.robots_locks.lock(url.origin().to_owned()).await;
        let stored = crawler.load_stored_robots(url.origin()).await;
        crawler.robots_cache.lock().restore(url, &stored, now());
        loop {
            let (target, hops) = {
                let (cache, now) = (crawler.robots_cache.lock(), Instant::now());
                if cache.outage(url, now).is_some() {
                    return Err(refused("robots.txt cannot be read"));
                }
                if let Some(rules) = cache.fresh(url, now) {
                    return Ok(rules);
                }
                match cache.pending_redirect(url, now) {
                    Some(redirect) => (redirect.target, redirect.hops),
                    None => (url.join("/robots.txt").map_err(|_| refused("robots.txt"))?, 0),
                }
            };
            let turn = crawler.host_locks.lock(target.host().to_owned()).await;
            let fetched = self.request(&target, FetchPurpose::Robots).await?;
            drop(turn);
            match crawler.process_robots(url, (&target, hops), &fetched, &stored) {
                RobotsStep::Known(rules) => return Ok(rules),
                RobotsStep::Redirected(_) => {}
                RobotsStep::Unreachable(..) => return Err(refused("robots.txt cannot be read")),
            }
        }
    }

    /// Makes a request, if the broker permits it, the task is still held and the host does not ask
    /// clients to wait. The caller has the host's turn.
    async fn request(
        &self,
        url: &CanonicalUrl<'_>,
        purpose: FetchPurpose<'_>,
    ) -> Result<Fetched, Answer> {
        let crawler = &self.crawler;
        self.permit(url).await?;
        let now = Instant::now();
        let held_until = *self.held_until.lock();
        if now >= held_until {
            return Err(refused(TASK_ENDS));
        }
        let deadline = held_until.min(now + crawler.config.fetch.request_timeout);
        let is_part = matches!(purpose, FetchPurpose::Part(_));
        let keep = KeepBodies { raw: is_part && crawler.sinks.keep().raw, decoded: false };
        let request = FetchRequest { url, purpose, validators: None, keep, deadline };
        let fetched = crawler.fetch_unless_resting(&request).await;
        fetched.ok_or_else(|| refused("Retry-After"))
    }

    /// Asks the broker for the permission to request a URL, which lasts until the task ends. The
    /// answer to a rule that forbids the host waits for that end `[G18]`.
    async fn permit(&self, url: &CanonicalUrl<'_>) -> Result<(), Answer> {
        let held_until = *self.held_until.lock();
        let action = TaskAction::Part { url: url.as_str().to_owned() };
        let (task, rest) = (self.task.clone(), KeyRest::default());
        let ask = Command::Reply(TaskReply { task, action, rest, report: None });
        match timeout_at(held_until, self.crawler.broker.reply(&[], &ask)).await {
            Ok(ReplyOutcome::Applied(_)) => Ok(()),
            Ok(ReplyOutcome::Refused(refusal)) => {
                if refusal.code == Code::Conflict {
                    self.is_forbidden_by_rule.store(true, Ordering::Relaxed);
                }
                Err(refused(refusal_reason(refusal)))
            }
            Ok(ReplyOutcome::Cancelled) | Err(_) => Err(refused(TASK_ENDS)),
        }
    }
}

/// Why a part is not requested that the broker did not permit.
fn refusal_reason(refusal: ProtocolError) -> String {
    static WARNED: Once = Once::new();

    match refusal.code {
        Code::Conflict => "blocked".to_owned(),
        Code::Stale => TASK_ENDS.to_owned(),
        _ => {
            WARNED.call_once(|| {
                tracing::warn!("the broker refuses requests for parts of pages: {refusal}");
            });
            refusal.text
        }
    }
}

fn answer(response: PartResponse, body_bytes_max: u64) -> Result<Answer, Answer> {
    let PartResponse { status, headers, body } = response;
    if body.len() as u64 > body_bytes_max {
        return Err(refused("size"));
    }
    Ok(Answer::Response { status, headers: pairs(&headers), body: body.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_that_is_not_about_a_rule_or_the_task_keeps_its_text() {
        for (code, reason) in [
            (Code::Conflict, "blocked"),
            (Code::Stale, "the task ends"),
            (Code::BadArgument, "part=: unknown"),
            (Code::Denied, "part=: unknown"),
        ] {
            assert_eq!(refusal_reason(ProtocolError::new(code, "part=: unknown")), reason);
        }
    }
}
