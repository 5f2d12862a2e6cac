//! Flags that several subcommands share, and their conversion to configurations.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tidings_broker::{AuditConfig, BrokerConfig, HttpConfig, Sockets, Sync, TopicSettings};
use tidings_protocol::{IpNetworkError, parse_ms};
use tidings_subscriber::fetch::AddedHeader;
use tidings_subscriber::page::LinkConfig;
use tidings_subscriber::tracking::TrackingParams;
use tidings_subscriber::{AllowPrivate, CrawlerConfig};

use crate::access::{AccessFlags, TransportGrant, parse_grant};
use crate::address::{BrokerAddress, Listen};
use crate::callbacks::CallbackFlags;
use crate::failure::Failure;
use crate::hooks::HookFlags;
use crate::hub::HubFlags;
use crate::outgoing::OutgoingFlags;
use crate::process::ProcessFlags;
use crate::public_url::PublicUrl;
use crate::quotas::QuotaFlags;
use crate::sinks::SinkFlags;
use crate::stack::StopTimeout;
use crate::tls::TlsFlags;
use crate::traps::TrapFlags;
use crate::websub::WebSubFlags;
use crate::zmq::ZmqFlags;
use crate::{broker_message, logging};

/// The default data directory.
const DATA_DEFAULT: &str = "./tidings-data";

/// Flags of the subcommands that run a broker for other processes.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerFlags {
    /// Listen on HOST:PORT, or on a port of 127.0.0.1; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:12345")]
    pub(crate) listen: Listen,

    /// Wait this long between two requests to one host [default: 1s, 0 for loopback]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) delay: Option<Duration>,

    /// Number of network threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,

    /// Log every received line (same as `TIDINGS_LOG=tidings::line=debug`)
    #[arg(long)]
    pub(crate) log_lines: bool,

    /// Append an audit log in JSON Lines to FILE, or write it to standard error with -
    ///
    /// The file is reopened on SIGHUP.
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,

    #[command(flatten)]
    topics: TopicFlags,

    #[command(flatten)]
    pub(crate) tls: Box<TlsFlags>,

    #[command(flatten)]
    pub(crate) access: AccessFlags,

    #[command(flatten)]
    quotas: QuotaFlags,

    #[command(flatten)]
    pub(crate) http: HttpFlags,

    /// Privileged attributes that a transport accepts [default: all for line and http, none for
    /// zmq]
    ///
    /// Transports are line, http and zmq. The attributes every=, prio= and job= control schedules,
    /// priority and jobs. hub allows notifications of feed changes (hub=, cloud=, pushed=) and the
    /// topics hub-found, hub and hub-verify. job also allows the topic job-done. May be repeated.
    #[arg(long, value_name = "TRANSPORT=ATTRIBUTE,..", value_parser = parse_grant)]
    grant: Vec<TransportGrant>,

    #[command(flatten)]
    pub(crate) zmq: ZmqFlags,

    #[command(flatten)]
    pub(crate) callbacks: CallbackFlags,

    #[command(flatten)]
    pub(crate) process: Box<ProcessFlags>,
}

/// Flags of the HTTP listener.
#[derive(Debug, Clone, Args)]
pub(crate) struct HttpFlags {
    /// Listen for HTTP on HOST:PORT or a port, or off [default: 127.0.0.1:12346, or a free port if
    /// --listen takes one]
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<ListenHttp>,

    /// Also accept HTTP requests with this Host header; may be repeated
    ///
    /// localhost and IP addresses are always accepted.
    #[arg(long, value_name = "NAME")]
    http_host: Vec<String>,

    /// Public URL of the HTTP listener, for example behind a proxy
    ///
    /// Hubs of watched feeds send their notifications there. Its host is accepted as with
    /// --http-host.
    #[arg(long, value_name = "URL")]
    pub(crate) public_url: Option<PublicUrl>,

    #[command(flatten)]
    hooks: HookFlags,

