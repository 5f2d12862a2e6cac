//! Flags that several subcommands share, and how they become the parts' configuration.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::Args;
use tidings_broker::{BrokerConfig, Sync, TopicSettings};
use tidings_protocol::parse_ms;
use tidings_subscriber::{AllowPrivate, CrawlerConfig, NetError, SinkConfig};

use crate::{
    address::{BrokerAddress, Listen},
    logging,
};

/// Where things are stored if nobody says otherwise.
const DATA_DEFAULT: &str = "./tidings-data";

/// Flags of everything that runs a broker that others connect to.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerFlags {
    /// Where to listen: HOST:PORT, or a port (then on 127.0.0.1); port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:12345")]
    pub(crate) listen: Listen,

    /// Pause between the end of one request to a host and the next [default: 1s, 0 for loopback]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) delay: Option<Duration>,

    /// Threads that move bytes [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,

    /// Log every received line (the same as `TIDINGS_LOG=tidings::line=debug`)
    #[arg(long)]
    pub(crate) log_lines: bool,

    #[command(flatten)]
    topics: TopicFlags,
}

/// What topics are told that were given no settings of their own.
#[derive(Debug, Clone, Args)]
struct TopicFlags {
    /// When an event of a topic is confirmed: always (it is synced to the disk), interval (it is
    /// written), memory (nothing of it is on the disk)
    #[arg(long, value_name = "WHEN", default_value = "always", value_parser = parse_sync)]
    sync: Sync,

    /// Bytes of each topic that are kept; a number, or with k, m or g behind it
    #[arg(long, value_name = "BYTES", default_value = "1g", value_parser = parse_retain_bytes)]
    retain_bytes: u64,

    /// How long events are kept; 0: as long as there is room
    #[arg(long, value_name = "DURATION", default_value = "30d", value_parser = parse_duration)]
    retain_age: Duration,
}

impl TopicFlags {
    fn settings(&self) -> TopicSettings {
        TopicSettings {
            sync: self.sync,
            retain_bytes: self.retain_bytes,
            retain_age_ms: milliseconds(self.retain_age),
        }
    }
}

impl ServerFlags {
    /// The configuration of a broker with these flags and this data directory.
    pub(crate) fn config(&self, data: &DataFlag) -> BrokerConfig {
        let mut config = broker_config(self.listen, self.delay);
        config.data = Some(data.data.clone());
        config.topic_defaults = self.topics.settings();
        config.log_lines = self.log_lines || logging::lines_are_asked_for();
        config
    }
}

/// A broker that listens there and, as it is, keeps nothing on disk, with this delay between two requests to a
/// host.
pub(crate) fn broker_config(listen: Listen, delay: Option<Duration>) -> BrokerConfig {
    let mut config = BrokerConfig { listen: listen.0, ..BrokerConfig::default() };
    if let Some(delay) = delay {
        config.group.delay_ms = Some(milliseconds(delay));
    }
    config
}

/// The data directory.
#[derive(Debug, Clone, Args)]
pub(crate) struct DataFlag {
    /// Directory for everything that is stored: topics, groups, pages.db; made if it is missing
    #[arg(long, value_name = "DIR", default_value = DATA_DEFAULT)]
    pub(crate) data: PathBuf,
}

/// The broker that a command talks to.
#[derive(Debug, Clone, Args)]
pub(crate) struct BrokerFlag {
    /// The broker: HOST:PORT
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:12345")]
    pub(crate) broker: BrokerAddress,
}

/// Flags of everything that fetches pages.
#[derive(Debug, Clone, Args)]
pub(crate) struct CrawlerFlags {
    /// Also fetch private, loopback and link-local addresses: all, or only these networks
    #[arg(
        long,
        value_name = "NET,..",
        num_args = 0..=1,
        require_equals = true,
        default_value = "none",
        default_missing_value = "all",
        hide_default_value = true,
        value_parser = parse_allow_private,
    )]
    pub(crate) allow_private: AllowPrivate,

    /// Tasks held at once; an open request is cheap, and no host ever has two
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) credit: u32,

    /// The most time that one request may take in all
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,

    /// What the crawler calls itself (User-Agent; its first word is looked up in robots.txt)
    #[arg(long, value_name = "TEXT")]
    pub(crate) agent: Option<String>,

    #[command(flatten)]
    pub(crate) sinks: SinkFlags,
}

/// Where pages are stored: in all places that are named.
#[derive(Debug, Clone, Args)]
pub(crate) struct SinkFlags {
    /// Store pages in an SQL database (`SQLite`): FILE, or pages.db in the data directory [default, if
    /// no other place is named]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    sqlite: Option<OsString>,

    /// Store pages as lines of JSON at the end of FILE; -: standard output
    #[arg(long, value_name = "FILE")]
    jsonl: Option<PathBuf>,

