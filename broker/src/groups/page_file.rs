//! A group's page file: stores the texts that need not stay in memory. The file has no name and
//! disappears with the process. A thread of its own writes it.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use tidings_log::ScratchFile;
use tidings_queue::texts::{CHUNK_BYTES, TextStore};

/// Chunks that may wait for the disk before the sender of the next one blocks.
const QUEUED_CHUNKS_MAX: usize = 4;

/// Chunks in a file, each at a fixed offset.
#[derive(Debug)]
pub(super) struct PageFile {
    pages: Arc<ScratchFile>,
    /// Started on first use.
    writer: Option<PageWriter>,
    /// Write results: the writer's end and the group's end of a channel.
    written: (mpsc::Sender<WrittenChunk>, mpsc::Receiver<WrittenChunk>),
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
    /// Pages in this file.
    pub(super) fn new(file: ScratchFile) -> Self {
        Self { pages: Arc::new(file), writer: None, written: mpsc::channel() }
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
        self.pages.read(buffer, chunk_offset(number) + from as u64)
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
    fn start(pages: Arc<ScratchFile>, written: mpsc::Sender<WrittenChunk>) -> io::Result<Self> {
        let (chunks, waiting) = mpsc::sync_channel::<(u32, Arc<Vec<u8>>)>(QUEUED_CHUNKS_MAX);
        let thread = thread::Builder::new().name("page-out".to_owned()).spawn(move || {
            for (number, chunk) in waiting {
                let result = pages.write(&chunk, chunk_offset(number));
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

fn chunk_offset(number: u32) -> u64 {
    u64::from(number) * CHUNK_BYTES as u64
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tidings_log::{Disk, SegmentStore, SimulatedDisk, Store};

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
        let (disk, dir) = (SimulatedDisk::new(1), Path::new("data"));
        disk.create_dir(&dir.join("groups")).unwrap();
        let store = SegmentStore::new(Arc::new(disk.clone()), dir);
        let mut file = PageFile::new(store.scratch_file(&"g".parse().unwrap()));
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
