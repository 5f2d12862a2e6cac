//! The queue of output for a socket.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tidings_protocol::Seq;
use tokio::io::AsyncWrite;

use crate::clock::Moment;
use crate::net::stream::SocketStream;
use crate::topic::count_lines;

/// Pieces that are passed to the kernel in one call.
pub(super) const PIECES_MAX: usize = 64;

/// Whole lines in the order in which they are written.
///
/// Pieces with events are slices of a topic's memory. A stalled connection releases them with
/// [`release_topic_memory`](Self::release_topic_memory).
#[derive(Debug, Default)]
pub(super) struct OutboundQueue {
    pieces: VecDeque<Piece>,
    /// Bytes of all pieces, including the written part of the first.
    bytes: usize,
    /// Bytes of the first piece that are written; less than its length.
    written: usize,
    /// Since when the socket accepts nothing.
    stalled_since: Option<Moment>,
}

#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    origin: Option<Origin>,
}

/// The place of a piece in a subscription.
#[derive(Debug, Clone, Copy)]
struct Origin {
    /// The id of the subscription.
    subscription: u32,
    /// The first seq of the first line.
    first: Seq,
    /// How many seqs each line stands for.
    seqs_per_line: u64,
}

impl OutboundQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Since when the socket accepts nothing.
    pub(super) fn stalled_since(&self) -> Option<Moment> {
        self.stalled_since
    }

    /// Restarts the time of a stall, because the socket accepted bytes that TLS had buffered.
    pub(super) fn restart_stall_timer(&mut self, now: Moment) {
        self.stalled_since = self.stalled_since.map(|_| now);
    }

    /// Whether a piece keeps memory of a topic alive.
    pub(super) fn pins_topic_memory(&self) -> bool {
        self.pieces.iter().any(|piece| piece.origin.is_some())
    }

    /// Adds whole lines that are not events.
    pub(super) fn push(&mut self, lines: Bytes) {
        self.push_piece(Piece { bytes: lines, origin: None });
    }

    /// Adds events of a subscription; `first` is the seq of the first line.
    pub(super) fn push_events(&mut self, subscription: u32, first: Seq, lines: Bytes) {
        let origin = Origin { subscription, first, seqs_per_line: 1 };
        self.push_piece(Piece { bytes: lines, origin: Some(origin) });
    }

    /// Adds a line of a subscription that stands for these seqs, both included.
    pub(super) fn push_range(&mut self, subscription: u32, (first, last): (Seq, Seq), line: Bytes) {
        let origin = Origin { subscription, first, seqs_per_line: last.0 - first.0 + 1 };
        self.push_piece(Piece { bytes: line, origin: Some(origin) });
    }

    fn push_piece(&mut self, piece: Piece) {
        if !piece.bytes.is_empty() {
            self.bytes += piece.bytes.len();
            self.pieces.push_back(piece);
        }
    }

    /// How many bytes and pieces may be added, so that one call writes all of them.
    pub(super) fn capacity_left(&self, bytes_max: usize) -> (usize, usize) {
        (bytes_max.max(1).saturating_sub(self.bytes), PIECES_MAX.saturating_sub(self.pieces.len()))
    }

    /// Writes as much as the socket accepts, and returns the number of bytes. `Pending`: it accepts
    /// nothing, and the task is woken when it does. Do not call it on an empty queue.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut SocketStream,
        now: impl Fn() -> Moment,
    ) -> Poll<io::Result<usize>> {
        let poll = self.poll_write_pieces(cx, Pin::new(stream));
        if poll.is_pending() {
            self.stalled_since.get_or_insert_with(now);
        }
        let written = ready!(poll)?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.stalled_since = None;
        self.advance(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_pieces(
        &self,
        cx: &mut Context<'_>,
        stream: Pin<&mut SocketStream>,
    ) -> Poll<io::Result<usize>> {
        if let [piece] = self.pieces.as_slices().0
            && self.pieces.len() == 1
        {
            // A plain write has the lowest cost in the kernel.
            return stream.poll_write(cx, &piece.bytes[self.written..]);
        }
        let mut slices = [IoSlice::new(&[]); PIECES_MAX];
        let mut filled = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(&piece.bytes);
            filled += 1;
        }
        slices[0].advance(self.written);
        stream.poll_write_vectored(cx, &slices[..filled])
    }

    fn advance(&mut self, written: usize) {
        self.written += written;
        while let Some(first) = self.pieces.front()
            && self.written >= first.bytes.len()
        {
            self.written -= first.bytes.len();
            self.bytes -= first.bytes.len();
            self.pieces.pop_front();
        }
        if self.pieces.is_empty() {
            // Idle connections keep no memory. One allocation is cheap beside a write.
            self.pieces = VecDeque::new();
        }
    }

    /// Releases the memory of topics. Removes unwritten events and calls `rewind` with the
    /// subscription and the first removed seq; the last call for a subscription counts. The rest of
    /// a partially written line is copied and stays, so no line is torn.
    pub(super) fn release_topic_memory(&mut self, mut rewind: impl FnMut(u32, Seq)) {
        let mut remaining = VecDeque::new();
        // Backwards, so that the last rewind of a subscription is to its first piece.
        while let Some(piece) = self.pieces.pop_back() {
            let Some(Origin { subscription, first, seqs_per_line }) = piece.origin else {
                remaining.push_front(piece);
                continue;
            };
            let is_first = self.pieces.is_empty();
            let written = if is_first { std::mem::take(&mut self.written) } else { 0 };
            let line_rest = rest_of_line(&piece.bytes, written);
            let begun_lines = count_lines(&piece.bytes[..written + line_rest.len()]);
            rewind(subscription, Seq(first.0 + begun_lines * seqs_per_line));
            if !line_rest.is_empty() {
                let bytes = Bytes::copy_from_slice(line_rest);
                remaining.push_front(Piece { bytes, origin: None });
            }
        }
        self.bytes = remaining.iter().map(|piece| piece.bytes.len()).sum();
        self.pieces = remaining;
    }
}

