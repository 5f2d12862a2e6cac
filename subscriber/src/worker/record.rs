//! Classifies an answer and builds the record of the page.

#![expect(clippy::disallowed_methods, reason = "stamps records")]

use std::time::{Duration, SystemTime};

use tidings_documents::page::essence;
use tidings_egress::failure::{Failure, Reason};
use tidings_protocol::{CanonicalUrl, TaskReport};

use super::task::{Task, milliseconds};
use crate::fetch::Fetched;
use crate::report::{PageOutcome, PageRecord, PageReport};
use crate::sink::LastRecord;
use crate::traps::Trap;

/// The outcome of a page, and the failure if there is one. `is_conditional`: of the request, so
/// that status 304 means that the page has not changed.
pub(super) fn classify(
    page: &CanonicalUrl,
    fetched: &mut Fetched,
    is_conditional: bool,
) -> (PageOutcome, Option<Failure>) {
    if let Some(failure) = fetched.failure.take() {
        return (outcome_of(&failure), Some(failure));
    }
    match (fetched.status.unwrap_or_default(), &fetched.location) {
        (206, _) => {
            let failure = Failure::new(
                Reason::Status,
                "HTTP status 206: partial content, but no range was requested",
            );
            (PageOutcome::Failed, Some(failure))
        }
        (200..=299, _) => (PageOutcome::Done, None),
        (304, _) if is_conditional => (PageOutcome::Done, None),
        (301 | 302 | 303 | 307 | 308, Some(location)) => match CanonicalUrl::join(page, location) {
            Ok(target) => {
                fetched.location = Some(target.as_str().to_owned());
                (PageOutcome::Redirect, None)
            }
            Err(error) => {
                let text = format!("redirect to an invalid URL: {error}");
                (PageOutcome::Failed, Some(Failure::new(Reason::Redirect, text)))
            }
        },
        (status, _) => {
            let failure = Failure::of_status(status);
            (outcome_of(&failure), Some(failure))
        }
    }
}

pub(super) fn outcome_of(failure: &Failure) -> PageOutcome {
    if failure.is_transient() { PageOutcome::Retry } else { PageOutcome::Failed }
}

/// The current time in milliseconds since 1970.
pub(super) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Task {
    /// The record of an attempt, without the content of the page.
    pub(super) fn record(
        &self,
        url: &str,
        outcome: PageOutcome,
        fetched: Fetched,
        failure: Option<Failure>,
    ) -> PageRecord {
        let order = &self.spec;
        let transient = outcome == PageOutcome::Retry;
        let is_last = transient && failure.as_ref().is_some_and(|failure| order.is_last(failure));
        let outcome = if is_last { PageOutcome::Failed } else { outcome };
        PageRecord {
            page: self.page.clone(),
            task: self.id.clone(),
            report: PageReport {
                url: url.to_owned(),
                status: fetched.status,
                outcome,
                reason: failure.as_ref().map(|failure| failure.reason.as_str()),
                bytes: fetched.bytes,
                wire_bytes: fetched.wire_bytes,
                duration: Duration::ZERO,
                title: None,
                links: 0,
                job: order.job.as_deref().map(str::to_owned),
                error: failure.map(|failure| failure.text),
                render: None,
            },
            is_transient: transient,
            content_type: fetched.content_type,
            hash: fetched.hash,
            text_hash: None,
            fetched_unix_ms: i64::try_from(unix_ms()).unwrap_or(i64::MAX),
            pass: order.pass,
            depth: order.depth,
            item: order.item.clone(),
            traceparent: order.traceparent.clone(),
            source: order.source.clone(),
            changed: None,
            redirect: fetched.location.filter(|_| outcome == PageOutcome::Redirect),
            canonical: None,
            noindex: false,
            validators: fetched.validators,
            original: None,
            remote: fetched.remote,
            links: Vec::new(),
            exchange: fetched.exchange,
            body: fetched.body,
            rendering: None,
        }
    }

    /// The record of a page that was refused without a request.
    pub(super) fn record_without_request(
        &self,
        page: &str,
        outcome: PageOutcome,
        failure: Failure,
    ) -> PageRecord {
        self.record(page, outcome, Fetched::default(), Some(failure))
    }
}

impl PageRecord {
    /// Restores content and links from the last record: the server says that nothing has changed.
    pub(super) fn restore_unchanged(&mut self, last: LastRecord) {
        self.hash = last.hash;
        self.text_hash = last.text_hash;
        self.content_type = last.content_type;
        self.report.title = last.title;
        self.report.bytes = last.bytes;
        self.report.links = last.links.len();
        self.canonical = last.canonical;
        self.noindex = last.noindex;
        self.links = last.links;
        self.original = last.original;
        let Self { validators, .. } = self;
        validators.etag = validators.etag.take().or(last.validators.etag);
        validators.last_modified =
            validators.last_modified.take().or(last.validators.last_modified);
    }

    /// What the broker gets to know about this attempt. The time, and the bytes, of a request are
    /// those of the page: a page that was not requested has none.
    pub(super) fn task_report(&self) -> TaskReport {
        let report = &self.report;
        let was_requested = report.duration > Duration::ZERO;
        TaskReport {
            reason: report.reason.map(str::to_owned),
            error: report.error.clone(),
            status: report.status,
            ms: was_requested.then(|| milliseconds(report.duration)),
            bytes: report.status.map(|_| report.bytes),
            changed: self.changed,
            content_type: self.content_type.as_deref().map(|text| essence(text).to_owned()),
            hash: self.hash.map(|hash| hash.to_hex().to_string()),
        }
    }

    /// Marks the record as failed: its redirect is not followed.
    pub(super) fn fail_redirect(&mut self, text: String) {
        self.redirect = None;
        self.report.outcome = PageOutcome::Failed;
        self.report.reason = Some(Reason::TooManyRedirects.as_str());
        self.report.error = Some(text);
    }

    /// Marks the record as a trap: its links are not followed.
    pub(super) fn mark_trap(&mut self, trap: Trap) {
        self.changed = None;
        self.report.outcome = PageOutcome::Trap;
        self.report.reason = Some(trap.as_str());
        self.report.error = Some(trap.explanation().to_owned());
    }
}
