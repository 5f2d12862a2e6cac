//! Crawlers and the broker are killed in the middle of a job of pages that exist and pages that
//! fail, each for one of 17 reasons. Each page that a crawler stored, and no other, is announced
//! once on `page-ready`, and `tidings job failed` names what the servers made fail, with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, OriginResponse, Site, full_response};
use crate::support::page_database;
use crate::support::process::{Process, Server, run_at, tidings_command};
use crate::support::seed::number_from_env;
use crate::support::tls::{CertificateAuthority, start_s_server};

const HOSTS: u16 = 25;
/// Requests from one kill to the next.
const HITS_PER_KILL: usize = 50;
/// A name with so long a label resolves nowhere, and no server is asked for it.
const LABEL_BYTES: usize = 64;

/// Status and reason of a page that failed.
type Failure = (Option<u64>, String);

/// Responses that are no pages, with status and reason.
///
/// The crawler's other reasons need waits of 10 s or more, a proxy, or a full disk.
fn bad_responses() -> Vec<(Option<u64>, &'static str, OriginResponse)> {
    let raw = |bytes: &[u8]| OriginResponse::Raw(bytes.to_vec());
    let repeated = |head: &str, line: &str, count| {
        OriginResponse::Raw([head, &line.repeat(count), "\r\n"].concat().into_bytes())
    };
    let found = "HTTP/1.1 200 OK\r\n";
    vec![
        (Some(404), "status", full_response("404 Not Found", "", "")),
        (Some(410), "status", full_response("410 Gone", "", "")),
        (Some(500), "try-later", full_response("500 Internal Server Error", "", "")),
        (Some(503), "try-later", full_response("503 Service Unavailable", "", "")),
        (Some(302), "redirect", full_response("302 Found", "Location: ftp://127.0.0.1/\r\n", "")),
        (None, "reset", raw(b"HTTP/1.1 200 OK\r\nContent-")),
        (Some(200), "truncated", OriginResponse::Truncated),
        (None, "bad-http", raw(b"220 mail.example.org ESMTP\r\n\r\n")),
        (None, "head-too-large", repeated(found, "X-More: and more\r\n", 300)),
        (None, "interim", repeated("", "HTTP/1.1 103 Early Hints\r\n\r\n", 20_000)),
        (Some(200), "too-large", OriginResponse::Endless),
        (Some(200), "bomb", OriginResponse::Raw(gzip_bomb())),
        (Some(200), "encoding", full_response("200 OK", "Content-Encoding: gzip\r\n", "text")),
        (None, "timeout", OriginResponse::Silent),
    ]
}

/// 16 MiB of zeros in 16 KiB of gzip.
fn gzip_bomb() -> Vec<u8> {
    static BODY: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let command = "head -c 16M /dev/zero | gzip -9";
        Command::new("sh").args(["-c", command]).output().expect("sh is on every system").stdout
    });
    [b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", &**BODY].concat()
}

