//! Feeds and sitemaps: the tables of other readers through `tidings probe`, and feeds that are
//! watched.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Command;
use std::{fs, thread};

use data_encoding::BASE64;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::origin::{Origin, Site, whole};
use crate::support::process::{Running, Server, at, json_at, run, tidings};
use crate::support::talk::{Talk, value};
use crate::support::wait::until;

/// A line of a table.
struct Case(Value);

impl Case {
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

    fn question(&self) -> Value {
        json!({
            "body_b64": BASE64.encode(&self.body()),
            "headers": self.0["headers"],
            "base": self.0["base"],
        })
    }
}

/// What `tidings probe` answers to the questions of these cases.
#[track_caller]
fn probe(what: &str, cases: &[Case]) -> Vec<Value> {
    let folder = TempDir::new().unwrap();
    let mut probe = Running::start(&mut tidings(folder.path(), ["probe", what]));
    for case in cases {
        probe.write(format!("{}\n", case.question()));
    }
    probe.close_stdin();
    let answers = probe.finish().expect_code(0).stdout();
    assert_eq!(answers.len(), cases.len());
    answers.iter().map(|answer| serde_json::from_str(answer).unwrap()).collect()
}

/// Whether a member is as expected: a list names what is right.
fn is_right(expected: &Value, got: &Value) -> bool {
    let got = if got.is_null() { &json!("") } else { got };
    expected.as_array().map_or(expected == got, |any| any.contains(got))
}

/// Whether an entry has what is expected of it.
fn entry_is_right(expected: &Value, got: &Value) -> bool {
    let members = ["title", "link", "id"].iter();
    got.is_object()
        && members
            .filter(|name| !expected[**name].is_null())
            .all(|name| is_right(&expected[*name], &got[*name]))
}

