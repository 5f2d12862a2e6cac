//! Where a group has what it need not have in memory: a file without a name, which is gone with the
//! process.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidings_protocol::GroupName;

use crate::group::texts::{CHUNK_BYTES, Outside};
use crate::log::disk::{Disk, DiskFile};

/// Begins the name that the file has for a moment. No group's name begins so.
const PREFIX: &str = "~";

/// Chunks in a file, each at its own place.
#[derive(Debug)]
pub(super) struct PageFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// Made when it is first needed.
    file: Option<Arc<dyn DiskFile>>,
}

impl PageFile {
    /// A file that is to be made in this directory, for a group of that name.
    pub(super) fn new(disk: Arc<dyn Disk>, dir: &Path, group: &str) -> Self {
        Self { disk, path: dir.join(format!("{PREFIX}{group}")), file: None }
    }

    /// Whether a file of that name may have been left by a process that was killed before it could remove
    /// it. There is nothing in it.
    pub(super) fn is_left_over(name: &str) -> bool {
        name.strip_prefix(PREFIX).is_some_and(|group| GroupName::new(group).is_ok())
    }

    fn file(&mut self) -> io::Result<&Arc<dyn DiskFile>> {
        if self.file.is_none() {
            let file = self.disk.create(&self.path)?;
            self.disk.remove(&self.path)?;
            self.file = Some(file);
        }
        Ok(self.file.as_ref().expect("it was made if it was not there"))
    }
}

impl Outside for PageFile {
    fn write(&mut self, number: u32, chunk: &[u8]) -> io::Result<()> {
        // What the log needs comes first.
        let dir = self.path.parent().unwrap_or(&self.path);
        let space = self.disk.space(dir)?;
        if space.free < 2 * space.reserve() + chunk.len() as u64 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let offset = place_of(number);
        let file = self.file()?;
        file.write_at(&mut [IoSlice::new(chunk)], offset)?;
        file.begin_writing(offset, chunk.len() as u64);
        Ok(())
    }

    fn read(&self, number: u32, from: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        file.read_at(buffer, place_of(number) + from as u64)
    }
}

fn place_of(number: u32) -> u64 {
    u64::from(number) * CHUNK_BYTES as u64
}
