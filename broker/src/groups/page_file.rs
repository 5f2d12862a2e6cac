//! A group's page file: stores the texts that need not stay in memory. The file has no name and
//! disappears with the process. Threads of its own read and write it.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{self, JoinHandle};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tidings_log::ScratchFile;
use tidings_protocol::GroupName;
use tidings_queue::texts::{CHUNK_BYTES, StoredText, TextError, TextReply, TextRequest};
use tokio::sync::Notify;

/// Bytes with a checksum of their own, which are read together.
const BLOCK_BYTES: usize = 4096;

/// Most blocks that are read at once for several texts.
const READ_BLOCKS_MAX: usize = 64;

/// Chunks in a file, each at a fixed offset.
#[derive(Debug)]
pub(crate) struct PageFile {
    pages: Arc<PageFileShared>,
    /// Both are started on first use.
    writer: Option<PageThread>,
    reader: Option<PageThread>,
    /// Replies: the end of the threads and that of the group.
    replies: (mpsc::Sender<TextReply>, mpsc::Receiver<TextReply>),
    /// Whether the last write failed. Logged once, until a write succeeds.
    has_failed: bool,
}

/// The file, shared with its threads.
#[derive(Debug)]
struct PageFileShared {
    group: GroupName,
    file: ScratchFile,
    /// The checksums of the chunks by their numbers.
    checksums: Mutex<HashMap<u32, ChunkChecksums>>,
    /// Woken after each reply.
    wake: OnceLock<Arc<Notify>>,
    /// Nothing needs what is still queued.
    has_ended: AtomicBool,
}

/// The length of a chunk, and the checksum of each of its blocks.
#[derive(Debug)]
struct ChunkChecksums {
    len: usize,
    blocks: Box<[u32]>,
}

/// A thread that executes requests in their order.
#[derive(Debug)]
struct PageThread {
    requests: mpsc::Sender<TextRequest>,
    thread: JoinHandle<()>,
}

impl PageFile {
    /// The pages of that group, in this file.
    pub(super) fn new(group: GroupName, file: ScratchFile) -> Self {
        let pages = PageFileShared {
            group,
            file,
            checksums: Mutex::default(),
            wake: OnceLock::new(),
            has_ended: AtomicBool::new(false),
        };
        Self {
            pages: Arc::new(pages),
            writer: None,
            reader: None,
            replies: mpsc::channel(),
            has_failed: false,
        }
    }

    /// Wakes the group's actor after each reply from now on.
    pub(super) fn set_wake(&self, wake: Arc<Notify>) {
        // Set once, when the actor is made.
        let _ = self.pages.wake.set(wake);
    }

    /// Executes a request on another thread.
    pub(super) fn begin(&mut self, request: TextRequest) {
        let (thread, name) = match &request {
            TextRequest::Write { .. } => (&mut self.writer, "page-out"),
            TextRequest::Read { .. } => (&mut self.reader, "page-in"),
        };
        if thread.is_none() {
            match PageThread::start(name, &self.pages, &self.replies.0) {
                Ok(started) => *thread = Some(started),
                Err(error) => return self.reply(failed(request, &error)),
            }
        }
        let ended = || io::Error::other("the thread of the page file has ended");
        if let Some(thread) = thread
            && let Err(unsent) = thread.requests.send(request)
        {
            self.reply(failed(unsent.0, &ended()));
        }
    }

    fn reply(&self, reply: TextReply) {
        // The receiver is a field of `self`, so this cannot fail.
        let _ = self.replies.0.send(reply);
        self.pages.wake();
    }

    /// Reads texts on this thread.
    pub(super) fn read(&self, number: u64, texts: &[StoredText]) -> TextReply {
        TextReply::Read { number, texts: self.pages.read_all(texts) }
    }

    /// Returns the next reply, if there is one.
    pub(super) fn poll_reply(&mut self) -> Option<TextReply> {
        self.replies.1.try_recv().ok().inspect(|reply| self.note(reply))
    }

    /// Waits for the next reply.
    pub(super) fn wait_for_reply(&mut self) -> Option<TextReply> {
        // The sender is a field of `self`, so this cannot fail.
        self.replies.1.recv().ok().inspect(|reply| self.note(reply))
    }

    fn note(&mut self, reply: &TextReply) {
        let TextReply::Written { written, .. } = reply else { return };
        let had_failed = std::mem::replace(&mut self.has_failed, written.is_err());
        if let (Err(error), false) = (written, had_failed) {
            tracing::warn!(group = %self.pages.group, %error, "cannot page out texts of waiting entries; they stay in memory");
        }
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        self.pages.has_ended.store(true, Ordering::Relaxed);
        for PageThread { requests, thread } in
            self.writer.take().into_iter().chain(self.reader.take())
        {
            drop(requests);
            // A panic of that thread has already been reported.
            let _ = thread.join();
        }
    }
}

