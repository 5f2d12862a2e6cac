//! Feeds and sitemaps: the tables of other parsers through `tidings probe`, and watched feeds.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Command;
use std::{fs, thread};

use data_encoding::BASE64;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::line_connection::{LineConnection, value};
use crate::support::origin::{Origin, Site, full_response};
use crate::support::process::{
    Process, Server, probe_json, run_at, run_json_at, run_tidings, tidings_command,
};
use crate::support::wait::wait_until;

/// A line of a table.
struct FeedCase(Value);

impl FeedCase {
    fn all(path: &str) -> Vec<Self> {
        let path = format!("{}/tests/data/{path}", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        text.lines().map(|line| Self(serde_json::from_str(line).unwrap())).collect()
    }

    fn file(&self) -> &str {
        self.0["file"].as_str().unwrap()
    }

    fn body(&self) -> Vec<u8> {
        match self.0["body"].as_str() {
            Some(text) => text.as_bytes().to_vec(),
            None => BASE64.decode(self.0["body_b64"].as_str().unwrap().as_bytes()).unwrap(),
        }
    }

    fn probe_input(&self) -> Value {
        json!({
            "body_b64": BASE64.encode(&self.body()),
            "headers": self.0["headers"],
            "base": self.0["base"],
        })
    }
}

/// Whether a value is as expected; a list contains all valid values.
fn matches_expected(expected: &Value, got: &Value) -> bool {
    let got = if got.is_null() { &json!("") } else { got };
    expected.as_array().map_or(expected == got, |any| any.contains(got))
}

/// Whether an entry has the expected title, link and id.
fn entry_matches_expected(expected: &Value, got: &Value) -> bool {
    let members = ["title", "link", "id"].iter();
    got.is_object()
        && members
            .filter(|name| !expected[**name].is_null())
            .all(|name| matches_expected(&expected[*name], &got[*name]))
}

/// Prints how many results were right. Fails for a wrong result that is not in the list of intended
/// differences, and for a right result that is in it.
#[track_caller]
fn check_results(table: &str, results: Vec<(String, bool, String)>) {
    let listed = include_str!("../../data/feeds/otherwise.txt");
    let listed: Vec<_> = listed.lines().filter(|line| !line.starts_with('#')).collect();
    let mut counts = BTreeMap::new();
    let mut failures = Vec::new();
    for (file, is_right, shown) in results {
        let is_listed = listed.contains(&file.as_str());
        *counts.entry(if is_right { "right" } else { "otherwise" }).or_insert(0) += 1;
        if is_right == is_listed {
            failures.push(format!("{file} (listed: {is_listed}): {shown}"));
        }
    }
    eprintln!("{table}: {counts:?}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn entries_match_the_feedparser_tables() {
    let mut cases = FeedCase::all("feeds/feedparser.jsonl");
    cases.retain(|case| case.0.get("entry").is_some() || case.0.get("n").is_some());
    let responses = probe_json("feed", cases.iter().map(FeedCase::probe_input));
    let results = cases.iter().zip(responses).map(|(case, response)| {
        let is_right = match case.0["entry"].as_u64() {
            Some(at) => {
                entry_matches_expected(&case.0, &response["entries"][usize::try_from(at).unwrap()])
            }
            None => case.0["n"] == response["n"],
        };
        (case.file().to_owned(), is_right, response.to_string())
    });
    check_results("feedparser, entries", results.collect());
}

/// The title of a feed is the first line of the text output. Most of these cases test encodings and
/// character references.
#[test]
fn titles_match_the_feedparser_tables() {
    let folder = TempDir::new().unwrap();
    let mut cases = FeedCase::all("feeds/feedparser.jsonl");
    // A file has no HTTP headers.
    cases.retain(|case| case.0.get("entry").is_none() && case.0.get("title").is_some());
    cases.retain(|case| {
        !case.0["headers"]["content-type"].as_str().unwrap_or("").contains("charset")
    });
    let results = cases.iter().map(|case| {
        fs::write(folder.path().join("feed"), case.body()).unwrap();
        let output = run_tidings(folder.path(), &["probe", "feed", "feed"]);
        let first = output.stdout().first().cloned().unwrap_or_default();
        let title = if first == "(no title)" { String::new() } else { first };
        (
            case.file().to_owned(),
            matches_expected(&case.0["title"], &json!(title)),
            format!("{output:?}"),
        )
    });
    check_results("feedparser, titles", results.collect());
}

#[test]
fn feeds_match_the_feed_rs_tables() {
    let cases = FeedCase::all("feeds/feed-rs.jsonl");
    let results = cases
        .iter()
        .zip(probe_json("feed", cases.iter().map(FeedCase::probe_input)))
        .map(|(case, response)| {
            let expected = case.0["entries"].as_array().unwrap();
            let got = response["entries"].as_array().unwrap();
            let is_right = case.0["kind"] == response["kind"]
                && expected.len() == got.len()
                && expected
                    .iter()
                    .zip(got)
                    .all(|(expected, got)| entry_matches_expected(expected, got));
            (case.file().to_owned(), is_right, response.to_string())
        });
    check_results("feed-rs", results.collect());
}

#[test]
fn sitemaps_match_the_scrapy_and_trafilatura_tables() {
    let cases = FeedCase::all("sitemaps/sitemaps.jsonl");
    let results = cases
        .iter()
        .zip(probe_json("sitemap", cases.iter().map(FeedCase::probe_input)))
        .map(|(case, response)| {
            let is_right =
                ["kind", "n", "first", "last"].iter().all(|name| case.0[*name] == response[*name]);
            (case.file().to_owned(), is_right, response.to_string())
        });
    check_results("sitemaps", results.collect());
}

#[test]
fn unreadable_input_is_answered_with_an_error() {
    let folder = TempDir::new().unwrap();
    for subcommand in ["feed", "sitemap"] {
        let mut probe = Process::start(&mut tidings_command(folder.path(), ["probe", subcommand]));
        probe.write("{}\n{\"body_b64\": \"?\"}\n{\"body_b64\": \"\", \"headers\": 1}\n{\"body_b64\": \"PA==\"}\n");
        probe.close_stdin();
        let responses = probe.finish().expect_code(0).stdout();
        assert!(
            responses.len() == 4 && responses[..3].iter().all(|line| line.contains("error")),
            "{responses:?}"
        );
        assert!(responses[3].contains("\"kind\":null"), "{responses:?}");
    }
}

/// The maximum that sitemaps.org allows, from the file to the queue.
#[test]
fn all_urls_of_a_full_sitemap_are_queued() {
    const URLS: usize = 50_000;
    let origin = Origin::serve_with(Site::default(), |hit| {
        let url = |n| format!("<url><loc>http://127.1.0.9:1/products/of-a-shop/{n}</loc></url>\n");
        let body =
            || format!("<urlset>{}</urlset>", (0..URLS).map(url).collect::<Vec<_>>().concat());
        let headers = "Content-Type: application/xml\r\n";
        (hit.path == "/sitemap.xml").then(|| full_response("200 OK", headers, &body()))
    });
    let server = Server::start_up(&["--allow-private", "--quiet"]);
    let mut client = LineConnection::connect_client(server.address);
    client.request_ok("JOB open full scope=any");
    let seed = origin.url(0, "/sitemap.xml");
    client.request_ok(&format!("PUB new-url {seed} job=full"));
    // The seed counts as well.
    let found = format!("{}", URLS + 1);
    wait_until("all URLs to be found", || {
        (value(&client.request("JOB show full"), "found") == found).then_some(())
    });
}

#[test]
fn probe_prints_feeds_and_sitemaps() {
    let folder = TempDir::new().unwrap();
    let feed = "<rss><channel><title>News</title><item><title>One</title><link>http://a.example/1</link></item></channel></rss>";
    let sitemap =
        "<urlset><url><loc>http://a.example/1</loc><lastmod>2026</lastmod></url></urlset>";
    fs::write(folder.path().join("f"), feed).unwrap();
    fs::write(folder.path().join("s"), sitemap).unwrap();
    let output = run_tidings(folder.path(), &["probe", "feed", "f"]).expect_code(0).stdout();
    assert_eq!(output, ["News", "  rss, 1 item", "", "One", "  http://a.example/1"]);
    let output = run_tidings(folder.path(), &["probe", "sitemap", "s"]).expect_code(0).stdout();
    assert_eq!(output, ["a sitemap of 1 page", "  http://a.example/1 (2026)"]);
    run_tidings(folder.path(), &["probe", "feed", "s"]).expect_code(1);
    run_tidings(folder.path(), &["probe", "sitemap", "no-such-file"]).expect_code(1);
}

#[test]
fn probe_fetches_a_url_from_an_allowed_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/x/f", listener.local_addr().unwrap());
    let origin = thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut request = BufReader::new(peer.try_clone().unwrap()).lines();
        while !request.next().unwrap().unwrap().is_empty() {}
        let body = "<feed><title>News</title><entry><link href='1'/></entry></feed>";
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length:";
        write!(peer, "{head} {}\r\n\r\n{body}", body.len()).unwrap();
    });
    let folder = TempDir::new().unwrap();
    run_tidings(folder.path(), &["probe", "feed", &url]).expect_code(1).expect_stderr("127.0.0.1");
    let temporary = TempDir::new().unwrap();
    let mut probe = tidings_command(folder.path(), ["probe", "feed", &url, "--allow-private"]);
    probe.env("TMPDIR", temporary.path());
    let output = Process::start(&mut probe).finish().expect_code(0).stdout();
    assert_eq!(output[0], "News");
    assert_eq!(output[4], format!("  {}", url.replace("/f", "/1")));
    let left: Vec<_> = temporary.path().read_dir().unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    origin.join().unwrap();
}