    #[command(flatten)]
    pub(crate) websub: WebSubFlags,

    #[command(flatten)]
    pub(crate) hub: Box<HubFlags>,
}

/// The address of the HTTP listener, or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListenHttp {
    Off,
    At(Listen),
}

impl std::str::FromStr for ListenHttp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" { Ok(Self::Off) } else { text.parse().map(Self::At) }
    }
}

impl HttpFlags {
    fn hosts(&self) -> Vec<String> {
        let public = self.public_url.as_ref().map(|url| url.host().to_owned());
        self.http_host.iter().cloned().chain(public).collect()
    }

    /// Whether HTTP is off.
    pub(crate) fn is_off(&self) -> bool {
        self.http == Some(ListenHttp::Off)
    }

    /// The address of the HTTP listener, if it is on.
    fn listen_address(&self, lines: Listen) -> Option<SocketAddr> {
        let mut usual = HttpConfig::default().listen;
        match self.http {
            Some(ListenHttp::Off) => return None,
            Some(ListenHttp::At(listen)) => return Some(listen.0),
            // Without a fixed port for lines, HTTP has none either.
            None if lines.0.port() == 0 => usual.set_port(0),
            None => {}
        }
        Some(usual)
    }

    fn config(&self, lines: Listen) -> Result<Option<HttpConfig>, Failure> {
        let mut config = HttpConfig {
            allowed_hosts: self.hosts(),
            hooks: self.hooks.hooks()?,
            hook_events_per_minute: self.hooks.hook_events,
            ..HttpConfig::default()
        };
        config.embedded_handlers.extend(self.hub.receiver(self.public_url.as_ref())?);
        if self.http == Some(ListenHttp::Off) && self.public_url.is_some() {
            let text =
                "--public-url needs HTTP, which is off (--http off); remove one of the two flags";
            return Err(Failure::Usage(text.to_owned()));
        }
        let Some(listen) = self.listen_address(lines) else {
            if !config.embedded_handlers.is_empty() {
                let text =
                    "--hub needs HTTP, which is off (--http off); remove one of the two flags";
                return Err(Failure::Usage(text.to_owned()));
            }
            if !config.hooks.is_empty() {
                let text = "[[hook]] needs HTTP, which is off (--http off); remove one of the two";
                return Err(Failure::Usage(text.to_owned()));
            }
            return Ok(None);
        };
        config.listen = listen;
        Ok(Some(config))
    }
}

/// The default settings of topics.
#[derive(Debug, Clone, Args)]
struct TopicFlags {
    /// When an event is confirmed: always (after a sync to disk), interval (after the write) or
    /// memory (never on disk)
    #[arg(long, value_name = "WHEN", default_value = "always", value_parser = parse_sync)]
    sync: Sync,

    /// Keep this many bytes of each topic; k, m and g are units
    #[arg(long, value_name = "BYTES", default_value = "1g", value_parser = parse_retain_bytes)]
    retain_bytes: u64,

    /// Keep events for this time; 0 sets no limit
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
    /// The addresses of the line listener, and of the HTTP listener if it is on.
    pub(crate) fn listen_addresses(&self) -> (SocketAddr, Option<SocketAddr>) {
        (self.listen.0, self.http.listen_address(self.listen))
    }

    /// The audit file, if records are written to one.
    pub(crate) fn audit_file(&self) -> Option<&Path> {
        self.audit.as_deref().filter(|path| *path != Path::new("-"))
    }

