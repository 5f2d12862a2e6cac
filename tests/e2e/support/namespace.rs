//! A view of the file system that only some processes have.

use std::process::Command;

/// How `unshare` makes one here: for any user, with a user namespace, or for root.
///
/// Without a user namespace only root may mount; in some containers root may only with one.
#[track_caller]
pub(crate) fn unshare_flags() -> &'static str {
    let allowed = |flags: &&str| {
        Command::new("unshare").args([flags, "true"]).output().unwrap().status.success()
    };
    let flags = ["-Urm", "-m"].into_iter().find(allowed);
    flags.expect("a mount namespace is needed: user namespaces, or root")
}
