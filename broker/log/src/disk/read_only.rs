//! A disk that reads another disk and drops all writes.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Disk, DiskFile, DiskSpace};

/// A disk that accepts writes and drops them.
#[derive(Debug)]
pub(crate) struct ReadOnlyDisk {
    disk: Arc<dyn Disk>,
    sets_aside: AtomicBool,
}

impl ReadOnlyDisk {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, sets_aside: AtomicBool::new(false) }
    }

    /// Whether the caller has renamed or created a `.damaged` file, which would set an unreadable
    /// file aside.
    pub(crate) fn sets_aside(&self) -> bool {
        self.sets_aside.load(Ordering::Relaxed)
    }

    fn note_damaged_name(&self, path: &Path) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.sets_aside.fetch_or(name.contains(".damaged"), Ordering::Relaxed);
    }
}

impl Disk for ReadOnlyDisk {
    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.note_damaged_name(path);
        Ok(Arc::new(ReadOnlyFile(None)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(ReadOnlyFile(Some(self.disk.open(path)?))))
    }

    fn rename(&self, _from: &Path, to: &Path) -> io::Result<()> {
        self.note_damaged_name(to);
        Ok(())
    }

    fn remove(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn space(&self, dir: &Path) -> io::Result<DiskSpace> {
        self.disk.space(dir)
    }
}

/// A file that is only read. A newly created one is empty.
#[derive(Debug)]
struct ReadOnlyFile(Option<Arc<dyn DiskFile>>);

impl DiskFile for ReadOnlyFile {
    fn len(&self) -> io::Result<u64> {
        self.0.as_ref().map_or(Ok(0), |file| file.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.as_ref().map_or(Ok(0), |file| file.read_at(buffer, offset))
    }

    fn write_at(&self, _pieces: &mut [IoSlice<'_>], _offset: u64) -> io::Result<()> {
        Ok(())
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn allocate(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }
}
