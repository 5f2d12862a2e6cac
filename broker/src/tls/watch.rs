//! Whether files have changed.

use std::fs::{self, Metadata};
use std::path::Path;
use std::time::SystemTime;

use super::TlsConfig;

/// What tells one state of a file from another. `None`: it is not there.
type Print = Option<(u64, Option<SystemTime>, (u64, u64, i64, i64))>;

/// The files as they were used, or refused, and as they were seen last.
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

    /// Whether they have changed since they were used, and not since the last look: one that is being written, or
    /// comes before the other, is let be finished. Then they count as used.
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
    // The inode, because a new file may have taken the place of the old one with its time; the time of the
    // change of the inode, because that is nobody's to set.
    #[cfg(unix)]
    let node = {
        use std::os::unix::fs::MetadataExt;
        (found.dev(), found.ino(), found.ctime(), found.ctime_nsec())
    };
    #[cfg(not(unix))]
    let node = (0, 0, 0, 0);
    (found.len(), found.modified().ok(), node)
}
