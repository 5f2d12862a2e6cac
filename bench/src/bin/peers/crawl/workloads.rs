//! The works of the comparison of crawlers, and the goals of Tidings.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Result;
use tidings_bench::announce::Announce;
use tidings_bench::job_done::JobDone;
use tidings_bench::origin::{Origin, PageKind, Site};
use tidings_load::command::Outcome;
use tidings_load::figure::to_f64;
use tidings_load::{Figure, Progress};

use super::crawlers::Crawler::{
    self, Aiohttp, Crawlee, Rq, Scrapy, ScrapyRedis, Spider, Tidings, Wget2,
};
use super::crawlers::{self, AnnouncedCrawler, CrawlerPaths, WorkerFleet};
use crate::workloads::{Column, Goal, GoalBase, Workload, at_least, at_most, plain};

/// Time limit of a crawl; slower crawlers are not worth comparing.
const CRAWL_MAX: Duration = Duration::from_mins(3);

const PAGES: &str = "pages_per_second";
const CPU_PAGE: &str = "cpu_ms_per_page";
const CPU: &str = "cpu_s";
const PEAK: &str = "peak_mib";
const SPAN: &str = "span_s";
const FAULTS: &str = "faults";

/// A work of crawlers.
pub(super) type CrawlWorkload = Workload<Crawler, CrawlTask>;

/// The work.
#[derive(Debug, Clone, Copy)]
pub(super) enum CrawlTask {
    /// A crawl of this whole site.
    Crawl(Site),
    /// Single pages, as they are announced.
    Announced(Announce),
    /// Crawls, until their `job-done` event.
    Done(JobDone),
}

/// Pages of 10.2 KB with 30 links.
const fn site(hosts: u32, pages: u32) -> Site {
    Site {
        hosts,
        pages,
        page_bytes: 10_200,
        links: 30,
        response_delay: Duration::ZERO,
        crawl_delay: None,
        sends_keep_alive: true,
        kind: PageKind::Static,
    }
}

/// The same with 1 s between two requests to a host, and 50 ms per response.
const fn polite(hosts: u32, pages: u32) -> CrawlTask {
    let (response_delay, crawl_delay) = (Duration::from_millis(50), Some(Duration::from_secs(1)));
    CrawlTask::Crawl(Site { response_delay, crawl_delay, ..site(hosts, pages) })
}

const POLITE: &[Column] = &[plain(SPAN, " s", 2), plain(CPU, " s CPU", 2), plain(PEAK, " MiB", 0)];

const fn polite_goals(span_s: f64, peak_mib: f64) -> [Goal<Crawler>; 4] {
    [
        at_most(SPAN, span_s, GoalBase::Absolute),
        at_most(FAULTS, 0.0, GoalBase::Absolute).named("faults"),
        at_most(CPU, 1.5, GoalBase::Absolute).named("CPU"),
        at_most(PEAK, peak_mib, GoalBase::Absolute).named("MiB"),
    ]
}

/// All works, in the order of the table.
pub(super) const WORKLOADS: &[CrawlWorkload] = &[
    CrawlWorkload {
        name: "flat",
        title: "20 hosts x 500 pages, no delay, pages/s (CPU per page, peak)",
        load: CrawlTask::Crawl(site(20, 500)),
        contestants: &[Tidings, Wget2, Spider, Aiohttp, Crawlee, Scrapy],
        columns: &[plain(PAGES, "", 0), plain(CPU_PAGE, " ms", 3), plain(PEAK, " MiB", 0)],
        goals: &[
            at_least(PAGES, 1.0, GoalBase::BestPeer),
            at_least(PAGES, 1.0, GoalBase::Server(Wget2)),
            at_most(CPU_PAGE, 1.0, GoalBase::Server(Wget2)).named("CPU"),
            at_least(PAGES, 20_000.0, GoalBase::Absolute),
            at_most(FAULTS, 0.0, GoalBase::Absolute).named("faults"),
            at_most(PEAK, 60.0, GoalBase::Absolute).named("MiB"),
        ],
    },
    CrawlWorkload {
        name: "polite-1000",
        title: "1,000 hosts x 10 pages, 1 s delay, 50 ms answers, first request to last answer (at least 10.55 s)",
        load: polite(1000, 10),
        contestants: &[Tidings, Aiohttp, Spider, Wget2, Scrapy],
        columns: POLITE,
        goals: &polite_goals(11.0, 80.0),
    },
    CrawlWorkload {
        name: "polite-200",
        title: "200 hosts x 50 pages (at least 52.55 s)",
        load: polite(200, 50),
        contestants: &[Tidings, Aiohttp, Spider, Wget2, Scrapy],
        columns: POLITE,
        goals: &polite_goals(53.0, 80.0),
    },
    CrawlWorkload {
        name: "polite-10000",
        title: "10,000 hosts x 3 pages (at least 3.20 s)",
        load: polite(10_000, 3),
        contestants: &[Tidings, Aiohttp, Spider],
        columns: POLITE,
        goals: &[
            at_most(SPAN, 5.0, GoalBase::Absolute),
            at_most(FAULTS, 0.0, GoalBase::Absolute).named("faults"),
            at_most(PEAK, 300.0, GoalBase::Absolute).named("MiB"),
        ],
    },
    CrawlWorkload {
        name: "announced",
        title: "announcement to request, idle, host known p50 / p99 (host unknown)",
        load: CrawlTask::Announced(Announce { hosts: 1000, time_max: Duration::from_secs(20) }),
        contestants: &[Tidings, Rq, ScrapyRedis],
        columns: &[
            plain("known_p50_ms", " ms", 2),
            plain("known_p99_ms", " ms", 2),
            plain("unknown_p50_ms", " ms", 2),
            plain("unknown_p99_ms", " ms", 2),
        ],
        goals: &[
            at_most("known_p50_ms", 0.5, GoalBase::Absolute).named("p50"),
            at_most("known_p99_ms", 2.0, GoalBase::Absolute).named("p99"),
            at_most("unknown_p50_ms", 0.5, GoalBase::Absolute).named("unknown p50"),
            at_most("unknown_p99_ms", 2.0, GoalBase::Absolute).named("unknown p99"),
        ],
    },
    CrawlWorkload {
        name: "done",
        title: "last page to `job-done`, 4 workers, p50 (longest of 100)",
        load: CrawlTask::Done(JobDone { jobs: 100, workers: 4 }),
        contestants: &[Tidings],
        columns: &[plain("done_p50_ms", " ms", 2), plain("done_longest_ms", " ms", 2)],
        goals: &[
            at_most("done_p50_ms", 5.0, GoalBase::Absolute).named("p50"),
            at_most("done_longest_ms", 5.0, GoalBase::Absolute).named("longest"),
            at_most("late_requests", 0.0, GoalBase::Absolute).named("requests after it"),
        ],
    },
];

