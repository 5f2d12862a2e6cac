//! Memory for encoded batches: filled in order, given back in order, counted honestly.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Size of the first block of a topic. Small, because many topics see few events.
const BLOCK_BYTES_MIN: usize = 4 << 10;
/// Size that blocks grow to, in a tail that is much longer. A block is allocated once for
/// hundreds of small batches, and is the unit in which memory comes back.
const BLOCK_BYTES_MAX: usize = 256 << 10;
/// A full tail has about so many blocks at least, so that it never loses much at once.
const BLOCKS_PER_TAIL: usize = 16;

/// Blocks of memory that batches are encoded into one after the other.
///
/// A batch is a slice of a block and keeps the whole block alive, so `bytes` counts the capacity
/// of blocks, not the length of batches. Batches are released in the order in which they were
/// taken.
#[derive(Debug)]
pub(super) struct Arena {
    /// Size that blocks grow to.
    block_bytes_max: usize,
    /// The unsealed end of the newest block; what is in it is the batch being encoded.
    open: BytesMut,
    /// Oldest first; the last one is the one that `open` is the end of.
    blocks: VecDeque<Block>,
    /// Capacity of `blocks`.
    bytes: usize,
}

#[derive(Debug)]
struct Block {
    capacity: usize,
    /// Batches in it that were not released.
    live: usize,
}

impl Arena {
    /// No memory yet. It will be asked to stay within about `bytes_max`.
    pub(super) fn new(bytes_max: usize) -> Self {
        let block_bytes_max = bytes_max / BLOCKS_PER_TAIL;
        Self {
            block_bytes_max: block_bytes_max.clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX),
            open: BytesMut::new(),
            blocks: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether `more` bytes can be encoded without moving what is there.
    pub(super) fn has_room(&self, more: usize) -> bool {
        self.open.capacity() - self.open.len() >= more
    }

    /// Length of the batch being encoded.
    pub(super) fn open_len(&self) -> usize {
        self.open.len()
    }

    /// Begins a new block with room for at least `bytes`. The batch in the old one must be sealed.
    pub(super) fn begin_block(&mut self, bytes: usize) {
        assert!(self.open.is_empty(), "a batch lies in one block");
        let grown = self.blocks.back().map_or(BLOCK_BYTES_MIN, |block| block.capacity * 2);
        let capacity = grown.min(self.block_bytes_max).max(bytes);
        self.open = BytesMut::with_capacity(capacity);
        // What the allocator gave is what counts.
        let capacity = self.open.capacity();
        self.bytes += capacity;
        self.blocks.push_back(Block { capacity, live: 0 });
        self.trim();
    }

    /// Where to encode; the caller made sure of the room.
    pub(super) fn open(&mut self) -> &mut BytesMut {
        &mut self.open
    }

    /// Ends the batch; empty if nothing was encoded.
    pub(super) fn seal(&mut self) -> Bytes {
        if self.open.is_empty() {
            return Bytes::new();
        }
        let block = self.blocks.back_mut().expect("what is encoded lies in a block");
        block.live += 1;
        self.open.split().freeze()
    }

    /// Releases the oldest batch that was sealed and not released. Its memory is free when the
    /// rest of its block and the last reader of it are done, too.
    pub(super) fn release(&mut self) {
        let block = self.blocks.front_mut().expect("every sealed batch lies in a block");
        block.live -= 1;
        self.trim();
    }

    fn trim(&mut self) {
        while self.blocks.len() > 1 && self.blocks[0].live == 0 {
            let block = self.blocks.pop_front().expect("there is more than one");
            self.bytes -= block.capacity;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_until_their_last_batch_is_released() {
        let mut arena = Arena::new(1 << 20);
        assert!(!arena.has_room(1));
        arena.begin_block(10);
        assert_eq!(arena.bytes(), BLOCK_BYTES_MIN);
        let mut sealed = Vec::new();
        for _ in 0..2 {
            arena.open().extend_from_slice(&[b'x'; 1000]);
            sealed.push(arena.seal());
        }
        arena.begin_block(100_000);
        assert_eq!(arena.bytes(), BLOCK_BYTES_MIN + 100_000);
        arena.open().extend_from_slice(b"y");
        sealed.push(arena.seal());
        arena.release();
        assert_eq!(arena.bytes(), BLOCK_BYTES_MIN + 100_000, "the first block has a batch");
        arena.release();
        assert_eq!(arena.bytes(), 100_000);
        arena.release();
        assert_eq!(arena.bytes(), 100_000, "the newest block stays");
        assert_eq!(&sealed[2][..], b"y");
    }

    #[test]
    fn sealing_small_batches_does_not_allocate() {
        let mut arena = Arena::new(1 << 20);
        arena.begin_block(1);
        arena.open().extend_from_slice(b"a");
        let first = arena.seal();
        arena.open().extend_from_slice(b"b");
        let second = arena.seal();
        assert_eq!(second.as_ptr(), first.as_ptr().wrapping_add(1));
        assert_eq!(arena.seal().len(), 0);
    }
}
