//! `tidings up`: a broker and a crawler in one process, with a line for each page.

use std::path::Path;

use anyhow::Context;
use clap::Args;
use tidings_broker::BrokerConfig;
use tidings_protocol::CanonicalUrl;
use tidings_subscriber::{CrawlerConfig, PageReport};
use tokio_util::sync::CancellationToken;

use crate::{
    address::Announced,
    beside::Prepared,
    cmd::{
        broker::{http_line, warn_if_open},
        watch_feed::{FeedsFlag, watch_configured},
    },
    contact,
    failure::Failure,
    flags::{CrawlerFlags, DataFlag, ServerFlags},
    node::{self, Crawler, Node, Stopping},
    output::Console,
    page_line::page_line,
    process::Places,
    service::{self, Service, Started},
    signals::stop_on_signal,
    sinks,
};

const EXAMPLES: &str = "\
Then, in another terminal:
  echo https://example.org/ | nc -N 127.0.0.1 12345    that page, alone
  tidings crawl https://example.org/ --depth 2         a job for this crawler, from the same directory
  telnet 127.0.0.1 12345                               type HELP for the commands

Events are in DIR/topics, queues and jobs in DIR/groups, pages in DIR/pages.db, an SQLite database.
Ctrl-C stops cleanly; a second one stops at once.";

/// The flags of `tidings up`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) server: ServerFlags,

    #[command(flatten)]
    data: DataFlag,

    /// Do not print a line for each page
    #[arg(long, short)]
    quiet: bool,

    #[command(flatten)]
    crawler: CrawlerFlags,

    #[command(flatten)]
    feeds: FeedsFlag,
}

impl UpArgs {
    /// The broker's configuration, if the flags fit together and the files that they name are
    /// readable.
    pub(crate) fn broker_config(&self) -> Result<BrokerConfig, Failure> {
        self.server.config(&self.data)
    }

    /// The paths that the process uses.
    pub(crate) fn places<'a>(&'a self, config: Option<&'a Path>) -> Places<'a> {
        let sinks = &self.crawler.sinks;
        let (written, runs_programs) = (sinks.directories(), sinks.run_programs());
        Places { data: &self.data, config, written, runs_programs }
    }
}

/// Runs until SIGINT or SIGTERM.
pub(crate) async fn run(args: UpArgs, started: Started) -> Result<(), Failure> {
    let stop = stop_on_signal()?;
    let (mut service, sockets) = Service::new(started)?;
    let data = &args.data.data;
    let mut config = args.broker_config()?;
    args.server.judge(&config, &sockets, &args.data)?;
    let member = node::own_member(&mut config);
    let outgoing = &args.crawler.outgoing;
    let prepared = Prepared::new(&mut config, &args.server, outgoing, &args.data)?;
    let is_closed = config.tls.is_some() || config.access.principals.is_some();
    let broker = node::start_broker_on(config, sockets).await?;
    let (broker, beside) = prepared.start(broker).await?;
    let listening = broker.local_addr();
    let is_encrypted = args.server.secure.is_encrypted();
    let reach = node::reach(&broker);
    let _announced = Announced::write(data, &reach)
        .with_context(|| format!("cannot write to the data directory {}", data.display()))?;
    let mut crawling = args.crawler.config(&reach, &args.data);
    crawling.member = Some(member);
    let mut printer = Printer::new(args.quiet, args.crawler.outgoing.are_anonymous(), &crawling);
    let places = sinks::places(&crawling);
    let crawler = Crawler::start(crawling);

    printer.line(&format!("listening on {listening}"));
    if let Some(address) = broker.http_addr() {
        printer.line(&http_line(address, is_encrypted));
        warn_if_open(address, &args.server, &mut printer.console);
    }
    printer.line(&format!("storing in {places}"));
    let nearby = match broker.unix_path() {
        Some(path) if is_closed => format!("-NU {}", path.display()),
        _ => format!("-N {} {}", node::local(listening).ip(), listening.port()),
    };
    printer.line(&format!("next, in another terminal: echo https://example.org/ | nc {nearby}"));
    warn_if_open(listening, &args.server, &mut printer.console);
    for line in beside.said() {
        printer.console.note(line);
    }
    let mut node = Node { broker, crawler };
    service::ready();
    let result = tokio::select! {
        result = print_pages(&mut node.crawler, &mut printer, &stop) => result,
        () = service.look_after(&node.broker) => Ok(()),
        () = watch_configured(&reach, &args.feeds) => Ok(()),
        () = args.server.access.follow(&node.broker, data) => Ok(()),
    };
    let stopping = Stopping::begin(args.server.process.stop_timeout);
    service::stopping();
    node.broker.stop_listening();
    beside.stop().await;
    for report in node.stop(stopping.left()).await {
        printer.page(&report);
    }
    result
}

/// Prints a line for each page until `stop` is cancelled.
pub(crate) async fn print_pages(
    crawler: &mut Crawler,
    printer: &mut Printer,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            pages = crawler.pages() => pages?.iter().for_each(|page| printer.page(page)),
        }
    }
}

/// Prints for a service, which continues when its output is closed.
#[derive(Debug)]
pub(crate) struct Printer {
    console: Console,
    /// Do not print a line for each page
    quiet: bool,
    /// The warning about a missing contact was not printed yet.
    warns: bool,
    output_closed: bool,
}

impl Printer {
    /// `warns`: print a warning at the first page of a foreign host, because the crawler has no
    /// contact.
    pub(crate) fn new(quiet: bool, warns: bool, crawling: &CrawlerConfig) -> Self {
        let (mut console, stdout_is_taken) = (Console::new(), sinks::take_stdout(crawling));
        if stdout_is_taken {
            console.leave_stdout();
        }
        Self { console, quiet: quiet || stdout_is_taken, warns, output_closed: false }
    }

    pub(crate) fn line(&mut self, text: &str) {
        if !self.output_closed && self.console.line(text).is_err() {
            self.output_closed = true;
            tracing::info!("standard output is closed; pages are no longer printed");
        }
    }

    pub(crate) fn page(&mut self, report: &PageReport) {
        if self.warns && CanonicalUrl::parse(&report.url).is_ok_and(|url| !contact::is_own(&url)) {
            self.warns = false;
            self.console.note(contact::WARNING);
        }
        if !self.quiet {
            self.line(&page_line(report));
        }
    }
}
