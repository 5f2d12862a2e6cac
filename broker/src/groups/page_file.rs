//! A group's page file: stores the texts that need not stay in memory. The file has no name and
//! disappears with the process. A thread of its own writes it.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{self, JoinHandle};

use tidings_log::{Disk, DiskFile};
use tidings_protocol::GroupName;
use tidings_queue::texts::{CHUNK_BYTES, TextStore};

/// Prefix of the file's temporary name. No group name begins with it.
const TEMP_PREFIX: &str = "~";

/// Chunks that may wait for the disk before the sender of the next one blocks.
const QUEUED_CHUNKS_MAX: usize = 4;

/// Chunks in a file, each at a fixed offset.
#[derive(Debug)]
pub(super) struct PageFile {
    pages: Arc<PageFileShared>,
    /// Started on first use.
    writer: Option<PageWriter>,
    /// Write results: the writer's end and the group's end of a channel.
    written: (mpsc::Sender<WrittenChunk>, mpsc::Receiver<WrittenChunk>),
}

/// The file, shared by the thread that writes it and the one that reads it.
#[derive(Debug)]
struct PageFileShared {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// Created on the first write.
    file: OnceLock<Arc<dyn DiskFile>>,
}

/// The writer thread, and its queue of numbered chunks.
#[derive(Debug)]
struct PageWriter {
    chunks: mpsc::SyncSender<(u32, Arc<Vec<u8>>)>,
    thread: JoinHandle<()>,
}

/// The number of a chunk, and whether the write succeeded.
type WrittenChunk = (u32, io::Result<()>);

impl PageFile {
    /// A file for that group; it is created in `dir` on the first write.
    pub(super) fn new(disk: Arc<dyn Disk>, dir: &Path, group: &str) -> Self {
        let path = dir.join(format!("{TEMP_PREFIX}{group}"));
        let pages = Arc::new(PageFileShared { disk, path, file: OnceLock::new() });
        Self { pages, writer: None, written: mpsc::channel() }
    }

    /// Whether a process that was killed may have left a file of that name. Such a file is empty.
    pub(super) fn is_stale_file(name: &str) -> bool {
        name.strip_prefix(TEMP_PREFIX).is_some_and(|group| GroupName::new(group).is_ok())
    }

    fn writer(&mut self) -> io::Result<&PageWriter> {
        if self.writer.is_none() {
            self.writer = Some(PageWriter::start(Arc::clone(&self.pages), self.written.0.clone())?);
        }
        Ok(self.writer.as_ref().expect("the writer was started above"))
    }
}

impl TextStore for PageFile {
    fn write(&mut self, number: u32, chunk: Arc<Vec<u8>>) {
        let ended = |_| io::Error::other("the thread that writes pages has ended");
        let sent =
            self.writer().and_then(|writer| writer.chunks.send((number, chunk)).map_err(ended));
        if let Err(error) = sent {
            // The receiver is a field of `self`, so this cannot fail.
            let _ = self.written.0.send((number, Err(error)));
        }
    }

    fn poll_written(&mut self) -> Option<WrittenChunk> {
        self.written.1.try_recv().ok()
    }

    fn read(&self, number: u32, from: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let file = self.pages.file.get().ok_or(io::ErrorKind::NotFound)?;
        file.read_at(buffer, chunk_offset(number) + from as u64)
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        if let Some(PageWriter { chunks, thread }) = self.writer.take() {
            drop(chunks);
            // A panic of that thread has already been reported.
            let _ = thread.join();
        }
    }
}

impl PageWriter {
    /// Starts the thread, which reports each result and ends when its queue is closed.
    fn start(pages: Arc<PageFileShared>, written: mpsc::Sender<WrittenChunk>) -> io::Result<Self> {
        let (chunks, waiting) = mpsc::sync_channel::<(u32, Arc<Vec<u8>>)>(QUEUED_CHUNKS_MAX);
        let thread = thread::Builder::new().name("page-out".to_owned()).spawn(move || {
            for (number, chunk) in waiting {
                let result = pages.write(number, &chunk);
                // The receiver of the result must hold the only reference to the chunk.
                drop(chunk);
                if written.send((number, result)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { chunks, thread })
    }
}

impl PageFileShared {
    fn write(&self, number: u32, chunk: &[u8]) -> io::Result<()> {
        // The log's reserve of disk space has priority.
        let dir = self.path.parent().unwrap_or(&self.path);
        let space = self.disk.space(dir)?;
        if space.free < 2 * space.reserve() + chunk.len() as u64 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let offset = chunk_offset(number);
        let file = self.file()?;
        file.write_at(&mut [IoSlice::new(chunk)], offset)?;
        file.start_writeback(offset, chunk.len() as u64);
        Ok(())
    }

    /// Returns the file; creates it if necessary. Only one thread writes.
    fn file(&self) -> io::Result<&Arc<dyn DiskFile>> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = self.disk.create(&self.path)?;
        self.disk.remove(&self.path)?;
        Ok(self.file.get_or_init(|| file))
    }
}

fn chunk_offset(number: u32) -> u64 {
    u64::from(number) * CHUNK_BYTES as u64
}

#[cfg(test)]
mod tests {
    use tidings_log::SimulatedDisk;

    use super::*;

    /// The result of the next write.
    fn written(file: &mut PageFile) -> WrittenChunk {
        loop {
            if let Some(written) = file.poll_written() {
                return written;
            }
            thread::yield_now();
        }
    }

    /// Uses more chunks than may wait.
    #[test]
    fn chunks_are_read_back_and_rejected_chunks_are_returned() {
        let (disk, dir) = (SimulatedDisk::new(1), Path::new("groups"));
        disk.create_dir(dir).unwrap();
        let mut file = PageFile::new(Arc::new(disk.clone()), dir, "g");
        let chunk = |number: u32| Arc::new([number.to_le_bytes(), [7; 4]].concat());
        let numbers = 0..4 * u32::try_from(QUEUED_CHUNKS_MAX).unwrap();
        let chunks: Vec<_> = numbers.clone().map(chunk).collect();
        for (number, chunk) in numbers.clone().zip(&chunks) {
            file.write(number, Arc::clone(chunk));
        }
        for number in numbers.clone() {
            let (is_written, result) = written(&mut file);
            assert_eq!((is_written, result.is_ok()), (number, true));
        }
        assert!(chunks.into_iter().all(|chunk| Arc::into_inner(chunk).is_some()));
        assert!(disk.files().is_empty(), "the file has no name");
        disk.set_room(0);
        let refused = chunk(numbers.end);
        file.write(numbers.end, Arc::clone(&refused));
        let (number, result) = written(&mut file);
        assert_eq!((number, result.unwrap_err().kind()), (numbers.end, io::ErrorKind::StorageFull));
        disk.set_room(1 << 40);
        file.write(numbers.end, Arc::new(Arc::into_inner(refused).unwrap()));
        assert!(written(&mut file).1.is_ok());
        for number in 0..=numbers.end {
            let mut buffer = [0; 6];
            assert_eq!(file.read(number, 2, &mut buffer).unwrap(), buffer.len());
            assert_eq!(buffer, chunk(number)[2..]);
        }
    }
}