impl PageThread {
    /// Starts the thread, which reports each result and ends when its queue is closed.
    fn start(
        name: &str,
        pages: &Arc<PageFileShared>,
        replies: &mpsc::Sender<TextReply>,
    ) -> io::Result<Self> {
        let (requests, waiting) = mpsc::channel();
        let (pages, replies) = (Arc::clone(pages), replies.clone());
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            for request in waiting {
                if pages.has_ended.load(Ordering::Relaxed) {
                    return;
                }
                if replies.send(pages.execute(request)).is_err() {
                    return;
                }
                pages.wake();
            }
        })?;
        Ok(Self { requests, thread })
    }
}

impl PageFileShared {
    fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            wake.notify_one();
        }
    }

    fn execute(&self, request: TextRequest) -> TextReply {
        match request {
            TextRequest::Write { chunk, bytes } => {
                let written = self.write(chunk, &bytes).map_err(|error| text_error(&error));
                TextReply::Written { chunk, written }
            }
            TextRequest::Read { number, texts } => {
                TextReply::Read { number, texts: self.read_all(&texts) }
            }
        }
    }

    fn write(&self, number: u32, chunk: &[u8]) -> io::Result<()> {
        let blocks = chunk.chunks(BLOCK_BYTES).map(crc32c::crc32c).collect();
        let checksums = ChunkChecksums { len: chunk.len(), blocks };
        self.checksums.lock().insert(number, checksums);
        self.file.write(chunk, chunk_offset(number))
    }

    /// Reads texts in the order of their places, and those of neighbouring blocks together.
    fn read_all(&self, texts: &[StoredText]) -> Vec<Result<Vec<u8>, TextError>> {
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_unstable_by_key(|index| texts[*index]);
        let mut results: Vec<_> = texts.iter().map(|_| Ok(Vec::new())).collect();
        let mut order = &order[..];
        while let Some(first) = order.first() {
            let (chunk, mut blocks) = (texts[*first].chunk, blocks_of(texts[*first]));
            let mut count = 1;
            while let Some(next) = order.get(count).map(|index| texts[*index])
                && next.chunk == chunk
                && blocks_of(next).start <= blocks.end
                && blocks_of(next).end - blocks.start <= READ_BLOCKS_MAX
            {
                blocks.end = blocks.end.max(blocks_of(next).end);
                count += 1;
            }
            let read = self.read_blocks(chunk, blocks.clone());
            for index in &order[..count] {
                let StoredText { offset, len, .. } = texts[*index];
                let start = offset as usize - blocks.start * BLOCK_BYTES;
                results[*index] = match &read {
                    Ok(bytes) => bytes
                        .get(start..start + len as usize)
                        .map(<[u8]>::to_vec)
                        .ok_or_else(|| TextError::new("a chunk of the page file is too short")),
                    Err(error) => Err(text_error(error)),
                };
            }
            order = &order[count..];
        }
        results
    }

    /// Reads blocks of a chunk, as many as it has, and checks them.
    fn read_blocks(&self, chunk: u32, blocks: Range<usize>) -> io::Result<Vec<u8>> {
        let (len, checksums) = {
            let checksums = self.checksums.lock();
            let known = checksums.get(&chunk).ok_or(io::ErrorKind::NotFound)?;
            let end = blocks.end.min(known.blocks.len());
            let known_blocks = known.blocks.get(blocks.start..end).unwrap_or_default();
            (known.len, known_blocks.to_vec())
        };
        let begin = blocks.start * BLOCK_BYTES;
        let end = len.min(blocks.end * BLOCK_BYTES);
        let mut bytes = vec![0; end.saturating_sub(begin)];
        let at = chunk_offset(chunk) + begin as u64;
        if self.file.read(&mut bytes, at)? < bytes.len() {
            let text = format!("the page file ends before byte {}", at + bytes.len() as u64);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        let found = bytes.chunks(BLOCK_BYTES).map(crc32c::crc32c);
        let damaged = found.zip(checksums).position(|(found, written)| found != written);
        if let Some(block) = damaged {
            let at = at + (block * BLOCK_BYTES) as u64;
            let text = format!("the page file is damaged at byte {at}: a checksum does not match");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(bytes)
    }
}

/// The blocks that contain a text.
fn blocks_of(text: StoredText) -> Range<usize> {
    let (offset, len) = (text.offset as usize, text.len as usize);
    offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES)
}

fn chunk_offset(number: u32) -> u64 {
    u64::from(number) * CHUNK_BYTES as u64
}

fn text_error(error: &io::Error) -> TextError {
    TextError::new(error.to_string())
}