/// Servers with which no request is possible.
#[derive(Debug)]
struct UnreachableServers {
    /// Their origins, with the reason.
    origins: [(String, &'static str); 5],
    _processes: [Process; 2],
    _folder: TempDir,
}

impl UnreachableServers {
    #[track_caller]
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let authority = CertificateAuthority::new(folder.path(), "unknown");
        authority.sign("server");
        let [certificate, key] = ["pem", "key"].map(|kind| authority.signed_file("server", kind));
        let flags = ["-cert", &certificate, "-key", &key];
        let (untrusted, untrusted_address) = start_s_server(&flags);
        // The certificate has another kind of key than the only cipher needs.
        let (incapable, incapable_address) =
            start_s_server(&[&flags[..], &["-tls1_2", "-cipher", "AES128-SHA"]].concat());
        let https = |address: SocketAddr| format!("https://{address}");
        let origins = [
            (format!("http://{}.test", "x".repeat(LABEL_BYTES)), "dns"),
            ("http://127.6.0.1:1".to_owned(), "connect"),
            (https(incapable_address), "tls"),
            (https(untrusted_address), "certificate"),
            ("http://10.0.0.1".to_owned(), "address"),
        ];
        Self { origins, _processes: [untrusted, incapable], _folder: folder }
    }

    fn has(&self, url: &str) -> bool {
        self.origins.iter().any(|(origin, _)| url.starts_with(origin))
    }
}

/// The URLs that fail, and how.
fn bad_pages(
    origin: &Origin,
    unreachable: &UnreachableServers,
    count: u16,
) -> BTreeMap<String, Failure> {
    let responses = bad_responses();
    let kinds = unreachable.origins.len() + responses.len();
    let page = |number: u16| {
        let kind = usize::from(number) % kinds;
        if let Some((origin, reason)) = unreachable.origins.get(kind) {
            return (format!("{origin}/bad/{number}"), (None, (*reason).to_owned()));
        }
        let at = kind - unreachable.origins.len();
        let (status, reason, _) = &responses[at];
        let path = format!("/bad/{at}/{number}");
        (origin.url(number % HOSTS, &path), (*status, (*reason).to_owned()))
    };
    (0..count).map(page).collect()
}

/// The response to a URL of `bad_pages`.
fn bad_response(path: &str) -> Option<OriginResponse> {
    let (at, _) = path.strip_prefix("/bad/")?.split_once('/')?;
    let (.., response) = bad_responses().swap_remove(at.parse().ok()?);
    Some(response)
}

#[test]
#[ignore = "needs foreign programs"]
fn every_stored_page_is_announced_once_over_kills() {
    let kills = number_from_env("TIDINGS_OUTCOME_KILLS").map(usize::try_from);
    let kills = kills.map_or(8, |kills| kills.expect("a small number"));
    // Enough that the job is not done before the last kill.
    let pages = (kills * HITS_PER_KILL).div_ceil(usize::from(HOSTS)) + 4;
    let robots = Some("User-agent: *\nDisallow: /private/\n");
    let site =
        Site { hosts: HOSTS, pages: u32::try_from(pages).unwrap(), robots, ..Site::default() };
    let origin = Origin::serve_with(site, |hit| bad_response(&hit.path));
    let unreachable = UnreachableServers::start();
    let bad = bad_pages(&origin, &unreachable, u16::try_from(200.min(2 * pages)).unwrap());
    let mut server = Server::start_broker();
    open_job(&server, origin.seed_urls().into_iter().chain(bad.keys().cloned()));

    let data = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let start = |server: &Server, at: usize| {
        // The pages of a host have the same text, and many of them would be a trap.
        let arguments = ["crawl", "--broker", &server.address_text()];
        let flags = ["--allow-private=127.0.0.0/8", "--no-traps", "--data", "."];
        let arguments = [&arguments[..], &flags].concat();
        let crawler = Process::start(&mut tidings_command(data[at].path(), arguments));
        crawler.wait_for_line_with("fetching for");
        crawler
    };
    let mut crawlers = [0, 1].map(|at| Some(start(&server, at)));
    for kill in 1..=kills {
        origin.wait_for_hits(kill * HITS_PER_KILL);
        if kill % 2 == 0 {
            server = server.restart_at_same_address("KILL", &["broker"]);
        } else {
            let at = kill / 2 % 2;
            let crawler = crawlers[at].take().expect("each is started again");
            crawler.signal_and_finish("KILL");
            crawlers[at] = Some(start(&server, at));
        }
    }
    let done = LineConnection::connect_client(server.address).request("JOB wait site");
    // Each page links to a private one, which robots.txt forbids.
    let good = usize::from(HOSTS) * pages;
    let failed = bad.len();
    let counts =
        format!(" result=done completed={good} redirects=0 failed={failed} robots={good} ");
    assert!(done.contains(&counts), "{done}");

    let announced = announcements(&server);
    let stored: BTreeMap<_, _> = data.iter().flat_map(|data| stored_pages(data.path())).collect();
    let differs = |(page, is): &(&String, &[String; 3])| stored.get(*page) != Some(*is);
    let differing: Vec<_> = announced.iter().filter(differs).collect();
    assert!(differing.is_empty(), "announced, but not stored so: {differing:?}");
    assert_eq!(announced.len(), stored.len());
    assert_eq!(announced.len(), 2 * good + failed);
    assert_eq!(failed_pages(&server), bad);
    let log = origin.request_log();
    let requested: BTreeSet<_> =
        log.page_requests().map(|hit| origin.url_at(hit.host, &hit.path)).collect();
    let missing = bad.keys().find(|url| !unreachable.has(url) && !requested.contains(*url));
    assert_eq!(missing, None, "failed without a request");
    log.expect_none_under("/private/");
    log.expect_polite(Duration::from_millis(30));
}

/// Opens a job with these URLs.
#[track_caller]
fn open_job(server: &Server, urls: impl Iterator<Item = String>) {
    let mut client = LineConnection::connect_client(server.address);
    // Without `circuit`, a host that cannot be reached fails each of its pages at once.
    let settings = "delay=30ms lease=2s max-attempts=1 max-losses=100 circuit=off";
    let commands = [format!("GROUP create crawlers {settings}"), "JOB open site".to_owned()];
    let adds = urls.map(|url| format!("JOB add site url={url}"));
    for command in commands.into_iter().chain(adds).chain(["JOB close site".to_owned()]) {
        client.request_ok(&command);
    }
}

/// What `tidings job failed` says.
#[track_caller]
fn failed_pages(server: &Server) -> BTreeMap<String, Failure> {
    let listed = run_at(server, &["job", "failed", "site", "--json"]).expect_code(1).stdout();
    let page = |line: &String| {
        let page: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| page[name].as_str().unwrap_or_default().to_owned();
        (text("url"), (page["status"].as_u64(), text("reason")))
    };
    let pages: BTreeMap<_, _> = listed.iter().map(page).collect();
    assert_eq!(pages.len(), listed.len(), "listed twice: {listed:#?}");
    pages
}

/// URL, outcome and reason of each announced page, by the id of the page. Fails if one is announced
/// twice.
#[track_caller]
fn announcements(server: &Server) -> BTreeMap<String, [String; 3]> {
    let end = LineConnection::connect_client(server.address).request("PUB page-ready end");
    let end: u64 = end.split(' ').nth(1).unwrap().parse().unwrap();
    let mut client = LineConnection::connect_client(server.address);
    client.request_ok("SUB page-ready from=first");
    let mut pages = BTreeMap::new();
    loop {
        let line = client.read_line();
        // A broker that is killed in the middle of a write leaves a gap.
        let Some(event) = line.strip_prefix("MSG page-ready ") else {
            assert!(line.starts_with("GAP "), "{line}");
            continue;
        };
        let (seq, payload) = event.split_once(' ').unwrap();
        if seq.parse::<u64>().unwrap() == end {
            return pages;
        }
        let word = |name: &str| {
            let word = payload.split(' ').find_map(|word| word.strip_prefix(name));
            word.unwrap_or_default().to_owned()
        };
        let url = payload.split(' ').next().unwrap().to_owned();
        let page = [url, word("outcome="), word("reason=")];
        let before = pages.insert(word("page="), page);
        assert!(before.is_none(), "announced twice: {payload}");
    }
}

/// The same for the pages that a crawler has stored.
fn stored_pages(data: &Path) -> Vec<(String, [String; 3])> {
    let sql = "select page, url, outcome, reason from pages where outcome <> 'retry'";
    let rows = page_database::query(data, sql).expect("the crawler has stored pages");
    let row = |row: String| {
        let mut columns = row.split('|').map(str::to_owned);
        let mut next = || columns.next().expect("four columns");
        (next(), [next(), next(), next()])
    };
    rows.into_iter().map(row).collect()
}
