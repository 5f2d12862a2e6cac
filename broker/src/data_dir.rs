//! The directory in which a broker keeps everything that has to survive it.
//!
//! ```text
//!   <data>/lock             held by the one process that works here; its number, for people
//!   <data>/topics/<topic>/  the segments of a topic's log
//!   <data>/groups/<group>/  the segments of a group's log
//! ```
//!
//! Others keep what is theirs beside it (the crawler its pages.db, a crawl with a broker of its own
//! that one's directory in crawls/), so only the broker takes the
//! lock. A name is made of letters, digits and three harmless signs, the first one a letter or digit,
//! so it is the name of a directory, too.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use tidings_protocol::TopicName;

use crate::StartError;

/// The file that is locked. It stays when the lock is given back: whoever removed it could remove
/// it under a process that has just opened it, and then two would hold a lock.
const LOCK: &str = "lock";

/// A data directory that is this process's own for as long as the value lives.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// The lock ends when this is closed, also by the death of the process. `None`: no broker has ever
    /// worked here.
    _lock: Option<File>,
}

impl DataDir {
    /// Makes the directory if it is missing, for its owner only, and locks it.
    ///
    /// Fails with [`StartError::DataInUse`] at once if another process holds it; it waits for
    /// nobody. An existing directory keeps its permissions, and is complained about if others may
    /// write there.
    pub fn open(path: &Path) -> Result<Self, StartError> {
        let failed = |source| StartError::Data { path: path.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        let mode = fs::metadata(path).map_err(failed)?.permissions().mode();
        if others_may_write(mode) {
            let (path, mode) = (path.display(), format!("{:03o}", mode & 0o777));
            tracing::warn!(%path, mode, "others may write into the data directory; chmod 700 it");
        }
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.join(LOCK))
            .map_err(failed)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let pid = holder(&mut lock);
                return Err(StartError::DataInUse { path: path.to_owned(), pid });
            }
            Err(error) => return Err(failed(error.into())),
        }
        // The number is for people: on a full disk the lock is as good without it.
        let noted = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        if let Err(error) = noted {
            tracing::warn!(%error, "the number of this process cannot be noted in the lock file");
        }
        Ok(Self { path: path.to_owned(), _lock: Some(lock) })
    }

    /// Locks a directory in which nothing is to change: not even the lock file is made or written.
    ///
    /// Fails as [`open`](Self::open) does, and if the directory is missing.
    pub fn open_to_read(path: &Path) -> Result<Self, StartError> {
        let failed = |source| StartError::Data { path: path.to_owned(), source };
        fs::read_dir(path).map_err(failed)?;
        let mut lock = match File::open(path.join(LOCK)) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { path: path.to_owned(), _lock: None });
            }
            Err(error) => return Err(failed(error)),
        };
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: Some(lock) }),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let pid = holder(&mut lock);
                Err(StartError::DataInUse { path: path.to_owned(), pid })
            }
            Err(error) => Err(failed(error.into())),
        }
    }

    /// Where it is, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the logs of topics are; comes into being with the first of them.
    pub(crate) fn topics(&self) -> PathBuf {
        self.path.join("topics")
    }

    /// Where the logs of groups are; comes into being with the first of them.
    pub(crate) fn groups(&self) -> PathBuf {
        self.path.join("groups")
    }

    /// Where the log of a topic is.
    pub(crate) fn topic(&self, topic: &TopicName) -> PathBuf {
        self.topics().join(topic.as_str())
    }
}

/// Whether the group or everybody may write there.
fn others_may_write(mode: u32) -> bool {
    mode & 0o022 != 0
}

/// The process that noted its number; none if it has not come to that yet.
fn holder(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    lock.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn it_is_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let data = DataDir::open(&path).unwrap();
        assert_eq!((mode(&path), mode(&path.join(LOCK))), (0o700, 0o600));
        assert_eq!(data.path(), path);
        assert_eq!(data.topic(&"t.1".parse().unwrap()), path.join("topics/t.1"));
    }

    #[test]
    fn an_existing_directory_keeps_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o775)).unwrap();
        DataDir::open(folder.path()).unwrap();
        assert_eq!(mode(folder.path()), 0o775);
        assert!(others_may_write(0o775) && others_may_write(0o702) && !others_may_write(0o755));
    }

    #[test]
    fn one_at_a_time_holds_it_and_the_other_is_told_who() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        // What an earlier run left behind says nothing.
        fs::write(path.join(LOCK), "4294967295999\nand more").unwrap();
        let first = DataDir::open(path).unwrap();
        let error = DataDir::open(path).unwrap_err();
        let me = std::process::id();
        assert_eq!(
            error.to_string(),
            format!("{} is in use by another tidings (pid {me})", path.display())
        );
        drop(first);
        DataDir::open(path).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file/below");
        fs::write(folder.path().join("file"), "").unwrap();
        let error = DataDir::open(&path).unwrap_err();
        assert!(matches!(error, StartError::Data { .. }));
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}
