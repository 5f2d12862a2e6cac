//! The works of the comparison.

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use tidings_bench::origin::Site;
use tidings_load::command::flags::RunFlags;
use tidings_load::command::protection::ProtectionFlags;
use tidings_load::fan_out::FanOut;
use tidings_load::queue::Queue;
use tidings_load::{Figure, Progress, server};

use crate::latency::Latency;
use crate::programs::Program;
use crate::{Cli, announce, brokers, crawl, frontier, idle};

/// Bytes of all events.
const PAYLOAD_BYTES: usize = 128;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// Deliveries per second from one publisher to 100 subscribers
    FanOut,
    /// Publish to delivery, at 1,000 events per second to 100 subscribers
    Latency,
    /// Tasks over 10,000 keys, published, released to four workers and acknowledged
    Tasks,
    /// Memory of each of 10,000 subscribers that receive nothing
    Idle,
    /// Links that become waiting URLs, their memory, and a restart with them
    Frontier,
    /// A crawl of 20 hosts of 500 pages without a delay
    Flat,
    /// A crawl of 1,000 hosts of 10 pages: 1 s delay, 50 ms per response, so at least 10.55 s
    #[value(name = "polite-1000")]
    Polite1000,
    /// The same with 10,000 hosts of 3 pages: at least 3.20 s
    #[value(name = "polite-10000")]
    Polite10000,
    /// Announced URL to its request, on an idle system, of 1,000 hosts
    Announced,
    /// A crawl of 20 hosts of 20 pages that a script makes
    Rendered,
}

/// Pages of 10.2 KB with 30 links.
const FLAT: Site = Site {
    hosts: 20,
    pages: 500,
    page_bytes: 10_200,
    links: 30,
    response_delay: Duration::ZERO,
    crawl_delay: None,
    is_scripted: false,
};

/// The same with 1 s between two requests to a host, and 50 ms per response.
const fn polite(hosts: u32, pages: u32) -> Site {
    let (response_delay, crawl_delay) = (Duration::from_millis(50), Some(Duration::from_secs(1)));
    Site { hosts, pages, response_delay, crawl_delay, ..FLAT }
}

/// With 20 hosts, a crawler that sends one request at a time to each host is not slowed down.
const SCRIPTED: Site = Site { pages: 20, page_bytes: 2000, links: 50, is_scripted: true, ..FLAT };

impl Work {
    /// The programs that do it, in the order of their turns in a round.
    pub(crate) fn programs(self) -> &'static [Program] {
        use Program::{Crawlee, Jetstream, Nats, Redis, RedisStreams, Relay, Tidings, Wget2};
        match self {
            Self::FanOut | Self::Latency | Self::Idle => &[Tidings, Nats, Redis, Relay],
            Self::Tasks => &[Tidings, Jetstream, RedisStreams],
            Self::Flat | Self::Polite1000 | Self::Polite10000 => &[Tidings, Wget2],
            Self::Rendered => &[Tidings, Crawlee],
            Self::Frontier | Self::Announced => &[Tidings],
        }
    }

    /// Does it once with this program.
    pub(crate) fn measure(
        self,
        cli: &Cli,
        program: Program,
        progress: Progress<'_>,
    ) -> Result<Vec<Figure>> {
        let site = match self {
            Self::Announced => {
                let hosts = if cli.quick { 50 } else { 1000 };
                return announce::measure(
                    cli,
                    Site { hosts: hosts + 1, pages: 2, ..FLAT },
                    progress,
                );
            }
            Self::Flat => FLAT,
            Self::Polite1000 => polite(1000, 10),
            Self::Polite10000 => polite(10_000, 3),
            Self::Rendered => SCRIPTED,
            Self::FanOut | Self::Latency | Self::Tasks | Self::Idle | Self::Frontier => {
                let measure = || self.measure_broker(cli, program, progress);
                return server::run_pinned(cli.pin[1], measure)?;
            }
        };
        crawl::measure(cli, program, if cli.quick { a_tenth(site) } else { site }, progress)
    }

    fn measure_broker(
        self,
        cli: &Cli,
        program: Program,
        progress: Progress<'_>,
    ) -> Result<Vec<Figure>> {
        let broker = brokers::start(cli, program)?;
        let target = broker.target("t", PAYLOAD_BYTES);
        let length = RunFlags { seconds: if cli.quick { 1 } else { 5 }, runs: 1 };
        match self {
            Self::FanOut => {
                let (publishers, subscribers, window) = (1, 100, 10_000);
                let guard = ProtectionFlags::default();
                let fan_out = FanOut { publishers, subscribers, window, length, guard };
                fan_out.measure_target(target, progress)
            }
            Self::Latency => {
                let length = length.run() * 2;
                Latency { rate: 1000, subscribers: 100, length }.measure(target, progress)
            }
            Self::Idle => idle::measure(target, if cli.quick { 1000 } else { 10_000 }, progress),
            Self::Frontier => frontier::measure(cli, broker, progress),
            _ => {
                let (workers, keys, credit, window) = (4, 10_000, 1000, 20_000);
                let queue = Queue { workers, keys, credit, window, length };
                queue.measure_target(target, progress)
            }
        }
    }
}

/// A tenth of the crawl: fewer pages where pages take the time, fewer hosts where hosts do.
fn a_tenth(site: Site) -> Site {
    match site.crawl_delay {
        None => Site { pages: site.pages / 10, ..site },
        Some(_) => Site { hosts: site.hosts / 10, pages: site.pages.min(5), ..site },
    }
}