#[cfg(test)]
impl OutboundQueue {
    /// Takes at most `count` bytes, as a socket does.
    pub(super) fn take(&mut self, count: usize) -> Vec<u8> {
        let bytes = self.pieces.iter().flat_map(|piece| piece.bytes.iter().copied());
        let taken: Vec<u8> = bytes.skip(self.written).take(count).collect();
        self.advance(taken.len());
        taken
    }
}

/// The unwritten rest of the line at which `written` ends; empty between lines.
fn rest_of_line(lines: &[u8], written: usize) -> &[u8] {
    if written == 0 || lines[written - 1] == b'\n' {
        return &[];
    }
    let rest = &lines[written..];
    let end = memchr::memchr(b'\n', rest).expect("pieces are whole lines");
    &rest[..=end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbound(pieces: &[(&'static str, Option<(u32, u64)>)], written: usize) -> OutboundQueue {
        let mut outbound = OutboundQueue::default();
        for (text, run) in pieces {
            let bytes = Bytes::from_static(text.as_bytes());
            match run {
                Some((subscription, first)) => {
                    outbound.push_events(*subscription, Seq(*first), bytes);
                }
                None => outbound.push(bytes),
            }
        }
        outbound.advance(written);
        outbound
    }

    /// The output that stays, and where each subscription resumes.
    fn released(mut outbound: OutboundQueue) -> (String, Vec<(u32, u64)>) {
        let mut rewound: Vec<(u32, u64)> = Vec::new();
        outbound.release_topic_memory(|subscription, seq| {
            rewound.retain(|(earlier, _)| *earlier != subscription);
            rewound.push((subscription, seq.0));
        });
        rewound.sort_unstable();
        let lines: Vec<u8> =
            outbound.pieces.iter().flat_map(|piece| piece.bytes.to_vec()).collect();
        assert_eq!(outbound.bytes, lines.len());
        let left = String::from_utf8(lines[outbound.written..].to_vec()).unwrap();
        (left, rewound)
    }

    #[test]
    fn releasing_keeps_the_rest_of_a_partial_line_and_rewinds_behind_it() {
        let run = [("a1\r\na2\r\na3\r\n", Some((5, 1)))];
        assert_eq!(released(outbound(&run, 0)), (String::new(), vec![(5, 1)]));
        assert_eq!(released(outbound(&run, 4)), (String::new(), vec![(5, 2)]));
        assert_eq!(released(outbound(&run, 5)), ("2\r\n".into(), vec![(5, 3)]));
        assert_eq!(released(outbound(&run, 7)), ("\n".into(), vec![(5, 3)]));
        assert_eq!(released(outbound(&run, 11)), ("\n".into(), vec![(5, 4)]));
    }

    #[test]
    fn releasing_rewinds_every_subscription_to_its_first_unwritten_line() {
        let pieces = [
            ("+OK\r\n", None),
            ("a1\r\n", Some((1, 1))),
            ("b7\r\n", Some((2, 7))),
            ("a2\r\n", Some((1, 2))),
        ];
        let rewound = vec![(1, 1), (2, 7)];
        assert_eq!(released(outbound(&pieces, 0)), ("+OK\r\n".into(), rewound.clone()));
        assert_eq!(released(outbound(&pieces, 3)), ("\r\n".into(), rewound.clone()));
        assert_eq!(released(outbound(&pieces, 5)), (String::new(), rewound));
        assert_eq!(released(outbound(&pieces, 6)), ("1\r\n".into(), vec![(1, 2), (2, 7)]));
        assert_eq!(released(outbound(&pieces, 9)), (String::new(), vec![(1, 2), (2, 7)]));
    }

    /// A `LAG` that stayed would arrive before the events in front of it.
    // PROTOCOL: D2
    #[test]
    fn releasing_keeps_missed_seqs_behind_the_events_before_them() {
        let ranged = |written| {
            let mut outbound = outbound(&[("a1\r\n", Some((1, 1)))], 0);
            outbound.push_range(1, (Seq(2), Seq(6)), Bytes::from_static(b"LAG t 2 6\r\n"));
            outbound.push_events(1, Seq(7), Bytes::from_static(b"a7\r\n"));
            outbound.advance(written);
            released(outbound)
        };
        assert_eq!(ranged(0), (String::new(), vec![(1, 1)]));
        assert_eq!(ranged(4), (String::new(), vec![(1, 2)]));
        assert_eq!(ranged(5), ("AG t 2 6\r\n".into(), vec![(1, 7)]));
        assert_eq!(ranged(15), (String::new(), vec![(1, 7)]));
    }

    #[test]
    fn an_idle_queue_keeps_no_memory() {
        let mut outbound = outbound(&[("x\r\n", None); 50], 149);
        assert!(!outbound.is_empty());
        outbound.advance(1);
        assert!(outbound.is_empty());
        assert_eq!(outbound.pieces.capacity(), 0);
        assert_eq!((outbound.bytes, outbound.written), (0, 0));
    }
}
