//! Repeated crawls, which are later passes of a job, send conditional requests and download only what has changed.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;

use crate::support::origin::{Hit, Origin, OriginResponse, Site, full_response, html_response};
use crate::support::page_database;
use crate::support::process::run_tidings;

const PAGES: u32 = 15;
/// The page that changes.
const CHANGED_PAGE: u32 = 3;
const OLD_DATE: &str = "Tue, 17 Nov 2026 10:00:00 GMT";
const NEW_DATE: &str = "Wed, 18 Nov 2026 10:00:00 GMT";

/// Pages `/c/n` in a tree: one of three has a `Last-Modified`, one an `ETag`, and one the `ETag` of
/// Apache httpd, which appends the coding to that of an encoded answer and does not compare it.
fn respond(hit: &Hit, has_changed: bool) -> Option<OriginResponse> {
    let page = hit.path.strip_prefix("/c/")?.parse::<u32>().ok().filter(|page| *page < PAGES)?;
    let is_new = has_changed && page == CHANGED_PAGE;
    let (name, condition, value) = if page.is_multiple_of(3) {
        ("Last-Modified", "If-Modified-Since", if is_new { NEW_DATE } else { OLD_DATE }.to_owned())
    } else {
        ("ETag", "If-None-Match", format!("\"{page}-{is_new}\""))
    };
    let mut header = format!("{name}: {value}\r\n");
    if hit.header(condition).is_some_and(|sent| sent.contains(&value)) {
        return Some(full_response("304 Not Modified", &header, ""));
    }
    if page % 3 == 1 {
        header = header.replace("\"\r\n", "-gzip\"\r\n");
    }
    let children = [2 * page + 1, 2 * page + 2].into_iter().filter(|child| *child < PAGES);
    let links = children.map(|child| format!("<a href=\"/c/{child}\">{child}</a>"));
    let links = links.collect::<Vec<_>>().concat();
    let title = if is_new { "Changed" } else { "Page" };
    let OriginResponse::Full { status, headers, body } =
        html_response(&format!("<title>{title} {page}</title>{links}"))
    else {
        return None;
    };
    Some(OriginResponse::Full { status, headers: headers + &header, body })
}

fn is_conditional(hit: &Hit) -> bool {
    hit.header("If-None-Match").is_some() || hit.header("If-Modified-Since").is_some()
}

#[test]
#[ignore = "needs foreign programs"]
fn a_repeated_crawl_downloads_only_changed_pages() {
    let has_changed = Arc::new(AtomicBool::new(false));
    let origin = Origin::serve_with(Site::default(), {
        let has_changed = Arc::clone(&has_changed);
        move |hit| respond(hit, has_changed.load(Ordering::SeqCst))
    });
    let folder = TempDir::new().unwrap();
    let seed = origin.url(0, "/c/0");
    // Returns the number of requested pages, and how many of the requests were conditional.
    let crawl = |flags: &[&str]| {
        let before = origin.request_log().page_requests().count();
        let arguments = [&["crawl", "--allow-private", &seed], flags].concat();
        run_tidings(folder.path(), &arguments).expect_code(0);
        let requests = origin.request_log();
        let requested: Vec<_> = requests.page_requests().skip(before).collect();
        (requested.len(), requested.iter().filter(|hit| is_conditional(hit)).count())
    };
    let all = PAGES as usize;
    assert_eq!(crawl(&[]), (all, 0), "the first crawl has no validators");
    has_changed.store(true, Ordering::SeqCst);
    assert_eq!(crawl(&[]), (all, all));
    let stored =
        |sql: &str| page_database::query(&folder.path().join("tidings-data"), sql).unwrap();
    let statuses = "select status, count(*) from pages where outcome = 'done' group by status";
    let read = PAGES + 1;
    assert_eq!(stored(statuses), [format!("200|{read}"), format!("304|{}", PAGES - 1)]);
    assert_eq!(stored("select count(distinct hash) from pages"), [read.to_string()]);
    // An unchanged page is stored as it was before.
    let same = "select count(*) from pages a join pages b using (url, title, hash, link_urls)
        where a.status = 200 and b.status = 304 and title like 'Page %'";
    assert_eq!(stored(same), [(PAGES - 1).to_string()]);
    let changed = format!("select count(*) from pages where title = 'Changed {CHANGED_PAGE}'");
    assert_eq!(stored(&changed), ["1"]);
    // The next one sends the validators of the 304 responses.
    assert_eq!(crawl(&[]), (all, all));
    assert_eq!(
        stored("select count(*) from pages where status = 304"),
        [(2 * PAGES - 1).to_string()]
    );
    assert_eq!(crawl(&["--max-pages", "3"]), (3, 3), "a limited crawl of the same pages");

    // A crawl that refetches everything, or that needs other links than the stored ones, sends no
    // conditional requests.
    assert_eq!(crawl(&["--refetch"]), (all, 0));
    assert_eq!(crawl(&["--images"]), (all, 0));
    assert_eq!(crawl(&["--images"]), (all, all));

    assert_eq!(crawl(&[]), (all, 0));
    // An output that stores bodies gets them, whenever it is added. What it is then known to have
    // is kept by crawls without it.
    let warc: &[&str] = &["--sqlite", "--warc=warc/a"];
    let outputs = [
        warc,
        &["--sqlite", "--warc=warc/b"],
        &["--sqlite", "--warc=warc/a", "--exec=true"],
        &["--sqlite", "--bodies"],
        &["--sqlite", "--bodies", "--warc=warc/a"],
    ];
    for flags in outputs {
        assert_eq!(crawl(flags), (all, 0), "{flags:?}");
        assert_eq!(crawl(&[]), (all, all));
        assert_eq!(crawl(flags), (all, all), "{flags:?}");
    }
    assert_eq!(crawl(warc), (all, all), "the last crawl had it, too");
    fs::remove_dir_all(folder.path().join("warc")).unwrap();
    assert_eq!(crawl(warc), (all, 0), "it was removed");
}
