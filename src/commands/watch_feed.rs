//! `tidings watch-feed`: lets crawlers read feeds repeatedly, and announce and fetch
//! their new items.

#![expect(clippy::disallowed_methods, reason = "waits before it connects again")]

use std::collections::HashMap;
use std::fmt;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use tidings_client::{ClientError, CommandAnswer};
use tidings_connectors::websub::{self, HubLease};
use tidings_documents::feed::watched_feed::FeedSettings;
use tidings_documents::feed::{NO_FEED, NO_FEED_ADVICE};
use tidings_protocol::status::{GroupStatus, ScheduleStatus, TaskState, TaskStatus};
use tidings_protocol::{
    CanonicalUrl, Code, Command, DEFAULT_GROUP, GroupAction, GroupCommand, Payload, TopicName,
    field, format_ms,
};
use tokio::time::{Instant, sleep};

use crate::client::manage::{BrokerClient, first_word, print_table, spaced};
use crate::commands::group::tasks::duration;
use crate::flags::address::BrokerAddress;
use crate::flags::broker::BrokerFlag;
use crate::flags::parse_duration;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, note, printable};

const EXAMPLES: &str = "\
Examples:
  tidings watch-feed https://example.org/feed.xml
  tidings watch-feed https://example.org/news --every 30m --min 5m --max 12h --new-only
  tidings watch-feed --list --data tidings-data            and the hub of each, if it has one
  tidings watch-feed https://example.org/feed.xml --stop
  tidings sub post-ready                                   new items as they arrive

A crawler reads a feed at intervals that adapt to its changes, and announces each new item once, on
the topic post-ready: its URL, with item= and source=. The crawlers fetch these URLs. The URL may
also be that of a page that names its feed. A page that names a hub (rel=hub) but no feed is
announced under its own URL whenever its text, links or images change.

The command waits a few seconds for the first read. It fails if the URL has neither a feed nor a
hub; the URL is then read ever less often, until --stop.

The same in the file of --config, for `up` and for crawlers with --broker; read at their start:
  [[feed]]
  url = \"https://example.org/feed.xml\"
  every = \"30m\"

Exit codes: 0 success; 1 rejected or failed; 2 wrong usage.";

/// The name of the connection, as the broker shows it.
const NAME: &str = "tidings-watch-feed";
const SCHEDULE_TOPIC: &str = "new-url";
/// The topic of new items, from which they are fetched.
const ITEM_TOPIC: &str = "post-ready";
/// The wait before the next attempt to reach the broker of a configured feed.
const RETRY: Duration = Duration::from_secs(5);
/// The time limit of the wait for the first read of a feed, and the interval of checks.
const FIRST_POLL_MAX: Duration = Duration::from_secs(10);
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The wait for a crawler, which may have just started.
const CRAWLER_WAIT_MAX: Duration = Duration::from_secs(1);
/// The longest URL in a table, in characters.
const URL_CHARS_MAX: usize = 200;
/// The most entries that the broker lists.
const LISTED_MAX: &str = "1000";

/// The flags of `tidings watch-feed`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WatchFeedArgs {
    /// Feeds, or pages that link to their feed
    #[arg(value_name = "URL", required_unless_present = "list")]
    urls: Vec<String>,

    /// First interval between two reads
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    every: Duration,

    /// Shortest interval; a notification of a hub still causes a read at once
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_duration)]
    min: Duration,

    /// Longest interval
    #[arg(long, value_name = "DURATION", default_value = "1d", value_parser = parse_duration)]
    max: Duration,

    /// Do not announce items that are in the feed now
    #[arg(long)]
    new_only: bool,

    /// Stop watching these feeds
    #[arg(long, conflicts_with = "new_only")]
    stop: bool,

    /// List watched feeds
    #[arg(long, conflicts_with_all = ["urls", "new_only", "stop"])]
    list: bool,

    /// With --list: data directory of the broker, to list its hub subscriptions too
    #[arg(long, value_name = "DIR", requires = "list", conflicts_with = "urls")]
    data: Option<PathBuf>,

    #[command(flatten)]
    broker: BrokerFlag,
}

