//! A file that ends with the process, for what need not stay in memory.

use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::disk::{Disk, DiskFile};

/// A file without a name. One thread writes it.
#[derive(Debug)]
pub struct ScratchFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// Created on the first write.
    file: OnceLock<Arc<dyn DiskFile>>,
}

impl ScratchFile {
    /// A file that is created at `path` on the first write, and loses that name at once.
    pub(super) fn new(disk: Arc<dyn Disk>, path: PathBuf) -> Self {
        Self { disk, path, file: OnceLock::new() }
    }

    /// Writes at `offset`. The disk must also have room for what logs reserve.
    pub fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        // The log's reserve of disk space has priority.
        let dir = self.path.parent().unwrap_or(&self.path);
        let space = self.disk.space(dir)?;
        if space.free < 2 * space.reserve() + bytes.len() as u64 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = self.file()?;
        file.write_at(&mut [IoSlice::new(bytes)], offset)?;
        file.start_writeback(offset, bytes.len() as u64);
        Ok(())
    }

    /// Reads from `offset` until `buffer` is full or the file ends; returns the number of bytes.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let file = self.file.get().ok_or(io::ErrorKind::NotFound)?;
        file.read_at(buffer, offset)
    }

    fn file(&self) -> io::Result<&Arc<dyn DiskFile>> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = self.disk.create(&self.path)?;
        self.disk.remove(&self.path)?;
        Ok(self.file.get_or_init(|| file))
    }
}
