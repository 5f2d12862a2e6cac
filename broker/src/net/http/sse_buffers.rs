//! What was written for one stream of events and is wanted by others: events are encoded once, and
//! all streams of a topic that follow it closely are sent the same bytes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use tidings_protocol::Seq;

/// Runs of events of a topic, and their bytes, that are remembered.
const RUNS_MAX: usize = 64;
const BYTES_MAX: usize = 1 << 20;

/// The newest runs of events of a topic in the form of streams.
#[derive(Debug, Default)]
pub(super) struct SseBuffer(Mutex<EncodedRuns>);

#[derive(Debug, Default)]
struct EncodedRuns {
    /// Oldest first: the first number, the bytes that the lines had, and what was written for them.
    /// Numbers are never given twice, so these two say which lines they are.
    runs: VecDeque<(Seq, usize, Bytes)>,
    bytes: usize,
}

impl SseBuffer {
    /// What was written for these lines, or what `write` writes now.
    pub(super) fn get_or_encode(
        &self,
        first: Seq,
        lines: &Bytes,
        write: impl FnOnce() -> Bytes,
    ) -> Bytes {
        let len = lines.len();
        let mut known = self.0.lock();
        let same = |run: &&(Seq, usize, Bytes)| run.0 == first && run.1 == len;
        if let Some((_, _, written)) = known.runs.iter().rev().find(same) {
            return written.clone();
        }
        // Under the lock: all others want the same just now.
        let written = write();
        known.bytes += written.len();
        known.runs.push_back((first, len, written.clone()));
        while known.runs.len() > RUNS_MAX || known.bytes > BYTES_MAX && known.runs.len() > 1 {
            let (_, _, gone) = known.runs.pop_front().expect("there is one");
            known.bytes -= gone.len();
        }
        written
    }
}

/// Those of all topics that are streamed.
#[derive(Debug, Default)]
pub(super) struct SseBuffers(Mutex<HashMap<u64, Weak<SseBuffer>>>);

impl SseBuffers {
    /// Those of the topic with this number; they go with their last stream.
    pub(super) fn for_topic(&self, topic: u64) -> Arc<SseBuffer> {
        let topics = &mut *self.0.lock();
        if let Some(known) = topics.get(&topic).and_then(Weak::upgrade) {
            return known;
        }
        topics.retain(|_, known| known.strong_count() > 0);
        let new = Arc::default();
        topics.insert(topic, Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_lines_are_encoded_once() {
        let transcripts = SseBuffer::default();
        let lines = Bytes::from_static(b"lines");
        let first = transcripts.get_or_encode(Seq(1), &lines, || Bytes::from_static(b"a"));
        let again = transcripts.get_or_encode(Seq(1), &lines, || unreachable!("it was written"));
        assert_eq!((&first[..], &again[..]), (&b"a"[..], &b"a"[..]));
        let longer = Bytes::from_static(b"lines, more");
        assert_eq!(transcripts.get_or_encode(Seq(1), &longer, || Bytes::from_static(b"b")), "b");
        assert_eq!(transcripts.get_or_encode(Seq(2), &lines, || Bytes::from_static(b"c")), "c");
    }

    #[test]
    fn the_buffer_is_bounded() {
        let transcripts = SseBuffer::default();
        let line = Bytes::from_static(b"x");
        for n in 1..200 {
            transcripts.get_or_encode(Seq(n), &line, || Bytes::from_static(b"x"));
        }
        assert_eq!(transcripts.0.lock().runs.len(), RUNS_MAX);
        for n in 200..220 {
            transcripts.get_or_encode(Seq(n), &line, || Bytes::from(vec![0; BYTES_MAX / 4]));
        }
        assert!(transcripts.0.lock().bytes <= BYTES_MAX);
        assert_eq!(transcripts.get_or_encode(Seq(1), &line, || Bytes::from_static(b"new")), "new");
    }

    #[test]
    fn a_buffer_is_dropped_with_its_last_stream() {
        let topics = SseBuffers::default();
        let (one, same) = (topics.for_topic(1), topics.for_topic(1));
        assert!(Arc::ptr_eq(&one, &same));
        drop((one, same));
        let _other = topics.for_topic(2);
        assert_eq!(topics.0.lock().len(), 1);
    }
}