/// Runs what the flags ask for.
pub(crate) async fn run(args: WatchFeedArgs) -> Result<(), Failure> {
    let feeds: Result<Vec<WatchedFeed>, String> = args
        .urls
        .iter()
        .map(|url| WatchedFeed::new(url, args.every, args.min, args.max, args.new_only))
        .collect();
    let feeds = feeds.map_err(Failure::Usage)?;
    let mut console = Console::new();
    let broker = BrokerClient::connect(&args.broker, NAME).await?;
    let crawlers = CrawlerGroup { broker };
    if args.list {
        let leases = args.data.as_deref().map(hub_subscriptions).transpose()?;
        return crawlers.list(&mut console, leases.as_ref()).await;
    }
    if !args.stop
        && let Some(change) = crawlers.ensure_items_topic().await?
    {
        console.note(&change);
    }
    let mut watched = Vec::new();
    for feed in &feeds {
        if args.stop {
            crawlers.publish(&format!("{} every=0", feed.url)).await?;
            console.line(&format!("{} is no longer watched", feed.url))?;
        } else {
            let task = crawlers.find_task(feed).await?;
            watched.push((feed, task.map(|task| task.fields.attempts)));
            crawlers.publish(&feed.to_string()).await?;
            console.line(&feed.description())?;
        }
    }
    crawlers.report_first_polls(&watched, &mut console).await
}

/// The feeds of a configuration file.
#[derive(Debug, Clone, Args)]
pub(crate) struct FeedsFlag {
    /// A feed to watch: URL [every=DURATION] [min=DURATION] [max=DURATION] [new-only=true]
    #[arg(long, value_name = "FEED", hide = true)]
    feed: Vec<WatchedFeed>,
}

/// Starts to watch the feeds of the configuration file, without changes to those that are already
/// watched. Never returns, so that it can run beside a crawler.
pub(crate) async fn watch_configured(broker: &BrokerAddress, flag: &FeedsFlag) {
    if !flag.feed.is_empty() {
        while let Err(failure) = watch_missing(broker, &flag.feed).await {
            tracing::warn!("feeds are not watched yet: {}", failure.text().unwrap_or_default());
            sleep(RETRY).await;
        }
    }
    pending::<()>().await;
}

async fn watch_missing(broker: &BrokerAddress, feeds: &[WatchedFeed]) -> Result<(), Failure> {
    let flag = BrokerFlag { broker: broker.clone() };
    let crawlers = CrawlerGroup { broker: BrokerClient::connect(&flag, NAME).await? };
    if let Some(change) = crawlers.ensure_items_topic().await? {
        note(&change);
    }
    for feed in feeds {
        if !crawlers.is_watched(feed).await? {
            crawlers.publish(&feed.to_string()).await?;
            note(&feed.description());
        }
    }
    Ok(())
}

/// A feed to watch, with its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WatchedFeed {
    url: CanonicalUrl<'static>,
    every: Duration,
    settings: FeedSettings,
}

impl WatchedFeed {
    fn new(
        url: &str,
        every: Duration,
        min: Duration,
        max: Duration,
        new_only: bool,
    ) -> Result<Self, String> {
        let url = CanonicalUrl::parse(url).map_err(|error| format!("{url}: {error}"))?;
        let settings = FeedSettings::new(min, max, new_only)
            .map_err(|_| "--min must be more than 0 and at most --max".to_owned())?;
        if every < min || every > max {
            return Err("--every must be at least --min and at most --max".to_owned());
        }
        Ok(Self { url: url.into_owned(), every, settings })
    }

    fn description(&self) -> String {
        let Self { url, every, settings } = self;
        format!("{url} is watched, every {} at first, within {settings}", text(*every))
    }
}

/// As the payload of an event.
impl fmt::Display for WatchedFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} every={} feed={}", self.url, text(self.every), self.settings)
    }
}

/// A line of a configuration file, into which each `[[feed]]` is converted: its URL and `key=value`
/// words.
impl FromStr for WatchedFeed {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let payload = Payload::parse(line);
        let url = payload.target().ok_or("each feed needs a `url` with http or https")?;
        let (mut every, mut min, mut max, mut new_only) = ("1h", "10m", "1d", false);
        for (key, value) in payload.attributes() {
            match key {
                "every" => every = value,
                "min" => min = value,
                "max" => max = value,
                "new-only" => new_only = value == "true",
                _ => {
                    return Err(format!(
                        "unknown key `{key}` of a feed; known: url, every, min, max, new-only"
                    ));
                }
            }
        }
        WatchedFeed::new(
            url,
            parse_duration(every)?,
            parse_duration(min)?,
            parse_duration(max)?,
            new_only,
        )
    }
}

/// The result of the first read of a feed.
enum FirstPoll {
    /// It succeeded.
    Done,
    /// There is neither a feed nor a hub.
    NoFeed,
    /// Its URL has no schedule any more.
    Ended,
    /// It has not succeeded yet, for this reason.
    Pending(String),
}

/// `GROUP <action> crawlers <settings>`.
fn command<'a>(action: GroupAction<'a>, settings: Vec<(&'a str, &'a str)>) -> Command<'a> {
    Command::Group(GroupCommand::new(action, DEFAULT_GROUP, settings))
}

