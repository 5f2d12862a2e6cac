//! Measures a large frontier of waiting URLs: links per second that enter it, their memory, and the
//! time from a kill of the broker to the next released task.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Instant;

use anyhow::{Context, Result};
use tidings_load::broker::{self, Broker};
use tidings_load::figure::to_f64;
use tidings_load::load::Rates;
use tidings_load::wire::SetupStep;
use tidings_load::{Figure, PROGRESS_INTERVAL, Progress, Server};

use crate::Cli;

/// Links of a page.
const LINKS: u64 = 1000;

/// One link in this many is new.
const LINKS_PER_NEW_URL: u64 = 5;

/// Tasks that the worker holds at once. It writes the links of one page while the broker reads
/// those of the page before.
const CREDIT: u32 = 2;

/// Runs a crawl that finds more URLs than it fetches, until `--urls` wait on `--hosts`.
pub(crate) fn measure(cli: &Cli, broker: Broker, progress: Progress<'_>) -> Result<Vec<Figure>> {
    let target = broker.target("crawl", 0);
    let step = |line: String| SetupStep::new(line, "+OK");
    let worker = target.open([
        // The delay is off, so that a few hosts suffice.
        step("GROUP set crawlers delay=0\n".to_owned()),
        step("JOB open crawl scope=any\n".to_owned()),
        step(format!("JOIN crawlers credit={CREDIT}\n")),
    ])?;
    worker.socket().set_read_timeout(None)?;
    let rate = Figure::new("links_per_second", "links/s", 0);
    let cost = Figure::new("broker_cpu_us_per_link", "broker us per link", 2);
    let mut rates = Rates::new(target.server, rate, cost, 1.0);
    let urls = if cli.quick { cli.urls / 100 } else { cli.urls };
    rates.measure(|| fill(worker.socket(), urls, cli.hosts, progress))?;
    let mib = to_f64(broker.server.resident_bytes()?) / f64::from(1 << 20);
    let memory = Figure::new("broker_mib", "broker MiB with all URLs", 0).with_runs([mib]);
    let mut figures = rates.figures([memory])?;

    progress("killing and restarting the broker")?;
    // This host is unused: the other hosts may be leased to a worker that is gone.
    target.open([step("PUB new-url http://untouched.example/\n".to_owned())])?;
    let Broker { server, data, .. } = broker;
    drop(server);
    let began = Instant::now();
    let (command, ready) = broker::tidings(&cli.tidings()?, &data);
    let server = Server::start(command, ready, Some(cli.pin[0]))?;
    let mut worker = TcpStream::connect(server.address())?;
    writeln!(worker, "JOIN crawlers credit=1")?;
    task_ids(&worker).next().context("the broker closed the connection")?;
    let took = began.elapsed().as_secs_f64();
    figures.push(Figure::new("restart_s", "restart to release, s", 2).with_runs([took]));
    Ok(figures)
}

/// Fills the frontier, as the worker that finds all these links. Returns their number.
fn fill(mut worker: &TcpStream, urls: u64, hosts: u64, progress: Progress<'_>) -> Result<u64> {
    writeln!(worker, "PUB new-url http://seed.example/ job=crawl")?;
    let mut tasks = task_ids(worker);
    let (mut new_urls, mut links, mut random_state) = (0, 0, 1_u64);
    let (mut answer, mut reported) = (Vec::new(), Instant::now());
    while new_urls < urls {
        let id = tasks.next().context("the broker closed the connection")?;
        answer.clear();
        for link in 0..LINKS {
            let page = if link % LINKS_PER_NEW_URL == 0 {
                new_urls += 1;
                new_urls
            } else {
                // Any known page will do, as long as the broker cannot predict it.
                random_state = random_state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random_state >> 20) % new_urls + 1
            };
            let host = page.wrapping_mul(7919) % hosts;
            writeln!(answer, "LINK {id} http://host-{host:07}.example/some/path/page-{page}.html")?;
        }
        writeln!(answer, "ACK {id} outcome=done")?;
        links += LINKS;
        worker.write_all(&answer)?;
        if reported.elapsed() > PROGRESS_INTERVAL {
            progress(&format!("{new_urls} of {urls} URLs"))?;
            reported = Instant::now();
        }
    }
    Ok(links)
}

/// The ids of the tasks that a worker receives.
fn task_ids(worker: &TcpStream) -> impl Iterator<Item = String> {
    let lines = BufReader::new(worker).lines().map_while(Result::ok);
    lines.filter_map(|line| Some(line.strip_prefix("TASK ")?.split(' ').next()?.to_owned()))
}
