//! The format of segment files, version 1.
//!
//! A segment is a header followed by batches. A batch is a header followed by its events as on the
//! wire:
//!
//! ```text
//!  segment header, 128 bytes                  batch header, 64 bytes, at any offset
//!    0  "TIDINGSL"                              0  "TDB1"
//!    8  u16  version (1)                        4  u16  flags: 1 clean, 2 identified
//!   10  u16  length of the topic's name         6  u16  version of the wire form (1)
//!   12  u32  zero                               8  u32  bytes of payload
//!   16  u64  base: the first seq in it         12  u32  events
//!   24  u64  previous end                      16  u64  first seq
//!   32  u64  reserved                          24  u64  previous end
//!   40  i64  created, unix ms                  32  u64  durable
//!   48  64 bytes of the topic's name           40  u64  reserved
//!  112  12 bytes, zero                         48  i64  unix ms of its newest event
//!  124  u32  CRC-32C of the 124 bytes before   56  u32  CRC-32C of the payload
//!                                              60  u32  CRC-32C of the 60 bytes before,
//!                                                       and of the batch's address
//! ```
//!
//! All integers are little-endian. Magic, flags and versions are literal. A file is named after its
//! base, in 20 digits: `00000000000000000077.log`.
//!
//! The *address* is not stored: it is the topic's name, the file's base and the offset of the
//! batch, each integer in 8 bytes. If a disk writes a batch to a wrong place, in this file or
//! another, its checksum is wrong there, so the copy is ignored. All batches of the catalog have the
//! same address: its seqs have no gaps, so a misplaced copy is noticed.
//!
//! - *Previous end* is the seq after the newest event written before. If it is less than the first
//!   seq, no kept event has the seqs between the two (a gap).
//! - *Durable* is the seq up to which everything had been synced when the batch was written.
//!   Earlier data of the file that cannot be read was lost by the disk; later data may only have
//!   been cut off by a crash.
//! - Seqs below *reserved* may have been seen by subscribers and are never assigned again. Each
//!   header repeats the value, so the last one counts.
//! - A batch without events carries only these values, and its first seq is the next one to assign.
//!   With the flag *clean* it records an orderly stop, after which no seq beyond it has been seen.
//!
//! Seqs ascend within a file: a batch begins no earlier than the one before it ends. A file is
//! synced and truncated after its last batch before a file with a higher base exists. In the newest
//! file, allocated zeros follow the last batch; only after a clean batch there may be none. If they
//! are missing or not zero, data may have been cut off.
//!
//! The payload is `MSG <topic> <seq> <payload>` CRLF for each event; wire version 1 is that of
//! protocol 0.1. *Identified* batches hold at least one event with an `id=`.
//!
//! A directory may contain three other kinds of files:
//!
//! - `new.tmp`: a segment that was never completed; a start removes it.
//! - `<base>.log.torn`: the first 4 MiB of what a start has cut off; removed with the segment.
//! - `<base>.log.damaged`: a file that could not be read at all; never touched again. Seqs continue
//!   2^26 after its base.
//!
//! A change that an older program would misread needs a new segment version; a change of `MSG`
//! needs a new wire version. Files of all versions stay readable, with fixtures in
//! `tests/fixtures/log`. A program that meets a newer version refuses to start and leaves the file
//! alone.

use std::io;

use tidings_protocol::{Seq, TopicName};

use crate::disk::DiskFile;

/// The format version of files.
const VERSION: u16 = 1;
/// The version of the line protocol's `MSG` in payloads.
const WIRE_VERSION: u16 = 1;

/// Bytes of a segment's header.
pub(crate) const SEGMENT_HEADER: usize = 128;
/// Bytes of a batch's header.
pub(crate) const BATCH_HEADER: usize = 64;

const SEGMENT_MAGIC: &[u8; 8] = b"TIDINGSL";
pub(crate) const BATCH_MAGIC: &[u8; 4] = b"TDB1";

const CLEAN: u16 = 1;
const IDENTIFIED: u16 = 2;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// The topic that the segment belongs to.
    pub(crate) topic: TopicName,
    /// The first seq that the file may hold; also the file's name.
    pub(crate) base: Seq,
    /// The seq after the newest event in the earlier segments.
    pub(crate) previous_end: Seq,
    /// Seqs below this may have been seen.
    pub(crate) reserved: Seq,
    /// Creation time, which is about the time of its first event.
    pub(crate) unix_ms: i64,
}

