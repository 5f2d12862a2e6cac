//! Measures a large frontier of waiting URLs: links per second that enter it and memory per link,
//! and meanwhile the time until a worker receives a task. Then the longest time of a list, and the
//! time from a kill of the broker to the next released task.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use tidings_load::command::broker_process::BrokerProcess;
use tidings_load::command::text::{format_count, plural};
use tidings_load::command::{Benchmark, Outcome, Subject};
use tidings_load::figure::to_f64;
use tidings_load::wire::{ReadUntil, SetupStep};
use tidings_load::{Figure, PROGRESS_INTERVAL, Progress, Server, Target, connection};

use crate::histogram::Histogram;

/// One link in this many is new.
const LINKS_PER_NEW_URL: u64 = 5;

/// Tasks that the worker holds at once. It writes the links of one page while the broker reads
/// those of the page before.
const CREDIT: u32 = 2;

/// Pause of the second worker between an acknowledgement and its next request for a task.
const PROBE_INTERVAL: Duration = Duration::from_millis(20);

/// Lists for which the broker looks at as many entries or keys as it does for any, and their
/// repetitions.
const LISTS: [&str; 5] = [
    "tasks crawlers limit=0",
    "tasks crawlers state=queued limit=0",
    "tasks crawlers match=/none limit=0",
    "keys crawlers limit=10",
    "keys crawlers after=0 limit=1000",
];
const LIST_REPEATS: usize = 5;

/// A URL on an otherwise unused host.
const UNUSED_HOST_URL: &str = "http://untouched.example/";

/// A crawl that finds more URLs than it fetches.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub struct Frontier {
    /// URLs that wait at the end
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub urls: u64,

    /// Hosts that they are on
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=9_999_999))]
    pub hosts: u64,

    /// Links of a page; four in five lead to what is known already
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(5..=5_000))]
    pub links: u64,

    /// Links a second, on average [default: as many as the broker takes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1_000..))]
    pub rate: Option<u64>,
}

impl Benchmark for Frontier {
    const NAME: &'static str = "frontier";

    const MEASURES_DISK: bool = true;

    fn title(&self) -> String {
        let (urls, links) = (format_count(self.urls), format_count(self.links));
        format!("{urls} URLs on {}, {links} links a page", plural(self.hosts, "host"))
    }

    fn measure(&self, target: Target<'_>, progress: Progress<'_>) -> Result<Outcome> {
        self.measure_and_restart(target, None, progress)
    }

    fn measure_subject(&self, subject: &Subject<'_>, progress: Progress<'_>) -> Result<Outcome> {
        let &Subject { target, common, program, data } = subject;
        let Some(data) = data else { return self.measure(target, progress) };
        let processor = common.pin.map(|(server, _)| server);
        let launch = || BrokerProcess::launch(program, data, common.threads, processor);
        let restart = || launch().and_then(Server::start);
        self.measure_and_restart(target, Some(&restart), progress)
    }
}

/// Starts the broker again with the data on its disk.
type RestartBroker<'a> = dyn Fn() -> Result<Server> + 'a;

impl Frontier {
    /// Runs the measurement. With `restart`, which needs a broker of its own, the broker is killed
    /// at the end and started again.
    fn measure_and_restart(
        &self,
        target: Target<'_>,
        restart: Option<&RestartBroker<'_>>,
        progress: Progress<'_>,
    ) -> Result<Outcome> {
        let job = target.topic;
        let steps = [
            // The delay is off, so that a few hosts suffice.
            step("GROUP set crawlers delay=0\n".to_owned()),
            step(format!("JOB open {job} scope=any\n")),
            step(format!("JOIN crawlers credit={CREDIT}\n")),
        ];
        let worker = connection::open(target.address, steps)?;
        let join = step("JOIN crawlers credit=0\n".to_owned());
        let second = connection::open(target.address, [join])?;
        for socket in [&worker, &second] {
            socket.set_read_timeout(None)?;
        }
        let mut publisher = connection::open(target.address, [])?;
        writeln!(publisher, "PUB new-url http://seed.example/ job={job}")?;
        // The seed must go to the first worker. The second one acknowledges without links, which
        // would end the crawl.
        worker.peek(&mut [0])?;
        let cpu = target.server.map(Server::cpu_time).transpose()?;
        let (took, links, releases) = thread::scope(|scope| {
            let probe_socket = second.try_clone()?;
            let probe = scope.spawn(move || probe_release_times(probe_socket));
            let mut run = FrontierLoad { frontier: *self, worker, new_urls: 0, links: 0 };
            let began = Instant::now();
            let result = run.fill(progress);
            let took = began.elapsed();
            // The thread of the second worker ends when its connection does.
            let _ = second.shutdown(Shutdown::Both);
            let releases = probe.join().expect("a probe does not panic");
            anyhow::Ok(result.map(|()| (took, run.links, releases))?)
        })?;
        let ms = |part| releases.quantile(part) / 1000.0;
        let mut figures = vec![
            Figure::new("links_per_second", "links/s", 0)
                .with_runs([to_f64(links) / took.as_secs_f64()]),
            Figure::new("release_p50_ms", "release p50, ms", 2).with_runs([ms(0.5)]),
            Figure::new("release_p99_ms", "release p99, ms", 2).with_runs([ms(0.99)]),
            Figure::new("list_max_ms", "longest list, ms", 2)
                .with_runs([longest_list(target.address)?]),
        ];
        if let (Some(server), Some(before)) = (target.server, cpu) {
            let used =
                server.cpu_time()?.saturating_sub(before).as_secs_f64() * 1e6 / to_f64(links);
            let mib = to_f64(server.resident_bytes()?) / f64::from(1 << 20);
            figures
                .push(Figure::new("broker_us_per_link", "broker us per link", 2).with_runs([used]));
            figures.push(Figure::new("broker_mib", "broker MiB", 0).with_runs([mib]));
        }
        if let (Some(server), Some(restart)) = (target.server, restart) {
            progress("killing and restarting the broker")?;
            // This host is unused: the other hosts may be leased to a worker that is gone.
            connection::open(target.address, [step(format!("PUB new-url {UNUSED_HOST_URL}\n"))])?;
            server.kill()?;
            let began = Instant::now();
            let server = restart()?;
            first_release(server.address())?;
            let took = began.elapsed().as_secs_f64();
            figures.push(Figure::new("restart_s", "restart to release, s", 2).with_runs([took]));
        }
        Ok(figures.into())
    }
}

