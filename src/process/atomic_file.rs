//! Atomic replacement of files, and locks on directories.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::Path;

use rustix::fs::FlockOperation;
use tempfile::NamedTempFile;

/// Replaces a file atomically, readable by its owner only, and syncs it. The owner of the directory
/// becomes the owner of the file: a file that root writes for a service must belong to the service.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let mut fresh = NamedTempFile::new_in(folder)?;
    fresh.write_all(text.as_bytes())?;
    let owner = fs::metadata(folder)?;
    let own = fresh.as_file().metadata()?;
    if (owner.uid(), owner.gid()) != (own.uid(), own.gid()) && own.uid() == 0 {
        fchown(fresh.as_file(), Some(owner.uid()), Some(owner.gid()))?;
    }
    fresh.as_file().sync_all()?;
    fresh.persist(path).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}

/// A lock that other holders of the same kind wait for.
#[derive(Debug)]
pub(crate) struct DirectoryLock(#[expect(dead_code, reason = "the lock ends with it")] File);

impl DirectoryLock {
    /// Locks a directory, and waits for other holders.
    pub(crate) fn acquire(path: &Path) -> io::Result<Self> {
        let folder = File::open(path)?;
        rustix::fs::flock(&folder, FlockOperation::LockExclusive)?;
        Ok(Self(folder))
    }
}
