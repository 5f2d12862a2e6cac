//! Flags of the subcommands that fetch pages, and the configuration that they make.

use std::time::Duration;

use clap::Args;
use tidings_documents::page::{IgnoredText, LinkConfig};
use tidings_documents::tracking::TrackingParams;
use tidings_egress::http::AddedHeader;
use tidings_subscriber::CrawlerConfig;

use crate::client::connection;
use crate::flags::address::BrokerAddress;
use crate::flags::{DataFlag, TrackingFlag, parse_bytes, parse_duration};
use crate::services::browser::BrowserFlags;
use crate::services::outgoing::OutgoingFlags;
use crate::services::sinks::SinkFlags;
use crate::services::traps::TrapFlags;
use crate::terminal::failure::Failure;

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
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrency: u32,

    /// Send at most this many requests at once to one IP address [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    per_address: Option<u32>,

    /// Abort a request after this time [default: 40s]
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

    /// Text that does not count when a page is compared with its last record; may be repeated
    ///
    /// A `*` matches any text of up to 1000 bytes, and at the end the rest of the word:
    /// --ignore 'Generated in * ms' --ignore 'Visitors: *'.
    #[arg(long, value_name = "PATTERN")]
    ignore: Vec<IgnoredText>,

    #[command(flatten)]
    links: LinkFlags,

    #[command(flatten)]
    traps: TrapFlags,

    #[command(flatten)]
    pub(crate) sinks: SinkFlags,

    #[command(flatten)]
    pub(crate) browser: BrowserFlags,
}

impl CrawlerFlags {
    /// The parameters that are removed from links.
    pub(crate) fn tracking_params(&self) -> TrackingParams {
        self.links.tracking.params.clone()
    }

    /// The configuration of a crawler that works for this broker. Reads the file of the identity.
    pub(crate) fn config(
        &self,
        broker: &BrokerAddress,
        data: &DataFlag,
    ) -> Result<CrawlerConfig, Failure> {
        let mut config = CrawlerConfig {
            broker: broker.as_str().to_owned(),
            security: broker.security().clone(),
            name: connection::worker_name("crawler"),
            data: data.data.clone(),
            sinks: self.sinks.config(data),
            bodies: self.sinks.bodies,
            exec_variables: self.sinks.exec_variables(),
            credit: self.concurrency,
            refetch: self.refetch,
            traps: self.traps.limits(),
            ..CrawlerConfig::default()
        };
        config.fetch.headers.clone_from(&self.header);
        config.fetch.cookies = self.cookies;
        config.fetch.links = self.links.config();
        config.fetch.ignored = self.ignore.clone().into();
        config.fetch.connect.per_address = self.per_address;
        if let Some(timeout) = self.timeout {
            config.fetch.request_timeout = timeout;
        }
        if let Some(bytes) = self.max_body {
            config.fetch.body_bytes_max = bytes;
        }
        self.outgoing.apply(&mut config.fetch);
        config.fetch.signer = self.outgoing.identity.signer()?;
        config.render = self.browser.config(&config.fetch.agent)?;
        Ok(config)
    }

    /// The long names of all these flags.
    pub(crate) fn names() -> Vec<String> {
        let command = Self::augment_args(clap::Command::new("names"));
        command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};
    use tidings_subscriber::traps::TrapLimits;

    use super::*;

    fn crawler(words: &[&str]) -> Result<CrawlerConfig, String> {
        let words = ["tidings"].iter().chain(words);
        let flags = CrawlerFlags::augment_args(Command::new("tidings"))
            .try_get_matches_from(words)
            .and_then(|matches| CrawlerFlags::from_arg_matches(&matches))
            .map_err(|error| error.to_string())?;
        let broker = "127.0.0.1:1".parse().unwrap();
        flags.config(&broker, &DataFlag { data: "d".into() }).map_err(|error| format!("{error:?}"))
    }

    #[test]
    fn crawler_flags_reach_the_configuration() {
        let config = crawler(&[
            "--concurrency=7",
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
}
