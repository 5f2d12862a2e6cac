//! The settings of a crawler, and all its limits, each with unit, default and reason.

use std::path::PathBuf;
use std::time::Duration;

use tidings_protocol::client::Security;
use tidings_protocol::{GroupName, MemberId};
use xxhash_rust::xxh3::xxh3_64;

use crate::address::AllowPrivate;
use crate::fetch::AddedHeader;
use crate::sink::SinkConfig;
use crate::tracking::TrackingParams;
use crate::traps::TrapLimits;

/// A crawler's settings. Start from [`CrawlerConfig::default`] and change what is needed.
#[derive(Clone, Debug)]
pub struct CrawlerConfig {
    /// `host:port` of the broker, or `unix:path`. Default: `127.0.0.1:12345`.
    pub broker: String,
    /// TLS settings of the connection to the broker. Default: no encryption.
    pub security: Security,
    /// The group to join. Default: `crawlers`.
    pub group: GroupName,
    /// Tasks held at once, at most. Default: 1000. An open request is cheap, and a host never has
    /// two, so this bounds memory and file descriptors; politeness does not depend on it.
    pub credit: u32,
    /// The `User-Agent` header; the part before the first `/` is the product token that
    /// robots.txt rules are matched with. Default: `tidings/<version>`.
    pub agent: String,
    /// A URL or an e-mail address for questions about this crawler, which [`agent`](Self::agent)
    /// contains already. Default: none, which is reported as a warning at the start.
    pub contact: Option<String>,
    /// What counts as a link of a page.
    pub links: LinkConfig,
    /// Whether pages are always fetched whole, without conditional requests. Default: no.
    pub refetch: bool,
    /// The limits beyond which a site counts as a trap.
    pub traps: TrapLimits,
    /// The member to resume. Default `None`: the broker assigns a new identity.
    pub member: Option<MemberId>,
    /// A label for operators, shown by the broker. Default: `crawler`.
    pub name: String,
    /// The directory for the crawler's own files; created if missing. Default: `tidings-data`.
    pub data: PathBuf,
    /// The sinks; a page is stored in all of them. Default: none, which means `pages.db` in `data`.
    pub sinks: Vec<SinkConfig>,
    /// Environment variables that programs run for pages inherit, in addition to the usual ones.
    pub exec_variables: Vec<String>,
    /// Addresses outside the public internet that may be crawled anyway. Default: none.
    pub allow_private: AllowPrivate,
    /// Time limit for a connection, name resolution and TLS included. Default: 10 s.
    pub connect_timeout: Duration,
    /// The longest silence of a server, before its answer begins and within the body. Default: 15
    /// s.
    pub read_timeout: Duration,
    /// Time limit for one request. Default: 40 s; never more than eight tenths of the task's lease,
    /// so that a request ends before the broker can release the host to another crawler.
    pub request_timeout: Duration,
    /// Limit of a decoded body in bytes; a longer one fails the page. Default: 64 MiB. Bodies are
    /// streamed, so this bounds work rather than memory.
    pub body_bytes_max: u64,
    /// The proxy for all requests: `http://[user:password@]host:port`. Default: none.
    pub proxy: Option<String>,
    /// Additional headers of requests. Default: none.
    pub headers: Vec<AddedHeader>,
    /// Whether cookies are returned to the server that set them. Default: no.
    pub cookies: bool,
    /// Requests at once to one address, under any host name. Default: no limit.
    pub per_address: Option<u32>,
}

/// What counts as a link of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConfig {
    /// Whether images of a page count. Default: no.
    pub images: bool,
    /// Whether the sitemaps named in robots.txt are read for links. Default: no.
    pub sitemaps: bool,
    /// Tracking parameters that are removed from links. Default: a built-in list.
    pub tracking: TrackingParams,
}

impl LinkConfig {
    /// How links are extracted, if not by the defaults. Stored with each page: a page that has not
    /// changed may have other links under other settings.
    pub fn extraction_mode(&self) -> Option<String> {
        let mut words = Vec::new();
        words.extend(self.images.then(|| "images".to_owned()));
        words.extend(self.sitemaps.then(|| "sitemaps".to_owned()));
        if self.tracking != TrackingParams::default() {
            // The list may be long.
            words.push(format!("tracking={:016x}", xxh3_64(self.tracking.to_string().as_bytes())));
        }
        (!words.is_empty()).then(|| words.join(" "))
    }
}

impl Default for CrawlerConfig {
    fn default() -> Self {
        Self {
            broker: format!("127.0.0.1:{}", tidings_protocol::PORT),
            security: Security::default(),
            group: tidings_protocol::DEFAULT_GROUP
                .parse()
                .expect("the default group has a valid name"),
            credit: 1000,
            agent: concat!("tidings/", env!("CARGO_PKG_VERSION")).to_owned(),
            contact: None,
            links: LinkConfig::default(),
            refetch: false,
            traps: TrapLimits::default(),
            member: None,
            name: "crawler".to_owned(),
            data: PathBuf::from("tidings-data"),
            sinks: Vec::new(),
            exec_variables: Vec::new(),
            allow_private: AllowPrivate::None,
            connect_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(15),
            request_timeout: Duration::from_secs(40),
            body_bytes_max: 64 * 1024 * 1024,
            proxy: None,
            headers: Vec::new(),
            cookies: false,
            per_address: None,
        }
    }
}

impl CrawlerConfig {
    /// The sinks, with the default filled in.
    pub fn sinks(&self) -> Vec<SinkConfig> {
        if self.sinks.is_empty() {
            return vec![SinkConfig::Sqlite(self.data.join("pages.db"))];
        }
        self.sinks.clone()
    }
}
