//! `tidings up`: a broker and a crawler in one process, with a line for each page.

use std::future;
use std::mem;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use tidings_broker::BrokerConfig;
use tidings_client::{ClientError, Delivery};
use tidings_protocol::{
    AttributeFilter, CanonicalUrl, Command, DEAD_LETTER_TOPIC, DEFAULT_GROUP, Prio, UrlError, field,
};
use tidings_subscriber::metrics::CrawlerMetrics;
use tidings_subscriber::{CrawlerConfig, PageReport};
use tokio_util::sync::CancellationToken;

use crate::client::connection;
use crate::commands::broker::warn_if_open;
use crate::commands::watch_feed::{FeedsFlag, watch_configured};
use crate::flags::DataFlag;
use crate::flags::address::{AddressFile, BrokerAddress};
use crate::process::privileges::ServerResources;
use crate::process::service::{self, Service, StartContext};
use crate::process::signals::stop_on_signal;
use crate::process::stack::{self, Crawler, Stack, StopTimer};
use crate::services::companions::PreparedCompanions;
use crate::services::crawler_flags::CrawlerFlags;
use crate::services::server_flags::ServerFlags;
use crate::services::{contact, sinks};
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, note, printable};
use crate::terminal::page_line::page_line;

const EXAMPLES: &str = "\
Then, in another terminal:
  echo https://example.org/ | nc -N 127.0.0.1 12345    that page, alone
  tidings crawl https://example.org/ --depth 2         a job for this crawler (same directory)
  telnet 127.0.0.1 12345                               type HELP for the commands

Events are in DIR/topics, queues and jobs in DIR/groups, pages in DIR/pages.db, an SQLite database.
Ctrl-C stops cleanly; a second one stops at once.";

/// What `after=` and `every=` may be.
const TIME_FORMS: &str = "a duration such as 30m, or a time of day such as 06:00";

/// The longest line of a client in a note, in characters.
const LINE_CHARS_MAX: usize = 200;

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
        self.crawler.sinks.check(&self.data)?;
        self.server.config(&self.data)
    }

    /// [`ServerFlags::problems`], with those of the crawler.
    pub(crate) fn problems(&self) -> Vec<Failure> {
        let CrawlerFlags { sinks, outgoing, .. } = &self.crawler;
        let own = [sinks.check(&self.data), outgoing.identity.check()];
        let own = own.into_iter().filter_map(Result::err);
        own.chain(self.server.problems(&self.data)).collect()
    }

    /// The paths that the process uses.
    pub(crate) fn resources<'a>(&'a self, config: Option<&'a Path>) -> ServerResources<'a> {
        let CrawlerFlags { sinks, outgoing, .. } = &self.crawler;
        let inputs = config.into_iter().chain(outgoing.identity.key_file());
        let programs = sinks.run_programs();
        ServerResources {
            runs_browsers: self.crawler.browser.may_render(),
            ..self.server.resources(&self.data, inputs, sinks.directories(), programs)
        }
    }
}