    /// Files outside the data directory that the broker reads while it runs.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let secrets = self.http.hooks.secret_files().chain(self.callbacks.secret_file());
        let files = secrets.chain(self.zmq.key_file()).chain(self.tls.files());
        files.map(Path::to_owned).collect()
    }

    /// The configuration of a broker with these flags and this data directory. Reads the secrets of
    /// webhooks.
    pub(crate) fn config(&self, data: &DataFlag) -> Result<BrokerConfig, Failure> {
        let mut config = broker_config(self.listen, self.delay);
        config.data = Some(data.data.clone());
        config.topic_defaults = self.topics.settings();
        config.http = self.http.config(self.listen)?;
        self.tls.apply(&mut config, &data.data)?;
        self.access.apply(&mut config, &data.data)?;
        config.quotas = self.quotas.config();
        for TransportGrant { transport: way, attributes: powers } in &self.grant {
            config.access.transport_policy.grant(*way, powers);
        }
        config.limits.stop_ms = milliseconds(StopTimeout(self.process.stop_timeout).connections());
        config.audit = self.audit.as_ref().map(|_| {
            self.audit_file().map_or(AuditConfig::Stderr, |path| AuditConfig::File(path.to_owned()))
        });
        config.log_lines = self.log_lines || logging::filter_names_lines();
        self.check_exposure(&config, &Sockets::default(), data)?;
        Ok(config)
    }

    /// [`AccessFlags::check_exposure`]
    pub(crate) fn check_exposure(
        &self,
        config: &BrokerConfig,
        sockets: &Sockets,
        data: &DataFlag,
    ) -> Result<(), Failure> {
        self.access.check_exposure(config, sockets, &self.zmq, &data.data)
    }
}

/// The configuration of a broker at this address, without a data directory, with this delay between
/// two requests to a host.
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
    /// Data directory for topics, groups and pages.db; created if it does not exist
    #[arg(long, value_name = "DIR", default_value = DATA_DEFAULT)]
    pub(crate) data: PathBuf,
}

/// Private addresses that may be fetched from.
#[derive(Debug, Clone, Args)]
pub(crate) struct AllowPrivateFlag {
    /// Allow private, loopback and link-local addresses: all of them, or only these networks
    #[arg(
        id = "allow_private",
        long = "allow-private",
        value_name = "NET,..",
        num_args = 0..=1,
        require_equals = true,
        default_value = "none",
        default_missing_value = "all",
        hide_default_value = true,
        value_parser = parse_allow_private,
    )]
    pub(crate) networks: AllowPrivate,
}

/// Parameters that are removed from links.
#[derive(Debug, Clone, Args)]
pub(crate) struct TrackingFlag {
    /// Parameters to remove from links, separated by commas
    ///
    /// NAME removes one, NAME* all with this prefix, and ;NAME one within a path. `default` is the
    /// built-in list, `none` removes nothing.
    #[arg(
        id = "tracking_params",
        long = "tracking-params",
        value_name = "LIST",
        default_value = "default"
    )]
    pub(crate) params: TrackingParams,
}

/// What counts as a link of a page.
#[derive(Debug, Clone, Args)]
struct LinkFlags {
    /// Also fetch the images of pages
    #[arg(long)]
    images: bool,

    /// Follow the sitemaps that robots.txt lists
    #[arg(long)]
    sitemaps: bool,

    #[command(flatten)]
    tracking: TrackingFlag,
}

impl LinkFlags {
    fn config(&self) -> LinkConfig {
        LinkConfig {
            images: self.images,
            sitemaps: self.sitemaps,
            tracking: self.tracking.params.clone(),
        }
    }
}

/// Flags of the subcommands that fetch pages.
#[derive(Debug, Clone, Args)]
pub(crate) struct CrawlerFlags {
    #[command(flatten)]
    pub(crate) outgoing: OutgoingFlags,

    /// Work on at most this many tasks at once; one host never gets two requests at once
    #[arg(long, alias = "credit", value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrency: u32,

    /// Send at most this many requests at once to one IP address [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    per_address: Option<u32>,

    /// Abort a request after this time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,

    /// Read at most this many bytes of a page after decoding; k, m and g are units [default: 64m]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    max_body: Option<u64>,

    /// Add a header to every request; may be repeated
    ///
    /// The prefix `https://HOST=` limits it to that scheme, host and port.
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<AddedHeader>,

