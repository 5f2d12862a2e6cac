//! `tidings probe render`, with Chromium and without.

use std::fs;
use std::net::Ipv4Addr;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::origin::{Hit, Origin, OriginResponse, Site, full_response, html_response};
use crate::support::process::run_tidings;

/// Fills the page with the answer to `/api`, or with the error.
const SCRIPT: &str = "
fetch('/api').then(answer => answer.json()).then(data => {
    document.title = data.title;
    root.innerHTML = `<a href=/one>${data.text}</a> <a href=/two>more</a>`;
});
console.error('a warning of the page');";

/// A page made by script, with a part that robots.txt forbids and one at a private address.
fn respond(hit: &Hit) -> Option<OriginResponse> {
    let port = hit.header("host").unwrap().rsplit_once(':').unwrap().1;
    let foreign = format!("http://{}:{port}/part.js", Site::host(1));
    let script = |text| full_response("200 OK", "Content-Type: text/javascript\r\n", text);
    Some(match &*hit.path {
        "/" => html_response(&format!(
            "<title>Empty</title><a href=/one>one</a><div id=root></div><script src=/app.js></script>
             <script src=/closed/part.js></script><script src='{foreign}'></script>
             <img src=/image.png>"
        )),
        "/app.js" => script(SCRIPT),
        "/api" => {
            let body = json!({ "title": "Made by a script", "text": "word ".repeat(50) });
            full_response("200 OK", "Content-Type: application/json\r\n", &body.to_string())
        }
        "/text" => full_response("200 OK", "Content-Type: text/plain\r\n", "text"),
        "/moved" => full_response("302 Found", "Location: /\r\n", ""),
        _ => return None,
    })
}

fn origin() -> Origin {
    let robots = Some("User-agent: *\nDisallow: /closed/\n");
    Origin::serve_with(Site { hosts: 2, robots, ..Site::default() }, respond)
}

/// Allows the first host.
fn allow_first() -> String {
    format!("--allow-private={}/32", Site::host(0))
}

#[test]
#[ignore = "needs foreign programs"]
fn a_page_is_shown_as_fetched_and_as_rendered() {
    let (origin, folder) = (origin(), TempDir::new().unwrap());
    let url = origin.url(0, "/moved");
    let arguments = ["probe", "render", &url, &allow_first(), "--json", "--screenshot=page.png"];
    let output = run_tidings(folder.path(), &arguments).expect_code(0);
    let lines = output.stdout();
    let result: Value = serde_json::from_str(&lines.concat()).unwrap();
    let page = origin.url(0, "/");
    assert_eq!((&result["url"], &result["status"]), (&json!(page), &json!(200)), "{result}");
    let auto = &result["auto"];
    assert_eq!((&auto["verdict"], &auto["cause"]), (&json!("render"), &json!("empty-root")));
    let before = json!({ "title": "Empty", "links": 1, "text_chars": 3 });
    assert_eq!(result["fetched"], before);
    let after = json!({ "title": "Made by a script", "links": 2, "text_chars": 3 + 200 + 4 });
    assert_eq!(result["rendered"], after);
    assert_eq!(result["gain"], json!({ "links": 1, "has_text": true }));
    let render = &result["render"];
    assert_eq!((&render["outcome"], &render["final_url"]), (&json!("rendered"), &json!(page)));
    let errors = render["console_errors"].to_string();
    assert!(errors.contains("a warning of the page"), "{errors}");
    let request = |host, path| {
        let requests = render["requests"].as_array().unwrap();
        let found = requests.iter().find(|it| it["url"] == origin.url(host, path));
        found.unwrap_or_else(|| panic!("{path}: {render}"))
    };
    let script = request(0, "/app.js");
    assert_eq!(
        (&script["kind"], &script["status"], &script["bytes"]),
        (&json!("script"), &json!(200), &json!(SCRIPT.len()))
    );
    assert_eq!(request(0, "/closed/part.js")["refused"], "robots.txt");
    assert_eq!(request(0, "/image.png")["refused"], "kind");
    let refused = request(1, "/part.js")["refused"].as_str();
    assert!(refused.is_some_and(|text| text.contains("loopback")), "{render}");
    assert!(fs::read(folder.path().join("page.png")).unwrap().starts_with(b"\x89PNG"));

    let log = origin.request_log();
    let asked: Vec<(Ipv4Addr, &str)> =
        log.0.iter().map(|hit| (hit.host, hit.path.as_str())).collect();
    let expected = ["/moved", "/", "/robots.txt", "/app.js", "/api"];
    assert_eq!(asked, expected.map(|path| (Site::host(0), path)));
}

