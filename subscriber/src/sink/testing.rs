//! Records and bodies for tests.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidings_browser::visit::{How, Kind, Opened, Rendered, RequestRecord, RequestResult};
use tidings_documents::page::PageLink;
use tidings_egress::http::Validators;

use super::{SinkConfig, SinkContext, Sinks};
use crate::report::{PageId, PageOutcome, PageRecord, PageReport, Rendering};
use crate::spool::{Spool, Spools};

/// An attempt at a page, in the group's seventh run.
pub(crate) fn record(entry: u64, attempt: u32) -> PageRecord {
    let link = |url: &str, nofollow| PageLink { url: url.into(), nofollow };
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
            render: None,
        },
        is_transient: false,
        content_type: Some("text/html".to_owned()),
        hash: Some(blake3::hash(b"body")),
        text_hash: None,
        fetched_unix_ms: 1_700_000_000_007,
        redirect: None,
        canonical: Some("http://site.example/".to_owned()),
        noindex: false,
        validators: Validators { etag: Some("W/\"x\"".to_owned()), last_modified: None },
        original: None,
        remote: Some("192.0.2.1:80".parse().unwrap()),
        pass: Some(2),
        depth: Some(3),
        item: None,
        traceparent: None,
        source: None,
        changed: None,
        links: vec![link("http://site.example/\"x\"", false), link("http://a.example/", true)],
        exchange: None,
        body: None,
        rendering: None,
    }
}

/// A rendered page. Its image and PDF are below `data`.
pub(super) fn rendering(spools: &Spools, data: &Path) -> Rendering {
    let request = |path: &str, kind, result| RequestRecord {
        url: format!("http://site.example/{path}"),
        kind,
        result,
    };
    let opened = Opened { url: "http://a.example/".to_owned(), how: How::Popup };
    let page = Rendered {
        html: "<title>Rendered</title>".to_owned(),
        final_url: "http://site.example/1?tab=2".to_owned(),
        opened: vec![opened],
        console_errors: vec!["Uncaught \"x\"".to_owned()],
        requests: vec![
            request("api", Kind::Data, RequestResult::Response(200, 5)),
            request("i.png", Kind::Image, RequestResult::Refused("kind".to_owned())),
            request("s.js", Kind::Script, RequestResult::Failed("reset".to_owned())),
            request("late", Kind::Data, RequestResult::Unanswered),
        ],
        requests_unlisted: 3,
        dialogs: 1,
        screenshot: Some(b"\x89PNG".to_vec()),
        pdf: Some(b"%PDF".to_vec()),
        ..Rendered::default()
    };
    let hash = Some(blake3::hash(page.html.as_bytes()));
    let mut rendering = Rendering::new(Ok(page), hash, Duration::from_millis(1200), Vec::new());
    // The HTML is in a file, as for every program.
    let context = SinkContext {
        agent: "",
        extraction_mode: None,
        exec_variables: &[],
        bodies: false,
        metrics: Arc::default(),
    };
    let (sinks, _) = Sinks::open(&[SinkConfig::exec("true").unwrap()], &context).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(sinks.keep_rendering(&mut rendering, spools, data)).unwrap();
    rendering
}

/// A record that will be retried.
pub(super) fn transient(entry: u64, attempt: u32) -> PageRecord {
    let mut record = record(entry, attempt);
    record.is_transient = true;
    record.report.outcome = PageOutcome::Retry;
    record
}

/// A directory in memory where possible, since a sync is free there.
pub(super) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A body, for tests without an own runtime.
pub(super) fn body_of(spools: &Spools, bytes: &[u8]) -> Spool {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut body = spools.begin();
    runtime.block_on(body.write(bytes)).unwrap();
    body
}

/// A body in a file.
pub(super) fn file_of(spools: &Spools, bytes: &[u8]) -> Spool {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut body = body_of(spools, bytes);
    runtime.block_on(body.path()).unwrap();
    body
}
