//! The texts of dormant entries, packed into chunks. With a store, only the newest chunks stay in
//! memory. The texts need not survive a restart, because the group's log contains them.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::hint::black_box;
use std::io;
use std::sync::Arc;

/// Bytes of a chunk. A chunk with a single longer text has more.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Chunks that stay in memory if there is a store.
const CHUNKS_IN_MEMORY: usize = 32;

/// Header of a text: id and length.
const HEADER_BYTES: usize = 12;

/// Bytes of the first read of a stored text; most texts are shorter.
const FIRST_READ_BYTES: usize = 512;

/// Bytes that a processor loads from memory at once, and the number of such lines that hold most
/// texts.
const CACHE_LINE_BYTES: usize = 64;
const PREFETCH_LINES: usize = 3;

/// Dead bytes below which no texts are moved.
const DEAD_BYTES_MIN: usize = 16 * CHUNK_BYTES;

/// Chunks that are written whenever another one is full. More than one, so that a backlog shrinks
/// after the disk had no room; not all, because it may have none for long.
const WRITES_AT_ONCE: usize = 2;

/// A store for chunks outside memory, like a swap file.
pub trait TextStore: Debug + Send {
    /// Begins to write a chunk of at most [`CHUNK_BYTES`] under a number that was used before, or
    /// the next new one. Writes of one number are done in order. Blocks while too many writes are
    /// pending.
    fn write(&mut self, number: u32, chunk: Arc<Vec<u8>>);

    /// Returns the number of a finished write, and whether the chunk can be read from now on. The
    /// store has dropped its reference to the chunk.
    fn poll_written(&mut self) -> Option<(u32, io::Result<()>)>;

    /// Reads from a byte of a chunk on, as much as exists and fits. May block, but not for long.
    fn read(&self, number: u32, from: usize, buffer: &mut [u8]) -> io::Result<usize>;
}

/// The location of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TextLocation {
    chunk: u32,
    offset: u32,
}

#[derive(Debug)]
struct Chunk {
    bytes: ChunkBytes,
    /// Length with the dead texts, and without.
    len: usize,
    live: usize,
}

/// The bytes of a chunk, or their number in the store.
#[derive(Debug)]
enum ChunkBytes {
    InMemory(Vec<u8>),
    /// Being written, and in memory until the write is done.
    Writing(Arc<Vec<u8>>),
    Stored(u32),
}

/// All texts of a group.
#[derive(Debug, Default)]
pub(super) struct Texts {
    /// `None`: the number is free.
    chunks: Vec<Option<Chunk>>,
    free_chunks: Vec<u32>,
    /// The chunk to which texts are appended.
    tail: Option<u32>,
    /// Buffers for new chunks, from chunks that were stored.
    spare: Vec<Vec<u8>>,
    /// Full chunks that stay in memory for now, oldest first.
    in_memory: VecDeque<u32>,
    /// Chunks that are being written: number in the store, and number here. A chunk that is dropped
    /// meanwhile is removed when its write is done.
    writing: VecDeque<(u32, u32)>,
    store: Option<Box<dyn TextStore>>,
    /// Whether the last write failed. Logged once, until a write succeeds.
    has_failed: bool,
    /// Numbers in the store that were used and are free, and the next new one.
    free_stored: Vec<u32>,
    next_stored: u32,
    /// Bytes of all chunks, of the live texts in them, and of the chunks in memory.
    len: usize,
    live: usize,
    memory_bytes: usize,
}

impl Texts {
    /// Sets the store.
    pub(super) fn set_store(&mut self, outside: Box<dyn TextStore>) {
        self.store = Some(outside);
    }

    /// Returns an empty set with the same store.
    pub(super) fn cleared(&mut self) -> Self {
        let mut texts = std::mem::take(self);
        texts.tail = None;
        for number in (0..).take(texts.chunks.len()) {
            texts.drop_chunk(number);
        }
        texts
    }

