//! Mount namespaces: a view of the file system that only some processes have.

use std::path::Path;
use std::process::Command;

use super::process::started_by;

/// The flags with which `unshare` creates a mount namespace on this machine.
///
/// Without a user namespace, only root may mount; in some containers, root may only mount within
/// one.
#[track_caller]
pub(crate) fn unshare_flags() -> &'static str {
    let allowed = |flags: &&str| {
        Command::new("unshare").args([flags, "true"]).output().unwrap().status.success()
    };
    let flags = ["-Urm", "-m"].into_iter().find(allowed);
    flags.expect("cannot create a mount namespace; allow user namespaces or run as root")
}

/// The command, with a file in place of `/etc/hosts`. Its process is the one that is started.
#[track_caller]
pub(crate) fn with_hosts_file(command: &Command, file: &Path) -> Command {
    let mut inside = Command::new("unshare");
    let script = "mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"";
    inside.args([unshare_flags(), "sh", "-c", script, "sh"]).arg(file);
    started_by(inside, command)
}