/// Runs until SIGINT or SIGTERM.
pub(crate) async fn run(args: UpArgs, mut started: StartContext) -> Result<(), Failure> {
    let stop = stop_on_signal()?;
    let for_browsers = started.starter.take().map(Arc::new);
    let shown = mem::take(&mut started.shown);
    let (mut service, sockets) = Service::new(started)?;
    let data = &args.data.data;
    let mut config = args.broker_config()?;
    config.settings = shown;
    args.server.check_exposure(&config, &sockets, &args.data)?;
    let member = stack::set_own_member(&mut config);
    let metrics = Arc::<CrawlerMetrics>::default();
    config.metrics_sources.push(Arc::clone(&metrics) as _);
    let outgoing = &args.crawler.outgoing;
    let tracking = args.crawler.tracking_params();
    let prepared =
        PreparedCompanions::new(&mut config, &args.server, outgoing, &args.data, tracking)?;
    let is_closed = config.tls.is_some() || config.access.principals.is_some();
    let broker = stack::start_broker_on(config, sockets).await?;
    let (broker, beside) = prepared.start(broker).await?;
    let listening = broker.local_addr();
    let reach = stack::client_address(&broker);
    let is_encrypted = args.server.tls.is_encrypted();
    let http = broker.http_addr().map(|address| stack::http_url(address, is_encrypted));
    let _announced = AddressFile::write(data, &reach, http.as_deref())
        .with_context(|| format!("cannot write to the data directory {}", data.display()))?;
    let mut crawling = args.crawler.config(&reach, &args.data)?;
    (crawling.member, crawling.metrics) = (Some(member), metrics);
    if let Some(render) = &mut crawling.render {
        render.launch.starter = for_browsers;
    }
    let mut printer = PagePrinter::new(args.quiet, args.crawler.outgoing.lack_contact(), &crawling);
    let places = sinks::describe_sinks(&crawling);
    let crawler = Crawler::start(crawling);

    printer.line(&format!("listening on {listening}"));
    if let Some(address) = broker.http_addr() {
        printer.line(&args.server.http_line(address));
        warn_if_open(address, &args.server, &mut printer.console);
    }
    printer.line(&format!("storing in {places}"));
    let nearby = match broker.unix_path() {
        Some(path) if is_closed => format!("-NU {}", path.display()),
        _ => format!("-N {} {}", stack::reachable_address(listening).ip(), listening.port()),
    };
    printer.line(&format!("next, in another terminal: echo https://example.org/ | nc {nearby}"));
    warn_if_open(listening, &args.server, &mut printer.console);
    for line in beside.notes() {
        printer.console.note(line);
    }
    let mut node = Stack { broker, crawler };
    service::ready();
    let result = tokio::select! {
        result = print_pages(&mut node.crawler, &mut printer, &stop) => result,
        () = service.run(&node.broker) => Ok(()),
        () = watch_configured(&reach, &args.feeds) => Ok(()),
        () = report_unusable_lines(&reach) => Ok(()),
        () = args.server.access.watch_principals(&node.broker, data) => Ok(()),
    };
    let stopping = StopTimer::begin(args.server.process.stop_timeout);
    service::stopping();
    node.broker.stop_listening();
    beside.stop().await;
    for report in node.stop(stopping.left()).await {
        printer.page(&report);
    }
    result
}

/// Prints a note for each line that the crawlers' group could not use. It reads them from the topic
/// of dead letters, on which the group announces at most 100 a minute. Without that topic `up` works
/// as well. Never ends.
async fn report_unusable_lines(broker: &BrokerAddress) {
    if let Err(error) = note_unusable_lines(broker).await {
        tracing::debug!(%error, "lines that crawlers cannot use are no longer reported");
    }
    future::pending::<()>().await;
}

async fn note_unusable_lines(broker: &BrokerAddress) -> Result<(), ClientError> {
    let (client, mut deliveries) = connection::try_connect(broker, "tidings-up").await?;
    let topic = DEAD_LETTER_TOPIC.parse().expect("a constant that is a name");
    let (from, cursor, filter) = (None, None, AttributeFilter::default());
    let subscribe = Command::Sub { topic, from, cursor, takeover: false, filter };
    client.request(&subscribe).await?;
    while let Some(delivery) = deliveries.next().await {
        if let Delivery::Msg { payload, .. } = delivery
            && let Some(text) = unusable_line(&payload)
        {
            note(&text);
        }
    }
    Err(deliveries.reason())
}

/// The note for a dead letter about a line that the crawlers' group could not use.
fn unusable_line(dead_letter: &str) -> Option<String> {
    let (reason, rest) = dead_letter.split_once(' ')?;
    if field(rest, "group") != Some(DEFAULT_GROUP) {
        return None;
    }
    // `group=.. topic=.. seq=.. <payload>`
    let line = rest.splitn(4, ' ').nth(3)?;
    let shown = printable(line, LINE_CHARS_MAX);
    let remedy = match reason.strip_prefix("reason=")? {
        "not-a-url" | "not-an-http-url" => return Some(not_a_url(line, &shown)),
        "url-too-long" => return Some(format!("{}: {shown}", UrlError::TooLong)),
        "attributes-too-long" | "payload-too-long" => "its attributes are too long".to_owned(),
        "no-key-attribute" => "it lacks the attribute that is the key of the group".to_owned(),
        "bad-prio" => format!("prio= is a number from -{0} to {0}", Prio::LIMIT),
        "bad-after" => format!("after= is {TIME_FORMS}"),
        "bad-every" => format!("every= is {TIME_FORMS}, or 0"),
        "bad-render" => "render= is yes, no or auto".to_owned(),
        "too-many-schedules" => "there are too many schedules; every=0 ends one".to_owned(),
        "bad-job-name" => "job= is not the name of a job".to_owned(),
        "unknown-job" => "there is no such job; `tidings job open` opens one".to_owned(),
        "finished-job" => "the job is done; `tidings job open` opens its next pass".to_owned(),
        "cancelled-job" => "the job is cancelled".to_owned(),
        "blocked" => {
            "its host or URL is blocked; `tidings host show HOST` names the rule".to_owned()
        }
        _ => return None,
    };
    Some(format!("not fetched: {shown}; {remedy}"))
}

