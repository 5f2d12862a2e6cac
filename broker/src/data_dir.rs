//! The data directory, and the lock that one broker holds on it.
//!
//! ```text
//!   <data>/lock   locked by the one broker that uses it; contains its pid
//! ```
//!
//! The logs of topics and groups are beside it (`broker/log/src/store/segment_store.rs`). Other
//! parts store their files beside these (the crawler its pages.db, a crawl with its own broker that
//! broker's directory in crawls/), so only the broker takes the lock.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::start_error::StartError;

/// The locked file. It is not removed when the lock is released: another process may just have
/// opened it, and a removal would allow a second lock.
const LOCK: &str = "lock";

/// A data directory that belongs to this process while the value lives.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Closing the file releases the lock, also when the process dies. `None`: no broker has ever
    /// used the directory.
    _lock: Option<File>,
}

impl DataDir {
    /// Locks the directory, and creates it with mode 0700 if it is missing.
    ///
    /// Fails at once with [`StartError::DataInUse`] if another process holds the lock. An existing
    /// directory keeps its permissions; if other users may write there, logs a warning.
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
        acquire(&mut lock, path)?;
        // The pid is for operators. On a full disk the lock works without it.
        let noted = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        if let Err(error) = noted {
            tracing::warn!(%error, "cannot write the pid to the lock file");
        }
        Ok(Self { path: path.to_owned(), _lock: Some(lock) })
    }

    /// Locks a directory without changing anything in it: the lock file is neither created nor
    /// written.
    ///
    /// Fails as [`open`](Self::open) does, and if the directory is missing.
    pub fn open_read_only(path: &Path) -> Result<Self, StartError> {
        let failed = |source| StartError::Data { path: path.to_owned(), source };
        fs::read_dir(path).map_err(failed)?;
        let mut lock = match File::open(path.join(LOCK)) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { path: path.to_owned(), _lock: None });
            }
            Err(error) => return Err(failed(error)),
        };
        acquire(&mut lock, path)?;
        Ok(Self { path: path.to_owned(), _lock: Some(lock) })
    }

    /// The path, as given.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether the group or other users may write there.
fn others_may_write(mode: u32) -> bool {
    mode & 0o022 != 0
}

/// Locks the file, or reads the pid of the process that holds the lock; `None` if it was not
/// written yet.
fn acquire(lock: &mut File, dir: &Path) -> Result<(), StartError> {
    let path = dir.to_owned();
    match rustix::fs::flock(&*lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            let pid = lock.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            Err(StartError::DataInUse { path, pid })
        }
        Err(error) => Err(StartError::Data { path, source: error.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_new_directory_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let data = DataDir::open(&path).unwrap();
        assert_eq!((mode(&path), mode(&path.join(LOCK))), (0o700, 0o600));
        assert_eq!(data.path(), path);
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
    fn a_second_process_is_rejected_with_the_pid_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        // The content that an earlier run left has no effect.
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
    fn an_error_names_the_directory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file/below");
        fs::write(folder.path().join("file"), "").unwrap();
        let error = DataDir::open(&path).unwrap_err();
        assert!(matches!(error, StartError::Data { .. }));
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}
