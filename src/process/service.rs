//! A server process under a service manager: readiness, watchdog, reload and stop.
//!
//! The messages go to systemd (`NOTIFY_SOCKET`), if it is present.

#![expect(clippy::disallowed_methods, reason = "sends watchdog messages")]

use std::future;
use std::time::Duration;

use anyhow::Context;
use sd_notify::NotifyState;
use tidings_broker::{Broker, BrokerConfig, Sockets};
use tidings_browser::process::Starter;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use crate::config::Setting;
use crate::process::logging;
use crate::terminal::failure::Failure;

/// Settings that a reload can change.
const RELOADABLE: [&str; 9] = [
    "delay",
    "grant",
    "hook",
    "hook-events",
    "limit",
    "limit-loopback",
    "log",
    "log-lines",
    "never",
];

/// The state at the start of a process.
#[derive(Debug)]
pub(crate) struct StartContext {
    pub(crate) sockets: Sockets,
    /// What starts browsers, if pages are rendered.
    pub(crate) starter: Option<Starter>,
    /// The flags that were not typed: a reload may change their values.
    pub(crate) settings: Vec<Setting>,
    /// What the operator has set, as `GET /config` shows it.
    pub(crate) shown: Vec<tidings_broker::Setting>,
    /// Called by a reload.
    pub(crate) read_config: ReadConfig,
}

/// The configuration of a server, as the command line, the environment and the file give it.
#[derive(Debug)]
pub(crate) struct ServerConfig {
    /// The settings that no typed flag overrides.
    pub(crate) settings: Vec<Setting>,
    /// The filter of the log.
    pub(crate) log: Option<String>,
    pub(crate) broker: BrokerConfig,
}

/// Reads the present configuration, if it is valid.
pub(crate) type ReadConfig = fn() -> Result<ServerConfig, Failure>;

/// The service while it runs.
#[derive(Debug)]
pub(crate) struct Service {
    hangups: Signal,
    /// At the start of the process. Those that a reload cannot change are in force.
    started_with: Vec<Setting>,
    /// Those of the last reload.
    last_read: Vec<Setting>,
    read_config: ReadConfig,
    watchdog: Option<Duration>,
}

impl Service {
    /// Handles SIGHUP from here on, which no longer ends the process.
    pub(crate) fn new(context: StartContext) -> Result<(Self, Sockets), Failure> {
        let StartContext { sockets, settings, read_config, .. } = context;
        let hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
        let watchdog = sd_notify::watchdog_enabled();
        let (started_with, last_read) = (settings.clone(), settings);
        Ok((Self { hangups, started_with, last_read, read_config, watchdog }, sockets))
    }

    /// Sends watchdog messages while there is no broker. Never ends.
    #[cfg(feature = "cluster")]
    pub(crate) fn keep_alive(&self) -> impl Future<Output = ()> + Send + use<> {
        let watchdog = self.watchdog;
        async move {
            let Some(time) = watchdog else { return future::pending().await };
            loop {
                notify(&[NotifyState::Watchdog]);
                sleep(time / 2).await;
            }
        }
    }

    /// Reloads the configuration on SIGHUP, and sends watchdog messages while the broker answers.
    /// Never ends.
    pub(crate) async fn run(&mut self, broker: &Broker) {
        let Self { hangups, started_with, last_read, read_config, watchdog } = self;
        tokio::join!(
            async {
                while hangups.recv().await.is_some() {
                    notify(&reloading());
                    broker.reopen_audit();
                    reload(started_with, last_read, *read_config, broker);
                    notify(&[NotifyState::Ready]);
                }
                future::pending::<()>().await;
            },
            async {
                let Some(time) = *watchdog else { return future::pending().await };
                loop {
                    if broker.is_responsive().await {
                        notify(&[NotifyState::Watchdog]);
                    } else {
                        tracing::error!("the broker does not answer");
                    }
                    sleep(time / 2).await;
                }
            },
        );
    }
}

/// Reports that all listeners are open.
pub(crate) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Reports that the process begins to stop.
pub(crate) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

fn reloading() -> Vec<NotifyState<'static>> {
    [NotifyState::Reloading].into_iter().chain(NotifyState::monotonic_usec_now()).collect()
}

/// Sends a message to the service manager; without one, or on an error, nothing happens.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}

/// Applies the settings that can change; a mistake changes nothing.
fn reload(
    started_with: &[Setting],
    last_read: &mut Vec<Setting>,
    read_config: ReadConfig,
    broker: &Broker,
) {
    let ServerConfig { settings: now, log, broker: mut config } = match read_config() {
        Ok(read) => read,
        Err(failure) => {
            let problem = failure.text().unwrap_or_default();
            tracing::error!("configuration not reloaded: {problem}");
            return;
        }
    };
    let mut changed = Vec::new();
    for setting in &now {
        let is_same_in = |settings: &[Setting]| {
            let same = settings.iter().find(|other| other.key == setting.key);
            same.is_none_or(|other| other.has_same_value(setting))
        };
        if is_same_in(last_read) {
            continue;
        }
        let (key, place) = (&setting.key, setting.place());
        if RELOADABLE.contains(&key.as_str()) {
            changed.push(key.as_str());
        } else if is_same_in(started_with) {
            tracing::info!("`{key}` changed in {place} to the value in force");
        } else {
            tracing::warn!("`{key}` changed in {place}; takes effect at the next start");
        }
    }
    let is_reloadable =
        |setting: &tidings_broker::Setting| RELOADABLE.contains(&setting.key.as_str());
    config.settings.retain(is_reloadable);
    config.settings.extend(broker.settings().into_iter().filter(|it| !is_reloadable(it)));
    logging::set_filter(log.as_deref(), config.log_lines);
    config.log_lines |= logging::filter_names_lines();
    broker.reload(&config, changed.contains(&"delay"));
    tracing::info!("configuration reloaded; changed: {changed:?}");
    // A change that needs a restart is reported once, and again when the value changes again.
    *last_read = now;
}