fn not_a_url(line: &str, shown: &str) -> String {
    let mut words = line.split(' ');
    let target = words.next().unwrap_or_default();
    let has_scheme = target.contains("://");
    if CanonicalUrl::parse(target).is_ok() && has_scheme {
        return if words.any(|word| CanonicalUrl::parse(word).is_ok()) {
            format!("not fetched: {shown}; write one URL on each line")
        } else {
            format!("not fetched: {shown}; only KEY=VALUE words may follow a URL")
        };
    }
    let is_host = target.contains(['.', ':']) || target.starts_with("localhost");
    let url = format!("http://{target}");
    match CanonicalUrl::parse(&url) {
        Ok(_) if is_host && !has_scheme => {
            format!("not a URL: {shown}, did you mean {} ?", printable(&url, LINE_CHARS_MAX))
        }
        _ => {
            format!("not a URL: {shown}; crawlers fetch lines that begin with http:// or https://")
        }
    }
}

/// Prints a line for each page until `stop` is cancelled, or the crawler ends at its limit.
pub(crate) async fn print_pages(
    crawler: &mut Crawler,
    printer: &mut PagePrinter,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            pages = crawler.pages() => match pages? {
                Some(pages) => pages.iter().for_each(|page| printer.page(page)),
                None => return Ok(()),
            },
        }
    }
}

/// Prints for a service, which continues when its output is closed.
#[derive(Debug)]
pub(crate) struct PagePrinter {
    console: Console,
    /// Do not print a line for each page
    quiet: bool,
    /// The warning about a missing contact was not printed yet.
    warn_about_contact: bool,
    output_closed: bool,
}

impl PagePrinter {
    /// `warn_about_contact`: print a warning at the first page of a foreign host, because the
    /// crawler has no contact.
    pub(crate) fn new(quiet: bool, warn_about_contact: bool, crawling: &CrawlerConfig) -> Self {
        let (mut console, stdout_is_taken) = (Console::new(), sinks::use_stdout(crawling));
        if stdout_is_taken {
            console.use_stderr();
        }
        Self { console, quiet: quiet || stdout_is_taken, warn_about_contact, output_closed: false }
    }

    pub(crate) fn line(&mut self, text: &str) {
        if !self.output_closed && self.console.line(text).is_err() {
            self.output_closed = true;
            tracing::info!("standard output is closed; pages are no longer printed");
        }
    }

    pub(crate) fn page(&mut self, report: &PageReport) {
        if self.warn_about_contact
            && CanonicalUrl::parse(&report.url).is_ok_and(|url| !contact::is_local(&url))
        {
            self.warn_about_contact = false;
            self.console.note(contact::WARNING);
        }
        if !self.quiet {
            self.line(&page_line(report));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_a_scheme_is_reported_with_a_suggestion() {
        let note = |reason: &str, line: &str| {
            unusable_line(&format!("reason={reason} group=crawlers topic=new-url seq=7 {line}"))
        };
        assert_eq!(
            note("not-a-url", "example.com/x").unwrap(),
            "not a URL: example.com/x, did you mean http://example.com/x ?"
        );
        assert_eq!(
            note("not-a-url", "example.com/x prio=5").unwrap(),
            "not a URL: example.com/x prio=5, did you mean http://example.com/x ?"
        );
        for line in ["hello world", "ftp://example.com/"] {
            let text = note("not-an-http-url", line).unwrap();
            assert!(text.starts_with(&format!("not a URL: {line}; ")), "{text}");
        }
        let text = note("url-too-long", "http://example.com/").unwrap();
        assert_eq!(text, "the URL is longer than 8192 bytes: http://example.com/");
        for (reason, line, remedy) in [
            ("not-a-url", "http://a.example/ http://b.example/", "write one URL on each line"),
            ("not-a-url", "http://a.example/ a page", "only KEY=VALUE words may follow a URL"),
            ("unknown-job", "http://a.example/ job=x", "there is no such job; `tidings job open` "),
            ("bad-every", "http://a.example/ every=1hr", "every= is a duration such as 30m, "),
            ("bad-prio", "http://a.example/ prio=high", "prio= is a number from -"),
            ("blocked", "http://a.example/", "its host or URL is blocked; "),
        ] {
            let text = note(reason, line).unwrap();
            assert!(text.starts_with(&format!("not fetched: {line}; {remedy}")), "{text}");
        }
        let other = "reason=not-a-url group=thumbs topic=t seq=7 example.com/x";
        assert_eq!(unusable_line(other), None);
        assert_eq!(unusable_line("http://a.example/ reason=max-attempts group=crawlers"), None);
    }
}
