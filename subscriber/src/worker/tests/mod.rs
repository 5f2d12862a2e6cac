//! Tests of a crawler between a small broker, played by this file, and small origins.

mod answers;
mod revisits;
mod robots;
mod stores;

use std::future::Future;
use std::path::Path;

use tempfile::TempDir;
use tidings_egress::AllowPrivate;
use tidings_egress::connect::ConnectConfig;
use tidings_protocol::{CanonicalUrl, URL_BYTES_MAX};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::*;
use crate::fetch::FetchConfig;
use crate::report::PageOutcome;
use crate::testing::{Origin, read_head};

const CLOCK: u64 = 1_000_000;
/// The options of `ACK` and `NACK` that report what is known about a page.
const REPORT_OPTIONS: [&str; 5] = ["reason", "status", "ms", "bytes", "type"];
/// .. and further ones of `ACK`. A `NACK` says nothing about the content of a page.
const ACK_REPORT_OPTIONS: [&str; 3] = ["error", "changed", "hash"];

/// The broker's side.
struct Broker {
    listener: TcpListener,
}

/// A connection of the crawler, after its `JOIN`.
struct Connection {
    lines: Lines<BufReader<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
    hello: String,
}

struct Run {
    broker: Broker,
    reports: mpsc::Receiver<PageReport>,
    stop: CancellationToken,
    data: TempDir,
    running: JoinHandle<Result<(), CrawlError>>,
}

async fn start() -> (Run, Connection) {
    start_with_reports(100).await
}

async fn start_with_reports(unread_max: usize) -> (Run, Connection) {
    start_in(tempfile::tempdir().unwrap(), unread_max).await
}

/// With a site whose robots.txt is known.
async fn start_introduced(answer: fn(&str) -> String) -> (Site, Run, Connection) {
    let mut site = Site::start(answer).await;
    let (run, mut broker) = start().await;
    broker.introduce(&site.url("/")).await;
    assert_eq!(site.next_request().await, "/robots.txt");
    (site, run, broker)
}

/// In a data directory that may have been used before.
async fn start_in(data: TempDir, unread_max: usize) -> (Run, Connection) {
    start_as(data, unread_max, |_| ()).await
}

/// With further settings.
async fn start_as(
    data: TempDir,
    unread_max: usize,
    set: impl FnOnce(&mut CrawlerConfig),
) -> (Run, Connection) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = CrawlerConfig {
        broker: listener.local_addr().unwrap().to_string(),
        fetch: FetchConfig {
            connect: ConnectConfig { allow_private: AllowPrivate::All, ..ConnectConfig::default() },
            agent: "bot/1".to_owned(),
            ..FetchConfig::default()
        },
        data: data.path().to_owned(),
        credit: 7,
        ..CrawlerConfig::default()
    };
    set(&mut config);
    let (sender, reports) = mpsc::channel(unread_max);
    let stop = CancellationToken::new();
    let running = tokio::spawn(run(config, sender, stop.clone()));
    let broker = Broker { listener };
    let connection = broker.accept().await;
    (Run { broker, reports, stop, data, running }, connection)
}

impl Broker {
    async fn accept(&self) -> Connection {
        self.accept_with("credit=7").await
    }

    async fn accept_with(&self, credit: &str) -> Connection {
        let (stream, _) = self.listener.accept().await.unwrap();
        let (reader, writer) = stream.into_split();
        let lines = BufReader::new(reader).lines();
        let mut connection = Connection { lines, writer, hello: String::new() };
        let hello = connection.line().await;
        let echo = hello.split_once("echo=").unwrap().1.split(' ').next().unwrap();
        let resume = format!("{:032x}", 5);
        connection
            .send(&format!("+OK tidings 0.1.0 id=1 clock={CLOCK} echo={echo} resume={resume}"))
            .await;
        connection.hello = hello;
        assert_eq!(connection.line().await, format!("JOIN crawlers {credit}"));
        connection.send("+OK").await;
        connection
    }
}

impl Connection {
    /// The next line that is not about the clock, without its report of a page. Of a `NACK` the error
    /// remains, and `hash=` and `changed=`, which it must not have.
    async fn line(&mut self) -> String {
        let line = self.whole_line().await;
        let is_reported = |word: &&str| match word.split_once('=') {
            Some((key, _)) if ACK_REPORT_OPTIONS.contains(&key) => line.starts_with("ACK"),
            Some((key, _)) => REPORT_OPTIONS.contains(&key),
            None => false,
        };
        line.split(' ').filter(|word| !is_reported(word)).collect::<Vec<_>>().join(" ")
    }

