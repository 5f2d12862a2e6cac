//! The file system of the machine.
#![expect(clippy::disallowed_methods, reason = "the only module that calls the file system")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Advice, FallocateFlags};

use super::{Disk, DiskFile, DiskSpace};

/// Maximum number of slices in one system call.
const PIECES_MAX: usize = 1024;

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
