//! The texts of dormant entries, packed into chunks. If the group is paged, only the newest chunks
//! stay in memory, and the owner stores the others. The texts need not survive a restart, because
//! the group's log contains them.
//!
//! Nothing here reads or writes: a [`TextRequest`] goes to the owner, which answers each with a
//! [`TextReply`]. A text that was read stays in memory until its entry is taken, or until newer
//! ones need its room.

use std::collections::VecDeque;
use std::fmt;
use std::hint::black_box;
use std::sync::Arc;

use hashbrown::HashMap;

/// Bytes of a chunk. A chunk with a single longer text has more.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Header of a text: id and length.
const HEADER_BYTES: usize = 12;

/// Bytes that a processor loads from memory at once, and the number of such lines that hold most
/// texts.
const CACHE_LINE_BYTES: usize = 64;
const PREFETCH_LINES: usize = 3;

/// Chunks that are written whenever another one is full. More than one, so that a backlog shrinks
/// after the disk had no room; not all, because it may have none for long.
const WRITES_AT_ONCE: usize = 2;

/// Chunks that are being written at the same time.
const WRITES_MAX: usize = 4;

/// Chunks above the limit in memory from which on the group is behind with writing.
const CHUNKS_BEHIND_MAX: usize = 8;

/// Texts that were read and not taken. More than all that are read at once for releases, for a
/// list of entries and for a snapshot.
const READ_TEXTS_MAX: usize = 8192;

/// How texts are paged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paging {
    /// Bytes of a chunk. A chunk with a single longer text has more.
    pub chunk_bytes: usize,
    /// Full chunks that stay in memory.
    pub chunks_in_memory: usize,
    /// Dead bytes below which no texts are moved.
    pub dead_bytes_min: usize,
}

impl Default for Paging {
    fn default() -> Self {
        Self { chunk_bytes: CHUNK_BYTES, chunks_in_memory: 32, dead_bytes_min: 16 * CHUNK_BYTES }
    }
}

/// What the owner must do with texts outside memory. It keeps them like a swap file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextRequest {
    /// Write a chunk under a number that was used before, or the next new one.
    Write {
        /// The number.
        chunk: u32,
        /// At most [`Paging::chunk_bytes`]. The owner drops its reference before it replies.
        bytes: Arc<Vec<u8>>,
    },
    /// Read texts.
    Read {
        /// Identifies the request.
        number: u64,
        /// The texts.
        texts: Vec<StoredText>,
    },
}

/// A range of bytes in a stored chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredText {
    /// The number under which the chunk was written.
    pub chunk: u32,
    /// Its first byte.
    pub offset: u32,
    /// Its length in bytes.
    pub len: u32,
}

/// The reply to a [`TextRequest`]. Replies may come in any order.
#[derive(Debug, Clone)]
pub enum TextReply {
    /// The end of a write.
    Written {
        /// The number of the chunk.
        chunk: u32,
        /// Whether the chunk can be read from now on.
        written: Result<(), TextError>,
    },
    /// The texts of a read.
    Read {
        /// The number of the request.
        number: u64,
        /// One for each text that was requested, in the same order.
        texts: Vec<Result<Vec<u8>, TextError>>,
    },
}

/// Why a text cannot be read, or a chunk not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextError(Box<str>);

impl TextError {
    /// An error with this reason.
    pub fn new(reason: impl Into<Box<str>>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The location of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TextLocation {
    chunk: u32,
    offset: u32,
}

#[derive(Debug)]
struct Chunk {
    bytes: ChunkBytes,
    /// Length with the dead texts, and without.
    len: usize,
    live: usize,
    /// Texts that must stay readable, dead or not.
    pins: usize,
}

impl Chunk {
    fn is_dead(&self) -> bool {
        self.live == 0 && self.pins == 0
    }
}

/// A text to append again: the id of its entry, its present location, and the text.
pub(crate) type MovedText = (u64, TextLocation, Vec<u8>);

/// The bytes of a chunk, or the number under which they are stored.
#[derive(Debug)]
enum ChunkBytes {
    InMemory(Vec<u8>),
    /// Being written, and in memory until the write is done.
    Writing(Arc<Vec<u8>>),
    Stored(u32),
}

/// All texts of a group.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    /// `None`: all texts stay in memory.
    paging: Option<Paging>,
    /// `None`: the number is free.
    chunks: Vec<Option<Chunk>>,
    free_chunks: Vec<u32>,
    /// The chunk to which texts are appended.
    tail: Option<u32>,
    /// Buffers for new chunks, from chunks that were stored.
    spare: Vec<Vec<u8>>,
    /// Full chunks that stay in memory for now, oldest first.
    in_memory: VecDeque<u32>,
    /// Chunks that are being written: the number in the store, and the index in `chunks`. A chunk
    /// that is dropped meanwhile is removed when its write is done.
    writing: VecDeque<(u32, u32)>,
    /// Stored chunks.
    stored: usize,
    /// Texts that were read, with their headers.
    read: HashMap<TextLocation, Vec<u8>>,
    /// Their locations, oldest first, with some that were removed since.
    read_order: VecDeque<TextLocation>,
    /// Requests that the owner has not taken, and the number of the last read.
    requests: VecDeque<TextRequest>,
    last_read: u64,
    /// The read of a whole chunk from which live texts are moved: the request, and the chunk's
    /// index in `chunks`.
    compacting: Option<(u64, u32)>,
    /// Numbers in the store that were used and are free, and the next new one.
    free_stored: Vec<u32>,
    next_stored: u32,
    /// Bytes of all chunks, of the live texts in them, and of the chunks in memory.
    len: usize,
    live: usize,
    memory_bytes: usize,
}

impl Texts {
    /// Pages texts from now on.
    pub(crate) fn set_paging(&mut self, paging: Paging) {
        self.paging = Some(paging);
    }