    /// The next line that is not about the clock.
    async fn whole_line(&mut self) -> String {
        loop {
            let line = self.lines.next_line().await.unwrap().expect("the crawler is connected");
            if line != "PING" {
                return line;
            }
            self.send(&format!("PONG clock={CLOCK}")).await;
        }
    }

    async fn send(&mut self, line: &str) {
        self.writer.write_all(format!("{line}\r\n").as_bytes()).await.unwrap();
    }

    async fn task(&mut self, id: &str, payload: &str) {
        self.send(&format!("TASK crawlers:1.{id} {CLOCK} 60000 {payload}")).await;
    }

    /// Expects a reply to a task and accepts it.
    #[track_caller]
    fn expect(&mut self, line: String) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            assert_eq!(self.line().await, line, "at {caller}");
            if !line.starts_with("LINK") {
                self.send("+OK").await;
            }
        }
    }

    /// Expects these replies in any order and accepts them.
    async fn expect_all(&mut self, lines: &[&str]) {
        let mut heard = Vec::new();
        for _ in lines {
            heard.push(self.line().await);
            self.send("+OK").await;
        }
        heard.sort_unstable();
        let mut lines = lines.to_vec();
        lines.sort_unstable();
        assert_eq!(heard, lines);
    }

    /// Teaches the crawler that a host has no robots.txt.
    async fn introduce(&mut self, url: &CanonicalUrl<'_>) {
        self.task("999.1", url.as_str()).await;
        self.expect(format!("NACK crawlers:1.999.1 again={url}")).await;
    }
}

impl Run {
    fn rows(&self, sql: &str) -> Vec<String> {
        rows(self.data.path(), sql)
    }

    async fn stop(self) -> TempDir {
        self.stop.cancel();
        self.running.await.unwrap().unwrap();
        self.data
    }
}

fn rows(data: &Path, sql: &str) -> Vec<String> {
    let connection = rusqlite::Connection::open(data.join("pages.db")).unwrap();
    let mut statement = connection.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

/// Answers by path, and reports the requested paths. `/held` is answered when `held` is cancelled.
struct Site {
    origin: Origin,
    requests: mpsc::UnboundedReceiver<String>,
    held: CancellationToken,
}

impl Site {
    async fn start(answer: fn(&str) -> String) -> Self {
        let (sender, asked) = mpsc::unbounded_channel();
        let held = CancellationToken::new();
        let release = held.clone();
        let origin = Origin::start(move |stream| {
            serve_site(stream, answer, sender.clone(), release.clone())
        });
        Self { origin: origin.await, requests: asked, held }
    }

    fn url(&self, path: &str) -> CanonicalUrl<'static> {
        self.origin.url(path)
    }

    async fn next_request(&mut self) -> String {
        self.requests.recv().await.unwrap()
    }

    fn has_no_more_requests(&mut self) -> bool {
        self.requests.try_recv().is_err()
    }
}

