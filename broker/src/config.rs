//! The configuration that a broker starts with.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use tidings_metrics::MetricsSource;
use tidings_protocol::{MemberId, PORT, TopicSettings, with_defaults};
use tidings_queue::NeverList;
use tidings_queue::config::GroupConfig;

use crate::access::AccessConfig;
use crate::audit::AuditConfig;
use crate::limits::Limits;
use crate::net::http::HttpConfig;
use crate::net::{ConnectionConfig, Setting};
use crate::quota::QuotaConfig;
use crate::tls::TlsConfig;

with_defaults! {
    /// The configuration that a broker starts with.
    #[derive(Debug, Clone)]
    pub struct BrokerConfig {
        /// The address of the line protocol. Port 0 takes a free one. Default `127.0.0.1:12345`.
        pub listen: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)),
        /// A unix socket that also serves the line protocol. Default `None`.
        pub unix: Option<UnixConfig> = None,
        /// Encrypts connections over the network, of lines and of HTTP. Default `None`: no
        /// encryption.
        pub tls: Option<TlsConfig> = None,
        /// The HTTP listener. Default `None`.
        pub http: Option<HttpConfig> = None,
        /// Principals, permissions and transports.
        pub access: AccessConfig = AccessConfig::default(),
        /// The directory for everything that outlives the process. Default `None`: nothing is on
        /// disk, and every topic is `sync=memory`.
        pub data: Option<PathBuf> = None,
        /// The settings of a topic that has none of its own.
        pub topic_defaults: TopicSettings = TopicSettings::default(),
        /// Limits of everything that grows.
        pub limits: Limits = Limits::default(),
        /// Limits for each source and principal.
        pub quotas: QuotaConfig = QuotaConfig::default(),
        /// The settings of a group that is created without settings. A delay that is given here
        /// also applies to the default group if that exists already.
        pub group: GroupConfig = GroupConfig::default(),
        /// Hosts and URLs that no group requests. Default: none.
        pub never_list: Arc<NeverList> = Arc::default(),
        /// A worker in this process. When the process has ended, so have its requests, and a
        /// restart does not wait for its leases.
        pub embedded_member: Option<MemberId> = None,
        /// Where audit records are written. Default `None`: nowhere.
        pub audit: Option<AuditConfig> = None,
        /// What other parts of the process add to `GET /metrics` and to the problems of `STATS`.
        pub metrics_sources: Vec<Arc<dyn MetricsSource>> = Vec::new(),
        /// Logs every received line (target `tidings::line`), for debugging.
        pub log_lines: bool = false,
        /// What the operator has set, for `GET /config`. Default: nothing.
        pub settings: Vec<Setting> = Vec::new(),
    }
}

impl BrokerConfig {
    /// What it decides about connections.
    pub(crate) fn connections(&self) -> ConnectionConfig {
        ConnectionConfig {
            listen: self.listen,
            limits: self.limits.clone(),
            access: self.access.clone(),
            quotas: self.quotas.clone(),
            metrics_sources: self.metrics_sources.clone(),
            log_lines: self.log_lines,
            unix: self.unix.as_ref().map(|unix| unix.path.clone()),
            settings: self.settings.clone(),
        }
    }
}

/// A unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixConfig {
    /// Its path. An existing socket is replaced if no process listens on it.
    pub path: PathBuf,
    /// The permissions of the file, which decide which users may connect. 0o600: only this user.
    pub mode: u32,
}
