//! Hosts are blocked while they are crawled, and brokers and crawlers are killed meanwhile. From the
//! answer to a block on, the origin has no request of the host, and with `*.` none of a name below
//! it, robots.txt included. The other hosts are crawled completely.
//!
//! A printed seed decides the blocks and kills; what they interrupt depends on the machine.
//! `TIDINGS_BLOCK_SEED` sets the seed, and `TIDINGS_BLOCK_KILLS` the number of kills.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;
use tempfile::TempDir;

use crate::support::line_connection::{LineConnection, value};
use crate::support::named_hosts::NamedHosts;
use crate::support::origin::{Hit, Origin, Site};
use crate::support::process::{Process, Server};
use crate::support::seed::{number_from_env, seed_from_env};
use crate::support::wait::wait_until;

const DELAY: Duration = Duration::from_millis(30);
const DOMAINS: usize = 8;
/// What stands before the domain in the names of hosts.
const BELOW: [&str; 3] = ["", "www.", "deep.www."];
const SITE: Site = Site {
    hosts: 24,
    pages: 15,
    robots: Some("User-agent: *\nDisallow: /private/\n"),
    response_delay: Duration::from_millis(20),
    links_across_hosts: false,
};

#[test]
#[ignore = "needs foreign programs"]
fn a_blocked_host_gets_no_request_over_kills() {
    let seed = seed_from_env("TIDINGS_BLOCK_SEED");
    let kills = number_from_env("TIDINGS_BLOCK_KILLS").unwrap_or(5);
    eprintln!("TIDINGS_BLOCK_SEED={seed} TIDINGS_BLOCK_KILLS={kills}");
    let mut crawl = BlockedCrawl::start(Rng::with_seed(seed));
    for _ in 0..kills {
        crawl.wait_for_requests(1..60);
        crawl.block_with_kill();
    }
    crawl.finish();
}

/// A rule that was answered.
#[derive(Debug)]
struct Block {
    key: String,
    /// Times of the origin: after the answer, and before the rule was removed.
    begin: Duration,
    end: Option<Duration>,
}

impl Block {
    fn matches(&self, host: &str) -> bool {
        match self.key.strip_prefix("*.") {
            Some(name) => host == name || host.ends_with(&format!(".{name}")),
            None => host == self.key,
        }
    }

    fn hosts<'a>(&self, hosts: &'a NamedHosts) -> impl Iterator<Item = &'a String> {
        hosts.names.iter().filter(|name| self.matches(name))
    }
}

/// A broker, two crawlers, and the hosts that they crawl in one job again and again.
struct BlockedCrawl {
    rng: Rng,
    origin: Origin,
    hosts: NamedHosts,
    /// `None` only during a start.
    server: Option<Server>,
    crawlers: Vec<(Process, TempDir)>,
    /// Rules without an end are in force.
    blocks: Vec<Block>,
    /// The number of passes so far. The last one is open.
    passes: u64,
    /// When it began.
    pass_begin: Duration,
    /// Hosts that were blocked for some time of this pass.
    blocked_in_pass: BTreeSet<String>,
    kills_in_pass: usize,
    /// URLs that ended as blocked, in all passes.
    blocked_urls: u64,
}

impl BlockedCrawl {
    #[track_caller]
    fn start(rng: Rng) -> Self {
        let server = Server::start_broker();
        let settings = "delay=30ms lease=2s max-attempts=100 max-losses=100 backoff=100ms";
        let create = format!("GROUP create crawlers {settings}");
        LineConnection::connect_client(server.address).request_ok(&create);
        let names = (0..DOMAINS)
            .flat_map(|domain| BELOW.map(|below| format!("{below}site-{domain}.test")))
            .collect();
        let hosts = NamedHosts::new(names);
        let crawlers = [(); 2].map(|()| start_crawler(&hosts, &server));
        Self {
            rng,
            origin: Origin::serve(SITE),
            hosts,
            server: Some(server),
            crawlers: crawlers.into(),
            blocks: Vec::new(),
            passes: 0,
            pass_begin: Duration::ZERO,
            blocked_in_pass: BTreeSet::new(),
            kills_in_pass: 0,
            blocked_urls: 0,
        }
    }

    fn in_force(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(|block| block.end.is_none())
    }

    #[track_caller]
    fn connect(&self) -> LineConnection {
        LineConnection::connect_client(self.server.as_ref().expect("the broker runs").address)
    }

    /// Waits for some requests. Opens the next pass when one is done.
    #[track_caller]
    fn wait_for_requests(&mut self, count: Range<usize>) {
        let goal = self.origin.request_count() + self.rng.usize(count);
        let mut client = self.connect();
        wait_until("requests", || {
            if self.passes == 0 || client.request("JOB show site").contains(" state=done ") {
                self.end_pass(&mut client);
                self.open_pass(&mut client);
            }
            (self.origin.request_count() >= goal).then_some(())
        });
    }