    /// Returns an empty set with the same store.
    pub(crate) fn cleared(&mut self) -> Self {
        let mut texts = std::mem::take(self);
        texts.tail = None;
        for number in (0..).take(texts.chunks.len()) {
            texts.drop_chunk(number);
        }
        texts.read.clear();
        texts.read_order.clear();
        texts
    }

    /// Returns the bytes of the chunks in memory, with the spare buffers.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory_bytes + self.spare.iter().map(Vec::capacity).sum::<usize>()
    }

    /// Reports whether any text may have to be read before it can be used.
    pub(crate) fn has_stored(&self) -> bool {
        self.stored > 0
    }

    /// Reports whether writing is so far behind that the group should admit nothing for now.
    pub(crate) fn is_behind(&self) -> bool {
        let in_memory_max = self.paging.map_or(usize::MAX, |paging| paging.chunks_in_memory);
        !self.writing.is_empty()
            && self.in_memory.len() > in_memory_max.saturating_add(CHUNKS_BEHIND_MAX)
    }

    /// Returns the next request to the owner.
    pub(crate) fn poll_request(&mut self) -> Option<TextRequest> {
        self.requests.pop_front()
    }

    /// Appends a text, given in parts, with the id of its entry.
    pub(crate) fn put(&mut self, id: u64, parts: &[&[u8]]) -> TextLocation {
        let text_len: usize = parts.iter().map(|part| part.len()).sum();
        let len = HEADER_BYTES + text_len;
        let number = self.tail_for(len);
        let chunk = self.chunk_mut(number);
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

    /// Returns a text; `None` if it must be read first.
    pub(crate) fn get(&self, place: TextLocation) -> Option<&[u8]> {
        let bytes = match &self.chunk(place.chunk).bytes {
            ChunkBytes::InMemory(bytes) => &bytes[place.offset as usize..],
            ChunkBytes::Writing(bytes) => &bytes[place.offset as usize..],
            ChunkBytes::Stored(_) => self.read.get(&place)?,
        };
        Some(split(bytes).expect("texts in memory are whole").1)
    }

    /// Reports whether a text must be read before it can be used.
    pub(crate) fn must_read(&self, place: TextLocation) -> bool {
        self.has_stored()
            && matches!(self.chunk(place.chunk).bytes, ChunkBytes::Stored(_))
            && !self.read.contains_key(&place)
    }

    /// Requests texts that must be read, each with its length. Returns the number of the request.
    pub(crate) fn request(&mut self, texts: &[(TextLocation, usize)]) -> u64 {
        let texts = texts.iter().map(|(place, text_len)| self.stored(*place, *text_len));
        let texts = texts.collect();
        self.push_read(texts)
    }

    /// Returns where a text that must be read is stored, with its header.
    pub(crate) fn stored(&self, place: TextLocation, text_len: usize) -> StoredText {
        let ChunkBytes::Stored(chunk) = self.chunk(place.chunk).bytes else {
            unreachable!("only stored texts are read");
        };
        stored_text(chunk, place.offset, HEADER_BYTES + text_len)
    }

    fn push_read(&mut self, texts: Vec<StoredText>) -> u64 {
        self.last_read += 1;
        self.requests.push_back(TextRequest::Read { number: self.last_read, texts });
        self.last_read
    }

    /// Keeps a text that was read, with its header.
    pub(crate) fn keep(&mut self, place: TextLocation, bytes: Vec<u8>) {
        if self.read.insert(place, bytes).is_none() {
            self.read_order.push_back(place);
        }
    }

    /// Drops the oldest texts that were read, above a limit. To be called when no need of texts is
    /// partly met: a single one may exceed the limit.
    pub(crate) fn trim_read(&mut self) {
        while self.read.len() > READ_TEXTS_MAX
            && let Some(oldest) = self.read_order.pop_front()
        {
            self.read.remove(&oldest);
        }
        if self.read_order.len() > 2 * READ_TEXTS_MAX {
            self.read_order.retain(|place| self.read.contains_key(place));
        }
    }

    /// Drops a text that was read; it remains in its chunk.
    pub(crate) fn forget(&mut self, place: TextLocation) {
        self.read.remove(&place);
    }

    /// Keeps the chunk of a text until [`unpin`](Self::unpin), even if the text is removed.
    pub(crate) fn pin(&mut self, place: TextLocation) {
        self.chunk_mut(place.chunk).pins += 1;
    }

    /// Ends a pin.
    pub(crate) fn unpin(&mut self, place: TextLocation) {
        self.chunk_mut(place.chunk).pins -= 1;
        self.drop_if_dead(place.chunk);
    }

    /// Loads a text into the cache if it is in memory (see [`prefetch`](crate::prefetch)).
    pub(crate) fn prefetch(&self, place: TextLocation) {
        if let ChunkBytes::InMemory(bytes) = &self.chunk(place.chunk).bytes {
            let lines = bytes[place.offset as usize..].chunks(CACHE_LINE_BYTES);
            lines.take(PREFETCH_LINES).for_each(|line| {
                black_box(line[0]);
            });
        }
    }

    /// Removes a text of this length.
    pub(crate) fn remove(&mut self, place: TextLocation, text_len: usize) {
        let len = HEADER_BYTES + text_len;
        let chunk = self.chunk_mut(place.chunk);
        chunk.live -= len;
        let is_stored = matches!(chunk.bytes, ChunkBytes::Stored(_));
        self.live -= len;
        if is_stored {
            self.read.remove(&place);
        }
        self.drop_if_dead(place.chunk);
    }

    fn drop_if_dead(&mut self, number: u32) {
        if self.chunk(number).is_dead() && self.tail != Some(number) {
            self.drop_chunk(number);
        }
    }

    /// If too many bytes are dead, returns the texts of a sparse chunk, or requests them if the
    /// chunk is stored. The caller appends the live ones again.
    pub(crate) fn sparse_chunk(&mut self) -> Option<Vec<MovedText>> {
        let dead_bytes_min = self.paging.unwrap_or_default().dead_bytes_min;
        let dead = self.len - self.live;
        if dead < dead_bytes_min.max(self.live) || self.compacting.is_some() {
            return None;
        }
        // A pinned chunk would not be dropped, so moving its texts frees nothing.
        let is_sparse = |chunk: &Chunk| {
            chunk.live * 2 <= chunk.len
                && chunk.pins == 0
                && !matches!(chunk.bytes, ChunkBytes::Writing(_))
        };
        let number = (0..).zip(&self.chunks).find_map(|(number, chunk)| {
            let chunk = chunk.as_ref().filter(|chunk| is_sparse(chunk))?;
            (self.tail != Some(number) && chunk.len > 0).then_some(number)
        })?;
        match &self.chunk(number).bytes {
            ChunkBytes::InMemory(bytes) => {
                Some(texts_in(number, bytes).expect("texts in memory are whole"))
            }
            ChunkBytes::Writing(_) => None,
            ChunkBytes::Stored(at) => {
                let whole = stored_text(*at, 0, self.chunk(number).len);
                self.compacting = Some((self.push_read(vec![whole]), number));
                None
            }
        }
    }

    /// Takes the reply to a request of [`sparse_chunk`](Self::sparse_chunk). Returns the texts, and
    /// none if the chunk was dropped meanwhile. `None`: the request was for other texts.
    pub(crate) fn take_sparse_chunk(
        &mut self,
        request: u64,
        bytes: &[Result<Vec<u8>, TextError>],
    ) -> Option<Result<Vec<MovedText>, TextError>> {
        let (_, number) = self.compacting.filter(|(waits, _)| *waits == request)?;
        self.compacting = None;
        let chunk = self.chunks[number as usize].as_ref();
        let Some(chunk) = chunk.filter(|chunk| matches!(chunk.bytes, ChunkBytes::Stored(_))) else {
            return Some(Ok(Vec::new()));
        };
        let bytes = match bytes {
            [Ok(bytes)] if bytes.len() == chunk.len => bytes,
            [Err(error)] => return Some(Err(error.clone())),
            _ => return Some(Err(TextError::new("a chunk has another length"))),
        };
        Some(texts_in(number, bytes).ok_or_else(|| TextError::new("a chunk is damaged")))
    }

    fn chunk(&self, number: u32) -> &Chunk {
        self.chunks[number as usize].as_ref().expect("a live text has a chunk")
    }

    fn chunk_mut(&mut self, number: u32) -> &mut Chunk {
        self.chunks[number as usize].as_mut().expect("a live text has a chunk")
    }

    /// Returns a chunk with room for `len` more bytes.
    fn tail_for(&mut self, len: usize) -> u32 {
        if let Some(number) = self.tail {
            let Chunk { len: used, live, .. } = *self.chunk(number);
            if used + len <= self.chunk_bytes() || used == 0 {
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
        let chunk = Some(Chunk { bytes, len: 0, live: 0, pins: 0 });
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

    fn chunk_bytes(&self) -> usize {
        self.paging.map_or(CHUNK_BYTES, |paging| paging.chunk_bytes)
    }

    /// Requests the writing of the oldest chunks, if too many are in memory.
    fn page_out(&mut self) {
        let Some(paging) = self.paging else { return };
        for _ in 0..WRITES_AT_ONCE {
            if self.in_memory.len() <= paging.chunks_in_memory || self.writing.len() >= WRITES_MAX {
                return;
            }
            let Some(number) = self.in_memory.pop_front() else { return };
            if let Some(chunk) = &mut self.chunks[number as usize]
                && let ChunkBytes::InMemory(bytes) = &mut chunk.bytes
                && chunk.len <= paging.chunk_bytes
            {
                let bytes = Arc::new(std::mem::take(bytes));
                chunk.bytes = ChunkBytes::Writing(Arc::clone(&bytes));
                let at = self.free_stored.pop().unwrap_or(self.next_stored);
                self.next_stored = self.next_stored.max(at + 1);
                self.writing.push_back((at, number));
                self.requests.push_back(TextRequest::Write { chunk: at, bytes });
            }
        }
    }

    /// Handles a finished write.
    pub(crate) fn written(&mut self, at: u32, is_written: bool) {
        let sent = self.writing.iter().position(|(to, _)| *to == at);
        let Some((_, number)) = sent.and_then(|sent| self.writing.remove(sent)) else { return };
        let Some(chunk) = &mut self.chunks[number as usize] else { return };
        let left = std::mem::replace(&mut chunk.bytes, ChunkBytes::Stored(at));
        let ChunkBytes::Writing(bytes) = left else { unreachable!("the chunk was being written") };
        let mut bytes = Arc::unwrap_or_clone(bytes);
        if is_written {
            self.stored += 1;
            self.memory_bytes -= chunk.len;
            if self.spare.len() < WRITES_AT_ONCE {
                bytes.clear();
                self.spare.push(bytes);
            }
        } else {
            chunk.bytes = ChunkBytes::InMemory(bytes);
            self.in_memory.push_back(number);
            self.free_stored.push(at);
        }
        if chunk.is_dead() {
            self.drop_chunk(number);
        }
        if is_written {
            self.page_out();
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
            ChunkBytes::Stored(at) => {
                self.stored -= 1;
                self.free_stored.push(at);
                self.compacting = self.compacting.filter(|(_, compacting)| *compacting != number);
            }
        }
        self.len -= chunk.len;
        self.chunks[number as usize] = None;
        self.free_chunks.push(number);
    }
}

fn stored_text(chunk: u32, offset: u32, len: usize) -> StoredText {
    StoredText { chunk, offset, len: u32::try_from(len).expect("a text is shorter than 4 GiB") }
}

/// Returns the text in bytes that were read for this entry, if it is there and nothing else.
pub(crate) fn text_of(id: u64, bytes: &[u8]) -> Option<&[u8]> {
    let (found, text) = split(bytes)?;
    (found == id && HEADER_BYTES + text.len() == bytes.len()).then_some(text)
}

/// Returns all texts of a chunk; `None` if it is damaged.
fn texts_in(number: u32, bytes: &[u8]) -> Option<Vec<MovedText>> {
    let mut texts = Vec::new();
    let mut offset = 0;
    while offset < bytes.len() {
        let (id, text) = split(&bytes[offset..])?;
        let start = u32::try_from(offset).ok()?;
        texts.push((id, TextLocation { chunk: number, offset: start }, text.to_vec()));
        offset += HEADER_BYTES + text.len();
    }
    Some(texts)
}

/// Returns the id and the text at the beginning of `bytes`.
fn split(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (id, rest) = bytes.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    Some((u64::from_le_bytes(*id), rest.get(..u32::from_le_bytes(*len) as usize)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_were_read_stay_until_they_are_trimmed() {
        let mut texts = Texts::default();
        let needed = u32::try_from(READ_TEXTS_MAX).unwrap() + 10;
        for offset in 0..needed {
            texts.keep(TextLocation { chunk: 0, offset }, Vec::new());
        }
        assert_eq!(texts.read.len(), READ_TEXTS_MAX + 10, "one need may exceed the limit");
        texts.trim_read();
        assert_eq!(texts.read.len(), READ_TEXTS_MAX);
        assert!(!texts.read.contains_key(&TextLocation { chunk: 0, offset: 9 }), "the oldest go");
    }
}
