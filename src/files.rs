//! Files that are there as a whole or not at all.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::{MetadataExt, fchown},
    path::Path,
};

use rustix::fs::FlockOperation;
use tempfile::NamedTempFile;

/// Replaces a file, for its owner only, and has it on the disk before the old one is gone. It belongs to whoever the directory
/// belongs to: one that root writes for a service has to be the service's.
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

/// Whoever else locks the file waits until this value is gone.
#[derive(Debug)]
pub(crate) struct Locked(#[expect(dead_code, reason = "the lock ends with it")] File);

impl Locked {
    /// Locks a directory, waiting for those who have it.
    pub(crate) fn directory(path: &Path) -> io::Result<Self> {
        let folder = File::open(path)?;
        rustix::fs::flock(&folder, FlockOperation::LockExclusive)?;
        Ok(Self(folder))
    }
}
