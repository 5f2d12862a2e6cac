//! Connections: the only code with sockets. Those of lines are here, those of HTTP in [`http`].
//!
//! ```text
//!  listener ──spawns──▶ connection (one task each)
//!                         input: socket ─▶ session ─▶ dispatch ─▶ topics, groups
//!                         output: answers, tasks, subscriptions ─▶ outbound ─▶ socket
//!                         woken by: its socket, its mailbox, a topic it follows, its deadline
//! ```

mod closing;
mod connection;
mod cursors;
mod dispatch;
mod handshake;
mod handshake_socket;
mod help;
pub(crate) mod http;
mod input;
mod listener;
mod login;
mod outbound;
mod quotas;
mod registry;
mod staged_links;
mod stream;
mod subscriptions;
#[cfg(test)]
mod tests;
mod topic_commands;
#[cfg(unix)]
pub(crate) mod unix;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidings_protocol::MemberId;
use tokio_util::sync::CancellationToken;

#[cfg(unix)]
pub(crate) use self::listener::serve_unix;
use self::listener::spawn_accept_loop;
pub(crate) use self::listener::{bind, completes_within, listen, run_maintenance, serve_lines};
use self::registry::ConnectionRegistry;
pub(crate) use self::stream::{PeerAddr, RemoteInfo};
use crate::access::{Access, Principal};
use crate::audit::{Audit, AuditEvent};
use crate::clean_stop::LogEnds;
use crate::clock::Clock;
use crate::config::{BrokerConfig, Limits};
use crate::cursors::Cursors;
use crate::groups::{FoundGroups, GroupStorage, Groups};
use crate::mailbox::ConnId;
use crate::quota::{Created, Quotas};
use crate::stats::Stats;
use crate::tls::Tls;
use crate::topic::Topics;

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) limits: Limits,
    clock: Clock,
    pub(crate) topics: Arc<Topics>,
    groups: Arc<Groups>,
    cursors: Cursors,
    registry: ConnectionRegistry,
    stats: Stats,
    access: Access,
    quotas: Quotas,
    pub(crate) audit: Audit,
    log_lines: AtomicBool,
    /// Without it nothing is encrypted.
    tls: Option<Tls>,
    /// Keys of a pseudo-random function that nobody else knows.
    member_id_hasher: RandomState,
}

impl Hub {
    /// The topics and groups, without connections. `groups` are those on disk, if there is one.
    /// `stop` ends them.
    pub(crate) fn new(
        config: BrokerConfig,
        clock: Clock,
        topics: Arc<Topics>,
        groups: Option<(GroupStorage, FoundGroups)>,
        (tls, audit): (Option<Tls>, Audit),
        stop: CancellationToken,
    ) -> Arc<Self> {
        let cursors = Cursors::new(topics.catalog().clone(), &config.limits);
        let groups = Groups::new(
            Arc::clone(&topics),
            config.group,
            config.limits.groups_max,
            config.embedded_member,
            clock,
            stop,
            groups,
        );
        Arc::new(Self {
            registry: ConnectionRegistry::new(config.limits.connections_max),
            limits: config.limits,
            clock,
            topics,
            groups,
            cursors,
            stats: Stats::default(),
            access: Access::new(config.access),
            quotas: Quotas::new(&config.quotas),
            audit,
            log_lines: AtomicBool::new(config.log_lines),
            tls,
            member_id_hasher: RandomState::new(),
        })
    }

    /// [`Groups::close_logs`].
    pub(crate) fn close_groups(&self) -> LogEnds {
        self.groups.close_logs()
    }

    /// [`Groups::watch_callbacks`].
    pub(crate) fn watch_callbacks(&self) -> tokio::sync::watch::Receiver<bool> {
        self.groups.watch_callbacks()
    }

    /// Does what is to be done from time to time. To be called every second or so.
    fn maintain(&self) {
        self.topics.maintain();
        self.cursors.maintain(self.clock.now(), self.clock.unix_ms());
        self.quotas.tick(&|made| self.exists(made), self.clock.now());
        self.audit.tick();
        if let Some(tls) = &self.tls {
            tls.reload_if_changed();
        }
    }

    /// Whether something that somebody has made is there, and counts.
    fn exists(&self, made: &Created) -> bool {
        match made {
            Created::Topic(name) => self.topics.find(name.as_str()).is_some(),
            Created::Cursor(id) => self.cursors.exists(id),
            Created::Group(name) => self.groups.has(name),
            Created::Job(group, name) => self.groups.has_unfinished_job(group, name),
        }
    }

    /// Whether nobody needs to log in.
    pub(crate) fn is_open(&self) -> bool {
        self.access.is_open()
    }

    /// Who is known from now on; every connection is what its holder is then, or ends.
    pub(crate) fn replace_principals(&self, principals: Vec<Principal>) {
        for (name, change) in self.access.replace_principals(principals) {
            self.audit.record_broker(&AuditEvent::PrincipalChanged { name: &name, change });
        }
        self.registry.renew_all();
    }

    fn logs_lines(&self) -> bool {
        self.log_lines.load(Ordering::Relaxed)
    }

    /// What counts for connections that are open, and for all that come.
    pub(crate) fn reload(&self, config: &BrokerConfig) {
        self.audit.record_broker(&AuditEvent::Reloaded);
        self.access.set_transport_policy(config.access.transport_policy);
        self.quotas.set_limits(&config.quotas);
        self.log_lines.store(config.log_lines, Ordering::Relaxed);
    }

    /// Asks every connection, also those that are just coming, to end.
    pub(crate) fn close_all(&self) {
        self.registry.close_all();
    }

    /// An identity for a member that brings none. Whoever knows it can take the member over, so
    /// it must not be guessed from others: it is the connection's number under a keyed hash
    /// whose key comes from the operating system at every start.
    fn new_member_id(&self, conn: ConnId) -> MemberId {
        let half = |which: u8| u128::from(self.member_id_hasher.hash_one((which, conn.0)));
        MemberId(half(0) << 64 | half(1))
    }
}
