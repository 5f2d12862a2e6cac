//! A running broker: its start, its reload and its stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidings_log::Store;
use tidings_protocol::{Code, Command, DEFAULT_GROUP};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Principal;
use crate::audit::AuditEvent;
use crate::config::BrokerConfig;
use crate::data_dir::DataDir;
use crate::descriptors::{descriptors, share_descriptors};
use crate::groups::Groups;
use crate::net;
use crate::net::http::HttpState;
use crate::net::unix::SocketFile;
use crate::net::{Setting, Shared};
use crate::start::{Listeners, OpenedData, Sockets, Takeover, blocking, close_store, open_audit};
use crate::start_error::StartError;
use crate::tls::Tls;

/// Time limit for an answer that needs no disk.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for the last audit records when the broker stops.
const AUDIT_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// A running broker. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct Broker {
    pub(crate) local_addr: SocketAddr,
    pub(crate) http: Option<(SocketAddr, Arc<HttpState>)>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) stop: CancellationToken,
    /// Stops the listeners; cancelled before `stop`, or with it.
    pub(crate) listening: CancellationToken,
    pub(crate) tasks: TaskTracker,
    pub(crate) socket_file: Option<SocketFile>,
    /// Held until no task writes there any more.
    pub(crate) _data: Option<DataDir>,
    /// Where an orderly stop records how the logs ended.
    pub(crate) store: Option<Arc<dyn Store>>,
}

impl Broker {
    /// Listens and serves until it is stopped or dropped. To be called within a tokio runtime.
    pub async fn start(config: BrokerConfig) -> Result<Self, StartError> {
        Self::start_on(config, Sockets::default()).await
    }

    /// The same, with sockets that are open already.
    pub async fn start_on(config: BrokerConfig, sockets: Sockets) -> Result<Self, StartError> {
        Self::start_from(config, sockets, None).await
    }

    /// The same, with what another broker has stored. No data directory is locked.
    pub async fn take_over(
        config: BrokerConfig,
        sockets: Sockets,
        takeover: Takeover,
    ) -> Result<Self, StartError> {
        Self::start_from(config, sockets, Some(takeover)).await
    }

