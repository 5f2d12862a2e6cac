//! Detects changes of the certificate files.

use std::fs::{self, Metadata};
use std::path::Path;
use std::time::SystemTime;

use super::TlsConfig;

/// What tells one state of a file from another. `None`: the file does not exist.
type Print = Option<(u64, Option<SystemTime>, (u64, u64, i64, i64))>;

/// The files when they were last applied or rejected, and when they were last seen.
#[derive(Debug)]
pub(super) struct Watched {
    used: [Print; 4],
    seen: [Print; 4],
}

impl Watched {
    pub(super) fn new(config: &TlsConfig) -> Self {
        let used = prints(config);
        Self { used, seen: used }
    }

    /// Whether the files have changed since they were applied, and not since the last call: a file
    /// that is still being written, or that comes before its partner, is given time. Then they
    /// count as applied.
    pub(super) fn have_settled(&mut self, config: &TlsConfig) -> bool {
        let now = prints(config);
        let have_settled = now == self.seen && now != self.used;
        self.seen = now;
        if have_settled {
            self.used = now;
        }
        have_settled
    }
}

fn prints(config: &TlsConfig) -> [Print; 4] {
    let print = |path: &Path| fs::metadata(path).ok().map(|found| print_of(&found));
    let [authorities, revoked] =
        [&config.client_ca, &config.client_crl].map(|path| path.as_deref().and_then(print));
    [print(&config.cert), print(&config.key), authorities, revoked]
}

fn print_of(found: &Metadata) -> (u64, Option<SystemTime>, (u64, u64, i64, i64)) {
    // The inode, because a new file may have replaced the old one with the same time; the change
    // time of the inode, because no program can set it.
    #[cfg(unix)]
    let node = {
        use std::os::unix::fs::MetadataExt;
        (found.dev(), found.ino(), found.ctime(), found.ctime_nsec())
    };
    #[cfg(not(unix))]
    let node = (0, 0, 0, 0);
    (found.len(), found.modified().ok(), node)
}
