//! The format of segment files, version 2.
//!
//! A segment is a header and then batches, each a header and the bytes that go on the wire:
//!
//! ```text
//!  segment header, 128 bytes                  batch header, 64 bytes, at any offset
//!    0  "TIDINGSL"                              0  "TDB2"
//!    8  u16  version (2)                        4  u16  flags: 1 clean, 2 identified
//!   10  u16  length of the topic's name         6  u16  version of the wire form (1)
//!   12  u32  zero                               8  u32  bytes of payload
//!   16  u64  base: the first number in it      12  u32  events
//!   24  u64  previous end                      16  u64  first number
//!   32  u64  reserved                          24  u64  previous end
//!   40  i64  created, unix ms                  32  u64  durable
//!   48  64 bytes of the topic's name           40  u64  reserved
//!  112  12 bytes, zero                         48  i64  unix ms of its newest event
//!  124  u32  CRC-32C of the 124 bytes before   56  u32  CRC-32C of the payload
//!                                              60  u32  CRC-32C of the 60 bytes before,
//!                                                       and of the batch's address
//! ```
//!
//! All numbers are little-endian; magic, flags and versions are as they stand. A file is named after
//! its base, in 20 digits: `00000000000000000077.log`.
//!
//! The *address* is not in the file: it is the topic's name, the file's base and the offset of the batch,
//! each number in 8 bytes. A copy of a batch that a disk wrote to the wrong place, in this file or another,
//! is therefore no batch, and nothing is learned from it.
//!
//! *Previous end* is the number after the newest event that was written before: if it is less than
//! the first number, the numbers between the two were given to nothing that was kept (a gap).
//! *Durable* is the number up to which everything had been synced when the batch was written: what
//! comes before it in the file and cannot be read was lost by the disk; what comes after it may
//! merely have been cut off by a crash. Numbers below *reserved* may have been seen by subscribers
//! and are never given again; each header repeats what holds of that, so the last one counts. A
//! batch without events carries only that, and its first number is the next one to be given; with
//! the flag *clean* it says that the broker stopped in an orderly way, and that nobody has seen more.
//!
//! The numbers of a file rise: a batch begins no earlier than the one before it ends. All of a file is
//! synced, and cut after its last batch, before there is one with a higher base. In the newest one
//! zeros follow, room that was taken in advance; only after a clean batch there may be none. Where
//! they are missing, or are no zeros, something may have been cut off.
//!
//! The payload is `MSG <topic> <seq> <payload>` CRLF for each event: wire version 1 is that of
//! protocol 0.1. *Identified* batches hold at least one event with an `id=`.
//!
//! Beside the segments there may be `new.tmp` (a segment that was never begun, removed at a start),
//! `<base>.log.torn` (the first 4 MiB of what a start has cut off, removed with the segment) and
//! `<base>.log.damaged` (a file of which nothing could be read, never touched again: numbers go on
//! 2^26 beyond its base).
//!
//! In files of version 1 batches begin with "TDB1", and their checksum is of the 60 bytes alone. Such a file
//! is read, and gets no more events; a start may still note in it, as version 2 does, how far numbers were
//! given. The [catalog](crate::catalog) goes on with that form: its numbers have no holes, so that a copy shows
//! in them.
//!
//! A change that an older program would misread takes a new version of the segment, one of `MSG` a
//! new wire version. Files of all versions stay readable, with fixtures in `tests/fixtures/log`; a
//! program that meets a later version than its own refuses to start and leaves the file alone.

use tidings_protocol::{Seq, TopicName};

/// Version of the format that logs are written in.
pub(crate) const VERSION: u16 = 2;
/// Version whose batches do not know where they were written.
pub(crate) const VERSION_1: u16 = 1;
/// Version of the line protocol's `MSG` in the payloads.
const WIRE_VERSION: u16 = 1;

/// Bytes of a segment's header.
pub(crate) const SEGMENT_HEADER: usize = 128;
/// Bytes of a batch's header.
pub(crate) const BATCH_HEADER: usize = 64;

const SEGMENT_MAGIC: &[u8; 8] = b"TIDINGSL";
/// How a batch begins, and how one without an address does.
const BATCH_MAGIC: &[u8; 4] = b"TDB2";
pub(crate) const BATCH_MAGIC_1: &[u8; 4] = b"TDB1";
/// What they have in common.
pub(crate) const ANY_BATCH_MAGIC: &[u8; 3] = b"TDB";