#[test]
#[ignore = "needs foreign programs"]
fn the_text_shows_both_pages_and_each_request() {
    let (origin, folder) = (origin(), TempDir::new().unwrap());
    let url = origin.url(0, "/");
    let output = run_tidings(folder.path(), &["probe", "render", &url, &allow_first()]);
    let lines = output.expect_code(0).stdout();
    let app = origin.url(0, "/app.js");
    for line in [
        "status     200",
        "auto       rendered: the element of its application is empty",
        "text       3 characters",
        "links      1 link",
        "scripts    3 files, and 0 B in the page",
        "text       207 characters",
        "links      2 links",
        "gain       1 new link of this host, and at least twice the text",
        &format!("  script   200, {} B {app}", SCRIPT.len()),
        &format!("  image    refused: kind {}", origin.url(0, "/image.png")),
    ] {
        assert!(lines.iter().any(|found| found == line), "{line}: {lines:#?}");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn what_cannot_be_rendered_is_a_failure_with_its_reason() {
    let (origin, folder) = (origin(), TempDir::new().unwrap());
    let (page, allow) = (origin.url(0, "/"), allow_first());
    let probe = |arguments: &[&str], code: i32, reason: &str| {
        let arguments = [&["probe", "render"], arguments].concat();
        let output = run_tidings(folder.path(), &arguments).expect_code(code);
        assert!(output.stderr().contains(reason), "{reason}: {output:#?}");
        output.stdout()
    };
    // The page is judged nevertheless.
    let judged = probe(&[&page, &allow, "--browser=/nowhere"], 1, "apt install chromium");
    assert!(judged.iter().any(|line| line.starts_with("auto ")), "{judged:#?}");
    let browser = ["--browser=/nowhere", "--json"];
    assert!(probe(&[&[&*page, &allow], &browser[..]].concat(), 1, "/nowhere: no such").is_empty());
    probe(&["nonsense"], 2, "nonsense: not a URL");
    probe(&[&page], 1, "loopback address");
    probe(&[&origin.url(0, "/missing"), &allow], 1, "HTTP status 404");
    probe(&[&origin.url(0, "/text"), &allow], 1, "not an HTML page");
    probe(&["--screenshot=page.png"], 2, "<URL>");
    let file = "--screenshot=missing/page.png";
    let rendered = probe(&[&page, &allow, file], 1, "cannot write missing/page.png");
    assert!(rendered.iter().any(|line| line.starts_with("rendered ")), "{rendered:#?}");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_page_that_fails_in_the_browser_is_a_failure() {
    let origin = Origin::serve_with(Site::default(), |_| {
        Some(html_response("<a href=/x>x</a><script>window.close()</script>"))
    });
    let folder = TempDir::new().unwrap();
    let url = origin.url(0, "/");
    let arguments = ["probe", "render", &url, "--allow-private"];
    let lines = run_tidings(folder.path(), &arguments).expect_code(1).stdout();
    assert!(lines.last().unwrap().starts_with("rendered   no: the page"), "{lines:#?}");
    let json = run_tidings(folder.path(), &[&arguments[..], &["--json"]].concat()).expect_code(1);
    let result: Value = serde_json::from_str(&json.stdout().concat()).unwrap();
    assert_eq!(result["render"]["outcome"], "failed");
    assert_eq!((&result["render"]["reason"], &result["rendered"]), (&json!("left"), &Value::Null));
}