    /// Returns the bytes of the chunks in memory, with the spare buffers.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes + self.spare.iter().map(Vec::capacity).sum::<usize>()
    }

    /// Appends a text, given in parts, with the id of its entry.
    pub(super) fn put(&mut self, id: u64, parts: &[&[u8]]) -> TextLocation {
        let text_len: usize = parts.iter().map(|part| part.len()).sum();
        let len = HEADER_BYTES + text_len;
        let number = self.tail_for(len);
        let chunk = self.chunks[number as usize].as_mut().expect("the tail chunk exists");
        let ChunkBytes::InMemory(bytes) = &mut chunk.bytes else {
            unreachable!("the tail is in memory");
        };
        let offset = u32::try_from(bytes.len()).expect("offsets in a chunk have 32 bits");
        let text_len = u32::try_from(text_len).expect("a text is shorter than 4 GiB");
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes.extend_from_slice(&text_len.to_le_bytes());
        for part in parts {
            bytes.extend_from_slice(part);
        }
        chunk.len += len;
        chunk.live += len;
        self.len += len;
        self.memory_bytes += len;
        self.live += len;
        TextLocation { chunk: number, offset }
    }

    /// Returns a text.
    ///
    /// # Panics
    ///
    /// If it is stored and cannot be read, as when swapped memory is lost.
    pub(super) fn get(&self, place: TextLocation) -> Cow<'_, [u8]> {
        match &self.chunk(place.chunk).bytes {
            ChunkBytes::InMemory(bytes) => split(&bytes[place.offset as usize..]).1.into(),
            ChunkBytes::Writing(bytes) => split(&bytes[place.offset as usize..]).1.into(),
            ChunkBytes::Stored(number) => {
                let mut buffer = vec![0; FIRST_READ_BYTES];
                self.read(*number, place.offset as usize, &mut buffer);
                let len = HEADER_BYTES + text_len(&buffer);
                if len > buffer.len() {
                    buffer.resize(len, 0);
                    self.read(*number, place.offset as usize, &mut buffer);
                }
                buffer.truncate(len);
                buffer.drain(..HEADER_BYTES);
                buffer.into()
            }
        }
    }

    /// Loads a text into the cache if it is in memory (see [`prefetch`](super::prefetch)).
    pub(super) fn prefetch(&self, place: TextLocation) {
        if let ChunkBytes::InMemory(bytes) = &self.chunk(place.chunk).bytes {
            let lines = bytes[place.offset as usize..].chunks(CACHE_LINE_BYTES);
            lines.take(PREFETCH_LINES).for_each(|line| {
                black_box(line[0]);
            });
        }
    }

    /// Removes a text of this length.
    pub(super) fn remove(&mut self, place: TextLocation, text_len: usize) {
        let len = HEADER_BYTES + text_len;
        let chunk = self.chunks[place.chunk as usize].as_mut().expect("a live text has a chunk");
        chunk.live -= len;
        self.live -= len;
        if chunk.live == 0 && self.tail != Some(place.chunk) {
            self.drop_chunk(place.chunk);
        }
    }

    /// If too many bytes are dead, returns the texts of a sparse chunk as `(id, place, text)`. The
    /// caller appends the live ones again.
    pub(super) fn sparse_chunk(&mut self) -> Option<Vec<(u64, TextLocation, Vec<u8>)>> {
        let dead = self.len - self.live;
        if dead < DEAD_BYTES_MIN.max(self.live) {
            return None;
        }
        let is_sparse = |chunk: &Chunk| {
            chunk.live * 2 <= chunk.len && !matches!(chunk.bytes, ChunkBytes::Writing(_))
        };
        let number = (0..).zip(&self.chunks).find_map(|(number, chunk)| {
            let chunk = chunk.as_ref().filter(|chunk| is_sparse(chunk))?;
            (self.tail != Some(number) && chunk.len > 0).then_some(number)
        })?;
        Some(self.texts_of(number))
    }

    fn texts_of(&self, number: u32) -> Vec<(u64, TextLocation, Vec<u8>)> {
        let chunk = self.chunk(number);
        let read;
        let bytes = match &chunk.bytes {
            ChunkBytes::InMemory(bytes) => bytes,
            ChunkBytes::Writing(bytes) => &**bytes,
            ChunkBytes::Stored(outside) => {
                let mut buffer = vec![0; chunk.len];
                self.read(*outside, 0, &mut buffer);
                read = buffer;
                &read
            }
        };
        let mut texts = Vec::new();
        let mut offset = 0;
        while offset < chunk.len {
            let (id, text) = split(&bytes[offset..]);
            let start = u32::try_from(offset).expect("offsets in a chunk have 32 bits");
            texts.push((id, TextLocation { chunk: number, offset: start }, text.to_vec()));
            offset += HEADER_BYTES + text.len();
        }
        texts
    }

    fn chunk(&self, number: u32) -> &Chunk {
        self.chunks[number as usize].as_ref().expect("a live text has a chunk")
    }

    fn read(&self, number: u32, from: usize, buffer: &mut [u8]) {
        let outside = self.store.as_ref().expect("stored chunks have a store");
        let read = outside.read(number, from, buffer);
        read.unwrap_or_else(|error| panic!("cannot read paged-out texts: {error}"));
    }

    /// Returns a chunk with room for `len` more bytes.
    fn tail_for(&mut self, len: usize) -> u32 {
        if let Some(number) = self.tail {
            let Chunk { len: used, live, .. } = *self.chunk(number);
            if used + len <= CHUNK_BYTES || used == 0 {
                return number;
            }
            self.tail = None;
            if live == 0 {
                self.drop_chunk(number);
            } else {
                self.in_memory.push_back(number);
                self.page_out();
            }
        }
        let bytes = ChunkBytes::InMemory(self.spare.pop().unwrap_or_default());
        let chunk = Some(Chunk { bytes, len: 0, live: 0 });
        let number = if let Some(number) = self.free_chunks.pop() {
            self.chunks[number as usize] = chunk;
            number
        } else {
            self.chunks.push(chunk);
            u32::try_from(self.chunks.len() - 1).expect("chunks have 32-bit numbers")
        };
        self.tail = Some(number);
        number
    }

    /// Writes the oldest chunks to the store, if too many are in memory.
    fn page_out(&mut self) {
        self.finish_writes();
        let Some(outside) = &mut self.store else { return };
        for _ in 0..WRITES_AT_ONCE {
            if self.in_memory.len() <= CHUNKS_IN_MEMORY {
                return;
            }
            let Some(number) = self.in_memory.pop_front() else { return };
            if let Some(chunk) = &mut self.chunks[number as usize]
                && let ChunkBytes::InMemory(bytes) = &mut chunk.bytes
                && chunk.len <= CHUNK_BYTES
            {
                let bytes = Arc::new(std::mem::take(bytes));
                chunk.bytes = ChunkBytes::Writing(Arc::clone(&bytes));
                let at = self.free_stored.pop().unwrap_or(self.next_stored);
                self.next_stored = self.next_stored.max(at + 1);
                self.writing.push_back((at, number));
                outside.write(at, bytes);
            }
        }
    }

    /// Handles finished writes.
    fn finish_writes(&mut self) {
        while let Some((at, written)) =
            self.store.as_mut().and_then(|outside| outside.poll_written())
        {
            let sent = self.writing.iter().position(|(to, _)| *to == at);
            let Some((_, number)) = sent.and_then(|sent| self.writing.remove(sent)) else {
                continue;
            };
            let Some(chunk) = &mut self.chunks[number as usize] else { continue };
            let left = std::mem::replace(&mut chunk.bytes, ChunkBytes::Stored(at));
            let ChunkBytes::Writing(bytes) = left else {
                unreachable!("the chunk was being written")
            };
            let mut bytes = Arc::unwrap_or_clone(bytes);
            match written {
                Ok(()) => {
                    self.has_failed = false;
                    self.memory_bytes -= chunk.len;
                    if self.spare.len() < WRITES_AT_ONCE {
                        bytes.clear();
                        self.spare.push(bytes);
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.has_failed, true) {
                        tracing::warn!(%error, "cannot page out texts of waiting entries; they stay in memory");
                    }
                    chunk.bytes = ChunkBytes::InMemory(bytes);
                    self.in_memory.push_back(number);
                    self.free_stored.push(at);
                }
            }
            if chunk.live == 0 {
                self.drop_chunk(number);
            }
        }
    }

    fn drop_chunk(&mut self, number: u32) {
        let Some(chunk) = &mut self.chunks[number as usize] else { return };
        self.live -= std::mem::take(&mut chunk.live);
        match chunk.bytes {
            ChunkBytes::Writing(_) => return,
            ChunkBytes::InMemory(_) => {
                self.memory_bytes -= chunk.len;
                self.in_memory.retain(|here| *here != number);
            }
            ChunkBytes::Stored(at) => self.free_stored.push(at),
        }
        self.len -= chunk.len;
        self.chunks[number as usize] = None;
        self.free_chunks.push(number);
    }
}

/// Returns the id and the text at the beginning of `bytes`.
fn split(bytes: &[u8]) -> (u64, &[u8]) {
    let (id, rest) = bytes.split_at(size_of::<u64>());
    let id = u64::from_le_bytes(id.try_into().expect("it has the right length"));
    (id, &rest[size_of::<u32>()..][..text_len(bytes)])
}

fn text_len(bytes: &[u8]) -> usize {
    let len = bytes[size_of::<u64>()..HEADER_BYTES].try_into().expect("a header has a length");
    u32::from_le_bytes(len) as usize
}