const CLEAN: u16 = 1;
const IDENTIFIED: u16 = 2;

/// What a segment file says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// [`VERSION`], or an earlier one.
    pub(crate) version: u16,
    /// Whose segment it is.
    pub(crate) topic: TopicName,
    /// The first number that may be in it; also in the file's name.
    pub(crate) base: Seq,
    /// The number after the newest event in the segments before it.
    pub(crate) previous_end: Seq,
    /// Numbers below may have been seen.
    pub(crate) reserved: Seq,
    /// When it was made, which is about the time of its first event.
    pub(crate) unix_ms: i64,
}

/// A file that batches are written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home(u32);

impl Home {
    pub(crate) fn new(topic: &TopicName, base: Seq) -> Self {
        let name = crc32c::crc32c(topic.as_str().as_bytes());
        Self(crc32c::crc32c_append(name, &base.0.to_le_bytes()))
    }

    /// The checksum of a header that lies at `offset` of the file.
    pub(super) fn checksum(self, header: &[u8], offset: u64) -> u32 {
        let address = crc32c::crc32c_append(self.0, &offset.to_le_bytes());
        crc32c::crc32c_append(address, header)
    }
}

/// What a batch says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    /// The first event's number; without events, the next one's.
    pub(crate) first: Seq,
    /// How many events.
    pub(crate) count: u32,
    /// Bytes of payload.
    pub(crate) bytes: u32,
    /// The number after the newest event before it.
    pub(crate) previous_end: Seq,
    /// What was synced when it was written.
    pub(crate) durable: Seq,
    /// Numbers below may have been seen.
    pub(crate) reserved: Seq,
    /// When its newest event was appended.
    pub(crate) unix_ms: i64,
    /// CRC-32C of the payload.
    pub(crate) crc: u32,
    /// The broker stopped after it.
    pub(crate) clean: bool,
    /// At least one event has an `id=`.
    pub(crate) identified: bool,
}

/// Why bytes are no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FormatError {
    /// There are too few bytes.
    #[error("it ends before its header does")]
    Short,
    /// They do not begin as they should.
    #[error("it does not begin as it should")]
    Magic,
    /// A version that this program does not know.
    #[error("it is of format version {0}, which this version of the program cannot read")]
    Version(u16),
    /// The checksum is wrong.
    #[error("the checksum of its header is wrong")]
    Checksum,
    /// The checksum is right, and the content makes no sense.
    #[error("its header makes no sense")]
    Senseless,
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
    /// The header as it is in the file.
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER] {
        let mut bytes = [0; SEGMENT_HEADER];
        let name = self.topic.as_str().as_bytes();
        let length = u16::try_from(name.len()).expect("names have at most 64 bytes");
        bytes[..8].copy_from_slice(SEGMENT_MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
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

    /// The checksum in the first bytes of a file, if it is right.
    pub(crate) fn checksum(bytes: &[u8]) -> Option<u32> {
        Self::decode(bytes).ok().map(|_| u32_at(bytes, SEGMENT_HEADER - 4))
    }

    /// Reads the first bytes of a file.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes = bytes.get(..SEGMENT_HEADER).ok_or(FormatError::Short)?;
        if &bytes[..8] != SEGMENT_MAGIC {
            return Err(FormatError::Magic);
        }
        if crc32c::crc32c(&bytes[..SEGMENT_HEADER - 4]) != u32_at(bytes, SEGMENT_HEADER - 4) {
            return Err(FormatError::Checksum);
        }
        let version = u16_at(bytes, 8);
        if !(VERSION_1..=VERSION).contains(&version) {
            return Err(FormatError::Version(version));
        }
        let length = usize::from(u16_at(bytes, 10)).min(64);
        let name = std::str::from_utf8(&bytes[48..48 + length]);
        let topic = name.ok().and_then(|name| TopicName::new(name).ok());
        Ok(Self {
            version,
            topic: topic.ok_or(FormatError::Senseless)?,
            base: Seq(u64_at(bytes, 16)),
            previous_end: Seq(u64_at(bytes, 24)),
            reserved: Seq(u64_at(bytes, 32)),
            unix_ms: u64_at(bytes, 40).cast_signed(),
        })
    }
}

