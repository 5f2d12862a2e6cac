//! examples/worker.py, the worker that somebody would write from PROTOCOL.md: what it fetches, how
//! politely, and what becomes of its tasks when it is stopped, killed or cut off. The origin
//! judges, as it does for the crawler.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{io, thread};

use crate::support::origin::{Origin, Site};
use crate::support::process::{Running, Server};
use crate::support::talk::Talk;

const DELAY: Duration = Duration::from_millis(100);

/// Four hosts that link to each other; half of the pages are below /private/, which nobody is asked
/// about here.
const SITE: Site = Site {
    hosts: 4,
    pages: 5,
    robots: None,
    answer_after: Duration::from_millis(20),
    across: true,
};
const PAGES: usize = 4 * 5 * 2;

/// A job on all of a site, at a broker whose group has this lease.
struct Crawl {
    origin: Origin,
    server: Server,
    /// Hears of the end of jobs.
    listener: Talk,
}

impl Crawl {
    #[track_caller]
    fn begin(lease: &str) -> Self {
        let origin = Origin::serve(SITE);
        let server = Server::broker();
        let mut listener = Talk::client(server.address);
        assert_eq!(listener.ask("SUB job-done"), "+OK");
        let mut client = Talk::client(server.address);
        for command in [
            format!("GROUP create crawlers delay={}ms lease={lease}", DELAY.as_millis()),
            "JOB open site scope=any".to_owned(),
            format!("PUB new-url {} job=site", origin.url(0, "/p/0")),
            format!("PUB new-url {} job=site", origin.url(1, "/redirect/2")),
            format!("PUB new-url {} job=site", origin.url(2, "/no/such/page")),
            "JOB close site".to_owned(),
        ] {
            let answer = client.ask(&command);
            assert!(answer.starts_with("+OK"), "{command}: {answer}");
        }
        Self { origin, server, listener }
    }

    #[track_caller]
    fn worker(&self) -> Running {
        worker(self.server.address)
    }

    /// Waits for the end of the job and judges it.
    #[track_caller]
    fn end(mut self) {
        let done = self.listener.line();
        let counts = format!(" result=done completed={PAGES} redirects=1 failed=1 ");
        assert!(done.starts_with("MSG job-done 1 site ") && done.contains(&counts), "{done}");
        let record = self.origin.record();
        record.expect_polite(DELAY);
        // The redirect and what is not there were asked for as well.
        assert_eq!(record.distinct().len(), PAGES + 2);
        // The next event of the topic is this one: the end was announced once.
        assert_eq!(Talk::client(self.server.address).ask("PUB job-done no more"), "+OK 2 1");
        assert_eq!(self.listener.line(), "MSG job-done 2 no more");
    }
}

/// The example, at work for a broker.
#[track_caller]
pub(crate) fn worker(broker: SocketAddr) -> Running {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/worker.py");
    // A shell starts programs behind `&` with SIGINT ignored, and these tests may run there.
    let mut python = Command::new("env");
    python
        .args(["--default-signal=INT", "python3"])
        .arg(file)
        .args([broker.ip().to_string(), broker.port().to_string()]);
    for proxy in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        python.env_remove(proxy);
    }
    Running::start(&mut python)
}

#[test]
fn it_is_as_short_as_it_says() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/worker.py");
    let lines = std::fs::read_to_string(file).unwrap().lines().count();
    assert!(lines < 100, "{lines} lines");
}

#[test]
fn two_of_them_fetch_a_site_once_and_politely() {
    let crawl = Crawl::begin("1m");
    let _workers = [crawl.worker(), crawl.worker()];
    crawl.origin.wait_for_hits(PAGES + 2);
    crawl.origin.record().expect_no_duplicates();
    crawl.end();
}

#[test]
fn what_one_held_that_was_killed_goes_to_another() {
    // As short as a lease can sensibly be here: the host of the lost task waits for its end.
    let crawl = Crawl::begin("3s");
    let first = crawl.worker();
    crawl.origin.wait_for_hits(PAGES / 2);
    first.finish_by("KILL");
    let _second = crawl.worker();
    crawl.end();
}

#[test]
fn one_that_is_stopped_hands_back_what_it_holds() {
    // A lease that the test would not survive: what the other one gets was handed back, not waited
    // for.
    let crawl = Crawl::begin("10m");
    for signal in ["TERM", "INT"] {
        let stopped = crawl.worker();
        crawl.origin.wait_for_hits(crawl.origin.record().0.len() + 5);
        stopped.finish_by(signal).expect_code(0);
    }
    let _last = crawl.worker();
    crawl.end();
}

// PROTOCOL: T9
#[test]
fn one_that_is_cut_off_comes_back_as_the_same_member() {
    let crawl = Crawl::begin("10m");
    let relay = Relay::to(crawl.server.address);
    let _worker = worker(relay.address);
    for hits in [5, 10, 15] {
        crawl.origin.wait_for_hits(hits);
        relay.cut();
    }
    crawl.origin.wait_for_hits(PAGES + 2);
    // Nothing was lost with a connection, also no answer that was on its way.
    crawl.origin.record().expect_no_duplicates();
    crawl.end();
}

#[test]
fn no_server_keeps_it_for_longer_than_its_lease() {
    let origin = Origin::serve(Site::default());
    let server = Server::broker();
    let mut listener = Talk::client(server.address);
    assert_eq!(listener.ask("SUB job-done"), "+OK");
    let mut client = Talk::client(server.address);
    client.ask("GROUP create crawlers lease=2s max-attempts=1");
    client.ask("JOB open bad depth=0");
    // A byte now and then keeps every read of a socket short; only a deadline for all of them ends
    // it.
    let ways = ["drip", "silent", "endless-header", "garbage", "torn", "reset", "500", "404"];
    for way in ways {
        client.ask(&format!("PUB new-url {} job=bad", origin.url(0, &format!("/bad/{way}"))));
    }
    client.ask("JOB close bad");
    let _worker = worker(server.address);
    let done = listener.line();
    assert!(done.contains(&format!(" completed=0 redirects=0 failed={} ", ways.len())), "{done}");
    let shown = client.ask("GROUP show crawlers");
    assert!(shown.contains(" lost=0 "), "{shown}");
    origin.record().expect_polite(Duration::ZERO);
}

/// A way to the broker that can be cut.
struct Relay {
    address: SocketAddr,
    /// Both sides of every connection so far.
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    #[track_caller]
    fn to(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let streams = Arc::<Mutex<Vec<TcpStream>>>::default();
        let opened = Arc::clone(&streams);
        // Not waited for: it ends with the test.
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

    /// Ends all connections, wherever what was said on them is.
    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
