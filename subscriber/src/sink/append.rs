//! An append-only file, and the repair of its end after an error or a crash.

#![expect(clippy::disallowed_methods, reason = "waits for a lock that is released at once")]

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use super::OpenError;

/// Attempts to take a lock, and the pause between them.
const LOCK_TRIES: usize = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A file that only this process appends to.
///
/// `safe <= length of the file`: bytes before `synced_bytes` are synced; bytes after it are being
/// written, and are cut off if that fails.
#[derive(Debug)]
pub(super) struct AppendFile {
    file: File,
    path: PathBuf,
    synced_bytes: u64,
    /// Bytes written after `synced_bytes`, not synced yet.
    pending_bytes: u64,
    /// Bytes of a failed write may stand after `synced_bytes`.
    torn: bool,
}

impl AppendFile {
    /// Opens or creates a file, and locks it for this process.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        super::create_parent(path)?;
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
            apply_output_mode(&file).map_err(failed)?;
            sync_directory_of(path).map_err(failed)?;
        }
        Self::of(file, path).map_err(failed)
    }

    /// Creates a new file, and locks it for this process.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = Self::options().create_new(true).open(path)?;
        try_lock(&file)?;
        apply_output_mode(&file)?;
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
        Ok(Self { file, path: path.to_owned(), synced_bytes: safe, pending_bytes: 0, torn: false })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the synced part, in bytes.
    pub(super) fn synced_bytes(&self) -> u64 {
        self.synced_bytes
    }

    /// A reader of the file from this position on.
    pub(super) fn read_from(&self, at: u64) -> io::Result<File> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(at))?;
        Ok(file)
    }

    /// Truncates the file at this position.
    pub(super) fn truncate(&mut self, at: u64) -> io::Result<()> {
        self.file.set_len(at)?;
        self.file.seek(SeekFrom::Start(at))?;
        (self.synced_bytes, self.pending_bytes, self.torn) = (at, 0, false);
        Ok(())
    }

    /// Prepares an append: cuts off the rest of a failed one.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        if self.torn { self.truncate(self.synced_bytes) } else { Ok(()) }
    }

    /// Syncs the appended bytes.
    pub(super) fn commit(&mut self) -> io::Result<()> {
        self.torn = true;
        self.file.sync_data()?;
        self.synced_bytes += self.pending_bytes;
        (self.pending_bytes, self.torn) = (0, false);
        Ok(())
    }

    /// Discards the bytes since the last commit. If the file cannot be truncated now, the next
    /// `begin` does it.
    pub(super) fn roll_back(&mut self) {
        self.torn = true;
        if let Err(error) = self.truncate(self.synced_bytes) {
            tracing::debug!(%error, "{} has an incomplete end for now", self.path.display());
        }
    }
}

/// The mode of output files that other users may read, while all other files are private; 0 leaves
/// it to the umask.
static OUTPUT_MODE: AtomicU32 = AtomicU32::new(0);

/// Sets the mode of new output files, independent of the process's umask.
pub fn set_output_mode(mode: u32) {
    OUTPUT_MODE.store(mode, Ordering::Relaxed);
}

fn apply_output_mode(file: &File) -> io::Result<()> {
    match OUTPUT_MODE.load(Ordering::Relaxed) {
        0 => Ok(()),
        mode => file.set_permissions(Permissions::from_mode(mode)),
    }
}

impl Write for AppendFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.torn = true;
        let written = self.file.write(bytes)?;
        self.pending_bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes the lock. A child process that is starting shares the locks of our files for a moment.
fn try_lock(file: &File) -> Result<(), TryLockError> {
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            locked => return locked,
        }
    }
    file.try_lock()
}

/// Syncs the directory, so that the file's name is on the disk.
pub(super) fn sync_directory_of(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
