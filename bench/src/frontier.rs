//! Many waiting URLs: how fast links become them, what they cost in memory, how long a worker waits
//! meanwhile for a task that it asks for, and how soon a broker that was killed releases again.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::figure::number;
use crate::histogram::Histogram;
use crate::wire::{Step, Until};
use crate::{Figure, Server, Target, Watch, connection};

/// Of so many links of a page one is new.
const LINKS_OF_A_NEW_ONE: u64 = 5;

/// Tasks that the worker holds at once: while the broker takes the links of one page, those of the
/// next are written.
const CREDIT: u32 = 2;

/// How often somebody is told how far it is.
const WATCH_EVERY: Duration = Duration::from_millis(200);

/// Time from one answer of the second worker to its next question.
const PROBE_PAUSE: Duration = Duration::from_millis(20);

/// A URL on a host of its own.
const UNTOUCHED: &str = "http://untouched.example/";

/// A crawl that finds more than it fetches.
#[derive(Debug, Clone, Copy)]
pub struct Frontier {
    /// URLs that wait at the end.
    pub urls: u64,
    /// Hosts that they are on.
    pub hosts: u64,
    /// Links of a page, of which four in five lead to what is known already.
    pub links: u64,
    /// Links a second, on average; `None`: as many as the broker takes.
    pub rate: Option<u64>,
}

/// Starts the broker again on what it has on disk.
pub type Again<'a> = dyn Fn() -> anyhow::Result<Server> + 'a;

impl Frontier {
    /// Measures it. With `again`, which is for a broker of one's own, it is killed at the end and
    /// started again.
    pub fn measure(
        &self,
        target: Target<'_>,
        again: Option<&Again<'_>>,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<Vec<Figure>> {
        let job = target.topic;
        let steps = [
            // A few hosts are to be enough.
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
        // The seed is for the first worker. The second one answers without links, and would end the
        // crawl with it.
        worker.peek(&mut [0])?;
        let cpu = target.server.map(Server::cpu).transpose()?;
        let (took, links, releases) = thread::scope(|scope| {
            let asks = second.try_clone()?;
            let probe = scope.spawn(move || probe(asks));
            let mut run = Run { frontier: *self, worker, found: 0, links: 0 };
            let began = Instant::now();
            let ended = run.fill(watch);
            let took = began.elapsed();
            // The second worker ends with its connection.
            let _ = second.shutdown(Shutdown::Both);
            let releases = probe.join().expect("a probe does not panic");
            anyhow::Ok(ended.map(|()| (took, run.links, releases))?)
        })?;
        let ms = |part| releases.quantile(part) / 1000.0;
        let mut figures = vec![
            Figure::new("links_per_second", "links/s", 0)
                .with([number(links) / took.as_secs_f64()]),
            Figure::new("release_p50_ms", "release p50, ms", 2).with([ms(0.5)]),
            Figure::new("release_p99_ms", "release p99, ms", 2).with([ms(0.99)]),
        ];
        if let (Some(server), Some(before)) = (target.server, cpu) {
            let used = server.cpu()?.saturating_sub(before).as_secs_f64() * 1e6 / number(links);
            let mib = number(server.resident_bytes()?) / f64::from(1 << 20);
            figures.push(Figure::new("broker_us_per_link", "broker us per link", 2).with([used]));
            figures.push(Figure::new("broker_mib", "broker MiB", 0).with([mib]));
        }
        if let (Some(server), Some(again)) = (target.server, again) {
            watch("killed and started again")?;
            // A host that nobody has asked: the others may be with a worker that is gone.
            connection::open(target.address, [step(format!("PUB new-url {UNTOUCHED}\n"))])?;
            server.kill()?;
            let began = Instant::now();
            let server = again()?;
            first_release(server.address())?;
            let took = began.elapsed().as_secs_f64();
            figures.push(Figure::new("restart_s", "restart to release, s", 2).with([took]));
        }
        Ok(figures)
    }
}

/// Fills the frontier, as the worker whose pages have so many links.
struct Run {
    frontier: Frontier,
    worker: TcpStream,
    found: u64,
    links: u64,
}

impl Run {
    fn fill(&mut self, watch: &mut Watch<'_>) -> anyhow::Result<()> {
        let mut tasks = Tasks::of(&self.worker)?;
        let began = Instant::now();
        let (mut chance, mut shown) = (1_u64, began);
        let mut answer = Vec::new();
        while self.found < self.frontier.urls {
            let id = tasks.next().context("the broker closed the connection")?;
            answer.clear();
            for link in 0..self.frontier.links {
                let page = if link % LINKS_OF_A_NEW_ONE == 0 {
                    self.found += 1;
                    self.found
                } else {
                    // Any will do, as long as the broker cannot foresee it.
                    chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (chance >> 20) % self.found.max(1) + 1
                };
                let host = page.wrapping_mul(7919) % self.frontier.hosts;
                writeln!(
                    answer,
                    "LINK {id} http://host-{host:07}.example/some/path/page-{page}.html",
                )?;
            }
            writeln!(answer, "ACK {id} outcome=done")?;
            if let Some(rate) = self.frontier.rate {
                let due = Duration::from_secs(1).mul_f64(number(self.links) / number(rate));
                thread::sleep(due.saturating_sub(began.elapsed()));
            }
            self.links += self.frontier.links;
            self.worker.write_all(&answer)?;
            if shown.elapsed() > WATCH_EVERY {
                watch(&format!("{} of {} URLs", self.found, self.frontier.urls))?;
                shown = Instant::now();
            }
        }
        Ok(())
    }
}

/// The ids of the tasks that come to a worker.
struct Tasks(Lines<BufReader<TcpStream>>);

impl Tasks {
    fn of(worker: &TcpStream) -> std::io::Result<Self> {
        Ok(Self(BufReader::new(worker.try_clone()?).lines()))
    }
}

impl Iterator for Tasks {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let lines = self.0.by_ref().map_while(Result::ok);
        let mut tasks = lines.filter(|line| line.starts_with("TASK "));
        tasks.next()?.split(' ').nth(1).map(str::to_owned)
    }
}

/// A worker that asks for a task from time to time, and how long each took to come, until its
/// connection ends.
fn probe(mut worker: TcpStream) -> Histogram {
    let mut times = Histogram::default();
    let Ok(mut tasks) = Tasks::of(&worker) else { return times };
    loop {
        thread::sleep(PROBE_PAUSE);
        let began = Instant::now();
        if writeln!(worker, "JOIN crawlers credit=1").is_err() {
            return times;
        }
        let Some(id) = tasks.next() else { return times };
        times.add(began.elapsed());
        // In this order, so that nothing takes its place.
        let answer = format!("JOIN crawlers credit=0\nACK {id} outcome=done\n");
        if worker.write_all(answer.as_bytes()).is_err() {
            return times;
        }
    }
}

/// Waits for a task of a broker that has just been started.
fn first_release(address: SocketAddr) -> anyhow::Result<()> {
    let mut worker = TcpStream::connect(address)?;
    writeln!(worker, "JOIN crawlers credit=1")?;
    Tasks::of(&worker)?.next().context("the broker closed the connection").map(|_| ())
}

fn step(line: String) -> Step {
    Step::new(line, Until::Line("+OK"))
}
