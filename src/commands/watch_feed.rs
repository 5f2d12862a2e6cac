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
use tidings_client::{ClientError, CommandAnswer, Subscriber, SubscriberEvent, Subscription};
use tidings_connectors::websub::{self, HubLease};
use tidings_documents::feed::watched_feed::FeedSettings;
use tidings_documents::feed::{NO_FEED, NO_FEED_ADVICE};
use tidings_protocol::status::{GroupStatus, ScheduleStatus, TaskState, TaskStatus};
use tidings_protocol::{
    AttributeFilter, CanonicalUrl, Code, Command, DEFAULT_GROUP, GroupAction, GroupCommand,
    Payload, Seq, StartAt, TopicName, format_ms,
};
use tokio::time::{Instant, sleep, timeout};

use crate::client::connection;
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

The command waits a few seconds for the first read. If the URL has neither a feed nor a hub, it
fails, and the URL is not watched.

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
/// The wait for the event with the feed that a page names. It was published before the watch of the
/// page ended.
const NAMED_WAIT_MAX: Duration = Duration::from_secs(1);
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
    let mut failed = Vec::new();
    for feed in &feeds {
        let url = &feed.url;
        if !args.stop {
            let task = crawlers.find_task(feed).await?;
            let attempts = task.map(|task| task.fields.attempts);
            let at = Instant::now();
            let from = crawlers.publish(&feed.to_string()).await?;
            watched.push(WatchBegin { feed, attempts, from, at });
        } else if crawlers.is_watched(feed).await? {
            crawlers.end_watch(feed).await?;
            console.line(&format!("{url} is no longer watched"))?;
        } else {
            failed.push(format!("{url} is not watched; `tidings watch-feed --list` shows what is"));
        }
    }
    crawlers.report_first_polls(&watched, &mut failed, &mut console).await?;
    if failed.is_empty() { Ok(()) } else { Err(Failure::failed(failed.join("\n"))) }
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
        if every < min {
            return Err(format!("every={} is below min={}", text(every), text(min)));
        }
        if every > max {
            return Err(format!("every={} is above max={}", text(every), text(max)));
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

/// A feed that is watched from now on.
struct WatchBegin<'a> {
    feed: &'a WatchedFeed,
    /// The number of earlier failed reads of a waiting task.
    attempts: Option<u64>,
    /// The event that began it.
    from: Seq,
    /// Before the event: the first read can have ended before its confirmation arrives.
    at: Instant,
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
                let settings = GroupStatus::parse(&answer.ok).settings;
                if settings.topics.iter().any(|topic| topic.as_str() == ITEM_TOPIC) {
                    return Ok(None);
                }
                (GroupAction::Set, format!("{},{ITEM_TOPIC}", settings.topic_list()))
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
        Ok(self.find_schedule(&feed.url).await?.is_some())
    }

    async fn find_schedule(
        &self,
        url: &CanonicalUrl<'_>,
    ) -> Result<Option<ScheduleStatus>, Failure> {
        let of = |line: &str| Some(ScheduleStatus::parse(line)).filter(is_feed);
        let is_it = |line: &str| of(line).is_some_and(|schedule| schedule.url == url.as_str());
        let line = self.find(GroupAction::Schedules, Vec::new(), url, is_it).await?;
        Ok(line.map(|line| ScheduleStatus::parse(&line)))
    }

    /// Finds the line of this URL in the answer to a list command.
    async fn find(
        &self,
        action: GroupAction<'_>,
        only: Vec<(&str, &str)>,
        url: &CanonicalUrl<'_>,
        is_it: impl Fn(&str) -> bool,
    ) -> Result<Option<String>, Failure> {
        // The key of the group is the host, the domain, or something else.
        for key in [url.host(), url.domain(), ""] {
            let mut settings = only.clone();
            settings.push(("limit", LISTED_MAX));
            settings.extend(Some(("key", key)).filter(|_| !key.is_empty()));
            let answer = self.request(action, settings).await?;
            if let Some(line) = answer.more.into_iter().find(|line| is_it(line)) {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }

    /// Waits for the first read of each feed, and prints what is watched. Adds to `failed` the URLs
    /// with nothing to watch.
    async fn report_first_polls(
        &self,
        begun: &[WatchBegin<'_>],
        failed: &mut Vec<String>,
        console: &mut Console,
    ) -> Result<(), Failure> {
        let until = Instant::now() + FIRST_POLL_MAX;
        for begin in begun {
            let (feed, url) = (begin.feed, &begin.feed.url);
            match self.first_poll(begin, until).await? {
                FirstPoll::Done => console.line(&feed.description())?,
                FirstPoll::NoFeed => {
                    self.end_watch(feed).await?;
                    failed.push(format!("{url}: {NO_FEED}; {NO_FEED_ADVICE}. It is not watched"));
                }
                FirstPoll::Ended => console.note(&match self.named_feed(begin).await {
                    Some(ScheduleStatus { url: named, every, .. }) => format!(
                        "{url} is a page; its feed {} is watched instead, every {every} now",
                        printable(&named, URL_CHARS_MAX)
                    ),
                    None => format!(
                        "{url} is no longer watched: it has moved for good, or is gone; \
                         `tidings watch-feed --list` shows what is watched"
                    ),
                }),
                FirstPoll::Pending(why) => {
                    console.line(&feed.description())?;
                    console.note(&format!("{url}: {why}"));
                }
            }
        }
        Ok(())
    }

    /// The watched feed that a page names, from the event of the crawler that has read the page.
    async fn named_feed(&self, begin: &WatchBegin<'_>) -> Option<ScheduleStatus> {
        let condition = format!("named={}", begin.feed.url);
        let filter = AttributeFilter::parse([&*condition]).ok()?;
        let topic = SCHEDULE_TOPIC.parse().expect("it is the name of a topic");
        let from = StartAt::Seq(begin.from);
        let (connector, connection) = connection::open(self.broker.address(), NAME).await.ok()?;
        let subscription = Subscription::new(topic).from(from).matching(filter);
        let mut events = Subscriber::new(connector, subscription).on(connection);
        let named = async {
            loop {
                match events.next().await.ok()? {
                    SubscriberEvent::Event { payload, .. } => return Some(payload),
                    SubscriberEvent::Refused(_) | SubscriberEvent::Lost(_) => return None,
                    _ => {}
                }
            }
        };
        let event = timeout(NAMED_WAIT_MAX, named).await.ok()??;
        let feed = CanonicalUrl::parse(first_word(&event)).ok()?;
        self.find_schedule(&feed).await.ok()?
    }

    async fn first_poll(
        &self,
        begin: &WatchBegin<'_>,
        until: Instant,
    ) -> Result<FirstPoll, Failure> {
        let feed = begin.feed;
        let crawler_until = Instant::now() + CRAWLER_WAIT_MAX;
        let (mut was_watched, mut is_read) = (false, false);
        while Instant::now() < until {
            // The group has the event when there is a schedule; after that, a task exists until the
            // read is finished.
            if self.is_watched(feed).await? {
                was_watched = true;
                let Some(task) = self.find_task(feed).await? else {
                    // The group may take the event that ends a watch after the answer to the task.
                    if !std::mem::replace(&mut is_read, true) {
                        sleep(FIRST_POLL_INTERVAL).await;
                        continue;
                    }
                    return Ok(if self.has_failed(begin).await? {
                        let why = "the read failed; it is tried again at the next interval, and";
                        let show = format!("`tidings explain {}` shows the reason", feed.url);
                        FirstPoll::Pending(format!("{why} {show}"))
                    } else {
                        FirstPoll::Done
                    });
                };
                let is_older = begin.attempts == Some(task.fields.attempts);
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
        let line = self.find(GroupAction::Tasks, Vec::new(), &feed.url, is_it).await?;
        Ok(line.map(|line| TaskStatus::parse(&line)))
    }

    /// Whether a read of this feed has ended as failed since it is watched.
    async fn has_failed(&self, begin: &WatchBegin<'_>) -> Result<bool, Failure> {
        let (url, failed) = (&begin.feed.url, vec![("state", "failed")]);
        let is_it = |line: &str| {
            let task = TaskStatus::parse(line);
            let ended = task.fields.ended_ms.map(Duration::from_millis);
            task.url == url.as_str() && ended.is_some_and(|ago| ago <= begin.at.elapsed())
        };
        Ok(self.find(GroupAction::Tasks, failed, url, is_it).await?.is_some())
    }

    async fn end_watch(&self, feed: &WatchedFeed) -> Result<(), Failure> {
        self.publish(&format!("{} every=0", feed.url)).await.map(drop)
    }

    async fn publish(&self, payload: &str) -> Result<Seq, Failure> {
        let topic: TopicName = SCHEDULE_TOPIC.parse().expect("it is the name of a topic");
        let confirmed = match self.broker.client.publish(&topic, payload).await {
            Ok(published) => published.await,
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
        let schedules = lines.iter().map(|line| ScheduleStatus::parse(line));
        let rows = schedules.filter(is_feed).map(|feed| row(feed, leases));
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

fn is_feed(schedule: &ScheduleStatus) -> bool {
    schedule.feed.is_some()
}

fn row(feed: ScheduleStatus, leases: Option<&HubSubscriptions>) -> Vec<String> {
    let ScheduleStatus { url, every, due_ms, .. } = feed;
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
            ("http://a.example/ every=5m", "every=5m is below min=10m"),
            ("http://a.example/ every=2d", "every=2d is above max=1d"),
            ("http://a.example/ min=2d", "--min"),
            ("http://a.example/ min=0", "--min"),
        ] {
            assert!(feed(line).contains(part), "{line}: {}", feed(line));
        }
    }
}
