//! Workers and a broker that are killed and paused at random, while jobs run with a short lease.
//! The origin checks that no host has two requests at once and none within its delay, from any
//! worker. Every page is fetched, and every job is announced once, with all of its pages.
//!
//! A printed seed decides the faults; what they interrupt depends on the machine.
//! `TIDINGS_FAULTS_SEED` sets the seed, and `TIDINGS_FAULTS` the number of faults.

use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use tempfile::TempDir;

use crate::support::line_connection::{LineConnection, value};
use crate::support::origin::{Origin, Site};
use crate::support::process::{Process, Server, start_crawler};
use crate::support::seed::{number_from_env, seed_from_env};
use crate::support::wait::wait_until;

const DELAY: Duration = Duration::from_millis(100);

/// Short, but far longer than a response takes. A request that has begun may take as long.
const LEASE: Duration = Duration::from_secs(2);

const WORKERS: usize = 3;

const SITE: Site = Site {
    hosts: 20,
    pages: 30,
    robots: Some("User-agent: *\nDisallow: /private/\n"),
    response_delay: Duration::from_millis(40),
    links_across_hosts: true,
};

/// Kills and pauses of one broker.
const FAULTS_PER_BROKER: u64 = 30;

#[test]
fn thirty_kills_and_pauses_break_no_promise() {
    let seed = seed_from_env("TIDINGS_FAULTS_SEED");
    let mut left = number_from_env("TIDINGS_FAULTS").unwrap_or(FAULTS_PER_BROKER);
    let began = Instant::now();
    for seed in seed.. {
        let faults = left.min(FAULTS_PER_BROKER);
        if faults == 0 {
            break;
        }
        eprintln!("TIDINGS_FAULTS_SEED={seed} TIDINGS_FAULTS={faults} after {:?}", began.elapsed());
        let mut crawl = FaultyCrawl::start(Rng::with_seed(seed));
        while crawl.counts.total() < faults {
            crawl.wait_for_requests();
            crawl.inject_fault();
        }
        crawl.finish();
        left -= faults;
    }
}

/// A broker, its workers, and the site that they crawl.
struct FaultyCrawl {
    rng: Rng,
    origin: Origin,
    /// `None` only during a start.
    server: Option<Server>,
    workers: Vec<Worker>,
    /// The number of jobs so far. The last one is open.
    jobs: u32,
    /// A client for commands, for the lifetime of this broker.
    client: Option<LineConnection>,
    /// The next faults, the last one first.
    next_faults: Vec<Fault>,
    counts: FaultCounts,
}

#[derive(Clone, Copy)]
enum Fault {
    KillWorker,
    KillBroker,
    PauseWorker,
    PauseBroker,
}

impl Fault {
    const ALL: [Self; 4] =
        [Self::KillWorker, Self::KillBroker, Self::PauseWorker, Self::PauseBroker];
}

struct Worker {
    process: Process,
    data: TempDir,
}

#[derive(Debug, Default)]
struct FaultCounts {
    killed_workers: u64,
    killed_brokers: u64,
    paused_workers: u64,
    paused_brokers: u64,
    /// Pauses of workers that were ended at once.
    aborted_pauses: u64,
}

impl FaultCounts {
    fn total(&self) -> u64 {
        self.killed_workers + self.killed_brokers + self.paused_workers + self.paused_brokers
    }
}

impl FaultyCrawl {
    #[track_caller]
    fn start(rng: Rng) -> Self {
        let server = Server::start_broker();
        let (delay, lease) = (DELAY.as_millis(), LEASE.as_millis());
        // A task that a kill interrupts must not fail, and must not wait long.
        let patient = "max-attempts=100 max-losses=100 backoff=100ms";
        let settings = format!("GROUP create crawlers delay={delay}ms lease={lease}ms {patient}");
        LineConnection::connect_client(server.address).request_ok(&settings);
        let workers = (0..WORKERS).map(|_| {
            let data = TempDir::new().unwrap();
            Worker { process: start_crawler(server.address, data.path()), data }
        });
        Self {
            rng,
            origin: Origin::serve(SITE),
            workers: workers.collect(),
            server: Some(server),
            jobs: 0,
            client: None,
            next_faults: Vec::new(),
            counts: FaultCounts::default(),
        }
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("the broker runs")
    }

