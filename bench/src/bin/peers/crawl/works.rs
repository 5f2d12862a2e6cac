//! What crawlers are compared in, and what Tidings is to reach.

use std::net::Ipv4Addr;
use std::time::Duration;

use tidings_bench::announce::Announce;
use tidings_bench::done::Done;
use tidings_bench::figure::number;
use tidings_bench::origin::{Origin, Site};
use tidings_bench::{Figure, Watch};

use super::crawlers::Crawler::{
    self, Aiohttp, Crawlee, Rq, Scrapy, ScrapyRedis, Spider, Tidings, Wget2,
};
use super::crawlers::{self, Fleet, Place, Waiting};
use crate::results::Row;
use crate::works::{Outcome, Reach, Shown, To, at_least, at_most, plain};

/// Longer than anybody takes that is worth to be compared.
const CRAWL_MAX: Duration = Duration::from_mins(3);

const PAGES: &str = "pages_per_second";
const CPU_PAGE: &str = "cpu_ms_per_page";
const CPU: &str = "cpu_s";
const PEAK: &str = "peak_mib";
const SPAN: &str = "span_s";
const FAULTS: &str = "faults";

/// One line of the comparison.
#[derive(Clone, Copy)]
pub(super) struct Work {
    /// Its name for `--only`.
    pub(super) name: &'static str,
    title: &'static str,
    doing: Doing,
    /// In the order of their turns in a round.
    pub(super) crawlers: &'static [Crawler],
    shown: &'static [Shown],
    reach: &'static [Reach<Crawler>],
}

/// What is done.
#[derive(Debug, Clone, Copy)]
enum Doing {
    /// A crawl of all of this.
    Crawl(Site),
    /// Single pages, as they are announced.
    Announced(Announce),
    /// Crawls, until the news that they are done.
    Done(Done),
}

/// 10.2 KB a page, 30 links.
const fn site(hosts: u32, pages: u32) -> Site {
    Site {
        hosts,
        pages,
        page_bytes: 10_200,
        links: 30,
        answer_after: Duration::ZERO,
        delay: None,
        says_keep_alive: true,
    }
}

/// The same with a second between two requests to a host, and 50 ms for each.
const fn polite(hosts: u32, pages: u32) -> Doing {
    let (answer_after, delay) = (Duration::from_millis(50), Some(Duration::from_secs(1)));
    Doing::Crawl(Site { answer_after, delay, ..site(hosts, pages) })
}

const POLITE: &[Shown] = &[plain(SPAN, " s", 2), plain(CPU, " s CPU", 2), plain(PEAK, " MiB", 0)];

const fn polite_reach(span_s: f64, peak_mib: f64) -> [Reach<Crawler>; 4] {
    [
        at_most(SPAN, span_s, To::Itself),
        at_most(FAULTS, 0.0, To::Itself).named("faults"),
        at_most(CPU, 1.5, To::Itself).named("CPU"),
        at_most(PEAK, peak_mib, To::Itself).named("MiB"),
    ]
}

/// Everything, in the order of the table.
pub(super) const WORKS: &[Work] = &[
    Work {
        name: "flat",
        title: "20 hosts x 500 pages, no delay, pages/s (CPU per page, peak)",
        doing: Doing::Crawl(site(20, 500)),
        crawlers: &[Tidings, Wget2, Spider, Aiohttp, Crawlee, Scrapy],
        shown: &[plain(PAGES, "", 0), plain(CPU_PAGE, " ms", 3), plain(PEAK, " MiB", 0)],
        reach: &[
            at_least(PAGES, 1.0, To::BestPeer),
            at_least(PAGES, 1.0, To::Server(Wget2)),
            at_most(CPU_PAGE, 1.0, To::Server(Wget2)).named("CPU"),
            at_least(PAGES, 20_000.0, To::Itself),
            at_most(FAULTS, 0.0, To::Itself).named("faults"),
            at_most(PEAK, 60.0, To::Itself).named("MiB"),
        ],
    },
    Work {
        name: "polite-1000",
        title: "1,000 hosts x 10 pages, 1 s delay, 50 ms answers, first request to last answer (at least 10.55 s)",
        doing: polite(1000, 10),
        crawlers: &[Tidings, Aiohttp, Spider, Wget2, Scrapy],
        shown: POLITE,
        reach: &polite_reach(11.0, 80.0),
    },
    Work {
        name: "polite-200",
        title: "200 hosts x 50 pages (at least 52.55 s)",
        doing: polite(200, 50),
        crawlers: &[Tidings, Aiohttp, Spider, Wget2, Scrapy],
        shown: POLITE,
        reach: &polite_reach(53.0, 80.0),
    },
    Work {
        name: "polite-10000",
        title: "10,000 hosts x 3 pages (at least 3.20 s)",
        doing: polite(10_000, 3),
        crawlers: &[Tidings, Aiohttp, Spider],
        shown: POLITE,
        reach: &[
            at_most(SPAN, 5.0, To::Itself),
            at_most(FAULTS, 0.0, To::Itself).named("faults"),
            at_most(PEAK, 300.0, To::Itself).named("MiB"),
        ],
    },
    Work {
        name: "announced",
        title: "announcement to request, idle, host known p50 / p99 (host unknown)",
        doing: Doing::Announced(Announce { hosts: 1000, longest: Duration::from_secs(20) }),
        crawlers: &[Tidings, Rq, ScrapyRedis],
        shown: &[
            plain("known_p50_ms", " ms", 2),
            plain("known_p99_ms", " ms", 2),
            plain("unknown_p50_ms", " ms", 2),
            plain("unknown_p99_ms", " ms", 2),
        ],
        reach: &[
            at_most("known_p50_ms", 0.5, To::Itself).named("p50"),
            at_most("known_p99_ms", 2.0, To::Itself).named("p99"),
            at_most("unknown_p50_ms", 0.5, To::Itself).named("unknown p50"),
            at_most("unknown_p99_ms", 2.0, To::Itself).named("unknown p99"),
        ],
    },
    Work {
        name: "done",
        title: "last page to `job-done`, 4 workers, p50 (longest of 100)",
        doing: Doing::Done(Done { jobs: 100, workers: 4 }),
        crawlers: &[Tidings],
        shown: &[plain("done_p50_ms", " ms", 2), plain("done_longest_ms", " ms", 2)],
        reach: &[
            at_most("done_p50_ms", 5.0, To::Itself).named("p50"),
            at_most("done_longest_ms", 5.0, To::Itself).named("longest"),
            at_most("late_requests", 0.0, To::Itself).named("requests after it"),
        ],
    },
];

