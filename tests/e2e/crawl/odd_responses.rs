//! Responses that break rules of HTTP and of sitemaps, and that browsers read nonetheless.

use tempfile::TempDir;

use crate::support::origin::{Hit, Origin, OriginResponse, Site, full_response, html_response};
use crate::support::process::run_tidings;

/// Lines of a head that are not headers. A firewall sends such a cookie on purpose.
const MALFORMED: &str = "Set-Cookie: wall=a\u{1}b; path=/\r\nX Powered: by\r\nno colon\r\n\
    : no name\r\nX-\u{e9}: a\r\nX\tA: b\r\n";
const WRONG: &str = "Content-Type:\r\nContent-Encoding: utf-8\r\nRefresh: 5, url=/new\r\n";
const SITEMAP: &str = "<urlset xmlns='http://www.sitemaps.org/schemas/sitemap/0.9'>\
    <url><loc>/listed</loc></url></urlset>";

/// A redirect of a page to itself that sets this cookie.
fn gate(path: &str, cookie: &str) -> OriginResponse {
    let headers = format!("Location: {path}#in\r\nSet-Cookie: {cookie}; path=/\r\n");
    full_response("302 Found", &headers, "")
}

fn respond(hit: &Hit) -> Option<OriginResponse> {
    let with = |headers: &str, body| full_response("200 OK", headers, body);
    Some(match hit.path.as_str() {
        "/robots.txt" => with(MALFORMED, "User-agent: *\nDisallow: /private\nSitemap: /map\n"),
        "/" => with(
            &[MALFORMED, WRONG].concat(),
            "<a href=/private>p</a><a href=/gate>g</a><a href=/counter>c</a>",
        ),
        "/map" => with("Content-Type: text/html\r\n", SITEMAP),
        "/gate" if hit.header("Cookie").is_some_and(|cookies| cookies.contains("in=1")) => {
            html_response("<a href=/inside>i</a>")
        }
        "/gate" => gate("/gate", "in=1"),
        // Another cookie each time.
        "/counter" => gate("/counter", &format!("count={}", hit.start.as_nanos())),
        "/new" | "/listed" | "/inside" => html_response("end"),
        _ => return None,
    })
}

#[test]
fn a_site_that_breaks_rules_is_crawled_like_in_a_browser() {
    let origin = Origin::serve_with(Site::default(), respond);
    let folder = TempDir::new().unwrap();
    let seed = origin.url(0, "/");
    let flags = ["crawl", "--allow-private", "--sitemaps", "--cookies", "--json", &seed];
    let crawl = run_tidings(folder.path(), &flags).expect_code(1);
    let requests = origin.request_log();
    let pages: Vec<_> = requests.distinct_pages().into_iter().map(|(_, path)| path).collect();
    assert_eq!(pages, ["/", "/counter", "/gate", "/inside", "/listed", "/map", "/new"]);
    let mut failed = crawl.stdout();
    failed.retain(|line| line.contains("\"outcome\":\"failed\""));
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(failed[0].contains("/counter\"") && failed[0].contains("too-many-redirects"));
    let count = |page| requests.paths().into_iter().filter(|path| *path == page).count();
    assert_eq!((count("/gate"), count("/counter")), (2, 9));
}
