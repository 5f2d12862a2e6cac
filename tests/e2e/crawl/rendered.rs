//! Pages that a browser has rendered, in every sink; and their replay from a WARC file.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::outputs::write_script;
use super::sinks::warc_urls;
use crate::support::origin::{Hit, Origin, OriginResponse, Site, full_response, html_response};
use crate::support::page_database;
use crate::support::postgres::Postgres;
use crate::support::process::{Process, run_tidings, tidings_command};
use crate::support::pywb::{self, Pywb};

/// Its text and its link come from a script and its data. The picture is requested only for an
/// image of the page.
const PAGE: &str = "<title>Empty</title><main></main><script src=/app.js></script>\
    <img loading=lazy src=/below.png style='margin-top: 5000px'>";

const SCRIPT: &str = "
fetch('/api').then(answer => answer.json()).then(data => {
    document.title = data.title;
    document.querySelector('main').innerHTML = '<a href=/next>' + data.title + '</a>';
});
console.error('a warning of the page');";

/// The second page uses the data again, and the script after it was asked whether it has changed.
fn respond(hit: &Hit) -> Option<OriginResponse> {
    let script = "Content-Type: text/javascript\r\nCache-Control: no-cache\r\nETag: \"1\"\r\n";
    let data = "Content-Type: application/json\r\nCache-Control: max-age=600\r\n";
    Some(match hit.path.as_str() {
        "/" | "/next" => html_response(PAGE),
        "/app.js" if hit.header("if-none-match").is_some() => {
            full_response("304 Not Modified", script, "")
        }
        "/app.js" => full_response("200 OK", script, SCRIPT),
        "/api" => full_response("200 OK", data, r#"{"title": "Made by a script"}"#),
        _ => return None,
    })
}

/// Reads `url|value` rows.
fn of(rows: &[String], url: &str) -> String {
    let value = rows.iter().find_map(|row| row.strip_prefix(&format!("{url}|")));
    value.unwrap_or_else(|| panic!("{url}: {rows:?}")).to_owned()
}

#[test]
#[ignore = "needs foreign programs"]
fn a_rendered_page_is_in_every_sink_and_can_be_replayed() {
    let postgres = Postgres::start();
    let origin = Origin::serve_with(Site::default(), respond);
    let folder = TempDir::new().unwrap();
    let program = write_script(
        folder.path(),
        "#!/bin/sh\ncase $PAGE_URL in */) cp $PAGE_RENDERED_PATH html; cp $PAGE_SCREENSHOT_PATH png; \
         cp $PAGE_PDF_PATH pdf;; esac\n",
    );
    let (database, seed) = (postgres.url(), origin.url(0, "/"));
    let arguments = [
        ["crawl", "--allow-private", "--render=always", "--screenshot", "--pdf", "--bodies"],
        ["--sqlite", "--jsonl=pages.jsonl", "--warc=warc/crawl", "--exec", &program, "--postgres"],
    ];
    // Replay distinguishes records by the second.
    let arguments = [&arguments.concat()[..], &[&database, "--delay=1s", &seed]].concat();
    run_tidings(folder.path(), &arguments).expect_code(0);
    let log = origin.request_log();
    assert_eq!(log.paths(), ["/", "/app.js", "/api", "/next", "/app.js"], "once, and once again");
    drop(origin);

    let lines = fs::read_to_string(folder.path().join("pages.jsonl")).unwrap();
    let pages: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(pages.len(), 2, "{lines}");
    let page = pages.iter().find(|page| page["url"] == *seed).unwrap();
    assert_eq!(page["title"], "Made by a script");
    let render = &page["render"];
    assert_eq!((&render["outcome"], &render["final_url"]), (&"rendered".into(), &page["url"]));
    let requests = render["requests"].as_array().unwrap();
    let listed = |path: &str| {
        let url = format!("{seed}{path}");
        requests.iter().find(|request| request["url"] == *url).unwrap()
    };
    assert_eq!(
        (&listed("app.js")["kind"], &listed("app.js")["status"]),
        (&"script".into(), &200.into())
    );
    assert_eq!(listed("api")["bytes"], 29);
    assert_eq!(listed("below.png")["refused"], "kind");
    let errors = render["console_errors"].to_string();
    assert!(errors.contains("a warning of the page"), "{errors}");

    let data = folder.path().join("tidings-data");
    let (sqlite, in_postgres) = (
        page_database::query(&data, "select url, render from pages").unwrap(),
        postgres.query("select url, render from pages"),
    );
    for rows in [&sqlite, &in_postgres] {
        let stored: Value = serde_json::from_str(&of(rows, &seed)).unwrap();
        assert_eq!(stored, *render);
    }
    let bodies = "select count(*) from pages join bodies on bodies.hash = rendered_hash";
    assert_eq!(page_database::query(&data, bodies).unwrap(), ["2"]);
    assert_eq!(postgres.query(bodies), ["2"]);
    run_tidings(folder.path(), &["verify", "--data", "tidings-data"]).expect_code(0);

    let read = |path: &str| fs::read(folder.path().join(path)).unwrap();
    let html = String::from_utf8(read("html")).unwrap();
    assert!(html.contains("<a href=\"/next\">Made by a script</a>"), "{html}");
    assert!(read("png").starts_with(b"\x89PNG") && read("pdf").starts_with(b"%PDF"));
    let image = render["screenshot"].as_str().unwrap();
    assert_eq!(read(&format!("tidings-data/{image}")), read("png"));
    let path = data.join(image);
    fs::write(&path, b"\x89PNG").unwrap();
    let damaged = run_tidings(folder.path(), &["verify", "--data", "tidings-data"]).expect_code(1);
    let text = damaged.stdout().concat();
    assert!(text.contains("does not match its name"), "{text}");

    assert_eq!(warc_urls(&folder.path().join("warc")).len(), 2);
    replay(&folder.path().join("warc"), &seed, &html);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_page_whose_image_cannot_be_stored_is_fetched_again() {
    let origin = Origin::serve_with(Site::default(), respond);
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("tidings-data");
    fs::create_dir(&data).unwrap();
    // No file can be stored in a folder that is a file.
    fs::write(data.join("screenshots"), "").unwrap();
    let seed = origin.url(0, "/");
    let arguments = ["crawl", "--allow-private", "--render=always", "--screenshot", &seed];
    let crawl = Process::start(&mut tidings_command(folder.path(), arguments));
    crawl.wait_for_line_with("fetched pages wait and no new tasks are taken");
    fs::remove_file(data.join("screenshots")).unwrap();
    crawl.finish().expect_code(0);
    let sql = "select json_extract(render, '$.screenshot') from pages where outcome = 'done'";
    let images = page_database::query(&data, sql).unwrap();
    assert_eq!(images.len(), 2);
    for image in images {
        assert!(fs::read(data.join(image)).unwrap().starts_with(b"\x89PNG"));
    }
}

/// Replays both pages from WARC files with pywb, without the server that they come from.
#[track_caller]
fn replay(warc: &Path, page: &str, html: &str) {
    let archive = Pywb::serve(warc);
    let get = |url: &str| {
        let (status, body) = pywb::get(&archive.url("", "id_", url));
        assert_eq!(status, "200", "{url}");
        body
    };
    // As the server sent it, and not as it was rendered.
    assert_eq!(get(page), PAGE);
    assert_eq!(get(&format!("{page}app.js")), SCRIPT);
    assert_eq!(get(&format!("urn:rendered:{page}")), html);
    assert!(get(&format!("urn:pdf:{page}")).starts_with("%PDF"));
    // A browser runs the script of each page against the data in the archive.
    for page in [page, &format!("{page}next")] {
        let shown = Command::new("chromium-headless-shell")
            .args(["--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"])
            .arg(archive.url("", "mp_", page))
            .output()
            .unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains(">Made by a script</a>"), "{page}: {shown}");
    }
}
