//! What open dashboards cost: streams of `/live` with the subjects of three pages, while URLs wait
//! and others are crawled.
//!
//! `.ci/long dashboards` sets `TIDINGS_DASHBOARDS`, their number. A million URLs of 100,000 hosts
//! wait then, and the figures with and without the dashboards are compared.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidings_bench::origin::{Origin, Site};

use crate::queue::groups::wait_for_waiting_entries;
use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::process::{Process, Server, start_at, tidings_command};
use crate::support::seed::number_from_env;
use crate::support::wait::{time_left, wait_until};

/// The subjects of the pages about everything, a group and a job.
const PAGES: [&str; 3] =
    ["stats,ready", "group:crawlers,members:crawlers,keys:crawlers", "job:crawl"];

/// Requests of the crawler at once. With more, it would need the whole machine.
const CONCURRENCY: &str = "40";

const SITE: Site = Site {
    hosts: 4_000,
    pages: 10,
    page_bytes: 1000,
    links: 0,
    response_delay: Duration::from_millis(100),
    crawl_delay: None,
    is_scripted: false,
};

/// How much memory more the broker may need.
const MEMORY_MAX: u64 = 32 << 20;

/// How often dashboards are opened and closed before the crawl: all of these together may need no
/// more memory.
const CYCLES: u32 = 5;

/// The 99th percentile of releases with dashboards, that without = 1.
const RATIO_MAX: f64 = 1.1;

/// Measurements of all rounds.
#[derive(Default)]
struct Figures {
    /// How long each release took.
    releases: Vec<Duration>,
    /// Resident memory of the broker after each round, in bytes.
    memory: Vec<u64>,
}

#[test]
#[ignore = "needs foreign programs"]
fn dashboards_slow_down_no_release_and_need_little_memory() {
    let number = number_from_env("TIDINGS_DASHBOARDS");
    let (count, hosts, paused_hosts, rounds, releases) = match number {
        Some(count) => (count, 64_000, 36_000, 30, 6_000),
        None => (20, SITE.hosts, 1_000, 1, 1_000),
    };
    let site = Site { hosts, ..SITE };
    let origin = Origin::serve(site, (Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
    let server = Server::start_broker();
    publish(&server, &origin, paused_hosts);
    let before = server.process.resident_memory_bytes();
    for _ in 0..CYCLES {
        drop(open_dashboards(&server, count));
        wait_until_closed(&server);
    }
    let more = server.process.resident_memory_bytes().saturating_sub(before);
    eprintln!("{CYCLES} times opened and closed: {} KiB more memory", more >> 10);
    assert!(more <= MEMORY_MAX, "{more} bytes");

    let folder = TempDir::new().unwrap();
    let broker = server.address_text();
    let crawl = ["crawl", "--broker", &broker, "--allow-private", "--data", ".", "--concurrency"];
    let crawl = [&crawl[..], &[CONCURRENCY]].concat();
    let _crawler = Process::start(&mut tidings_command(folder.path(), crawl));
    let mut worker = LineConnection::connect_client(server.address);
    worker.send("JOIN crawlers credit=1\n");
    origin.wait_for(time_left(), |log| (log.requests.len() > 100).then_some(())).unwrap();

    let (mut without, mut with) = (Figures::default(), Figures::default());
    // Short rounds in turns: how fast the disk is changes within a minute.
    for _ in 0..rounds {
        without.measure(&server, &mut worker, releases);
        let dashboards = open_dashboards(&server, count);
        let requested = origin.request_count();
        with.measure(&server, &mut worker, releases);
        assert!(origin.request_count() > requested, "the crawl is under way");
        drop(dashboards);
        wait_until_closed(&server);
    }
    let ratio = with.percentile(99).div_duration_f64(without.percentile(99));
    let pairs = without.memory.iter().zip(&with.memory);
    let more = pairs.map(|(without, with)| with.saturating_sub(*without)).max().unwrap();
    for (figures, what) in [(&mut without, "without"), (&mut with, "with")] {
        let [p50, p99, longest] = [50, 99, 100].map(|percent| figures.percentile(percent));
        eprintln!("{what} dashboards: p50 {p50:?}, p99 {p99:?}, longest {longest:?}");
    }
    eprintln!("{count} dashboards: p99 {ratio:.2} times as long, {} KiB more memory", more >> 10);
    assert!(more <= MEMORY_MAX, "{more} bytes");
    if number.is_some() {
        assert!(ratio <= RATIO_MAX, "{ratio}");
    }
}

/// Publishes the pages of the origin, and those of other hosts for a job that is paused.
#[track_caller]
fn publish(server: &Server, origin: &Origin, paused_hosts: u32) {
    let mut client = LineConnection::connect_client(server.address);
    for command in ["JOB open crawl scope=any", "JOB open paused scope=any", "JOB pause paused"] {
        client.request_ok(command);
    }
    let (hosts, pages) = (origin.site().hosts, origin.site().pages);
    let mut urls = String::new();
    for page in 0..pages {
        for host in 0..hosts {
            writeln!(urls, "{} job=crawl", origin.url(host, page)).unwrap();
        }
        for host in 0..paused_hosts {
            writeln!(urls, "http://host-{host}.example/page/{page} job=paused").unwrap();
        }
    }
    let mut publisher = start_at(server, &["pub", "new-url", "--quiet"]);
    publisher.write(urls);
    publisher.close_stdin();
    publisher.finish().expect_code(0);
    wait_for_waiting_entries(server, u64::from(pages * (hosts + paused_hosts)));
}

/// Opens streams with curl, and waits until each has received all of its subjects.
#[track_caller]
fn open_dashboards(server: &Server, count: u64) -> (Process, TempDir) {
    let (http, folder) = (HttpClient::new(server), TempDir::new().unwrap());
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--no-buffer", "--parallel", "--parallel-immediate", "--parallel-max"]);
    curl.arg(count.to_string());
    let mut streams = Vec::new();
    for (number, page) in (0..count).zip(PAGES.iter().cycle()) {
        let output = folder.path().join(number.to_string());
        curl.arg(format!("http://{}/live?on={page}", http.authority()))
            .arg("--output")
            .arg(&output);
        streams.push((output, page));
    }
    let curl = Process::start(&mut curl);
    wait_until("all subjects", || {
        let is_complete = |(output, page): &(_, &&str)| {
            let received = fs::read_to_string(output).unwrap_or_default();
            page.split(',').all(|subject| received.contains(&format!("event: {subject}\n")))
        };
        streams.iter().all(is_complete).then_some(())
    });
    (curl, folder)
}

impl Figures {
    /// Measures the times from an acknowledgement of a worker to its next task, which is ready.
    #[track_caller]
    fn measure(&mut self, server: &Server, worker: &mut LineConnection, releases: usize) {
        let mut sent = None;
        for _ in 0..=releases {
            let task = worker.next_task().expect("entries are ready");
            self.releases.extend(sent.map(|sent: Instant| sent.elapsed()));
            sent = Some(Instant::now());
            worker.send(format!("ACK {task} outcome=done\n"));
        }
        self.memory.push(server.process.resident_memory_bytes());
    }

    fn percentile(&mut self, percent: usize) -> Duration {
        self.releases.sort_unstable();
        self.releases[(self.releases.len() - 1) * percent / 100]
    }
}

/// Waits until the broker has noticed the end of all HTTP connections except that of the request.
#[track_caller]
fn wait_until_closed(server: &Server) {
    let http = HttpClient::new(server);
    wait_until("the end of all streams", || {
        http.get("/metrics").body.contains("tidings_connections{way=\"http\"} 1\n").then_some(())
    });
}