/// The crawlers' group of a broker.
struct CrawlerGroup<'a> {
    broker: BrokerClient<'a>,
}

impl CrawlerGroup<'_> {
    async fn request(
        &self,
        action: GroupAction<'_>,
        settings: Vec<(&str, &str)>,
    ) -> Result<CommandAnswer, Failure> {
        self.broker.request(&command(action, settings)).await
    }

    /// Lets the group take new items too. Returns a message if that was a change.
    async fn ensure_items_topic(&self) -> Result<Option<String>, Failure> {
        let show = command(GroupAction::Show, Vec::new());
        let (action, topics) = match self.broker.client.request(&show).await {
            Ok(answer) => {
                let topics = GroupStatus::parse(&answer.ok).settings.topics;
                if topics.iter().any(|topic| topic == ITEM_TOPIC) {
                    return Ok(None);
                }
                (GroupAction::Set, format!("{},{ITEM_TOPIC}", topics.join(",")))
            }
            // The first member would create it without this topic.
            Err(ClientError::Refused(error)) if error.code == Code::NotFound => {
                (GroupAction::Create, format!("{SCHEDULE_TOPIC},{ITEM_TOPIC}"))
            }
            Err(error) => return Err(self.broker.failure(error)),
        };
        self.request(action, vec![("topics", &topics)]).await?;
        Ok(Some(format!(
            "the group {DEFAULT_GROUP} now also fetches the items of the topic {ITEM_TOPIC}"
        )))
    }

    async fn is_watched(&self, feed: &WatchedFeed) -> Result<bool, Failure> {
        let is_it = |line: &str| first_word(line) == feed.url.as_str();
        Ok(self.find(GroupAction::Schedules, feed, is_it).await?.is_some())
    }

    /// Finds the line of this feed in the answer to a list command.
    async fn find(
        &self,
        action: GroupAction<'_>,
        feed: &WatchedFeed,
        is_it: impl Fn(&str) -> bool,
    ) -> Result<Option<String>, Failure> {
        // The key of the group is the host, the domain, or something else.
        for key in [feed.url.host(), feed.url.domain(), ""] {
            let mut settings = vec![("limit", LISTED_MAX)];
            settings.extend(Some(("key", key)).filter(|_| !key.is_empty()));
            let answer = self.request(action, settings).await?;
            if let Some(line) = answer.more.into_iter().find(|line| is_it(line)) {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }

    /// Waits for the first read of each feed, and fails if a URL has nothing to watch. `before`:
    /// the number of earlier failed reads of a waiting task.
    async fn report_first_polls(
        &self,
        feeds: &[(&WatchedFeed, Option<u64>)],
        console: &mut Console,
    ) -> Result<(), Failure> {
        let until = Instant::now() + FIRST_POLL_MAX;
        let mut failed = Vec::new();
        for (feed, before) in feeds {
            let url = &feed.url;
            match self.first_poll(feed, *before, until).await? {
                FirstPoll::Done => {}
                FirstPoll::NoFeed => failed.push(format!(
                    "{url}: {NO_FEED}; {NO_FEED_ADVICE}. It is still watched: `tidings watch-feed {url} --stop` ends that"
                )),
                FirstPoll::Ended => console.note(&format!(
                    "{url} is no longer watched: it has moved for good, or is gone; \
                     `tidings watch-feed --list` shows what is watched"
                )),
                FirstPoll::Pending(why) => console.note(&format!("{url}: {why}")),
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(Failure::failed(failed.join("\n"))) }
    }

    async fn first_poll(
        &self,
        feed: &WatchedFeed,
        before: Option<u64>,
        until: Instant,
    ) -> Result<FirstPoll, Failure> {
        let crawler_until = Instant::now() + CRAWLER_WAIT_MAX;
        let mut was_watched = false;
        while Instant::now() < until {
            // The group has the event when there is a schedule; after that, a task exists until the
            // read is finished.
            if self.is_watched(feed).await? {
                was_watched = true;
                let Some(task) = self.find_task(feed).await? else { return Ok(FirstPoll::Done) };
                let is_older = before == Some(task.fields.attempts);
                if let Some(reason) = task.fields.last.filter(|_| !is_older) {
                    let reason = spaced(&reason);
                    return Ok(if reason == NO_FEED {
                        FirstPoll::NoFeed
                    } else {
                        let reason = printable(&reason, URL_CHARS_MAX);
                        FirstPoll::Pending(format!("a read failed and is tried again: {reason}"))
                    });
                }
            } else if was_watched {
                return Ok(FirstPoll::Ended);
            }
            if Instant::now() > crawler_until && !self.has_crawlers().await? {
                let why = "not read yet: no crawler is connected".to_owned();
                return Ok(FirstPoll::Pending(why));
            }
            sleep(FIRST_POLL_INTERVAL).await;
        }
        let why = format!("not read yet; `tidings explain {}` shows the reason", feed.url);
        Ok(FirstPoll::Pending(why))
    }

    async fn has_crawlers(&self) -> Result<bool, Failure> {
        let shown = self.request(GroupAction::Show, Vec::new()).await?;
        Ok(GroupStatus::parse(&shown.ok).members > 0)
    }

    /// The waiting or running task of this feed.
    async fn find_task(&self, feed: &WatchedFeed) -> Result<Option<TaskStatus>, Failure> {
        let is_it = |line: &str| {
            let task = TaskStatus::parse(line);
            task.url == feed.url.as_str() && task.fields.state != TaskState::Dead
        };
        Ok(self.find(GroupAction::Tasks, feed, is_it).await?.map(|line| TaskStatus::parse(&line)))
    }

    async fn publish(&self, payload: &str) -> Result<(), Failure> {
        let topic: TopicName = SCHEDULE_TOPIC.parse().expect("it is the name of a topic");
        let confirmed = match self.broker.client.publish(&topic, payload).await {
            Ok(published) => published.await.map(drop),
            Err(error) => Err(error),
        };
        confirmed.map_err(|error| self.broker.failure(error))
    }

    async fn list(
        &self,
        console: &mut Console,
        leases: Option<&HubSubscriptions>,
    ) -> Result<(), Failure> {
        let settings = vec![("limit", LISTED_MAX)];
        let lines = self.request(GroupAction::Schedules, settings).await?.more;
        let is_feed = |line: &&String| field(line, "feed").is_some();
        // Older brokers do not mark schedules of feeds.
        let feeds: Vec<_> = lines.iter().filter(is_feed).collect();
        let shown = if feeds.is_empty() { lines.iter().collect() } else { feeds };
        let rows = shown.into_iter().map(|line| row(line, leases));
        match leases {
            None => print_table(console, "NEXT EVERY URL", rows),
            Some(_) => print_table(console, "NEXT EVERY HUB URL", rows),
        }
    }
}

/// The hub subscriptions, by the scheduled URL.
type HubSubscriptions = HashMap<String, HubLease>;

/// Reads the hub subscriptions from the data directory of the broker.
fn hub_subscriptions(data: &Path) -> Result<HubSubscriptions, Failure> {
    if !data.is_dir() {
        return Err(Failure::failed(format!("{}: the directory does not exist", data.display())));
    }
    let database = data.join("websub.db");
    websub::read_hub_leases(&database)
        .map_err(|error| Failure::failed(format!("{}: {error}", database.display())))
}

fn row(line: &str, leases: Option<&HubSubscriptions>) -> Vec<String> {
    let ScheduleStatus { url, every, due_ms, .. } = ScheduleStatus::parse(line);
    let next = format!("in {}", duration(due_ms));
    let hub = leases.map(|leases| match leases.get(&url) {
        Some(HubLease { hub_host, remaining }) => {
            let remaining = duration(u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX));
            format!("by {} for {remaining}", printable(hub_host, URL_CHARS_MAX))
        }
        None => "polled".to_owned(),
    });
    let cells = [Some(next), Some(every), hub, Some(printable(&url, URL_CHARS_MAX))];
    cells.into_iter().flatten().collect()
}

fn text(duration: Duration) -> String {
    format_ms(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(line: &str) -> String {
        line.parse::<WatchedFeed>().map_or_else(|error| error, |feed| format!("{feed}"))
    }

    #[test]
    fn a_configured_feed_becomes_an_event() {
        assert_eq!(feed("http://a.example/f"), "http://a.example/f every=1h feed=10m-1d");
        assert_eq!(
            feed("http://a.example every=30s min=1s max=2m new-only=true"),
            "http://a.example/ every=30s feed=1s-2m,new-only"
        );
    }

    #[test]
    fn a_wrong_feed_is_rejected_with_the_reason() {
        for (line, part) in [
            ("every=1h", "a `url`"),
            ("ftp://a.example/", "ftp://a.example/: "),
            ("http://a.example/ evry=1h", "unknown key `evry`"),
            ("http://a.example/ every=soon", "30s"),
            ("http://a.example/ every=5m", "--every"),
            ("http://a.example/ min=2d", "--min"),
            ("http://a.example/ min=0", "--min"),
        ] {
            assert!(feed(line).contains(part), "{line}: {}", feed(line));
        }
    }
}