async fn serve_site(
    mut stream: TcpStream,
    answer: fn(&str) -> String,
    asked: mpsc::UnboundedSender<String>,
    held: CancellationToken,
) {
    loop {
        let request = read_head(&mut stream).await;
        let Some(path) = request.split(' ').nth(1) else { return };
        let _ = asked.send(path.to_owned());
        if path.starts_with("/held") {
            let mut byte = [0];
            tokio::select! {
                () = held.cancelled() => {}
                _ = stream.read(&mut byte) => {
                    let _ = asked.send(format!("{path} was given up"));
                    return;
                }
            }
        }
        if stream.write_all(answer(path).as_bytes()).await.is_err() {
            return;
        }
    }
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn plain_site(path: &str) -> String {
    match path {
        "/robots.txt" => answer("404 None", "", ""),
        "/moved" => answer("302 Moved", "Location: page#part\r\n", ""),
        "/nowhere" => answer("301 Moved", "Location: ftp://x/\r\n", ""),
        "/busy" => answer("503 Busy", "Retry-After: 7\r\n", ""),
        "/gone" => answer("410 Gone", "", "sorry"),
        _ => answer(
            "200 OK",
            "Content-Type: text/html\r\n",
            "<title>A page</title><a href=one><a href=two><a rel=nofollow href=three>",
        ),
    }
}

// PROTOCOL: T2, T12
#[tokio::test]
async fn a_page_of_a_job_is_fetched_after_robots_and_its_links_are_sent() {
    let mut site = Site::start(plain_site).await;
    let (mut run, mut broker) = start().await;
    let page = site.url("/page");
    broker.task("1.1", &format!("{page} job=docs pass=2 depth=3")).await;
    broker.expect(format!("NACK crawlers:1.1.1 again={page}")).await;
    assert_eq!(site.next_request().await, "/robots.txt");
    broker.task("1.2", &format!("{page} job=docs pass=2 depth=3 again={page}")).await;
    broker.expect("TOUCH crawlers:1.1.2 over=yes".to_owned()).await;
    broker.expect(format!("LINK crawlers:1.1.2 {}", site.url("/one"))).await;
    broker.expect(format!("LINK crawlers:1.1.2 {}", site.url("/two"))).await;
    broker.expect("ACK crawlers:1.1.2".to_owned()).await;
    assert_eq!(site.next_request().await, "/page");
    let report = run.reports.recv().await.unwrap();
    assert_eq!(
        (report.url.as_str(), report.status, report.outcome),
        (page.as_str(), Some(200), PageOutcome::Done)
    );
    assert_eq!((report.title.as_deref(), report.links), (Some("A page"), 3));
    let row = "task || ' ' || job || ' ' || pass || ' ' || depth || ' ' || attempt || ' ' || links";
    assert_eq!(run.rows(&format!("SELECT {row} FROM pages")), ["crawlers:1.1 docs 2 3 2 3"]);
    run.stop().await;
}

#[tokio::test]
async fn a_url_without_a_job_sends_no_links_and_robots_is_fetched_once_for_a_host() {
    let (mut site, run, mut broker) = start_introduced(plain_site).await;
    broker.task("1.1", site.url("/page").as_str()).await;
    broker.expect("TOUCH crawlers:1.1.1 over=yes".to_owned()).await;
    broker.expect("ACK crawlers:1.1.1".to_owned()).await;
    assert_eq!(site.next_request().await, "/page");
    run.stop().await;
}

impl Connection {
    /// An invalid URL is answered without a request: its reply shows that the crawler has read
    /// everything before it.
    async fn introduce_nothing(&mut self) {
        self.task("998.1", "nonsense").await;
        self.expect("ACK crawlers:1.998.1 outcome=failed".to_owned()).await;
    }
}

// PROTOCOL: T3
#[tokio::test]
async fn an_old_task_begins_only_after_its_lease_is_renewed() {
    let (mut site, run, mut broker) = start_introduced(plain_site).await;
    let old = CLOCK - 7_000;
    let page = site.url("/page");
    broker.send(&format!("TASK crawlers:1.1.1 {old} 60000 {page}")).await;
    assert_eq!(broker.line().await, "TOUCH crawlers:1.1.1");
    broker.send("-ERR stale crawlers:1.1.1 expired").await;
    broker.introduce_nothing().await;
    assert!(site.has_no_more_requests());
    broker.send(&format!("TASK crawlers:1.2.1 {old} 60000 {page}")).await;
    broker.expect("TOUCH crawlers:1.2.1".to_owned()).await;
    broker.expect("TOUCH crawlers:1.2.1 over=yes".to_owned()).await;
    broker.expect("ACK crawlers:1.2.1".to_owned()).await;
    // A lease shorter than usual has been running before. Nothing of it is left, but the renewal is
    // for the whole lease.
    broker.send(&format!("TASK crawlers:1.3.1 {CLOCK} 0 {page}")).await;
    assert_eq!(broker.line().await, "TOUCH crawlers:1.3.1");
    broker.send("+OK crawlers:1.3.1 lease=60000").await;
    broker.expect("TOUCH crawlers:1.3.1 over=yes".to_owned()).await;
    broker.expect("ACK crawlers:1.3.1".to_owned()).await;
    run.stop().await;
}

#[tokio::test]
async fn a_late_renewal_is_repeated_and_costs_no_attempt() {
    let (mut site, run, mut broker) = start_introduced(plain_site).await;
    broker.send(&format!("TASK crawlers:1.1.1 {CLOCK} 1000 {}", site.url("/page"))).await;
    assert_eq!(broker.line().await, "TOUCH crawlers:1.1.1");
    // A broker that is silent for most of the lease, and renews it anyway.
    tokio::time::pause();
    tokio::time::advance(Duration::from_millis(600)).await;
    tokio::time::resume();
    broker.send("+OK").await;
    broker.expect("TOUCH crawlers:1.1.1".to_owned()).await;
    broker.expect("TOUCH crawlers:1.1.1 over=yes".to_owned()).await;
    broker.expect("ACK crawlers:1.1.1".to_owned()).await;
    assert_eq!(site.next_request().await, "/page");
    run.stop().await;
}

// PROTOCOL: T3
#[tokio::test]
async fn a_request_ends_before_its_lease_does() {
    let mut site = Site::start(plain_site).await;
    // Only the lease may end the request.
    let (run, mut broker) = start_as(tempfile::tempdir().unwrap(), 100, |config| {
        config.fetch.read_timeout = Duration::from_hours(1);
        config.fetch.request_timeout = Duration::from_hours(1);
    })
    .await;
    broker.introduce(&site.url("/")).await;
    assert_eq!(site.next_request().await, "/robots.txt");
    // A lease that is shorter than others has been running, so it is renewed first.
    broker.send(&format!("TASK crawlers:1.1.1 {CLOCK} 10000 {}", site.url("/held"))).await;
    assert_eq!(broker.line().await, "TOUCH crawlers:1.1.1");
    broker.send("+OK crawlers:1.1.1 lease=10000").await;
    assert_eq!(site.next_request().await, "/held");
    // The test only waits for time, so it is paused.
    tokio::time::pause();
    assert_eq!(site.next_request().await, "/held was given up");
    tokio::time::resume();
    broker.expect("TOUCH crawlers:1.1.1 over=yes".to_owned()).await;
    let nack = broker.line().await;
    let given = nack.strip_prefix("NACK crawlers:1.1.1 error=not_finished_within_");
    let given_ms: u64 = given.and_then(|given| given.split('_').next()?.parse().ok()).expect(&nack);
    assert!(given_ms <= 8_000, "at least a fifth of the lease must remain: {nack}");
    broker.send("+OK").await;
    run.stop().await;
}

#[tokio::test]
async fn a_lease_is_renewed_while_reports_are_not_read() {
    let site = Site::start(plain_site).await;
    let (mut run, mut broker) = start_with_reports(1).await;
    broker.introduce(&site.url("/")).await;
    broker.task("1.1", site.url("/page").as_str()).await;
    broker.expect("TOUCH crawlers:1.1.1 over=yes".to_owned()).await;
    broker.expect("ACK crawlers:1.1.1".to_owned()).await;
    broker.send(&format!("TASK crawlers:1.2.1 {CLOCK} 600 {}", site.url("/other"))).await;
    broker.expect("TOUCH crawlers:1.2.1".to_owned()).await;
    broker.expect("TOUCH crawlers:1.2.1 over=yes".to_owned()).await;
    for _ in 0..3 {
        broker.expect("TOUCH crawlers:1.2.1".to_owned()).await;
    }
    assert_eq!(run.reports.recv().await.unwrap().url, site.url("/page").as_str());
    broker.expect("ACK crawlers:1.2.1".to_owned()).await;
    run.stop().await;
}

#[tokio::test]
async fn a_task_whose_next_request_is_refused_is_returned_before_its_lease_expires() {
    let site = Site::start(plain_site).await;
    let (run, mut broker) = start().await;
    for (entry, host, refusal) in [
        (1, "127.0.0.1", "-ERR bad-argument again= is for groups whose key is host or domain"),
        (2, "localhost", "-ERR limit again= at most 8 times in a row; the task is still yours"),
    ] {
        let port = site.origin.address.port();
        let page: CanonicalUrl = format!("http://{host}:{port}/").parse().unwrap();
        broker.task(&format!("{entry}.1"), page.as_str()).await;
        assert_eq!(broker.line().await, format!("NACK crawlers:1.{entry}.1 again={page}"));
        broker.send(refusal).await;
        let nack = format!("NACK crawlers:1.{entry}.1 error=its_next_request_was_refused");
        broker.expect(nack).await;
    }
    run.stop().await;
}

// PROTOCOL: T9
#[tokio::test]
async fn a_lost_connection_aborts_no_request_and_the_reply_uses_the_next_one() {
    let (mut site, run, mut broker) = start_introduced(plain_site).await;
    broker.task("1.1", site.url("/held").as_str()).await;
    assert_eq!(site.next_request().await, "/held");
    drop(broker);
    let mut broker = run.broker.accept().await;
    assert!(broker.hello.contains(&format!("resume={:032x}", 5)), "{}", broker.hello);
    // The broker sends the held task again, which the crawler has already.
    broker.task("1.1", site.url("/held").as_str()).await;
    broker.introduce_nothing().await;
    site.held.cancel();
    assert_eq!(broker.line().await, "TOUCH crawlers:1.1.1 over=yes");
    // Lost again, before the answer.
    drop(broker);
    let mut broker = run.broker.accept().await;
    broker.expect("TOUCH crawlers:1.1.1 over=yes".to_owned()).await;
    broker.expect("ACK crawlers:1.1.1".to_owned()).await;
    assert!(site.has_no_more_requests());
    run.stop().await;
}

#[tokio::test]
async fn an_older_attempt_ends_before_the_next_begins() {
    let (mut site, run, mut broker) = start_introduced(plain_site).await;
    broker.task("1.1", site.url("/held").as_str()).await;
    assert_eq!(site.next_request().await, "/held");
    broker.task("1.2", site.url("/held").as_str()).await;
    let mut then = [site.next_request().await, site.next_request().await];
    then.sort();
    assert_eq!(then, ["/held", "/held was given up"]);
    site.held.cancel();
    broker.expect("TOUCH crawlers:1.1.2 over=yes".to_owned()).await;
    broker.expect("ACK crawlers:1.1.2".to_owned()).await;
    run.stop().await;
}

// PROTOCOL: T11
#[tokio::test]
async fn a_stop_returns_all_tasks_within_a_second() {
    let (mut site, run, mut broker) = start_introduced(plain_site).await;
    let held = site.url("/held");
    broker.task("1.1", held.as_str()).await;
    assert_eq!(site.next_request().await, "/held");
    let stopped = std::time::Instant::now();
    run.stop.cancel();
    broker.expect("JOIN crawlers credit=0".to_owned()).await;
    // Sent before the crawler stopped.
    broker.task("2.1", site.url("/late").as_str()).await;
    broker.expect("NACK crawlers:1.2.1 count=no".to_owned()).await;
    broker.expect(format!("NACK crawlers:1.1.1 again={held}")).await;
    assert_eq!(site.next_request().await, "/held was given up");
    run.running.await.unwrap().unwrap();
    // A second on an idle machine; a request that is not given up ends after forty.
    assert!(stopped.elapsed() < Duration::from_secs(20));
    assert!(site.has_no_more_requests());
}

// PROTOCOL: T11
#[tokio::test]
async fn a_task_right_after_the_last_answer_is_returned() {
    let site = Site::start(plain_site).await;
    let (run, mut broker) = start().await;
    broker.introduce(&site.url("/")).await;
    run.stop.cancel();
    broker.expect("JOIN crawlers credit=0".to_owned()).await;
    assert_eq!(broker.lines.next_line().await.unwrap().as_deref(), Some("PING"));
    broker.task("2.1", site.url("/late").as_str()).await;
    broker.send(&format!("PONG clock={CLOCK}")).await;
    broker.expect("NACK crawlers:1.2.1 count=no".to_owned()).await;
    run.running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_database_that_another_process_holds() {
    let mut site = Site::start(plain_site).await;
    let (run, mut broker) = start().await;
    broker.introduce(&site.url("/")).await;
    let holder = rusqlite::Connection::open(run.data.path().join("pages.db")).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    broker.task("1.1", site.url("/page").as_str()).await;
    broker.expect("TOUCH crawlers:1.1.1 over=yes".to_owned()).await;
    assert_eq!([site.next_request().await, site.next_request().await], ["/robots.txt", "/page"]);
    run.stop.cancel();
    broker.expect("JOIN crawlers credit=0".to_owned()).await;
    let reason = "error=the_crawler_stopped_before_the_page_was_stored";
    broker.expect(format!("NACK crawlers:1.1.1 again={} {reason}", site.url("/page"))).await;
    // The other process holds the database all the time.
    run.running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_stop_without_a_broker_does_not_wait_for_one() {
    let (mut site, run, mut broker) = start_introduced(plain_site).await;
    broker.task("1.1", site.url("/held").as_str()).await;
    assert_eq!(site.next_request().await, "/held");
    drop(broker);
    drop(run.broker);
    run.stop.cancel();
    run.running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_crawler_that_was_replaced_or_refused_ends_with_the_reason() {
    let (run, mut broker) = start().await;
    broker.send("-ERR replaced another connection has resumed this member").await;
    drop(broker);
    let error = run.running.await.unwrap().unwrap_err();
    assert!(matches!(error, CrawlError::Replaced { .. }), "{error}");

    let config = CrawlerConfig {
        name: "two words".to_owned(),
        data: run.data.path().to_owned(),
        ..CrawlerConfig::default()
    };
    let (sender, _reports) = mpsc::channel(1);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = CrawlerConfig { broker: listener.local_addr().unwrap().to_string(), ..config };
    let error = super::run(config, sender.clone(), CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, CrawlError::Refused { .. }), "{error}");

    let config = CrawlerConfig {
        fetch: FetchConfig { agent: "a\nb".to_owned(), ..FetchConfig::default() },
        data: run.data.path().to_owned(),
        ..CrawlerConfig::default()
    };
    let error = super::run(config, sender, CancellationToken::new()).await.unwrap_err();
    assert!(error.to_string().contains("header User-Agent"), "{error}");
}
