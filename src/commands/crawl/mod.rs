//! `tidings crawl`: with URLs, one job from start to end; without URLs, a crawler that works for a
//! broker until it is stopped.

mod screen;
mod seeds;
mod tally;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

use clap::Args;
use tidings_protocol::status::JobEnd;
use tidings_protocol::{JobName, RenderRule};
use tokio_util::sync::CancellationToken;

use self::screen::{Screen, ScreenStyle};
use self::seeds::Seeds;
use crate::client::connection;
use crate::client::job::{JobLimits, JobRequest, Scope};
use crate::client::job_watch::{self, JobUpdate, JobWatch};
use crate::commands::up::{self, PagePrinter};
use crate::commands::watch_feed::{FeedsFlag, watch_configured};
use crate::flags::address::{BrokerAddress, Listen};
use crate::flags::broker::OptionalBrokerFlag;
use crate::flags::{self, DataFlag};
use crate::process::pid_file::PidFile;
use crate::process::signals::stop_on_signal;
use crate::process::stack::{self, Crawler, Stack, StopTimeout};
use crate::services::crawler_flags::CrawlerFlags;
use crate::services::crawler_http::CrawlerHttpFlags;
use crate::services::server_flags::broker_config;
use crate::services::{contact, sinks};
use crate::terminal::failure::Failure;
use crate::terminal::output::{note, plural};

/// The limit of connections of an embedded broker: its crawler, the watcher of its job, and
/// commands that inspect it.
const EMBEDDED_CONNECTIONS_MAX: usize = 64;

const EXAMPLES: &str = "\
Where the pages are fetched:
  - with --broker ADDR, or while `tidings up` runs on the same data directory, by the crawlers there
  - otherwise by a crawler of this command

Examples:
  tidings crawl https://example.org/                     all pages of that host
  tidings crawl https://example.org/docs/ --scope prefix --max-pages 500
  tidings crawl --seeds hosts.txt --max-per-host 100 --exclude '*.pdf$' --json > pages.jsonl
  tidings crawl --broker 10.0.0.1:12345                  fetch for that broker until stopped

Exit codes: 0 all done; 1 some pages failed, or the job was cancelled; 2 wrong usage, nothing was
started; 130 interrupted.
Pages that robots.txt, the scope or a limit excludes have not failed.

A pattern has the syntax of robots.txt: * matches any text, and $ at the end matches the end of the
URL. A pattern that begins with http is compared with the whole URL, one that begins with / or *
with path and query. Upper and lower case differ: '*.pdf$' does not match report.PDF. Write %2C for
a comma.";

/// The flags of `tidings crawl`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CrawlArgs {
    /// URLs to begin with; with --broker and without URLs, fetch for that broker
    #[arg(value_name = "URL")]
    urls: Vec<String>,

    /// Read more URLs from this file, one on each line; - reads standard input
    ///
    /// A line may also be a host, or a row of a table with a URL or host in one column. Lines
    /// without one are skipped and counted. The file may be a sitemap, a feed or OPML, also the URL
    /// of a sitemap or feed.
    #[arg(long, value_name = "FILE")]
    seeds: Option<PathBuf>,

    /// The name of the job; the same name continues it [default: from the URLs and the limits]
    #[arg(long, value_name = "NAME")]
    job: Option<JobName>,

    /// End at the first line of --seeds without a URL or host, and fetch nothing
    #[arg(long, requires = "seeds")]
    strict_seeds: bool,

    /// Follow links up to this many steps from the first URLs; 0 fetches only those [default: no
    /// limit]
    #[arg(long, value_name = "N")]
    depth: Option<u32>,

    /// Stop after this many pages; redirects and failures do not count [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_pages: Option<u64>,

    /// The same for the pages of each host [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_per_host: Option<u64>,

    /// Stop after this time [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration)]
    max_time: Option<Duration>,

    /// Links to follow: those on the same hosts, in the same registrable domains, below the same
    /// paths, or any
    #[arg(long, value_enum, default_value_t)]
    scope: Scope,

    /// Follow only links that match this pattern; may be repeated
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    include: Vec<String>,

    /// Do not follow links that match this pattern; may be repeated
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    exclude: Vec<String>,

    /// Wait this long between two requests to one host [default: 1s, 0 for loopback]
    #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration)]
    delay: Option<Duration>,

    /// With --broker and without URLs: stop after about this many tasks
    ///
    /// The crawler takes no more tasks, finishes those that it has, and exits with code 0, so that
    /// a service manager starts a new one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_tasks: Option<u64>,

    /// With --broker and without URLs: stop in the same way after this time
    ///
    /// Up to a tenth is added at random, so that the crawlers of a fleet stop in turn.
    #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration)]
    max_age: Option<Duration>,

    #[command(flatten)]
    broker: OptionalBrokerFlag,

    /// Print only the summary
    #[arg(long, short)]
    quiet: bool,

    /// Print one JSON object for each page, then one for the summary
    #[arg(long)]
    json: bool,

    /// Write the process id to this file; refuse to start while another process holds it
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,

    #[command(flatten)]
    data: DataFlag,

    #[command(flatten)]
    crawler: CrawlerFlags,

    #[command(flatten)]
    http: CrawlerHttpFlags,

    #[command(flatten)]
    feeds: FeedsFlag,

    /// Long names of the flags that were typed.
    #[arg(skip)]
    pub(crate) typed_flags: Vec<String>,
}