    /// Store what went over the wire in WARC files, PREFIX-<time>-<number>.warc.gz
    #[arg(long, value_name = "PREFIX")]
    warc: Option<PathBuf>,

    /// A WARC file of this size is closed and another begun; a number, or with k, m or g behind it
    #[arg(long, value_name = "BYTES", default_value = "1g", value_parser = parse_warc_size)]
    warc_size: u64,
}

/// Long names of the flags of [`SinkFlags`].
pub(crate) const SINK_FLAGS: [&str; 4] = ["sqlite", "jsonl", "warc", "warc-size"];

impl SinkFlags {
    fn config(&self, data: &DataFlag) -> Vec<SinkConfig> {
        let mut sinks = Vec::new();
        if let Some(file) = &self.sqlite {
            let file = Some(PathBuf::from(file)).filter(|file| !file.as_os_str().is_empty());
            sinks.push(SinkConfig::Sqlite(file.unwrap_or_else(|| data.data.join("pages.db"))));
        }
        if let Some(file) = &self.jsonl {
            let to_stdout = file.as_os_str() == "-";
            sinks.push(if to_stdout {
                SinkConfig::Stdout
            } else {
                SinkConfig::Jsonl(file.clone())
            });
        }
        if let Some(prefix) = &self.warc {
            let prefix = prefix.clone();
            sinks.push(SinkConfig::Warc { prefix, bytes_max: self.warc_size });
        }
        sinks
    }
}

/// Where a crawler stores, for people.
pub(crate) fn places(config: &CrawlerConfig) -> String {
    let places: Vec<_> = config.sinks().iter().map(ToString::to_string).collect();
    places.join(" and ")
}

/// Whether standard output is for pages alone.
pub(crate) fn takes_stdout(config: &CrawlerConfig) -> bool {
    config.sinks.contains(&SinkConfig::Stdout)
}

impl CrawlerFlags {
    /// The configuration of a crawler that works for this broker.
    pub(crate) fn config(&self, broker: &BrokerAddress, data: &DataFlag) -> CrawlerConfig {
        let mut config = CrawlerConfig {
            broker: broker.as_str().to_owned(),
            data: data.data.clone(),
            sinks: self.sinks.config(data),
            credit: self.credit,
            allow_private: self.allow_private.clone(),
            ..CrawlerConfig::default()
        };
        if let Some(timeout) = self.timeout {
            config.request_timeout = timeout;
        }
        if let Some(agent) = &self.agent {
            config.agent.clone_from(agent);
        }
        config
    }
}

/// A duration as it is written everywhere in Tidings: `250ms`, `30s`, `5m`, `2h`, `1d`, `0`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    parse_ms(text).map(Duration::from_millis).map_err(|error| error.to_string())
}

/// Whole milliseconds of a duration that came from [`parse_duration`].
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("parse_duration() makes it of a u64 of milliseconds")
}

fn parse_sync(text: &str) -> Result<Sync, String> {
    topic_setting("sync", text).map(|settings| settings.sync)
}

/// Bytes as they are written everywhere in Tidings, at least a megabyte.
fn parse_warc_size(text: &str) -> Result<u64, String> {
    parse_retain_bytes(text).map_err(|error| error.replace("retain-bytes", "warc-size"))
}

fn parse_retain_bytes(text: &str) -> Result<u64, String> {
    topic_setting("retain-bytes", text).map(|settings| settings.retain_bytes)
}

/// A setting of a topic as it is written everywhere in Tidings.
fn topic_setting(key: &str, text: &str) -> Result<TopicSettings, String> {
    TopicSettings::parse(&[(key, text)], TopicSettings::default()).map_err(|error| error.text)
}

fn parse_allow_private(text: &str) -> Result<AllowPrivate, String> {
    if text.is_empty() {
        // An environment variable that is set to nothing must not open anything.
        return Ok(AllowPrivate::None);
    }
    text.parse().map_err(|error: NetError| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;

    fn topics(words: &[&str]) -> Result<TopicSettings, String> {
        let words = ["tidings"].iter().chain(words);
        TopicFlags::augment_args(Command::new("tidings"))
            .try_get_matches_from(words)
            .and_then(|matches| TopicFlags::from_arg_matches(&matches))
            .map(|flags| flags.settings())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn topics_are_told_what_the_broker_says_by_default() {
        assert_eq!(topics(&[]).unwrap(), TopicSettings::default());
        let given = ["--sync=interval", "--retain-bytes=3m", "--retain-age=0"];
        assert_eq!(
            topics(&given).unwrap().to_string(),
            "sync=interval retain-bytes=3m retain-age=0"
        );
    }

    #[test]
    fn a_wrong_setting_says_what_would_be_right() {
        for (flag, right) in
            [("--sync=no", "memory"), ("--retain-bytes=5", "1m"), ("--retain-age=5", "30s")]
        {
            let error = topics(&[flag]).unwrap_err();
            assert!(error.contains(right), "{error}");
        }
    }
}
