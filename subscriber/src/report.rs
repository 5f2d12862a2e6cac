//! The result of a page: the report for the terminal and the record for the sinks.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidings_browser::visit::{PageError, Rendered};
use tidings_documents::page::PageLink;
use tidings_egress::http::Validators;
use tidings_protocol::{GroupName, PageChange, TaskId, word_enum};

use crate::images::StoredImage;
use crate::render_auto::Gain;
use crate::spool::Spool;

/// The report of one finished page, for people. Sent when the page is stored, shortly before the
/// reply to the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageReport {
    /// The page.
    pub url: String,
    /// The HTTP status; `None` if there was no answer or no request.
    pub status: Option<u16>,
    /// The outcome.
    pub outcome: PageOutcome,
    /// The reason, as one word of a closed list.
    pub reason: Option<&'static str>,
    /// Bytes of the decoded body.
    pub bytes: u64,
    /// Bytes of the body on the wire.
    pub wire_bytes: u64,
    /// From the start of the request to the end of its answer.
    pub duration: Duration,
    /// The text of its `<title>`.
    pub title: Option<String>,
    /// Number of links on it, without duplicates.
    pub links: usize,
    /// The job it belongs to.
    pub job: Option<String>,
    /// The error, in one line; for `Done`, what was cut off.
    pub error: Option<String>,
    /// The result of rendering the page, if that was tried.
    pub render: Option<RenderReport>,
}

/// The report of a page that the crawler tried to render, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderReport {
    /// Why it was not rendered, in one line; then it is stored as it was fetched.
    pub error: Option<String>,
    /// From the request for a browser to its answer.
    pub duration: Duration,
    /// Number of requests for its parts, also of those that were refused.
    pub requests: usize,
    /// Number of links on the page as it was fetched.
    pub links_fetched: usize,
    /// What rendering has added.
    pub gain: Gain,
}

word_enum! {
    /// The outcome of a page.
    pub enum PageOutcome {
        /// Fetched.
        Done = "done",
        /// Redirected; the target is an entry of its own.
        Redirect = "redirect",
        /// Failed finally.
        Failed = "failed",
        /// Disallowed by robots.txt; not requested.
        Robots = "robots",
        /// A trap: not requested, or its links are not followed.
        Trap = "trap",
        /// Failed this time; the group decides about a retry.
        Retry = "retry",
    }
}

/// The id of a page within a pass, the same for every attempt: sinks recognize a repeated page by
/// it.
///
/// As text: `<group>.<since>.<entry>`. A group that was deleted and made again numbers its entries
/// from 1, so the id contains `since`, which a group keeps for life.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId {
    /// The group that released the page.
    pub group: GroupName,
    /// The group's number for life.
    pub since: u64,
    /// The entry's number within the group.
    pub entry: u64,
}

impl PageId {
    /// The page of this task. If the broker does not send `since`, the run replaces it: then a page
    /// that comes again after a restart of the broker counts as another one.
    pub fn of(task: &TaskId, since: Option<u64>) -> Self {
        let since = since.unwrap_or(task.run);
        Self { group: task.group.clone(), since, entry: task.entry }
    }

    /// Parses the output of `Display`.
    pub fn parse(text: &str) -> Option<Self> {
        // Names of groups may contain dots.
        let mut parts = text.rsplitn(3, '.');
        let entry = parts.next()?.parse().ok()?;
        let since = parts.next()?.parse().ok()?;
        Some(Self { group: GroupName::new(parts.next()?).ok()?, since, entry })
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}.{}", self.group, self.since, self.entry)
    }
}

