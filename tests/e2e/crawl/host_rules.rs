//! Rules of an operator for hosts, as the hosts see them.

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::named_hosts::NamedHosts;
use crate::support::origin::{Hit, Origin, OriginResponse, Site, full_response, html_response};
use crate::support::process::{Process, Server, run_at, run_json_at};
use crate::support::wait::{time_left, wait_until};

/// A broker, a crawler and an origin with these hosts.
struct NamedCrawl {
    hosts: NamedHosts,
    origin: Origin,
    server: Server,
    _crawler: Process,
    _folder: TempDir,
}

impl NamedCrawl {
    #[track_caller]
    fn start(
        hosts: &[&str],
        respond: impl Fn(&Hit) -> Option<OriginResponse> + Send + Sync + 'static,
    ) -> Self {
        let hosts = NamedHosts::new(hosts.iter().map(ToString::to_string).collect());
        let origin = Origin::serve_with(Site { pages: 8, ..Site::default() }, respond);
        let server = Server::start_broker();
        run_at(&server, &["group", "set", "crawlers", "delay=10ms"]).expect_code(0);
        let folder = TempDir::new().unwrap();
        let crawler = hosts.start_crawler(server.address, folder.path());
        Self { hosts, origin, server, _crawler: crawler, _folder: folder }
    }

    /// Runs `tidings` with these words.
    #[track_caller]
    fn run(&self, words: &str) {
        run_at(&self.server, &words.split(' ').collect::<Vec<_>>()).expect_code(0);
    }

    /// Opens a job with the first page of each of these hosts, without its links. It begins when it
    /// is closed.
    #[track_caller]
    fn open(&self, job: &str, hosts: &[&str]) {
        self.run(&format!("job open {job} scope=any max-depth=0 hold=yes"));
        for host in hosts {
            self.run(&format!("job add {job} {}", self.origin.url_at(host, "/p/0")));
        }
    }

    /// Waits for the end of a job and returns the numbers of its pages that were completed and
    /// blocked.
    #[track_caller]
    fn close(&self, job: &str) -> [u64; 2] {
        self.run(&format!("job close {job}"));
        let done = run_json_at(&self.server, &["job", "wait", job]).remove(0);
        ["completed", "blocked"].map(|count| done[count].as_u64().unwrap())
    }

    /// The requested hosts and paths.
    fn requested(&self) -> BTreeSet<(String, String)> {
        let hits = self.origin.request_log().0.into_iter();
        hits.map(|hit| (self.hosts.name(hit.host).to_owned(), hit.path)).collect()
    }
}

fn pairs(expected: &[(&str, &str)]) -> BTreeSet<(String, String)> {
    expected.iter().map(|(host, path)| ((*host).to_owned(), (*path).to_owned())).collect()
}

