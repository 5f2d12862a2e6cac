//! A file that only grows, and what is done about its end after an error or a crash.

#![expect(clippy::disallowed_methods, reason = "waits for a lock that is given back at once")]

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use super::OpenError;

/// How often, and how long apart, a lock is tried for.
const LOCK_TRIES: usize = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A file that this process alone adds to.
///
/// `safe <= length of the file`: what is before `safe` was synced, what is behind it is being written, and
/// is cut off if that fails.
#[derive(Debug)]
pub(super) struct AppendFile {
    file: File,
    path: PathBuf,
    safe: u64,
    /// Written since, and not synced yet.
    pending: u64,
    /// Something of a write that failed may stand behind `safe`.
    torn: bool,
}

impl AppendFile {
    /// Opens a file, or makes it, and takes it for this process alone.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        super::make_parent(path)?;
        let failed = |source| OpenError::Io { path: path.to_owned(), source };
        let existed = path.exists();
        let file = Self::options().create(true).truncate(false).open(path).map_err(failed)?;
        match try_lock(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::InUse { path: path.to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        if !existed {
            share(&file).map_err(failed)?;
            sync_directory_of(path).map_err(failed)?;
        }
        Self::of(file, path).map_err(failed)
    }

    /// Makes a file that is not there yet, for this process alone.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = Self::options().create_new(true).open(path)?;
        try_lock(&file)?;
        share(&file)?;
        sync_directory_of(path)?;
        Self::of(file, path)
    }

    fn options() -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options
    }

    fn of(mut file: File, path: &Path) -> io::Result<Self> {
        let safe = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, path: path.to_owned(), safe, pending: 0, torn: false })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that are safe.
    pub(super) fn safe(&self) -> u64 {
        self.safe
    }

    /// To read what is safe, from this position on.
    pub(super) fn read_from(&self, at: u64) -> io::Result<File> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(at))?;
        Ok(file)
    }

    /// Cuts off what is behind this position.
    pub(super) fn cut(&mut self, at: u64) -> io::Result<()> {
        self.file.set_len(at)?;
        self.file.seek(SeekFrom::Start(at))?;
        (self.safe, self.pending, self.torn) = (at, 0, false);
        Ok(())
    }

    /// Begins to add: what a failed attempt has left is cut off first.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        if self.torn { self.cut(self.safe) } else { Ok(()) }
    }

    /// Makes safe what was added.
    pub(super) fn commit(&mut self) -> io::Result<()> {
        self.torn = true;
        self.file.sync_data()?;
        self.safe += self.pending;
        (self.pending, self.torn) = (0, false);
        Ok(())
    }

    /// Gives up what was added since the last commit. If it cannot be cut off now, it is before the
    /// next attempt.
    pub(super) fn roll_back(&mut self) {
        self.torn = true;
        if let Err(error) = self.cut(self.safe) {
            tracing::debug!(%error, "{} has a torn end for now", self.path.display());
        }
    }
}

/// What a file that was named for others to read may be, where everything else is for its owner alone: bits of a mode, or
/// none if that is nobody's concern.
static MODE: AtomicU32 = AtomicU32::new(0);

/// Files to which lines and records are added are made with this mode, whatever the process's umask is.
pub fn share_outputs(mode: u32) {
    MODE.store(mode, Ordering::Relaxed);
}

fn share(file: &File) -> io::Result<()> {
    match MODE.load(Ordering::Relaxed) {
        0 => Ok(()),
        mode => file.set_permissions(Permissions::from_mode(mode)),
    }
}

impl Write for AppendFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.torn = true;
        let written = self.file.write(bytes)?;
        self.pending += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A program that is being started holds our files, and their locks, until it is.
fn try_lock(file: &File) -> Result<(), TryLockError> {
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            locked => return locked,
        }
    }
    file.try_lock()
}

/// Makes safe that a file is there under its name.
pub(super) fn sync_directory_of(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
