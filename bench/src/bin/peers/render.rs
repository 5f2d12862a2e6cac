//! `peers render`: compares Tidings with other crawlers that render pages, with the same browser
//! and the same origin.

#![expect(clippy::disallowed_methods, reason = "processes have some time to end")]

use std::cell::RefCell;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use tidings_bench::control_group::ControlGroup;
use tidings_bench::origin::{Origin, PageKind, RequestTarget, Site};
use tidings_bench::program;
use tidings_load::command::Outcome;
use tidings_load::figure::to_f64;
use tidings_load::{Figure, Progress};

use crate::comparison::{self, ComparisonFlags, RunDir, last_line, machine, table};
use crate::results::Contestant;
use crate::workloads::{Column, GoalBase, Workload, at_least, at_most, plain};

/// Time limit of a crawl; slower crawlers are not worth comparing.
const CRAWL_MAX: Duration = Duration::from_mins(15);

/// Interval between two measurements of the memory of all processes. A peak between them is missed.
const MEMORY_EVERY: Duration = Duration::from_millis(500);

/// How long processes may take to end after the program.
const END_MAX: Duration = Duration::from_secs(2);

const PAGES: &str = "pages_per_second";
const CPU: &str = "cpu_ms_per_page";
const PEAK: &str = "peak_mib";
const GROWTH: &str = "mib_per_100_pages";
const REQUESTS: &str = "requests_per_page";
const OVERLAPS: &str = "overlaps";
const LEFT: &str = "processes_left";
const FAULTS: &str = "faults";

#[derive(Debug, Args)]
pub(crate) struct RenderArgs {
    #[command(flatten)]
    flags: ComparisonFlags,

    /// The browser of all programs
    #[arg(long, value_name = "FILE", default_value = "/usr/lib/chromium/chromium-headless-shell")]
    browser: PathBuf,

    /// The folder with `crawlee.js` and its packages
    #[arg(long, value_name = "DIR", default_value = "target/peers-node")]
    node: PathBuf,

    /// The Python of an environment with scrapy-playwright
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,

    /// Directory of the Python script
    #[arg(long, value_name = "DIR", default_value = "bench/peers/render")]
    scripts: PathBuf,

    /// Pages per host [default: that of the work]
    #[arg(long, value_name = "N")]
    pages: Option<u32>,
}

/// A crawler of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Renderer {
    Tidings,
    /// Waits for the first link, as a crawler of one site can.
    Crawlee,
    /// Waits until the network is idle, as a crawler of unknown sites must.
    CrawleeIdle,
    /// Waits for the first link.
    Scrapy,
}

impl Contestant for Renderer {
    const OURS: Self = Self::Tidings;

    fn name(self) -> &'static str {
        match self {
            Self::Tidings => "Tidings",
            Self::Crawlee => "Crawlee",
            Self::CrawleeIdle => "Crawlee idle",
            Self::Scrapy => "scrapy-playwright",
        }
    }

    fn is_peer(self) -> bool {
        self != Self::Tidings
    }
}

const CONTESTANTS: &[Renderer] =
    &[Renderer::Tidings, Renderer::Crawlee, Renderer::CrawleeIdle, Renderer::Scrapy];

const COLUMNS: &[Column] = &[
    plain(PAGES, "", 2),
    plain(CPU, " ms CPU", 0),
    plain(PEAK, " MiB", 0),
    plain(GROWTH, " MiB per 100 pages", 1),
    plain(REQUESTS, " requests", 2),
    plain(OVERLAPS, " overlaps", 0),
    plain(LEFT, " left", 0),
];

/// With 20 hosts, a crawler that sends one request at a time to each host is not slowed down.
const SITE: Site = Site {
    hosts: 20,
    pages: 20,
    page_bytes: 2000,
    links: 50,
    response_delay: Duration::ZERO,
    crawl_delay: None,
    sends_keep_alive: true,
    kind: PageKind::Scripted,
};

/// A work of crawlers that render.
type RenderWorkload = Workload<Renderer, Site>;

const SCRIPTED: RenderWorkload = Workload {
    name: "scripted",
    title: "script-made pages, 20 hosts x 20, pages/s",
    load: SITE,
    contestants: CONTESTANTS,
    columns: COLUMNS,
    goals: &[
        at_least(PAGES, 1.5, GoalBase::Server(Renderer::Crawlee)),
        at_most(CPU, 0.8, GoalBase::Server(Renderer::Crawlee)).named("CPU"),
        at_most(OVERLAPS, 0.0, GoalBase::Absolute).named("overlaps"),
        at_most(LEFT, 0.0, GoalBase::Absolute).named("processes left"),
        at_most(FAULTS, 0.0, GoalBase::Absolute).named("faults"),
    ],
};