/// The site of the work with this name.
pub(super) fn site_of(name: &str) -> Option<Site> {
    WORKLOADS.iter().find(|work| work.name == name).map(|work| work.load.site())
}

impl CrawlTask {
    /// The same work, with an origin that sends no `Connection: keep-alive`.
    #[must_use]
    pub(super) fn without_keep_alive(mut self) -> Self {
        if let CrawlTask::Crawl(site) = &mut self {
            site.sends_keep_alive = false;
        }
        self
    }

    /// A tenth of the work, to test whether it runs.
    #[must_use]
    pub(super) fn quick(mut self) -> Self {
        match &mut self {
            // Fewer pages where pages take the time, fewer hosts where hosts do.
            CrawlTask::Crawl(site) if site.crawl_delay.is_none() => site.pages /= 10,
            CrawlTask::Crawl(site) => {
                site.hosts /= 10;
                site.pages = site.pages.min(5);
            }
            CrawlTask::Announced(announce) => {
                *announce = Announce { hosts: 50, time_max: Duration::from_secs(5) };
            }
            CrawlTask::Done(done) => done.jobs /= 10,
        }
        self
    }

    /// Runs the work once.
    pub(super) fn measure(
        &self,
        paths: &CrawlerPaths,
        crawler: Crawler,
        progress: Progress<'_>,
    ) -> Result<Outcome> {
        // All addresses of this machine, which include those of the hosts.
        let origin = Origin::serve(self.site(), (Ipv4Addr::UNSPECIFIED, 0).into())?;
        let figures = match self {
            CrawlTask::Crawl(_) => return crawl(paths, crawler, &origin, progress),
            CrawlTask::Announced(announce) => {
                let mut announced = AnnouncedCrawler::start(paths, crawler)?;
                announce.measure(&origin, |url| announced.announce(url), progress)?
            }
            CrawlTask::Done(done) => {
                let fleet = WorkerFleet::start(paths, done.workers)?;
                done.measure(&origin, fleet.broker(), progress)?
            }
        };
        Ok(figures.into())
    }

    fn site(&self) -> Site {
        match self {
            Self::Crawl(site) => *site,
            // One more host, for a crawler that is still starting.
            Self::Announced(announce) => site(announce.hosts + 1, 2),
            Self::Done(_) => Site { response_delay: Duration::from_millis(5), ..site(8, 20) },
        }
    }
}

fn crawl(
    paths: &CrawlerPaths,
    crawler: Crawler,
    origin: &Origin,
    progress: Progress<'_>,
) -> Result<Outcome> {
    let expected = origin.site().total_pages();
    let run = crawlers::crawl(paths, crawler, origin, CRAWL_MAX, |elapsed| {
        progress(&format!(
            "{:.1} s, {} requests of {expected}",
            elapsed.as_secs_f64(),
            origin.request_count()
        ))
    })?;
    let verdict = origin.request_log().judge(origin.site());
    let figure =
        |key, label, digits, value: f64| Figure::new(key, label, digits).with_runs([value]);
    let (took, cpu) = (run.took.as_secs_f64(), run.cpu.as_secs_f64());
    let pages = to_f64(verdict.pages.max(1));
    let faults = verdict.faults();
    let figures = vec![
        figure(PAGES, "pages/s", 0, pages / took),
        figure(CPU_PAGE, "CPU ms per page", 3, cpu * 1e3 / pages),
        figure(CPU, "CPU s", 2, cpu),
        figure("origin_cpus", "origin processors", 2, run.own_cpu.as_secs_f64() / took),
        figure(PEAK, "peak MiB", 1, to_f64(run.peak_bytes) / f64::from(1 << 20)),
        figure("took_s", "start to end of the program, s", 2, took),
        figure(SPAN, "first request to last answer, s", 2, verdict.span.as_secs_f64()),
        figure(FAULTS, "faults", 0, to_f64(faults)),
        figure("early", "too early", 0, to_f64(verdict.too_early)),
        figure("earliest_ms", "by up to, ms", 0, verdict.early_by_max.as_secs_f64() * 1e3),
        figure("missing", "missing", 0, to_f64(verdict.missing)),
        figure("connections", "connections", 0, to_f64(verdict.connections)),
    ];
    let is_perfect = faults == 0 && verdict.unlinked == 0;
    let remark = (!is_perfect).then(|| ("verdict", "verdict", verdict.to_string()));
    Ok(Outcome { figures, words: remark.into_iter().collect() })
}
