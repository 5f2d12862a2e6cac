//! `--render auto`: which pages are rendered, judged by the origin.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::origin::{Hit, Origin, OriginResponse, Site, full_response, html_response};
use crate::support::process::run_tidings;

/// Pages below `/old/`, which look as if a script made them.
const OLD_PAGES: usize = 20;

/// A site with an application below `/app/`, documents below `/docs/`, and pages below `/old/` to
/// which their script adds nothing. Each script asks for data of its page below `/api/`.
fn site(hit: &Hit) -> Option<OriginResponse> {
    let script = |text| full_response("200 OK", "Content-Type: text/javascript\r\n", text);
    let shell = "<title>A page</title><div id=root></div><script src=/app.js></script>";
    let text = "The harbour was rebuilt after the flood of that winter. ".repeat(50);
    let link = |path: &str| format!("<a href='{path}'>{path}</a> ");
    let path = hit.path.as_str();
    Some(match path {
        "/" => {
            let old = (0..OLD_PAGES).map(|page| link(&format!("/old/{page}")));
            let docs = (0..3).map(|page| link(&format!("/docs/{page}")));
            let links = old.chain(docs).collect::<Vec<_>>().concat();
            html_response(&format!("{links}{}<script src=/app.js></script>{text}", link("/app/0")))
        }
        "/app.js" => script(
            "fetch('/api' + location.pathname).then(answer => answer.json()).then(paths => {
                const items = paths.map(path => `<li><a href='${path}'>${path}</a></li>`);
                document.getElementById('root').innerHTML = items.join('');
            });",
        ),
        _ if path.starts_with("/api/") => {
            let paths = if path.starts_with("/api/app/") {
                r#"["/app/0", "/app/1", "/app/2", "/app/3"]"#
            } else {
                "[]"
            };
            full_response("200 OK", "Content-Type: application/json\r\n", paths)
        }
        _ if path.starts_with("/docs/") => {
            html_response(&format!("<div id=page>{text}</div><script src=/app.js></script>"))
        }
        _ if path.starts_with("/app/") || path.starts_with("/old/") => html_response(shell),
        _ => return None,
    })
}

/// Crawls the site in this folder. Returns the last object of standard output, and the stored pages
/// by path.
#[track_caller]
fn crawl(folder: &Path, origin: &Origin) -> (Value, HashMap<String, Value>) {
    let file = folder.join("pages.jsonl");
    let _ = fs::remove_file(&file);
    let seed = origin.url(0, "/");
    let arguments =
        ["crawl", "--allow-private", "--delay=0", "--json", "--render=auto", "--jsonl=pages.jsonl"];
    let output = run_tidings(folder, &[&arguments[..], &[&seed]].concat()).expect_code(0);
    let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap();
    let summary = parse(output.stdout().last().unwrap())["summary"].clone();
    let pages = fs::read_to_string(file).unwrap();
    let path = |page: &Value| page["url"].as_str().unwrap().replace(&*seed, "/");
    (summary, pages.lines().map(parse).map(|page| (path(&page), page)).collect())
}

fn requests_below(origin: &Origin, path: &str) -> usize {
    origin.request_log().paths().iter().filter(|found| found.starts_with(path)).count()
}

#[test]
#[ignore = "needs foreign programs"]
fn pages_without_content_are_rendered_until_it_adds_nothing() {
    let origin = Origin::serve_with(Site { pages: 1, ..Site::default() }, site);
    let folder = TempDir::new().unwrap();
    let (summary, pages) = crawl(folder.path(), &origin);
    assert_eq!(pages.len(), 1 + OLD_PAGES + 3 + 4);
    for page in 0..4 {
        let api = format!("/api/app/{page}");
        assert_eq!(requests_below(&origin, &api), 1, "{api}");
        let links = &pages[&format!("/app/{page}")]["links"];
        assert_eq!(links.as_array().unwrap().len(), 4, "{links}");
    }
    assert_eq!(requests_below(&origin, "/api/docs/"), 0);
    assert_eq!(requests_below(&origin, "/api/old/"), 8);
    assert_eq!(requests_below(&origin, "/api/"), 4 + 8);
    let render = &summary["render"];
    // Three links of each page of the application lead to others.
    let expected = serde_json::json!(
        { "rendered": 12, "failed": 0, "new_links": 12, "without_gain": 8 }
    );
    assert_eq!(*render, expected);

    // The next crawl knows that.
    crawl(folder.path(), &origin);
    assert_eq!(requests_below(&origin, "/api/app/"), 4 + 4);
    assert_eq!(requests_below(&origin, "/api/old/"), 8);
}
