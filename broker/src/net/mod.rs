//! Listeners and connections, the only code of the broker that uses sockets. The line protocol is
//! here, HTTP is in [`http`].
//!
//! ```text
//!  listener ──spawns──▶ connection (one task each)
//!                         input: socket ─▶ session ─▶ dispatch ─▶ topics, groups
//!                         output: answers, tasks, subscriptions ─▶ outbound ─▶ socket
//!                         woken by: socket, mailbox, subscribed topics, next deadline
//! ```

mod client_session;
mod connection;
mod handshake;
mod handshake_socket;
pub(crate) mod http;
mod listener;
mod metrics;
mod registry;
mod stream;
mod topic_commands;
pub(crate) mod unix;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tidings_metrics::MetricsSource;
use tidings_protocol::MemberId;

pub use self::listener::AcceptedElsewhere;
use self::listener::spawn_accept_loop;
pub(crate) use self::listener::{
    Listener, bind, completes_within, listen, run_maintenance, serve_lines, serve_unix,
};
use self::registry::ConnectionRegistry;
use crate::access::{Access, AccessConfig, Principal};
use crate::audit::{Audit, AuditEvent};
use crate::clock::{Clock, wall_unix_ms};
use crate::cursors::Cursors;
use crate::groups::Groups;
use crate::limits::Limits;
use crate::mailbox::ConnId;
use crate::quota::{Created, QuotaConfig, Quotas};
use crate::stats::Stats;
use crate::tls::Tls;
use crate::topic::Topics;

/// The state that all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    clock: Clock,
    pub(crate) topics: Arc<Topics>,
    pub(crate) groups: Arc<Groups>,
    cursors: Cursors,
    registry: ConnectionRegistry,
    stats: Arc<Stats>,
    /// What other parts of the process report.
    metrics_sources: Vec<Arc<dyn MetricsSource>>,
    pub(crate) access: Access,
    quotas: Quotas,
    pub(crate) audit: Audit,
    log_lines: AtomicBool,
    /// The address of the line protocol.
    listen: SocketAddr,
    /// The path of the unix socket.
    unix: Option<PathBuf>,
    /// What the operator has set.
    settings: Mutex<Vec<Setting>>,
    /// `None`: connections are not encrypted.
    tls: Option<Tls>,
    /// Keyed hash for member ids. Its secret key is drawn at each start.
    member_id_hasher: RandomState,
}

/// A setting as it is shown to operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The long name of the flag.
    pub key: String,
    /// The value without secrets, in the notation of a configuration file.
    pub value: String,
    /// Where it was set.
    pub origin: String,
}

/// What the configuration decides about connections.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionConfig {
    pub(crate) listen: SocketAddr,
    pub(crate) limits: Limits,
    pub(crate) access: AccessConfig,
    pub(crate) quotas: QuotaConfig,
    /// What other parts of the process report.
    pub(crate) metrics_sources: Vec<Arc<dyn MetricsSource>>,
    /// Logs every received line.
    pub(crate) log_lines: bool,
    pub(crate) unix: Option<PathBuf>,
    pub(crate) settings: Vec<Setting>,
}

impl Shared {
    /// Creates the state, with no connections.
    pub(crate) fn new(
        config: ConnectionConfig,
        clock: Clock,
        topics: Arc<Topics>,
        groups: Arc<Groups>,
        (tls, audit): (Option<Tls>, Audit),
    ) -> Arc<Self> {
        let cursors = Cursors::new(topics.catalog().clone(), &config.limits);
        let access = Access::new(config.access);
        access.set_time(wall_unix_ms());
        Arc::new(Self {
            registry: ConnectionRegistry::new(config.limits.connections_max),
            limits: config.limits,
            clock,
            topics,
            groups,
            cursors,
            stats: Arc::default(),
            metrics_sources: config.metrics_sources,
            access,
            quotas: Quotas::new(&config.quotas),
            audit,
            log_lines: AtomicBool::new(config.log_lines),
            listen: config.listen,
            unix: config.unix,
            settings: Mutex::new(config.settings),
            tls,
            member_id_hasher: RandomState::new(),
        })
    }

    /// Runs periodic maintenance. Call it about once a second.
    fn maintain(&self) {
        self.topics.maintain();
        self.cursors.maintain(self.clock.now(), self.clock.unix_ms());
        self.expire_principals(wall_unix_ms());
        self.quotas.tick(&|created| self.exists(created), self.clock.now());
        self.audit.tick();
        if let Some(tls) = &self.tls {
            tls.reload_if_changed();
        }
    }

    /// Whether something that a client created still exists and counts towards its quota.
    fn exists(&self, created: &Created) -> bool {
        match created {
            Created::Topic(name) => self.topics.find(name.as_str()).is_some(),
            Created::Cursor(id) => self.cursors.exists(id),
            Created::Group(name) => self.groups.has(name),
            Created::Job(group, name) => self.groups.has_unfinished_job(group, name),
        }
    }

    /// Sets the time of day, by which principals expire. Connections of those that have expired end.
    fn expire_principals(&self, unix_ms: i64) {
        let expired = self.access.set_time(unix_ms);
        for name in &expired {
            self.audit.record_broker(&AuditEvent::PrincipalChanged { name, change: "expired" });
        }
        if !expired.is_empty() {
            self.registry.renew_all();
        }
    }

    /// Replaces all principals. Each connection then renews its identity, or ends.
    pub(crate) fn replace_principals(&self, principals: Vec<Principal>) -> bool {
        let changes = self.access.replace_principals(principals);
        for &(ref name, change) in &changes {
            self.audit.record_broker(&AuditEvent::PrincipalChanged { name, change });
        }
        self.registry.renew_all();
        !changes.is_empty()
    }

    /// What the operator has set.
    pub(crate) fn settings(&self) -> Vec<Setting> {
        self.settings.lock().clone()
    }

    fn logs_lines(&self) -> bool {
        self.log_lines.load(Ordering::Relaxed)
    }

    /// Applies the reloadable settings to open and future connections.
    pub(crate) fn reload(&self, config: &ConnectionConfig) {
        self.audit.record_broker(&AuditEvent::Reloaded);
        self.access.set_transport_policy(config.access.transport_policy);
        self.quotas.set_limits(&config.quotas);
        self.log_lines.store(config.log_lines, Ordering::Relaxed);
        self.settings.lock().clone_from(&config.settings);
    }

    /// Asks all connections to close, including those that are just being accepted.
    pub(crate) fn close_all(&self) {
        self.registry.close_all();
    }

    /// A member id for a connection that did not resume one. A client that knows the id can take
    /// the member over, so one id must not reveal another. The id is a keyed hash of the
    /// connection's number; the operating system supplies the key at each start.
    fn new_member_id(&self, conn: ConnId) -> MemberId {
        let half = |which: u8| u128::from(self.member_id_hasher.hash_one((which, conn.0)));
        MemberId(half(0) << 64 | half(1))
    }
}
