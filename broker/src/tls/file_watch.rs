//! Detects changes of the certificate files.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use super::TlsConfig;

/// What tells one state of a file from another. `None`: the file does not exist.
type FileFingerprint = Option<(u64, Option<SystemTime>, (u64, u64, i64, i64))>;

/// The files when they were last applied or rejected, and when they were last seen.
#[derive(Debug)]
pub(super) struct FileWatch {
    applied: [FileFingerprint; 4],
    last_seen: [FileFingerprint; 4],
}

impl FileWatch {
    pub(super) fn new(config: &TlsConfig) -> Self {
        let applied = fingerprints(config);
        Self { applied, last_seen: applied }
    }

    /// Whether the files have changed since they were applied, and not since the last call: a file
    /// that is still being written, or that comes before its partner, is given time. Then they
    /// count as applied.
    pub(super) fn have_settled(&mut self, config: &TlsConfig) -> bool {
        let now = fingerprints(config);
        let have_settled = now == self.last_seen && now != self.applied;
        self.last_seen = now;
        if have_settled {
            self.applied = now;
        }
        have_settled
    }
}

fn fingerprints(config: &TlsConfig) -> [FileFingerprint; 4] {
    let print = |path: &Path| fs::metadata(path).ok().map(|found| fingerprint_of(&found));
    let [authorities, revoked] =
        [&config.client_ca, &config.client_crl].map(|path| path.as_deref().and_then(print));
    [print(&config.cert), print(&config.key), authorities, revoked]
}

fn fingerprint_of(found: &Metadata) -> (u64, Option<SystemTime>, (u64, u64, i64, i64)) {
    // The inode, because a new file may have replaced the old one with the same time; the change
    // time of the inode, because no program can set it.
    let node = (found.dev(), found.ino(), found.ctime(), found.ctime_nsec());
    (found.len(), found.modified().ok(), node)
}
