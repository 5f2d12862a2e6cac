//! examples/worker.py, a worker written from the specification alone: what it fetches, how politely, and
//! what happens to its tasks when it is stopped, killed or disconnected. The origin checks its
//! requests like those of the crawler.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{io, thread};

use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site};
use crate::support::process::{Process, Server};

const DELAY: Duration = Duration::from_millis(100);

/// Four hosts that link to each other. Half of the pages are below /private/, which no robots.txt
/// forbids here.
const SITE: Site = Site {
    hosts: 4,
    pages: 5,
    robots: None,
    response_delay: Duration::from_millis(20),
    links_across_hosts: true,
};
const PAGES: usize = 4 * 5 * 2;

/// A job that crawls a whole site, at a broker with this lease.
struct PythonCrawl {
    origin: Origin,
    server: Server,
    /// Receives `job-done`.
    job_done_subscriber: LineConnection,
}

impl PythonCrawl {
    #[track_caller]
    fn start(lease: &str) -> Self {
        let origin = Origin::serve(SITE);
        let server = Server::start_broker();
        let mut job_done_subscriber = LineConnection::connect_client(server.address);
        assert_eq!(job_done_subscriber.request("SUB job-done"), "+OK");
        let mut client = LineConnection::connect_client(server.address);
        for command in [
            format!("GROUP create crawlers delay={}ms lease={lease}", DELAY.as_millis()),
            "JOB open site scope=any".to_owned(),
            format!("PUB new-url {} job=site", origin.url(0, "/p/0")),
            format!("PUB new-url {} job=site", origin.url(1, "/redirect/2")),
            format!("PUB new-url {} job=site", origin.url(2, "/no/such/page")),
            "JOB close site".to_owned(),
        ] {
            client.request_ok(&command);
        }
        Self { origin, server, job_done_subscriber }
    }

    #[track_caller]
    fn start_worker(&self) -> Process {
        start_python_worker(self.server.address)
    }

    /// Waits until the job is done and checks it.
    #[track_caller]
    fn expect_done(mut self) {
        let done = self.job_done_subscriber.read_line();
        let counts = format!(" result=done completed={PAGES} redirects=1 failed=1 ");
        assert!(done.starts_with("MSG job-done 1 site ") && done.contains(&counts), "{done}");
        let requests = self.origin.request_log();
        requests.expect_polite(DELAY);
        // The redirect and the missing page were requested as well.
        assert_eq!(requests.distinct_pages().len(), PAGES + 2);
        // `job-done` was published once: the next event of the topic is this one.
        assert_eq!(
            LineConnection::connect_client(self.server.address).request("PUB job-done no more"),
            "+OK 2 1"
        );
        assert_eq!(self.job_done_subscriber.read_line(), "MSG job-done 2 no more");
    }
}

/// Starts the example as a worker of a broker.
#[track_caller]
pub(crate) fn start_python_worker(broker: SocketAddr) -> Process {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/worker.py");
    // A shell starts background programs with SIGINT ignored, and it may have started these tests.
    let mut python = Command::new("env");
    python
        .args(["--default-signal=INT", "python3"])
        .arg(file)
        .args([broker.ip().to_string(), broker.port().to_string()]);
    for proxy in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        python.env_remove(proxy);
    }
    Process::start(&mut python)
}

#[test]
fn the_example_is_shorter_than_100_lines() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/worker.py");
    let lines = std::fs::read_to_string(file).unwrap().lines().count();
    assert!(lines < 100, "{lines} lines");
}

#[test]
#[ignore = "needs foreign programs"]
fn two_workers_fetch_a_site_once_and_politely() {
    let crawl = PythonCrawl::start("1m");
    let _workers = [crawl.start_worker(), crawl.start_worker()];
    crawl.origin.wait_for_hits(PAGES + 2);
    crawl.origin.request_log().expect_no_duplicates();
    crawl.expect_done();
}

#[test]
#[ignore = "needs foreign programs"]
fn tasks_of_a_killed_worker_go_to_another() {
    // Short, because the host of the lost task waits until the lease expires.
    let crawl = PythonCrawl::start("3s");
    let first = crawl.start_worker();
    crawl.origin.wait_for_hits(PAGES / 2);
    first.signal_and_finish("KILL");
    let _second = crawl.start_worker();
    crawl.expect_done();
}

#[test]
#[ignore = "needs foreign programs"]
fn a_stopped_worker_returns_its_tasks() {
    // The lease is longer than the test, so the next worker can only get tasks that were returned.
    let crawl = PythonCrawl::start("10m");
    for signal in ["TERM", "INT"] {
        let stopped = crawl.start_worker();
        crawl.origin.wait_for_hits(crawl.origin.request_log().0.len() + 5);
        stopped.signal_and_finish(signal).expect_code(0);
    }
    let _last = crawl.start_worker();
    crawl.expect_done();
}

// PROTOCOL: T9
#[test]
#[ignore = "needs foreign programs"]
fn a_disconnected_worker_resumes_as_the_same_member() {
    let crawl = PythonCrawl::start("10m");
    let relay = TcpRelay::start(crawl.server.address);
    let _worker = start_python_worker(relay.address);
    for hits in [5, 10, 15] {
        crawl.origin.wait_for_hits(hits);
        relay.cut_all();
    }
    crawl.origin.wait_for_hits(PAGES + 2);
    // No task and no response was lost with a connection.
    crawl.origin.request_log().expect_no_duplicates();
    crawl.expect_done();
}

#[test]
#[ignore = "needs foreign programs"]
fn slow_servers_do_not_outlast_the_lease() {
    let origin = Origin::serve(Site::default());
    let server = Server::start_broker();
    let mut listener = LineConnection::connect_client(server.address);
    assert_eq!(listener.request("SUB job-done"), "+OK");
    let mut client = LineConnection::connect_client(server.address);
    client.request("GROUP create crawlers lease=2s max-attempts=1");
    client.request("JOB open bad depth=0");
    // Single bytes with pauses keep each read of a socket short; only a deadline for the whole
    // response ends it.
    let paths = ["drip", "silent", "endless-header", "garbage", "torn", "reset", "500", "404"];
    for path in paths {
        client.request(&format!("PUB new-url {} job=bad", origin.url(0, &format!("/bad/{path}"))));
    }
    client.request("JOB close bad");
    let _worker = start_python_worker(server.address);
    let done = listener.read_line();
    assert!(done.contains(&format!(" completed=0 redirects=0 failed={} ", paths.len())), "{done}");
    let shown = client.request("GROUP show crawlers");
    assert!(shown.contains(" lost=0 "), "{shown}");
    origin.request_log().expect_polite(Duration::ZERO);
}

/// A TCP relay to the broker that can cut its connections.
struct TcpRelay {
    address: SocketAddr,
    /// Both sides of every connection so far.
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl TcpRelay {
    #[track_caller]
    fn start(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let streams = Arc::<Mutex<Vec<TcpStream>>>::default();
        let opened = Arc::clone(&streams);
        // Not joined: the thread ends with the test.
        thread::spawn(move || {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), TcpStream::connect(broker).unwrap());
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || io::copy(&mut from, &mut to));
                }
                opened.lock().unwrap().extend([near, far]);
            }
        });
        Self { address, streams }
    }

    /// Cuts all connections, even with data in transit.
    fn cut_all(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
