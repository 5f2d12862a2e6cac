//! What became of a page: for the terminal and for the sinks.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use tidings_protocol::TaskId;

use crate::links::Link;
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
    /// Bytes of the body, decoded.
    pub bytes: u64,
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
            Self::Retry => "retry",
        }
    }
}

impl fmt::Display for PageOutcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.as_str())
    }
}

/// Everything that is kept of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRecord {
    /// The task; a record replaces that of an earlier attempt.
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
    /// In the order of the page.
    pub links: Vec<Link>,
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
    /// Why the body is not whole, in the words of WARC/1.1: `length`, `time` or `disconnect`.
    pub truncated: Option<&'static str>,
}
