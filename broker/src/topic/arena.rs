//! An arena for encoded batches: blocks are filled and freed in order, and their whole capacity is
//! counted.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Size of a topic's first blocks. Small, because many topics receive few events.
const BLOCK_BYTES_MIN: usize = 4 << 10;
/// Maximum size of a block. One allocation serves hundreds of small batches. Memory is freed by
/// whole blocks.
const BLOCK_BYTES_MAX: usize = 256 << 10;
/// A block is at most 1/16 of the arena, so that an eviction never frees much at once and short
/// tails have small blocks.
const BLOCKS_MIN: usize = 16;

/// Blocks of memory into which batches are encoded one after the other.
///
/// A batch is a slice of a block and keeps the whole block alive, so `bytes` counts the capacity of
/// blocks, not the length of batches. Batches are released in the order in which they were sealed.
#[derive(Debug, Default)]
pub(super) struct Arena {
    /// The unsealed end of the newest block: the batch being encoded.
    open: BytesMut,
    /// Oldest first; `open` is the end of the last one.
    blocks: VecDeque<ArenaBlock>,
    /// Sum of the capacities of `blocks`.
    pub(super) bytes: usize,
}

#[derive(Debug)]
struct ArenaBlock {
    capacity: usize,
    /// Batches in the block that were not released.
    live_batches: usize,
}

impl Arena {
    /// One block of exactly `bytes`, or none if 0.
    pub(super) fn with_block(bytes: usize) -> Self {
        let mut arena = Self::default();
        if bytes > 0 {
            arena.add_block(bytes);
        }
        arena
    }

    /// Number of blocks. The last one is never freed by a release.
    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Whether `more` bytes can be encoded without a reallocation.
    pub(super) fn has_room(&self, more: usize) -> bool {
        self.open.capacity() - self.open.len() >= more
    }

    /// Length of the batch being encoded.
    pub(super) fn open_len(&self) -> usize {
        self.open.len()
    }

    /// Begins a new block for at least `bytes`. The batch in the old block must be sealed.
    pub(super) fn begin_block(&mut self, bytes: usize) {
        assert!(self.open.is_empty(), "a batch lies in one block");
        let share = self.bytes / BLOCKS_MIN;
        self.add_block(share.clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX).max(bytes));
        self.trim();
    }

    fn add_block(&mut self, capacity: usize) {
        self.open = BytesMut::with_capacity(capacity);
        // Count what the allocator returned.
        let capacity = self.open.capacity();
        self.bytes += capacity;
        self.blocks.push_back(ArenaBlock { capacity, live_batches: 0 });
    }

    /// The buffer to encode into. The caller has checked `has_room`.
    pub(super) fn open(&mut self) -> &mut BytesMut {
        &mut self.open
    }

    /// Ends the batch and returns it; empty if nothing was encoded.
    pub(super) fn seal(&mut self) -> Bytes {
        if self.open.is_empty() {
            return Bytes::new();
        }
        let block = self.blocks.back_mut().expect("an encoded batch lies in a block");
        block.live_batches += 1;
        self.open.split().freeze()
    }

    /// Releases the oldest batch that is not released. Its memory is freed when the rest of its
    /// block is released and no reader holds a slice.
    pub(super) fn release(&mut self) {
        let block = self.blocks.front_mut().expect("every sealed batch lies in a block");
        block.live_batches -= 1;
        self.trim();
    }

    /// Copies a batch that was sealed elsewhere into this arena. The caller has checked `has_room`.
    pub(super) fn copy_in(&mut self, batch: &Bytes) -> Bytes {
        self.open.extend_from_slice(batch);
        self.seal()
    }

    fn trim(&mut self) {
        while self.blocks.len() > 1 && self.blocks[0].live_batches == 0 {
            let block = self.blocks.pop_front().expect("there is more than one block");
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
        assert_eq!(arena.bytes, BLOCK_BYTES_MIN);
        let mut sealed = Vec::new();
        for _ in 0..2 {
            arena.open().extend_from_slice(&[b'x'; 1000]);
            sealed.push(arena.seal());
        }
        arena.begin_block(100_000);
        assert_eq!(arena.bytes, BLOCK_BYTES_MIN + 100_000);
        arena.open().extend_from_slice(b"y");
        sealed.push(arena.seal());
        arena.release();
        assert_eq!(arena.bytes, BLOCK_BYTES_MIN + 100_000, "the first block has a batch");
        arena.release();
        assert_eq!(arena.bytes, 100_000);
        arena.release();
        assert_eq!(arena.bytes, 100_000, "the newest block stays");
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