    /// Store cookies and send them back to the hosts that set them
    #[arg(long)]
    cookies: bool,

    /// Fetch stored pages in full, without a conditional request (`ETag`, `Last-Modified`)
    #[arg(long)]
    refetch: bool,

    #[command(flatten)]
    links: LinkFlags,

    #[command(flatten)]
    traps: TrapFlags,

    #[command(flatten)]
    pub(crate) sinks: SinkFlags,
}

impl CrawlerFlags {
    /// The configuration of a crawler that works for this broker.
    pub(crate) fn config(&self, broker: &BrokerAddress, data: &DataFlag) -> CrawlerConfig {
        let mut config = CrawlerConfig {
            broker: broker.as_str().to_owned(),
            security: broker.security().clone(),
            data: data.data.clone(),
            sinks: self.sinks.config(data),
            exec_variables: self.sinks.exec_variables(),
            credit: self.concurrency,
            refetch: self.refetch,
            traps: self.traps.limits(),
            ..CrawlerConfig::default()
        };
        config.fetch.headers.clone_from(&self.header);
        config.fetch.cookies = self.cookies;
        config.fetch.links = self.links.config();
        config.fetch.connect.per_address = self.per_address;
        if let Some(timeout) = self.timeout {
            config.fetch.request_timeout = timeout;
        }
        if let Some(bytes) = self.max_body {
            config.fetch.body_bytes_max = bytes;
        }
        self.outgoing.apply(&mut config.fetch);
        config
    }

    /// The long names of all these flags.
    pub(crate) fn names() -> Vec<String> {
        let command = Self::augment_args(clap::Command::new("names"));
        command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
    }
}

/// Parses a duration in the format of all Tidings flags: `250ms`, `30s`, `5m`, `2h`, `1d`, `0`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    parse_ms(text).map(Duration::from_millis).map_err(|error| error.to_string())
}

/// The milliseconds of a duration from [`parse_duration`].
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("parse_duration() makes it of a u64 of milliseconds")
}

fn parse_sync(text: &str) -> Result<Sync, String> {
    parse_topic_setting("sync", text).map(|settings| settings.sync)
}

/// Parses bytes in the format of all Tidings flags, at least a megabyte.
fn parse_retain_bytes(text: &str) -> Result<u64, String> {
    parse_topic_setting("retain-bytes", text).map(|settings| settings.retain_bytes)
}

/// Parses one setting of a topic.
fn parse_topic_setting(key: &str, text: &str) -> Result<TopicSettings, String> {
    TopicSettings::parse(&[(key, text)], TopicSettings::default())
        .map_err(|error| broker_message::flag_value_error(&error.text))
}

/// Parses a number of bytes: `65536`, `64k`, `10m`, `1g`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let units = [("", 1), ("k", 1 << 10), ("m", 1 << 20), ("g", 1_u64 << 30)];
    let unit = units.iter().find(|(name, _)| *name == unit).map(|(_, bytes)| bytes);
    let bytes = unit.and_then(|unit| digits.parse::<u64>().ok()?.checked_mul(*unit));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "expected bytes such as 65536, 64k, 10m or 1g".to_owned())
}