/// All works, in the order of the table.
const WORKLOADS: &[RenderWorkload] = &[
    SCRIPTED,
    Workload {
        name: "distant",
        title: "the same, 50 ms per response",
        load: Site { response_delay: Duration::from_millis(50), ..SITE },
        ..SCRIPTED
    },
    Workload {
        name: "static",
        title: "static pages of 20 KB",
        load: Site { kind: PageKind::Static, page_bytes: 20_000, ..SITE },
        ..SCRIPTED
    },
    Workload {
        name: "ticking",
        title: "script-made pages that change without end, 20 hosts x 3",
        load: Site { kind: PageKind::Ticking, pages: 3, ..SITE },
        ..SCRIPTED
    },
    Workload {
        name: "long",
        title: "1,000 script-made pages: memory",
        load: Site { pages: 50, ..SITE },
        goals: &[
            at_most(GROWTH, 1.0, GoalBase::Absolute).named("growth"),
            at_most(PEAK, 1.0, GoalBase::Server(Renderer::Crawlee)).named("memory"),
            at_most(LEFT, 0.0, GoalBase::Absolute).named("processes left"),
            at_most(FAULTS, 0.0, GoalBase::Absolute).named("faults"),
        ],
        ..SCRIPTED
    },
];

/// The site of the work with this name.
pub(crate) fn site_of(name: &str) -> Option<Site> {
    WORKLOADS.iter().find(|work| work.name == name).map(|work| work.load)
}

/// Runs the comparison and prints a table in Markdown.
pub(crate) fn compare(args: &RenderArgs) -> Result<()> {
    crate::raise_limits()?;
    let works = args.flags.select(WORKLOADS)?.into_iter().map(|work| {
        let pages = if args.flags.quick { 2 } else { work.load.pages };
        let load = Site { pages: args.pages.unwrap_or(pages), ..work.load };
        RenderWorkload { load, ..*work }
    });
    let data = args.flags.data_dir()?;
    let heading = [
        format!("{}, origin and crawler on all of them,", machine()?),
        format!(
            "six pages at once, 50 links a page; {}.",
            args.flags.rounds_text("one round of two pages per host")
        ),
        format!("Versions: {}.", versions(args).join("; ")),
        String::new(),
    ];
    let takes_part = |renderer| args.flags.names(renderer);
    let all = args.flags.run(works.collect(), takes_part, |site, renderer, progress| {
        let dir = RunDir::new(&std::path::absolute(data.path())?, renderer)?;
        measure(args, site, renderer, dir.path(), progress)
    });
    let failures = all.iter().flat_map(|(work, results)| results.failures(work.name));
    let failures = failures.map(|failure| format!("\n- {failure}"));
    args.flags.write(heading.into_iter().chain(table(&all)).chain(failures), &all)
}

/// The versions, as the programs print them.
fn versions(args: &RenderArgs) -> Vec<String> {
    let packages = "from importlib.metadata import version\n\
        print(', '.join(p + ' ' + version(p) for p in ['scrapy-playwright', 'scrapy', 'playwright']))";
    let node = "for (const p of ['@crawlee/playwright', 'playwright'])\n\
        process.stdout.write(p + ' ' + require(process.argv[1] + '/node_modules/' + p + '/package.json').version + ' ')";
    let folder = std::path::absolute(&args.node).unwrap_or_default();
    let commands: [(&Path, &[&str]); 5] = [
        (&args.flags.tidings, &["--version"]),
        (&args.browser, &["--version"]),
        (Path::new("node"), &["--version"]),
        (Path::new("node"), &["-e", node, &folder.to_string_lossy()]),
        (&args.python, &["-c", packages]),
    ];
    comparison::versions(&commands)
}

/// The memory of all processes after a number of requested pages.
struct MemorySample {
    pages: f64,
    mib: f64,
}