/// Everything that is stored of a page.
#[derive(Debug)]
pub struct PageRecord {
    /// The id of the page; a record replaces that of an earlier attempt.
    pub page: PageId,
    /// The task of this attempt.
    pub task: TaskId,
    /// The report for people.
    pub report: PageReport,
    /// The failure may be temporary, and the reply says so. After the last attempt it is an
    /// ordinary failure for people, and a dead letter at the broker.
    pub is_transient: bool,
    /// `Content-Type`, as the server sent it.
    pub content_type: Option<String>,
    /// BLAKE3 of the decoded body, if it was read to its end.
    pub hash: Option<blake3::Hash>,
    /// BLAKE3 of what a reader sees of the page, rendered if it was; see
    /// [`tidings_documents::page::PageContent::text_hash`].
    pub text_hash: Option<blake3::Hash>,
    /// The end of the answer, in milliseconds since 1970.
    pub fetched_unix_ms: i64,
    /// The pass of the job.
    pub pass: Option<u64>,
    /// Number of links from a seed.
    pub depth: Option<u64>,
    /// `item=` of the event that announced the page.
    pub item: Option<Box<str>>,
    /// `source=` of that event.
    pub source: Option<Box<str>>,
    /// `traceparent=` of that event. Only programs receive it.
    pub traceparent: Option<Box<str>>,
    /// Whether a fetched page differs from its newest earlier record, if that is known. Only
    /// reported to the broker.
    pub changed: Option<PageChange>,
    /// The target of a redirect, canonical.
    pub redirect: Option<String>,
    /// The URL that the page declares as its own, canonical.
    pub canonical: Option<String>,
    /// The page asks search engines not to show it, or (`unavailable_after`) no more at the time it
    /// was read.
    pub noindex: bool,
    /// The validators for a later conditional request.
    pub validators: Validators,
    /// Where the body is, if outputs store bodies; of an unchanged page (304) as in its last record.
    pub original: Option<Original>,
    /// The address of the server.
    pub remote: Option<SocketAddr>,
    /// In the order of the page.
    pub links: Vec<PageLink>,
    /// The request and the answer on the wire, if a sink needs them.
    pub exchange: Option<Exchange>,
    /// The decoded body, if a sink needs it.
    pub body: Option<Spool>,
    /// The result of rendering the page, if that was tried.
    pub rendering: Option<Rendering>,
}

word_enum! {
    /// Why a page was not rendered.
    pub enum RenderReason {
        /// The page crashed its renderer, or used too much memory.
        Crashed = "crashed",
        /// The page did not answer in time.
        Hung = "hung",
        /// The rendered page is too large.
        TooLarge = "too-large",
        /// The page left its document, or closed itself.
        Left = "left",
        /// The page caused more events than can be processed.
        Flooded = "flooded",
        /// No browser was available.
        Unavailable = "unavailable",
        /// The browser ended.
        Lost = "lost",
        /// The browser rejects the page's URL or a call.
        Browser = "browser",
    }
}

impl From<&PageError> for RenderReason {
    fn from(error: &PageError) -> Self {
        match error {
            PageError::Crashed => Self::Crashed,
            PageError::Hung(_) => Self::Hung,
            PageError::Size(_) => Self::TooLarge,
            PageError::Left(_) => Self::Left,
            PageError::Flooded => Self::Flooded,
            PageError::Unavailable => Self::Unavailable,
            PageError::Lost => Self::Lost,
            PageError::Browser(_) => Self::Browser,
        }
    }
}

/// The result of rendering a page.
#[derive(Debug)]
pub struct Rendering {
    /// The rendered page, without what the fields below have. If there is none, the page is stored
    /// as it was fetched, with this reason.
    pub result: Result<Rendered, PageError>,
    /// BLAKE3 of the rendered HTML.
    pub hash: Option<blake3::Hash>,
    /// From the request for a browser to its answer.
    pub duration: Duration,
    /// The requests of its parts on the wire, with their URLs, if a sink needs them.
    pub exchanges: Vec<(String, Exchange)>,
    /// The rendered HTML, if a sink needs it.
    pub html: Option<Spool>,
    /// An image of the page.
    pub screenshot: Option<StoredImage>,
    /// The page as PDF.
    pub pdf: Option<StoredImage>,
}

impl Rendering {
    /// A rendering as the browser has returned it: `Sinks::keep_rendering` fills the other fields.
    pub fn new(
        result: Result<Rendered, PageError>,
        hash: Option<blake3::Hash>,
        duration: Duration,
        exchanges: Vec<(String, Exchange)>,
    ) -> Self {
        Self { result, hash, duration, exchanges, html: None, screenshot: None, pdf: None }
    }

    fn bytes_in_memory(&self) -> usize {
        let Ok(page) = &self.result else { return 0 };
        let requests = page.requests.iter().map(|request| size_of_val(request) + request.url.len());
        let links = page.links.iter().map(|link| size_of_val(link) + link.url.len());
        let opened = page.opened.iter().map(|opened| size_of_val(opened) + opened.url.len());
        let errors = page.console_errors.iter().map(String::len);
        let heads = self.exchanges.iter().map(|(url, exchange)| url.len() + exchange.head_bytes());
        page.html.len()
            + requests.chain(links).chain(opened).chain(errors).chain(heads).sum::<usize>()
    }
}