/// The file that a batch belongs to, as the first part of the batch's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchHome(u32);

impl BatchHome {
    pub(crate) fn new(topic: &TopicName, base: Seq) -> Self {
        let name = crc32c::crc32c(topic.as_str().as_bytes());
        Self(crc32c::crc32c_append(name, &base.0.to_le_bytes()))
    }

    /// The checksum of a batch header at `offset` of the file.
    pub(super) fn checksum(self, header: &[u8], offset: u64) -> u32 {
        let address = crc32c::crc32c_append(self.0, &offset.to_le_bytes());
        crc32c::crc32c_append(address, header)
    }
}

/// The header of a batch. The default has no event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    /// The seq of the first event; without events, the next seq to assign.
    pub(crate) first: Seq,
    /// Number of events.
    pub(crate) count: u32,
    pub(crate) bytes: u32,
    /// The seq after the newest event before this batch.
    pub(crate) previous_end: Seq,
    /// Everything before this seq was synced when the batch was written.
    pub(crate) durable: Seq,
    /// Seqs below this may have been seen.
    pub(crate) reserved: Seq,
    /// Append time of its newest event.
    pub(crate) unix_ms: i64,
    /// CRC-32C of the payload.
    pub(crate) crc: u32,
    /// An orderly stop followed this batch.
    pub(crate) clean: bool,
    /// At least one event has an `id=`.
    pub(crate) identified: bool,
}

/// Why bytes are not a valid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FormatError {
    #[error("it ends before its header does")]
    Short,
    #[error("it does not begin with the right bytes")]
    Magic,
    #[error("it is of format version {0}, which this version of the program cannot read")]
    Version(u16),
    #[error("the checksum of its header is wrong")]
    Checksum,
    #[error("the fields of its header contradict each other")]
    Inconsistent,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER] {
        let mut bytes = [0; SEGMENT_HEADER];
        let name = self.topic.as_str().as_bytes();
        let length = u16::try_from(name.len()).expect("names have at most 64 bytes");
        bytes[..8].copy_from_slice(SEGMENT_MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&length.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.base.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.previous_end.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.reserved.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.unix_ms.to_le_bytes());
        bytes[48..48 + name.len()].copy_from_slice(name);
        let crc = crc32c::crc32c(&bytes[..SEGMENT_HEADER - 4]);
        bytes[SEGMENT_HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The checksum in the first bytes of a file, if it is correct.
    pub(crate) fn checksum(bytes: &[u8]) -> Option<u32> {
        Self::decode(bytes).ok().map(|_| u32_at(bytes, SEGMENT_HEADER - 4))
    }

    /// Reads the bytes of a header; fewer if the file is shorter.
    pub(crate) fn read(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; SEGMENT_HEADER];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Decodes the first bytes of a file.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes = bytes.get(..SEGMENT_HEADER).ok_or(FormatError::Short)?;
        if &bytes[..8] != SEGMENT_MAGIC {
            return Err(FormatError::Magic);
        }
        if crc32c::crc32c(&bytes[..SEGMENT_HEADER - 4]) != u32_at(bytes, SEGMENT_HEADER - 4) {
            return Err(FormatError::Checksum);
        }
        let version = u16_at(bytes, 8);
        if version != VERSION {
            return Err(FormatError::Version(version));
        }
        let length = usize::from(u16_at(bytes, 10)).min(64);
        let name = std::str::from_utf8(&bytes[48..48 + length]);
        let topic = name.ok().and_then(|name| TopicName::new(name).ok());
        Ok(Self {
            topic: topic.ok_or(FormatError::Inconsistent)?,
            base: Seq(u64_at(bytes, 16)),
            previous_end: Seq(u64_at(bytes, 24)),
            reserved: Seq(u64_at(bytes, 32)),
            unix_ms: u64_at(bytes, 40).cast_signed(),
        })
    }
}

impl BatchHeader {
    /// The seq after the last event.
    pub(crate) fn end(&self) -> Seq {
        Seq(self.first.0 + u64::from(self.count))
    }