/// The site of a work.
pub(super) fn site_of(name: &str) -> Option<Site> {
    WORKS.iter().find(|work| work.name == name).map(|work| work.doing.site())
}

impl Work {
    /// Its line of the table.
    pub(super) fn row(&self) -> Row<'static, Crawler> {
        Row {
            title: self.title.to_owned(),
            contestants: self.crawlers,
            shown: self.shown,
            reach: self.reach,
        }
    }

    /// The same by an origin that does not say that connections stay.
    #[must_use]
    pub(super) fn tersely(mut self) -> Self {
        if let Doing::Crawl(site) = &mut self.doing {
            site.says_keep_alive = false;
        }
        self
    }

    /// A tenth of it: whether it works.
    #[must_use]
    pub(super) fn quick(mut self) -> Self {
        match &mut self.doing {
            // Fewer pages where pages take the time, fewer hosts where hosts do.
            Doing::Crawl(site) if site.delay.is_none() => site.pages /= 10,
            Doing::Crawl(site) => {
                site.hosts /= 10;
                site.pages = site.pages.min(5);
            }
            Doing::Announced(announce) => {
                *announce = Announce { hosts: 50, longest: Duration::from_secs(5) };
            }
            Doing::Done(done) => done.jobs /= 10,
        }
        self
    }

    /// Does it once.
    pub(super) fn measure(
        &self,
        place: &Place,
        crawler: Crawler,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<Outcome> {
        // Every address of this machine, of which those of the hosts are some.
        let origin = Origin::serve(self.doing.site(), (Ipv4Addr::UNSPECIFIED, 0).into())?;
        let figures = match &self.doing {
            Doing::Crawl(_) => return crawl(place, crawler, &origin, watch),
            Doing::Announced(announce) => {
                let mut waiting = Waiting::start(place, crawler)?;
                announce.measure(&origin, |url| waiting.ring(url), watch)?
            }
            Doing::Done(done) => {
                let fleet = Fleet::start(place, done.workers)?;
                done.measure(&origin, fleet.broker(), watch)?
            }
        };
        Ok(Outcome { figures, word: None })
    }
}

impl Doing {
    fn site(&self) -> Site {
        match self {
            Self::Crawl(site) => *site,
            // One more, for who is still starting.
            Self::Announced(announce) => site(announce.hosts + 1, 2),
            Self::Done(_) => Site { answer_after: Duration::from_millis(5), ..site(8, 20) },
        }
    }
}

fn crawl(
    place: &Place,
    crawler: Crawler,
    origin: &Origin,
    watch: &mut Watch<'_>,
) -> anyhow::Result<Outcome> {
    let expected = origin.site().pages_in_all();
    let ran = crawlers::crawl(place, crawler, origin, CRAWL_MAX, |since| {
        watch(&format!("{:.1} s, {} requests of {expected}", since.as_secs_f64(), origin.hits()))
    })?;
    let verdict = origin.record().judge(origin.site());
    let figure = |key, label, digits, value: f64| Figure::new(key, label, digits).with([value]);
    let (took, cpu) = (ran.took.as_secs_f64(), ran.cpu.as_secs_f64());
    let pages = number(verdict.pages.max(1));
    let faults = verdict.missing + verdict.repeated + verdict.before_robots + verdict.early;
    let figures = vec![
        figure(PAGES, "pages/s", 0, pages / took),
        figure(CPU_PAGE, "CPU ms per page", 3, cpu * 1e3 / pages),
        figure(CPU, "CPU s", 2, cpu),
        figure("origin_cpus", "origin processors", 2, ran.own_cpu.as_secs_f64() / took),
        figure(PEAK, "peak MiB", 1, number(ran.peak_bytes) / f64::from(1 << 20)),
        figure("took_s", "start to end of the program, s", 2, took),
        figure(SPAN, "first request to last answer, s", 2, verdict.span.as_secs_f64()),
        figure(FAULTS, "faults", 0, number(faults)),
        figure("early", "too early", 0, number(verdict.early)),
        figure("earliest_ms", "by up to, ms", 0, verdict.earliest.as_secs_f64() * 1e3),
        figure("missing", "missing", 0, number(verdict.missing)),
        figure("connections", "connections", 0, number(verdict.connections)),
    ];
    let is_perfect = faults == 0 && verdict.strange == 0;
    Ok(Outcome { figures, word: (!is_perfect).then(|| verdict.to_string()) })
}