impl CrawlArgs {
    /// What names the broker.
    fn named_by(&self) -> &'static str {
        let is_typed = |name: &str| self.typed_flags.iter().any(|flag| flag == name);
        match env::var_os("TIDINGS_BROKER") {
            _ if is_typed("broker") => "--broker",
            _ if is_typed("context") => "--context",
            Some(_) => "TIDINGS_BROKER",
            None => "the context or the configuration file",
        }
    }

    fn request(&self) -> Result<JobRequest, String> {
        let file = self.seeds.as_deref();
        let Seeds { urls, left_out } = seeds::read(&self.urls, file, self.strict_seeds)?;
        if let Some(left_out) = left_out {
            note(&left_out);
        }
        let bounds = JobLimits {
            scope: self.scope,
            include: self.include.clone(),
            exclude: self.exclude.clone(),
            depth: self.depth,
            max_pages: self.max_pages,
            max_per_host: self.max_per_host,
            max_time: self.max_time,
            render: None,
        };
        Ok(JobRequest::new(urls, bounds)?.named(self.job.clone()))
    }

    fn screen(&self, request: &JobRequest) -> Screen {
        Screen::new(ScreenStyle { quiet: self.quiet, json: self.json }, request.max_pages())
    }
}

/// Flags about a job, which have no effect in a crawler without one.
const JOB_FLAGS: [&str; 9] = [
    "job",
    "depth",
    "max-pages",
    "max-per-host",
    "max-time",
    "scope",
    "include",
    "exclude",
    "json",
];

/// How the delay of another broker is changed.
const DELAY_OF_BROKER: &str =
    "the broker sets the delay, with: tidings group set crawlers delay=DURATION";

/// Runs until the job is done, or until SIGINT or SIGTERM.
pub(crate) async fn run(args: CrawlArgs) -> Result<(), Failure> {
    args.crawler.sinks.check(&args.data)?;
    let request = args.request().map_err(Failure::Usage)?;
    let _pid_file = args.pid_file.as_deref().map(PidFile::acquire).transpose()?;
    if request.seeds.is_empty() {
        return run_worker(args).await;
    }
    let reason =
        "is for a crawler without URLs; a job ends by itself, or at --max-time or --max-pages";
    reject_flags(&args, &["max-tasks", "max-age"], reason)?;
    let stop = stop_on_signal()?;
    let (broker, found_by) = match &args.broker.broker {
        Some(broker) => (Some(broker.clone()), args.named_by()),
        None => (connection::running_broker(&args.data.data).await, "the data directory"),
    };
    match broker {
        Some(broker) => run_on_broker(&args, request, broker, found_by, &stop).await,
        None => run_embedded(&args, request, &stop).await,
    }
}