impl PageRecord {
    /// Whether no other attempt follows.
    pub fn is_final(&self) -> bool {
        self.report.outcome != PageOutcome::Retry
    }

    /// The hash of what the page shows. The documents of a site that makes its pages by script are
    /// all the same.
    pub(crate) fn content_hash(&self) -> Option<blake3::Hash> {
        self.rendered_hash().or(self.hash)
    }

    /// BLAKE3 of the rendered HTML.
    pub(crate) fn rendered_hash(&self) -> Option<blake3::Hash> {
        self.rendering.as_ref()?.hash
    }

    /// The approximate memory of the record until it is stored. Bodies have limits of their own.
    pub(crate) fn bytes_in_memory(&self) -> usize {
        let links: usize = self.links.iter().map(|link| link.url.len()).sum();
        let heads = self.exchange.as_ref().map_or(0, Exchange::head_bytes);
        let rendering = self.rendering.as_ref().map_or(0, Rendering::bytes_in_memory);
        size_of::<Self>()
            + self.report.url.len()
            + links
            + size_of_val(&*self.links)
            + heads
            + rendering
    }
}

/// The bodies that are kept until the page is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepBodies {
    /// As received, with the heads: [`PageRecord::exchange`].
    pub raw: bool,
    /// Decoded: [`PageRecord::body`].
    pub decoded: bool,
}

/// The fetch of a body that outputs have stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Original {
    /// When the request was sent, in milliseconds since 1970: the date of its record in WARC files.
    pub started_unix_ms: Option<i64>,
    /// The ids of the outputs that have the body.
    pub outputs: Vec<String>,
}

/// The request and the answer on the wire, for archives.
#[derive(Debug)]
pub struct Exchange {
    /// Request line and headers as sent, with the empty line at the end. For HTTP/2, the equivalent
    /// in HTTP/1.1.
    pub request_head: Vec<u8>,
    /// Status line and headers as received, with the empty line at the end.
    pub response_head: Vec<u8>,
    /// The address of the server.
    pub remote: Option<SocketAddr>,
    /// When the request was sent, in milliseconds since 1970.
    pub started_unix_ms: i64,
    /// The body as received: without its transfer coding, still with its content coding.
    pub body: Option<Spool>,
    /// Why the body is incomplete, in the words of WARC/1.1: `length`, `time`, `disconnect` or
    /// `unspecified`.
    pub truncated: Option<&'static str>,
}

impl Exchange {
    fn head_bytes(&self) -> usize {
        self.request_head.len() + self.response_head.len()
    }
}

#[cfg(test)]
mod tests {
    use tidings_egress::failure::Reason;

    use super::*;
    use crate::traps::Trap;

    #[test]
    fn the_documented_list_is_this_list() {
        let documented: Vec<(&str, &str)> = include_str!("../OUTCOMES.md")
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .map(|row| {
                let (name, row) = row.split_once("` | ").unwrap();
                (name, row.split_once(" | ").unwrap().0)
            })
            .collect();
        let end = |is_transient| if is_transient { "transient" } else { "final" };
        let reasons = Reason::ALL.map(|reason| (reason.as_str(), end(reason.is_transient())));
        let traps = Trap::ALL.map(|trap| (trap.as_str(), "trap"));
        let renders = RenderReason::ALL.map(|reason| (reason.as_str(), "not rendered"));
        let built: Vec<(&str, &str)> = reasons.into_iter().chain(traps).chain(renders).collect();
        assert_eq!(documented, built);
    }

    #[test]
    fn page_ids_are_read_as_they_are_written() {
        for text in ["crawlers.7.42", "a.b-1.0.18446744073709551615"] {
            assert_eq!(PageId::parse(text).unwrap().to_string(), text);
        }
        for text in
            ["", "crawlers", "crawlers.7", ".7.42", "crawlers.7.x", "a b.7.42", "crawlers.-7.42"]
        {
            assert_eq!(PageId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_page_is_the_same_in_every_run_of_the_broker() {
        let page = |task: &str| PageId::of(&task.parse().unwrap(), Some(3)).to_string();
        assert_eq!(page("crawlers:7.42.1"), "crawlers.3.42");
        assert_eq!(page("crawlers:8.42.2"), "crawlers.3.42");
    }
}
