//! Time from an announcement to its request, as the host sees it, on an idle system.

#![expect(clippy::disallowed_methods, reason = "a benchmark sleeps")]

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use tidings_bench::origin::{Origin, RequestTarget, Site};
use tidings_load::broker::DataDir;
use tidings_load::figure::quantile;
use tidings_load::{Figure, Progress, ReadyWhen, Server};

use crate::Cli;

/// A crawler that waits for events takes less time than this.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause between the last answer and the next announcement, after which the crawler is idle.
const IDLE_TIME: Duration = Duration::from_millis(5);

/// Announces pages of different hosts, one after the other: first one page of each host, when its
/// robots.txt is unknown, and then a second page.
pub(crate) fn measure(cli: &Cli, site: Site, progress: Progress<'_>) -> Result<Vec<Figure>> {
    let origin = Origin::serve(site, (Ipv4Addr::UNSPECIFIED, 0).into())?;
    let data = DataDir::temporary(&cli.data)?;
    let mut command = Command::new(cli.tidings()?);
    command.args(["up", "--quiet", "--allow-private", "--listen=127.0.0.1:0", "--data"]);
    command.arg(data.path()).env_remove("TIDINGS_CONFIG");
    let server = Server::start(command, ReadyWhen::PrintsAddress("listening on "), None)?;
    let mut socket = TcpStream::connect(server.address())?;
    socket.set_nodelay(true)?;
    // The crawler may still be starting.
    let last = site.hosts - 1;
    announce_and_wait(&origin, last, 0, &mut socket)?;
    let mut measure_page = |page, what: &str| {
        let mut times_ms = Vec::new();
        for host in 0..last {
            if host % 100 == 0 {
                progress(&format!("{what}, {host} of {last}"))?;
            }
            thread::sleep(IDLE_TIME);
            let took = announce_and_wait(&origin, host, page, &mut socket)?;
            times_ms.push(took.as_secs_f64() * 1e3);
        }
        anyhow::Ok(times_ms)
    };
    let (unknown, known) = (measure_page(0, "unknown hosts")?, measure_page(1, "known hosts")?);
    let figure = |key, label, times: &[f64], part| {
        Figure::new(key, label, 2).with_runs(quantile(times, part))
    };
    Ok(vec![
        figure("known_p50_ms", "host known, p50, ms", &known, 0.5),
        figure("known_p99_ms", "host known, p99, ms", &known, 0.99),
        figure("unknown_p50_ms", "host unknown, p50, ms", &unknown, 0.5),
        figure("unknown_p99_ms", "host unknown, p99, ms", &unknown, 0.99),
    ])
}

/// Announces a page and waits until it was fetched. Returns the time until the first request to its
/// host.
fn announce_and_wait(
    origin: &Origin,
    host: u32,
    page: u32,
    socket: &mut TcpStream,
) -> Result<Duration> {
    let before = origin.request_count();
    let announced = origin.now();
    socket.write_all(format!("PUB new-url {}\n", origin.url(host, page)).as_bytes())?;
    let start = origin.wait_for(REQUEST_TIMEOUT, |log| {
        let mut requests = log.requests[before..].iter().filter(|request| request.host == host);
        let start = requests.clone().next()?.start;
        let target = RequestTarget::Page(page);
        requests.any(|request| request.target == target && request.end.is_some()).then_some(start)
    })?;
    Ok(start.saturating_sub(announced))
}