impl BatchHeader {
    /// The number after the last event's.
    pub(crate) fn end(&self) -> Seq {
        Seq(self.first.0 + u64::from(self.count))
    }

    /// The header as it is in the file, if it lies at `offset` there.
    pub(crate) fn encode_at(&self, home: Home, offset: u64) -> [u8; BATCH_HEADER] {
        self.encode_with(*BATCH_MAGIC, |header| home.checksum(header, offset))
    }

    /// The header as it is in a file of [`VERSION_1`].
    pub(crate) fn encode(&self) -> [u8; BATCH_HEADER] {
        self.encode_with(*BATCH_MAGIC_1, crc32c::crc32c)
    }

    fn encode_with(&self, magic: [u8; 4], checksum: impl Fn(&[u8]) -> u32) -> [u8; BATCH_HEADER] {
        let mut bytes = [0; BATCH_HEADER];
        let flags =
            if self.clean { CLEAN } else { 0 } | if self.identified { IDENTIFIED } else { 0 };
        bytes[..4].copy_from_slice(&magic);
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
        let crc = checksum(&bytes[..BATCH_HEADER - 4]);
        bytes[BATCH_HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the first bytes of a batch that lies at `offset`, or of one that does not know where it lies.
    /// Whether the payload is right is another question.
    pub(crate) fn decode_at(bytes: &[u8], home: Home, offset: u64) -> Result<Self, FormatError> {
        match Self::decode(bytes) {
            Err(FormatError::Magic) => {
                Self::decode_with(bytes, *BATCH_MAGIC, |header| home.checksum(header, offset))
            }
            decoded => decoded,
        }
    }

    /// Reads the first bytes of a batch in a file of [`VERSION_1`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        Self::decode_with(bytes, *BATCH_MAGIC_1, crc32c::crc32c)
    }

    fn decode_with(
        bytes: &[u8],
        magic: [u8; 4],
        checksum: impl Fn(&[u8]) -> u32,
    ) -> Result<Self, FormatError> {
        let bytes = bytes.get(..BATCH_HEADER).ok_or(FormatError::Short)?;
        if bytes[..4] != magic {
            return Err(FormatError::Magic);
        }
        if checksum(&bytes[..BATCH_HEADER - 4]) != u32_at(bytes, BATCH_HEADER - 4) {
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
        if sane { Ok(header) } else { Err(FormatError::Senseless) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segment() -> SegmentHeader {
        SegmentHeader {
            version: VERSION,
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

    fn home(topic: &str, base: u64) -> Home {
        Home::new(&topic.parse().unwrap(), Seq(base))
    }

    #[test]
    fn headers_come_back_as_they_were() {
        let old = SegmentHeader { version: VERSION_1, ..segment() };
        for header in [segment(), old] {
            assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
        }
        let home = home("new-url", 77);
        assert_eq!(BatchHeader::decode_at(&batch().encode_at(home, 128), home, 128), Ok(batch()));
        assert_eq!(BatchHeader::decode_at(&batch().encode(), home, 128), Ok(batch()));
        assert_eq!(BatchHeader::decode(&batch().encode()), Ok(batch()));
    }

    #[test]
    fn a_batch_that_lies_elsewhere_is_none() {
        let bytes = batch().encode_at(home("new-url", 77), 128);
        for (topic, base, offset) in
            [("new-urk", 77, 128), ("new-url", 78, 128), ("new-url", 77, 192)]
        {
            let decoded = BatchHeader::decode_at(&bytes, home(topic, base), offset);
            assert_eq!(decoded, Err(FormatError::Checksum), "{topic} {base} {offset}");
        }
        assert_eq!(BatchHeader::decode(&bytes), Err(FormatError::Magic));
    }

    #[test]
    fn a_later_version_is_named() {
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
            for mut bytes in [batch().encode(), batch().encode_at(home, 128)] {
                let bit = bit % (8 * BATCH_HEADER);
                bytes[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(BatchHeader::decode_at(&bytes, home, 128).is_err());
            }
        }

        #[test]
        fn garbage_is_no_header(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(SegmentHeader::decode(&bytes).is_err());
            prop_assert!(BatchHeader::decode_at(&bytes, home("new-url", 77), 128).is_err());
        }
    }
}
