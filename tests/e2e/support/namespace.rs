//! Mount namespaces: a view of the file system that only some processes have.

use std::process::Command;

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