    async fn start_from(
        mut config: BrokerConfig,
        sockets: Sockets,
        takeover: Option<Takeover>,
    ) -> Result<Self, StartError> {
        if let Some(descriptors) = descriptors() {
            let has_logs = config.data.is_some() || takeover.is_some();
            share_descriptors(descriptors, has_logs, &mut config.limits);
        }
        // Mistakes of the operator come first, and checks that leave nothing behind.
        let tls = config.tls.clone().map(Tls::open).transpose()?;
        let (limits, defaults) = (config.limits.clone(), config.topic_defaults);
        let path = config.data.clone();
        let OpenedData { data, clock, topics, groups, store } =
            blocking(move || OpenedData::open(path, takeover, &limits, defaults)).await?;
        let opened = Listeners::open(&config, sockets)
            .and_then(|listeners| Ok((listeners, open_audit(&config, clock)?)));
        let (Listeners { lines: (listener, local_addr), http, unix }, audit) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // An orderly close skips no seqs.
                blocking(move || close_store(store.as_deref(), || topics.close())).await;
                return Err(error);
            }
        };
        // The port may have been 0, or the socket open already.
        config.listen = local_addr;
        let (unix, socket_file) = unix.unzip();
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let http_config = config.http.clone();
        audit.record_broker(&AuditEvent::Started);
        let groups = Groups::new(
            Arc::clone(&topics),
            config.group.clone(),
            config.limits.groups_max,
            config.embedded_member,
            clock,
            stop.clone(),
            groups,
        );
        groups.set_never_list(&config.never_list);
        let shared = Shared::new(config.connections(), clock, topics, groups, (tls, audit));
        let listening = stop.child_token();
        net::serve_lines(listener, shared.clone(), listening.clone(), &tasks);
        if let Some(listener) = unix {
            net::serve_unix(listener, shared.clone(), listening.clone(), &tasks);
        }
        let http = http.zip(http_config).map(|((listener, address), mut config)| {
            config.listen = address;
            let stops = (listening.clone(), stop.clone());
            (address, net::http::serve(listener, config, shared.clone(), stops, &tasks))
        });
        net::run_maintenance(shared.clone(), stop.clone(), &tasks);
        tracing::info!(%local_addr, "listening");
        Ok(Self {
            local_addr,
            http,
            shared,
            stop,
            listening,
            tasks,
            socket_file,
            _data: data,
            store,
        })
    }

    /// The address of the line protocol, with the actual port if port 0 was configured.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The path of the unix socket, if there is one.
    pub fn unix_path(&self) -> Option<&std::path::Path> {
        self.socket_file.as_ref().map(SocketFile::path)
    }

    /// The address of HTTP, if it is served.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|(address, _)| *address)
    }

    /// What the operator has set, as it is in use.
    pub fn settings(&self) -> Vec<Setting> {
        self.shared.settings()
    }

    /// Applies the settings that may change while connections are open: transport policies, logging
    /// of lines, webhooks with their secrets, the never-list, and the delay of the default group if
    /// `delay` says that it has changed. All other settings are ignored.
    pub fn reload(&self, config: &BrokerConfig, delay: bool) {
        self.shared.reload(&config.connections());
        self.shared.groups.set_never_list(&config.never_list);
        if let (Some((_, http)), Some(config)) = (&self.http, &config.http) {
            http.reload(config);
        }
        if delay
            && let Err(error) = self.shared.groups.set_default_delay(config.group.settings.delay_ms)
        {
            tracing::warn!(%error, "cannot change the delay of {DEFAULT_GROUP}");
        }
    }

    /// Whether the broker still answers a command in time; any answer counts.
    pub async fn is_responsive(&self) -> bool {
        let command = Command::parse("GROUP list").expect("the line is a command");
        let answer = net::http::run_command(&self.shared, &command, ANSWER_TIMEOUT).await;
        !answer.is_err_and(|error| error.code == Code::Idle)
    }

    /// Becomes true when a job with a `callback=` is known, and is true at once if the data
    /// directory contains one. Until then no callback worker is needed.
    pub fn has_callbacks(&self) -> tokio::sync::watch::Receiver<bool> {
        self.shared.groups.watch_callbacks()
    }

    /// Whether no login is needed.
    pub fn is_open(&self) -> bool {
        self.shared.access.is_open()
    }

    /// Replaces the principals, and requires a login. Within a moment, every connection has the
    /// permissions that its principal has now, or ends. Returns whether any principal has changed.
    pub fn set_principals(&self, principals: Vec<Principal>) -> bool {
        self.shared.replace_principals(principals)
    }

    /// Stops accepting connections; open ones continue.
    pub fn stop_listening(&self) {
        self.listening.cancel();
    }

    /// Stops accepting connections, sends what is pending on each, and closes them all. Takes
    /// little longer than [`Limits::stop_ms`](crate::Limits::stop_ms).
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.shared.close_all();
        let bound = Duration::from_millis(self.shared.limits.stop_ms.saturating_add(100));
        if !net::completes_within(bound, self.tasks.wait()).await {
            tracing::warn!(tasks = self.tasks.len(), "connections did not end in time");
        }
        let (shared, store) = (self.shared.clone(), self.store.clone());
        if let Some(store) = &store {
            store.end_waits();
        }
        blocking(move || {
            close_store(store.as_deref(), || {
                shared.topics.close();
                shared.groups.close_logs();
            });
        })
        .await;
        self.shared.audit.record_broker(&AuditEvent::Stopped);
        let shared = self.shared.clone();
        // A disk that takes no writes must not prevent the stop.
        if !net::completes_within(AUDIT_FLUSH_TIMEOUT, blocking(move || shared.audit.close())).await
        {
            tracing::error!("cannot write the last audit records in time; they are lost");
        }
    }

    /// Reopens the audit file after log rotation has moved it away.
    pub fn reopen_audit(&self) {
        self.shared.audit.reopen();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop.cancel();
        self.shared.close_all();
    }
}
