//! `--bodies`: databases keep the source of pages, each content once.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;

use crate::support::origin::{Hit, Origin, OriginResponse, Site, full_response, html_response};
use crate::support::page_database;
use crate::support::postgres::Postgres;
use crate::support::process::run_tidings;

/// Links to two pages with equal content, one that changes, and one that does not exist.
const INDEX: &str = "<a href=a>a</a> <a href=b>b</a> <a href=changing>c</a> <a href=none>n</a>";

fn respond(path: &str, has_changed: bool) -> Option<OriginResponse> {
    Some(match path {
        "/" => html_response(INDEX),
        "/a" | "/b" => html_response("<title>Equal</title> \u{e9}\u{4f60}"),
        "/changing" if has_changed => html_response("<title>After</title>"),
        "/changing" => html_response("<title>Before</title>"),
        "/none" => full_response("404 Not Found", "Content-Type: text/html\r\n", "no such page"),
        _ => return None,
    })
}

/// A body that the client has is not sent again.
fn revalidate(hit: &Hit, response: OriginResponse) -> OriginResponse {
    let OriginResponse::Full { status: "200 OK", headers, body } = response else {
        return response;
    };
    let tag = format!("\"{}\"", body.len());
    let headers = format!("{headers}ETag: {tag}\r\n");
    if hit.header("If-None-Match") == Some(&tag) {
        return full_response("304 Not Modified", &headers, "");
    }
    full_response("200 OK", &headers, &body)
}

/// The bodies that are served, as text.
fn served_bodies() -> BTreeSet<String> {
    let body = |(path, has_changed)| match respond(path, has_changed) {
        Some(OriginResponse::Full { body, .. }) => body,
        other => panic!("{path}: {other:?}"),
    };
    [("/", false), ("/a", false), ("/changing", false), ("/changing", true)].map(body).into()
}

/// The output of a shell command in this folder.
#[track_caller]
fn shell(folder: &TempDir, command: &str) -> String {
    let ran = Command::new("sh").args(["-ec", command]).current_dir(folder).output().unwrap();
    assert!(ran.status.success(), "{command}: {ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
#[ignore = "needs foreign programs"]
fn databases_keep_each_body_once_and_give_it_back() {
    let postgres = Postgres::start();
    let has_changed = Arc::new(AtomicBool::new(false));
    let origin = Origin::serve_with(Site::default(), {
        let has_changed = Arc::clone(&has_changed);
        move |hit| Some(revalidate(hit, respond(&hit.path, has_changed.load(Ordering::SeqCst))?))
    });
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("tidings-data");
    let (url, seed) = (postgres.url(), origin.url(0, "/"));
    let crawl = |flags: &[&str]| {
        let arguments = ["crawl", "--allow-private", "--sqlite", "--postgres", &url, &seed];
        // The page that does not exist has failed.
        run_tidings(folder.path(), &[&arguments[..], flags].concat()).expect_code(1);
    };
    let both = |sql: &str| {
        let rows = page_database::query(&data, sql).unwrap();
        assert_eq!(postgres.query(sql), rows, "{sql}");
        rows
    };
    crawl(&[]);
    assert_eq!(both("select count(*) from bodies"), ["0"]);
    assert_eq!(both("select count(*) from pages"), ["5"]);
    crawl(&["--bodies"]);
    assert_eq!(both("select count(*) from bodies"), ["3"]);
    has_changed.store(true, Ordering::SeqCst);
    crawl(&["--bodies"]);
    assert_eq!(both("select count(*) from bodies"), ["4"]);
    assert_eq!(
        both(
            "select status, count(*) from pages join bodies using (hash, bytes) group by 1 order by 1"
        ),
        ["200|9", "304|3"]
    );
    assert_eq!(both("select distinct encoding from bodies"), ["gzip"]);

    for hash in both("select hash from bodies order by hash") {
        let decode = "base64 --decode | gunzip";
        let in_postgres = shell(
            &folder,
            &format!(
                "psql --no-psqlrc -Atc \"select encode(body, 'base64') from bodies where hash = '{hash}'\" '{url}' | {decode}"
            ),
        );
        let in_sqlite = shell(
            &folder,
            &format!(
                "sqlite3 tidings-data/pages.db \"select writefile('body.gz', body) from bodies where hash = '{hash}'\" > size; gunzip -c body.gz"
            ),
        );
        assert_eq!(in_postgres, in_sqlite);
        assert!(served_bodies().contains(&in_sqlite), "{in_sqlite:?}");
    }

    // An export carries them.
    let arguments = ["export", "--merge", "--format", "sqlite", "--output", "all.db"];
    run_tidings(folder.path(), &arguments).expect_code(0);
    let exported = shell(&folder, "sqlite3 all.db 'select count(*) from bodies'");
    assert_eq!(exported, "4\n");
    run_tidings(folder.path(), &["verify", "--data", "tidings-data"]).expect_code(0);
    // A database that was made again gets all bodies again.
    postgres.query("drop table pages, bodies, tidings_schema");
    crawl(&["--bodies"]);
    assert_eq!(postgres.query("select count(*) from bodies"), ["3"]);
    run_tidings(folder.path(), &["up", "--bodies", "--jsonl", "-"])
        .expect_code(2)
        .expect_stderr("--bodies: ");
}