    #[track_caller]
    fn open_pass(&mut self, client: &mut LineConnection) {
        // So that some hosts are free in each pass.
        if self.in_force().count() > DOMAINS / 2 {
            for block in self.blocks.iter_mut().filter(|block| block.end.is_none()) {
                block.end = Some(self.origin.now());
                client.request_ok(&format!("GROUP unrule crawlers key={}", block.key));
            }
        }
        self.passes += 1;
        self.pass_begin = self.origin.now();
        self.kills_in_pass = 0;
        self.blocked_in_pass =
            self.in_force().flat_map(|block| block.hosts(&self.hosts)).cloned().collect();
        let seeds = self.hosts.names.iter().map(|name| self.origin.url_at(name, "/p/0"));
        let seeds = seeds.map(|url| format!("PUB new-url {url} job=site"));
        let commands = ["JOB open site scope=host".to_owned()].into_iter().chain(seeds);
        for command in commands.chain(["JOB close site".to_owned()]) {
            let answer = client.request(&command);
            assert!(answer.starts_with("+OK"), "{command}: {answer}");
        }
    }

    /// Blocks a host, or a domain and what is below, and kills a process before or after the answer.
    #[track_caller]
    fn block_with_kill(&mut self) {
        let key = self.free_key();
        let rule = format!("GROUP rule crawlers key={key} block=yes note=kills");
        let mut client = self.connect();
        client.send(format!("{rule}\n"));
        let is_after = self.rng.u8(..4) == 0;
        if !is_after {
            if self.rng.bool() {
                self.wait_for_requests(1..5);
            }
            self.kill();
        }
        let answer = client.try_read_line().unwrap_or_else(|| {
            // The broker was killed before its answer. Whether the rule is in force is unknown.
            self.connect().request(&rule)
        });
        let begin = self.origin.now();
        assert!(answer.starts_with(&format!("+OK crawlers key={key} block=")), "{answer}");
        let block = Block { key, begin, end: None };
        self.blocked_in_pass.extend(block.hosts(&self.hosts).cloned());
        self.blocks.push(block);
        if is_after {
            self.wait_for_requests(1..20);
            self.kill();
        }
    }

    /// A key without a rule.
    fn free_key(&mut self) -> String {
        loop {
            let domain = format!("site-{}.test", self.rng.usize(..DOMAINS));
            let below = ["*.", BELOW[self.rng.usize(..BELOW.len())]][self.rng.usize(..2)];
            let key = format!("{below}{domain}");
            if !self.in_force().any(|block| block.key == key) {
                return key;
            }
        }
    }

    /// Kills the broker, or a crawler; what was killed is started again. The new crawler has an
    /// empty folder, so that it requests each robots.txt.
    #[track_caller]
    fn kill(&mut self) {
        self.kills_in_pass += 1;
        if self.rng.bool() {
            let server = self.server.take().expect("the broker runs");
            self.server = Some(server.restart_at_same_address("KILL", &["broker"]));
        } else {
            let at = self.rng.usize(..self.crawlers.len());
            self.crawlers.remove(at).0.signal_and_finish("KILL");
            let server = self.server.as_ref().expect("the broker runs");
            self.crawlers.push(start_crawler(&self.hosts, server));
        }
    }

    /// Checks that all hosts that were never blocked in this pass were crawled completely.
    #[track_caller]
    fn end_pass(&mut self, client: &mut LineConnection) {
        if self.passes == 0 {
            return;
        }
        let shown = client.request("JOB show site");
        self.blocked_urls += value(&shown, "blocked").parse::<u64>().unwrap();
        let record = self.origin.request_log();
        let mut requests: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for hit in record.page_requests().filter(|hit| hit.start > self.pass_begin) {
            *requests.entry((self.hosts.name(hit.host), &hit.path)).or_default() += 1;
        }
        requests.retain(|(host, _), _| !self.blocked_in_pass.contains(*host));
        let (free, pages) =
            (self.hosts.names.len() - self.blocked_in_pass.len(), SITE.paths().len());
        assert_eq!(requests.len(), free * pages, "pass {}: {shown}\n{requests:#?}", self.passes);
        // A kill loses at most the task of each host.
        let repeated: usize = requests.values().map(|count| count - 1).sum();
        assert!(repeated <= free * self.kills_in_pass, "{repeated} requests were repeated");
    }

    #[track_caller]
    fn finish(mut self) {
        let mut client = self.connect();
        let done = client.request("JOB wait site");
        assert!(done.contains(" result=done "), "{done}");
        self.end_pass(&mut client);
        let record = self.origin.request_log();
        for block in &self.blocks {
            let end = block.end.unwrap_or(Duration::MAX);
            // A request that was under way at the answer is one as well.
            let is_in = |hit: &&Hit| hit.start < end && hit.end.unwrap_or(hit.start) >= block.begin;
            let of_host = record.0.iter().filter(|hit| block.matches(self.hosts.name(hit.host)));
            let blocked: Vec<_> = of_host.filter(is_in).collect();
            assert!(blocked.is_empty(), "{block:?}: {blocked:#?}");
        }
        record.expect_polite(DELAY);
        let (requests, passes) = (record.0.len(), self.passes);
        eprintln!(
            "{requests} requests in {passes} passes, {} blocks, {} URLs blocked",
            self.blocks.len(),
            self.blocked_urls
        );
        assert!(self.blocked_urls > 0, "no URL waited for a blocked host");
        for (crawler, _) in self.crawlers {
            crawler.signal_and_finish("KILL");
        }
    }
}

#[track_caller]
fn start_crawler(hosts: &NamedHosts, server: &Server) -> (Process, TempDir) {
    let folder = TempDir::new().unwrap();
    (hosts.start_crawler(server.address, folder.path()), folder)
}
