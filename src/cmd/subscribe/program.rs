//! `--exec`: a program that is run for each event, with the event in its environment.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io,
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::process::{Pid, Signal, kill_process_group};
use tidings_protocol::Payload;
use tokio::process::{Child, Command};

use crate::{address::BrokerAddress, failure::Failure};

/// What is run, and for whom. It is started directly: no shell looks at it, or at an event.
#[derive(Debug, Clone)]
pub(super) struct Program {
    /// The program and its arguments; at least one.
    words: Vec<OsString>,
    broker: String,
    all: All,
}

/// The process groups of all that run.
#[derive(Debug, Clone, Default)]
pub(super) struct All(Arc<Mutex<BTreeSet<i32>>>);

/// A program that runs. Dropped, it is ended, with all that it has started.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    /// Until it has ended by itself.
    group: Option<Pid>,
    all: All,
}

impl Program {
    /// `None` if there is nothing to run.
    pub(super) fn new(words: Vec<OsString>, broker: &BrokerAddress, all: All) -> Option<Self> {
        (!words.is_empty()).then(|| Self { words, broker: broker.to_string(), all })
    }

    /// Starts it for an event.
    pub(super) fn start(&self, payload: &str, about: &[(&str, &str)]) -> Result<Running, Failure> {
        let mut command = Command::new(&self.words[0]);
        // In a group of its own it hears no Ctrl-C, and is ended with all that it has started.
        command.args(&self.words[1..]).stdin(Stdio::null()).process_group(0);
        // So that a `tidings` in it talks to the same broker.
        command.env("TIDINGS_BROKER", &self.broker);
        for name in ["EVENT_URL", "EVENT_TOPIC", "EVENT_SEQ", "EVENT_GROUP", "EVENT_TASK"] {
            command.env_remove(name);
        }
        command.env("EVENT_PAYLOAD", payload);
        if let Some(target) = Payload::parse(payload).target() {
            command.env("EVENT_URL", target);
        }
        command.envs(about.iter().copied());
        let child = command.spawn().map_err(|error| {
            let program = self.words[0].display();
            Failure::failed(format!("cannot run {program}: {error}"))
        })?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        self.all.lock().extend(group.map(Pid::as_raw_pid));
        Ok(Running { child, group, all: self.all.clone() })
    }
}

impl All {
    /// Ends all of them at once.
    pub(super) fn kill(&self) {
        for group in self.lock().iter().copied().filter_map(Pid::from_raw) {
            // One that has just ended needs no ending.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<i32>> {
        // A set is never left half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    /// Waits until it has ended. Cancel-safe.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        self.forget();
        Ok(status)
    }

    /// Ends it, with all that it has started, and waits until it has.
    pub(super) async fn kill(mut self) {
        self.signal();
        let _ = self.wait().await;
    }

    fn signal(&self) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Its number may be somebody else's from here on.
    fn forget(&mut self) {
        if let Some(group) = self.group.take() {
            self.all.lock().remove(&group.as_raw_pid());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal();
        self.forget();
    }
}

/// How a program failed, as one word; `None`: it did not.
pub(super) fn failure(status: ExitStatus) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("exit_code_{code}")),
        (None, Some(signal)) => Some(format!("signal_{signal}")),
        (None, None) => Some("failed".to_owned()),
    }
}

/// Whether a failure is the end by a signal.
pub(super) fn is_signal(failure: &str) -> bool {
    failure.starts_with("signal_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_program_failed_is_one_word() {
        let failed = |raw| failure(ExitStatus::from_raw(raw));
        assert_eq!(failed(0), None);
        assert_eq!(failed(3 << 8), Some("exit_code_3".to_owned()));
        assert_eq!(failed(9), Some("signal_9".to_owned()));
        assert!(is_signal("signal_9") && !is_signal("exit_code_9"));
    }
}