    #[track_caller]
    fn request(&mut self, command: &str) -> Vec<String> {
        let address = self.server().address;
        self.client
            .get_or_insert_with(|| LineConnection::connect_client(address))
            .request_lines(command)
    }

    /// Waits for some requests. Opens a job when none is open.
    #[track_caller]
    fn wait_for_requests(&mut self) {
        let goal = self.origin.request_count() + self.rng.usize(1..60);
        wait_until("requests", || {
            if self.is_done() {
                self.open_job();
            }
            (self.origin.request_count() >= goal).then_some(())
        });
    }

    fn is_done(&mut self) -> bool {
        let show = format!("JOB show job-{}", self.jobs);
        self.jobs == 0 || self.request(&show)[0].contains(" state=done ")
    }

    #[track_caller]
    fn open_job(&mut self) {
        self.jobs += 1;
        let (job, seed) = (format!("job-{}", self.jobs), self.origin.url(0, "/p/0"));
        for command in [
            format!("JOB open {job} scope=any"),
            format!("PUB new-url {seed} job={job}"),
            format!("JOB close {job}"),
        ] {
            let answer = self.request(&command);
            assert!(answer[0].starts_with("+OK"), "{command}: {answer:?}");
        }
    }

    /// Injects a fault; sometimes another one happens during it.
    #[track_caller]
    fn inject_fault(&mut self) {
        let at = self.rng.usize(..WORKERS);
        match self.next_fault() {
            Fault::KillWorker => self.kill_worker(at),
            Fault::KillBroker => self.kill_broker(),
            Fault::PauseWorker => self.pause_worker(at),
            Fault::PauseBroker => self.pause_broker(at),
        }
    }

    /// Draws each kind of fault once, in random order, before any is repeated.
    fn next_fault(&mut self) -> Fault {
        if self.next_faults.is_empty() {
            self.next_faults = Fault::ALL.to_vec();
            self.rng.shuffle(&mut self.next_faults);
        }
        self.next_faults.pop().expect("next_faults was filled")
    }

    /// Kills a worker and starts another one with its data directory.
    #[track_caller]
    fn kill_worker(&mut self, at: usize) {
        self.counts.killed_workers += 1;
        let address = self.server().address;
        let Worker { process, data } = self.workers.remove(at);
        process.signal_and_finish("KILL");
        self.workers.insert(at, Worker { process: start_crawler(address, data.path()), data });
    }

    #[track_caller]
    fn kill_broker(&mut self) {
        self.counts.killed_brokers += 1;
        self.client = None;
        let server = self.server.take().expect("the broker runs");
        self.server = Some(server.restart_at_same_address("KILL", &["broker"]));
    }

    /// Pauses a worker for longer than its leases. When it resumes, its tasks belong to others, and
    /// so do those that were sent to it meanwhile.
    #[track_caller]
    fn pause_worker(&mut self, at: usize) {
        self.workers[at].process.signal("STOP");
        if !self.has_no_pending_request() {
            self.workers[at].process.signal("CONT");
            self.counts.aborted_pauses += 1;
            return;
        }
        self.counts.paused_workers += 1;
        let (before, after) = self.split_pause();
        thread::sleep(before);
        match self.rng.u8(..4) {
            0 => return self.kill_worker(at),
            1 => self.kill_worker((at + 1) % WORKERS),
            2 => self.kill_broker(),
            _ => {}
        }
        thread::sleep(after);
        self.workers[at].process.signal("CONT");
    }

