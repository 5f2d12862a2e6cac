//! Buffers of encoded Server-Sent Events. Events are encoded once; all streams that read near the
//! end of a topic send the same bytes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use tidings_protocol::Seq;

/// Limits of one buffer: runs of events, and their bytes.
const RUNS_MAX: usize = 64;
const BYTES_MAX: usize = 1 << 20;

/// The newest encoded runs of events of a topic.
#[derive(Debug, Default)]
pub(super) struct SseBuffer(Mutex<EncodedRuns>);

#[derive(Debug, Default)]
struct EncodedRuns {
    /// Oldest first: the first seq, the length of the lines, and their encoding. Seqs are never
    /// reused, so the first two identify the lines.
    runs: VecDeque<(Seq, usize, Bytes)>,
    bytes: usize,
}

impl SseBuffer {
    /// Returns the encoding of `len` bytes of lines from `first` on. Calls `encode` if the buffer
    /// does not have it.
    pub(super) fn get_or_encode(
        &self,
        first: Seq,
        len: usize,
        encode: impl FnOnce() -> Bytes,
    ) -> Bytes {
        let mut buffer = self.0.lock();
        let is_same = |run: &&(Seq, usize, Bytes)| run.0 == first && run.1 == len;
        if let Some((_, _, encoded)) = buffer.runs.iter().rev().find(is_same) {
            return encoded.clone();
        }
        // Under the lock, because the other streams wait for the same bytes.
        let encoded = encode();
        buffer.bytes += encoded.len();
        buffer.runs.push_back((first, len, encoded.clone()));
        while buffer.runs.len() > RUNS_MAX || buffer.bytes > BYTES_MAX && buffer.runs.len() > 1 {
            let (_, _, evicted) =
                buffer.runs.pop_front().expect("the loop checked that it has runs");
            buffer.bytes -= evicted.len();
        }
        encoded
    }
}

/// The buffers of all topics that have a stream, by the number of the topic.
#[derive(Debug, Default)]
pub(super) struct SseBuffers(Mutex<HashMap<u64, Weak<SseBuffer>>>);

impl SseBuffers {
    /// The buffer of a topic. It is dropped with the last stream that holds it.
    pub(super) fn for_topic(&self, topic_id: u64) -> Arc<SseBuffer> {
        let buffers = &mut *self.0.lock();
        if let Some(buffer) = buffers.get(&topic_id).and_then(Weak::upgrade) {
            return buffer;
        }
        buffers.retain(|_, buffer| buffer.strong_count() > 0);
        let new = Arc::default();
        buffers.insert(topic_id, Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_lines_are_encoded_once() {
        let buffer = SseBuffer::default();
        let first = buffer.get_or_encode(Seq(1), 5, || Bytes::from_static(b"a"));
        let again =
            buffer.get_or_encode(Seq(1), 5, || unreachable!("these lines are encoded already"));
        assert_eq!((&first[..], &again[..]), (&b"a"[..], &b"a"[..]));
        assert_eq!(buffer.get_or_encode(Seq(1), 11, || Bytes::from_static(b"b")), "b");
        assert_eq!(buffer.get_or_encode(Seq(2), 5, || Bytes::from_static(b"c")), "c");
    }

    #[test]
    fn the_buffer_is_bounded() {
        let buffer = SseBuffer::default();
        for n in 1..200 {
            buffer.get_or_encode(Seq(n), 1, || Bytes::from_static(b"x"));
        }
        assert_eq!(buffer.0.lock().runs.len(), RUNS_MAX);
        for n in 200..220 {
            buffer.get_or_encode(Seq(n), 1, || Bytes::from(vec![0; BYTES_MAX / 4]));
        }
        assert!(buffer.0.lock().bytes <= BYTES_MAX);
        assert_eq!(buffer.get_or_encode(Seq(1), 1, || Bytes::from_static(b"new")), "new");
    }

    #[test]
    fn a_buffer_is_dropped_with_its_last_stream() {
        let buffers = SseBuffers::default();
        let (first, second) = (buffers.for_topic(1), buffers.for_topic(1));
        assert!(Arc::ptr_eq(&first, &second));
        drop((first, second));
        let _other = buffers.for_topic(2);
        assert_eq!(buffers.0.lock().len(), 1);
    }
}
