//! The file system calls of the log, behind a trait, so that a simulated disk can lose, tear and
//! reorder unsynced writes.

mod file_system;
mod read_only;

use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

pub use self::file_system::FileSystem;
pub(crate) use self::read_only::ReadOnlyDisk;

/// A file system. Every call blocks.
pub trait Disk: Debug + Send + Sync {
    /// Creates a directory with mode 0700, and its parents. An existing one stays as it is.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// The names in a directory, in no order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Creates a file with mode 0600, and replaces an older one of that name.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Renames a file, and replaces an existing one of the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes creations, renames and removals in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Free space, also for a directory that does not exist yet.
    fn space(&self, dir: &Path) -> io::Result<DiskSpace>;
}

/// Space that stays free for what must be written even to a full disk: cursors, answers to tasks.
/// On a small disk, a sixteenth of it.
const RESERVE_BYTES: u64 = 16 << 20;

/// Space of a disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// What this process may still write.
    pub free: u64,
    /// The whole disk.
    pub total: u64,
}

impl DiskSpace {
    /// Bytes that must stay free.
    pub fn reserve(&self) -> u64 {
        RESERVE_BYTES.min(self.total / 16)
    }
}

/// An open file. Every call blocks.
#[expect(clippy::len_without_is_empty, reason = "no caller asks whether a file is empty")]
pub trait DiskFile: Debug + Send + Sync {
    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Reads from `offset` until `buffer` is full or the file ends; returns the number of bytes.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `pieces` in order.
    fn write_at(&self, pieces: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Makes the written data durable. After an error the state of the disk is unknown, and another
    /// call must not be taken as proof that the data is safe.
    fn sync_data(&self) -> io::Result<()>;
    /// Truncates the file, or extends it with zeros.
    fn set_len(&self, length: u64) -> io::Result<()>;
    /// Allocates zeroed space for later writes. A disk that does not support this ignores the call.
    fn allocate(&self, offset: u64, length: u64) -> io::Result<()>;
    /// Whether written data can be read again. A file that is only checked drops writes.
    fn is_writable(&self) -> bool {
        true
    }
    /// Asks the system to start writing this range to disk, without waiting. Otherwise it gathers
    /// dirty pages for half a minute and then delays every sync. A disk that does not support this
    /// ignores the call.
    fn start_writeback(&self, _offset: u64, _length: u64) {}
}

pub(crate) fn read_all(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.len()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    if file.read_at(&mut bytes, 0)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// Creates a file with this content, and syncs it.
pub(crate) fn create_synced(
    disk: &dyn Disk,
    path: &Path,
    bytes: &[u8],
) -> io::Result<Arc<dyn DiskFile>> {
    let file = disk.create(path)?;
    file.write_at(&mut [IoSlice::new(bytes)], 0)?;
    file.sync_data()?;
    Ok(file)
}

/// Replaces a file in a directory: after a power loss it has its old content or this one. A full disk
/// is such an error ([`io::ErrorKind::StorageFull`] and its like) only while the old content stays.
pub fn replace_file(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    bytes: &[u8],
) -> io::Result<Arc<dyn DiskFile>> {
    let temporary = dir.join(format!("{name}.tmp"));
    let file = create_synced(disk, &temporary, bytes)?;
    disk.rename(&temporary, &dir.join(name))?;
    disk.sync_dir(dir).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(file)
}

/// Reads a whole file of at most that many bytes.
pub fn read_file(disk: &dyn Disk, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = disk.open(path)?;
    let length = file.len()?;
    if length > bytes_max {
        return Err(io::Error::other(format!("it has {length} bytes; the limit is {bytes_max}")));
    }
    read_all(&*file)
}

/// Adds the path of the file to an error.
pub(crate) fn with_path(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Whether an error means that the disk is full, which may change.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
