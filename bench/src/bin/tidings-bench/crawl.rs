//! Crawls of a whole site, by Tidings and other crawlers. Each has the settings that its authors
//! would choose: enough concurrent requests to be fast, robots.txt obeyed, and everything off that
//! these sites do not need.

#![expect(clippy::disallowed_methods, reason = "a program has a time limit")]

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tidings_bench::origin::{Origin, Site};
use tidings_load::broker::DataDir;
use tidings_load::figure::to_f64;
use tidings_load::{Figure, Progress};

use crate::Cli;
use crate::control_group::ControlGroup;
use crate::programs::{Program, name};

/// Time limit of a crawl; slower crawlers are not worth comparing.
const CRAWL_MAX: Duration = Duration::from_mins(5);

/// Interval between two readings of the memory. A peak between them is missed. Browsers have many
/// processes, so their readings take longer.
const MEMORY_INTERVAL: Duration = Duration::from_millis(100);
const BROWSER_MEMORY_INTERVAL: Duration = Duration::from_millis(500);

/// Connections of wget2 without a delay. More of them do not make it faster.
const WGET2_THREADS: u32 = 10;

/// Runs the program until it has crawled the site. The origin judges it.
pub(crate) fn measure(
    cli: &Cli,
    program: Program,
    site: Site,
    progress: Progress<'_>,
) -> Result<Vec<Figure>> {
    // All addresses of this machine, which include those of the hosts.
    let origin = Origin::serve(site, (Ipv4Addr::UNSPECIFIED, 0).into())?;
    let (dir, group) = (DataDir::temporary(&cli.data)?, ControlGroup::new()?);
    let errors = dir.path().join("errors");
    let mut command = command(cli, program, &group, &origin, dir.path())?;
    command.current_dir(dir.path()).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(File::create(&errors)?);
    let interval = if site.is_scripted { BROWSER_MEMORY_INTERVAL } else { MEMORY_INTERVAL };
    let (mut peak_bytes, began) = (0_u64, Instant::now());
    // What is left when the group is dropped is killed.
    let mut child = command.spawn().with_context(|| format!("cannot start {}", name(program)))?;
    let exit = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    while poll(&mut [PollFd::new(&exit, PollFlags::IN)], Some(&Timespec::try_from(interval)?))? == 0
    {
        peak_bytes = peak_bytes.max(group.memory_bytes()?);
        ensure!(began.elapsed() < CRAWL_MAX, "it did not end within {CRAWL_MAX:?}");
        progress(&format!("{} requests", origin.request_count()))?;
    }
    let (took, status) = (began.elapsed().as_secs_f64(), child.wait()?);
    let message = fs::read_to_string(&errors)?;
    ensure!(status.success(), "{status}: {}", message.lines().last().unwrap_or("(no message)"));

    let cpu = group.cpu_time()?.as_secs_f64();
    let log = origin.request_log();
    let verdict = log.judge(&site);
    let pages = to_f64(verdict.pages.max(1));
    let requests = to_f64(u64::try_from(log.requests.len())?);
    let figure = |key, label, decimals, value| Figure::new(key, label, decimals).with_runs([value]);
    let fault = |key, label, count| figure(key, label, 0, to_f64(count));
    Ok(vec![
        figure("pages_per_second", "pages/s", 1, pages / took),
        figure("span_s", "first request to last answer, s", 2, verdict.span.as_secs_f64()),
        figure("cpu_ms_per_page", "CPU ms per page", 3, cpu * 1e3 / pages),
        figure("cpu_s", "CPU s", 2, cpu),
        figure("peak_mib", "peak MiB", 0, to_f64(peak_bytes) / f64::from(1 << 20)),
        figure("requests_per_page", "requests per page", 2, requests / pages),
        fault("connections", "connections", verdict.connections),
        fault("overlapping", "overlapping requests at a host", verdict.overlapping),
        fault("missing", "fault: missing pages", verdict.missing),
        fault("repeated", "fault: repeated pages", verdict.repeated),
        fault("missing_data", "fault: parts of pages not requested", verdict.missing_data),
        fault("unlinked", "fault: requests that no page links to", verdict.unlinked),
        fault("before_robots", "fault: pages before robots.txt", verdict.before_robots),
        fault("too_early", "fault: requests before the delay was over", verdict.too_early),
        figure("early_by_ms", "by up to, ms", 0, verdict.early_by_max.as_secs_f64() * 1e3),
    ])
}

fn command(
    cli: &Cli,
    program: Program,
    group: &ControlGroup,
    origin: &Origin,
    dir: &Path,
) -> Result<Command> {
    let Site { hosts, crawl_delay, is_scripted, .. } = *origin.site();
    let seeds: Vec<_> = origin.seeds().collect();
    let file = dir.join("seeds");
    fs::write(&file, seeds.join("\n") + "\n")?;
    Ok(match program {
        Program::Tidings => {
            // Queue, seen set and records are on the disk, as always.
            let mut command = group.command(cli.tidings()?);
            let delay = crawl_delay.unwrap_or_default().as_millis();
            command.env_remove("TIDINGS_CONFIG").args(["crawl", "--quiet", "--allow-private"]);
            command.args(["--data", "data"]).arg(format!("--delay={delay}ms"));
            if is_scripted {
                command.args(["--render", "always", "--render-slots", "6", "--browser"]);
                command.arg(&cli.browser);
            }
            command.args(seeds);
            command
        }
        Program::Wget2 => {
            let mut command = group.command("wget2");
            // It parses only pages that are in files. Of its ways to keep none, this is the
            // fastest.
            command.args(["--no-config", "--quiet", "--recursive", "--level=0", "--delete-after"]);
            command.args(["--no-cookies", "--no-hsts", "--no-ocsp", "--tries=1"]);
            let threads = crawl_delay.map_or(WGET2_THREADS, |_| hosts);
            command.arg(format!("--max-threads={threads}"));
            command.args(crawl_delay.map(|delay| format!("--wait={}", delay.as_secs_f64())));
            command.arg("--directory-prefix").arg(dir).arg("--input-file").arg(file);
            command
        }
        Program::Crawlee => {
            let mut command = group.command("node");
            command.arg(cli.node.join("crawlee.js")).arg(file).arg(&cli.browser);
            command
        }
        _ => bail!("this program is not a crawler"),
    })
}