    /// Encodes the header for a batch at `offset`.
    pub(crate) fn encode_at(&self, home: BatchHome, offset: u64) -> [u8; BATCH_HEADER] {
        let mut bytes = [0; BATCH_HEADER];
        let flags =
            if self.clean { CLEAN } else { 0 } | if self.identified { IDENTIFIED } else { 0 };
        bytes[..4].copy_from_slice(BATCH_MAGIC);
        bytes[4..6].copy_from_slice(&flags.to_le_bytes());
        bytes[6..8].copy_from_slice(&WIRE_VERSION.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.count.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.previous_end.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.durable.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.reserved.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.unix_ms.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.crc.to_le_bytes());
        let crc = home.checksum(&bytes[..BATCH_HEADER - 4], offset);
        bytes[BATCH_HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the header of a batch at `offset`. Does not check the payload.
    pub(crate) fn decode_at(
        bytes: &[u8],
        home: BatchHome,
        offset: u64,
    ) -> Result<Self, FormatError> {
        let bytes = bytes.get(..BATCH_HEADER).ok_or(FormatError::Short)?;
        if &bytes[..4] != BATCH_MAGIC {
            return Err(FormatError::Magic);
        }
        let checksum = home.checksum(&bytes[..BATCH_HEADER - 4], offset);
        if checksum != u32_at(bytes, BATCH_HEADER - 4) {
            return Err(FormatError::Checksum);
        }
        let wire = u16_at(bytes, 6);
        if wire != WIRE_VERSION {
            return Err(FormatError::Version(wire));
        }
        let flags = u16_at(bytes, 4);
        let header = Self {
            first: Seq(u64_at(bytes, 16)),
            count: u32_at(bytes, 12),
            bytes: u32_at(bytes, 8),
            previous_end: Seq(u64_at(bytes, 24)),
            durable: Seq(u64_at(bytes, 32)),
            reserved: Seq(u64_at(bytes, 40)),
            unix_ms: u64_at(bytes, 48).cast_signed(),
            crc: u32_at(bytes, 56),
            clean: flags & CLEAN != 0,
            identified: flags & IDENTIFIED != 0,
        };
        let sane = header.previous_end <= header.first
            && header.durable <= header.previous_end
            && header.first.0.checked_add(u64::from(header.count)).is_some()
            && (header.count == 0) == (header.bytes == 0);
        if sane { Ok(header) } else { Err(FormatError::Inconsistent) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segment() -> SegmentHeader {
        SegmentHeader {
            topic: "new-url".parse().unwrap(),
            base: Seq(77),
            previous_end: Seq(70),
            reserved: Seq(65_613),
            unix_ms: 1_795_000_000_000,
        }
    }

    fn batch() -> BatchHeader {
        BatchHeader {
            first: Seq(80),
            count: 3,
            bytes: 99,
            previous_end: Seq(78),
            durable: Seq(77),
            reserved: Seq(65_613),
            unix_ms: -1,
            crc: 7,
            clean: false,
            identified: true,
        }
    }

    fn home(topic: &str, base: u64) -> BatchHome {
        BatchHome::new(&topic.parse().unwrap(), Seq(base))
    }

    #[test]
    fn headers_survive_encoding_and_decoding() {
        assert_eq!(SegmentHeader::decode(&segment().encode()), Ok(segment()));
        let home = home("new-url", 77);
        assert_eq!(BatchHeader::decode_at(&batch().encode_at(home, 128), home, 128), Ok(batch()));
    }

    #[test]
    fn a_batch_at_another_address_is_invalid() {
        let bytes = batch().encode_at(home("new-url", 77), 128);
        for (topic, base, offset) in
            [("new-urk", 77, 128), ("new-url", 78, 128), ("new-url", 77, 192)]
        {
            let decoded = BatchHeader::decode_at(&bytes, home(topic, base), offset);
            assert_eq!(decoded, Err(FormatError::Checksum), "{topic} {base} {offset}");
        }
    }

    #[test]
    fn error_names_a_newer_version() {
        let mut bytes = segment().encode();
        bytes[8] = 9;
        let crc = crc32c::crc32c(&bytes[..SEGMENT_HEADER - 4]);
        bytes[SEGMENT_HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&bytes), Err(FormatError::Version(9)));
    }

    proptest! {
        #[test]
        fn no_flipped_bit_goes_unseen(bit in 0..8 * SEGMENT_HEADER) {
            let mut bytes = segment().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(SegmentHeader::decode(&bytes).is_err());
            let home = home("new-url", 77);
            let mut bytes = batch().encode_at(home, 128);
            let bit = bit % (8 * BATCH_HEADER);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(BatchHeader::decode_at(&bytes, home, 128).is_err());
        }

        #[test]
        fn garbage_is_no_header(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(SegmentHeader::decode(&bytes).is_err());
            prop_assert!(BatchHeader::decode_at(&bytes, home("new-url", 77), 128).is_err());
        }
    }
}
