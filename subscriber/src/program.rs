//! Programs that are run for pages and events: each in a process group of its own, which whoever started it ends before
//! it ends itself.
//!
//! Its environment is what its caller gives it, and of ours what every program needs: no token, no password and no other
//! setting that was meant for this process. It has none of our file descriptors but the three that it is given: all
//! others are closed when it is started. How it takes signals is as usual, and none is blocked.
//!
//! After `kill -9` nobody does that: programs that run then go on to their own end, while what they were run for is given to
//! somebody else when its lease is over. A program that must not is started through `setpriv --pdeathsig KILL`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// Variables that a program is given of those that this process has, and all that begin with `LC_`.
pub const INHERITED: [&str; 8] =
    ["HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER"];

/// All programs that run.
#[derive(Debug, Clone, Default)]
pub struct Programs {
    all: Arc<Mutex<All>>,
    /// Further variables that they are given.
    inherited: Arc<[String]>,
}

#[derive(Debug, Default)]
struct All {
    /// Their process groups.
    groups: BTreeSet<i32>,
    /// They were ended, and none is started any more.
    ended: bool,
}

/// A program that runs. Dropped, it is ended, with all that it has started.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Until it has ended by itself.
    group: Option<Pid>,
    all: Programs,
}

impl Programs {
    /// Programs that are given these variables, too.
    pub fn with_variables(names: &[String]) -> Self {
        Self { inherited: names.into(), ..Self::default() }
    }

    fn inherits(&self, name: &OsStr) -> bool {
        let name = name.as_encoded_bytes();
        let is = |other: &str| other.as_bytes() == name;
        name.starts_with(b"LC_")
            || INHERITED.into_iter().any(is)
            || self.inherited.iter().any(|other| is(other))
    }

    /// Takes out of the environment of a program what it is not given.
    fn clean(&self, command: &mut Command) {
        let given = command.as_std().get_envs().filter(|(_, value)| value.is_some());
        let given: BTreeSet<OsString> = given.map(|(name, _)| name.to_owned()).collect();
        for (name, _) in std::env::vars_os() {
            if !given.contains(&name) && !self.inherits(&name) {
                command.env_remove(name);
            }
        }
    }

    /// Starts one, unless all were ended. In a group of its own it hears no Ctrl-C, and is ended with all that it has
    /// started.
    pub fn start(&self, mut command: Command) -> io::Result<Running> {
        // Held until it is known: who ends all of them ends this one, or it is not started.
        let mut all = self.all.lock();
        if all.ended {
            return Err(io::Error::other("programs are not run any more"));
        }
        self.clean(&mut command);
        let child = command.process_group(0).spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        all.groups.extend(group.map(Pid::as_raw_pid));
        Ok(Running { child, group, all: self.clone() })
    }

    /// Ends all of them at once. None is started any more.
    pub fn kill(&self) {
        let mut all = self.all.lock();
        all.ended = true;
        for group in all.groups.iter().copied().filter_map(Pid::from_raw) {
            // One that has just ended needs no ending.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Running {
    /// Waits until it has ended. Cancel-safe.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        self.forget();
        Ok(status)
    }

    /// Ends it, with all that it has started, and waits until it has.
    pub async fn kill(mut self) {
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
            self.all.all.lock().groups.remove(&group.as_raw_pid());
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
pub fn failure(status: ExitStatus) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("exit_code_{code}")),
        (None, Some(signal)) => Some(format!("signal_{signal}")),
        (None, None) => Some("failed".to_owned()),
    }
}

/// Whether a failure is the end by a signal.
pub fn is_signal(failure: &str) -> bool {
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