/// Fills the frontier, as the worker that finds all these links.
struct FrontierLoad {
    frontier: Frontier,
    worker: TcpStream,
    new_urls: u64,
    links: u64,
}

impl FrontierLoad {
    fn fill(&mut self, progress: Progress<'_>) -> Result<()> {
        let mut tasks = TaskIds::received_by(&self.worker)?;
        let began = Instant::now();
        let (mut random_state, mut reported) = (1_u64, began);
        let mut answer = Vec::new();
        while self.new_urls < self.frontier.urls {
            let id = tasks.next().context("the broker closed the connection")?;
            answer.clear();
            for link in 0..self.frontier.links {
                let page = if link % LINKS_PER_NEW_URL == 0 {
                    self.new_urls += 1;
                    self.new_urls
                } else {
                    // Any known page will do, as long as the broker cannot predict it.
                    random_state =
                        random_state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random_state >> 20) % self.new_urls.max(1) + 1
                };
                let host = page.wrapping_mul(7919) % self.frontier.hosts;
                writeln!(
                    answer,
                    "LINK {id} http://host-{host:07}.example/some/path/page-{page}.html",
                )?;
            }
            writeln!(answer, "ACK {id} outcome=done")?;
            if let Some(rate) = self.frontier.rate {
                let due = Duration::from_secs(1).mul_f64(to_f64(self.links) / to_f64(rate));
                thread::sleep(due.saturating_sub(began.elapsed()));
            }
            self.links += self.frontier.links;
            self.worker.write_all(&answer)?;
            if reported.elapsed() > PROGRESS_INTERVAL {
                progress(&format!("{} of {} URLs", self.new_urls, self.frontier.urls))?;
                reported = Instant::now();
            }
        }
        Ok(())
    }
}

/// The ids of the tasks that a worker receives.
struct TaskIds(Lines<BufReader<TcpStream>>);

impl TaskIds {
    fn received_by(worker: &TcpStream) -> std::io::Result<Self> {
        Ok(Self(BufReader::new(worker.try_clone()?).lines()))
    }
}

impl Iterator for TaskIds {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let lines = self.0.by_ref().map_while(Result::ok);
        let mut tasks = lines.filter(|line| line.starts_with("TASK "));
        tasks.next()?.split(' ').nth(1).map(str::to_owned)
    }
}

/// A worker that requests a task at intervals until its connection ends. Returns how long each task
/// took to arrive.
fn probe_release_times(mut worker: TcpStream) -> Histogram {
    let mut times = Histogram::default();
    let Ok(mut tasks) = TaskIds::received_by(&worker) else { return times };
    loop {
        thread::sleep(PROBE_INTERVAL);
        let began = Instant::now();
        if writeln!(worker, "JOIN crawlers credit=1").is_err() {
            return times;
        }
        let Some(id) = tasks.next() else { return times };
        times.record(began.elapsed());
        // The credit is 0 before the acknowledgement, so that no other task takes its place.
        let answer = format!("JOIN crawlers credit=0\nACK {id} outcome=done\n");
        if worker.write_all(answer.as_bytes()).is_err() {
            return times;
        }
    }
}

/// Returns the longest time to an answer to one of the [`LISTS`], in ms.
fn longest_list(address: SocketAddr) -> Result<f64> {
    let mut client = connection::open(address, [])?;
    let mut lines = BufReader::new(client.try_clone()?).lines().map_while(Result::ok);
    let mut longest = Duration::ZERO;
    for list in LISTS.into_iter().cycle().take(LISTS.len() * LIST_REPEATS) {
        let began = Instant::now();
        writeln!(client, "GROUP {list}")?;
        lines.find(|line| line.starts_with("+OK")).context("the broker does not answer")?;
        longest = longest.max(began.elapsed());
    }
    Ok(longest.as_secs_f64() * 1000.0)
}

/// Waits for the first task of a broker that was just started.
fn first_release(address: SocketAddr) -> Result<()> {
    let mut worker = TcpStream::connect(address)?;
    writeln!(worker, "JOIN crawlers credit=1")?;
    TaskIds::received_by(&worker)?.next().context("the broker closed the connection").map(|_| ())
}

fn step(line: String) -> SetupStep {
    SetupStep::new(line, ReadUntil::Line("+OK"))
}
