//! Archives of several crawls, replayed with pywb, page by page.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use tempfile::TempDir;

use super::sinks::warc_urls;
use crate::support::origin::{Hit, Origin, OriginResponse, Site, full_response, redirect};
use crate::support::process::run_tidings;
use crate::support::pywb::{self, Pywb};
use crate::support::wait::wait_until;

const CRAWLS: usize = 3;
const OK: &str = "200 OK";
const NOT_MODIFIED: &str = "304 Not Modified";

/// The path of a page, its validator, and its status and body in each crawl. Between equal bodies,
/// the server answers 304 if there is a validator.
type Page = (&'static str, &'static str, [(&'static str, &'static str); CRAWLS]);

const PAGES: [Page; 8] = [
    ("/unchanged", "ETag: \"1\"", [(OK, "always"); CRAWLS]),
    ("/dated", "Last-Modified: Tue, 17 Nov 2026 10:00:00 GMT", [(OK, "dated"); CRAWLS]),
    ("/same", "", [(OK, "always"); CRAWLS]),
    ("/changed-once", "ETag: ", [(OK, "before"), (OK, "after"), (OK, "after")]),
    ("/changing", "ETag: ", [(OK, "first"), (OK, "second"), (OK, "third")]),
    ("/empty", "ETag: \"0\"", [(OK, ""); CRAWLS]),
    ("/gone", "ETag: \"2\"", [(OK, "here"), ("404 Not Found", "gone"), (OK, "here")]),
    // A server that answers 304 although no condition was sent.
    ("/wrong", "", [(OK, "right"), (NOT_MODIFIED, ""), (OK, "right")]),
];

fn respond(hit: &Hit, crawl: usize) -> Option<OriginResponse> {
    let (_, validator, crawls) = match hit.path.as_str() {
        "/" => {
            let links = PAGES.map(|(path, ..)| format!("<a href=\"{path}\">{path}</a>")).concat();
            let text = format!("{links}<a href=/moved>moved</a>");
            return Some(full_response(OK, "Content-Type: text/html\r\n", &text));
        }
        "/moved" => return Some(redirect("/unchanged")),
        path => PAGES.into_iter().find(|page| page.0 == path)?,
    };
    let (status, body) = crawls[crawl];
    let validator = match validator {
        "ETag: " => format!("{validator}\"{body}\"\r\n"),
        "" => String::new(),
        validator => format!("{validator}\r\n"),
    };
    let condition = hit.header("If-None-Match").or(hit.header("If-Modified-Since"));
    let is_same = condition.is_some_and(|value| validator.ends_with(&format!(": {value}\r\n")));
    let (status, body) = if is_same && status == OK { (NOT_MODIFIED, "") } else { (status, body) };
    Some(full_response(status, &format!("Content-Type: text/html\r\n{validator}"), body))
}

/// Replay distinguishes captures by the second.
fn wait_for_next_second() {
    let second = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let now = second();
    wait_until("the next second", || (second() > now).then_some(()));
}

#[test]
#[ignore = "needs foreign programs"]
fn every_capture_of_every_crawl_is_replayed() {
    let crawl = Arc::new(AtomicUsize::new(0));
    let origin = Origin::serve_with(Site::default(), {
        let crawl = Arc::clone(&crawl);
        move |hit| respond(hit, crawl.load(Ordering::SeqCst))
    });
    let (folder, seed) = (TempDir::new().unwrap(), origin.url(0, "/"));
    for number in 0..CRAWLS {
        crawl.store(number, Ordering::SeqCst);
        let flags = ["crawl", "--allow-private", "--delay=10ms", "--sqlite", "--warc=warc/a"];
        run_tidings(folder.path(), &[&flags[..], &[&seed]].concat());
        wait_for_next_second();
    }
    let warc = folder.path().join("warc");
    let pages = warc_urls(&warc);
    assert!(pages.len() == PAGES.len() + 2 && pages.values().all(|count| *count == 3), "{pages:?}");

    let archive = Pywb::serve(&warc);
    for (path, _, crawls) in PAGES {
        let url = origin.url(0, path);
        let captures = archive.captures(&url);
        // It cannot be said which capture has not been modified.
        let kept: Vec<_> = crawls.iter().filter(|(status, _)| *status != NOT_MODIFIED).collect();
        assert_eq!(captures.len(), kept.len(), "{path}: {captures:?}");
        let newest = String::new();
        let times = captures.iter().chain([&newest]);
        for (time, (status, body)) in times.zip(kept.iter().chain(kept.last())) {
            let replayed = pywb::get(&archive.url(time, "id_", &url));
            assert_eq!(replayed, (status[..3].to_owned(), (*body).to_owned()), "{path} at {time}");
        }
    }
    let moved = pywb::get(&archive.url("", "id_", &origin.url(0, "/moved")));
    assert_eq!(moved.0, "302");
}