/// The value of `--allow-private`.
fn parse_allow_private(text: &str) -> Result<AllowPrivate, String> {
    if text.is_empty() {
        // A variable that is set to an empty text must not allow anything.
        return Ok(AllowPrivate::None);
    }
    text.parse().map_err(|error: IpNetworkError| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};
    use tidings_subscriber::traps::TrapLimits;

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
    fn topic_flags_have_the_defaults_of_the_broker() {
        assert_eq!(topics(&[]).unwrap(), TopicSettings::default());
        let given = ["--sync=interval", "--retain-bytes=3m", "--retain-age=0"];
        assert_eq!(
            topics(&given).unwrap().to_string(),
            "sync=interval retain-bytes=3m retain-age=0"
        );
    }

    fn crawler(words: &[&str]) -> Result<CrawlerConfig, String> {
        let words = ["tidings"].iter().chain(words);
        let flags = CrawlerFlags::augment_args(Command::new("tidings"))
            .try_get_matches_from(words)
            .and_then(|matches| CrawlerFlags::from_arg_matches(&matches))
            .map_err(|error| error.to_string())?;
        let broker = "127.0.0.1:1".parse().unwrap();
        Ok(flags.config(&broker, &DataFlag { data: "d".into() }))
    }

    #[test]
    fn crawler_flags_reach_the_configuration() {
        let config = crawler(&[
            "--credit=7",
            "--max-body=10m",
            "--header=Accept: text/html, text/plain",
            "--header=https://a.example=Authorization: Bearer x",
            "--contact=https://example.org/bot",
            "--cookies",
        ]);
        let config = config.unwrap();
        assert_eq!((config.credit, config.fetch.body_bytes_max), (7, 10 << 20));
        let headers =
            ["Accept: text/html, text/plain", "https://a.example=Authorization: Bearer x"];
        assert_eq!(config.fetch.headers, headers.map(|header| header.parse().unwrap()));
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(config.fetch.agent, format!("tidings/{version} (+https://example.org/bot)"));
        assert!(config.fetch.cookies && !config.fetch.links.images && !config.fetch.links.sitemaps);
        let config = crawler(&["--concurrency=8", "--agent=bot/1", "--contact=me@example.org"]);
        let config = config.unwrap();
        assert_eq!((config.credit, config.fetch.agent.as_str()), (8, "bot/1 (+me@example.org)"));
    }

    #[test]
    fn tracking_and_trap_flags_reach_the_configuration() {
        let config = crawler(&[]).unwrap();
        assert_eq!(config.fetch.links, LinkConfig::default());
        assert_eq!(config.traps, TrapLimits::default());
        let config = crawler(&[
            "--tracking-params=default,ref",
            "--max-url=500",
            "--max-segments=8",
            "--max-repeats=1",
            "--max-alike=50",
        ]);
        let config = config.unwrap();
        assert_eq!(config.fetch.links.tracking, "default,ref".parse().unwrap());
        let expected = TrapLimits {
            url_bytes_max: 500,
            segments_max: 8,
            segment_repeats_max: 1,
            shape_pages_max: 50,
            ..TrapLimits::default()
        };
        assert_eq!(config.traps, expected);
        assert!(!crawler(&["--no-traps"]).unwrap().traps.enabled);
    }

    #[test]
    fn wrong_crawler_flags_are_rejected_with_the_reason() {
        for (flag, right) in [
            ("--max-body=0", "10m"),
            ("--max-body=1t", "10m"),
            ("--max-body=99999999999g", "10m"),
            ("--header=no", "Name: value"),
            ("--header=a b: c", "not a valid header name"),
            ("--header=a: b\r\nc: d", "cannot be sent"),
            ("--header=Host: a", "the crawler sets this header itself"),
            ("--header=Authorization: a", "name the server"),
            ("--header=https://a.example/path=Authorization: a", "not to a path"),
            ("--contact=nobody", "e-mail"),
            ("--concurrency=0", "1..="),
            ("--tracking-params=a=b", "not a parameter name"),
            ("--max-url=0", "1.."),
            ("--max-repeats=0", "1.."),
            ("--max-alike=many", "invalid"),
        ] {
            let error = crawler(&[flag]).unwrap_err();
            assert!(error.contains(right), "{error}");
        }
    }

    #[test]
    fn a_wrong_setting_is_rejected_with_a_valid_one() {
        for (flag, right) in
            [("--sync=no", "memory"), ("--retain-bytes=5", "1m"), ("--retain-age=5", "30s")]
        {
            let error = topics(&[flag]).unwrap_err();
            assert!(error.contains(right), "{error}");
        }
    }
}