#[test]
fn a_feed_is_watched_until_stopped() {
    let server = Server::start_broker();
    let schedules = || run_json_at(&server, &["group", "schedules"]);
    let first =
        run_at(&server, &["watch-feed", "http://a.example/f", "--every", "2h"]).expect_code(0);
    assert_eq!(first.stdout(), ["http://a.example/f is watched, every 2h at first, within 10m-1d"]);
    assert!(first.stderr().contains("post-ready"), "{first:?}");
    wait_until("the schedule", || (schedules().len() == 1).then_some(()));
    assert_eq!(
        (&schedules()[0]["url"], &schedules()[0]["every"]),
        (&json!("http://a.example/f"), &json!("2h"))
    );
    let group = run_json_at(&server, &["group", "show"]).remove(0);
    assert_eq!(group["topics"], "new-url,post-ready");

    // New items are fetched already, so the note about post-ready is not repeated.
    let second =
        run_at(&server, &["watch-feed", "http://b.example/", "--min", "1s", "--every", "1s"])
            .expect_code(0);
    let expected = "http://b.example/: not read yet: no crawler is connected\n";
    assert_eq!(second.stderr().trim_end(), expected.trim_end());
    wait_until("both schedules", || (schedules().len() == 2).then_some(()));
    let listed = run_at(&server, &["watch-feed", "--list"]).expect_code(0).stdout();
    assert!(listed.len() == 3 && listed[1].ends_with("http://b.example/"), "{listed:?}");

    run_at(&server, &["watch-feed", "http://b.example/", "--stop"]).expect_code(0);
    wait_until("one schedule", || (schedules().len() == 1).then_some(()));
    run_at(&server, &["watch-feed", "http://a.example/", "--every", "1s"]).expect_code(2);
    run_at(&server, &["watch-feed"]).expect_code(2);
}

#[test]
fn configured_feeds_are_watched_and_keep_their_interval() {
    let config = "[[feed]]\nurl = 'http://127.0.0.1:9/f'\nevery = '20m'\n";
    let write = |command: &mut Command| {
        let folder = command.get_current_dir().unwrap().to_owned();
        fs::write(folder.join("tidings.toml"), config).unwrap();
        command.args(["--config", "tidings.toml"]);
    };
    let server = Server::start_with(&["up"], write);
    server.process.wait_for_line_with("http://127.0.0.1:9/f is watched, every 20m");
    let publish = |payload: &str| run_at(&server, &["pub", "new-url", payload]).expect_code(0);
    let every = || run_json_at(&server, &["group", "schedules"])[0]["every"].clone();
    wait_until("the schedule", || (every() == "20m").then_some(()));
    // A restart keeps the interval that the crawler has found.
    publish("http://127.0.0.1:9/f every=3h feed=10m-1d");
    wait_until("the other interval", || (every() == "3h").then_some(()));
}