/// Fetches what the broker's group releases, until it is stopped.
async fn run_worker(args: CrawlArgs) -> Result<(), Failure> {
    let Some(broker) = &args.broker.broker else {
        return Err(Failure::Usage(
            "give the URLs to crawl, such as tidings crawl https://example.org/, or --broker \
             HOST:PORT to fetch for that broker (see tidings crawl --help)"
                .to_owned(),
        ));
    };
    reject_flags(&args, &JOB_FLAGS, "is about a job; add the URLs of the job")?;
    reject_flags(&args, &["delay"], &format!("has no effect with --broker; {DELAY_OF_BROKER}"))?;
    let stop = stop_on_signal()?;
    stack::make_data_directory(&args.data.data)?;
    let mut crawling = args.crawler.config(broker, &args.data)?;
    (crawling.max_tasks, crawling.max_age) = (args.max_tasks, args.max_age);
    let mut printer = PagePrinter::new(args.quiet, args.crawler.outgoing.lack_contact(), &crawling);
    printer
        .line(&format!("fetching for {broker}, storing in {}", sinks::describe_sinks(&crawling)));
    let http = args.http.start(&crawling.metrics)?;
    if let Some(http) = &http {
        printer.line(&http_line(http.address));
    }
    let mut crawler = Crawler::start(crawling);
    let result = tokio::select! {
        result = up::print_pages(&mut crawler, &mut printer, &stop) => result,
        () = watch_configured(broker, &args.feeds) => Ok(()),
    };
    for report in crawler.stop(StopTimeout::default().crawler()).await {
        printer.page(&report);
    }
    result
}

/// Hands the job to the crawlers of another broker and watches it.
async fn run_on_broker(
    args: &CrawlArgs,
    request: JobRequest,
    broker: BrokerAddress,
    found_by: &str,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let reason = format!(
        "applies only to a crawl with its own broker, but this job goes to the broker at {broker} (found by \
         {found_by}), which has its own settings"
    );
    reject_flags(args, &["delay"], &format!("{reason}; {DELAY_OF_BROKER}"))?;
    let mut names = CrawlerFlags::names();
    // Flags are named by their fields here.
    names.extend(["http", "http-token-file"].map(str::to_owned));
    // It may have led to the broker.
    names.extend(args.broker.broker.is_some().then(|| "data".to_owned()));
    names.retain(|name| name != "render");
    reject_flags(args, &names, &reason)?;
    let rule = args.crawler.browser.render.clone();
    let request = request.with_render(rule.clone());
    let name = request.name();
    let mut screen = args.screen(&request);
    screen.console.note(&format!("job {name} goes to the crawlers of {broker}"));
    let needs_browser = !matches!(rule, None | Some(RenderRule::Never | RenderRule::Auto));
    match job_watch::crawlers(&broker).await? {
        (0, _) => screen.console.note(&format!(
            "note: no crawler is connected there yet; start one with: tidings crawl --broker {broker}"
        )),
        (_, 0) if needs_browser => screen.console.note(&format!(
            "note: no crawler with a browser is connected there, and pages that are to be rendered \
             wait for one; start one with: tidings crawl --broker {broker} --browser auto"
        )),
        _ => {}
    }
    let mut watch = JobWatch::open(broker.clone(), request, screen.console.shows_progress());
    let end = loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => {
                return Err(Failure::Interrupted(format!(
                    "stopped watching; job {name} continues at {broker}; repeat the command to watch it \
                     again"
                )));
            }
            news = watch.next() => match news? {
                JobUpdate::Progress(counts) => screen.draw_progress(&counts),
                JobUpdate::Done(counts) => break *counts,
            }
        }
    };
    let result = screen.print_summary(&end, &format!("by the crawlers of {broker}"));
    if end.counts.failed > 0 {
        let which = format!("which ones: tidings job failed {name} --broker {broker}");
        screen.console.note(&which);
    }
    result
}