    /// Pauses the broker for longer than a lease. A worker may be killed meanwhile, and starts
    /// without a broker.
    #[track_caller]
    fn pause_broker(&mut self, at: usize) {
        self.counts.paused_brokers += 1;
        self.server().process.signal("STOP");
        let (before, after) = self.split_pause();
        thread::sleep(before);
        match self.rng.u8(..4) {
            0 => self.kill_worker(at),
            1 => return self.kill_broker(),
            _ => {}
        }
        thread::sleep(after);
        self.server().process.signal("CONT");
    }

    /// A time longer than a lease, in two random parts.
    fn split_pause(&mut self) -> (Duration, Duration) {
        let (leases, part) = (1.0 + self.rng.f64() / 4.0, self.rng.f64());
        (LEASE.mul_f64(leases * part), LEASE.mul_f64(leases * (1.0 - part)))
    }

    /// Whether every request that was permitted before now has been sent, at least by the workers
    /// that are not paused.
    ///
    /// No broker can prevent the request of a worker that is paused between its last check of the
    /// clock and the request itself: it sends the request when it resumes, however late. So a
    /// worker is paused for long only after the request of every leased task was made; the other
    /// workers need only a moment for theirs. The tasks that it receives from then on are stale
    /// when it resumes.
    #[track_caller]
    fn has_no_pending_request(&mut self) -> bool {
        let stopped = Instant::now();
        while stopped.elapsed() < LEASE / 4 {
            let mut tasks = self.request("GROUP tasks crawlers state=processing limit=1000");
            tasks.pop();
            let may_come = |task: &String| {
                let lease_left = Duration::from_millis(value(task, "lease-ms").parse().unwrap());
                let held = LEASE.saturating_sub(lease_left);
                let host = value(task, "key").parse().unwrap();
                // An earlier request of this host was at least a delay before the lease.
                let was_requested =
                    self.origin.last_request_age(host).is_some_and(|ago| ago < held + DELAY / 2);
                held + DELAY / 2 > stopped.elapsed() && !was_requested
            };
            if !tasks.iter().any(may_come) {
                return true;
            }
            thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Waits for the end of the last job and checks everything.
    #[track_caller]
    fn finish(mut self) {
        let began = Instant::now();
        let wait = format!("JOB wait job-{}", self.jobs);
        let answer = self.request(&wait);
        assert!(answer[0].starts_with("+OK"), "{answer:?}");
        let record = self.origin.request_log();
        eprintln!(
            "{} requests for {} jobs with {:?}; the last one ended after {:?}",
            record.0.len(),
            self.jobs,
            self.counts,
            began.elapsed()
        );
        record.expect_polite(DELAY);
        record.expect_none_under("/private/");
        let pages = usize::from(SITE.hosts) * usize::try_from(SITE.pages).unwrap();
        assert_eq!(record.distinct_pages().len(), pages);
        assert!(record.page_requests().count() >= pages * usize::try_from(self.jobs).unwrap());

        let mut client = LineConnection::connect_client(self.server().address);
        assert_eq!(client.request("SUB job-done from=first"), "+OK");
        // The event follows the end of the job when the outcomes of its pages are safe.
        let done: Vec<_> = (0..self.jobs).map(|_| client.read_line()).collect();
        // Another connection publishes it as the last event of the topic.
        let answer = self.request("PUB job-done no-more");
        assert!(answer[0].starts_with("+OK"), "{answer:?}");
        let last = client.read_line();
        assert!(last.ends_with(" no-more"), "{done:#?} {last}");
        for (job, line) in (1..).zip(&done) {
            assert!(line.starts_with(&format!("MSG job-done {job} job-{job} ")), "{done:#?}");
            let counts = format!(" pass=1 result=done completed={pages} redirects=0 failed=0 ");
            assert!(line.contains(&counts), "{done:#?}");
        }
        for worker in self.workers {
            worker.process.signal_and_finish("KILL");
        }
    }
}
