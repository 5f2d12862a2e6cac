//! What became of a page: for the terminal and for the sinks.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use tidings_protocol::{GroupName, TaskId};

use crate::page::Link;
use crate::spool::Spool;

/// One dealt-with page, for people who watch. Sent when the page is safe in the sink, shortly
/// before the broker is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageReport {
    /// The page.
    pub url: String,
    /// The HTTP status; `None` if there was no answer or no request.
    pub status: Option<u16>,
    /// What became of it.
    pub outcome: PageOutcome,
    /// Why, as one word of the closed list of reasons.
    pub reason: Option<&'static str>,
    /// Bytes of the body, decoded.
    pub bytes: u64,
    /// Bytes of the body as they came over the wire.
    pub wire_bytes: u64,
    /// From the start of the request to the end of its answer.
    pub duration: Duration,
    /// The text of its `<title>`.
    pub title: Option<String>,
    /// Different links found on it.
    pub links: usize,
    /// The job it belongs to.
    pub job: Option<String>,
    /// What went wrong, in one line; with `Done`, what was left out.
    pub error: Option<String>,
}

/// What became of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageOutcome {
    /// Fetched.
    Done,
    /// Answered with a redirect; its target is an entry of its own.
    Redirect,
    /// Cannot be fetched; final.
    Failed,
    /// robots.txt does not allow it; it was not asked for.
    Robots,
    /// One of endlessly many: not asked for, or its links are not followed.
    Trap,
    /// Could not be fetched this time; the group decides whether it is tried again.
    Retry,
}

impl PageOutcome {
    /// The word in `pages.db` and in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Redirect => "redirect",
            Self::Failed => "failed",
            Self::Robots => "robots",
            Self::Trap => "trap",
            Self::Retry => "retry",
        }
    }
}

impl fmt::Display for PageOutcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.as_str())
    }
}

/// A page of a pass, however many attempts it takes: what sinks know it by when it comes again.
///
/// `<group>.<since>.<entry>` as text. A group that was deleted and made again numbers its entries
/// anew, so `since`, which it has for life, is part of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId {
    /// The group that released it.
    pub group: GroupName,
    /// The group's number for life.
    pub since: u64,
    /// The entry's number within the group.
    pub entry: u64,
}

impl PageId {
    /// The page that this task is for. A broker that does not say its group's `since` leaves the run to
    /// stand in for it: then a page that comes again after a restart of the broker is another one.
    pub fn of(task: &TaskId, since: Option<u64>) -> Self {
        let since = since.unwrap_or(task.run);
        Self { group: task.group.clone(), since, entry: task.entry }
    }

    /// Reads what `Display` has written.
    pub fn parse(text: &str) -> Option<Self> {
        // Names of groups may have dots in them.
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

/// Everything that is kept of a page.
#[derive(Debug)]
pub struct PageRecord {
    /// The page of the pass; a record replaces that of an earlier attempt.
    pub page: PageId,
    /// The attempt at it.
    pub task: TaskId,
    /// What people see of it.
    pub report: PageReport,
    /// It could not be fetched this time, which the broker is told: on the last attempt that is a
    /// failure like others for people, and a dead letter there.
    pub transient: bool,
    /// As the server named it.
    pub content_type: Option<String>,
    /// BLAKE3 of the decoded body, if it was read to its end.
    pub hash: Option<blake3::Hash>,
    /// When the answer had ended, in milliseconds since 1970.
    pub fetched_unix_ms: i64,
    /// The pass of the job.
    pub pass: Option<u64>,
    /// Links from a seed to here.
    pub depth: Option<u64>,
    /// Where a redirect leads, canonical.
    pub redirect: Option<String>,
    /// What the page says is its own URL, canonical.
    pub canonical: Option<String>,
    /// The page asks not to be shown by search engines, or (`unavailable_after`) not any more when it was read.
    pub noindex: bool,
    /// What a later request may ask with whether the page has changed.
    pub validators: Validators,
    /// Of an answer that nothing has changed: when the record was made that it confirms, in milliseconds
    /// since 1970.
    pub last_unix_ms: Option<i64>,
    /// Who answered.
    pub remote: Option<SocketAddr>,
    /// In the order of the page.
    pub links: Vec<Link>,
    /// What went over the wire, if a sink keeps that.
    pub exchange: Option<Exchange>,
    /// The decoded body, if a sink wants it.
    pub body: Option<Spool>,
}

impl PageRecord {
    /// No other attempt of this page is wanted.
    pub fn is_final(&self) -> bool {
        self.report.outcome != PageOutcome::Retry
    }
}

/// What a server gave to tell one version of a page from another (RFC 9110 section 8.8), as it wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validators {
    /// `ETag`.
    pub etag: Option<String>,
    /// `Last-Modified`.
    pub last_modified: Option<String>,
}

/// Which bodies are to be kept until the page is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// As it came, with the heads: [`PageRecord::exchange`].
    pub raw: bool,
    /// Decoded: [`PageRecord::body`].
    pub decoded: bool,
}

/// What went over the wire for a page, for archives.
#[derive(Debug)]
pub struct Exchange {
    /// Request line and headers as they were sent, with the empty line at their end. Of HTTP/2, what
    /// the same would have been in HTTP/1.1.
    pub request_head: Vec<u8>,
    /// Status line and headers as they came, with the empty line at their end.
    pub response_head: Vec<u8>,
    /// Who answered.
    pub remote: Option<SocketAddr>,
    /// When the request was sent, in milliseconds since 1970.
    pub started_unix_ms: i64,
    /// The body as it came: without its transfer coding, still with its content coding.
    pub body: Option<Spool>,
    /// Why the body is not whole, in the words of WARC/1.1: `length`, `time`, `disconnect` or
    /// `unspecified`.
    pub truncated: Option<&'static str>,
}

#[cfg(test)]
mod tests {
    use super::*;

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
