//! Runs programs for pages and events, each in a process group of its own, which the caller kills
//! before this process ends.
//!
//! A program's environment has the variables that its caller sets, and of this process's own only
//! those that every program needs: no token, no password and no other setting of this process. It
//! inherits no file descriptor but its three standard ones: all others are closed at the start.
//! Signal handlers are the default ones, and no signal is blocked.
//!
//! After `kill -9` of this process the programs go on to their own end, while their tasks are
//! released to other members when the leases expire. Start a program that must not go on through
//! `setpriv --pdeathsig KILL`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// Variables that a program inherits, in addition to all that begin with `LC_`.
pub const INHERITED_VARIABLES: [&str; 8] =
    ["HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER"];

/// All running programs.
#[derive(Debug, Clone, Default)]
pub struct Programs {
    groups: Arc<Mutex<ProgramGroups>>,
    /// Further variables that programs inherit.
    inherited: Arc<[String]>,
}

#[derive(Debug, Default)]
struct ProgramGroups {
    /// Their process groups.
    groups: BTreeSet<i32>,
    /// All programs were killed, and no program is started any more.
    ended: bool,
}

/// A running program. Dropping it kills the program and its children.
#[derive(Debug)]
pub struct RunningProgram {
    child: Child,
    /// `None` once it has ended by itself.
    group: Option<Pid>,
    all: Programs,
}

impl Programs {
    /// Programs that also inherit these variables.
    pub fn with_variables(names: &[String]) -> Self {
        Self { inherited: names.into(), ..Self::default() }
    }

    fn inherits(&self, name: &OsStr) -> bool {
        let name = name.as_encoded_bytes();
        let is = |other: &str| other.as_bytes() == name;
        name.starts_with(b"LC_")
            || INHERITED_VARIABLES.into_iter().any(is)
            || self.inherited.iter().any(|other| is(other))
    }

    /// Removes the variables from the environment of a program that it must not inherit.
    fn clean(&self, command: &mut Command) {
        let given = command.as_std().get_envs().filter(|(_, value)| value.is_some());
        let given: BTreeSet<OsString> = given.map(|(name, _)| name.to_owned()).collect();
        for (name, _) in std::env::vars_os() {
            if !given.contains(&name) && !self.inherits(&name) {
                command.env_remove(name);
            }
        }
    }

    /// Starts a program, unless all were killed. Its own process group protects it from Ctrl-C, and
    /// lets it be killed with its children.
    pub fn start(&self, mut command: Command) -> io::Result<RunningProgram> {
        // Locked until its group is registered: so `kill` ends this program, or it is not started.
        let mut all = self.groups.lock();
        if all.ended {
            return Err(io::Error::other("all programs were stopped, and no new one is started"));
        }
        self.clean(&mut command);
        let child = command.process_group(0).spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        all.groups.extend(group.map(Pid::as_raw_pid));
        Ok(RunningProgram { child, group, all: self.clone() })
    }

    /// Kills all programs. No program is started any more.
    pub fn kill(&self) {
        let mut all = self.groups.lock();
        all.ended = true;
        for group in all.groups.iter().copied().filter_map(Pid::from_raw) {
            // A program that has just ended needs no signal.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl RunningProgram {
    /// Waits until the program has ended. Cancel-safe.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        self.unregister();
        Ok(status)
    }

    /// Kills the program with its children, and waits until it has ended.
    pub async fn kill(mut self) {
        self.signal();
        let _ = self.wait().await;
    }

    fn signal(&self) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// The system may reuse the number of the process group from here on.
    fn unregister(&mut self) {
        if let Some(group) = self.group.take() {
            self.all.groups.lock().groups.remove(&group.as_raw_pid());
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.signal();
        self.unregister();
    }
}

/// How a program failed, as one word; `None` for success.
pub fn failure(status: ExitStatus) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("exit_code_{code}")),
        (None, Some(signal)) => Some(format!("signal_{signal}")),
        (None, None) => Some("failed".to_owned()),
    }
}

/// Whether the word of a failure is a signal.
pub fn is_signal(failure: &str) -> bool {
    failure.starts_with("signal_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_word() {
        let failed = |raw| failure(ExitStatus::from_raw(raw));
        assert_eq!(failed(0), None);
        assert_eq!(failed(3 << 8), Some("exit_code_3".to_owned()));
        assert_eq!(failed(9), Some("signal_9".to_owned()));
        assert!(is_signal("signal_9") && !is_signal("exit_code_9"));
    }
}
