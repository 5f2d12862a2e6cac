//! A server process under a service manager: readiness, watchdog, reload and stop.
//!
//! The messages go to systemd (`NOTIFY_SOCKET`), if it is present.

#![expect(clippy::disallowed_methods, reason = "sends watchdog messages")]

use std::time::Duration;
use std::{env, future};

use anyhow::Context;
use sd_notify::NotifyState;
use tidings_broker::{Broker, BrokerConfig, Sockets};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use crate::cli::{self, Cmd, Parsed};
use crate::config::{Setting, settings};
use crate::failure::Failure;
use crate::logging;

/// Settings that a reload can change.
const RELOADABLE: [&str; 8] =
    ["delay", "grant", "hook", "hook-events", "limit", "limit-loopback", "log", "log-lines"];

/// The state at the start of a process.
#[derive(Debug)]
pub(crate) struct StartContext {
    pub(crate) sockets: Sockets,
    /// The flags that were not typed: a reload may change their values.
    settings: Vec<Setting>,
}

impl StartContext {
    pub(crate) fn new(parsed: &Parsed, sockets: Sockets) -> Self {
        Self { sockets, settings: untyped_settings(parsed) }
    }
}

/// The settings that no typed flag overrides.
fn untyped_settings(parsed: &Parsed) -> Vec<Setting> {
    let name = match parsed.cmd {
        Cmd::Broker(_) => "broker",
        _ => "up",
    };
    let all = settings(&cli::definition(), &[name], parsed.file.as_ref()).into_iter();
    all.filter(|setting| !parsed.typed_flags.contains(&setting.key)).collect()
}

/// The service while it runs.
#[derive(Debug)]
pub(crate) struct Service {
    hangups: Signal,
    settings: Vec<Setting>,
    watchdog: Option<Duration>,
}

impl Service {
    /// Handles SIGHUP from here on, which no longer ends the process.
    pub(crate) fn new(settings: StartContext) -> Result<(Self, Sockets), Failure> {
        let StartContext { sockets, settings } = settings;
        let hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
        Ok((Self { hangups, settings, watchdog: sd_notify::watchdog_enabled() }, sockets))
    }

    /// Reloads the configuration on SIGHUP, and sends watchdog messages while the broker answers.
    /// Never ends.
    pub(crate) async fn run(&mut self, broker: &Broker) {
        let Self { hangups, settings, watchdog } = self;
        tokio::join!(
            async {
                while hangups.recv().await.is_some() {
                    notify(&reloading());
                    broker.reopen_audit();
                    reload(settings, broker).await;
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
async fn reload(settings: &mut Vec<Setting>, broker: &Broker) {
    let (parsed, mut config) = match read_config() {
        Ok(read) => read,
        Err(failure) => {
            let problem = failure.text().unwrap_or_default();
            tracing::error!("configuration not reloaded: {problem}");
            return;
        }
    };
    let now = untyped_settings(&parsed);
    let mut changed = Vec::new();
    for setting in &now {
        let before = settings.iter().find(|before| before.key == setting.key);
        if before.is_none_or(|before| before.has_same_value(setting)) {
            continue;
        }
        let (key, place) = (&setting.key, setting.place());
        if RELOADABLE.contains(&key.as_str()) {
            changed.push(key.as_str());
        } else {
            tracing::warn!("`{key}` changed in {place}; takes effect at the next start");
        }
    }
    logging::set_filter(parsed.common.log.as_deref(), config.log_lines);
    config.log_lines |= logging::filter_names_lines();
    broker.reload(&config, changed.contains(&"delay")).await;
    tracing::info!("configuration reloaded; changed: {changed:?}");
    // A change that needs a restart is reported once, and again when the value changes again.
    *settings = now;
}

/// The present configuration, if it is valid.
fn read_config() -> Result<(Parsed, BrokerConfig), Failure> {
    let parsed = cli::parse(env::args_os())?;
    let config = match &parsed.cmd {
        Cmd::Up(args) => args.broker_config()?,
        Cmd::Broker(args) => args.broker_config()?,
        _ => return Err(Failure::failed("only `up` and `broker` can reload")),
    };
    Ok((parsed, config))
}
