//! Many waiting URLs: how fast links become them, what they cost in memory, how long a release takes
//! meanwhile, and how soon a broker that was killed releases again.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    sync::{Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;

use crate::{
    Figure, Server, Target, Watch, connection,
    figure::number,
    histogram::Histogram,
    wire::{Step, Until},
};

/// Of so many links of a page one is new.
const LINKS_OF_A_NEW_ONE: u64 = 5;

/// Tasks that the worker holds at once: while the broker takes the links of one page, those of the next
/// are written. More would only wait in front of every release.
const CREDIT: u32 = 2;

/// Time from one probe's release to the next probe.
const PROBE_PAUSE: Duration = Duration::from_millis(20);

/// What the URL of a probe begins with: each has a host of its own.
const PROBE: &str = "http://probe-";

/// A crawl that finds more than it fetches.
#[derive(Debug, Clone, Copy)]
pub struct Frontier {
    /// URLs that wait at the end.
    pub urls: u64,
    /// Hosts that they are on.
    pub hosts: u64,
    /// Links of a page, of which four in five lead to what is known already.
    pub links: u64,
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
            step(format!("JOB open {job} scope=any\n")),
            step(format!("JOIN crawlers credit={CREDIT}\n")),
        ];
        let worker = connection::open(target.address, steps)?;
        worker.set_read_timeout(None)?;
        let publisher = connection::open(target.address, [])?;
        let probe = Mutex::new(Probe::default());
        let (sender, tasks) = mpsc::channel();
        let reader = worker.try_clone()?;
        let cpu = target.server.map(Server::cpu).transpose()?;
        let (took, links) = thread::scope(|scope| {
            let probe = &probe;
            scope.spawn(move || read_tasks(reader, probe, &sender));
            let mut run = Run { frontier: *self, worker, publisher, probe, found: 0, links: 0 };
            let began = Instant::now();
            let ended = run.fill(job, &tasks, watch);
            let took = began.elapsed();
            // The reader ends with the connection.
            let _ = run.worker.shutdown(std::net::Shutdown::Both);
            ended.map(|()| (took, run.links))
        })?;
        let probe = probe.into_inner().expect("nobody panicked with it");
        let ms = |part| probe.times.quantile(part) / 1000.0;
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

/// The URL that is published to see how long its release takes.
#[derive(Debug, Default)]
struct Probe {
    published: Option<Instant>,
    released: Option<Instant>,
    times: Histogram,
}

/// Fills the frontier, as the worker whose pages have so many links.
struct Run<'a> {
    frontier: Frontier,
    worker: TcpStream,
    publisher: TcpStream,
    probe: &'a Mutex<Probe>,
    found: u64,
    links: u64,
}

impl Run<'_> {
    fn fill(
        &mut self,
        job: &str,
        tasks: &mpsc::Receiver<Task>,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<()> {
        writeln!(self.publisher, "PUB new-url http://seed.example/ job={job}")?;
        let (mut probes, mut chance) = (0_u64, 1_u64);
        let mut answer = Vec::new();
        while self.found < self.frontier.urls {
            let task = tasks.recv().context("the broker closed the connection")?;
            answer.clear();
            if !task.is_probe {
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
                        "LINK {} http://host-{host:07}.example/some/path/page-{page}.html",
                        task.id
                    )?;
                }
                self.links += self.frontier.links;
            }
            writeln!(answer, "ACK {} outcome=done", task.id)?;
            self.worker.write_all(&answer)?;
            let mut probe = self.probe.lock().expect("nobody panicked with it");
            let rested = probe.released.is_none_or(|released| released.elapsed() > PROBE_PAUSE);
            if probe.published.is_none() && rested {
                probes += 1;
                probe.published = Some(Instant::now());
                writeln!(self.publisher, "PUB new-url {PROBE}{probes}.example/")?;
                drop(probe);
                watch(&format!("{} of {} URLs", self.found, self.frontier.urls))?;
            }
        }
        Ok(())
    }
}

struct Task {
    id: String,
    is_probe: bool,
}

fn read_tasks(worker: TcpStream, probe: &Mutex<Probe>, tasks: &mpsc::Sender<Task>) {
    for line in BufReader::new(worker).lines().map_while(Result::ok) {
        let mut words = line.split(' ');
        if words.next() != Some("TASK") {
            continue;
        }
        let Some(id) = words.next() else { continue };
        let is_probe = words.nth(2).is_some_and(|url| url.starts_with(PROBE));
        if is_probe {
            let mut probe = probe.lock().expect("nobody panicked with it");
            let now = Instant::now();
            if let Some(published) = probe.published.take() {
                probe.times.add(now - published);
            }
            probe.released = Some(now);
        }
        if tasks.send(Task { id: id.to_owned(), is_probe }).is_err() {
            return;
        }
    }
}

/// Waits for a task of a broker that has just been started.
fn first_release(address: SocketAddr) -> anyhow::Result<()> {
    let mut worker = TcpStream::connect(address)?;
    writeln!(worker, "JOIN crawlers credit=1")?;
    let mut lines = BufReader::new(worker).lines();
    let is_task =
        |line: &std::io::Result<String>| line.as_ref().is_ok_and(|line| line.starts_with("TASK "));
    lines.find(is_task).context("the broker closed the connection").map(|_| ())
}

fn step(line: String) -> Step {
    Step::new(line, Until::Line("+OK"))
}