#[test]
#[ignore = "needs foreign programs"]
fn a_block_covers_the_names_below_and_their_robots_txt() {
    let hosts = ["a.test", "www.a.test", "deep.www.a.test", "ba.test", "free.test"];
    // The rules of one host are those of a blocked one.
    let redirect = |hit: &Hit| {
        let host =
            hit.header("Host")?.strip_prefix("free.test:").filter(|_| hit.path == "/robots.txt");
        let location = format!("Location: http://www.a.test:{}/robots.txt\r\n", host?);
        Some(full_response("302 Found", &location, ""))
    };
    let crawl = NamedCrawl::start(&hosts, redirect);
    crawl.open("one", &hosts);
    crawl.run("host block *.a.test");
    assert_eq!(crawl.close("one"), [1, 4]);
    let mut expected =
        pairs(&[("ba.test", "/robots.txt"), ("ba.test", "/p/0"), ("free.test", "/robots.txt")]);
    assert_eq!(crawl.requested(), expected);

    // A rule with the whole name counts before it.
    crawl.run("host slow www.a.test --delay 10ms");
    crawl.open("two", &["www.a.test"]);
    assert_eq!(crawl.close("two"), [1, 0]);
    expected.extend(pairs(&[("www.a.test", "/robots.txt"), ("www.a.test", "/p/0")]));
    assert_eq!(crawl.requested(), expected);
    crawl.run("job open three");
    run_at(&crawl.server, &["job", "add", "three", "http://a.test/"])
        .expect_code(1)
        .expect_stderr("the rule *.a.test blocks a.test");

    crawl.run("host clear *.a.test");
    crawl.open("four", &["a.test", "free.test"]);
    assert_eq!(crawl.close("four"), [2, 0]);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_pause_ends_by_itself() {
    let crawl = NamedCrawl::start(&["a.test", "b.test"], |_| None);
    let begin = crawl.origin.now();
    crawl.run("host pause a.test --for 2s");
    crawl.open("one", &["a.test", "b.test"]);
    assert_eq!(crawl.close("one"), [2, 0]);
    let record = crawl.origin.request_log();
    let first = record.0.iter().find(|hit| crawl.hosts.name(hit.host) == "a.test").unwrap();
    assert!(first.start >= begin + Duration::from_secs(2), "{first:?}");
    assert!(run_json_at(&crawl.server, &["host", "ls"]).is_empty());
}

#[test]
#[ignore = "needs foreign programs"]
fn a_slow_host_keeps_its_delay_over_a_restart_of_the_broker() {
    let mut crawl = NamedCrawl::start(&["a.test"], |_| None);
    crawl.run("host slow a.test --delay 400ms");
    crawl.run("job open one");
    crawl.run(&format!("job add one {}", crawl.origin.url_at("a.test", "/p/0")));
    crawl.run("job close one");
    for requests in [3, 6] {
        crawl.origin.wait_for_hits(requests);
        crawl.server = crawl.server.restart_at_same_address("KILL", &["broker"]);
    }
    let counts = run_json_at(&crawl.server, &["job", "wait", "one"]).remove(0);
    // Eight pages, and the private page of each.
    assert_eq!(counts["completed"], 16, "{counts}");
    crawl.origin.request_log().expect_polite(Duration::from_millis(400));
}

/// Hosts of the origin with parts of a page.
const FREE: u16 = 1;
const BLOCKED: u16 = 2;
const PAUSED: u16 = 3;
const NEVER: u16 = 4;
const MOVED: u16 = 5;

/// A broker and a crawler that renders all pages.
const RENDER: [&str; 4] = ["up", "--allow-private", "--delay=0", "--render=always"];

/// The URL of a path on another host of the origin.
fn url_beside(hit: &Hit, host: u16, path: &str) -> String {
    let port = hit.header("Host").unwrap().rsplit_once(':').unwrap().1;
    format!("http://{}:{port}{path}", Site::host(host))
}

/// A page with scripts of these hosts and paths.
fn page_with_scripts(hit: &Hit, scripts: &[(u16, &str)]) -> OriginResponse {
    let script = |(host, path): &(u16, &str)| {
        format!("<script src='{}'></script>", url_beside(hit, *host, path))
    };
    html_response(&scripts.iter().map(script).collect::<String>())
}

fn script() -> OriginResponse {
    full_response("200 OK", "Content-Type: text/javascript\r\n", "1")
}

fn redirect(location: &str) -> OriginResponse {
    full_response("302 Found", &format!("Location: {location}\r\n"), "")
}

/// Crawls the page `/p/0` of the first host in a job.
#[track_caller]
fn start_job(server: &Server, origin: &Origin) {
    run_at(server, &["job", "open", "one", "max-depth=0"]).expect_code(0);
    run_at(server, &["job", "add", "one", &origin.url(0, "/p/0")]).expect_code(0);
    run_at(server, &["job", "close", "one"]).expect_code(0);
}

#[test]
#[ignore = "needs foreign programs"]
fn parts_of_rendered_pages_obey_rules_and_the_never_list() {
    let origin = Origin::serve_with(Site { hosts: 6, ..Site::default() }, |hit| match &*hit.path {
        "/p/0" => Some(page_with_scripts(
            hit,
            &[
                (BLOCKED, "/part.js"),
                (PAUSED, "/part.js"),
                (NEVER, "/part.js"),
                (MOVED, "/part.js"),
                (FREE, "/private/part.js"),
                (FREE, "/moved.js"),
                (FREE, "/part.js"),
            ],
        )),
        // The rules of one host are those of a blocked one, and so is a script.
        "/robots.txt" if hit.host == Site::host(MOVED) => {
            Some(redirect(&url_beside(hit, BLOCKED, "/robots.txt")))
        }
        "/moved.js" => Some(redirect(&url_beside(hit, BLOCKED, "/part.js"))),
        "/part.js" => Some(script()),
        _ => None,
    });
    let folder = TempDir::new().unwrap();
    let never = format!("{}\n*/private/\n", Site::host(NEVER));
    fs::write(folder.path().join("never.txt"), never).unwrap();
    let never = ["--never", "never.txt"];
    let server = Server::start_in(folder, &[&RENDER[..], &never].concat(), |_| ());
    run_at(&server, &["host", "block", &Site::host(BLOCKED).to_string()]).expect_code(0);
    run_at(&server, &["host", "pause", &Site::host(PAUSED).to_string()]).expect_code(0);
    start_job(&server, &origin);
    run_at(&server, &["job", "wait", "one"]).expect_code(0);
    let requested = origin.request_log().0.into_iter().map(|hit| (hit.host, hit.path));
    let expected = [
        (0, "/robots.txt"),
        (0, "/p/0"),
        (FREE, "/robots.txt"),
        (FREE, "/moved.js"),
        (FREE, "/part.js"),
        (MOVED, "/robots.txt"),
    ];
    let expected = expected.map(|(host, path)| (Site::host(host), path.to_owned()));
    assert_eq!(requested.collect::<BTreeSet<_>>(), BTreeSet::from(expected));
}

#[test]
#[ignore = "needs foreign programs"]
fn a_block_is_answered_after_the_last_request_for_a_part() {
    let (arrive, arrival) = mpsc::channel();
    let (open, gate) = mpsc::channel::<()>();
    let gate = Mutex::new((arrive, gate));
    let origin = Origin::serve_with(Site { hosts: 2, ..Site::default() }, move |hit| {
        match &*hit.path {
            "/p/0" => Some(page_with_scripts(hit, &[(1, "/part/1"), (1, "/part/2")])),
            "/part/1" | "/part/2" => {
                let (arrive, gate) = &*gate.lock().unwrap();
                let _ = arrive.send(());
                // Ends when the sender is dropped.
                let _ = gate.recv();
                Some(script())
            }
            _ => None,
        }
    });
    let server = Server::start(&RENDER);
    start_job(&server, &origin);
    arrival.recv_timeout(time_left()).unwrap();
    let address = server.address;
    let rule = format!("key={} block=yes", Site::host(1));
    let command = format!("GROUP rule crawlers {rule}");
    let (answer, opened_at, answered_at) = thread::scope(|scope| {
        let block = scope
            .spawn(|| (LineConnection::connect_client(address).request(&command), origin.now()));
        let mut client = LineConnection::connect_client(address);
        wait_until("the rule is in effect", || {
            let rules = client.request_lines("GROUP rules crawlers");
            rules[0].contains(" block=yes").then_some(())
        });
        let opened_at = origin.now();
        drop(open);
        let (answer, answered_at) = block.join().unwrap();
        (answer, opened_at, answered_at)
    });
    assert_eq!(answer, format!("+OK crawlers {rule}"));
    assert!(answered_at > opened_at, "a request was in flight");
    run_at(&server, &["job", "wait", "one"]).expect_code(0);
    let log = origin.request_log();
    let parts: Vec<_> = log.0.iter().filter(|hit| hit.host == Site::host(1)).collect();
    let [robots, part] = parts[..] else { panic!("{parts:#?}") };
    assert_eq!(robots.path, "/robots.txt");
    assert!(part.end.unwrap() < answered_at, "{part:?} {answered_at:?}");
}

#[test]
#[ignore = "needs foreign programs"]
fn pages_without_parts_that_a_rule_forbids_say_nothing_about_what_rendering_adds() {
    const PAGES: usize = 12;
    let origin = Origin::serve_with(Site { hosts: 2, ..Site::default() }, |hit| {
        let page = hit.path.strip_prefix("/app/");
        match page {
            Some(page) => Some(page_with_scripts(hit, &[(1, &format!("/part/{page}"))])),
            None => hit.path.starts_with("/part/").then(script),
        }
    });
    let server = Server::start(&["up", "--allow-private", "--delay=0", "--render=auto"]);
    let crawl = |job: &str| {
        run_at(&server, &["job", "open", job, "max-depth=0"]).expect_code(0);
        let urls: Vec<_> = (0..PAGES).map(|page| origin.url(0, &format!("/app/{page}"))).collect();
        let add: Vec<_> =
            ["job", "add", job].into_iter().chain(urls.iter().map(|u| &**u)).collect();
        run_at(&server, &add).expect_code(0);
        run_at(&server, &["job", "close", job]).expect_code(0);
        run_at(&server, &["job", "wait", job]).expect_code(0);
        let requests = origin.request_log();
        requests.paths().iter().filter(|path| path.starts_with("/part/")).count()
    };
    let host = Site::host(1).to_string();
    run_at(&server, &["host", "pause", &host]).expect_code(0);
    assert_eq!(crawl("paused"), 0);
    run_at(&server, &["host", "clear", &host]).expect_code(0);
    assert_eq!(crawl("free"), 8, "the pages gain nothing");
}
