//! A message of the shared log, and its bytes.
//!
//! ```text
//!   0 magic   4 version  5 kind  6 more follows  7 zero
//!   8 epoch  16 number  24 slot  32 moment  40 unix ms  48 checksum of what is before
//!  56 CRC-32C of the community, this header without the CRC, and the payload  60 zero
//!  64 payload
//! ```
//!
//! Numbers are little-endian.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a message before its payload.
pub const HEADER_BYTES: usize = 64;

/// Maximum bytes of a payload. With the header it is below the default `max_payload` of NATS, 1 MiB.
pub const PAYLOAD_BYTES_MAX: usize = 512 << 10;

const MAGIC: [u8; 4] = *b"TdCl";
const VERSION: u8 = 1;

/// Identifies a community for ever. Its name may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommunityId(pub [u8; 16]);

impl fmt::Display for CommunityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl FromStr for CommunityId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let bytes = HEXLOWER.decode(text.as_bytes()).map_err(|_| ())?;
        bytes.try_into().map(Self).map_err(|_| ())
    }
}

/// A place in the shared log. The first is 1; 0 is the place before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Slot(pub u64);

impl Slot {
    /// The slot after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A checksum of the bytes of all valid messages up to one of them. It finds a replica of the engine
/// that has diverged, and an engine that was restored to an older state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chain(pub u64);

impl Chain {
    /// The checksum after one more message.
    #[must_use]
    pub fn after(self, message: &[u8]) -> Self {
        Self(xxh3_64_with_seed(message, self.0))
    }
}

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The first of all: the log belongs to this community.
    Founded = 1,
    /// Its sender leads from here on.
    Opened = 2,
    /// Its payload is a part of the changes of the leader.
    Frames = 3,
    /// The leader leads no longer, and sends nothing more.
    Left = 4,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Founded, Self::Opened, Self::Frames, Self::Left]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// The commit to which the end of the payload belongs continues in the next message of the epoch.
    pub more: bool,
    /// The slot of the [`Kind::Opened`] that began the term of its sender; for that message its own.
    pub epoch: Slot,
    /// Its number in the epoch; 0 for [`Kind::Opened`].
    pub number: u64,
    /// The slot for which it was sent.
    pub slot: Slot,
    /// The time of the leader's clock in ms, which continues over takeovers.
    pub moment: u64,
    /// The wall clock of the leader in ms.
    pub unix_ms: i64,
    /// The checksum of all valid messages before it.
    pub before: Chain,
    /// Frames, or a part of them.
    pub payload: Bytes,
}

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Another program wrote them.
    #[error("it is no message of a broker")]
    Foreign,
    /// The version is newer than this program.
    #[error("its version is {0}; update this broker")]
    Version(u8),
    /// A broker wrote them, and they have changed since; or it belongs to another community.
    #[error("its checksum is wrong")]
    Damaged,
}

impl Message {
    /// The bytes of the message. They depend on nothing else, so that a message that is sent again
    /// for the same slot has the same bytes.
    pub fn encode(&self, community: CommunityId) -> Bytes {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.payload.len());
        bytes.extend(MAGIC);
        bytes.extend([VERSION, self.kind as u8, u8::from(self.more), 0]);
        for number in [self.epoch.0, self.number, self.slot.0, self.moment] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.unix_ms.to_le_bytes());
        bytes.extend(self.before.0.to_le_bytes());
        let crc = checksum(community, &bytes, &self.payload);
        bytes.extend(u64::from(crc).to_le_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes.into()
    }

    /// Reads a message.
    pub fn decode(bytes: &Bytes, community: CommunityId) -> Result<Self, MessageError> {
        let Some((header, payload)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(MessageError::Foreign);
        };
        if header[..4] != MAGIC {
            return Err(MessageError::Foreign);
        }
        if header[4] != VERSION {
            return Err(MessageError::Version(header[4]));
        }
        let number = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(field)
        };
        let crc = u64::from(checksum(community, &header[..56], payload));
        let kind = Kind::from_byte(header[5]);
        let (Some(kind), more @ (0 | 1), 0, true) = (kind, header[6], header[7], number(56) == crc)
        else {
            return Err(MessageError::Damaged);
        };
        Ok(Self {
            kind,
            more: more == 1,
            epoch: Slot(number(8)),
            number: number(16),
            slot: Slot(number(24)),
            moment: number(32),
            unix_ms: number(40).cast_signed(),
            before: Chain(number(48)),
            payload: bytes.slice(HEADER_BYTES..),
        })
    }
}

fn checksum(community: CommunityId, header: &[u8], payload: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&community.0);
    crc32c::crc32c_append(crc32c::crc32c_append(crc, header), payload)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COMMUNITY: CommunityId = CommunityId([7; 16]);

    fn message(payload: Vec<u8>) -> Message {
        Message {
            kind: Kind::Frames,
            more: true,
            epoch: Slot(1),
            number: 2,
            slot: Slot(3),
            moment: 4,
            unix_ms: -5,
            before: Chain(u64::MAX),
            payload: payload.into(),
        }
    }

    proptest! {
        #[test]
        fn a_message_is_read_as_it_was_written(
            kind in 0u8..4, more: bool, numbers: [u64; 5], unix_ms: i64, payload: Vec<u8>,
        ) {
            let [epoch, number, slot, moment, before] = numbers;
            let written = Message {
                kind: Kind::from_byte(kind + 1).unwrap(),
                more,
                epoch: Slot(epoch),
                number,
                slot: Slot(slot),
                moment,
                unix_ms,
                before: Chain(before),
                payload: payload.into(),
            };
            let bytes = written.encode(COMMUNITY);
            prop_assert_eq!(bytes.len(), HEADER_BYTES + written.payload.len());
            prop_assert_eq!(Message::decode(&bytes, COMMUNITY), Ok(written));
        }
    }

    #[test]
    fn each_changed_bit_and_another_community_are_noticed() {
        let bytes = message(b"payload".to_vec()).encode(COMMUNITY);
        assert!(Message::decode(&bytes, COMMUNITY).is_ok());
        assert_eq!(Message::decode(&bytes, CommunityId([8; 16])), Err(MessageError::Damaged));
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            let expected = match bit / 8 {
                0..4 => MessageError::Foreign,
                4 => MessageError::Version(changed[4]),
                _ => MessageError::Damaged,
            };
            assert_eq!(Message::decode(&changed.into(), COMMUNITY), Err(expected), "bit {bit}");
        }
        for end in 0..bytes.len() {
            assert!(Message::decode(&bytes.slice(..end), COMMUNITY).is_err(), "{end} bytes");
        }
    }
}
