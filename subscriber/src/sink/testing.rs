//! For tests: pages.

use std::time::Duration;

use crate::page::Link;
use crate::report::{PageId, PageOutcome, PageRecord, PageReport, Validators};

/// An attempt at a page, as the group's seventh run gives it.
pub(super) fn record(entry: u64, attempt: u32) -> PageRecord {
    let link = |url: &str, nofollow| Link { url: url.into(), nofollow };
    PageRecord {
        page: PageId::parse(&format!("crawlers.3.{entry}")).unwrap(),
        task: format!("crawlers:7.{entry}.{attempt}").parse().unwrap(),
        report: PageReport {
            url: format!("http://site.example/{entry}"),
            status: Some(200),
            outcome: PageOutcome::Done,
            reason: None,
            bytes: 1234,
            wire_bytes: 567,
            duration: Duration::from_millis(56),
            title: Some(format!("attempt {attempt}")),
            links: 2,
            job: Some("docs".to_owned()),
            error: None,
        },
        transient: false,
        content_type: Some("text/html".to_owned()),
        hash: Some(blake3::hash(b"body")),
        fetched_unix_ms: 1_700_000_000_007,
        redirect: None,
        canonical: Some("http://site.example/".to_owned()),
        noindex: false,
        validators: Validators { etag: Some("W/\"x\"".to_owned()), last_modified: None },
        last_unix_ms: None,
        remote: Some("192.0.2.1:80".parse().unwrap()),
        pass: Some(2),
        depth: Some(3),
        links: vec![link("http://site.example/\"x\"", false), link("http://a.example/", true)],
        exchange: None,
        body: None,
    }
}

/// One that is to be tried again.
pub(super) fn transient(entry: u64, attempt: u32) -> PageRecord {
    let mut record = record(entry, attempt);
    record.transient = true;
    record.report.outcome = PageOutcome::Retry;
    record
}

/// A folder in memory, where there is such a place: what is synced there costs nothing.
pub(super) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}