/// Prints how many were right, and fails for those that are neither that nor in the list of what we
/// mean to read differently, and for those that are both.
#[track_caller]
fn judge(table: &str, results: Vec<(String, bool, String)>) {
    let listed = include_str!("../../data/feeds/otherwise.txt");
    let listed: Vec<_> = listed.lines().filter(|line| !line.starts_with('#')).collect();
    let mut counts = BTreeMap::new();
    let mut wrong = Vec::new();
    for (file, is_right, shown) in results {
        let is_listed = listed.contains(&file.as_str());
        *counts.entry(if is_right { "right" } else { "otherwise" }).or_insert(0) += 1;
        if is_right == is_listed {
            wrong.push(format!("{file} (listed: {is_listed}): {shown}"));
        }
    }
    eprintln!("{table}: {counts:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn entries_of_the_feeds_of_feedparser() {
    let mut cases = Case::all("feeds/feedparser.jsonl");
    cases.retain(|case| case.0.get("entry").is_some() || case.0.get("n").is_some());
    let answers = probe("feed", &cases);
    let results = cases.iter().zip(answers).map(|(case, answer)| {
        let is_right = match case.0["entry"].as_u64() {
            Some(at) => entry_is_right(&case.0, &answer["entries"][usize::try_from(at).unwrap()]),
            None => case.0["n"] == answer["n"],
        };
        (case.file().to_owned(), is_right, answer.to_string())
    });
    judge("feedparser, entries", results.collect());
}

/// The title of the feed is for people: the first line of what they are told. These are the tests
/// of encodings and references, mostly.
#[test]
fn titles_of_the_feeds_of_feedparser() {
    let folder = TempDir::new().unwrap();
    let mut cases = Case::all("feeds/feedparser.jsonl");
    // A file has no headers.
    cases.retain(|case| case.0.get("entry").is_none() && case.0.get("title").is_some());
    cases.retain(|case| {
        !case.0["headers"]["content-type"].as_str().unwrap_or("").contains("charset")
    });
    let results = cases.iter().map(|case| {
        fs::write(folder.path().join("feed"), case.body()).unwrap();
        let ended = run(folder.path(), &["probe", "feed", "feed"]);
        let first = ended.stdout().first().cloned().unwrap_or_default();
        let title = if first == "(no title)" { String::new() } else { first };
        (case.file().to_owned(), is_right(&case.0["title"], &json!(title)), format!("{ended:?}"))
    });
    judge("feedparser, titles", results.collect());
}

#[test]
fn feeds_of_feed_rs() {
    let cases = Case::all("feeds/feed-rs.jsonl");
    let results = cases.iter().zip(probe("feed", &cases)).map(|(case, answer)| {
        let expected = case.0["entries"].as_array().unwrap();
        let got = answer["entries"].as_array().unwrap();
        let is_right = case.0["kind"] == answer["kind"]
            && expected.len() == got.len()
            && expected.iter().zip(got).all(|(expected, got)| entry_is_right(expected, got));
        (case.file().to_owned(), is_right, answer.to_string())
    });
    judge("feed-rs", results.collect());
}

#[test]
fn sitemaps_of_scrapy_and_trafilatura() {
    let cases = Case::all("sitemaps/sitemaps.jsonl");
    let results = cases.iter().zip(probe("sitemap", &cases)).map(|(case, answer)| {
        let is_right =
            ["kind", "n", "first", "last"].iter().all(|name| case.0[*name] == answer[*name]);
        (case.file().to_owned(), is_right, answer.to_string())
    });
    judge("sitemaps", results.collect());
}

#[test]
fn what_cannot_be_read_is_answered_like_anything_else() {
    let folder = TempDir::new().unwrap();
    for what in ["feed", "sitemap"] {
        let mut probe = Running::start(&mut tidings(folder.path(), ["probe", what]));
        probe.write("{}\n{\"body_b64\": \"?\"}\n{\"body_b64\": \"\", \"headers\": 1}\n{\"body_b64\": \"PA==\"}\n");
        probe.close_stdin();
        let answers = probe.finish().expect_code(0).stdout();
        assert!(
            answers.len() == 4 && answers[..3].iter().all(|line| line.contains("error")),
            "{answers:?}"
        );
        assert!(answers[3].contains("\"kind\":null"), "{answers:?}");
    }
}

/// As many as sitemaps.org allows, from the file to the queue.
#[test]
fn all_urls_of_a_full_sitemap_are_queued() {
    const URLS: usize = 50_000;
    let origin = Origin::serve_with(Site::default(), |hit| {
        let url = |n| format!("<url><loc>http://127.1.0.9:1/products/of-a-shop/{n}</loc></url>\n");
        let body =
            || format!("<urlset>{}</urlset>", (0..URLS).map(url).collect::<Vec<_>>().concat());
        let headers = "Content-Type: application/xml\r\n";
        (hit.path == "/sitemap.xml").then(|| whole("200 OK", headers, &body()))
    });
    let server = Server::up(&["--allow-private", "--quiet"]);
    let mut talk = Talk::client(server.address);
    assert!(talk.ask("JOB open full scope=any").starts_with("+OK"));
    let seed = origin.url(0, "/sitemap.xml");
    assert!(talk.ask(&format!("PUB new-url {seed} job=full")).starts_with("+OK"));
    // The seed is one of them.
    let found = format!("{}", URLS + 1);
    until("all of them are found", || {
        (value(&talk.ask("JOB show full"), "found") == found).then_some(())
    });
}

#[test]
fn people_are_told_what_is_in_a_feed_and_a_sitemap() {
    let folder = TempDir::new().unwrap();
    let feed = "<rss><channel><title>News</title><item><title>One</title><link>http://a.example/1</link></item></channel></rss>";
    let sitemap =
        "<urlset><url><loc>http://a.example/1</loc><lastmod>2026</lastmod></url></urlset>";
    fs::write(folder.path().join("f"), feed).unwrap();
    fs::write(folder.path().join("s"), sitemap).unwrap();
    let told = run(folder.path(), &["probe", "feed", "f"]).expect_code(0).stdout();
    assert_eq!(told, ["News", "  rss, 1 item", "", "One", "  http://a.example/1"]);
    let told = run(folder.path(), &["probe", "sitemap", "s"]).expect_code(0).stdout();
    assert_eq!(told, ["a sitemap of 1 page", "  http://a.example/1 (2026)"]);
    run(folder.path(), &["probe", "feed", "s"]).expect_code(1);
    run(folder.path(), &["probe", "sitemap", "no-such-file"]).expect_code(1);
}

#[test]
fn a_url_is_fetched_for_people_where_that_is_allowed() {
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
    let refused = run(folder.path(), &["probe", "feed", &url]).expect_code(1);
    assert!(refused.stderr().contains("127.0.0.1"), "{refused:?}");
    let temporary = TempDir::new().unwrap();
    let mut probe = tidings(folder.path(), ["probe", "feed", &url, "--allow-private"]);
    probe.env("TMPDIR", temporary.path());
    let told = Running::start(&mut probe).finish().expect_code(0).stdout();
    assert_eq!(told[0], "News");
    assert_eq!(told[4], format!("  {}", url.replace("/f", "/1")));
    let left: Vec<_> = temporary.path().read_dir().unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    origin.join().unwrap();
}

#[test]
fn a_feed_is_watched_until_it_is_not() {
    let server = Server::broker();
    let schedules = || json_at(&server, &["group", "schedules"]);
    let first = at(&server, &["watch-feed", "http://a.example/f", "--every", "2h"]).expect_code(0);
    assert_eq!(first.stdout(), ["http://a.example/f is watched, every 2h at first, within 10m-1d"]);
    assert!(first.stderr().contains("post-ready"), "{first:?}");
    until("the schedule", || (schedules().len() == 1).then_some(()));
    assert_eq!(
        (&schedules()[0]["url"], &schedules()[0]["every"]),
        (&json!("http://a.example/f"), &json!("2h"))
    );
    let group = json_at(&server, &["group", "show"]).remove(0);
    assert_eq!(group["topics"], "new-url,post-ready");

    // New items are fetched already, and nothing is said of it again.
    let second = at(&server, &["watch-feed", "http://b.example/", "--min", "1s", "--every", "1s"])
        .expect_code(0);
    let said = "http://b.example/: not read yet: no crawler is connected\n";
    assert_eq!(second.stderr().trim_end(), said.trim_end());
    until("both schedules", || (schedules().len() == 2).then_some(()));
    let listed = at(&server, &["watch-feed", "--list"]).expect_code(0).stdout();
    assert!(listed.len() == 3 && listed[1].ends_with("http://b.example/"), "{listed:?}");

    at(&server, &["watch-feed", "http://b.example/", "--stop"]).expect_code(0);
    until("one schedule", || (schedules().len() == 1).then_some(()));
    at(&server, &["watch-feed", "http://a.example/", "--every", "1s"]).expect_code(2);
    at(&server, &["watch-feed"]).expect_code(2);
}

#[test]
fn feeds_of_the_configuration_file_are_watched_and_stay_as_they_are() {
    let config = "[[feed]]\nurl = 'http://127.0.0.1:9/f'\nevery = '20m'\n";
    let write = |command: &mut Command| {
        let folder = command.get_current_dir().unwrap().to_owned();
        fs::write(folder.join("tidings.toml"), config).unwrap();
        command.args(["--config", "tidings.toml"]);
    };
    let server = Server::start_with(&["up"], write);
    server.process.line_with("http://127.0.0.1:9/f is watched, every 20m");
    let talk = |payload: &str| at(&server, &["pub", "new-url", payload]).expect_code(0);
    let every = || json_at(&server, &["group", "schedules"])[0]["every"].clone();
    until("the schedule", || (every() == "20m").then_some(()));
    // What was found out meanwhile is not forgotten by a start.
    talk("http://127.0.0.1:9/f every=3h feed=10m-1d");
    until("the other interval", || (every() == "3h").then_some(()));
}