/// The reply to a request that cannot be executed.
fn failed(request: TextRequest, error: &io::Error) -> TextReply {
    match request {
        TextRequest::Write { chunk, .. } => {
            TextReply::Written { chunk, written: Err(text_error(error)) }
        }
        TextRequest::Read { number, texts } => {
            let texts = texts.iter().map(|_| Err(text_error(error))).collect();
            TextReply::Read { number, texts }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tidings_log::{Disk, SegmentStore, SimulatedDisk, Store};

    use super::*;

    /// The result of the next write.
    fn written(file: &mut PageFile) -> (u32, Result<(), TextError>) {
        match file.wait_for_reply() {
            Some(TextReply::Written { chunk, written }) => (chunk, written),
            other => panic!("{other:?}"),
        }
    }

    /// The texts of one read.
    fn read(file: &PageFile, texts: &[StoredText]) -> Vec<Result<Vec<u8>, TextError>> {
        match file.read(1, texts) {
            TextReply::Read { number: 1, texts } => texts,
            other => panic!("{other:?}"),
        }
    }

    fn page_file(disk: &SimulatedDisk) -> PageFile {
        disk.create_dir(Path::new("data/groups")).unwrap();
        let store = SegmentStore::new(Arc::new(disk.clone()), Path::new("data"));
        let group: GroupName = "g".parse().unwrap();
        PageFile::new(group.clone(), store.scratch_file(&group))
    }

    fn write(file: &mut PageFile, chunk: u32, bytes: &[u8]) {
        file.begin(TextRequest::Write { chunk, bytes: Arc::new(bytes.to_vec()) });
    }

    #[test]
    fn chunks_are_read_back_and_rejected_chunks_are_reported() {
        let disk = SimulatedDisk::new(1);
        let mut file = page_file(&disk);
        let chunk = |number: u32| [number.to_le_bytes(), [7; 4]].concat();
        let numbers = 0..16;
        for number in numbers.clone() {
            write(&mut file, number, &chunk(number));
        }
        for number in numbers.clone() {
            assert_eq!(written(&mut file), (number, Ok(())));
        }
        assert!(disk.files().is_empty(), "the file has no name");
        disk.set_room(0);
        write(&mut file, numbers.end, &chunk(numbers.end));
        let (number, result) = written(&mut file);
        assert!(number == numbers.end && result.is_err(), "{result:?}");
        disk.set_room(1 << 40);
        write(&mut file, numbers.end, &chunk(numbers.end));
        assert!(written(&mut file).1.is_ok());
        for number in 0..=numbers.end {
            let text = StoredText { chunk: number, offset: 2, len: 6 };
            assert_eq!(read(&file, &[text]), [Ok(chunk(number)[2..].to_vec())]);
        }
        let absent = [StoredText { chunk: 99, offset: 0, len: 1 }];
        assert!(read(&file, &absent)[0].is_err());
        let too_long = [StoredText { chunk: 0, offset: 2, len: 7 }];
        assert!(read(&file, &too_long)[0].is_err());
    }

    /// Texts in any order, in the same block and across blocks.
    #[test]
    fn texts_that_are_read_together_come_in_the_order_of_the_request() {
        let mut file = page_file(&SimulatedDisk::new(1));
        let bytes: Vec<u8> = (0..20 * BLOCK_BYTES).map(|at| (at % 251).to_le_bytes()[0]).collect();
        write(&mut file, 0, &bytes);
        write(&mut file, 1, &bytes[1..]);
        assert!(written(&mut file).1.is_ok() && written(&mut file).1.is_ok());
        let mut texts = Vec::new();
        for n in 0..200_u32 {
            let offset = n * 7919 % 70_000;
            texts.push(StoredText { chunk: n % 2, offset, len: 1 + n * 53 % 9000 });
        }
        for (text, found) in texts.iter().zip(read(&file, &texts)) {
            let start = (text.offset + text.chunk) as usize;
            assert_eq!(found.unwrap(), bytes[start..start + text.len as usize], "{text:?}");
        }
    }

    #[test]
    fn damaged_block_is_reported_and_others_are_read() {
        let mut file = page_file(&SimulatedDisk::new(1));
        write(&mut file, 0, &vec![7; 3 * BLOCK_BYTES + 5]);
        assert!(written(&mut file).1.is_ok());
        let block = BLOCK_BYTES as u64;
        file.pages.file.write(&[8], block + 9).unwrap();
        let text = |offset| StoredText { chunk: 0, offset, len: 2 };
        let block = u32::try_from(block).unwrap();
        let found = [0, block, 2 * block, 3 * block].map(|offset| read(&file, &[text(offset)]));
        assert_eq!(found.each_ref().map(|found| found[0].is_ok()), [true, false, true, true]);
        let error = found[1][0].as_ref().unwrap_err().to_string();
        assert!(error.contains("damaged at byte 4096"), "{error}");
    }

    #[test]
    fn file_that_was_cut_is_reported() {
        let mut file = page_file(&SimulatedDisk::new(1));
        let block = [7; BLOCK_BYTES];
        write(&mut file, 0, &block);
        assert!(written(&mut file).1.is_ok());
        // The file had a second block.
        let blocks = [crc32c::crc32c(&block); 2].into();
        let checksums = ChunkChecksums { len: 2 * BLOCK_BYTES, blocks };
        file.pages.checksums.lock().insert(0, checksums);
        let text = |offset| StoredText { chunk: 0, offset, len: 2 };
        assert!(read(&file, &[text(0)])[0].is_ok());
        let cut = u32::try_from(BLOCK_BYTES).unwrap();
        assert!(read(&file, &[text(cut)])[0].is_err());
    }
}