/// Crawls the site once.
fn measure(
    args: &RenderArgs,
    site: &Site,
    renderer: Renderer,
    dir: &Path,
    progress: Progress<'_>,
) -> Result<Outcome> {
    let origin = Origin::serve(*site, (Ipv4Addr::UNSPECIFIED, 0).into())?;
    let group = ControlGroup::new()?;
    let mut command = command(args, &group, renderer, &origin, dir)?;
    let errors = dir.join("errors");
    command.current_dir(dir).stdout(Stdio::null()).stderr(File::create(&errors)?);
    let samples = RefCell::new(Vec::new());
    let mut measured = Duration::ZERO;
    let run = program::run(command, CRAWL_MAX, |elapsed| {
        if elapsed < measured + MEMORY_EVERY {
            return Ok(());
        }
        measured = elapsed;
        let requests = origin.request_log().requests;
        let is_page = |target| matches!(target, RequestTarget::Page(_));
        let pages = requests.iter().filter(|request| is_page(request.target)).count();
        let mib = to_f64(group.memory_bytes()?) / f64::from(1 << 20);
        samples.borrow_mut().push(MemorySample { pages: to_f64(pages as u64), mib });
        progress(&format!(
            "{:.1} s, {pages} of {}, {mib:.0} MiB",
            elapsed.as_secs_f64(),
            site.total_pages()
        ))
    })?;
    ensure!(run.status.success(), "{}: {}", run.status, last_line(&errors));
    thread::sleep(END_MAX);
    let left = group.processes()?.len();
    let log = origin.request_log();
    let verdict = log.judge(site);
    let pages = to_f64(verdict.pages.max(1));
    let samples = samples.into_inner();
    let peak = samples.iter().map(|sample| sample.mib).fold(0.0, f64::max);
    let figure =
        |key, label, digits, value: f64| Figure::new(key, label, digits).with_runs([value]);
    let figures = vec![
        figure(PAGES, "pages/s", 2, pages / run.took.as_secs_f64()),
        figure(CPU, "CPU ms per page", 0, group.cpu_time()?.as_secs_f64() * 1e3 / pages),
        figure(
            "waited_cpu_ms_per_page",
            "of it by wait(), ms",
            0,
            run.cpu.as_secs_f64() * 1e3 / pages,
        ),
        figure(
            "origin_cpus",
            "origin processors",
            2,
            run.own_cpu.as_secs_f64() / run.took.as_secs_f64(),
        ),
        figure(PEAK, "peak MiB", 0, peak),
        figure(GROWTH, "MiB per 100 pages", 1, 100.0 * growth(&samples)),
        figure(REQUESTS, "requests per page", 2, to_f64(log.requests.len() as u64) / pages),
        figure(OVERLAPS, "overlapping requests", 0, to_f64(verdict.overlapping)),
        figure(LEFT, "processes left", 0, to_f64(left as u64)),
        figure(FAULTS, "faults", 0, to_f64(verdict.faults())),
        figure("took_s", "start to end of the program, s", 2, run.took.as_secs_f64()),
    ];
    let is_perfect = verdict.is_clean() && verdict.unlinked == 0;
    let remark = (!is_perfect).then(|| ("verdict", "verdict", verdict.to_string()));
    Ok(Outcome { figures, words: remark.into_iter().collect() })
}

/// The slope of the memory, in MiB per page, by least squares over the last three quarters of the
/// pages. Before that, browsers start and fill their caches.
fn growth(samples: &[MemorySample]) -> f64 {
    let last = samples.last().map_or(0.0, |sample| sample.pages);
    let late: Vec<_> =
        samples.iter().filter(|it| it.pages > last / 4.0 && it.pages < last).collect();
    let count = to_f64(late.len() as u64);
    let mean = |of: fn(&MemorySample) -> f64| late.iter().map(|it| of(it)).sum::<f64>() / count;
    let (pages, mib) = (mean(|it| it.pages), mean(|it| it.mib));
    let shared: f64 = late.iter().map(|it| (it.pages - pages) * (it.mib - mib)).sum();
    let spread: f64 = late.iter().map(|it| (it.pages - pages).powi(2)).sum();
    if spread == 0.0 { 0.0 } else { shared / spread }
}

fn command(
    args: &RenderArgs,
    group: &ControlGroup,
    renderer: Renderer,
    origin: &Origin,
    dir: &Path,
) -> Result<Command> {
    let absolute = |path: &Path| std::path::absolute(path);
    let seeds: Vec<_> = origin.seeds().collect();
    let file = dir.join("seeds");
    fs::write(&file, seeds.join("\n") + "\n")?;
    let browser = absolute(&args.browser)?;
    let command = match renderer {
        Renderer::Tidings => {
            let mut command = group.command(absolute(&args.flags.tidings)?);
            command.env_remove("TIDINGS_CONFIG");
            command.args(["crawl", "--quiet", "--allow-private", "--data", "data", "--delay=0ms"]);
            command.args(["--render", "always", "--render-slots", "6", "--browser"]);
            command.arg(browser).args(seeds);
            command
        }
        Renderer::Crawlee | Renderer::CrawleeIdle => {
            let mut command = group.command("node");
            command.arg(absolute(&args.node)?.join("crawlee.js")).arg(file).arg(browser);
            command.arg(if renderer == Renderer::Crawlee { "selector" } else { "idle" });
            command
        }
        Renderer::Scrapy => {
            // Not resolved if it is a link, because its environment is where the link is.
            let is_path = args.python.components().count() > 1;
            let python = if is_path { absolute(&args.python)? } else { args.python.clone() };
            let mut command = group.command(python);
            command.arg(absolute(&args.scripts)?.join("scrapy_render.py")).arg(file).arg(browser);
            command.env("PYTHONDONTWRITEBYTECODE", "1");
            command
        }
    };
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_that_of_the_late_pages() {
        let sample = |(pages, mib)| MemorySample { pages, mib };
        // It starts, grows by half a MiB a page, and ends.
        let start = (0..25).map(|pages| (f64::from(pages), 10.0 * f64::from(pages)));
        let late = (26..100).map(|pages| (f64::from(pages), 300.0 + 0.5 * f64::from(pages)));
        let samples: Vec<_> = start.chain(late).chain([(100.0, 0.0)]).map(sample).collect();
        assert!((growth(&samples) - 0.5).abs() < 1e-9, "{}", growth(&samples));
        assert_eq!(growth(&[]).to_bits(), 0.0_f64.to_bits());
    }
}