/// Crawls with a broker and a crawler of this process.
async fn run_embedded(
    args: &CrawlArgs,
    request: JobRequest,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    stack::make_data_directory(&args.data.data)?;
    stack::check_unused(&args.data.data)?;
    let listen = Listen((Ipv4Addr::LOCALHOST, 0).into());
    let mut config = broker_config(listen, args.delay);
    // The directory belongs to this job alone, so that nothing else is fetched.
    let name = request.name();
    let queue = args.data.data.join("crawls").join(name.as_str());
    config.data = Some(queue.clone());
    config.limits.connections_max = EMBEDDED_CONNECTIONS_MAX;
    let member = stack::set_own_member(&mut config);
    let broker = stack::start_broker(config).await?;
    let address = BrokerAddress::from(broker.local_addr());
    let mut crawling = args.crawler.config(&address, &args.data)?;
    crawling.member = Some(member);
    let stored = format!("in {}", sinks::describe_sinks(&crawling));
    let mut screen = args.screen(&request);
    if sinks::use_stdout(&crawling) {
        screen.use_stderr();
    }
    if args.crawler.outgoing.lack_contact() && !request.seeds.iter().all(contact::is_local) {
        screen.console.note(contact::WARNING);
    }
    let http = args.http.start(&crawling.metrics)?;
    if let Some(http) = &http {
        screen.console.note(&http_line(http.address));
    }
    if screen.console.shows_progress() {
        screen.console.note(&format!("to steer it, add --broker {address} to another command"));
    }
    let crawler = Crawler::start(crawling);
    let mut node = Stack { broker, crawler };
    let mut watch = JobWatch::open(address, request, screen.console.shows_progress());
    let result = follow_job(&mut node.crawler, &mut watch, &mut screen, stop).await;
    // It would report the loss of its broker.
    drop(watch);
    // The report of the last page may arrive after the end of the job.
    for report in node.stop(StopTimeout::default()).await {
        screen.print_page(&report)?;
    }
    let Some(end) = result? else {
        screen.print_interrupted()?;
        return Err(Failure::Interrupted(format!(
            "interrupted after {}, stored {stored}; repeat the command to continue",
            plural(screen.pages(), "page")
        )));
    };
    // Rename first: a partly removed queue would look like one of an interrupted crawl.
    // The name of a job begins with a letter or digit.
    let done = queue.with_file_name(format!(".{name}.done"));
    // An earlier run may have left it.
    let _ = fs::remove_dir_all(&done);
    let removed = fs::rename(&queue, &done).and_then(|()| fs::remove_dir_all(&done));
    if let Err(error) = removed {
        tracing::warn!(%error, "cannot remove the queue of a finished crawl: {}", queue.display());
    }
    screen.print_summary(&end, &stored)
}

/// Prints pages and progress until the job is done; `None`: it was stopped before.
async fn follow_job(
    crawler: &mut Crawler,
    watch: &mut JobWatch,
    screen: &mut Screen,
    stop: &CancellationToken,
) -> Result<Option<JobEnd>, Failure> {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(None),
            pages = crawler.pages() => {
                let ended = || Failure::failed("the crawler has ended before its job");
                for page in pages?.ok_or_else(ended)? {
                    screen.print_page(&page)?;
                }
            }
            news = watch.next() => match news? {
                JobUpdate::Progress(counts) => screen.draw_progress(&counts),
                JobUpdate::Done(counts) => return Ok(Some(*counts)),
            }
        }
    }
}

/// The line that names the address of the metrics.
fn http_line(address: SocketAddr) -> String {
    format!("HTTP at {}", stack::http_url(address, false))
}

/// Rejects typed flags that would have no effect.
fn reject_flags(args: &CrawlArgs, flags: &[impl AsRef<str>], reason: &str) -> Result<(), Failure> {
    let mut flags = flags.iter().map(AsRef::as_ref);
    match flags.find(|flag| args.typed_flags.iter().any(|typed| typed == flag)) {
        Some(flag) => Err(Failure::Usage(format!("--{flag} {reason}"))),
        None => Ok(()),
    }
}
