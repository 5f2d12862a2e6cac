//! Groups what is appended together into batches.

use tidings_protocol::Seq;

use super::segment_log::LogWriter;
use crate::format::{BATCH_HEADER, BatchHeader};
use crate::topic_log::LogPiece;

/// Maximum payload of a batch with more than one piece, so that every batch fits into a reader's
/// buffer.
pub(super) const BATCH_BYTES: usize = 128 << 10;

pub(super) fn batch_bytes(header: &BatchHeader) -> u64 {
    BATCH_HEADER as u64 + u64::from(header.bytes)
}

/// Groups pieces into batches of consecutive seqs and limited size.
pub(super) fn batches<'a>(
    pieces: &'a [LogPiece],
    end: Seq,
    next: Seq,
    writer: &LogWriter,
    reserve: Seq,
) -> Vec<(BatchHeader, &'a [LogPiece])> {
    let header = |first: Seq, previous_end: Seq| BatchHeader {
        first,
        previous_end,
        durable: writer.durable.min(previous_end),
        reserved: reserve.max(writer.reserved),
        unix_ms: writer.newest_unix_ms,
        ..BatchHeader::default()
    };
    if pieces.is_empty() {
        return vec![(header(next.max(end), end), pieces)];
    }
    let (mut batches, mut rest, mut previous_end) = (Vec::new(), pieces, end);
    while !rest.is_empty() {
        assert!(rest[0].first >= previous_end, "seqs ascend");
        let mut batch = header(rest[0].first, previous_end);
        let mut taken = 0;
        for piece in rest {
            let bytes = batch.bytes as usize + piece.wire.len();
            if piece.first != batch.end() || taken > 0 && bytes > BATCH_BYTES {
                break;
            }
            batch.count += u32::try_from(piece.count).expect("a piece has at most about 64 KiB");
            batch.bytes = u32::try_from(bytes).expect("a batch has at most about 128 KiB");
            batch.unix_ms = piece.unix_ms.max(batch.unix_ms);
            batch.crc = crc32c::crc32c_append(batch.crc, &piece.wire);
            batch.identified |= piece.identified;
            taken += 1;
        }
        let (batch_pieces, remaining) = rest.split_at(taken);
        previous_end = batch.end();
        batches.push((batch, batch_pieces));
        rest = remaining;
    }
    batches
}
