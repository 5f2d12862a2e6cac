//! Memory for encoded batches: filled in order, given back in order, counted honestly.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Size of the first blocks of a topic. Small, because many topics see few events.
const BLOCK_BYTES_MIN: usize = 4 << 10;
/// Size that blocks grow to. A block is allocated once for hundreds of small batches, and is the
/// unit in which memory comes back.
const BLOCK_BYTES_MAX: usize = 256 << 10;
/// A block is at most this part of what there is, so that a tail never loses much at once and one
/// that has to be short (there are many) has small blocks.
const BLOCKS_MIN: usize = 16;

/// Blocks of memory that batches are encoded into one after the other.
///
/// A batch is a slice of a block and keeps the whole block alive, so `bytes` counts the capacity
/// of blocks, not the length of batches. Batches are released in the order in which they were
/// taken.
#[derive(Debug, Default)]
pub(super) struct Arena {
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
    /// One block of exactly so many bytes, or none.
    pub(super) fn of(bytes: usize) -> Self {
        let mut arena = Self::default();
        if bytes > 0 {
            arena.add_block(bytes);
        }
        arena
    }

    /// Bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Blocks allocated; the last one does not come back by itself.
    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
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
        let share = self.bytes / BLOCKS_MIN;
        self.add_block(share.clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX).max(bytes));
        self.trim();
    }

    fn add_block(&mut self, capacity: usize) {
        self.open = BytesMut::with_capacity(capacity);
        // What the allocator gave is what counts.
        let capacity = self.open.capacity();
        self.bytes += capacity;
        self.blocks.push_back(Block { capacity, live: 0 });
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

    /// A batch that was sealed elsewhere, moved here; there is room for it.
    pub(super) fn adopt(&mut self, batch: &Bytes) -> Bytes {
        self.open.extend_from_slice(batch);
        self.seal()
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
        let mut arena = Arena::default();
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
        let mut arena = Arena::default();
        arena.begin_block(1);
        arena.open().extend_from_slice(b"a");
        let first = arena.seal();
        arena.open().extend_from_slice(b"b");
        let second = arena.seal();
        assert_eq!(second.as_ptr(), first.as_ptr().wrapping_add(1));
        assert_eq!(arena.seal().len(), 0);
    }
}
