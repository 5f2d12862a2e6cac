//! The file system calls of the log, behind a trait, so that a simulated disk can lose, tear and
//! reorder unsynced writes.

mod read_only;
#[cfg(any(test, feature = "simulation"))]
mod simulated;

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Advice, FallocateFlags};

pub(crate) use self::read_only::ReadOnlyDisk;
#[cfg(any(test, feature = "simulation"))]
pub use self::simulated::{DiskFaults, SimulatedDisk};

/// Maximum number of slices in one system call.
const PIECES_MAX: usize = 1024;

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

/// The file system.
#[derive(Debug, Clone, Copy)]
pub struct FileSystem;

impl Disk for FileSystem {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(dir)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        Ok(Arc::new(RealFile(options.open(path)?)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(OpenOptions::new().read(true).write(true).open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn space(&self, dir: &Path) -> io::Result<DiskSpace> {
        let existing = dir.ancestors().find(|above| above.exists()).unwrap_or(Path::new("."));
        let stat = rustix::fs::statvfs(existing)?;
        Ok(DiskSpace { free: stat.f_bavail * stat.f_frsize, total: stat.f_blocks * stat.f_frsize })
    }
}

#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.0.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, pieces: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        let mut pieces = pieces;
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            let count = pieces.len().min(PIECES_MAX);
            match rustix::io::pwritev(&self.0, &pieces[..count], offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut pieces, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        loop {
            match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), offset, length) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => return Ok(()),
                result => return Ok(result?),
            }
        }
    }

    fn start_writeback(&self, offset: u64, length: u64) {
        // The advice makes the system write these pages out soon; they stay in memory until
        // written. If it ignores the advice, it writes them later.
        let length = NonZeroU64::new(length);
        let _ = rustix::fs::fadvise(&self.0, offset, length, Advice::DontNeed);
    }
}

/// Whether an error means that the disk is full, which may change.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_private_and_accept_thousands_of_slices() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a/b");
        FileSystem.create_dir(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        let path = dir.join("f");
        let file = FileSystem.create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text: Vec<u8> = (0..5000_u32).flat_map(u32::to_le_bytes).collect();
        let mut pieces: Vec<_> = text.chunks(3).map(IoSlice::new).collect();
        pieces.insert(7, IoSlice::new(&[]));
        file.write_at(&mut pieces, 10).unwrap();
        let mut read = vec![0; text.len() + 100];
        let count = file.read_at(&mut read, 10).unwrap();
        assert_eq!(&read[..count], &text[..]);
        file.allocate(0, 100_000).unwrap();
        assert_eq!(file.len().unwrap(), 100_000);
        file.set_len(10).unwrap();
        file.sync_data().unwrap();
        FileSystem.sync_dir(&dir).unwrap();
        assert_eq!(FileSystem.list(&dir).unwrap(), ["f"]);
        assert!(FileSystem.space(&dir).unwrap().free > 0);
    }
}
