//! The settings of a crawler. Limits stand in the module that they bound.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidings_browser::BrowsersConfig;
use tidings_browser::process::LaunchConfig;
use tidings_browser::visit::Load;
use tidings_client::Security;
use tidings_protocol::{DEFAULT_GROUP, GroupName, MemberId, PORT, RenderRule, with_defaults};

use crate::fetch::FetchConfig;
use crate::metrics::CrawlerMetrics;
use crate::sink::{SinkConfig, SinkContext};
use crate::traps::TrapLimits;

with_defaults! {
    /// A crawler's settings. Start from [`CrawlerConfig::default`] and change what is needed.
    #[derive(Clone, Debug)]
    pub struct CrawlerConfig {
        /// `host:port` of the broker, or `unix:path`. Default: `127.0.0.1:12345`.
        pub broker: String = format!("127.0.0.1:{PORT}"),
        /// TLS settings of the connection to the broker. Default: no encryption.
        pub security: Security = Security::default(),
        /// The group to join. Default: `crawlers`.
        pub group: GroupName = DEFAULT_GROUP.parse().expect("the constant is a valid name"),
        /// Tasks held at once, at most. Default: 1000. An open request is cheap, and a host never
        /// has two, so this bounds memory and file descriptors; politeness does not depend on it.
        pub credit: u32 = 1000,
        /// Ends the crawler after this many tasks: it takes no more, and works on those that it has
        /// taken meanwhile. Default: none.
        pub max_tasks: Option<u64> = None,
        /// Ends the crawler in the same way after this time, to which up to a tenth is added at
        /// random, so that the crawlers of a fleet end in turn. Default: none.
        pub max_age: Option<Duration> = None,
        /// How requests are made.
        pub fetch: FetchConfig = FetchConfig::default(),
        /// Whether pages are always fetched whole, without conditional requests. Default: no.
        pub refetch: bool = false,
        /// The limits beyond which a site counts as a trap.
        pub traps: TrapLimits = TrapLimits::default(),
        /// The member to resume. Default `None`: the broker assigns a new identity.
        pub member: Option<MemberId> = None,
        /// A label for operators, shown by the broker. Default: `crawler`.
        pub name: String = "crawler".to_owned(),
        /// The directory for the crawler's own files; created if missing. Default: `tidings-data`.
        pub data: PathBuf = PathBuf::from("tidings-data"),
        /// The sinks; a page is stored in all of them. Default: none, which means `pages.db` in
        /// `data`.
        pub sinks: Vec<SinkConfig> = Vec::new(),
        /// Environment variables that programs run for pages inherit, in addition to the usual
        /// ones.
        pub exec_variables: Vec<String> = Vec::new(),
        /// Whether all databases among the sinks keep the bodies of pages. Default: no.
        pub bodies: bool = false,
        /// The browsers that render pages. Default: none.
        pub render: Option<RenderConfig> = None,
        /// Where the crawler counts what it does.
        pub metrics: Arc<CrawlerMetrics> = Arc::default(),
    }
}

/// How pages are rendered.
#[derive(Clone, Debug)]
pub struct RenderConfig {
    /// Which pages are rendered if neither their URL nor their job says so.
    pub rule: RenderRule,
    /// How a browser is started.
    pub launch: LaunchConfig,
    /// How many browsers there are, and the limits of a page.
    pub browsers: BrowsersConfig,
    /// Which optional parts of pages are loaded.
    pub load: Load,
    /// Whether a PNG image of each rendered page is stored.
    pub screenshot: bool,
    /// Whether each rendered page is stored as PDF, too.
    pub pdf: bool,
}

impl CrawlerConfig {
    /// The sinks, with the default filled in.
    pub fn sinks(&self) -> Vec<SinkConfig> {
        if self.sinks.is_empty() {
            return vec![SinkConfig::Sqlite(self.data.join("pages.db"))];
        }
        self.sinks.clone()
    }

    /// What the sinks share.
    pub fn sink_context(&self) -> SinkContext<'_> {
        SinkContext {
            agent: &self.fetch.agent,
            extraction_mode: self.fetch.links.extraction_mode(),
            exec_variables: &self.exec_variables,
            bodies: self.bodies,
            metrics: Arc::clone(&self.metrics),
        }
    }
}
